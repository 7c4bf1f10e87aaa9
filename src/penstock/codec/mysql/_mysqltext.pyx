# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over rows of a SELECT; `mysqltext.py` is its readable twin and says what it does.

A block is walked without the GIL. Before a row is written there is room for the longest line that
its bytes can become, so that nothing inside looks at the room again; cells of character sets of
several bytes are passed to the twin's decoders, one by one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy

cdef enum Form:
    PLAIN = 1
    UTF8 = 2
    RAW = 3
    CHARSET = 4
    BYTES = 5
    DATE = 6

cdef enum Stop:
    MORE = 0
    END = 1
    ERROR = 2

cdef enum Trouble:
    NONE = 0
    BROKEN = 3
    NO_MEMORY = 4
    NO_ZERO = 5
    NO_CHARACTER = 6
    RAISED = 7

cdef enum:
    HEAD_BYTES = 4
    PIECE_BYTES_MAX = 0xFFFFFF
    EOF_BYTES_MAX = 8
    ROOM_PER_BYTE = 3  # a byte becomes two digits, an escape, or three bytes of UTF-8
    ROOM_PER_CELL = 8
    FIRST_ROOM_BYTES = 256 * 1024

cdef const char* DIGITS = b"0123456789abcdef"


cdef enum Zero:
    REFUSED = 0
    KEPT = 1
    REMOVED = 2


cdef struct Cell:
    int form
    bint zero_is_null
    int zero  # action for a zero character
    bint ascii_is_plain
    uint8_t* singles  # four bytes for each byte: length, then UTF-8; length 0: no character


cdef inline uint64_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return word


cdef inline bint has_special(uint64_t word) noexcept nogil:
    """Return whether one of eight bytes is below 32 or a backslash; may be true for bytes above
    127.
    """
    cdef uint64_t slashes = word ^ 0x5C5C5C5C5C5C5C5CULL
    cdef uint64_t low = (word - 0x2020202020202020ULL) & ~word
    cdef uint64_t zero = (slashes - 0x0101010101010101ULL) & ~slashes
    return ((low | zero) & 0x8080808080808080ULL) != 0


cdef inline uint8_t escape_of(uint8_t byte) noexcept nogil:
    """Return the letter after the backslash; 0 if nothing is to be escaped. A zero byte is handled
    separately.
    """
    if byte == c"\\":
        return c"\\"
    if byte == c"\n":
        return c"n"
    if byte == c"\t":
        return c"t"
    if byte == c"\r":
        return c"r"
    return 0


