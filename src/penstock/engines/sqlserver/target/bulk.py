"""SQL Server as a target of the bulk load: the port of `ports/bulk.py`.

Tables are created as heaps and get their keys after the rows. Chunks are read in the shape of the
change log, so a copied row and a changed one are converted by the same code. DDL is transactional:
an error leaves nothing half made. Not here: the tables' statements (`shapes.py`), the rows of a
chunk (`chunk.py`), deferred keys (`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import structlog

from penstock.codec.server_pair import ServerPair
from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.target.catalog import TargetTable, read_target_tables
from penstock.engines.sqlserver.target.chunk import ChunkSpec, heap_prefix
from penstock.engines.sqlserver.target.claims import drop_held
from penstock.engines.sqlserver.target.deferred_keys import deferred_keys
from penstock.engines.sqlserver.target.progress import (
    OUR_TABLES,
    SQLServerProgress,
    name_work,
    open_session,
    transaction,
)
from penstock.engines.sqlserver.target.shapes import TableShape
from penstock.host.errors import PrivilegeMissing
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import TablePlan, TargetFires
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.registry import engine_with_types
from penstock.ports.target import (
    TargetSchemaMissing,
    check_still_fits,
    target_name,
)
from penstock.sql.bulk_tables import BulkTables
from penstock.sql.read_plan import RELATION_OF_PART

logger = structlog.get_logger(__name__)

HAS_SCHEMA = "SELECT 1 FROM sys.schemas WHERE name = ?"


class SQLServerBulk(BulkTables[TableShape, TargetTable]):
    """The driver's connection; see `BulkTarget`."""

    NO_SUCH_COLUMN = 1911

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        """Connect. servers: never None, since SQL Server has its types for itself."""
        del application_name  # the driver has its own
        assert servers is not None, "a SQL Server target always has a pair of servers"
        self._namespaces = namespaces
        self._servers = servers
        self._connection: Connection = open_session(url)
        self._progress = SQLServerProgress(self._connection)

    def _shape(self, definition: TableDefinition) -> TableShape:
        name = target_name(definition.name, self._namespaces)
        return TableShape.of(definition, name, self._servers)

    def _read_tables(self, names: Collection[TableName]) -> Mapping[TableName, TargetTable]:
        return read_target_tables(self._connection, names)

    def _name_work(self, doing: str) -> AbstractContextManager[None]:
        return name_work(doing)

    def _fires(self, table: TargetTable) -> TargetFires:
        return _fires(table)

    def _find_deferred(self, shape: TableShape) -> tuple[DeferredKey, ...]:
        return deferred_keys(shape)

    def details_of(self, plan: TablePlan) -> ChunkSpec:
        assert plan.definition is not None, "it is kept until the keys are added"
        relation_of = engine_with_types(self._servers.source.engine).part(RELATION_OF_PART)
        return ChunkSpec(
            relation=relation_of(plan.definition),
            source_engine=self._servers.source.engine,
            choices=self._servers.choices,
        )

    def _is_empty(self, table: TableName) -> bool:
        with name_work("looking at the target tables"):
            return not self._connection.execute(f"SELECT TOP (1) 1 FROM {quote(*table)}")

    # --- tables -----------------------------------------------------------------------------------

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables, all or none; check the others."""
        self._progress.ensure_tables()
        self._progress.ensure_marks()
        shapes = [self._shape(definition) for definition in definitions]
        present = read_target_tables(self._connection, [shape.name for shape in shapes])
        known = self._progress.read_tables()
        for shape in shapes:
            found = present.get(shape.name)
            if found is not None:
                shape.check(found)
                names = [column.name for column in found.columns]
                check_still_fits(known.get(shape.definition.name), shape.definition, names)
        notes: list[str] = []
        missing = [shape for shape in shapes if shape.name not in present]
        with transaction(self._connection):
            for schema in sorted({shape.name.schema for shape in missing}):
                self._ensure_schema(schema)
            for shape in missing:
                self._ddl(shape.create(), f"creating table {shape.name}", shape.name)
                notes += shape.notes
            self._record(shapes, {shape.name for shape in missing})
        for shape in missing:
            notes += self._defaults(shape)
        return notes

    def _ensure_schema(self, schema: str) -> None:
        with name_work(f"looking for schema {schema}"):
            if self._connection.execute(HAS_SCHEMA, schema):
                return
        try:
            self._connection.run(f"CREATE SCHEMA {quote(schema)}")
        except PrivilegeMissing as error:
            raise TargetSchemaMissing(
                f"the target has no schema {schema}, and the user may not create one",
                hint=f"Run: CREATE SCHEMA {quote(schema)} AUTHORIZATION [USER];",
            ) from error

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
        tables = read_target_tables(self._connection, [plan.target for plan in plans])
        with name_work("emptying the target tables"), transaction(self._connection):
            for plan in plans:
                self._progress.begin_mark(plan.source, plan.name, plan.position)
            for plan in plans:
                self._progress.forget_chunks(plan.source)
            for plan in plans:
                self._empty(tables[plan.target])
        for plan in plans:
            self._drop_heaps((*plan.given_up, plan.name))

    def _empty(self, table: TargetTable) -> None:
        if self._is_empty(table.name):
            return
        what = "DELETE FROM" if table.is_referred_to else "TRUNCATE TABLE"
        self._connection.run(f"{what} {table.sql_name}")

    def _drop_heaps(self, plans: Iterable[str]) -> None:
        """Drop the heaps that crashed workers have left."""
        prefixes = tuple(heap_prefix(plan) for plan in plans)
        with name_work("dropping tables of lost workers"):
            for (name,) in self._connection.execute(OUR_TABLES):
                if str(name).startswith(prefixes):
                    drop_held(self._connection, str(name))

    def drop_if_made(self, target: TableName) -> None:
        if target in self._progress.made_tables():
            with name_work(f"dropping {target}"):
                self._connection.run(f"DROP TABLE IF EXISTS {quote(*target)}")

    def _gather_statistics(self, table: TableName) -> None:
        with name_work(f"creating statistics of {table}"):
            self._connection.run(f"UPDATE STATISTICS {quote(*table)}")


def _fires(table: TargetTable) -> TargetFires:
    if table.triggers:
        trigger = table.triggers[0]
        return TargetFires(
            f"target table {table.name} has trigger {trigger}, which would do its work twice",
            hint=f"Run: ALTER TABLE {table.sql_name} DISABLE TRIGGER {quote(trigger)};",
            table=str(table.name),
        )
    key = table.parents[0]
    return TargetFires(
        f"target table {table.name} has foreign key {key.name}, and rows arrive in any order",
        hint=f"Run: ALTER TABLE {table.sql_name} NOCHECK CONSTRAINT {quote(key.name)}; and after "
        f"the load: ALTER TABLE {table.sql_name} WITH CHECK CHECK CONSTRAINT {quote(key.name)};",
        table=str(table.name),
    )
