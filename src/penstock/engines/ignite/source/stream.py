"""Changes of a node as runs of the change log.

Rows are numbered here, in the order in which their transactions ended (`node.py`). A recreated
cache begins with TRUNCATE, so that no consumer keeps rows of its earlier life. A change that is
older than the known version of its key (a resend, another node's copy) is left out by
`Versions`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.codec.columns import transactions_of
from penstock.codec.ignite.changes import Changes, Ints
from penstock.codec.ignite.wal import version_of
from penstock.engines.ignite.source.node import NodeReader, Piece
from penstock.engines.ignite.source.position import place_of, position_of
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.shapes import Shapes, table_of
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, Marker, MarkerKind, Rows, Run
from penstock.ports.source import SourceStream, StreamCounted

POLL_S = 0.2


class Versions(Protocol):
    """Versions of keys that were delivered."""

    def accepts(self, cache_id: int, key: bytes, version: Any, time_ms: int) -> bool:
        """Return whether a change is not older than the delivered version of its key; if so,
        note it.

        The same change may be repeated after a crash: it is accepted. time_ms: of its record.
        """
        ...


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector, which otherwise visits each of a piece's objects
    repeatedly.

    The objects are in no cycle, so they are freed with their last reference.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Counted(StreamCounted):
    """Counts of one node."""

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader

    @property
    def byte_count(self) -> int:
        return self._reader.byte_count

    @property
    def ignored_row_count(self) -> int:
        """Number of rows of other caches, and of backup copies."""
        return self._reader.ignored


class IgniteStream(SourceStream):
    """Stream over the finished segments of a node."""

    spilled_byte_count = 0

    def __init__(
        self,
        reader: NodeReader,
        maker: RowMaker,
        shapes: Shapes,
        *,
        start: FlushPoint,
        versions: Versions | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Continue after a flush point; an empty log at the node's saved state.

        versions: of several nodes. One node's log has the changes of a key in order, except for
        resent rows.
        """
        self._reader = reader
        self._maker = maker
        self._shapes = shapes
        self._versions = versions
        self._clock = clock
        self._end = start
        self._gsn, self._trx = start.gsn, start.trx
        # Columns of the bulk load, so that a change of them is recognised.
        self._copied = () if start.gsn else shapes.relations()
        self._runs: Iterator[Run] | None = None
        self._counts: StreamCounted = Counted(reader)
        place = place_of(start.position) if start.position else None
        reader.begin(place, start.commit_time_us // 1000)

    @property
    def counts(self) -> StreamCounted:
        return self._counts

    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run. Raises NodeSegmentsMissed, KeyNotUsable and the errors of
        reading.
        """
        if self._copied:
            copied, self._copied = self._copied, ()
            return Run(relations=copied, end=self._end)
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            if self._runs is None:
                self._runs = self._there()
            run = next(self._runs, None)
            if run is not None:
                return run
            self._runs = None
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return None
            self._clock.sleep(min(POLL_S, left_s))

    def has_given(self, position: int) -> bool:
        """Return whether the segment at a position and all earlier ones are finished."""
        return self._runs is None and self._reader.handled >= place_of(position).segment

    def ask_for_position(self) -> None:
        """Do nothing: the folder is polled all the time."""

    def acknowledge(self, position: int) -> None:
        """Save the node's state, and delete the segments before it."""
        if position and self._reader.is_active:
            self._reader.acknowledge(place_of(position))

    # -- runs --------------------------------------------------------------------------------

    def _there(self) -> Iterator[Run]:
        pieces = self._reader.pieces()
        while True:
            with _without_collector():
                piece = next(pieces, None)
                run = None if piece is None else self._run(piece)
            if piece is None:
                return
            if run is not None:
                yield run

    def _run(self, piece: Piece) -> Run | None:
        markers: list[Marker] = []
        times = piece.times_ms
        time_us = int(times[0]) * 1000 if len(times) else self._end.commit_time_us
        for cache, place in piece.made:
            self._begin_again(cache, position_of(place), time_us, markers)
        piece = self._accept(piece)
        rows = self._rows(piece)
        end = self._point(piece, markers)
        if not (rows or markers or end):
            return None
        return Run(
            rows=rows,
            markers=tuple(markers),
            transactions=_end_transactions(markers, piece),
            end=end,
        )

    def _begin_again(
        self,
        cache: str,
        position: int,
        time_us: int,
        markers: list[Marker],
    ) -> None:
        self._maker.begin_again(cache)
        if not self._shapes.has_rows(cache):
            return
        self._trx += 1
        marker = Marker(
            kind=MarkerKind.TRUNCATE,
            gsn=self._gsn,
            trx=self._trx,
            position=position,
            commit_time_us=time_us,
            tables=((table_of(cache).schema, table_of(cache).name),),
        )
        markers.append(marker)

    def _rows(self, piece: Piece) -> tuple[Rows, ...]:
        """Number the accepted entries, and convert them to rows, cache by cache."""
        entries, counts = piece.entries, piece.counts
        self._shapes.position = int(piece.positions[0]) if len(counts) else 0
        if entries is None:
            return ()
        gsn = self._gsn + 1 + np.arange(len(entries), dtype=np.int64)
        trx = self._trx + 1 + np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._gsn += len(entries)
        self._trx += len(counts)
        caches = entries.rows["cache_id"]
        numbers, first = np.unique(caches, return_index=True)
        if len(numbers) == 1:
            return (self._maker.rows(self._reader.name_of(int(numbers[0])), entries, gsn, trx),)
        places = [(int(one), np.flatnonzero(caches == one)) for one in numbers[np.argsort(first)]]
        return tuple(
            self._maker.rows(self._reader.name_of(one), entries.pick(here), gsn[here], trx[here])
            for one, here in places
        )

    def _accept(self, piece: Piece) -> Piece:
        """Return the part of a piece that is not older than the delivered versions."""
        versions = self._versions or self._reader.recent
        if versions is None or piece.entries is None:
            return piece
        mask = np.fromiter(_are_accepted(versions, piece.entries), np.bool_, len(piece.entries))
        if mask.all():
            return piece
        counts = np.add.reduceat(mask, np.cumsum(piece.counts) - piece.counts, dtype=np.int64)
        left = counts > 0
        return replace(
            piece,
            entries=piece.entries.pick(mask) if left.any() else None,
            counts=counts[left],
            positions=piece.positions[left],
            times_ms=piece.times_ms[left],
            numbers=piece.numbers[left],
        )

    def _point(self, piece: Piece, markers: list[Marker]) -> FlushPoint | None:
        """Return the flush point at the end of the piece, if that is further than before."""
        if piece.end is None:
            return None
        position = position_of(piece.end)
        has_ended = len(piece.counts) or markers
        if position <= self._end.position and not has_ended:
            return None
        time_us = self._end.commit_time_us
        if len(piece.counts):
            time_us = int(piece.times_ms[-1]) * 1000
        elif markers:
            time_us = markers[-1].commit_time_us
        self._end = FlushPoint(
            position=position, gsn=self._gsn, trx=self._trx, commit_time_us=time_us
        )
        return self._end


def _are_accepted(versions: Versions, entries: Changes) -> Iterator[bool]:
    rows = entries.rows
    names = ("write_topology", "write_node", "write_order")
    numbers = zip(*(rows[name].tolist() for name in names), strict=True)
    for cache, key, has_version, version, time_ms in zip(
        rows["cache_id"].tolist(),
        entries.list_marshalled("key"),
        rows["write"].tolist(),
        numbers,
        rows["time_ms"].tolist(),
        strict=True,
    ):
        found = version_of(*version) if has_version else None
        yield versions.accepts(cache, key, found, time_ms)


def _end_transactions(markers: list[Marker], piece: Piece) -> pa.RecordBatch | None:
    """Return the transactions of markers, one each, and those of a piece after them."""
    if not markers and not len(piece.counts):
        return None
    first = np.array([(one.position, one.commit_time_us) for one in markers], np.int64)
    positions, times_us = first.reshape(-1, 2).T
    ended: list[Ints] = [
        np.concatenate([positions, piece.positions]),
        np.concatenate([times_us, piece.times_ms * 1000]),
        np.concatenate([np.zeros(len(markers), np.int64), piece.numbers]),
    ]
    return transactions_of(ended[0], ended[0] + 1, ended[1], ended[2].astype(np.uint64))
