"""Transactions for tests of the log: made manually or by hypothesis, as runs and as plain rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.codec.ckt import FLUSH_POINT_SIZE, HEAD
from penstock.codec.columns import (
    after_type,
    batch_schema,
    before_type,
    transactions_batch,
)
from penstock.log.change_tables import add_commit
from penstock.log.segment import Segment
from penstock.model import (
    DROP_TABLE,
    Column,
    FlushPoint,
    Identity,
    Marker,
    MarkerKind,
    Op,
    Relation,
    Rows,
    Run,
)
from penstock.model.position import to_ordinal

SOURCE = {"engine": "postgresql", "system_id": "7000000000000000001", "slot": "s"}
FLUSH_FRAME_BYTES = HEAD.size + FLUSH_POINT_SIZE
COMMIT_TIME_US = 1_700_000_000_000_000


def _column(name: str, neutral: str, source_type: str = "") -> Column:
    return Column(name=name, source_type=source_type or neutral, neutral=neutral)


ITEM = Relation(
    schema="public",
    name="item",
    columns=(_column("id", "int32", "integer"), _column("note", "string", "text")),
    key=(0,),
    before=(0,),
    source_id=1,
)
ITEM_2 = Relation(
    schema="public",
    name="item",
    columns=(*ITEM.columns, _column("price", "decimal(12,2)", "numeric(12,2)")),
    key=(0,),
    before=(0,),
    source_id=1,
    version=2,
)
EVENT = Relation(
    schema="Odd Schema",
    name="événement",
    columns=(
        _column("at", "timestamptz"),
        _column("data", "binary", "bytea"),
        _column("ok", "bool", "boolean"),
        _column("ratio", "float64", "double precision"),
        _column("day", "date"),
        _column("token", "uuid"),
    ),
    before=(0, 1, 2, 3, 4, 5),
    identity=Identity.FULL,
    source_id=2,
)
RELATIONS = (ITEM, ITEM_2, EVENT)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(max_size=20),
    "decimal(12,2)": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n) / 100),
    "timestamptz": st.integers(-(2**55), 2**55),
    "binary": st.binary(max_size=20),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "date": st.integers(-(10**6), 10**6),
    "uuid": st.binary(min_size=16, max_size=16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row change before it has numbers; images as tuples in column order."""

    relation: Relation
    op: Op
    after: tuple[Any, ...] | None
    before: tuple[Any, ...] | None = None
    absent: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row change in the log."""

    gsn: int
    trx: int
    position: int
    change: Change


def inserts(count: int, relation: Relation = ITEM, first: int = 0) -> list[Change]:
    """Return plain inserts into a table of two columns."""
    return [
        Change(relation=relation, op=Op.INSERT, after=(first + n, f"note {first + n}"))
        for n in range(count)
    ]


@st.composite
def changes(draw: st.DrawFn, relation: Relation) -> Change:
    """Return any change of this table; images have any values and NULLs."""

    def image(indexes: Iterable[int]) -> tuple[Any, ...]:
        columns = [relation.columns[index] for index in indexes]
        return tuple(draw(st.none() | _VALUES[column.neutral]) for column in columns)

    op = draw(st.sampled_from(Op))
    everything = range(len(relation.columns))
    after = None if op is Op.DELETE else image(everything)
    before = None
    if op is Op.DELETE or (op is Op.UPDATE and draw(st.booleans())):
        before = image(relation.before)
    absent = None
    if op is Op.UPDATE and after is not None and draw(st.booleans()):
        bits = draw(st.integers(1, 2 ** len(relation.columns) - 1))
        absent = bytes([bits])
        after = tuple(None if bits >> i & 1 else value for i, value in enumerate(after))
    return Change(relation=relation, op=op, after=after, before=before, absent=absent)


def transactions(max_size: int = 6) -> st.SearchStrategy[list[list[Change]]]:
    """Return a strategy of committed transactions of one to a few changes over all tables."""
    change = st.sampled_from(RELATIONS).flatmap(changes)
    return st.lists(st.lists(change, min_size=1, max_size=8), min_size=1, max_size=max_size)


def commit_position(trx: int) -> int:
    """Return the position where the commit record of a numbered transaction starts."""
    return trx * 100


def end_point(trx: int, gsn: int) -> FlushPoint:
    """Return the flush point right after a transaction."""
    return FlushPoint(
        position=trx * 100 + 50, gsn=gsn, trx=trx, commit_time_us=COMMIT_TIME_US + trx
    )


def moves(change: Change) -> bool:
    """Return whether it is an update that changed its key, byte by byte."""
    if change.op is not Op.UPDATE or change.after is None or change.before is None:
        return False
    absent = int.from_bytes(change.absent or b"", "little")
    old = dict(zip(change.relation.before, change.before, strict=True))
    return any(
        not absent >> index & 1 and repr(change.after[index]) != repr(old[index])
        for index in change.relation.identifying
    )


def number_rows(
    committed: Sequence[Sequence[Change]], *, keys_have_two: bool = False
) -> list[list[Row]]:
    """Give rows and transactions their numbers, from 1.

    keys_have_two: as extractors do; False: as they did earlier, each row has one.
    """
    result: list[list[Row]] = []
    gsn = 0
    for trx, group in enumerate(committed, 1):
        result.append([])
        for change in group:
            gsn += 1 + (keys_have_two and moves(change))
            row = Row(gsn=gsn, trx=trx, position=commit_position(trx), change=change)
            result[-1].append(row)
    return result


def rows_of(rows: Sequence[Row]) -> tuple[Rows, ...]:
    """Return rows as batches, one per relation, in order of first use."""
    relations = dict.fromkeys(row.change.relation for row in rows)
    return tuple(
        batch_of(relation, [row for row in rows if row.change.relation == relation])
        for relation in relations
    )


def batch_of(relation: Relation, rows: Sequence[Row]) -> Rows:
    """Return rows of one relation as a batch."""
    schema = batch_schema(relation)
    columns = [
        pa.array([row.gsn for row in rows], pa.int64()),
        pa.array([row.trx for row in rows], pa.int64()),
        pa.array([int(row.change.op) for row in rows], pa.uint8()),
        pa.array([row.change.absent for row in rows], pa.binary()),
        _images([row.change.after for row in rows], after_type(relation)),
        _images([row.change.before for row in rows], before_type(relation)),
    ]
    return Rows(relation=relation, batch=pa.RecordBatch.from_arrays(columns, schema=schema))


def _images(images: list[tuple[Any, ...] | None], kind: pa.StructType) -> pa.Array:
    children = [
        pa.array([image[i] if image else None for image in images], kind.field(i).type)
        for i in range(kind.num_fields)
    ]
    mask = pa.array([image is None for image in images], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def run_of(rows: Sequence[Row], *, ended: bool = True, markers: Sequence[Marker] = ()) -> Run:
    """Return rows as one run; ended: it ends at the end of its last transaction.

    A transaction that an earlier run left open ends at the first row of this run, if that belongs
    to another transaction.
    """
    end = end_point(rows[-1].trx, rows[-1].gsn) if ended and rows else None
    numbers = dict.fromkeys(row.trx for row in rows)
    announced = list(numbers) if ended else list(numbers)[:-1]
    return Run(
        rows=rows_of(rows), markers=tuple(markers), transactions=announced_batch(announced), end=end
    )


def announced_batch(numbers: Iterable[int]) -> pa.RecordBatch | None:
    """Return the batch that announces these transactions in a run; None for none."""
    return transactions_batch(
        [
            (
                commit_position(number),
                commit_position(number) + 50,
                COMMIT_TIME_US + number,
                700 + number,
            )
            for number in numbers
        ]
    )


def truncate(gsn: int, trx: int, *names: str) -> Marker:
    """Return a truncate marker after a row."""
    return Marker(
        kind=MarkerKind.TRUNCATE,
        gsn=gsn,
        trx=trx,
        position=commit_position(trx),
        commit_time_us=COMMIT_TIME_US + trx,
        tables=tuple(("public", name) for name in names),
    )


def make_drop_marker(gsn: int, trx: int, *names: str) -> Marker:
    """Return a marker after a row that says that tables were dropped."""
    return replace(truncate(gsn, trx, *names), kind=MarkerKind.DDL, data=DROP_TABLE)


Plain = tuple[Any, ...]


def plain_batches(batches: Iterable[Rows]) -> list[Plain]:
    """Return rows that are dated as comparable tuples, by GSN."""
    found = []
    for rows in batches:
        relation = rows.relation
        head = rows.batch.select(["gsn", "trx", "position", "op", "absent"]).to_pylist()
        after, before = (_plain_images(rows.batch.column(at)) for at in ("after", "before"))
        for number, row in enumerate(head):
            row["position"] = to_ordinal(row["position"])
            found.append(
                (*row.values(), relation.full_name, relation.version, after[number], before[number])
            )
    return sorted(found, key=lambda row: row[0])


def _plain_images(images: Any) -> list[Any]:
    columns = [
        # Through numbers: years that datetime cannot hold are values of these types, too.
        values.cast(pa.int64() if pa.types.is_timestamp(values.type) else pa.int32()).to_pylist()
        if pa.types.is_temporal(values.type)
        else values.to_pylist()
        for values in images.flatten()
    ]
    valid = images.is_valid().to_pylist()
    return [
        tuple(column[i] for column in columns) if is_valid else None
        for i, is_valid in enumerate(valid)
    ]


def plain_rows(rows: Iterable[Row]) -> list[Plain]:
    """Return the same form for rows that never were Arrow."""
    return [
        (
            row.gsn,
            row.trx,
            row.position,
            int(row.change.op),
            row.change.absent,
            row.change.relation.full_name,
            row.change.relation.version,
            row.change.after,
            row.change.before,
        )
        for row in rows
    ]


def plain_segment(segment: Segment) -> list[Plain]:
    """Return all rows of a segment, by GSN."""
    return plain_batches(add_commit(segment, rows) for rows in segment.rows())
