"""Changes of a table's shape, for targets that alter one column or key with each statement.

What a change asks of a table is the same for these targets. The statements, and what a server needs
before and after one, are those of a subclass. Pure. Not here: which changes there are
(`shape_changes.py`), targets whose statement has several changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from penstock.model import LOAD_AFRESH, Column, Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.shape_changes import ShapeChange, key_of, shape_of


@dataclass(frozen=True, slots=True)
class Alteration:
    """Statement, with its effect for messages."""

    sql: str
    what: str


class AlteredColumn(Protocol):
    """Column of the target as its catalogue has it."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def type_text(self) -> str:
        """Return its type in SQL."""
        ...

    @property
    def not_null(self) -> bool:
        """Return whether it refuses NULL."""
        ...

    @property
    def is_generated(self) -> bool:
        """Return whether the server gives it its values."""
        ...

    @property
    def is_identity(self) -> bool:
        """Return whether the server numbers it."""
        ...


class AlteredIndex(Protocol):
    """Index or key of the target as its catalogue has it."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Return its key columns, in order."""
        ...

    @property
    def is_primary(self) -> bool:
        """Return whether it is the primary key."""
        ...

    @property
    def is_unique(self) -> bool:
        """Return whether its rows differ in the columns."""
        ...


ColumnT = TypeVar("ColumnT", bound=AlteredColumn)
IndexT = TypeVar("IndexT", bound=AlteredIndex)
_ColumnT_co = TypeVar("_ColumnT_co", bound=AlteredColumn, covariant=True)
_IndexT_co = TypeVar("_IndexT_co", bound=AlteredIndex, covariant=True)


