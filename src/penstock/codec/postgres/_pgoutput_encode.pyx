# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over the rows of a batch; `pgoutput_encode.py` is its readable twin and says what
it does.

The batch comes as the addresses of its Arrow buffers; the caller keeps it alive and has checked its
schema. Before a cell is written there is room for the longest text of its type.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

cdef enum Kind:
    BYTES = 1
    FLOAT = 2
    DECIMAL = 3
    HEX = 4
    BOOL = 5
    INT16 = 6
    INT32 = 7
    INT64 = 8
    UINT32 = 9
    UINT64 = 10
    DATE = 11
    TIME = 12
    TIMESTAMP = 13
    TIMESTAMPTZ = 14
    UUID = 15
    BINARY = 16  # bytes as they are, which the client reads as the type's binary form

cdef enum Trouble:
    NONE = 0
    NO_SUCH_OP = 1
    NO_OLD_IMAGE = 2
    TOO_LONG = 3
    NO_MEMORY = 4

cdef enum:
    INSERT = 73
    UPDATE = 85
    DELETE = 68
    FRAME_BYTES = 30  # letter and length of CopyData, then what XLogData has in front
    ROW_BYTES = 16  # letter, xid, oid, two kinds of image
    CELL_BYTES = 80  # letter, length, and the longest text that is not of free length
    FIRST_ROOM_BYTES = 64 * 1024

cdef int64_t MESSAGE_MAX_BYTES = (1 << 30) + 64
cdef int64_t EPOCH_US = 946684800000000
cdef int64_t DAY_US = 86400000000
cdef int64_t SECOND_US = 1000000
cdef uint64_t LIMB = 1000000000000000000  # 18 digits
cdef const uint8_t* DIGITS = b"0123456789abcdef"


cdef struct Column:
    int kind, scale
    int64_t offset
    const uint8_t* valid
    const uint8_t* one
    const uint8_t* two


include "_writing.pxi"


cdef inline bint is_there(Column* column, int64_t row) noexcept nogil:
    return column.valid == NULL or bit(column.valid, column.offset + row)


cdef int put_number(uint8_t* p, uint64_t value, int width) noexcept nogil:
    """Write decimal digits, with zeros in front up to the width; return how many."""
    cdef uint8_t digits[24]
    cdef int count = 0, at
    while value or count < width:
        digits[count] = c"0" + <uint8_t>(value % 10)
        value //= 10
        count += 1
    for at in range(count):
        p[at] = digits[count - 1 - at]
    return count


cdef inline int put_signed(uint8_t* p, int64_t value) noexcept nogil:
    if value >= 0:
        return put_number(p, <uint64_t>value, 1)
    p[0] = c"-"
    return 1 + put_number(p + 1, <uint64_t>0 - <uint64_t>value, 1)


cdef int put_decimal(uint8_t* p, const uint8_t* value, int scale) noexcept nogil:
    cdef i128 number
    cdef u128 rest
    cdef uint64_t limbs[3]
    cdef uint8_t digits[64]
    cdef int count, at, size = 0
    memcpy(&number, value, 16)
    if number < 0:
        p[0] = c"-"
        size = 1
        rest = <u128>0 - <u128>number
    else:
        rest = <u128>number
    for at in range(3):
        limbs[at] = <uint64_t>(rest % LIMB)
        rest = rest // LIMB
    if limbs[2]:
        count = put_number(digits, limbs[2], 1)
        count += put_number(digits + count, limbs[1], 18)
        count += put_number(digits + count, limbs[0], 18)
    elif limbs[1]:
        count = put_number(digits, limbs[1], 1)
        count += put_number(digits + count, limbs[0], 18)
    else:
        count = put_number(digits, limbs[0], 1)
    if count <= scale:
        p[size] = c"0"
        size += 1
    else:
        memcpy(p + size, digits, count - scale)
        size += count - scale
    if scale:
        p[size] = c"."
        size += 1
        for at in range(count, scale):
            p[size] = c"0"
            size += 1
        at = min(count, scale)
        memcpy(p + size, digits + count - at, at)
        size += at
    return size


