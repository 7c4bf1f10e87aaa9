# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over the rows of a batch; `copy_binary.py` is its readable twin and says what
it does.

The batch comes as the addresses of its Arrow buffers; the caller keeps it alive and has checked its
schema. Before each row there is room for all its fields of fixed size, and it is kept while those
of free length are written.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

cdef enum Kind:
    BOOL = 1
    BITS16 = 2
    BITS32 = 3
    BITS64 = 4
    DATE = 5
    TIMESTAMP = 6
    UUID = 7
    BYTES = 8
    NUMERIC = 9
    LIST = 10

cdef enum Trouble:
    NONE = 0
    NOT_IN_RANGE = 1
    TOO_LONG = 2
    NO_MEMORY = 3

cdef enum:
    FIELD_BYTES = 40  # length and value of a field that is not of free length
    ARRAY_BYTES = 24  # length and what is in front of an array's elements
    GROUPS_MAX = 12  # of four digits, in a number of 38
    ROOM_BYTES = 4096  # more than a block, at first
    NEGATIVE = 0x4000

cdef int32_t EPOCH_DAYS = 10957
cdef int32_t DAY_MIN = -2440588
cdef int32_t DAY_END = 2145042906
cdef int64_t EPOCH_US = 946684800000000
cdef int64_t US_MIN = -210866803200000000
cdef uint64_t CHUNK = 10000000000000000  # four groups of digits
cdef uint32_t* TENS = [1, 10, 100, 1000, 10000]


cdef struct Column:
    int kind
    int32_t scale  # of a list: its elements' oid
    int64_t offset
    const uint8_t* valid
    const uint8_t* one
    const uint8_t* two
    const uint8_t* head
    int64_t head_size
    int64_t size_max
    Column* elements


include "_writing.pxi"


cdef int put_numeric(uint8_t* p, const uint8_t* value, int scale) noexcept nogil:
    """Write the count of groups, weight of the first, sign, scale and groups; return the size.

    Groups are of four digits and lie on both sides of the point. No group at either end is 0.
    """
    cdef uint32_t groups[GROUPS_MAX]  # the last one first
    cdef i128 number
    cdef u128 wide
    cdef uint64_t rest, chunk
    cdef int count = 0, low = 0, at, sign = 0, odd = scale % 4
    cdef int after_point = (scale + 3) // 4
    memcpy(&number, value, 16)
    wide = <u128>number
    if number < 0:
        sign = NEGATIVE
        wide = <u128>0 - wide
    if odd:
        if wide >> 64:
            groups[0] = <uint32_t>(wide % TENS[odd]) * TENS[4 - odd]
            wide = wide // TENS[odd]
        else:
            rest = <uint64_t>wide
            groups[0] = <uint32_t>(rest % TENS[odd]) * TENS[4 - odd]
            wide = rest // TENS[odd]
        count = 1
    while wide >> 64:
        chunk = <uint64_t>(wide % CHUNK)
        wide = wide // CHUNK
        for at in range(4):
            groups[count] = chunk % 10000
            chunk //= 10000
            count += 1
    rest = <uint64_t>wide
    while rest:
        groups[count] = rest % 10000
        rest //= 10000
        count += 1
    while count and groups[count - 1] == 0:
        count -= 1
    while low < count and groups[low] == 0:
        low += 1
    put16(p, count - low)
    put16(p + 2, count - 1 - after_point if count else 0)
    put16(p + 4, sign)
    put16(p + 6, scale)
    p += 8
    for at in range(count - 1, low - 1, -1):
        put16(p, groups[at])
        p += 2
    return 8 + 2 * (count - low)


cdef int put_bytes(Out* out, Column* column, int64_t at, int64_t spare) noexcept nogil:
    """Write a field of free length."""
    cdef const int32_t* offsets = <const int32_t*>column.one + at
    cdef int64_t size = <int64_t>offsets[1] - offsets[0]
    cdef uint8_t* p
    if size + column.head_size > column.size_max:
        return TOO_LONG
    if not fits(out, 4 + column.head_size + size + spare):
        return NO_MEMORY
    p = out.data + out.used
    put32(p, <uint32_t>(column.head_size + size))
    p += 4
    if column.head_size:
        memcpy(p, column.head, column.head_size)
        p += column.head_size
    if size:
        memcpy(p, column.two + offsets[0], size)
    out.used = p + size - out.data
    return NONE


