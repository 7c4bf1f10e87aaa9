"""Convert the lines of a bulk reader to Arrow columns as the log has them.

Lines are those of COPY, with bytes as hex digits, or of LOAD DATA, with raw bytes. Each column is
read by its neutral type; the texts are those that the change path prints for it. A value that the
type cannot hold exactly (infinity, 24:00:00, a date that no calendar has) turns its column into
exact text, in a new version of the relation, as on the change path.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.codec.columns import after_type, arrow_type, batch_schema, before_type
from penstock.codec.lines import LineDialect
from penstock.model import Column, Op, Relation, Rows

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_ESCAPES = {
    b"0": b"\0",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?\Z")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
_MOMENT = re.compile(r"(\d{4,}-\d\d-\d\d)[ T]([\d:.]+)(?:\+00)?( BC)?\Z")
_BOOLEANS = {"t": True, "f": False, "1": True, "0": False}

Cell = bytes | None


class _Unfit(Exception):
    """A value that the column's type cannot hold exactly."""


def cells_of(lines: bytes, column_count: int) -> list[Sequence[Cell]]:
    """Return the columns of whole lines, with cells unescaped and None for NULL. Raises
    ValueError.
    """
    rows = [
        [None if cell == b"\\N" else _plain(cell) for cell in line.split(b"\t")]
        for line in lines.split(b"\n")[:-1]
    ]
    if any(len(row) != column_count for row in rows):
        raise ValueError(f"a line does not have {column_count} cells")
    return list(zip(*rows, strict=True)) or [() for _ in range(column_count)]


def _plain(cell: bytes) -> bytes:
    if b"\\" not in cell:
        return cell
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), cell)


def inserts(
    relation: Relation,
    columns: Sequence[Sequence[Cell]],
    row_count: int,
    *,
    gsn: int,
    trx: int,
    dialect: LineDialect = LineDialect.COPY,
) -> Rows:
    """Return these rows as inserts of one transaction. The first row gets the number gsn.

    columns: values of the relation's columns, in order. The relation of the result is a new version
    if a column had to become text.
    """
    arrays = []
    for place, cells in enumerate(columns):
        try:
            arrays.append(_array(cells, relation.columns[place].neutral, dialect))
        except (_Unfit, pa.ArrowInvalid, OverflowError):
            relation = relation.with_text_column(place)
            arrays.append(_array(cells, "string", dialect))
    valid = pa.array([True] * row_count, pa.bool_()).buffers()[1]
    after = pa.Array.from_buffers(after_type(relation), row_count, [valid], children=arrays)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(gsn, gsn + row_count), pa.int64()),
            pa.array([trx] * row_count, pa.int64()),
            pa.array([int(Op.INSERT)] * row_count, pa.uint8()),
            pa.nulls(row_count, pa.binary()),
            after,
            pa.nulls(row_count, before_type(relation)),
        ],
        schema=batch_schema(relation),
    )
    return Rows(relation=relation, batch=batch)


def column_of(cells: Sequence[Cell], neutral: str, dialect: LineDialect = LineDialect.COPY) -> Any:
    """Return the cells of a column as an array; as texts if its type cannot hold one of them."""
    try:
        return _array(cells, neutral, dialect)
    except (_Unfit, pa.ArrowInvalid, OverflowError):
        return _array(cells, "string", dialect)


def fit_missing(column: Column) -> Column:
    """Return a column as text if its type cannot hold the value that rows older than it have."""
    if column.missing is None:
        return column
    try:
        _array([column.missing.encode()], column.neutral, LineDialect.COPY)
    except (_Unfit, pa.ArrowInvalid, OverflowError):
        return column.as_text()
    return column


def _array(cells: Sequence[Cell], neutral: str, dialect: LineDialect) -> Any:
    if neutral == "binary" and dialect is LineDialect.LOAD_DATA:
        return pa.array(cells, pa.binary())
    read, physical = _READERS.get(neutral.partition("(")[0], (bytes.decode, None))
    kind = arrow_type(neutral)
    try:
        values = [None if cell is None else read(cell) for cell in cells]
    except (ValueError, KeyError, InvalidOperation) as error:
        raise _Unfit from error
    if physical is not None:
        return pa.array(values, physical).view(kind)
    return pa.array(values, kind)


def _decimal(cell: bytes) -> Decimal:
    found = Decimal(cell.decode())
    if not found.is_finite():
        raise _Unfit
    return found


def _binary(cell: bytes) -> bytes:
    if not cell.startswith(b"\\x"):
        raise _Unfit
    return bytes.fromhex(cell[2:].decode())


def _uuid(cell: bytes) -> bytes:
    return uuid.UUID(cell.decode()).bytes


def _date(cell: bytes) -> int:
    return _days(cell.decode())


def _days(text: str) -> int:
    """Return the days since 1970-01-01 of the proleptic Gregorian calendar, for any year."""
    found = _DATE.match(text)
    if found is None:
        raise _Unfit
    year, month, day = (int(part) for part in found.groups()[:3])
    year = 1 - year if found[4] else year
    # A year of the same length that Python has, and whole cycles of 400 years.
    cycles, within = divmod(year - 1, 400)
    try:
        here = datetime.date(within + 1, month, day).toordinal()
    except ValueError as error:
        raise _Unfit from error
    return here + cycles * 146_097 - _EPOCH_DAY


def _time(cell: bytes) -> int:
    return _day_time(cell.decode())


def _day_time(text: str) -> int:
    found = _TIME.match(text)
    if found is None:
        raise _Unfit
    hour, minute, second = (int(part) for part in found.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise _Unfit
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def _moment(cell: bytes) -> int:
    found = _MOMENT.match(cell.decode())
    if found is None:
        raise _Unfit
    return _days(found[1] + (found[3] or "")) * _DAY_US + _day_time(found[2])


_READERS: dict[str, tuple[Callable[[bytes], Any], pa.DataType | None]] = {
    **dict.fromkeys(("int16", "int32", "int64", "uint32", "uint64"), (int, None)),
    **dict.fromkeys(("float32", "float64"), (float, None)),
    **dict.fromkeys(("timestamp", "timestamptz"), (_moment, pa.int64())),
    "bool": (lambda cell: _BOOLEANS[cell.decode()], None),
    "decimal": (_decimal, None),
    "date": (_date, pa.int32()),
    "time": (_time, pa.int64()),
    "uuid": (_uuid, None),
    "binary": (_binary, None),
}
