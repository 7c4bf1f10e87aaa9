# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over segments; `wal.py` is its readable twin and says what it does."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from penstock.codec.ignite.errors import broken, unsupported

include "_numbers.pxi"

cdef enum:
    HEADER_BYTES = 29
    RECORD_BYTES_MIN = 21
    SWITCH_KIND = 40
    DATA_KIND = 70
    CDC_DATA_KIND = 78
    KIND_MAX = 82
    CREATE = 1
    TRANSFORM = 4
    PRIMARY = 1
    NOT_TOLD = 6  # PRELOAD, FROM_STORE

cdef str ENDS = "an entry goes on behind the end of its record"

# -- checksums: CRC-32, sixteen bytes at a time ------------------------------------------------

cdef uint32_t POLYNOMIAL = <uint32_t>0xEDB88320
cdef uint32_t CRC[16][256]


cdef void _fill_crc() noexcept nogil:
    cdef uint32_t one
    cdef int at, bit, table
    for at in range(256):
        one = <uint32_t>at
        for bit in range(8):
            one = (one >> 1) ^ (POLYNOMIAL * (one & 1))
        CRC[0][at] = one
    for table in range(1, 16):
        for at in range(256):
            one = CRC[table - 1][at]
            CRC[table][at] = (one >> 8) ^ CRC[0][one & 255]


_fill_crc()