cdef class RowLines:
    """See the twin."""

    cdef readonly int64_t row_count
    cdef readonly bytes message
    cdef int _stop, _trouble, _column, _count
    cdef bint _copy
    cdef Cell* _cells
    cdef uint8_t* _out
    cdef int64_t _used, _room
    cdef uint8_t* _joined
    cdef int64_t _joined_room
    cdef list _decoders
    cdef object _charsets
    cdef object _raised

    def __cinit__(self, cells, dialect):
        self._cells = NULL
        self._out = NULL
        self._joined = NULL

    def __init__(self, cells, dialect):
        from penstock.codec.lines import LineDialect

        if self._cells != NULL:
            raise ValueError("a transcoder is created once")
        self.message = b""
        self._copy = dialect is LineDialect.COPY
        self._count = len(cells)
        self._cells = <Cell*>calloc(max(self._count, 1), sizeof(Cell))
        self._room = FIRST_ROOM_BYTES
        self._out = <uint8_t*>malloc(self._room)
        if self._cells == NULL or self._out == NULL:
            raise MemoryError
        self._decoders = []
        self._charsets = [cell.charset for cell in cells]
        for index, cell in enumerate(cells):
            self._plan(&self._cells[index], cell)

    def __dealloc__(self):
        cdef int index
        if self._cells != NULL:
            for index in range(self._count):
                free(self._cells[index].singles)
        free(self._cells)
        free(self._out)
        free(self._joined)

    cdef int _plan(self, Cell* cell, given) except -1:
        from penstock.codec.mysql.charsets import decoder, is_ascii_superset, single_byte_table

        cell.form = given.form
        cell.zero_is_null = given.zero_is_null
        cell.zero = REFUSED if self._copy else KEPT
        if given.remove_zero and cell.form in (UTF8, CHARSET):
            cell.zero = REMOVED
        elif cell.form == RAW or (cell.form == BYTES and not self._copy):
            cell.zero = KEPT
        self._decoders.append(None)
        if cell.form == BYTES and not self._copy:
            cell.form = RAW
        if cell.form != CHARSET:
            return 0
        self._decoders[len(self._decoders) - 1] = decoder(given.charset)
        cell.ascii_is_plain = is_ascii_superset(given.charset)
        table = single_byte_table(given.charset)
        if table is None:
            return 0
        cell.singles = <uint8_t*>calloc(256, 4)
        if cell.singles == NULL:
            raise MemoryError
        for byte, text in enumerate(table):
            if text is None:
                continue
            encoded = text.encode()
            assert 1 <= len(encoded) <= 3
            cell.singles[4 * byte] = len(encoded)
            for place, part in enumerate(encoded):
                cell.singles[4 * byte + 1 + place] = part
        return 0

    @property
    def stop(self):
        from penstock.codec.mysql.mysqltext import RowStop as Stops

        return Stops(self._stop)

    def take(self):
        out = PyBytes_FromStringAndSize(<char*>self._out, self._used)
        self._used = 0
        return out

    def feed(self, block, int64_t start, int64_t end):
        cdef Py_buffer view
        cdef int64_t at
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or not start <= end <= view.len:
                raise ValueError(f"no span of {view.len} bytes: {start} to {end}")
            self._stop = MORE
            self._trouble = NONE
            with nogil:
                at = self._walk(<const uint8_t*>view.buf, start, end)
            if self._trouble:
                self._complain()
            return at
        finally:
            PyBuffer_Release(&view)

    cdef int _complain(self) except -1:
        from penstock.codec import errors
        from penstock.codec.mysql import mysqltext

        row = self.row_count + 1
        if self._trouble == NO_MEMORY:
            raise MemoryError
        if self._trouble == BROKEN:
            raise errors.TextBroken(f"row {row} does not have {self._count} cells")
        if self._trouble == NO_ZERO:
            raise errors.unfit(row, self._column, mysqltext._NO_ZERO)
        if self._trouble == NO_CHARACTER:
            charset = self._charsets[self._column]
            raise errors.unfit(row, self._column, f"{mysqltext._NO_CHARACTER} {charset}")
        error, self._raised = self._raised, None
        raise error

    # --- packets

    cdef int64_t _walk(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        """Write rows as long as they are whole; return where the rest begins."""
        cdef int64_t length, next_one
        cdef const uint8_t* payload
        while True:
            if end - start < HEAD_BYTES:
                return start
            length = size_at(block + start)
            if length > end - start - HEAD_BYTES:
                return start
            payload = block + start + HEAD_BYTES
            next_one = start + HEAD_BYTES + length
            if length == PIECE_BYTES_MAX:
                next_one = self._join(block, start, end, &length)
                if next_one < 0:
                    return start
                payload = self._joined
            if length and payload[0] == 0xFF:
                self._stop = ERROR
                with gil:
                    self.message = (<const char*>payload)[:length]
                return next_one
            if length and payload[0] == 0xFE and length <= EOF_BYTES_MAX:
                self._stop = END
                return next_one
            self._trouble = self._row(payload, length)
            if self._trouble:
                return start
            self.row_count += 1
            start = next_one

    cdef int64_t _join(
        self, const uint8_t* block, int64_t start, int64_t end, int64_t* length
    ) noexcept nogil:
        """Join the pieces of a long row; return where the next row begins, -1 if some are missing.
        """
        cdef int64_t at = start, size = 0, piece = PIECE_BYTES_MAX
        cdef uint8_t* grown
        while piece == PIECE_BYTES_MAX:
            if end - at < HEAD_BYTES:
                return -1
            piece = size_at(block + at)
            if piece > end - at - HEAD_BYTES:
                return -1
            at += HEAD_BYTES + piece
            size += piece
        if size > self._joined_room:
            grown = <uint8_t*>realloc(self._joined, size)
            if grown == NULL:
                self._trouble = NO_MEMORY
                return -1
            self._joined = grown
            self._joined_room = size
        length[0] = size
        size = 0
        while start < at:
            piece = size_at(block + start)
            memcpy(self._joined + size, block + start + HEAD_BYTES, piece)
            size += piece
            start += HEAD_BYTES + piece
        return at

    # --- one row

    cdef int _row(self, const uint8_t* p, int64_t length) noexcept nogil:
        cdef int64_t before = self._used, room, size, at = 0
        cdef int column, width, trouble
        cdef uint8_t* out
        cdef uint8_t* grown
        room = before + ROOM_PER_BYTE * length + ROOM_PER_CELL * (self._count + 1)
        if room > self._room:
            room *= 2
            grown = <uint8_t*>realloc(self._out, room)
            if grown == NULL:
                return NO_MEMORY
            self._out = grown
            self._room = room
        out = self._out + before
        for column in range(self._count):
            if at >= length:
                return BROKEN
            size = p[at]
            at += 1
            if size >= 0xFB:
                if size == 0xFB:
                    out[0] = c"\\"
                    out[1] = c"N"
                    out[2] = c"\t"
                    out += 3
                    continue
                if size == 0xFF:
                    return BROKEN
                width = 2 if size == 0xFC else 3 if size == 0xFD else 8
                if width > length - at:
                    return BROKEN
                size = little(p + at, width)
                at += width
            if size < 0 or size > length - at:
                return BROKEN
            if self._cells[column].form == PLAIN:
                memcpy(out, p + at, size)
                out += size
            else:
                trouble = self._cell(column, p + at, size, &out)
                if trouble:
                    self._column = column
                    return trouble
            out[0] = c"\t"
            out += 1
            at += size
        if at != length:
            return BROKEN
        if self._count:
            out -= 1
        out[0] = c"\n"
        self._used = out + 1 - self._out
        return NONE

    cdef int _cell(
        self, int column, const uint8_t* p, int64_t size, uint8_t** into
    ) noexcept nogil:
        """Write one cell that is not merely copied."""
        cdef Cell* cell = &self._cells[column]
        if cell.form == UTF8 or cell.form == RAW:
            return self._text(p, size, cell.zero, into)
        if cell.form == DATE:
            return put_date(cell, p, size, self._copy, into)
        if cell.form == BYTES:
            put_hex(p, size, into)
            return NONE
        if cell.ascii_is_plain and is_ascii(p, size):
            return self._text(p, size, cell.zero, into)
        if cell.singles != NULL:
            return self._single_bytes(cell, p, size, into)
        return self._decode(column, p, size, into)

    cdef int _text(
        self, const uint8_t* p, int64_t size, int zero, uint8_t** into
    ) noexcept nogil:
        """Copy with escapes, eight bytes at a time where there are none."""
        cdef uint8_t* out = into[0]
        cdef const uint8_t* end = p + size
        cdef const uint8_t* until
        cdef uint8_t letter
        while p < end:
            if end - p >= 8 and not has_special(word_at(p)):
                memcpy(out, p, 8)
                p += 8
                out += 8
                continue
            until = p + 8 if end - p >= 8 else end
            while p < until:
                letter = escape_of(p[0])
                if letter:
                    out[0] = c"\\"
                    out[1] = letter
                    out += 2
                elif p[0] == 0:
                    if zero == REFUSED:
                        return NO_ZERO
                    if zero == KEPT:
                        out += put_zero(self._copy, out)
                else:
                    out[0] = p[0]
                    out += 1
                p += 1
        into[0] = out
        return NONE

    cdef int _single_bytes(
        self, Cell* cell, const uint8_t* p, int64_t size, uint8_t** into
    ) noexcept nogil:
        cdef uint8_t* out = into[0]
        cdef const uint8_t* known
        cdef uint8_t letter
        cdef int64_t at
        for at in range(size):
            known = cell.singles + 4 * <int64_t>p[at]
            if known[0] == 0:
                return NO_CHARACTER
            if known[0] > 1:
                out[0] = known[1]
                out[1] = known[2]
                if known[0] == 3:
                    out[2] = known[3]
                out += known[0]
                continue
            letter = escape_of(known[1])
            if letter:
                out[0] = c"\\"
                out[1] = letter
                out += 2
            elif known[1] == 0:
                if cell.zero == REFUSED:
                    return NO_ZERO
                if cell.zero == KEPT:
                    out += put_zero(self._copy, out)
            else:
                out[0] = known[1]
                out += 1
        into[0] = out
        return NONE

    cdef int _decode(
        self, int column, const uint8_t* p, int64_t size, uint8_t** into
    ) noexcept with gil:
        """Call the twin's decoder. No character takes more than three bytes for one of its own."""
        try:
            text = self._decoders[column]((<const char*>p)[:size])
            encoded = text.encode()
            if PyBytes_GET_SIZE(encoded) > ROOM_PER_BYTE * size:
                raise AssertionError("a character became longer than it can")
            if 2 * PyBytes_GET_SIZE(encoded) > ROOM_PER_BYTE * size:
                # Escapes, too, must fit: count them.
                more = sum(map(encoded.count, (b"\\", b"\n", b"\t", b"\r", b"\0")))
                if PyBytes_GET_SIZE(encoded) + more > ROOM_PER_BYTE * size:
                    raise AssertionError("escapes became longer than they can")
            return self._text(
                <const uint8_t*>PyBytes_AS_STRING(encoded),
                PyBytes_GET_SIZE(encoded),
                self._cells[column].zero,
                into,
            )
        except UnicodeDecodeError:
            return NO_CHARACTER
        except BaseException as error:
            self._raised = error
            return RAISED


cdef inline int64_t size_at(const uint8_t* p) noexcept nogil:
    return p[0] | (<int64_t>p[1] << 8) | (<int64_t>p[2] << 16)


cdef inline int64_t little(const uint8_t* p, int width) noexcept nogil:
    cdef uint64_t value = 0
    cdef int place
    for place in range(width):
        value |= <uint64_t>p[place] << (8 * place)
    return <int64_t>value


cdef bint is_ascii(const uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t at = 0
    while size - at >= 8:
        if word_at(p + at) & 0x8080808080808080ULL:
            return False
        at += 8
    while at < size:
        if p[at] & 0x80:
            return False
        at += 1
    return True


cdef void put_hex(const uint8_t* p, int64_t size, uint8_t** into) noexcept nogil:
    cdef uint8_t* out = into[0]
    cdef int64_t at
    out[0] = c"\\"
    out[1] = c"\\"
    out[2] = c"x"
    out += 3
    for at in range(size):
        out[0] = DIGITS[p[at] >> 4]
        out[1] = DIGITS[p[at] & 15]
        out += 2
    into[0] = out


cdef inline int put_zero(bint copy, uint8_t* out) noexcept nogil:
    if copy:
        out[0] = 0
        return 1
    out[0] = c"\\"
    out[1] = c"0"
    return 2


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef inline int two(const uint8_t* p) noexcept nogil:
    return (p[0] - c"0") * 10 + (p[1] - c"0")


cdef bint is_date(const uint8_t* p, int64_t size) noexcept nogil:
    cdef int place
    if size < 10 or p[4] != c"-" or p[7] != c"-":
        return False
    for place in range(10):
        if place != 4 and place != 7 and not is_digit(p[place]):
            return False
    return True


cdef bint is_day(int year, int month, int day) noexcept nogil:
    cdef bint leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    cdef int length = 31
    if month == 2:
        length = 28 + leap
    elif month == 4 or month == 6 or month == 9 or month == 11:
        length = 30
    return 1 <= month <= 12 and 1 <= day <= length


cdef int put_date(
    Cell* cell, const uint8_t* p, int64_t size, bint copy, uint8_t** into
) noexcept nogil:
    cdef uint8_t* out = into[0]
    cdef int year, month, day
    memcpy(out, p, size)
    into[0] = out + size
    if not is_date(p, size):
        return NONE
    year = two(p) * 100 + two(p + 2)
    month = two(p + 5)
    day = two(p + 8)
    if cell.zero_is_null and not is_day(year, month, day):
        out[0] = c"\\"
        out[1] = c"N"
        into[0] = out + 2
    elif copy and year == 0 and month and day:
        out[3] = c"1"
        out += size
        out[0] = c" "
        out[1] = c"B"
        out[2] = c"C"
        into[0] = out + 3
    return NONE
