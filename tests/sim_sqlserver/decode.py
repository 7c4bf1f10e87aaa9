"""Values that a client sends: parameters and rows of a bulk load (MS-TDS 2.2.5.5, 2.2.5.6).

A value is int, float, Decimal, bytes, or text; a time is a text of ISO form with seven digits.
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache

from sim_sqlserver.sqltypes import MAX, SqlType

Value = int | float | Decimal | bytes | str | None
Reader = Callable[["Cursor"], Value]
_EXACT = Context(prec=60)
_INTS = {1: "tinyint", 2: "smallint", 4: "int", 8: "bigint"}


class Cursor:
    """Place in a message."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        at = self.at
        self.at = at + size
        return self.data[at : at + size]

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def short(self) -> int:
        """Return the next two bytes as a number."""
        return int.from_bytes(self.take(2), "little")

    def long(self) -> int:
        """Return the next four bytes as a number."""
        return int.from_bytes(self.take(4), "little")

    def text(self, length: int) -> str:
        """Return the next characters."""
        return self.take(2 * length).decode("utf-16-le", "surrogatepass")

    @property
    def is_done(self) -> bool:
        """Return whether all bytes were taken."""
        return self.at >= len(self.data)


def read_type(cursor: Cursor) -> tuple[SqlType, Reader]:
    """Read a TYPE_INFO; return the type and the reader of its values."""
    token = cursor.byte()
    if token in _FIXED:
        name, size, read = _FIXED[token]
        return SqlType(name), lambda c: read(c.take(size))
    if token in (0x26, 0x68, 0x6D, 0x6E, 0x6F, 0x24):
        return _nullable(token, cursor.byte())
    if token in (0x6A, 0x6C, 0x37, 0x3F):
        cursor.byte()
        precision, scale = cursor.byte(), cursor.byte()
        return SqlType("decimal", precision=precision, scale=scale), _decimal_reader(scale)
    if token == 0x28:
        return SqlType("date"), _sized1(lambda b: _date(int.from_bytes(b, "little")))
    if token in (0x29, 0x2A, 0x2B):
        return _read_scaled(token, cursor.byte())
    if token == 0xF0:
        raise ValueError("CLR type from a client")
    if token == 0xF1:
        if cursor.byte():
            raise ValueError("XML with a schema")
        return SqlType("xml"), lambda c: _decode16(_plp(c))
    if token in (0x22, 0x23, 0x63):
        return _old_large(token, cursor)
    return _strings(token, cursor)


def _strings(token: int, cursor: Cursor) -> tuple[SqlType, Reader]:
    size = cursor.short()
    names = {0xAD: "binary", 0xA5: "varbinary", 0xA7: "varchar", 0xAF: "char", 0xE7: "nvarchar"}
    name = {**names, 0xEF: "nchar"}.get(token)
    if name is None:
        raise ValueError(f"unknown type {token:#x}")
    decode: Callable[[bytes | None], Value]
    if name in ("binary", "varbinary"):
        decode = _as_is
        sql_type = SqlType(name, length=MAX if size == 0xFFFF else size)
    else:
        collation = cursor.take(5)
        is_wide = name[0] == "n"
        is_utf8 = bool(int.from_bytes(collation[:4], "little") & (1 << 26))
        decode = _decode16 if is_wide else _decode8 if is_utf8 else _decode1252
        length = MAX if size == 0xFFFF else size // (2 if is_wide else 1)
        sql_type = SqlType(name, length=length)
    if size == 0xFFFF:
        return sql_type, lambda c: decode(_plp(c))

    def short(c: Cursor) -> Value:
        at = c.at
        length = c.data[at] | c.data[at + 1] << 8
        if length == 0xFFFF:
            c.at = at + 2
            return None
        c.at = at + 2 + length
        return decode(c.data[at + 2 : at + 2 + length])

    return sql_type, short


def _as_is(data: bytes | None) -> Value:
    return data


def _decode16(data: bytes | None) -> Value:
    return None if data is None else data.decode("utf-16-le")


def _decode8(data: bytes | None) -> Value:
    return None if data is None else data.decode()


def _decode1252(data: bytes | None) -> Value:
    return None if data is None else data.decode("cp1252", "replace")


def _plp(cursor: Cursor) -> bytes | None:
    total = int.from_bytes(cursor.take(8), "little")
    if total == 2**64 - 1:
        return None
    parts = []
    while size := cursor.long():
        parts.append(cursor.take(size))
    return b"".join(parts)


