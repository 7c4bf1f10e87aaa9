# Rows of a rows event into the columns, and what table ids mean; included by _binlog.pyx.
# `binlog_images.py` is the readable form.

cdef enum:
    NO_TABLE = 0xFFFFFF

cdef struct Trouble:
    # What was wrong and where; for STOP_WIDEN the table and column.
    int reason
    int64_t offset
    uint64_t table_id
    int column  # -1: none
    bint known  # the table is bound


cdef struct Bound:
    uint64_t table_id
    const uint8_t* body  # of the table's TABLE_MAP event
    int64_t body_size
    bint ignored
    bint is_full  # before images are always kept
    int count
    Cell* cells
    Span* old
    Span* new
    int32_t* key  # the columns of a before image
    int key_count
    Table* table
    void* owner  # the _Binding


cdef int fail(Trouble* trouble, int reason, int64_t offset) noexcept nogil:
    trouble.reason = reason
    trouble.offset = offset
    trouble.known = False
    trouble.table_id = 0
    trouble.column = -1
    return FAILED


cdef int fail_in(
    Trouble* trouble, Bound* bound, int column, int reason, int64_t offset
) noexcept nogil:
    fail(trouble, reason, offset)
    trouble.known = True
    trouble.table_id = bound.table_id
    trouble.column = column
    return FAILED


cdef class _Binding:
    """Binding of a table id: how its rows are read, and the slot that they go to."""

    cdef Bound bound
    cdef object table  # the TABLE_MAP
    cdef object relation
    cdef tuple readers
    cdef object twin  # what the twin would bind, for events that it rewrites
    cdef _Slot slot
    cdef list held  # keeps what the cells point to

    def __cinit__(self, table, relation, plan, _Slot slot):
        cdef Bound* bound = &self.bound
        cdef bytes body = table.body
        cdef int i
        memset(bound, 0, sizeof(Bound))
        self.table = table
        self.relation = relation
        self.slot = slot
        self.held = [body]
        bound.owner = <void*>self
        bound.table_id = table.table_id
        bound.body = body
        bound.body_size = len(body)
        bound.ignored = relation is None
        if relation is None:
            return
        self.readers = tuple(map(mysql_values.value_reader, plan))
        self.twin = binlog_images.Binding(
            table=table, relation=relation, cells=plan, readers=self.readers
        )
        bound.table = &slot.table
        bound.count = len(plan)
        bound.is_full = relation.identity is Identity.FULL
        bound.key_count = len(relation.before)
        bound.cells = <Cell*>calloc(bound.count + 1, sizeof(Cell))
        bound.old = <Span*>calloc(bound.count + 1, sizeof(Span))
        bound.new = <Span*>calloc(bound.count + 1, sizeof(Span))
        bound.key = <int32_t*>calloc(bound.key_count + 1, sizeof(int32_t))
        if bound.cells == NULL or bound.old == NULL or bound.new == NULL or bound.key == NULL:
            raise MemoryError
        for i in range(bound.key_count):
            bound.key[i] = relation.before[i]
        for i in range(bound.count):
            self.plan(&bound.cells[i], plan[i])

    cdef int plan(self, Cell* cell, planned) except -1:
        """Copy one cell's plan, with tables that C can read."""
        cdef int64_t i
        cdef bytes text
        cell.how = planned.how
        cell.prefix = planned.prefix
        cell.size = planned.size
        cell.precision = planned.precision
        cell.scale = planned.scale
        cell.ascii_is_plain = mysql_charsets.is_ascii_superset(planned.charset)
        if planned.how == SINGLE_BYTE:
            cell.singles = <uint8_t*>calloc(256, 5)
            if cell.singles == NULL:
                raise MemoryError
            for i, letter in enumerate(mysql_charsets.single_byte_table(planned.charset)):
                if letter is not None:
                    text = letter.encode()
                    cell.singles[5 * i] = <uint8_t>len(text)
                    memcpy(cell.singles + 5 * i + 1, <const char*>text, len(text))
        if planned.labels:
            cell.labels = <Label*>calloc(len(planned.labels), sizeof(Label))
            if cell.labels == NULL:
                raise MemoryError
            cell.label_count = len(planned.labels)
            for i, label in enumerate(planned.labels):
                text = label.encode()
                self.held.append(text)
                cell.labels[i].text = text
                cell.labels[i].length = len(text)
        return 0

    def __dealloc__(self):
        cdef int i
        if self.bound.cells != NULL:
            for i in range(self.bound.count):
                free(self.bound.cells[i].singles)
                free(self.bound.cells[i].labels)
        free(self.bound.cells)
        free(self.bound.old)
        free(self.bound.new)
        free(self.bound.key)


