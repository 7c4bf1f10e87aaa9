"""Deferred keys: unique keys and indexes that are created when a table's rows are of one moment.

Until then two rows may have the same value. Not here: their file and the time of their creation
(`penstock.load.deferred_keys`), their statements (`target/deferred_keys.py` of each engine).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Protocol

import msgspec

from penstock.model import TableDefinition, TableName, UniqueKey
from penstock.ports.registry import PartName
from penstock.ports.target import TargetDdlFailed

APPLICATION_NAME = "penstock deferred keys"


class DeferredKey(msgspec.Struct, frozen=True, kw_only=True):
    """Unique key or unique index that is deferred.

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
    """Table with deferred keys.

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
    """Return the table with the unique keys that always hold and all other indexes, and separately
    the table with the deferred unique keys and unique indexes.

    The key that identifies rows always holds: the table is read in chunks by it, so no value is
    read twice.
    """
    held = tuple(key for key in definition.unique_keys if _is_identity(key, definition))
    deferred = tuple(key for key in definition.unique_keys if key not in held)
    plain = tuple(text for text in definition.indexes if not _is_unique(text))
    unique = tuple(text for text in definition.indexes if _is_unique(text))
    return (
        replace(definition, unique_keys=held, indexes=plain),
        replace(definition, unique_keys=deferred, indexes=unique),
    )


def _is_unique(index: str) -> bool:
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


class TargetKeys(Protocol):
    """Part `deferred_keys` of an engine: its statements, on a connection of their own."""

    @abstractmethod
    def add_deferred_keys(self, url: str, table: DeferredTable, /) -> list[str]:
        """Create the deferred keys of a table, except existing ones.

        Returns a sentence for each key that cannot be created any more. Raises TargetDdlFailed for
        one that the target refuses, and the errors of a connection.
        """
        ...

    @abstractmethod
    def drop_deferred_keys(self, url: str, table: DeferredTable, /) -> list[str]:
        """Drop deferred keys that an earlier load of the table has created.

        Returns a sentence for each key that has to stay.
        """
        ...


DEFERRED_KEYS_PART: PartName[TargetKeys] = PartName("deferred_keys")
