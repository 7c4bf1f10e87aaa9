# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled decoder of a binary COPY; `copy_binary_decode.py` is its readable twin and says what
it does.

Whole blocks are walked without the GIL; values go straight into column buffers that grow
geometrically and become Arrow arrays without a copy. Every length is checked before it is read. A
row that stops in the middle has changed nothing that is counted: the next one is written over it.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.limits cimport INT_MAX
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from penstock.codec._cells cimport (
    ASK_TWIN, FINE, MALFORMED, NO_MEMORY, NOT_HEX, NOT_UTF8, POWER_MAX, POWER_MIN, UNFIT, be16,
    be32, be64, hex_digits, is_bytea, is_utf8, popcount64, power_high, power_log2, power_low,
    read_date, read_decimal, read_float, read_hex, read_int, read_time, read_timestamp,
    read_unsigned, read_uuid, u128,
)

import pyarrow as pa

from penstock.codec.columns import after_type, arrow_type
from penstock.codec.postgres import copy_binary_outcome, pgtext
from penstock.codec.postgres.copy_binary import HEADER

cdef enum:
    RAISED = -3

cdef enum:
    GO_ON = 0
    STOP_LIMIT = 1
    STOP_UNFIT = 2

cdef enum:
    BROKEN_HEADER = 1
    BROKEN_TRUNCATED = 2
    BROKEN_COLUMN_COUNT = 3
    BROKEN_LENGTH = 4
    BROKEN_VALUE = 5
    BROKEN_UTF8 = 6
    BROKEN_TRAILING = 7
    OUT_OF_MEMORY = 100

cdef enum:
    FORM_BOOL = 1
    FORM_INT16 = 2
    FORM_INT32 = 3
    FORM_INT64 = 4
    FORM_UINT32 = 5
    FORM_UINT64 = 6
    FORM_FLOAT32 = 7
    FORM_FLOAT64 = 8
    FORM_NUMERIC = 9
    FORM_DATE = 10
    FORM_TIME = 11
    FORM_TIMESTAMP = 12
    FORM_TIMESTAMPTZ = 13
    FORM_UUID = 14
    FORM_BYTES = 15
    FORM_TEXT = 16
    FORM_JSONB = 17

cdef enum:
    FRAME_HEAD_BYTES = 5
    LENGTH_MIN = 4
    HEADER_BYTES = 19
    SIGNATURE_BYTES = 11
    NUMERIC_HEAD_BYTES = 8
    SCALE_MAX = 0x3FFF
    NEGATIVE = 0x4000
    TEXT_BYTES_MAX = 48  # of a date, a time or both
    EPOCH_DAYS = 10957
    DAY_MIN = -2440588
    DAY_END = 2145042906

cdef int64_t EPOCH_US = 946684800000000
cdef int64_t DAY_US = 86400000000
cdef int64_t TIMESTAMP_MIN = -211813488000000000  # from 2000, as they are sent
cdef int64_t TIMESTAMP_END = 9223371331200000000
cdef int64_t INT64_MIN = <int64_t>(<uint64_t>1 << 63)
cdef int64_t INT64_MAX = <int64_t>0x7FFFFFFFFFFFFFFF
cdef int32_t INT32_MIN = <int32_t>0x80000000
cdef int32_t INT32_MAX = 0x7FFFFFFF
cdef uint8_t* SIGNATURE = [80, 71, 67, 79, 80, 89, 10, 255, 13, 10, 0]  # of HEADER
cdef u128[39] POWERS  # of ten
cdef uint64_t* TENS = [1, 10, 100, 1000, 10000]

_STOPS = tuple(copy_binary_outcome.Stop)

include "../_column_buffers.pxi"


cdef int _fill_powers() except -1:
    cdef int i
    cdef u128 power = 1
    for i in range(39):
        POWERS[i] = power
        power = power * 10
    return 0


_fill_powers()


# --- texts

cdef inline uint8_t* write_number(uint8_t* p, uint64_t value, int width) noexcept nogil:
    """Write a number with at least `width` digits; return where it ends."""
    cdef uint8_t[20] digits
    cdef int count = 0
    while value or count < width:
        digits[count] = <uint8_t>(c'0' + value % 10)
        value //= 10
        count += 1
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


