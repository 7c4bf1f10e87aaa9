"""Store of one relation version's rows until they become an Arrow batch, in plain Python.

It keeps values in lists and creates the batch of `penstock.codec.columns.batch_schema`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.codec import columns
from penstock.model import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.model import Column, Relation

# Types that Arrow keeps as plain integers, with the integer they are built from.
_PHYSICAL: dict[str, pa.DataType] = {
    "date": pa.int32(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
}


class RowStore:
    """Store of decoded rows of one relation version. A row is added whole or not at all."""

    def __init__(self, relation: Relation) -> None:
        """Start empty."""
        if len(set(relation.before)) != len(relation.before):
            raise ValueError("a before image names a column twice")
        self.relation = relation
        self.before = frozenset(relation.before)
        self.key = frozenset(relation.identifying)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._heads: list[tuple[int, int, int]] = []
        self._absent: list[bytes | None] = []
        self._after: list[list[Any] | None] = []
        self._before: list[list[Any] | None] = []

    def __len__(self) -> int:
        """Return how many rows are held."""
        return len(self._heads)

    def add(
        self,
        head: tuple[int, int, int],
        after: list[Any] | None,
        before: list[Any] | None,
        absent: Sequence[int],
    ) -> None:
        """Add one row.

        head: gsn, trx, operation. after: a value for each column, None for a delete. before: a
        value for each column of the relation (only those of relation.before are kept), None if not
        sent. absent: indexes of columns not sent.
        """
        bitmap: bytearray | None = None
        if absent:
            bitmap = bytearray((len(self.relation.columns) + 7) // 8)
            for index in absent:
                bitmap[index >> 3] |= 1 << (index & 7)
        self._heads.append(head)
        self._absent.append(None if bitmap is None else bytes(bitmap))
        self._after.append(after)
        self._before.append(
            None if before is None else [before[index] for index in self.relation.before]
        )

    def batch(self) -> Rows:
        """Return all rows as one batch; the store keeps them until `clear`."""
        shape = self.relation
        gsn, trx, op = zip(*self._heads, strict=True)
        arrays = [
            pa.array(gsn, pa.int64()),
            pa.array(trx, pa.int64()),
            pa.array(op, pa.uint8()),
            pa.array(self._absent, pa.binary()),
            _struct(shape.columns, self._after),
            _struct([shape.columns[index] for index in shape.before], self._before),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=columns.batch_schema(shape))
        return Rows(relation=shape, batch=batch)


def _struct(shape: Sequence[Column], rows: Sequence[list[Any] | None]) -> pa.StructArray:
    children = [
        _column(column, [None if row is None else row[index] for row in rows])
        for index, column in enumerate(shape)
    ]
    kind = pa.struct(
        [pa.field(column.name, columns.arrow_type(column.neutral)) for column in shape]
    )
    valid = pa.array([row is not None for row in rows], pa.bool_())
    # from_buffers, because a struct without fields has no child to take its length from.
    return pa.Array.from_buffers(
        kind,
        len(rows),
        [valid.buffers()[1]],
        children=children,
    )


def _column(column: Column, values: list[Any]) -> pa.Array:
    physical = _PHYSICAL.get(column.neutral)
    kind = columns.arrow_type(column.neutral)
    if physical is None:
        return pa.array(values, kind)
    return pa.array(values, physical).view(kind)
