# Columns: buffers that values are written into, and that become Arrow arrays without a copy.
# Included by _pgoutput.pyx, which has the imports.

cdef enum Kind:
    BOOL
    INT16
    INT32
    INT64
    UINT32
    UINT64
    FLOAT32
    FLOAT64
    DECIMAL
    DATE
    TIME
    TIMESTAMP
    TIMESTAMPTZ
    UUID
    # From here on of variable length, with offsets.
    BYTEA
    RAW
    STRING

cdef enum:
    ROWS_MIN = 64  # a multiple of 8: bitmaps grow by whole bytes

_KINDS = {
    "bool": (BOOL, 0),
    "int16": (INT16, 2),
    "int32": (INT32, 4),
    "int64": (INT64, 8),
    "uint32": (UINT32, 4),
    "uint64": (UINT64, 8),
    "float32": (FLOAT32, 4),
    "float64": (FLOAT64, 8),
    "date": (DATE, 4),
    "time": (TIME, 8),
    "timestamp": (TIMESTAMP, 8),
    "timestamptz": (TIMESTAMPTZ, 8),
    "uuid": (UUID, 16),
    "binary": (RAW, 0),
    "string": (STRING, 0),
}
_EMPTY_BUFFER = pa.py_buffer(b"")


# --- memory

cdef class _Memory:
    """Owner of one malloc'ed block, which it shows read-only; freed with the last Arrow array on
    it.
    """

    cdef void* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __dealloc__(self):
        free(self.data)


cdef object detach(void** data, int64_t size):
    """Move a block into an Arrow buffer of `size` bytes; the pointer becomes NULL.

    Arrow aborts the process on a NULL buffer, so an empty one stands in.
    """
    cdef _Memory memory
    if data[0] == NULL or size == 0:
        return _EMPTY_BUFFER
    memory = _Memory.__new__(_Memory)
    memory.data = data[0]
    memory.size = size
    data[0] = NULL
    return pa.py_buffer(memory)


cdef inline bint regrow(void** data, int64_t size) noexcept nogil:
    """Enlarge a block to at least `size` bytes; on failure it stays as it is."""
    cdef void* grown = realloc(data[0], <size_t>size)
    if grown == NULL:
        return False
    data[0] = grown
    return True


cdef inline void put_bit(uint8_t* bitmap, int64_t row, bint value) noexcept nogil:
    cdef uint8_t mask = <uint8_t>(1 << (row & 7))
    if value:
        bitmap[row >> 3] |= mask
    else:
        bitmap[row >> 3] &= <uint8_t>~mask


cdef int64_t count_set(const uint8_t* bitmap, int64_t rows) noexcept nogil:
    cdef int64_t total = 0, i
    for i in range(rows >> 3):
        total += popcount64(bitmap[i])
    if rows & 7:
        total += popcount64(bitmap[rows >> 3] & ((1 << (rows & 7)) - 1))
    return total


# --- columns

cdef struct Column:
    int kind
    int width  # bytes per value; 0 for bits and for variable length
    int precision
    int scale
    uint8_t* valid
    uint8_t* data
    int32_t* offsets  # variable length only
    int64_t length  # bytes of data in use, variable length only
    int64_t capacity  # bytes of data allocated, variable length only


cdef bint column_grow(Column* column, int64_t rows, int64_t old, int64_t new) noexcept nogil:
    """Make room for `new` rows, all unset from `old` on, of which `rows` are in use."""
    if not regrow(<void**>&column.valid, new >> 3):
        return False
    memset(column.valid + (old >> 3), 0, (new - old) >> 3)
    if column.kind >= BYTEA:
        if not regrow(<void**>&column.offsets, (new + 1) * sizeof(int32_t)):
            return False
        if rows == 0:
            column.offsets[0] = 0
        return True
    if column.kind == BOOL:
        if not regrow(<void**>&column.data, new >> 3):
            return False
        memset(column.data + (old >> 3), 0, (new - old) >> 3)
        return True
    return regrow(<void**>&column.data, new * column.width)


cdef bint column_start(Column* column, int64_t rows, int64_t capacity) noexcept nogil:
    """Begin a column late, with NULL in the rows so far."""
    if not column_grow(column, 0, 0, capacity):
        return False
    if column.kind >= BYTEA:
        memset(column.offsets, 0, (rows + 1) * sizeof(int32_t))
        column.length = 0
    else:
        memset(column.data, 0, rows * column.width)  # bits are 0 already
    return True


cdef void column_free(Column* column) noexcept nogil:
    free(column.valid)
    free(column.data)
    free(column.offsets)
    column.valid = NULL
    column.data = NULL
    column.offsets = NULL
    column.length = 0
    column.capacity = 0


cdef inline uint8_t* column_room(Column* column, int64_t size) noexcept nogil:
    """Return where `size` more bytes of variable length may be written; NULL if there is no room.
    """
    cdef int64_t wanted = column.length + size
    if wanted > INT_MAX:
        return NULL  # not reached: the decoder's byte limit cuts batches far earlier
    if wanted > column.capacity or column.data == NULL:
        wanted += wanted if wanted < (1 << 26) else wanted >> 1
        if not regrow(<void**>&column.data, wanted + 64):
            return NULL
        column.capacity = wanted + 64
    return column.data + column.length


cdef inline void put_null(Column* column, int64_t row) noexcept nogil:
    put_bit(column.valid, row, False)
    if column.kind >= BYTEA:
        column.offsets[row + 1] = <int32_t>column.length
    elif column.kind == BOOL:
        put_bit(column.data, row, False)
    else:
        memset(column.data + row * column.width, 0, column.width)


