"""Layout of rows in memory: one Arrow record batch per relation version.

The schema is that of `.ckt` rows frames (docs/ckt-format.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.position import POSITION_BYTES, to_bytes
from penstock.model.relation import Column, Relation

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
DECIMAL_PRECISION_MAX = 38  # wider ones are kept as exact text

_ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "string": pa.string(),
}

HEAD_FIELDS = (
    pa.field("gsn", pa.int64(), nullable=False),
    pa.field("trx", pa.int64(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),  # ASCII I, U, D
    # Bit i (least significant first) set: column i was not sent; its value is unchanged, not
    # NULL. Null when everything was sent.
    pa.field("absent", pa.binary()),
)

Numbers = Sequence[int] | npt.NDArray[Any]

POSITION = pa.binary(POSITION_BYTES)
COMMIT_TIME = pa.timestamp("us", "UTC")


def _transactions_schema(source_id: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            # Of the commit. PostgreSQL: where the commit record STARTS, so that a row is inside a
            # slot's snapshot exactly when its transaction's position < consistent_point.
            pa.field("position", POSITION, nullable=False),
            pa.field("end_position", POSITION, nullable=False),
            pa.field("commit_time", COMMIT_TIME, nullable=False),
            # The source's own id; 0 or empty where it has none.
            pa.field("source_id", source_id, nullable=False),
            # Which of the logs that the source merges; 0 where there is one.
            pa.field("origin", pa.uint16(), nullable=False),
        ]
    )


# One row per transaction, without gaps: their numbers follow from the order of the rows.
TRANSACTIONS_SCHEMA = _transactions_schema(pa.uint64())
NAMED_TRANSACTIONS_SCHEMA = _transactions_schema(pa.string())  # of a source with ids of text


def arrow_type(neutral: str) -> pa.DataType:
    """Return the Arrow type of a neutral type's name; raises KeyError for an unknown name."""
    match = _DECIMAL.match(neutral)
    if match:
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW[neutral]


def transactions_batch(lines: Sequence[tuple[int, int, int, int]]) -> pa.RecordBatch | None:
    """Return transactions as a batch of TRANSACTIONS_SCHEMA; None without any.

    lines: for each transaction, in order, its position, end position, commit time in microseconds
    and the source's id.
    """
    return transactions_of(*zip(*lines, strict=True)) if lines else None


def transactions_of(
    positions: Numbers, ends: Numbers, times_us: Numbers, ids: Numbers
) -> pa.RecordBatch:
    """Return a batch of transactions with these columns."""
    arrays = [
        _positions(positions),
        _positions(ends),
        pa.array(times_us, pa.int64()).view(COMMIT_TIME),
        pa.array(ids, pa.uint64()),
        pa.array(np.zeros(len(positions), np.uint16)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)


def _positions(ordinals: Numbers) -> pa.Array:
    try:
        low = np.array(ordinals, np.int64)
    except OverflowError:  # of more than 63 bits
        return pa.array(map(to_bytes, ordinals), POSITION)
    found = np.zeros((len(low), POSITION_BYTES // 8), ">i8")
    found[:, -1] = low
    return pa.FixedSizeBinaryArray.from_buffers(POSITION, len(low), [None, pa.py_buffer(found)])


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, arrow_type(column.neutral))


@lru_cache(maxsize=1024)
def after_type(relation: Relation) -> pa.StructType:
    """Return the struct of an after image: all columns, in order."""
    return pa.struct([_field(column) for column in relation.columns])


@lru_cache(maxsize=1024)
def before_type(relation: Relation) -> pa.StructType:
    """Return the struct of a before image: the columns that `relation.before` names, in order."""
    return pa.struct([_field(relation.columns[index]) for index in relation.before])


@lru_cache(maxsize=1024)
def batch_schema(relation: Relation) -> pa.Schema:
    """Return the schema of a batch of this relation version.

    `after` is null for deletes. `before` is null if the source sent no old image: for inserts, and
    for updates that do not change an identity column (unless the identity is FULL).
    """
    return pa.schema(
        [
            *HEAD_FIELDS,
            pa.field("after", after_type(relation)),
            pa.field("before", before_type(relation)),
        ]
    )
