"""Builders of pgoutput messages and wire frames, and exact comparison of decoded rows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.codec.columns import batch_schema
from penstock.codec.postgres import pgoutput
from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US
from penstock.model import Column, Identity, Relation
from penstock.model.position import to_ordinal

if TYPE_CHECKING:
    from collections.abc import Sequence

UNCHANGED = ...  # a cell that says "unchanged, not sent"
Cell = Any  # None, UNCHANGED, bytes or str

DECODERS: dict[str, type[pgoutput.Decoder]] = {"twin": pgoutput.Decoder}
if pgoutput.COMPILED:
    from penstock.codec.postgres import _pgoutput

    DECODERS["kernel"] = _pgoutput.Decoder

COMMIT_TIME_US = 1_700_000_000_123_456


def frame(payload: bytes, kind: bytes = b"d") -> bytes:
    """Return one wire frame."""
    return kind + struct.pack(">I", len(payload) + 4) + payload


def xlog(message: bytes) -> bytes:
    """Return a pgoutput message in XLogData in CopyData."""
    return frame(b"w" + struct.pack(">QQq", 1, 1, 0) + message)


def begin(position: int = 100, time_us: int = COMMIT_TIME_US, xid: int = 7) -> bytes:
    """Return a Begin frame."""
    return xlog(b"B" + struct.pack(">QqI", position, time_us - POSTGRES_EPOCH_US, xid))


def commit(position: int = 100, end: int = 150, time_us: int = COMMIT_TIME_US) -> bytes:
    """Return a Commit frame."""
    return xlog(b"C\0" + struct.pack(">QQq", position, end, time_us - POSTGRES_EPOCH_US))


def image(cells: Sequence[Cell]) -> bytes:
    """Return a row image without its kind letter."""
    parts = [struct.pack(">H", len(cells))]
    for cell in cells:
        if cell is None:
            parts.append(b"n")
        elif cell is UNCHANGED:
            parts.append(b"u")
        else:
            text = cell.encode() if isinstance(cell, str) else cell
            parts.append(b"t" + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def insert(source_id: int, cells: Sequence[Cell], xid: int | None = None) -> bytes:
    """Return an Insert frame; xid for one inside a streamed transaction."""
    return xlog(b"I" + _xid(xid) + struct.pack(">I", source_id) + b"N" + image(cells))


def update(
    source_id: int,
    cells: Sequence[Cell],
    *,
    key: Sequence[Cell] | None = None,
    old: Sequence[Cell] | None = None,
    xid: int | None = None,
) -> bytes:
    """Return an Update frame with a key image, an old image or none."""
    before = b""
    if key is not None:
        before = b"K" + image(key)
    if old is not None:
        before = b"O" + image(old)
    head = b"U" + _xid(xid) + struct.pack(">I", source_id)
    return xlog(head + before + b"N" + image(cells))


def delete(
    source_id: int,
    *,
    key: Sequence[Cell] | None = None,
    old: Sequence[Cell] | None = None,
    xid: int | None = None,
) -> bytes:
    """Return a Delete frame with a key image or an old image."""
    before = b"K" + image(key) if key is not None else b"O" + image(old or ())
    return xlog(b"D" + _xid(xid) + struct.pack(">I", source_id) + before)


def keepalive(position: int = 5, reply_now: bool = True) -> bytes:
    """Return a keepalive frame."""
    return frame(b"k" + struct.pack(">QqB", position, 0, reply_now))


def column(name: str, neutral: str, **more: Any) -> Column:
    """Return a column; its source type is the neutral name unless given."""
    more.setdefault("source_type", "bytea" if neutral == "binary" else neutral)
    return Column(name=name, neutral=neutral, **more)


def relation(
    *columns: Column,
    name: str = "t",
    before: tuple[int, ...] = (0,),
    identity: Identity = Identity.DEFAULT,
    version: int = 1,
) -> Relation:
    """Return a relation public.t; the first column is its key unless another one is given."""
    return Relation(
        schema="public",
        name=name,
        columns=columns,
        key=before,
        before=before,
        identity=identity,
        version=version,
    )


def _bits(array: pa.Array) -> pa.Array:
    """Return the array with floats and times as integers: equal only when identical."""
    kind = array.type
    if pa.types.is_struct(kind):
        children = [_bits(array.field(index)) for index in range(kind.num_fields)]
        names = [str(index) for index in range(kind.num_fields)]
        fields = [pa.field(name, child.type) for name, child in zip(names, children, strict=True)]
        return pa.Array.from_buffers(
            pa.struct(fields), len(array), array.buffers()[:1], children=children
        )
    physical = {
        pa.float32(): pa.int32(),
        pa.float64(): pa.int64(),
    }.get(kind)
    return array if physical is None else array.view(physical)


def assert_same_batch(one: pa.RecordBatch, other: pa.RecordBatch) -> None:
    """Raise an error unless both batches have the same bits, -0 and NaN included."""
    assert one.schema.equals(other.schema)
    assert one.num_rows == other.num_rows
    one.validate(full=True)
    other.validate(full=True)
    for name, left, right in zip(one.schema.names, one.columns, other.columns, strict=True):
        assert _bits(left).equals(_bits(right)), f"column {name} differs"


T = 16_400  # the source id to which TWO is bound
TWO = relation(column("id", "int64"), column("größe", "string"))
MANY = 1_000_000


def feed(decoder: pgoutput.Decoder, block: bytes, row_limit: int = MANY) -> int:
    """Feed a whole block."""
    return decoder.feed(block, 0, len(block), row_limit)


def rows_of(decoder: pgoutput.Decoder) -> list[dict[str, Any]]:
    """Take everything as dicts, all relations together in order of GSN."""
    taken = decoder.take()
    for rows in taken:
        rows.batch.validate(full=True)
        assert rows.batch.schema.equals(batch_schema(rows.relation))
    return sorted((row for rows in taken for row in rows.batch.to_pylist()), key=lambda r: r["gsn"])


def positions_of(decoder: Any) -> list[int]:
    """Take the ended transactions; return their commit positions."""
    taken = decoder.take_transactions()
    return [] if taken is None else [to_ordinal(one) for one in taken.column(0).to_pylist()]
