"""Scan of a log by many readers: which segments have the changes, and their rows as Arrow.

One process plans the scan, others read its parts; a scan can be pickled. What a scan holds is fixed
when it is planned: the shape of the rows, and the last transaction. Each part is a segment, which
is read from whatever directory has it: the log removes segments, a consumer's directory keeps its
links to them. Not here: checks that segments follow each other (`changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import POSITION
from penstock.codec.json_columns import json_images
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.host.state_of_log import StateOfOtherLog, check_log_id
from penstock.log import change_tables
from penstock.log.change_tables import ChangeFilter
from penstock.log.layout import SegmentMissing, open_name, segment_name
from penstock.log.segment import Segment, open_segment
from penstock.log.transactions import halves
from penstock.model import Marker, Op, Relation, Rows, TableName
from penstock.model.position import to_bytes

_ENCODER = msgspec.json.Encoder()
_TIME = pa.timestamp("us", "UTC")


class ScanShape(Protocol):
    """Shape of the rows that a scan returns."""

    @property
    def schema(self) -> pa.Schema:
        """Return the schema."""
        ...

    def table(self, piece: Rows | Marker) -> pa.Table:
        """Return rows of one version, from `add_commit`, or a marker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Shape of changes of all tables. Rows are JSON, without the columns that were not sent.

    Attributes:
        is_wide: positions are their 16 bytes, not numbers of 64 bits.
        wanted: which tables are read: a truncate of several tables is a row for each of them.
    """

    is_wide: bool
    wanted: ChangeFilter

    @property
    def schema(self) -> pa.Schema:
        """Return the schema."""
        return pa.schema(
            [
                pa.field("_gsn", pa.int64()),
                pa.field("_trx", pa.int64()),
                pa.field("_position", POSITION if self.is_wide else pa.uint64()),
                pa.field("_commit_time", _TIME),
                pa.field("_op", pa.string()),
                pa.field("_table", pa.string()),
                pa.field("_row", pa.string()),
                pa.field("_before", pa.string()),
            ]
        )

    def table(self, piece: Rows | Marker) -> pa.Table:
        """Return rows of one version, from `add_commit`, or a marker."""
        if isinstance(piece, Marker):
            return self._of_marker(piece)
        relation, batch = piece.relation, piece.batch
        count = batch.num_rows
        position = batch.column("position")
        after = json_images(batch.column("after"), relation.columns, batch.column("absent"))
        sent = [relation.columns[index] for index in relation.before]
        before = _texts(json_images(batch.column("before"), sent, None))
        is_delete = pc.equal(batch.column("op"), pa.scalar(int(Op.DELETE), pa.uint8()))
        arrays = [
            batch.column("gsn"),
            batch.column("trx"),
            position if self.is_wide else pa.array(halves(position)[1]),
            batch.column("commit_time"),
            change_tables.operations(batch),
            pa.array([f"{relation.schema}.{relation.name}"] * count, pa.string()),
            pc.if_else(is_delete, before, _texts(after)),
            before,
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _of_marker(self, marker: Marker) -> pa.Table:
        position = to_bytes(marker.position) if self.is_wide else marker.position
        heads = [marker.gsn, marker.trx, position, marker.commit_time_us, change_tables.TRUNCATE]
        rows = [
            [*heads, ".".join(table), None, None]
            for table in marker.tables
            if self.wanted.takes(TableName(*table))
        ]
        columns = zip(*rows, strict=True) if rows else [[] for _ in self.schema]
        return pa.Table.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ],
            schema=self.schema,
        )


def _texts(images: Sequence[dict[str, Any] | None]) -> Any:
    texts = [None if one is None else _ENCODER.encode(one).decode() for one in images]
    return pa.array(texts, pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Segment with requested changes. size_bytes: of its frames that have them."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Changes to read.

    Attributes:
        directories: where segments are looked for, in this order.
        log_id: of the log; a segment of another one is refused.
        table: the only table to read; None for all that `wanted` takes.
        splits: an update of the key is returned as a delete and an insert.
        extension: of segments.
    """

    directories: tuple[Path, ...]
    log_id: str
    table: TableName | None
    shape: ScanShape
    wanted: ChangeFilter
    parts: tuple[Part, ...] = ()
    splits: bool = False
    extension: str
    files: Files = REAL_FILES

    def plan(self, segment: Segment) -> Part | None:
        """Return the part of a segment; None if it has no requested change.

        Raises StateOfOtherLog.
        """
        self.check(segment)
        if self.wanted.is_empty_of(segment):
            return None
        size = sum(
            entry.length_bytes
            for entry in segment.row_frames(table=self.table)
            if self.wanted.takes_rows(entry)
        )
        if not size and not self._markers(segment):
            return None
        return Part(number=segment.number, size_bytes=size)

    def check(self, segment: Segment) -> None:
        """Raise StateOfOtherLog unless the segment belongs to this log."""
        check_log_id(
            self.log_id,
            segment.header.log_id,
            place=f"the reading of the log in {self.directories[-1]}",
            hint="The log was created again: read it from its beginning.",
            error=StateOfOtherLog,
        )

    def open(self, number: int) -> Segment:
        """Return a segment, open for reading. Raises SegmentMissing."""
        for _ in range(2):  # it may be closed between the two looks
            for directory in self.directories:
                for name in (
                    segment_name(number, self.extension),
                    open_name(number, self.extension),
                ):
                    with suppress(FileMissing):
                        path = directory / name
                        return open_segment(path, extension=self.extension, files=self.files)
        raise SegmentMissing(
            f"segment {number} is no longer in {self.directories[-1]}",
            hint="Old segments are removed (keepAppliedHours, removeFiles). Read again from what "
            "is there, or let a stream be a consumer, for which segments are kept.",
            after=number - 1,
            next=number + 1,
        )

    def read(self, number: int) -> Iterator[pa.Table]:
        """Yield the requested changes of a segment. Raises SegmentMissing, SegmentCorrupt."""
        with self.open(number) as segment:
            self.check(segment)
            for piece in self._pieces(segment):
                if isinstance(piece, Marker):
                    yield self.shape.table(piece)
                elif piece.batch.num_rows:
                    rows = split_key_changes(piece) if self.splits else piece
                    yield self.shape.table(rows)

    def _pieces(self, segment: Segment) -> Iterator[Rows | Marker]:
        if self.table is not None:
            for piece in change_tables.pieces(segment, self.table, self.wanted):
                if not isinstance(piece, Relation):
                    yield piece
            return
        for entry in segment.row_frames():
            if self.wanted.takes_rows(entry):
                rows = segment.read_rows(entry)
                if self.wanted.takes(TableName(rows.relation.schema, rows.relation.name)):
                    yield self.wanted.rows_of(change_tables.add_commit(segment, rows))
        yield from self._markers(segment)

    def _markers(self, segment: Segment) -> list[Marker]:
        def takes(table: tuple[str, str]) -> bool:
            name = TableName(*table)
            return name == self.table if self.table is not None else self.wanted.takes(name)

        return [
            marker
            for marker in segment.markers()
            if marker.kind in change_tables.EMPTYING
            and self.wanted.takes_marker(marker)
            and any(map(takes, marker.tables))
        ]


