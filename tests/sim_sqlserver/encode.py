"""Values of PostgreSQL's binary format as TDS sends them, one encoder for each type."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from sim_sqlserver.metadata import is_utf8
from sim_sqlserver.sqltypes import MAX, SqlType, decimal_bytes

Encoder = Callable[[bytes | None], bytes]

_PG_EPOCH = 730_119  # days from 0001-01-01 to 2000-01-01
_DAYS_1900 = 693_595  # days from 0001-01-01 to 1900-01-01
_DAY_US = 86_400_000_000
_NEW = ("json", "vector")
_NULL1 = b"\0"
_NULL2 = b"\xff\xff"
_NULL_PLP = b"\xff" * 8
_PLP_END = b"\0\0\0\0"
_TEXT_POINTER = b"\x10" + b"\x01" * 16 + b"\0" * 8
_unpack_q = struct.Struct(">q").unpack
_unpack_i = struct.Struct(">i").unpack
INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC, BOOL = 21, 23, 20, 700, 701, 1700, 16
TIMESTAMP, TIMESTAMPTZ, DATE, TIME, UUID, BYTEA = 1114, 1184, 1082, 1083, 2950, 17


def encoder(sql_type: SqlType, oid: int) -> Encoder:
    """Return the encoder for values of a type that PostgreSQL sends with this type number."""
    name = sql_type.name
    if name in ("tinyint", "smallint", "int", "bigint", "bit"):
        return _integers({"tinyint": 1, "bit": 1, "smallint": 2, "int": 4}.get(name, 8), oid)
    if name in ("float", "real"):
        return _floats(8 if name == "float" else 4, oid)
    if name in ("decimal", "numeric"):
        return _decimals(decimal_bytes(sql_type.precision) - 1, sql_type.scale, oid)
    if name in ("money", "smallmoney"):
        return _money(8 if name == "money" else 4, oid)
    if name in ("date", "time", "datetime2", "datetimeoffset", "datetime", "smalldatetime"):
        return _times(sql_type, oid)
    if name == "uniqueidentifier":
        return _uuids
    return _strings(sql_type)


def _integers(size: int, oid: int) -> Encoder:
    head = bytes((size,))
    wire = {INT2: 2, INT4: 4, INT8: 8, BOOL: 1}.get(oid)
    if wire is None:
        parse = _number_reader(oid)

        def from_number(value: bytes | None) -> bytes:
            if value is None:
                return _NULL1
            return head + int(parse(value, 0)).to_bytes(size, "little", signed=size > 1)

        return from_number
    if wire == size:
        return lambda value: _NULL1 if value is None else head + value[::-1]
    if wire > size:
        return lambda value: _NULL1 if value is None else head + value[: wire - size - 1 : -1]

    def widen(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        number = int.from_bytes(value, "big", signed=wire > 1)
        return head + number.to_bytes(size, "little", signed=True)

    return widen


def _floats(size: int, oid: int) -> Encoder:
    head = bytes((size,))
    if (oid == FLOAT8 and size == 8) or (oid == FLOAT4 and size == 4):
        return lambda value: _NULL1 if value is None else head + value[::-1]
    target = "<d" if size == 8 else "<f"

    def convert(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        if oid in (FLOAT4, FLOAT8):
            number = struct.unpack(">d" if oid == FLOAT8 else ">f", value)[0]
        else:
            number = _number_reader(oid)(value, 20) / 10**20
        return head + struct.pack(target, number)

    return convert


def numeric_units(value: bytes, scale: int) -> int:
    """Return a binary numeric times ten to the scale, rounded half away from zero."""
    digits, weight, sign, _ = struct.unpack(">HhHH", value[:8])
    number = 0
    for digit in struct.unpack(f">{digits}H", value[8 : 8 + 2 * digits]):
        number = number * 10_000 + digit
    power = 4 * (weight - digits + 1) + scale
    if power >= 0:
        number *= int(10**power)
    else:
        divisor = int(10**-power)
        number = (number + divisor // 2) // divisor
    return -number if sign == 0x4000 else number


def _number_reader(oid: int) -> Callable[[bytes, int], int]:
    if oid == NUMERIC:
        return numeric_units
    if oid in (FLOAT4, FLOAT8):
        layout = ">d" if oid == FLOAT8 else ">f"
        return lambda value, scale: round(struct.unpack(layout, value)[0] * 10**scale)
    if oid in (INT2, INT4, INT8, BOOL):
        return lambda value, scale: int.from_bytes(value, "big", signed=True) * 10**scale

    def from_text(value: bytes, scale: int) -> int:
        return round(float(value.decode()) * 10**scale) if scale else int(value)

    return from_text


def _decimals(size: int, scale: int, oid: int) -> Encoder:
    read = _number_reader(oid)
    head = bytes((size + 1,))

    def encode(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        number = read(value, scale)
        if number >= 0:
            return head + b"\x01" + number.to_bytes(size, "little")
        return head + b"\x00" + (-number).to_bytes(size, "little")

    return encode


def _money(size: int, oid: int) -> Encoder:
    read = _number_reader(oid)

    def encode(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        number = read(value, 4)
        if size == 4:
            return b"\x04" + number.to_bytes(4, "little", signed=True)
        data = number.to_bytes(8, "little", signed=True)
        return b"\x08" + data[4:] + data[:4]

    return encode


# --- times ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _days_of(text: str) -> int:
    import datetime

    return datetime.date(int(text[:4]), int(text[5:7]), int(text[8:10])).toordinal() - 1


def _ticks_of(text: str) -> int:
    """Return units of 100 ns of a text hh:mm:ss with digits after it or without."""
    ticks = (int(text[:2]) * 60 + int(text[3:5])) * 60 + int(text[6:8] or 0)
    return ticks * 10**7 + int((text[9:] + "0000000")[:7])


def _split(value: bytes, oid: int) -> tuple[int, int]:
    """Return days since 0001-01-01 and units of 100 ns of a day."""
    if oid in (TIMESTAMP, TIMESTAMPTZ):
        days, micros = divmod(_unpack_q(value)[0], _DAY_US)
        return days + _PG_EPOCH, micros * 10
    if oid == DATE:
        return _unpack_i(value)[0] + _PG_EPOCH, 0
    if oid == TIME:
        return _DAYS_1900, _unpack_q(value)[0] * 10
    text = value.decode()
    if text[2] == ":":
        return _DAYS_1900, _ticks_of(text)
    return _days_of(text[:10]), _ticks_of(text[11:27]) if len(text) > 10 else 0


def _scale(ticks: int, scale: int) -> bytes:
    units = ticks // int(10 ** (7 - scale))
    return units.to_bytes(3 if scale <= 2 else 4 if scale <= 4 else 5, "little")


def _times(sql_type: SqlType, oid: int) -> Encoder:
    name, scale = sql_type.name, sql_type.scale
    if name == "datetimeoffset":
        return lambda value: _NULL1 if value is None else _offset_time(value, scale, oid)

    def encode(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        days, ticks = _split(value, oid)
        if name == "date":
            return b"\x03" + days.to_bytes(3, "little")
        if name == "time":
            data = _scale(ticks, scale)
            return bytes((len(data),)) + data
        if name == "datetime2":
            data = _scale(ticks, scale)
            return bytes((len(data) + 3,)) + data + days.to_bytes(3, "little")
        if name == "datetime":
            third = (ticks * 300 + 5_000_000) // 10**7
            return b"\x08" + struct.pack("<iI", days - _DAYS_1900, third)
        return b"\x04" + struct.pack("<HH", days - _DAYS_1900, ticks // 600_000_000)

    return encode


def _offset_time(value: bytes, scale: int, oid: int) -> bytes:
    """Encode the stored form: the time in UTC with seven digits, Z, then the offset as +hh:mm."""
    days, ticks = _split(value, oid)
    offset = 0
    if oid not in (TIMESTAMP, TIMESTAMPTZ, DATE):
        text = value.decode()
        shown = text[28:34]
        offset = int(shown[:3]) * 60 + int(shown[0] + shown[4:6]) if shown else 0
    data = _scale(ticks, scale) + days.to_bytes(3, "little") + struct.pack("<h", offset)
    return bytes((len(data),)) + data


# --- texts and bytes ------------------------------------------------------------------------------


def _uuids(value: bytes | None) -> bytes:
    if value is None:
        return _NULL1
    if len(value) != 16:
        import uuid

        value = uuid.UUID(value.decode()).bytes
    return b"\x10" + value[3::-1] + value[5:3:-1] + value[7:5:-1] + value[8:]


def _transcoder(sql_type: SqlType) -> Callable[[bytes], bytes]:
    name = sql_type.name
    if name in ("nvarchar", "nchar", "ntext", "sysname", "xml", "sql_variant", *_NEW):
        return lambda value: value.decode().encode("utf-16-le")
    if name in ("varchar", "char", "text"):
        if is_utf8(sql_type.collation):
            return lambda value: value
        return lambda value: (
            value if value.isascii() else value.decode().encode("cp1252", "replace")
        )
    return lambda value: value


def _large(convert: Callable[[bytes], bytes]) -> Encoder:
    def encode(value: bytes | None) -> bytes:
        if value is None:
            return _NULL1
        data = convert(value)
        return _TEXT_POINTER + struct.pack("<I", len(data)) + data

    return encode


_VARIANT_INTEGERS = {
    "tinyint": (0x30, 1),
    "smallint": (0x34, 2),
    "int": (0x38, 4),
    "bigint": (0x7F, 8),
}


def _variant(convert: Callable[[bytes], bytes]) -> Encoder:
    def encode(value: bytes | None) -> bytes:
        if value is None:
            return b"\0\0\0\0"
        kind, _, text = value.decode().removeprefix("\x01").rpartition("\x01")
        if kind in _VARIANT_INTEGERS:
            token, size = _VARIANT_INTEGERS[kind]
            number = int(text).to_bytes(size, "little", signed=size > 1)
            return struct.pack("<I", size + 2) + bytes((token, 0)) + number
        data = convert(text.encode())
        properties = bytes.fromhex("0904d00034") + struct.pack("<H", len(data))
        return struct.pack("<I", len(data) + 9) + b"\xe7\x07" + properties + data

    return encode


def _strings(sql_type: SqlType) -> Encoder:
    convert = _transcoder(sql_type)
    name = sql_type.name
    if name in ("text", "ntext", "image"):
        return _large(convert)
    if name == "sql_variant":
        return _variant(convert)

    if sql_type.length == MAX or name in ("xml", "geometry", "geography", "hierarchyid", *_NEW):

        def plp(value: bytes | None) -> bytes:
            if value is None:
                return _NULL_PLP
            data = convert(value)
            size = len(data)
            if not size:
                return b"\0" * 8 + _PLP_END
            return struct.pack("<QI", size, size) + data + _PLP_END

        return plp
    pack = struct.Struct("<H").pack
    fixed = sql_type.length if name == "binary" else 0

    def short(value: bytes | None) -> bytes:
        if value is None:
            return _NULL2
        data = convert(value)
        if fixed and len(data) != fixed:
            data = data[:fixed].ljust(fixed, b"\0")
        return pack(len(data)) + data

    return short


def python_value(sql_type: SqlType, value: object) -> bytes:
    """Return a decoded value as TDS sends it, for output parameters."""
    if value is None:
        return encoder(sql_type, 25)(None)
    if isinstance(value, int):
        data, oid = value.to_bytes(8, "big", signed=True), INT8
    elif isinstance(value, float):
        data, oid = struct.pack(">d", value), FLOAT8
    elif isinstance(value, bytes):
        data, oid = value, BYTEA
    else:
        data, oid = str(value).encode(), 25
    return encoder(sql_type, oid)(data)
