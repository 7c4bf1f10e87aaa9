"""The statements that bring one merge table into its base table. Pure: catalogue in, SQL out.

A merge table has the base table's columns under their own names, all nullable, after a few of ours,
whose names begin with `wk$`. A value that is staged as text may be longer than the same value in
the base table, so a row of a table of very many columns would not fit on a page of the server:
there all columns but the key's are staged in arrays, one for each type and some dozens of columns,
which the server may store out of line.

Which way a table goes:

- UPSERT: where the key has an immediate unique index and nothing else in the table is unique: few
  rows by `insert ... on conflict do update`; of many, those that were there by `update`, those that
  were not by `insert`, which together cost two thirds of it.
- REPLACE: delete all affected keys, then insert: where other unique or exclusion constraints hold
  only at the end of the batch, where the key's constraint is deferrable, or where an identity
  column refuses updates.
- PLACE: as UPSERT, with the order worked out when a unique constraint objects: where REPLACE
  would be right but rows of other tables refer to this one, or the table has columns of its own.
- COUNT: tables without a key: so many copies of a row are deleted, so many inserted.

Not here: the order of tables and the transaction (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.columns import cast_exactly
from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.foreign import fill_template
from penstock.engines.postgres.target.target import (
    AS_TEXT,
    StagedColumn,
    TargetColumn,
    TargetIndex,
    TargetTable,
    staging_of,
)
from penstock.model import Column, Relation
from penstock.ports.target import NEW, SCHEMA, UPSERT, Counts, KeyNotInTarget, Layout

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
        """Return one batch. A column given as None is all NULL. Values are without their heads."""
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
    """Return the size in bytes of the longest row, of columns of these types, that the server
    cannot shorten by compressing or moving values.
    """
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
    """Return an array of the columns' values per row; all NULL if no column is given."""
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


