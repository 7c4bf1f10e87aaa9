"""Requests about single tables while the stream continues: capture, and rows to be sent again.

The requests are in a state file (`model.table_requests`); each request is tried once and answered
in another. A table is added to the publication first; then the thread that decodes adds it between
two transactions, and only then the request is answered. So a process that copies its rows at a
later point finds every change after that point in the log. A table that cannot be captured is
answered with the reason, and the others are not affected. Not here: the rows it has already
(`control.run.table_copy`).

Two things are waited for, neither by the stream. The table joins the publication under a lock that
keeps its writers off for that moment, because servers before 15.13, 16.9 and 17.5 would never send
its changes if one of them was active. And the answer waits for every transaction that was open when
the table was taken in: the log may lack what those had done before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psycopg
import structlog

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.assemble import Assembler
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.ddl_watch import Reload
from penstock.engines.postgres.source.relations import RelationResolver
from penstock.engines.postgres.source.slot import PUBLISHED, list_published
from penstock.engines.postgres.source.stream import PostgresSource
from penstock.engines.postgres.source.table_actions import TableActions
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import PrivilegeMissing, StatementInterrupted
from penstock.host.request_files import RequestFiles, ResendRefused
from penstock.host.state_file import StateFiles
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import Capture, TableRequest
from penstock.sql.decoding import Visit

logger = structlog.get_logger()
faults.declare("extract.capture.before", "extract.capture.bound", "extract.capture.after")

LOOK_INTERVAL_S = 0.5
LOCK_TIMEOUT_MS = 200  # writers of the table wait for as long, and the extractor
LOCKED_INTERVAL_S = 3.0

NAMED = """
    select 1
      from pg_publication_rel as r
      join pg_publication as p on p.oid = r.prpubid
      join pg_class as c on c.oid = r.prrelid
      join pg_namespace as n on n.oid = c.relnamespace
     where p.pubname = %(publication)s
       and n.nspname = %(schema)s
       and c.relname = %(name)s
