"""Layout of a merge table: the names, types and order of its columns.

It has the base table's columns under their own names, all nullable, after a few of ours, whose
names begin with `wk$`. A value that is staged as text may be longer than the same value in the
base table, so a row of a table of very many columns would not fit on a page of the server: there
all columns but the key's are staged in arrays, one for each type and some dozens of columns,
which the server may store out of line. Pure; the SQL is in `engines/postgres/target/merge.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.columns import cast_exactly
from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.target import AS_TEXT, StagedColumn, staging_of
from penstock.model import Column, Relation
from penstock.ports.target import Layout

DONE = 3  # never staged: a row that one of several statements has applied

COLUMNS_MAX = 1_600  # of a table in PostgreSQL
ROW_BYTES_MAX = 8_000  # of the 8,160 that a page has for one row
ROW_HEAD_BYTES = 24
# The server moves values out of a row while they are longer than this, and no others.
MOVABLE_BYTES = 24
FIXED_BYTES = {
    "boolean": 1,
    "smallint": 2,
    "integer": 4,
    "bigint": 8,
    "real": 4,
    "double precision": 8,
    "date": 4,
    "time without time zone": 8,
    "timestamp without time zone": 8,
    "timestamp with time zone": 8,
    "uuid": 16,
}
UNALIGNED = ("boolean", "uuid")
# To find an element of an array of texts the server walks over those before it.
PACKED_COLUMNS_MAX = 64


@dataclass(frozen=True, slots=True)
class _Pack:
    """An array column: its name, its elements' staged type, and their columns."""

    name: str
    kind: StagedColumn
    indexes: tuple[int, ...]


class MergeLayout(Layout):
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
        kinds = [staging_of(column) for column in relation.columns]
        own = [(self.count, StagedColumn(pa.int64(), "bigint", needs_cast=False))]
        if relation.key:
            own.append((self.absent, StagedColumn(pa.binary(), "bytea", needs_cast=False)))
        for name, index in zip(self.origin, relation.key, strict=True):
            own.append((name, kinds[index]))
        types = [*(kind.sql for _, kind in own), *(kind.sql for kind in kinds)]
        self.is_packed = len(types) > COLUMNS_MAX or _longest_row(types) > ROW_BYTES_MAX
        plain = set(relation.key) if self.is_packed else set(range(len(kinds)))
        self._plain = sorted(plain)
        self._packs = tuple(_packs(relation.columns, plain, f"{prefix}p"))
        self._kinds = {index: kinds[index] for index in plain}
        self._packed: dict[int, tuple[str, int]] = {}
        for pack in self._packs:
            for place, index in enumerate(pack.indexes, start=1):
                self._kinds[index] = pack.kind
                self._packed[index] = (pack.name, place)
        columns = [
            *own,
            *((relation.columns[index].name, kinds[index]) for index in self._plain),
            *((pack.name, _array_of(pack.kind)) for pack in self._packs),
        ]
        self.schema = pa.schema([(name, kind.arrow) for name, kind in columns])
        self.sql_columns = tuple((name, kind.sql) for name, kind in columns)
        self.heads = tuple(kind.head for _, kind in columns)

    # --- for statements ---------------------------------------------------------------------------

    def kind(self, index: int) -> StagedColumn:
        """Return the staging of the relation's column of this index."""
        return self._kinds[index]

    def reference(self, index: int, alias: str = "") -> str:
        """Return the relation's column of this index, quoted, as a value or as a target of SET."""
        name, place = self._packed.get(index, (self.relation.columns[index].name, 0))
        column = f"{alias}.{quote(name)}" if alias else quote(name)
        return f"{column}[{place}]" if place else column

    def source(self, table: str) -> str:
        """Return the FROM clause of statements that read many columns, with the alias m.

        Arrays that the server stores elsewhere are fetched once for a row, not for each element:
        the result of array_cat is in memory, and `offset 0` keeps it there.
        """
        if not self.is_packed:
            return f"{table} as m"
        names = [name for name, _ in self.sql_columns]
        packed = {pack.name: pack.kind.sql for pack in self._packs}
        parts = [
            f"array_cat(m.{quote(name)}, '{{}}'::{packed[name]}[]) as {quote(name)}"
            if name in packed
            else f"m.{quote(name)}"
            for name in names
        ]
        return f"(select m.ctid, {', '.join(parts)} from {table} as m offset 0) as m"

    # --- for rows ---------------------------------------------------------------------------------

    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """One batch; a column given as None is all null. Values are without their heads."""
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(bitmaps)
            arrays += origin if origin is not None else [None] * len(self.origin)
        arrays += [columns[index] for index in self._plain]
        arrays += [_pack([columns[index] for index in p.indexes], p.kind) for p in self._packs]
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, kind.type) if values is None else cast_exactly(values, kind.type)
                for values, kind in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )


def _packs(columns: tuple[Column, ...], plain: set[int], prefix: str) -> Iterable[_Pack]:
    """Share the columns that are not plain out to arrays, type by type."""
    by_kind: dict[str, tuple[StagedColumn, list[int]]] = {}
    for index, column in enumerate(columns):
        if index not in plain:
            kind = staging_of(column)
            if kind.sql in ("numeric", "jsonb"):  # of many precisions in Arrow; not in an array
                kind = AS_TEXT
            by_kind.setdefault(kind.sql, (kind, []))[1].append(index)
    number = 0
    for kind, indexes in by_kind.values():
        for start in range(0, len(indexes), PACKED_COLUMNS_MAX):
            number += 1
            chosen = tuple(indexes[start : start + PACKED_COLUMNS_MAX])
            yield _Pack(f"{prefix}{number}", kind, chosen)


def _longest_row(types: Iterable[str]) -> int:
    """Bytes of the longest row that the server cannot make shorter, of columns of these types."""
    types = list(types)
    length = ROW_HEAD_BYTES + (len(types) + 7) // 8
    known, rest = 8, 0  # what is known of the offset: its remainder to this power of two
    for sql in types:
        size = FIXED_BYTES.get(sql)
        if size is None:
            length += MOVABLE_BYTES
            known, rest = 1, 0
            continue
        align = 1 if sql in UNALIGNED else size
        if known < align:
            length += align - 1
            known, rest = align, 0
        else:
            padding = -rest % align
            length += padding
            rest = (rest + padding) % known
        length += size
        rest = (rest + size) % known
    return length


def _pack(columns: list[Any], kind: StagedColumn) -> Any:
    """One array per row of the columns' values; all null when no column is given."""
    if all(column is None for column in columns):
        return None
    size = next(len(column) for column in columns if column is not None)
    whole = pa.concat_arrays(
        [
            pa.nulls(size, kind.arrow) if column is None else cast_exactly(column, kind.arrow)
            for column in columns
        ]
    )
    width = len(columns)
    by_row = np.arange(size * width).reshape(width, size).T.reshape(-1)
    offsets = np.arange(size + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), whole.take(pa.array(by_row)))


def _array_of(kind: StagedColumn) -> StagedColumn:
    return StagedColumn(pa.list_(kind.arrow), f"{kind.sql}[]", needs_cast=False)
