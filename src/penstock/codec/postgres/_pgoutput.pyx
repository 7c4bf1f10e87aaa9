# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled decoder of pgoutput rows; `pgoutput.py` is its readable twin and says what it does.

Whole blocks are walked without the GIL; values go straight into column buffers that grow
geometrically and become Arrow arrays without a copy. Every length is checked before it is read.
No pyarrow headers: buffers are wrapped through the buffer protocol.

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
    be32, be64, hex_digits, is_bytea, is_utf8, popcount64, power_high, power_log2, power_low,
    read_date, read_decimal, read_float, read_hex, read_int, read_time, read_timestamp,
    read_unsigned, read_uuid,
)

import pyarrow as pa

from penstock.codec.postgres import pgoutput_outcome, pgtext
from penstock.codec.columns import (
    TRANSACTIONS_SCHEMA,
    after_type,
    arrow_type,
    batch_schema,
    before_type,
)
from penstock.codec.postgres.pgoutput_outcome import Reason, Stop, decode_error
from penstock.model import Relation, Rows

cdef enum:
    FAILED = -1
    OUT_OF_MEMORY = -2
    RAISED = -3

cdef enum:
    GO_ON = 0
    STOP_LIMIT = 1
    STOP_COMMIT = 2
    STOP_KEEPALIVE = 3
    STOP_MESSAGE = 4
    STOP_WIDEN = 5
    STOP_OTHER_FRAME = 6

cdef enum:
    BAD_FRAME_LENGTH = 1
    BAD_COPY_DATA = 2
    BAD_MESSAGE_LENGTH = 3
    BAD_MESSAGE = 4
    BAD_TRUNCATED = 5
    BAD_TRAILING = 6
    BAD_NO_TRANSACTION = 7
    BAD_NESTED_BEGIN = 8
    BAD_COMMIT_MISMATCH = 9
    BAD_COMMIT_TIME = 10
    BAD_UNBOUND = 11
    BAD_COLUMN_COUNT = 12
    BAD_TUPLE_KIND = 13
    BAD_CELL_KIND = 14
    BAD_UNCHANGED = 15
    BAD_VALUE = 16
    BAD_UTF8 = 17
    BAD_COPY_FIELDS = 18
    BAD_COPY_ESCAPE = 19
    BAD_LINE_LENGTH = 20

cdef enum:
    PLAIN = 0
    STREAMED = 1
    PASSED = 2

cdef int64_t FRAME_LENGTH_MAX = pgoutput_outcome.FRAME_LENGTH_MAX_BYTES
cdef int64_t EPOCH_US = pgoutput_outcome.POSTGRES_EPOCH_US
cdef int64_t COMMIT_TIME_MAX = <int64_t>0x7FFFFFFFFFFFFFFF - EPOCH_US

_STOPS = tuple(Stop)
NO_RELATION = Relation(schema="", name="", columns=())

include "../_column_buffers.pxi"
include "../_relation_buffers.pxi"
include "_pgoutput_images.pxi"
include "../_transactions.pxi"


