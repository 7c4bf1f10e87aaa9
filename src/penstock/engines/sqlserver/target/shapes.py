"""Statements that create tables of SQL Server, their keys and indexes, from a source's definitions.

A table is created as a heap without keys: rows are loaded faster into it (reference
oracle-sqlserver, section 4 F4). A unique key with columns that may be NULL becomes an index that
leaves NULL out, since SQL Server takes two NULLs for equal. Pure. Not here: running them
(`bulk.py`), types of columns (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.codec.server_pair import ServerPair
from penstock.codec.sqlserver.types import MAX, parse_type
from penstock.codec.types import Mapping
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetTable, same_type, without_collation
from penstock.engines.sqlserver.target.progress import NAME_LENGTH_MAX
from penstock.engines.sqlserver.target.type_rules import holds
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

COLUMNS_MAX = 1_024
_LARGE = ("xml", "json", "geometry", "geography", "text", "ntext", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Table as it is created.

    Attributes:
        mappings: By column, how it is held.
        columns: The columns whose values are copied.
        notes: A sentence for each part that the target's table lacks.
    """

    definition: TableDefinition
    name: TableName
    mappings: dict[str, Mapping]
    columns: tuple[ColumnDefinition, ...]
    extras: Extras
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, definition: TableDefinition, name: TableName, servers: ServerPair) -> TableShape:
        """Return a table's shape in the target."""
        mappings = servers.mappings(definition)
        extras = extras_of(definition, servers.source, servers.target, mappings)
        columns = tuple(copied_columns(definition, servers))
        shape = cls(
            definition=definition, name=name, mappings=mappings, columns=columns, extras=extras
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
                f"has {len(self.columns)} columns, a table of SQL Server at most {COLUMNS_MAX:,}"
            )
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
        numbered = " IDENTITY(1,1)" if column.name in self.extras.counted else ""
        is_key = column.name in self.definition.primary_key
        null = "NOT NULL" if self.not_null(column) or is_key or numbered else "NULL"
        return f"{quote(column.name)} {mapping.target_type}{numbered} {null}"

    def defaults(self) -> Iterator[tuple[str, str]]:
        """Yield each column with a default, and the statement that sets it."""
        for column, sql in self.extras.defaults.items():
            name = quote(own_name(f"df_{self.name.name}_{column}"))
            yield (
                column,
                f"ALTER TABLE {quote(*self.name)} ADD CONSTRAINT {name} DEFAULT ({sql})"
                f" FOR {quote(column)}",
            )

    def primary_key(self) -> str | None:
        """Return the statement that adds the primary key; None if the table has none."""
        columns = self.definition.primary_key
        if not columns or any(self.definition.primary_key_prefixes):
            return None
        name = quote(own_name(f"pk_{self.name.name}"))
        listed = ", ".join(map(quote, columns))
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
        ]

    def _is_large(self, column: str) -> bool:
        kind = parse_type(without_collation(self.mappings[column].target_type))
        return kind.length == MAX or kind.base in _LARGE

    def unique_key_sql(self, key: UniqueKey, *, is_unique: bool = True) -> str:
        """Return the statement that creates a unique key, or an index like it."""
        strict = {column.name for column in self.columns if self.not_null(column)}
        nullable = [name for name in key.columns if name not in strict]
        there = " AND ".join(f"{quote(name)} IS NOT NULL" for name in nullable)
        return (
            f"CREATE {'UNIQUE ' if is_unique else ''}INDEX {quote(self.key_name(key))}"
            f" ON {quote(*self.name)} ({', '.join(map(quote, key.columns))})"
            + (f" WHERE {there}" if there and is_unique else "")
        )

    def key_name(self, key: UniqueKey) -> str:
        """Return the name of a unique key. Index names are of their table."""
        return own_name(key.name)

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each index that is not a key, and its statement."""
        for index in self.extras.indexes:
            yield index.name, self._index_sql(index)

    def _index_sql(self, index: Index) -> str:
        parts = ", ".join(
            quote(name) + (" DESC" if is_down else "") for name, _, is_down in index.parts
        )
        return f"CREATE INDEX {quote(own_name(index.name))} ON {quote(*self.name)} ({parts})"

    def foreign_key_sql(self, key: ForeignKey, parent: TableName) -> str:
        """Return the statement that creates a foreign key, which checks the rows that are there."""
        columns = ", ".join(map(quote, key.columns))
        referred = ", ".join(map(quote, key.target_columns))
        return (
            f"ALTER TABLE {quote(*self.name)} WITH CHECK ADD CONSTRAINT"
            f" {quote(self.foreign_key_name(key))} FOREIGN KEY ({columns})"
            f" REFERENCES {quote(*parent)} ({referred})"
            f" ON DELETE {_action(key.on_delete)} ON UPDATE {_action(key.on_update)}"
        )

    def foreign_key_name(self, key: ForeignKey) -> str:
        """Return the name of a foreign key, which is one of its schema."""
        return own_name(key.name)

    def check(self, table: TargetTable) -> None:
        """Compare an existing table with the shape. Raises TargetShapeDiffers naming the columns.

        More columns in the target are allowed if they can be left out of an insert.
        """
        differing = []
        for column in self.columns:
            found, expected = table.column(column.name), self.mappings[column.name].target_type
            if found is None:
                differing.append(f"{column.name} is missing, expected {expected}")
            elif not self._takes(found.type_text, expected):
                differing.append(f"{column.name} is {found.type_text}, expected {expected}")
        named = {column.name.lower() for column in self.definition.columns}
        differing += [
            f"{extra.name} is not null, has no default and is not in the source"
            for extra in table.columns
            if extra.name.lower() not in named
            and extra.not_null
            and not extra.default_name
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
        hint="Alter it, or rename it so that penstock makes its own: EXEC sp_rename "
        f"N'{table.sql_name}', N'{table.name.name}_before';",
        table=str(table.name),
    )


def own_name(name: str) -> str:
    """Return the name of a key, index or constraint, cut without making two names equal."""
    return short_name(name, lambda text: len(text) <= NAME_LENGTH_MAX)


def _action(action: str) -> str:
    return "NO ACTION" if action.upper() in ("", "RESTRICT") else action.upper()
