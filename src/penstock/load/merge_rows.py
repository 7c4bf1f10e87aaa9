"""How rows lie in a merge table: the names, types and order of its columns.

The base table's columns under their own names, all nullable, behind a few of ours, whose names
begin with `wk$`. Pure; the SQL is in `load/postgres/merge.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.load.postgres.types import staged
from penstock.model import Relation

# What the count column of a table with a key says.
GONE = -1  # delete this key
UPSERT = 1  # the row's key was there before, as the log has it
NEW = 2  # the row's key was not there before
DONE = 3  # never staged: a row that one of several statements has brought in


class MergeLayout:
    """The merge table of one relation version.

    count: GONE, UPSERT or NEW; for a table without a key the number of copies to insert or (when
    negative) to delete. absent: bitmap of the columns to fill from the target, or null; origin:
    for those rows the key under which the target has them.
    """

    def __init__(self, relation: Relation) -> None:
        prefix = "wk$"
        while any(column.name.startswith(prefix) for column in relation.columns):
            prefix += "$"
        self.relation = relation
        self.count = f"{prefix}n"
        self.absent = f"{prefix}absent"
        self.origin = tuple(f"{prefix}key{place}" for place in range(1, len(relation.key) + 1))
        kinds = [staged(column) for column in relation.columns]
        own: list[tuple[str, Any, str]] = [(self.count, pa.int64(), "bigint")]
        if relation.key:
            own.append((self.absent, pa.binary(), "bytea"))
        for name, index in zip(self.origin, relation.key, strict=True):
            own.append((name, kinds[index].arrow, kinds[index].sql))
        for column, kind in zip(relation.columns, kinds, strict=True):
            own.append((column.name, kind.arrow, kind.sql))
        self.schema = pa.schema([(name, arrow) for name, arrow, _ in own])
        self.sql_columns = tuple((name, sql) for name, _, sql in own)

    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """One batch; a column given as None is all null."""
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(bitmaps)
            arrays += origin if origin is not None else [None] * len(self.origin)
        arrays += columns
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, kind.type) if values is None else _as(values, kind.type)
                for values, kind in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )


def _as(values: Any, kind: pa.DataType) -> Any:
    return values if values.type == kind else values.cast(kind)
