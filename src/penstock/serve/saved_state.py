"""State of one server in one file for one log: its slots, the known shapes, its catalogue.

All of them contain numbers of the log, so they are useless for another one. Each part is written
by its owner, in any thread; unchanged parts are written as they are.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.host.state_of_log import StateOfLog, StateOfOtherLog

FILE_NAME = "server.json"
_HINT = (
    "The log was created again, and clients must copy again: move the file away, then create the "
    "publications and the subscriptions again."
)
SLOTS, SHAPES, CATALOG = "slots", "shapes", "catalog"
_EMPTY = msgspec.Raw(b"{}")
Part = TypeVar("Part")


class ServedOtherLog(StateOfOtherLog):
    """Slots and publications belong to another change log. Fields: place, expected, actual."""

    code = "SV04"


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file; parts are encoded by their owners, by name."""

    log_id: str
    parts: dict[str, msgspec.Raw] = {}


def _is_disposable(saved: _Saved) -> bool:
    """Return whether no client has made anything: no slot, no version of a publication."""
    slots = msgspec.json.decode(saved.parts.get(SLOTS, _EMPTY))
    catalog = msgspec.json.decode(saved.parts.get(CATALOG, _EMPTY))
    made = len(catalog.get("versions", ()))
    return not slots.get("slots") and made <= len(catalog.get("of_file", ()))


class SavedState:
    """Open state file. For several threads."""

    def __init__(
        self,
        directory: Path,
        *,
        log_id: str,
        files: Files = REAL_FILES,
    ) -> None:
        """Read the file. Raises ServedOtherLog, CheckpointCorrupt."""
        self._file = StateOfLog(
            StateFile(
                directory / FILE_NAME, _Saved, name="state of the server", hint=_HINT, files=files
            ),
            hint=_HINT,
            error=ServedOtherLog,
            is_disposable=_is_disposable,
        )
        saved = self._file.load(log_id)
        self._log_id = log_id
        self._parts = dict(saved.parts) if saved is not None else {}
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.file.path

    def load(self, name: str, kind: type[Part]) -> Part | None:
        """Return a part, None if it was never saved. Raises CheckpointCorrupt."""
        with self._lock:
            raw = self._parts.get(name)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise self._file.file.make_damaged(f"{name}: {error}") from error

    def save(self, name: str, part: object) -> None:
        """Replace a part, durably; a failure changes nothing. Raises DiskFull, FileFailed."""
        raw = msgspec.Raw(msgspec.json.encode(part))
        with self._lock:
            parts = {**self._parts, name: raw}
            self._file.save(_Saved(log_id=self._log_id, parts=parts))
            self._parts = parts
