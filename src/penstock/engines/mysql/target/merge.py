"""Statements that apply one merge table to its base table. Pure: catalogue in, SQL out.

A table's strategy is one of these:

- UPSERT, if the key has the table's only unique index: removed keys are deleted, all others are
  written by `insert ... on duplicate key update`, which can then meet only its own row.
- REPLACE, if other unique keys are only satisfied at the end of the batch, and `on duplicate key
  update` could change any row that it meets first: delete all affected keys, then insert.
- PLACE, if REPLACE would be right, but the table has columns of its own, which it would lose:
  update existing rows, insert missing rows.
- COUNT, for tables without a key: delete and insert the right number of copies, row by row.

Not here: the order of tables and the transaction (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.codec.types import Mapping as Mapped
from penstock.codec.types import fill_template
from penstock.engines.mysql.connect import quote
from penstock.engines.mysql.target.layout import ENUM, SHORT_TEXT, TEXT, MergeLayout, template_for
from penstock.engines.mysql.target.rows_files import RowsFile
from penstock.engines.mysql.target.target import BYTES, TargetColumn, TargetIndex, TargetTable
from penstock.model import Column, Relation
from penstock.ports.target import SCHEMA, Counts, KeyNotInTarget

_SIGNED = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_MOMENTS = frozenset({"date", "datetime", "timestamp"})
# Types whose lengths have fewer bytes than those of the merge table's columns. From one column
# directly into another, the servers silently copy a length that is too large without its first
# bytes; the result of an expression is refused.
_SHORT_BLOBS = frozenset({"tinytext", "text", "mediumtext", "tinyblob", "blob", "mediumblob"})
_GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geomcollection",
        "geometrycollection",
    }
)


class MergeStrategy(Enum):
    """Strategy for applying a table's rows; described at the top of this module."""

    UPSERT = "upsert"
    REPLACE = "replace"
    PLACE = "place"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge table of one phase, and the table that it is applied to.

    staging: the merge table's name in database wirekite. absent_columns: indexes of the columns
    that some row leaves to the target. dropped: columns of the rows that the target no longer has,
    because the same transaction drops them, or never had by policy. writes: for each column the
    template that converts the staged value to the target's (`codec.types`); without a template the
    value is unchanged. files: upserts that are not in the merge table. renamed: by column the name
    that the target has for it already, because the same transaction renames it later.
    """

    relation: Relation
    table: TargetTable
    staging: str
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    dropped: frozenset[str] = frozenset()
    writes: Mapping[str, str] = field(default_factory=dict)
    files: tuple[RowsFile, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


def writes_of(
    relation: Relation,
    table: TargetTable,
    mapping_of: Callable[[Column], Mapped],
    renamed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the template of each column whose values are converted for the target.

    renamed: as in `Merge`.
    """
    then = renamed or {}
    found = {
        column.name: table.column(then.get(column.name, column.name)) for column in relation.columns
    }
    return {
        column.name: template_for(mapping_of(column), target)
        for column in relation.columns
        if (target := found[column.name]) is not None
    }