"""

PARTITIONED = "select relkind = 'p' from pg_class where oid = to_regclass(%s)"

HORIZON = "select pg_snapshot_xmax(pg_current_snapshot())::text::numeric"
OLDEST = "select pg_snapshot_xmin(pg_current_snapshot())::text::numeric"


class TableNotPublishable(PenstockError):
    """A table cannot be put into the publication by us."""

    code = "PG67"
    retry = "operator"


@dataclass(slots=True, kw_only=True)
class _Work:
    """Request that is being carried out. definition: definition of a table to capture."""

    request: TableRequest
    visit: Visit[Assembler]
    definition: TableDefinition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settling:
    """A request that is carried out, except that older transactions are still open."""

    request: TableRequest
    horizon: int


class Captures:
    """The requests about capture, and their answers. Used by the extractor's thread."""

    def __init__(
        self,
        url: str,
        state: StateFiles,
        *,
        publication: str,
        takes: Callable[[TableName], bool],
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the settings. `takes` returns whether the configuration at this process's start
        captures a table.
        """
        self._url = url
        self._files = RequestFiles(state)
        self._publication = publication
        self._given = takes
        self._clock = clock
        self._added: set[TableName] = set()
        self._removed: set[TableName] = set()
        self._work: _Work | None = None
        self._begun_with: list[TableRequest] = []
        self._settling: list[_Settling] = []
        self._next_look_s = float("-inf")

    def takes(self, name: TableName) -> bool:
        """Return whether a table of this name is captured at present."""
        return name not in self._removed and (self._given(name) or name in self._added)

    def begin_stream(self) -> None:
        """Begin again on another stream the work that was under way in the last one."""
        self._work = None

    # -- before the first stream -------------------------------------------------------------

    def begin(self, tables: Iterable[TableDefinition]) -> list[TableDefinition]:
        """Add tables to the publication that were requested meanwhile; return those that can be
        captured.

        tables: those of the configuration, which includes the requests.
        """
        requests, answers = self._files.read()
        left = {table.name: table for table in tables}
        self._begun_with = []
        for request in requests.tables:
            if request.capture_id == 0 or answers.is_done(request):
                continue
            if request.capture is Capture.ADDED and request.table in left:
                try:
                    error = self._try(lambda name=request.table: self.publish(name))  # type: ignore[misc]
                except StatementInterrupted as locked:
                    self._later(request, locked)
                else:
                    if error is None:
                        self._begun_with.append(request)
                        continue
                    self._files.answer(request, error)
                del left[request.table]
                self._removed.add(request.table)
        return list(left.values())

    def answer_begun(self) -> None:
        """Answer the requests for tables of `begin`, which are watched and will be captured.

        Other requests are not answered: no stream has added tables that were requested later, or
        between two streams.
        """
        for request in self._begun_with:
            self._settle(request)
        self._begun_with = []

    def find_awaited(self) -> frozenset[TableName]:
        """Return tables whose capture begins. Their rows are copied to the target, not read into
        the log.
        """
        return frozenset(request.table for request in self._begun_with)

    # -- while the stream goes on ------------------------------------------------------------

    def tend(
        self, actions: TableActions, resolver: RelationResolver, stream: PostgresSource
    ) -> None:
        """Take a step with the requests; cheap when there are none."""
        if self._work is not None:
            if self._work.visit.finished:
                self._finish(self._work, actions)
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        self._answer_settled()
        requests, answers = self._files.read()
        settling = {one.request.capture_id for one in self._settling}
        for request in answers.open(requests.tables):
            if request.capture_id in settling:
                continue
            if request.capture is Capture.ADDED:
                self._take_in(request, actions, resolver, stream)
            else:
                self._let_go(request, actions, resolver, stream)
            if self._is_at_work():
                return

    def _settle(self, request: TableRequest) -> None:
        """Answer once all transactions that are open now have ended."""
        self._settling.append(_Settling(request=request, horizon=self._ask(HORIZON)))

    def _answer_settled(self) -> None:
        if not self._settling:
            return
        requests, _ = self._files.read()
        # A newer request for the same table replaces this one.
        self._settling = [
            one
            for one in self._settling
            if requests.of(one.request.table).capture_id == one.request.capture_id
        ]
        oldest = self._ask(OLDEST)
        for one in list(self._settling):
            if one.horizon <= oldest:
                self._settling.remove(one)
                self._files.answer(one.request, None)
                faults.point("extract.capture.after")

    def _ask(self, query: str) -> int:
        with (
            open_catalog(self._url) as connection,
            server_errors("asking for the transactions that are open"),
        ):
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _is_at_work(self) -> bool:
        return self._work is not None

    def _take_in(
        self,
        request: TableRequest,
        actions: TableActions,
        resolver: RelationResolver,
        stream: PostgresSource,
    ) -> None:
        found: list[TableDefinition] = []

        def look() -> None:
            with self._open() as catalog, server_errors(f"looking at {request.table}"):
                found.extend(captured_tables(catalog, [as_pattern(request.table)]))
            self.publish(request.table)
            actions.watch.admit(request.table, found[0].source_id)

        faults.point("extract.capture.before")
        try:
            error = self._try(look)
        except StatementInterrupted as locked:
            self._later(request, locked)
            return
        if error is not None:
            self._files.answer(request, error)
            return
        definition = found[0]

        def steps(assembler: Assembler) -> Iterator[int]:
            relation = resolver.capture(definition)
            if relation is not None:
                assembler.bind(definition.source_id, relation)
            yield from ()

        self._added.add(request.table)
        self._removed.discard(request.table)
        self._work = _Work(request=request, visit=stream.visit(steps), definition=definition)
        stream.ask_for_position()

    def _later(self, request: TableRequest, locked: PenstockError) -> None:
        """Try a locked table again later; the other requests do not wait for it."""
        logger.info("table is locked, asking again", table=str(request.table), said=locked.message)
        self._next_look_s = self._clock.monotonic_s() + LOCKED_INTERVAL_S

    def _let_go(
        self,
        request: TableRequest,
        actions: TableActions,
        resolver: RelationResolver,
        stream: PostgresSource,
    ) -> None:
        if not actions.watch.release(request.table):
            return  # what happened to it before is carried out first
        actions.keep()
        self._removed.add(request.table)
        self._added.discard(request.table)

        def steps(assembler: Assembler) -> Iterator[int]:
            for source_id in resolver.release(request.table):
                assembler.unbind(source_id)
            yield from ()

        self._work = _Work(request=request, visit=stream.visit(steps))
        stream.ask_for_position()

    def _finish(self, work: _Work, actions: TableActions) -> None:
        self._work = None
        faults.point("extract.capture.bound")
        actions.keep()
        if work.definition is not None:
            self._settle(work.request)
            return
        try:
            error = self._try(lambda: self._unpublish(work.request.table))
        except StatementInterrupted as locked:
            error = locked
        if error is not None:
            # Its rows are sent and ignored: that costs time, and loses nothing.
            logger.warning("table stays published", error=error.message)
        self._files.answer(work.request, None)
        faults.point("extract.capture.after")

    # -- the publication ---------------------------------------------------------------------

    def _open(self) -> psycopg.Connection:
        """Return a connection that does not wait for locks."""
        settings = {**EXACT_TEXT_SETTINGS, "lock_timeout": str(LOCK_TIMEOUT_MS)}
        return connect(self._url, application_name="penstock catalog", options=settings)

    def publish(self, table: TableName) -> None:
        """Add a table to the publication unless it is in it. Raises the server's errors."""
        name = self._publication
        statement = f"alter publication {quote(name)} add table {list_published([table])}"
        with (
            self._open() as connection,
            server_errors(f"adding {table} to publication {name}"),
        ):
            rows = connection.execute(PUBLISHED.format(name=literal(name)).encode()).fetchall()
            if tuple(table) in {tuple(row) for row in rows}:
                return
            with connection.transaction():
                self._alter(connection, statement, table, lock=True)

    def _unpublish(self, table: TableName) -> None:
        name = self._publication
        statement = f"alter publication {quote(name)} drop table {list_published([table])}"
        keys = {"publication": name, "schema": table.schema, "name": table.name}
        with (
            self._open() as connection,
            server_errors(f"taking {table} out of publication {name}"),
        ):
            if connection.execute(NAMED, keys).fetchone() is not None:
                self._alter(connection, statement, table)

    def _alter(
        self,
        connection: psycopg.Connection,
        statement: str,
        table: TableName,
        *,
        lock: bool = False,
    ) -> None:
        try:
            if lock:
                row = connection.execute(PARTITIONED, (quote(*table),)).fetchone()
                only = "" if row is not None and row[0] else "only "
                locking = f"lock table {only}{quote(*table)} in share row exclusive mode"
                connection.execute(locking.encode())
            connection.execute(statement.encode())
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.ReadOnlySqlTransaction,
        ) as error:
            raise TableNotPublishable(
                f"the publication cannot be altered for {table}: {error.diag.message_primary}",
                hint=f"On the primary, as an owner of both, run: {statement}; then give the same "
                "penstock table command again.",
                table=str(table),
            ) from error

    @staticmethod
    def _try(work: Callable[[], None]) -> PenstockError | None:
        """Try to carry out a request; return the error that prevents it. Raises ConnectionLost, for
        the stream.
        """
        try:
            work()
        except PenstockError as error:
            if error.retry == "backoff" and not isinstance(error, PrivilegeMissing):
                raise
            return error
        return None


