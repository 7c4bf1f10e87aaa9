"""Change events of a segment, one after another, for consumers.

Rows are decoded column by column and only when touched; an event itself is little more than its
place in a frame. Memory is bounded by the frames of one run. Not here: the choice of segments, and
a consumer's saved position.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.consume.event import COME, GONE, WHOLE, event_kernel
from penstock.consume.images import RowsFrame
from penstock.consume.pieces import (
    FrameGroups,
    Piece,
    Takes,
    find_reloaded,
    gsn_shift,
    pieces_of,
    told_markers,
)
from penstock.log.python_values import EPOCH_UTC
from penstock.log.segment import Segment
from penstock.model import TableName

if TYPE_CHECKING:
    from penstock.consume.event import Cursor, EventCore, Row
else:
    Cursor, EventCore, Row = event_kernel()


@final
class CdcEvent(EventCore):
    """One change of one row, as a consumer gets it.

    An update that changes the key is two events, each with a gsn of its own: first `D` of the old
    key, with value None, then `I` of the new one. Both have the change's before image. (In a log
    of an earlier penstock both have one gsn.)
    """

    __slots__ = ()

    primary = True
    expire_time = 0

    @property
    def before(self) -> Mapping[str, Any] | None:
        """Row before the change, as far as the source sent it; None if it sent none."""
        if not self.frame.has_before[self.row]:
            return None
        return Row(self.frame.before, self.row)

    @property
    def absent(self) -> frozenset[str]:
        """Columns that the source did not send: unchanged in an update, not NULL."""
        return self.frame.absent(self.row, is_gone=self.is_gone)

    @property
    def op(self) -> str:
        """Operation: I, U or D."""
        if self.half:
            return "D" if self.half == GONE else "I"
        return chr(self.frame.ops[self.row])

    @property
    def table(self) -> str:
        """Name of the table, `schema.table`."""
        return self.frame.table

    @property
    def cache_id(self) -> int:
        """Stable id of the table: it stays the same when the table is renamed."""
        return self.frame.cache_id

    @property
    def partition(self) -> int:
        """Number of the log that the change is from, in a merged log; 0 otherwise."""
        return self.frame.transaction(self.row).origin

    @property
    def gsn(self) -> int:
        """Number of the change in the log; negative for a row of a snapshot."""
        return self.frame.number(self.row, is_first_of_two=self.half == GONE)

    @property
    def version(self) -> int:
        """Order of the changes of one key: a later one has the higher version. It is the gsn."""
        return self.gsn

    @property
    def trx(self) -> int:
        """Number of its transaction in the log."""
        return self.frame.trx(self.row)

    @property
    def position(self) -> int:
        """Position of the commit in the source, as a number; `penstock log cat` prints it."""
        return self.frame.transaction(self.row).position

    @property
    def commit_time(self) -> datetime.datetime:
        """Time of the commit at the source; UTC."""
        time_us = self.frame.transaction(self.row).commit_time_us
        return EPOCH_UTC + datetime.timedelta(microseconds=time_us)

    @property
    def source_xid(self) -> int | str:
        """Source's own id of the transaction; 0 or empty if it has none."""
        return self.frame.transaction(self.row).source_id

    @property
    def resent(self) -> bool:
        """Return whether the row did not change and only arrives again because its table is sent
        again.
        """
        return self.frame.resent(self.row)

    def __repr__(self) -> str:
        return f"CdcEvent({self.op} {self.table} gsn={self.gsn})"


@dataclass(frozen=True, slots=True)
class _Group:
    """Events of frames that interleave, in order: gsn, frame, row and half of each.

    Gsns are as in the segment.
    """

    gsns: npt.NDArray[np.int64]
    frames: list[RowsFrame]
    rows: list[int]
    halves: list[int]


class EventReader:
    """Reads the events of the wanted tables from a segment, frame by frame."""

    def __init__(self, segment: Segment, takes: Takes, *, keep_binary: bool) -> None:
        """Read only markers: frames are read when events are requested."""
        self._segment = segment
        self._keep_binary = keep_binary
        taken = {
            totals.id for totals in segment.tables if takes(TableName(totals.schema, totals.name))
        }
        self.markers = told_markers(segment)
        self.groups = FrameGroups(
            [
                entry
                for entry in segment.entries
                if entry.kind == FrameKind.ROWS and entry.relation_id in taken
            ]
        )
        self._last: tuple[int, _Group] | None = None

    def group(self, place: int) -> _Group:
        """Return one group. Raises SegmentCorrupt."""
        if self._last is None or self._last[0] != place:
            self._last = place, self._read(self.groups.groups[place])
        return self._last[1]

    def _read(self, entries: list[FrameEntry]) -> _Group:
        transactions = self._segment.transactions
        for (
            entry
        ) in entries:  # now: the file may be closed when an event is asked for its transaction
            transactions.load(entry.trx_first, entry.trx_last)
        frames = []
        for entry in entries:
            rows = self._segment.read_rows(entry)
            table = TableName(rows.relation.schema, rows.relation.name)
            again = find_reloaded(self.markers, table)
            frames.append(
                RowsFrame(
                    rows,
                    transactions,
                    keep_binary=self._keep_binary,
                    reloaded=again,
                    gsn_shift=gsn_shift(self._segment),
                    keys_have_two=not self._segment.is_dense,
                )
            )
        return _order(frames)


