# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled walk over the JSON of changefeeds; `changefeed.py` is its readable twin and says what
it does.

A place is an index into the body. Each function that walks returns the place after what it has
read, or -1 if it has noted a trouble.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp

cdef enum Trouble:
    SYNTAX = 1
    ENDS = 2
    UNKNOWN = 3
    TYPE = 4
    TWICE = 5
    TIME = 6
    NO_TIME = 7
    BEHIND = 8
    DEEP = 9
    BOTH = 10
    BARE = 11
    LONG = 12
    HALF = 13
    HUGE = 14
    NO_MEMORY = 99

cdef enum:
    DEPTH_MAX = 500
    DEPTH_BYTES = 63
    EXPONENT_MAX = 16383
    FIELDS = 10
    NANOS = 0
    LOGICAL = 1
    KEY = 2
    AFTER = 4
    BEFORE = 6
    TOPIC = 8
    NANOS_DIGITS_MAX = 19
    LOGICAL_DIGITS = 10

cdef struct Name:
    const char* text
    int size, place
    uint8_t first  # of its value

cdef Name NAMES[5]
NAMES[0] = Name(b"after", 5, AFTER, c"{")
NAMES[1] = Name(b"before", 6, BEFORE, c"{")
NAMES[2] = Name(b"key", 3, KEY, c"[")
NAMES[3] = Name(b"updated", 7, NANOS, c'"')
NAMES[4] = Name(b"topic", 5, TOPIC, c'"')

# Bytes that a string may hold as they are: neither quote nor backslash nor control character.
cdef uint8_t PLAIN[256]
cdef int _byte
for _byte in range(256):
    PLAIN[_byte] = _byte >= 0x20 and _byte != 0x22 and _byte != 0x5C


cdef struct Scan:
    const uint8_t* p
    int64_t end
    bint strict
    int known  # how many of NAMES
    int trouble
    int64_t start, stop  # what the trouble is about
    int64_t* rows
    int64_t count, room  # numbers, not lines
    uint8_t open[DEPTH_BYTES]  # a bit for each level: whether it is an object


cdef inline int64_t refuse(Scan* s, int trouble, int64_t start, int64_t stop) noexcept nogil:
    s.trouble = trouble
    s.start = start
    s.stop = stop
    return -1


cdef inline int64_t space(Scan* s, int64_t i) noexcept nogil:
    while i < s.end and (
        s.p[i] == c" " or s.p[i] == c"\n" or s.p[i] == c"\t" or s.p[i] == c"\r"
    ):
        i += 1
    return i


cdef inline int at(Scan* s, int64_t i) noexcept nogil:
    """Return the byte at i; at the end, note a trouble and return -1."""
    if i >= s.end:
        return <int>refuse(s, ENDS, s.end, s.end)
    return s.p[i]


cdef inline bint is_digit(Scan* s, int64_t i) noexcept nogil:
    return i < s.end and c"0" <= s.p[i] <= c"9"


cdef inline bint is_hex(uint8_t c) noexcept nogil:
    return c"0" <= c <= c"9" or c"a" <= (c | 0x20) <= c"f"