def _old_large(token: int, cursor: Cursor) -> tuple[SqlType, Reader]:
    cursor.long()
    if token != 0x22:
        cursor.take(5)
    decode = {0x22: _as_is, 0x23: _decode1252, 0x63: _decode16}[token]
    name = {0x22: "image", 0x23: "text", 0x63: "ntext"}[token]

    def read(c: Cursor) -> Value:
        size = c.long()
        return None if size == 0xFFFFFFFF else decode(c.take(size))

    return SqlType(name), read


def _sized1(convert: Callable[[bytes], Value]) -> Reader:
    def read(c: Cursor) -> Value:
        at = c.at
        size = c.data[at]
        c.at = at + 1 + size
        return convert(c.data[at + 1 : at + 1 + size]) if size else None

    return read


def _nullable(token: int, size: int) -> tuple[SqlType, Reader]:
    if token == 0x26:
        return SqlType(_INTS[size]), _sized1(
            lambda b: int.from_bytes(b, "little", signed=len(b) > 1)
        )
    if token == 0x68:
        return SqlType("bit"), _sized1(lambda b: int(b != b"\0"))
    if token == 0x6D:
        name = "float" if size == 8 else "real"
        return SqlType(name), _sized1(lambda b: struct.unpack("<d" if len(b) == 8 else "<f", b)[0])
    if token == 0x6E:
        return SqlType("money" if size == 8 else "smallmoney"), _sized1(_money)
    if token == 0x6F:
        return SqlType("datetime" if size == 8 else "smalldatetime"), _sized1(_datetime)
    return SqlType("uniqueidentifier"), _sized1(lambda b: str(uuid.UUID(bytes_le=b)))


def _money(data: bytes) -> Decimal:
    whole = data if len(data) == 4 else data[4:] + data[:4]
    return Decimal(int.from_bytes(whole, "little", signed=True)).scaleb(-4, _EXACT)


def _datetime(data: bytes) -> str:
    if len(data) == 4:
        days, minutes = struct.unpack("<HH", data)
        return f"{_date(days + 693_595)}T{minutes // 60:02}:{minutes % 60:02}:00"
    days, thirds = struct.unpack("<iI", data)
    millis = (thirds * 10 + 1) // 3
    return f"{_date(days + 693_595)}T{_clock(millis * 10_000, 3)}"


def _decimal_reader(scale: int) -> Reader:
    def convert(data: bytes) -> Decimal:
        number = Decimal(int.from_bytes(data[1:], "little")).scaleb(-scale, _EXACT)
        return number if data[0] else number.copy_negate()

    return _sized1(convert)


@lru_cache(maxsize=4096)
def _date(days: int) -> str:
    return datetime.date.fromordinal(days + 1).isoformat()


def _clock(ticks: int, digits: int = 7) -> str:
    seconds, rest = divmod(ticks, 10**7)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{rest:07}"[: 9 + digits]


def _read_scaled(token: int, scale: int) -> tuple[SqlType, Reader]:
    width = 3 if scale <= 2 else 4 if scale <= 4 else 5
    factor = 10 ** (7 - scale)

    def time(data: bytes) -> str:
        return _clock(int.from_bytes(data[:width], "little") * factor)

    def datetime2(data: bytes) -> str:
        days = int.from_bytes(data[width : width + 3], "little")
        return f"{_date(days)}T{time(data)}"

    def offset(data: bytes) -> str:
        minutes = int.from_bytes(data[width + 3 :], "little", signed=True)
        sign, shown = ("-" if minutes < 0 else "+"), abs(minutes)
        return f"{datetime2(data)}Z{sign}{shown // 60:02}:{shown % 60:02}"

    if token == 0x29:
        return SqlType("time", scale=scale), _sized1(time)
    if token == 0x2A:
        return SqlType("datetime2", scale=scale), _sized1(datetime2)
    return SqlType("datetimeoffset", scale=scale), _sized1(offset)


def _int(data: bytes) -> Value:
    return int.from_bytes(data, "little", signed=len(data) > 1)


_FIXED: dict[int, tuple[str, int, Callable[[bytes], Value]]] = {
    0x1F: ("nvarchar", 0, lambda _: None),
    0x30: ("tinyint", 1, _int),
    0x32: ("bit", 1, _int),
    0x34: ("smallint", 2, _int),
    0x38: ("int", 4, _int),
    0x7F: ("bigint", 8, _int),
    0x3A: ("smalldatetime", 4, _datetime),
    0x3D: ("datetime", 8, _datetime),
    0x3B: ("real", 4, lambda b: struct.unpack("<f", b)[0]),
    0x3E: ("float", 8, lambda b: struct.unpack("<d", b)[0]),
    0x3C: ("money", 8, _money),
    0x7A: ("smallmoney", 4, _money),
}
