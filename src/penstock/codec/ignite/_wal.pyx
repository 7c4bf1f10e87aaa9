# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over segments; `wal.py` is its readable twin and says what it does."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from penstock.codec.ignite.errors import make_broken, make_unsupported

include "_numbers.pxi"

cdef enum:
    HEADER_BYTES = 29
    RECORD_BYTES_MIN = 21
    SWITCH_KIND = 40
    DATA_KIND = 70
    CDC_DATA_KIND = 78
    KIND_MAX = 82
    TREE_KIND = 59
    VERSION_BYTES = 16
    CREATE = 1
    TRANSFORM = 4
    PRIMARY = 1
    NOT_TOLD = 6  # PRELOAD, FROM_STORE

cdef str ENDS = "an entry continues after the end of its record"

include "_wal_records.pxi"
include "_wal_entries.pxi"

# -- one entry after the other -------------------------------------------------------------------

_Version = None


cdef object _version(bint has, int32_t topology, int32_t node, int64_t order):
    global _Version
    if not has:
        return None
    if _Version is None:
        from penstock.codec.ignite.wal import Version

        _Version = Version
    return _Version(topology, order, node & 0x07FFFFFF, (node >> 27) & 0x1F)


@cython.freelist(64)
cdef class Entry:
    """See wal.Entry."""

    cdef object _decode
    cdef bytes _key
    cdef bytes _value
    cdef Change _is
    cdef object _conflict

    @property
    def cache_id(self):
        return self._is.cache_id

    @property
    def counter(self):
        return self._is.counter

    @property
    def expire_time_ms(self):
        return self._is.expire_time_ms

    @property
    def flags(self):
        return self._is.flags

    @property
    def index(self):
        return self._is.ordinal

    @property
    def offset(self):
        return self._is.offset

    @property
    def operation(self):
        return self._is.operation

    @property
    def partition(self):
        return self._is.partition

    @property
    def time_ms(self):
        return self._is.time_ms

    @property
    def key(self):
        return self._decode(self._key, self._is.key_kind)

    @property
    def value(self):
        return None if self._value is None else self._decode(self._value, self._is.value_kind)

    @property
    def key_kind(self):
        return self._is.key_kind

    @property
    def value_kind(self):
        return self._is.value_kind

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
        return (self._is.flags & PRIMARY) != 0

    @property
    def near_version(self):
        return _version(
            self._is.near, self._is.near_topology, self._is.near_node, self._is.near_order
        )

    @property
    def write_version(self):
        return _version(
            self._is.write, self._is.write_topology, self._is.write_node, self._is.write_order
        )

    @property
    def conflict_version(self):
        return self._conflict


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
    cdef Py_ssize_t _checked
    cdef Found _record
    cdef Py_ssize_t _cursor
    cdef Py_ssize_t _limit
    cdef int32_t _index
    cdef int32_t _left
    cdef readonly int64_t time_ms
    cdef readonly int64_t count
    cdef readonly int64_t unreadable

    def __init__(
        self, data, *, number, str name, Py_ssize_t begin, decode, kind=Entry, unreadable=None,
        checked=0
    ):
        if not issubclass(kind, Entry):
            raise TypeError("kind is not an Entry")
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
        self._checked = checked
        self._record.kind = -1
        self._left = 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef Entry made
        while self._load():
            made = self._read()
            if CREATE <= made._is.operation <= TRANSFORM and not made._is.flags & NOT_TOLD:
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
        cdef Fault fault
        while not self._left:
            if self._at >= self._size:
                return 0
            if _find(
                self._data, self._size, self._at, self._checked, self._number, DATA_MASK, &found,
                &fault,
            ):
                self._at = found.end
                raise _error(self._name, &fault)
            self._at = found.end
            if found.kind < 0:
                return 0
            if found.kind != DATA_KIND and found.kind != CDC_DATA_KIND:
                self.unreadable += 1
                if self._tell is not None:
                    self._show(&found)
                continue
            self._record = found
            self._index = 0
            if _enter(
                self._data, &found, &self._cursor, &self._limit, &self.time_ms, &self._left, &fault
            ):
                self._left = 0
                raise _error(self._name, &fault)
        return 1

    cdef int _show(self, Found *found) except -1:
        from penstock.codec.ignite.wal import Record, read_encrypted

        self._tell(read_encrypted(self._view, Record(found.offset, found.length, found.kind)))
        return 0

    cdef Entry _read(self):
        cdef Entry made
        cdef Fault fault
        cdef Py_ssize_t conflict
        cdef const uint8_t *second
        if self._kind is Entry:
            made = Entry.__new__(Entry)
        else:
            made = <Entry>PENSTOCK_NEW(self._kind, NOTHING)
        fault.at = self._record.offset
        if _parse(self._data, &self._cursor, self._limit, &made._is, &conflict, &fault):
            raise _error(self._name, &fault)
        made._decode = self._decode
        made._is.offset = <uint32_t>self._record.offset
        made._is.ordinal = self._index
        made._is.time_ms = self.time_ms
        made._key = PyBytes_FromStringAndSize(
            <const char *>(self._data + made._is.key_at), made._is.key_length
        )
        if made._is.value_length >= 0:
            made._value = PyBytes_FromStringAndSize(
                <const char *>(self._data + made._is.value_at), made._is.value_length
            )
        if conflict:
            second = self._data + conflict
            made._conflict = _version(True, _int(second), _int(second + 4), _long(second + 8))
        self._index += 1
        self._left -= 1
        self.count += 1
        if not self._left and self._cursor != self._limit:
            _fault(&fault, BYTES_LEFT, 0, 0)
            raise _error(self._name, &fault)
        return made
