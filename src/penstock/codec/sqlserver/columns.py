"""Convert rows of SQL Server's driver to columns of penstock: one module for every path.

A record batch of the driver (`arrow_reader` of mssql_python) and the definitions of its columns go
in; Arrow arrays of the columns' neutral types come out. The reader of change tables and the bulk
reader both use it, so that a value cannot depend on the path by which it arrives.

    columns = [SourceColumn.of("id", "int"), SourceColumn.of("at", "datetimeoffset(7)")]
    f"SELECT {', '.join(map(select_expression, columns))} FROM [dbo].[t]"
    made = make_columns(batch, columns)       # the batch has these columns alone, in this order
    made.arrays                               # one per column
    made.columns                              # as given, or kept as text from now on
    made.as_text                              # indexes of columns that became text in this batch

The driver's Arrow loses an offset and the seventh digit of a datetime2, and has no form for some
types (reference, section 7): `select_expression` lets the server print these.

A neutral type cannot hold the seventh digit of `time(7)` and `datetime2(7)`. The first batch with
such a value keeps the whole column as exact text (`Column.as_text`): the caller continues with
`made.columns` and a new version of the relation. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.sqlserver.moments import (
    Moments,
    ValueBroken,
    broken,
    moment_texts,
    parse_moments,
    time_texts,
)
from penstock.codec.sqlserver.types import FRACTION_MAX, GEOMETRIES, SqlServerType, parse_type
from penstock.model import Column, ColumnDefinition

_PRINTED = "CONVERT(varchar(34), {}, 126)"
_AS_TEXT = "CONVERT(nvarchar(max), {})"
_GEOMETRY = "CONVERT(varchar(11), {0}.STSrid) + ':' + CONVERT(varchar(max), {0}.AsBinaryZM(), 2)"
# A variant's base type, a colon, and its value with all digits.
_BASE = "CONVERT(nvarchar(60), SQL_VARIANT_PROPERTY({0}, 'BaseType'))"
_VARIANT_STYLES = {
    "money": 2,
    "smallmoney": 2,
    "float": 3,
    "real": 3,
    "date": 23,
    "time": 121,
    "datetime": 126,
    "smalldatetime": 126,
    "datetime2": 126,
    "datetimeoffset": 126,
    "binary": 1,
    "varbinary": 1,
}
_VARIANT_SIZED = {"binary": "varbinary(8000)", "varbinary": "varbinary(8000)"}
_VARIANT = (
    f"{_BASE} + ':' + CASE {_BASE} "
    + " ".join(
        f"WHEN '{kind}' THEN CONVERT(nvarchar(max), "
        f"CONVERT({_VARIANT_SIZED.get(kind, kind)}, {{0}}), {style})"
        for kind, style in _VARIANT_STYLES.items()
    )
    + " ELSE CONVERT(nvarchar(max), {0}) END"
)
_NS_PER_TICK = 100
_SRID_FLAG = 0x20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """Column of a table or of a change table.

    Attributes:
        kind: its type at the source.
        neutral: type of the values in the log; `string` once the column is kept as text.
    """

    name: str
    kind: SqlServerType
    neutral: str

    @classmethod
    def of(cls, name: str, type_text: str, neutral: str = "") -> SourceColumn:
        """Return the column of a type's text. neutral: the type's own if it is empty."""
        kind = parse_type(type_text)
        return cls(name=name, kind=kind, neutral=neutral or kind.neutral)

    @classmethod
    def from_column(cls, column: Column | ColumnDefinition) -> SourceColumn:
        """Return a column of a relation or of a catalogue."""
        text = column.source_type if isinstance(column, Column) else column.type_text
        return cls.of(column.name, column.base_type or text, column.neutral)

    def as_text(self) -> SourceColumn:
        """Return the same column, kept as exact text."""
        return replace(self, neutral="string")

    def with_name(self, name: str) -> SourceColumn:
        """Return the same column under another name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeColumns:
    """Columns of one batch.

    Attributes:
        arrays: one per column, of its neutral type.
        columns: the columns by which later batches must be read.
        as_text: indexes of the columns that became text, because a value did not fit.
    """

    arrays: tuple[Any, ...]
    columns: tuple[SourceColumn, ...]
    as_text: tuple[int, ...] = ()


