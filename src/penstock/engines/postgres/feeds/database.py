"""The staging database: made, opened, and examined for doctor.

Not here: mutation tables, which are made when a session first meets them (`prepare.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import structlog
from psycopg import conninfo, errors

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
    statement,
    with_database,
)
from penstock.engines.postgres.feeds.memo import begin_versions, version_warnings
from penstock.engines.postgres.feeds.prepare import LOCK, storage_of_generated
from penstock.engines.postgres.feeds.session import PostgresStagingSession
from penstock.engines.postgres.feeds.tables import DIALECT
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectFailed, DatabaseUnknown
from penstock.model import PenstockError
from penstock.ports.checks import Finding, Severity, Side, unreachable
from penstock.ports.feeds import StagingDatabase, StagingMissing, StagingUnusable
from penstock.sql.staging_tables import StagingDialect

logger = structlog.get_logger(__name__)

_APPLICATION = "penstock stage"
_CREATE_ATTEMPTS_MAX = 10
_CREATE_PAUSE_S = 0.2
_TABLES: Final = """
    select table_name from information_schema.tables where table_schema = 'public'
"""
_OLD = "resolved_timestamps"
_DEPRECATED = "resolved_timestamps_is_deprecated"
_IS_MIGRATED: Final = """
    select 1 from information_schema.table_constraints
     where table_schema = 'public' and table_name = %s and constraint_name = %s
"""
# No version of Replicator that knows this table only may write it any more.
_DEPRECATE: Final = f"""
    alter table public.{_OLD}
      add constraint {_DEPRECATED} check ('this_table_is_deprecated' = '') not valid
"""
_MIGRATE: Final = f"""
    insert into public.checkpoints
           (group_name, partition, source_hlc, first_seen, target_applied_at)
    select target_schema, target_schema,
           source_nanos::decimal + (source_logical::decimal / 10000000000)::decimal(10, 10),
           first_seen, target_applied_at
      from public.{_OLD}
        on conflict do nothing
"""
_HAS_HOSTNAME: Final = """
    select 1 from information_schema.columns
     where table_schema = 'public' and table_name = 'leases' and column_name = 'hostname'
"""
_ADD_HOSTNAME: Final = """
    alter table public.leases add column if not exists hostname text not null default ''
