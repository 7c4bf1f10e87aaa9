"""MySQL and MariaDB as targets of the bulk load: the port of `ports/bulk.py`.

It works like `engines/postgres/target/bulk.py`. A table is created with its primary key, in whose
order rows arrive, and gets its other keys after the rows. Emptying a table commits at once, so it
is done after the new plan's mark: a load that is killed in between finds rows without chunks, and
empties the table again. Not here: the tables' statements (`shapes.py`), the rows of a chunk
(`chunk.py`), deferred keys (`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from penstock.codec.server_pair import ServerPair
from penstock.engines.mysql.connect import Connection, connect, quote, rows, run
from penstock.engines.mysql.target.deferred_keys import deferred_keys, run_unless_there
from penstock.engines.mysql.target.progress import MySQLProgress, transaction
from penstock.engines.mysql.target.shapes import (
    check_shape,
    create_sql,
    default_statements,
    extras_in_mysql,
    foreign_key_statement,
    index_statements,
    key_statements,
)
from penstock.engines.mysql.target.target import TargetTable, read_target_tables
from penstock.host.errors import StatementFailed
from penstock.model import ForeignKey, PenstockError, TableDefinition, TableName, UniqueKey
from penstock.ports.bulk import (
    BulkTarget,
    Found,
    Mark,
    TablePlan,
    TargetFires,
    chunks_missing,
)
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.target import TableRecord, check_still_fits, copied_ids, target_name

logger = structlog.get_logger(__name__)
_NO_SUCH_COLUMN = 1072  # of a key

# Rows arrive in any order; the rows that they refer to may arrive later.
SETTINGS = {"foreign_key_checks": "0", "innodb_lock_wait_timeout": "60"}


class MySQLBulk(BulkTarget):
    """Connection of the driver; see `BulkTarget`."""

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        self._namespaces = namespaces
        assert servers is not None, "a MySQL target always has a pair of servers"
        self._servers = servers
        self._connection: Connection = connect(
            url, application_name=application_name, options=SETTINGS
        )
        self._progress = MySQLProgress(self._connection)

    def _target_name(self, definition: TableDefinition) -> TableName:
        return target_name(definition.name, self._namespaces)

    def read_action(self) -> str:
        return self._progress.read_action()

    def look(self, targets: Collection[TableName]) -> Found:
        present = read_target_tables(self._connection, targets)
        refusals: dict[TableName, PenstockError] = {
            name: _fires(table) for name, table in present.items() if table.triggers
        }
        return Found(
            empty={name: self._is_empty(name) for name in present},
            marks=self.marks(),
            truncates={name: f"truncate table {table.sql_name}" for name, table in present.items()},
            refusals=refusals,
        )

    def _is_empty(self, table: TableName) -> bool:
        found = rows(
            self._connection,
            f"select 1 as here from {quote(*table)} limit 1",
            doing="looking at the target tables",
        )
        return not found

    def is_replica(self) -> bool:
        """Return true: our sessions ignore foreign keys. Triggers, never ignored, are refused."""
        return True

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables. Those created before an error stay, because DDL commits."""
        connection = self._connection
        self._progress.ensure_tables()
        self._progress.ensure_marks()
        present = read_target_tables(connection, [self._target_name(one) for one in definitions])
        known = self._progress.read_tables()
        for definition in definitions:
            found = present.get(self._target_name(definition))
            if found is not None:
                check_shape(definition, found, self._servers)
                names = [column.name for column in found.columns]
                check_still_fits(known.get(definition.name), definition, names)
        notes: list[str] = []
        for definition in definitions:
            name = self._target_name(definition)
            # DDL commits: a table that a killed process leaves must be known to be ours.
            self._record(definition, name, made=name not in present)
            if name not in present:
                database = f"create database if not exists {quote(name.schema)}"
                run(connection, database, doing=f"creating database {name.schema}")
                statement, lacking = create_sql(definition, name, self._servers)
                run(connection, statement, doing=f"creating table {name}")
                notes += lacking
                notes += self._defaults(definition, name)
        return notes

    def _defaults(self, definition: TableDefinition, name: TableName) -> list[str]:
        """Give columns their defaults. A default that fails becomes a note, because rows never need
        it.
        """
        notes = []
        for column, statement in default_statements(definition, name, self._servers).items():
            try:
                run(self._connection, statement, doing="its default")
            except StatementFailed as error:
                notes.append(f"{name}.{column} has no default in the target: {error.message}")
        return notes

    def _record(self, definition: TableDefinition, name: TableName, *, made: bool) -> None:
        known = self._progress.read_tables()
        taken = {record.merge_name: record.target for record in known.values()}
        is_mysql = self._servers.source.engine.is_mysql
        copied = [column for column in definition.columns if not column.generated or is_mysql]
        record = TableRecord(
            source=definition.name,
            target=name,
            merge_name=self._progress.dialect.merge_name(name, taken),
            made=made,
            columns=tuple((column.name, column.type_text) for column in copied),
            ids=copied_ids(copied),
            source_id=definition.source_id,
            collations=tuple(column.collation or "" for column in copied) if is_mysql else (),
            unique=UniqueKey.columns_of(definition.unique_keys),
            key=definition.row_key,
            not_null=tuple(column.name for column in copied if column.not_null),
        )
        self._progress.write_tables([record])

    def marks(self) -> dict[TableName, Mark]:
        return self._progress.read_marks()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return self._progress.read_done()

    def under_way(self) -> Mapping[TableName, int]:
        """Return nothing: these servers do not show uncommitted rows."""
        return {}

    def takes_binary(self, definition: TableDefinition) -> bool:
        del definition
        return False

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
        connection, doing = self._connection, "emptying the target tables"
        with transaction(connection):
            for plan in plans:
                self._progress.begin_mark(plan.source, plan.name, plan.position)
            for plan in plans:
                self._progress.forget_chunks(plan.source)
        for plan in plans:
            if not self._is_empty(plan.target):
                run(connection, f"truncate table {quote(*plan.target)}", doing=doing)

    def finish_table(self, plan: TablePlan) -> int:
        connection = self._connection
        with transaction(connection):
            done = self._progress.finished_chunks(plan.source)
            missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
            count = sum(done.values())
            is_marked = self._progress.finish_mark(plan.source, plan.name, count)
            if missing or not is_marked:
                raise chunks_missing(plan, missing, is_marked=is_marked)
        return count

    def drop_if_made(self, target: TableName) -> None:
        if target in self._progress.made_tables():
            run(self._connection, f"drop table {quote(*target)}", doing=f"dropping {target}")

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Add keys to one table after the other: the server itself uses several threads."""
        made = self._progress.made_tables()
        for definition in sorted(definitions, key=lambda one: -one.size_bytes):
            name = self._target_name(definition)
            if stop():
                return
            if name in made:
                for statement in key_statements(definition, name, self._servers):
                    self._unless_there(statement, f"adding keys of {name}")
                self._add_indexes(definition, name)
            rows(
                self._connection,
                f"analyze no_write_to_binlog table {quote(*name)}",
                doing=f"analyzing {name} with {threads} threads at most",
            )

    def _add_indexes(self, definition: TableDefinition, name: TableName) -> None:
        """Add the indexes that are not keys; warn of an index that the server refuses."""
        for what, statement in index_statements(definition, name, self._servers).items():
            try:
                self._unless_there(statement, f"adding {what} of {name}")
            except StatementFailed as error:
                logger.warning("index not made", table=str(name), reason=error.message)

    def _unless_there(self, statement: str, doing: str) -> None:
        """Create a key, unless it exists or needs a column that the source got after the copy."""
        try:
            run_unless_there(self._connection, statement, doing=doing)
        except StatementFailed as error:
            if error.fields.get("errno") != _NO_SUCH_COLUMN:
                raise
            logger.warning("key not made", doing=doing, reason=error.message)

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        name = self._target_name(definition)
        return (
            deferred_keys(definition, name, self._servers)
            if name in self._progress.made_tables()
            else ()
        )

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Add foreign keys. Rows are not checked again, because they equal the source's."""
        made = self._progress.made_tables()
        parents = {
            target_name(key.target, self._namespaces)
            for definition in definitions
            for key in definition.foreign_keys
        }
        present = read_target_tables(self._connection, parents)
        notes: list[str] = []
        for definition in definitions:
            name = self._target_name(definition)
            if name not in made:
                continue
            extras = extras_in_mysql(definition, self._servers)
            notes += [f"{name}: {one}" for one in extras.lacking if one.startswith("foreign key")]
            for key in extras.foreign_keys:
                parent = target_name(key.target, self._namespaces)
                reason = f"{key.target} is not captured"
                if parent in present:
                    reason = self._add_foreign_key(key, name, parent)
                if reason:
                    notes.append(f"{name} has no foreign key {key.name} in the target: {reason}")
        return notes

    def _add_foreign_key(self, key: ForeignKey, name: TableName, parent: TableName) -> str:
        """Create a foreign key; return why it could not be created, or an empty text."""
        statement = foreign_key_statement(key, name, parent, self._servers)
        try:
            self._unless_there(statement, f"adding foreign key {key.name} of {name}")
        except StatementFailed as error:
            return error.message
        return ""

    def close(self) -> None:
        self._connection.close()


def _fires(table: TargetTable) -> TargetFires:
    return TargetFires(
        f"target table {table.name} has trigger {table.triggers[0]}, which would do its work twice",
        hint=f"Run: drop trigger {quote(table.name.schema, table.triggers[0])};",
        table=str(table.name),
    )
