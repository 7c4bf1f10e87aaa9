"""Convert one stored value to Arrow's physical form: the specification of `_binlog.pyx`'s cells.

Each reader takes the bytes of one value, without the length before it: dates become days and times
microseconds since 1970, decimals Decimal, text str. What a server would not store is Malformed. A
valid value that the neutral type cannot hold is Unfit.
"""

from __future__ import annotations

import ipaddress
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

from penstock.codec.mysql import temporals
from penstock.codec.mysql.binary_json import json_text
from penstock.codec.mysql.binlog_cells import Cell, How
from penstock.codec.mysql.binlog_outcome import TEXT_LENGTH_MAX_BYTES
from penstock.codec.mysql.charsets import decoder
from penstock.codec.mysql.decimals import decimal_text, read_decimal
from penstock.codec.mysql.malformed import Malformed, Unfit

Reader = Callable[[bytes], Any]
_EWKB_HAS_SRID = 0x2000_0000
_WKB_BYTES_MIN = 9  # SRID, byte order, kind


def _integer(cell: Cell) -> Reader:
    signed = cell.how is How.SIGNED

    def read(data: bytes) -> Any:
        value = int.from_bytes(data, "little", signed=signed)
        if cell.neutral == "bool":
            if value not in (0, 1):
                raise Unfit
            return bool(value)
        return str(value) if cell.neutral == "string" else value

    return read


def _float(cell: Cell) -> Reader:
    form = struct.Struct("<f" if cell.how is How.FLOAT else "<d")

    def read(data: bytes) -> float:
        value: float = form.unpack(data)[0]
        if not math.isfinite(value):
            raise Malformed  # no server stores these
        return value

    return read


def _bit(cell: Cell) -> Reader:
    def read(data: bytes) -> Any:
        value = int.from_bytes(data)
        if value >> cell.precision:
            raise Malformed
        return str(value) if cell.neutral == "string" else value

    return read


def _year(cell: Cell) -> Reader:
    def read(data: bytes) -> Any:
        value = 1900 + data[0] if data[0] else 0
        return f"{value:04d}" if cell.neutral == "string" else value

    return read


def _decimal(cell: Cell) -> Reader:
    if cell.neutral == "string":
        return lambda data: decimal_text(data, cell.precision, cell.scale)
    return lambda data: read_decimal(data, cell.precision, cell.scale)


def _date(cell: Cell) -> Reader:
    if cell.neutral == "string":
        return lambda data: temporals.date_text(temporals.date_fields(data))
    return lambda data: temporals.to_date(temporals.date_fields(data))


def _time(cell: Cell) -> Reader:
    fsp = cell.precision
    span: Callable[[bytes], temporals.TimeSpan] = {
        How.TIME: temporals.time_span,
        How.OLD_TIME: temporals.old_time_span,
    }.get(cell.how, lambda data: temporals.hires_time_span(data, fsp))
    if cell.neutral == "string":
        return lambda data: temporals.time_text(span(data), fsp)
    return lambda data: temporals.to_time(span(data))


def _datetime(cell: Cell) -> Reader:
    fsp = cell.precision
    fields: Callable[[bytes], temporals.Moment] = {
        How.DATETIME: temporals.datetime_fields,
        How.OLD_DATETIME: temporals.old_datetime_fields,
    }.get(cell.how, lambda data: temporals.hires_datetime_fields(data, fsp))
    if cell.neutral == "string":
        return lambda data: temporals.datetime_text(fields(data), fsp)
    return lambda data: temporals.to_timestamp(fields(data))


def _timestamp(cell: Cell) -> Reader:
    fsp = cell.precision
    since: Callable[[bytes], int] = {
        How.TIMESTAMP: temporals.timestamp_us,
        How.OLD_TIMESTAMP: temporals.old_timestamp_us,
    }.get(cell.how, lambda data: temporals.hires_timestamp_us(data, fsp))
    if cell.neutral != "string":
        return since

    def text(data: bytes) -> str:
        try:
            return temporals.timestamp_text(since(data), fsp)
        except Unfit:
            return temporals.timestamp_text(None, fsp)

    return text


def _pad(cell: Cell) -> Reader:
    def read(data: bytes) -> bytes:
        if len(data) > cell.size:
            raise Malformed
        return data.ljust(cell.size, b"\0")

    return read


