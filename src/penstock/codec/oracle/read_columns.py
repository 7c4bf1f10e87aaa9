"""Convert rows of Oracle's driver to columns of penstock, with the values that the log has.

A record batch of the driver and the definitions of its columns go in; Arrow arrays of the columns'
neutral types come out.

    columns = [ReadColumn.of("ID", "NUMBER(10,0)"), ReadColumn.of("DOC", "CLOB")]
    f"SELECT {', '.join(map(select_expression, columns))} FROM ..."
    made = make_columns(batch, columns)       # the batch has these expressions alone, in order
    made.arrays                               # one per column
    made.as_text                              # indexes of columns that became text in this batch

The driver's Arrow makes a NUMBER without precision a float, loses time zones, and does not know
years before 1: `select_expression` lets the server print these, and the text is read as that of
the log is (`moments`, `numbers`, `intervals`). An empty LOB and NULL are the same for the driver,
so a LOB has a second expression beside it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.oracle import intervals, numbers
from penstock.codec.oracle.cells import How, Plan, plan_column
from penstock.codec.oracle.moments import microseconds_of, parse_moment, text_of
from penstock.codec.oracle.types import FRACTION_DEFAULT, PRECISION_MAX, OracleType, parse_type
from penstock.codec.oracle.values import FormatUnknown, Malformed, Unfit
from penstock.model import Column, ColumnDefinition, PenstockError

DATE_MASK = "SYYYY-MM-DD HH24:MI:SS"
_LOBS = frozenset(("CLOB", "NCLOB", "BLOB"))
_TIMES = frozenset((How.DATE, How.TIMESTAMP, How.LOCAL))
# Texts of times that Arrow reads as Oracle does: years from 1 on, at most microseconds.
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6}(?:000)?)?$"
_PLAIN_TIME_CHARACTERS = 26
_YEAR_ZERO = "0000"


class CellBroken(PenstockError):
    """Oracle's driver returned a value that its type does not have.

    fields: column and type. Never holds the value.
    """

    code = "DC85"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumn:
    """Column of a table.

    Attributes:
        kind: its type at the source.
        neutral: type of the values in the log; `string` once the column is kept as text.
    """

    name: str
    kind: OracleType
    neutral: str

    @classmethod
    def of(cls, name: str, type_text: str, neutral: str = "") -> ReadColumn:
        """Return the column of a type's text. neutral: the type's own if it is empty."""
        kind = parse_type(type_text)
        return cls(name=name, kind=kind, neutral=neutral or kind.neutral)

    @classmethod
    def from_column(cls, column: Column | ColumnDefinition) -> ReadColumn:
        """Return a column of a relation or of a catalogue."""
        text = column.source_type if isinstance(column, Column) else column.type_text
        return cls.of(column.name, column.base_type or text, column.neutral)

    @property
    def plan(self) -> Plan:
        """Way to read the column's values in the log."""
        return plan_column(Column(name=self.name, source_type=self.kind.text, neutral=self.neutral))

    @property
    def is_lob(self) -> bool:
        """Return whether it has two expressions in a SELECT."""
        return self.kind.base in _LOBS

    def as_text(self) -> ReadColumn:
        """Return the same column, kept as exact text."""
        return replace(self, neutral="string")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeColumns:
    """Columns of one batch.

    Attributes:
        arrays: one per column, of its neutral type.
        columns: the columns by which later batches must be read.
        as_text: indexes of the columns that became text, because a value did not fit.
    """

    arrays: tuple[Any, ...]
    columns: tuple[ReadColumn, ...]
    as_text: tuple[int, ...] = ()


def quote(name: str) -> str:
    """Return a name in quotation marks."""
    return f'"{name}"'


def select_expression(column: ReadColumn) -> str:
    """Return the SQL that selects a column without loss: one expression, two of a LOB."""
    name, kind = quote(column.name), column.kind
    if column.is_lob:
        return f"{name}, CASE WHEN {name} IS NULL THEN 0 ELSE 1 END"
    if kind.is_number:
        return name if _is_exact(kind) else f"TO_CHAR({name}, 'TM9')"
    if kind.base == "ROWID":
        return f"ROWIDTOCHAR({name})"
    if kind.base == "UROWID":
        return f"CAST({name} AS VARCHAR2(4000))"
    if kind.base == "DATE":
        return f"TO_CHAR({name}, '{DATE_MASK}')"
    if kind.base.startswith("TIMESTAMP"):
        zone = " TZH:TZM" if kind.base == "TIMESTAMP WITH TIME ZONE" else ""
        return f"TO_CHAR({name}, '{DATE_MASK}.FF{_fraction(kind)}{zone}')"
    return f"TO_CHAR({name})" if kind.base.startswith("INTERVAL") else name


def _fraction(kind: OracleType) -> int:
    """Return the digits after the second that are printed: 6, or 9 if there may be more."""
    return 6 if (FRACTION_DEFAULT if kind.scale is None else kind.scale) <= 6 else 9


def _is_exact(kind: OracleType) -> bool:
    """Return whether the driver's Arrow has the exact values of a NUMBER: as decimals."""
    if kind.base != "NUMBER" or kind.precision is None or kind.scale is None:
        return False
    return 0 <= kind.scale <= kind.precision <= PRECISION_MAX