def split_key_changes(rows: Rows) -> Rows:
    """Return rows with each update of the key as a delete of the old one and an insert.

    The delete takes the gsn before the insert's: an update of the key has two numbers in the log.
    rows: from `add_commit`.
    """
    relation, batch = rows.relation, rows.batch
    places = np.flatnonzero(_find_key_changes(relation, batch))
    if not len(places):
        return rows
    count, moved = batch.num_rows, pa.array(places)
    gsns, ops = np.asarray(batch.column("gsn")), np.asarray(batch.column("op")).copy()
    ops[places] = int(Op.INSERT)
    is_moved = np.zeros(count, np.bool_)
    is_moved[places] = True
    before = batch.column("before")
    kept = pc.if_else(pa.array(is_moved), pa.nulls(count, before.type), before)
    new = _replace(batch, op=pa.array(ops), before=kept)
    old = batch.take(moved)
    old = _replace(
        old,
        gsn=pa.array(gsns[places] - 1),
        op=pa.array(np.full(len(places), int(Op.DELETE), np.uint8)),
        absent=pa.nulls(len(places), batch.column("absent").type),
        after=pa.nulls(len(places), batch.column("after").type),
    )
    joined = pa.concat_batches([new, old])
    return Rows(relation=relation, batch=joined.take(pc.array_sort_indices(joined.column("gsn"))))


def _replace(batch: Any, **columns: Any) -> Any:
    for name, values in columns.items():
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), values)
    return batch


def _find_key_changes(relation: Relation, batch: Any) -> Any:
    """Return which rows are updates that changed a column of the key."""
    before, after = batch.column("before"), batch.column("after")
    found = np.zeros(batch.num_rows, np.bool_)
    is_update = np.asarray(batch.column("op")) == int(Op.UPDATE)
    has_before = np.asarray(before.is_valid().to_numpy(zero_copy_only=False))
    where = np.flatnonzero(is_update & has_before)
    if not len(where) or not set(relation.key) <= set(relation.before):
        return found
    old, new = before.take(pa.array(where)).flatten(), after.take(pa.array(where)).flatten()
    for at in relation.key:
        differs = pc.fill_null(pc.not_equal(old[relation.before.index(at)], new[at]), False)
        found[where] |= np.asarray(differs.to_numpy(zero_copy_only=False))
    return found
