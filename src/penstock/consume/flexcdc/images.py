"""Row images of the captured tables, with their numbers, from a segment of the log.

The rows of overlapping frames are numbered together in the order of commits: an insert and a
delete are one image, an update two, the old one first. Columns stay Arrow arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.ckt import FrameEntry
from penstock.codec.columns import bits
from penstock.log.segment import Segment
from penstock.model import Op, PenstockError, Relation, TableName
from penstock.ports.changelog import OWN_SCHEMA, RowImages

Integers = npt.NDArray[np.int64]


class ImageIncomplete(PenstockError):
    """The log does not have the whole old or new row of a change."""

    code = "FX30"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options for updates.

    Attributes:
        marks: their images are -2 and 2.
        skips: the old image is left out.
    """

    marks: bool = False
    skips: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Captured rows of one relation version, in order."""

    relation: Relation
    batch: pa.RecordBatch


class ImageGroup:
    """Captured rows of overlapping frames, in order, each with the number of its first image.

    Attributes:
        gsn: number in the log; rises.
        trx: transaction; rises.
        first: number of the first image; rises.
        count: number of images.
        which: the frame of each row.
        index: the row in its frame.
        last: the last number, even for a group without rows.
    """

    def __init__(self, frames: Sequence[Frame], options: ImageOptions, last: int) -> None:
        """Number the rows.

        Args:
            frames: the frames.
            options: options for updates.
            last: the last assigned number.
        """
        self._frames = frames
        self._options = options
        parts = [_columns(frame.batch, place) for place, frame in enumerate(frames)]
        gsn, trx, op, which, index = (
            np.concatenate([part[at] for part in parts]) if parts else np.empty(0, np.int64)
            for at in range(5)
        )
        order = np.argsort(gsn, kind="stable")
        self.gsn: Integers = gsn[order]
        self.trx: Integers = trx[order]
        self.op: Integers = op[order]
        self.which: Integers = which[order]
        self.index: Integers = index[order]
        per_update = 1 if options.skips else 2
        self.count: Integers = np.where(self.op == Op.UPDATE, per_update, 1)
        ends = last + np.cumsum(self.count)
        self.first: Integers = ends - self.count + 1
        self.last = int(ends[-1]) if len(ends) else last

    def __len__(self) -> int:
        return len(self.gsn)

    def tables(self) -> list[Relation]:
        """Return the relations of the frames."""
        return [frame.relation for frame in self._frames]

    def last_through(self, end: int) -> int:
        """Return the number of the last row before place `end`."""
        if end == 0:
            return int(self.first[0]) - 1 if len(self) else self.last
        return int(self.first[end - 1] + self.count[end - 1]) - 1

    def images(
        self, start: int, end: int, uow_of: Callable[[Integers], Integers], server_id: int
    ) -> Iterator[tuple[Relation, RowImages]]:
        """Yield the images of the rows at these places, table by table.

        Raises ImageIncomplete.

        Args:
            start: the first place.
            end: the place after the last.
            uow_of: returns the units of work of transactions.
            server_id: of the source.
        """
        for place, frame in enumerate(self._frames):
            at = np.flatnonzero(self.which[start:end] == place) + start
            if len(at):
                yield frame.relation, self._images(frame, at, uow_of(self.trx[at]), server_id)

    def callbacks(self, relation: Relation, start: int, end: int) -> dict[int, str]:
        """Return, for an image of this relation, the plugins' callback of each kind by number."""
        found = {}
        for at in range(start, end):
            if self._frames[self.which[at]].relation is not relation:
                continue
            first, op = int(self.first[at]), int(self.op[at])
            if op == Op.UPDATE:
                found[first + int(self.count[at]) - 1] = "update_after"
                if not self._options.skips:
                    found[first] = "update_before"
            else:
                found[first] = "insert" if op == Op.INSERT else "delete"
        return found

    def _images(self, frame: Frame, at: Integers, uow: Integers, server_id: int) -> RowImages:
        op, index, first = self.op[at], self.index[at], self.first[at]
        is_update = op == Op.UPDATE
        has_old = (op == Op.DELETE) | (is_update & (not self._options.skips))
        has_new = op != Op.DELETE
        old, new = np.flatnonzero(has_old), np.flatnonzero(has_new)
        update = 2 if self._options.marks else 1
        dml = np.concatenate(
            [np.where(is_update[old], -update, -1), np.where(is_update[new], update, 1)]
        )
        numbers = np.concatenate([first[old], (first + self.count[at] - 1)[new]])
        rows = np.concatenate([old, new])
        check_whole(frame.relation, frame.batch, index[old])
        columns = whole_columns(frame.relation, frame.batch, index[old], index[new])
        own = pa.RecordBatch.from_arrays(
            [
                pa.array(dml, pa.int32()),
                pa.array(uow[rows], pa.int64()),
                pa.array(np.full(len(rows), server_id), pa.int64()),
                pa.array(numbers, pa.int64()),
            ],
            schema=OWN_SCHEMA,
        )
        return RowImages(relation=frame.relation, own=own, columns=columns)


