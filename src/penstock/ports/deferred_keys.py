"""Unique keys that wait until a table's rows are of one moment, and their creation.

Not here: the file of the waiting keys (`penstock.load.deferred_keys`), and the statements
(`deferred_keys` of each engine's target).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.model import TableDefinition, TableName, UniqueKey
from penstock.ports.refusals import TargetDdlFailed
from penstock.ports.registry import part

APPLICATION_NAME = "penstock deferred keys"


class DeferredKey(msgspec.Struct, frozen=True, kw_only=True):
    """Unique key that waits.

    Attributes:
        name: Its name in the target.
        columns: Its columns in the target; empty for expressions.
        statement: The statement that creates it.
        plain: The statement that creates an index of this name that is not unique.
    """

    name: str
    columns: tuple[str, ...]
    statement: str
    plain: str


class DeferredTable(msgspec.Struct, frozen=True, kw_only=True):
    """Table whose keys wait.

    Attributes:
        settled: The position from which on its rows are of one moment.
        with_foreign_keys: Its foreign keys are created with them, not with those of all tables.
    """

    source: TableName
    target: TableName
    settled: int
    keys: tuple[DeferredKey, ...]
    with_foreign_keys: bool = False


def split_deferred(definition: TableDefinition) -> tuple[TableDefinition, TableDefinition]:
    """Return the table with the keys that hold at any moment and all indexes; and the other keys.

    The key that identifies its rows is the one by which it is read in chunks, so none of its values
    is read twice.
    """
    early = tuple(key for key in definition.unique_keys if _is_identity(key, definition))
    late = tuple(key for key in definition.unique_keys if key not in early)
    plain = tuple(text for text in definition.indexes if not is_unique(text))
    other = tuple(text for text in definition.indexes if is_unique(text))
    return (
        replace(definition, unique_keys=early, indexes=plain),
        replace(definition, unique_keys=late, indexes=other),
    )


def is_unique(index: str) -> bool:
    """Return whether an index that is listed among the plain ones is unique: its text says so."""
    return index.startswith("unique ")


def _is_identity(key: UniqueKey, definition: TableDefinition) -> bool:
    return not any(key.prefixes) and set(key.columns) == set(definition.identity_columns)


def key_refused(key: DeferredKey, table: TableName, said: str) -> TargetDdlFailed:
    """Return the error for a key that the target refuses. said: the server's words, no values."""
    return TargetDdlFailed(
        f"adding unique key {key.name} of {table}: {said}",
        hint="Values that differ in the source are equal in the target, or the target has rows of "
        "its own. Give the columns the source's collation, or take those rows away, or do without "
        "the "
        f"key: {key.plain}; then run the same command again.",
        table=str(table),
    )


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the waiting unique keys of a table, except existing ones.

    Returns a sentence for each key that cannot be created any more. Raises TargetDdlFailed for one
    that the target refuses, and the errors of a connection.
    """
    notes: list[str] = part(url, "deferred_keys").add_deferred_keys(url, table)
    return notes


def drop_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Drop unique keys that an earlier load of the table has created.

    Returns a sentence for each key that has to stay.
    """
    notes: list[str] = part(url, "deferred_keys").drop_deferred_keys(url, table)
    return notes
