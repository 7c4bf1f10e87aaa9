"""Convert a column of any source for PostgreSQL's wire: its announced type, and its values.

The rules are those of a PostgreSQL target (`to_postgres`), applied to Arrow columns, because no SQL
can convert a value between the log and a client.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.types.mapping import NO_CHOICES, NULL, REMOVE, Choices
from penstock.codec.types.source_type import Engine, Server
from penstock.codec.types.table import map_column
from penstock.codec.types.to_postgres import BITS_OF_NUMBER, EWKB_OF_DIGITS
from penstock.model import Column, TableName

Convert = Callable[[pa.Array], pa.Array]
_NEWEST = (99,)
_POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
# Of an engine that the table of types does not know: its neutral types say enough.
_NEUTRAL = {
    "bool": "boolean",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "uint32": "bigint",
    "uint64": "numeric(20,0)",
    "float32": "real",
    "float64": "double precision",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "uuid": "uuid",
    "binary": "bytea",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TEMPORAL = re.compile(r"(date|timestamp)\b")
_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})(.*)", re.DOTALL)
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Unservable(ValueError):
    """A client of PostgreSQL cannot receive this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedColumn:
    """Announcement of a column, and the conversion of its values before printing.

    Attributes:
        column: its source_type is PostgreSQL's.
        convert: None if values print as they are; raises Unservable.
    """

    column: Column
    convert: Convert | None = None


def served_column(
    column: Column, engine: str, *, table: TableName | None = None, choices: Choices = NO_CHOICES
) -> ServedColumn:
    """Return a column of a log whose source is of this engine, by the log's name for the engine."""
    try:
        source = Engine(engine)
    except ValueError:
        return ServedColumn(column=_by_neutral(column))
    if source is Engine.POSTGRESQL:
        return ServedColumn(column=column)
    mapping = map_column(
        column, Server(engine=source, version=_NEWEST), _POSTGRES, choices=choices, table=table
    )
    if mapping.refused:
        return ServedColumn(column=_by_neutral(column))
    announced = replace(
        column, source_type=mapping.target_type, base_type="", type_oid=0, typmod=-1
    )
    name = f"{table}.{column.name}" if table else column.name
    convert: Convert | None = None
    if mapping.write.name == BITS_OF_NUMBER:
        width = int(mapping.target_type.strip("bit()") or 1)
        convert, announced = _bits(width), replace(announced, neutral="string")
    elif mapping.write.name == EWKB_OF_DIGITS:
        convert, announced = _ewkb, replace(announced, neutral="string")
    elif column.neutral == "string" and _TEMPORAL.match(mapping.target_type):
        suffix = "+00" if mapping.target_type.endswith("with time zone") else ""
        convert = _printed_days(name, suffix, as_null=mapping.chosen.get("zero dates") == NULL)
    elif column.neutral == "string":
        convert = _without_nul(name, removes=mapping.chosen.get("nul characters") == REMOVE)
    return ServedColumn(column=announced, convert=convert)


def _by_neutral(column: Column) -> Column:
    match = _DECIMAL.fullmatch(column.neutral)
    kind = f"numeric({match[1]},{match[2]})" if match else _NEUTRAL.get(column.neutral, "text")
    return replace(column, source_type=kind, base_type="", type_oid=0, typmod=-1)


def _bits(width: int) -> Convert:
    def convert(values: pa.Array) -> pa.Array:
        numbers = values.to_pylist()
        return pa.array(
            [None if one is None else f"{int(one):0{width}b}" for one in numbers], pa.string()
        )

    return convert


def _ewkb(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("\\x", pc.utf8_lower(values), "")


def _printed_days(name: str, suffix: str, *, as_null: bool) -> Convert:
    """Convert dates and times that the log keeps as the source prints them."""

    def one(text: str | None) -> str | None:
        if text is None:
            return None
        match = _DAY.fullmatch(text)
        if match is None:
            raise Unservable(f"{name} holds {text!r}, which is not a date")
        year, month, day = int(match[1]), int(match[2]), int(match[3])
        if not _is_day(year, month, day):
            if as_null:
                return None
            raise Unservable(f"{name} holds {text!r}, a day that no calendar has")
        if year == 0:  # which PostgreSQL calls 1 BC
            return f"0001-{match[2]}-{match[3]}{match[4]}{suffix} BC"
        return text + suffix

    def convert(values: pa.Array) -> pa.Array:
        return pa.array([one(text) for text in values.to_pylist()], pa.string())

    return convert


def _is_day(year: int, month: int, day: int) -> bool:
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1]:
        return False
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (month, day) != (2, 29) or is_leap


def _without_nul(name: str, *, removes: bool) -> Convert:
    def convert(values: pa.Array) -> pa.Array:
        if not _has_nul(values):
            return values
        if removes:
            return pc.replace_substring(values, "\0", "")
        raise Unservable(f"{name} holds text with the character U+0000")

    return convert


def _has_nul(values: Any) -> bool:
    """Return whether any text has the character NUL. Looks once at all bytes together."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return False
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    text = np.frombuffer(data, np.uint8)[places[0] : places[-1]]
    return bool((text == 0).any())
