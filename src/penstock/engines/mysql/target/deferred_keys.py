"""Deferred keys of a MySQL or MariaDB target: the part `deferred_keys` (`ports/deferred_keys.py`).

DDL commits, so creating and dropping them is safe to repeat.
"""

from __future__ import annotations

import re
from contextlib import closing

from penstock.codec.server_pair import ServerPair
from penstock.engines.mysql.connect import Connection, connect, quote, run
from penstock.engines.mysql.target.shapes import index_statements, key_statement, unique_keys
from penstock.engines.mysql.target.target import read_target_tables
from penstock.host.errors import StatementFailed
from penstock.model import TableDefinition, TableName
from penstock.ports.deferred_keys import APPLICATION_NAME, DeferredKey, DeferredTable, key_refused

_DUPLICATE_NAME = frozenset({1061, 1022, 1068, 1826, 121})  # a key of that name already exists
_SAME_VALUES = frozenset({1062, 1169, 1586})
_NO_SUCH_KEY = 1091
_NEEDED = 1553  # by a foreign key
_INDEX_NAME = re.compile("key `((?:[^`]|``)+)` ")


def deferred_keys(
    definition: TableDefinition, name: TableName, servers: ServerPair
) -> tuple[DeferredKey, ...]:
    """Return the unique keys and unique indexes of a table that are created later."""
    keys = [
        DeferredKey(
            name=key.name,
            columns=key.columns,
            statement=key_statement(key, name, "unique key"),
            plain=key_statement(key, name, "key"),
        )
        for key in unique_keys(definition, servers)
    ]
    over_expressions = [
        DeferredKey(name=_name_of(text), columns=(), statement=statement, plain="")
        for text, statement in index_statements(definition, name, servers).items()
    ]
    return (*keys, *over_expressions)


def _name_of(index: str) -> str:
    found = _INDEX_NAME.search(index)
    assert found is not None, "an index has a name"
    return found[1].replace("``", "`")


def run_unless_there(connection: Connection, statement: str, *, doing: str) -> None:
    """Run a statement that creates a key; do nothing if a key of that name exists."""
    try:
        run(connection, statement, doing=doing)
    except StatementFailed as error:
        if error.fields.get("errno") not in _DUPLICATE_NAME:
            raise


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the deferred keys of a table; see `TargetKeys`.

    A refused key over an expression becomes a note.
    """
    notes = []
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        there = read_target_tables(connection, [table.target]).get(table.target)
        for key in table.keys:
            lacking = [name for name in key.columns if there is None or there.column(name) is None]
            if there is None or lacking:
                why = f"it lacks {', '.join(lacking)}" if there is not None else "it is gone"
                notes.append(f"{table.target} has no unique key {key.name}: {why}")
                continue
            try:
                run_unless_there(connection, key.statement, doing="the target says")
            except StatementFailed as error:
                if not key.columns:
                    notes.append(f"{table.target} has no unique key {key.name}: {error.message}")
                    continue
                said = error.message
                if error.fields.get("errno") in _SAME_VALUES:  # the server names the values
                    said = f"rows have the same values in {', '.join(key.columns)}"
                raise key_refused(key, table.target, said) from error
    return notes


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop deferred keys that an earlier load of the table has created; see `TargetKeys`."""
    notes = []
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        for key in table.keys:
            statement = f"alter table {quote(*table.target)} drop key {quote(key.name)}"
            try:
                run(connection, statement, doing="the target says")
            except StatementFailed as error:
                if error.fields.get("errno") == _NEEDED:
                    notes.append(f"unique key {key.name} of {table.target} stays: {error.message}")
                elif error.fields.get("errno") != _NO_SUCH_KEY:
                    raise
    return notes
