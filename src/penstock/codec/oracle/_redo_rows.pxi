# Images of one statement into the columns; included by _sql_redo.pyx.
# `_Images` of `sql_redo.py` is the readable form.

cdef int64_t STATEMENT_MAX = STATEMENT_BYTES_MAX


cdef int fail(Scan* scan, int reason, int64_t offset, int column) noexcept nogil:
    scan.trouble.reason = reason
    scan.trouble.offset = offset
    scan.trouble.column = column
    return FAILED


cdef int scan_row(
    Scan* scan, Bound* bound, const uint8_t* text, int64_t size
) noexcept nogil:
    """Note the literals of a statement and check that it has what identifies the row."""
    cdef int status
    scan.text = text
    scan.size = size
    scan.bound = bound
    scan.expected = 0
    scan.trouble.reason = 0
    scan.name_trouble.reason = 0
    memset(bound.new, 0, bound.named * sizeof(Literal))
    memset(bound.old, 0, bound.named * sizeof(Literal))
    if scan_statement(scan) < 0:
        return OUT_OF_MEMORY if scan.trouble.reason == OUT_OF_MEMORY else FAILED
    if scan.name_trouble.reason:
        scan.trouble = scan.name_trouble
        return FAILED
    status = check_told(scan, bound)
    return status if status != GO_ON else check_row(scan, bound)


cdef inline bint is_told(Literal* literal) noexcept nogil:
    return literal.form != 0 and literal.form < FORM_UNKNOWN


cdef inline bint is_long_data(Scan* scan, Literal* literal) noexcept nogil:
    return (
        literal.form == FORM_QUOTED
        and literal.last - literal.first == 9
        and starts(scan, literal.first, b"LONG DATA", 9)
    )


cdef int check_told(Scan* scan, Bound* bound) noexcept nogil:
    """Refuse a value that the statement hides, unless the type of its column explains that."""
    cdef int i
    cdef Literal* literal
    for i in range(bound.count):
        literal = &bound.new[i]
        if bound.cells[i].is_long and is_long_data(scan, literal):
            return fail(scan, BAD_UNTOLD, literal.start, i)
        if literal.form < FORM_UNKNOWN or bound.cells[i].how == HOW_UNREAD:
            continue
        if literal.form == FORM_UNSUPPORTED or not bound.cells[i].may_be_large:
            return fail(scan, BAD_UNTOLD, literal.start, i)
    for i in range(bound.count):
        literal = &bound.old[i]
        if bound.cells[i].is_long and is_long_data(scan, literal):
            literal.form = FORM_UNSUPPORTED
        if literal.form != FORM_UNSUPPORTED or bound.cells[i].how == HOW_UNREAD:
            continue
        if not bound.cells[i].may_be_large:
            return fail(scan, BAD_UNTOLD, literal.start, i)
    return GO_ON


cdef int check_row(Scan* scan, Bound* bound) noexcept nogil:
    """Refuse a row that lacks a value that identifies it."""
    cdef int i
    if scan.op == c'I':
        for i in range(bound.key_count):
            if not is_told(&bound.new[bound.key[i]]):
                return fail(scan, BAD_BEFORE, 0, bound.key[i])
        return GO_ON
    if bound.before_count == 0:
        return fail(scan, BAD_BEFORE, 0, -1)
    for i in range(bound.before_count):
        if not is_told(&bound.old[bound.before[i]]):
            return fail(scan, BAD_BEFORE, 0, bound.before[i])
    if scan.op == c'U':
        for i in range(bound.count):
            if bound.table.in_key[i] and bound.new[i].form >= FORM_UNKNOWN:
                return fail(scan, BAD_BEFORE, 0, i)
    return GO_ON