cdef int put_list(Out* out, Column* column, int64_t at, int64_t spare) noexcept nogil:
    """Write a one-dimensional array."""
    cdef const int32_t* offsets = <const int32_t*>column.one + at
    cdef int64_t count = <int64_t>offsets[1] - offsets[0]
    cdef int64_t start = out.used, size, index
    cdef uint8_t* p
    cdef bint has_nulls = False
    cdef int trouble
    if not fits(out, ARRAY_BYTES + spare):
        return NO_MEMORY
    p = out.data + start
    put32(p + 4, count > 0)
    put32(p + 12, <uint32_t>column.scale)
    out.used += 16
    if count:
        put32(p + 16, <uint32_t>count)
        put32(p + 20, 1)
        out.used += 8
    for index in range(offsets[0], offsets[1]):
        if not fits(out, FIELD_BYTES + spare):
            return NO_MEMORY
        trouble = put_field(out, column.elements, index, spare)
        if trouble:
            return trouble
        has_nulls |= is_null(column.elements, index)
    size = out.used - start - 4
    if size > column.size_max:
        return TOO_LONG
    p = out.data + start
    put32(p, <uint32_t>size)
    put32(p + 8, has_nulls)
    return NONE


cdef inline bint is_null(Column* column, int64_t row) noexcept nogil:
    return column.valid != NULL and not bit(column.valid, column.offset + row)


cdef int put_field(Out* out, Column* column, int64_t row, int64_t spare) noexcept nogil:
    """Write length and value. There is room for FIELD_BYTES; after a value of free length, `spare`
    bytes are kept.
    """
    cdef int64_t at = column.offset + row
    cdef uint8_t* p = out.data + out.used
    cdef int64_t number
    cdef int size
    if is_null(column, row):
        put32(p, 0xffffffff)
        out.used += 4
        return NONE
    if column.kind == BITS64:
        size = 8
        put64(p + 4, (<const uint64_t*>column.one)[at])
    elif column.kind == BITS32:
        size = 4
        put32(p + 4, (<const uint32_t*>column.one)[at])
    elif column.kind == BYTES:
        return put_bytes(out, column, at, spare)
    elif column.kind == NUMERIC:
        size = put_numeric(p + 4, column.one + 16 * at, column.scale)
    elif column.kind == TIMESTAMP:
        size = 8
        number = (<const int64_t*>column.one)[at]
        if number < US_MIN:
            return NOT_IN_RANGE
        put64(p + 4, <uint64_t>(number - EPOCH_US))
    elif column.kind == DATE:
        size = 4
        number = (<const int32_t*>column.one)[at]
        if number < DAY_MIN or number >= DAY_END:
            return NOT_IN_RANGE
        put32(p + 4, <uint32_t>(number - EPOCH_DAYS))
    elif column.kind == BITS16:
        size = 2
        put16(p + 4, <uint32_t>(<const int16_t*>column.one)[at])
    elif column.kind == BOOL:
        size = 1
        p[4] = bit(column.one, at)
    elif column.kind == UUID:
        size = 16
        memcpy(p + 4, column.one + 16 * at, 16)
    else:
        return put_list(out, column, at, spare)
    put32(p, size)
    out.used += 4 + size
    return NONE


cdef void fill(Column* column, plan, int64_t size_max, Column* elements) except *:
    column.kind = plan[0]
    column.scale = plan[1]
    column.head = <const uint8_t*>PyBytes_AS_STRING(plan[2])
    column.head_size = len(plan[2])
    column.size_max = size_max
    column.offset = plan[3]
    column.valid = <const uint8_t*><uintptr_t>plan[4]
    column.one = <const uint8_t*><uintptr_t>plan[5]
    column.two = <const uint8_t*><uintptr_t>plan[6]
    if plan[7] is not None:
        column.elements = elements
        fill(elements, plan[7], size_max, NULL)


def encode(plans, int64_t row, int64_t stop, int64_t block_bytes, int64_t field_max):
    """Return a block of rows from `row` on, the row after it, and column and trouble of what
    stopped it.

    plans: for each column kind, scale or oid, head, offset, addresses, and its elements' plan.
    Trouble is 0 if there is none; otherwise there is no block, and the row is the one that has it.
    """
    cdef Out out
    cdef int count = len(plans), index = 0, trouble = NONE
    cdef int64_t spare = FIELD_BYTES * <int64_t>count
    cdef Column* columns = <Column*>calloc(2 * count + 1, sizeof(Column))
    out.data = NULL
    out.used = out.room = 0
    try:
        if columns == NULL or not fits(&out, block_bytes + ROOM_BYTES):
            raise MemoryError
        for index in range(count):
            fill(&columns[index], plans[index], field_max, &columns[count + index])
        with nogil:
            while row < stop and out.used < block_bytes and not trouble:
                if not fits(&out, 2 + spare):
                    trouble = NO_MEMORY
                    break
                put16(out.data + out.used, count)
                out.used += 2
                for index in range(count):
                    trouble = put_field(&out, &columns[index], row, spare)
                    if trouble:
                        break
                else:
                    row += 1
        if trouble == NO_MEMORY:
            raise MemoryError
        if trouble:
            return b"", row, index, trouble
        return PyBytes_FromStringAndSize(<char*>out.data, out.used), row, 0, 0
    finally:
        free(out.data)
        free(columns)
