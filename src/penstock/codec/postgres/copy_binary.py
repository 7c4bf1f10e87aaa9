"""Encode Arrow batches as rows of a binary COPY: the twin of `_copy_binary.pyx`.

The twin is the specification, the oracle of the tests and the fallback without a compiler;
`make_row_writer` selects one. Dates and times count from 2000. Values that the server would read as
infinity, or as no date at all, are refused here: `infinity` is text. Source: PostgreSQL manual,
"COPY", Binary Format; src/backend/utils/adt: numeric.c, numeric_recv; arrayfuncs.c, array_recv;
date.c, date_recv; timestamp.c, timestamp_recv.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.codec.postgres.pgbinary import (
    DAYS,
    EPOCH_DAYS,
    EPOCH_US,
    MICROSECONDS,
    numeric_bytes,
)

try:
    from penstock.codec.postgres._copy_binary import encode as _kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._copy_binary":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
TRAILER = b"\xff\xff"
BLOCK_BYTES = 96 * 1024  # psycopg cuts what is longer than 128 KiB, which copies it
FIELD_BYTES_MAX = 0x3FFFFFFF  # what the server allocates for one value

_NULL = b"\xff\xff\xff\xff"


class _Form(NamedTuple):
    """Binary form. kind: the kernel's number. oid: of an element's type. bits: cast
    type, or None.
    """

    kind: int
    oid: int
    bits: Any = None
    packed: str = ""


_FORMS: dict[Any, _Form] = {
    pa.bool_(): _Form(1, 16, pa.bool_(), ">?"),
    pa.int16(): _Form(2, 21, pa.int16(), ">h"),
    pa.int32(): _Form(3, 23, pa.int32(), ">i"),
    pa.int64(): _Form(4, 20, pa.int64(), ">q"),
    pa.float32(): _Form(3, 700, pa.int32(), ">i"),
    pa.float64(): _Form(4, 701, pa.int64(), ">q"),
    pa.time64("us"): _Form(4, 1083, pa.int64(), ">q"),
    pa.date32(): _Form(5, 1082, pa.int32()),
    pa.timestamp("us"): _Form(6, 1114, pa.int64()),
    pa.timestamp("us", "UTC"): _Form(6, 1184, pa.int64()),
    pa.binary(16): _Form(7, 2950),
    pa.binary(): _Form(8, 17),
    pa.string(): _Form(8, 25),
}
_NUMERIC = _Form(9, 1700)
_LIST = 10

NOT_IN_RANGE = "a date or time that PostgreSQL does not have"
TOO_LONG = "a value that is longer than PostgreSQL's may be"
REASONS = (NOT_IN_RANGE, TOO_LONG)


class Unwritable(ValueError):
    """A value has no binary form. row: its index in the batch."""

    def __init__(self, column: str, row: int, why: str) -> None:
        """Keep the row. why: what the value is."""
        super().__init__(f"column {column}, row {row} of the batch: {why}")
        self.column, self.row = column, row


class RowWriter:
    """Writer of the rows of batches of one schema."""

    def __init__(self, schema: pa.Schema, heads: Sequence[bytes] = ()) -> None:
        """Plan the columns.

        schema: fixed-size types, text, binary, decimal128, and lists of those. heads: for each
        column the bytes that its type's form has before every value; not for lists. Raises
        ValueError for an unknown type.
        """
        self._schema = schema
        self._heads = tuple(heads) or (b"",) * len(schema)
        if len(self._heads) != len(schema):
            raise ValueError(f"{len(self._heads)} heads for {len(schema)} columns")
        for kind, head in zip(schema.types, self._heads, strict=True):
            if pa.types.is_list(kind):
                _form_of(kind.value_type)
            elif _form_of(kind).kind != _FORMS[pa.binary()].kind and head:
                raise ValueError(f"a head before values of type {kind}")
            if pa.types.is_list(kind) and head:
                raise ValueError("a head before lists")

    def blocks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Yield a batch's rows, in blocks of whole rows of about BLOCK_BYTES, without header or
        trailer.

        Raises ValueError, or Unwritable after it has yielded the earlier rows.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError("not a batch of this schema")
        yield from self._blocks(batch)

    def _blocks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        columns = [
            _fields(values, head) for values, head in zip(batch.columns, self._heads, strict=True)
        ]
        out = bytearray()
        for row in range(batch.num_rows):
            out += struct.pack(">H", len(columns))
            for name, field in zip(batch.schema.names, columns, strict=True):
                try:
                    out += _add_size(field(row))
                except _NoFormError as error:
                    raise Unwritable(name, row, str(error)) from None
            if len(out) >= BLOCK_BYTES:
                yield bytes(out)
                out.clear()
        if out:
            yield bytes(out)


class _NoFormError(Exception):
    """Error: the value has no binary form. Its text is the reason."""


def _form_of(kind: Any) -> _Form:
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return _NUMERIC
    if kind not in _FORMS:
        raise ValueError(f"no binary form of type {kind}")
    return _FORMS[kind]


def _add_size(value: bytes | None) -> bytes:
    if value is None:
        return _NULL
    if len(value) > FIELD_BYTES_MAX:
        raise _NoFormError(TOO_LONG)
    return struct.pack(">i", len(value)) + value


def _fields(values: Any, head: bytes) -> Callable[[int], bytes | None]:
    """Return a function that gives a column's value in a row."""
    if pa.types.is_list(values.type):
        return _arrays(values)
    form = _form_of(values.type)
    seen = values if form.bits is None or form.bits == values.type else values.view(form.bits)
    if pa.types.is_string(values.type):
        seen = values.cast(pa.binary())
    found = seen.to_pylist()

    def field(row: int) -> bytes | None:
        value = found[row]
        return None if value is None else head + _value(form, value)

    return field


