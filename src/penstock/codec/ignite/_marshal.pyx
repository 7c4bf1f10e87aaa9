# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled reader of values; `marshal.py` is its readable twin and says what it does.

Python values are created as CPython creates its own: tuples and slots are filled in place. What an
object of one version of a type needs (names, a dict with them) is created once, as a Plan.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy, PyDict_GetItem, PyDict_SetItem
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcmp, memcpy

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
    SqlDate,
    Time,
    Timestamp,
)
from penstock.model import PenstockError

include "_numbers.pxi"
include "_marshal_simple.pxi"


# -- objects -----------------------------------------------------------------------------------

cdef class Plan:
    """Facts that all objects of one version of a type have in common."""

    cdef int32_t type_id
    cdef int32_t schema
    cdef Py_ssize_t count
    cdef tuple names
    cdef dict blank  # the names, each with None
    cdef bytes numbers  # of a footer with the fields' numbers; None: a compact one
    cdef object type_name
    cdef object number
    cdef object all_names
    cdef object found
    cdef tuple spec  # columns that places are for
    cdef list places  # of each field: the column, -1 for none

    def __init__(self, types, int32_t type_id, int32_t schema, found, names):
        self.type_id = type_id
        self.schema = schema
        self.names = tuple(names)
        self.count = len(self.names)
        self.blank = dict.fromkeys(self.names)
        self.type_name = found.type_name or types.name_of(type_id) or ""
        self.number = type_id
        self.all_names = found.fields
        self.found = found


