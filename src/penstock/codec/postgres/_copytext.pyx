# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over lines of COPY; `copytext.py` is its readable twin and says what it does.

No cell becomes longer than it was: two digits of a bytea become a byte or an escape of two, and what
becomes NULL is at least as long as any name that PostgreSQL writes, anything shorter is broken. So a
frame's length is all the room that its lines need.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy

cdef enum Form:
    PLAIN = 1
    TEXT = 2
    NUMBER = 3
    DATE = 4
    ZONED = 5
    BOOL = 6
    BYTES = 7

cdef enum Trouble:
    NONE = 0
    BROKEN = 1
    NO_MEMORY = 2
    UNFIT = 3

cdef enum:
    HEAD_BYTES = 5
    LENGTH_MIN = 4
    COPY_DATA = 100  # the letter d
    FIRST_ROOM_BYTES = 256 * 1024
    NUMBER_NAME_BYTES_MIN = 3  # NaN
    DATE_BYTES_MIN = 8  # infinity


cdef struct Cell:
    int form
    bint unfit_is_null


cdef class LoadLines:
    """See the twin."""

    cdef readonly int64_t row_count
    cdef int _column, _count
    cdef Cell* _cells
    cdef uint8_t* _out
    cdef int64_t _used, _room

    def __cinit__(self, cells):
        self._cells = NULL
        self._out = NULL

    def __init__(self, cells):
        if self._cells != NULL:
            raise ValueError("a transcoder is created once")
        self._count = len(cells)
        self._cells = <Cell*>calloc(max(self._count, 1), sizeof(Cell))
        self._room = FIRST_ROOM_BYTES
        self._out = <uint8_t*>malloc(self._room)
        if self._cells == NULL or self._out == NULL:
            raise MemoryError
        for index, cell in enumerate(cells):
            self._cells[index].form = cell.form
            self._cells[index].unfit_is_null = cell.unfit_is_null

    def __dealloc__(self):
        free(self._cells)
        free(self._out)

    def take(self):
        out = PyBytes_FromStringAndSize(<char*>self._out, self._used)
        self._used = 0
        return out

    def feed(self, block, int64_t start, int64_t end):
        cdef Py_buffer view
        cdef int trouble = NONE
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or not start <= end <= view.len:
                raise ValueError(f"no span of {view.len} bytes: {start} to {end}")
            with nogil:
                start = self._walk(<const uint8_t*>view.buf, start, end, &trouble)
            if trouble:
                self._complain(trouble)
            return start
        finally:
            PyBuffer_Release(&view)

    cdef int _complain(self, int trouble) except -1:
        from penstock.codec import errors
        from penstock.codec.postgres import copytext

        row = self.row_count + 1
        if trouble == NO_MEMORY:
            raise MemoryError
        if trouble == UNFIT:
            raise errors.unfit(row, self._column, copytext.NO_PLACE)
        raise errors.TextBroken(f"row {row} does not have {self._count} cells")

    cdef int64_t _walk(
        self, const uint8_t* block, int64_t start, int64_t end, int* trouble
    ) noexcept nogil:
        """Convert whole frames of CopyData; return where the rest begins."""
        cdef const uint8_t* head
        cdef int64_t length, room
        cdef uint8_t* grown
        while end - start >= HEAD_BYTES:
            head = block + start
            if head[0] != COPY_DATA:
                break
            length = <int32_t>(
                (<uint32_t>head[1] << 24)
                | (<uint32_t>head[2] << 16)
                | (<uint32_t>head[3] << 8)
                | <uint32_t>head[4]
            )
            if length < LENGTH_MIN or start + 1 + length > end:
                break
            room = self._used + length + 3
            if room > self._room:
                room *= 2
                grown = <uint8_t*>realloc(self._out, room)
                if grown == NULL:
                    trouble[0] = NO_MEMORY
                    return start
                self._out = grown
                self._room = room
            trouble[0] = self._lines(head + HEAD_BYTES, length - LENGTH_MIN)
            if trouble[0]:
                return start
            start += 1 + length
        return start

    cdef int _lines(self, const uint8_t* p, int64_t length) noexcept nogil:
        cdef const uint8_t* end = p + length
        cdef const uint8_t* line_end
        cdef const uint8_t* cell_end
        cdef uint8_t* out
        cdef int column, trouble
        if length == 0 or (end - 1)[0] != c"\n" or self._count == 0:
            return BROKEN
        while p < end:
            line_end = <const uint8_t*>memchr(p, c"\n", end - p)
            out = self._out + self._used
            for column in range(self._count):
                if column == self._count - 1:
                    cell_end = line_end
                    if memchr(p, c"\t", line_end - p) != NULL:
                        return BROKEN
                else:
                    cell_end = tab_before(p, line_end)
                    if cell_end == NULL:
                        return BROKEN
                trouble = write_cell(&self._cells[column], p, cell_end - p, &out)
                if trouble:
                    self._column = column
                    return trouble
                out[0] = c"\t"
                out += 1
                p = cell_end + 1
            (out - 1)[0] = c"\n"
            self._used = out - self._out
            self.row_count += 1
        return NONE


