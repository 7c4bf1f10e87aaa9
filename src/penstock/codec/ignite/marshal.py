"""Decode marshalled values to Python values. Plain twin of `_marshal.pyx`.

Values that only a JVM can read stay bytes (`values.Opaque`) and are never guessed. Source: Apache
Ignite 2.17, GridBinaryMarshaller, BinaryUtils, BinaryReaderExImpl, BinaryObjectImpl.
"""

from __future__ import annotations

import decimal
import os
import struct
from collections.abc import Callable
from typing import Any

from penstock.codec.ignite.errors import bad_value
from penstock.codec.ignite.types import BinaryType, Types, id_of, read_type
from penstock.codec.ignite.values import (
    COLLECTIONS,
    MAPS,
    UUID,
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaList,
    JavaMap,
    Opaque,
    SqlDate,
    Time,
    Timestamp,
)

try:
    from penstock.codec.ignite._marshal import Decoder as _Decoder
    from penstock.codec.ignite._marshal import decode as _decode
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.ignite._marshal":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

DEPTH_MAX = 200  # of values within each other
# Handles and fields can point anywhere, many at one place. A node's value reads each byte once, or
# as often as it lies within wrapped objects; more is a broken value that would fill the memory.
READ_TIMES_MAX = 32
REGULAR, BYTES, OBJECT, ENUM = 1, 2, 100, 101  # kinds of keys and values
TRANSFORMED, OPTIMIZED = 0xFD, 0xFE
NULL, HANDLE, OBJ = 101, 102, 103
HEADER_BYTES = 24
USER_TYPE, HAS_SCHEMA, HAS_RAW, ONE_BYTE, TWO_BYTES, COMPACT = 1, 2, 4, 8, 16, 32
# A java.sql.Date, which SQL's DATE is, has no form of its own: serializable, class, checksum, ms.
SQL_DATE = bytes.fromhex("663aded5409766")
OF_CLASSES = (28, 101, 102)  # a class; an externalizable, a serializable: the class is behind
SQL_DATE_BYTES = len(SQL_DATE) + 8
EXACT = decimal.Context(
    prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)
_HEADER = struct.Struct("<BHiiiii")
_SCALARS = {
    1: struct.Struct("<b"),
    2: struct.Struct("<h"),
    3: struct.Struct("<i"),
    4: struct.Struct("<q"),
    5: struct.Struct("<f"),
    6: struct.Struct("<d"),
}
_ARRAYS = {13: "h", 14: "i", 15: "q", 16: "f", 17: "d"}
_OF_OBJECTS = {20: 9, 21: 10, 22: 11, 31: 30, 34: 33, 37: 36}


def decode(data: bytes, kind: int, types: Types) -> Any:
    """Decode a key or value of an entry; `kind` is the entry's. Raises ValueBroken, TypeUnknown."""
    if kind == BYTES:
        return data
    if kind not in (REGULAR, OBJECT, ENUM):
        raise bad_value(0, f"an object of kind {kind}")
    if data[:1] == bytes([TRANSFORMED]):
        return Opaque("transformed", None, 0, data)
    return _Reader(data, types).value(0)


def decoder(types: Types) -> Callable[[bytes, int], Any]:
    """Return `decode` bound to these types, of the kernel or the twin that
    decode_kernel() selects.
    """
    kernel = kernel_decoder(types)
    if kernel is None:
        return lambda data, kind: decode(data, kind, types)
    found: Callable[[bytes, int], Any] = kernel.decode
    return found


def kernel_decoder(types: Types) -> Any:
    """Return the compiled decoder of values; None if the twin is used."""
    return None if decode_kernel() is decode else _Decoder(types)


def decode_object(data: bytes, types: Types) -> Any:
    """Decode a single marshalled value. Raises ValueBroken, TypeUnknown."""
    return _Reader(data, types).value(0)


def read_at(data: bytes, place: int, types: Types, depth: int) -> Any:
    """Decode the value at a place inside other bytes, at this depth. Raises ValueBroken,
    TypeUnknown.
    """
    reader = _Reader(data, types)
    reader.seek(place)
    return reader.value(depth)


def read_metadata(data: bytes) -> BinaryType:
    """Read a file of binary_meta. Raises ValueBroken."""
    return read_type(data, decode_object)


