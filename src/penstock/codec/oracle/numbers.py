"""Numbers of Oracle: the text that LogMiner prints, and the internal forms.

A NUMBER is exact: at most 40 significant digits and an exponent from -130 to 125. Its text has no
zero in front of the point (`-.75`), and an exponent if it is long (`1.79E+100`); `~` and `-~` are
the infinities. Internal form: a byte with sign and exponent of 100, then digits of base 100 plus 1,
of a negative number 101 minus the digit and a last byte 102. Source: Oracle's Call Interface guide,
"NUMBER". Pure.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from penstock.codec.oracle.values import Malformed, Unfit

DIGITS_MAX = 40
TEXT_MAX = 200
"""Characters of the longest number's text."""
EXPONENT_MIN, EXPONENT_MAX = -130, 126
"""Powers of ten of the first digit."""
INTEGER_DIGITS_MAX = 19

_NUMBER = re.compile(rb"(-?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:E([+-]?[0-9]{1,3}))?")
_INFINITE = {b"~": "Infinity", b"-~": "-Infinity"}
_SPECIAL_FLOATS = {
    b"nan": b"NaN",
    b"inf": b"Infinity",
    b"-inf": b"-Infinity",
    b"infinity": b"Infinity",
    b"-infinity": b"-Infinity",
}
_INTEGER_BITS = {"int16": 16, "int32": 32, "int64": 64}


class Number(NamedTuple):
    """A number: sign * digits * 10 ** exponent.

    Attributes:
        is_negative: false for zero.
        digits: without zeros at either end; empty for zero.
        exponent: 0 for zero.
    """

    is_negative: bool
    digits: bytes
    exponent: int


def parse_number(text: bytes) -> Number:
    """Return the number of a text. Raises Malformed."""
    match = _NUMBER.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        raise Malformed
    sign, whole, fraction, bare_fraction, exponent = match.groups()
    fraction = fraction or bare_fraction or b""
    digits = ((whole or b"") + fraction).lstrip(b"0")
    shown = digits.rstrip(b"0")
    if not shown:
        return Number(False, b"", 0)
    power = int(exponent or 0) - len(fraction) + len(digits) - len(shown)
    adjusted = power + len(shown) - 1
    if len(shown) > DIGITS_MAX or not EXPONENT_MIN <= adjusted <= EXPONENT_MAX:
        raise Malformed
    return Number(bool(sign), shown, power)


def read_integer(text: bytes, neutral: str) -> int:
    """Return a whole number. Raises Malformed; Unfit for a fraction or a number out of range."""
    if text.isdigit() and len(text) < INTEGER_DIGITS_MAX:
        value = int(text)  # most texts: faster than the general form
        if value >> _INTEGER_BITS[neutral] - 1:
            raise Unfit
        return value
    if text in _INFINITE:
        raise Unfit
    number = parse_number(text)
    if number.exponent < 0 or len(number.digits) + number.exponent > INTEGER_DIGITS_MAX:
        raise Unfit
    value = int(number.digits + b"0" * number.exponent or b"0")
    value = -value if number.is_negative else value
    if not -(1 << _INTEGER_BITS[neutral] - 1) <= value < 1 << _INTEGER_BITS[neutral] - 1:
        raise Unfit
    return value


def read_decimal(text: bytes, precision: int, scale: int) -> Decimal:
    """Return a decimal with a scale. Raises Malformed; Unfit for a number with more digits."""
    if text in _INFINITE:
        raise Unfit
    number = parse_number(text)
    zeros = number.exponent + scale
    if number.digits and (zeros < 0 or len(number.digits) + zeros > precision):
        raise Unfit
    sign, digits = "-" if number.is_negative else "", number.digits.decode() or "0"
    return Decimal(f"{sign}{digits}{'0' * zeros if number.digits else ''}E-{scale}")


def read_number_text(text: bytes) -> str:
    """Return a number with all digits and without an exponent. Raises Malformed."""
    if text in _INFINITE:
        return _INFINITE[text]
    return number_text(parse_number(text))


