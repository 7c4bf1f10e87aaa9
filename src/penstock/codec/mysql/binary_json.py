"""Convert MySQL's binary JSON to a tree, to the text of CAST(doc AS CHAR), and back.

A tree consists of None, bool, int, float, str, list, dict (members in stored order) and Opaque. The
readable form of what `_binlog.pyx` does for common documents.
"""

from __future__ import annotations

import base64
import math
import struct
from dataclasses import dataclass
from typing import Any

from penstock.codec.mysql import temporals
from penstock.codec.mysql.decimals import decimal_bytes, decimal_text
from penstock.codec.mysql.malformed import Malformed

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = 0, 1, 2, 3, 4
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = 5, 6, 7, 8, 9, 10, 11, 12
OPAQUE = 15
DEPTH_MAX = 100  # the servers' own limit

_NUMBERS = {
    INT16: struct.Struct("<h"),
    UINT16: struct.Struct("<H"),
    INT32: struct.Struct("<i"),
    UINT32: struct.Struct("<I"),
    INT64: struct.Struct("<q"),
    UINT64: struct.Struct("<Q"),
    DOUBLE: struct.Struct("<d"),
}
_LITERALS: dict[int, bool | None] = {0: None, 1: True, 2: False}
_PRECISION_MAX = 99
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
# A number is printed without exponent when its point is within these places.
_POINT_MIN, _POINT_MAX = -14, 15


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of a column type that JSON does not have. type_code: of the column type."""

    type_code: int
    data: bytes


def _member_order(name: str) -> tuple[int, bytes]:
    """Return the sort key of a member's name: members are stored by length, then bytes,
    of names.
    """
    encoded = name.encode()
    return len(encoded), encoded


class _Reader:
    """Reader of a document. The number of visited values is limited by the document's size."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        # A stored tree shares nothing, so its nodes and texts fit in its bytes. A broken one, in
        # which offsets point back, would grow without end.
        self.budget = len(data)

    def need(self, at: int, size: int) -> None:
        if at < 0 or at + size > len(self.data):
            raise Malformed

    def spend(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise Malformed

    def value(self, kind: int, at: int, depth: int) -> Any:
        """Return the value whose data starts at `at`."""
        self.spend(1)
        if kind in (SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY):
            return self.container(kind, at, depth)
        if kind == LITERAL:
            self.need(at, 1)
            return self.literal(self.data[at])
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            self.need(at, form.size)
            number = form.unpack_from(self.data, at)[0]
            if kind == DOUBLE and not math.isfinite(number):
                raise Malformed
            return number
        if kind == STRING:
            start, size = self.length(at)
            return self.text(start, size)
        if kind == OPAQUE:
            self.need(at, 1)
            start, size = self.length(at + 1)
            self.need(start, size)
            self.spend(size)
            return Opaque(self.data[at], self.data[start : start + size])
        raise Malformed

    def literal(self, number: int) -> bool | None:
        if number not in _LITERALS:
            raise Malformed
        return _LITERALS[number]

    def text(self, start: int, size: int) -> str:
        self.need(start, size)
        self.spend(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise Malformed from error

    def length(self, at: int) -> tuple[int, int]:
        """Return where a length ends, and the length: seven bits per byte, low ones first."""
        number = 0
        for index in range(5):
            self.need(at + index, 1)
            byte = self.data[at + index]
            number |= (byte & 0x7F) << 7 * index
            if not byte & 0x80:
                return at + index + 1, number
        raise Malformed

    def number(self, at: int, size: int) -> int:
        return int.from_bytes(self.data[at : at + size], "little")

    def container(self, kind: int, start: int, depth: int) -> Any:
        if depth >= DEPTH_MAX:
            raise Malformed
        width = 4 if kind in (LARGE_OBJECT, LARGE_ARRAY) else 2
        is_object = kind in (SMALL_OBJECT, LARGE_OBJECT)
        self.need(start, 2 * width)
        count, size = self.number(start, width), self.number(start + width, width)
        self.need(start, size)
        keys = start + 2 * width
        values = keys + (count * (width + 2) if is_object else 0)
        if values + count * (width + 1) > start + size:
            raise Malformed
        elements = [
            self.entry(start, size, values + index * (width + 1), width, depth)
            for index in range(count)
        ]
        if not is_object:
            return elements
        members: dict[str, Any] = {}
        last: tuple[int, bytes] | None = None
        for index, element in enumerate(elements):
            entry = keys + index * (width + 2)
            offset, length = self.number(entry, width), self.number(entry + width, 2)
            if offset + length > size:
                raise Malformed
            name = self.text(start + offset, length)
            order = _member_order(name)
            if last is not None and order <= last:
                raise Malformed  # names ascend, and none comes twice
            last = order
            members[name] = element
        return members

    def entry(self, start: int, size: int, at: int, width: int, depth: int) -> Any:
        """Return an element's kind, and its place or, if it is small, its value."""
        kind = self.data[at]
        if kind == LITERAL or kind in (INT16, UINT16) or (width == 4 and kind in (INT32, UINT32)):
            return self.value(kind, at + 1, depth + 1)
        offset = self.number(at + 1, width)
        if offset >= size:
            raise Malformed
        return self.value(kind, start + offset, depth + 1)


def parse_json(data: bytes) -> Any:
    """Parse a stored document into a tree; an empty one is JSON's null. Raises Malformed."""
    if not data:
        return None
    return _Reader(data).value(data[0], 1, 0)


# --- text


def double_text(value: float) -> str:
    """Return a double as the server prints it inside JSON: the shortest digits, `1.0`, `1e20`."""
    shown = repr(abs(value))
    mantissa, _, exponent = shown.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if digits == "0":
        return sign + "0.0"
    if point >= _POINT_MIN and (point <= _POINT_MAX or len(digits) > point):
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if len(digits) > point:
            return f"{sign}{digits[:point]}.{digits[point:]}"
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}"


_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
}  # fmt: skip
_QUOTING = {code: f"\\u{code:04x}" for code in range(0x20)} | {
    ord(letter): text for letter, text in _ESCAPES.items()
}


