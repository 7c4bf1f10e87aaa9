"""Check whether one type of PostgreSQL holds every value of another unchanged. Pure.

Types are texts of `format_type`.
"""

from __future__ import annotations

import re

_TYPE = re.compile(r"(?P<head>[^(]+?)\s*(?:\((?P<arguments>[\d\s,-]+)\))?(?P<tail>[^()]*)\Z")
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_TEXTS = ("character varying", "text")
_FRACTIONS = (
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
)
FRACTION_DIGITS_MAX = 6


def holds(wider: str, narrower: str) -> bool:
    """Return whether every value of one type is a value of the other, written the same way."""
    if wider == narrower:
        return True
    new, old = _parse(wider), _parse(narrower)
    if new is None or old is None:
        return False
    (base, arguments), (old_base, old_arguments) = new, old
    if old_base in _DIGITS:
        return _holds_integers(base, arguments, old_base)
    if old_base == "real":
        return base == "double precision"
    if old_base == base == "numeric":
        return _holds_numeric(arguments, old_arguments)
    if old_base in _TEXTS and base in _TEXTS:
        return not arguments or (bool(old_arguments) and arguments >= old_arguments)
    if old_base == base == "bit varying":
        return not arguments or (bool(old_arguments) and arguments >= old_arguments)
    if old_base == base and base in _FRACTIONS:
        return (arguments or (FRACTION_DIGITS_MAX,)) >= (old_arguments or (FRACTION_DIGITS_MAX,))
    return False


def is_kept_in_place(new: str, old: str) -> bool:
    """Return whether the server gives a column the new type without rewriting its rows.

    Then no expression of ALTER TYPE has computed other values.
    """
    after, before = _parse(new), _parse(old)
    if after is None or before is None or not holds(new, old):
        return new == old
    return after[0] == before[0] or {after[0], before[0]} <= set(_TEXTS)


def _parse(text: str) -> tuple[str, tuple[int, ...]] | None:
    match = _TYPE.match(text)
    if match is None:
        return None
    arguments = tuple(int(part) for part in (match["arguments"] or "").split(",") if part.strip())
    return (match["head"] + match["tail"]).strip(), arguments


def _holds_integers(base: str, arguments: tuple[int, ...], old_base: str) -> bool:
    if base == "numeric":
        if not arguments:
            return True
        precision, scale = (*arguments, 0)[:2]
        return precision - scale >= _DIGITS[old_base]
    return base in _DIGITS and _DIGITS[base] >= _DIGITS[old_base]


def _holds_numeric(new: tuple[int, ...], old: tuple[int, ...]) -> bool:
    if not new:
        return True
    if not old:
        return False
    (precision, scale), (old_precision, old_scale) = (*new, 0)[:2], (*old, 0)[:2]
    return scale >= old_scale and precision - scale >= old_precision - old_scale
