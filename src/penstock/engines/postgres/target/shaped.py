"""A table of another engine as PostgreSQL has it: columns, keys, indexes, foreign keys.

What has a counterpart at all: see `penstock.sql.schema_translation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.codec.server_pair import ServerPair
from penstock.engines.postgres.connect import quote
from penstock.model import ForeignKey, TableDefinition, TableName, UniqueKey
from penstock.sql.read_plan import copied_columns
from penstock.sql.schema_translation import Index, extras_of, short_name


def postgres_definition(
    definition: TableDefinition, servers: ServerPair, namespaces: Mapping[str, str]
) -> TableDefinition:
    """Return a table of MySQL or MariaDB as a table of PostgreSQL, with all that has a
    counterpart.

    Left out: keys over parts of a text, and what `extras_of` says.
    """
    mappings = servers.mappings(definition)
    extras = extras_of(definition, servers.source, servers.target, mappings)
    columns = tuple(
        replace(
            column,
            type_text=mappings[column.name].target_type,
            base_type=mappings[column.name].target_type,
            default=extras.defaults.get(column.name),
            not_null=column.not_null and not mappings[column.name].may_be_null,
            generated="",
            identity_kind="d" if column.name in extras.counted else "",
            collation=None,
            charset="",
        )
        for column in copied_columns(definition, servers)
    )
    schema, table = definition.name
    name = quote(namespaces.get(schema, schema), table)
    unique = tuple(
        _unique_index(key, postgres_name(f"{table}_{key.name}"), name)
        for key in definition.unique_keys
        if not any(key.prefixes)
    )
    return replace(
        definition,
        columns=columns,
        unique_keys=unique,
        indexes=tuple(postgres_index(index, definition.name) for index in extras.indexes),
        foreign_keys=tuple(map(postgres_foreign_key, extras.foreign_keys)),
        types=(),
        primary_key=() if any(definition.primary_key_prefixes) else definition.primary_key,
        primary_key_prefixes=(),
    )


def _unique_index(key: UniqueKey, name: str, table: str) -> UniqueKey:
    columns = ", ".join(map(quote, key.columns))
    return UniqueKey(
        name=name,
        columns=key.columns,
        definition=f"create unique index {quote(name)} on {table} ({columns})",
        is_constraint=False,
    )


POSTGRES_NAME_BYTES_MAX = 63


def postgres_name(name: str) -> str:
    """Return the name of an index or a constraint, cut without making two names equal."""
    return short_name(name, lambda text: len(text.encode()) <= POSTGRES_NAME_BYTES_MAX)


def postgres_index(index: Index, table: TableName) -> str:
    """Return an index's CREATE INDEX. Index names are unique in a schema.

    table: the source's table, which is mapped later.
    """
    parts = ", ".join(
        quote(name) + (" desc" if is_down else "") for name, _, is_down in index.parts
    )
    name = quote(postgres_name(f"{table.name}_{index.name}"))
    return f"CREATE INDEX {name} ON {quote(*table)} ({parts})"


def postgres_foreign_key(key: ForeignKey) -> ForeignKey:
    """Return a foreign key with its definition in PostgreSQL's syntax; schemas are the source's."""
    columns = ", ".join(map(quote, key.columns))
    referred = ", ".join(map(quote, key.target_columns))
    return ForeignKey(
        name=postgres_name(key.name),
        columns=key.columns,
        target=key.target,
        target_columns=key.target_columns,
        definition=f"FOREIGN KEY ({columns}) REFERENCES {quote(*key.target)} "
        f"({referred}) ON DELETE {key.on_delete} ON UPDATE {key.on_update}",
        deferrable=True,
        on_update=key.on_update,
        on_delete=key.on_delete,
    )


def referable(key: ForeignKey, tables: Mapping[TableName, TableDefinition]) -> str:
    """Return why a foreign key cannot be created in PostgreSQL; empty if it can."""
    parent = tables.get(key.target)
    if parent is None:
        return f"{key.target} is not captured"
    unique = [parent.primary_key] if not any(parent.primary_key_prefixes) else []
    unique += [one.columns for one in parent.unique_keys if not any(one.prefixes)]
    if not any(set(one) == set(key.target_columns) for one in unique):
        return f"{', '.join(key.target_columns)} of {key.target} are no key"
    return ""
