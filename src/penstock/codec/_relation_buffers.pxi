# Rows of one relation version, and the stores by oid. Included by _pgoutput.pyx;
# `codec/row_store.py` is the readable form.

cdef struct OldCell:
    const uint8_t* text  # NULL: SQL's NULL
    int64_t length
    bint sent


cdef struct Table:
    uint32_t source_id
    int column_count
    int before_count
    int64_t rows
    int64_t capacity
    int64_t capacity_first  # rows to make room for at the start of a batch
    int64_t deletes
    int64_t olds  # rows with a before image
    int64_t absents  # rows with absent columns
    bint ignored  # rows are passed over
    bint dirty  # a row was begun and neither finished nor taken back
    bint moved  # the row begun is an update that changed its key: it has two numbers
    int64_t* gsn
    int64_t* trx
    uint8_t* op
    uint8_t* after_valid
    uint8_t* before_valid  # NULL until the batch's first before image, as are its columns
    Column absent  # begins with the batch's first absent column
    Column* after
    Column* before
    int32_t* before_of  # per column: where in before, -1 for nowhere
    uint8_t* in_key  # per column: whether a change of it changes the row's key
    int key_end  # behind the last of these; 0 for none
    OldCell* old


cdef bint table_grow(Table* table) noexcept nogil:
    """Make room for more rows in all columns that have begun."""
    cdef int64_t old = table.capacity
    cdef int64_t new = old * 2 if old else table.capacity_first
    cdef int i
    if not (
        regrow(<void**>&table.gsn, new * 8)
        and regrow(<void**>&table.trx, new * 8)
        and regrow(<void**>&table.op, new)
        and regrow(<void**>&table.after_valid, new >> 3)
    ):
        return False
    memset(table.after_valid + (old >> 3), 0, (new - old) >> 3)
    for i in range(table.column_count):
        if not column_grow(&table.after[i], table.rows, old, new):
            return False
    if table.before_valid != NULL:
        if not regrow(<void**>&table.before_valid, new >> 3):
            return False
        memset(table.before_valid + (old >> 3), 0, (new - old) >> 3)
        for i in range(table.before_count):
            if not column_grow(&table.before[i], table.rows, old, new):
                return False
    if table.absent.valid != NULL:
        if not column_grow(&table.absent, table.rows, old, new):
            return False
    table.capacity = new
    return True


cdef bint table_start_before(Table* table) noexcept nogil:
    """Create the before image's columns, NULL in the rows so far."""
    cdef int i
    for i in range(table.before_count):
        if not column_start(&table.before[i], table.rows, table.capacity):
            table_drop_before(table)
            return False
    table.before_valid = <uint8_t*>calloc(table.capacity >> 3, 1)
    if table.before_valid == NULL:
        table_drop_before(table)
        return False
    return True


cdef void table_drop_before(Table* table) noexcept nogil:
    cdef int i
    for i in range(table.before_count):
        column_free(&table.before[i])
    free(table.before_valid)
    table.before_valid = NULL


cdef inline void column_restore(Column* column, int64_t rows) noexcept nogil:
    if column.kind >= BYTEA and column.offsets != NULL:
        column.length = column.offsets[rows]


cdef bint table_begin_row(Table* table) noexcept nogil:
    """Make room for one row; remove what a failed row left."""
    cdef int i
    if table.rows == table.capacity:
        if not table_grow(table):
            return False
    if table.dirty:
        for i in range(table.column_count):
            column_restore(&table.after[i], table.rows)
        if table.before_valid != NULL:
            for i in range(table.before_count):
                column_restore(&table.before[i], table.rows)
        column_restore(&table.absent, table.rows)
    table.dirty = True
    table.moved = False
    return True


cdef void table_clear(Table* table) noexcept nogil:
    """Free all rows."""
    cdef int i
    free(table.gsn)
    free(table.trx)
    free(table.op)
    free(table.after_valid)
    table.gsn = NULL
    table.trx = NULL
    table.op = NULL
    table.after_valid = NULL
    for i in range(table.column_count):
        column_free(&table.after[i])
    table_drop_before(table)
    column_free(&table.absent)
    table.rows = 0
    table.capacity = 0
    table.deletes = 0
    table.olds = 0
    table.absents = 0
    table.dirty = False


