"""Texts of many rows at once: JSON strings, base64, and rows joined from columns. Pure.

A column of texts is a pair: int32 offsets, one more than rows, and the bytes of all rows. The
functions here are the specification of the compiled `_texts.pyx`.
"""

from __future__ import annotations

import base64
import datetime
import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, cast

import numpy as np

from penstock.kafka.errors import MessageTooLarge

try:
    import penstock.kafka._texts as _compiled
except ModuleNotFoundError as missing:
    if missing.name != "penstock.kafka._texts":
        raise  # the kernel exists and is broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

Texts = tuple[Any, Any]
LIMIT = 2**31 - 1
_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_ESCAPES = {n: b"\\u%04x" % n for n in range(32)} | _SHORT
_DAY_US = 86_400_000_000
_ERA_DAYS = 146_097


class PlainTexts:
    """Plain twin of the kernel."""

    @staticmethod
    def quote_json(offsets: Any, data: Any) -> Texts:
        """Return each UTF-8 text as a JSON string; control characters, quotes and backslashes are
        escaped.
        """
        return _each(offsets, data, _quote)

    @staticmethod
    def quote_base64(offsets: Any, data: Any) -> Texts:
        """Return each value's base64, with padding, in quotes."""
        return _each(offsets, data, lambda value: b'"%b"' % base64.b64encode(value))

    @staticmethod
    def shortest_bytes(numbers: Any) -> Texts:
        """Return integers as big-endian two's complement with the fewest bytes, as Java's
        BigInteger.toByteArray().

        Args:
            numbers: 16 bytes for each, little-endian.
        """
        given = bytes(numbers)
        return _pack(_shortest(given[at : at + 16]) for at in range(0, len(given), 16))

    @staticmethod
    def instants(times: Any) -> Texts:
        """Return microseconds since 1970 UTC as ISO 8601 texts with Z, as Java's
        ISO_OFFSET_DATE_TIME prints them: a fraction without zeros at its end.
        """
        return _pack(_instant(int(time)) for time in times)

    @staticmethod
    def join_rows(pieces: list[Any], count: int) -> Texts:
        """Return each row's pieces, joined.

        Raises MessageTooLarge if all rows together are over 2 GiB.

        Args:
            pieces: bytes that all rows have, or (offsets, bytes, valid, prefix, otherwise) with
                texts of the rows: a valid row has the prefix and its text, another one has
                `otherwise`. valid has one byte for each row; None: all are valid.
            count: number of rows.
        """
        cells = [[one] * count if isinstance(one, bytes) else _cells(*one) for one in pieces]
        rows = zip(*cells, strict=True) if cells else iter([()] * count)
        return _pack(b"".join(row) for row in rows)

    @staticmethod
    def varints(numbers: Any) -> Texts:
        """Return 64-bit integers as base-128 varints; negative ones have ten bytes."""
        return _pack(_varint(int(number)) for number in numbers)

    @staticmethod
    def cut(offsets: Any, data: Any) -> list[bytes]:
        """Return the texts as bytes objects."""
        given = bytes(data)
        places = [int(place) for place in offsets]
        return [given[start:end] for start, end in pairwise(places)]


def text_kernel() -> type[PlainTexts]:
    """Return the compiled functions, or the twins if they are not built or PENSTOCK_PURE=1 is
    set.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return cast(type[PlainTexts], _compiled)
    return PlainTexts


def _each(offsets: Any, data: Any, change: Callable[[bytes], bytes]) -> Texts:
    return _pack(change(value) for value in PlainTexts.cut(offsets, data))


def _pack(values: Iterable[bytes]) -> Texts:
    rows = list(values)
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    if ends[-1] > LIMIT:
        raise MessageTooLarge.of_batch()
    return ends.astype(np.int32), b"".join(rows)


def _cells(offsets: Any, data: Any, valid: Any, prefix: bytes, otherwise: bytes) -> list[bytes]:
    texts = PlainTexts.cut(offsets, data)
    if valid is None:
        return [prefix + text for text in texts]
    pairs = zip(texts, valid, strict=True)
    return [prefix + text if is_valid else otherwise for text, is_valid in pairs]


def _varint(number: int) -> bytes:
    number %= 1 << 64
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _quote(value: bytes) -> bytes:
    return b'"%b"' % b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in value)


def _shortest(number: bytes) -> bytes:
    value = int.from_bytes(number, "little", signed=True)
    size = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return value.to_bytes(size, "big", signed=True)


def _instant(time_us: int) -> bytes:
    days, rest = divmod(time_us, _DAY_US)
    # Python's calendar has the years 1 to 9999: shift by whole eras of 400 years.
    eras, day = divmod(days + 719_162, _ERA_DAYS)  # days since 0001-01-01
    date = datetime.date.fromordinal(day + 1)
    year = date.year + 400 * eras
    seconds, fraction = divmod(rest, 1_000_000)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    text = f"{sign}{abs(year):04}-{date.month:02}-{date.day:02}T"
    text += f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        text += f".{fraction:06}".rstrip("0")
    return f"{text}Z".encode()
