"""Encode rows of the log as pgoutput messages in wire frames: the twin of `_pgoutput_encode.pyx`.

The inverse of `penstock.codec.postgres.pgoutput`: it converts whole Arrow batches to the bytes that
a walsender writes. The twin is the specification, the oracle of the tests and the fallback without
a compiler; `make_encoder` selects one. Values are sent as text, or in binary form if a client
requests it and the type has one, as most do (`pgbinary`).

An insert has the new image. An update has it too, with `u` for columns that the source did not
send, and before it the old image if the log has one: all columns (O) with identity FULL, else the
identity's columns (K) and NULL for the others. A delete has the old image alone. Source: PostgreSQL
manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import batch_schema
from penstock.codec.exact_text import exact_texts
from penstock.codec.postgres.pgbinary import Unencodable, binary_form
from penstock.codec.postgres.pgoutput_outcome import FRAME_LENGTH_MAX_BYTES
from penstock.codec.postgres.pgoutput_write import xlog_data
from penstock.codec.postgres.pgtext import is_hex_bytea
from penstock.model import Identity, Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.model import Column, Relation

try:
    from penstock.codec.postgres._pgoutput_encode import encode as _kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._pgoutput_encode":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

_OPS = frozenset(Op)
# How the kernel is told to print a column; it has the same numbers.
_BYTES, _FLOAT, _DECIMAL, _HEX = 1, 2, 3, 4
_BINARY = 16
_KINDS = {
    "bool": 5,
    "int16": 6,
    "int32": 7,
    "int64": 8,
    "uint32": 9,
    "uint64": 10,
    "date": 11,
    "time": 12,
    "timestamp": 13,
    "timestamptz": 14,
    "uuid": 15,
    "string": _BYTES,
    "float32": _FLOAT,
    "float64": _FLOAT,
}


NO_OLD_IMAGE = "is a delete without an old image"
TOO_LONG = "is longer than a message may be"
NO_SUCH_OP = "is neither an insert nor an update nor a delete"
REASONS = (NO_SUCH_OP, NO_OLD_IMAGE, TOO_LONG)


class Frames(NamedTuple):
    """Wire frames of the rows of one batch, in its order.

    ends: int64 for each row, the end of its frame in `data`, so that rows of several tables can be
    put in the order of their numbers and cut where a transaction ends.
    """

    data: bytes
    ends: np.ndarray[Any, np.dtype[np.int64]]


class Encoder:
    """Encoder of batches of one relation version, with the oid that the client knows."""

    def __init__(self, relation: Relation, source_id: int, *, binary: bool = False) -> None:
        """Plan the columns. source_id: oid in the Relation message. binary: use binary forms."""
        self.relation = relation
        self.source_id = source_id
        self._schema = batch_schema(relation)
        self._has_all_old = relation.identity is Identity.FULL and len(relation.before) == len(
            relation.columns
        )
        self._before_place = {index: place for place, index in enumerate(relation.before)}
        self._binary = [binary_form(one) if binary else None for one in relation.columns]

    def encode(
        self,
        batch: pa.RecordBatch,
        positions: np.ndarray[Any, np.dtype[np.uint64]],
        time_us: int,
        *,
        xid: int | None = None,
    ) -> Frames:
        """Return all rows of a batch as frames.

        batch: rows with the schema of `batch_schema(relation)`. positions: an LSN for each row.
        time_us: time of sending, microseconds since 1970 UTC. xid: transaction id inside a streamed
        transaction. Raises Unencodable, ValueError.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError(f"not a batch of {self.relation.full_name}")
        if len(positions) != batch.num_rows:
            raise ValueError(f"{len(positions)} positions for {batch.num_rows} rows")
        return self._encode(batch, positions, time_us, xid)

    def _encode(
        self,
        batch: pa.RecordBatch,
        positions: np.ndarray[Any, np.dtype[np.uint64]],
        time_us: int,
        xid: int | None,
    ) -> Frames:
        shape = self.relation
        after = self._cells(batch.column("after"), range(len(shape.columns)))
        before = self._cells(batch.column("before"), shape.before)
        has_before = batch.column("before").is_valid().to_pylist()
        tag = b"" if xid is None else struct.pack(">I", xid)
        head = tag + struct.pack(">I", self.source_id)
        out = bytearray()
        ends = np.empty(batch.num_rows, np.int64)
        absent = batch.column("absent").to_pylist()
        for row, op in enumerate(batch.column("op").to_pylist()):
            if op not in _OPS:
                raise Unencodable(row, NO_SUCH_OP)
            if op == Op.DELETE and not has_before[row]:
                raise Unencodable(row, NO_OLD_IMAGE)
            parts = [bytes((op,)), head]
            if op != Op.INSERT and has_before[row]:
                parts.append(b"O" if self._has_all_old else b"K")
                parts.append(self._old(before, row))
            if op != Op.DELETE:
                bits = (absent[row] or b"") if op == Op.UPDATE else b""
                parts.append(b"N" + _new(after, row, bits))
            message = b"".join(parts)
            if len(message) > FRAME_LENGTH_MAX_BYTES:
                raise Unencodable(row, TOO_LONG)
            out += xlog_data(message, int(positions[row]), time_us)
            ends[row] = len(out)
        return Frames(bytes(out), ends)

    def _cells(self, image: Any, indexes: Sequence[int]) -> list[list[bytes]]:
        """Return the cells of an image by column: letter, length and value."""
        found = []
        for index, values in zip(indexes, image.flatten(), strict=True):
            binary = self._binary[index]
            column = self.relation.columns[index]
            shown = texts(values, column) if binary is None else binary(values).to_pylist()
            letter = b"t" if binary is None else b"b"
            found.append([_cell(letter, one) for one in shown])
        return found

    def _old(self, before: list[list[bytes]], row: int) -> bytes:
        places = self._before_place
        cells = [
            before[places[index]][row] if index in places else b"n"
            for index in range(len(self.relation.columns))
        ]
        return struct.pack(">H", len(cells)) + b"".join(cells)