# --- what table ids mean

cdef struct IdMap:
    Bound** places  # open addressing; at most half full
    int64_t size  # a power of two
    int64_t used
    Bound* last  # rows of one table mostly come together


cdef Bound** id_place(IdMap* ids, uint64_t table_id) noexcept nogil:
    """Return where the binding of an id is, or would be."""
    cdef int64_t mask = ids.size - 1
    cdef int64_t i = <int64_t>(table_id * <uint64_t>0x9E3779B97F4A7C15 >> 32) & mask
    while ids.places[i] != NULL and ids.places[i].table_id != table_id:
        i = (i + 1) & mask
    return &ids.places[i]


cdef inline Bound* id_find(IdMap* ids, uint64_t table_id) noexcept nogil:
    """Return the binding of an id; NULL if it has none."""
    if ids.last == NULL or ids.last.table_id != table_id:
        ids.last = id_place(ids, table_id)[0]
    return ids.last


cdef bint ids_clear(IdMap* ids) noexcept nogil:
    """Empty the map; return False if memory is missing, and then nothing has changed."""
    cdef Bound** places = <Bound**>calloc(16, sizeof(Bound*))
    if places == NULL:
        return False
    free(ids.places)
    ids.places = places
    ids.size = 16
    ids.used = 0
    ids.last = NULL
    return True


cdef bint ids_put(IdMap* ids, Bound* bound) noexcept nogil:
    """Enter a binding under its id; return False if memory is missing, and then nothing has
    changed.
    """
    cdef IdMap wider
    cdef Bound** place
    cdef int64_t i
    if 2 * (ids.used + 1) > ids.size:
        wider = ids[0]
        wider.size = 2 * ids.size
        wider.places = <Bound**>calloc(wider.size, sizeof(Bound*))
        if wider.places == NULL:
            return False
        for i in range(ids.size):
            if ids.places[i] != NULL:
                id_place(&wider, ids.places[i].table_id)[0] = ids.places[i]
        free(ids.places)
        ids[0] = wider
    place = id_place(ids, bound.table_id)
    ids.used += place[0] == NULL
    place[0] = bound
    ids.last = bound
    return True


# --- the head of a rows event

cdef struct RowsHead:
    int64_t width
    const uint8_t* before  # bitmaps of the columns that images have; NULL: no such image
    const uint8_t* after
    int64_t before_count
    int64_t after_count
    int64_t start


cdef inline bint has_bit(const uint8_t* bitmap, int64_t index) noexcept nogil:
    return bitmap[index >> 3] >> (index & 7) & 1


cdef bint packed_length(
    const uint8_t* block, int64_t* at, int64_t end, uint64_t* out
) noexcept nogil:
    """Read a length-encoded number and move `at` after it; return False if it is malformed."""
    cdef int size
    cdef uint8_t first
    if end - at[0] < 1:
        return False
    first = block[at[0]]
    at[0] += 1
    if first < 0xFB:
        out[0] = first
        return True
    size = 2 if first == 0xFC else 3 if first == 0xFD else 8 if first == 0xFE else 0
    if size == 0 or end - at[0] < size:
        return False
    out[0] = little(block + at[0], size)
    at[0] += size
    return True


cdef bint read_rows_head(
    const uint8_t* block, int64_t start, int64_t end, uint8_t op, RowsHead* head
) noexcept nogil:
    """Read the head before the rows; return False if it is malformed."""
    cdef int64_t at = start + 27, extra, size
    cdef uint64_t width = 0
    cdef uint8_t kind = block[start + 4]
    if at > end:
        return False
    if kind >= 30:
        if end - at < 2:
            return False
        extra = <int64_t>little(block + at, 2)
        if extra < 2 or end - at < extra:
            return False
        at += extra
    if not packed_length(block, &at, end, &width) or width - 1 >= <uint64_t>COLUMN_COUNT_MAX:
        return False
    head.width = <int64_t>width
    size = (head.width + 7) // 8
    if end - at < size:
        return False
    head.before = NULL
    head.after = NULL
    head.before_count = 0
    head.after_count = 0
    if op == c'I':
        head.after = block + at
    else:
        head.before = block + at
    at += size
    if op == c'U':
        if end - at < size:
            return False
        head.after = block + at
        at += size
    # Servers set the bits behind the last column too: those do not count.
    if head.before != NULL:
        head.before_count = count_set(head.before, head.width)
    if head.after != NULL:
        head.after_count = count_set(head.after, head.width)
    head.start = at
    return True