cdef inline const uint8_t* tab_before(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the next tab; NULL if there is none. Cells are short: memchr would cost more."""
    while p < end:
        if p[0] == c"\t":
            return p
        p += 1
    return NULL


cdef int write_cell(
    Cell* cell, const uint8_t* p, int64_t size, uint8_t** into
) noexcept nogil:
    cdef uint8_t* out = into[0]
    cdef int form = cell.form, trouble = NONE
    cdef int64_t at = 0
    if form == PLAIN or (size == 2 and p[0] == c"\\" and p[1] == c"N"):
        pass
    elif form == TEXT:
        return put_text(p, size, into)
    elif form == BYTES:
        return put_bytes(p, size, into)
    elif form == BOOL:
        if size != 1 or (p[0] != c"t" and p[0] != c"f"):
            return BROKEN
        out[0] = c"1" if p[0] == c"t" else c"0"
        into[0] = out + 1
        return NONE
    elif form == NUMBER:
        if size and p[0] == c"-":
            at = 1
        if at >= size or not is_digit(p[at]):
            if size < NUMBER_NAME_BYTES_MIN:
                return BROKEN
            trouble = UNFIT
    else:
        if size < DATE_BYTES_MIN:
            return BROKEN
        if p[4] != c"-":
            trouble = UNFIT
        else:
            for at in range(4):
                if not is_digit(p[at]):
                    trouble = UNFIT
            if memchr(p, c"C", size) != NULL:
                trouble = UNFIT
        if not trouble and form == ZONED:
            if p[size - 3] != c"+" or p[size - 2] != c"0" or p[size - 1] != c"0":
                return BROKEN
            size -= 3
    if trouble:
        if not cell.unfit_is_null:
            return trouble
        out[0] = c"\\"
        out[1] = c"N"
        into[0] = out + 2
        return NONE
    memcpy(out, p, size)
    into[0] = out + size
    return NONE


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef int put_text(const uint8_t* p, int64_t size, uint8_t** into) noexcept nogil:
    """Copy text; the escapes of VT and FF, which LOAD DATA does not know, become bytes."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* slash
    cdef uint8_t* out = into[0]
    while True:
        slash = <const uint8_t*>memchr(p, c"\\", end - p) if p < end else NULL
        if slash == NULL:
            memcpy(out, p, end - p)
            into[0] = out + (end - p)
            return NONE
        if slash + 1 == end:
            return BROKEN
        memcpy(out, p, slash - p)
        out += slash - p
        if slash[1] == c"v" or slash[1] == c"f":
            out[0] = 11 if slash[1] == c"v" else 12
            out += 1
        else:
            out[0] = c"\\"
            out[1] = slash[1]
            out += 2
        p = slash + 2


cdef inline int digit_of(uint8_t byte) noexcept nogil:
    if c"0" <= byte <= c"9":
        return byte - c"0"
    if c"a" <= byte <= c"f":
        return byte - c"a" + 10
    return -1


cdef int put_bytes(const uint8_t* p, int64_t size, uint8_t** into) noexcept nogil:
    cdef uint8_t* out = into[0]
    cdef int64_t at = 3
    cdef int high, low
    cdef uint8_t byte
    if size < 3 or size % 2 == 0 or p[0] != c"\\" or p[1] != c"\\" or p[2] != c"x":
        return BROKEN
    while at < size:
        high = digit_of(p[at])
        low = digit_of(p[at + 1])
        if high < 0 or low < 0:
            return BROKEN
        byte = <uint8_t>(high << 4 | low)
        at += 2
        if byte == c"\\" or byte == c"\n" or byte == c"\t" or byte == c"\r" or byte == 0:
            out[0] = c"\\"
            out[1] = (
                c"\\" if byte == c"\\" else c"n" if byte == c"\n" else c"t" if byte == c"\t"
                else c"r" if byte == c"\r" else c"0"
            )
            out += 2
        else:
            out[0] = byte
            out += 1
    into[0] = out
    return NONE
