"""Deferred keys of a PostgreSQL target: the part `deferred_keys` (`ports/deferred_keys.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import psycopg

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.target.schema import (
    INDEX_MEMORY,
    ddl_errors,
    index_names,
    index_sql,
    unique_key_sql,
)
from penstock.engines.postgres.target.target import read_target_tables
from penstock.model import TableDefinition
from penstock.ports.deferred_keys import APPLICATION_NAME, DeferredKey, DeferredTable, key_refused
from penstock.ports.target import TargetDdlFailed, target_name

_UNIQUE = re.compile("create unique index ", re.IGNORECASE)


def deferred_keys(
    definition: TableDefinition, namespaces: Mapping[str, str]
) -> tuple[DeferredKey, ...]:
    """Return the unique keys of a table, as `add_deferred_keys` creates them."""
    name = target_name(definition.name, namespaces)
    return tuple(
        DeferredKey(
            name=key.name,
            columns=key.columns,
            statement="; ".join(unique_key_sql(key, name, namespaces)),
            plain=_UNIQUE.sub("create index ", index_sql(key.definition, namespaces), count=1),
        )
        for key in definition.unique_keys
    )


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the deferred keys of a table; see `TargetKeys`. Each is created as a whole."""
    settings = {**EXACT_TEXT_SETTINGS, "maintenance_work_mem": INDEX_MEMORY}
    with (
        connect(url, application_name=APPLICATION_NAME, options=settings) as connection,
        server_errors(f"adding keys of {table.target}"),
    ):
        commit_durably(connection)  # they are forgotten after it
        return _add(connection, table)


def _add(connection: psycopg.Connection, table: DeferredTable) -> list[str]:
    there = read_target_tables(connection, [table.target]).get(table.target)
    present = index_names(connection, table.target)
    notes = []
    for key in table.keys:
        if key.name in present:
            continue
        lacking = [name for name in key.columns if there is None or there.column(name) is None]
        if lacking:
            notes.append(
                f"{table.target} has no unique key {key.name}: it lacks {', '.join(lacking)}"
            )
            continue
        try:
            with ddl_errors("the target says"), connection.transaction():
                connection.execute(key.statement)
        except TargetDdlFailed as error:
            raise key_refused(key, table.target, error.message) from error
    return notes


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop deferred keys that an earlier load of the table has created; see `TargetKeys`."""
    notes = []
    with (
        connect(url, application_name=APPLICATION_NAME) as connection,
        server_errors(f"dropping keys of {table.target}"),
    ):
        present = index_names(connection, table.target)
        for key in table.keys:
            if key.name not in present:
                continue
            try:
                with connection.transaction():
                    connection.execute(f"drop index {quote(table.target.schema, key.name)}")
            except psycopg.errors.DependentObjectsStillExist as error:
                said = error.diag.message_primary
                notes.append(f"unique key {key.name} of {table.target} stays: {said}")
    return notes
