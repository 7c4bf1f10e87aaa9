"""Mutations as rows of mutation tables, and back: order, repeats, gzip, binary COPY.

Whole columns at a time; per row only what Python cannot avoid, about half a microsecond. Not here:
the statements (`mutations.py`).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ports.feeds import MUTATIONS, MutationBroken, StagedTable, key_empty

GZIP_BYTES_MIN: Final = 1025
"""Longer than 1024 bytes: worth trying to compress."""
DELETED: Final = b"null"
"""What `mut` holds for a removal."""
_MAGIC = b"\x1f\x8b"
_GZIP_LEVEL = 1  # a fifth of the time of level 6, for a tenth more bytes of JSON

COPIED_COLUMNS: Final = "deletion, nanos, logical, key, mut, before"
_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + b"\0" * 8
_COPY_END: Final = b"\xff\xff"
# What stands before a row's key in binary COPY: six columns; their lengths, and the short ones.
_ROW_HEAD = np.dtype(
    [
        ("columns", ">i2"),
        ("deletion_bytes", ">i4"),
        ("deletion", "u1"),
        ("nanos_bytes", ">i4"),
        ("nanos", ">i8"),
        ("logical_bytes", ">i4"),
        ("logical", ">i8"),
        ("key_bytes", ">i4"),
    ]
)
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Mutations of one table as they are stored: distinct, in order of the primary key."""

    nanos: np.ndarray[Any, np.dtype[np.int64]]
    logical: np.ndarray[Any, np.dtype[np.int64]]
    key: list[bytes]
    mut: list[bytes]
    before: list[bytes | None]
    deletion: list[bool]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.key)

    def to_copy(self) -> bytes:
        """Return all rows as one binary COPY of `COPIED_COLUMNS`."""
        count = len(self)
        heads = np.empty(count, _ROW_HEAD)
        heads["columns"] = 6
        heads["deletion_bytes"] = 1
        heads["deletion"] = self.deletion
        heads["nanos_bytes"] = heads["logical_bytes"] = 8
        heads["nanos"] = self.nanos
        heads["logical"] = self.logical
        heads["key_bytes"] = np.fromiter(map(len, self.key), np.int64, count)
        muts = np.fromiter(map(len, self.mut), ">i4", count).tobytes()
        fixed, size = heads.tobytes(), _ROW_HEAD.itemsize
        parts: list[bytes] = [b""] * (5 * count)
        parts[0::5] = [fixed[at : at + size] for at in range(0, len(fixed), size)]
        parts[1::5] = self.key
        parts[2::5] = [muts[at : at + 4] for at in range(0, len(muts), 4)]
        parts[3::5] = self.mut
        parts[4::5] = [_NULL if one is None else _LENGTH(len(one)) + one for one in self.before]
        return b"".join((_COPY_HEAD, *parts, _COPY_END))

    def arrays(self) -> tuple[list[int], list[int], list[str], list[bytes], list[Any], list[bool]]:
        """Return the parameters: nanos, logical, key, mut, before, deletion."""
        return (
            self.nanos.tolist(),
            self.logical.tolist(),
            [one.decode() for one in self.key],
            self.mut,
            self.before,
            self.deletion,
        )


def rows_of(table: StagedTable, batch: pa.RecordBatch) -> Rows:
    """Return the rows of a batch to store: the last row of each time and key. Raises KeyEmpty."""
    if batch.num_rows and _has_empty_key(batch):
        raise key_empty(table)
    batch = _in_order(batch)
    after = _values(batch.column("after"))
    deletion = [one is None for one in after]
    return Rows(
        nanos=batch.column("nanos").to_numpy(),
        logical=batch.column("logical").to_numpy(),
        key=_values(batch.column("key").cast(pa.binary())),
        mut=[DELETED if one is None else _pack(one) for one in after],
        before=[None if one is None else _pack(one) for one in _values(batch.column("before"))],
        deletion=deletion,
    )


def _has_empty_key(batch: pa.RecordBatch) -> bool:
    key = batch.column("key")
    return bool(key.null_count) or pc.min(pc.binary_length(key)).as_py() == 0


def _in_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    nanos, logical = batch.column("nanos").to_numpy(), batch.column("logical").to_numpy()
    later = (nanos[1:] > nanos[:-1]) | ((nanos[1:] == nanos[:-1]) & (logical[1:] > logical[:-1]))
    if bool(later.all()):
        return batch
    place = pa.array(np.arange(batch.num_rows))  # the last of equal ones is the one that counts
    numbered = pa.table(
        [batch.column("nanos"), batch.column("logical"), batch.column("key"), place],
        names=["nanos", "logical", "key", "place"],
    )
    order = pc.sort_indices(
        numbered, sort_keys=[(name, "ascending") for name in numbered.column_names]
    )
    batch = batch.take(order)
    same = np.ones(max(batch.num_rows - 1, 0), bool)
    for name in ("nanos", "logical", "key"):
        column = batch.column(name)
        same &= pc.equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    if same.any():
        batch = batch.filter(pa.array(np.append(~same, True)))
    return batch


def _values(column: pa.Array) -> list[Any]:
    """Return the bytes of each value, None for null: several times as fast as to_pylist()."""
    if column.null_count == len(column):
        return [None] * len(column)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[
        column.offset : column.offset + len(column) + 1
    ].tolist()
    text = b"" if data is None else memoryview(data)[ends[0] : ends[-1]].tobytes()
    first = ends[0]
    found = [text[low - first : high - first] for low, high in pairwise(ends)]
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).tolist()
        return [one if is_there else None for one, is_there in zip(found, valid, strict=True)]
    return found


def _pack(value: bytes) -> bytes:
    """Return the value compressed if it is long and becomes shorter."""
    if len(value) < GZIP_BYTES_MIN:
        return value
    packed = gzip.compress(value, compresslevel=_GZIP_LEVEL, mtime=0)
    return packed if len(packed) < len(value) else value


def unpack(value: bytes, table: StagedTable) -> bytes:
    """Return the plain value; a packed one is known by the two bytes that every gzip file begins
    with.
    """
    if value[:2] != _MAGIC:
        return value
    try:
        return gzip.decompress(value)
    except (OSError, EOFError, zlib.error) as error:
        raise MutationBroken(
            f"a staged mutation of {table} is not a gzip file: {error}",
            hint="Look at the mutation table: mut and before hold JSON, or gzip of it. Put the row "
            "right, or delete it and have the changefeed send it again.",
            table=str(table),
        ) from error


def batch_of_rows(table: StagedTable, found: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the batch of rows as tables have them: nanos, logical, key, mut, before."""
    if not found:
        return _empty()
    nanos, logical, key, mut, before = zip(*found, strict=True)
    after = [None if one == DELETED else unpack(one, table) for one in mut]
    earlier = [None if one is None else unpack(one, table) for one in before]
    return pa.record_batch(
        [
            pa.array(nanos, pa.int64()),
            pa.array(logical, pa.int64()),
            pa.array(key, pa.string()),
            pa.array(after, pa.binary()),
            pa.array(earlier, pa.binary()),
        ],
        schema=MUTATIONS,
    )


def _empty() -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in MUTATIONS], schema=MUTATIONS)
