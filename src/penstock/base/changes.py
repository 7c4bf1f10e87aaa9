"""Changes of one table in some segments: layers of one shape each, after it was last emptied.

This module reads the segments' indexes, markers and shapes; rows are read when a layer is folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.codec.ckt import FrameEntry
from penstock.log.segment import Segment
from penstock.model import DROP_TABLE, FlushPoint, MarkerKind, Relation, TableName

_EMPTYING = (MarkerKind.TRUNCATE, MarkerKind.RELOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Limits of the changes that count: gsn_after < gsn, up to the end, transactions from
    trx_from.

    Attributes:
        settled_trx: changes of transactions before it may be in the base already.
        position: the source's, at which the base's rows were read; they have its shape.
    """

    end: FlushPoint
    gsn_after: int = 0
    trx_from: int = 0
    settled_trx: int = 0
    position: int = 0

    def behind(self, gsn: int) -> Window:
        """Return the part of the window after a row."""
        return Window(
            end=self.end,
            gsn_after=max(self.gsn_after, gsn),
            trx_from=self.trx_from,
            settled_trx=self.settled_trx,
            position=self.position,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Changes of one shape, in order; they can be read as often as needed.

    Attributes:
        frames: empty if the shape became current without rows.
        overlaps: the rows below may have some of the changes already.
    """

    relation: Relation
    frames: tuple[tuple[Segment, FrameEntry], ...]
    window: Window
    overlaps: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the frames, cut to the window. Raises SegmentCorrupt."""
        for segment, entry in self.frames:
            yield _cut(segment.read_rows(entry).batch, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """All changes of one table.

    Attributes:
        is_emptied: earlier rows are void.
        relation: the newest shape; None if unknown.
    """

    layers: tuple[Layer, ...]
    is_emptied: bool
    relation: Relation | None

    @property
    def is_empty(self) -> bool:
        """Return whether no row has changed."""
        return not self.is_emptied and not any(layer.frames for layer in self.layers)


def first_trx(segments: Sequence[Segment], ordinal: int) -> int:
    """Return the first transaction at or after a position of the source; 0 for position 0."""
    found = 0
    if ordinal:
        for segment in segments:
            found = segment.transactions.first_from(ordinal)
            if found <= segment.end.trx:
                break
    return found


def changes_of(segments: Sequence[Segment], table: TableName, window: Window) -> TableChanges:
    """Return the changes of a table in consecutive segments. Raises SegmentCorrupt."""
    emptied = _emptied_at(segments, table, window)
    counted = window if emptied is None else window.behind(emptied)
    layers: list[Layer] = []
    newest: Relation | None = None
    for segment in segments:
        used: set[int] = set()
        for entry in segment.row_frames(table=table, gsn_after=counted.gsn_after):
            if entry.trx_last < window.trx_from or entry.gsn_first > window.end.gsn:
                continue
            used.add(entry.relation_id)
            shape = segment.relation(entry.relation_id)
            if shape.awaits_reload:
                continue
            newest = shape
            overlaps = entry.trx_first < window.settled_trx
            if layers and layers[-1].relation.same_shape(newest):
                last = layers.pop()
                frames = (*last.frames, (segment, entry))
                overlaps = overlaps or last.overlaps
            else:
                frames = ((segment, entry),)
            layers.append(Layer(relation=newest, frames=frames, window=counted, overlaps=overlaps))
        for shape in _news(segment, table, window, used):
            layers.append(Layer(relation=shape, frames=(), window=counted))
            newest = shape
    # In the order of versions each shape occurs once, whether rows have it or not.
    layers.sort(key=lambda layer: layer.relation.version)
    if layers:
        newest = layers[-1].relation
    return TableChanges(layers=tuple(layers), is_emptied=emptied is not None, relation=newest)


def _emptied_at(segments: Sequence[Segment], table: TableName, window: Window) -> int | None:
    found = None
    for segment in segments:
        for marker in segment.markers():
            is_drop = marker.kind is MarkerKind.DDL and marker.data == DROP_TABLE
            if marker.kind not in _EMPTYING and not is_drop:
                continue
            if not window.trx_from <= marker.trx <= window.end.trx:
                continue
            if any(TableName(*name) == table for name in marker.tables):
                found = marker.gsn
    return found


def _news(segment: Segment, table: TableName, window: Window, used: set[int]) -> Iterator[Relation]:
    """Yield the shapes in a segment that have no rows that count, and are after the
    base's point.
    """
    for totals in segment.tables:
        if (totals.schema, totals.name) != tuple(table) or totals.gsn > window.end.gsn:
            continue
        if totals.id not in used and segment.start.trx + 1 >= window.trx_from:
            shape = segment.relation(totals.id)
            # A statement before the point may be after the last transaction before it.
            is_older = 0 < shape.since <= window.position
            if not shape.awaits_reload and not is_older:
                yield shape


def _cut(batch: pa.RecordBatch, window: Window) -> pa.RecordBatch:
    """Return the rows of the window. They are one slice, because gsn and trx rise in a batch.

    A frame never reaches beyond a flush point, and the window ends at one.
    """
    gsn = batch.column("gsn").to_numpy()
    low = int(np.searchsorted(gsn, window.gsn_after, side="right"))
    if window.trx_from:
        trx = batch.column("trx").to_numpy()
        low = max(low, int(np.searchsorted(trx, window.trx_from, side="left")))
    return batch.slice(low)
