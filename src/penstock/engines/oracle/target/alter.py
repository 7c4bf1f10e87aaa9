"""Changes of a table's shape while changes are applied: each as SQL, exactly or leniently.

Each statement commits, so every change can be repeated after a crash: what the table has already is
left out. The server converts few types in place (ORA-01439, ORA-22858); for the others a column is
added, filled, and takes the place of the old one. Pure. Not here: what a change asks of a table
(`sql/table_alterer.py`), running the statements (`reshape.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from penstock.model import Column
from penstock.ports.target import ShapeNotApplicable
from penstock.sql.row_translation import fill_template
from penstock.sql.schema_translation import short_name
from penstock.sql.shape_changes import ShapeChange
from penstock.sql.table_alterer import Alteration, TableAlterer

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
class Alterer(TableAlterer[TargetColumn, TargetIndex]):
    """Turns the changes of one table into statements.

    Attributes:
        name_bytes_max: Greatest length of a name.
    """

    TEXT_TYPE = TEXT_NAME = TEXT_MAX

    table: TargetTable
    name_bytes_max: int = 128

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

    # --- statements -------------------------------------------------------------------------------

    def _quote(self, name: str) -> str:
        return quote(name)

    def _is_same(self, found: TargetColumn, kind: str) -> bool:
        return same_type(found.type_text, kind)

    def _add_sql(self, name: str, declaration: str) -> str:
        return f"{self._alter} ADD ({quote(name)} {declaration})"

    def _drop_sql(self, name: str) -> str:
        """Return the statement that drops a column, with keys and indexes that have it."""
        return f"{self._alter} DROP ({quote(name)}) CASCADE CONSTRAINTS"

    def _rename_sql(self, old: str, new: str) -> str:
        return f"{self._alter} RENAME COLUMN {quote(old)} TO {quote(new)}"

    def _loosen_sqls(self, found: Sequence[TargetColumn]) -> Iterator[str]:
        return (f"{self._alter} MODIFY ({quote(one.name)} NULL)" for one in found)

    def _drop_index(self, index: TargetIndex) -> str:
        return drop_index(self.table, index)

    def _key_name(self) -> str:
        return short_name(f"{self.table.name.name}_pk", self._fits)

    def _new_name(self, name: str) -> str:
        return short_name(f"{NEW_PREFIX}{name}", self._fits)

    def _fits(self, name: str) -> bool:
        return len(name.encode()) <= self.name_bytes_max

    # --- changes ----------------------------------------------------------------------------------

    def _is_missing(self, name: str) -> bool:
        """Return whether a column is missing, which is not so in the middle of its change."""
        is_half = self.table.column(self._new_name(name)) is not None
        return self.table.column(name) is None and not is_half

    def _drop(self, found: TargetColumn, what: str) -> Iterator[Alteration]:
        yield Alteration(self._drop_sql(found.name), what)

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

    def _before_key(self, change: ShapeChange) -> Iterator[Alteration]:
        """Yield the removal of rows that the batch removes, in which the key need not hold."""
        yield Alteration(f"DELETE FROM {self.table.sql_name}", change.what)

    def _fit_to_key(self, column: TargetColumn, change: ShapeChange) -> Iterator[Alteration]:
        kind = self.types[column.name]
        if not same_type(column.type_text, kind):
            yield from self._retype(column, kind, change.what)

    def _stays_strict(self, found: TargetColumn) -> bool:
        """Return whether it refuses NULL without the key: the server drops what the key added."""
        return found.name in self.record.not_null

    def _hint_for_key_as_text(self, column: Column) -> str:
        del column
        return f"Run: penstock table resync FILE {self.relation.full_name}"


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
