# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled reader of values; `marshal.py` is its readable twin and says what it does."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from penstock.codec.ignite.errors import bad_value
from penstock.codec.ignite.types import id_of
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
    Time,
    Timestamp,
)

include "_numbers.pxi"

cdef enum:
    DEPTH_MAX = 200
    NULL_CODE = 101
    HANDLE_CODE = 102
    OBJ_CODE = 103
    OBJECT_BYTES = 24
    HAS_SCHEMA = 2
    HAS_RAW = 4
    ONE_BYTE = 8
    TWO_BYTES = 16
    COMPACT = 32
    SQL_DATE_BYTES = 15

cdef bytes SQL_DATE = bytes.fromhex("663aded5409766")
cdef dict KINDS = COLLECTIONS
cdef dict MAP_KINDS = MAPS
cdef object _tuple_new = tuple.__new__
cdef object _as_decimal = None


def decode(data, int kind, types):
    """See marshal.decode()."""
    cdef Reader reader
    if kind == 2:
        return data
    if kind != 1 and kind != 100 and kind != 101:
        raise bad_value(0, f"an object of kind {kind}")
    reader = Reader.__new__(Reader)
    reader.begin(data, types)
    if reader._size and reader._data[0] == 0xFD:
        return Opaque("transformed", None, 0, data)
    return reader.value(0)


# The version of a type that was met last: nearly always the next one's, too.
cdef object _last_shapes = None
cdef int32_t _last_type_id = 0
cdef int32_t _last_schema = 0
cdef tuple _last_shape = None


cdef tuple _shape(types, int32_t type_id, int32_t schema):
    global _last_shapes, _last_type_id, _last_schema, _last_shape
    cdef object shapes = types.shapes
    if shapes is not _last_shapes or type_id != _last_type_id or schema != _last_schema:
        shape = types.fields_of(type_id, schema)
        _last_shapes, _last_shape = types.shapes, shape
        _last_type_id, _last_schema = type_id, schema
    return _last_shape


