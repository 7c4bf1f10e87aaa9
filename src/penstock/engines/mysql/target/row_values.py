"""JSON values of changefeeds as values of MySQL's and MariaDB's column types. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from penstock.model import ColumnDefinition, TableDefinition
from penstock.sql.row_documents import unfit

Convert = Callable[[bytes], Any]
"""From a JSON value that is not null to what the driver writes as a literal."""

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geomcollection",
        "geometrycollection",
    }
)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_BITS = re.compile(r"[01]*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)


def data_type(column: ColumnDefinition) -> str:
    """Return the bare type, for example `int` of `int(10) unsigned`."""
    return column.type_text.partition("(")[0].split()[0].lower()


def converter(table: TableDefinition, column: ColumnDefinition) -> Convert:
    """Return the converter of a column's values, which raises ValueUnfit."""
    kind = data_type(column)
    convert: Convert = _text
    if kind in INTEGERS:
        convert = _integer
    elif kind in BYTES:
        convert = _uuid_or_bytes if column.type_text.lower() == "binary(16)" else _bytes
    elif kind == "bit":
        convert = _bits
    elif kind == "json" or kind in GEOMETRIES:
        convert = bytes.decode
    elif kind in ("datetime", "timestamp"):
        convert = _moment
    elif kind in ("decimal", "float", "double"):
        convert = _number

    def check(raw: bytes) -> Any:
        try:
            return convert(raw)
        except (ValueError, ArithmeticError) as error:
            raise unfit(table, column) from error

    return check


def _text(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()


def _number(raw: bytes) -> str:
    return {b"true": "1", b"false": "0"}.get(raw) or _text(raw)


def _integer(raw: bytes) -> int:
    text = _number(raw)
    if _INTEGER.fullmatch(text):
        return int(text)
    number = Decimal(text)  # 1.00 is an integer; the server would round 1.5
    if number != number.to_integral_value():
        raise ValueError(text)
    return int(number)


def _bytes(raw: bytes) -> bytes:
    text = _text(raw)
    if not raw.startswith(b'"') or not text.startswith("\\x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _uuid_or_bytes(raw: bytes) -> bytes:
    text = _text(raw)
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else _bytes(raw)


def _bits(raw: bytes) -> int:
    text = _number(raw)
    if not raw.startswith(b'"'):
        return int(text)
    if not _BITS.fullmatch(text):
        raise ValueError(text)
    return int(text or "0", 2)


def _moment(raw: bytes) -> str:
    text = _text(raw)
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text
    day, time, zone = match.groups()
    if zone in (None, "Z"):
        return f"{day} {time}"
    found = datetime.fromisoformat(f"{day} {time}{zone}").astimezone(UTC)
    return found.replace(tzinfo=None).isoformat(" ")