class _Finer(Exception):
    """A value has digits after the microsecond."""


def quote(name: str) -> str:
    """Return a name in brackets."""
    return f"[{name.replace(']', ']]')}]"


def select_expression(column: SourceColumn, *, alias: str = "") -> str:
    """Return the T-SQL that selects a column without loss, under its own name or an alias.

    It is the same in a table and in its change table.
    """
    name = quote(column.name)
    template = _template(column.kind)
    shown = template.format(name) if template else name
    return f"{shown} AS {quote(alias or column.name)}" if template or alias else shown


def _template(kind: SqlServerType) -> str:
    """Return the expression of a column's value; empty if the driver returns it exactly."""
    if kind.base == "datetimeoffset" or (kind.base == "datetime2" and kind.scale == FRACTION_MAX):
        return _PRINTED
    if kind.base == "hierarchyid":
        return "{}.ToString()"
    if kind.base in GEOMETRIES:
        return _GEOMETRY
    if kind.base == "sql_variant":
        return _VARIANT
    if kind.base == "json":
        return _AS_TEXT
    return "" if kind.is_builtin else "CONVERT(varbinary(max), {})"


def make_columns(batch: pa.RecordBatch, columns: Sequence[SourceColumn]) -> MadeColumns:
    """Return the values of a batch whose columns were selected by `select_expression`.

    Args:
        batch: of the driver, with these columns in order and no others
            (`batch.select(range(5, batch.num_columns))` takes the first five off).
        columns: their definitions.

    Raises ValueBroken for a value that the type does not have, with the column's name.
    """
    if batch.num_columns != len(columns):
        raise ValueError(f"{batch.num_columns} columns are not {len(columns)}")
    arrays: list[Any] = []
    after = list(columns)
    moved: list[int] = []
    for place, column in enumerate(columns):
        values = batch.column(place)
        try:
            try:
                arrays.append(_convert(values, column))
            except _Finer:
                after[place] = column.as_text()
                moved.append(place)
                arrays.append(_convert(values, after[place]))
        except (ValueBroken, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _name_column(error, column) from error
    return MadeColumns(arrays=tuple(arrays), columns=tuple(after), as_text=tuple(moved))


def _name_column(error: Exception, column: SourceColumn) -> ValueBroken:
    reason = error.fields["reason"] if isinstance(error, ValueBroken) else str(error)
    return broken(f"column {column.name} of type {column.kind.text}: {reason}")


def _convert(values: Any, column: SourceColumn) -> Any:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type) or values.null_count == len(values):
        return pa.nulls(len(values), arrow_type(column.neutral))
    make = _MAKERS.get(column.kind.base, _plain)
    return make(values, column)


def _plain(values: Any, column: SourceColumn) -> Any:
    """Return numbers, dates, texts and bytes, which the driver returns as they are."""
    kind = arrow_type(column.neutral)
    if column.neutral == "string":
        return _text(values)
    return cast_exactly(values, kind)


def _text(values: Any) -> Any:
    found = values.cast(pa.string()) if not pa.types.is_string(values.type) else values
    try:
        found.validate(full=True)  # half of a pair of UTF-16 is not a text
    except pa.ArrowInvalid as error:
        raise broken("text is not valid Unicode") from error
    return found


def spread(found: Any, values: Any) -> Any:
    """Return the results for the values that are not NULL, with NULLs in their places."""
    if not values.null_count:
        return found
    places = np.cumsum(np.asarray(values.is_valid().to_numpy(zero_copy_only=False))) - 1
    indexes = pa.array(places, pa.int64(), mask=values.is_null().to_numpy(zero_copy_only=False))
    return found.take(indexes)


# -- dates and times -------------------------------------------------------------------------------


