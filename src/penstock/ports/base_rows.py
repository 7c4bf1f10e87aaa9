"""Rows of a table as the log's base has them, for an engine that puts them into the log again.

The base with the segments behind it is the table at the log's end. So who numbers transactions
asks between two of them, when all before are given out: the rows are of that place, and nothing
is asked of the source. Where the base does not have the table, or not in the log's shape, the
engine reads the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow as pa

from penstock.model import Relation, TableName


class TableRows(Protocol):
    """All rows of a table at a place. relation: the shape that they have."""

    @property
    def relation(self) -> Relation:
        """Their shape."""
        ...

    def inserts(self, *, gsn: int, trx: int) -> Iterator[pa.RecordBatch]:
        """The rows as inserts of one transaction, in the log's form. gsn: of the first."""
        ...


class BaseRows(Protocol):
    """The base of a log, where it has one."""

    def at(
        self, table: TableName, trx: int, *, gives_up: Callable[[], bool]
    ) -> AbstractContextManager[TableRows | None]:
        """A table behind a transaction, once that is durable; None: the base does not have it.

        To be called when nothing behind that transaction was given out. gives_up: asked again and
        again; True raises ConnectionLost.
        """
        ...


class NoBase:
    """A log without a base."""

    def at(
        self,
        _table: TableName,
        _trx: int,
        *,
        gives_up: Callable[[], bool],  # noqa: ARG002 - the port's
    ) -> AbstractContextManager[TableRows | None]:
        """See BaseRows: it has none."""
        return nullcontext()
