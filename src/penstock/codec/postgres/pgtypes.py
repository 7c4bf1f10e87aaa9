"""Neutral types for the values of built-in PostgreSQL types, and their announcement.

They are found by oid and modifier only, so this works for a Relation message. Users' types (enums,
domains, extensions) have no fixed oid: they are kept as exact text, unless the catalogue reader
knows a domain's base type and passes that one's oid.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.codec.columns import DECIMAL_PRECISION_MAX

if TYPE_CHECKING:
    from penstock.model import Column

NUMERIC_OID = 1700
BYTEA_OID = 17
FIRST_USER_OID = 16_384  # oids below belong to PostgreSQL itself
_TYPMOD_HEADER = 4  # numeric's modifier is stored with the size of a length word added
_SCALE_BITS = 11

_NEUTRAL: dict[int, str] = {
    16: "bool",
    BYTEA_OID: "binary",
    20: "int64",
    21: "int16",
    23: "int32",
    26: "uint32",  # oid
    28: "uint32",  # xid
    29: "uint32",  # cid
    700: "float32",
    701: "float64",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    2950: "uuid",
    5069: "uint64",  # xid8
}


def neutral_type(type_oid: int, typmod: int) -> str:
    """Return the neutral type's name for a built-in type; `string` for any unknown one.

    type_oid: pg_type.oid. typmod: pg_attribute.atttypmod, -1 for none. numeric becomes a decimal if
    its modifier limits it to at most 38 digits. Without a modifier it is text, because each value
    may have another scale.
    """
    if type_oid == NUMERIC_OID:
        return _numeric(typmod)
    return _NEUTRAL.get(type_oid, "string")


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale in a numeric's modifier; None without one. Scale may
    be negative.
    """
    if typmod < _TYPMOD_HEADER:
        return None
    packed = typmod - _TYPMOD_HEADER
    sign = 1 << (_SCALE_BITS - 1)
    scale = ((packed & ((1 << _SCALE_BITS) - 1)) ^ sign) - sign
    return packed >> 16, scale


def _numeric(typmod: int) -> str:
    modifier = numeric_modifier(typmod)
    if modifier is None:
        return "string"
    precision, scale = modifier
    if scale < 0:
        # numeric(5,-2) keeps whole hundreds: seven digits, none behind the point.
        precision, scale = precision - scale, 0
    if scale > precision or precision > DECIMAL_PRECISION_MAX:
        return "string"
    return f"decimal({precision},{scale})"


TEXT_OID = 25
_OIDS: dict[str, int] = {
    "boolean": 16,
    "bytea": BYTEA_OID,
    '"char"': 18,
    "name": 19,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": TEXT_OID,
    "oid": 26,
    "xid": 28,
    "cid": 29,
    "json": 114,
    "xml": 142,
    "cidr": 650,
    "real": 700,
    "double precision": 701,
    "inet": 869,
    "character": 1042,
    "character varying": 1043,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "bit": 1560,
    "bit varying": 1562,
    "numeric": NUMERIC_OID,
    "uuid": 2950,
    "jsonb": 3802,
    "xid8": 5069,
}
_LENGTH_WORD = ("character", "character varying")
_PRECISION = (
    "time without time zone",
    "timestamp without time zone",
    "timestamp with time zone",
    "bit",
    "bit varying",
)
_INTERVAL_ALL_FIELDS = 0x7FFF << 16
_PRINTED = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<inside>[0-9, -]+)\))?(?P<zone> with.*)?")


def wire_type(column: Column) -> tuple[int, int]:
    """Return the oid and the modifier that announce a column to a client.

    They are those of the catalogue if the type is PostgreSQL's own; those of its printed name if
    the log knows no oid, or if it is a domain; and `text` otherwise, because a client cannot know
    it.
    """
    if 0 < column.type_oid < FIRST_USER_OID:
        return column.type_oid, column.typmod
    match = _PRINTED.fullmatch(column.base_type or column.source_type)
    if match is None:
        return TEXT_OID, -1
    name = match["name"] + (match["zone"] or "")
    numbers = [int(number) for number in (match["inside"] or "").split(",") if number.strip()]
    oid = _OIDS.get(name)
    return (TEXT_OID, -1) if oid is None else (oid, _modifier(name, numbers))


def _modifier(name: str, numbers: list[int]) -> int:
    if not numbers:
        return -1
    first = numbers[0]
    if name == "numeric":
        scale = numbers[1] if len(numbers) > 1 else 0
        return (first << 16 | scale & ((1 << _SCALE_BITS) - 1)) + _TYPMOD_HEADER
    if name in _LENGTH_WORD:
        return first + _TYPMOD_HEADER
    if name == "interval":
        return _INTERVAL_ALL_FIELDS | first
    return first if name in _PRECISION else -1
