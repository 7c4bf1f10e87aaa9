"""PostgreSQL as a target of the bulk load: the port of `ports/bulk.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.codec.server_pair import ServerPair
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.target import bulk_keys, bulk_marks
from penstock.engines.postgres.target.bulk_checks import check_quiet, goes_binary, may_be_replica
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.schema import create_tables, deferred_keys
from penstock.engines.postgres.target.shaped import postgres_definition, referable
from penstock.engines.postgres.target.target import read_target_tables
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import BulkTarget, DeferredKey, Found, Mark, TablePlan, TargetFires
from penstock.ports.target import TargetDdlFailed, target_name
from penstock.sql.schema_translation import tables_by_name


class PostgresBulk(BulkTarget):
    """The driver's connection; see `BulkTarget`."""

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        self._url = url
        self._namespaces = namespaces
        self._servers = servers
        self._connection = connect(
            url, application_name=application_name, options=EXACT_TEXT_SETTINGS
        )
        self._progress = PostgresProgress(self._connection)
        with server_errors("preparing a session"):
            commit_durably(self._connection)

    def _as_postgres(self, definitions: Sequence[TableDefinition]) -> list[TableDefinition]:
        """Return the tables in PostgreSQL's form."""
        servers = self._servers
        if servers is None:
            return list(definitions)
        return [postgres_definition(one, servers, self._namespaces) for one in definitions]

    def read_action(self) -> str:
        return self._progress.read_action()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return self._progress.read_done()

    def under_way(self) -> Mapping[TableName, int]:
        return self._progress.under_way()

    def look(self, targets: Collection[TableName]) -> Found:
        connection = self._connection
        with server_errors("looking at the target tables"):
            present = read_target_tables(connection, targets)
            empty = {table: bulk_marks.is_empty(connection, table) for table in present}
            is_replica = may_be_replica(connection)
        refusals: dict[TableName, PenstockError] = {}
        for name, table in present.items():
            try:
                if not is_replica:
                    check_quiet(table)
            except TargetFires as error:
                refusals[name] = error
        truncates = {name: f"truncate {table.own_rows}" for name, table in present.items()}
        return Found(empty=empty, marks=self.marks(), truncates=truncates, refusals=refusals)

    def is_replica(self) -> bool:
        with server_errors("reading the session's privileges at the target"):
            return may_be_replica(self._connection)

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables. Raises the errors of `create_tables`."""
        shaped = self._as_postgres(definitions)
        notes = create_tables(self._connection, shaped, self._namespaces).notes
        self._progress.ensure_marks()
        return notes

    def marks(self) -> dict[TableName, Mark]:
        return self._progress.read_marks()

    def takes_binary(self, definition: TableDefinition) -> bool:
        return self._servers is None and goes_binary(definition)

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        with server_errors("emptying the target tables"):
            bulk_marks.begin_afresh(self._connection, plans)

    def finish_table(self, plan: TablePlan) -> int:
        with server_errors(f"finishing {plan.target}"):
            return bulk_marks.finish_table(self._connection, plan)

    def drop_if_made(self, target: TableName) -> None:
        with server_errors(f"dropping {target}"):
            if target in self._progress.made_tables():
                self._connection.execute(f"drop table {quote(*target)}")

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        shaped = self._as_postgres(definitions)
        bulk_keys.add_all_keys(self._url, shaped, self._namespaces, threads=threads, stop=stop)

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        if target_name(definition.name, self._namespaces) not in self._progress.made_tables():
            return ()
        (shaped,) = self._as_postgres([definition])
        return deferred_keys(shaped, self._namespaces)

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        if self._servers is None:
            return bulk_keys.make_foreign_keys(self._connection, definitions, self._namespaces)
        notes: list[str] = []
        known = tables_by_name(definitions)
        for definition in self._as_postgres(definitions):
            for key in definition.foreign_keys:
                notes += self._foreign_key(replace(definition, foreign_keys=(key,)), known)
        return notes

    def _foreign_key(
        self, definition: TableDefinition, known: Mapping[TableName, TableDefinition]
    ) -> list[str]:
        """One of another engine, whose rules are laxer: one that cannot be made is a note."""
        (key,) = definition.foreign_keys
        reason = referable(key, known)
        if not reason:
            try:
                made = bulk_keys.make_foreign_keys
                return made(self._connection, [definition], self._namespaces)
            except TargetDdlFailed as error:
                reason = error.message
        return [f"{definition.name} has no foreign key {key.name} in the target: {reason}"]

    def close(self) -> None:
        self._connection.close()
