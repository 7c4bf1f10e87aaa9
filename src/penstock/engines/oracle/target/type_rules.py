"""Rules for types of Oracle, given as texts: which are the same, and which hold another."""

from __future__ import annotations

from penstock.codec.oracle.types import PRECISION_MAX, OracleType, parse_type
from penstock.sql.shape_changes import TypeRules

_TEXTS = {"CHAR": 1, "VARCHAR2": 1, "NCHAR": 2, "NVARCHAR2": 2}
_LONG_TEXTS = frozenset(("CLOB", "NCLOB", "LONG"))
_LONG_BYTES = frozenset(("BLOB", "LONG RAW"))
_ZONED = "TIMESTAMP WITH TIME ZONE"
_CHARACTER_BYTES = 4
_FLOAT_DIGITS = 0.30103  # decimal digits of a binary one


def same(left: str, right: str) -> bool:
    """Return whether two texts are the same type. A length in characters is not one in bytes."""
    return parse_type(left) == parse_type(right)


def holds(wider: str, narrower: str) -> bool:
    """Return whether the first type holds every value of the second without change."""
    one, other = parse_type(wider), parse_type(narrower)
    if one == other:
        return True
    if one.is_number and other.is_number:
        return _holds_number(one, other)
    if other.base == "BINARY_FLOAT":
        return one.base == "BINARY_DOUBLE"
    if other.base in _TEXTS:
        return _holds_text(one, other)
    if other.base in _LONG_TEXTS:
        return one.base in ("CLOB", "NCLOB")
    if other.base == "RAW":
        return one.base in _LONG_BYTES or (
            one.base == "RAW" and (one.length or 0) >= (other.length or 0)
        )
    if other.base in _LONG_BYTES:
        return one.base == "BLOB"
    if other.base == "DATE":
        return one.base == "TIMESTAMP"
    is_finer = (one.scale or 0) >= (other.scale or 0)
    if other.base in ("TIMESTAMP", _ZONED):
        return one.base == other.base and is_finer
    if other.base.startswith("INTERVAL"):
        is_wider = (one.precision or 0) >= (other.precision or 0)
        return one.base == other.base and is_wider and is_finer
    return False


def _holds_number(one: OracleType, other: OracleType) -> bool:
    """Return whether a NUMBER holds another. One without a precision has any scale."""
    if one.base == "FLOAT" or other.base == "FLOAT":
        if one.base == "FLOAT":
            return other.base == "FLOAT" and (one.precision or 0) >= (other.precision or 0)
        return one.scale is None and (other.precision or 0) * _FLOAT_DIGITS <= PRECISION_MAX
    if one.scale is None:
        return True
    if other.scale is None:
        return False
    wide, narrow = one.precision or PRECISION_MAX, other.precision or PRECISION_MAX
    return one.scale >= other.scale and wide - one.scale >= narrow - other.scale


def _holds_text(one: OracleType, other: OracleType) -> bool:
    """Return whether a text type holds another. Fixed lengths pad."""
    if one.base in ("CLOB", "NCLOB"):
        return True
    if one.base not in ("VARCHAR2", "NVARCHAR2") or _TEXTS[one.base] < _TEXTS[other.base]:
        return False
    length, needed = one.length or 0, other.length or 0
    counts = one.is_in_characters or one.base == "NVARCHAR2"
    if not counts and (other.is_in_characters or _TEXTS[other.base] > 1):
        needed *= _CHARACTER_BYTES
    return length >= needed


TYPE_RULES = TypeRules(holds=holds, same=same)
"""Part `type_rules` of the engine."""
