"""Check whether values stay the same when a column's type changes. Pure.

MySQL converts the existing rows and does not log that. If every value of the old type is a value of
the new type, the target's own conversion gives the same result. Otherwise a strict session fails
instead of changing such values, unless it rounds.
"""

from __future__ import annotations

from penstock.codec.mysql.types import INTEGERS, TypeText, parse_type

_INTEGER_BYTES = dict(INTEGERS.values())
_DIGITS = {1: 3, 2: 5, 3: 8, 4: 10, 8: 20}
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_FRACTIONS = frozenset(("time", "datetime", "timestamp"))


def keeps_values(old: str, new: str, *, strict: bool) -> bool:
    """Return whether a change of type leaves every value as it is.

    With `strict`, the session that made the change refuses values that do not fit.
    """
    before, after = parse_type(old), parse_type(new)
    if before is None or after is None:
        return old == new
    if before == after:
        return True
    return _keeps(before, after, strict)


def _keeps(old: TypeText, new: TypeText, strict: bool) -> bool:
    if old.base in _INTEGER_BYTES:
        return _keeps_integer(old, new, strict)
    if old.base == new.base == "decimal":
        return _keeps_decimal(_shape(old), _shape(new), strict)
    if old.base in ("enum", "set"):
        # The server finds a label's new one by collation: 'a' becomes 'A' without an error.
        before, after = set(old.labels), set(new.labels)
        return new.base == old.base and (before <= after or (strict and after <= before))
    if old.base == "year":
        return new.base == "year"
    if old.base in _FRACTIONS:
        return new.base == old.base and _argument(new, 0) >= _argument(old, 0)
    if old.base == "bit":
        return new.base == "bit" and (strict or _argument(new, 1) >= _argument(old, 1))
    if old.base == "float":
        return new.base in ("float", "double")
    if (old.base, new.base) == ("char", "varchar") or old.base == new.base == "char":
        return strict or _argument(new, 1) >= _argument(old, 1)
    for long, family in (("varchar", _TEXTS), ("varbinary", _BLOBS)):
        if old.base in (long, *family) and new.base in (long, *family):
            return strict or _capacity(new, family) >= _capacity(old, family)
    return False


def _argument(kind: TypeText, default: int) -> int:
    return kind.arguments[0] if kind.arguments else default


def _shape(kind: TypeText) -> tuple[int, int]:
    precision, scale = (*(kind.arguments or (10,)), 0)[:2]
    return precision, scale


def _keeps_integer(old: TypeText, new: TypeText, strict: bool) -> bool:
    if new.base == "decimal":
        precision, scale = _shape(new)
        return strict or precision - scale >= _DIGITS[_INTEGER_BYTES[old.base]]
    if new.base not in _INTEGER_BYTES:
        return False
    low, high = _range(old)
    new_low, new_high = _range(new)
    return strict or (new_low <= low and high <= new_high)


def _range(kind: TypeText) -> tuple[int, int]:
    bits = 8 * _INTEGER_BYTES[kind.base]
    return (0, 2**bits - 1) if kind.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _keeps_decimal(old: tuple[int, int], new: tuple[int, int], strict: bool) -> bool:
    """Return whether decimals stay the same. Only digits after the point are rounded silently."""
    return new[1] >= old[1] and (strict or new[0] - new[1] >= old[0] - old[1])


def _capacity(kind: TypeText, family: tuple[str, ...]) -> int:
    """Return a capacity in characters or bytes, to compare: only TINYTEXT may be below
    a VARCHAR.
    """
    if kind.base in family:
        return (0, 2**16, 2**24, 2**32)[family.index(kind.base)]
    return _argument(kind, 1) if kind.arguments else 0
