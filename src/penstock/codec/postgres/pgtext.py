"""Read PostgreSQL's text form of a value as Arrow's number or bytes. The specification.

The settings are those of `engines.postgres.connect.EXACT_TEXT_SETTINGS` (DateStyle ISO,
bytea_output hex, ...). Each reader takes the bytes of one value and returns it in Arrow's physical
form: dates as days and times as microseconds since 1970, decimals as Decimal. It is strict: text
that PostgreSQL would not print is Malformed, and a valid value that the type cannot hold is Unfit.
The kernel (`_pgoutput.pyx`) does the same in C.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from penstock.codec.columns import arrow_type
from penstock.codec.postgres.pgtypes import BYTEA_OID

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.model.relation import Column

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_UNSIGNED = re.compile(rb"[0-9]{1,20}")
_DECIMAL = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?")
_FLOAT = re.compile(rb"-?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:e[+-]?[0-9]{1,3})?")
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})*")
_DATE_FORM = rb"([0-9]{4,7})-([0-9]{2})-([0-9]{2})"
_TIME_FORM = rb"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
_ZONE_FORM = rb"([+-])([0-9]{2})(?::([0-9]{2})(?::([0-9]{2}))?)?"
_DATE = re.compile(_DATE_FORM + rb"( BC)?")
_TIME = re.compile(_TIME_FORM)
_TIMESTAMP = re.compile(_DATE_FORM + rb" " + _TIME_FORM + rb"( BC)?")
_TIMESTAMPTZ = re.compile(_DATE_FORM + rb" " + _TIME_FORM + _ZONE_FORM + rb"( BC)?")

_RANGES: dict[str, tuple[int, int]] = {
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_SPECIAL_FLOATS = {b"NaN": math.nan, b"Infinity": math.inf, b"-Infinity": -math.inf}
_UNBOUNDED_DATES = (b"infinity", b"-infinity")
_DAY_US = 86_400_000_000
_ZONE_HOUR_MAX = 15  # PostgreSQL refuses offsets of 16 hours and more


class Malformed(ValueError):
    """Text is not a form that PostgreSQL prints for this type."""


class Unfit(ValueError):
    """The neutral type cannot hold a valid value; the column must become text."""


def read_bool(text: bytes) -> bool:
    """Read `t` or `f`."""
    if text == b"t":
        return True
    if text == b"f":
        return False
    raise Malformed


def integer_reader(neutral: str) -> Callable[[bytes], int]:
    """Return a reader of decimal integers within the range of a neutral integer type."""
    low, high = _RANGES[neutral]
    form = _INTEGER if low < 0 else _UNSIGNED

    def read(text: bytes) -> int:
        if not form.fullmatch(text):
            raise Malformed
        value = int(text)
        if not low <= value <= high:
            raise Malformed
        return value

    return read


def decimal_reader(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    """Return a reader of decimals with exactly `scale` digits after the point."""

    def read(text: bytes) -> Decimal:
        if text in _SPECIAL_FLOATS:
            raise Unfit
        match = _DECIMAL.fullmatch(text)
        if not match or len(match[3] or b"") != scale:
            raise Malformed
        digits = (match[2] + (match[3] or b"")).lstrip(b"0")
        if len(digits) > precision:
            raise Malformed
        sign = 1 if match[1] and digits else 0
        return Decimal((sign, tuple(digit - ord("0") for digit in digits), -scale))

    return read


def read_float64(text: bytes) -> float:
    """Return the double nearest to the printed number, ties to even; refuse over- and underflow."""
    special = _SPECIAL_FLOATS.get(text)
    if special is not None:
        return special
    if not _FLOAT.fullmatch(text):
        raise Malformed
    value = float(text)
    if math.isinf(value) or (value == 0 and _is_nonzero(text)):
        raise Malformed
    return value


def read_float32(text: bytes) -> float:
    """Return a single as a Python float, rounded once (not through a double, which may round
    twice).
    """
    value = read_float64(text)
    if not math.isfinite(value):
        return value
    exact = Fraction(text.decode("ascii"))
    if Fraction(value) != exact and not _bits(value) & 1:
        # Round to odd: of the two doubles around the number take the one whose last bit is set.
        # It cannot sit on the middle between two singles, so the next rounding is right.
        value = math.nextafter(value, math.inf if exact > Fraction(value) else -math.inf)
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError as error:
        raise Malformed from error
    if single == 0 and _is_nonzero(text):
        raise Malformed
    return single


def _is_nonzero(text: bytes) -> bool:
    return any(byte in b"123456789" for byte in text.partition(b"e")[0])


def _bits(value: float) -> int:
    number: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return number


def read_date(text: bytes) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar; `BC` years are allowed."""
    if text in _UNBOUNDED_DATES:
        raise Unfit
    match = _DATE.fullmatch(text)
    if not match:
        raise Malformed
    days = _days(match[1], match[2], match[3], match[4])
    if not -(2**31) <= days < 2**31:
        raise Unfit
    return days


