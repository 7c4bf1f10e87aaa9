"""Changes of a segment as Arrow record batches, for consumers that want columns.

There is one batch for each table and run, as in the log. Tables of one run interleave by gsn, so a
consumer of batches sees the changes of each table in order, and those of several tables only run
by run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.consume.pieces import (
    FrameGroups,
    Piece,
    Takes,
    find_reloaded,
    gsn_shift,
    pieces_of,
    told_markers,
)
from penstock.log.segment import Segment
from penstock.model import Relation, TableName

# A frame is one batch, or two: rows that were read again come first, in a batch of their own.
_BATCHES_PER_FRAME = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcBatch:
    """Changes of one table, in order.

    Attributes:
        batch: as in the log: gsn, trx, op, absent, after, before, and then position and
            commit_time of the transaction (see docs/ckt-format.md).
        relation: the shape of its rows.
        resent: these rows did not change; the table's rows are sent again.
        ends_run: all changes of later batches follow those of all batches so far.
    """

    relation: Relation
    batch: pa.RecordBatch
    resent: bool
    ends_run: bool = False

    @property
    def table(self) -> str:
        """Name of the table, `schema.table`."""
        return self.relation.full_name

    @property
    def cache_id(self) -> int:
        """Stable id of the table: it stays the same when the table is renamed."""
        return self.relation.source_id


class BatchReader:
    """Reads the batches of the wanted tables from a segment, frame by frame."""

    def __init__(self, segment: Segment, takes: Takes) -> None:
        """Read only markers: frames are read when batches are requested."""
        self._segment = segment
        names = {totals.id: TableName(totals.schema, totals.name) for totals in segment.tables}
        self._taken = {number: name for number, name in names.items() if takes(name)}
        self.markers = told_markers(segment)
        # Of all tables, so that the count stays the same when other tables are wanted.
        self.groups = FrameGroups(
            [entry for entry in segment.entries if entry.kind == FrameKind.ROWS]
        )

    def is_at_commit(self, gsn: int) -> bool:
        """Return whether no transaction has changes on both sides of the end of row `gsn`.

        Returns False where frames that span the row hide it.
        """
        groups = self.groups
        done = groups.between(-1, gsn).stop
        if done and groups.gsn_last(done - 1) > gsn:
            return False
        later = [entry.trx_first for group in groups.groups[done:] for entry in group]
        later += [marker.trx for marker in self.markers if marker.gsn >= gsn]
        if not done or not later:
            return True
        earlier = max(entry.trx_last for group in groups.groups[:done] for entry in group)
        return earlier < min(later)

    def takes(self, entry: FrameEntry) -> bool:
        """Return whether a frame is of a wanted table."""
        return entry.relation_id in self._taken

    def read(self, entry: FrameEntry, after: int, through: int) -> list[CdcBatch | None]:
        """Return a frame's rows in this span: first those that were read again, then the others;
        None for no row.

        Raises SegmentCorrupt.
        """
        rows = self._segment.read_rows(entry)
        batch = rows.batch
        if entry.gsn_first <= after or entry.gsn_last > through:
            gsns = batch.column("gsn").to_numpy()
            start, end = (int(np.searchsorted(gsns, gsn, "right")) for gsn in (after, through))
            batch = batch.slice(start, end - start)
        again = self._resent_count(batch, entry)
        return [
            self._batch(rows.relation, batch.slice(0, again), resent=True),
            self._batch(rows.relation, batch.slice(again), resent=False),
        ]

    def _resent_count(self, batch: pa.RecordBatch, entry: FrameEntry) -> int:
        """Return how many of the first rows belong to a reload. A piece always begins after the
        reload's marker.
        """
        trxs = find_reloaded(self.markers, self._taken[entry.relation_id])
        within = [trx for trx in trxs if entry.trx_first <= trx <= entry.trx_last]
        count = 0
        for trx in within:
            again = batch.column("trx").to_numpy() == trx
            again &= batch.column("gsn").to_numpy() > trxs[trx]
            if again.any():
                count = int(np.flatnonzero(again)[-1]) + 1
        return count

    def _batch(self, relation: Relation, batch: pa.RecordBatch, *, resent: bool) -> CdcBatch | None:
        if not batch.num_rows:
            return None
        shift = gsn_shift(self._segment)
        if shift:
            lower = pc.subtract(batch.column("gsn"), pa.scalar(shift, pa.int64()))
            batch = batch.set_column(0, batch.schema.field(0), lower)
        return CdcBatch(relation=relation, batch=self._segment.add_commit(batch), resent=resent)


class BatchIterator(Iterator[CdcBatch]):
    """Batches between two places of a segment, run by run; see Piece."""

    def __init__(
        self, reader: BatchReader, gsn_after: int, gsn_through: int, entries_after: int
    ) -> None:
        """Begin; the arguments are those of batches_of()."""
        self._reader = reader
        self._through = gsn_through
        self._batches = self._walk(gsn_after, entries_after)
        self._group_end = gsn_after
        self._run_end: int | None = None  # gsn of the last row, after the last batch of a run
        self._ahead: tuple[CdcBatch, tuple[int, int]] | None = None
        self._is_drained = False
        self._place = gsn_after, entries_after

    @property
    def gsn_read(self) -> int:
        """Row change up to which all were returned."""
        return self.place_read[0]

    @property
    def place_read(self) -> tuple[int, int]:
        """gsn_read, and how much of the next run was returned."""
        return (self._through, 0) if self._is_drained else self._place

    @property
    def is_at_commit(self) -> bool:
        """Return whether the transactions of all batches so far are whole: none has changes after
        them, in any table.
        """
        end = self._through if self.is_drained else self._run_end
        return end is not None and self._reader.is_at_commit(end)

    @property
    def is_drained(self) -> bool:
        """Return whether all batches were returned."""
        if self._ahead is None and not self._is_drained:
            self._ahead = next(self._batches, None)
            self._is_drained = self._ahead is None
        return self._is_drained

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CdcBatch:
        if self.is_drained or self._ahead is None:
            raise StopIteration
        (batch, self._place), self._ahead = self._ahead, None
        self._run_end = self._group_end if batch.ends_run else None
        return batch

    def _walk(self, after: int, skip: int) -> Iterator[tuple[CdcBatch, tuple[int, int]]]:
        """Yield every batch with the place after it."""
        groups = self._reader.groups
        for group in groups.between(after, self._through):
            entries = groups.groups[group]
            self._group_end = min(groups.gsn_last(group), self._through)
            last: tuple[CdcBatch, int] | None = None
            for found in self._run(entries, after, skip):
                if last is not None:
                    yield last[0], (after, last[1])
                last = found
            if last is not None:
                yield replace(last[0], ends_run=True), (after, last[1])
            after, skip = max(entry.gsn_last for entry in entries), 0

    def _run(
        self, entries: list[FrameEntry], after: int, skip: int
    ) -> Iterator[tuple[CdcBatch, int]]:
        """Yield the batches of a run, each with the number of its places that are read then."""
        reader = self._reader
        for number, entry in enumerate(entries):
            count = number * _BATCHES_PER_FRAME
            if skip >= count + _BATCHES_PER_FRAME or not reader.takes(entry):
                continue
            if entry.gsn_last <= after or entry.gsn_first > self._through:
                continue
            for batch in reader.read(entry, after, self._through):
                count += 1
                if batch is not None and count > skip:
                    yield batch, count


def batches_of(
    segment: Segment, *, takes: Takes, gsn_after: int, entries_after: int = 0
) -> Iterator[Piece[BatchIterator]]:
    """Yield a segment's batches after a place, in order of its runs, as at least one piece.

    Pieces are to be read in turn, while the segment is open; batches may be kept for longer.
    Markers after gsn_after itself are in the first piece. Raises SegmentCorrupt.

    Args:
        segment: the segment.
        takes: returns whether a table is wanted; frames of others are not read.
        gsn_after: the place, as in BatchIterator.place_read.
        entries_after: the place, as in BatchIterator.place_read.
    """
    reader = BatchReader(segment, takes)
    return pieces_of(
        segment,
        reader.markers,
        lambda after, through, entries: BatchIterator(reader, after, through, entries),
        gsn_after=gsn_after,
        entries_after=entries_after,
    )
