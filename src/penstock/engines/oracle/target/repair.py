"""Oracle as a target that is repaired: the port of `ports/verify.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.oracle.read_columns import select_expression
from penstock.codec.oracle.row_images import image_batch
from penstock.codec.row_images import add_up, hash_rows
from penstock.codec.server_pair import ServerPair
from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.engines.oracle.reading.chosen_rows import row_conditions
from penstock.engines.oracle.target.catalog import (
    TargetTable,
    columns_with_default,
    read_target_tables,
    require,
)
from penstock.engines.oracle.target.chunk import OracleWriter, insert_rows
from penstock.engines.oracle.target.chunk_rows import ChunkSpec
from penstock.engines.oracle.target.progress import name_work, transaction
from penstock.engines.oracle.target.shapes import TableShape
from penstock.engines.oracle.verify import batch_rows, columns_of
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


class OracleRepair(OracleWriter, RepairTarget):
    """Connection that repairs rows of an Oracle target."""

    replica = False

    def __init__(self, url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> None:
        """Connect. Tables with triggers, or with foreign keys to them, are refused."""
        super().__init__(url)
        del namespaces
        assert servers is not None, "an Oracle target always has a pair of servers"
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
        shape.check(found, columns_with_default(self._connection, table.target))
        names = {column.name for column in table.definition.columns}
        own = [c.name for c in found.columns if c.name not in names and not c.is_generated]
        if own:
            raise own_columns(table.target, own)
        _check_quiet(found)
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
        return insert_rows(self._connection, task, spec, reader)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return the checksums that a question of `checksum.bucket_query` asks for."""
        asked = json.loads(query)
        key, row = _cells(asked["key"]), _cells(asked["row"])
        with name_work(doing):
            found = [hash_rows(rows, key, row) for rows in self._images(asked)]
        hashes = np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)
        return list(add_up(hashes, asked["buckets"]))

    def _images(self, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the compared columns of the rows of some parts, as this transaction sees them."""
        for schema, name, where in asked["parts"]:
            table = TableName(schema, name)
            columns, cells = columns_of(read_definitions(self._connection, [table])[table], asked)
            condition = f" WHERE {where}" if where else ""
            listed = ", ".join(map(select_expression, columns))
            sql = f"SELECT {listed} FROM {quote(*table)}{condition}"
            for batch in self._connection.arrow(sql, rows=batch_rows(columns)):
                yield image_batch(batch, columns, cells)


def _cells(cells: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return cells as `codec.row_images` has them."""
    return [one[:5] for one in cells]


def _check_quiet(table: TargetTable) -> None:
    """Refuse a table whose triggers or referring rows would see rows deleted for a moment.

    They are not disabled here: DDL would commit.
    """
    if table.triggers:
        owner, name = table.triggers[0]
        what = f"trigger {name}, which would act on what is written"
        hint = f"Disable it meanwhile: ALTER TRIGGER {quote(owner, name)} DISABLE;"
    elif table.children:
        key = table.children[0]
        what = f"foreign key {key.name} to it, and rows are deleted before they are written"
        alter, name = f"ALTER TABLE {quote(*key.child)}", quote(key.name)
        hint = (
            f"Disable it meanwhile: {alter} DISABLE CONSTRAINT {name}; and afterwards: {alter} "
            f"ENABLE CONSTRAINT {name};"
        )
    else:
        return
    raise RepairRefused(f"target table {table.name} has {what}", hint=hint, table=str(table.name))