cdef class _Slot:
    """A relation version and its rows."""

    cdef Table table
    cdef object relation

    def __cinit__(self, uint32_t source_id, relation):
        cdef Table* table = &self.table
        cdef int i
        memset(table, 0, sizeof(Table))
        self.relation = relation
        table.source_id = source_id
        table.capacity_first = ROWS_MIN
        table.absent.kind = RAW
        columns, before = len(relation.columns), len(relation.before)
        if len(set(relation.before)) != before:
            raise ValueError("a before image names a column twice")
        # One more than needed: malloc(0) may answer NULL.
        table.after = <Column*>calloc(columns + 1, sizeof(Column))
        table.before = <Column*>calloc(before + 1, sizeof(Column))
        table.before_of = <int32_t*>calloc(columns + 1, sizeof(int32_t))
        table.in_key = <uint8_t*>calloc(columns + 1, 1)
        table.old = <OldCell*>calloc(columns + 1, sizeof(OldCell))
        if (
            table.after == NULL
            or table.before == NULL
            or table.before_of == NULL
            or table.in_key == NULL
            or table.old == NULL
        ):
            raise MemoryError
        table.column_count = columns
        table.before_count = before
        for i in range(table.column_count):
            shape_column(&table.after[i], relation.columns[i])
            table.before_of[i] = -1
        for i in range(table.before_count):
            table.before[i] = table.after[<int>relation.before[i]]
            table.before_of[<int>relation.before[i]] = i
        for i in relation.identifying:
            table.in_key[i] = True
            table.key_end = max(table.key_end, i + 1)

    def __dealloc__(self):
        if self.table.after != NULL and self.table.before != NULL:
            table_clear(&self.table)
        free(self.table.after)
        free(self.table.before)
        free(self.table.before_of)
        free(self.table.in_key)
        free(self.table.old)

    cdef object take(self):
        """Move all rows into a batch."""
        cdef int64_t rows = self.table.rows
        try:
            batch = self.batch()
        finally:
            table_clear(&self.table)
        self.table.capacity_first = ROWS_MIN
        while self.table.capacity_first < rows and self.table.capacity_first < (1 << 20):
            self.table.capacity_first *= 2
        return batch

    cdef object batch(self):
        cdef Table* table = &self.table
        cdef int64_t rows = table.rows
        arrays = [
            whole(pa.int64(), rows, detach(<void**>&table.gsn, rows * 8)),
            whole(pa.int64(), rows, detach(<void**>&table.trx, rows * 8)),
            whole(pa.uint8(), rows, detach(<void**>&table.op, rows)),
            column_array(&table.absent, pa.binary(), rows)
            if table.absents
            else pa.nulls(rows, pa.binary()),
            self.after_images(),
            self.before_images(),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch_schema(self.relation))
        return Rows(relation=self.relation, batch=batch)

    cdef object after_images(self):
        cdef Table* table = &self.table
        cdef int64_t rows = table.rows
        cdef int i
        kind = after_type(self.relation)
        children = [
            column_array(&table.after[i], kind.field(i).type, rows)
            for i in range(table.column_count)
        ]
        valid = detach(<void**>&table.after_valid, (rows + 7) >> 3) if table.deletes else None
        return pa.Array.from_buffers(kind, rows, [valid], table.deletes, 0, children)

    cdef object before_images(self):
        cdef Table* table = &self.table
        cdef int64_t rows = table.rows
        cdef int i
        kind = before_type(self.relation)
        if table.olds == 0:
            return pa.nulls(rows, kind)
        children = [
            column_array(&table.before[i], kind.field(i).type, rows)
            for i in range(table.before_count)
        ]
        valid = None
        if table.olds < rows:
            valid = detach(<void**>&table.before_valid, (rows + 7) >> 3)
        return pa.Array.from_buffers(kind, rows, [valid], rows - table.olds, 0, children)


cdef object whole(object kind, int64_t rows, object buffer):
    """Return an Arrow array without NULLs."""
    return pa.Array.from_buffers(kind, rows, [None, buffer], 0)


cdef int shape_column(Column* column, object shape) except -1:
    """Set a column's kind from its neutral type. Raises KeyError for an unknown type."""
    neutral = shape.neutral
    if neutral.startswith("decimal("):
        kind = arrow_type(neutral)
        column.kind = DECIMAL
        column.width = 16
        column.precision = kind.precision
        column.scale = kind.scale
        return 0
    column.kind, column.width = _KINDS[neutral]
    if column.kind == RAW and pgtext.is_hex_bytea(shape):
        column.kind = BYTEA
    return 0


# --- stores by oid

cdef struct TableMap:
    Table** places  # open addressing; at most half full
    int64_t size  # a power of two
    int64_t used
    Table* last  # rows of one table mostly come together


cdef Table** map_place(TableMap* map, uint32_t source_id) noexcept nogil:
    """Return where the store of an oid is, or would be."""
    cdef int64_t mask = map.size - 1
    cdef int64_t i = (source_id * <uint64_t>0x9E3779B97F4A7C15 >> 32) & mask
    while map.places[i] != NULL and map.places[i].source_id != source_id:
        i = (i + 1) & mask
    return &map.places[i]


cdef inline Table* map_find(TableMap* map, uint32_t source_id) noexcept nogil:
    """Return the store of an oid; NULL if it has none."""
    if map.last == NULL or map.last.source_id != source_id:
        map.last = map_place(map, source_id)[0]
    return map.last


cdef bint map_clear(TableMap* map) noexcept nogil:
    """Empty the map; return False if memory is missing, and then nothing has changed."""
    cdef Table** places = <Table**>calloc(16, sizeof(Table*))
    if places == NULL:
        return False
    free(map.places)
    map.places = places
    map.size = 16
    map.used = 0
    map.last = NULL
    return True


cdef bint map_put(TableMap* map, Table* table) noexcept nogil:
    """Enter a store under its oid; return False if memory is missing, and then nothing has changed.
    """
    cdef TableMap wider
    cdef Table** place
    cdef int64_t i
    if 2 * (map.used + 1) > map.size:
        wider = map[0]
        wider.size = 2 * map.size
        wider.places = <Table**>calloc(wider.size, sizeof(Table*))
        if wider.places == NULL:
            return False
        for i in range(map.size):
            if map.places[i] != NULL:
                map_place(&wider, map.places[i].source_id)[0] = map.places[i]
        free(map.places)
        map[0] = wider
    place = map_place(map, table.source_id)
    map.used += place[0] == NULL
    place[0] = table
    map.last = table
    return True