def _columns(batch: pa.RecordBatch, place: int) -> tuple[Integers, ...]:
    size = batch.num_rows
    return (
        batch.column("gsn").to_numpy(),
        batch.column("trx").to_numpy(),
        batch.column("op").to_numpy().astype(np.int64),
        np.full(size, place, np.int64),
        np.arange(size, dtype=np.int64),
    )


def groups(
    segment: Segment,
    takes: Callable[[TableName], bool],
    *,
    trx_after: int,
) -> Iterator[list[Frame]]:
    """Yield the captured rows after a transaction, overlapping frames together.

    Memory is bounded by the frames of one run. Raises SegmentCorrupt.
    """
    group: list[FrameEntry] = []
    last = 0
    for entry in sorted(segment.row_frames(), key=lambda entry: entry.gsn_first):
        if group and entry.gsn_first > last:
            yield _frames(segment, group, takes, trx_after)
            group = []
        group.append(entry)
        last = max(last, entry.gsn_last)
    if group:
        yield _frames(segment, group, takes, trx_after)


def _frames(
    segment: Segment,
    entries: Sequence[FrameEntry],
    takes: Callable[[TableName], bool],
    trx_after: int,
) -> list[Frame]:
    found = []
    for entry in entries:
        relation = segment.relation(entry.relation_id)
        if entry.trx_last <= trx_after or not takes(TableName(relation.schema, relation.name)):
            continue
        batch = segment.read_rows(entry).batch
        if entry.trx_first <= trx_after:
            start = int(np.searchsorted(batch.column("trx").to_numpy(), trx_after, side="right"))
            batch = batch.slice(start)
        found.append(Frame(relation, batch))
    return found


# -- whole rows ------------------------------------------------------------------------------------


def check_whole(relation: Relation, batch: pa.RecordBatch, old: Integers) -> None:
    """Raise ImageIncomplete unless the old rows at these places are complete."""
    if not len(old):
        return
    if len(relation.before) < len(relation.columns):
        lacking = set(range(len(relation.columns))) - set(relation.before)
        raise _incomplete(relation, relation.columns[min(lacking)].name)
    if batch.column("before").take(pa.array(old)).null_count:
        raise _incomplete(relation, relation.columns[0].name)


def whole_columns(
    relation: Relation, batch: pa.RecordBatch, old: Integers, new: Integers
) -> list[Any]:
    """Return each column's values of the old rows at these places, then of the new ones.

    Values that a new row lacks because they did not change are taken from the old row.
    """
    after, before = batch.column("after"), batch.column("before")
    after_columns, before_columns = after.flatten(), before.flatten()
    by_index = dict(zip(relation.before, before_columns, strict=True))
    absent = _absent(batch, len(relation.columns))
    result = []
    for place, column in enumerate(relation.columns):
        values = after_columns[place]
        mask = absent.get(place)
        if mask is not None:
            has_it = place in by_index
            lacks = mask & ~np.asarray(before.is_valid()) if has_it else mask
            if bool(lacks[new].any()):
                raise _incomplete(relation, column.name)
            values = pc.if_else(pa.array(mask), by_index[place], values) if has_it else values
        parts = [values.take(pa.array(new))]
        if len(old):
            parts.insert(0, by_index[place].take(pa.array(old)))
        result.append(pa.concat_arrays(parts))
    return result


def _absent(batch: pa.RecordBatch, count: int) -> dict[int, npt.NDArray[np.bool_]]:
    """Return, by column, which rows were sent without it; columns that all have are left out."""
    masks = batch.column("absent")
    found: dict[int, npt.NDArray[np.bool_]] = {}
    if masks.null_count == len(masks):
        return found
    for row, mask in enumerate(masks.to_pylist()):
        for place in bits(mask):
            if place < count:
                found.setdefault(place, np.zeros(batch.num_rows, np.bool_))[row] = True
    return found


def _incomplete(relation: Relation, column: str) -> ImageIncomplete:
    return ImageIncomplete(
        f"a change of {relation.full_name} lacks column {column} of the whole row: the log was "
        "written without whole old rows, or the source does not send them",
        hint="Set fullBeforeImages = true in [changeExtractor], and let `penstock doctor` say what "
        "the source lacks. The log so far stays incomplete: begin again after it with "
        "`penstock flexcdc --ini FILE setup --force`, and read the tables again.",
        table=relation.full_name,
        column=column,
    )
