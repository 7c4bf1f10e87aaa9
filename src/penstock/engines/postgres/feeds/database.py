"""The staging database: made, opened, and examined for doctor; and a session of it.

A session has the port's methods over one connection. Each is a transaction, and errors of the
server are typed. Not here: the statements, which are in the modules beside this one by what they
are about; mutation tables, which are made when a session first meets them (`tables.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pyarrow as pa
import structlog
from psycopg import conninfo, errors

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
    statement,
    statement_error,
    with_database,
)
from penstock.engines.postgres.feeds import (
    checkpoints,
    leases,
    looking,
    memo,
    mutations,
)
from penstock.engines.postgres.feeds.checkpoints import Checkpoints
from penstock.engines.postgres.feeds.memo import begin_versions, version_warnings
from penstock.engines.postgres.feeds.mutations import Rows, rows_of
from penstock.engines.postgres.feeds.tables import (
    DIALECT,
    LOCK,
    SCHEMA,
    mutation_tables,
    prepare,
    staged_groups,
    staged_tables,
    storage_of_generated,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectFailed, DatabaseUnknown
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.checks import Finding, Severity, Side, unreachable
from penstock.ports.feeds import (
    FeedState,
    Group,
    GroupState,
    Keys,
    KeyTooLong,
    Lease,
    MutationTableGone,
    RowState,
    Slice,
    Staged,
    StagedTable,
    StagingDatabase,
    StagingDialect,
    StagingMissing,
    StagingSession,
    StagingUnusable,
    Window,
    group_name,
)

logger = structlog.get_logger(__name__)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresStagingSession(StagingSession):
    """Session that remembers which tables are prepared, and how far each is retired."""

    def __init__(
        self, connection: psycopg.Connection[Any], dialect: StagingDialect, clock: Clock
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._clock = clock
        self._names: dict[StagedTable, str] = {}
        self._retired: dict[StagedTable, Hlc] = {}
        self._stager = mutations.Stager(dialect)
        self._checkpoints = Checkpoints()

    # -- mutations ---------------------------------------------------------------------------

    def prepare(self, tables: Collection[StagedTable]) -> None:
        for table in sorted(tables):
            if table not in self._names:
                with self._doing(f"making the mutation table of {table}"):
                    name = prepare(self._connection, self._dialect, table)
                self._names[table] = quote(SCHEMA, name)

    def staged_tables(self, group: Group) -> tuple[StagedTable, ...]:
        with self._doing("reading the names of mutation tables"):
            return staged_tables(self._connection, group)

    def stage(
        self, batches: Mapping[StagedTable, pa.RecordBatch], *, partition: str = ""
    ) -> dict[StagedTable, Staged]:
        rows = {table: rows_of(table, batch) for table, batch in batches.items()}
        places = self._places(batches)
        with self._doing("staging mutations"):
            added = self._stager.stage(
                self._connection,
                {places[table]: some for table, some in rows.items()},
                lambda: self._check_unresolved(rows, partition),
            )
        return {
            table: Staged(
                added=added[places[table]], duplicates=batch.num_rows - added[places[table]]
            )
            for table, batch in batches.items()
        }

    def stage_if_exists(
        self, table: StagedTable, batch: pa.RecordBatch, *, partition: str = ""
    ) -> pa.RecordBatch:
        rows = rows_of(table, batch)
        place = self._place(table)
        with self._doing(f"staging mutations of {table}"), self._connection.transaction():
            self._check_unresolved({table: rows}, partition)
            return mutations.stage_if_exists(self._connection, place, rows, batch)

    def _check_unresolved(self, rows: Mapping[StagedTable, Rows], partition: str) -> None:
        """Raise CheckpointMoved for what a feed has resolved; see `StagingSession.stage`."""
        times = [Hlc(int(one.nanos[0]), int(one.logical[0])) for one in rows.values() if len(one)]
        if partition and times:
            group = group_name(next(iter(rows)).group)
            self._checkpoints.check_unresolved(self._connection, group, partition, min(times))

    def states_of(self, table: StagedTable, batch: pa.RecordBatch) -> list[RowState]:
        place = self._place(table)
        with self._doing(f"looking up mutations of {table}"):
            return mutations.states_of(self._connection, place, batch)

    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = self._place(table)
        with self._doing(f"looking up mutations of {table}"):
            return mutations.unapplied_of(self._connection, place, batch)

    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        rows = rows_of(table, batch)
        place = self._place(table)
        with self._doing(f"marking mutations of {table} applied"):
            mutations.mark_applied(self._connection, place, rows, keep=keep)

    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> dict[StagedTable, int]:
        places = self._places(tables)
        with self._doing("marking mutations applied"):
            marked = mutations.mark_applied_through(self._connection, places.values(), after, time)
        return {table: marked[place] for table, place in places.items()}

    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        places = self._places(tables)
        pages = mutations.read(
            self._connection, places, after, through, limit=limit, with_applied=with_applied
        )
        while True:
            with self._doing("reading staged mutations"):
                found = next(pages, None)
            if found is None:
                return
            yield found

    def retire(self, table: StagedTable, before: Hlc) -> int:
        place = self._place(table)
        low = self._retired.get(table, ZERO)
        if low >= before:
            return 0
        if self.retired_before(table) < before:
            self.put_memo(_retired_key(table), str(before).encode())
        with self._doing(f"retiring mutations of {table}"):
            count, self._retired[table] = mutations.retire(
                self._connection, self._dialect, place, low, before
            )
        return count

    def retired_before(self, table: StagedTable) -> Hlc:
        found = self.get_memo(_retired_key(table))
        return Hlc.parse(found.decode()) if found else ZERO

    def stale_count(self, table: StagedTable, before: Hlc) -> int | None:
        place = self._place(table)
        with self._doing(f"counting stale mutations of {table}"):
            return mutations.stale_count(self._connection, place, before)

    def inconsistent_count(
        self, table: StagedTable, *, after: Hlc = ZERO, limit: int | None = None
    ) -> int:
        place = self._place(table)
        with self._doing(f"checking the order of mutations of {table}"):
            return mutations.inconsistent_count(self._connection, place, after, limit)

    def _place(self, table: StagedTable) -> str:
        return self._places([table])[table]

    def _places(self, tables: Collection[StagedTable]) -> dict[StagedTable, str]:
        """Return the mutation tables' names in SQL, after creating those that are not known."""
        self.prepare(tables)
        return {table: self._names[table] for table in tables}

    # -- looking -----------------------------------------------------------------------------

    def staged_groups(self) -> tuple[Group, ...]:
        with self._doing("reading the names of mutation tables"):
            return staged_groups(self._connection)

    def look(self, group: Group, lease: str) -> GroupState:
        connection, name = self._connection, group_name(group)
        with self._doing(f"looking at {name}"):
            window = self._checkpoints.window(connection, name)
            return GroupState(
                window=window,
                holder=looking.holder(connection, lease),
                applied_at=looking.applied_at(connection, name, window.committed),
                now=looking.now(connection),
                tables={
                    table: looking.staged_rows(connection, self._dialect, place, window.committed)
                    for table, place in mutation_tables(connection, group).items()
                },
            )

    # -- checkpoints -------------------------------------------------------------------------

    def group_names(self) -> tuple[str, ...]:
        with self._doing("reading the groups"):
            return checkpoints.group_names(self._connection)

    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        with self._doing("writing a checkpoint"):
            self._checkpoints.advance(self._connection, group_name(group), partition, time)

    def feed_state(self, group: Group, partition: str) -> FeedState:
        with self._doing("reading checkpoints"):
            return self._checkpoints.feed_state(self._connection, group_name(group), partition)

    def window(self, group: Group) -> Window:
        with self._doing("reading checkpoints"):
            return self._checkpoints.window(self._connection, group_name(group))

    def commit(self, group: Group, through: Hlc) -> None:
        with self._doing("marking checkpoints applied"):
            self._checkpoints.commit(self._connection, group_name(group), through)

    def forget_checkpoints(self, group: Group, before: Hlc) -> int:
        with self._doing("deleting checkpoints"):
            return self._checkpoints.forget(self._connection, group_name(group), before)

    def rewind(self, group: Group, time: Hlc) -> None:
        places = self._places(self.staged_tables(group))
        with self._doing("going back to a checkpoint"), self._connection.transaction():
            self._checkpoints.rewind(self._connection, group_name(group), time)
            for place in sorted(places.values()):
                mutations.unmark(self._connection, place, time)

    def forget(self, group: Group) -> None:
        places = self._places(self.staged_tables(group))
        with self._doing("forgetting what is staged"), self._connection.transaction():
            self._checkpoints.forget_all(self._connection, group_name(group))
            for place in sorted(places.values()):
                mutations.empty(self._connection, place)

    # -- leases ------------------------------------------------------------------------------

    def acquire(self, names: Sequence[str], lifetime_s: float, hostname: str) -> Lease | datetime:
        with self._doing("acquiring leases"):
            return leases.acquire(self._connection, names, self._now(), lifetime_s, hostname)

    def renew(self, lease: Lease, lifetime_s: float) -> Lease | None:
        with self._doing("renewing leases"):
            return leases.renew(self._connection, lease, self._now(), lifetime_s)

    def release(self, lease: Lease) -> None:
        with self._doing("releasing leases"):
            leases.release(self._connection, lease)

    def _now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._clock.now_us())

    # -- memo and tokens -----------------------------------------------------------------------

    def get_memo(self, key: str) -> bytes | None:
        with self._doing("reading memo"):
            return memo.get(self._connection, key)

    def put_memo(self, key: str, value: bytes) -> None:
        with self._doing("writing memo"):
            memo.put(self._connection, key, value)

    def read_keys(self) -> Keys:
        with self._doing("reading keys of tokens"):
            return memo.read_keys(self._connection)

    @contextmanager
    def _doing(self, doing: str) -> Iterator[None]:
        """Make the driver's errors typed ones."""
        try:
            yield
        except errors.UndefinedTable as error:
            self._names.clear()  # the next call makes it again
            raise MutationTableGone(
                f"{doing}: {error.diag.message_primary}",
                hint="Do nothing: it is recreated automatically. Unapplied rows are lost.",
            ) from error
        except errors.ProgramLimitExceeded as error:
            raise KeyTooLong(
                f"{doing}: a key is too long: {error.diag.message_primary}",
                hint="PostgreSQL indexes keys of up to about 2,700 bytes of JSON. Leave the table "
                "out of the changefeed, or stage in CockroachDB.",
            ) from error
        except psycopg.Error as error:
            raise statement_error(doing, error) from error


def _retired_key(table: StagedTable) -> str:
    """Return the key in memo for the time up to which a table's applied rows were deleted."""
    return f"retired_{table}"


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
