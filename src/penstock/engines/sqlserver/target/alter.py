"""Changes of a table's shape while changes are applied: each as SQL, exactly or leniently.

SQL Server refuses to alter a column that a default, an index or a key depends on, so these are
dropped before and created again after. DDL is part of the transaction. Pure. Not here: which
changes there are (`sql/shape_changes.py`), running the statements (`reshape.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.connect import literal, quote
from penstock.engines.sqlserver.target.catalog import (
    TargetColumn,
    TargetIndex,
    TargetTable,
    same_type,
    without_collation,
)
from penstock.engines.sqlserver.target.indexes import (
    check_recreatable,
    create_index,
    drop_index,
)
from penstock.engines.sqlserver.target.nulls import loosen_columns
from penstock.engines.sqlserver.target.progress import EXACT
from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.row_translation import fill_template
from penstock.sql.schema_translation import short_name
from penstock.sql.shape_changes import ShapeChange, key_of, shape_of

TEXT_MAX = f"nvarchar(max) {EXACT}"
NAME_LENGTH_MAX = 128
_TRUE = ("t", "true", "1")


@dataclass(frozen=True, slots=True)
class Alteration:
    """Statement, with its effect for messages."""

    sql: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterer:
    """Turns the changes of one table into statements.

    Attributes:
        table: As the catalogue has it now.
        types: The target's type of each column, by name, with its collation.
        is_emptied: The table has no rows.
        is_replaced: Its rows are all rewritten or deleted after the change.
        fills: Templates over the text of the value that older rows have.
    """

    record: TableRecord
    relation: Relation
    table: TargetTable
    types: Mapping[str, str]
    is_emptied: bool
    is_replaced: bool = False
    fills: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ShapeNotApplicable if a column is missing for a reason that the log does not
        have.
        """
        old = self.record.columns
        for column in self.relation.columns:
            is_known = old is None or column.name in dict(old)
            if not is_known or column.name in self.record.left_out:
                continue
            if self.table.column(column.name) is None:
                kind = self.types[column.name]
                raise ShapeNotApplicable(
                    f"target table {self.table.name} has no column {column.name}, the source has "
                    f"it as {column.source_type}",
                    hint=f"Run: {self._alter} ADD {quote(column.name)} {kind}; then `penstock "
                    f"run`, and `penstock verify`. {LOAD_AFRESH}",
                    table=str(self.table.name),
                )

    def stop_computing(self) -> list[Alteration]:
        """Return alterations for columns that the target computes but the source no longer does."""
        if self.record.columns in (None, shape_of(self.relation)):
            return []
        before = dict(self.record.columns or ())
        return [
            Alteration(sql, f"column {column.name} is no longer computed")
            for column in self.relation.columns
            if (found := self.table.column(column.name)) is not None
            and found.is_generated
            and (column.name not in before or self.is_emptied)
            for sql in (
                f"{self._alter} DROP COLUMN {quote(column.name)}",
                f"{self._alter} ADD {quote(column.name)} {self.types[column.name]} NULL",
            )
        ]

    def set_aside(self, names: Mapping[str, str]) -> list[Alteration]:
        """Give columns other names for the time being, so that their names are free."""
        return [
            Alteration(
                self._rename_sql(found.name, new),
                f"column {old} makes room for another of that name",
            )
            for old, new in names.items()
            if (found := self.table.column(old)) is not None
        ]

    def evolve(self, change: ShapeChange) -> list[Alteration]:
        """Return the same change as at the source. Raises ShapeNotApplicable."""
        return list(self._evolve(change))

    def lenient(self, change: ShapeChange) -> list[Alteration]:
        """Return alterations that keep every column and value of the target. Raises
        ShapeNotApplicable.
        """
        return list(self._lenient(change))

    # --- as it is ---------------------------------------------------------------------------------

    def _evolve(self, change: ShapeChange) -> Iterator[Alteration]:
        column, found = change.column, self.table.column(change.name)
        if change.computed is not None:
            yield from self._change_computed(change, found)
        elif change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            yield from self._rename(column, change)
        elif change.kind is ChangeKind.DROP_COLUMN:
            if found is not None and not found.is_generated:
                yield from self._drop(found, change)
        elif change.kind is ChangeKind.CHANGE_KEY and change.columns:
            yield from self._drop_unique(change)
        elif change.kind is ChangeKind.CHANGE_KEY:
            yield from self._key(change)
        elif column is None:
            return
        elif change.kind is ChangeKind.ADD_COLUMN:
            yield from self._add(column, change, is_strict=True)
        elif change.kind is ChangeKind.NULLABILITY:
            yield from self._loosen(column.name, change, is_nullable=column.nullable)
        elif (own := self.table.column(column.name)) is not None:
            kind = self.types[column.name]
            if not same_type(own.type_text, kind):
                yield from self._retype(own, kind, change.what)

    def _change_computed(
        self, change: ShapeChange, found: TargetColumn | None
    ) -> Iterator[Alteration]:
        """Yield the drop or the new name of a computed column; the target adds none itself.

        Its values are in rows if the source logs them, and an expression of another engine means
        something else here.
        """
        if found is None or not found.is_generated or change.computed is None:
            return
        if change.kind is ChangeKind.DROP_COLUMN:
            yield Alteration(f"{self._alter} DROP COLUMN {quote(found.name)}", change.what)
        elif change.kind is ChangeKind.RENAME_COLUMN:
            yield Alteration(self._rename_sql(found.name, change.computed.name), change.what)

    def _drop(self, found: TargetColumn, change: ShapeChange) -> Iterator[Alteration]:
        yield from self._drop_default(found, change.what)
        for index in self._indexes_with(found.name):
            yield Alteration(self._drop_index(index), change.what)
        yield Alteration(f"{self._alter} DROP COLUMN {quote(found.name)}", change.what)

    def _drop_default(self, found: TargetColumn, what: str) -> Iterator[Alteration]:
        if found.default_name:
            yield Alteration(f"{self._alter} DROP CONSTRAINT {quote(found.default_name)}", what)

    def _rename(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        found = self.table.column(change.name)
        if found is None:
            return
        other = self.table.column(column.name)
        if other is not None and other.name != found.name:
            raise ShapeNotApplicable(
                f"{change.what}, and target table {self.table.name} has both",
                hint=f"Run: {self._alter} DROP COLUMN ...; for the one that is not wanted; then "
                "`penstock run` again, and `penstock verify`.",
                table=str(self.table.name),
            )
        yield Alteration(self._rename_sql(found.name, column.name), change.what)

    def _rename_sql(self, old: str, new: str) -> str:
        place = literal(quote(*self.table.name, old))
        return f"EXEC sp_rename {place}, {literal(new)}, N'COLUMN'"

    def _add(self, column: Column, change: ShapeChange, *, is_strict: bool) -> Iterator[Alteration]:
        """Yield a new column, with the value that existing rows have; the default is dropped."""
        if self.table.column(column.name) is not None:
            self._refuse_kept(column.name)
            return
        value = self._missing(column)
        is_filled = bool(value) or self.is_emptied
        null = "NOT NULL" if is_strict and is_filled and not column.nullable else "NULL"
        name = quote(short_name(f"penstock_{self.table.name.name}_{column.name}", _fits))
        default = f" CONSTRAINT {name} DEFAULT {value} WITH VALUES" if value else ""
        added = f"{self._alter} ADD {quote(column.name)} {self.types[column.name]} {null}{default}"
        yield Alteration(added, change.what)
        if default:
            yield Alteration(f"{self._alter} DROP CONSTRAINT {name}", change.what)

    def _missing(self, column: Column) -> str:
        """Return the value of a new column in older rows, as SQL; empty if it is NULL."""
        text = column.missing
        if text is None:
            return ""
        given = literal(text)
        if column.neutral == "binary" and text.startswith("\\x"):
            return f"(0x{text[2:]})"
        if column.neutral == "bool":
            given = "1" if text.lower() in _TRUE else "0"
        kind = without_collation(self.types[column.name])
        return f"(CAST({fill_template(given, column.name, self.fills)} AS {kind}))"

    def _refuse_kept(self, name: str) -> None:
        if name in self.record.kept:
            raise ShapeNotApplicable(
                f"column {name} was added at the source, and target table {self.table.name} still "
                "has the values of an earlier column of that name",
                hint=f"Run: {self._rename_sql(name, f'{name}_old')}; or drop it; then `penstock "
                "run` again.",
                table=str(self.table.name),
            )

    def _retype(self, found: TargetColumn, kind: str, what: str) -> Iterator[Alteration]:
        null = "NOT NULL" if found.not_null else "NULL"
        yield from self._drop_default(found, what)
        indexes = self._indexes_with(found.name)
        check_recreatable(self.table, indexes, what)
        for index in indexes:
            yield Alteration(self._drop_index(index), what)
        is_free = self.is_emptied and not self.is_replaced and not found.is_identity
        if is_free and not _converts(found.type_text, kind):
            yield Alteration(f"{self._alter} DROP COLUMN {quote(found.name)}", what)
            yield Alteration(f"{self._alter} ADD {quote(found.name)} {kind} {null}", what)
        else:
            altered = f"{self._alter} ALTER COLUMN {quote(found.name)} {kind} {null}"
            yield Alteration(altered, what)
        is_large = kind.lower().startswith("nvarchar(max)")
        for index in indexes:
            if is_large and found.name not in index.included:
                continue  # the server refuses it as a key and in a condition
            for sql in create_index(self.table, index):
                yield Alteration(sql, what)

    def _loosen(self, name: str, change: ShapeChange, *, is_nullable: bool) -> Iterator[Alteration]:
        """Yield a dropped NOT NULL; a target that allows more is not made stricter."""
        found = self.table.column(name)
        if is_nullable and found is not None and found.not_null and name not in self._primary:
            for sql in loosen_columns(self.table, [found]):
                yield Alteration(sql, change.what)

    def _drop_unique(self, change: ShapeChange) -> Iterator[Alteration]:
        """Drop the target's unique keys on these columns; rows may be equal in them from now on."""
        for index in self.table.indexes:
            is_same = {*index.columns} == {*change.columns}
            if index.is_unique and is_same and not index.is_primary:
                yield Alteration(self._drop_index(index), change.what)

    def _key(self, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the change of the primary key, if the target has the key that the source had."""
        old, new = self.record.key or (), key_of(self.relation)
        primary, columns = self.table.primary, {*self._primary}
        there = {name for name in old if self.table.column(name) is not None}
        if old and not new and primary is not None and columns == there:
            yield Alteration(self._drop_index(primary), change.what)
            yield from self._free_of_key(columns, change)
        if not new or columns == {*new} or columns not in (there, set()):
            return
        known = {name for name, _ in self.record.columns or ()}
        # Rows that are there get this value with the column.
        known |= {one.name for one in self.relation.columns if one.missing is not None}
        found = [self.table.column(name) for name in new]
        is_whole = {*new} <= known or (self.is_emptied and not self.is_replaced)
        if None in found or not is_whole:
            return  # rows that are there have no values for it yet
        if primary is not None:
            yield Alteration(self._drop_index(primary), change.what)
        for column in filter(None, found):
            yield from self._fit_to_key(column, change)
        name = (
            primary.name if primary is not None else short_name(f"pk_{self.table.name.name}", _fits)
        )
        listed = ", ".join(map(quote, new))
        added = f"{self._alter} ADD CONSTRAINT {quote(name)} PRIMARY KEY ({listed})"
        yield Alteration(added, change.what)
        yield from self._free_of_key(columns - {*new}, change)

    def _fit_to_key(self, column: TargetColumn, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the type that a key can contain, without NULL."""
        kind = self.types[column.name]
        if column.not_null and same_type(column.type_text, kind):
            return
        altered = f"{self._alter} ALTER COLUMN {quote(column.name)} {kind} NOT NULL"
        yield Alteration(altered, change.what)

    def _free_of_key(self, names: Iterable[str], change: ShapeChange) -> Iterator[Alteration]:
        """Yield the statements that let columns that leave the key be NULL, if the source's may."""
        wanted = {*names}
        loosened = [
            found
            for column in self.relation.columns
            if column.name in wanted
            and column.nullable
            and (found := self.table.column(column.name)) is not None
            and found.not_null
        ]
        for sql in loosen_columns(self.table, loosened) if loosened else ():
            yield Alteration(sql, change.what)

    # --- leniently --------------------------------------------------------------------------------

    def _lenient(self, change: ShapeChange) -> Iterator[Alteration]:
        column = change.column
        if change.computed is not None:
            return
        if change.kind in (ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN):
            yield from self._optional(change.name, change)
        if change.kind in (ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN) and column is not None:
            yield from self._add(column, change, is_strict=False)
        is_renamed = change.kind is ChangeKind.RENAME_COLUMN
        if is_renamed and column is not None and self.table.column(change.name) is not None:
            own, kind = quote(change.name), without_collation(self.types[column.name])
            filled = (
                f"UPDATE {self.table.sql_name} SET {quote(column.name)} = CAST({own} AS {kind})"
            )
            yield Alteration(filled, f"{change.what}, and has its values")
        if change.kind in (ChangeKind.NULLABILITY, ChangeKind.CHANGE_KEY, ChangeKind.WIDEN_TYPE):
            yield from self._evolve(change)
        if change.kind is ChangeKind.CHANGE_TYPE and column is not None:
            yield from self._widen(column, change)

    def _optional(self, name: str, change: ShapeChange) -> Iterator[Alteration]:
        """Yield a column that stays, for rows that have no value for it."""
        found, primary = self.table.column(name), self.table.primary
        if found is None or found.is_generated:
            return
        if primary is not None and found.name in primary.columns:
            what = f"column {name} is no longer of the key"
            yield Alteration(self._drop_index(primary), what)
        if found.not_null and not found.is_identity:
            for sql in loosen_columns(self.table, [found]):
                yield Alteration(sql, f"{change.what}, and stays")

    def _widen(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        """Yield a type that holds existing and new values: text."""
        found, kind = self.table.column(column.name), self.types[column.name]
        if (
            found is None
            or same_type(found.type_text, kind)
            or same_type(found.type_text, TEXT_MAX)
        ):
            return
        if column.name in key_of(self.relation):
            raise ShapeNotApplicable(
                f"{change.what}: column {column.name} of {self.table.name} is part of the key, "
                "which cannot be kept as text",
                hint=f"Run: {self._alter} ALTER COLUMN {quote(column.name)} {kind}; then "
                "`penstock run` again.",
                table=str(self.table.name),
            )
        yield from self._retype(found, TEXT_MAX, f"{change.what}, kept as nvarchar(max)")

    # --- pieces -----------------------------------------------------------------------------------

    @property
    def _alter(self) -> str:
        return f"ALTER TABLE {self.table.sql_name}"

    @property
    def _primary(self) -> tuple[str, ...]:
        return self.table.primary.columns if self.table.primary is not None else ()

    def _indexes_with(self, name: str) -> list[TargetIndex]:
        return [one for one in self.table.indexes if one.uses(name)]

    def _drop_index(self, index: TargetIndex) -> str:
        return drop_index(self.table, index)


_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar"))
_NUMBERS = frozenset(("bit", "tinyint", "smallint", "int", "bigint", "decimal", "float", "real"))
_MOMENTS = frozenset(("date", "datetime", "smalldatetime", "datetime2", "datetimeoffset"))


def _converts(old: str, new: str) -> bool:
    """Return whether ALTER COLUMN has a conversion between the types, whatever the values are."""
    one, other = parse_type(old).base, parse_type(without_collation(new)).base
    if one == other or {one, other} <= _NUMBERS or {one, other} <= _MOMENTS:
        return True
    return one in _TEXTS and other in (*_TEXTS, *_NUMBERS, *_MOMENTS, "time", "uniqueidentifier")


def _fits(name: str) -> bool:
    return len(name) <= NAME_LENGTH_MAX
