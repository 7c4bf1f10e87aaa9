"""Rows of a segment in strict order: relations merged by gsn, markers in their places.

A rows frame holds one relation; the frames of one run interleave by gsn, runs do not. So a group
of frames whose gsn ranges overlap is merged at a time, and memory is bounded by one run.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.ckt import FrameEntry
from penstock.model import Marker, Relation, Rows


class OrderedFrames(Protocol):
    """Content of a segment by frames, as a `Segment` returns it."""

    @abstractmethod
    def markers(self) -> Iterator[Marker]:
        """Yield the markers in order."""

    @abstractmethod
    def row_frames(self) -> Iterator[FrameEntry]:
        """Yield the index entries of rows frames."""

    @abstractmethod
    def read_rows(self, entry: FrameEntry) -> Rows:
        """Return the rows of one frame, verified. Raises SegmentCorrupt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows in order, without a marker between them.

    The row of number gsns[i] is row row_index[i] of batches[batch_index[i]].

    Attributes:
        batches: one or more, of any relations.
        gsns: numbers of the rows.
        batch_index: a batch for each row.
        row_index: a place in the batch for each row.
        before: markers before the rows, in order. The last group may have no rows; it has all
            remaining markers.
    """

    batches: tuple[Rows, ...]
    gsns: list[int]
    batch_index: list[int]
    row_index: list[int]
    before: tuple[Marker, ...] = ()


def merge_rows(segment: OrderedFrames) -> Iterator[Merged]:
    """Yield all content of a segment, in order. Raises SegmentCorrupt."""
    # A marker follows its gsn; markers with the same gsn keep their order in the file.
    markers = deque(sorted(segment.markers(), key=lambda marker: marker.gsn))
    for entries in _groups(segment):
        batches = tuple(segment.read_rows(entry) for entry in entries)
        yield from _split_at_markers(_merge(batches), markers)
    if markers:
        yield Merged(
            batches=(),
            gsns=[],
            batch_index=[],
            row_index=[],
            before=tuple(markers),
        )


def in_order(segment: OrderedFrames) -> Iterator[tuple[Relation, int, pa.RecordBatch] | Marker]:
    """Yield every row as (relation, index in batch, batch), and every marker, in order."""
    for group in merge_rows(segment):
        yield from group.before
        pairs = [(rows.relation, rows.batch) for rows in group.batches]
        for which, index in zip(group.batch_index, group.row_index, strict=True):
            relation, batch = pairs[which]
            yield relation, index, batch


def _groups(segment: OrderedFrames) -> Iterator[list[FrameEntry]]:
    """Yield rows frames by rising gsn, in groups that do not overlap."""
    group: list[FrameEntry] = []
    last = 0
    for entry in sorted(segment.row_frames(), key=lambda entry: entry.gsn_first):
        if group and entry.gsn_first > last:
            yield group
            group = []
        group.append(entry)
        last = max(last, entry.gsn_last)
    if group:
        yield group


def _merge(batches: tuple[Rows, ...]) -> Merged:
    if len(batches) == 1:
        count = batches[0].batch.num_rows
        return Merged(
            batches=batches,
            gsns=batches[0].batch.column(0).to_pylist(),
            batch_index=[0] * count,
            row_index=list(range(count)),
        )
    places: list[tuple[int, int]] = []
    for which, rows in enumerate(batches):
        places += [(which, index) for index in range(rows.batch.num_rows)]
    numbers = pa.concat_arrays([rows.batch.column(0) for rows in batches])
    sorting = pc.array_sort_indices(numbers)
    order = [places[at] for at in _integers(sorting)]
    return Merged(
        batches=batches,
        gsns=numbers.take(sorting).to_pylist(),
        batch_index=[which for which, _ in order],
        row_index=[index for _, index in order],
    )


def _integers(indices: Any) -> memoryview:
    """Return a view of a uint64 array without nulls as Python numbers, not copied."""
    start = indices.offset
    return memoryview(indices.buffers()[1]).cast("Q")[start : start + len(indices)]


def _split_at_markers(group: Merged, markers: deque[Marker]) -> Iterator[Merged]:
    start, count = 0, len(group.gsns)
    while start < count:
        before = []
        while markers and markers[0].gsn < group.gsns[start]:
            before.append(markers.popleft())
        end = bisect_right(group.gsns, markers[0].gsn, start) if markers else count
        yield Merged(
            batches=group.batches,
            gsns=group.gsns[start:end],
            batch_index=group.batch_index[start:end],
            row_index=group.row_index[start:end],
            before=tuple(before),
        )
        start = end