cdef int check_head(
    Bound* bound, Trouble* trouble, RowsHead* head, uint8_t op, int64_t start, bint defaults
) noexcept nogil:
    """Refuse images that lack what is needed."""
    cdef int64_t i, missing = 0, first = -1
    if head.width != bound.count:
        return fail_in(trouble, bound, -1, BAD_COLUMN_COUNT, start)
    if op == c'I':
        for i in range(head.width):
            if not has_bit(head.after, i):
                missing += 1
                if first < 0:
                    first = i
        if missing == head.width or (missing and not defaults):
            return fail_in(trouble, bound, <int>first, BAD_DEFAULTED, start)
        return GO_ON
    for i in range(head.width):
        missing += has_bit(head.before, i)
    if missing == 0:
        return fail_in(trouble, bound, -1, BAD_BEFORE, start)
    for i in range(bound.key_count):
        if not has_bit(head.before, bound.key[i]):
            return fail_in(trouble, bound, bound.key[i], BAD_BEFORE, start)
    return GO_ON


# --- images

cdef int scan_image(
    Bound* bound, Trouble* trouble, const uint8_t* block, const uint8_t* present, int64_t count,
    Span* spans, int64_t* where, int64_t end,
) noexcept nogil:
    """Note where each value of an image is; move `where` after the image."""
    cdef int64_t at = where[0], size, place = 0
    cdef const uint8_t* nulls = block + at
    cdef bint whole = count == bound.count
    cdef int i
    cdef Cell* cell
    cdef Span* span
    if (count + 7) // 8 > end - at:
        return fail_in(trouble, bound, -1, BAD_TRUNCATED, at)
    at += (count + 7) // 8
    for i in range(bound.count):
        span = &spans[i]
        span.length = 0
        span.start = block + at
        span.is_null = True
        if not whole and not has_bit(present, i):
            span.sent = False
            continue
        span.sent = True
        span.is_null = has_bit(nulls, place)
        place += 1
        if span.is_null:
            continue
        cell = &bound.cells[i]
        if cell.prefix:
            if cell.prefix > end - at:
                return fail_in(trouble, bound, i, BAD_TRUNCATED, at)
            size = <int64_t>little(block + at, cell.prefix)
            if size > end - at - cell.prefix:
                return fail_in(trouble, bound, i, BAD_TRUNCATED, at)
            span.start = block + at + cell.prefix
            at += cell.prefix + size
        else:
            size = cell.size
            if size > end - at:
                return fail_in(trouble, bound, i, BAD_TRUNCATED, at)
            at += size
        span.length = size
    where[0] = at
    return GO_ON


cdef bint has_other_key(Bound* bound) noexcept nogil:
    """Return whether an update changed the key (all columns if the table has no key)."""
    cdef int i
    cdef Span* old
    cdef Span* new
    for i in range(bound.count):
        old = &bound.old[i]
        new = &bound.new[i]
        if not bound.table.in_key[i] or not new.sent:
            continue
        if old.is_null != new.is_null or old.length != new.length:
            return True
        if memcmp(old.start, new.start, old.length):
            return True
    return False