cdef uint32_t _crc(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t found = 0xFFFFFFFF
    cdef uint32_t a, b, c, d
    while size >= 16:
        memcpy(&a, data, 4)
        memcpy(&b, data + 4, 4)
        memcpy(&c, data + 8, 4)
        memcpy(&d, data + 12, 4)
        a ^= found
        found = (
            CRC[15][a & 255] ^ CRC[14][(a >> 8) & 255] ^ CRC[13][(a >> 16) & 255] ^ CRC[12][a >> 24]
            ^ CRC[11][b & 255] ^ CRC[10][(b >> 8) & 255] ^ CRC[9][(b >> 16) & 255] ^ CRC[8][b >> 24]
            ^ CRC[7][c & 255] ^ CRC[6][(c >> 8) & 255] ^ CRC[5][(c >> 16) & 255] ^ CRC[4][c >> 24]
            ^ CRC[3][d & 255] ^ CRC[2][(d >> 8) & 255] ^ CRC[1][(d >> 16) & 255] ^ CRC[0][d >> 24]
        )
        data += 16
        size -= 16
    while size:
        found = (found >> 8) ^ CRC[0][(found ^ data[0]) & 255]
        data += 1
        size -= 1
    return found


# -- records -----------------------------------------------------------------------------------

cdef struct Found:
    Py_ssize_t offset
    Py_ssize_t length
    Py_ssize_t end
    int kind  # -1: none

cdef uint8_t DATA_MASK[256]  # and encrypted ones
DATA_MASK[DATA_KIND] = 1
DATA_MASK[CDC_DATA_KIND] = 1
DATA_MASK[53] = DATA_MASK[64] = DATA_MASK[71] = 1


cdef int _find(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t at, int64_t number, const uint8_t *mask,
    str name, Found *found,
) except -1:
    cdef int kind
    cdef int32_t length
    found.kind = -1
    while at < size:
        if data[at] == 0 or data[at] == SWITCH_KIND + 1:
            break
        kind = data[at] - 1
        if kind > KIND_MAX:
            raise unsupported(name, at, f"an unknown record of type {kind}")
        if size - at < RECORD_BYTES_MIN:
            raise broken(name, at, "the file ends inside a record")
        if _long(data + at + 1) != number or _int(data + at + 9) != at:
            raise broken(
                name, at,
                f"a record of segment {_long(data + at + 1)}, offset {_int(data + at + 9)}",
            )
        length = _int(data + at + 13)
        if length < RECORD_BYTES_MIN:
            raise broken(name, at, f"a record of {length} bytes")
        if length > size - at:
            raise broken(name, at, "the file ends inside a record")
        if <uint32_t>_int(data + at + length - 4) != _crc(data + at, length - 4):
            raise broken(name, at, "the checksum of a record is wrong")
        if mask[kind]:
            found.offset = at
            found.length = length
            found.kind = kind
            found.end = at + length
            return 0
        at += length
    found.end = at
    return 0


def find_record(const uint8_t[::1] data, Py_ssize_t at, int64_t number, kinds, str name):
    """See wal.find_record()."""
    from penstock.codec.ignite.wal import Record

    cdef uint8_t mask[256]
    cdef Found found
    cdef int kind
    for kind in range(256):
        mask[kind] = 0
    for kind in kinds:
        mask[kind & 255] = 1
    if at >= data.shape[0]:
        return None, at
    _find(&data[0], data.shape[0], at, number, mask, name, &found)
    if found.kind < 0:
        return None, found.end
    return Record(found.offset, found.length, found.kind), found.end


# -- entries -----------------------------------------------------------------------------------

cdef struct CVersion:
    int has
    int32_t topology
    int32_t node
    int64_t order

_Version = None


cdef object _version(CVersion one):
    global _Version
    if not one.has:
        return None
    if _Version is None:
        from penstock.codec.ignite.wal import Version

        _Version = Version
    return _Version(one.topology, one.order, one.node & 0x07FFFFFF, (one.node >> 27) & 0x1F)


@cython.freelist(64)
cdef class Entry:
    """See wal.Entry."""

    cdef object _decode
    cdef bytes _key
    cdef bytes _value
    cdef int _key_kind
    cdef int _value_kind
    cdef CVersion _near
    cdef CVersion _write
    cdef CVersion _conflict
    cdef readonly int32_t cache_id
    cdef readonly int64_t counter
    cdef readonly int64_t expire_time_ms
    cdef readonly int flags
    cdef readonly int32_t index
    cdef readonly Py_ssize_t offset
    cdef readonly int operation
    cdef readonly int32_t partition
    cdef readonly int64_t time_ms

    @property
    def key(self):
        return self._decode(self._key, self._key_kind)

    @property
    def value(self):
        return None if self._value is None else self._decode(self._value, self._value_kind)

    @property
    def key_kind(self):
        return self._key_kind

    @property
    def value_kind(self):
        return 0 if self._value is None else self._value_kind

    @property
    def key_bytes(self):
        return self._key

    @property
    def value_bytes(self):
        return self._value

    @property
    def has_value(self):
        return self._value is not None

    @property
    def primary(self):
        return (self.flags & PRIMARY) != 0

    @property
    def near_version(self):
        return _version(self._near)

    @property
    def write_version(self):
        return _version(self._write)

    @property
    def conflict_version(self):
        return _version(self._conflict)


cdef extern from *:
    """
    /* kind.__new__(kind), without the call from Python. */
    #define PENSTOCK_NEW(kind, args) ((PyTypeObject *)(kind))->tp_new((PyTypeObject *)(kind), args, NULL)
    """
    object PENSTOCK_NEW(object kind, object args)

cdef tuple NOTHING = ()


cdef class Walk:
    """See wal.Walk."""

    cdef const uint8_t[::1] _view
    cdef const uint8_t *_data
    cdef Py_ssize_t _size
    cdef int64_t _number
    cdef str _name
    cdef object _decode
    cdef object _kind
    cdef object _tell
    cdef Py_ssize_t _at
    cdef Py_ssize_t _begin
    cdef Found _record
    cdef Py_ssize_t _cursor
    cdef Py_ssize_t _limit
    cdef int32_t _index
    cdef int32_t _left
    cdef readonly int64_t time_ms
    cdef readonly int64_t count
    cdef readonly int64_t unreadable

    def __init__(
        self, data, *, number, str name, Py_ssize_t begin, decode, kind=Entry, unreadable=None
    ):
        if not issubclass(kind, Entry):
            raise TypeError("kind is no Entry")
        self._view = data
        self._size = self._view.shape[0]
        self._data = &self._view[0] if self._size else NULL
        self._number = number
        self._name = name
        self._decode = decode
        self._kind = kind
        self._tell = unreadable
        self._at = max(begin, HEADER_BYTES)
        self._begin = self._at
        self._record.kind = -1
        self._left = 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef Entry made
        while self._load():
            made = self._read()
            if CREATE <= made.operation <= TRANSFORM and not made.flags & NOT_TOLD:
                return made
        raise StopIteration

    def skip(self, count):
        for passed in range(count):
            if not self._load():
                return passed
            self._read()
        return count

    @property
    def is_drained(self):
        return not self._load()

    @property
    def place(self):
        from penstock.codec.ignite.wal import Place

        if self._load():
            return Place(self._number, self._record.offset, self._index)
        if self._record.kind >= 0:
            return Place(self._number, self._record.offset + self._record.length, 0)
        return Place(self._number, self._at, 0) if self._at > self._begin else None

    cdef int _load(self) except -1:
        cdef Found found
        cdef Py_ssize_t begin
        while not self._left:
            if self._at >= self._size:
                return 0
            _find(
                self._data, self._size, self._at, self._number, DATA_MASK, self._name, &found
            )
            self._at = found.end
            if found.kind < 0:
                return 0
            if found.kind != DATA_KIND and found.kind != CDC_DATA_KIND:
                self.unreadable += 1
                if self._tell is not None:
                    self._show(&found)
                continue
            self._record = found
            begin = found.offset + RECORD_BYTES_MIN - 4
            self._limit = found.offset + found.length - 4
            if self._limit - begin < 12:
                raise self._broken(ENDS)
            self.time_ms = _long(self._data + begin + 4)
            if _int(self._data + begin) < 0:
                raise self._broken(f"a record of {_int(self._data + begin)} entries")
            self._left = _int(self._data + begin)
            self._cursor = begin + 12
            self._index = 0
            if not self._left:
                self._check_end()
        return 1

    cdef int _show(self, Found *found) except -1:
        from penstock.codec.ignite.wal import Record, encrypted

        self._tell(encrypted(self._view, Record(found.offset, found.length, found.kind)))
        return 0

    cdef Entry _read(self):
        cdef Entry made
        cdef int32_t length
        cdef CVersion ignored
        if self._kind is Entry:
            made = Entry.__new__(Entry)
        else:
            made = <Entry>PENSTOCK_NEW(self._kind, NOTHING)
        made._decode = self._decode
        made.offset = self._record.offset
        made.index = self._index
        made.time_ms = self.time_ms
        self._need(9)
        made.cache_id = _int(self._data + self._cursor)
        length = _int(self._data + self._cursor + 4)
        made._key_kind = <int8_t>self._data[self._cursor + 8]
        self._cursor += 9
        made._key = self._bytes(length)
        self._need(4)
        length = _int(self._data + self._cursor)
        self._cursor += 4
        if length == -1:
            made._value = None
        else:
            self._need(1)
            made._value_kind = <int8_t>self._data[self._cursor]
            self._cursor += 1
            made._value = self._bytes(length)
        self._need(1)
        made.operation = self._data[self._cursor]
        self._cursor += 1
        self._versions(&made._near, &ignored)
        self._versions(&made._write, &made._conflict)
        self._need(21)
        made.partition = _int(self._data + self._cursor)
        made.counter = _long(self._data + self._cursor + 4)
        made.expire_time_ms = _long(self._data + self._cursor + 12)
        made.flags = self._data[self._cursor + 20]
        self._cursor += 21
        self._index += 1
        self._left -= 1
        self.count += 1
        if not self._left:
            self._check_end()
        return made

    cdef bytes _bytes(self, int32_t length):
        if length < 0:
            raise self._broken(f"a key or value of {length} bytes")
        self._need(length)
        found = PyBytes_FromStringAndSize(<const char *>(self._data + self._cursor), length)
        self._cursor += length
        return found

    cdef int _versions(self, CVersion *first, CVersion *second) except -1:
        cdef int form
        self._need(1)
        form = self._data[self._cursor]
        self._cursor += 1
        first.has = 0
        second.has = 0
        if form > 2:
            raise self._broken(f"a version of form {form}")
        if form >= 1:
            self._one(first)
        if form == 2:
            self._one(second)
        return 0

    cdef int _one(self, CVersion *made) except -1:
        self._need(16)
        made.has = 1
        made.topology = _int(self._data + self._cursor)
        made.node = _int(self._data + self._cursor + 4)
        made.order = _long(self._data + self._cursor + 8)
        self._cursor += 16
        return 0

    cdef inline int _need(self, Py_ssize_t count) except -1:
        if self._limit - self._cursor < count:
            raise self._broken(ENDS)
        return 0

    cdef int _check_end(self) except -1:
        if self._cursor != self._limit:
            raise self._broken("a record has bytes behind its last entry")
        return 0

    cdef object _broken(self, str cause):
        return broken(self._name, self._record.offset, cause)
