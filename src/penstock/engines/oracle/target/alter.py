"""Changes of a table's shape while changes are applied: each as SQL, exactly or leniently.

Each statement commits, so every change can be repeated after a crash: what the table has already is
left out. The server converts few types in place (ORA-01439, ORA-22858); for the others a column is
added, filled, and takes the place of the old one. Pure. Not here: which changes there are
(`sql/shape_changes.py`), running the statements (`reshape.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codec.oracle.types import parse_type
from penstock.codec.types import prepare_values
from penstock.codec.types.oracle_held import MOMENT_TEXTS
from penstock.engines.oracle.connect import literal, quote
from penstock.engines.oracle.target.catalog import (
    TargetColumn,
    TargetIndex,
    TargetTable,
    same_type,
)
from penstock.engines.oracle.target.type_rules import holds
from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.row_translation import fill_template
from penstock.sql.schema_translation import short_name
from penstock.sql.shape_changes import ShapeChange, key_of, shape_of

TEXT_MAX = "CLOB"
NEW_PREFIX = "penstock_new_"
_TRUE = ("t", "true", "1")
_LOBS = frozenset(("CLOB", "NCLOB", "BLOB"))
_CONVERSIONS = {
    "CLOB": "TO_CLOB({})",
    "NCLOB": "TO_NCLOB({})",
    "NUMBER": "TO_NUMBER({})",
    "BINARY_FLOAT": "TO_BINARY_FLOAT({})",
    "BINARY_DOUBLE": "TO_BINARY_DOUBLE({})",
    "BLOB": "TO_BLOB({})",
}


@dataclass(frozen=True, slots=True)
class Alteration:
    """Statement, with its effect for messages."""

    sql: str
    what: str


def missing_value(column: Column, kind: str, fills: Mapping[str, str]) -> str:
    """Return the value of a new column in older rows, as SQL; empty if it is NULL.

    kind: the target's type. fills: templates over texts.
    """
    text = column.missing
    if not text:
        return ""  # an empty text is NULL here
    if column.neutral == "binary" and text.startswith("\\x"):
        raw = f"HEXTORAW({literal(text[2:])})"
        return f"TO_BLOB({raw})" if parse_type(kind).base == "BLOB" else raw
    if column.neutral == "bool":
        return "1" if text.lower() in _TRUE else "0"
    template = fills.get(column.name, "{}")
    if "SYYYY" in template:
        text = prepare_values(pa.array([text]), MOMENT_TEXTS)[0].as_py()
    given = literal(text)
    if template == "{}" and parse_type(kind).base.startswith(("NUMBER", "BINARY_")):
        return _CONVERSIONS[parse_type(kind).base].format(given)
    return fill_template(given, column.name, fills)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterer:
    """Turns the changes of one table into statements.

    Attributes:
        table: As the catalogue has it now.
        types: The target's type of each column, by name.
        is_emptied: The table has no rows, or the batch deletes them.
        is_replaced: Its rows are all rewritten or deleted after the change.
        fills: Templates over the text of the value that older rows have.
        name_bytes_max: Greatest length of a name.
    """

    record: TableRecord
    relation: Relation
    table: TargetTable
    types: Mapping[str, str]
    is_emptied: bool
    is_replaced: bool = False
    fills: Mapping[str, str] = field(default_factory=dict)
    name_bytes_max: int = 128

    def check(self) -> None:
        """Raise ShapeNotApplicable if a column is missing for a reason that the log does not
        have.
        """
        old = self.record.columns
        for column in self.relation.columns:
            is_known = old is None or column.name in dict(old)
            if not is_known or column.name in self.record.left_out:
                continue
            is_half = self.table.column(self._new_name(column.name)) is not None
            if self.table.column(column.name) is None and not is_half:
                kind = self.types[column.name]
                raise ShapeNotApplicable(
                    f"target table {self.table.name} has no column {column.name}, the source has "
                    f"it as {column.source_type}",
                    hint=f"Run: {self._alter} ADD ({quote(column.name)} {kind}); then `penstock "
                    f"run`, and `penstock verify`. {LOAD_AFRESH}",
                    table=str(self.table.name),
                )

    def drop_started(self) -> list[Alteration]:
        """Return the drops of new columns of changes that the server refused.

        Once the old column is dropped, `finish_started` would give its name to the new one.
        """
        return [
            Alteration(self._drop_sql(new), f"column {column.name} keeps its type")
            for column in self.relation.columns
            if self.table.column(column.name) is not None
            and self.table.column(new := self._new_name(column.name)) is not None
        ]

    def finish_started(self) -> list[Alteration]:
        """Return the new names of columns whose change was interrupted after the old one went."""
        return [
            Alteration(self._rename_sql(new, column.name), f"column {column.name} has its new type")
            for column in self.relation.columns
            if self.table.column(new := self._new_name(column.name)) is not None
            and self.table.column(column.name) is None
        ]

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
                f"{self._alter} ADD ({quote(column.name)} {self.types[column.name]} NULL)",
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
                yield Alteration(self._drop_sql(found.name), change.what)
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
        """Yield the drop or the new name of a computed column; the target adds none itself."""
        if found is None or not found.is_generated or change.computed is None:
            return
        if change.kind is ChangeKind.DROP_COLUMN:
            yield Alteration(self._drop_sql(found.name), change.what)
        elif change.kind is ChangeKind.RENAME_COLUMN:
            yield Alteration(self._rename_sql(found.name, change.computed.name), change.what)

    def _drop_sql(self, name: str) -> str:
        """Return the statement that drops a column, with keys and indexes that have it."""
        return f"{self._alter} DROP ({quote(name)}) CASCADE CONSTRAINTS"

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

    def _rename_sql(self, old: str, new: str) -> str:
        return f"{self._alter} RENAME COLUMN {quote(old)} TO {quote(new)}"

    def _add(self, column: Column, change: ShapeChange, *, is_strict: bool) -> Iterator[Alteration]:
        """Yield a new column, with the value that existing rows have; the default is dropped."""
        if self.table.column(column.name) is not None:
            self._refuse_kept(column.name)
            return
        kind, name = self.types[column.name], quote(column.name)
        value = missing_value(column, kind, self.fills)
        is_strict = is_strict and bool(value) and not column.nullable
        default = f" DEFAULT {value}" if value else ""
        null = "NOT NULL" if is_strict else "NULL"
        yield Alteration(f"{self._alter} ADD ({name} {kind}{default} {null})", change.what)
        if default:
            yield Alteration(f"{self._alter} MODIFY ({name} DEFAULT NULL)", change.what)

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
        """Yield another type: in place if the server can, else by another column."""
        if _is_in_place(found.type_text, kind):
            yield Alteration(f"{self._alter} MODIFY ({quote(found.name)} {kind})", what)
            return
        self._refuse_indexed(found.name, what)
        new = self._new_name(found.name)
        started = self.table.column(new)
        if started is not None and not same_type(started.type_text, kind):
            yield Alteration(self._drop_sql(new), what)  # of a change that was interrupted
            started = None
        if started is None:
            yield Alteration(f"{self._alter} ADD ({quote(new)} {kind} NULL)", what)
        if not self.is_emptied or self.is_replaced:
            value = _convert(quote(found.name), found.type_text, kind)
            yield Alteration(f"UPDATE {self.table.sql_name} SET {quote(new)} = {value}", what)
            if found.not_null:
                yield Alteration(f"{self._alter} MODIFY ({quote(new)} NOT NULL)", what)
        yield Alteration(self._drop_sql(found.name), what)
        yield Alteration(self._rename_sql(new, found.name), what)

    def _refuse_indexed(self, name: str, what: str) -> None:
        """Refuse to replace a column that a key or an index has, which would be dropped with it."""
        found = next((one for one in self.table.indexes if name in one.columns), None)
        if found is not None:
            raise ShapeNotApplicable(
                f"{what}, which Oracle cannot convert in place, and {found.name} of target table "
                f"{self.table.name} has the column",
                hint=f"Run: penstock table resync FILE {self.relation.full_name}; it is copied "
                "again in its new shape.",
                table=str(self.table.name),
            )

    def _new_name(self, name: str) -> str:
        return short_name(f"{NEW_PREFIX}{name}", self._fits)

    def _fits(self, name: str) -> bool:
        return len(name.encode()) <= self.name_bytes_max

    def _loosen(self, name: str, change: ShapeChange, *, is_nullable: bool) -> Iterator[Alteration]:
        """Yield a dropped NOT NULL; a target that allows more is not made stricter."""
        found = self.table.column(name)
        if is_nullable and found is not None and found.not_null and name not in self._primary:
            yield Alteration(f"{self._alter} MODIFY ({quote(name)} NULL)", change.what)

    def _drop_unique(self, change: ShapeChange) -> Iterator[Alteration]:
        """Drop the target's unique keys on these columns; rows may be equal in them from now on."""
        for index in self.table.indexes:
            is_same = {*index.columns} == {*change.columns}
            if index.is_unique and is_same and not index.is_primary:
                yield Alteration(drop_index(self.table, index), change.what)

    def _key(self, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the change of the primary key, if the target has the key that the source had."""
        old, new = self.record.key or (), key_of(self.relation)
        primary, columns = self.table.primary, {*self._primary}
        there = {name for name in old if self.table.column(name) is not None}
        if old and not new and primary is not None and columns == there:
            yield Alteration(drop_index(self.table, primary), change.what)
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
            # The key need not hold in rows that the batch removes: they go before it.
            yield Alteration(f"DELETE FROM {self.table.sql_name}", change.what)
        if primary is not None:
            yield Alteration(drop_index(self.table, primary), change.what)
        for column in filter(None, found):
            kind = self.types[column.name]
            if not same_type(column.type_text, kind):
                yield from self._retype(column, kind, change.what)
        own = f"{self.table.name.name}_pk"
        name = primary.name if primary is not None else short_name(own, self._fits)
        listed = ", ".join(map(quote, new))
        added = f"{self._alter} ADD CONSTRAINT {quote(name)} PRIMARY KEY ({listed})"
        yield Alteration(added, change.what)
        yield from self._free_of_key(columns - {*new}, change)

    def _free_of_key(self, names: Iterable[str], change: ShapeChange) -> Iterator[Alteration]:
        """Yield the statements that let columns that leave the key be NULL, if the source's may.

        The server itself drops a NOT NULL that the primary key has added.
        """
        wanted = {*names}
        for column in self.relation.columns:
            found = self.table.column(column.name)
            is_strict = column.name in self.record.not_null
            if column.name in wanted and column.nullable and found is not None and is_strict:
                yield Alteration(f"{self._alter} MODIFY ({quote(column.name)} NULL)", change.what)

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
            sets = f"{quote(column.name)} = {quote(change.name)}"
            filled = f"UPDATE {self.table.sql_name} SET {sets}"
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
            yield Alteration(drop_index(self.table, primary), what)
            if name not in self.record.not_null:
                return
        if found.not_null and not found.is_identity:
            loosened = f"{self._alter} MODIFY ({quote(name)} NULL)"
            yield Alteration(loosened, f"{change.what}, and stays")

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
                hint=f"Run: penstock table resync FILE {self.relation.full_name}",
                table=str(self.table.name),
            )
        yield from self._retype(found, TEXT_MAX, f"{change.what}, kept as CLOB")

    # --- pieces -----------------------------------------------------------------------------------

    @property
    def _alter(self) -> str:
        return f"ALTER TABLE {self.table.sql_name}"

    @property
    def _primary(self) -> tuple[str, ...]:
        return self.table.primary.columns if self.table.primary is not None else ()


def drop_index(table: TargetTable, index: TargetIndex) -> str:
    """Return the statement that drops an index, or the constraint that it belongs to."""
    if index.is_constraint:
        return f"ALTER TABLE {table.sql_name} DROP CONSTRAINT {quote(index.name)}"
    return f"DROP INDEX {quote(index.owner or table.name.schema, index.name)}"


def _is_in_place(old: str, new: str) -> bool:
    """Return whether MODIFY changes the type, whatever the values are."""
    one, other = parse_type(old), parse_type(new)
    if {one.base, other.base} & _LOBS:
        return one == other
    is_date = one.base == "DATE" and other.base == "TIMESTAMP"
    is_text = one.base == "CHAR" and other.base == "VARCHAR2"
    return (one.base == other.base or is_date or is_text) and holds(new, old)


def _convert(reference: str, old: str, new: str) -> str:
    """Return a value of a type as another type."""
    one, other = parse_type(old), parse_type(new)
    if one.base == "CLOB" and other.base not in _LOBS:
        reference = f"TO_CHAR({reference})"
    template = _CONVERSIONS.get(other.base)
    return template.format(reference) if template else f"CAST({reference} AS {new})"
