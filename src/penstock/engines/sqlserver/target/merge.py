"""Statements that bring one merge table into its base table. Pure: catalogue in, SQL out.

Rows of a table with a key are applied by DELETE, UPDATE and INSERT. MERGE would be one statement,
but its row count does not tell how many rows it updated, so a row that is missing in the target
would pass unseen; it cannot delete children before parents; and it holds ranges of the key locked
(reference oracle-sqlserver, section 4 F4). It would spare little: three statements cost 0.9 ms of
our CPU for a batch of 20,000 rows, MERGE 0.5 ms (`bench_sqlserver_target.py`), and since the log
says which rows are new, a batch rarely needs all three: see `apply.py`.

- KEYED: rows that were there by UPDATE, the others by INSERT.
- REPLACE: all affected keys are deleted and inserted, where an identity column that is not of the
  key cannot be updated.
- COUNT: tables without a key: so many copies of a row are deleted, so many inserted. Rows are
  compared whole and exactly, NULL equals NULL (INTERSECT).

Equality of text ignores blanks at the end in every collation, so keys of text are compared by their
length, too. A key column of the target must have a binary collation, or the table is refused.

Not here: the order of statements and tables, and the transaction (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetColumn, TargetTable
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.progress import EXACT
from penstock.model import Column, Relation
from penstock.ports.target import (
    SCHEMA,
    UPSERT,
    Counts,
    KeyNotInTarget,
    TargetShapeDiffers,
)
from penstock.sql.row_translation import fill_template

COPY_BITS_MAX = 63
_FIXED_LENGTH = frozenset(("char", "nchar", "binary"))
_BYTES = frozenset(("binary", "varbinary"))


class MergeStrategy(Enum):
    """Strategy by which a table's rows are applied; described at the top of this module."""

    KEYED = "keyed"
    REPLACE = "replace"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge table of one phase, and the table that it is applied to.

    Attributes:
        relation: Shape of the rows.
        staging: The merge table's name in schema wirekite.
        absent_columns: Indexes of the columns that some row leaves to the target.
        templates: Conversions of staged values, by column.
        as_text: Indexes of the columns that are staged as text.
        left_out: Columns that the target lacks by policy.
    """

    relation: Relation
    table: TargetTable
    staging: str
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    templates: Mapping[str, str] = field(default_factory=dict)
    as_text: frozenset[int] = frozenset()
    left_out: frozenset[str] = frozenset()


class MergeSql:
    """Statements of one merge. Raises KeyNotInTarget, TargetShapeDiffers when created."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.table = merge.table
        self.layout = MergeLayout(merge.relation, as_text=merge.as_text)
        self.staging = quote(SCHEMA, merge.staging)
        self.key = tuple(merge.relation.columns[index].name for index in merge.relation.key)
        self._columns = {
            place: (column, self._target(column.name))
            for place, column in enumerate(merge.relation.columns)
            if not self._is_left_out(column.name)
        }
        self._places = {column.name: place for place, (column, _) in self._columns.items()}
        self._absent_columns = sorted(merge.absent_columns & self._columns.keys())
        for place in merge.relation.key:
            self._check_key(*self._columns[place])
        self.strategy = self._strategy()

    @property
    def has_identity(self) -> bool:
        """Return whether an INSERT writes an identity column, which needs IDENTITY_INSERT."""
        return any(target.is_identity for _, target in self._columns.values())

    def _strategy(self) -> MergeStrategy:
        if not self.key:
            return MergeStrategy.COUNT
        fixed = any(
            target.is_identity and column.name not in self.key
            for column, target in self._columns.values()
        )
        return MergeStrategy.REPLACE if fixed else MergeStrategy.KEYED

    def _is_left_out(self, name: str) -> bool:
        is_absent = name in self.merge.left_out and self.table.column(name) is None
        return is_absent and bool(self.key) and name not in self.key

    def _target(self, name: str) -> TargetColumn:
        column = self.table.column(name)
        if column is None:
            raise KeyNotInTarget(
                f"target table {self.table.name} has no column {name}",
                hint=f"Add it as the source has it: ALTER TABLE {self.table.sql_name} ADD "
                f"{quote(name)} ...;",
                table=str(self.table.name),
            )
        return column

    def _check_key(self, column: Column, target: TargetColumn) -> None:
        """Refuse a key whose collation takes different keys of the source for equal.

        A source of SQL Server has keys that differ in the same collation, too.
        """
        is_same = column.collation.lower() == target.collation.lower()
        if not target.is_text or target.is_binary or is_same:
            return
        null = "NOT NULL" if target.not_null else "NULL"
        raise TargetShapeDiffers(
            f"column {target.name} of target table {self.table.name} is in the key and has "
            f"collation {target.collation}, in which keys that differ may be equal",
            hint=f"Run, without the keys and indexes of the column: ALTER TABLE "
            f"{self.table.sql_name} ALTER COLUMN {quote(target.name)} {target.type_text} {EXACT} "
            f"{null};",
            table=str(self.table.name),
        )

    # --- pieces -----------------------------------------------------------------------------------

    def _value(self, name: str) -> str:
        """Return the value of a column of the merge table for the column of the target."""
        reference = self.layout.reference(self._places[name])
        return fill_template(reference, name, self.merge.templates)

    def _origin(self, place: int) -> str:
        """Return the place-th value of the key under which the target has a row."""
        name = self.key[place]
        return fill_template(f"m.{quote(self.layout.origin[place])}", name, self.merge.templates)

    def _equal(self, place: int, value: str) -> str:
        """Return the condition that the target's row has this value in the key's place."""
        column, target = self._columns[self.merge.relation.key[place]]
        own = f"t.{quote(target.name)}"
        if not (target.is_text or target.kind.base in _BYTES):
            return f"{own} = {value}"
        given = f"CAST({value} AS {target.type_text})"
        same = f"{own} = {given}"
        if target.is_text:
            same += f" COLLATE {target.collation}"  # an index has that order
            if not target.is_binary:
                same += f" AND {own} {EXACT} = {given} {EXACT}"
        if target.kind.base in _FIXED_LENGTH:
            return same
        if target.kind.base in _BYTES:
            return f"{same} AND DATALENGTH({own}) = DATALENGTH({value})"
        is_staged_so = column.neutral == "string" and column.name not in self.merge.templates
        if is_staged_so and target.kind.base == "nvarchar":
            return f"{same} AND DATALENGTH({own}) = DATALENGTH({value})"
        given = value if column.neutral != "string" else f"{value} {EXACT}"
        return f"{same} AND {_bytes_of(f'{own} {EXACT}')} = {_bytes_of(given)}"

    def _match(self) -> str:
        return " AND ".join(
            self._equal(place, self._value(name)) for place, name in enumerate(self.key)
        )

    def _match_origin(self) -> str:
        return " AND ".join(
            self._equal(place, self._origin(place)) for place in range(len(self.key))
        )

    @property
    def _n(self) -> str:
        return f"m.{quote(self.layout.count)}"

    @property
    def _absent(self) -> str:
        return f"m.{quote(self.layout.absent)}"

    @property
    def _both(self) -> str:
        return f"FROM {self.table.sql_name} AS t\n  JOIN {self.staging} AS m ON"

    def _is_absent(self, index: int) -> str:
        """Return the condition that a row was sent without the column of this index."""
        byte, bit = index // 8 + 1, 1 << index % 8
        return f"CAST(SUBSTRING({self._absent}, {byte}, 1) AS int) & {bit} = {bit}"

    @property
    def _stays(self) -> str:
        """Condition for a row with unsent columns to keep its key."""
        pairs = [f"{self._absent} IS NOT NULL"]
        for index, origin in zip(self.merge.relation.key, self.layout.origin, strict=True):
            name, other = self.layout.reference(index), f"m.{quote(origin)}"
            pairs.append(f"{name} = {other}")
            if self.merge.relation.columns[index].neutral in ("string", "binary"):
                pairs.append(f"DATALENGTH({name}) = DATALENGTH({other})")
        return " AND ".join(pairs)

    @property
    def _writable(self) -> list[str]:
        """Return the columns that may be inserted: all that the server does not compute."""
        return [column.name for column, target in self._columns.values() if not target.is_generated]

    @property
    def changed_columns(self) -> list[str]:
        """Return the columns that an UPDATE sets: all but the key's and an identity column.

        A time with an offset equals one with another offset, so it is set even in a key.
        """
        return [
            column.name
            for column, target in self._columns.values()
            if not target.is_generated
            and not target.is_identity
            and (column.name not in self.key or target.kind.base == "datetimeoffset")
        ]

    # --- unsent columns ---------------------------------------------------------------------------

    @property
    def _is_in_place(self) -> bool:
        return bool(self._absent_columns) and self.strategy is MergeStrategy.KEYED

    def fill_absent(self) -> str | None:
        """Fill unsent columns of the merge table from the target's row with the origin key.

        A row that keeps its key is not filled but updated in place, so that large values stay where
        they are. Returns None if all columns were sent.
        """
        if not self._absent_columns:
            return None
        parts = []
        for index in self._absent_columns:
            column, target = self._columns[index]
            own = quote(column.name)
            parts.append(
                f"{own} = CASE WHEN {self._is_absent(index)} THEN t.{quote(target.name)}"
                f" ELSE m.{own} END"
            )
        only = f" AND NOT ({self._stays})" if self._is_in_place else ""
        return (
            f"UPDATE m SET {', '.join(parts)}\n  FROM {self.staging} AS m\n"
            f"  JOIN {self.table.sql_name} AS t ON {self._match_origin()}\n"
            f" WHERE {self._absent} IS NOT NULL{only}"
        )

    def count_absent(self) -> str:
        """Return the query for the rows that fill_absent() and update_in_place() must find."""
        stays = f"CASE WHEN {self._stays} THEN 1 ELSE 0 END" if self._is_in_place else "0"
        return (
            f"SELECT COUNT_BIG(*), COALESCE(SUM({stays}), 0) FROM {self.staging} AS m"
            f" WHERE {self._absent} IS NOT NULL"
        )

    def update_in_place(self) -> str:
        """Update rows that keep their key and leave columns as they are in the target."""
        parts = []
        for name in self.changed_columns:
            index, value = self._places[name], self._value(name)
            if index in self._absent_columns:
                value = f"CASE WHEN {self._is_absent(index)} THEN t.{quote(name)} ELSE {value} END"
            parts.append(f"{quote(name)} = {value}")
        return (
            f"UPDATE t SET {', '.join(parts)}\n  {self._both} {self._match()}\n WHERE {self._stays}"
        )

    @property
    def _whole(self) -> str:
        """Return the condition that leaves out the rows of update_in_place()."""
        return f" AND NOT ({self._stays})" if self._is_in_place else ""

    # --- rows with a key --------------------------------------------------------------------------

    def delete_gone(self) -> str:
        """Delete the keys that the log deletes."""
        return f"DELETE t\n  {self._both} {self._match()}\n WHERE {self._n} < 0"

    def delete_affected(self) -> str:
        """Return SQL of strategy REPLACE: delete every key that the merge table names."""
        return f"DELETE t\n  {self._both} {self._match()}"

    def delete_others(self) -> str:
        """Delete the rows whose keys the merge table lacks, because it holds the whole table."""
        return (
            f"DELETE t\n  FROM {self.table.sql_name} AS t\n WHERE NOT EXISTS"
            f" (SELECT 1 FROM {self.staging} AS m WHERE {self._n} > 0 AND {self._match()})"
        )

    def update_rows(self, *, kind: int = UPSERT) -> str:
        """Update the rows whose keys are there. kind: UPSERT, or NEW for keys that should be new.

        Call it only if changed_columns is not empty.
        """
        sets = ", ".join(f"{quote(name)} = {self._value(name)}" for name in self.changed_columns)
        return (
            f"UPDATE t SET {sets}\n  {self._both} {self._match()}\n"
            f" WHERE {self._n} = {kind}{self._whole}"
        )

    def insert_missing(self) -> str:
        """Insert the rows whose keys are not there."""
        return (
            f"{self._insert_head}  FROM {self.staging} AS m\n WHERE {self._n} > 0{self._whole}"
            f" AND NOT EXISTS (SELECT 1 FROM {self.table.sql_name} AS t WHERE {self._match()})"
        )

    @property
    def _insert_head(self) -> str:
        names = self._writable
        return (
            f"INSERT INTO {self.table.sql_name} ({', '.join(map(quote, names))})\n"
            f"SELECT {', '.join(map(self._value, names))}\n"
        )

    # --- rows without a key -----------------------------------------------------------------------

    def _image(self, alias: str) -> str:
        """Return a row's columns as values that are equal only if the rows are the same."""
        return ", ".join(_flat(self._exact(alias, *pair) for pair in self._columns.values()))

    def _exact(self, alias: str, column: Column, target: TargetColumn) -> Iterator[str]:
        value = f"{alias}.{quote(target.name)}"
        if alias == "m":
            value = f"CAST({self._value(column.name)} AS {_comparable(target)})"
        elif target.kind.base in _COMPARED_AS:
            value = f"CAST({value} AS {_comparable(target)})"
        if "char" in _comparable(target):
            yield f"{value} {EXACT}"
            yield _bytes_of(f"{value} {EXACT}")
        elif "binary" in _comparable(target):
            yield value
            yield f"DATALENGTH({value})"
        else:
            yield value

    def delete_copies(self) -> str:
        """Return SQL of strategy COUNT: delete the counted copies of each row.

        Copies are numbered, since each is deleted as often as the log says.
        """
        columns = ", ".join(f"d.{quote(target.name)}" for _, target in self._columns.values())
        number = quote(f"{self.layout.count}umber")
        return (
            f"WITH copies AS (SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {self._image('d')}"
            f" ORDER BY (SELECT NULL)) AS {number} FROM {self.table.sql_name} AS d)\n"
            f"DELETE FROM copies WHERE EXISTS (SELECT 1 FROM {self.staging} AS m"
            f" WHERE {self._n} < 0 AND copies.{number} <= -{self._n}"
            f" AND EXISTS (SELECT {self._image('copies')} INTERSECT SELECT {self._image('m')}))"
        )

    def insert_copies(self, bit: int) -> str:
        """Return SQL of strategy COUNT: insert 2 to the power of `bit` copies of each row whose
        number of copies has that bit.
        """
        doubled = "".join(
            f"\n CROSS JOIN (VALUES (0), (1)) AS b{place}(x)" for place in range(1, bit + 1)
        )
        return (
            f"{self._insert_head}  FROM {self.staging} AS m{doubled}\n"
            f" WHERE {self._n} > 0 AND {self._n} & {1 << bit} = {1 << bit}"
        )

    def count_copies(self) -> str:
        """Return SQL of strategy COUNT: the copies to delete and to insert, and the greatest number
        of copies of one row.
        """
        return (
            f"SELECT COALESCE(SUM(CASE WHEN {self._n} < 0 THEN -{self._n} ELSE 0 END), 0),"
            f" COALESCE(SUM(CASE WHEN {self._n} > 0 THEN {self._n} ELSE 0 END), 0),"
            f" COALESCE(MAX({self._n}), 0) FROM {self.staging} AS m"
        )


_COMPARED_AS = {
    "xml": "nvarchar(max)",
    "json": "nvarchar(max)",
    "ntext": "nvarchar(max)",
    "text": "varchar(max)",
    "image": "varbinary(max)",
    "geometry": "varbinary(max)",
    "geography": "varbinary(max)",
    "hierarchyid": "varbinary(892)",
}


def _comparable(target: TargetColumn) -> str:
    """Return the type as which a column's values are compared."""
    return _COMPARED_AS.get(target.kind.base, target.type_text)


def _bytes_of(text: str) -> str:
    """Return the length of a text in UTF-16, whatever the code page of its type is."""
    return f"DATALENGTH(CAST({text} AS nvarchar(max)))"


def _flat(groups: Iterable[Iterable[str]]) -> Iterator[str]:
    for group in groups:
        yield from group
