"""Changes as plain tuples, and batches made from them: for tests of the loader's packages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.codec.columns import batch_schema
from penstock.model import Column, Identity, Relation

EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row's change.

    Attributes:
        after: Values of all columns after the change.
        before: Values of all columns before the change.
        absent: Columns that were not sent.
    """

    op: str
    gsn: int
    after: tuple[Any, ...] | None = None
    before: tuple[Any, ...] | None = None
    absent: frozenset[int] = frozenset()
    trx: int = 1


def relation(
    *columns: tuple[str, str, str],
    key: Sequence[int] = (0,),
    identity: Identity = Identity.DEFAULT,
    name: str = "t",
    schema: str = "public",
    version: int = 1,
    **more: Any,
) -> Relation:
    """Return a relation of columns given as (name, source type, neutral type)."""
    before = tuple(range(len(columns))) if identity is Identity.FULL else tuple(key)
    return Relation(
        schema=schema,
        name=name,
        columns=tuple(Column(name=n, source_type=s, neutral=k) for n, s, k in columns),
        key=tuple(key),
        before=before,
        identity=identity,
        version=version,
        **more,
    )


def batch(shape: Relation, changes: Iterable[Change]) -> pa.RecordBatch:
    """Return one batch of these changes, as the decoder would make it."""
    schema = batch_schema(shape)
    names = [column.name for column in shape.columns]
    rows = []
    for change in changes:
        bits = bytearray((len(names) + 7) // 8)
        for index in change.absent:
            bits[index // 8] |= 1 << (index % 8)
        after = None
        if change.after is not None:
            sent = [None if i in change.absent else v for i, v in enumerate(change.after)]
            after = list(zip(names, sent, strict=True))
        before = None
        if change.before is not None:
            before = [(names[i], change.before[i]) for i in shape.before]
        rows.append(
            (
                change.gsn,
                change.trx,
                ord(change.op),
                bytes(bits) if change.absent else None,
                after,
                before,
            )
        )
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [
        pa.array([dict(v) if v is not None else None for v in values], kind.type)
        if pa.types.is_struct(kind.type)
        else pa.array(values, kind.type)
        for values, kind in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
