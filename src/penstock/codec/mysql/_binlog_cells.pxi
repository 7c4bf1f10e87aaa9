# One stored value into a column; included by _binlog.pyx. `values.py` is the readable form.
# Numbers of the ways to read a value are those of `binlog_cells.How`.

cdef enum How:
    SIGNED = 1
    UNSIGNED = 2
    FLOAT = 3
    DOUBLE = 4
    NEWDECIMAL = 5
    BITS = 6
    YEAR = 7
    CALENDAR_DATE = 8
    SPAN = 9
    DATETIME = 10
    EPOCH = 11
    UTF8 = 12
    SINGLE_BYTE = 13
    BYTES = 14
    PADDED = 15
    ENUM_LABEL = 16
    SET_LABELS = 17
    JSON = 18
    GEOMETRY = 19
    OTHER_TEXT = 20
    # Above this the twin is asked.

cdef struct Label:
    const uint8_t* text
    int64_t length


cdef struct Cell:
    int how
    int prefix
    int64_t size
    int precision
    int scale
    bint ascii_is_plain
    uint8_t* singles  # five bytes for each byte: length, then UTF-8
    Label* labels
    int64_t label_count


cdef struct Span:
    const uint8_t* start
    int64_t length
    bint sent
    bint is_null


cdef int put_integer(
    Column* column, int64_t row, int64_t value, bint is_unsigned, int64_t* text
) noexcept nogil:
    """Store a whole number in the column's own form."""
    cdef uint8_t out[TEXT_ROOM]
    cdef int64_t n = 0
    cdef uint64_t size = <uint64_t>value
    if column.kind == STRING:
        if not is_unsigned and value < 0:
            out[0] = c'-'
            n = 1
            size = 0 - size
        n += digits_of(size, out + n)
        return put_bytes(column, row, out, n, text)
    if column.kind == BOOL:
        if size > 1:
            return UNFIT
        put_bit(column.data, row, size == 1)
        return FINE
    memcpy(column.data + row * column.width, &value, column.width)
    return FINE


cdef int put_decimal(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t* text
) noexcept nogil:
    """Store a decimal from groups of nine digits, with the sign in the first bit."""
    cdef uint8_t plain[48]
    cdef uint8_t digits[TEXT_ROOM]
    cdef uint8_t out[TEXT_ROOM]
    cdef int64_t at = 0, count = 0, i, n = 0, whole = cell.precision - cell.scale, size, group
    cdef bint negative = not p[0] & 0x80, is_zero = True
    cdef uint64_t number
    cdef i128 value = 0
    for i in range(cell.size):
        plain[i] = p[i] ^ 0xFF if negative else p[i]
    plain[0] ^= 0x80
    while count < cell.precision:
        if count < whole:
            group = whole % 9 if count == 0 and whole % 9 else 9
        else:
            group = cell.precision - count
            if group > 9:
                group = 9
        size = REST_BYTES[group]
        number = big(plain + at, size)
        if number >= <uint64_t>TENS[group]:
            return MALFORMED
        at += size
        if column.kind == DECIMAL:
            value = value * TENS[group] + <int64_t>number
        else:
            fixed_digits(number, group, digits + count)
        is_zero = is_zero and number == 0
        count += group
    negative = negative and not is_zero
    if column.kind == DECIMAL:
        if negative:
            value = -value
        memcpy(column.data + row * 16, &value, 16)
        return FINE
    if negative:
        out[n] = c'-'
        n += 1
    i = 0
    while i < whole - 1 and digits[i] == c'0':
        i += 1
    if whole == 0:
        out[n] = c'0'
        n += 1
    while i < cell.precision:
        if i == whole:
            out[n] = c'.'
            n += 1
        out[n] = digits[i]
        n += 1
        i += 1
    return put_bytes(column, row, out, n, text)


# --- text and bytes

cdef int put_singles(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t n, int64_t* text
) noexcept nogil:
    """Store text of one byte per character."""
    cdef int64_t size = 0, i
    cdef const uint8_t* one
    cdef uint8_t* room
    if cell.ascii_is_plain and is_ascii(p, n):
        return put_bytes(column, row, p, n, text)
    for i in range(n):
        one = cell.singles + 5 * p[i]
        if one[0] == 0:
            return NOT_UTF8
        size += one[0]
    if text[0] + size > TEXT_MAX:
        return TOO_LONG
    room = column_room(column, size)
    if room == NULL:
        return NO_MEMORY
    for i in range(n):
        one = cell.singles + 5 * p[i]
        memcpy(room, one + 1, one[0])
        room += one[0]
    column.length += size
    column.offsets[row + 1] = <int32_t>column.length
    text[0] += size
    return FINE


cdef int put_padded(
    Column* column, int64_t row, Cell* cell, const uint8_t* p, int64_t n, int64_t* text
) noexcept nogil:
    """Store bytes whose zeros at the end are not in the log: BINARY(n), UUID."""
    cdef uint8_t* room
    if n > cell.size:
        return MALFORMED
    if column.kind == UUID:
        room = column.data + 16 * row
    else:
        if text[0] + cell.size > TEXT_MAX:
            return TOO_LONG
        room = column_room(column, cell.size)
        if room == NULL:
            return NO_MEMORY
        column.length += cell.size
        column.offsets[row + 1] = <int32_t>column.length
        text[0] += cell.size
    memcpy(room, p, n)
    memset(room + n, 0, cell.size - n)
    return FINE