class MergeSql:
    """Statements of one merge."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.table = merge.table
        self.layout = MergeLayout(merge.relation)
        self.staging = quote(SCHEMA, merge.staging)
        self.key = merge.relation.key
        # The columns of the relation that the target has, keyed by index.
        self.columns: dict[int, tuple[Column, TargetColumn]] = {
            index: (column, self._target(merge.renamed.get(column.name, column.name)))
            for index, column in enumerate(merge.relation.columns)
            if column.name not in merge.dropped
        }
        self._absent_columns = sorted(merge.absent_columns & self.columns.keys())
        self.arbiter = _arbiter(self.table, [self.columns[i][1].name for i in self.key])
        self.strategy = self._strategy()

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

    def _strategy(self) -> MergeStrategy:
        if not self.key:
            return MergeStrategy.COUNT
        others = any(index is not self.arbiter for index in self.table.unique)
        if self.arbiter is not None and not others:
            return MergeStrategy.UPSERT
        known = {target.name for _, target in self.columns.values()}
        own = any(not c.generated and c.name not in known for c in self.table.columns)
        return MergeStrategy.PLACE if own else MergeStrategy.REPLACE

    # --- pieces -----------------------------------------------------------------------------------

    def _writable(self) -> list[int]:
        """Return the indexes of writable columns: all but those that the target computes."""
        return [i for i, (_, target) in self.columns.items() if not target.generated]

    def _name(self, index: int) -> str:
        return quote(self.columns[index][1].name)

    def _value(self, index: int) -> str:
        """Return the merge table's value of a column, as it is assigned to the target's."""
        return self._written_as(self.layout.reference(index), index, is_compared=False)

    def template(self, index: int) -> str:
        """Return the template that converts a column's value for the target; see `Merge.writes`."""
        return self.merge.writes.get(self.columns[index][0].name, "{}")

    def _written_as(self, value: str, index: int, *, is_compared: bool = True) -> str:
        column, target = self.columns[index]
        template = self.template(index)
        # A FLOAT that identifies rows is staged as FLOAT: any expression changes its number.
        is_float = is_compared and self.layout.staged_sql(index) == "float"
        if template != "{}" and not is_float:
            return fill_template(template, value)
        if self._is_label(index) and target.data_type != "enum":
            value = f"convert({value} using utf8mb4)"  # other types need the label, not its number
        return _assign_sql(value, column, target, is_text=self._waits_as_text(index))

    def _waits_as_text(self, index: int) -> bool:
        return self.layout.staged_sql(index) in (TEXT, SHORT_TEXT) or self._is_label(index)

    def _is_label(self, index: int) -> bool:
        return self.layout.staged_sql(index).startswith(ENUM)

    def _on_key(self, values: Iterable[str]) -> str:
        parts = []
        for index, raw in zip(self.key, values, strict=True):
            _, target = self.columns[index]
            own = f"t.{self._name(index)}"
            value = self._written_as(raw, index)
            same = _compare_sql(value, target, is_text=self._waits_as_text(index))
            parts.append(f"{own} = {same}")
            if target.is_text and not target.collation.endswith("_bin"):
                # Equal by the collation is not enough: a value that differs in case is another row.
                exact = f"convert({value} using {target.charset}) collate {target.charset}_bin"
                parts.append(f"{own} = {exact}")
        return " and ".join(parts)

    def _match(self) -> str:
        return self._on_key(self.layout.reference(index) for index in self.key)

    def _match_origin(self) -> str:
        return self._on_key(f"penstock_m.{quote(name)}" for name in self.layout.origin)

    def _join(self, match: str) -> str:
        """Join both tables, the merge table first: its rows are looked up by key in the other."""
        return f"{self.staging} as penstock_m straight_join {self.table.sql_name} as t on {match}"

    @property
    def _n(self) -> str:
        return f"penstock_m.{quote(self.layout.count)}"

    @property
    def _absent(self) -> str:
        return f"penstock_m.{quote(self.layout.absent)}"

    def _is_absent(self, index: int) -> str:
        return f"ord(substring({self._absent}, {index // 8 + 1}, 1)) & {1 << index % 8}"

    @property
    def _stays(self) -> str:
        """Return the condition that a row with unsent columns keeps its key."""
        pairs = (
            f"{self.layout.reference(index)} = penstock_m.{quote(origin)}"
            for index, origin in zip(self.key, self.layout.origin, strict=True)
        )
        return f"({self._absent} is not null and " + " and ".join(pairs) + ")"

    @property
    def _in_place(self) -> bool:
        """Return whether rows that keep their key are updated in place, without unsent columns."""
        return bool(self._absent_columns) and self.strategy in (
            MergeStrategy.UPSERT,
            MergeStrategy.PLACE,
        )

    # --- statements -------------------------------------------------------------------------------

    def fill_absent(self) -> str | None:
        """Fill unsent columns from the target's row with the origin key. Returns None if there are
        none.

        If rows are updated in place, this is only done for rows that change their key.
        """
        if not self._absent_columns:
            return None
        parts = []
        for index in self._absent_columns:
            if self._is_label(index):
                continue
            own = self.layout.reference(index)
            is_text = self._waits_as_text(index)
            column, target = self.columns[index]
            there = _stage_sql(f"t.{self._name(index)}", column, target, is_text=is_text)
            if target.is_text:  # the server refuses to choose between two collations of columns
                there = f"convert({there} using utf8mb4) collate utf8mb4_bin"
            parts.append(f"{own} = if({self._is_absent(index)}, {there}, {own})")
        if not parts:  # still touches each row, and so counts the existing ones
            parts = [f"{self._n} = {self._n}"]
        only = f" and not {self._stays}" if self._in_place else ""
        return (
            f"update {self._join(self._match_origin())}\n   set {', '.join(parts)}"
            f"\n where {self._absent} is not null{only}"
        )

    def fill_labels(self) -> list[str]:
        """Fill unsent labels of all rows from the target: as columns, not in an expression.

        The result of an expression cannot be the value 0 of an ENUM.
        """
        return [
            f"update {self._join(self._match_origin())}\n"
            f"   set {self.layout.reference(index)} = t.{self._name(index)}\n"
            f" where {self._absent} is not null and {self._is_absent(index)}"
            for index in self._absent_columns
            if self._is_label(index)
        ]

    def count_absent(self) -> str:
        """Count the rows that fill_absent() must fill and that update_in_place() must change."""
        stays = self._stays if self._in_place else "false"
        return (
            f"select coalesce(sum(not {stays}), 0) as filled, coalesce(sum({stays}), 0) as placed"
            f" from {self.staging} as penstock_m where {self._absent} is not null"
        )

    def update_in_place(self) -> str | None:
        """Update rows that keep their key and leave some columns of the target unchanged."""
        if not self._in_place:
            return None
        parts = []
        for index in self._writable():
            own, value = f"t.{self._name(index)}", self._value(index)
            if index in self._absent_columns and not self._is_label(index):
                target = self.columns[index][1]
                if target.is_text:
                    value = _compare_sql(value, target, is_text=True)
                value = f"if({self._is_absent(index)}, {own}, {value})"
            parts.append(f"{own} = {value}")
        return (
            f"update {self._join(self._match())}\n   set {', '.join(parts)}\n where {self._stays}"
        )

    def delete_gone(self) -> str:
        """Delete the removed keys."""
        return f"delete t from {self._join(self._match())}\n where {self._n} < 0"

    def delete_others(self) -> str:
        """Delete the rows whose keys the merge table lacks, which contains the whole table."""
        brought = (
            f"select 1 from {self.staging} as penstock_m where {self._n} > 0 and {self._match()}"
        )
        return f"delete t from {self.table.sql_name} as t\n where not exists ({brought})"

    def delete_affected(self) -> str:
        """Delete every key of the merge table (REPLACE)."""
        return f"delete t from {self._join(self._match())}"

    def insert(self) -> str:
        """Insert all rows; with UPSERT, update existing ones."""
        names = [self._name(index) for index in self._writable()]
        conflict = ""
        if self.strategy is MergeStrategy.UPSERT:
            sets = ", ".join(
                f"{name} = {self._value(index)}"
                for name, index in zip(names, self._writable(), strict=True)
            )
            conflict = f"\n    on duplicate key update {sets}"
        return self._insert(f"{self._n} > 0{self._whole}") + conflict

    def update_known(self) -> str:
        """Update the existing rows (PLACE)."""
        sets = ", ".join(f"t.{self._name(i)} = {self._value(i)}" for i in self._writable())
        return (
            f"update {self._join(self._match())}\n   set {sets}\n where {self._n} > 0{self._whole}"
        )

    def insert_missing(self) -> str:
        """Insert the missing rows (PLACE)."""
        missing = f"not exists (select 1 from {self.table.sql_name} as t where {self._match()})"
        return self._insert(f"{self._n} > 0{self._whole} and {missing}")

    def insert_all(self) -> str:
        """Insert every staged row unchanged, whether or not it exists."""
        return self._insert("true")

    def _insert(self, only: str) -> str:
        written = self._writable()
        return (
            f"insert into {self.table.sql_name} ({', '.join(self._name(i) for i in written)})"
            f"\nselect {', '.join(self._value(i) for i in written)}"
            f"\n  from {self.staging} as penstock_m\n where {only}"
        )

    @property
    def _whole(self) -> str:
        """Return the condition that excludes the rows of update_in_place()."""
        return f" and not {self._stays}" if self._in_place else ""

    # --- without a key ----------------------------------------------------------------------------

    def surplus(self) -> str:
        """Select the numbers of rows with surplus copies, and how many of each (COUNT)."""
        return (
            f"select penstock_m.{quote(self.layout.number)} as number, -{self._n} as copies"
            f" from {self.staging} as penstock_m where {self._n} < 0"
        )

    def delete_copies(self, number: int, copies: int) -> str:
        """Delete copies of the row of this number, compared by all its columns (COUNT)."""
        same = " and ".join(self._same(index, number) for index in self.columns)
        return f"delete from {self.table.sql_name}\n where {same}\n limit {copies}"

    def _same(self, index: int, number: int) -> str:
        _, target = self.columns[index]
        own, is_text = self._name(index), self._waits_as_text(index)
        staged = self._written_as(self.layout.reference(index), index)
        value = _compared_whole(staged, target, is_text=is_text)
        row = (
            f"(select {value} from {self.staging} as penstock_m"
            f" where penstock_m.{quote(self.layout.number)} = {number})"
        )
        return f"{_comparable(own, target)} <=> {row}"

    def most_copies(self) -> str:
        """Select the most copies of one row to insert, and the copies of all rows (COUNT)."""
        n = self._n
        return (
            f"select coalesce(max({n}), 0) as most, coalesce(sum({n}), 0) as every"
            f" from {self.staging} as penstock_m where {n} > 0"
        )

    def insert_copies(self, number: int) -> str:
        """Insert one copy of each row that needs at least this number (COUNT)."""
        return self._insert(f"{self._n} >= {number}")