cdef int ask_twin(int kind, const uint8_t* p, int64_t n, uint64_t* out) except RAISED with gil:
    """Read a float as the twin does: rare forms, and numbers midway between two floats."""
    cdef double double_value
    cdef float float_value
    text = p[:n]
    try:
        if kind == FLOAT64:
            double_value = pgtext.read_float64(text)
            memcpy(out, &double_value, 8)
        else:
            float_value = pgtext.read_float32(text)
            out[0] = 0
            memcpy(out, &float_value, 4)
    except pgtext.Malformed:
        return MALFORMED
    return FINE


cdef int put_variable(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store text or bytes."""
    cdef uint8_t* room
    if column.kind == STRING:
        if not is_utf8(p, n):
            return NOT_UTF8
    elif column.kind == BYTEA:
        if not is_bytea(p, n):
            return MALFORMED
        p += 2
        n = (n - 2) >> 1
    room = column_room(column, n)
    if room == NULL:
        return NO_MEMORY
    if column.kind == BYTEA:
        if read_hex(p, n, room) != FINE:
            return MALFORMED
    else:
        memcpy(room, p, n)
    column.length += n
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


cdef int put_float(Column* column, int64_t row, const uint8_t* p, int64_t n) except RAISED nogil:
    """Store a float of either size."""
    cdef uint64_t bits = 0
    cdef int status
    if column.kind == FLOAT64:
        status = read_float(p, n, 53, 1023, &bits)
    else:
        status = read_float(p, n, 24, 127, &bits)
    if status == ASK_TWIN:
        status = ask_twin(column.kind, p, n, &bits)
    if status == FINE:
        memcpy(column.data + row * column.width, &bits, column.width)
    return status


cdef int put_fixed(Column* column, int64_t row, const uint8_t* p, int64_t n) except RAISED nogil:
    """Store a value of fixed length."""
    cdef int64_t number = 0
    cdef uint64_t unsigned_number = 0
    cdef int status
    cdef int kind = column.kind
    if kind == INT64:
        return read_int(p, n, <int64_t>0x7FFFFFFFFFFFFFFF, &(<int64_t*>column.data)[row])
    if kind == INT32:
        status = read_int(p, n, 0x7FFFFFFF, &number)
        (<int32_t*>column.data)[row] = <int32_t>number
    elif kind == INT16:
        status = read_int(p, n, 0x7FFF, &number)
        (<uint16_t*>column.data)[row] = <uint16_t>number
    elif kind == TIMESTAMP or kind == TIMESTAMPTZ:
        status = read_timestamp(p, n, kind == TIMESTAMPTZ, &(<int64_t*>column.data)[row])
    elif kind == DECIMAL:
        status = read_decimal(
            p, n, column.precision, column.scale, &(<uint64_t*>column.data)[2 * row]
        )
    elif kind == BOOL:
        status = FINE if n == 1 and (p[0] == c't' or p[0] == c'f') else MALFORMED
        put_bit(column.data, row, status == FINE and p[0] == c't')
    elif kind == FLOAT64 or kind == FLOAT32:
        status = put_float(column, row, p, n)
    elif kind == DATE:
        status = read_date(p, n, &(<int32_t*>column.data)[row])
    elif kind == TIME:
        status = read_time(p, n, &(<int64_t*>column.data)[row])
    elif kind == UUID:
        status = read_uuid(p, n, column.data + 16 * row)
    elif kind == UINT32:
        status = read_unsigned(p, n, 0xFFFFFFFF, &unsigned_number)
        (<uint32_t*>column.data)[row] = <uint32_t>unsigned_number
    else:
        status = read_unsigned(
            p, n, <uint64_t>0xFFFFFFFFFFFFFFFF, &(<uint64_t*>column.data)[row]
        )
    return status


cdef inline int put(Column* column, int64_t row, const uint8_t* p, int64_t n) except RAISED nogil:
    """Store the value whose text is p[0:n]."""
    cdef int status
    if column.kind >= BYTEA:
        status = put_variable(column, row, p, n)
    else:
        status = put_fixed(column, row, p, n)
    put_bit(column.valid, row, True)
    return status


cdef object column_array(Column* column, object kind, int64_t rows):
    """Move a column's buffers into an Arrow array."""
    cdef int64_t nulls = rows - count_set(column.valid, rows)
    valid = detach(<void**>&column.valid, (rows + 7) >> 3) if nulls else None
    buffers = [valid]
    if column.kind >= BYTEA:
        size = column.offsets[rows]
        buffers.append(detach(<void**>&column.offsets, (rows + 1) * sizeof(int32_t)))
        buffers.append(detach(<void**>&column.data, size))
    elif column.kind == BOOL:
        buffers.append(detach(<void**>&column.data, (rows + 7) >> 3))
    else:
        buffers.append(detach(<void**>&column.data, rows * column.width))
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


def _power_of_five(power):
    """Return the first 128 bits of 5**power, rounded down, and the power of two of the first bit.
    """
    if power < 0:
        exact = 5 ** -power
        log2 = -exact.bit_length()  # a power of five is never a power of two
        return (1 << (127 - log2)) // exact, log2
    exact = 5 ** power
    log2 = exact.bit_length() - 1
    return (exact << 127) >> log2, log2


cdef int fill_tables() except -1:
    """Fill the tables of powers of five and of the values of hex digits."""
    cdef int i
    for i in range(POWER_MAX - POWER_MIN + 1):
        bits, log2 = _power_of_five(i + POWER_MIN)
        power_high[i] = bits >> 64
        power_low[i] = bits & 0xFFFFFFFFFFFFFFFF
        power_log2[i] = log2
    memset(hex_digits, NOT_HEX, 256)
    for i in range(10):
        hex_digits[c'0' + i] = i
    for i in range(6):
        hex_digits[c'a' + i] = 10 + i
        hex_digits[c'A' + i] = 10 + i
    return 0


fill_tables()