def _new(after: list[list[bytes]], row: int, absent: bytes) -> bytes:
    cells = [
        b"u" if index >> 3 < len(absent) and absent[index >> 3] >> (index & 7) & 1 else column[row]
        for index, column in enumerate(after)
    ]
    return struct.pack(">H", len(cells)) + b"".join(cells)


def _cell(letter: bytes, value: bytes | None) -> bytes:
    return b"n" if value is None else letter + struct.pack(">I", len(value)) + value


def texts(values: Any, column: Column) -> list[bytes | None]:
    """Return the values of a column as PostgreSQL prints them; None for NULL."""
    if column.neutral == "binary":
        if not is_hex_bytea(column):
            return cast("list[bytes | None]", values.to_pylist())
        return [None if v is None else b"\\x" + v.hex().encode() for v in values.to_pylist()]
    return [None if t is None else t.encode() for t in exact_texts(values, column.neutral)]


class _KernelEncoder(Encoder):
    """Encoder that uses the compiled kernel for the rows, without the GIL."""

    def _encode(
        self,
        batch: pa.RecordBatch,
        positions: np.ndarray[Any, np.dtype[np.uint64]],
        time_us: int,
        xid: int | None,
    ) -> Frames:
        after, before = batch.column("after"), batch.column("before")
        columns, kept = self.relation.columns, []
        new = []
        for index in range(len(columns)):
            values, plan = self._plan(after.field(index), index)
            kept.append(values)
            new.append(plan)
        old: list[tuple[int, ...] | None] = [None] * len(columns)
        for place, index in enumerate(self.relation.before):
            values, plan = self._plan(before.field(place), index)
            kept.append(values)
            old[index] = plan
        ends = np.empty(batch.num_rows, np.int64)
        absent = batch.column("absent")
        # `kept` and the batch hold the memory that the addresses in the plans point to.
        data, row, trouble = _kernel(
            _buffers(batch.column("op")),
            _buffers(absent),
            _buffers(before)[:2],
            new,
            old,
            np.ascontiguousarray(positions, np.uint64),
            ends,
            (self.source_id, xid, self._has_all_old, time_us),
        )
        del kept
        if trouble:
            raise Unencodable(row, REASONS[trouble - 1])
        return Frames(data, ends)

    def _plan(self, values: Any, index: int) -> tuple[Any, tuple[int, ...]]:
        binary = self._binary[index]
        if binary is None:
            return _plan(values, self.relation.columns[index])
        values = binary(values)
        return values, (_BINARY, 0, *_buffers(values))


def _plan(values: Any, column: Column) -> tuple[Any, tuple[int, ...]]:
    """Return the objects to keep alive, and the kernel's plan: kind, scale and buffers."""
    kind, scale = _KINDS.get(column.neutral, _BYTES), 0
    if column.neutral.startswith("decimal("):
        kind, scale = _DECIMAL, values.type.scale
    elif column.neutral == "binary":
        kind = _HEX if is_hex_bytea(column) else _BYTES
    elif kind == _FLOAT:
        values = pc.cast(values, pa.string())  # the shortest text that reads back as the same
    return values, (kind, scale, *_buffers(values))


def _buffers(values: Any) -> tuple[int, ...]:
    """Return where an array starts in its buffers, and their addresses: 0 for a missing one."""
    found = values.buffers()
    if pa.types.is_struct(values.type):
        found = found[:1]
    addresses = [0 if buffer is None else buffer.address for buffer in found]
    return (values.offset, *(*addresses, 0, 0)[:3])


def make_encoder(relation: Relation, source_id: int, *, binary: bool = False) -> Encoder:
    """Return the encoder with the compiled kernel, or the twin if not built or PENSTOCK_PURE=1.

    Arguments are as for `Encoder`.
    """
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _KernelEncoder(relation, source_id, binary=binary)
    return Encoder(relation, source_id, binary=binary)