cdef bint has_other_key(Scan* scan) noexcept nogil:
    """Return whether an update changes the key (any column if the table has no key)."""
    cdef Bound* bound = scan.bound
    cdef Literal* new
    cdef Literal* old
    cdef int i
    for i in range(bound.table.key_end):
        new = &bound.new[i]
        old = &bound.old[i]
        if not bound.table.in_key[i] or new.form == 0 or old.form == 0:
            continue
        if new.form == FORM_NULL or old.form == FORM_NULL:
            if new.form != old.form:
                return True
            continue
        if new.end - new.start != old.end - old.start:
            return True
        if memcmp(scan.text + new.start, scan.text + old.start, new.end - new.start):
            return True
    return False


cdef int put_row(Scan* scan, bint* has_absent) except RAISED nogil:
    """Store both images of the statement."""
    cdef Bound* bound = scan.bound
    cdef Table* table = bound.table
    cdef int64_t row = table.rows
    cdef uint8_t op = scan.op
    cdef int status, i
    cdef bint has_before
    cdef Literal* literal
    for i in range(bound.count):
        if op == c'D':
            put_null(&table.after[i], row)
            continue
        literal = &bound.new[i]
        if literal.form == 0:
            literal = &bound.old[i]
        if not is_told(literal):
            put_null(&table.after[i], row)
            if not put_absent(table, i, has_absent):
                return OUT_OF_MEMORY
            continue
        status = put_cell(scan, &table.after[i], i, literal)
        if status != GO_ON:
            return status
    if op == c'U':
        table.moved = has_other_key(scan)
    has_before = op == c'D' or (op == c'U' and (bound.is_full or table.moved))
    if has_before:
        if table.before_valid == NULL and not table_start_before(table):
            return OUT_OF_MEMORY
        for i in range(bound.before_count):
            status = put_cell(scan, &table.before[i], bound.before[i], &bound.old[bound.before[i]])
            if status != GO_ON:
                return status
    put_bit(table.after_valid, row, op != c'D')
    if table.before_valid != NULL:
        put_bit(table.before_valid, row, has_before)
        if not has_before:
            for i in range(table.before_count):
                put_null(&table.before[i], row)
    table.deletes += op == c'D'
    table.olds += has_before
    return GO_ON


cdef inline int put_cell(
    Scan* scan, Column* column, int index, Literal* literal
) except RAISED nogil:
    """Store one value or NULL."""
    cdef Bound* bound = scan.bound
    cdef int64_t row = bound.table.rows
    cdef int status
    if literal.form == FORM_NULL:
        put_null(column, row)
        return GO_ON
    status = put_literal(column, row, &bound.cells[index], scan.text, literal)
    if status == NULL_VALUE:
        put_null(column, row)
        return GO_ON
    put_bit(column.valid, row, True)
    if status == FINE:
        return GO_ON
    if status == NO_MEMORY:
        return OUT_OF_MEMORY
    if status == UNFIT:
        scan.trouble.column = index
        return STOP_WIDEN
    if status == NOT_UTF8:
        return fail(scan, BAD_TEXT, literal.start, index)
    if status == OTHER_FORMAT:
        return fail(scan, BAD_FORMAT, literal.start, index)
    return fail(scan, BAD_VALUE, literal.start, index)


cdef bint put_absent(Table* table, int column, bint* has_absent) noexcept nogil:
    """Set a column's bit in the row's bitmap; return False if memory is missing."""
    cdef int64_t size = (table.column_count + 7) >> 3
    cdef int64_t row = table.rows
    cdef uint8_t* room
    if table.absent.valid == NULL:
        if not column_start(&table.absent, row, table.capacity):
            column_free(&table.absent)
            return False
    if not has_absent[0]:
        room = column_room(&table.absent, size)
        if room == NULL:
            return False
        memset(room, 0, size)
        table.absent.length += size
        table.absent.offsets[row + 1] = <int32_t>table.absent.length
        put_bit(table.absent.valid, row, True)
        has_absent[0] = True
    room = table.absent.data + table.absent.length - size
    room[column >> 3] |= <uint8_t>(1 << (column & 7))
    return True