"""


class PostgresStaging(StagingDatabase):
    """Staging tables in PostgreSQL. url: of the database; dialect: of another server of this
    protocol.
    """

    def __init__(
        self, url: str, *, dialect: StagingDialect = DIALECT, clock: Clock = REAL_CLOCK
    ) -> None:
        self._url = url
        self._dialect = dialect
        self._clock = clock
        self._warned = False

    # -- making ------------------------------------------------------------------------------

    def create(self, *, database: bool = True) -> None:
        try:
            connection = self._connect()
        except DatabaseUnknown as error:
            if not database:
                raise self._missing(error) from error
            self._create_database()
            connection = self._connect()
        with connection, server_errors("making the staging tables"):
            self._check_server(connection)
            self._create_tables(connection)
            self._migrate(connection)
            self._warn(connection)

    def _create_database(self) -> None:
        name = quote(self._database)
        with self._maintenance() as connection, server_errors(f"creating database {name}"):
            self._check_server(connection)
            for attempt in range(_CREATE_ATTEMPTS_MAX):
                try:
                    connection.execute(statement(f"create database {name}"))
                    return
                except (errors.DuplicateDatabase, errors.UniqueViolation):
                    return  # another instance was quicker
                except errors.ObjectInUse:  # it is copying the template just now
                    if attempt == _CREATE_ATTEMPTS_MAX - 1:
                        raise
                    time.sleep(_CREATE_PAUSE_S)

    def _create_tables(self, connection: psycopg.Connection[Any]) -> None:
        """Create missing tables. Existing ones are not locked, however many instances start."""
        with connection.transaction():
            connection.execute(LOCK)
            missing = self._dialect.tables.keys() - _tables(connection)
            for name in (one for one in self._dialect.tables if one in missing):
                ddl = self._dialect.tables[name]
                connection.execute(
                    statement(
                        ddl.replace("{kept}", storage_of_generated(connection.info.server_version))
                    )
                )
            if connection.execute(_HAS_HOSTNAME).fetchone() is None:
                connection.execute(_ADD_HOSTNAME)
            begin_versions(connection)

    def _migrate(self, connection: psycopg.Connection[Any]) -> None:
        """Take the checkpoints of older releases over, once."""
        with connection.transaction():
            connection.execute(LOCK)
            if _OLD not in _tables(connection):
                return
            if connection.execute(_IS_MIGRATED, (_OLD, _DEPRECATED)).fetchone() is not None:
                return
            connection.execute(_DEPRECATE)
            count = connection.execute(_MIGRATE).rowcount
        logger.info("checkpoints taken over", table=_OLD, count=count)

    # -- opening -----------------------------------------------------------------------------

    @contextmanager
    def open_session(self) -> Iterator[PostgresStagingSession]:
        try:
            connection = self._connect()
        except DatabaseUnknown as error:
            raise self._missing(error) from error
        with _closing(connection):
            with server_errors("opening the staging database"):
                self._check_server(connection)
                missing = sorted(self._dialect.tables.keys() - _tables(connection))
                if missing:
                    raise StagingMissing(
                        f"the staging database lacks the table {missing[0]}", hint=_CREATE_HINT
                    )
                commit_durably(connection)
                self._warn(connection)
            yield PostgresStagingSession(connection, self._dialect, self._clock)

    def _missing(self, error: DatabaseUnknown) -> StagingMissing:
        return StagingMissing(
            f"there is no staging database: {error.message}",
            hint=f"Create it: create database {quote(self._database)}; or run: "
            "penstock stage FILE --create",
        )

    def _warn(self, connection: psycopg.Connection[Any]) -> None:
        """Warn once if memo has another version of the schema."""
        if not self._warned:
            self._warned = True
            for warning in version_warnings(connection):
                logger.warning("staging schema is older", reason=warning)

    # -- examining ---------------------------------------------------------------------------

    def examine(self) -> list[Finding]:
        advice = [
            _finding("ST21", Severity.INFO, "the staging database is a queue", why, command=command)
            for command, why in self._operator_statements().items()
        ]
        try:
            connection = self._connect()
        except DatabaseUnknown as error:
            return [
                _finding(
                    "ST21",
                    Severity.ERROR,
                    error.message,
                    "changefeeds are staged in it",
                    f"create database {quote(self._database)};",
                ),
                *advice,
            ]
        except ConnectFailed as error:
            return [unreachable(error, Side.TARGET)]
        with _closing(connection):
            try:
                with server_errors("looking at the staging database"):
                    found = list(self._examine(connection))
            except PenstockError as error:
                why = "nothing can be staged"
                found = [_finding(error.code, Severity.ERROR, error.message, why, error.hint)]
        return [*found, *advice]

    def _examine(self, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
        self._check_server(connection)
        missing = sorted(self._dialect.tables.keys() - _tables(connection))
        if missing:
            yield _finding(
                "ST21",
                Severity.WARNING,
                f"the staging database lacks {', '.join(missing)}",
                "`penstock stage` creates them when it starts",
                "penstock stage FILE",
            )
            return
        for warning in version_warnings(connection):
            yield _finding(
                "ST20",
                Severity.WARNING,
                warning,
                "a release with other tables wrote here",
                "",
            )

    def _operator_statements(self) -> dict[str, str]:
        name = quote(self._database)
        statements = self._dialect.operator_statements
        return {text.format(database=name): why for text, why in statements.items()}

    # -- connections -------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._url, application_name=_APPLICATION, options=EXACT_TEXT_SETTINGS)

    @contextmanager
    def _maintenance(self) -> Iterator[psycopg.Connection[Any]]:
        """Provide a connection to a database that every server has."""
        url = with_database(self._url, "postgres")
        connection = connect(url, application_name=_APPLICATION, options=EXACT_TEXT_SETTINGS)
        with _closing(connection):
            yield connection

    @property
    def _database(self) -> str:
        found = conninfo.conninfo_to_dict(self._url).get("dbname")
        return str(found or "_replicator")

    def _check_server(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a server of another kind: its tables would be written differently."""
        (said,) = connection.execute("select version()").fetchone() or ("",)
        if not str(said).startswith(self._dialect.server):
            raise StagingUnusable(
                f"the staging database's URL is one of {self._dialect.shown}, and the server says "
                f"{str(said).split(',')[0]}",
                hint="Write its URL with postgresql:// for PostgreSQL, cockroachdb:// for "
                "CockroachDB.",
            )


_CREATE_HINT = "Run: penstock stage FILE"


@contextmanager
def _closing(connection: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        connection.close()


def _tables(connection: psycopg.Connection[Any]) -> set[str]:
    return {str(name) for (name,) in connection.execute(_TABLES)}


def _finding(code: str, severity: Severity, what: str, why: str, command: str) -> Finding:
    return Finding(
        code=code, severity=severity, side=Side.TARGET, what=what, why=why, command=command
    )
