"""Statements that create tables of Oracle, their keys and indexes, from a source's definitions.

A table is created without keys: rows are inserted faster into it. Names of constraints and indexes
are those of a schema, so they begin with the table's name. Oracle takes two rows for equal that
have the same values in some columns of a unique key and NULL in the others; such a key becomes an
index of expressions, which leaves out rows with NULL. Foreign keys are DEFERRABLE, so that the
statements of a batch may be in any order. Pure. Not here: running them (`bulk.py`), types of
columns (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.codec.oracle.types import parse_type
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Mapping
from penstock.codec.types.oracle_held import COLUMNS_MAX
from penstock.engines.oracle.connect import is_possible, quote
from penstock.engines.oracle.target.catalog import TargetTable, same_type
from penstock.engines.oracle.target.progress import name_bytes_max
from penstock.engines.oracle.target.type_rules import holds
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    TableDefinition,
    TableName,
    UniqueKey,
)
from penstock.model.patterns import as_pattern
from penstock.ports.target import TargetDdlFailed, TargetShapeDiffers, TargetTypeMissing
from penstock.sql.read_plan import copied_columns
from penstock.sql.schema_translation import Extras, Index, extras_of, short_name

_LARGE = frozenset(("CLOB", "NCLOB", "BLOB", "LONG", "LONG RAW"))
_ACTIONS = {"CASCADE": " ON DELETE CASCADE", "SET NULL": " ON DELETE SET NULL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Table as it is created.

    Attributes:
        mappings: By column, how it is held.
        columns: The columns whose values are copied.
        name_bytes: Greatest length of a name.
        notes: A sentence for each part that the target's table lacks.
    """

    definition: TableDefinition
    name: TableName
    mappings: dict[str, Mapping]
    columns: tuple[ColumnDefinition, ...]
    extras: Extras
    name_bytes: int
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, definition: TableDefinition, name: TableName, servers: ServerPair) -> TableShape:
        """Return a table's shape in the target."""
        mappings = servers.mappings(definition)
        extras = extras_of(definition, servers.source, servers.target, mappings)
        columns = tuple(copied_columns(definition, servers))
        shape = cls(
            definition=definition,
            name=name,
            mappings=mappings,
            columns=columns,
            extras=extras,
            name_bytes=name_bytes_max(servers.target.version),
        )
        copied = {column.name for column in columns}
        shape.notes.extend(
            f"{name}.{column.name} is generated in the source and left out"
            for column in definition.columns
            if column.name not in copied
        )
        return shape

    def not_null(self, column: ColumnDefinition) -> bool:
        """Return whether a column is NOT NULL in the target."""
        return column.not_null and not self.mappings[column.name].may_be_null

    def create(self) -> str:
        """Return CREATE TABLE without keys. Raises TargetTypeMissing, TargetDdlFailed."""
        if not self.columns:
            raise self._refuse("has no columns, or only generated ones")
        if len(self.columns) > COLUMNS_MAX:
            raise self._refuse(
                f"has {len(self.columns)} columns, a table of Oracle at most {COLUMNS_MAX:,}"
            )
        for name in (*self.name, *(column.name for column in self.columns)):
            if not is_possible(name):
                raise self._refuse(f"or its column has the name {name!r}, which Oracle cannot have")
        body = ",\n    ".join(map(self._column_sql, self.columns))
        return f"CREATE TABLE {quote(*self.name)} (\n    {body}\n)"

    def _refuse(self, why: str) -> TargetDdlFailed:
        return TargetDdlFailed(
            f"{self.definition.name} {why}",
            hint=f"Leave it out: put '!{as_pattern(self.definition.name)}' into [source] tables "
            "and start again.",
            table=str(self.name),
        )

    def _column_sql(self, column: ColumnDefinition) -> str:
        mapping = self.mappings[column.name]
        if mapping.refused:
            raise TargetTypeMissing(
                f"{self.name}.{column.name} is not possible in the target: {mapping.refused}",
                hint="Leave the table out with an entry like !schema.table in [source] tables.",
                table=str(self.name),
            )
        is_key = column.name in self.definition.primary_key
        null = "NOT NULL" if self.not_null(column) or is_key else "NULL"
        return f"{quote(column.name)} {mapping.target_type} {null}"

    def defaults(self) -> Iterator[tuple[str, str]]:
        """Yield each column with a default, and the statement that sets it."""
        for column, sql in self.extras.defaults.items():
            altered = f"ALTER TABLE {quote(*self.name)} MODIFY ({quote(column)} DEFAULT {sql})"
            yield column, altered

    def primary_key(self) -> str | None:
        """Return the statement that adds the primary key; None if the table has none."""
        columns = self.definition.primary_key
        if not columns or any(self.definition.primary_key_prefixes):
            return None
        name, listed = quote(self.own_name("pk")), ", ".join(map(quote, columns))
        return f"ALTER TABLE {quote(*self.name)} ADD CONSTRAINT {name} PRIMARY KEY ({listed})"

    def unique_keys(self) -> list[UniqueKey]:
        """Return the unique keys that the target can have."""
        copied = {column.name for column in self.columns}
        return [
            key
            for key in self.definition.unique_keys
            if key.columns
            and key.is_whole
            and not any(key.prefixes)
            and {*key.columns} <= copied
            and not any(map(self._is_large, key.columns))
            and {*key.columns} != {*self.definition.primary_key}
        ]

    def _is_large(self, column: str) -> bool:
        return parse_type(self.mappings[column].target_type).base in _LARGE

    def unique_key_sql(self, key: UniqueKey, *, is_unique: bool = True) -> str:
        """Return the statement that creates a unique key, or an index like it."""
        table, name = quote(*self.name), self.key_name(key)
        listed = ", ".join(map(quote, key.columns))
        index = f"INDEX {quote(self.name.schema, name)} ON {table}"
        if not is_unique:
            return f"CREATE {index} ({listed})"
        strict = {column.name for column in self.columns if self.not_null(column)}
        nullable = [one for one in key.columns if one not in strict]
        if not nullable or len(key.columns) == 1:
            return f"ALTER TABLE {table} ADD CONSTRAINT {quote(name)} UNIQUE ({listed})"
        there = " AND ".join(f"{quote(one)} IS NOT NULL" for one in nullable)
        parts = ", ".join(f"CASE WHEN {there} THEN {quote(one)} END" for one in key.columns)
        return f"CREATE UNIQUE {index} ({parts})"

    def drop_unique_key(self, key: UniqueKey) -> str:
        """Return the statement that drops a unique key that `unique_key_sql` creates."""
        name = self.key_name(key)
        if self.unique_key_sql(key).startswith("ALTER TABLE"):
            return f"ALTER TABLE {quote(*self.name)} DROP CONSTRAINT {quote(name)}"
        return f"DROP INDEX {quote(self.name.schema, name)}"

    def key_name(self, key: UniqueKey) -> str:
        """Return the name of a unique key."""
        return self.own_name(key.name)

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each index that is not a key, and its statement."""
        for index in self.extras.indexes:
            yield self.own_name(index.name), self._index_sql(index)

    def _index_sql(self, index: Index) -> str:
        parts = ", ".join(
            quote(name) + (" DESC" if is_down else "") for name, _, is_down in index.parts
        )
        name = quote(self.name.schema, self.own_name(index.name))
        return f"CREATE INDEX {name} ON {quote(*self.name)} ({parts})"

    def foreign_key_sql(self, key: ForeignKey, parent: TableName) -> str:
        """Return the statement that creates a foreign key, which checks the rows that are there."""
        columns = ", ".join(map(quote, key.columns))
        referred = ", ".join(map(quote, key.target_columns))
        return (
            f"ALTER TABLE {quote(*self.name)} ADD CONSTRAINT {quote(self.foreign_key_name(key))}"
            f" FOREIGN KEY ({columns}) REFERENCES {quote(*parent)} ({referred})"
            f"{_ACTIONS.get(key.on_delete.upper(), '')} DEFERRABLE INITIALLY IMMEDIATE"
        )

    def foreign_key_name(self, key: ForeignKey) -> str:
        """Return the name of a foreign key."""
        return self.own_name(key.name)

    def own_name(self, name: str) -> str:
        """Return the name of a key, index or constraint, which is one of its schema.

        It is cut without making two names equal.
        """
        wanted = name if name.startswith(self.name.name) else f"{self.name.name}_{name}"
        wanted = wanted.replace('"', "_")
        return short_name(wanted, lambda text: len(text.encode()) <= self.name_bytes)

    def check(self, table: TargetTable, with_default: Collection[str]) -> None:
        """Compare an existing table with the shape. Raises TargetShapeDiffers naming the columns.

        More columns in the target are allowed if they can be left out of an insert.

        Args:
            table: The existing table.
            with_default: Its NOT NULL columns that have a default.
        """
        differing = []
        for column in self.columns:
            found, expected = table.column(column.name), self.mappings[column.name].target_type
            if found is None:
                differing.append(f"{column.name} is missing, expected {expected}")
            elif not self._takes(found.type_text, expected):
                differing.append(f"{column.name} is {found.type_text}, expected {expected}")
        named = {column.name for column in self.definition.columns}
        differing += [
            f"{extra.name} is not null, has no default and is not in the source"
            for extra in table.columns
            if extra.name not in named
            and extra.not_null
            and extra.name not in with_default
            and not extra.is_generated
            and not extra.is_identity
        ]
        if differing:
            raise _differs(table, differing)

    def _takes(self, found: str, expected: str) -> bool:
        return same_type(found, expected) or (self.definition.widens and holds(found, expected))


def _differs(table: TargetTable, differing: Iterable[str]) -> TargetShapeDiffers:
    return TargetShapeDiffers(
        f"target table {table.name} has another shape than the source's: " + "; ".join(differing),
        hint="Alter it, or rename it so that penstock makes its own: ALTER TABLE "
        f"{table.sql_name} RENAME TO {quote(table.name.name + '_before')};",
        table=str(table.name),
    )
