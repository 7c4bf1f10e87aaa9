"""SQL Server as a target of the bulk load: the port of `ports/bulk.py`.

Tables are created as heaps and get their keys after the rows. Chunks are read in the shape of the
change log, so a copied row and a changed one are converted by the same code. DDL is transactional:
an error leaves nothing half made. Not here: the tables' statements (`shapes.py`), the rows of a
chunk (`chunk.py`), deferred keys (`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

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
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import ForeignKey, PenstockError, TableDefinition, TableName, UniqueKey
from penstock.ports.bulk import BulkTarget, Found, Mark, TablePlan, TargetFires, chunks_missing
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.registry import engine_with_types
from penstock.ports.target import (
    TableRecord,
    TargetDdlFailed,
    TargetSchemaMissing,
    check_still_fits,
    copied_ids,
    target_name,
)
from penstock.sql.read_plan import RELATION_OF_PART

logger = structlog.get_logger(__name__)

HAS_SCHEMA = "SELECT 1 FROM sys.schemas WHERE name = ?"
_NO_SUCH_COLUMN = 1911  # of a key


class SQLServerBulk(BulkTarget):
    """The driver's connection; see `BulkTarget`."""

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

    def reads_log_rows(self) -> bool:
        return True

    def details_of(self, plan: TablePlan) -> ChunkSpec:
        assert plan.definition is not None, "it is kept until the keys are added"
        relation_of = engine_with_types(self._servers.source.engine).part(RELATION_OF_PART)
        return ChunkSpec(
            relation=relation_of(plan.definition),
            source_engine=self._servers.source.engine,
            choices=self._servers.choices,
        )

    def read_action(self) -> str:
        return self._progress.read_action()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return self._progress.read_done()

    def under_way(self) -> Mapping[TableName, int]:
        return self._progress.under_way()

    def look(self, targets: Collection[TableName]) -> Found:
        present = read_target_tables(self._connection, targets)
        refusals: dict[TableName, PenstockError] = {
            name: _fires(table)
            for name, table in present.items()
            if table.triggers or table.parents
        }
        return Found(
            empty={name: self._is_empty(name) for name in present},
            marks=self.marks(),
            truncates={name: f"TRUNCATE TABLE {table.sql_name}" for name, table in present.items()},
            refusals=refusals,
        )

    def _is_empty(self, table: TableName) -> bool:
        with name_work("looking at the target tables"):
            return not self._connection.execute(f"SELECT TOP (1) 1 FROM {quote(*table)}")

    def is_replica(self) -> bool:
        """Return False: sessions of SQL Server have no switch for triggers and foreign keys."""
        return False

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

    def _ddl(self, statement: str, doing: str, table: TableName) -> None:
        try:
            with name_work(doing):
                self._connection.run(statement)
        except StatementFailed as error:
            raise TargetDdlFailed(
                error.message,
                hint="Run `penstock doctor`: it prints the GRANTs that the target needs.",
                table=str(table),
                **error.fields,
            ) from error

    def _defaults(self, shape: TableShape) -> list[str]:
        """Give columns their defaults. Rows never need one, so one that fails is a note."""
        notes = []
        for column, statement in shape.defaults():
            try:
                with name_work("its default"):
                    self._connection.run(statement)
            except StatementFailed as error:
                notes.append(f"{shape.name}.{column} has no default in the target: {error.message}")
        return notes

    def _record(self, shapes: Sequence[TableShape], made: Collection[TableName]) -> None:
        taken = {one.merge_name: one.target for one in self._progress.read_tables().values()}
        records = []
        for shape in shapes:
            merge_name = self._progress.dialect.merge_name(shape.name, taken)
            taken[merge_name] = shape.name
            definition, copied = shape.definition, shape.columns
            records.append(
                TableRecord(
                    source=definition.name,
                    target=shape.name,
                    merge_name=merge_name,
                    made=shape.name in made,
                    columns=tuple((column.name, column.type_text) for column in copied),
                    ids=copied_ids(copied),
                    source_id=definition.source_id,
                    unique=UniqueKey.columns_of(definition.unique_keys),
                    key=definition.row_key,
                    not_null=tuple(column.name for column in copied if column.not_null),
                )
            )
        self._progress.write_tables(records)

    def marks(self) -> dict[TableName, Mark]:
        return self._progress.read_marks()

    def takes_binary(self, definition: TableDefinition) -> bool:
        del definition
        return False

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

    def finish_table(self, plan: TablePlan) -> int:
        with name_work(f"finishing {plan.target}"), transaction(self._connection):
            done = self._progress.finished_chunks(plan.source)
            missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
            count = sum(done.values())
            is_marked = self._progress.finish_mark(plan.source, plan.name, count)
            if missing or not is_marked:
                raise chunks_missing(plan, missing, is_marked=is_marked)
        self._drop_heaps((plan.name,))
        return count

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

    # --- keys -------------------------------------------------------------------------------------

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Add keys to one table after the other: the server itself uses several processors."""
        del threads
        made = self._progress.made_tables()
        for definition in sorted(definitions, key=lambda one: -one.size_bytes):
            shape = self._shape(definition)
            if stop():
                return
            if shape.name in made:
                self._add_keys(shape)
            with name_work(f"creating statistics of {shape.name}"):
                self._connection.run(f"UPDATE STATISTICS {quote(*shape.name)}")

    def _add_keys(self, shape: TableShape) -> None:
        there = read_target_tables(self._connection, [shape.name]).get(shape.name)
        if there is None:
            return
        present = {index.name for index in there.indexes}
        statement = shape.primary_key()
        if statement is not None and there.primary is None:
            self._add_key(statement, "the primary key", shape.name)
        for key in shape.unique_keys():
            if shape.key_name(key) not in present:
                self._add_key(shape.unique_key_sql(key), f"unique key {key.name}", shape.name)
        for name, statement in shape.indexes():
            if name not in present:
                self._add_index(statement, name, shape.name)

    def _add_key(self, statement: str, what: str, table: TableName) -> None:
        """Add a key, unless it needs a column that the source got after the copy."""
        try:
            self._ddl(statement, f"adding {what} of {table}", table)
        except TargetDdlFailed as error:
            if error.fields.get("errno") != _NO_SUCH_COLUMN:
                raise
            logger.warning("key not made", table=str(table), key=what, reason=error.message)

    def _add_index(self, statement: str, name: str, table: TableName) -> None:
        """Add an index that is not a key; warn of one that the server refuses."""
        try:
            self._ddl(statement, f"adding index {name} of {table}", table)
        except TargetDdlFailed as error:
            logger.warning("index not made", table=str(table), reason=error.message)

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        shape = self._shape(definition)
        return deferred_keys(shape) if shape.name in self._progress.made_tables() else ()

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        made = self._progress.made_tables()
        notes: list[str] = []
        for definition in definitions:
            shape = self._shape(definition)
            if shape.name in made:
                notes += [
                    f"{shape.name}: {one}"
                    for one in shape.extras.lacking
                    if one.startswith("foreign key")
                ]
                for key in shape.extras.foreign_keys:
                    notes += self._add_foreign_key(shape, key)
        return notes

    def _add_foreign_key(self, shape: TableShape, key: ForeignKey) -> list[str]:
        """Create a foreign key; return a note if it cannot be created."""
        parent = target_name(key.target, self._namespaces)
        found = read_target_tables(self._connection, [shape.name, parent])
        own = found.get(shape.name)
        if own is not None and shape.foreign_key_name(key) in {one.name for one in own.parents}:
            return []
        reason = f"{key.target} is not captured"
        if parent in found:
            try:
                doing = f"adding foreign key {key.name} of {shape.name}"
                self._ddl(shape.foreign_key_sql(key, parent), doing, shape.name)
            except TargetDdlFailed as error:
                reason = error.message
            else:
                return []
        return [f"{shape.name} has no foreign key {key.name} in the target: {reason}"]

    def close(self) -> None:
        self._connection.close()


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
