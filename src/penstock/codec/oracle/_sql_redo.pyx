# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False
"""The compiled decoder of SQL_REDO; `sql_redo.py` is its readable twin and says what it does.

Statements are scanned and their values stored without the GIL, a group of rows at a time. Inside a
statement every place is checked against its end before it is read. Columns, tables and their memory
are those of the PostgreSQL kernel. A row that fails leaves the store dirty: the next row of that
relation starts by restoring it, so nothing of a broken row can remain.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.limits cimport INT_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

from penstock.codec._cells cimport (
    ASK_TWIN, FINE, MALFORMED, NO_MEMORY, NOT_HEX, NOT_UTF8, POWER_MAX, POWER_MIN, UNFIT,
    days_since_1970, hex_digits, is_bytea, is_utf8, popcount64, power_high, power_log2, power_low,
    read_date, read_decimal, read_float, read_hex, read_int, read_time, read_timestamp,
    read_unsigned, read_uuid, two_digits, u128,
)

import pyarrow as pa

from penstock.codec.columns import after_type, arrow_type, batch_schema, before_type
from penstock.codec.oracle import intervals
from penstock.codec.oracle.cells import plan_columns
from penstock.codec.oracle.redo_outcome import (
    BYTE_LIMIT_DEFAULT,
    BYTE_LIMIT_MAX,
    STATEMENT_BYTES_MAX,
    Stop,
    redo_error,
)
from penstock.codec.oracle.values import Malformed
from penstock.codec.postgres import pgtext
from penstock.model import Identity, Rows

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    FAILED = -1
    OUT_OF_MEMORY = -2
    RAISED = -3

cdef enum:
    GO_ON = 0
    STOP_LIMIT = 1
    STOP_WIDEN = 5

cdef enum:
    BAD_SYNTAX = 1
    BAD_EMPTY = 2
    BAD_UNSUPPORTED = 3
    BAD_DICTIONARY = 4
    BAD_TEMPORARY = 5
    BAD_UNLOGGED = 6
    BAD_BEFORE = 7
    BAD_COLUMN = 8
    BAD_TWICE = 9
    BAD_COUNT = 10
    BAD_NO_COLUMNS = 11
    BAD_VALUE = 12
    BAD_FORMAT = 13
    BAD_TEXT = 14
    BAD_TOO_LONG = 15
    BAD_UNBOUND = 16
    BAD_UNTOLD = 20

cdef enum:
    GROUP = 1024  # rows whose texts are looked up at a time

_STOPS = {int(stop): stop for stop in Stop}
_BITS = {"int16": 16, "int32": 32, "int64": 64}

include "../_column_buffers.pxi"
include "../_relation_buffers.pxi"
include "_redo_values.pxi"
include "_redo_moments.pxi"
include "_redo_scan.pxi"
include "_redo_rows.pxi"


cdef class _Binding:
    """Relation of a number, and the slot that its rows go to."""

    cdef Bound bound
    cdef int64_t table
    cdef object relation
    cdef _Slot slot
    cdef list held  # keeps what the names point to

    def __cinit__(self, int64_t table, relation, passed, _Slot slot):
        cdef Bound* bound = &self.bound
        cdef int i
        cdef bytes text
        memset(bound, 0, sizeof(Bound))
        self.table = table
        self.relation = relation
        self.slot = slot
        known = [column.name for column in relation.columns]
        names = known + [name for name in dict.fromkeys(passed) if name not in known]
        self.held = [name.encode() for name in names]
        bound.table = &slot.table
        bound.count = len(known)
        bound.named = len(names)
        bound.is_full = relation.identity is Identity.FULL
        bound.key_count = len(relation.key)
        bound.before_count = len(relation.before)
        bound.names = <Name*>calloc(bound.named + 1, sizeof(Name))
        bound.cells = <Cell*>calloc(bound.count + 1, sizeof(Cell))
        bound.new = <Literal*>calloc(bound.named + 1, sizeof(Literal))
        bound.old = <Literal*>calloc(bound.named + 1, sizeof(Literal))
        bound.key = <int32_t*>calloc(bound.key_count + 1, sizeof(int32_t))
        bound.before = <int32_t*>calloc(bound.before_count + 1, sizeof(int32_t))
        if (
            bound.names == NULL or bound.cells == NULL or bound.new == NULL or bound.old == NULL
            or bound.key == NULL or bound.before == NULL
        ):
            raise MemoryError
        for i in range(bound.named):
            text = self.held[i]
            bound.names[i].text = text
            bound.names[i].length = len(text)
        for i in range(bound.key_count):
            bound.key[i] = relation.key[i]
        for i in range(bound.before_count):
            bound.before[i] = relation.before[i]
        for i, plan in enumerate(plan_columns(relation)):
            self.plan(&bound.cells[i], plan)

    cdef int plan(self, Cell* cell, planned) except -1:
        cell.how = planned.how
        cell.is_text = planned.neutral == "string"
        cell.may_be_large = planned.may_be_large
        cell.is_long = planned.is_long
        cell.precision = planned.precision
        cell.scale = planned.scale
        if planned.neutral in _BITS:
            cell.most = (1 << _BITS[planned.neutral] - 1) - 1
            cell.least = -cell.most - 1
        return 0

    def __dealloc__(self):
        free(self.bound.names)
        free(self.bound.cells)
        free(self.bound.new)
        free(self.bound.old)
        free(self.bound.key)
        free(self.bound.before)


cdef struct Text:
    const uint8_t* data  # NULL: not valid Unicode
    int64_t size
    Bound* bound  # NULL: not bound


cdef class Decoder:
    """Decoder of rows of transactions into Arrow batches; see `sql_redo.Decoder`."""

    cdef readonly int64_t gsn, row_count, byte_count
    cdef readonly object stop, widen
    cdef int64_t _byte_limit, _row_limit
    cdef bint _busy
    cdef dict _bindings
    cdef list _slots  # every store that is bound or has rows, in the order they were made
    cdef Scan _scan

    def __init__(self, *, int64_t gsn=0, byte_limit=BYTE_LIMIT_DEFAULT):
        if self._slots is not None:
            raise ValueError("a decoder is created once")
        if not 1 <= byte_limit <= BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {BYTE_LIMIT_MAX}")
        self.gsn = gsn
        self._byte_limit = byte_limit
        self._bindings = {}
        self._slots = []
        self.stop = Stop.MORE
        self.widen = (0, 0)

    def __dealloc__(self):
        free(self._scan.order)

    cdef int _idle(self) except -1:
        """Refuse a call while another thread decodes: the GIL is off there."""
        if self._busy:
            raise ValueError("the decoder is in use by another thread")
        return 0

    def bind(self, table, relation, passed=()):
        self._idle()
        self._bindings[table] = _Binding(table, relation, passed, self._slot(relation))

    cdef _Slot _slot(self, relation):
        cdef _Slot slot
        for slot in self._slots:
            if slot.relation == relation:
                return slot
        slot = _Slot(0, relation)
        self._slots.append(slot)
        return slot

    def unbind(self, table):
        self._idle()
        self._bindings.pop(table, None)

    def decode(self, rows, int64_t trx, int64_t start=0, row_limit=1 << 62):
        cdef int64_t at = start, count = len(rows), done = 0
        cdef int status
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self._idle()
        self._row_limit = row_limit
        self.stop = Stop.MORE
        self._busy = True
        try:
            while at < count:
                group = tuple(rows[at:at + GROUP])
                status = self._decode_group(group, trx, &done)
                at += done
                if status != GO_ON:
                    self._finish(status, group[done])
                    break
        finally:
            self._busy = False
        return at

    cdef int _decode_group(self, tuple group, int64_t trx, int64_t* done) except RAISED:
        cdef Text texts[GROUP]
        cdef int64_t at = 0, count = len(group)
        cdef int status = GO_ON
        cdef Py_ssize_t size
        cdef _Binding binding = None
        for i in range(count):
            row = group[i]
            if binding is None or row.table != binding.table:
                binding = self._bindings.get(row.table)
            texts[i].bound = &binding.bound if binding is not None else NULL
            try:
                texts[i].data = <const uint8_t*>PyUnicode_AsUTF8AndSize(row.text, &size)
                texts[i].size = size
            except UnicodeEncodeError:
                texts[i].data = NULL
                texts[i].size = 0
        with nogil:
            while at < count:
                if self.row_count >= self._row_limit or self.byte_count >= self._byte_limit:
                    status = STOP_LIMIT
                    break
                status = self._row(&texts[at], trx)
                if status != GO_ON:
                    break
                at += 1
        done[0] = at
        return status

    cdef int _row(self, Text* text, int64_t trx) except RAISED nogil:
        """Decode one row and count it."""
        cdef Scan* scan = &self._scan
        cdef Bound* bound = text.bound
        cdef Table* table
        cdef int64_t row
        cdef bint has_absent = False
        cdef int status
        if bound == NULL:
            return fail(scan, BAD_UNBOUND, 0, -1)
        if text.data == NULL:
            return fail(scan, BAD_TEXT, 0, -1)
        if text.size > STATEMENT_MAX:
            return fail(scan, BAD_TOO_LONG, 0, -1)
        status = scan_row(scan, bound, text.data, text.size)
        if status != GO_ON:
            return status
        table = bound.table
        if not table_begin_row(table):
            return OUT_OF_MEMORY
        status = put_row(scan, &has_absent)
        if status != GO_ON:
            return status
        row = table.rows
        if table.absent.valid != NULL and not has_absent:
            put_null(&table.absent, row)
        self.gsn += 1 + table.moved
        table.gsn[row] = self.gsn
        table.trx[row] = trx
        table.op[row] = scan.op
        table.absents += has_absent
        table.dirty = False
        table.rows = row + 1
        self.row_count += 1
        self.byte_count += text.size
        return GO_ON

    cdef int _finish(self, int status, row) except -1:
        """Note why decoding stopped, or raise what it failed with."""
        cdef Trouble* trouble = &self._scan.trouble
        cdef _Binding binding
        if status == OUT_OF_MEMORY:
            raise MemoryError
        if status >= 0:
            self.stop = _STOPS[status]
            if status == STOP_WIDEN:
                self.widen = (row.table, trouble.column)
            return 0
        binding = self._bindings.get(row.table)
        raise redo_error(
            trouble.reason,
            trouble.offset,
            row,
            relation=binding.relation if binding is not None else None,
            column=trouble.column,
        )

    def take(self):
        cdef _Slot slot
        cdef _Binding binding
        self._idle()
        taken = [slot.take() for slot in self._slots if slot.table.rows]
        used = {id(binding.slot) for binding in self._bindings.values()}
        self._slots = [slot for slot in self._slots if id(slot) in used]
        self.row_count = 0
        self.byte_count = 0
        return taken
