"""What a consumer does with an event a million times: its key, its row, and the next one.

Plain twin of the compiled `_event.pyx`, which does the same. Not here: what else an event says
(`events.py`), and how columns become values (`images.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from penstock.consume.images import Image, RowsFrame

try:
    from penstock.consume._event import Cursor as _Cursor
    from penstock.consume._event import EventCore as _EventCore
    from penstock.consume._event import Row as _Row
except ModuleNotFoundError as missing:
    if missing.name != "penstock.consume._event":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

DELETE = ord("D")
# An update that changes the key is two events: the row of the old key goes, that of the new comes.
WHOLE, GONE, COME = 0, 1, 2


class Row(Mapping[str, Any]):
    """The columns of one row that were sent, by name. Values are made when they are asked for."""

    __slots__ = ("_image", "_row")

    def __init__(self, image: Image, row: int) -> None:
        """image: of the frame that the row is in."""
        self._image = image
        self._row = row

    def __getitem__(self, name: str) -> Any:
        image = self._image
        cells = image.loaded.get(name)
        if cells is None:
            cells = image.cells(name)
        if image.absent is not None and name in image.absent.names(self._row):
            raise KeyError(name)
        return cells[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._image.names_of(self._row))

    def __len__(self) -> int:
        return len(self._image.names_of(self._row))

    def __repr__(self) -> str:
        return repr(dict(self))


class EventCore:
    """A row of a frame. half: WHOLE, or which of the two events of a changed key."""

    __slots__ = ("frame", "half", "row")

    def __init__(self, frame: RowsFrame, row: int, half: int) -> None:
        """row: its place in the frame."""
        self.frame = frame
        self.row = row
        self.half = half

    @property
    def is_gone(self) -> bool:
        """Whether the row of this key is not there behind the change."""
        return self.half == GONE or (self.half == WHOLE and self.frame.ops[self.row] == DELETE)

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the key's columns; of all columns where the table has no key.

        Raises KeyNotSent.
        """
        frame = self.frame
        if self.is_gone:
            keys = frame.old_keys
            if keys is None:
                keys = frame.load_old_keys()
        else:
            keys = frame.new_keys
            if keys is None:
                keys = frame.load_new_keys()
        key = keys[self.row]
        if key is None:
            raise frame.key_not_sent()
        return key

    @property
    def value(self) -> Mapping[str, Any] | None:
        """The row behind the change by column, without those that are absent; None: it is gone."""
        return None if self.is_gone else Row(self.frame.after, self.row)


_Event = TypeVar("_Event", bound=EventCore)
More = Callable[[], bool]


class Cursor(Iterator[Any]):
    """Walks over the events of a group of frames, and asks for the next group at its end.

    at: the place of the next event, end: behind the last one. more: sets another group by
    `begin`; False when there is none.
    """

    def __init__(self, kind: type[EventCore], more: More) -> None:
        """kind: of the events, made as EventCore is."""
        self._kind = kind
        self._more = more
        self.begin((), (), (), 0, 0)

    def begin(
        self,
        frames: Sequence[RowsFrame],
        rows: Sequence[int],
        halves: Sequence[int],
        at: int,
        end: int,
    ) -> None:
        """Go on in this group. frames, rows, halves: one of each per event."""
        if not 0 <= at <= end <= min(len(frames), len(rows), len(halves)):
            raise ValueError("a cursor outside its group")
        self._frames, self._rows, self._halves = frames, rows, halves
        self.at, self.end = at, end

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.at >= self.end and not self._more():
            raise StopIteration
        at = self.at
        self.at = at + 1
        return self._kind(self._frames[at], self._rows[at], self._halves[at])


def event_kernel() -> tuple[type[Cursor], type[EventCore], type[Row]]:
    """The compiled classes, or the twins when they are not built or PENSTOCK_PURE=1 forbids it."""
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _Cursor, _EventCore, _Row
    return Cursor, EventCore, Row