def _enum(cell: Cell) -> Reader:
    labels = ("", *cell.labels)

    def read(data: bytes) -> str:
        index = int.from_bytes(data, "little")
        if index >= len(labels):
            raise Malformed
        return labels[index]

    return read


def _set(cell: Cell) -> Reader:
    def read(data: bytes) -> str:
        bits = int.from_bytes(data, "little")
        if bits >> len(cell.labels):
            raise Malformed
        out = ""
        for index, label in enumerate(cell.labels):
            if bits >> index & 1:
                out += "," * bool(out) + label  # as the server prints it where a label is empty
        return out

    return read


def ewkb_hex(data: bytes) -> str:
    """Return a stored geometry (SRID and WKB) as PostGIS writes it: EWKB in hexadecimal digits.

    An SRID of 0 means none. Coordinates stay in the order in which the server keeps them. Raises
    Malformed.
    """
    if len(data) < _WKB_BYTES_MIN or data[4] != 1:
        raise Malformed
    srid, _, kind = struct.unpack_from("<IBI", data)
    if srid == 0:
        return data[4:].hex().upper()
    return (struct.pack("<BII", 1, kind | _EWKB_HAS_SRID, srid) + data[9:]).hex().upper()


def _inet4(cell: Cell) -> Reader:
    padded = _pad(cell)
    return lambda data: str(ipaddress.IPv4Address(padded(data)))


def _inet6(cell: Cell) -> Reader:
    padded = _pad(cell)

    def read(data: bytes) -> str:
        address = ipaddress.IPv6Address(padded(data))
        high, low = divmod(int(address), 2**32)
        # The server shows the last four bytes as an IPv4 address where they may be one.
        if high == 0xFFFF:
            return f"::ffff:{ipaddress.IPv4Address(low)}"
        if high == 0 and low >> 16:
            return f"::{ipaddress.IPv4Address(low)}"
        return str(address)

    return read


def decompress(data: bytes) -> bytes:
    """Return the value of a COMPRESSED column of MariaDB. Raises Malformed."""
    if not data:
        return b""
    head, body = data[0], data[1:]
    if head >> 4 == 0:
        return body
    size = head & 7
    if head >> 4 != 8 or not 1 <= size <= 4 or len(body) < size:
        raise Malformed
    length = int.from_bytes(body[:size])
    if length > TEXT_LENGTH_MAX_BYTES:
        raise Malformed
    machine = zlib.decompressobj(-15 if head & 8 else 15)
    try:
        value = machine.decompress(body[size:], length + 1)
    except zlib.error as error:
        raise Malformed from error
    if len(value) != length or not machine.eof:
        raise Malformed
    return value


def _read_compressed(cell: Cell) -> Reader:
    if cell.how is How.COMPRESSED_BYTES:
        return decompress
    decode = decoder(cell.charset)
    return lambda data: decode(decompress(data))


_MAKERS: dict[How, Callable[[Cell], Reader]] = {
    How.SIGNED: _integer,
    How.UNSIGNED: _integer,
    How.FLOAT: _float,
    How.DOUBLE: _float,
    How.DECIMAL: _decimal,
    How.BIT: _bit,
    How.YEAR: _year,
    How.DATE: _date,
    How.TIME: _time,
    How.OLD_TIME: _time,
    How.HIRES_TIME: _time,
    How.DATETIME: _datetime,
    How.OLD_DATETIME: _datetime,
    How.HIRES_DATETIME: _datetime,
    How.TIMESTAMP: _timestamp,
    How.OLD_TIMESTAMP: _timestamp,
    How.HIRES_TIMESTAMP: _timestamp,
    How.UTF8: lambda cell: decoder(cell.charset),
    How.SINGLE_BYTE: lambda cell: decoder(cell.charset),
    How.OTHER_TEXT: lambda cell: decoder(cell.charset),
    How.BYTES: lambda _: bytes,
    How.PADDED: _pad,
    How.ENUM: _enum,
    How.SET: _set,
    How.JSON: lambda _: json_text,
    How.GEOMETRY: lambda _: ewkb_hex,
    How.INET4: _inet4,
    How.INET6: _inet6,
    How.COMPRESSED_TEXT: _read_compressed,
    How.COMPRESSED_BYTES: _read_compressed,
}


def value_reader(cell: Cell) -> Reader:
    """Return the reader of a column's values; it raises Malformed, Unfit or UnicodeDecodeError."""
    return _MAKERS[cell.how](cell)
