"""Hot path of a consumer's events: key, row, and the next event.

Plain twin of the compiled `_event.pyx`, which does the same. Not here: other properties of an
event (`events.py`), and the conversion of columns to values (`images.py`).
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
        raise  # the kernel exists and is broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

DELETE = ord("D")
# An update that changes the key is two events: a delete of the old key's row, an insert of the new.
WHOLE, GONE, COME = 0, 1, 2


class Row(Mapping[str, Any]):
    """Columns of one row that were sent, by name. Python values are created on first access."""

    __slots__ = ("_image", "_row")

    def __init__(self, image: Image, row: int) -> None:
        """Set the place of the row.

        Args:
            image: of the frame with the row.
            row: its place in the frame.
        """
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
    """Row of a frame.

    Attributes:
        half: WHOLE, or which of the two events of a changed key.
    """

    __slots__ = ("frame", "half", "row")

    def __init__(self, frame: RowsFrame, row: int, half: int) -> None:
        """Set the place of the row.

        Args:
            frame: the frame.
            row: its place in the frame.
            half: as the attribute.
        """
        self.frame = frame
        self.row = row
        self.half = half

    @property
    def is_gone(self) -> bool:
        """Return whether the row of this key does not exist after the change."""
        return self.half == GONE or (self.half == WHOLE and self.frame.ops[self.row] == DELETE)

    @property
    def key(self) -> tuple[Any, ...]:
        """Values of the key's columns; of all columns if the table has no key.

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
        """Row after the change by column, without absent columns; None: it was deleted."""
        return None if self.is_gone else Row(self.frame.after, self.row)


_Event = TypeVar("_Event", bound=EventCore)
More = Callable[[], bool]


class Cursor(Iterator[Any]):
    """Walks over the events of a group of frames, and requests the next group at its end.

    Attributes:
        at: the place of the next event.
        end: the place after the last event.
        more: sets another group by `begin`; returns False if there is none.
    """

    def __init__(self, kind: type[EventCore], more: More) -> None:
        """Start without a group.

        Args:
            kind: class of the events, made as EventCore is.
            more: as the attribute.
        """
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
        """Continue in this group.

        Args:
            frames: one per event.
            rows: one per event.
            halves: one per event.
            at: the place of the next event.
            end: the place after the last event.
        """
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
    """Return the compiled classes, or the twins if they are not built or PENSTOCK_PURE=1 is set."""
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _Cursor, _EventCore, _Row
    return Cursor, EventCore, Row
