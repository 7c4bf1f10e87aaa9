"""Deferred keys of an Oracle target: the part `deferred_keys` (`ports/deferred_keys.py`)."""

from __future__ import annotations

from contextlib import closing

from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.target.alter import drop_index
from penstock.engines.oracle.target.catalog import read_target_tables
from penstock.engines.oracle.target.progress import name_work, open_session
from penstock.engines.oracle.target.refusals import DUPLICATE
from penstock.engines.oracle.target.shapes import TableShape
from penstock.host.errors import StatementFailed
from penstock.ports.deferred_keys import DeferredKey, DeferredTable, key_refused

_SAME_VALUES = frozenset({DUPLICATE, 1452, 2299})
_NEEDED = frozenset({2273, 2429})  # by a foreign key, by a constraint
_LISTED_ALREADY = 1408  # an index of the same columns exists


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
                number = error.fields.get("errno")
                if number == _LISTED_ALREADY:
                    notes.append(f"{table.target} has no unique key {key.name}: {error.message}")
                    continue
                said = error.message
                if number in _SAME_VALUES:
                    said = f"rows have the same values in {', '.join(key.columns)}"
                raise key_refused(key, table.target, said) from error
    return notes


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop deferred keys that an earlier load of the table has created; see `TargetKeys`."""
    notes = []
    with closing(open_session(url)) as connection:
        there = read_target_tables(connection, [table.target]).get(table.target)
        present = {index.name: index for index in there.indexes} if there is not None else {}
        for key in table.keys:
            if there is None or key.name not in present:
                continue
            try:
                with name_work("the target says"):
                    connection.run(drop_index(there, present[key.name]))
            except StatementFailed as error:
                if error.fields.get("errno") not in _NEEDED:
                    raise
                notes.append(
                    f"unique key {key.name} of {quote(*table.target)} stays: {error.message}"
                )
    return notes
