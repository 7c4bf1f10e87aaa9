# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled decoder of binlog rows; `binlog.py` is its readable twin and says what it does.

Whole blocks are walked without the GIL; values go straight into column buffers that grow
geometrically and become Arrow arrays without a copy. Every length is checked before it is read.
Columns, tables and their memory are those of the PostgreSQL kernel.

Inside, functions return a Stop value (0: continue), FAILED with the reason noted, or OUT_OF_MEMORY;
RAISED means that a Python exception is set. A row that fails leaves the store dirty: the next row
of that relation starts by restoring it, so nothing of a broken row can remain.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.limits cimport INT_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from penstock.codec._cells cimport (
    ASK_TWIN, FINE, MALFORMED, NO_MEMORY, NOT_HEX, NOT_UTF8, POWER_MAX, POWER_MIN, UNFIT, be16,
    be32, be64, hex_digits, i128, is_bytea, is_utf8, popcount64, power_high, power_log2, power_low,
    read_date, read_decimal, read_float, read_hex, read_int, read_time, read_timestamp,
    read_unsigned, read_uuid, u128,
)

import uuid

import pyarrow as pa

from penstock.codec.columns import (
    TRANSACTIONS_SCHEMA,
    after_type,
    arrow_type,
    batch_schema,
    before_type,
)
from penstock.codec.mysql import (
    binary_json as mysql_json,
    binlog_compressed,
    binlog_events,
    binlog_images,
    binlog_outcome,
    binlog_partial,
    binlog_walk,
    charsets as mysql_charsets,
    gtids as mysql_gtids,
    values as mysql_values,
)
from penstock.codec.mysql.binlog_cells import cells
from penstock.codec.mysql.binlog_outcome import BinlogBroken, Reason, Stop, binlog_error
from penstock.codec.mysql.malformed import Malformed, Unfit
from penstock.codec.postgres import pgtext
from penstock.model import Identity, Rows

include "_binlog_names.pxi"
include "../_column_buffers.pxi"
include "../_relation_buffers.pxi"
include "_binlog_times.pxi"
include "_binlog_json.pxi"
include "_binlog_cells.pxi"
include "_binlog_images.pxi"
include "../_transactions.pxi"
include "_binlog_walk.pxi"
include "_binlog_groups.pxi"