def _value(form: _Form, value: Any) -> bytes:
    if form is _NUMERIC:
        return numeric_bytes(str(value))
    if form.packed:
        return struct.pack(form.packed, value)
    if form.bits is None:
        return bytes(value)
    kind, known, epoch = (
        (">i", DAYS, EPOCH_DAYS) if form.bits == pa.int32() else (">q", MICROSECONDS, EPOCH_US)
    )
    if value not in known:
        raise _NoFormError(NOT_IN_RANGE)
    return struct.pack(kind, value - epoch)


def _arrays(values: Any) -> Callable[[int], bytes | None]:
    """Return a function that encodes a list: a header, then its values.

    The header is the number of dimensions, whether there are NULLs, type, length, first index.
    """
    element = _fields(values.values, b"")
    oid = _form_of(values.type.value_type).oid
    offsets = values.offsets.to_pylist()
    valid = values.is_valid().to_pylist()

    def field(row: int) -> bytes | None:
        if not valid[row]:
            return None
        start, end = offsets[row : row + 2]
        if start == end:
            return struct.pack(">iiI", 0, 0, oid)
        found = [element(at) for at in range(start, end)]
        head = struct.pack(">iiIii", 1, None in found, oid, end - start, 1)
        return head + b"".join(map(_add_size, found))

    return field


class _KernelWriter(RowWriter):
    """Writer that uses the compiled kernel for the rows, without the GIL."""

    def _blocks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        # The batch holds the memory that the addresses in the plans point to.
        plans = [
            _plan(values, head) for values, head in zip(batch.columns, self._heads, strict=True)
        ]
        row = 0
        while row < batch.num_rows:
            block, row, column, trouble = _kernel(
                plans, row, batch.num_rows, BLOCK_BYTES, FIELD_BYTES_MAX
            )
            if trouble:
                raise Unwritable(self._schema.names[column], row, REASONS[trouble - 1])
            yield block


def _plan(values: Any, head: bytes) -> tuple[Any, ...]:
    """Return the kernel's plan of a column (kind, scale or oid, head, offset, addresses), and that
    of its elements.
    """
    addresses = [0 if buffer is None else buffer.address for buffer in values.buffers()]
    places = (values.offset, *(*addresses, 0)[:3])
    if pa.types.is_list(values.type):
        oid = _form_of(values.type.value_type).oid
        return (_LIST, oid, head, *places[:3], 0, _plan(values.values, b""))
    form = _form_of(values.type)
    return (form.kind, values.type.scale if form is _NUMERIC else 0, head, *places, None)


def make_row_writer(schema: pa.Schema, heads: Sequence[bytes] = ()) -> RowWriter:
    """Return the compiled `RowWriter`, or the twin when it is not built or PENSTOCK_PURE=1 forbids
    it.

    Arguments as for `RowWriter`.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _KernelWriter(schema, heads)
    return RowWriter(schema, heads)
