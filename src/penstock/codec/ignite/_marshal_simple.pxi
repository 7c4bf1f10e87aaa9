# Where a value is read, values without others in them, and how Python's are made in place.
# Included by _marshal.pyx, which has the imports.

cdef extern from *:
    """
    #include "structmember.h"
    #define penstock_alloc(kind, count) PyType_GenericAlloc((PyTypeObject *)(kind), count)
    /* Where the objects of a class with __slots__ have one of them; -1: the slot is missing. */
    static Py_ssize_t penstock_slot(PyObject *member) {
        if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) return -1;
        return ((PyMemberDescrObject *)member)->d_member->offset;
    }
    #define penstock_fill(made, slot, value) (*(PyObject **)((char *)(made) + (slot)) = (value))
    static PyObject *penstock_number(const unsigned char *digits, Py_ssize_t count) {
    #if PY_VERSION_HEX >= 0x030D0000
        return PyLong_FromUnsignedNativeBytes(digits, count, Py_ASNATIVEBYTES_BIG_ENDIAN);
    #else
        return _PyLong_FromByteArray(digits, count, 0, 0);
    #endif
    }
    """
    object penstock_alloc(object kind, Py_ssize_t count)
    Py_ssize_t penstock_slot(object member)
    void penstock_fill(object made, Py_ssize_t slot, PyObject *value)
    object penstock_number(const uint8_t *digits, Py_ssize_t count)

cdef extern from "Python.h":
    object PyFloat_FromDouble(double value)
    object PyLong_FromLong(long value)
    object PyUnicode_FromOrdinal(int value)
    object PyUnicode_FromStringAndSize(const char *data, Py_ssize_t count)
    PyObject *PyUnicode_DecodeUTF8(const char *data, Py_ssize_t count, const char *errors)
    object PyObject_CallOneArg(object called, object given)
    int PyErr_ExceptionMatches(object kind)
    void PyErr_Clear()

cdef enum:
    DEPTH_MAX = 200
    READ_TIMES_MAX = 32
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
    DIGITS_MAX = 18  # of a number of 64 bits, all of them

cdef bytes SQL_DATE = bytes.fromhex("663aded5409766")
cdef dict KINDS = COLLECTIONS
cdef dict MAP_KINDS = MAPS
cdef object _decimal, _as_decimal = None
cdef object _unknown_uuid = UUID(int=0).is_safe


cdef Py_ssize_t _slot(kind, str name) except -1:
    cdef Py_ssize_t found = penstock_slot(kind.__dict__[name])
    if found < 0:
        raise SystemError(f"{kind.__name__}.{name} is not a slot")
    return found


cdef Py_ssize_t AT_NAMES = _slot(BinaryObject, "_names")
cdef Py_ssize_t AT_FIELDS = _slot(BinaryObject, "fields")
cdef Py_ssize_t AT_HASH = _slot(BinaryObject, "hash_code")
cdef Py_ssize_t AT_RAW = _slot(BinaryObject, "raw")
cdef Py_ssize_t AT_TYPE_ID = _slot(BinaryObject, "type_id")
cdef Py_ssize_t AT_TYPE_NAME = _slot(BinaryObject, "type_name")
cdef Py_ssize_t AT_LIST_KIND = _slot(JavaList, "kind")
cdef Py_ssize_t AT_MAP_KIND = _slot(JavaMap, "kind")
cdef Py_ssize_t AT_PAIRS = _slot(JavaMap, "pairs")
cdef Py_ssize_t AT_INT = _slot(UUID, "int")
cdef Py_ssize_t AT_IS_SAFE = _slot(UUID, "is_safe")


cdef inline void _fill(made, Py_ssize_t slot, value):
    """Put a value into a slot that is empty."""
    Py_INCREF(value)
    penstock_fill(made, slot, <PyObject *>value)


