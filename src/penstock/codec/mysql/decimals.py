"""Read MySQL's stored DECIMAL: groups of nine digits as big-endian numbers, the sign in a bit.

The readable form of what `_binlog.pyx` does. `binary_json` has the form of decimals in JSON.
"""

from __future__ import annotations

from decimal import Decimal

from penstock.codec.mysql.malformed import Malformed

PRECISION_MAX = 65
SCALE_MAX = 38  # MariaDB's; MySQL's is 30
_GROUP_DIGITS = 9
_GROUP_BYTES = 4
_REST_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4)  # of a group with fewer digits


def decimal_shape_is_valid(precision: int, scale: int) -> bool:
    """Return whether a server could have declared decimal(precision, scale)."""
    return 1 <= precision <= PRECISION_MAX and 0 <= scale <= min(SCALE_MAX, precision)


def decimal_bytes(precision: int, scale: int) -> int:
    """Return how many bytes a value of decimal(precision, scale) takes."""
    whole = precision - scale
    return sum(
        count // _GROUP_DIGITS * _GROUP_BYTES + _REST_BYTES[count % _GROUP_DIGITS]
        for count in (whole, scale)
    )


def _groups(precision: int, scale: int) -> list[int]:
    """Return how many digits each stored number has, in order."""
    whole = precision - scale
    groups = [whole % _GROUP_DIGITS] if whole % _GROUP_DIGITS else []
    groups += [_GROUP_DIGITS] * (whole // _GROUP_DIGITS + scale // _GROUP_DIGITS)
    if scale % _GROUP_DIGITS:
        groups.append(scale % _GROUP_DIGITS)
    return groups


def decimal_digits(data: bytes, precision: int, scale: int) -> tuple[bool, str]:
    """Return whether a value is negative, and all its `precision` digits.

    `data` has exactly `decimal_bytes(precision, scale)` bytes. Raises Malformed.
    """
    negative = not data[0] & 0x80
    plain = bytes((data[0] ^ 0x80,)) + data[1:]
    if negative:
        plain = bytes(byte ^ 0xFF for byte in plain)
    at = 0
    digits = []
    for count in _groups(precision, scale):
        size = _GROUP_BYTES if count == _GROUP_DIGITS else _REST_BYTES[count]
        number = int.from_bytes(plain[at : at + size])
        if number >= 10**count:
            raise Malformed
        digits.append(f"{number:0{count}d}")
        at += size
    text = "".join(digits)
    return negative and text.strip("0") != "", text


def read_decimal(data: bytes, precision: int, scale: int) -> Decimal:
    """Return the value, with exactly `scale` digits after the point."""
    negative, digits = decimal_digits(data, precision, scale)
    kept = digits.lstrip("0")
    return Decimal((int(negative), tuple(map(int, kept)), -scale))


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """Return the value as the server prints it: `-0.50`, all digits after the point."""
    negative, digits = decimal_digits(data, precision, scale)
    whole = digits[: precision - scale].lstrip("0") or "0"
    text = f"{whole}.{digits[precision - scale :]}" if scale else whole
    return "-" + text if negative else text
