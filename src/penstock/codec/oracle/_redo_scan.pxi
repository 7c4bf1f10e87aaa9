# The scan of a statement into literals, by column; included by _sql_redo.pyx.
# `statements.py` is the readable form.

cdef enum Form:
    FORM_NULL = 1
    FORM_QUOTED = 2
    FORM_NUMBER = 3
    FORM_UNISTR = 4
    FORM_DATE = 5
    FORM_TIMESTAMP = 6
    FORM_ZONED = 7
    FORM_MONTHS = 8
    FORM_SECONDS = 9
    FORM_HEX = 10
    FORM_EMPTY_CLOB = 11
    FORM_EMPTY_BLOB = 12
    FORM_UNKNOWN = 13
    FORM_UNSUPPORTED = 14


cdef struct Literal:
    int form  # 0: the statement lacks the column
    bint escaped  # the text has doubled quotes
    int64_t start
    int64_t end
    int64_t first
    int64_t last
    int64_t mask_first  # -1: no format
    int64_t mask_last


cdef struct Trouble:
    int reason
    int64_t offset
    int column  # -1: none


cdef struct Name:
    const uint8_t* text
    int64_t length


cdef struct Bound:
    int count  # columns of the relation
    int named  # these and the names that are passed over, which follow them
    bint is_full
    Name* names
    Cell* cells
    Literal* new
    Literal* old
    int32_t* key
    int key_count
    int32_t* before
    int before_count
    Table* table


cdef struct Scan:
    # One statement.
    const uint8_t* text
    int64_t size
    Bound* bound
    int expected  # the column that is most likely the next one
    uint8_t op
    Trouble trouble  # what stopped the scan
    Trouble name_trouble  # the first wrong name, reported if the rest is a statement
    int32_t* order  # places of an insert's columns
    int64_t order_room


cdef inline int64_t refuse(Scan* scan, int reason, int64_t at) noexcept nogil:
    scan.trouble.reason = reason
    scan.trouble.offset = at
    scan.trouble.column = -1
    return -1


cdef inline bint is_space(uint8_t letter) noexcept nogil:
    return letter == c' ' or letter == c'\n' or letter == c'\t' or letter == c'\r'


cdef inline int64_t skip_space(Scan* scan, int64_t at) noexcept nogil:
    while at < scan.size and is_space(scan.text[at]):
        at += 1
    return at


cdef inline bint starts(Scan* scan, int64_t at, const char* word, int64_t length) noexcept nogil:
    return scan.size - at >= length and memcmp(scan.text + at, word, length) == 0


cdef inline bint has(Scan* scan, int64_t at, uint8_t letter) noexcept nogil:
    return at < scan.size and scan.text[at] == letter


cdef int64_t skip_word(Scan* scan, int64_t at, const char* word, int64_t length) noexcept nogil:
    """Return the offset after a word that a blank must follow; -1 if it is not there."""
    cdef int64_t end = at + length
    if not starts(scan, at, word, length) or end == scan.size or not is_space(scan.text[end]):
        return refuse(scan, BAD_SYNTAX, at)
    return skip_space(scan, end)


cdef inline int64_t skip_sign(
    Scan* scan, int64_t at, const char* sign, int64_t length
) noexcept nogil:
    if not starts(scan, at, sign, length):
        return refuse(scan, BAD_SYNTAX, at)
    return skip_space(scan, at + length)


cdef inline int64_t skip_name(Scan* scan, int64_t at) noexcept nogil:
    """Return the offset after a name in double quotes; -1 if there is none."""
    cdef const uint8_t* found
    if not has(scan, at, c'"'):
        return -1
    found = <const uint8_t*>memchr(scan.text + at + 1, c'"', scan.size - at - 1)
    if found == NULL or found == scan.text + at + 1:
        return -1
    return found - scan.text + 1


cdef inline int64_t skip_quoted(Scan* scan, int64_t at, bint* escaped) noexcept nogil:
    """Return the offset after a text in quotes; -1 if there is none or its end is missing."""
    cdef const uint8_t* found
    escaped[0] = False
    if not has(scan, at, c"'"):
        return -1
    at += 1
    while True:
        found = <const uint8_t*>memchr(scan.text + at, c"'", scan.size - at)
        if found == NULL:
            return -1
        at = found - scan.text + 1
        if not has(scan, at, c"'"):
            return at
        escaped[0] = True
        at += 1