def quoted_text(text: str) -> str:
    """Return a string with quotes and escapes as the server prints it."""
    return f'"{text.translate(_QUOTING)}"'


def _opaque_text(value: Opaque) -> str:
    kind, data = value.type_code, value.data
    if kind == _DECIMAL:
        # The server counts whole groups of digits, so there may be more than a column has.
        if len(data) < 2 or not data[1] <= data[0] <= _PRECISION_MAX or not data[0]:
            raise Malformed
        if len(data) != 2 + decimal_bytes(data[0], data[1]):
            raise Malformed
        return decimal_text(data[2:], data[0], data[1])
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        if len(data) != 8:
            raise Malformed
        return f'"{_packed_text(kind, int.from_bytes(data, "little", signed=True))}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode("ascii")}"'


def _packed_text(kind: int, packed: int) -> str:
    """Return a date or time in its in-memory form: calendar bits above 24 bits of microseconds."""
    negative = packed < 0
    packed = abs(packed)
    whole, micro = packed >> 24, packed & 0xFF_FFFF
    if micro > 999_999:
        raise Malformed
    hour, minute, second = whole >> 12, whole >> 6 & 63, whole & 63
    if kind == _TIME:
        if hour > 838 or minute > 59 or second > 59:
            raise Malformed
        size = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
        return temporals.time_text(temporals.TimeSpan(negative, size), temporals.FSP_MAX)
    year, month = divmod(whole >> 22, 13)
    moment = temporals.Moment(year, month, whole >> 17 & 31, hour & 31, minute, second, micro)
    if negative or year > 9999 or moment.hour > 23 or minute > 59 or second > 59:
        raise Malformed
    if kind == _DATE:
        return temporals.date_text(moment)
    return temporals.datetime_text(moment, temporals.FSP_MAX)


def tree_text(value: Any) -> str:
    """Return a tree as the server prints it. Raises Malformed for an opaque value that
    is broken.
    """
    out: list[str] = []
    _write(value, out)
    return "".join(out)


def _write(value: Any, out: list[str]) -> None:
    if value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, int):
        out.append(str(value))
    elif isinstance(value, float):
        out.append(double_text(value))
    elif isinstance(value, str):
        out.append(quoted_text(value))
    elif isinstance(value, Opaque):
        out.append(_opaque_text(value))
    elif isinstance(value, list):
        out.append("[")
        for index, element in enumerate(value):
            out.append(", " if index else "")
            _write(element, out)
        out.append("]")
    else:
        out.append("{")
        for index, (name, member) in enumerate(value.items()):
            out.append((", " if index else "") + quoted_text(name) + ": ")
            _write(member, out)
        out.append("}")


def json_text(data: bytes) -> str:
    """Return the text of a stored document. Raises Malformed."""
    return tree_text(parse_json(data))


# --- back to bytes


def _varlen(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_json(value: Any) -> bytes:
    """Encode a tree as a stored document, in the wide form: equal in meaning, not in size."""
    kind, data = _encode(value)
    return bytes((kind,)) + data


def _encode(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return LITERAL, bytes((0 if value is None else 1 if value else 2,))
    if isinstance(value, int):
        kind = INT64 if value < 2**63 else UINT64
        return kind, _NUMBERS[kind].pack(value)
    if isinstance(value, float):
        return DOUBLE, _NUMBERS[DOUBLE].pack(value)
    if isinstance(value, str):
        text = value.encode()
        return STRING, _varlen(len(text)) + text
    if isinstance(value, Opaque):
        return OPAQUE, bytes((value.type_code,)) + _varlen(len(value.data)) + value.data
    if isinstance(value, list):
        return LARGE_ARRAY, _container(value, [])
    names = sorted(value, key=_member_order)
    return LARGE_OBJECT, _container([value[name] for name in names], names)


def _container(elements: list[Any], names: list[str]) -> bytes:
    head = 8 + len(names) * 6 + len(elements) * 5
    keys, values, body = bytearray(), bytearray(), bytearray()
    for name in names:
        text = name.encode()
        keys += struct.pack("<IH", head + len(body), len(text))
        body += text
    for element in elements:
        kind, data = _encode(element)
        if kind == LITERAL:
            values += bytes((kind,)) + data.ljust(4, b"\0")
        else:
            values += bytes((kind,)) + struct.pack("<I", head + len(body))
            body += data
    size = head + len(body)
    return struct.pack("<II", len(elements), size) + bytes(keys) + bytes(values) + bytes(body)