cdef int put_row(
    Bound* bound, Trouble* trouble, Scratch* scratch, const uint8_t* block, uint8_t op,
    RowsHead* head, int64_t* where, int64_t end, bint* has_absent, int64_t* text,
) except RAISED nogil:
    """Store both images of the row at `where`; move `where` after it."""
    cdef Table* table = bound.table
    cdef int64_t row = table.rows, at = where[0]
    cdef int status = GO_ON, i, index
    cdef bint has_old
    cdef Span* span
    if op != c'I':
        status = scan_image(
            bound, trouble, block, head.before, head.before_count, bound.old, &at, end
        )
    if status == GO_ON and op != c'D':
        status = scan_image(
            bound, trouble, block, head.after, head.after_count, bound.new, &at, end
        )
    if status != GO_ON:
        return status
    for i in range(bound.count):
        if op == c'D':
            put_null(&table.after[i], row)
            continue
        span = &bound.new[i]
        if not span.sent and op == c'U' and bound.old[i].sent:
            span = &bound.old[i]  # not changed, and the old image has it
        if not span.sent and not put_absent(table, i, has_absent):
            return OUT_OF_MEMORY
        status = put_span_value(
            bound, trouble, scratch, &table.after[i], i, span, block, where[0], text
        )
        if status != GO_ON:
            return status
    if op == c'U':
        table.moved = has_other_key(bound)
    has_old = op == c'D' or (op == c'U' and (bound.is_full or table.moved))
    if has_old:
        if table.before_valid == NULL and not table_start_before(table):
            return OUT_OF_MEMORY
        for i in range(bound.key_count):
            index = bound.key[i]
            status = put_span_value(
                bound, trouble, scratch, &table.before[i], index, &bound.old[index], block,
                where[0], text,
            )
            if status != GO_ON:
                return status
    put_bit(table.after_valid, row, op != c'D')
    if table.before_valid != NULL:
        put_bit(table.before_valid, row, has_old)
        if not has_old:
            for i in range(table.before_count):
                put_null(&table.before[i], row)
    table.deletes += op == c'D'
    table.olds += has_old
    text[0] += at - where[0]
    where[0] = at
    return GO_ON


cdef inline int put_span_value(
    Bound* bound, Trouble* trouble, Scratch* scratch, Column* column, int index, Span* span,
    const uint8_t* block, int64_t row_start, int64_t* text,
) except RAISED nogil:
    """Store one value or NULL."""
    cdef int64_t row = bound.table.rows
    cdef int status
    if span.is_null:
        put_null(column, row)
        return GO_ON
    status = put_cell(
        &bound.cells[index], column, row, span.start, span.length, text, scratch
    )
    if status == ASK_TWIN:
        status = ask_reader(<_Binding>bound.owner, index, column, row, span, text)
    put_bit(column.valid, row, True)
    if status == FINE:
        return GO_ON
    if status == UNFIT:
        trouble.table_id = bound.table_id
        trouble.column = index
        return STOP_WIDEN
    if status == NO_MEMORY:
        return OUT_OF_MEMORY
    if status == TOO_LONG:
        return fail_in(trouble, bound, -1, BAD_TOO_LONG, row_start)
    return fail_in(
        trouble, bound, index, BAD_TEXT if status == NOT_UTF8 else BAD_VALUE, span.start - block
    )


cdef int ask_reader(
    _Binding binding, int index, Column* column, int64_t row, Span* span, int64_t* text
) except RAISED with gil:
    """Read a value as the twin does: rare types, and text that only Python's codecs know."""
    cdef bytes data = (<const char*>span.start)[:span.length]
    cdef bytes out
    try:
        value = binding.readers[index](data)
    except Unfit:
        return UNFIT
    except Malformed:
        return MALFORMED
    except UnicodeDecodeError:
        return NOT_UTF8
    if column.kind < BYTEA:
        return put_integer(column, row, value, False, text)
    out = value.encode() if isinstance(value, str) else value
    return put_bytes(column, row, out, len(out), text)


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


# --- taking rows back

cdef int64_t rows_of(Table* table, int64_t trx) noexcept nogil:
    """Return how many of the last rows belong to a transaction."""
    cdef int64_t count = 0
    while count < table.rows and table.trx[table.rows - 1 - count] == trx:
        count += 1
    return count


cdef void drop_rows(Table* table, int64_t count) noexcept nogil:
    """Forget the last rows; the next row to begin restores the lengths of texts."""
    cdef int64_t row
    while count > 0:
        count -= 1
        row = table.rows - 1
        table.deletes -= table.op[row] == c'D'
        if table.before_valid != NULL:
            table.olds -= has_bit(table.before_valid, row)
        if table.absent.valid != NULL:
            table.absents -= has_bit(table.absent.valid, row)
        table.rows = row
        table.dirty = True