class MergeStrategy(Enum):
    """Strategy by which a table's rows are applied; described at the top of this module."""

    UPSERT = "upsert"
    REPLACE = "replace"
    PLACE = "place"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge table of one phase, and the table that it is applied to.

    staging: the merge table's name in schema wirekite. absent_columns: indexes of the columns that
    some row leaves to the target. writes: conversions of rows of another engine, see `Foreign`.
    left_out: columns that the target lacks by the policy for changes of shape; they are not
    written.
    """

    relation: Relation
    table: TargetTable
    staging: str
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    writes: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


class MergeSql:
    """Statements of one merge. replica: whether foreign keys and ordinary triggers are off."""

    def __init__(self, merge: Merge, *, replica: bool) -> None:
        self.merge = merge
        self.table = merge.table
        self.layout = MergeLayout(merge.relation)
        self.staging = quote(SCHEMA, merge.staging)
        self.key = tuple(merge.relation.columns[index].name for index in merge.relation.key)
        self._columns = {
            place: (column, self._target(column.name))
            for place, column in enumerate(merge.relation.columns)
            if not self._is_left_out(column.name)
        }
        self._places = {column.name: place for place, (column, _) in self._columns.items()}
        self._absent_columns = sorted(merge.absent_columns & self._columns.keys())
        self._source = self.layout.source(self.staging)
        self.arbiter = _arbiter(self.table, self.key)
        self.strategy = self._strategy(replica)

    def _is_left_out(self, name: str) -> bool:
        """Return whether a column is not written. A column that identifies the row is always
        written.
        """
        is_absent = name in self.merge.left_out and self.table.column(name) is None
        return is_absent and bool(self.key) and name not in self.key

    def _target(self, name: str) -> TargetColumn:
        column = self.table.column(name)
        if column is None:
            raise KeyNotInTarget(
                f"target table {self.table.name} has no column {name}",
                hint=f"Add it as the source has it: alter table {self.table.sql_name} add column "
                f"{quote(name)} ...;",
                table=str(self.table.name),
            )
        return column

    def _strategy(self, replica: bool) -> MergeStrategy:
        if not self.key:
            return MergeStrategy.COUNT
        others = any(index is not self.arbiter for index in self.table.unique)
        fixed = any(
            target.identity == "a" and column.name not in self.key
            for column, target in self._columns.values()
        )
        if self.arbiter is not None and not others and not fixed:
            return MergeStrategy.UPSERT
        known = {column.name for column in self.merge.relation.columns}
        own = any(not c.generated and c.name not in known for c in self.table.columns)
        hung_on = (self.table.children or self.table.self_reference) and not replica
        if own or hung_on:
            return MergeStrategy.PLACE if self.arbiter is not None else MergeStrategy.REPLACE
        return MergeStrategy.REPLACE

    # --- pieces -----------------------------------------------------------------------------------

    def _value(self, name: str, *, exact: bool = False) -> str:
        """Return the merge table's value of a column, cast to the target's type if staged as
        text.

        exact: with the target's modifiers, for comparisons; a plain assignment applies them
        itself and, unlike a cast, refuses a value that does not fit.
        """
        index = self._places[name]
        column, target = self._columns[index]
        text = fill_template(self.layout.reference(index, "m"), name, self.merge.writes)
        if exact:
            return _cast(text, column, target.type_text)
        if self.layout.kind(index).needs_cast and target.cast_type != "text":
            return _cast(text, column, target.cast_type)
        return text

    def _origin(self, place: int) -> str:
        column, target = self._columns[self.merge.relation.key[place]]
        text = f"m.{quote(self.layout.origin[place])}"
        text = fill_template(text, column.name, self.merge.writes)
        return _cast(text, column, target.cast_type) if staging_of(column).needs_cast else text

    def _operator(self, place: int) -> str:
        if self.arbiter is not None and self.arbiter.operators:
            by_name = dict(zip(self.arbiter.columns, self.arbiter.operators, strict=True))
            return f"operator({by_name[self.key[place]]})"
        return "="

    def _on_key(self, values: Iterable[str], alias: str = "t") -> str:
        return " and ".join(
            f"{alias}.{quote(name)} {self._operator(place)} {value}"
            for place, (name, value) in enumerate(zip(self.key, values, strict=True))
        )

    def _match(self, alias: str = "t") -> str:
        return self._on_key((self._value(name) for name in self.key), alias)

    def _match_origin(self) -> str:
        return self._on_key(self._origin(place) for place in range(len(self.key)))

    @property
    def _n(self) -> str:
        return f"m.{quote(self.layout.count)}"

    @property
    def _absent(self) -> str:
        return f"m.{quote(self.layout.absent)}"

    @property
    def _stays(self) -> str:
        """Condition for a row with unsent columns to keep its key."""
        pairs = (
            f"m.{quote(name)} = m.{quote(origin)}"
            for name, origin in zip(self.key, self.layout.origin, strict=True)
        )
        return f"{self._absent} is not null and " + " and ".join(pairs)

    def _writable(self) -> list[str]:
        """Return the columns that may be written: all but those that the target computes."""
        return [column.name for column, target in self._columns.values() if not target.generated]

    def _overriding(self) -> str:
        always = any(target.identity == "a" for _, target in self._columns.values())
        return " overriding system value" if always else ""

    # --- statements -------------------------------------------------------------------------------

    def analyze(self) -> str:
        """Let the planner know the number of rows of each kind, and their keys."""
        names = ", ".join(map(quote, [self.layout.count, *self.key]))
        return f"analyze {self.staging} ({names})"

    def fill_absent(self) -> str | None:
        """Fill unsent columns from the target's row with the origin key. Returns None if there are
        none.

        With UPSERT this is only for rows that change their key. The others are updated in place, so
        that large values stay where they are.
        """
        if not self._absent_columns:
            return None
        parts = []
        for index in self._absent_columns:
            name = quote(self._columns[index][0].name)
            kind, own = self.layout.kind(index).sql, self.layout.reference(index)
            parts.append(
                f"{own} = case when get_bit({self._absent}, {index}) = 1"
                f" then t.{name}::{kind} else {self.layout.reference(index, 'm')} end"
            )
        only = f" and not ({self._stays})" if self.strategy is MergeStrategy.UPSERT else ""
        return (
            f"update {self.staging} as m set {', '.join(parts)}\n  from {self.table.own_rows} as t"
            f"\n where {self._absent} is not null{only} and {self._match_origin()}"
        )

    def count_absent(self) -> str:
        """Return the query for the rows that fill_absent() must fill and update_in_place() must
        change.
        """
        stays = self._stays if self.strategy is MergeStrategy.UPSERT else "false"
        return (
            f"select count(*) filter (where not ({stays})), count(*) filter (where {stays})"
            f" from {self.staging} as m where {self._absent} is not null"
        )

    def update_in_place(self) -> str | None:
        """Update rows that keep their key and leave columns as they are in the target."""
        if not self._absent_columns or self.strategy is not MergeStrategy.UPSERT:
            return None
        parts = []
        for index, (column, target) in self._columns.items():
            if target.generated or column.name in self.key:
                continue
            name, value = quote(column.name), self._value(column.name)
            if index in self._absent_columns:
                value = (
                    f"case when get_bit({self._absent}, {index}) = 1 then t.{name} else {value} end"
                )
            parts.append(f"{name} = {value}")
        return (
            f"update {self.table.own_rows} as t set {', '.join(parts)}\n  from {self._source}"
            f"\n where {self._stays} and {self._match()}"
        )

    def delete_gone(self, *, late: bool = False) -> str:
        """Delete the keys that the log deletes.

        late: upserts ran before. A key that is written differently but is equal in the target (1.0
        and 1.00) is deleted and upserted, and stays.
        """
        only = ""
        if late:
            n = quote(self.layout.count)
            same = " and ".join(
                f"{self._key_value('u', place)} {self._operator(place)}"
                f" {self._key_value('m', place)}"
                for place in range(len(self.key))
            )
            only = f" and not exists (select from {self.staging} as u where u.{n} > 0 and {same})"
        return (
            f"delete from {self.table.own_rows} as t using {self.staging} as m"
            f"\n where {self._n} < 0 and {self._match()}{only}"
        )

    def _key_value(self, alias: str, place: int) -> str:
        column, target = self._columns[self.merge.relation.key[place]]
        text = fill_template(f"{alias}.{quote(column.name)}", column.name, self.merge.writes)
        return _cast(text, column, target.cast_type)

    def delete_others(self) -> str:
        """Delete the rows whose keys the merge table lacks, because it holds the whole table."""
        return (
            f"delete from {self.table.own_rows} as t\n where not exists (select from {self.staging}"
            f" as m where {self._n} > 0 and {self._match()})"
        )

    def delete_affected(self) -> str:
        """Return SQL of strategy REPLACE: delete every key that the merge table names."""
        return (
            f"delete from {self.table.own_rows} as t using {self.staging} as m\n"
            f" where {self._match()}"
        )

    def insert(self, *, extra: str = "") -> str:
        """Insert all rows. With UPSERT and PLACE existing rows are updated."""
        return self._insert(f"{self._n} > 0{extra}", upsert=True)

    def insert_new(self, *, upsert: bool = False) -> str:
        """Insert the rows whose keys did not exist before the batch.

        upsert: update those whose keys exist nevertheless.
        """
        return self._insert(f"{self._n} = {NEW}", upsert=upsert)

    def upsert_known(self) -> str:
        """Update the rows whose keys existed before the batch, and insert missing ones."""
        return self._insert(f"{self._n} = {UPSERT}", upsert=True)

    def update_known(self) -> str:
        """Update the rows whose keys existed before the batch; missing rows are left out.

        Call it only if changed_columns says that there is something to set.
        """
        sets = ", ".join(f"{quote(name)} = {self._value(name)}" for name in self.changed_columns)
        return (
            f"update {self.table.own_rows} as t set {sets}\n  from {self._source}"
            f"\n where {self._n} = {UPSERT}{self._whole} and {self._match()}"
        )

    def _insert(self, only: str, *, upsert: bool) -> str:
        names = self._writable()
        conflict = ""
        if upsert and self.strategy in (MergeStrategy.UPSERT, MergeStrategy.PLACE):
            conflict = "\n    on conflict " + self._conflict()
        return (
            f"insert into {self.table.sql_name} as t ({', '.join(map(quote, names))})"
            f"{self._overriding()}\nselect {', '.join(self._value(name) for name in names)}"
            f"\n  from {self._source}\n where {only}{self._whole}{conflict}"
        )

    @property
    def _whole(self) -> str:
        """The condition that leaves out what update_in_place() does."""
        in_place = self._absent_columns and self.strategy is MergeStrategy.UPSERT
        return f" and ({self._stays}) is not true" if in_place else ""

    @property
    def changed_columns(self) -> list[str]:
        """Columns that an upsert sets in a row that is there.

        Keys are left out, which spares index checks, except where equal keys may look different.
        """
        loose = {
            column.name
            for column, _ in self._columns.values()
            if column.neutral in ("string", "float32", "float64")
        }
        return [name for name in self._writable() if name not in self.key or name in loose]

    def _conflict(self) -> str:
        target = f"({', '.join(map(quote, self.key))})"
        if not self.changed_columns:
            return f"{target} do nothing"
        sets = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in self.changed_columns)
        return f"{target} do update set {sets}"

    @property
    def counts_all_rows(self) -> bool:
        """Return whether the row count of insert() is that of the merge table's rows."""
        return bool(self.changed_columns) or self.strategy not in (
            MergeStrategy.UPSERT,
            MergeStrategy.PLACE,
        )

    def without_conflict(self) -> str:
        """Return a condition of strategy PLACE for insert(): no other row holds a unique value of
        this one.

        Rows that wait are tried again after the others; see `apply.py`.
        """
        conditions = [f" and {self._n} < {DONE}"]
        for index in self.table.unique:
            if index is self.arbiter or not index.plain:
                continue
            if any(name not in self._places for name in index.columns):
                continue  # of columns that the target alone has: no row changes them
            same = " and ".join(
                f"o.{quote(name)} operator({operator}) {self._value(name)}"
                for name, operator in zip(index.columns, index.operators, strict=True)
            )
            conditions.append(
                f" and not exists (select from {self.table.own_rows} as o"
                f" where {same} and not ({self._match('o')}))"
            )
        return "".join(conditions)

    def mark_done(self) -> str:
        """Return SQL of strategy PLACE: mark the rows that the target has in their final form."""
        names = [name for name in self._writable() if name not in self.key]
        same = " and ".join(
            [
                self._match(),
                *(
                    f"t.{quote(n)}::text is not distinct from {self._value(n, exact=True)}::text"
                    for n in names
                ),
            ]
        )
        return (
            f"update {self.staging} as m set {quote(self.layout.count)} = {DONE}"
            f"\n  from {self.table.own_rows} as t\n where {self._waits} and {same}"
        )

    def count_waiting(self) -> str:
        """Return SQL of strategy PLACE: count the rows that are not applied yet."""
        return f"select count(*) from {self.staging} as m where {self._waits}"

    @property
    def _waits(self) -> str:
        return f"{self._n} in ({UPSERT}, {NEW})"

    # --- without a key ----------------------------------------------------------------------------

    def _image(self, side: str) -> str:
        names = [column.name for column, _ in self._columns.values()]
        if side == "t":
            return f"row({', '.join(f't.{quote(name)}' for name in names)})::text"
        return f"row({', '.join(self._value(name, exact=True) for name in names)})::text"

    def delete_copies(self) -> str:
        """Return SQL of strategy COUNT: delete the counted copies of each row, compared by the
        exact text of all columns.
        """
        n = quote(self.layout.count)
        return f"""
delete from {self.table.own_rows} as t
 using (select found.part, found.place
          from (select t.tableoid as part, t.ctid as place, -m.{n} as copies,
                       row_number() over (partition by m.ctid) as number
                  from {self._source}
                  join {self.table.own_rows} as t on {self._image("t")} = {self._image("m")}
                 where m.{n} < 0) as found
         where found.number <= found.copies) as chosen
 where t.ctid = chosen.place and t.tableoid = chosen.part"""

    def insert_copies(self) -> str:
        """Return SQL of strategy COUNT: insert the counted copies of each row."""
        names = self._writable()
        return (
            f"insert into {self.table.sql_name} ({', '.join(map(quote, names))})"
            f"{self._overriding()}\nselect {', '.join(self._value(name) for name in names)}"
            f"\n  from {self._source}, generate_series(1, {self._n})"
        )

    def count_copies(self) -> str:
        """Return SQL of strategy COUNT: count the copies that delete_copies() must find and
        insert_copies() insert.
        """
        return (
            f"select coalesce(-sum({self._n}) filter (where {self._n} < 0), 0)::bigint,"
            f" coalesce(sum({self._n}) filter (where {self._n} > 0), 0)::bigint"
            f" from {self.staging} as m"
        )


def _cast(text: str, column: Column, kind: str) -> str:
    """Return staged text as a value of the target's type.

    The cast from text to regclass is not an input function and does not know the value `-`.
    """
    if column.base_type == "regclass" or column.source_type == "regclass":
        text = f"regclassin(textout({text}))"
    return f"({text})::{kind}" if "(" in text else f"{text}::{kind}"


def _arbiter(table: TargetTable, key: tuple[str, ...]) -> TargetIndex | None:
    """Return the unique index that `on conflict` may use for this key."""
    for index in table.unique:
        if index.plain and index.immediate and sorted(index.columns) == sorted(key):
            return index
    return None


def create_merge_table(layout: MergeLayout, name: str) -> str:
    """Return the statement that creates a merge table, whose rows can always be staged again."""
    columns = ",\n    ".join(f"{quote(column)} {kind}" for column, kind in layout.sql_columns)
    return (
        f"create unlogged table {quote(SCHEMA, name)} (\n    {columns}\n)"
        " with (autovacuum_enabled = false)"
    )
