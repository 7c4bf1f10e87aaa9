"""SQL Server as a target that is repaired: the port of `ports/verify.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.row_images import add_up, hash_rows
from penstock.codec.server_pair import ServerPair
from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.codec.sqlserver.row_images import image_batch
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.catalog import read_definitions
from penstock.engines.sqlserver.reading.row_conditions import row_conditions
from penstock.engines.sqlserver.target.catalog import (
    TargetTable,
    read_target_tables,
    require,
)
from penstock.engines.sqlserver.target.chunk import ChunkSpec, Heaps, SQLServerWriter
from penstock.engines.sqlserver.target.progress import name_work, transaction
from penstock.engines.sqlserver.target.quiet import deferred_foreign_keys, quiet_triggers
from penstock.engines.sqlserver.target.refusals import apply_error
from penstock.engines.sqlserver.target.shapes import TableShape
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError, Relation, TableName
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

    replica = True

    def __init__(self, url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> None:
        """Connect. Triggers and foreign keys rest during the transaction."""
        super().__init__(url)
        del namespaces
        assert servers is not None, "a SQL Server target always has a pair of servers"
        self._servers = servers
        self._relations: dict[TableName, Relation] = {}
        self._tables: list[TargetTable] = []
        self._resting = ExitStack()
        self._ended = ExitStack()  # left after the transaction

    @contextmanager
    def transaction(self) -> Iterator[object]:
        with self._ended, transaction(self._connection), self._resting:
            yield self._connection

    def hold(self, expected: Applied) -> None:
        if "wirekite_log" in self._progress.present_tables():
            found = self._progress.read_applied(lock="update")
            if self._progress.log_id() and found.gsn != expected.gsn:
                raise target_moved(expected, found.gsn)
        # A table that is compared must not be altered before: that would end its snapshots.
        self._resting.enter_context(quiet_triggers(self._alter, self._tables))
        self._resting.enter_context(deferred_foreign_keys(self._alter, self._tables))

    def check(self, table: RepairTable) -> None:
        found = require(read_target_tables(self._connection, [table.target]), table.target)
        shape = TableShape.of(table.definition, table.target, self._servers)
        shape.check(found)
        names = {column.name.lower() for column in table.definition.columns}
        own = [c.name for c in found.columns if c.name.lower() not in names and not c.is_generated]
        if own:
            raise own_columns(table.target, own)
        self._tables.append(found)
        relation_of = engine_with_types(self._servers.source.engine).part(RELATION_OF_PART)
        self._relations[table.target] = relation_of(table.definition)

    def _alter(self, sql: str, table: TableName) -> None:
        """Let a trigger or foreign key of a table rest, or act again."""
        try:
            self._connection.run(sql)
        except PrivilegeMissing as error:
            raise RepairRefused(
                f"triggers and foreign keys of target table {table} would act on what is written, "
                f"and the user may not alter the table: {error.message}",
                hint=f"Run: GRANT ALTER ON {quote(*table)} TO [USER];",
                table=str(table),
            ) from error
        except PenstockError as error:
            raise apply_error(error, table) from error

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
        # The transaction has read the heaps, and their removal by another session waits for it.
        heaps = self._ended.enter_context(closing(Heaps(self, task, spec)))
        heaps.fill(reader)
        return heaps.pour()

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return the checksums that a question of `checksum.bucket_query` asks for."""
        asked = json.loads(query)
        key, row = ([ImageCell(*one) for one in asked[what]] for what in ("key", "row"))
        with name_work(doing):
            found = [
                hash_rows(rows, _cells(key), _cells(row))
                for rows in self._images(asked["parts"], [*key, *row])
            ]
        hashes = np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)
        return list(add_up(hashes, asked["buckets"]))

    def _images(
        self, parts: Sequence[Sequence[str]], cells: Sequence[ImageCell]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the compared columns of the rows of some parts, as this transaction sees them."""
        named = {cell.name.lower(): cell.name for cell in cells}
        for schema, name, where in parts:
            table = TableName(schema, name)
            definition = read_definitions(self._connection, [table])[table]
            columns = [
                SourceColumn.from_column(one)
                for one in definition.columns
                if one.name.lower() in named
            ]
            sql = statements.rows(table, [select_expression(one) for one in columns], where)
            renamed = [one.with_name(named[one.name.lower()]) for one in columns]
            for batch in self._connection.arrow(sql):
                yield image_batch(batch, renamed, list(cells))


def _cells(cells: Sequence[ImageCell]) -> list[Sequence[Any]]:
    """Return cells as `codec.row_images` has them."""
    return [tuple(one)[:5] for one in cells]