cdef class Decoder(_Groups):
    """Decoder of whole blocks of packets into Arrow batches; see `binlog.Decoder`."""

    cdef readonly int64_t heartbeat_count
    cdef readonly object server_version
    cdef readonly bint is_mariadb
    cdef readonly bytes message
    cdef int _stop
    cdef uint64_t _widen_table
    cdef int _widen_column
    cdef bint _busy, _statements, _partial_inserts
    cdef int64_t _row_limit
    cdef list _slots  # every store that is bound or has rows, in the order they were made
    cdef _Scope _main
    cdef Scratch _scratch, _parked

    def __init__(
        self,
        *,
        int64_t gsn=0,
        int64_t trx=0,
        byte_limit=binlog_outcome.BYTE_LIMIT_DEFAULT,
        bint statements=False,
        bint partial_inserts=False,
    ):
        if self._slots is not None:
            raise ValueError("a decoder is created once")
        if not 1 <= byte_limit <= binlog_outcome.BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {binlog_outcome.BYTE_LIMIT_MAX}")
        self.gsn = gsn
        self.trx = trx
        self._gsn_before = gsn
        self._byte_limit = byte_limit
        self._statements = statements
        self._partial_inserts = partial_inserts
        self._slots = []
        self.message = b""
        self._forget()

    def __dealloc__(self):
        free(self._scratch.data)
        free(self._parked.data)

    cdef int _forget(self) except -1:
        self.in_transaction = False
        self.file_name = ""
        self.file_number = 0
        self.offset = 0
        self.server_version = ""
        self.is_mariadb = False
        self._checksums = -1
        self._main = _Scope()
        self._scope = self._main
        self._again = _Scope()
        self._joining = None
        self._row_at = 0
        self._closing = False
        self._begun = False
        self._single = False
        self._drop_slots()
        return 0

    def reset(self):
        self._idle()
        if self.in_transaction:
            self.abandon()
        self._forget()

    @property
    def stop(self):
        return _STOPS[self._stop]

    @property
    def widen(self):
        return (self._widen_table, self._widen_column)

    # --- relations

    def bind(self, table, relation, charsets=()):
        cdef _Binding binding
        self._idle()
        if relation is None:
            binding = _Binding(table, None, (), None)
        else:
            plan = cells(table, relation, charsets)
            binding = _Binding(table, relation, plan, self._slot(relation))
        if not ids_put(&self._scope.ids, &binding.bound):
            raise MemoryError
        self._scope.bindings[table.table_id] = binding
        self._drop_slots()

    cdef _Slot _slot(self, relation):
        cdef _Slot slot
        for slot in self._slots:
            if slot.relation == relation:
                return slot
        slot = _Slot(0, relation)
        self._slots.append(slot)
        return slot

    cdef int _drop_slots(self) except -1:
        """Keep the stores that are bound or have rows."""
        cdef _Binding binding
        cdef _Slot slot
        cdef _Scope scope
        used = set()
        for scope in (self._main, self._again):
            for binding in scope.bindings.values():
                used.add(id(binding.slot))
        self._slots = [slot for slot in self._slots if slot.table.rows or id(slot) in used]
        return 0

    def bindings(self):
        cdef _Binding binding
        return {number: binding.relation for number, binding in self._scope.bindings.items()}

    def table(self, table_id):
        cdef _Binding binding = self._scope.bindings[table_id]
        return binding.table

    def unbind_all(self):
        self._idle()
        self._unbind()

    cdef int _unbind(self) except -1:
        if not ids_clear(&self._scope.ids):
            raise MemoryError
        self._scope.bindings.clear()
        self._drop_slots()
        return 0

    cdef int _idle(self) except -1:
        """Refuse a call while another thread decodes: the GIL is off there."""
        if self._busy:
            raise ValueError("the decoder is in use by another thread")
        return 0

    # --- blocks

    def feed(self, block, start, end, row_limit, commit_limit=None):
        self._limits(row_limit, commit_limit)
        return self._decode(block, start, end, PACKETS)

    def feed_file(self, block, start, end, row_limit, commit_limit=None):
        self._limits(row_limit, commit_limit)
        return self._decode(block, start, end, FILE_BYTES)

    def start_file(self, name):
        self._idle()
        self.file_number = binlog_walk.file_number(name.encode(), 0)
        self.file_name = name
        self.offset = 0

    def park(self, block, start, end, byte_limit):
        if byte_limit < 1:
            raise ValueError("byte_limit must be at least 1")
        self._limits(1, 0)
        self._park_limit = byte_limit
        try:
            return self._decode(block, start, end, PACKETS)
        finally:
            self._park_limit = 0

    def take_parked(self):
        self._idle()
        taken = (<const char*>self._parked.data)[:self._parked.used]
        self._parked.used = 0
        return taken

    def replay(self, block, start, end, row_limit):
        self._limits(row_limit, None)
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._scope = self._again
        closing = self._closing
        self._closing = False
        try:
            return self._decode(block, start, end, BARE)
        finally:
            self._closing = closing

    cdef int _limits(self, row_limit, commit_limit) except -1:
        self._idle()
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self._row_limit = row_limit
        self._commit_limit = row_limit if commit_limit is None else commit_limit
        self._scope = self._main
        return 0

    cdef object _decode(self, block, Py_ssize_t start, Py_ssize_t end, int mode):
        cdef const uint8_t[::1] view = binlog_walk.view_block(block, start, end)
        cdef const uint8_t* bytes_ = &view[0] if view.shape[0] else NULL
        cdef int64_t consumed = start
        cdef int status
        self._busy = True
        self._stop = GO_ON
        self.message = b""
        try:
            with nogil:
                status = self._walk(bytes_, start, end, mode, &consumed)
        except BinlogBroken:
            self.offset = self._offset_before
            raise
        finally:
            self._busy = False
        self._finish(status)
        return consumed

    cdef int _finish(self, int status) except -1:
        """Note why decoding stopped, or raise what it failed with."""
        cdef _Binding binding
        cdef Trouble* trouble = &self._trouble
        if status >= 0:
            self._stop = status
            if status == STOP_WIDEN:
                self._widen_table = trouble.table_id
                self._widen_column = trouble.column
            elif status == STOP_MESSAGE or status == STOP_OTHER_FRAME:
                self.message = (<const char*>self._message_data)[:self._message_size]
            return 0
        if status == OUT_OF_MEMORY:
            raise MemoryError
        if not trouble.known:
            raise binlog_error(trouble.reason, trouble.offset, table_id=trouble.table_id)
        binding = self._scope.bindings[trouble.table_id]
        raise binlog_error(
            trouble.reason, trouble.offset, relation=binding.relation, column=trouble.column
        )

    cdef int _dispatch(
        self, const uint8_t* block, int64_t start, int64_t end, bint sealed
    ) except RAISED nogil:
        cdef uint8_t kind = block[start + 4]
        cdef uint8_t action = ACTIONS[kind]
        if self._scope is self._again and action != ACT_ROWS and kind != TABLE_MAP:
            if action == ACT_INFLATE:
                return self._inflate(block, start, end)
            return fail(&self._trouble, BAD_UNKNOWN_EVENT, start)
        if self._park_limit:
            if action == ACT_ROWS or action == ACT_INFLATE or kind == TABLE_MAP:
                return self._park_event(block, start, end)
        if action == ACT_ROWS:
            return self._rows_event(block, start, end)
        if kind == TABLE_MAP:
            return self._table_map(block, start, end)
        if kind == XID:
            if not self.in_transaction:
                return fail(&self._trouble, BAD_NO_TRANSACTION, start)
            if end - start != HEAD + 8:
                return fail(&self._trouble, BAD_EVENT_BODY, start)
            self.xid = little(block + start + HEAD, 8)
            return self._parked_end(block, start, end) if self._park_limit else self._close()
        if not sealed and OUTER[kind]:
            return fail(&self._trouble, BAD_UNKNOWN_EVENT, start)
        if kind == GTID or kind == ANONYMOUS_GTID:
            return self._gtid_event(block, start, end)
        if kind == MARIA_GTID:
            return self._maria_gtid(block, start, end)
        if kind == QUERY:
            return self._query_event(block, start, end)
        if action == ACT_INFLATE:
            if not self.in_transaction:
                return fail(&self._trouble, BAD_NO_TRANSACTION, start)
            return self._inflate(block, start, end)
        if kind == GTID_TAGGED:
            return self._tagged_event(block, start, end)
        if kind == TRANSACTION_PAYLOAD:
            return self._payload(block, start, end)
        return self._other_event(block, start, end)

    cdef int _other_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED nogil:
        """Handle an event that is rare, or pass over it."""
        cdef uint8_t kind = block[start + 4]
        cdef uint8_t action = ACTIONS[kind]
        cdef int status
        self.heartbeat_count += kind == HEARTBEAT or kind == HEARTBEAT_V2
        if action == ACT_PASS:
            return GO_ON
        if action == ACT_STATEMENT:
            return self._hand_out(block, start, end) if self._statements else GO_ON
        if action == ACT_UNKNOWN:
            if block[start + 17] & IGNORABLE:
                return GO_ON
            return fail(&self._trouble, BAD_UNKNOWN_EVENT, start)
        if kind == ROTATE:
            status = self._rotate_event(block, start, end)
            if status != GO_ON:
                return status
        elif kind == FORMAT_DESCRIPTION:
            status = self._format_event(block, start, end + SEAL)
            if status != GO_ON:
                return status
            end += SEAL
        elif kind == XA_PREPARE:
            if not self.in_transaction:
                return fail(&self._trouble, BAD_NO_TRANSACTION, start)
            self._closing = True
        elif action == ACT_ENDING:
            self._closing = self.in_transaction and self._single
        return self._hand_out(block, start, end)

    cdef int _park_event(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        cdef uint32_t size = <uint32_t>(end - start)
        if self._parked.used >= self._park_limit:
            return STOP_LIMIT
        if not scratch_room(&self._parked, size):
            return OUT_OF_MEMORY
        memcpy(self._parked.data + self._parked.used, block + start, size)
        memcpy(self._parked.data + self._parked.used + 9, &size, 4)
        self._parked.used += size
        return GO_ON

    # What Python does for the kernel. These raise, with places in the event moved to the block.

    cdef int _inflate(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        data = (<const char*>block)[start:end]
        self._scope.push(binlog_compressed.inflated_rows(data), False)
        return GO_ON

    cdef int _payload(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        if self._scope.has_side and block == self._scope.side_data:
            # Joined from packets it is a side already, which nothing writes over.
            data = memoryview(self._scope.side)[start:end]
        else:
            data = (<const char*>block)[start:end]
        payload = binlog_compressed.Payload(data)
        self._scope.push(payload.more(b""), False, payload)
        return GO_ON

    cdef int _partial_event(
        self, Bound* bound, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        cdef _Binding binding = <_Binding>bound.owner
        data = (<const char*>block)[start:end]
        self._scope.push(binlog_partial.rewritten(data, start, binding.twin), False)
        return GO_ON

    cdef int _format_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        try:
            said = binlog_events.format_description((<const char*>block)[start:end])
        except BinlogBroken:
            return fail(&self._trouble, BAD_FORMAT, start)
        self._checksums = said.has_checksums
        self.server_version = said.server_version
        self.is_mariadb = said.is_mariadb
        self._unbind()
        return GO_ON

    cdef int _rotate_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        cdef int64_t at = start + HEAD
        cdef uint64_t offset
        if end - at < 8:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        offset = little(block + at, 8)
        name = (<const char*>block)[at + 8:end]
        number = binlog_walk.file_number(name, start)
        if offset >> OFFSET_BITS:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        self.file_number = number
        self.file_name = name.decode("ascii")
        self.offset = <int64_t>offset
        return GO_ON

    def abandon(self):
        cdef _Slot slot
        cdef int64_t count = self._rows_open, held = 0
        self._idle()
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        if self._counted:
            for slot in self._slots:
                held += rows_of(&slot.table, self.trx)
        if held != count:
            return False
        if self._counted:
            for slot in self._slots:
                drop_rows(&slot.table, rows_of(&slot.table, self.trx))
        self.gsn = self._gsn_before
        self.row_count -= count
        if count:
            self.byte_count = self._bytes_before
        self.trx -= self._counted
        self.in_transaction = self._closing
        self._counted = False
        self._again = _Scope()
        return True

    def note_marker(self):
        self._idle()
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._count()
        return self.gsn, self.trx

    def skip(self, int64_t row_count, int64_t trx_count):
        self._idle()
        if self.in_transaction or self.row_count:
            raise ValueError("rows are not given out")
        self.gsn += row_count
        self.trx += trx_count

    # --- rows

    cdef int _table_map(
        self, const uint8_t* block, int64_t start, int64_t end
    ) noexcept nogil:
        cdef const uint8_t* body = block + start + HEAD
        cdef int64_t size = end - start - HEAD
        cdef Bound* known
        if size < 8:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        known = id_find(&self._scope.ids, little(body, 6))
        if known != NULL and known.body_size == size and memcmp(known.body, body, size) == 0:
            return GO_ON
        return self._hand_out(block, start, end)

    cdef int _rows_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED nogil:
        """Decode rows from `_row_at` on, where an earlier call stopped."""
        cdef const uint8_t* body = block + start + HEAD
        cdef uint8_t kind = block[start + 4], op
        cdef uint64_t table_id
        cdef Bound* bound
        cdef RowsHead head
        cdef int64_t at
        cdef int status
        if not self.in_transaction:
            return fail(&self._trouble, BAD_NO_TRANSACTION, start)
        if end - start < HEAD + 8:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        table_id = little(body, 6)
        if table_id == NO_TABLE and body[6] & 1:
            return GO_ON
        bound = id_find(&self._scope.ids, table_id)
        if bound == NULL:
            fail(&self._trouble, BAD_UNBOUND, start)
            self._trouble.table_id = table_id
            return FAILED
        if bound.ignored:
            return GO_ON
        if kind == PARTIAL_UPDATE_ROWS:
            return self._partial_event(bound, block, start, end)
        kind = kind - 23 if kind < 30 else kind - 30
        op = c'I' if kind == 0 else c'U' if kind == 1 else c'D'
        if not read_rows_head(block, start, end, op, &head):
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        status = check_head(bound, &self._trouble, &head, op, start, self._partial_inserts)
        if status != GO_ON:
            return status
        at = start + self._row_at if self._row_at else head.start
        while at < end:
            self._row_at = at - start
            if self.row_count >= self._row_limit or self.byte_count >= self._byte_limit:
                return STOP_LIMIT
            status = self._row(bound, block, op, &head, &at, end)
            if status != GO_ON:
                return status
        self._row_at = 0
        return GO_ON

    cdef int _row(
        self, Bound* bound, const uint8_t* block, uint8_t op, RowsHead* head, int64_t* at,
        int64_t end,
    ) except RAISED nogil:
        """Decode the row at `at` and count it."""
        cdef Table* table = bound.table
        cdef int64_t row, text = 0
        cdef bint has_absent = False
        cdef int status
        if not table_begin_row(table):
            return OUT_OF_MEMORY
        row = table.rows
        status = put_row(
            bound, &self._trouble, &self._scratch, block, op, head, at, end, &has_absent, &text
        )
        if status != GO_ON:
            return status
        if table.absent.valid != NULL and not has_absent:
            put_null(&table.absent, row)
        self._count()
        self.gsn += 1 + table.moved
        table.gsn[row] = self.gsn
        table.trx[row] = self.trx
        table.op[row] = op
        table.absents += has_absent
        table.dirty = False
        table.rows = row + 1
        self.row_count += 1
        self._rows_open += 1
        self.byte_count += text
        return GO_ON

    # --- results

    def take(self):
        cdef _Slot slot
        self._idle()
        taken = [slot.take() for slot in self._slots if slot.table.rows]
        self._drop_slots()
        self.row_count = 0
        self.byte_count = 0
        self._bytes_before = 0
        return taken

    def take_gtids(self):
        cdef int64_t i
        self._idle()
        taken = [gtid_text(&self._gtids[i]) for i in range(self._gtid_count)]
        self._gtid_count = 0
        return taken

    def take_transactions(self):
        self._idle()
        return ended_batch(&self._ended)