def as_decimal(unscaled: int, scale: int) -> decimal.Decimal:
    """Return a decimal of any length, exactly."""
    return EXACT.scaleb(decimal.Decimal(unscaled), -scale)


class _Reader:
    """Reader of one value from `at` on. It keeps containers by place, because handles refer to
    them.
    """

    def __init__(self, data: bytes, types: Types) -> None:
        self._data = data
        self._types = types
        self._at = 0
        self._left = len(data) * READ_TIMES_MAX
        self._seen: dict[int, Any] = {}

    def seek(self, place: int) -> None:
        self._at = place

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._bad(f"more than {DEPTH_MAX} values within each other")
        begin = self._at
        code = self._take(1)[0]
        scalar = _SCALARS.get(code)
        if scalar is not None:
            return scalar.unpack(self._take(scalar.size))[0]
        if code == NULL:
            return None
        if code in _ARRAYS:
            form = _ARRAYS[code]
            count = self._count(struct.calcsize(form))
            return list(struct.unpack(f"<{count}{form}", self._take(count * struct.calcsize(form))))
        if code in _OF_OBJECTS:
            return self._objects(_OF_OBJECTS[code], depth)
        read = _READERS.get(code)
        if read is None:
            raise bad_value(begin, f"a value of type {code}")
        return read(self, begin, depth)

    # -- simple ones -------------------------------------------------------------------------

    def char(self, _: int, __: int) -> str:
        return chr(self._short())

    def boolean(self, begin: int, _: int) -> bool:
        return self._flag(begin)

    def string(self, _: int, __: int) -> str:
        return self._text()

    def uuid(self, _: int, __: int) -> UUID:
        high, low = struct.unpack("<QQ", self._take(16))
        return UUID(int=high << 64 | low)

    def date(self, _: int, __: int) -> Date:
        return Date(self._long())

    def time(self, _: int, __: int) -> Time:
        return Time(self._long())

    def timestamp(self, _: int, __: int) -> Timestamp:
        ms = self._long()
        return Timestamp(ms, self._int())

    def decimal(self, begin: int, _: int) -> decimal.Decimal:
        scale = self._int()
        digits = bytearray(self._take(self._count(1)))
        if not digits:
            raise bad_value(begin, "a decimal without digits")
        is_negative = digits[0] & 0x80
        digits[0] &= 0x7F
        unscaled = int.from_bytes(digits, "big")
        return as_decimal(-unscaled if is_negative else unscaled, scale)

    def bytes_(self, _: int, __: int) -> bytes:
        return self._take(self._count(1))

    def chars(self, _: int, __: int) -> list[str]:
        count = self._count(2)
        return [chr(one) for one in struct.unpack(f"<{count}H", self._take(count * 2))]

    def booleans(self, begin: int, _: int) -> list[bool]:
        return [self._flag(begin) for _ in range(self._count(1))]

    # -- containers --------------------------------------------------------------------------

    def array(self, begin: int, depth: int) -> list[Any]:
        self._class_id()
        count = self._count(1)
        made: list[Any] = []
        self._seen[begin] = made
        for _ in range(count):
            made.append(self.value(depth + 1))
        return made

    def enums(self, begin: int, _: int) -> list[Enum | None]:
        self._class_id()
        made: list[Enum | None] = []
        for _ in range(self._count(1)):
            code = self._take(1)[0]
            if code not in (NULL, 28, 38):
                raise bad_value(begin, f"an enum array with a value of type {code}")
            made.append(None if code == NULL else self._enum())
        return made

    def collection(self, begin: int, depth: int) -> JavaList:
        count = self._count(1)
        (kind,) = struct.unpack("<b", self._take(1))
        if kind not in COLLECTIONS:
            raise bad_value(begin, f"a collection of kind {kind}")
        made = JavaList()
        made.kind = COLLECTIONS[kind]
        self._seen[begin] = made
        for _ in range(count):
            made.append(self.value(depth + 1))
        return made

    def map(self, begin: int, depth: int) -> JavaMap:
        count = self._count(2)
        kind = self._take(1)[0]
        if kind not in MAPS:
            raise bad_value(begin, f"a map of kind {kind}")
        made = JavaMap(MAPS[kind], [])
        self._seen[begin] = made
        for _ in range(count):
            key = self.value(depth + 1)
            made.pairs.append((key, self.value(depth + 1)))
        return made

    def _objects(self, code: int, depth: int) -> list[Any]:
        made = []
        for _ in range(self._count(1)):
            begin = self._at
            actual = self._take(1)[0]
            if actual not in (NULL, code):
                raise bad_value(begin, f"an array with a value of type {actual}")
            self._at = begin
            made.append(self.value(depth + 1))
        return made

    # -- types -------------------------------------------------------------------------------

    def enum(self, _: int, __: int) -> Enum:
        return self._enum()

    def _enum(self) -> Enum:
        type_id, name = self._class_id()
        ordinal = self._int()
        known = self._types.find(type_id)
        shown = name or (self._types.name_of(type_id) or "")
        return Enum(shown, type_id, ordinal, known.constants.get(ordinal) if known else None)

    def class_(self, _: int, __: int) -> Class:
        type_id, name = self._class_id()
        return Class(name or self._types.name_of(type_id), type_id)

    def proxy(self, begin: int, depth: int) -> Opaque:
        for _ in range(self._count(4)):
            self._class_id()
        self.value(depth + 1)
        return Opaque("proxy", None, 0, self._data[begin : self._at])

    def read_optimized(self, _: int, __: int) -> Opaque | Date:
        data = self._take(self._count(1))
        if len(data) == SQL_DATE_BYTES and data.startswith(SQL_DATE):
            return SqlDate(int.from_bytes(data[len(SQL_DATE) :], "little", signed=True))
        if len(data) < 5 or data[0] not in OF_CLASSES:
            return Opaque("optimized", None, 0, data)
        type_id = int.from_bytes(data[1:5], "little", signed=True)
        return Opaque("optimized", self._types.name_of(type_id), type_id, data)

    def _class_id(self) -> tuple[int, str | None]:
        """Return a type's id. An unregistered type has the name of its class instead."""
        type_id = self._int()
        if type_id:
            return type_id, None
        begin = self._at
        if self._take(1)[0] != 9:
            raise bad_value(begin, "a class name that is not a string")
        name = self._text()
        return id_of(name), name

    # -- objects -----------------------------------------------------------------------------

    def handle(self, begin: int, depth: int) -> Any:
        distance = self._int()
        place = begin - distance
        if not 0 <= place < begin:
            raise bad_value(begin, f"a handle {distance} bytes back")
        if place in self._seen:
            return self._seen[place]
        after = self._at
        self._at = place
        found = self.value(depth + 1)
        self._at = after
        self._seen[place] = found
        return found

    def read_wrapped(self, begin: int, depth: int) -> Any:
        length = self._count(1)
        inner = self._take(length)
        start = self._int()
        if not 0 <= start < length:
            raise bad_value(begin, f"a binary object that begins at {start} of {length} bytes")
        reader = _Reader(inner, self._types)
        reader.seek(start)
        reader._left = self._left
        made = reader.value(depth + 1)
        self._left = reader._left
        return made

    def object(self, begin: int, depth: int) -> BinaryObject:
        version, flags, type_id, hash_code, length, schema, offset = _HEADER.unpack(
            self._take(HEADER_BYTES - 1)
        )
        if version != 1:
            raise bad_value(begin, f"a binary object of version {version}")
        end = begin + length
        if length < HEADER_BYTES or end > len(self._data):
            raise bad_value(begin, f"a binary object of {length} bytes")
        name = None
        if not type_id:
            begin_name = self._at
            if self._take(1)[0] != 9:
                raise bad_value(begin_name, "a class name that is not a string")
            name = self._text()
            type_id = id_of(name)
        places, raw, footer = self._footer(begin, end, flags, offset)
        found, pairs = self._find_fields(begin, places, flags, type_id, schema)
        if found is not None:
            name = found.type_name
        made = BinaryObject(
            name or self._types.name_of(type_id) or "",
            type_id,
            hash_code,
            {},
            found.fields if found is not None else {},
            raw,
        )
        self._seen[begin] = made
        for one, place in pairs:
            if not HEADER_BYTES <= place < footer - begin:
                raise bad_value(begin, f"a field at {place}")
            self._at = begin + place
            made.fields[one] = self.value(depth + 1)
        self._at = end
        return made

    def _footer(
        self, begin: int, end: int, flags: int, offset: int
    ) -> tuple[list[tuple[int, int]], bytes | None, int]:
        """Return number and place of each field, the raw data, and where both end.

        With a compact footer the numbers are 0.
        """
        places: list[tuple[int, int]] = []
        raw_at, footer = offset, end
        if flags & HAS_SCHEMA:
            footer = begin + offset
            behind = end - 4 if flags & HAS_RAW else end
            if not HEADER_BYTES <= offset <= behind - begin:
                raise bad_value(begin, f"a footer at {offset}")
            width = 1 if flags & ONE_BYTE else 2 if flags & TWO_BYTES else 4
            size = width if flags & COMPACT else width + 4
            if (behind - footer) % size:
                raise bad_value(begin, f"a footer of {behind - footer} bytes")
            self._charge(behind - footer)
            for at in range(footer, behind, size):
                number = 0 if flags & COMPACT else self._int_at(at)
                place = self._data[at + size - width : at + size]
                places.append((number, int.from_bytes(place, "little")))
            if flags & HAS_RAW:
                raw_at = self._int_at(behind)
        if not flags & HAS_RAW:
            return places, None, footer
        if not HEADER_BYTES <= raw_at <= footer - begin:
            raise bad_value(begin, f"raw data at {raw_at}")
        self._charge(footer - begin - raw_at)
        return places, self._data[begin + raw_at : footer], footer

    def _find_fields(
        self, begin: int, places: list[tuple[int, int]], flags: int, type_id: int, schema: int
    ) -> tuple[BinaryType | None, list[tuple[str, int]]]:
        """Return the type, and each field's name and place. Raises ValueBroken, TypeUnknown."""
        if flags & HAS_SCHEMA and flags & COMPACT:
            found, names = self._types.fields_of(type_id, schema)
            if len(names) != len(places):
                raise bad_value(begin, f"{len(places)} fields of a version with {len(names)}")
            return found, [(n, place) for n, (_, place) in zip(names, places, strict=True)]
        pairs = []
        known = self._types.find(type_id)
        for number, place in places:
            known, name = self._types.name_of_field(type_id, number)
            pairs.append((name, place))
        return known, pairs

    # -- bytes -------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self._bad(f"{count} bytes are wanted, and {len(self._data) - self._at} left")
        self._charge(count)
        found = self._data[self._at : end]
        self._at = end
        return found

    def _charge(self, count: int) -> None:
        """Count bytes that are read, against the limit."""
        if count > self._left:
            raise self._bad(f"its bytes are read more than {READ_TIMES_MAX} times")
        self._left -= count

    def _short(self) -> int:
        return int.from_bytes(self._take(2), "little")

    def _int(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def _int_at(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 4], "little", signed=True)

    def _long(self) -> int:
        return int.from_bytes(self._take(8), "little", signed=True)

    def _flag(self, begin: int) -> bool:
        found = self._take(1)[0]
        if found > 1:
            raise bad_value(begin, f"a boolean of {found}")
        return found == 1

    def _count(self, item_bytes: int) -> int:
        """Read a count of items that need at least this many bytes each."""
        begin = self._at
        count = self._int()
        if not 0 <= count <= (len(self._data) - self._at) // item_bytes:
            raise bad_value(begin, f"a count of {count}")
        return count

    def _text(self) -> str:
        begin = self._at
        data = self._take(self._count(1))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise bad_value(begin, "a string that is not UTF-8") from None

    def _bad(self, cause: str) -> Exception:
        return bad_value(self._at, cause)


_READERS: dict[int, Callable[[_Reader, int, int], Any]] = {
    7: _Reader.char,
    8: _Reader.boolean,
    9: _Reader.string,
    10: _Reader.uuid,
    11: _Reader.date,
    12: _Reader.bytes_,
    18: _Reader.chars,
    19: _Reader.booleans,
    23: _Reader.array,
    24: _Reader.collection,
    25: _Reader.map,
    27: _Reader.read_wrapped,
    28: _Reader.enum,
    29: _Reader.enums,
    30: _Reader.decimal,
    32: _Reader.class_,
    33: _Reader.timestamp,
    35: _Reader.proxy,
    36: _Reader.time,
    38: _Reader.enum,
    HANDLE: _Reader.handle,
    OBJ: _Reader.object,
    OPTIMIZED: _Reader.read_optimized,
}


def decode_kernel() -> Callable[[bytes, int, Types], Any]:
    """Return the compiled `decode`, or the twin if it is not built or PENSTOCK_PURE=1
    forbids it.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _decode
    return decode