cdef int64_t skip_table(Scan* scan, int64_t at) noexcept nogil:
    cdef int64_t end = skip_name(scan, at)
    if end >= 0:
        end = skip_name(scan, end + 1) if has(scan, end, c'.') else -1
    if end < 0:
        return refuse(scan, BAD_SYNTAX, at)
    end = skip_space(scan, end)
    if has(scan, end, c'a') and end + 1 < scan.size and is_space(scan.text[end + 1]):
        return skip_space(scan, end + 1)
    return end


cdef int find_name(Bound* bound, const uint8_t* text, int64_t length, int expected) noexcept nogil:
    """Return the place of a name; -1 if it is unknown. Columns mostly come in their order."""
    cdef int i, place
    cdef Name* name
    for i in range(bound.named):
        place = expected + i
        if place >= bound.named:
            place -= bound.named
        name = &bound.names[place]
        if name.length == length and memcmp(name.text, text, length) == 0:
            return place
    return -1


cdef inline void note(Scan* scan, int reason, int64_t at, int column) noexcept nogil:
    if scan.name_trouble.reason == 0:
        scan.name_trouble.reason = reason
        scan.name_trouble.offset = at
        scan.name_trouble.column = column


cdef inline int64_t scan_name(Scan* scan, int64_t at, Literal* literals, int* place) noexcept nogil:
    """Find the column of a name; move after it and the blanks that follow."""
    cdef Bound* bound = scan.bound
    cdef int64_t start = at + 2 if starts(scan, at, b"a.", 2) else at
    cdef int64_t end = skip_name(scan, start)
    cdef int found
    if end < 0:
        return refuse(scan, BAD_SYNTAX, at)
    found = find_name(bound, scan.text + start + 1, end - start - 2, scan.expected)
    place[0] = found
    if found < 0:
        if starts(scan, start + 1, b"COL ", 4):
            note(scan, BAD_DICTIONARY, at, -1)
        else:
            note(scan, BAD_COLUMN, at, -1)
    elif literals[found].form:
        note(scan, BAD_TWICE, at, found if found < bound.count else -1)
        place[0] = -1
    else:
        literals[found].form = FORM_UNKNOWN  # its value follows
        scan.expected = found + 1 if found + 1 < bound.named else 0
    return skip_space(scan, end)


cdef int64_t scan_argument(Scan* scan, int64_t at, Literal* literal) noexcept nogil:
    at = skip_space(scan, at)
    cdef int64_t end = skip_quoted(scan, at, &literal.escaped)
    if end < 0:
        return refuse(scan, BAD_SYNTAX, at)
    literal.first = at + 1
    literal.last = end - 1
    return skip_space(scan, end)


cdef int64_t scan_function(Scan* scan, int64_t at, int form, Literal* literal) noexcept nogil:
    """Read a function's arguments; at: after its parenthesis."""
    cdef Literal other
    literal.form = form
    at = scan_argument(scan, at, literal)
    if at < 0:
        return -1
    if FORM_DATE <= form <= FORM_ZONED and has(scan, at, c','):
        at = scan_argument(scan, skip_space(scan, at + 1), &other)
        if at < 0:
            return -1
        literal.mask_first = other.first
        literal.mask_last = other.last
    if not has(scan, at, c')'):
        return refuse(scan, BAD_SYNTAX, at)
    literal.end = at + 1
    while form == FORM_UNISTR:
        at = skip_space(scan, literal.end)
        if not starts(scan, at, b"||", 2):
            break
        at = skip_sign(scan, skip_space(scan, at + 2), b"UNISTR(", 7)
        if at >= 0:
            at = scan_argument(scan, at, &other)
        if at < 0:
            return -1
        if not has(scan, at, c')'):
            return refuse(scan, BAD_SYNTAX, at)
        literal.end = at + 1
    return literal.end


cdef inline int64_t scan_word(
    Scan* scan, int64_t at, const char* word, int64_t length, int form, Literal* literal
) noexcept nogil:
    """Return the end of a value that is a word; 0 if it is another one."""
    if not starts(scan, at, word, length):
        return 0
    literal.form = form
    literal.end = at + length
    return literal.end