faults.declare("extract.resend.before", "extract.resend.after")


class Resends:
    """Requests to put a table's rows into the log again. Used by the extractor's thread.

    Rows are read and placed as in any other reload (`reload.py`): a marker RELOAD, all rows as they
    are at one position, and then every change after it. A request is answered once its rows are
    durable. A request that a crash left unanswered is carried out again.
    """

    def __init__(self, state: StateFiles, *, clock: Clock = REAL_CLOCK) -> None:
        """Store the files; nothing is read yet."""
        self._files = RequestFiles(state)
        self._clock = clock
        self._under_way: dict[TableName, tuple[TableRequest, Reload]] = {}
        self._next_look_s = float("-inf")

    def tend(self, actions: TableActions, stream: PostgresSource) -> None:
        """Answer finished requests and begin new ones; cheap if there are none."""
        for table, (request, action) in list(self._under_way.items()):
            if not actions.watch.is_pending(action):
                del self._under_way[table]
                faults.point("extract.resend.before")
                self._files.answer_resend(request, actions.cancelled.pop(table, None))
                faults.point("extract.resend.after")
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open_resends(requests.tables):
            if request.table not in self._under_way:
                self._begin(request, actions)
        if self._under_way:
            stream.ask_for_position()

    def _begin(self, request: TableRequest, actions: TableActions) -> None:
        try:
            action = actions.watch.ask_again(request.table, of_source=request.comes_with_copy)
        except ResendRefused as error:
            self._files.answer_resend(request, error)
            return
        if action is not None:
            self._under_way[request.table] = request, action
