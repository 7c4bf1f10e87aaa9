"""SQL Server as a target that is repaired: the port of `ports/verify.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from penstock.codec.server_pair import ServerPair
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.reading.row_conditions import row_conditions
from penstock.engines.sqlserver.target.catalog import read_target_tables, require
from penstock.engines.sqlserver.target.chunk import ChunkSpec, Heaps, SQLServerWriter
from penstock.engines.sqlserver.target.progress import name_work, transaction
from penstock.engines.sqlserver.target.shapes import TableShape
from penstock.model import Relation, TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.registry import engine_with_types
from penstock.ports.target import Applied
from penstock.ports.verify import (
    RepairRefused,
    RepairTable,
    RepairTarget,
    own_columns,
    target_moved,
)
from penstock.sql.read_plan import RELATION_OF_PART


class SQLServerRepair(SQLServerWriter, RepairTarget):
    """Connection that repairs rows of a SQL Server target."""

    replica = False

    def __init__(self, url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> None:
        """Connect. Foreign keys act on the writes; tables with triggers are refused."""
        super().__init__(url)
        del namespaces
        assert servers is not None, "a SQL Server target always has a pair of servers"
        self._servers = servers
        self._relations: dict[TableName, Relation] = {}

    @contextmanager
    def transaction(self) -> Iterator[object]:
        with transaction(self._connection):
            yield self._connection

    def hold(self, expected: Applied) -> None:
        if "wirekite_log" not in self._progress.present_tables():
            return
        found = self._progress.read_applied(lock="update")
        if self._progress.log_id() and found.gsn != expected.gsn:
            raise target_moved(expected, found.gsn)

    def check(self, table: RepairTable) -> None:
        found = require(read_target_tables(self._connection, [table.target]), table.target)
        shape = TableShape.of(table.definition, table.target, self._servers)
        shape.check(found)
        names = {column.name.lower() for column in table.definition.columns}
        own = [c.name for c in found.columns if c.name.lower() not in names and not c.is_generated]
        if own:
            raise own_columns(table.target, own)
        cascades = [key for key in found.children if key.on_delete != "NO_ACTION"]
        if found.triggers or cascades:
            what = f"trigger {found.triggers[0]}" if found.triggers else ""
            raise RepairRefused(
                f"target table {table.target} has "
                f"{what or f'foreign key {cascades[0].name} to it'}, which would act on what is "
                "written",
                hint=f"Disable it meanwhile: ALTER TABLE {found.sql_name} DISABLE TRIGGER ALL; or "
                "ALTER TABLE [CHILD] NOCHECK CONSTRAINT ALL;",
                table=str(table.target),
            )
        relation_of = engine_with_types(self._servers.source.engine).part(RELATION_OF_PART)
        self._relations[table.target] = relation_of(table.definition)

    def delete(self, table: TableName, condition: str) -> int:
        with name_work(f"deleting rows of {table}"):
            found = list(row_conditions(self._connection, table, condition))
            return sum(
                self._connection.run(f"DELETE FROM {quote(*table)} WHERE {one}") for one in found
            )

    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        spec = ChunkSpec(
            relation=self._relations[task.target],
            source_engine=self._servers.source.engine,
            choices=self._servers.choices,
        )
        with closing(Heaps(self, task, spec)) as heaps:
            heaps.fill(reader)
            return heaps.pour()

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        with name_work(doing):
            return self._connection.execute(query)