cdef int64_t scan_function_name(Scan* scan, int64_t at, Literal* literal) noexcept nogil:
    """Return the end of a value that is a function's call; 0 if it is another one."""
    cdef uint8_t letter = scan.text[at]
    if letter == c'T':
        if starts(scan, at, b"TO_DATE(", 8):
            return scan_function(scan, at + 8, FORM_DATE, literal)
        if starts(scan, at, b"TO_TIMESTAMP(", 13):
            return scan_function(scan, at + 13, FORM_TIMESTAMP, literal)
        if starts(scan, at, b"TO_TIMESTAMP_TZ(", 16):
            return scan_function(scan, at + 16, FORM_ZONED, literal)
        if starts(scan, at, b"TO_YMINTERVAL(", 14):
            return scan_function(scan, at + 14, FORM_MONTHS, literal)
        if starts(scan, at, b"TO_DSINTERVAL(", 14):
            return scan_function(scan, at + 14, FORM_SECONDS, literal)
    elif letter == c'U':
        if starts(scan, at, b"UNISTR(", 7):
            return scan_function(scan, at + 7, FORM_UNISTR, literal)
    elif letter == c'H':
        if starts(scan, at, b"HEXTORAW(", 9):
            return scan_function(scan, at + 9, FORM_HEX, literal)
    return 0


cdef int64_t scan_value(Scan* scan, int64_t at, Literal* literal) noexcept nogil:
    """Note the form and the places of the value at an offset; return its end, or -1."""
    cdef int64_t end, start = at
    cdef uint8_t letter
    literal.start = at
    literal.mask_first = -1
    end = skip_quoted(scan, at, &literal.escaped)
    if end >= 0:
        literal.form = FORM_QUOTED
        literal.first = at + 1
        literal.last = end - 1
        literal.end = end
        return end
    if at >= scan.size:
        return refuse(scan, BAD_SYNTAX, at)
    letter = scan.text[at]
    if letter == c'-' or letter == c'.' or (letter >= c'0' and letter <= c'9'):
        while at < scan.size:
            letter = scan.text[at]
            if not (
                (letter >= c'0' and letter <= c'9')
                or letter == c'-' or letter == c'.' or letter == c'+' or letter == c'E'
            ):
                break
            at += 1
        literal.form = FORM_NUMBER
        literal.first = start
        literal.last = at
        literal.end = at
        return at
    end = scan_function_name(scan, at, literal)
    if end == 0:
        end = scan_word(scan, at, b"NULL", 4, FORM_NULL, literal)
    if end == 0:
        end = scan_word(scan, at, b"EMPTY_CLOB()", 12, FORM_EMPTY_CLOB, literal)
    if end == 0:
        end = scan_word(scan, at, b"EMPTY_BLOB()", 12, FORM_EMPTY_BLOB, literal)
    if end == 0:
        end = scan_word(scan, at, b"LM_EMPTY_STRING", 15, FORM_UNKNOWN, literal)
    if end == 0:
        end = scan_word(scan, at, b"Unsupported Type", 16, FORM_UNSUPPORTED, literal)
    if end == 0:
        end = scan_word(scan, at, b"XMLType(:1)", 11, FORM_UNKNOWN, literal)
    if end == 0 and starts(scan, at, b"/* JSON */", 10):
        at = skip_space(scan, at + 10)
        if has(scan, at, c'/'):
            return refuse(scan, BAD_SYNTAX, at)
        end = scan_value(scan, at, literal)
        literal.form = FORM_UNKNOWN
        literal.start = start
    if end == 0:
        return refuse(scan, BAD_SYNTAX, at)
    return end


cdef int64_t scan_end(Scan* scan, int64_t at) noexcept nogil:
    if has(scan, at, c';'):
        at = skip_space(scan, at + 1)
    if at != scan.size:
        return refuse(scan, BAD_SYNTAX, at)
    return at


cdef int64_t scan_condition(Scan* scan, int64_t at) noexcept nogil:
    cdef Literal spare
    cdef Literal* literal
    cdef int64_t end
    cdef int place, length
    length = 5 if starts(scan, at, b"ROWID", 5) else 7 if starts(scan, at, b"a.ROWID", 7) else 0
    if length:
        at = skip_sign(scan, skip_space(scan, at + length), b"=", 1)
        if at < 0:
            return -1
        end = skip_quoted(scan, at, &spare.escaped)
        return skip_space(scan, end) if end >= 0 else refuse(scan, BAD_SYNTAX, at)
    at = scan_name(scan, at, scan.bound.old, &place)
    if at < 0:
        return -1
    literal = &scan.bound.old[place] if place >= 0 else &spare
    literal.start = at
    if starts(scan, at, b"IS NULL", 7):
        literal.form = FORM_NULL
        end = at + 7
        literal.end = end
    elif starts(scan, at, b"IS NOT NULL", 11):
        literal.form = FORM_UNKNOWN
        end = at + 11
        literal.end = end
    else:
        at = skip_sign(scan, at, b"=", 1)
        if at < 0:
            return -1
        end = scan_value(scan, at, literal)
        if end < 0:
            return -1
    return skip_space(scan, end)