def _to_time(values: Any, column: SourceColumn) -> Any:
    ticks = np.asarray(values.drop_null().cast(pa.time64("ns")).view(pa.int64())) // _NS_PER_TICK
    if column.neutral == "string":
        return spread(time_texts(ticks), values)
    if (ticks % 10).any():
        raise _Finer
    return spread(pa.array(ticks // 10, pa.int64()).view(pa.time64("us")), values)


def _to_timestamp(values: Any, column: SourceColumn) -> Any:
    there = values.drop_null()
    moments = (
        parse_moments(there, has_offset=False)
        if _is_text(there.type)
        else _moments_of(there.cast(pa.timestamp("us")))
    )
    if column.neutral == "string":
        return spread(moment_texts(moments, with_offset=False), values)
    if moments.is_finer:
        raise _Finer
    return spread(pa.array(moments.microseconds, pa.int64()).view(pa.timestamp("us")), values)


def _moments_of(values: Any) -> Moments:
    seconds, rest = np.divmod(np.asarray(values.view(pa.int64())), 1_000_000)
    return Moments(seconds, rest * 10, np.zeros(len(seconds), np.int64))


def _to_offset_text(values: Any, _: SourceColumn) -> Any:
    moments = parse_moments(values.drop_null(), has_offset=True)
    return spread(moment_texts(moments, with_offset=True), values)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# -- other types -----------------------------------------------------------------------------------

_UUID_LENGTH = 36
_UUID_DASHES = (8, 13, 18, 23)
_UUID_DIGITS = np.array([at for at in range(_UUID_LENGTH) if at not in _UUID_DASHES])
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
for _value, _pair in enumerate(("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "aA", "bB",
                                "cC", "dD", "eE", "fF")):  # fmt: skip
    for _one in _pair:
        _DIGITS[ord(_one)] = _value


def _to_uuid(values: Any, _: SourceColumn) -> Any:
    """Return the 16 bytes in the order of the text, not in SQL Server's own order."""
    if pa.types.is_fixed_size_binary(values.type):
        return values.cast(pa.binary(16))
    there = values.drop_null().cast(pa.large_string())
    size = len(there)
    bounds = np.frombuffer(there.buffers()[1], np.int64)[there.offset : there.offset + size + 1]
    if (np.diff(bounds) != _UUID_LENGTH).any():
        raise broken("a uniqueidentifier does not have 36 characters")
    raw = np.frombuffer(there.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    digits = _DIGITS[raw.reshape(size, _UUID_LENGTH)[:, _UUID_DIGITS]]
    if (digits == _NO_DIGIT).any():
        raise broken("a uniqueidentifier has a character other than a digit")
    packed = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2])
    made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), size, [None, pa.py_buffer(packed)])
    return spread(made, values)


def _to_geometry(values: Any, _: SourceColumn) -> Any:
    return pa.array([one and ewkb_hex(one) for one in values.to_pylist()], pa.string())


def ewkb_hex(text: str) -> str:
    """Return EWKB in hexadecimal digits of `SRID:WKB`, as `select_expression` prints it.

    WKB has the type's number behind the byte order, which is little-endian. Without an SRID, EWKB
    is WKB. Raises ValueBroken.
    """
    srid, colon, digits = text.partition(":")
    try:
        wkb, number = bytes.fromhex(digits), int(srid)
    except ValueError as error:
        raise broken("a geometry is not an SRID and hexadecimal digits") from error
    if not colon or len(wkb) < 5 or wkb[0] != 1 or not 0 <= number < 2**31:
        raise broken("a geometry is not WKB")
    if not number:
        return wkb.hex()
    head = wkb[:4] + bytes([wkb[4] | _SRID_FLAG])
    return (head + number.to_bytes(4, "little") + wkb[5:]).hex()


_MAKERS: dict[str, Callable[[Any, SourceColumn], Any]] = {
    "time": _to_time,
    "datetime2": _to_timestamp,
    "datetime": _to_timestamp,
    "smalldatetime": _to_timestamp,
    "datetimeoffset": _to_offset_text,
    "uniqueidentifier": _to_uuid,
    "geometry": _to_geometry,
    "geography": _to_geometry,
}
__all__ = [
    "MadeColumns",
    "SourceColumn",
    "ValueBroken",
    "ewkb_hex",
    "make_columns",
    "quote",
    "select_expression",
    "spread",
]