def _arbiter(table: TargetTable, key: list[str]) -> TargetIndex | None:
    """Return the unique index over exactly this key, which `on duplicate key update` then uses."""
    for index in table.unique:
        if index.plain and sorted(index.columns) == sorted(key):
            return index
    return None


# --- values ---------------------------------------------------------------------------------------


def _assign_sql(value: str, column: Column, target: TargetColumn, *, is_text: bool) -> str:
    """Return the SQL that converts a staged value to the type of the target's column."""
    if column.neutral == "uuid" and target.data_type in BYTES:
        return f"unhex(replace({value}, '-', ''))"
    if target.data_type == "bit" and is_text:
        return f"cast(conv({value}, 2, 10) as unsigned)"
    if target.data_type in _SHORT_BLOBS:
        return f"coalesce({value})"
    return value


def _stage_sql(value: str, column: Column, target: TargetColumn, *, is_text: bool) -> str:
    """Return the SQL that converts a value of the target to its staged form, as `_assign_sql`
    does the other way.
    """
    if column.neutral == "uuid" and target.data_type in BYTES:
        digits = f"lower(hex({value}))"
        for place in (9, 14, 19, 24):
            digits = f"insert({digits}, {place}, 0, '-')"
        return digits
    if target.data_type == "bit":
        width = int(target.type_text.rpartition("(")[2].rstrip(")") or 1)
        return f"lpad(bin({value} + 0), {width}, '0')" if is_text else f"{value} + 0"
    if target.data_type == "float" and is_text:
        return f"{value} + 0e0"  # printed without this, a FLOAT has six digits
    return value


