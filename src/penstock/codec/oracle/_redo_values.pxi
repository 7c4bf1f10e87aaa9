# Values of a statement into column buffers; included by _sql_redo.pyx.
# `literals.py` and `numbers.py` are the readable forms. Not here: dates and times
# (`_redo_moments.pxi`).

cdef enum How:
    HOW_INTEGER = 1
    HOW_DECIMAL = 2
    HOW_NUMBER_TEXT = 3
    HOW_FLOAT = 4
    HOW_FLOAT_TEXT = 5
    HOW_TEXT = 6
    HOW_BYTES = 7
    HOW_DATE = 8
    HOW_TIMESTAMP = 9
    HOW_ZONED = 10
    HOW_LOCAL = 11
    HOW_MONTHS = 12
    HOW_SECONDS = 13
    HOW_UNREAD = 14

cdef enum:
    # Statuses of a value, besides those of _cells.pxd.
    NULL_VALUE = 20
    OTHER_FORMAT = 21

cdef enum:
    NUMBER_DIGITS_MAX = 40
    NUMBER_TEXT_MAX = 200
    NUMBER_SHOWN_MAX = 200  # 40 digits, 130 zeros, sign and point


cdef struct Cell:
    int how
    bint is_text  # the column is kept as text
    bint may_be_large  # statements lack some values
    bint is_long  # statements have LONG DATA in place of some values
    int precision
    int scale
    int64_t least  # of a whole number
    int64_t most


cdef struct Number:
    bint negative
    int count  # significant digits, without zeros at either end; 0 for zero
    int exponent  # of ten, of the last digit
    uint8_t digits[NUMBER_TEXT_MAX]


