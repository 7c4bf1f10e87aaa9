"""Changes of a table's shape while changes are applied: each as SQL, exactly or leniently.

SQL Server refuses to alter a column that a default, an index or a key depends on, so these are
dropped before and created again after. DDL is part of the transaction. Pure. Not here: what a
change asks of a table (`sql/table_alterer.py`), running the statements (`reshape.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
from penstock.model import Column
from penstock.sql.row_translation import fill_template
from penstock.sql.schema_translation import short_name
from penstock.sql.shape_changes import ShapeChange
from penstock.sql.table_alterer import Alteration, TableAlterer

TEXT_MAX = f"nvarchar(max) {EXACT}"
NAME_LENGTH_MAX = 128
_TRUE = ("t", "true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterer(TableAlterer[TargetColumn, TargetIndex]):
    """Turns the changes of one table into statements; types have their collation."""

    TEXT_TYPE, TEXT_NAME = TEXT_MAX, "nvarchar(max)"

    table: TargetTable

    # --- statements -------------------------------------------------------------------------------

    def _quote(self, name: str) -> str:
        return quote(name)

    def _is_same(self, found: TargetColumn, kind: str) -> bool:
        return same_type(found.type_text, kind)

    def _add_sql(self, name: str, declaration: str) -> str:
        return f"{self._alter} ADD {quote(name)} {declaration}"

    def _drop_sql(self, name: str) -> str:
        return f"{self._alter} DROP COLUMN {quote(name)}"

    def _rename_sql(self, old: str, new: str) -> str:
        place = literal(quote(*self.table.name, old))
        return f"EXEC sp_rename {place}, {literal(new)}, N'COLUMN'"

    def _loosen_sqls(self, found: Sequence[TargetColumn]) -> Iterable[str]:
        return loosen_columns(self.table, found)

    def _drop_index(self, index: TargetIndex) -> str:
        return drop_index(self.table, index)

    def _key_name(self) -> str:
        return short_name(f"pk_{self.table.name.name}", _fits)

    def _as_type(self, reference: str, name: str) -> str:
        return f"CAST({reference} AS {without_collation(self.types[name])})"

    # --- changes ----------------------------------------------------------------------------------

    def _drop(self, found: TargetColumn, what: str) -> Iterator[Alteration]:
        yield from self._drop_default(found, what)
        for index in self._indexes_with(found.name):
            yield Alteration(self._drop_index(index), what)
        yield Alteration(self._drop_sql(found.name), what)

    def _drop_default(self, found: TargetColumn, what: str) -> Iterator[Alteration]:
        if found.default_name:
            yield Alteration(f"{self._alter} DROP CONSTRAINT {quote(found.default_name)}", what)

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

    def _fit_to_key(self, column: TargetColumn, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the type that a key can contain, without NULL."""
        kind = self.types[column.name]
        if column.not_null and same_type(column.type_text, kind):
            return
        altered = f"{self._alter} ALTER COLUMN {quote(column.name)} {kind} NOT NULL"
        yield Alteration(altered, change.what)

    def _stays_strict(self, found: TargetColumn) -> bool:
        return found.not_null

    def _hint_for_key_as_text(self, column: Column) -> str:
        kind = self.types[column.name]
        return (
            f"Run: {self._alter} ALTER COLUMN {quote(column.name)} {kind}; then "
            "`penstock run` again."
        )

    def _indexes_with(self, name: str) -> list[TargetIndex]:
        return [one for one in self.table.indexes if one.uses(name)]


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