cdef int64_t scan_where(Scan* scan, int64_t at) noexcept nogil:
    if at == scan.size or has(scan, at, c';'):
        if scan_end(scan, at) < 0:
            return -1
        return refuse(scan, BAD_UNLOGGED, at)
    at = skip_word(scan, at, b"where", 5)
    while at >= 0:
        at = scan_condition(scan, at)
        if at < 0:
            return -1
        if not starts(scan, at, b"and", 3):
            return scan_end(scan, at)
        at = skip_word(scan, at, b"and", 3)
    return -1


cdef int64_t scan_update(Scan* scan, int64_t at) noexcept nogil:
    cdef Literal spare
    cdef int place
    scan.op = c'U'
    at = skip_table(scan, at)
    if at >= 0:
        at = skip_word(scan, at, b"set", 3)
    while at >= 0:
        at = scan_name(scan, at, scan.bound.new, &place)
        if at >= 0:
            at = skip_sign(scan, at, b"=", 1)
        if at >= 0:
            at = scan_value(scan, at, &scan.bound.new[place] if place >= 0 else &spare)
        if at < 0:
            return -1
        at = skip_space(scan, at)
        if not has(scan, at, c','):
            scan.expected = 0
            return scan_where(scan, at)
        at = skip_space(scan, at + 1)
    return -1


cdef int64_t scan_insert(Scan* scan, int64_t at) noexcept nogil:
    cdef Literal spare
    cdef int64_t count = 0, i
    cdef int place
    scan.op = c'I'
    at = skip_table(scan, at)
    if at < 0:
        return -1
    if starts(scan, at, b"values", 6):
        return refuse(scan, BAD_NO_COLUMNS, at)
    at = skip_sign(scan, at, b"(", 1)
    while at >= 0:
        at = scan_name(scan, at, scan.bound.new, &place)
        if at < 0:
            return -1
        if count == scan.order_room:
            if not regrow(<void**>&scan.order, (scan.order_room + 64) * 8):
                return refuse(scan, OUT_OF_MEMORY, at)
            scan.order_room = (scan.order_room + 64) * 2
        scan.order[count] = place
        count += 1
        if not has(scan, at, c','):
            break
        at = skip_space(scan, at + 1)
    if at >= 0:
        at = skip_sign(scan, at, b")", 1)
    if at >= 0:
        at = skip_sign(scan, at, b"values", 6)
    if at >= 0:
        at = skip_sign(scan, at, b"(", 1)
    if at < 0:
        return -1
    for i in range(count):
        place = scan.order[i]
        at = scan_value(scan, at, &scan.bound.new[place] if place >= 0 else &spare)
        if at < 0:
            return -1
        at = skip_space(scan, at)
        if i + 1 < count:
            if has(scan, at, c')'):
                return refuse(scan, BAD_COUNT, at)
            at = skip_sign(scan, at, b",", 1)
            if at < 0:
                return -1
    if has(scan, at, c','):
        return refuse(scan, BAD_COUNT, at)
    at = skip_sign(scan, at, b")", 1)
    return scan_end(scan, at) if at >= 0 else -1


cdef int64_t scan_statement(Scan* scan) noexcept nogil:
    """Note the literals of a statement; return -1 if it is none, with the trouble noted."""
    cdef int64_t at = skip_space(scan, 0)
    if at == scan.size:
        return refuse(scan, BAD_EMPTY, at)
    if starts(scan, at, b"insert into", 11):
        at = skip_word(scan, at, b"insert into", 11)
        return scan_insert(scan, at) if at >= 0 else -1
    if starts(scan, at, b"update", 6):
        at = skip_word(scan, at, b"update", 6)
        return scan_update(scan, at) if at >= 0 else -1
    if starts(scan, at, b"delete from", 11):
        scan.op = c'D'
        at = skip_word(scan, at, b"delete from", 11)
        if at >= 0:
            at = skip_table(scan, at)
        return scan_where(scan, at) if at >= 0 else -1
    if starts(scan, at, b"Dictionary Version Mismatch", 27):
        return refuse(scan, BAD_DICTIONARY, at)
    if starts(scan, at, b"/* No SQL_REDO for temporary tables */", 38):
        return refuse(scan, BAD_TEMPORARY, at)
    if starts(scan, at, b"Unsupported", 11) and skip_space(scan, at + 11) == scan.size:
        return refuse(scan, BAD_UNSUPPORTED, at)
    return refuse(scan, BAD_SYNTAX, at)
