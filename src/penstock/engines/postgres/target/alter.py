"""Changes of a table's shape while changes are applied: each as SQL, exactly or leniently.

Pure. Not here: which changes there are (`sql/shape_changes.py`), running the statements
(`reshape.py`), making tables (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.engines.postgres.connect import literal, quote
from penstock.engines.postgres.target.foreign import fill_template
from penstock.engines.postgres.target.target import (
    TargetColumn,
    TargetIndex,
    TargetTable,
    map_namespaces,
    same_type,
)
from penstock.model import LOAD_AFRESH, Column, ComputedColumn, Relation
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.shape_changes import ShapeChange, key_of, shape_of

TEXTS = ("text", "character varying")
IDENTITY_TYPES = ("smallint", "integer", "bigint")


@dataclass(frozen=True, slots=True)
class Alteration:
    """Statement, with its effect for messages. instead: statement to try if it is refused."""

    sql: str
    what: str
    instead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterer:
    """Turns the changes of one table into statements.

    table: as the catalogue has it now. emptied: the table's rows are dropped first (a reload
    follows), so that types change without a cast. replaced: they are not dropped, but all rewritten
    or deleted after the change. fills: by column the template that converts the text of the value
    of older rows.
    """

    record: TableRecord
    relation: Relation
    table: TargetTable
    namespaces: Mapping[str, str]
    emptied: bool
    replaced: bool = False
    fills: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ShapeNotApplicable when a column is missing for no reason the log tells."""
        old = self.record.columns
        for column in self.relation.columns:
            is_known = old is None or column.name in dict(old)
            if is_known and not self._is_there(column) and column.name not in self.record.left_out:
                kind = self._kind(column)
                raise ShapeNotApplicable(
                    f"target table {self.table.name} has no column {column.name}, the source has "
                    f"it as {column.source_type}",
                    hint=f"Run: {self._alter} add column {quote(column.name)} {kind}; then "
                    f"`penstock run`, and `penstock verify`. {LOAD_AFRESH}",
                    table=str(self.table.name),
                )

    def is_given_up_above(self, change: ShapeChange) -> bool:
        """Return whether a dropped column is inherited, so that it is dropped with the parent's
        column.

        The parent's change may follow later in the log, or never: the source's tables may have no
        parent.
        """
        found = self.table.column(change.name)
        is_gone = change.kind is ChangeKind.DROP_COLUMN
        return is_gone and found is not None and found.origin is not None

    def stop_computing(self) -> list[Alteration]:
        """Return alterations for columns that the target computes but the source no longer does."""
        if self.record.columns in (None, shape_of(self.relation)):
            return []
        before = dict(self.record.columns or ())
        return [
            Alteration(
                f"{self._alter} alter column {quote(column.name)} drop expression",
                f"column {column.name} is no longer generated",
            )
            for column in self.relation.columns
            if (found := self.table.column(column.name)) is not None
            and found.generated
            and (column.name not in before or self.emptied)
        ]

    def set_aside(self, names: Mapping[str, str]) -> list[Alteration]:
        """Give columns other names for the time being, so that their names are free."""
        return [
            Alteration(
                f"{self._alter_at(found)} rename column {quote(old)} to {quote(new)}",
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
        column = change.column
        if change.computed is not None:
            yield from self._alter_computed(change.computed, change)
            return
        if change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            yield from self._rename(column, change)
            return
        if change.kind is ChangeKind.DROP_COLUMN:
            found = self.table.column(change.name)
            if found is not None and not found.generated:
                yield Alteration(f"{self._alter} drop column {quote(change.name)}", change.what)
        if change.kind is ChangeKind.CHANGE_KEY and change.columns:
            yield from self._drop_unique(change)
            return
        if change.kind is ChangeKind.CHANGE_KEY:
            yield from self._key(change)
        if column is None:
            return
        if change.kind is ChangeKind.ADD_COLUMN:
            yield from self._add(column, change, strict=True)
        elif change.kind is ChangeKind.NULLABILITY:
            yield from self._loosen(column.name, change, nullable=column.nullable)
        elif (found := self.table.column(column.name)) is not None:
            kind = self._kind(column)
            if not same_type(found.type_text, kind):
                self._refuse_inherited(found, kind, change)
                yield from self._drop_identity(found, kind)
                yield self._retype(found, kind, change)

    def _alter_computed(self, column: ComputedColumn, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the statements of a generated column, which the target computes as the source does.

        Nothing where the target is so already, perhaps by hand.
        """
        found, new = self.table.column(change.name), quote(column.name)
        if change.kind is ChangeKind.DROP_COLUMN:
            if found is not None and found.generated:
                yield Alteration(f"{self._alter} drop column {quote(change.name)}", change.what)
        elif self.table.column(column.name) is not None:
            return
        elif change.kind is ChangeKind.RENAME_COLUMN:
            if found is not None:
                sql = f"{self._alter} rename column {quote(change.name)} to {new}"
                yield Alteration(sql, change.what)
        else:
            kind = map_namespaces(column.source_type, self.namespaces)
            expression = map_namespaces(column.expression, self.namespaces)
            sql = f"{self._alter} add column {new} {kind} generated always as ({expression})"
            stored = f"{sql} stored"
            if column.is_stored:
                yield Alteration(stored, change.what)
            else:
                yield Alteration(f"{sql} virtual", change.what, instead=stored)

    def _rename(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        if self.table.column(change.name) is None:
            return
        if self._is_there(column):
            raise ShapeNotApplicable(
                f"{change.what}, and target table {self.table.name} has both",
                hint=f"Run: {self._alter} drop column ...; for the one that is not wanted; then "
                "`penstock run` again, and `penstock verify`.",
                table=str(self.table.name),
            )
        at = self._alter_at(self.table.column(change.name))
        sql = f"{at} rename column {quote(change.name)} to {quote(column.name)}"
        yield Alteration(sql, change.what)

    def _add(self, column: Column, change: ShapeChange, *, strict: bool) -> Iterator[Alteration]:
        if self._is_there(column):
            self._refuse_kept(column.name)
            return
        kind = self._kind(column)
        sql = f"{self._alter} add column {quote(column.name)} "
        value = ""
        if column.missing is not None:
            value = f" default {fill_template(literal(column.missing), column.name, self.fills)}"
        not_null = " not null" if strict and value and not column.nullable else ""
        cast = f"::{kind}" if value else ""
        as_text = "" if strict else f"{sql}text{value}"
        yield Alteration(f"{sql}{kind}{value}{cast}{not_null}", change.what, instead=as_text)

    def _refuse_kept(self, name: str) -> None:
        if name in self.record.kept:
            raise ShapeNotApplicable(
                f"column {name} was added at the source, and target table {self.table.name} still "
                "has the values of an earlier column of that name",
                hint=f"Run: {self._alter} rename column {quote(name)} to {quote(name + '_old')}; "
                "or drop it; then `penstock run` again.",
                table=str(self.table.name),
            )

    def _retype(self, found: TargetColumn, kind: str, change: ShapeChange) -> Alteration:
        column = quote(found.name)
        needs_values = found.not_null or found.name in key_of(self.relation)
        is_free = self.emptied and not (self.replaced and needs_values) and found.origin is None
        using = "null" if is_free else column
        sql = f"alter column {column} type {kind} using {using}::{kind}"
        if found.has_default and change.kind is ChangeKind.CHANGE_TYPE:
            sql = f"alter column {column} drop default, {sql}"  # it may not be of the new type
        return Alteration(f"{self._alter_at(found)} {sql}", change.what)

    def _drop_identity(self, found: TargetColumn, kind: str) -> Iterator[Alteration]:
        """Yield the statement without which the server refuses a type that cannot count."""
        if found.identity and kind not in IDENTITY_TYPES:
            sql = f"{self._alter_at(found)} alter column {quote(found.name)} drop identity"
            yield Alteration(sql, f"column {found.name} is no longer an identity column")

    def _loosen(self, name: str, change: ShapeChange, *, nullable: bool) -> Iterator[Alteration]:
        """Yield the alterations for dropped NOT NULLs; a target that allows more is not made
        stricter.
        """
        found = self.table.column(name)
        if nullable and found is not None and found.not_null and name not in self._primary_columns:
            sql = f"{self._alter_at(found)} alter column {quote(name)} drop not null"
            yield Alteration(sql, change.what)

    def _drop_unique(self, change: ShapeChange) -> Iterator[Alteration]:
        """Drop the target's unique keys on these columns; rows may be equal in them from now on."""
        for index in self.table.unique:
            if index.primary or not index.plain or set(index.columns) != set(change.columns):
                continue
            constraint, name = quote(index.name), quote(self.table.name.schema, index.name)
            sql = f"{self._alter} drop constraint if exists {constraint}"
            yield Alteration(f"{sql}; drop index if exists {name}", change.what)

    def _key(self, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the change of the primary key, if the target has the key that the source had."""
        old, new = self.record.key or (), key_of(self.relation)
        primary = self._primary
        there = {name for name in old if self.table.column(name) is not None}
        columns = set(self._primary_columns)
        if old and not new and primary is not None and columns == there:
            # Rows that are equal in it may follow.
            yield Alteration(f"{self._alter} drop constraint {quote(primary.name)}", change.what)
            yield from self._free_of_key(columns, change)
        if not new or columns == set(new) or columns not in (there, set()):
            return
        known = {name for name, _ in self.record.columns or ()}
        # Rows that are there get this value with the column.
        known |= {one.name for one in self.relation.columns if one.missing is not None}
        if any(self.table.column(name) is None for name in new):
            return
        if not set(new) <= known and (self.replaced or not self.emptied):
            return  # rows that are there have no values for it yet
        dropped = f"drop constraint {quote(primary.name)}, " if primary is not None else ""
        listed = ", ".join(map(quote, new))
        yield Alteration(f"{self._alter} {dropped}add primary key ({listed})", change.what)
        yield from self._free_of_key(columns - set(new), change)

    def _free_of_key(self, names: set[str], change: ShapeChange) -> Iterator[Alteration]:
        """Yield the statements that let columns that leave the key be NULL, if the source's may."""
        for column in self.relation.columns:
            found = self.table.column(column.name)
            if column.name in names and column.nullable and found is not None and found.not_null:
                sql = f"{self._alter_at(found)} alter column {quote(column.name)} drop not null"
                yield Alteration(sql, change.what)

    def _refuse_inherited(self, found: TargetColumn, kind: str, change: ShapeChange) -> None:
        """Refuse a narrower type for a whole tree until the log says that the tree has it."""
        if found.origin is not None and change.kind is not ChangeKind.WIDEN_TYPE:
            raise ShapeNotApplicable(
                f"{change.what}, and {self.table.name} inherits the column from {found.origin}",
                hint=f"If all tables of that tree changed, run: {self._alter_at(found)} alter "
                f"column {quote(found.name)} type {kind} using ...; if not: {self._alter} no "
                "inherit ...; then `penstock run` again, and `penstock verify`.",
                table=str(self.table.name),
            )

    # --- leniently --------------------------------------------------------------------------------

    def _lenient(self, change: ShapeChange) -> Iterator[Alteration]:
        column = change.column
        if change.computed is not None:
            return
        if change.kind in (ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN):
            yield from self._optional(change.name, change)
        if change.kind in (ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN) and column is not None:
            yield from self._add(column, change, strict=False)
        is_renamed = change.kind is ChangeKind.RENAME_COLUMN
        if is_renamed and column is not None and self.table.column(change.name):
            kind, old, new = self._kind(column), quote(change.name), quote(column.name)
            sql = f"update {self.table.own_rows} set {new} = {old}::"
            yield Alteration(f"{sql}{kind}", f"{change.what}, and has its values", f"{sql}text")
        if change.kind in (ChangeKind.NULLABILITY, ChangeKind.CHANGE_KEY, ChangeKind.WIDEN_TYPE):
            yield from self._evolve(change)
        if change.kind is ChangeKind.CHANGE_TYPE and column is not None:
            yield from self._widen(column, change)

    def _optional(self, name: str, change: ShapeChange) -> Iterator[Alteration]:
        """Yield a column that stays, for rows that have no value for it."""
        found = self.table.column(name)
        if found is None or found.generated:
            return
        primary = self._primary
        if primary is not None and name in primary.columns:
            sql = f"{self._alter} drop constraint {quote(primary.name)}"
            yield Alteration(sql, f"column {name} is no longer of the key")
        yield from self._drop_identity(found, "")
        if found.not_null:
            sql = f"{self._alter_at(found)} alter column {quote(name)} drop not null"
            yield Alteration(sql, f"{change.what}, and stays")

    def _widen(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        """Yield a type that holds existing and new values."""
        found = self.table.column(column.name)
        kind = self._kind(column)
        if found is None or found.type_text in TEXTS or same_type(found.type_text, kind):
            return
        if column.name in key_of(self.relation):
            raise ShapeNotApplicable(
                f"{change.what}: column {column.name} of {self.table.name} is part of the key, "
                "which cannot be kept as text",
                hint=f"Run: {self._alter} alter column {quote(column.name)} type {kind} using "
                "...; then `penstock run` again.",
                table=str(self.table.name),
            )
        wide = kind if kind in TEXTS else "text"
        yield from self._drop_identity(found, wide)
        yield Alteration(
            f"{self._alter} alter column {quote(column.name)} type {wide} "
            f"using {quote(column.name)}::text",
            f"{change.what}, kept as {wide}",
        )

    # --- pieces -----------------------------------------------------------------------------------

    @property
    def _alter(self) -> str:
        return f"alter table {self.table.sql_name}"

    def _alter_at(self, column: TargetColumn | None) -> str:
        """Return the beginning of a statement about a column, or about the whole tree if
        inherited.
        """
        if column is None or column.origin is None:
            return self._alter
        return f"alter table {quote(*column.origin)}"

    @property
    def _primary(self) -> TargetIndex | None:
        return next((index for index in self.table.unique if index.primary), None)

    @property
    def _primary_columns(self) -> tuple[str, ...]:
        return self._primary.columns if self._primary is not None else ()

    def _kind(self, column: Column) -> str:
        return map_namespaces(column.source_type, self.namespaces)

    def _is_there(self, column: Column) -> TargetColumn | None:
        return self.table.column(column.name)