cdef inline int read_escape(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the UTF-16 code unit of an escape with four digits; -1 if there is no escape."""
    cdef int found = 0, index
    if end - p < 6 or p[0] != c"\\" or p[1] != c"u":
        return -1
    for index in range(2, 6):
        if not is_hex(p[index]):
            return -1
        found = found << 4 | ((p[index] & 0xF) + (9 if p[index] > c"9" else 0))
    return found


cdef int64_t string(Scan* s, int64_t i) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef int64_t end = s.end
    cdef uint8_t c
    cdef int code, first = at(s, i)
    if first < 0:
        return -1
    if first != c'"':
        return refuse(s, SYNTAX, i, i)
    i += 1
    while True:
        while i < end and PLAIN[p[i]]:
            i += 1
        if i >= end:
            return refuse(s, ENDS, end, end)
        if p[i] == c'"':
            return i + 1
        if p[i] != c"\\" or i + 1 >= end:
            return refuse(s, SYNTAX, i, i)
        c = p[i + 1]
        if c == c"u":
            code = read_escape(p + i, p + end)
            if code < 0:
                return refuse(s, SYNTAX, i, i)
            if code >> 11 != 0x1B:
                i += 6
            elif code < 0xDC00 and read_escape(p + i + 6, p + end) >> 10 == 0x37:
                i += 12
            else:
                return refuse(s, HALF, i, i)
        elif memchr(b'"\\/bfnrt', c, 8) != NULL:
            i += 2
        else:
            return refuse(s, SYNTAX, i, i)


cdef inline int64_t colon(Scan* s, int64_t i) noexcept nogil:
    """Return where the value of a name begins, after its colon."""
    cdef int byte
    i = space(s, i)
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte != c":":
        return refuse(s, SYNTAX, i, i)
    return space(s, i + 1)


cdef inline int64_t name(Scan* s, int64_t i) noexcept nogil:
    i = string(s, i)
    return i if i < 0 else colon(s, i)


cdef int64_t scalar(Scan* s, int64_t i) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef int64_t start = i, digits, exponent = 0
    cdef int first = at(s, i)
    if first < 0:
        return -1
    if first == c'"':
        return string(s, i)
    if first == c"t" and s.end - i >= 4 and memcmp(p + i, b"true", 4) == 0:
        return i + 4
    if first == c"n" and s.end - i >= 4 and memcmp(p + i, b"null", 4) == 0:
        return i + 4
    if first == c"f" and s.end - i >= 5 and memcmp(p + i, b"false", 5) == 0:
        return i + 5
    if first == c"-":
        i += 1
    if not is_digit(s, i):
        return refuse(s, SYNTAX, start, start)
    if p[i] == c"0":
        i += 1
    else:
        while is_digit(s, i):
            i += 1
    if i < s.end and p[i] == c"." and is_digit(s, i + 1):
        i += 2
        while is_digit(s, i):
            i += 1
    if i < s.end and (p[i] | 0x20) == c"e":
        digits = i + 1
        if digits < s.end and (p[digits] == c"+" or p[digits] == c"-"):
            digits += 1
        if is_digit(s, digits):
            i = digits
            while is_digit(s, i):
                if exponent <= EXPONENT_MAX:
                    exponent = exponent * 10 + (p[i] - c"0")
                i += 1
            if exponent > EXPONENT_MAX:
                return refuse(s, HUGE, start, i)
    return i


cdef int64_t value(Scan* s, int64_t i) noexcept nogil:
    cdef int depth = 0
    cdef int byte, close
    cdef int64_t inside
    while True:
        byte = at(s, i)
        if byte < 0:
            return -1
        if byte == c"{" or byte == c"[":
            if depth == DEPTH_MAX:
                return refuse(s, DEEP, i, i)
            close = byte + 2  # in ASCII, of both
            inside = space(s, i + 1)
            if at(s, inside) < 0:
                return -1
            if s.p[inside] != close:
                if byte == c"{":
                    s.open[depth >> 3] |= <uint8_t>(1 << (depth & 7))
                    inside = name(s, inside)
                    if inside < 0:
                        return -1
                else:
                    s.open[depth >> 3] &= <uint8_t>(~(1 << (depth & 7)))
                depth += 1
                i = inside
                continue
            i = inside + 1
        else:
            i = scalar(s, i)
            if i < 0:
                return -1
        while True:
            if depth == 0:
                return i
            i = space(s, i)
            byte = at(s, i)
            if byte < 0:
                return -1
            close = c"}" if s.open[(depth - 1) >> 3] >> ((depth - 1) & 7) & 1 else c"]"
            if byte == c",":
                i = space(s, i + 1)
                if close == c"}":
                    i = name(s, i)
                    if i < 0:
                        return -1
                break
            if byte != close:
                return refuse(s, SYNTAX, i, i)
            depth -= 1
            i += 1


cdef int64_t behind_member(Scan* s, int64_t i, int close, bint* ended) noexcept nogil:
    cdef int byte
    i = space(s, i)
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte == close:
        ended[0] = True
        return i + 1
    if byte != c",":
        return refuse(s, SYNTAX, i, i)
    return space(s, i + 1)


cdef bint time_of(const uint8_t* p, int64_t start, int64_t end, int64_t* row) noexcept nogil:
    cdef uint64_t nanos = 0, logical = 0
    cdef int64_t i = start, point
    cdef bint is_zero = True
    while i < end and c"0" <= p[i] <= c"9":
        if i - start == NANOS_DIGITS_MAX:
            return False
        nanos = nanos * 10 + (p[i] - c"0")  # 19 digits fit
        i += 1
    if i == start or i >= end or p[i] != c"." or nanos >> 63:
        return False
    point = i
    i += 1
    if i == end:
        return False
    while i < end:
        if not c"0" <= p[i] <= c"9":
            return False
        if p[i] != c"0":
            is_zero = False
        if i - point <= LOGICAL_DIGITS:
            logical = logical * 10 + (p[i] - c"0")
        i += 1
    if is_zero:
        logical = 0
    elif end - point - 1 != LOGICAL_DIGITS:
        return False
    if nanos == 0 and logical == 0:
        return False
    row[NANOS] = <int64_t>nanos
    row[LOGICAL] = <int64_t>logical
    return True


cdef int which_name(Scan* s, int64_t start, int64_t size) noexcept nogil:
    cdef int index
    for index in range(s.known):
        if NAMES[index].size == size and memcmp(s.p + start, NAMES[index].text, size) == 0:
            return index
    return -1


cdef bint resembles_known(Scan* s, int64_t start, int64_t size) noexcept nogil:
    """Return whether another reader may take a name for a known one: other case, or escapes."""
    cdef int index
    cdef int64_t i
    cdef uint8_t c
    if memchr(s.p + start, c"\\", size) != NULL:
        return True
    for index in range(s.known):
        if NAMES[index].size == size:
            for i in range(size):
                c = s.p[start + i]
                if c"A" <= c <= c"Z":
                    c |= 0x20
                if c != <uint8_t>NAMES[index].text[i]:
                    break
            else:
                return True
    return False


cdef int64_t line_member(Scan* s, int64_t i, int64_t* row, int* seen) noexcept nogil:
    cdef int64_t name_start = i + 1, name_end, end
    cdef int index, byte, place, quote
    i = string(s, i)
    if i < 0:
        return -1
    name_end = i - 1
    i = colon(s, i)
    if i < 0:
        return -1
    index = which_name(s, name_start, name_end - name_start)
    if index < 0:
        if (
            not s.strict
            and name_end - name_start == 8
            and memcmp(s.p + name_start, b"__crdb__", 8) == 0
        ):
            return refuse(s, BARE, name_start, name_end)
        if s.strict or resembles_known(s, name_start, name_end - name_start):
            return refuse(s, UNKNOWN, name_start, name_end)
        return value(s, i)
    if seen[0] >> index & 1:
        return refuse(s, TWICE, name_start, name_end)
    seen[0] |= 1 << index
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte == c"n":
        return scalar(s, i)
    if byte != NAMES[index].first:
        return refuse(s, TYPE, name_start, name_end)
    end = value(s, i)
    if end < 0:
        return -1
    place = NAMES[index].place
    if place == NANOS:
        if not time_of(s.p, i + 1, end - 1, row):
            return refuse(s, TIME, i + 1, end - 1)
    else:
        quote = place == TOPIC
        row[place] = i + quote
        row[place + 1] = end - quote
    return end


cdef int64_t line(Scan* s, int64_t i) noexcept nogil:
    cdef int64_t begin = i, room
    cdef int64_t* row
    cdef int64_t* grown
    cdef int seen = 0, field
    cdef bint ended = False
    cdef int byte = at(s, i)
    if byte < 0:
        return -1
    if byte != c"{":
        return refuse(s, TYPE, i, i)
    if s.count + FIELDS > s.room:
        room = 2 * s.room + 100 * FIELDS
        grown = <int64_t*>realloc(s.rows, room * sizeof(int64_t))
        if grown == NULL:
            return refuse(s, NO_MEMORY, i, i)
        s.rows = grown
        s.room = room
    row = s.rows + s.count
    for field in range(FIELDS):
        row[field] = -1
    i = space(s, i + 1)
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte == c"}":
        ended = True
        i += 1
    while not ended:
        i = line_member(s, i, row, &seen)
        if i < 0:
            return -1
        i = behind_member(s, i, c"}", &ended)
        if i < 0:
            return -1
    if row[NANOS] < 0:
        return refuse(s, NO_TIME, begin, i)
    if row[KEY] >= 0 and s.p[space(s, row[KEY] + 1)] == c"]":
        row[KEY] = row[KEY + 1] = -1
    s.count += FIELDS
    return i


cdef int64_t lines(Scan* s, int64_t i) noexcept nogil:
    cdef bint ended = False
    cdef int byte
    i = space(s, i + 1)
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte == c"]":
        return i + 1
    while not ended:
        i = line(s, i)
        if i < 0:
            return -1
        i = behind_member(s, i, c"]", &ended)
        if i < 0:
            return -1
    return i


cdef struct Batch:
    int seen
    int64_t payload, resolved, resolved_end


cdef int64_t batch_member(Scan* s, int64_t i, Batch* batch) noexcept nogil:
    cdef int64_t name_start = i + 1, size, end, digit
    cdef int which, byte
    i = string(s, i)
    if i < 0:
        return -1
    end = i - 1
    size = end - name_start
    i = colon(s, i)
    if i < 0:
        return -1
    if not s.strict and size == 8 and memcmp(s.p + name_start, b"__crdb__", 8) == 0:
        return refuse(s, BARE, name_start, end)
    if size == 7 and memcmp(s.p + name_start, b"payload", 7) == 0:
        which = 1
    elif size == 6 and memcmp(s.p + name_start, b"length", 6) == 0:
        which = 2
    elif size == 8 and memcmp(s.p + name_start, b"resolved", 8) == 0:
        which = 4
    else:
        return refuse(s, UNKNOWN, name_start, end)
    if batch.seen & which:
        return refuse(s, TWICE, name_start, end)
    batch.seen |= which
    byte = at(s, i)
    if byte < 0:
        return -1
    if byte == c"n":
        return scalar(s, i)
    if which == 1:
        if byte != c"[":
            return refuse(s, TYPE, name_start, end)
        batch.payload = i
        return lines(s, i)
    if which == 4:
        if byte != c'"':
            return refuse(s, TYPE, name_start, end)
        batch.resolved = i + 1
        i = value(s, i)
        batch.resolved_end = i - 1
        return i
    digit = i + (byte == c"-")
    i = value(s, i)
    if i < 0:
        return -1
    while digit < i and is_digit(s, digit):
        digit += 1
    if digit < i:
        return refuse(s, TYPE, name_start, end)
    return i


cdef int64_t walk_batch(Scan* s, Batch* batch) noexcept nogil:
    cdef bint ended = False
    cdef int64_t i = space(s, 0)
    if i == s.end:
        return i
    if s.p[i] != c"{":
        return refuse(s, TYPE, i, i)
    i = space(s, i + 1)
    if at(s, i) < 0:
        return -1
    if s.p[i] == c"}":
        ended = True
        i += 1
    while not ended:
        i = batch_member(s, i, batch)
        if i < 0:
            return -1
        i = behind_member(s, i, c"}", &ended)
        if i < 0:
            return -1
    i = space(s, i)
    if i < s.end:
        return refuse(s, BEHIND, i, s.end)
    if batch.resolved >= 0 and batch.payload >= 0:
        return refuse(s, BOTH, batch.resolved, batch.resolved_end)
    return i


cdef int64_t walk_lines(Scan* s, int64_t size, int64_t line_bytes_max) noexcept nogil:
    cdef int64_t start = 0, i
    cdef const uint8_t* found
    while start < size:
        found = <const uint8_t*>memchr(s.p + start, c"\n", size - start)
        s.end = size if found == NULL else found - s.p
        if s.end - start >= line_bytes_max:
            return refuse(s, LONG, start, s.end)
        i = space(s, start)
        if i < s.end:
            i = line(s, i)
            if i < 0:
                return -1
            i = space(s, i)
            if i < s.end:
                return refuse(s, BEHIND, i, s.end)
        start = s.end + 1
    return size


cdef _complain(Scan* s):
    from penstock.codec.changefeed import Refused

    if s.trouble == NO_MEMORY:
        raise MemoryError
    raise Refused(s.trouble, s.start, s.stop)


cdef void begin(Scan* s, bytes body, bint strict):
    s.p = <const uint8_t*>PyBytes_AS_STRING(body)
    s.end = PyBytes_GET_SIZE(body)
    s.strict = strict
    s.known = 5 if strict else 4
    s.trouble = 0
    s.rows = NULL
    s.count = s.room = 0


def scan_batch(bytes body not None, bint strict, /):
    cdef Scan s
    cdef Batch batch
    batch.seen = 0
    batch.payload = batch.resolved = batch.resolved_end = -1
    begin(&s, body, strict)
    try:
        with nogil:
            walk_batch(&s, &batch)
        if s.trouble:
            _complain(&s)
        rows = PyBytes_FromStringAndSize(<char*>s.rows, s.count * sizeof(int64_t))
        return rows, batch.resolved, batch.resolved_end
    finally:
        free(s.rows)


def scan_lines(bytes body not None, int64_t line_bytes_max, /):
    cdef Scan s
    begin(&s, body, False)
    try:
        with nogil:
            walk_lines(&s, s.end, line_bytes_max)
        if s.trouble:
            _complain(&s)
        return PyBytes_FromStringAndSize(<char*>s.rows, s.count * sizeof(int64_t))
    finally:
        free(s.rows)
