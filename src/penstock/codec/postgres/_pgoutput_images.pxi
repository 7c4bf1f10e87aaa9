# Images of one row in a message or a COPY line, into the columns. Included by _pgoutput.pyx;
# `pgoutput_images.py` is the readable form.

cdef struct Trouble:
    # What was wrong and where; for STOP_WIDEN the relation and column.
    int reason
    int64_t offset
    uint32_t source_id
    int column  # -1: none
    bint known  # the relation is bound


cdef struct Scratch:
    uint8_t* data
    int64_t size


cdef int fail(Trouble* trouble, int reason, int64_t offset) noexcept nogil:
    trouble.reason = reason
    trouble.offset = offset
    trouble.known = False
    trouble.source_id = 0
    return FAILED


cdef int fail_in(
    Trouble* trouble, Table* table, int column, int reason, int64_t offset
) noexcept nogil:
    trouble.reason = reason
    trouble.offset = offset
    trouble.known = True
    trouble.source_id = table.source_id
    trouble.column = column
    return FAILED


cdef inline uint8_t byte_of_escape(uint8_t letter) noexcept nogil:
    """Return the byte that a backslash and this letter stand for; 0 if there is none."""
    if letter == c'\\':
        return c'\\'
    if letter == c'n':
        return 10
    if letter == c't':
        return 9
    if letter == c'r':
        return 13
    if letter == c'b':
        return 8
    if letter == c'f':
        return 12
    if letter == c'v':
        return 11
    return 0


cdef int put_images(
    Table* table,
    Trouble* trouble,
    const uint8_t* block,
    uint8_t op,
    int64_t at,
    int64_t end,
    bint* has_absent,
) except RAISED nogil:
    """Store both images of a row; count them only if all of the row is right."""
    cdef int64_t row = table.rows, after
    cdef int status, i
    cdef bint has_old = False
    cdef uint8_t kind
    if end - at < 1:
        return fail(trouble, BAD_TRUNCATED, at)
    kind = block[at]
    if op != c'I' and (kind == c'O' or kind == c'K'):
        has_old = True
        status = put_old_image(table, trouble, block, kind == c'O', &at, end)
        if status != GO_ON:
            return status
        if op == c'U':
            if end - at < 1:
                return fail(trouble, BAD_TRUNCATED, at)
            kind = block[at]
    elif op == c'D':
        return fail_in(trouble, table, -1, BAD_TUPLE_KIND, at)
    if op == c'D':
        for i in range(table.column_count):
            put_null(&table.after[i], row)
    else:
        if kind != c'N':
            return fail_in(trouble, table, -1, BAD_TUPLE_KIND, at)
        after = at
        status = put_new_image(table, trouble, block, op, has_old, &at, end, has_absent)
        if status != GO_ON:
            return status
        if has_old:
            table.moved = has_other_key(table, block, after)
    if at != end:
        return fail_in(trouble, table, -1, BAD_TRAILING, at)
    put_bit(table.after_valid, row, op != c'D')
    if table.before_valid != NULL:
        put_bit(table.before_valid, row, has_old)
        if not has_old:
            for i in range(table.before_count):
                put_null(&table.before[i], row)
    table.deletes += op == c'D'
    table.olds += has_old
    return GO_ON


cdef int put_old_image(
    Table* table, Trouble* trouble, const uint8_t* block, bint full, int64_t* at, int64_t end
) except RAISED nogil:
    """Store the columns of a before image and note where each value is.

    full: all columns are sent; otherwise only the key, and NULL means "not sent".
    at: on the image's letter; moved after the image.
    """
    cdef int64_t row = table.rows, i = at[0] + 1, length = 0
    cdef int column, before, status
    cdef uint8_t kind
    if table.before_valid == NULL:
        if not table_start_before(table):
            return OUT_OF_MEMORY
    status = check_column_count(table, trouble, block, i, end)
    if status != GO_ON:
        return status
    i += 2
    for column in range(table.column_count):
        status = check_cell(table, trouble, column, block, i, end, &kind, &length)
        if status != GO_ON:
            return status
        if kind == c'u':
            return fail_in(trouble, table, column, BAD_UNCHANGED, i)
        before = table.before_of[column]
        if kind == c't':
            i += 5
            if before >= 0:
                status = put(&table.before[before], row, block + i, length)
                if status != FINE:
                    return refuse_value(table, trouble, column, status, i)
            table.old[column].text = block + i
            i += length
        else:
            i += 1
            if before >= 0:
                put_null(&table.before[before], row)
            table.old[column].text = NULL
        table.old[column].length = length
        table.old[column].sent = full or kind == c't'
    at[0] = i
    return GO_ON


cdef int put_new_image(
    Table* table,
    Trouble* trouble,
    const uint8_t* block,
    uint8_t op,
    bint has_old,
    int64_t* at,
    int64_t end,
    bint* has_absent,
) except RAISED nogil:
    """Store an after image. at: on the image's letter; moved after the image."""
    cdef int64_t row = table.rows, i = at[0] + 1, length = 0
    cdef int column, status
    cdef uint8_t kind
    cdef const uint8_t* text
    status = check_column_count(table, trouble, block, i, end)
    if status != GO_ON:
        return status
    i += 2
    for column in range(table.column_count):
        status = check_cell(table, trouble, column, block, i, end, &kind, &length)
        if status != GO_ON:
            return status
        if kind == c't':
            i += 5
            text = block + i
            i += length
        else:
            text = NULL
            if kind == c'u':
                if op == c'I':
                    return fail_in(trouble, table, column, BAD_UNCHANGED, i)
                if has_old and table.old[column].sent:
                    text = table.old[column].text
                    length = table.old[column].length
                elif not put_absent(table, column, has_absent):
                    return OUT_OF_MEMORY
            i += 1
        if text == NULL:
            put_null(&table.after[column], row)
        else:
            status = put(&table.after[column], row, text, length)
            if status != FINE:
                return refuse_value(table, trouble, column, status, text - block)
    at[0] = i
    return GO_ON


