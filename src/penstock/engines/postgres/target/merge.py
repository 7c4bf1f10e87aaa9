"""The statements that bring one merge table into its base table. Pure: catalogue in, SQL out.

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

from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.foreign import fill_template
from penstock.engines.postgres.target.merge_rows import DONE, MergeLayout
from penstock.engines.postgres.target.target import (
    TargetColumn,
    TargetIndex,
    TargetTable,
    staging_of,
)
from penstock.model import Column, Relation
from penstock.ports.target import NEW, SCHEMA, UPSERT, Counts, KeyNotInTarget


class MergeStrategy(Enum):
    """Strategy by which a table's rows are applied; described at the top of this module."""

    UPSERT = "upsert"
    REPLACE = "replace"
    PLACE = "place"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """One merge table of one phase and what it is applied to.

    staging: the merge table's name in schema wirekite. absent_columns: indexes of the columns
    that some row leaves to the target. writes: of rows of another engine, see `Foreign`. left_out:
    columns that the target does not have, by the policy for changes of shape: they are not written.
    """

    relation: Relation
    table: TargetTable
    staging: str
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    writes: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


class MergeSql:
    """The statements of one merge. replica: foreign keys and ordinary triggers are off."""

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
        """Return whether a column is not written; one that identifies the row has to be."""
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
        """Columns that may be written: all but those that the target computes."""
        return [column.name for column, target in self._columns.values() if not target.generated]

    def _overriding(self) -> str:
        always = any(target.identity == "a" for _, target in self._columns.values())
        return " overriding system value" if always else ""

    # --- statements -------------------------------------------------------------------------------

    def analyze(self) -> str:
        """Have the planner know how many rows there are, of which kind, and their keys."""
        names = ", ".join(map(quote, [self.layout.count, *self.key]))
        return f"analyze {self.staging} ({names})"

    def fill_absent(self) -> str | None:
        """Fill unsent columns from the target, by origin key. None when there are none.

        With UPSERT only for rows that change their key: the others are updated in place, so that
        large values stay where they are.
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
        """Delete the keys that are gone.

        late: upserts came first; a key that is written differently but is equal to the target
        (1.0 and 1.00) is both, and stays.
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
        """Delete the rows whose keys the merge table does not bring: it holds the whole table."""
        return (
            f"delete from {self.table.own_rows} as t\n where not exists (select from {self.staging}"
            f" as m where {self._n} > 0 and {self._match()})"
        )

    def delete_affected(self) -> str:
        """REPLACE: delete every key that the merge table names."""
        return (
            f"delete from {self.table.own_rows} as t using {self.staging} as m\n"
            f" where {self._match()}"
        )

    def insert(self, *, extra: str = "") -> str:
        """Insert all rows; with UPSERT and PLACE rows that are there are updated."""
        return self._insert(f"{self._n} > 0{extra}", upsert=True)

    def insert_new(self, *, upsert: bool = False) -> str:
        """Insert the rows whose keys did not exist before the batch.

        upsert: update those whose keys exist nevertheless.
        """
        return self._insert(f"{self._n} = {NEW}", upsert=upsert)

    def upsert_known(self) -> str:
        """Update the rows whose keys were there before the batch, and insert those that are not."""
        return self._insert(f"{self._n} = {UPSERT}", upsert=True)

    def update_known(self) -> str:
        """Update the rows whose keys were there before the batch; those that are not are left out.

        Call only where changed_columns says that there is something to set.
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
        """True if the row count of insert() is that of the merge table's rows."""
        return bool(self.changed_columns) or self.strategy not in (
            MergeStrategy.UPSERT,
            MergeStrategy.PLACE,
        )

    def without_conflict(self) -> str:
        """PLACE, as extra condition of insert(): no other row holds a unique value of this one.

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
        """PLACE: mark the rows that are in the target as they shall be."""
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
        """PLACE: rows not applied yet."""
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
        """COUNT: delete so many copies of each row, compared by the exact text of all columns."""
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
        """COUNT: insert so many copies of each row."""
        names = self._writable()
        return (
            f"insert into {self.table.sql_name} ({', '.join(map(quote, names))})"
            f"{self._overriding()}\nselect {', '.join(self._value(name) for name in names)}"
            f"\n  from {self._source}, generate_series(1, {self._n})"
        )

    def count_copies(self) -> str:
        """COUNT: how many copies delete_copies() and insert_copies() must find and make."""
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
    """Return the statement that makes a merge table. It holds nothing that cannot be made again."""
    columns = ",\n    ".join(f"{quote(column)} {kind}" for column, kind in layout.sql_columns)
    return (
        f"create unlogged table {quote(SCHEMA, name)} (\n    {columns}\n)"
        " with (autovacuum_enabled = false)"
    )
