# Fields of many values into Arrow columns, without Python's objects between.
# Included by _marshal.pyx, which has the imports; `cells.py` is the readable twin.

cdef enum:
    OTHER = 0
    BOOL = 1
    INT8 = 2  # in two bytes
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    STRING = 8
    NUMBER_TEXT = 9
    DECIMAL = 10
    UUID_BYTES = 11
    BINARY = 12
    MOMENT = 13
    DATE = 14
    TIME = 15
    TEXT_BYTES_MAX = 0x7FFFFFFF
    SCALE_MAX = 30

_FORMS = {
    "other": (OTHER, 0), "bool": (BOOL, 0), "int8": (INT8, 2), "int16": (INT16, 2),
    "int32": (INT32, 4), "int64": (INT64, 8), "float32": (FLOAT32, 4), "float64": (FLOAT64, 8),
    "string": (STRING, 0), "number": (NUMBER_TEXT, 0), "decimal": (DECIMAL, 16),
    "uuid": (UUID_BYTES, 16), "binary": (BINARY, 0), "moment": (MOMENT, 8), "date": (DATE, 8),
    "time": (TIME, 8),
}
cdef int64_t MS_MAX = 9223372036854775807 // 1000
cdef uint64_t POWERS[20]


cdef int _fill_powers() except -1:
    cdef int at
    POWERS[0] = 1
    for at in range(1, 20):
        POWERS[at] = POWERS[at - 1] * 10
    return 0


_fill_powers()


