"""Read the values of SQL_REDO for the columns of a relation: the readable form of the kernel's.

Each way to read (`cells.How`) has the forms that LogMiner prints for its types; another form is
Malformed. An empty text is NULL, as in Oracle's own SQL. Not here: the scan (`statements`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock.codec.oracle import intervals, numbers
from penstock.codec.oracle.cells import How, Plan
from penstock.codec.oracle.moments import (
    DATE_MASKS,
    TIMESTAMP_MASKS,
    ZONED_MASKS,
    microseconds_of,
    parse_moment,
    text_of,
)
from penstock.codec.oracle.statements import Value, ValueKind, unistr_texts
from penstock.codec.oracle.values import FormatUnknown, Malformed, NotUnicode

_HEX = re.compile(rb"(?:[0-9A-Fa-f]{2})*")
_PART = re.compile(rb"[^\\]+|\\(?:\\|[0-9A-Fa-f]{4})?")
# Members by names of their own, as in `statements`.
_NULL, _QUOTED, _EMPTY_CLOB = ValueKind.NULL, ValueKind.QUOTED, ValueKind.EMPTY_CLOB
_LOCAL, _ZONED = How.LOCAL, How.ZONED
_PRINTED = (ValueKind.QUOTED, ValueKind.NUMBER)
_TEXTS = (ValueKind.QUOTED, ValueKind.UNISTR, ValueKind.EMPTY_CLOB)
_MASKS = {
    ValueKind.DATE: DATE_MASKS,
    ValueKind.TIMESTAMP: TIMESTAMP_MASKS,
    ValueKind.ZONED: ZONED_MASKS | TIMESTAMP_MASKS,
}


def unquote(text: bytes) -> bytes:
    """Return a text whose quotes are doubled as it is."""
    return text.replace(b"''", b"'")


def read_value(text: bytes, value: Value, plan: Plan) -> Any:
    """Return a value in the column's form; None for NULL.

    Dates and times are microseconds since 1970, decimals Decimal.

    Raises:
        Malformed: The type has no such value.
        FormatUnknown: A date or time has another format.
        NotUnicode: A text has half of a pair of UTF-16.
        Unfit: The neutral type cannot hold it.
    """
    if value.kind is _NULL:
        return None
    return _READERS[plan.how](text, value, plan)


def _need(value: Value, *kinds: ValueKind) -> None:
    if value.kind not in kinds:
        raise Malformed


def _read_printed(read: Callable[[bytes, Plan], Any]) -> Callable[[bytes, Value, Plan], Any]:
    """Return a reader of a number's text, with or without quotes."""

    def read_number(text: bytes, value: Value, plan: Plan) -> Any:
        _need(value, *_PRINTED)
        digits = text[value.first : value.last]
        return read(digits, plan) if digits else None

    return read_number


def _read_float_text(text: bytes, _: Plan) -> str:
    return numbers.plain_float(text).decode()


def _read_text(text: bytes, value: Value, _: Plan) -> str | None:
    _need(value, *_TEXTS)
    if value.kind is _EMPTY_CLOB:
        return ""
    if value.kind is _QUOTED:
        return unquote(text[value.first : value.last]).decode() or None
    return read_unistr(unistr_texts(text, value)) or None


def read_unistr(texts: list[bytes]) -> str:
    """Return the text of a chain of UNISTR; a pair of UTF-16 may be in two of its parts.

    Raises:
        Malformed: A backslash is not followed by four digits or a backslash.
        NotUnicode: Half of a pair is without the other.
    """
    shown = bytearray()
    high = 0
    for text in texts:
        for part in _PART.findall(unquote(text)):
            unit = int(part[1:], 16) if part[:1] == b"\\" and len(part) == 5 else -1
            if high and not 0xDC00 <= unit <= 0xDFFF:
                raise NotUnicode
            if unit < 0:
                if part == b"\\":
                    raise Malformed
                shown += b"\\" if part == b"\\\\" else part
            elif 0xDC00 <= unit <= 0xDFFF:
                if not high:
                    raise NotUnicode
                shown += chr(0x10000 + (high - 0xD800 << 10) + unit - 0xDC00).encode()
                high = 0
            elif 0xD800 <= unit <= 0xDBFF:
                high = unit
            else:
                shown += chr(unit).encode()
    if high:
        raise NotUnicode
    return shown.decode()


def _read_bytes(text: bytes, value: Value, _: Plan) -> bytes | None:
    _need(value, ValueKind.HEX, ValueKind.EMPTY_BLOB)
    if value.kind is ValueKind.EMPTY_BLOB:
        return b""
    return read_hex(text[value.first : value.last]) or None


def read_hex(digits: bytes) -> bytes:
    """Return the bytes of hexadecimal digits. Raises Malformed."""
    if not _HEX.fullmatch(digits):
        raise Malformed
    return bytes.fromhex(digits.decode())


def _read_moment(kind: ValueKind) -> Callable[[bytes, Value, Plan], Any]:
    """Return a reader of dates and times that are arguments of a function."""

    def read_moment(text: bytes, value: Value, plan: Plan) -> Any:
        _need(value, kind)
        if value.mask is not None and value.mask not in _MASKS[kind]:
            raise FormatUnknown
        printed = text[value.first : value.last]
        if not printed:
            return None
        moment = parse_moment(printed)
        if plan.how is _LOCAL:
            moment = moment._replace(offset=moment.offset or 0)  # the sessions' zone is UTC
        elif (moment.offset is None) is (plan.how is _ZONED):
            raise FormatUnknown
        return text_of(moment) if plan.neutral == "string" else microseconds_of(moment)

    return read_moment


def _read_interval(
    kind: ValueKind, read: Callable[[bytes], str]
) -> Callable[[bytes, Value, Plan], Any]:
    def read_interval(text: bytes, value: Value, _: Plan) -> str | None:
        _need(value, kind)
        printed = text[value.first : value.last]
        return read(printed) if printed else None

    return read_interval


def _refuse(*_: object) -> Any:
    raise Malformed


_READERS: dict[How, Callable[[bytes, Value, Plan], Any]] = {
    How.INTEGER: _read_printed(lambda text, plan: numbers.read_integer(text, plan.neutral)),
    How.DECIMAL: _read_printed(
        lambda text, plan: numbers.read_decimal(text, plan.precision, plan.scale)
    ),
    How.NUMBER_TEXT: _read_printed(lambda text, _: numbers.read_number_text(text)),
    How.FLOAT: _read_printed(lambda text, plan: numbers.read_float(text, plan.neutral)),
    How.FLOAT_TEXT: _read_printed(_read_float_text),
    How.TEXT: _read_text,
    How.BYTES: _read_bytes,
    How.DATE: _read_moment(ValueKind.DATE),
    How.TIMESTAMP: _read_moment(ValueKind.TIMESTAMP),
    How.ZONED: _read_moment(ValueKind.ZONED),
    How.LOCAL: _read_moment(ValueKind.ZONED),
    How.MONTHS: _read_interval(ValueKind.MONTHS, intervals.read_months),
    How.SECONDS: _read_interval(ValueKind.SECONDS, intervals.read_seconds),
    How.UNREAD: _refuse,
}