cdef int put_set(
    Column* column, int64_t row, Cell* cell, uint64_t bits, int64_t* text
) noexcept nogil:
    """Store the labels whose bits are set, with commas between; an empty text has no comma after
    it.
    """
    cdef int64_t i, size = 0
    cdef uint8_t* room
    cdef uint8_t* start
    if cell.label_count < 64 and bits >> cell.label_count:
        return MALFORMED
    for i in range(cell.label_count):
        if bits >> i & 1:
            size += cell.labels[i].length + (size > 0)
    if text[0] + size > TEXT_MAX:
        return TOO_LONG
    room = column_room(column, size)
    if room == NULL:
        return NO_MEMORY
    start = room
    for i in range(cell.label_count):
        if bits >> i & 1:
            if room > start:
                room[0] = c','
                room += 1
            memcpy(room, cell.labels[i].text, cell.labels[i].length)
            room += cell.labels[i].length
    size = room - start
    column.length += size
    column.offsets[row + 1] = <int32_t>column.length
    text[0] += size
    return FINE


cdef int put_geometry(
    Column* column, int64_t row, const uint8_t* p, int64_t n, int64_t* text
) noexcept nogil:
    """Store SRID and WKB as EWKB in hexadecimal digits."""
    cdef uint32_t srid, kind
    cdef uint8_t head[9]
    cdef int64_t size
    cdef uint8_t* room
    if n < 9 or p[4] != 1:
        return MALFORMED
    srid = <uint32_t>little(p, 4)
    size = 2 * (n - 4 if srid == 0 else n)
    if text[0] + size > TEXT_MAX:
        return TOO_LONG
    room = column_room(column, size)
    if room == NULL:
        return NO_MEMORY
    if srid == 0:
        write_hex(p + 4, n - 4, room)
    else:
        kind = <uint32_t>little(p + 5, 4) | <uint32_t>0x20000000
        head[0] = 1
        memcpy(head + 1, &kind, 4)
        memcpy(head + 5, &srid, 4)
        write_hex(head, 9, room)
        write_hex(p + 9, n - 9, room + 18)
    column.length += size
    column.offsets[row + 1] = <int32_t>column.length
    text[0] += size
    return FINE


cdef void write_hex(const uint8_t* p, int64_t n, uint8_t* out) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        out[2 * i] = HEX[p[i] >> 4]
        out[2 * i + 1] = HEX[p[i] & 15]


cdef int put_real(Column* column, int64_t row, const uint8_t* p) noexcept nogil:
    """Store a float of either size; no server stores infinity or NaN."""
    cdef uint64_t bits = little(p, column.width)
    if column.kind == FLOAT64:
        if bits & <uint64_t>0x7FF0000000000000 == <uint64_t>0x7FF0000000000000:
            return MALFORMED
    elif bits & 0x7F800000 == 0x7F800000:
        return MALFORMED
    memcpy(column.data + row * column.width, &bits, column.width)
    return FINE


cdef int put_cell(
    Cell* cell, Column* column, int64_t row, const uint8_t* p, int64_t n, int64_t* text,
    Scratch* scratch,
) except RAISED nogil:
    """Store one value, p[0:n]; return ASK_TWIN if its kind is not read here."""
    cdef int how = cell.how
    cdef uint64_t number
    cdef int status
    if how == SIGNED:
        number = little(p, n)
        number <<= 64 - 8 * n
        return put_integer(column, row, <int64_t>number >> (64 - 8 * n), False, text)
    if how == UTF8:
        if not is_utf8(p, n):
            return NOT_UTF8
        return put_bytes(column, row, p, n, text)
    if how == DATETIME:
        return put_datetime(column, row, cell.size, cell.precision, p, text)
    if how == NEWDECIMAL:
        return put_decimal(column, row, cell, p, text)
    if how == EPOCH:
        return put_epoch(column, row, cell.size, cell.precision, p, text)
    if how == UNSIGNED:
        return put_integer(column, row, <int64_t>little(p, n), True, text)
    if how == FLOAT or how == DOUBLE:
        return put_real(column, row, p)
    if how == CALENDAR_DATE:
        return put_date(column, row, p, text)
    if how == SPAN:
        return put_span(column, row, cell.size, cell.precision, p, text)
    if how == SINGLE_BYTE:
        return put_singles(column, row, cell, p, n, text)
    if how == BYTES:
        return put_bytes(column, row, p, n, text)
    if how == PADDED:
        return put_padded(column, row, cell, p, n, text)
    if how == ENUM_LABEL:
        number = little(p, n)
        if <int64_t>number > cell.label_count:
            return MALFORMED
        if number == 0:
            return put_bytes(column, row, p, 0, text)
        return put_bytes(
            column, row, cell.labels[number - 1].text, cell.labels[number - 1].length, text
        )
    if how == SET_LABELS:
        return put_set(column, row, cell, little(p, n), text)
    if how == JSON:
        status = json_text(p, n, scratch)
        if status != FINE:
            return status
        return put_bytes(column, row, scratch.data, scratch.used, text)
    if how == BITS:
        number = big(p, n)
        if cell.precision < 64 and number >> cell.precision:
            return MALFORMED
        return put_integer(column, row, <int64_t>number, True, text)
    if how == YEAR:
        number = 1900 + p[0] if p[0] else 0
        if column.kind == STRING and number == 0:
            return put_bytes(column, row, <const uint8_t*>b"0000", 4, text)
        return put_integer(column, row, <int64_t>number, True, text)
    if how == GEOMETRY:
        return put_geometry(column, row, p, n, text)
    if how == OTHER_TEXT and cell.ascii_is_plain and is_ascii(p, n):
        return put_bytes(column, row, p, n, text)
    return ASK_TWIN
