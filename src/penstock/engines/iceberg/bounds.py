"""Encode and decode the bounds of a column in a manifest, as Iceberg's single-value serialization.

Bounds are Python values: bool, int, float, Decimal, date, naive or UTC datetime, str, bytes. Texts
and binaries are cut, so that a long value does not swell every manifest: a lower bound may be lower
than the smallest value, an upper bound may be higher than the greatest, and if no such upper bound
exists, there is none. Not here: comparing bounds with the keys of a batch (`engines/lake/`).
"""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal

CUT = 16
"""Characters of a text, or bytes of a binary, in a bound. Iceberg's own writers keep as many."""

Bound = bool | int | float | Decimal | date | datetime | str | bytes

_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_EXACT = Context(prec=40)  # more digits than any decimal of Iceberg has
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCHS = {"timestamp": _EPOCH.replace(tzinfo=None), "timestamptz": _EPOCH}
_MICROSECOND = timedelta(microseconds=1)
_FORMATS = {
    "boolean": "<?",
    "int": "<i",
    "date": "<i",
    "long": "<q",
    "timestamp": "<q",
    "timestamptz": "<q",
    "float": "<f",
    "double": "<d",
}
# Older files keep the bounds of a column's type before it was widened.
_NARROW = {("long", 4): "<i", ("double", 4): "<f"}


def encode_bound(kind: str, value: Bound) -> bytes:
    """Return the bytes of a value.

    Args:
        kind: Iceberg's name of the column's type, such as `long` or `decimal(12, 2)`.
        value: the value.

    Raises:
        ValueError: The type has no bounds here, or the value is not one of the type.
    """
    if layout := _FORMATS.get(kind):
        try:
            return struct.pack(layout, _number_of(kind, value))
        except (struct.error, TypeError, OverflowError) as error:
            raise ValueError(f"{value!r} as bound of type {kind}: {error}") from None
    if isinstance(value, Decimal) and (parts := _DECIMAL.fullmatch(kind)):
        unscaled = int(value.scaleb(int(parts[2]), _EXACT).to_integral_exact(context=_EXACT))
        # One bit for the sign in addition to those of the number, as BigInteger.toByteArray has it.
        bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
        return unscaled.to_bytes((bits + 7) // 8, "big", signed=True)
    if isinstance(value, str) and kind == "string":
        return value.encode()
    if isinstance(value, bytes) and kind == "binary":
        return value
    raise ValueError(f"{value!r} cannot be a bound of type {kind}")


def _number_of(kind: str, value: Bound) -> Bound:
    if kind == "date" and isinstance(value, date):
        return (value - _EPOCH_DAY).days
    if isinstance(value, datetime):
        return (value - _EPOCHS[kind]) // _MICROSECOND
    return value


def decode_bound(kind: str, raw: bytes) -> Bound | None:
    """Return the value of a bound's bytes.

    Returns None if the type has no bounds here, or if Python has no such value: a NaN, a date after
    the year 9999.

    Raises:
        ValueError: The bytes are not a value of the type.
    """
    if kind in _FORMATS:
        try:
            number = struct.unpack(_NARROW.get((kind, len(raw)), _FORMATS[kind]), raw)[0]
        except struct.error as error:
            raise ValueError(f"a bound of type {kind}: {error}") from None
        return _value_of(kind, number)
    if parts := _DECIMAL.fullmatch(kind):
        unscaled = Decimal(int.from_bytes(raw, "big", signed=True))
        return unscaled.scaleb(-int(parts[2]), _EXACT)
    if kind == "string":
        return raw.decode()
    return raw if kind == "binary" else None


def _value_of(kind: str, number: float) -> Bound | None:
    try:
        if kind == "date":
            return _EPOCH_DAY + timedelta(days=number)
        if epoch := _EPOCHS.get(kind):
            return epoch + timedelta(microseconds=number)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def lower_bound(value: Bound) -> Bound:
    """Return a bound that is not greater than the value, cut if it is long."""
    if isinstance(value, float) and value == 0:
        return -0.0  # readers may compare the two zeros by their bits
    return value[:CUT] if isinstance(value, (str, bytes)) else value


def upper_bound(value: Bound) -> Bound | None:
    """Return a bound that is not less than the value, cut if it is long; None if there is none."""
    if isinstance(value, float) and value == 0:
        return 0.0
    if not isinstance(value, (str, bytes)) or len(value) <= CUT:
        return value
    return _next_text(value[:CUT]) if isinstance(value, str) else _next_bytes(value[:CUT])


def _next_text(value: str) -> str | None:
    """Return the least text of at most this length that follows all texts with this beginning."""
    for at in range(len(value) - 1, -1, -1):
        point = ord(value[at]) + 1
        if point in _SURROGATES:
            point = _SURROGATES.stop
        if point <= _LAST_CHARACTER:
            return value[:at] + chr(point)
    return None


def _next_bytes(value: bytes) -> bytes | None:
    """Return the least bytes of at most this length that follow all bytes with this beginning."""
    for at in range(len(value) - 1, -1, -1):
        if value[at] < 0xFF:
            return value[:at] + bytes((value[at] + 1,))
    return None
