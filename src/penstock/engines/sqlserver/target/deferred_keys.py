"""Deferred keys of a SQL Server target: the part `deferred_keys` (`ports/deferred_keys.py`)."""

from __future__ import annotations

from contextlib import closing

from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import read_target_tables
from penstock.engines.sqlserver.target.progress import name_work, open_session
from penstock.engines.sqlserver.target.refusals import DUPLICATE
from penstock.engines.sqlserver.target.shapes import TableShape
from penstock.host.errors import StatementFailed
from penstock.ports.deferred_keys import DeferredKey, DeferredTable, key_refused

_SAME_VALUES = frozenset({1505, *DUPLICATE})
_NEEDED = frozenset({3723, 3725})  # by a constraint, by a foreign key


def deferred_keys(shape: TableShape) -> tuple[DeferredKey, ...]:
    """Return the unique keys of a table, as `add_deferred_keys` creates them."""
    return tuple(
        DeferredKey(
            name=shape.key_name(key),
            columns=key.columns,
            statement=shape.unique_key_sql(key),
            plain=shape.unique_key_sql(key, is_unique=False),
        )
        for key in shape.unique_keys()
    )


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the deferred keys of a table; see `TargetKeys`."""
    notes = []
    with closing(open_session(url)) as connection:
        there = read_target_tables(connection, [table.target]).get(table.target)
        present = {index.name for index in there.indexes} if there is not None else set()
        for key in table.keys:
            if key.name in present:
                continue
            lacking = [name for name in key.columns if there is None or there.column(name) is None]
            if there is None or lacking:
                why = f"it lacks {', '.join(lacking)}" if there is not None else "it is gone"
                notes.append(f"{table.target} has no unique key {key.name}: {why}")
                continue
            try:
                with name_work("the target says"):
                    connection.run(key.statement)
            except StatementFailed as error:
                said = error.message
                if error.fields.get("errno") in _SAME_VALUES:  # the server names the values
                    said = f"rows have the same values in {', '.join(key.columns)}"
                raise key_refused(key, table.target, said) from error
    return notes


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop deferred keys that an earlier load of the table has created; see `TargetKeys`."""
    notes = []
    with closing(open_session(url)) as connection:
        there = read_target_tables(connection, [table.target]).get(table.target)
        present = {index.name for index in there.indexes} if there is not None else set()
        for key in table.keys:
            if key.name not in present:
                continue
            try:
                with name_work("the target says"):
                    connection.run(f"DROP INDEX {quote(key.name)} ON {quote(*table.target)}")
            except StatementFailed as error:
                if error.fields.get("errno") not in _NEEDED:
                    raise
                notes.append(f"unique key {key.name} of {table.target} stays: {error.message}")
    return notes