cdef inline void _place(made, Py_ssize_t at, value):
    """Put a value into a tuple."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, at, value)


# -- bytes -------------------------------------------------------------------------------------

cdef struct Cursor:
    const uint8_t *data
    Py_ssize_t size
    Py_ssize_t at
    int64_t left  # bytes that may be read, those read before counted again
    PyObject *owner  # the bytes, borrowed
    PyObject *top  # the container at 0; owned
    PyObject *seen  # a dict of those behind; owned


cdef int _refuse(Cursor *c, Py_ssize_t count) except -1:
    if count > c.size - c.at:
        raise bad_value(c.at, f"{count} bytes are wanted, and {c.size - c.at} left")
    raise bad_value(c.at, f"its bytes are read more than {READ_TIMES_MAX} times")


cdef inline const uint8_t *take(Cursor *c, Py_ssize_t count) except NULL:
    cdef const uint8_t *found = c.data + c.at
    if count > c.size - c.at or count > c.left:
        _refuse(c, count)
    c.at += count
    c.left -= count
    return found


cdef bytes taken(Cursor *c, Py_ssize_t count):
    return PyBytes_FromStringAndSize(<const char *>take(c, count), count)


cdef object flag(Cursor *c, Py_ssize_t begin):
    cdef int found = take(c, 1)[0]
    if found > 1:
        raise bad_value(begin, f"a boolean of {found}")
    return True if found else False


cdef inline Py_ssize_t read_count(Cursor *c, int item_bytes) except -1:
    cdef Py_ssize_t begin = c.at
    cdef int32_t count = _int(take(c, 4))
    if count < 0 or count > (c.size - c.at) // item_bytes:
        raise bad_value(begin, f"a count of {count}")
    return count


cdef object text(Cursor *c):
    cdef Py_ssize_t begin = c.at
    cdef Py_ssize_t count = read_count(c, 1)
    cdef PyObject *found = PyUnicode_DecodeUTF8(<const char *>take(c, count), count, NULL)
    if found == NULL:
        return _no_text(begin)
    made = <object>found
    Py_XDECREF(found)
    return made


cdef object _no_text(Py_ssize_t begin):
    if PyErr_ExceptionMatches(UnicodeDecodeError):
        PyErr_Clear()
        raise bad_value(begin, "a string that is not UTF-8")
    PyErr_Clear()
    raise MemoryError


# -- simple values -----------------------------------------------------------------------------

cdef object uuid(Cursor *c):
    cdef const uint8_t *data = take(c, 16)
    cdef uint8_t turned[16]
    cdef int at
    for at in range(8):
        turned[at] = data[7 - at]
        turned[8 + at] = data[15 - at]
    made = penstock_alloc(UUID, 0)
    _fill(made, AT_INT, penstock_number(turned, 16))
    _fill(made, AT_IS_SAFE, _unknown_uuid)
    return made


cdef object moment(kind, Cursor *c):
    cdef int64_t ms = _long(take(c, 8))
    made = penstock_alloc(kind, 1)
    _place(made, 0, ms)
    return made


cdef object timestamp(Cursor *c):
    cdef int64_t ms = _long(take(c, 8))
    cdef int32_t nanos = _int(take(c, 4))
    made = penstock_alloc(Timestamp, 2)
    _place(made, 0, ms)
    _place(made, 1, nanos)
    return made


cdef object decimal(Cursor *c, Py_ssize_t begin):
    global _decimal, _as_decimal
    cdef int32_t scale = _int(take(c, 4))
    cdef Py_ssize_t count = read_count(c, 1)
    cdef const uint8_t *data = take(c, count)
    cdef uint64_t unscaled = 0
    cdef Py_ssize_t at
    if not count:
        raise bad_value(begin, "a decimal without digits")
    if _as_decimal is None:
        from decimal import Decimal

        from penstock.codec.ignite.marshal import as_decimal

        _decimal, _as_decimal = Decimal, as_decimal
    if count <= 8:
        for at in range(count):
            unscaled = unscaled << 8 | (data[at] if at else data[0] & 0x7F)
        return PyObject_CallOneArg(_decimal, short_number(unscaled, data[0] & 0x80, scale))
    digits = bytearray(data[:count])
    digits[0] &= 0x7F
    number = int.from_bytes(digits, "big")
    return _as_decimal(-number if data[0] & 0x80 else number, scale)


cdef object short_number(uint64_t unscaled, bint is_negative, int64_t scale):
    """Return the number as Decimal reads it: digits and an exponent."""
    cdef char shown[40]
    cdef char *at = shown + 40
    cdef int64_t exponent = scale if scale >= 0 else -scale
    if scale:
        while True:
            at -= 1
            at[0] = <char>(48 + exponent % 10)
            exponent //= 10
            if not exponent:
                break
        if scale > 0:
            at -= 1
            at[0] = 45  # -
        at -= 1
        at[0] = 69  # E
    is_negative = is_negative and unscaled
    while True:
        at -= 1
        at[0] = <char>(48 + unscaled % 10)
        unscaled //= 10
        if not unscaled:
            break
    if is_negative:
        at -= 1
        at[0] = 45
    return PyUnicode_FromStringAndSize(at, shown + 40 - at)


cdef list numbers(Cursor *c, int code):
    cdef int size = 2 if code == 13 else 4 if code == 14 or code == 16 else 8
    cdef Py_ssize_t count = read_count(c, size)
    cdef const uint8_t *data = take(c, count * size)
    cdef Py_ssize_t at
    cdef int16_t small
    cdef float real
    cdef double precise
    cdef list made = PyList_New(count)
    for at in range(count):
        if code == 13:
            memcpy(&small, data, 2)
            one = PyLong_FromLong(small)
        elif code == 14:
            one = PyLong_FromLong(_int(data))
        elif code == 15:
            one = <object>_long(data)
        elif code == 16:
            memcpy(&real, data, 4)
            one = PyFloat_FromDouble(<double>real)
        else:
            memcpy(&precise, data, 8)
            one = PyFloat_FromDouble(precise)
        Py_INCREF(one)
        PyList_SET_ITEM(made, at, one)
        data += size
    return made


cdef list chars(Cursor *c):
    cdef Py_ssize_t count = read_count(c, 2)
    cdef const uint8_t *data = take(c, count * 2)
    cdef uint16_t one
    cdef Py_ssize_t at
    cdef list made = []
    for at in range(count):
        memcpy(&one, data + 2 * at, 2)
        made.append(PyUnicode_FromOrdinal(one))
    return made


cdef object read_optimized(Cursor *c, types):
    cdef bytes data = taken(c, read_count(c, 1))
    if len(data) == SQL_DATE_BYTES and data.startswith(SQL_DATE):
        return SqlDate(_long(<const uint8_t *>PyBytes_AS_STRING(data) + 7))
    if len(data) < 5 or data[0] not in (28, 101, 102):
        return Opaque("optimized", None, 0, data)
    type_id = _int(<const uint8_t *>PyBytes_AS_STRING(data) + 1)
    return Opaque("optimized", types.name_of(type_id), type_id, data)


cdef tuple class_id(Cursor *c):
    cdef int32_t type_id = _int(take(c, 4))
    cdef Py_ssize_t begin
    if type_id:
        return type_id, None
    begin = c.at
    if take(c, 1)[0] != 9:
        raise bad_value(begin, "a class name that is not a string")
    name = text(c)
    return id_of(name), name


# -- places of containers, for handles ---------------------------------------------------------

cdef int see(Cursor *c, Py_ssize_t begin, made) except -1:
    if not begin:
        Py_INCREF(made)
        Py_XDECREF(c.top)
        c.top = <PyObject *>made
        return 0
    if c.seen == NULL:
        places = {}
        Py_INCREF(places)
        c.seen = <PyObject *>places
    (<dict>c.seen)[begin] = made
    return 0
