"""Oracle as a target of the bulk load: the port of `ports/bulk.py`.

Tables are created without keys and get them after the rows. Chunks are read in the shape of the
change log, so a copied row and a changed one are converted by the same code. Each statement of DDL
commits: what is remembered of a table is written before it is created, and a table is emptied
before its new plan is written, so that a load that was killed can be repeated. Not here: the
tables' statements (`shapes.py`), the rows of a chunk (`chunk.py`), deferred keys
(`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import structlog

from penstock.codec.server_pair import ServerPair
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.catalog import (
    TargetTable,
    columns_with_default,
    read_target_tables,
)
from penstock.engines.oracle.target.chunk_rows import ChunkSpec
from penstock.engines.oracle.target.deferred_keys import deferred_keys
from penstock.engines.oracle.target.direct_path import heap_prefix
from penstock.engines.oracle.target.progress import (
    OUR_TABLES,
    OWNER,
    USER_REFUSED,
    drop_text,
    name_work,
    open_session,
    progress_of,
    transaction,
)
from penstock.engines.oracle.target.shapes import TableShape
from penstock.engines.oracle.url import OracleUrl
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted
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

HAS_SCHEMA = "SELECT 1 FROM all_users WHERE username = :name"
CREATE_SCHEMA = "CREATE USER {} NO AUTHENTICATION QUOTA UNLIMITED ON USERS"
_NO_TRUNCATE = frozenset({2266, 54})  # a foreign key refers to it; another session uses it
_GONE = 942


class OracleBulk(BulkTables[TableShape, TargetTable]):
    """The driver's connection; see `BulkTarget`."""

    NO_SUCH_COLUMN = 904

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        """Connect. servers: never None, since Oracle has its types for itself."""
        del application_name
        assert servers is not None, "an Oracle target always has a pair of servers"
        self._namespaces = namespaces
        self._servers = servers
        self._is_direct = OracleUrl.parse(url).is_direct
        self._connection: Connection = open_session(url)
        self._progress = progress_of(self._connection)

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
            is_direct=self._is_direct,
        )

    def _is_empty(self, table: TableName) -> bool:
        with name_work("looking at the target tables"):
            sql = f"SELECT 1 FROM {quote(*table)} WHERE ROWNUM = 1"
            return not self._connection.execute(sql)

    # --- tables -----------------------------------------------------------------------------------

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables; check the others first."""
        self._progress.ensure_tables()
        self._progress.ensure_marks()
        shapes = [self._shape(definition) for definition in definitions]
        present = read_target_tables(self._connection, [shape.name for shape in shapes])
        known = self._progress.read_tables()
        for shape in shapes:
            found = present.get(shape.name)
            if found is not None:
                shape.check(found, columns_with_default(self._connection, shape.name))
                names = [column.name for column in found.columns]
                check_still_fits(known.get(shape.definition.name), shape.definition, names)
        missing = [shape for shape in shapes if shape.name not in present]
        statements = [(shape, shape.create()) for shape in missing]  # refused before any is run
        for schema in sorted({shape.name.schema for shape in missing}):
            self._ensure_schema(schema)
        # A table that is created by a process that is then killed is ours nevertheless.
        with transaction(self._connection):
            self._record(shapes, {shape.name for shape in missing})
        notes: list[str] = []
        for shape, statement in statements:
            self._ddl(statement, f"creating table {shape.name}", shape.name)
            notes += [*shape.notes, *self._defaults(shape)]
        return notes

    def _ensure_schema(self, schema: str) -> None:
        """Create the user that a schema is, which cannot log on."""
        with name_work(f"looking for schema {schema}"):
            if self._connection.execute(HAS_SCHEMA, name=schema):
                return
        statement = CREATE_SCHEMA.format(quote(schema))
        try:
            with name_work(f"creating schema {schema}"):
                self._connection.run(statement)
        except (PrivilegeMissing, StatementFailed) as error:
            if isinstance(error, StatementFailed) and error.fields["errno"] not in USER_REFUSED:
                raise
            raise TargetSchemaMissing(
                f"the target has no schema {schema}, and the user may not create one",
                hint=f"As a DBA, run: {statement}; with a tablespace of yours, and before 18c with "
                "IDENTIFIED BY [PASSWORD] ACCOUNT LOCK in place of NO AUTHENTICATION.",
            ) from error

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        """Empty tables and put them under their plans.

        TRUNCATE commits, so it comes first. Chunks of an earlier plan that end after it wait for
        the plan's row, and are deleted with what they have left.
        """
        plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
        with name_work("emptying the target tables"):
            for plan in plans:
                self._truncate(plan.target)
            with transaction(self._connection):
                for plan in plans:
                    self._progress.begin_mark(plan.source, plan.name, plan.position)
                for plan in plans:
                    self._progress.forget_chunks(plan.source)
                for plan in plans:
                    self._connection.run(f"DELETE FROM {quote(*plan.target)}")
        for plan in plans:
            self._drop_heaps((*plan.given_up, plan.name))

    def _truncate(self, table: TableName) -> None:
        """Empty a table fast if the server allows it; its rows are deleted later otherwise."""
        if self._is_empty(table):
            return
        try:
            self._connection.run(f"TRUNCATE TABLE {quote(*table)}")
        except (StatementFailed, StatementInterrupted, PrivilegeMissing) as error:
            is_known = error.fields.get("errno") in _NO_TRUNCATE
            if not is_known and not isinstance(error, PrivilegeMissing):
                raise
            logger.info("table emptied by DELETE", table=str(table), reason=error.message)

    def _drop_heaps(self, plans: Iterable[str]) -> None:
        """Drop the heaps that lost workers have left; one that is being filled stays."""
        prefixes = tuple(map(heap_prefix, plans))
        with name_work("dropping tables of lost workers"):
            for (name,) in self._connection.execute(OUR_TABLES):
                if str(name).startswith(prefixes):
                    self._drop_heap(str(name))

    def _drop_heap(self, name: str) -> None:
        try:
            self._connection.run(drop_text(OWNER, name))
        except StatementInterrupted as error:
            logger.warning("table of a lost worker stays", table=name, reason=error.message)
        except StatementFailed as error:
            if error.fields.get("errno") != _GONE:
                raise

    def drop_if_made(self, target: TableName) -> None:
        if target not in self._progress.made_tables():
            return
        try:
            with name_work(f"dropping {target}"):
                self._connection.run(drop_text(*target))
        except StatementFailed as error:
            if error.fields.get("errno") != _GONE:
                raise


def _fires(table: TargetTable) -> TargetFires:
    if table.triggers:
        owner, trigger = table.triggers[0]
        return TargetFires(
            f"target table {table.name} has trigger {trigger}, which would do its work twice",
            hint=f"Run: ALTER TRIGGER {quote(owner, trigger)} DISABLE;",
            table=str(table.name),
        )
    key = table.parents[0]
    alter, name = f"ALTER TABLE {table.sql_name}", quote(key.name)
    return TargetFires(
        f"target table {table.name} has foreign key {key.name}, and rows arrive in any order",
        hint=f"Run: {alter} DISABLE CONSTRAINT {name}; and after the load: {alter} ENABLE "
        f"CONSTRAINT {name};",
        table=str(table.name),
    )