def number_text(number: Number) -> str:
    """Return a number as it is kept in a column of text: `-0.75`, `1200`."""
    digits, exponent = number.digits.decode(), number.exponent
    if not digits:
        return "0"
    if exponent >= 0:
        shown = digits + "0" * exponent
    elif len(digits) > -exponent:
        shown = f"{digits[:exponent]}.{digits[exponent:]}"
    else:
        shown = f"0.{'0' * (-exponent - len(digits))}{digits}"
    return f"-{shown}" if number.is_negative else shown


def plain_float(text: bytes) -> bytes:
    """Return a binary float's text with a digit in front of the point and a small e.

    Raises Malformed.
    """
    special = _SPECIAL_FLOATS.get(text.lower())
    if special is not None:
        return special
    match = _NUMBER.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        raise Malformed
    sign, whole, fraction, bare_fraction, exponent = match.groups()
    fraction = fraction or bare_fraction
    shown = sign + (whole or b"0") + (b"." + fraction if fraction else b"")
    return shown + (b"e" + exponent if exponent else b"")


def read_float(text: bytes, neutral: str) -> float:
    """Return a binary float. Raises Malformed; Unfit for a number out of its range."""
    plain = plain_float(text)
    value = float(plain)
    if plain in _SPECIAL_FLOATS.values():
        return value
    if neutral == "float32" and math.isfinite(value):
        value = _round_to_single(value, plain)
    if math.isinf(value) or (value == 0 and plain.partition(b"e")[0].strip(b"-0.")):
        raise Unfit
    return value


def _round_to_single(value: float, text: bytes) -> float:
    """Return the single nearest to a text's number; infinity for one out of range.

    value: the nearest double, which lies in the middle between two singles at times when the number
    itself does not. Then the double beside it in the number's direction is rounded.
    """
    exact = Fraction(text.decode())
    if Fraction(value) != exact and not struct.unpack("<q", struct.pack("<d", value))[0] & 1:
        value = math.nextafter(value, math.inf if exact > Fraction(value) else -math.inf)
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    return single


# -- internal forms --------------------------------------------------------------------------------

_ZERO = 0x80
_NUMBER_BYTES_MAX = 22
_POSITIVE_EXPONENT, _NEGATIVE_EXPONENT = 193, 62
_NEGATIVE_END = 102


def read_internal_number(data: bytes) -> str:
    """Return the text of an internal NUMBER. Raises Malformed."""
    if data == bytes((_ZERO,)):
        return "0"
    if data == b"\xff\x65":
        return "Infinity"
    if data == b"\x00":
        return "-Infinity"
    if not 2 <= len(data) <= _NUMBER_BYTES_MAX:
        raise Malformed
    is_negative = not data[0] & 0x80
    mantissa = data[1:]
    if is_negative:
        exponent = _NEGATIVE_EXPONENT - data[0]
        if mantissa[-1] == _NEGATIVE_END:
            mantissa = mantissa[:-1]
        pairs = [101 - byte for byte in mantissa]
    else:
        exponent = data[0] - _POSITIVE_EXPONENT
        pairs = [byte - 1 for byte in mantissa]
    if not pairs or not pairs[0] or not pairs[-1] or not all(0 <= pair <= 99 for pair in pairs):
        raise Malformed
    digits = "".join(f"{pair:02}" for pair in pairs)
    power = 2 * (exponent - len(pairs) + 1)
    shown = digits.strip("0")
    power += len(digits) - len(digits.rstrip("0"))
    return number_text(Number(is_negative, shown.encode(), power))


def read_internal_float(data: bytes) -> str:
    """Return the shortest text of an internal BINARY_FLOAT (4 bytes) or BINARY_DOUBLE (8 bytes).

    The sign bit is inverted, and all bits of a negative number are. Raises Malformed.
    """
    if len(data) not in (4, 8):
        raise Malformed
    if data[0] & 0x80:
        plain = bytes((data[0] & 0x7F,)) + data[1:]
    else:
        plain = bytes(byte ^ 0xFF for byte in data)
    value: float = struct.unpack(">f" if len(data) == 4 else ">d", plain)[0]
    if value != value:
        return "Nan"
    if value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    shown = repr(value).upper()  # a single's text is that of the equal double
    return shown[:-2] if shown.endswith(".0") else shown