cdef inline int64_t floor_of(int64_t value, int64_t by) noexcept nogil:
    cdef int64_t found = value // by  # of C, towards zero
    return found - 1 if found * by > value else found


cdef int put_day(uint8_t* p, int64_t days, bint* is_bc) noexcept nogil:
    """Write a date without its era, as `exact_text.date_text` does."""
    cdef int64_t era, day_of_era, year_of_era, day, month, year
    cdef int size
    days += 719468
    era = floor_of(days, 146097)
    day_of_era = days - era * 146097
    year_of_era = (
        day_of_era - (day_of_era // 1460 - day_of_era // 36524 + day_of_era // 146096)
    ) // 365
    day = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400 + (1 if month >= 10 else 0)
    month = month + 3 if month < 10 else month - 9
    is_bc[0] = year <= 0
    size = put_number(p, <uint64_t>(1 - year if year <= 0 else year), 4)
    p[size] = c"-"
    size += 1
    size += put_number(p + size, <uint64_t>month, 2)
    p[size] = c"-"
    size += 1
    return size + put_number(p + size, <uint64_t>day, 2)


cdef int put_time(uint8_t* p, int64_t microseconds) noexcept nogil:
    cdef int64_t seconds = microseconds // SECOND_US
    cdef int64_t fraction = microseconds - seconds * SECOND_US
    cdef int size = put_number(p, <uint64_t>(seconds // 3600), 2)
    p[size] = c":"
    size += 1
    size += put_number(p + size, <uint64_t>(seconds // 60 % 60), 2)
    p[size] = c":"
    size += 1
    size += put_number(p + size, <uint64_t>(seconds % 60), 2)
    if fraction:
        p[size] = c"."
        size += 1
        size += put_number(p + size, <uint64_t>fraction, 6)
        while p[size - 1] == c"0":
            size -= 1
    return size


cdef inline int put_era(uint8_t* p) noexcept nogil:
    memcpy(p, b" BC", 3)
    return 3


cdef int put_timestamp(uint8_t* p, int64_t microseconds, bint zoned) noexcept nogil:
    cdef int64_t days = floor_of(microseconds, DAY_US)
    cdef bint is_bc = False
    cdef int size = put_day(p, days, &is_bc)
    p[size] = c" "
    size += 1
    size += put_time(p + size, microseconds - days * DAY_US)
    if zoned:
        memcpy(p + size, b"+00", 3)
        size += 3
    if is_bc:
        size += put_era(p + size)
    return size


cdef int put_uuid(uint8_t* p, const uint8_t* value) noexcept nogil:
    cdef int at, size = 0
    for at in range(16):
        if at == 4 or at == 6 or at == 8 or at == 10:
            p[size] = c"-"
            size += 1
        p[size] = DIGITS[value[at] >> 4]
        p[size + 1] = DIGITS[value[at] & 15]
        size += 2
    return size


cdef int put_fixed(uint8_t* p, Column* column, int64_t row) noexcept nogil:
    """Write the text of a value of fixed length; return its size, at most CELL_BYTES - 5."""
    cdef int64_t at = column.offset + row
    cdef const uint8_t* values = column.one
    cdef bint is_bc = False
    cdef int size
    if column.kind == INT64:
        return put_signed(p, (<const int64_t*>values)[at])
    if column.kind == INT32:
        return put_signed(p, (<const int32_t*>values)[at])
    if column.kind == INT16:
        return put_signed(p, (<const int16_t*>values)[at])
    if column.kind == UINT64:
        return put_number(p, (<const uint64_t*>values)[at], 1)
    if column.kind == UINT32:
        return put_number(p, (<const uint32_t*>values)[at], 1)
    if column.kind == BOOL:
        p[0] = c"t" if bit(values, at) else c"f"
        return 1
    if column.kind == DECIMAL:
        return put_decimal(p, values + 16 * at, column.scale)
    if column.kind == TIMESTAMP or column.kind == TIMESTAMPTZ:
        return put_timestamp(p, (<const int64_t*>values)[at], column.kind == TIMESTAMPTZ)
    if column.kind == TIME:
        return put_time(p, (<const int64_t*>values)[at])
    if column.kind == UUID:
        return put_uuid(p, values + 16 * at)
    size = put_day(p, (<const int32_t*>values)[at], &is_bc)
    return size + put_era(p + size) if is_bc else size


cdef inline bint is_named(const uint8_t* text, int64_t size, const char* name) noexcept nogil:
    return memcmp(text, name, size) == 0


cdef int put_cell(Out* out, Column* column, int64_t row) noexcept nogil:
    """Write a value with its letter and length."""
    cdef const int32_t* offsets
    cdef const uint8_t* text
    cdef uint8_t* p
    cdef int64_t size, at, length
    if not is_there(column, row):
        out.data[out.used] = c"n"
        out.used += 1
        return NONE
    if column.kind == DECIMAL or (column.kind > HEX and column.kind < BINARY):
        p = out.data + out.used
        p[0] = c"t"
        size = put_fixed(p + 5, column, row)
        put32(p + 1, <uint32_t>size)
        out.used += 5 + size
        return NONE
    offsets = <const int32_t*>column.one + column.offset + row
    size = offsets[1] - offsets[0]
    text = column.two + offsets[0]
    if column.kind == FLOAT:
        # Arrow has other names for what is not a number.
        if size == 3 and is_named(text, 3, b"nan"):
            text = b"NaN"
        elif size == 3 and is_named(text, 3, b"inf"):
            text = b"Infinity"
            size = 8
        elif size == 4 and is_named(text, 4, b"-inf"):
            text = b"-Infinity"
            size = 9
    length = 2 * size + 2 if column.kind == HEX else size
    if length > MESSAGE_MAX_BYTES:
        return TOO_LONG
    if not fits(out, CELL_BYTES + length):
        return NO_MEMORY
    p = out.data + out.used
    p[0] = c"b" if column.kind == BINARY else c"t"
    put32(p + 1, <uint32_t>length)
    p += 5
    if column.kind == HEX:
        p[0] = c"\\"
        p[1] = c"x"
        for at in range(size):
            p[2 + 2 * at] = DIGITS[text[at] >> 4]
            p[3 + 2 * at] = DIGITS[text[at] & 15]
    elif size:
        memcpy(p, text, size)
    out.used += 5 + length
    return NONE


cdef struct Batch:
    Column op, absent, has_before
    Column* new
    Column* old  # kind 0: not in the old image
    int count
    uint32_t source_id, xid
    bint is_streamed, has_all_old
    uint64_t sent


cdef int put_row(Out* out, Batch* batch, int64_t row, uint64_t position) noexcept nogil:
    cdef uint8_t op = batch.op.one[batch.op.offset + row]
    cdef bint with_old = is_there(&batch.has_before, row)
    cdef int64_t start = out.used, length
    cdef const uint8_t* absent = NULL
    cdef const int32_t* offsets
    cdef int64_t absent_bits = 0
    cdef int index, trouble
    cdef uint8_t* p
    if op != INSERT and op != UPDATE and op != DELETE:
        return NO_SUCH_OP
    if op == DELETE and not with_old:
        return NO_OLD_IMAGE
    if not fits(out, FRAME_BYTES + ROW_BYTES + CELL_BYTES):
        return NO_MEMORY
    p = out.data + start
    p[0] = c"d"
    p[5] = c"w"
    put64(p + 6, position)
    put64(p + 14, position)
    put64(p + 22, batch.sent)
    p += FRAME_BYTES
    p[0] = op
    p += 1
    if batch.is_streamed:
        put32(p, batch.xid)
        p += 4
    put32(p, batch.source_id)
    out.used = p + 4 - out.data
    if with_old and op != INSERT:
        p = out.data + out.used
        p[0] = c"O" if batch.has_all_old else c"K"
        put16(p + 1, batch.count)
        out.used += 3
        for index in range(batch.count):
            if not fits(out, CELL_BYTES + ROW_BYTES):
                return NO_MEMORY
            if batch.old[index].kind == 0:
                out.data[out.used] = c"n"
                out.used += 1
                continue
            trouble = put_cell(out, &batch.old[index], row)
            if trouble:
                return trouble
    if op != DELETE:
        if op == UPDATE and is_there(&batch.absent, row):
            offsets = <const int32_t*>batch.absent.one + batch.absent.offset + row
            absent = batch.absent.two + offsets[0]
            absent_bits = 8 * <int64_t>(offsets[1] - offsets[0])
        if not fits(out, CELL_BYTES):
            return NO_MEMORY
        p = out.data + out.used
        p[0] = c"N"
        put16(p + 1, batch.count)
        out.used += 3
        for index in range(batch.count):
            if not fits(out, CELL_BYTES + ROW_BYTES):
                return NO_MEMORY
            if index < absent_bits and bit(absent, index):
                out.data[out.used] = c"u"
                out.used += 1
                continue
            trouble = put_cell(out, &batch.new[index], row)
            if trouble:
                return trouble
    length = out.used - start
    if length - FRAME_BYTES > MESSAGE_MAX_BYTES:
        return TOO_LONG
    put32(out.data + start + 1, <uint32_t>(length - 1))
    return NONE


cdef void fill(Column* column, int kind, int scale, places) except *:
    column.kind = kind
    column.scale = scale
    column.offset = places[0]
    column.valid = <const uint8_t*><uintptr_t>places[1]
    column.one = <const uint8_t*><uintptr_t>places[2]
    column.two = <const uint8_t*><uintptr_t>places[3]


def encode(op, absent, has_before, new, old, const uint64_t[::1] positions, int64_t[::1] ends, head):
    """Return the frames of all rows, and (row, trouble) of the first row without a message; trouble
    0 if there is none.

    op, absent, has_before: offset and addresses of the columns' buffers. new: for each column of the
    relation kind, scale, offset, addresses; old: the same, None where the old image lacks it.
    ends: is filled. head: oid, xid or None, whether the old image has all columns, time.
    """
    cdef Batch batch
    cdef Out out
    cdef int64_t row = 0, rows = ends.shape[0]
    cdef int trouble = NONE
    cdef int index
    cdef Column* columns
    if positions.shape[0] != rows or len(new) != len(old):
        raise ValueError("positions, ends and columns must match")
    batch.count = len(new)
    columns = <Column*>calloc(2 * batch.count + 1, sizeof(Column))
    out.data = NULL
    out.used = out.room = 0
    try:
        if columns == NULL or not fits(&out, FIRST_ROOM_BYTES):
            raise MemoryError
        batch.new = columns
        batch.old = columns + batch.count
        fill(&batch.op, 0, 0, op)
        fill(&batch.absent, 0, 0, absent)
        fill(&batch.has_before, 0, 0, (*has_before, 0, 0))
        for index in range(batch.count):
            fill(&batch.new[index], new[index][0], new[index][1], new[index][2:])
            if old[index] is not None:
                fill(&batch.old[index], old[index][0], old[index][1], old[index][2:])
        batch.source_id = head[0]
        batch.is_streamed = head[1] is not None
        batch.xid = head[1] or 0
        batch.has_all_old = head[2]
        batch.sent = <uint64_t>(<int64_t>head[3] - EPOCH_US)
        with nogil:
            while row < rows:
                trouble = put_row(&out, &batch, row, positions[row])
                if trouble:
                    break
                ends[row] = out.used
                row += 1
        if trouble == NO_MEMORY:
            raise MemoryError
        if trouble:
            return b"", row, trouble
        return PyBytes_FromStringAndSize(<char*>out.data, out.used), 0, 0
    finally:
        free(out.data)
        free(columns)
