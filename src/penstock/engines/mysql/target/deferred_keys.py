"""Deferred unique keys of MySQL and MariaDB: created late, dropped before another copy of a table.

Each function is safe to repeat. Not here: the time of the call (`penstock.load.deferred_keys`), the
statements (`shapes.py`).
"""

from __future__ import annotations

from contextlib import closing

from penstock.engines.mysql.connect import Connection, connect, quote, run
from penstock.engines.mysql.target.target import read_target_tables
from penstock.host.errors import StatementFailed
from penstock.ports.bulk import DEFERRED_KEYS_APPLICATION, DeferredTable, key_refused

_DUPLICATE_NAME = frozenset({1061, 1022, 1068, 1826, 121})  # a key of that name already exists
_SAME_VALUES = frozenset({1062, 1169, 1586})
_NO_SUCH_KEY = 1091
_NEEDED = 1553  # by a foreign key


def run_unless_there(connection: Connection, statement: str, *, doing: str) -> None:
    """Run a statement that creates a key; do nothing if a key of that name exists."""
    try:
        run(connection, statement, doing=doing)
    except StatementFailed as error:
        if error.fields.get("errno") not in _DUPLICATE_NAME:
            raise


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the waiting unique keys of a table. A refused key over an expression becomes a
    note.
    """
    with closing(connect(url, application_name=DEFERRED_KEYS_APPLICATION)) as connection:
        return _add(connection, table)


def _add(connection: Connection, table: DeferredTable) -> list[str]:
    there = read_target_tables(connection, [table.target]).get(table.target)
    notes = []
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
    """Drop unique keys that an earlier load of the table has created."""
    with closing(connect(url, application_name=DEFERRED_KEYS_APPLICATION)) as connection:
        return _drop(connection, table)


def _drop(connection: Connection, table: DeferredTable) -> list[str]:
    notes = []
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
