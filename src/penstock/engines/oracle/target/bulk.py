"""Oracle as a target of the bulk load: the port of `ports/bulk.py`.

Tables are created without keys and get them after the rows. Chunks are read in the shape of the
change log, so a copied row and a changed one are converted by the same code. Each statement of DDL
commits: what is remembered of a table is written before it is created, and a table is emptied
before its new plan is written, so that a load that was killed can be repeated. Not here: the
tables' statements (`shapes.py`), the rows of a chunk (`chunk.py`), deferred keys
(`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from penstock.codec.server_pair import ServerPair
from penstock.engines.oracle.connect import quote
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

HAS_SCHEMA = "SELECT 1 FROM all_users WHERE username = :name"
CREATE_SCHEMA = "CREATE USER {} NO AUTHENTICATION QUOTA UNLIMITED ON USERS"
_NO_SUCH_COLUMN = 904  # of a key
_NO_TRUNCATE = frozenset({2266, 54})  # a foreign key refers to it; another session uses it
_GONE = 942


class OracleBulk(BulkTarget):
    """The driver's connection; see `BulkTarget`."""

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
        self._connection = open_session(url)
        self._progress = progress_of(self._connection)

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
            is_direct=self._is_direct,
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
            sql = f"SELECT 1 FROM {quote(*table)} WHERE ROWNUM = 1"
            return not self._connection.execute(sql)

    def is_replica(self) -> bool:
        """Return False: sessions of Oracle have no switch for triggers and foreign keys."""
        return False

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

    # --- keys -------------------------------------------------------------------------------------

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Add keys to one table after the other; the server gathers statistics itself."""
        del threads
        made = self._progress.made_tables()
        for definition in sorted(definitions, key=lambda one: -one.size_bytes):
            shape = self._shape(definition)
            if stop():
                return
            if shape.name in made:
                self._add_keys(shape)

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
