"""State of one server in one file of one log: its slots, the known shapes, its catalogue.

All of them have numbers of the log inside, so they are worth nothing in another one. Each part is
written by its owner, in whatever thread; the parts that have not changed are written as they are.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.host import checkpoint
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_of_log import StateOfLog, StateOfOtherLog

FILE_NAME = "server.json"
_HINT = (
    "The log was made anew, and clients must copy anew: move the file away, then create the "
    "publications and the subscriptions again."
)
SLOTS, SHAPES, CATALOG = "slots", "shapes", "catalog"
_EMPTY = msgspec.Raw(b"{}")
Part = TypeVar("Part")


class ServedOtherLog(StateOfOtherLog):
    """Slots and publications were made on another change log. fields: place, expected, actual."""

    code = "SV04"


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The file. parts: encoded by their owners, by name."""

    log_id: str
    parts: dict[str, msgspec.Raw] = {}


def _is_disposable(saved: _Saved) -> bool:
    """Return whether no client has made anything: no slot, and no version of a publication."""
    slots = msgspec.json.decode(saved.parts.get(SLOTS, _EMPTY))
    catalog = msgspec.json.decode(saved.parts.get(CATALOG, _EMPTY))
    made = len(catalog.get("versions", ()))
    return not slots.get("slots") and made <= len(catalog.get("of_file", ()))


class SavedState:
    """The file, open. For several threads."""

    def __init__(
        self,
        directory: Path,
        *,
        log_id: str,
        files: Files = REAL_FILES,
    ) -> None:
        """Read it. Raises ServedOtherLog, CheckpointCorrupt."""
        self._file = StateOfLog(
            path=directory / FILE_NAME,
            kind=_Saved,
            name="state of the server",
            hint=_HINT,
            error=ServedOtherLog,
            is_disposable=_is_disposable,
            files=files,
        )
        saved = self._file.load(log_id)
        self._log_id = log_id
        self._parts = dict(saved.parts) if saved is not None else {}
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def load(self, name: str, kind: type[Part]) -> Part | None:
        """Return a part, None if it was never saved. Raises CheckpointCorrupt."""
        with self._lock:
            raw = self._parts.get(name)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise checkpoint.corrupt(self.path, f"{name}: {error}") from error

    def save(self, name: str, part: object) -> None:
        """Replace a part, durably; what fails changes nothing. Raises DiskFull, FileFailed."""
        raw = msgspec.Raw(msgspec.json.encode(part))
        with self._lock:
            parts = {**self._parts, name: raw}
            self._file.save(_Saved(log_id=self._log_id, parts=parts))
            self._parts = parts