cdef class Decoder:
    """See marshal.decoder()."""

    cdef object _types
    cdef list _change  # its one item is replaced when a type is to be looked up again
    cdef object _changed  # what it was when the plans were made
    cdef dict _plans
    cdef dict _enums
    cdef Plan _last  # met last: nearly always the next one's, too

    def __init__(self, types):
        self._types = types
        self._change = types.change
        self._changed = None

    def decode(self, bytes data, int kind):
        """See marshal.decode()."""
        cdef Cursor c
        if kind == 2:
            return data
        if kind != 1 and kind != 100 and kind != 101:
            raise bad_value(0, f"an object of kind {kind}")
        c.data = <const uint8_t *>PyBytes_AS_STRING(data)
        c.size = PyBytes_GET_SIZE(data)
        c.at = 0
        c.left = c.size * READ_TIMES_MAX
        c.owner = <PyObject *>data
        c.top = c.seen = NULL
        if c.size and c.data[0] == 0xFD:
            return Opaque("transformed", None, 0, data)
        try:
            return self.value(&c, 0)
        finally:
            Py_XDECREF(c.top)
            Py_XDECREF(c.seen)

    def cells(self, list data, tuple columns):
        """See cells.read_cells()."""
        try:
            return read_list(self, data, columns)
        except PenstockError:
            return None

    def cells_at(self, data, begins, lengths, tuple columns):
        """See cells.cell_reader()."""
        try:
            return read_cells(self, data, begins, lengths, columns)
        except PenstockError:
            return None

    cdef object value(self, Cursor *c, int depth):
        cdef Py_ssize_t begin = c.at
        cdef int code
        cdef int16_t small
        cdef uint16_t unsigned
        cdef float real
        cdef double precise
        if depth > DEPTH_MAX:
            raise bad_value(begin, f"more than {DEPTH_MAX} values within each other")
        code = take(c, 1)[0]
        if code == 3:
            return PyLong_FromLong(_int(take(c, 4)))
        elif code == 9:
            return text(c)
        elif code == NULL_CODE:
            return None
        elif code == 4:
            return _long(take(c, 8))
        elif code == 6:
            memcpy(&precise, take(c, 8), 8)
            return PyFloat_FromDouble(precise)
        elif code == 8:
            return flag(c, begin)
        elif code == OBJ_CODE:
            return self.object_(c, begin, depth)
        elif code == 33:
            return timestamp(c)
        elif code == 1:
            return PyLong_FromLong(<int8_t>take(c, 1)[0])
        elif code == 2:
            memcpy(&small, take(c, 2), 2)
            return PyLong_FromLong(small)
        elif code == 5:
            memcpy(&real, take(c, 4), 4)
            return PyFloat_FromDouble(<double>real)
        elif code == 7:
            memcpy(&unsigned, take(c, 2), 2)
            return PyUnicode_FromOrdinal(unsigned)
        elif code == 10:
            return uuid(c)
        elif code == 11:
            return moment(Date, c)
        elif code == 36:
            return moment(Time, c)
        elif code == 12:
            return taken(c, read_count(c, 1))
        elif 13 <= code <= 17:
            return numbers(c, code)
        elif code == 18:
            return chars(c)
        elif code == 19:
            return [flag(c, begin) for _ in range(read_count(c, 1))]
        elif code == 30:
            return decimal(c, begin)
        elif code == 24:
            return self.collection(c, begin, depth)
        elif code == 25:
            return self.map(c, begin, depth)
        elif code == 28 or code == 38:
            return self.enum(c)
        return self.other(c, code, begin, depth)

    cdef object other(self, Cursor *c, int code, Py_ssize_t begin, int depth):
        if code == 20:
            return self.objects(c, 9, depth)
        elif code == 21:
            return self.objects(c, 10, depth)
        elif code == 22:
            return self.objects(c, 11, depth)
        elif code == 31:
            return self.objects(c, 30, depth)
        elif code == 34:
            return self.objects(c, 33, depth)
        elif code == 37:
            return self.objects(c, 36, depth)
        elif code == 23:
            return self.array(c, begin, depth)
        elif code == 27:
            return self.read_wrapped(c, begin, depth)
        elif code == 29:
            return self.enums(c, begin)
        elif code == 32:
            type_id, name = class_id(c)
            return Class(name or self._types.name_of(type_id), type_id)
        elif code == 35:
            for _ in range(read_count(c, 4)):
                class_id(c)
            self.value(c, depth + 1)
            return Opaque("proxy", None, 0, (<bytes>c.owner)[begin:c.at])
        elif code == HANDLE_CODE:
            return self.handle(c, begin, depth)
        elif code == 0xFE:
            return read_optimized(c, self._types)
        raise bad_value(begin, f"a value of type {code}")

    # -- containers --------------------------------------------------------------------------

    cdef list array(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count, at
        cdef list made = []
        class_id(c)
        count = read_count(c, 1)
        see(c, begin, made)
        for at in range(count):
            PyList_Append(made, self.value(c, depth + 1))
        return made

    cdef list enums(self, Cursor *c, Py_ssize_t begin):
        cdef Py_ssize_t at
        cdef int code
        cdef list made = []
        class_id(c)
        for at in range(read_count(c, 1)):
            code = take(c, 1)[0]
            if code != NULL_CODE and code != 28 and code != 38:
                raise bad_value(begin, f"an enum array with a value of type {code}")
            made.append(None if code == NULL_CODE else self.enum(c))
        return made

    cdef object collection(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count = read_count(c, 1)
        cdef Py_ssize_t at
        cdef int kind = <int8_t>take(c, 1)[0]
        if kind not in KINDS:
            raise bad_value(begin, f"a collection of kind {kind}")
        made = penstock_alloc(JavaList, 0)
        _fill(made, AT_LIST_KIND, KINDS[kind])
        see(c, begin, made)
        for at in range(count):
            PyList_Append(made, self.value(c, depth + 1))
        return made

    cdef object map(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef Py_ssize_t count = read_count(c, 2)
        cdef Py_ssize_t at
        cdef int kind = take(c, 1)[0]
        cdef list pairs = []
        if kind not in MAP_KINDS:
            raise bad_value(begin, f"a map of kind {kind}")
        made = penstock_alloc(JavaMap, 0)
        _fill(made, AT_MAP_KIND, MAP_KINDS[kind])
        _fill(made, AT_PAIRS, pairs)
        see(c, begin, made)
        for at in range(count):
            key = self.value(c, depth + 1)
            PyList_Append(pairs, (key, self.value(c, depth + 1)))
        return made

    cdef list objects(self, Cursor *c, int code, int depth):
        cdef Py_ssize_t begin, at
        cdef int actual
        cdef list made = []
        for at in range(read_count(c, 1)):
            begin = c.at
            actual = take(c, 1)[0]
            if actual != NULL_CODE and actual != code:
                raise bad_value(begin, f"an array with a value of type {actual}")
            c.at = begin
            made.append(self.value(c, depth + 1))
        return made

    # -- types -------------------------------------------------------------------------------

    cdef int renew(self) except -1:
        """Forget known types if they were told to look one up again."""
        cdef object now = <object>PyList_GET_ITEM(self._change, 0)
        if now is not self._changed:
            self._plans, self._enums, self._last = {}, {}, None
            self._changed = now
        return 0

    cdef object enum(self, Cursor *c):
        cdef PyObject *found
        type_id, name = class_id(c)
        cdef int32_t ordinal = _int(take(c, 4))
        self.renew()
        key = (type_id, ordinal, name)
        found = PyDict_GetItem(self._enums, key)
        if found != NULL:
            return <object>found
        known = self._types.find(type_id)
        shown = name or (self._types.name_of(type_id) or "")
        constant = known.constants.get(ordinal) if known else None
        made = Enum(shown, type_id, ordinal, constant)
        if constant is not None:
            self._enums[key] = made
        return made

    cdef Plan plan(self, int32_t type_id, int32_t schema):
        """Return the plan of objects with a compact footer. Raises TypeUnknown."""
        cdef PyObject *known
        self.renew()
        if self._last is not None and self._last.type_id == type_id:
            if self._last.schema == schema and self._last.numbers is None:
                return self._last
        key = (type_id, schema)
        known = PyDict_GetItem(self._plans, key)
        if known != NULL:
            self._last = <Plan>known
            return self._last
        found, names = self._types.fields_of(type_id, schema)
        self.renew()
        self._last = Plan(self._types, type_id, schema, found, names)
        self._plans[key] = self._last
        return self._last

    cdef Plan numbered_plan(
        self, Cursor *c, int32_t type_id, int32_t schema, Py_ssize_t footer, Py_ssize_t count,
        Py_ssize_t size,
    ):
        """Return the plan of objects whose footer has the fields' numbers. Raises TypeUnknown."""
        cdef PyObject *known
        cdef Py_ssize_t at
        cdef bytes numbers
        cdef Plan made
        self.renew()
        numbers = b"".join(
            [(<bytes>c.owner)[footer + at * size:footer + at * size + 4] for at in range(count)]
        )
        key = (type_id, numbers)
        known = PyDict_GetItem(self._plans, key)
        if known != NULL:
            return <Plan>known
        named = []
        found = None
        for at in range(count):
            found, one = self._types.name_of_field(type_id, _int(c.data + footer + at * size))
            named.append(one)
        self.renew()
        made = Plan(self._types, type_id, schema, found, named)
        made.numbers = numbers
        self._plans[key] = made
        return made

    # -- objects -----------------------------------------------------------------------------

    cdef object handle(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef int32_t distance = _int(take(c, 4))
        cdef Py_ssize_t place = begin - distance
        cdef Py_ssize_t after
        if place < 0 or place >= begin:
            raise bad_value(begin, f"a handle {distance} bytes back")
        if not place and c.top != NULL:
            return <object>c.top
        if c.seen != NULL and place in <dict>c.seen:
            return (<dict>c.seen)[place]
        after = c.at
        c.at = place
        found = self.value(c, depth + 1)
        c.at = after
        see(c, place, found)
        return found

    cdef object read_wrapped(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef Py_ssize_t length = read_count(c, 1)
        cdef const uint8_t *data = take(c, length)
        cdef int32_t start = _int(take(c, 4))
        cdef Cursor inner
        if start < 0 or start >= length:
            raise bad_value(begin, f"a binary object that begins at {start} of {length} bytes")
        owner = PyBytes_FromStringAndSize(<const char *>data, length)
        inner.data = data
        inner.size = length
        inner.at = start
        inner.left = c.left
        inner.owner = <PyObject *>owner
        inner.top = inner.seen = NULL
        try:
            made = self.value(&inner, depth + 1)
        finally:
            Py_XDECREF(inner.top)
            Py_XDECREF(inner.seen)
        c.left = inner.left
        return made

    cdef object object_(self, Cursor *c, Py_ssize_t begin, int depth):
        cdef const uint8_t *data = take(c, OBJECT_BYTES - 1)
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
        cdef Plan plan
        cdef dict fields
        if data[0] != 1:
            raise bad_value(begin, f"a binary object of version {data[0]}")
        if length < OBJECT_BYTES or end > c.size:
            raise bad_value(begin, f"a binary object of {length} bytes")
        name = None
        if not type_id:
            begin_name = c.at
            if take(c, 1)[0] != 9:
                raise bad_value(begin_name, "a class name that is not a string")
            name = text(c)
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
            charge(c, behind - footer)
            if flags & HAS_RAW:
                raw_at = _int(c.data + behind)
        raw = None
        if flags & HAS_RAW:
            if raw_at < OBJECT_BYTES or raw_at > footer - begin:
                raise bad_value(begin, f"raw data at {raw_at}")
            charge(c, footer - begin - raw_at)
            raw = (<bytes>c.owner)[begin + raw_at:footer]
        made = penstock_alloc(BinaryObject, 0)
        if flags & HAS_SCHEMA and flags & COMPACT:
            plan = self.plan(type_id, schema)
            if plan.count != count:
                raise bad_value(begin, f"{count} fields of a version with {plan.count}")
        elif count:
            plan = self.numbered_plan(c, type_id, schema, footer, count, size)
        else:
            plan = None
        if plan is not None:
            fields = PyDict_Copy(plan.blank)
            _fill(made, AT_TYPE_NAME, plan.type_name)
            _fill(made, AT_TYPE_ID, plan.number)
            _fill(made, AT_NAMES, plan.all_names)
        else:
            fields = {}
            self.bare(made, type_id, name)
        _fill(made, AT_HASH, PyLong_FromLong(hash_code))
        _fill(made, AT_FIELDS, fields)
        _fill(made, AT_RAW, raw)
        see(c, begin, made)
        for at in range(count):
            place = 0
            data = c.data + footer + at * size + size - width
            if width == 1:
                place = data[0]
            else:
                memcpy(&place, data, width)
            if place < OBJECT_BYTES or <int64_t>place >= footer - begin:
                raise bad_value(begin, f"a field at {place}")
            c.at = begin + <Py_ssize_t>place
            PyDict_SetItem(
                fields, <object>PyTuple_GET_ITEM(plan.names, at), self.value(c, depth + 1)
            )
        c.at = end
        return made

    cdef int bare(self, made, int32_t type_id, name) except -1:
        """Fill an object without fields with the facts of its type."""
        found = self._types.find(type_id)
        if found is not None:
            name = found.type_name
        _fill(made, AT_TYPE_NAME, name or self._types.name_of(type_id) or "")
        _fill(made, AT_TYPE_ID, type_id)
        _fill(made, AT_NAMES, found.fields if found is not None else {})
        return 0


cdef inline int charge(Cursor *c, Py_ssize_t count) except -1:
    """Count bytes that are read in another place."""
    if count > c.left:
        raise bad_value(c.at, f"its bytes are read more than {READ_TIMES_MAX} times")
    c.left -= count
    return 0


cdef Decoder _decoder = None  # of the types that decode() was given last


def decode(data, int kind, types):
    """See marshal.decode()."""
    global _decoder
    cdef Decoder decoder = _decoder
    if decoder is None or decoder._types is not types:
        _decoder = decoder = Decoder(types)
    return decoder.decode(data, kind)


include "_marshal_cells.pxi"