def read_time(text: bytes) -> int:
    """Return microseconds since midnight. Raises Unfit for 24:00:00, which PostgreSQL allows."""
    if text == b"24:00:00":
        raise Unfit
    match = _TIME.fullmatch(text)
    if not match:
        raise Malformed
    return _microseconds(match[1], match[2], match[3], match[4])


def read_timestamp(text: bytes) -> int:
    """Return microseconds since 1970-01-01 00:00:00 of a timestamp without time zone."""
    if text in _UNBOUNDED_DATES:
        raise Unfit
    match = _TIMESTAMP.fullmatch(text)
    if not match:
        raise Malformed
    days = _days(match[1], match[2], match[3], match[8])
    return _check_range(days * _DAY_US + _microseconds(match[4], match[5], match[6], match[7]))


def read_timestamptz(text: bytes) -> int:
    """Return microseconds since 1970-01-01 00:00:00 UTC; the printed offset is subtracted."""
    if text in _UNBOUNDED_DATES:
        raise Unfit
    match = _TIMESTAMPTZ.fullmatch(text)
    if not match:
        raise Malformed
    days = _days(match[1], match[2], match[3], match[12])
    local = days * _DAY_US + _microseconds(match[4], match[5], match[6], match[7])
    hours, minutes, seconds = int(match[9]), int(match[10] or 0), int(match[11] or 0)
    if hours > _ZONE_HOUR_MAX or minutes > 59 or seconds > 59:
        raise Malformed
    offset = (hours * 3600 + minutes * 60 + seconds) * 1_000_000
    return _check_range(local + offset if match[8] == b"-" else local - offset)


def _check_range(microseconds: int) -> int:
    if not -(2**63) <= microseconds < 2**63:
        raise Unfit
    return microseconds


def _days(year_text: bytes, month_text: bytes, day_text: bytes, bc: bytes | None) -> int:
    year, month, day = int(year_text), int(month_text), int(day_text)
    if year == 0 or not 1 <= month <= 12:
        raise Malformed
    if bc:
        year = 1 - year  # 1 BC is year 0 when counted through
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if not 1 <= day <= length:
        raise Malformed
    # Count years from March, so that the leap day is the last of its year.
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def _microseconds(hour: bytes, minute: bytes, second: bytes, fraction: bytes | None) -> int:
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Malformed
    return (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int(
        (fraction or b"").ljust(6, b"0")
    )


def read_uuid(text: bytes) -> bytes:
    """Return the sixteen bytes of a uuid."""
    if not _UUID.fullmatch(text):
        raise Malformed
    return bytes.fromhex(text.decode("ascii").replace("-", ""))


def read_bytea(text: bytes) -> bytes:
    r"""Return the bytes of a bytea in its hex form, `\x` and two digits per byte."""
    if text[:2] != b"\\x" or not _HEX.fullmatch(text, 2):
        raise Malformed
    return bytes.fromhex(text[2:].decode("ascii"))


def read_raw(text: bytes) -> bytes:
    """Return the bytes unchanged: text of a database with an unknown encoding."""
    return bytes(text)


def read_string(text: bytes) -> str:
    """Return UTF-8 text. Raises UnicodeDecodeError."""
    return text.decode("utf-8")


_READERS: dict[str, Callable[[bytes], Any]] = {
    "bool": read_bool,
    "float32": read_float32,
    "float64": read_float64,
    "date": read_date,
    "time": read_time,
    "timestamp": read_timestamp,
    "timestamptz": read_timestamptz,
    "uuid": read_uuid,
    "string": read_string,
}


def is_hex_bytea(column: Column) -> bool:
    """Return whether a `binary` column holds bytea's hex form; otherwise text of
    unknown encoding.
    """
    return column.type_oid == BYTEA_OID or (column.base_type or column.source_type) == "bytea"


def cell_reader(column: Column) -> Callable[[bytes], Any]:
    """Return the reader of a column's values; raises KeyError for an unknown neutral type."""
    if column.neutral == "binary":
        return read_bytea if is_hex_bytea(column) else read_raw
    if column.neutral in _RANGES:
        return integer_reader(column.neutral)
    if column.neutral.startswith("decimal("):
        kind = arrow_type(column.neutral)
        return decimal_reader(kind.precision, kind.scale)
    return _READERS[column.neutral]
