"""Rules for types of SQL Server, given as texts: which are the same, and which hold another."""

from __future__ import annotations

from penstock.codec.sqlserver.types import MAX, SqlServerType, parse_type
from penstock.engines.sqlserver.target.catalog import without_collation
from penstock.sql.shape_changes import TypeRules

_INTEGERS = {"bit": 1, "tinyint": 8, "smallint": 15, "int": 31, "bigint": 63}
_DIGITS = {"bit": 1, "tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_MONEY = {"smallmoney": (10, 4), "money": (19, 4)}
_TEXTS = {"char": 1, "varchar": 1, "nchar": 2, "nvarchar": 2}
_TIMES = frozenset(("time", "datetime2", "datetimeoffset"))
_DATE_TIMES = {"smalldatetime": 0, "datetime": 3}
_LARGE = {"text": "varchar", "ntext": "nvarchar", "image": "varbinary"}


def holds(wider: str, narrower: str) -> bool:
    """Return whether the first type holds every value of the second without change."""
    one, other = parse_type(without_collation(wider)), parse_type(without_collation(narrower))
    if one == other:
        return True
    if other.base in _INTEGERS:
        return _holds_integer(one, other)
    if other.base == "decimal" or other.base in _MONEY:
        return _holds_decimal(one, *(_MONEY.get(other.base) or _decimal(other)))
    if other.base == "real":
        return one.base == "float"
    if other.base in _TEXTS or other.base in ("text", "ntext"):
        return _holds_text(one, other)
    if other.base in ("binary", "varbinary", "image"):
        return one.base in ("varbinary", "image") and _is_as_long(one, other)
    if other.base in _TIMES:
        return one.base == other.base and (one.scale or 0) >= (other.scale or 0)
    if other.base in (*_DATE_TIMES, "date"):
        needed = _DATE_TIMES.get(other.base, 0)
        # The third digit of a datetime is rounded to 0, 3 and 7.
        return one.base == "datetime2" and (one.scale or 0) >= needed
    return False


def same(left: str, right: str) -> bool:
    """Return whether two texts are the same type."""
    return parse_type(without_collation(left)) == parse_type(without_collation(right))


def _holds_integer(one: SqlServerType, other: SqlServerType) -> bool:
    if one.base in _INTEGERS:
        return _INTEGERS[one.base] >= _INTEGERS[other.base]
    return _holds_decimal(one, _DIGITS[other.base], 0)


def _holds_decimal(one: SqlServerType, precision: int, scale: int) -> bool:
    if one.base != "decimal" and one.base not in _MONEY:
        return False
    own, digits = _MONEY.get(one.base) or _decimal(one)
    return digits >= scale and own - digits >= precision - scale


def _decimal(kind: SqlServerType) -> tuple[int, int]:
    return kind.precision or 0, kind.scale or 0


def _holds_text(one: SqlServerType, other: SqlServerType) -> bool:
    """Return whether a text type holds another. Fixed lengths pad; code pages lack characters."""
    wide = _TEXTS.get(_LARGE.get(one.base, one.base), 0)
    narrow = _TEXTS.get(_LARGE.get(other.base, other.base), 0)
    return one.base in ("varchar", "nvarchar") and wide >= narrow and _is_as_long(one, other)


def _is_as_long(one: SqlServerType, other: SqlServerType) -> bool:
    if one.length == MAX or one.base in _LARGE:
        return True
    return other.length is not None and other.length != MAX and (one.length or 0) >= other.length


TYPE_RULES = TypeRules(holds=holds, same=same)
"""Part `type_rules` of the engine."""