cdef class Decoder:
    """Decoder of whole blocks of wire frames into Arrow batches; see `pgoutput.Decoder`."""

    cdef readonly int64_t gsn
    cdef readonly int64_t trx
    cdef readonly int64_t row_count
    cdef readonly int64_t byte_count
    cdef readonly int64_t ignored_count
    cdef readonly bint in_transaction
    cdef readonly uint64_t commit_position
    cdef readonly uint64_t end_position
    cdef readonly int64_t commit_time_us
    cdef readonly uint32_t xid
    cdef int _stop
    cdef int64_t _message_start, _message_end
    cdef uint32_t _widen_source
    cdef int _widen_column
    cdef bint _busy, _counted
    cdef int64_t _byte_limit, _row_limit, _commit_limit
    cdef list _slots  # every store that is current or still has rows, in the order they were bound
    cdef dict _current
    cdef dict _ignored  # stores without columns that keep the map's places
    cdef TableMap _map  # the current stores by oid
    cdef Ended _ended
    cdef uint32_t* _dropped  # sorted
    cdef int64_t _dropped_count
    cdef Scratch _scratch  # for COPY fields with escapes
    cdef Trouble _trouble  # for the error that is made once the GIL is back

    def __init__(
        self,
        *,
        int64_t gsn=0,
        int64_t trx=0,
        byte_limit=pgoutput_outcome.BYTE_LIMIT_DEFAULT,
    ):
        if self._slots is not None:
            raise ValueError("a decoder is created once")
        if not 1 <= byte_limit <= pgoutput_outcome.BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {pgoutput_outcome.BYTE_LIMIT_MAX}")
        self.gsn = gsn
        self.trx = trx
        self._byte_limit = byte_limit
        self._slots = []
        self._current = {}
        self._ignored = {}
        if not map_clear(&self._map):
            raise MemoryError

    def __dealloc__(self):
        free(self._map.places)
        ended_free(&self._ended)
        free(self._dropped)
        free(self._scratch.data)

    @property
    def stop(self):
        return _STOPS[self._stop]

    @property
    def message(self):
        return (self._message_start, self._message_end)

    @property
    def widen(self):
        return (self._widen_source, self._widen_column)

    # --- relations

    def bind(self, source_id, relation):
        cdef _Slot known, slot
        self._idle()
        known = self._current.get(source_id)
        if known is not None and known.relation == relation:
            return
        slot = _Slot(source_id, relation)
        if not map_put(&self._map, &slot.table):
            raise MemoryError
        self._ignored.pop(source_id, None)
        if known is not None and known.table.rows == 0:
            self._slots.remove(known)
        self._current[source_id] = slot
        self._slots.append(slot)

    def ignore(self, source_id):
        cdef _Slot known, slot
        self._idle()
        slot = _Slot(source_id, NO_RELATION)
        slot.table.ignored = True
        if not map_put(&self._map, &slot.table):
            raise MemoryError
        self._ignored[source_id] = slot
        known = self._current.pop(source_id, None)
        if known is not None and known.table.rows == 0:
            self._slots.remove(known)

    def bindings(self):
        cdef _Slot slot
        return {source_id: slot.relation for source_id, slot in self._current.items()}

    def unbind_all(self):
        cdef _Slot slot
        self._idle()
        if not map_clear(&self._map):
            raise MemoryError
        self._current.clear()
        self._ignored.clear()
        self._slots = [slot for slot in self._slots if slot.table.rows]

    cdef int _idle(self) except -1:
        """Refuse a call while another thread decodes: the GIL is off there."""
        if self._busy:
            raise ValueError("the decoder is in use by another thread")
        return 0

    # --- blocks

    def feed(self, block, start, end, row_limit, commit_limit=None):
        self._limits(row_limit, commit_limit)
        return self._decode(block, start, end, PLAIN)

    def replay(self, block, start, end, row_limit, dropped):
        cdef int64_t i
        self._limits(row_limit, None)
        xids = sorted(set(dropped))
        free(self._dropped)
        self._dropped = NULL
        self._dropped_count = 0
        self._dropped = <uint32_t*>malloc((len(xids) + 1) * sizeof(uint32_t))
        if self._dropped == NULL:
            raise MemoryError
        for i, xid in enumerate(xids):
            self._dropped[i] = xid
        self._dropped_count = len(xids)
        return self._decode(block, start, end, STREAMED)

    def skip_rows(self, block, start, end):
        self._idle()
        return self._decode(block, start, end, PASSED)

    cdef int _limits(self, row_limit, commit_limit) except -1:
        self._idle()
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self._row_limit = row_limit
        self._commit_limit = row_limit if commit_limit is None else commit_limit
        return 0

    cdef object _decode(self, block, Py_ssize_t start, Py_ssize_t end, int mode):
        cdef const uint8_t[::1] view = _view_block(block, start, end)
        cdef const uint8_t* bytes_ = &view[0] if view.shape[0] else NULL
        cdef Py_ssize_t consumed = start
        cdef int status
        self._busy = True
        try:
            with nogil:
                status = self._walk(bytes_, start, end, mode, &consumed)
        finally:
            self._busy = False
        self._finish(status)
        return consumed

    cdef int _finish(self, int status) except -1:
        """Note why decoding stopped, or raise what it failed with."""
        cdef _Slot slot
        cdef Trouble* trouble = &self._trouble
        if status >= 0:
            self._stop = status
            if status == STOP_WIDEN:
                self._widen_source = trouble.source_id
                self._widen_column = trouble.column
            return 0
        self._stop = GO_ON
        if status == OUT_OF_MEMORY:
            raise MemoryError
        if not trouble.known:
            raise decode_error(trouble.reason, trouble.offset, source_id=trouble.source_id)
        slot = self._current[trouble.source_id]
        raise decode_error(
            trouble.reason, trouble.offset, relation=slot.relation, column=trouble.column
        )

    cdef int _walk(
        self, const uint8_t* block, int64_t start, int64_t end, int mode, Py_ssize_t* consumed
    ) except RAISED nogil:
        """Decode frames; `consumed` is set to the end of the last decoded one."""
        cdef int64_t at = start, length, behind
        cdef int status
        while end - at >= 5:
            length = be32(block + at + 1)
            if length < 4 or length > FRAME_LENGTH_MAX:
                return fail(&self._trouble, BAD_FRAME_LENGTH, at)
            behind = at + 1 + length
            if behind > end:
                break
            if block[at] != c'd':
                self._message_start = at + 5
                self._message_end = behind
                return STOP_OTHER_FRAME
            status = self._copy_data(block, at + 5, behind, mode)
            if status < 0 or status == STOP_LIMIT or status == STOP_WIDEN:
                return status
            at = behind
            consumed[0] = at
            if status != GO_ON:
                return status
        return GO_ON

    cdef int _copy_data(
        self, const uint8_t* block, int64_t start, int64_t end, int mode
    ) except RAISED nogil:
        cdef uint8_t kind = block[start] if end > start else 0
        if kind == c'w' and end - start > 25:
            return self._message_at(block, start + 25, end, mode)
        if kind == c'k' and end - start == 18:
            self._message_start = start
            self._message_end = end
            return STOP_KEEPALIVE
        return fail(&self._trouble, BAD_COPY_DATA, start)

    cdef int _message_at(
        self, const uint8_t* block, int64_t start, int64_t end, int mode
    ) except RAISED nogil:
        cdef uint8_t kind = block[start]
        if kind == c'I' or kind == c'U' or kind == c'D':
            if mode == PASSED:
                return GO_ON
            if not self.in_transaction:
                return fail(&self._trouble, BAD_NO_TRANSACTION, start)
            if mode == PLAIN:
                return self._row_message(block, start, start + 1, end)
            if end - start < 5:
                return fail(&self._trouble, BAD_TRUNCATED, start + 1)
            if self._is_dropped(be32(block + start + 1)):
                return GO_ON
            return self._row_message(block, start, start + 5, end)
        if mode == PLAIN:
            if kind == c'B':
                return self._begin_message(block, start, end)
            if kind == c'C':
                return self._commit_message(block, start, end)
        if kind == 0 or memchr(b"RYOTMSEcAbPKrp", kind, 14) == NULL:
            return fail(&self._trouble, BAD_MESSAGE, start)
        self._message_start = start
        self._message_end = end
        return STOP_MESSAGE

    cdef bint _is_dropped(self, uint32_t xid) noexcept nogil:
        cdef int64_t low = 0, high = self._dropped_count, middle
        while low < high:
            middle = (low + high) >> 1
            if self._dropped[middle] < xid:
                low = middle + 1
            else:
                high = middle
        return low < self._dropped_count and self._dropped[low] == xid

    # --- transactions

    cdef int _begin_message(
        self, const uint8_t* block, int64_t start, int64_t end
    ) noexcept nogil:
        cdef int64_t time
        if end - start != 21:
            return fail(&self._trouble, BAD_MESSAGE_LENGTH, start)
        if self.in_transaction:
            return fail(&self._trouble, BAD_NESTED_BEGIN, start)
        time = <int64_t>be64(block + start + 9)
        if time > COMMIT_TIME_MAX:
            return fail(&self._trouble, BAD_COMMIT_TIME, start)
        self._open(be64(block + start + 1), time + EPOCH_US, be32(block + start + 17))
        return GO_ON

    cdef int _commit_message(
        self, const uint8_t* block, int64_t start, int64_t end
    ) noexcept nogil:
        if end - start != 26:
            return fail(&self._trouble, BAD_MESSAGE_LENGTH, start)
        if not self.in_transaction:
            return fail(&self._trouble, BAD_NO_TRANSACTION, start)
        if be64(block + start + 2) != self.commit_position:
            return fail(&self._trouble, BAD_COMMIT_MISMATCH, start)
        if not self._close(be64(block + start + 10)):
            return OUT_OF_MEMORY
        if self.row_count >= self._commit_limit or self.byte_count >= self._byte_limit:
            return STOP_COMMIT
        return GO_ON

    def begin(self, uint64_t commit_position, int64_t commit_time_us, uint32_t xid):
        self._idle()
        if self.in_transaction:
            raise ValueError("a transaction is already open")
        self._open(commit_position, commit_time_us, xid)

    def commit(self, uint64_t end_position):
        self._idle()
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        if not self._close(end_position):
            raise MemoryError

    cdef void _open(self, uint64_t position, int64_t time_us, uint32_t xid) noexcept nogil:
        self.commit_position = position
        self.commit_time_us = time_us
        self.xid = xid
        self.in_transaction = True
        self._counted = False

    cdef bint _close(self, uint64_t end_position) noexcept nogil:
        """End the transaction; return False if there is no memory to keep it."""
        if self._counted and not ended_add(
            &self._ended, self.commit_position, end_position, self.commit_time_us, self.xid
        ):
            return False
        self.end_position = end_position
        self.in_transaction = False
        return True

    def note_marker(self):
        self._idle()
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._count()
        return self.gsn, self.trx

    def pass_rows(self, int64_t count):
        self._idle()
        if not self.in_transaction or self.row_count:
            raise ValueError("no transaction is open, or rows are not given out")
        self._count()
        self.gsn += count

    cdef inline void _count(self) noexcept nogil:
        if not self._counted:
            self._counted = True
            self.trx += 1

    # --- rows

    cdef int _row_message(
        self, const uint8_t* block, int64_t start, int64_t at, int64_t end
    ) except RAISED nogil:
        """Decode the row whose relation oid stands at `at`; the message starts at `start`."""
        cdef Table* table
        cdef uint32_t source_id
        cdef uint8_t op = block[start]
        cdef int status
        cdef bint has_absent = False
        if self.row_count >= self._row_limit or self.byte_count >= self._byte_limit:
            return STOP_LIMIT
        if end - at < 4:
            return fail(&self._trouble, BAD_TRUNCATED, at)
        source_id = be32(block + at)
        table = map_find(&self._map, source_id)
        if table == NULL:
            fail(&self._trouble, BAD_UNBOUND, at)
            self._trouble.source_id = source_id
            return FAILED
        if table.ignored:
            self.ignored_count += 1
            return GO_ON
        if not table_begin_row(table):
            return OUT_OF_MEMORY
        status = put_images(table, &self._trouble, block, op, at + 4, end, &has_absent)
        if status != GO_ON:
            return status
        return self._keep(table, op, end - start, has_absent)

    cdef int _keep(
        self, Table* table, uint8_t op, int64_t byte_count, bint has_absent
    ) noexcept nogil:
        """Count the row that was begun."""
        cdef int64_t row = table.rows
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
        self.byte_count += byte_count
        return GO_ON

    # --- COPY lines

    def feed_copy(
        self, block, Py_ssize_t start, Py_ssize_t end, uint32_t source_id, row_limit=2**31 - 1
    ):
        cdef const uint8_t[::1] view
        cdef const uint8_t* bytes_
        cdef Py_ssize_t consumed = start
        cdef Table* table
        cdef int status
        self._limits(row_limit, None)
        view = _view_block(block, start, end)
        bytes_ = &view[0] if view.shape[0] else NULL
        if not self.in_transaction:
            raise decode_error(Reason.NO_TRANSACTION, start)
        table = map_find(&self._map, source_id)
        if table == NULL or table.ignored:
            raise decode_error(Reason.UNBOUND, start, source_id=source_id)
        self._busy = True
        try:
            with nogil:
                status = self._lines(table, bytes_, start, end, &consumed)
        finally:
            self._busy = False
        self._finish(status)
        return consumed

    cdef int _lines(
        self, Table* table, const uint8_t* block, int64_t at, int64_t end, Py_ssize_t* consumed
    ) except RAISED nogil:
        cdef const uint8_t* newline
        cdef int64_t line_end
        cdef int status
        while at < end:
            newline = <const uint8_t*>memchr(block + at, c'\n', end - at)
            if newline == NULL:
                break
            line_end = newline - block
            if line_end - at > FRAME_LENGTH_MAX:
                return fail_in(&self._trouble, table, -1, BAD_LINE_LENGTH, at)
            if self.row_count >= self._row_limit or self.byte_count >= self._byte_limit:
                return STOP_LIMIT
            if not table_begin_row(table):
                return OUT_OF_MEMORY
            status = put_line(table, &self._trouble, &self._scratch, block, at, line_end)
            if status != GO_ON:
                return status
            self._keep(table, c'I', line_end - at, False)
            at = line_end + 1
            consumed[0] = at
        return GO_ON

    # --- results

    def take(self):
        cdef _Slot slot
        self._idle()
        taken = [slot.take() for slot in self._slots if slot.table.rows]
        current = set(map(id, self._current.values()))
        self._slots = [slot for slot in self._slots if id(slot) in current]
        self.row_count = 0
        self.byte_count = 0
        return taken

    def take_transactions(self):
        self._idle()
        return ended_batch(&self._ended)


cdef object _view_block(block, Py_ssize_t start, Py_ssize_t end):
    view = memoryview(block)
    if view.format != "B" or view.ndim != 1:
        raise ValueError("block must be plain bytes")
    if not 0 <= start <= end <= len(view):
        raise ValueError("start and end must lie within the block")
    return view