cdef class Cells:
    """Column whose buffers are filled row by row. Rows that are not put are NULL."""

    cdef int form
    cdef int width
    cdef int precision
    cdef int scale
    cdef bint is_refused  # a value has another form: the column is read into Python's values
    cdef Py_ssize_t rows
    cdef Py_ssize_t nulls
    cdef Py_ssize_t reached  # offsets that are written
    cdef Py_ssize_t length  # of texts
    cdef bytearray valid_bytes
    cdef bytearray data_bytes
    cdef bytearray offset_bytes
    cdef uint8_t *valid
    cdef uint8_t *data
    cdef int32_t *offsets
    cdef list values

    def __init__(self, str form, int precision, int scale, Py_ssize_t rows):
        self.form, self.width = _FORMS[form]
        self.precision, self.scale = precision, scale
        self.rows = self.nulls = rows
        if self.form == OTHER:
            self.refuse()
            return
        self.valid_bytes = bytearray((rows + 7) // 8)
        self.valid = <uint8_t *>PyByteArray_AS_STRING(self.valid_bytes)
        if self.form == STRING or self.form == NUMBER_TEXT or self.form == BINARY:
            self.offset_bytes = bytearray(4 * (rows + 1))
            self.offsets = <int32_t *>PyByteArray_AS_STRING(self.offset_bytes)
            self.data_bytes = bytearray(16 * rows + 64)
        elif self.form == BOOL:
            self.data_bytes = bytearray((rows + 7) // 8)
        else:
            self.data_bytes = bytearray(self.width * rows)
        self.data = <uint8_t *>PyByteArray_AS_STRING(self.data_bytes)

    cdef int refuse(self) except -1:
        self.is_refused = True
        self.values = [None] * self.rows
        return 0

    cdef inline void set_valid(self, Py_ssize_t row) noexcept:
        self.valid[row >> 3] |= <uint8_t>(1 << (row & 7))
        self.nulls -= 1

    cdef uint8_t *room(self, Py_ssize_t row, Py_ssize_t count) except? NULL:
        """Return where `count` bytes of a row's text go; NULL if they are too many."""
        cdef Py_ssize_t wanted = self.length + count
        if wanted > TEXT_BYTES_MAX:
            return NULL
        if wanted > PyByteArray_GET_SIZE(self.data_bytes):
            PyByteArray_Resize(self.data_bytes, wanted + wanted // 2 + 64)
            self.data = <uint8_t *>PyByteArray_AS_STRING(self.data_bytes)
        self.reach(row)
        self.length = wanted
        return self.data + wanted - count

    cdef void reach(self, Py_ssize_t row) noexcept:
        """Write the offsets of rows without a text, up to the beginning of this one."""
        while self.reached < row:
            self.reached += 1
            self.offsets[self.reached] = <int32_t>self.length

    cdef object done(self):
        """Return an Arrow array (int64 if it is of milliseconds) or a list of Python values."""
        import pyarrow as pa

        if self.is_refused:
            return self.values
        valid = pa.py_buffer(self.valid_bytes) if self.nulls else None
        data = pa.py_buffer(self.data_bytes)
        buffers = [valid, data]
        if self.offsets != NULL:
            self.reach(self.rows)
            buffers = [valid, pa.py_buffer(self.offset_bytes), data.slice(0, self.length)]
        kind = _arrow_kind(self.form, self.precision, self.scale)
        return pa.Array.from_buffers(kind, self.rows, buffers, self.nulls)


cdef object _arrow_kind(int form, int precision, int scale):
    import pyarrow as pa

    if form == DECIMAL:
        return pa.decimal128(precision, scale)
    return {
        BOOL: pa.bool_(), INT8: pa.int16(), INT16: pa.int16(), INT32: pa.int32(),
        INT64: pa.int64(), FLOAT32: pa.float32(), FLOAT64: pa.float64(), STRING: pa.string(),
        NUMBER_TEXT: pa.string(), UUID_BYTES: pa.binary(16), BINARY: pa.binary(),
        MOMENT: pa.timestamp("us", "UTC"), DATE: pa.int64(), TIME: pa.int64(),
    }[form]


cdef int put_cell(Cursor *c, Cells cells, Py_ssize_t row) except -1:
    """Put the value at the cursor into a column; return 1 if it has another form than the column.
    """
    cdef int code = take(c, 1)[0]
    cdef int form = cells.form
    cdef const uint8_t *data
    cdef uint8_t *put
    cdef double precise
    cdef float real
    cdef int at
    if code == NULL_CODE:
        return 0
    if INT8 <= form <= INT64:
        return put_integer(c, cells, row, code)
    if form == STRING:
        return put_text(c, cells, row) if code == 9 else 1
    if form == FLOAT64 and (code == 6 or code == 5):
        if code == 6:
            memcpy(cells.data + 8 * row, take(c, 8), 8)
        else:
            memcpy(&real, take(c, 4), 4)
            precise = real
            memcpy(cells.data + 8 * row, &precise, 8)
    elif form == BOOL and code == 8:
        at = take(c, 1)[0]
        if at > 1:
            return 1
        if at:
            cells.data[row >> 3] |= <uint8_t>(1 << (row & 7))
    elif form == MOMENT or form == DATE or form == TIME:
        return put_moment(c, cells, row, code)
    elif form == FLOAT32 and code == 5:
        memcpy(cells.data + 4 * row, take(c, 4), 4)
    elif form == UUID_BYTES and code == 10:
        data = take(c, 16)
        put = cells.data + 16 * row
        for at in range(8):
            put[at] = data[7 - at]
            put[8 + at] = data[15 - at]
    elif form == BINARY and code == 12:
        return put_bytes(c, cells, row)
    elif code == 30 and (form == NUMBER_TEXT or form == DECIMAL):
        return put_number(c, cells, row)
    else:
        return 1
    cells.set_valid(row)
    return 0


cdef int put_integer(Cursor *c, Cells cells, Py_ssize_t row, int code) except -1:
    cdef int64_t number
    cdef int16_t small
    if code < 1 or code > 4 or code > cells.form - 1:
        return 1
    if code == 1:
        number = <int8_t>take(c, 1)[0]
    elif code == 2:
        memcpy(&small, take(c, 2), 2)
        number = small
    elif code == 3:
        number = _int(take(c, 4))
    else:
        number = _long(take(c, 8))
    memcpy(cells.data + cells.width * row, &number, cells.width)
    cells.set_valid(row)
    return 0


cdef int put_text(Cursor *c, Cells cells, Py_ssize_t row) except -1:
    cdef Py_ssize_t begin = c.at
    cdef Py_ssize_t count = read_count(c, 1)
    cdef const uint8_t *data = take(c, count)
    cdef Py_ssize_t at
    cdef uint8_t high = 0
    cdef PyObject *found
    cdef uint8_t *put
    for at in range(count):
        high |= data[at]
    if high & 0x80:
        found = PyUnicode_DecodeUTF8(<const char *>data, count, NULL)
        if found == NULL:
            _no_text(begin)
        Py_XDECREF(found)
    put = cells.room(row, count)
    if put == NULL:
        return 1
    memcpy(put, data, count)
    cells.set_valid(row)
    return 0


cdef int put_bytes(Cursor *c, Cells cells, Py_ssize_t row) except -1:
    cdef Py_ssize_t count = read_count(c, 1)
    cdef const uint8_t *data = take(c, count)
    cdef uint8_t *put = cells.room(row, count)
    if put == NULL:
        return 1
    memcpy(put, data, count)
    cells.set_valid(row)
    return 0


cdef int put_moment(Cursor *c, Cells cells, Py_ssize_t row, int code) except -1:
    """Put microseconds of a moment, or milliseconds of a day or a time of day."""
    cdef int64_t ms
    cdef int32_t nanos = 0
    cdef const uint8_t *data
    if cells.form == DATE:
        if code != 0xFE or read_count(c, 1) != SQL_DATE_BYTES:
            return 1
        data = take(c, SQL_DATE_BYTES)
        if memcmp(data, PyBytes_AS_STRING(SQL_DATE), SQL_DATE_BYTES - 8):
            return 1
        ms = _long(data + SQL_DATE_BYTES - 8)
    elif cells.form == TIME:
        if code != 36:
            return 1
        ms = _long(take(c, 8))
    else:
        if code != 33 and code != 11:
            return 1
        ms = _long(take(c, 8))
        if code == 33:
            nanos = _int(take(c, 4))
        if not -MS_MAX < ms < MS_MAX or nanos < 0 or nanos > 999_999 or nanos % 1000:
            return 1
        ms = ms * 1000 + nanos // 1000
    memcpy(cells.data + 8 * row, &ms, 8)
    cells.set_valid(row)
    return 0


cdef int put_number(Cursor *c, Cells cells, Py_ssize_t row) except -1:
    """Put a decimal of at most 18 digits, as text or with the column's scale."""
    cdef int32_t scale = _int(take(c, 4))
    cdef Py_ssize_t count = read_count(c, 1)
    cdef const uint8_t *data = take(c, count)
    cdef uint64_t unscaled = 0
    cdef int64_t signed[2]
    cdef Py_ssize_t at
    cdef bint is_negative
    if count < 1 or count > 8 or scale < 0 or scale > SCALE_MAX:
        return 1
    for at in range(count):
        unscaled = unscaled << 8 | (data[at] if at else data[0] & 0x7F)
    if unscaled >= POWERS[DIGITS_MAX]:
        return 1
    is_negative = data[0] & 0x80 and unscaled
    if cells.form == NUMBER_TEXT:
        return put_digits(cells, row, unscaled, is_negative, scale)
    if scale > cells.scale or cells.scale - scale > DIGITS_MAX:
        return 1
    if unscaled >= POWERS[DIGITS_MAX - (cells.scale - scale)]:
        return 1
    unscaled *= POWERS[cells.scale - scale]
    if cells.precision < DIGITS_MAX and unscaled >= POWERS[cells.precision]:
        return 1
    signed[0] = -<int64_t>unscaled if is_negative else <int64_t>unscaled
    signed[1] = -1 if is_negative else 0
    memcpy(cells.data + 16 * row, signed, 16)
    cells.set_valid(row)
    return 0


cdef int put_digits(
    Cells cells, Py_ssize_t row, uint64_t unscaled, bint is_negative, int scale
) except -1:
    """Put all digits, with a point before the last `scale` ones."""
    cdef char shown[64]
    cdef char *end = shown + 64
    cdef char *at = end
    cdef int passed = 0
    cdef uint8_t *put
    while True:
        if scale and passed == scale:
            at -= 1
            at[0] = 46  # .
        at -= 1
        at[0] = <char>(48 + unscaled % 10)
        unscaled //= 10
        passed += 1
        if not unscaled and passed > scale:
            break
    if is_negative:
        at -= 1
        at[0] = 45
    put = cells.room(row, end - at)
    if put == NULL:
        return 1
    memcpy(put, at, end - at)
    cells.set_valid(row)
    return 0


# -- values ------------------------------------------------------------------------------------

cdef object read_list(Decoder decoder, list data, tuple columns):
    """Read cells of values that are separate bytes objects; see `cells.read_cells`."""
    import numpy as np

    lengths = np.array([-1 if one is None else len(one) for one in data], np.int64)
    there = np.maximum(lengths, 0)
    begins = np.cumsum(there) - there
    return read_cells(decoder, b"".join([one or b"" for one in data]), begins, lengths, columns)


cdef object read_cells(
    Decoder decoder, const uint8_t[::1] data, const int64_t[::1] begins,
    const int64_t[::1] lengths, tuple columns,
):
    cdef Py_ssize_t count = begins.shape[0], row
    cdef Py_ssize_t size = data.shape[0]
    cdef const uint8_t *base = &data[0] if size else NULL
    cdef list made = [Cells(*column[1:], count) for column in columns]
    cdef bint is_scalar = len(columns) == 1 and columns[0][0] == ""
    cdef bint is_again = False
    cdef Cursor c
    cdef bytes one = None
    cdef dict types = {}
    if lengths.shape[0] != count:
        raise ValueError("places without a length")
    while True:
        for row in range(count):
            if lengths[row] < 0:
                continue
            if begins[row] < 0 or lengths[row] > size - begins[row]:
                raise ValueError("a value beyond the bytes")
            c.data = base + begins[row]
            c.size = lengths[row]
            c.owner = NULL  # nothing is decoded
            if is_again:
                one = PyBytes_FromStringAndSize(<const char *>c.data, c.size)
                c.data = <const uint8_t *>PyBytes_AS_STRING(one)
                c.owner = <PyObject *>one
            c.at = 0
            c.left = c.size * READ_TIMES_MAX
            c.top = c.seen = NULL
            try:
                if is_scalar:
                    if not scalar_cell(decoder, &c, made[0], row, is_again):
                        return None
                elif not object_cells(decoder, &c, made, row, columns, types, is_again):
                    return None
            finally:
                Py_XDECREF(c.top)
                Py_XDECREF(c.seen)
        if is_again or not any([(<Cells>cells).is_refused for cells in made]):
            break
        is_again = True
    return [(<Cells>cells).done() for cells in made], list(types.values())


cdef int scalar_cell(
    Decoder decoder, Cursor *c, Cells cells, Py_ssize_t row, bint is_again
) except -1:
    """Read a value that is a whole column; return 0 if it is an object, or not as a node writes it.
    """
    if not c.size or c.data[0] == OBJ_CODE or c.data[0] == 27 or c.data[0] == 0xFD:
        return 0
    if is_again:
        cells.values[row] = fresh(decoder, c, 0)
    elif not cells.is_refused and put_cell(c, cells, row):
        cells.refuse()
    return 1


cdef int object_cells(
    Decoder decoder, Cursor *c, list made, Py_ssize_t row, tuple columns, dict types, bint is_again
) except -1:
    """Put an object's fields, each into its column; return 0 if the object has another form."""
    cdef const uint8_t *data = c.data
    cdef int flags, width
    cdef Py_ssize_t offset, place, at
    cdef int32_t type_id, length
    cdef Plan plan
    cdef Cells cells
    if c.size < OBJECT_BYTES or data[0] != OBJ_CODE or data[1] != 1:
        return 0
    flags = data[2] | data[3] << 8
    type_id, length = _int(data + 4), _int(data + 12)
    offset = _int(data + 20)
    if flags & HAS_RAW or not type_id or length != c.size:
        return 0
    if not flags & HAS_SCHEMA:  # no field was written
        empty = decoder._types.find(type_id)
        if empty is None:
            return 0
        types[type_id] = empty
        return 1
    if not flags & COMPACT or offset < OBJECT_BYTES or offset > length:
        return 0
    width = 1 if flags & ONE_BYTE else 2 if flags & TWO_BYTES else 4
    plan = decoder.plan(type_id, _int(data + 16))
    if length - offset != width * plan.count:
        return 0
    if plan.spec is not columns:
        assign(plan, columns)
    types[plan.number] = plan.found
    for at in range(plan.count):
        place = data[offset + at * width]
        if width == 2:
            place |= <Py_ssize_t>data[offset + at * width + 1] << 8
        elif width == 4:
            place = _int(data + offset + at * width)
        if place < OBJECT_BYTES or place >= offset:
            return 0
        number = <object>PyList_GET_ITEM(plan.places, at)
        if number is None:
            if data[place] != NULL_CODE:
                return 0
            continue
        cells = <Cells>PyList_GET_ITEM(made, <Py_ssize_t>number)
        if cells.is_refused != is_again:
            continue
        c.at = place
        if is_again:
            cells.values[row] = fresh(decoder, c, 1)
        elif put_cell(c, cells, row):
            cells.refuse()
    return 1


cdef int assign(Plan plan, tuple columns) except -1:
    """Note into which column each field goes."""
    found = {column[0]: at for at, column in enumerate(columns)}
    plan.places = [found.get(name) for name in plan.names]
    plan.spec = columns
    return 0


cdef object fresh(Decoder decoder, Cursor *c, int depth):
    """Return the value at the cursor as a Python value, whatever was read of the bytes before."""
    Py_XDECREF(c.top)
    Py_XDECREF(c.seen)
    c.top = c.seen = NULL
    c.left = c.size * READ_TIMES_MAX
    return decoder.value(c, depth)