cdef inline uint8_t* write_date(uint8_t* p, int64_t days, bint* bc) noexcept nogil:
    """Write a date without its era. days: since 1970."""
    cdef int64_t shifted = days + 719468
    cdef int64_t era = (shifted if shifted >= 0 else shifted - 146096) // 146097
    cdef int64_t day_of_era = shifted - era * 146097
    cdef int64_t year_of_era = (
        day_of_era - (day_of_era // 1460 - day_of_era // 36524 + day_of_era // 146096)
    ) // 365
    cdef int64_t day = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef int64_t month = (5 * day + 2) // 153
    cdef int64_t year = year_of_era + era * 400 + (month >= 10)
    day = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    bc[0] = year <= 0
    p = write_number(p, 1 - year if year <= 0 else year, 4)
    p[0] = c'-'
    p = write_number(p + 1, month, 2)
    p[0] = c'-'
    return write_number(p + 1, day, 2)


cdef inline uint8_t* write_time(uint8_t* p, int64_t microseconds) noexcept nogil:
    """Write a time of day."""
    cdef int64_t seconds = microseconds // 1000000, fraction = microseconds % 1000000
    cdef int width = 6
    p = write_number(p, seconds // 3600, 2)
    p[0] = c':'
    p = write_number(p + 1, seconds // 60 % 60, 2)
    p[0] = c':'
    p = write_number(p + 1, seconds % 60, 2)
    if fraction:
        while fraction % 10 == 0:
            fraction //= 10
            width -= 1
        p[0] = c'.'
        p = write_number(p + 1, fraction, width)
    return p


cdef inline uint8_t* write_era(uint8_t* p, bint bc) noexcept nogil:
    if bc:
        memcpy(p, b" BC", 3)
        p += 3
    return p


cdef inline uint8_t* write_unbounded(uint8_t* p, bint negative) noexcept nogil:
    if negative:
        p[0] = c'-'
        p += 1
    memcpy(p, b"infinity", 8)
    return p + 8


# --- numbers

cdef struct Number:
    const uint8_t* groups  # of four digits, two bytes each; none at either end is 0
    int64_t count
    int64_t weight  # of the first group, in groups
    int scale
    int sign


cdef inline int read_number(const uint8_t* p, int64_t n, Number* out) noexcept nogil:
    """Check a numeric and leave out its outer zeros; return UNFIT for NaN and infinity."""
    cdef int64_t i, beyond
    cdef uint32_t group
    if n < NUMERIC_HEAD_BYTES:
        return MALFORMED
    out.count = be16(p)
    out.weight = <int16_t>be16(p + 2)
    out.sign = be16(p + 4)
    out.scale = be16(p + 6)
    out.groups = p + NUMERIC_HEAD_BYTES
    if n != NUMERIC_HEAD_BYTES + 2 * out.count or out.scale > SCALE_MAX:
        return MALFORMED
    for i in range(out.count):
        if be16(out.groups + 2 * i) >= 10000:
            return MALFORMED
    if out.sign == 0xC000 or out.sign == 0xD000 or out.sign == 0xF000:
        return MALFORMED if out.count else UNFIT
    if out.sign != 0 and out.sign != NEGATIVE:
        return MALFORMED
    while out.count and be16(out.groups) == 0:
        out.groups += 2
        out.count -= 1
        out.weight -= 1
    while out.count and be16(out.groups + 2 * (out.count - 1)) == 0:
        out.count -= 1
    if out.count:
        beyond = 4 * (out.count - 1 - out.weight) - out.scale  # digits that are not printed
        if beyond >= 4:
            return MALFORMED
        if beyond > 0:
            group = be16(out.groups + 2 * (out.count - 1))
            if group % (1000 if beyond == 3 else 100 if beyond == 2 else 10):
                return MALFORMED
    return FINE


cdef int put_decimal(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store a numeric in 128 bits, with the column's scale."""
    cdef Number number
    cdef u128 wide
    cdef uint64_t narrow = 0, last
    cdef int64_t i, drop
    cdef uint64_t* out = &(<uint64_t*>column.data)[2 * row]
    cdef int status = read_number(p, n, &number)
    if status != FINE:
        return status
    if number.count == 0:
        out[0] = 0
        out[1] = 0
        return FINE
    # Digits of the last group that the type has no place for; if negative, zeros that follow it.
    drop = 4 * (number.count - 1 - number.weight) - column.scale
    if drop >= 4 or 4 * number.weight + 1 + column.scale > column.precision:
        return UNFIT
    last = be16(number.groups + 2 * (number.count - 1))
    if drop > 0:
        if last % TENS[drop]:
            return UNFIT
        last = last // TENS[drop]
    if number.count <= 4 and drop >= -3:
        for i in range(number.count - 1):
            narrow = narrow * 10000 + be16(number.groups + 2 * i)
        if drop > 0:
            wide = narrow * TENS[4 - drop] + last
        else:
            wide = (narrow * 10000 + last) * TENS[-drop]
    else:
        wide = 0
        for i in range(number.count - 1):
            if wide >= POWERS[34]:
                return UNFIT
            wide = wide * 10000 + be16(number.groups + 2 * i)
        if not shift(&wide, 4 - drop if drop > 0 else 4, column.precision):
            return UNFIT
        wide = wide + last
        if drop < 0 and not shift(&wide, -drop, column.precision):
            return UNFIT
    if wide >= POWERS[column.precision]:
        return UNFIT
    if number.sign == NEGATIVE:
        wide = 0 - wide
    out[0] = <uint64_t>wide
    out[1] = <uint64_t>(wide >> 64)
    return FINE


cdef inline bint shift(u128* value, int64_t digits, int precision) noexcept nogil:
    """Multiply a number other than 0 by a power of ten; return False if that has too many digits.
    """
    if value[0] == 0:
        return True
    if digits > precision or value[0] >= POWERS[precision - digits]:
        return False
    value[0] = value[0] * POWERS[digits]
    return True


cdef int put_numeric_text(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store a numeric as the text that the server prints."""
    cdef Number number
    cdef uint8_t* room
    cdef uint8_t* q
    cdef uint32_t group
    cdef uint8_t[4] four
    cdef int64_t i, left, whole, take
    cdef int status = read_number(p, n, &number)
    if status == MALFORMED:
        return MALFORMED
    if status == UNFIT:
        room = column_room(column, TEXT_BYTES_MAX)
        if room == NULL:
            return NO_MEMORY
        if number.sign == 0xC000:
            memcpy(room, b"NaN", 3)
            return end_text(column, row, room + 3)
        q = room
        if number.sign == 0xF000:
            q[0] = c'-'
            q += 1
        memcpy(q, b"Infinity", 8)
        return end_text(column, row, q + 8)
    whole = number.weight + 1 if number.count and number.weight >= 0 else 0
    room = column_room(column, 4 * whole + number.scale + 8)
    if room == NULL:
        return NO_MEMORY
    q = room
    if number.sign == NEGATIVE and number.count:
        q[0] = c'-'
        q += 1
    if whole == 0:
        q[0] = c'0'
        q += 1
    for i in range(whole):
        group = be16(number.groups + 2 * i) if i < number.count else 0
        q = write_number(q, group, 4 if i else 1)
    if number.scale:
        q[0] = c'.'
        q += 1
        left = number.scale
        while left > 0:
            group = group_after_point(&number, number.scale - left)
            write_number(four, group, 4)
            take = 4 if left >= 4 else left
            memcpy(q, four, take)
            q += take
            left -= take
    return end_text(column, row, q)


cdef inline uint32_t group_after_point(Number* number, int64_t digits) noexcept nogil:
    """Return the group that begins so many digits, a multiple of four, after the point."""
    cdef int64_t i = number.weight + 1 + digits // 4
    if i < 0 or i >= number.count:
        return 0
    return be16(number.groups + 2 * i)


cdef inline int end_text(Column* column, int64_t row, uint8_t* end) noexcept nogil:
    """Store the text that was written where the column has room."""
    column.length = end - column.data
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


# --- values

cdef int put_bytes(
    Column* column, int64_t row, const uint8_t* p, int64_t n, bint is_text
) noexcept nogil:
    """Store bytes or text."""
    cdef uint8_t* room
    if is_text and not is_utf8(p, n):
        return NOT_UTF8
    room = column_room(column, n)
    if room == NULL:
        return NO_MEMORY
    memcpy(room, p, n)
    return end_text(column, row, room + n)


cdef int put_date(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    cdef int32_t days
    cdef int64_t since_1970
    cdef uint8_t* room
    cdef bint bc = False
    if n != 4:
        return MALFORMED
    days = <int32_t>be32(p)
    since_1970 = <int64_t>days + EPOCH_DAYS
    if days == INT32_MIN or days == INT32_MAX:
        if column.kind != STRING:
            return UNFIT
    elif since_1970 < DAY_MIN or since_1970 >= DAY_END:
        return MALFORMED
    if column.kind != STRING:
        (<int32_t*>column.data)[row] = <int32_t>since_1970
        return FINE
    room = column_room(column, TEXT_BYTES_MAX)
    if room == NULL:
        return NO_MEMORY
    if days == INT32_MIN or days == INT32_MAX:
        return end_text(column, row, write_unbounded(room, days == INT32_MIN))
    room = write_date(room, since_1970, &bc)
    return end_text(column, row, write_era(room, bc))


cdef int put_time(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    cdef int64_t microseconds
    cdef uint8_t* room
    if n != 8:
        return MALFORMED
    microseconds = <int64_t>be64(p)
    if microseconds < 0 or microseconds > DAY_US:
        return MALFORMED
    if column.kind != STRING:
        if microseconds == DAY_US:
            return UNFIT
        (<int64_t*>column.data)[row] = microseconds
        return FINE
    room = column_room(column, TEXT_BYTES_MAX)
    if room == NULL:
        return NO_MEMORY
    return end_text(column, row, write_time(room, microseconds))


cdef int put_timestamp(
    Column* column, int64_t row, const uint8_t* p, int64_t n, bint is_zoned
) noexcept nogil:
    cdef int64_t moment, days
    cdef uint8_t* room
    cdef bint bc = False, is_unbounded
    if n != 8:
        return MALFORMED
    moment = <int64_t>be64(p)
    is_unbounded = moment == INT64_MIN or moment == INT64_MAX
    if not is_unbounded and (moment < TIMESTAMP_MIN or moment >= TIMESTAMP_END):
        return MALFORMED
    if column.kind != STRING:
        if is_unbounded or moment > INT64_MAX - EPOCH_US:
            return UNFIT
        (<int64_t*>column.data)[row] = moment + EPOCH_US
        return FINE
    room = column_room(column, TEXT_BYTES_MAX)
    if room == NULL:
        return NO_MEMORY
    if is_unbounded:
        return end_text(column, row, write_unbounded(room, moment == INT64_MIN))
    days = moment // DAY_US
    moment = moment % DAY_US
    if moment < 0:
        days -= 1
        moment += DAY_US
    room = write_date(room, days + EPOCH_DAYS, &bc)
    room[0] = c' '
    room = write_time(room + 1, moment)
    if is_zoned:
        memcpy(room, b"+00", 3)
        room += 3
    return end_text(column, row, write_era(room, bc))


cdef int put_float_bits(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store a float; every NaN has the same bits, because it has the same text."""
    cdef uint64_t wide
    cdef uint32_t narrow
    if n != column.width:
        return MALFORMED
    if n == 8:
        wide = be64(p)
        if (wide & INT64_MAX) > <uint64_t>0x7FF0000000000000:
            wide = <uint64_t>0x7FF8000000000000
        (<uint64_t*>column.data)[row] = wide
    else:
        narrow = be32(p)
        if (narrow & INT32_MAX) > <uint32_t>0x7F800000:
            narrow = <uint32_t>0x7FC00000
        (<uint32_t*>column.data)[row] = narrow
    return FINE


cdef inline int put_value(
    Column* column, int form, int64_t row, const uint8_t* p, int64_t n
) noexcept nogil:
    """Store the value whose binary form is p[0:n]."""
    if form == FORM_TEXT or form == FORM_BYTES:
        return put_bytes(column, row, p, n, form == FORM_TEXT)
    if form == FORM_INT64 or form == FORM_UINT64:
        if n != 8:
            return MALFORMED
        (<uint64_t*>column.data)[row] = be64(p)
    elif form == FORM_INT32 or form == FORM_UINT32:
        if n != 4:
            return MALFORMED
        (<uint32_t*>column.data)[row] = be32(p)
    elif form == FORM_NUMERIC:
        if column.kind == STRING:
            return put_numeric_text(column, row, p, n)
        return put_decimal(column, row, p, n)
    elif form == FORM_TIMESTAMP or form == FORM_TIMESTAMPTZ:
        return put_timestamp(column, row, p, n, form == FORM_TIMESTAMPTZ)
    elif form == FORM_BOOL:
        if n != 1 or p[0] > 1:
            return MALFORMED
        put_bit(column.data, row, p[0])
    elif form == FORM_FLOAT64 or form == FORM_FLOAT32:
        return put_float_bits(column, row, p, n)
    elif form == FORM_DATE:
        return put_date(column, row, p, n)
    elif form == FORM_JSONB:
        if n < 1 or p[0] != 1:
            return MALFORMED
        return put_bytes(column, row, p + 1, n - 1, True)
    elif form == FORM_UUID:
        if n != 16:
            return MALFORMED
        memcpy(column.data + 16 * row, p, 16)
    elif form == FORM_TIME:
        return put_time(column, row, p, n)
    else:
        if n != 2:
            return MALFORMED
        (<uint16_t*>column.data)[row] = <uint16_t>be16(p)
    return FINE


cdef class CopyDecoder:
    """See the twin."""

    cdef readonly object relation
    cdef readonly int unfit
    cdef readonly int64_t row_count
    cdef readonly int64_t buffered
    cdef readonly int64_t byte_count
    cdef readonly bint ended
    cdef int _stop, _count, _column
    cdef int64_t _row_limit, _byte_limit, _capacity, _inside
    cdef bint _has_begun
    cdef int* _forms
    cdef Column* _columns

    def __init__(self, relation, forms, *, row_limit, byte_limit):
        cdef int i
        if self._columns != NULL:
            raise ValueError("a decoder is created once")
        if len(forms) != len(relation.columns) or not forms:
            raise ValueError(f"{len(forms)} forms for {len(relation.columns)} columns")
        if row_limit < 1 or byte_limit < 1:
            raise ValueError("a limit must be at least 1")
        self.relation = relation
        self.unfit = -1
        self._row_limit = row_limit
        self._byte_limit = byte_limit
        self._forms = <int*>calloc(len(forms), sizeof(int))
        self._columns = <Column*>calloc(len(forms), sizeof(Column))
        if self._forms == NULL or self._columns == NULL:
            raise MemoryError
        self._count = len(forms)
        for i in range(self._count):
            self._forms[i] = forms[i]
            self._shape(i, relation.columns[i].neutral)

    def __dealloc__(self):
        cdef int i
        if self._columns != NULL:
            for i in range(self._count):
                column_free(&self._columns[i])
        free(self._columns)
        free(self._forms)

    cdef int _shape(self, int index, neutral) except -1:
        """Set a column's kind from its neutral type."""
        cdef Column* column = &self._columns[index]
        form = copy_binary_outcome.Form(self._forms[index])
        if not copy_binary_outcome.is_decodable(form, neutral):
            raise ValueError(f"values of the form {form.name} are not decoded to {neutral}")
        if neutral.startswith("decimal("):
            kind = arrow_type(neutral)
            column.kind = DECIMAL
            column.width = 16
            column.precision = kind.precision
            column.scale = kind.scale
        else:
            column.kind, column.width = _KINDS[neutral]
        return 0

    @property
    def stop(self):
        return _STOPS[self._stop]

    def keep_as_text(self, int column):
        if self.buffered:
            raise ValueError("rows are not taken")
        if not 0 <= column < self._count:
            raise IndexError(column)
        self._drop()
        self._shape(column, "string")
        self.relation = self.relation.with_text_column(column)

    cdef void _drop(self) noexcept:
        """Free all buffers."""
        cdef int i
        for i in range(self._count):
            column_free(&self._columns[i])
        self._capacity = 0
        self.buffered = 0
        self.byte_count = 0

    def take(self):
        cdef int i
        if self.buffered == 0:
            return None
        kinds = list(after_type(self.relation))
        try:
            arrays = [
                column_array(&self._columns[i], kinds[i].type, self.buffered)
                for i in range(self._count)
            ]
        finally:
            self._drop()
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))

    def feed(self, block, int64_t start, int64_t end):
        cdef Py_buffer view
        cdef int status = GO_ON
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or not start <= end <= view.len:
                raise ValueError(f"no span of {view.len} bytes: {start} to {end}")
            self._stop = GO_ON
            self.unfit = -1
            self._column = -1
            with nogil:
                start = self._walk(<const uint8_t*>view.buf, start, end, &status)
            if status == OUT_OF_MEMORY:
                raise MemoryError
            if status < 0:
                raise copy_binary_outcome.broken(
                    -status, self.row_count + 1, self.relation, self._column
                )
            return start
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _walk(
        self, const uint8_t* block, int64_t start, int64_t end, int* status
    ) noexcept nogil:
        """Decode whole frames of CopyData; return where the rest begins.

        status: GO_ON, a negative reason, or OUT_OF_MEMORY.
        """
        cdef int64_t length
        while end - start >= FRAME_HEAD_BYTES and block[start] == c'd':
            length = <int32_t>be32(block + start + 1)
            if length < LENGTH_MIN or start + 1 + length > end:
                break
            status[0] = self._frame(block + start + FRAME_HEAD_BYTES, length - LENGTH_MIN)
            if status[0] != GO_ON or self._stop != GO_ON:
                break
            self._inside = 0
            start += 1 + length
        return start

    cdef int _frame(self, const uint8_t* p, int64_t n) noexcept nogil:
        cdef int64_t extension
        cdef int status
        if self.ended:
            return -BROKEN_TRAILING
        if not self._has_begun:
            if n < HEADER_BYTES or memcmp(p, SIGNATURE, SIGNATURE_BYTES) != 0:
                return -BROKEN_HEADER
            extension = be32(p + SIGNATURE_BYTES + 4)
            if be32(p + SIGNATURE_BYTES) >> 16 or extension > n - HEADER_BYTES:
                return -BROKEN_HEADER
            self._has_begun = True
            self._inside = HEADER_BYTES + extension
        while self._inside < n:
            status = self._row(p, n)
            if status != GO_ON or self._stop != GO_ON:
                return status
            if self.ended and self._inside < n:
                return -BROKEN_TRAILING
        return GO_ON

    cdef int _row(self, const uint8_t* p, int64_t n) noexcept nogil:
        """Decode the row that begins after the used bytes of a frame, which it moves on."""
        cdef int64_t at = self._inside, length, made = 0, row = self.buffered
        cdef int i, count, status, form
        cdef Column* column
        if n - at < 2:
            return -BROKEN_TRUNCATED
        count = <int16_t>be16(p + at)
        at += 2
        if count == -1:
            self.ended = True
            self._inside = at
            return GO_ON
        if row >= self._row_limit or self.byte_count >= self._byte_limit:
            self._stop = STOP_LIMIT
            return GO_ON
        if count != self._count:
            return -BROKEN_COLUMN_COUNT
        if row == self._capacity and not self._grow():
            return OUT_OF_MEMORY
        for i in range(count):
            column = &self._columns[i]
            form = self._forms[i]
            self._column = i
            if n - at < 4:
                return -BROKEN_TRUNCATED
            length = <int32_t>be32(p + at)
            at += 4
            if length < 0:
                if length != -1:
                    return -BROKEN_LENGTH
                put_null(column, row)
                continue
            if length > n - at:
                return -BROKEN_TRUNCATED
            status = put_value(column, form, row, p + at, length)
            if status != FINE:
                return self._refuse(status, i)
            put_bit(column.valid, row, True)
            if column.kind == STRING and form != FORM_TEXT and form != FORM_JSONB:
                made += column.offsets[row + 1] - column.offsets[row]
            at += length
        self._column = -1
        self.buffered += 1
        self.row_count += 1
        self.byte_count += at - self._inside + made
        self._inside = at
        return GO_ON

    cdef int _refuse(self, int status, int index) noexcept nogil:
        """Take the begun row back; stop if a value does not fit."""
        cdef int i
        if status == UNFIT:
            for i in range(index):
                if self._columns[i].kind >= BYTEA:
                    self._columns[i].length = self._columns[i].offsets[self.buffered]
            self._stop = STOP_UNFIT
            self.unfit = index
            return GO_ON
        if status == NO_MEMORY:
            return OUT_OF_MEMORY
        return -BROKEN_UTF8 if status == NOT_UTF8 else -BROKEN_VALUE

    cdef bint _grow(self) noexcept nogil:
        """Make room for more rows."""
        cdef int64_t old = self._capacity
        cdef int64_t new = old * 2 if old else ROWS_MIN
        cdef int i
        for i in range(self._count):
            if not column_grow(&self._columns[i], self.buffered, old, new):
                return False
        self._capacity = new
        return True