def make_columns(batch: pa.RecordBatch, columns: Sequence[ReadColumn]) -> MadeColumns:
    """Return the values of a batch whose columns were selected by `select_expression`.

    Args:
        batch: of the driver, with the expressions of these columns in order and no others.
        columns: their definitions.

    Raises CellBroken for a value that the type does not have, with the column's name.
    """
    arrays: list[Any] = []
    after = list(columns)
    moved: list[int] = []
    at = 0
    for place, column in enumerate(columns):
        values = batch.column(at)
        is_there = batch.column(at + 1) if column.is_lob else None
        at += 2 if column.is_lob else 1
        try:
            try:
                arrays.append(convert(values, column, is_there))
            except Unfit:
                after[place] = column.as_text()
                moved.append(place)
                arrays.append(convert(values, after[place], is_there))
        except (Malformed, FormatUnknown, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise broken_column(column.kind.text, column.name) from error
    if at != batch.num_columns:
        raise ValueError(f"{batch.num_columns} columns are not {at}")
    return MadeColumns(arrays=tuple(arrays), columns=tuple(after), as_text=tuple(moved))


def broken_column(type_text: str, column: str | int) -> CellBroken:
    """Return the error for a value that cannot be read. column: its name, or place from 0."""
    shown = column if isinstance(column, str) else column + 1
    return CellBroken(
        f"Oracle sent a value that cannot be read: column {shown} of type {type_text}",
        hint="Report this with the type of the column; no value was changed or skipped.",
        column=column,
        type=type_text,
    )


def convert(values: Any, column: ReadColumn, is_there: Any = None) -> Any:
    """Return a column's values in its neutral type.

    Args:
        values: of the driver.
        column: its definition.
        is_there: of a LOB, 0 where the value is NULL.

    Raises Unfit if the neutral type cannot hold one of them; Malformed, FormatUnknown and
    ArrowInvalid for a value that the type does not have.
    """
    plan = column.plan
    if is_there is None and (pa.types.is_null(values.type) or values.null_count == len(values)):
        return pa.nulls(len(values), arrow_type(plan.neutral))
    if plan.how in _TIMES and plan.neutral != "string":
        return _times(values, plan)
    if plan.how in (How.TEXT, How.BYTES):
        return _large(values, plan, is_there) if column.is_lob else _plain(values, plan)
    if plan.how is How.FLOAT:
        return cast_exactly(values, arrow_type(plan.neutral))
    if plan.how in (How.INTEGER, How.DECIMAL) and pa.types.is_decimal(values.type):
        return _exact_number(values, plan)
    read = _READERS[plan.how]
    found = [None if one is None else read(_text(one), plan) for one in values.to_pylist()]
    return pa.array(found, arrow_type(plan.neutral))


def _plain(values: Any, plan: Plan) -> Any:
    """Return texts and bytes, in which nothing is NULL that is not so at the source."""
    return cast_exactly(values, arrow_type(plan.neutral))


def _large(values: Any, plan: Plan, is_there: Any) -> Any:
    """Return the values of a LOB: an empty one is not NULL."""
    kind = arrow_type(plan.neutral)
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), kind)
    empty = pa.scalar(b"" if pa.types.is_binary(kind) else "", kind)
    is_empty = pc.and_(pc.not_equal(cast_exactly(is_there, pa.float64()), 0.0), values.is_null())
    return pc.if_else(is_empty, empty, cast_exactly(values, kind))


def _exact_number(values: Any, plan: Plan) -> Any:
    try:
        return cast_exactly(values, arrow_type(plan.neutral))
    except pa.ArrowInvalid as error:
        raise Unfit from error


def _text(value: Any) -> bytes:
    """Return a value's text; a number that the driver returns as such is printed without loss."""
    if isinstance(value, Decimal):
        return f"{value:f}".encode()
    return str(value).encode()


def _times(values: Any, plan: Plan) -> Any:
    """Return times in microseconds."""
    texts = pc.utf8_ltrim_whitespace(values)
    kind = arrow_type(plan.neutral)
    if _are_plain(texts):
        try:
            shown = pc.utf8_slice_codeunits(texts, 0, _PLAIN_TIME_CHARACTERS)
            return shown.cast(pa.timestamp("us")).view(kind)
        except pa.ArrowInvalid:
            pass  # a day that only the Julian calendar has, or none: the other way tells
    found = [
        None if one is None else microseconds_of(parse_moment(one.encode()))
        for one in values.to_pylist()
    ]
    return pa.array(found, pa.int64()).view(kind)


def _are_plain(texts: Any) -> bool:
    is_plain = pc.and_(
        pc.match_substring_regex(texts, _PLAIN_TIME),
        pc.invert(pc.starts_with(texts, _YEAR_ZERO)),
    )
    return bool(pc.all(is_plain).as_py())


def _read_moment(text: bytes, plan: Plan) -> str:
    moment = parse_moment(text)
    if plan.how is How.LOCAL:
        moment = moment._replace(offset=0)  # the sessions' zone is UTC
    elif (moment.offset is None) is (plan.how is How.ZONED):
        raise FormatUnknown
    return text_of(moment)


_READERS: dict[How, Callable[[bytes, Plan], Any]] = {
    How.INTEGER: lambda text, plan: numbers.read_integer(text, plan.neutral),
    How.DECIMAL: lambda text, plan: numbers.read_decimal(text, plan.precision, plan.scale),
    How.NUMBER_TEXT: lambda text, _: numbers.read_number_text(text),
    How.FLOAT_TEXT: lambda text, _: numbers.plain_float(text).decode(),
    How.DATE: _read_moment,
    How.TIMESTAMP: _read_moment,
    How.LOCAL: _read_moment,
    How.ZONED: _read_moment,
    How.MONTHS: lambda text, _: intervals.read_months(text.strip()),
    How.SECONDS: lambda text, _: intervals.read_seconds(text.strip()),
}