@cython.freelist(8)
cdef class Reader:
    cdef object _top  # the container at 0
    cdef bytes _owner
    cdef const uint8_t *_data
    cdef Py_ssize_t _size
    cdef Py_ssize_t _at
    cdef object _types
    cdef dict _seen

    cdef int begin(self, bytes data, types) except -1:
        self._owner = data
        self._data = <const uint8_t *>PyBytes_AS_STRING(data)
        self._size = PyBytes_GET_SIZE(data)
        self._at = 0
        self._types = types
        self._seen = None
        self._top = None
        return 0

    cdef object value(self, int depth):
        cdef Py_ssize_t begin = self._at
        cdef const uint8_t *data
        cdef int code
        cdef int16_t small
        cdef uint16_t unsigned
        cdef float real
        cdef double precise
        if depth > DEPTH_MAX:
            raise bad_value(begin, f"more than {DEPTH_MAX} values within each other")
        code = self.take(1)[0]
        if code == 3:
            return _int(self.take(4))
        if code == 9:
            return self.text()
        if code == NULL_CODE:
            return None
        if code == 4:
            return _long(self.take(8))
        if code == 6:
            memcpy(&precise, self.take(8), 8)
            return precise
        if code == 8:
            return self.flag(begin)
        if code == OBJ_CODE:
            return self.object_(begin, depth)
        if code == 33:
            data = self.take(8)
            return _tuple_new(Timestamp, (_long(data), _int(self.take(4))))
        if code == 1:
            return <int8_t>self.take(1)[0]
        if code == 2:
            memcpy(&small, self.take(2), 2)
            return small
        if code == 5:
            memcpy(&real, self.take(4), 4)
            return <double>real
        if code == 7:
            memcpy(&unsigned, self.take(2), 2)
            return chr(unsigned)
        if code == 10:
            return self.uuid()
        if code == 11:
            return _tuple_new(Date, (_long(self.take(8)),))
        if code == 36:
            return _tuple_new(Time, (_long(self.take(8)),))
        return self.other(code, begin, depth)

    cdef object other(self, int code, Py_ssize_t begin, int depth):
        if code == 12:
            return self.taken(self.count(1))
        if 13 <= code <= 17:
            return self.numbers(code)
        if code == 18:
            return self.chars()
        if code == 19:
            return [self.flag(begin) for _ in range(self.count(1))]
        if code == 20:
            return self.objects(9, depth)
        if code == 21:
            return self.objects(10, depth)
        if code == 22:
            return self.objects(11, depth)
        if code == 31:
            return self.objects(30, depth)
        if code == 34:
            return self.objects(33, depth)
        if code == 37:
            return self.objects(36, depth)
        if code == 30:
            return self.decimal(begin)
        if code == 23:
            return self.array(begin, depth)
        if code == 24:
            return self.collection(begin, depth)
        if code == 25:
            return self.map(begin, depth)
        if code == 27:
            return self.wrapped(begin, depth)
        if code == 28 or code == 38:
            return self.enum()
        if code == 29:
            return self.enums(begin)
        if code == 32:
            type_id, name = self.class_id()
            return Class(name or self._types.name_of(type_id), type_id)
        if code == 35:
            for _ in range(self.count(4)):
                self.class_id()
            self.value(depth + 1)
            return Opaque("proxy", None, 0, self._owner[begin:self._at])
        if code == HANDLE_CODE:
            return self.handle(begin, depth)
        if code == 0xFE:
            return self.optimized()
        raise bad_value(begin, f"a value of type {code}")

    # -- simple ones -------------------------------------------------------------------------

    cdef object uuid(self):
        cdef const uint8_t *data = self.take(16)
        return UUID(int=(<object><uint64_t>_long(data) << 64) | <uint64_t>_long(data + 8))

    cdef object decimal(self, Py_ssize_t begin):
        global _as_decimal
        cdef int32_t scale = _int(self.take(4))
        cdef Py_ssize_t count = self.count(1)
        digits = bytearray(self.taken(count))
        if not digits:
            raise bad_value(begin, "a decimal without digits")
        if _as_decimal is None:
            from penstock.codec.ignite.marshal import as_decimal

            _as_decimal = as_decimal
        is_negative = digits[0] & 0x80
        digits[0] &= 0x7F
        unscaled = int.from_bytes(digits, "big")
        return _as_decimal(-unscaled if is_negative else unscaled, scale)

    cdef list numbers(self, int code):
        cdef int size = 2 if code == 13 else 4 if code == 14 or code == 16 else 8
        cdef Py_ssize_t count = self.count(size)
        cdef const uint8_t *data = self.take(count * size)
        cdef Py_ssize_t at
        cdef int16_t small
        cdef float real
        cdef double precise
        cdef list made = []
        for at in range(count):
            if code == 13:
                memcpy(&small, data, 2)
                made.append(small)
            elif code == 14:
                made.append(_int(data))
            elif code == 15:
                made.append(_long(data))
            elif code == 16:
                memcpy(&real, data, 4)
                made.append(<double>real)
            else:
                memcpy(&precise, data, 8)
                made.append(precise)
            data += size
        return made

    cdef list chars(self):
        cdef Py_ssize_t count = self.count(2)
        cdef const uint8_t *data = self.take(count * 2)
        cdef uint16_t one
        cdef Py_ssize_t at
        cdef list made = []
        for at in range(count):
            memcpy(&one, data + 2 * at, 2)
            made.append(chr(one))
        return made

    # -- containers --------------------------------------------------------------------------

    cdef int see(self, Py_ssize_t begin, made) except -1:
        if not begin:
            self._top = made
            return 0
        if self._seen is None:
            self._seen = {}
        self._seen[begin] = made
        return 0

    cdef list array(self, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count, at
        cdef list made = []
        self.class_id()
        count = self.count(1)
        self.see(begin, made)
        for at in range(count):
            made.append(self.value(depth + 1))
        return made

    cdef list enums(self, Py_ssize_t begin):
        cdef Py_ssize_t at
        cdef int code
        cdef list made = []
        self.class_id()
        for at in range(self.count(1)):
            code = self.take(1)[0]
            if code != NULL_CODE and code != 28 and code != 38:
                raise bad_value(begin, f"an enum array with a value of type {code}")
            made.append(None if code == NULL_CODE else self.enum())
        return made

    cdef object collection(self, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count = self.count(1)
        cdef Py_ssize_t at
        cdef int kind = <int8_t>self.take(1)[0]
        if kind not in KINDS:
            raise bad_value(begin, f"a collection of kind {kind}")
        made = JavaList()
        made.kind = KINDS[kind]
        self.see(begin, made)
        for at in range(count):
            (<list>made).append(self.value(depth + 1))
        return made

    cdef object map(self, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count = self.count(2)
        cdef Py_ssize_t at
        cdef int kind = self.take(1)[0]
        cdef list pairs = []
        if kind not in MAP_KINDS:
            raise bad_value(begin, f"a map of kind {kind}")
        made = JavaMap(MAP_KINDS[kind], pairs)
        self.see(begin, made)
        for at in range(count):
            key = self.value(depth + 1)
            pairs.append((key, self.value(depth + 1)))
        return made

    cdef list objects(self, int code, int depth):
        cdef Py_ssize_t begin, at
        cdef int actual
        cdef list made = []
        for at in range(self.count(1)):
            begin = self._at
            actual = self.take(1)[0]
            if actual != NULL_CODE and actual != code:
                raise bad_value(begin, f"an array with a value of type {actual}")
            self._at = begin
            made.append(self.value(depth + 1))
        return made

    # -- types -------------------------------------------------------------------------------

    cdef object enum(self):
        type_id, name = self.class_id()
        ordinal = _int(self.take(4))
        known = self._types.find(type_id)
        shown = name or (self._types.name_of(type_id) or "")
        return Enum(shown, type_id, ordinal, known.constants.get(ordinal) if known else None)

    cdef object optimized(self):
        cdef bytes data = self.taken(self.count(1))
        if len(data) == SQL_DATE_BYTES and data.startswith(SQL_DATE):
            return Date(_long(<const uint8_t *>PyBytes_AS_STRING(data) + 7))
        return Opaque("optimized", None, 0, data)

    cdef tuple class_id(self):
        cdef int32_t type_id = _int(self.take(4))
        cdef Py_ssize_t begin
        if type_id:
            return type_id, None
        begin = self._at
        if self.take(1)[0] != 9:
            raise bad_value(begin, "a class name that is no string")
        name = self.text()
        return id_of(name), name

    # -- objects -----------------------------------------------------------------------------

    cdef object handle(self, Py_ssize_t begin, int depth):
        cdef int32_t distance = _int(self.take(4))
        cdef Py_ssize_t place = begin - distance
        cdef Py_ssize_t after
        if place < 0 or place >= begin:
            raise bad_value(begin, f"a handle {distance} bytes back")
        if not place and self._top is not None:
            return self._top
        if self._seen is not None and place in self._seen:
            return self._seen[place]
        after = self._at
        self._at = place
        found = self.value(depth + 1)
        self._at = after
        return found

    cdef object wrapped(self, Py_ssize_t begin, int depth):
        cdef Py_ssize_t length = self.count(1)
        cdef bytes inner = self.taken(length)
        cdef int32_t start = _int(self.take(4))
        cdef Reader reader
        if start < 0 or start >= length:
            raise bad_value(begin, f"a binary object that begins at {start} of {length} bytes")
        reader = Reader.__new__(Reader)
        reader.begin(inner, self._types)
        reader._at = start
        return reader.value(depth + 1)

    cdef object object_(self, Py_ssize_t begin, int depth):
        cdef const uint8_t *data = self.take(OBJECT_BYTES - 1)
        cdef int flags = data[1] | data[2] << 8
        cdef int32_t type_id = _int(data + 3)
        cdef int32_t hash_code = _int(data + 7)
        cdef int32_t length = _int(data + 11)
        cdef int32_t schema = _int(data + 15)
        cdef Py_ssize_t offset = _int(data + 19)
        cdef Py_ssize_t end = begin + length
        cdef Py_ssize_t begin_name, behind, footer = end, raw_at = offset, size = 1, count = 0, at
        cdef int width = 1
        cdef uint64_t place
        cdef tuple names = None
        cdef dict fields = {}
        if data[0] != 1:
            raise bad_value(begin, f"a binary object of version {data[0]}")
        if length < OBJECT_BYTES or end > self._size:
            raise bad_value(begin, f"a binary object of {length} bytes")
        name = None
        if not type_id:
            begin_name = self._at
            if self.take(1)[0] != 9:
                raise bad_value(begin_name, "a class name that is no string")
            name = self.text()
            type_id = id_of(name)
        if flags & HAS_SCHEMA:
            footer = begin + offset
            behind = end - 4 if flags & HAS_RAW else end
            if offset < OBJECT_BYTES or offset > behind - begin:
                raise bad_value(begin, f"a footer at {offset}")
            width = 1 if flags & ONE_BYTE else 2 if flags & TWO_BYTES else 4
            size = width if flags & COMPACT else width + 4
            if (behind - footer) % size:
                raise bad_value(begin, f"a footer of {behind - footer} bytes")
            count = (behind - footer) // size
            if flags & HAS_RAW:
                raw_at = _int(self._data + behind)
        raw = None
        if flags & HAS_RAW:
            if raw_at < OBJECT_BYTES or raw_at > footer - begin:
                raise bad_value(begin, f"raw data at {raw_at}")
            raw = self._owner[begin + raw_at:footer]
        if flags & HAS_SCHEMA and flags & COMPACT:
            found, names = _shape(self._types, type_id, schema)
            if len(names) != count:
                raise bad_value(begin, f"{count} fields of a version with {len(names)}")
        else:
            found = self._types.find(type_id)
            named = []
            for at in range(count):
                found, one = self._types.name_of_field(type_id, _int(self._data + footer + at * size))
                named.append(one)
            names = tuple(named)
        if found is not None:
            name = found.type_name
        made = BinaryObject.__new__(BinaryObject)
        made.type_name = name or self._types.name_of(type_id) or ""
        made.type_id = type_id
        made.hash_code = hash_code
        made.fields = fields
        made._names = found.fields if found is not None else {}
        made.raw = raw
        self.see(begin, made)
        for at in range(count):
            place = 0
            memcpy(&place, self._data + footer + at * size + size - width, width)
            if place < OBJECT_BYTES or <int64_t>place >= footer - begin:
                raise bad_value(begin, f"a field at {place}")
            self._at = begin + <Py_ssize_t>place
            fields[names[at]] = self.value(depth + 1)
        self._at = end
        return made

    # -- bytes -------------------------------------------------------------------------------

    cdef const uint8_t *take(self, Py_ssize_t count) except NULL:
        cdef const uint8_t *found = self._data + self._at
        if count > self._size - self._at:
            raise bad_value(
                self._at, f"{count} bytes are wanted, and {self._size - self._at} left"
            )
        self._at += count
        return found

    cdef bytes taken(self, Py_ssize_t count):
        return PyBytes_FromStringAndSize(<const char *>self.take(count), count)

    cdef object flag(self, Py_ssize_t begin):
        cdef int found = self.take(1)[0]
        if found > 1:
            raise bad_value(begin, f"a boolean of {found}")
        return found == 1

    cdef Py_ssize_t count(self, int item_bytes) except -1:
        cdef Py_ssize_t begin = self._at
        cdef int32_t count = _int(self.take(4))
        if count < 0 or count > (self._size - self._at) // item_bytes:
            raise bad_value(begin, f"a count of {count}")
        return count

    cdef object text(self):
        cdef Py_ssize_t begin = self._at
        cdef Py_ssize_t count = self.count(1)
        cdef const char *data = <const char *>self.take(count)
        try:
            return data[:count].decode("utf-8")
        except UnicodeDecodeError:
            raise bad_value(begin, "a string that is not UTF-8") from None
