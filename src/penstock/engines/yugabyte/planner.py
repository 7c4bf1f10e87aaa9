"""Planner of the bulk load from YugabyteDB: the slot's consistent point, definitions, chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import quote
from penstock.engines.yugabyte.catalog import connect_catalog, tables_of
from penstock.engines.yugabyte.slots import HistoryGone
from penstock.model import LOAD_AGAIN, TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import Chunk, Planning, Point, TableRead
from penstock.ports.config import Config


class YugabytePlanner(Planning):
    """`Planner` of a YugabyteDB source: a table is one chunk, tables are read in parallel."""

    positions: PositionKind = Lsn

    def __init__(self, config: Config, first: Callable[[], Point | None]) -> None:
        self._url = config.source.url
        self._patterns = config.source.tables
        self._first = first

    def __enter__(self) -> Self:
        """Return the planner; it opens nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: the planner holds nothing."""

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Raise HistoryGone: a later time has no LSN in the slot."""
        raise HistoryGone(
            "the source can no longer be read at the slot's consistent point, and at no other "
            "point whose place in the slot is known",
            hint=f"Changes cannot be joined to other rows: {LOAD_AGAIN}",
        )

    def release(self) -> None:
        """Return None: nothing is held."""

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        with connect_catalog(self._url) as connection:
            found = tables_of(connection, self._patterns)
        return [table for table in found if table.name in set(tables)]

    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        del point
        return {
            read.definition.name: [
                Chunk(number=0, relation=read.definition.name, copy_out=copy_sql(read))
            ]
            for read in wanted
        }


def copy_sql(read: TableRead) -> str:
    """Return the COPY command of a whole table."""
    columns = ", ".join(quote(name) for name in read.columns)
    form = " with (format binary)" if read.binary else ""
    return f"copy (select {columns} from {quote(*read.definition.name)}) to stdout{form}"


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> YugabytePlanner:
    """Return the planner of a pipeline's source."""
    return YugabytePlanner(config, first)
