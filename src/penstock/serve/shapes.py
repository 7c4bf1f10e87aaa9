"""Newest shape of each table, remembered: segments are removed, and tables may rest for months.

Shapes are learnt from the source's catalogue when the server starts, and from the log as it grows.
For several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.codec.ckt import FrameKind
from penstock.log.segment import Segment
from penstock.model import DROP_TABLE, MarkerKind, Relation, TableName
from penstock.serve.saved_state import SHAPES, SavedState


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