cdef bint has_other_key(Table* table, const uint8_t* block, int64_t at) noexcept nogil:
    """Return whether an update changed the key (all columns if the table has no key).

    at: on the letter of the after image, which has been read without trouble. A separate pass,
    mostly over few columns, costs less than a check of each cell of every row.
    """
    cdef int64_t i = at + 3, length
    cdef int column
    cdef uint8_t kind
    cdef const uint8_t* text
    for column in range(table.key_end):
        kind = block[i]
        text, length = NULL, 0
        i += 1
        if kind == c't':
            length = be32(block + i)
            text = block + i + 4
            i += 4 + length
        if table.in_key[column] and kind != c'u' and differs(&table.old[column], text, length):
            return True
    return False


cdef inline bint differs(OldCell* old, const uint8_t* text, int64_t length) noexcept nogil:
    """Return whether a value differs from the one before the change. text: NULL for SQL's NULL."""
    if old.text == NULL or text == NULL:
        return old.text != text
    return old.length != length or memcmp(old.text, text, length) != 0


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


cdef inline int check_column_count(
    Table* table, Trouble* trouble, const uint8_t* block, int64_t at, int64_t end
) noexcept nogil:
    if end - at < 2:
        return fail(trouble, BAD_TRUNCATED, at)
    if <int64_t>be16(block + at) != table.column_count:
        return fail_in(trouble, table, -1, BAD_COLUMN_COUNT, at)
    return GO_ON


cdef inline int check_cell(
    Table* table,
    Trouble* trouble,
    int column,
    const uint8_t* block,
    int64_t at,
    int64_t end,
    uint8_t* kind,
    int64_t* length,
) noexcept nogil:
    """Check one value's head at `at`: its letter and, for text, that all of it is there."""
    if end - at < 1:
        return fail(trouble, BAD_TRUNCATED, at)
    kind[0] = block[at]
    if kind[0] == c't':
        if end - at < 5:
            return fail(trouble, BAD_TRUNCATED, at + 1)
        length[0] = be32(block + at + 1)
        if length[0] > end - at - 5:
            return fail(trouble, BAD_TRUNCATED, at + 5)
        return GO_ON
    if kind[0] == c'n' or kind[0] == c'u':
        return GO_ON
    return fail_in(trouble, table, column, BAD_CELL_KIND, at)


cdef int refuse_value(
    Table* table, Trouble* trouble, int column, int status, int64_t offset
) noexcept nogil:
    """Return what a value's status means for its row."""
    if status == UNFIT:
        trouble.source_id = table.source_id
        trouble.column = column
        return STOP_WIDEN
    if status == NO_MEMORY:
        return OUT_OF_MEMORY
    return fail_in(
        trouble, table, column, BAD_UTF8 if status == NOT_UTF8 else BAD_VALUE, offset
    )


cdef int put_line(
    Table* table,
    Trouble* trouble,
    Scratch* scratch,
    const uint8_t* block,
    int64_t at,
    int64_t end,
) except RAISED nogil:
    """Store the values of one line, block[at:end] without its newline."""
    cdef const uint8_t* found
    cdef const uint8_t* text
    cdef int64_t field_end, length = 0, row = table.rows
    cdef int column, status
    for column in range(table.column_count):
        if column:
            if at == end:
                return fail_in(trouble, table, -1, BAD_COPY_FIELDS, at)
            at += 1  # over the tab that ended the field before
        field_end = end
        if at < end:
            found = <const uint8_t*>memchr(block + at, c'\t', end - at)
            if found != NULL:
                field_end = found - block
        if field_end - at == 2 and block[at] == c'\\' and block[at + 1] == c'N':
            put_null(&table.after[column], row)
        else:
            status = unescape(
                table, trouble, scratch, column, block, at, field_end, &text, &length
            )
            if status != GO_ON:
                return status
            status = put(&table.after[column], row, text, length)
            if status != FINE:
                return refuse_value(table, trouble, column, status, at)
        at = field_end
    if at != end:
        return fail_in(trouble, table, -1, BAD_COPY_FIELDS, at)
    put_bit(table.after_valid, row, True)
    if table.before_valid != NULL:
        put_bit(table.before_valid, row, False)
        for column in range(table.before_count):
            put_null(&table.before[column], row)
    return GO_ON


cdef int unescape(
    Table* table,
    Trouble* trouble,
    Scratch* scratch,
    int column,
    const uint8_t* block,
    int64_t at,
    int64_t end,
    const uint8_t** text,
    int64_t* length,
) noexcept nogil:
    """Find a field's value: in the block itself, or without its escapes in the scratch."""
    cdef uint8_t* out
    cdef uint8_t byte
    text[0] = block + at
    length[0] = end - at
    if at == end or memchr(block + at, c'\\', end - at) == NULL:
        return GO_ON
    if end - at > scratch.size:
        if not regrow(<void**>&scratch.data, end - at):
            return OUT_OF_MEMORY
        scratch.size = end - at
    out = scratch.data
    while at < end:
        byte = block[at]
        if byte == c'\\':
            byte = byte_of_escape(block[at + 1]) if at + 1 < end else 0
            if byte == 0:
                return fail_in(trouble, table, column, BAD_COPY_ESCAPE, at)
            at += 1
        out[0] = byte
        out += 1
        at += 1
    text[0] = scratch.data
    length[0] = out - scratch.data
    return GO_ON
