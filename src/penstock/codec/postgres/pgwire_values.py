"""Convert single values between text and the binary form that clients use. Pure.

For parameters and for the catalogue's answers, one value at a time. Arrays of one dimension are
also read and printed in text form. Whole columns go through `pgbinary.py`. A type without a form
here is refused, and the client may send text. Source: PostgreSQL's send and receive functions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from uuid import UUID

from penstock.codec.exact_text import date_text, time_text, timestamp_text
from penstock.codec.postgres import pgtext
from penstock.codec.postgres.pgbinary import numeric_bytes
from penstock.codec.postgres.pgwire_server import Refused

_TEXTS = frozenset((18, 19, 25, 114, 142, 194, 705, 1042, 1043, 2275))
_INTEGERS = {20: 8, 21: 2, 23: 4, 24: 4, 26: 4, 28: 4, 29: 4, 2205: 4, 2206: 4, 4089: 4, 5069: 8}
_UNSIGNED = frozenset((24, 26, 28, 29, 2205, 2206, 4089, 5069))
_BOOLEAN, _BYTEA, _REAL, _DOUBLE, _LSN, _JSONB = 16, 17, 700, 701, 3220, 3802
_DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1083, 1114, 1184
_INTERVAL, _NUMERIC, _UUID = 1186, 1700, 2950
_ELEMENTS = {
    **{1000: 16, 1001: 17, 1002: 18, 1003: 19, 1005: 21, 1007: 23, 1009: 25, 1016: 20},
    **{1014: 1042, 1015: 1043, 1021: 700, 1022: 701, 1028: 26, 1115: 1114, 1182: 1082, 1185: 1184},
    **{1231: 1700, 2951: 2950, 2210: 2205, 2211: 2206},
}
_VECTORS = {22: 21, 30: 26}
_EPOCH_DAYS, _DAY_US = 10_957, 86_400_000_000
_EPOCH_US = _EPOCH_DAYS * _DAY_US
_NO_NUMBER = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_JSONB_VERSION = 1


def to_binary(text: str, type_oid: int) -> bytes:
    """Return the binary form of a printed value. Raises Refused: 0A000."""
    if type_oid in _TEXTS:
        return text.encode()
    try:
        if type_oid in _INTEGERS:
            return int(text).to_bytes(_INTEGERS[type_oid], signed=type_oid not in _UNSIGNED)
        if type_oid in _WRITERS:
            return _WRITERS[type_oid](text)
        if type_oid in _ELEMENTS:
            return _array_bytes(read_array(text), _ELEMENTS[type_oid], first=1)
        if type_oid in _VECTORS:
            return _array_bytes(text.split(), _VECTORS[type_oid], first=0)
    except (ValueError, OverflowError):
        raise Refused("0A000", f"no binary form of {text!r} as type {type_oid}") from None
    raise Refused("0A000", f"no binary form of type {type_oid}", hint="Ask for text.")


def from_binary(data: bytes, type_oid: int) -> str:
    """Return a parameter's value in binary form as text. Raises Refused: 22P03, 0A000."""
    try:
        if type_oid in _TEXTS or type_oid == 0:
            return data.decode()
        if type_oid in _INTEGERS:
            if len(data) != _INTEGERS[type_oid]:
                raise ValueError(data)
            return str(int.from_bytes(data, signed=type_oid not in _UNSIGNED))
        if type_oid in _READERS:
            return _READERS[type_oid](data)
        if type_oid in _ELEMENTS:
            return _array_text(data, _ELEMENTS[type_oid])
    except (ValueError, OverflowError, struct.error):
        raise Refused("22P03", "incorrect binary data format in bind parameter") from None
    raise Refused("0A000", f"no binary form of type {type_oid} is read here", hint="Send text.")


# -- writing -------------------------------------------------------------------------------------


def _lsn_bytes(text: str) -> bytes:
    high, _, low = text.partition("/")
    return struct.pack(">II", int(high, 16), int(low, 16))


def _moment_bytes(text: str, read: Callable[[bytes], int]) -> bytes:
    return struct.pack(">q", read(text.encode()) - _EPOCH_US)


def _array_bytes(cells: list[str | None] | list[str], element: int, *, first: int) -> bytes:
    has_null = any(cell is None for cell in cells)
    dimensions = 1 if cells else 0
    parts = [struct.pack(">iiI", dimensions, has_null, element)]
    if cells:
        parts.append(struct.pack(">ii", len(cells), first))
    for cell in cells:
        if cell is None:
            parts.append(struct.pack(">i", -1))
        else:
            data = to_binary(cell, element)
            parts.append(struct.pack(">i", len(data)) + data)
    return b"".join(parts)


_WRITERS: dict[int, Callable[[str], bytes]] = {
    _BOOLEAN: lambda text: b"\1" if text in ("t", "true") else b"\0",
    _BYTEA: lambda text: bytes.fromhex(text.removeprefix("\\x")),
    _REAL: lambda text: struct.pack(">f", float(text)),
    _DOUBLE: lambda text: struct.pack(">d", float(text)),
    _LSN: _lsn_bytes,
    _JSONB: lambda text: bytes([_JSONB_VERSION]) + text.encode(),
    _DATE: lambda text: struct.pack(">i", pgtext.read_date(text.encode()) - _EPOCH_DAYS),
    _TIMESTAMP: lambda text: _moment_bytes(text, pgtext.read_timestamp),
    _TIMESTAMPTZ: lambda text: _moment_bytes(text, pgtext.read_timestamptz),
    _NUMERIC: numeric_bytes,
    _UUID: lambda text: pgtext.read_uuid(text.encode()),
}