def _compare_sql(value: str, target: TargetColumn, *, is_text: bool) -> str:
    """Return a staged value as it is compared with the target's column, by its index."""
    if target.is_text:
        return f"convert({value} using {target.charset}) collate {target.collation}"
    if not is_text:
        return value
    if target.data_type in _SIGNED:
        kind = "unsigned" if "unsigned" in target.type_text else "signed"
        return f"cast({value} as {kind})"
    if target.data_type == "decimal":
        return f"cast({value} as {target.type_text.split(' ')[0]})"
    if target.data_type in _MOMENTS:
        return f"cast({value} as datetime(6))"
    if target.data_type == "time":
        return f"cast({value} as time(6))"
    return f"{value} + 0e0" if target.data_type in ("float", "double") else value


def _compared_whole(value: str, target: TargetColumn, *, is_text: bool) -> str:
    """Return a staged value as it is compared with the result of _comparable()."""
    if target.data_type == "char":
        return f"convert({value} using {target.charset}) collate {target.charset}_bin"
    if target.is_text:
        return f"cast(convert({value} using {target.charset}) as binary)"
    if target.data_type in _GEOMETRIES:
        return f"hex({value})"
    if target.data_type == "json":
        return f"cast({value} as json)"
    return _compare_sql(value, target, is_text=is_text)


def _comparable(own: str, target: TargetColumn) -> str:
    """Return a target column in a form in which only equal values are equal.

    Trailing blanks of CHAR are no difference.
    """
    if target.data_type == "char":
        return own
    if target.is_text:
        return f"cast({own} as binary)"
    if target.data_type in _GEOMETRIES:
        return f"hex({own})"
    return f"{own} + 0" if target.data_type == "bit" else own
