"""PostgreSQL as a target that is repaired: the port of `ports/verify.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.codec.server_pair import ServerPair
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    quote,
    server_errors,
)
from penstock.engines.postgres.target.bulk import may_be_replica
from penstock.engines.postgres.target.chunk import PostgresWriter
from penstock.engines.postgres.target.schema import check_shape
from penstock.engines.postgres.target.shaped import postgres_definition
from penstock.engines.postgres.target.target import read_own_rows, read_target_tables
from penstock.model import TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.target import Applied, TargetTableMissing
from penstock.ports.verify import (
    RepairRefused,
    RepairTable,
    RepairTarget,
    own_columns,
    target_moved,
)

PRESENT = "select to_regclass('wirekite.wirekite_log') is not null"
APPLIED = "select applied_gsn from wirekite.wirekite_log for update"
# What would act on our writes: foreign keys of both directions are triggers too. Triggers that
# check deferred unique keys change nothing.
ACTING = """
    select tgname
      from pg_trigger
     where tgrelid = to_regclass(%(name)s)
       and tgenabled::text = any(%(letters)s)
       and tgfoid <> 'pg_catalog.unique_key_recheck'::regproc
     order by tgisinternal, tgname
     limit 1
"""


class PostgresRepair(PostgresWriter, RepairTarget):
    """Connection that repairs rows of a PostgreSQL target."""

    def __init__(self, url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> None:
        """Connect; triggers and foreign keys are kept from acting where the role may do that."""
        super().__init__(url, replica_role=False, settings=EXACT_TEXT_SETTINGS)
        self._servers = servers
        self._namespaces = namespaces
        with server_errors("preparing a session"):
            self.replica = may_be_replica(self._connection)
            commit_durably(self._connection)
            if self.replica:
                self._connection.execute("set session_replication_role = replica")

    @contextmanager
    def transaction(self) -> Iterator[object]:
        with server_errors("repairing the target"), self._connection.transaction() as one:
            yield one

    def hold(self, expected: Applied) -> None:
        [(present,)] = self.fetch(PRESENT, "looking for our tables")
        found = self.fetch(APPLIED, "locking the applied position") if present else []
        if found and found[0][0] != expected.gsn:
            raise target_moved(expected, int(found[0][0]))

    def check(self, table: RepairTable) -> None:
        found = read_target_tables(self._connection, [table.target]).get(table.target)
        if found is None:
            raise TargetTableMissing(
                f"the target has no table {table.target}", hint="Run `penstock doctor`."
            )
        definition, namespaces = table.definition, self._namespaces
        if self._servers is not None:
            definition = postgres_definition(definition, self._servers, namespaces)
        check_shape(definition, found, namespaces)
        names = {column.name for column in definition.columns}
        own = [c.name for c in found.columns if c.name not in names and not c.generated]
        if own:
            raise own_columns(table.target, own)
        self._check_quiet(table.target)

    def _check_quiet(self, table: TableName) -> None:
        parameters = {
            "name": quote(*table),
            "letters": ["A", "R"] if self.replica else ["O", "A"],
        }
        with server_errors("looking at the target table"):
            found = self._connection.execute(ACTING, parameters).fetchone()
        if found is not None:
            raise RepairRefused(
                f"target table {table} has trigger or foreign key {found[0]}, which would act on "
                "what is written",
                hint="On 15 and later, as superuser: grant set on parameter "
                "session_replication_role to ROLE; or disable it meanwhile.",
                table=str(table),
            )

    def delete(self, table: TableName, condition: str) -> int:
        with server_errors(f"deleting rows of {table}"):
            own = read_own_rows(self._connection, table)
            done = self._connection.execute(f"delete from {own} where {condition}")
        return done.rowcount

    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        return self._copy(task, reader)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        with server_errors(doing):
            return self._connection.execute(query).fetchall()