# -- reading -------------------------------------------------------------------------------------


def _boolean_text(data: bytes) -> str:
    if len(data) != 1:
        raise ValueError(data)
    return "t" if data != b"\0" else "f"


def _date_text(data: bytes) -> str:
    (days,) = struct.unpack(">i", data)
    if abs(days) >= 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    return date_text(days + _EPOCH_DAYS)


def _time_text(data: bytes) -> str:
    (microseconds,) = struct.unpack(">q", data)
    if not 0 <= microseconds < _DAY_US:
        raise ValueError(data)
    return time_text(microseconds)


def _timestamp_text(data: bytes, *, zoned: bool) -> str:
    (microseconds,) = struct.unpack(">q", data)
    if abs(microseconds) >= 2**63 - 1:
        return "infinity" if microseconds > 0 else "-infinity"
    return timestamp_text(microseconds + _EPOCH_US, "+00" if zoned else "")


def _interval_text(data: bytes) -> str:
    microseconds, days, months = struct.unpack(">qii", data)
    sign, rest = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    seconds = f"{sign}{rest // 1_000_000}.{rest % 1_000_000:06d}"
    return f"{months} mons {days} days {seconds} seconds"


def _numeric_text(data: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from(">hhHh", data)
    if sign in _NO_NUMBER:
        return _NO_NUMBER[sign]
    if sign not in (0, 0x4000) or len(data) != 8 + 2 * count or scale < 0:
        raise ValueError(data)
    digits = struct.unpack_from(f">{count}h", data, 8)
    if not all(0 <= digit < 10_000 for digit in digits):
        raise ValueError(data)
    whole = int("".join(f"{digit:04d}" for digit in digits) or "0")
    exponent = 4 * (weight - count + 1)
    number = Decimal((int(sign == 0x4000), tuple(map(int, str(whole))), exponent))
    return f"{number:.{scale}f}"


def _jsonb_text(data: bytes) -> str:
    if data[:1] != bytes([_JSONB_VERSION]):
        raise ValueError(data)
    return data[1:].decode()


def _array_text(data: bytes, element: int) -> str:
    dimensions, has_null, kind = struct.unpack_from(">iiI", data)
    if kind != element or has_null not in (0, 1) or dimensions not in (0, 1):
        raise ValueError(data)
    if not dimensions:
        return "{}"
    count, _ = struct.unpack_from(">ii", data, 12)
    cells: list[str | None] = []
    at = 20
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if length == -1:
            cells.append(None)
            continue
        if length < 0 or at + length > len(data):
            raise ValueError(data)
        cells.append(from_binary(data[at : at + length], element))
        at += length
    if at != len(data):
        raise ValueError(data)
    return print_array(cells)


_READERS: dict[int, Callable[[bytes], str]] = {
    _BOOLEAN: _boolean_text,
    _BYTEA: lambda data: "\\x" + data.hex(),
    _REAL: lambda data: repr(struct.unpack(">f", data)[0]),
    _DOUBLE: lambda data: repr(struct.unpack(">d", data)[0]),
    _LSN: lambda data: "{:X}/{:X}".format(*struct.unpack(">II", data)),
    _JSONB: _jsonb_text,
    _DATE: _date_text,
    _TIME: _time_text,
    _TIMESTAMP: lambda data: _timestamp_text(data, zoned=False),
    _TIMESTAMPTZ: lambda data: _timestamp_text(data, zoned=True),
    _INTERVAL: _interval_text,
    _NUMERIC: _numeric_text,
    _UUID: lambda data: str(UUID(bytes=data)),
}


_ELEMENT = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)"\s*|(?P<plain>[^",{}]+)', re.DOTALL)


def read_array(text: str) -> list[str | None]:
    """Return the elements of a printed array of one dimension. Raises Refused: 22P02."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise _make_malformed(text)
    if body[1:-1].strip() == "":
        return []
    found: list[str | None] = []
    at = 1
    while at < len(body):
        while body[at].isspace():  # the text ends with a brace
            at += 1
        match = _ELEMENT.match(body, at)
        if match is None or body[match.end() : match.end() + 1] not in (",", "}"):
            raise _make_malformed(text)
        if match["quoted"] is not None:
            found.append(re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL))
        else:
            plain = match["plain"].rstrip()
            found.append(None if plain.lower() == "null" else plain)
        at = match.end() + 1
    if body[-2] == ",":
        raise _make_malformed(text)
    return found


def _make_malformed(text: str) -> Refused:
    return Refused("22P02", f'malformed array literal: "{text}"')


_BARE_ELEMENT = re.compile(r"[^\s{}\",\\]+")


def print_array(cells: Iterable[str | None]) -> str:
    """Return the text form of an array of texts; None is NULL."""
    return "{" + ",".join(_array_element(cell) for cell in cells) + "}"


def _array_element(text: str | None) -> str:
    if text is None:
        return "NULL"
    if _BARE_ELEMENT.fullmatch(text) and text.lower() != "null":
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
