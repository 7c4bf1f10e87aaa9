"""Casts of Arrow values that keep each value or raise, where Arrow's own cast wraps or saturates.

`cast()` of Arrow (26.0) checks integers, dates and times, but reads a decimal's text modulo 2^128,
rescales decimals modulo 2^128, and turns a number that is too large for a float into infinity.
All casts to a type that is not written out beside them go through `cast_exactly`
(`tests/unit/test_casts.py`). Pure.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import DECIMAL_PRECISION_MAX

_WIDE_PRECISION = 76  # of decimal256
EXPONENT_DIGITS_MAX = 9
"""Digits of an exponent that Decimal reads everywhere; a number with more is none."""


def cast_exactly(values: Any, kind: pa.DataType) -> Any:
    """Return the values (array, chunked array or scalar) as another type, each of them equal.

    The only change is rounding from text or 64 bits to a float's nearest value.

    Raises:
        pa.ArrowInvalid: A value does not fit.
    """
    if values.type.equals(kind):
        return values
    if pa.types.is_floating(kind):
        return _to_float(values, kind)
    if pa.types.is_decimal(kind):
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return _text_to_decimal(values, kind)
        if pa.types.is_decimal(values.type):
            return _rescale(values, kind)
    return values.cast(kind)


def _to_float(values: Any, kind: pa.DataType) -> Any:
    """Cast to a float. Raises if a finite number became infinite, or a number became zero."""
    found = values.cast(kind)
    was = values
    is_text = pa.types.is_string(was.type) or pa.types.is_large_string(was.type)
    if is_text:  # a text of infinity has no digit; one of zero has no other digit in front of its e
        was_finite = pc.match_substring_regex(was, "[0-9]")
        was_zero = pc.invert(pc.match_substring_regex(was, "^[^eE]*[1-9]"))
    elif pa.types.is_floating(was.type):
        was_finite, was_zero = pc.is_finite(was), pc.equal(was, 0)
    else:
        return found  # Arrow refuses integers of more bits than a float holds
    lost = pc.or_(
        pc.and_(was_finite, pc.is_inf(found)),
        pc.and_(pc.and_(was_finite, pc.equal(found, 0)), pc.invert(was_zero)),
    )
    if _is_any(lost):
        raise pa.ArrowInvalid(f"a number is out of the range of {kind}")
    return found


def _is_any(flags: Any) -> bool:
    return bool((flags if isinstance(flags, pa.Scalar) else pc.any(flags)).as_py())


def _rescale(values: Any, kind: pa.DataType) -> Any:
    """Rescale in 256 bits if 128 might wrap. 256 bits hold 38 digits and 38 more."""
    old = values.type
    if max(old.precision, kind.precision) > DECIMAL_PRECISION_MAX:
        raise pa.ArrowInvalid(f"no cast from {old} to {kind}: they are wider than penstock's")
    if old.precision + max(0, kind.scale - old.scale) <= DECIMAL_PRECISION_MAX:
        return values.cast(kind)
    return values.cast(pa.decimal256(_WIDE_PRECISION, kind.scale)).cast(kind)


def _text_to_decimal(values: Any, kind: pa.DataType) -> Any:
    """Return decimals, computed in as many bits as their texts need.

    A text of n characters without an exponent is below 10^n, and below 10^(n + scale) when it is
    scaled: 38 digits fit into 128 bits, 76 into 256.
    """
    digits = pc.max(pc.utf8_length(_as_array(values))).as_py() or 0
    has_exponent = _is_any(pc.match_substring_regex(values, "[eE]"))
    if not has_exponent and digits + kind.scale <= DECIMAL_PRECISION_MAX:
        return values.cast(kind)
    if not has_exponent and digits + kind.scale <= _WIDE_PRECISION:
        return values.cast(pa.decimal256(_WIDE_PRECISION, kind.scale)).cast(kind)
    if isinstance(values, pa.Scalar):
        return pa.scalar(_decimal(values.as_py(), kind), kind)
    return pa.array([_decimal(text, kind) for text in values.to_pylist()], kind)


def _as_array(values: Any) -> Any:
    return pa.array([values.as_py()], values.type) if isinstance(values, pa.Scalar) else values


def _decimal(text: str | None, kind: pa.DataType) -> Decimal | None:
    """Return the number of a text, which has the type's scale exactly."""
    if text is None:
        return None
    refused = pa.ArrowInvalid(f"{text[:80]!r} is not a {kind}")
    _, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-")) > EXPONENT_DIGITS_MAX:
        raise refused
    try:
        found = Decimal(text)
    except InvalidOperation as error:
        raise refused from error
    if not found.is_finite():
        raise refused
    if not found:
        return Decimal(0)
    sign, digits, last = found.as_tuple()
    assert isinstance(last, int), "it is finite"
    number = "".join(map(str, digits)).rstrip("0")
    zeros = last + len(digits) - len(number) + kind.scale
    if found.adjusted() >= kind.precision - kind.scale or zeros < 0:
        raise refused
    shown = tuple(map(int, number + "0" * zeros))
    return Decimal((sign, shown, -kind.scale))
