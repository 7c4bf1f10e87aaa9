"""State of one server in one file for one log: its slots, the known shapes, its catalogue.

All of them contain numbers of the log, so they are useless for another one. Each part is written
by its owner, in any thread; unchanged parts are written as they are.

The newest shape of each table is remembered, because segments are removed and tables may rest for
months. Shapes are learnt from the source's catalogue when the server starts, and from the log as it
grows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.codec.ckt import FrameKind
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.host.state_of_log import StateOfLog, StateOfOtherLog
from penstock.log.segment import Segment
from penstock.model import DROP_TABLE, MarkerKind, Relation, TableName

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
    """Open state file. Used by several threads."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShapes:
    """Part of the state file."""

    relations: list[Relation] = field(default_factory=list)


class Shapes:
    """Newest shapes by table."""

    def __init__(self, state: SavedState) -> None:
        """Load the saved shapes. Raises CheckpointCorrupt."""
        self._state = state
        self._lock = threading.Lock()
        saved = state.load(SHAPES, SavedShapes)
        known = saved.relations if saved is not None else []
        self._found = {TableName(one.schema, one.name): one for one in known}
        self._seen = (-1, 0)  # the last segment that was read, and how many entries of it
        self._is_saved = True

    def of(self, name: TableName) -> Relation | None:
        """Return a table's newest shape; None if it is unknown."""
        with self._lock:
            return self._found.get(name)

    def all(self) -> list[Relation]:
        """Return all shapes, by name."""
        with self._lock:
            return [self._found[name] for name in sorted(self._found)]

    def begin(self, relations: Iterable[Relation]) -> bool:
        """Learn the tables of the source; shapes from the log have priority."""
        with self._lock:
            new = {
                name: one
                for one in relations
                if (name := TableName(one.schema, one.name)) not in self._found
            }
            self._found |= new
        return self._note_change(bool(new))

    def learn(self, segment: Segment) -> bool:
        """Learn from a segment; return whether anything is new. Segments are given in order."""
        number, count = self._seen
        if segment.number < number or (segment.number, len(segment.entries)) == self._seen:
            return self._note_change(False)
        first = count if segment.number == number else 0
        self._seen = (segment.number, len(segment.entries))
        before = dict(self._found)
        with self._lock:
            told: list[tuple[int, Relation | tuple[TableName, ...]]] = [
                (gsn, relation) for gsn, relation in segment.relations()
            ]
            for entry in segment.entries[first:]:
                if entry.kind != FrameKind.MARKER:
                    continue
                marker = segment.read_marker(entry)
                if marker.kind is MarkerKind.DDL and marker.data == DROP_TABLE:
                    told.append((marker.gsn, tuple(TableName(*one) for one in marker.tables)))
            for _, what in sorted(told, key=lambda one: one[0]):
                if isinstance(what, Relation):
                    self._found[TableName(what.schema, what.name)] = what
                else:
                    for name in what:
                        self._found.pop(name, None)
        return self._note_change(before != self._found)

    def _note_change(self, changed: bool) -> bool:
        if changed or not self._is_saved:
            self._is_saved = False  # until it is saved: the next look tries again
            self._state.save(SHAPES, SavedShapes(relations=self.all()))
            self._is_saved = True
            return True
        return False