def _order(frames: list[RowsFrame]) -> _Group:
    if (
        len(frames) == 1 and not frames[0].find_moved().any()
    ):  # nearly always; the rest is not needed
        count = len(frames[0].gsns)
        return _Group(frames[0].gsns, frames * count, list(range(count)), [WHOLE] * count)
    gsns = np.concatenate([frame.gsns for frame in frames])
    which = np.repeat(np.arange(len(frames)), [len(frame.gsns) for frame in frames])
    rows = np.concatenate([np.arange(len(frame.gsns)) for frame in frames])
    moved = np.concatenate([frame.find_moved() for frame in frames])
    if len(frames) > 1:
        order = np.argsort(gsns, kind="stable")
        gsns, which, rows, moved = gsns[order], which[order], rows[order], moved[order]
    halves = [WHOLE] * len(gsns)
    if moved.any():
        times = np.where(moved, 2, 1)
        gsns, which, rows, moved = (np.repeat(each, times) for each in (gsns, which, rows, moved))
        second = np.append(False, moved[1:] & (gsns[1:] == gsns[:-1]))
        halves = np.where(moved, np.where(second, COME, GONE), WHOLE).tolist()
        if frames[0].keys_have_two:
            gsns = gsns - (moved & ~second)
    return _Group(gsns, [frames[at] for at in which.tolist()], rows.tolist(), halves)


class EventIterator(Cursor):
    """Events between two places of a segment, in order; see Piece."""

    def __init__(
        self, reader: EventReader, gsn_after: int, gsn_through: int, entries_after: int
    ) -> None:
        """Begin; the arguments are those of events_of()."""
        super().__init__(CdcEvent, self._has_next)
        self._reader = reader
        self._through = gsn_through
        self._before = (gsn_after, entries_after)
        self._places = iter(reader.groups.between(gsn_after, gsn_through))
        self._group: _Group | None = None
        self._is_drained = False

    @property
    def gsn_read(self) -> int:
        """Last row change all of whose events were returned, or need not be."""
        return self.place_read[0]

    @property
    def place_read(self) -> tuple[int, int]:
        """gsn_read, and how many events of the next row change were returned.

        The second number is 1 between two events with one gsn; otherwise 0.
        """
        if self._is_drained:
            return self._through, 0
        if self._group is None or not self.at:
            return self._before
        gsn = int(self._group.gsns[self.at - 1])
        if self._group.halves[self.at - 1] == GONE and self._group.gsns[self.at] == gsn:
            return gsn - 1, 1
        return max(gsn, self._before[0]), 0

    @property
    def is_drained(self) -> bool:
        """Return whether all events were returned."""
        return not self._has_next()

    def _has_next(self) -> bool:
        """Return whether there is one more; move on to its group."""
        while self.at >= self.end and not self._is_drained:
            place = next(self._places, None)
            if place is None:
                self._is_drained = True
            else:
                self._enter(place)
        return not self._is_drained

    def _enter(self, place: int) -> None:
        self._before = self.place_read
        group = self._reader.group(place)
        after, skip = self._before
        at = int(np.searchsorted(group.gsns, after, "right"))
        end = int(np.searchsorted(group.gsns, self._through, "right"))
        if skip and at + 1 < end and group.gsns[at] == group.gsns[at + 1] == after + 1:
            at += 1  # of two events with one gsn the first was read
        self._group = group
        self.begin(group.frames, group.rows, group.halves, at, end)


def events_of(
    segment: Segment,
    *,
    takes: Takes,
    gsn_after: int,
    keep_binary: bool,
    entries_after: int = 0,
) -> Iterator[Piece[EventIterator]]:
    """Yield a segment's events after a row change, in order, as at least one piece.

    Pieces are to be read in turn, while the segment is open; events may be kept for longer.
    Markers after gsn_after itself are in the first piece. Raises SegmentCorrupt.

    Args:
        segment: the segment.
        takes: returns whether a table is wanted; frames of others are not read.
        gsn_after: the last row change that was read.
        keep_binary: values are Arrow scalars, of binary and uuid columns bytes; otherwise plain
            Python values, as in `penstock.read_log`.
        entries_after: how many events of the next row change were read (see
            EventIterator.place_read).
    """
    reader = EventReader(segment, takes, keep_binary=keep_binary)
    return pieces_of(
        segment,
        reader.markers,
        lambda after, through, entries: EventIterator(reader, after, through, entries),
        gsn_after=gsn_after,
        entries_after=entries_after,
    )
