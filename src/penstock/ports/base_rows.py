"""Rows of a table from the log's base, for an engine that puts them into the log again.

The base with the segments after it is the table at the log's end. So the thread that numbers
transactions asks between two of them, after it has given out all earlier ones: the rows are of
that place, and the source is not asked. If the base does not have the table, or has it in another
shape than the log, the engine reads the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow as pa

from penstock.model import Relation, TableName


class TableRows(Protocol):
    """All rows of a table at a place. relation: their shape."""

    @property
    def relation(self) -> Relation:
        """Shape of the rows."""
        ...

    def inserts(self, *, gsn: int, trx: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as inserts of one transaction, in the log's form. gsn: the first one's."""
        ...


class BaseRows(Protocol):
    """Base of a log, if it has one."""

    def at(
        self, table: TableName, trx: int, *, gives_up: Callable[[], bool]
    ) -> AbstractContextManager[TableRows | None]:
        """Return a table as of a transaction, once that is durable; None if the base lacks it.

        Call it when no later transaction was given out. gives_up: asked repeatedly; if it returns
        True, ConnectionLost is raised.
        """
        ...


class NoBase:
    """Base of a log that has none."""

    def at(
        self,
        _table: TableName,
        _trx: int,
        *,
        gives_up: Callable[[], bool],  # noqa: ARG002 - the port's
    ) -> AbstractContextManager[TableRows | None]:
        """Return None: there is no base. See BaseRows."""
        return nullcontext()
