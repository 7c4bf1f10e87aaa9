"""How rows lie in memory: one Arrow record batch per relation version.

The schema is the one that `.ckt` rows frames hold (docs/ckt-format.md). Not here: decoding from a
wire (`pgoutput`), framing and checksums (`ckt`).
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa

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
    # The commit's position as an ordered number. PostgreSQL: the LSN where the commit record
    # STARTS, so that a row is inside a slot's snapshot exactly when position < consistent_point.
    pa.field("position", pa.uint64(), nullable=False),
    pa.field("commit_time", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),  # ASCII I, U, D
    # Bit i (least significant first) set: column i was not sent; its value is unchanged, not
    # NULL. Null when everything was sent.
    pa.field("absent", pa.binary()),
)

TRANSACTIONS_SCHEMA = pa.schema(
    [
        pa.field("trx", pa.int64(), nullable=False),
        pa.field("source_xid", pa.uint32(), nullable=False),
        pa.field("gsn_first", pa.int64(), nullable=False),
        pa.field("gsn_last", pa.int64(), nullable=False),  # gsn_first - 1 when it has no rows
        pa.field("position", pa.uint64(), nullable=False),
        pa.field("end_position", pa.uint64(), nullable=False),
        pa.field("commit_time", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def arrow_type(neutral: str) -> pa.DataType:
    """The Arrow type of a neutral type's name; raises KeyError for an unknown name."""
    match = _DECIMAL.match(neutral)
    if match:
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW[neutral]


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, arrow_type(column.neutral))


@lru_cache(maxsize=1024)
def after_type(relation: Relation) -> pa.StructType:
    """The struct of an after image: all columns, in order."""
    return pa.struct([_field(column) for column in relation.columns])


@lru_cache(maxsize=1024)
def before_type(relation: Relation) -> pa.StructType:
    """The struct of a before image: the columns that `relation.before` names, in order."""
    return pa.struct([_field(relation.columns[index]) for index in relation.before])


@lru_cache(maxsize=1024)
def batch_schema(relation: Relation) -> pa.Schema:
    """The schema of a batch of this relation version.

    after is null for deletes; before is null where the source sent none: for inserts, and for
    updates that leave the identity columns as they were (unless the identity is FULL).
    """
    return pa.schema(
        [
            *HEAD_FIELDS,
            pa.field("after", after_type(relation)),
            pa.field("before", before_type(relation)),
        ]
    )