class AlteredTable(Protocol[_ColumnT_co, _IndexT_co]):
    """Table of the target as its catalogue has it."""

    @property
    def name(self) -> TableName:
        """Return its name."""
        ...

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        ...

    @property
    def indexes(self) -> Sequence[_IndexT_co]:
        """Return its indexes and keys."""
        ...

    @property
    def primary(self) -> _IndexT_co | None:
        """Return the primary key, or None."""
        ...

    def column(self, name: str) -> _ColumnT_co | None:
        """Return the column of this name, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAlterer(ABC, Generic[ColumnT, IndexT]):
    """Turns the changes of one table into statements.

    Attributes:
        table: As the catalogue has it now.
        types: The target's type of each column, by name, as a statement has it.
        is_emptied: The table has no rows when the statements are done, but for those of the batch.
        is_replaced: Its rows are all rewritten or deleted after the change.
        fills: Templates over the text of the value that older rows have.
        loose: Columns whose values may become NULL by a choice, which never refuse NULL.
    """

    TEXT_TYPE: ClassVar[str]
    """Type that holds all texts, as a statement has it."""

    TEXT_NAME: ClassVar[str]
    """The same for messages."""

    record: TableRecord
    relation: Relation
    table: AlteredTable[ColumnT, IndexT]
    types: Mapping[str, str]
    is_emptied: bool
    is_replaced: bool = False
    fills: Mapping[str, str] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()

    # --- what a server has ------------------------------------------------------------------------

    @abstractmethod
    def _quote(self, name: str) -> str:
        """Return a name in quotes."""

    @abstractmethod
    def _is_same(self, found: ColumnT, kind: str) -> bool:
        """Return whether a column has a type already."""

    @abstractmethod
    def _add_sql(self, name: str, declaration: str) -> str:
        """Return the statement that adds a column."""

    @abstractmethod
    def _drop_sql(self, name: str) -> str:
        """Return the statement that drops a column on which nothing depends."""

    @abstractmethod
    def _rename_sql(self, old: str, new: str) -> str:
        """Return the statement that gives a column another name."""

    @abstractmethod
    def _loosen_sqls(self, found: Sequence[ColumnT]) -> Iterable[str]:
        """Return the statements by which columns may be NULL."""

    @abstractmethod
    def _drop_index(self, index: IndexT) -> str:
        """Return the statement that drops an index or key."""

    @abstractmethod
    def _key_name(self) -> str:
        """Return the name of a new primary key."""

    @abstractmethod
    def _drop(self, found: ColumnT, what: str) -> Iterator[Alteration]:
        """Yield the drop of a column, with all that depends on it."""

    @abstractmethod
    def _add(self, column: Column, change: ShapeChange, *, is_strict: bool) -> Iterator[Alteration]:
        """Yield a new column with the value that existing rows have.

        is_strict: it refuses NULL if the source's does.
        """

    @abstractmethod
    def _retype(self, found: ColumnT, kind: str, what: str) -> Iterator[Alteration]:
        """Yield another type of a column."""

    @abstractmethod
    def _fit_to_key(self, column: ColumnT, change: ShapeChange) -> Iterator[Alteration]:
        """Yield what a column of a new key needs."""

    @abstractmethod
    def _stays_strict(self, found: ColumnT) -> bool:
        """Return whether a column refuses NULL once it is no longer of the primary key."""

    @abstractmethod
    def _hint_for_key_as_text(self, column: Column) -> str:
        """Return what to do if a column of the key would have to become text."""

    def _is_missing(self, name: str) -> bool:
        return self.table.column(name) is None

    def _before_key(self, change: ShapeChange) -> Iterator[Alteration]:
        """Yield what comes before a new key in a table that is emptied."""
        del change
        yield from ()

    def _as_type(self, reference: str, name: str) -> str:
        """Return a value as that of a column."""
        del name
        return reference

    # --- a table as it is -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ShapeNotApplicable if a column is missing for a reason that the log does not
        have.
        """
        old = self.record.columns
        for column in self.relation.columns:
            is_known = old is None or column.name in dict(old)
            if not is_known or column.name in self.record.left_out:
                continue
            if self._is_missing(column.name):
                added = self._add_sql(column.name, self.types[column.name])
                raise ShapeNotApplicable(
                    f"target table {self.table.name} has no column {column.name}, the source has "
                    f"it as {column.source_type}",
                    hint=f"Run: {added}; then `penstock run`, and `penstock verify`. {LOAD_AFRESH}",
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
                self._drop_sql(column.name),
                self._add_sql(column.name, f"{self.types[column.name]} NULL"),
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
            if (found := self.table.column(old)) is not None and self.table.column(new) is None
        ]

    @property
    def _alter(self) -> str:
        return f"ALTER TABLE {self.table.sql_name}"

    @property
    def _primary(self) -> tuple[str, ...]:
        return self.table.primary.columns if self.table.primary is not None else ()

    # --- as it is at the source -------------------------------------------------------------------

    def evolve(self, change: ShapeChange) -> list[Alteration]:
        """Return the same change as at the source. Raises ShapeNotApplicable."""
        return list(self._evolve(change))

    def _evolve(self, change: ShapeChange) -> Iterator[Alteration]:
        column, found = change.column, self.table.column(change.name)
        if change.computed is not None:
            yield from self._change_computed(change, found)
        elif change.kind is ChangeKind.RENAME_COLUMN and column is not None:
            yield from self._rename(column, change)
        elif change.kind is ChangeKind.DROP_COLUMN:
            if found is not None and not found.is_generated:
                yield from self._drop(found, change.what)
        elif change.kind is ChangeKind.CHANGE_KEY and change.columns:
            yield from self._drop_unique(change)
        elif change.kind is ChangeKind.CHANGE_KEY:
            yield from self._key(change)
        elif column is None:
            return
        elif change.kind is ChangeKind.ADD_COLUMN:
            yield from self._add(column, change, is_strict=column.name not in self.loose)
        elif change.kind is ChangeKind.NULLABILITY:
            yield from self._loosen(column.name, change, is_nullable=column.nullable)
        elif (own := self.table.column(column.name)) is not None:
            kind = self.types[column.name]
            if not self._is_same(own, kind):
                yield from self._retype(own, kind, change.what)

    def _change_computed(self, change: ShapeChange, found: ColumnT | None) -> Iterator[Alteration]:
        """Yield the drop or the new name of a computed column; the target adds none itself.

        Its values are in rows if the source logs them, and an expression of another engine means
        something else here.
        """
        if found is None or not found.is_generated or change.computed is None:
            return
        if change.kind is ChangeKind.DROP_COLUMN:
            yield Alteration(self._drop_sql(found.name), change.what)
        elif change.kind is ChangeKind.RENAME_COLUMN:
            yield Alteration(self._rename_sql(found.name, change.computed.name), change.what)

    def _rename(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        found, other = self.table.column(change.name), self.table.column(column.name)
        if found is None:
            return
        if other is not None and other.name != found.name:
            raise ShapeNotApplicable(
                f"{change.what}, and target table {self.table.name} has both",
                hint=f"Run: {self._alter} DROP COLUMN ...; for the one that is not wanted; then "
                "`penstock run` again, and `penstock verify`.",
                table=str(self.table.name),
            )
        yield Alteration(self._rename_sql(found.name, column.name), change.what)

    def _refuse_kept(self, name: str) -> None:
        """Refuse to add a column whose name the target keeps for earlier values."""
        if name in self.record.kept:
            raise ShapeNotApplicable(
                f"column {name} was added at the source, and target table {self.table.name} still "
                "has the values of an earlier column of that name",
                hint=f"Run: {self._rename_sql(name, f'{name}_old')}; or drop it; then `penstock "
                "run` again.",
                table=str(self.table.name),
            )

    def _loosen(self, name: str, change: ShapeChange, *, is_nullable: bool) -> Iterator[Alteration]:
        """Yield a dropped NOT NULL; a target that allows more is not made stricter."""
        found = self.table.column(name)
        if is_nullable and found is not None and found.not_null and name not in self._primary:
            for sql in self._loosen_sqls([found]):
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
        if self.is_emptied and not self.is_replaced:
            yield from self._before_key(change)
        if primary is not None:
            yield Alteration(self._drop_index(primary), change.what)
        for column in found:
            if column is not None:
                yield from self._fit_to_key(column, change)
        name = primary.name if primary is not None else self._key_name()
        listed = ", ".join(map(self._quote, new))
        added = f"{self._alter} ADD CONSTRAINT {self._quote(name)} PRIMARY KEY ({listed})"
        yield Alteration(added, change.what)
        yield from self._free_of_key(columns - {*new}, change)

    def _free_of_key(self, names: Iterable[str], change: ShapeChange) -> Iterator[Alteration]:
        """Yield the statements that let columns that leave the key be NULL, if the source's may."""
        wanted = {*names}
        loosened = [
            found
            for column in self.relation.columns
            if column.name in wanted
            and column.nullable
            and (found := self.table.column(column.name)) is not None
            and self._stays_strict(found)
        ]
        for sql in self._loosen_sqls(loosened) if loosened else ():
            yield Alteration(sql, change.what)

    # --- leniently --------------------------------------------------------------------------------

    def lenient(self, change: ShapeChange) -> list[Alteration]:
        """Return alterations that keep every column and value of the target. Raises
        ShapeNotApplicable.
        """
        return list(self._lenient(change))

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
            value = self._as_type(self._quote(change.name), column.name)
            filled = f"UPDATE {self.table.sql_name} SET {self._quote(column.name)} = {value}"
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
        is_strict = found.not_null
        if primary is not None and found.name in primary.columns:
            what = f"column {name} is no longer of the key"
            yield Alteration(self._drop_index(primary), what)
            is_strict = self._stays_strict(found)
        if is_strict and not found.is_identity:
            for sql in self._loosen_sqls([found]):
                yield Alteration(sql, f"{change.what}, and stays")

    def _widen(self, column: Column, change: ShapeChange) -> Iterator[Alteration]:
        """Yield a type that holds existing and new values: text."""
        found, kind = self.table.column(column.name), self.types[column.name]
        if found is None or self._is_same(found, kind) or self._is_same(found, self.TEXT_TYPE):
            return
        if column.name in key_of(self.relation):
            raise ShapeNotApplicable(
                f"{change.what}: column {column.name} of {self.table.name} is part of the key, "
                "which cannot be kept as text",
                hint=self._hint_for_key_as_text(column),
                table=str(self.table.name),
            )
        yield from self._retype(found, self.TEXT_TYPE, f"{change.what}, kept as {self.TEXT_NAME}")