cdef int put_shown(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store text or bytes that are valid."""
    cdef uint8_t* room = column_room(column, n)
    if room == NULL:
        return NO_MEMORY
    memcpy(room, p, n)
    column.length += n
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


# --- numbers

cdef int skip_digits(const uint8_t* p, int64_t n, int64_t at) noexcept nogil:
    while at < n and <uint8_t>(p[at] - c'0') <= 9:
        at += 1
    return <int>at


cdef struct Parts:
    # Places in the text of a number.
    bint negative
    int whole
    int whole_end
    int fraction  # equal to its end if there is none
    int fraction_end
    int power  # where its sign or first digit is; 0 without one
    int exponent


cdef bint split_number(const uint8_t* p, int64_t n, Parts* parts) noexcept nogil:
    """Find the parts of a number's text; return False if it is none."""
    cdef int at = 0
    cdef bint minus = False
    if n > NUMBER_TEXT_MAX:
        return False
    parts.negative = n > 0 and p[0] == c'-'
    at = parts.negative
    parts.whole = at
    at = skip_digits(p, n, at)
    parts.whole_end = at
    parts.fraction = at
    parts.fraction_end = at
    if at < n and p[at] == c'.':
        parts.fraction = at + 1
        at = skip_digits(p, n, at + 1)
        parts.fraction_end = at
    if parts.whole_end == parts.whole and parts.fraction_end == parts.fraction:
        return False
    parts.power = 0
    parts.exponent = 0
    if at < n:
        if p[at] != c'E':
            return False
        at += 1
        parts.power = at
        if at < n and (p[at] == c'-' or p[at] == c'+'):
            minus = p[at] == c'-'
            at += 1
        if n - at < 1 or n - at > 3 or skip_digits(p, n, at) != n:
            return False
        while at < n:
            parts.exponent = parts.exponent * 10 + p[at] - c'0'
            at += 1
        if minus:
            parts.exponent = -parts.exponent
    return True


cdef bint parse_number(const uint8_t* p, int64_t n, Number* number) noexcept nogil:
    """Read a number exactly; return False if it is none."""
    cdef Parts parts
    cdef int i, count = 0, adjusted
    if not split_number(p, n, &parts):
        return False
    for i in range(parts.whole, parts.whole_end):
        if count or p[i] != c'0':
            number.digits[count] = p[i]
            count += 1
    for i in range(parts.fraction, parts.fraction_end):
        if count or p[i] != c'0':
            number.digits[count] = p[i]
            count += 1
    number.exponent = parts.exponent - (parts.fraction_end - parts.fraction)
    while count and number.digits[count - 1] == c'0':
        count -= 1
        number.exponent += 1
    number.count = count
    number.negative = parts.negative and count > 0
    if count == 0:
        number.exponent = 0
        return True
    adjusted = number.exponent + count - 1
    return count <= NUMBER_DIGITS_MAX and -130 <= adjusted <= 126


cdef inline bint is_unlimited(const uint8_t* p, int64_t n) noexcept nogil:
    """Return whether a NUMBER is one of the infinities."""
    return (n == 1 and p[0] == c'~') or (n == 2 and p[0] == c'-' and p[1] == c'~')


cdef int put_whole(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t n
) noexcept nogil:
    """Store a whole number."""
    cdef Number number
    cdef int64_t value = 0, i
    cdef u128 wide = 0
    cdef bint negative = p[0] == c'-'
    i = negative
    if n <= 18 and i < n and skip_digits(p, n, i) == n:
        while i < n:
            value = value * 10 + p[i] - c'0'
            i += 1
        if negative:
            value = -value
    else:
        if is_unlimited(p, n):
            return UNFIT
        if not parse_number(p, n, &number):
            return MALFORMED
        if number.exponent < 0 or number.count + number.exponent > 19:
            return UNFIT
        for i in range(number.count):
            wide = wide * 10 + number.digits[i] - c'0'
        for i in range(number.exponent):
            wide = wide * 10
        if wide > (<u128>1 << 63) - 1 + number.negative:
            return UNFIT
        value = <int64_t>(0 - <uint64_t>wide if number.negative else <uint64_t>wide)
    if value < cell.least or value > cell.most:
        return UNFIT
    memcpy(column.data + row * column.width, &value, column.width)
    return FINE


cdef int put_decimal(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t n
) noexcept nogil:
    """Store a decimal."""
    cdef Number number
    cdef u128 wide = 0
    cdef int i, zeros
    if is_unlimited(p, n):
        return UNFIT
    if not parse_number(p, n, &number):
        return MALFORMED
    zeros = number.exponent + cell.scale
    if number.count:
        if zeros < 0 or number.count + zeros > cell.precision:
            return UNFIT
        wide = decimal_of(&number, zeros)
    if number.negative:
        wide = 0 - wide
    memcpy(column.data + row * 16, &wide, 16)
    return FINE


cdef u128 decimal_of(Number* number, int zeros) noexcept nogil:
    cdef u128 wide
    cdef uint64_t narrow = 0
    cdef int i, first = number.count if number.count < 18 else 18
    for i in range(first):
        narrow = narrow * 10 + number.digits[i] - c'0'
    wide = narrow
    for i in range(first, number.count):
        wide = wide * 10 + number.digits[i] - c'0'
    for i in range(zeros):
        wide = wide * 10
    return wide


cdef int put_number_text(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store a number with all digits and without an exponent."""
    cdef Number number
    cdef uint8_t shown[NUMBER_SHOWN_MAX]
    cdef int at = 0, i, whole
    if is_unlimited(p, n):
        if n == 2:
            return put_shown(column, row, b"-Infinity", 9)
        return put_shown(column, row, b"Infinity", 8)
    if not parse_number(p, n, &number):
        return MALFORMED
    if number.negative:
        shown[at] = c'-'
        at += 1
    whole = number.count + number.exponent  # digits in front of the point
    if whole <= 0:
        shown[at] = c'0'
        at += 1
        if number.count:
            shown[at] = c'.'
            at += 1
            memset(shown + at, c'0', -whole)
            at -= whole
    for i in range(number.count):
        if i == whole and i:
            shown[at] = c'.'
            at += 1
        shown[at] = number.digits[i]
        at += 1
    if number.exponent > 0:
        memset(shown + at, c'0', number.exponent)
        at += number.exponent
    return put_shown(column, row, shown, at)


cdef const char* special_float(const uint8_t* p, int64_t n) noexcept nogil:
    """Return the spelling of NaN or an infinity; NULL for another text."""
    cdef uint8_t low[10]
    cdef int64_t i
    if n < 3 or n > 9:
        return NULL
    for i in range(n):
        low[i] = p[i] | 0x20 if c'A' <= p[i] <= c'Z' else p[i]
    if n == 3 and memcmp(low, b"nan", 3) == 0:
        return b"NaN"
    if (n == 3 and memcmp(low, b"inf", 3) == 0) or (n == 8 and memcmp(low, b"infinity", 8) == 0):
        return b"Infinity"
    if (n == 4 and memcmp(low, b"-inf", 4) == 0) or (
        n == 9 and memcmp(low, b"-infinity", 9) == 0
    ):
        return b"-Infinity"
    return NULL


cdef int put_binary_float(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t n
) except RAISED nogil:
    """Store a binary float of either size, or its text."""
    cdef Parts parts
    cdef uint8_t plain[NUMBER_TEXT_MAX + 2]
    cdef int at = 0, status
    cdef const char* special = special_float(p, n)
    if special != NULL:
        at = <int>strlen(special)
        memcpy(plain, special, at)
    else:
        if not split_number(p, n, &parts):
            return MALFORMED
        if parts.negative:
            plain[at] = c'-'
            at += 1
        if parts.whole == parts.whole_end:
            plain[at] = c'0'
            at += 1
        at = copy_part(plain, at, p, parts.whole, parts.whole_end)
        if parts.fraction_end > parts.fraction:
            plain[at] = c'.'
            at = copy_part(plain, at + 1, p, parts.fraction, parts.fraction_end)
        if parts.power:
            plain[at] = c'e'
            at = copy_part(plain, at + 1, p, parts.power, <int>n)
    if cell.is_text:
        return put_shown(column, row, plain, at)
    status = put_float(column, row, plain, at)
    return UNFIT if status == MALFORMED else status


cdef int copy_part(
    uint8_t* to, int at, const uint8_t* p, int start, int end
) noexcept nogil:
    memcpy(to + at, p + start, end - start)
    return at + end - start


# --- text and bytes

cdef int put_quoted(
    Column* column, int64_t row, const uint8_t* text, Literal* literal
) noexcept nogil:
    """Store a text whose quotes are doubled."""
    cdef int64_t n = literal.last - literal.first, left
    cdef const uint8_t* p = text + literal.first
    cdef const uint8_t* found
    cdef uint8_t* room
    if not literal.escaped:
        return put_shown(column, row, p, n)
    room = column_room(column, n)
    if room == NULL:
        return NO_MEMORY
    while n > 0:
        found = <const uint8_t*>memchr(p, c"'", n)
        left = n if found == NULL else found - p + 1
        memcpy(room, p, left)
        room += left
        left += found != NULL  # the second of two quotes
        p += left
        n -= left
    column.length = room - column.data
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


cdef inline int hex_unit(const uint8_t* p) noexcept nogil:
    """Return the number of four hexadecimal digits; -1 if one is none."""
    cdef int i, unit = 0
    for i in range(4):
        if hex_digits[p[i]] == NOT_HEX:
            return -1
        unit = unit << 4 | hex_digits[p[i]]
    return unit


cdef int encode_character(uint8_t* to, int letter) noexcept nogil:
    """Write a character in UTF-8; return its length."""
    if letter < 0x80:
        to[0] = <uint8_t>letter
        return 1
    if letter < 0x800:
        to[0] = <uint8_t>(0xC0 | letter >> 6)
        to[1] = <uint8_t>(0x80 | letter & 0x3F)
        return 2
    if letter < 0x10000:
        to[0] = <uint8_t>(0xE0 | letter >> 12)
        to[1] = <uint8_t>(0x80 | letter >> 6 & 0x3F)
        to[2] = <uint8_t>(0x80 | letter & 0x3F)
        return 3
    to[0] = <uint8_t>(0xF0 | letter >> 18)
    to[1] = <uint8_t>(0x80 | letter >> 12 & 0x3F)
    to[2] = <uint8_t>(0x80 | letter >> 6 & 0x3F)
    to[3] = <uint8_t>(0x80 | letter & 0x3F)
    return 4


cdef int put_unistr(
    Column* column, int64_t row, const uint8_t* text, Literal* literal
) noexcept nogil:
    """Store the text of a chain of UNISTR, which is never longer in UTF-8 than the chain."""
    cdef int64_t at = literal.start
    cdef uint8_t* room = column_room(column, literal.end - literal.start)
    cdef uint8_t* begin = room
    cdef int unit, high = 0
    if room == NULL:
        return NO_MEMORY
    while at < literal.end:
        if text[at] != c"'":
            at += 1
            continue
        at += 1
        while True:  # inside quotes
            unit = -1
            if text[at] == c"'":
                if text[at + 1] != c"'":
                    at += 1
                    break
                at += 1
            elif text[at] == c'\\' and text[at + 1] != c'\\':
                unit = hex_unit(text + at + 1)  # a quote and more follow: within the statement
            if high and not 0xDC00 <= unit <= 0xDFFF:
                return NOT_UTF8
            if unit >= 0:
                at += 5
                if 0xD800 <= unit <= 0xDBFF:
                    high = unit
                    continue
                if 0xDC00 <= unit <= 0xDFFF:
                    if not high:
                        return NOT_UTF8
                    unit += 0x10000 + ((high - 0xD800) << 10) - 0xDC00
                    high = 0
                room += encode_character(room, unit)
                continue
            if text[at] == c'\\':
                if text[at + 1] != c'\\':
                    return MALFORMED
                at += 1
            room[0] = text[at]
            room += 1
            at += 1
    if high:
        return NOT_UTF8
    if room == begin:
        return NULL_VALUE
    column.length = room - column.data
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


cdef int put_hex(Column* column, int64_t row, const uint8_t* p, int64_t n) noexcept nogil:
    """Store the bytes of hexadecimal digits."""
    cdef uint8_t* room
    if n % 2:
        return MALFORMED
    room = column_room(column, n >> 1)
    if room == NULL:
        return NO_MEMORY
    if read_hex(p, n >> 1, room) != FINE:
        return MALFORMED
    column.length += n >> 1
    column.offsets[row + 1] = <int32_t>column.length
    return FINE


# --- any value

cdef int put_interval(
    int how, Column* column, int64_t row, const uint8_t* p, int64_t n
) except RAISED with gil:
    """Store an interval as the twin reads it: they are rare."""
    cdef bytes shown
    text = (<const char*>p)[:n]
    try:
        if how == HOW_MONTHS:
            shown = intervals.read_months(text).encode()
        else:
            shown = intervals.read_seconds(text).encode()
    except Malformed:
        return MALFORMED
    return put_shown(column, row, shown, len(shown))


cdef int put_literal(
    Column* column, int64_t row, Cell* cell, const uint8_t* text, Literal* literal
) except RAISED nogil:
    """Store one value; return its status, NULL_VALUE if it is an empty text."""
    cdef int how = cell.how, form = literal.form
    cdef const uint8_t* p = text + literal.first
    cdef int64_t n = literal.last - literal.first
    if how <= HOW_FLOAT_TEXT:
        if form != FORM_QUOTED and form != FORM_NUMBER:
            return MALFORMED
        if n == 0:
            return NULL_VALUE
        if how == HOW_INTEGER:
            return put_whole(column, row, cell, p, n)
        if how == HOW_DECIMAL:
            return put_decimal(column, row, cell, p, n)
        if how == HOW_NUMBER_TEXT:
            return put_number_text(column, row, p, n)
        return put_binary_float(column, row, cell, p, n)
    if how == HOW_TEXT:
        if form == FORM_QUOTED:
            return put_quoted(column, row, text, literal) if n else NULL_VALUE
        if form == FORM_UNISTR:
            return put_unistr(column, row, text, literal)
        return put_shown(column, row, b"", 0) if form == FORM_EMPTY_CLOB else MALFORMED
    if how == HOW_BYTES:
        if form == FORM_HEX:
            return put_hex(column, row, p, n) if n else NULL_VALUE
        return put_shown(column, row, b"", 0) if form == FORM_EMPTY_BLOB else MALFORMED
    if how == HOW_MONTHS or how == HOW_SECONDS:
        if form != (FORM_MONTHS if how == HOW_MONTHS else FORM_SECONDS):
            return MALFORMED
        return put_interval(how, column, row, p, n) if n else NULL_VALUE
    if how == HOW_DATE:
        if form != FORM_DATE:
            return MALFORMED
    elif how == HOW_TIMESTAMP:
        if form != FORM_TIMESTAMP:
            return MALFORMED
    elif how == HOW_ZONED or how == HOW_LOCAL:
        if form != FORM_ZONED:
            return MALFORMED
    else:
        return MALFORMED
    return put_moment(column, row, cell, text, literal)
