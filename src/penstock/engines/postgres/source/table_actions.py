"""Carries out what the watch over the tables finds, at the right place of the stream.

The extractor asks here at every flush point; what needs rows of its own is done by the thread that
decodes, between transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import structlog

from penstock.engines.postgres.source.assemble import Assembler
from penstock.engines.postgres.source.ddl_watch import (
    Action,
    DdlWatch,
    Gone,
    RelationChanged,
    Reload,
    StopPipeline,
    WatchState,
)
from penstock.engines.postgres.source.relations import RelationResolver
from penstock.engines.postgres.source.reload import TableVanished, list_sent, open_reload
from penstock.engines.postgres.source.slot import Blocker
from penstock.engines.postgres.source.stream import PostgresSource
from penstock.engines.postgres.source.table_shape import ReloadReason
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectionLost
from penstock.host.request_files import ResendRefused, resend_cancelled, table_unknown
from penstock.model import (
    DROP_TABLE,
    FlushPoint,
    MarkerKind,
    PenstockError,
    Relation,
    Run,
    TableDefinition,
    TableName,
)
from penstock.ports.source import TABLE_INTERVAL_S, BaseRows, NoBase
from penstock.sql.decoding import Visit

logger = structlog.get_logger()
LOOK_PAUSE_S_MIN = 1.0
LOOK_SHARE = 0.01  # of the time may be spent on looking; the interval is the longest pause


class TableActions:
    """Findings of the watch that are not settled yet. Used by the extractor's thread.

    They survive reconnects: `connect` passes the connection of each. save stores the watch's
    state durably.
    """

    def __init__(
        self,
        url: str,
        watch: DdlWatch,
        resolver: RelationResolver,
        *,
        save: Callable[[WatchState], None],
        interval_s: float = TABLE_INTERVAL_S,
        base: BaseRows | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Take the watch and the resolver of the log's relations. base: of the log."""
        self._base = base or NoBase()
        self._url = url
        self._watch = watch
        self._resolver = resolver
        self._save = save
        self._interval_s = interval_s
        self._clock = clock
        self._next_look_s = float("-inf")
        self._visit: Visit[Assembler] | None = None
        # Of tables whose rows were asked for again: why they are not in the log.
        self.cancelled: dict[TableName, PenstockError] = {}

    def begin_stream(self, connection: psycopg.Connection) -> None:
        """Use another connection; a reload that was under way begins again."""
        self._watch.connection = connection
        self._visit = None

    @property
    def watch(self) -> DdlWatch:
        """Watch of the tables. Call `keep` after changing which tables it follows."""
        return self._watch

    def keep(self) -> None:
        """Make durable what the watch follows now."""
        self._keep()

    def saw(self, run: Run) -> None:
        """Note the TRUNCATEs of a run that was written: they explain new files of partitions."""
        for marker in run.markers:
            if marker.kind is MarkerKind.TRUNCATE:
                for schema, name in marker.tables:
                    self._watch.saw_truncate(TableName(schema, name), marker.position)

    def look(self, *, at_once: bool = False) -> int:
        """Look at the catalogue when it is time; returns how many actions are outstanding."""
        began_s = self._clock.monotonic_s()
        if at_once or began_s >= self._next_look_s:
            self._watch.poll()
            self._ask_for_awaited()
            self._keep()
            cost_s = self._clock.monotonic_s() - began_s
            pause_s = max(LOOK_PAUSE_S_MIN, cost_s / LOOK_SHARE)
            self._next_look_s = began_s + min(self._interval_s, pause_s)
        return self._watch.pending_count

    def _ask_for_awaited(self) -> None:
        """Have tables read again whose rows are unknown since a message."""
        for table, why in self._resolver.awaiting().items():
            try:
                self._watch.ask_again(table, ReloadReason(why))
            except ResendRefused:
                logger.info("table that awaits a reload is gone", table=str(table))

    def next_due(self, durable: FlushPoint) -> Action | None:
        """Return the action to carry out now, if any. durable: the log's last flush point."""
        if self._visit is not None and not (
            self._visit.finished and durable.trx >= self._visit.trx
        ):
            return None
        action = self._watch.due(durable.position)
        if action is not None and self._visit is not None:
            self._visit = None
            self.settle(action)  # it was this one: its rows are on disk
            action = self._watch.due(durable.position)
        self._keep()
        return action

    def carry_out(self, action: Action, source: PostgresSource) -> Relation | None:
        """Do it; returns a relation to be written to the log, behind the last flush point.

        What `is_begun_only` settles itself when `next_due` finds it on disk; for anything else
        call `settle` once the relation is durable. Raises the error of a Stop, settled.
        """
        if isinstance(action, StopPipeline):
            self.settle(action)
            raise action.error
        if isinstance(action, Reload):
            self._visit = source.visit(lambda assembler: self._reload(action, source, assembler))
        elif isinstance(action, RelationChanged):
            return self._resolver.adopt(action.definition)
        elif isinstance(action, Gone):
            self._visit = source.visit(lambda assembler: self._let_go(action, assembler))
        return None

    def _let_go(self, action: Gone, assembler: Assembler) -> Iterator[int]:
        """Report a table as gone, and ignore its rows under the old name, in the decoding thread.

        If its new name is followed already, they are captured under that from here on.
        """
        renamed = action.renamed
        if renamed is None:
            logger.warning("captured table was dropped", table=str(action.table))
        else:
            logger.warning(
                "captured table was renamed", table=str(action.table), new_name=str(renamed.name)
            )
        yield from _tell_dropped(action.table, assembler)
        for source_id in self._resolver.release(action.table) if renamed is not None else ():
            assembler.unbind(source_id)
        if renamed is not None and self._watch.follows(renamed.name):
            relation = self._resolver.capture(renamed)
            if relation is not None:
                assembler.bind(renamed.source_id, relation)

    def settle(self, action: Action) -> None:
        """Note that the action's consequences are durable."""
        self._watch.settle(action)
        self._keep()

    def _keep(self) -> None:
        if self._watch.changed:
            self._save(self._watch.state())

    def _reload(
        self, action: Reload, source: PostgresSource, assembler: Assembler
    ) -> Iterator[int]:
        """Reload a table at the end of a transaction, in the decoding thread."""

        def on_blocked(seconds: float, blockers: list[Blocker]) -> None:
            if source.is_closing:
                raise ConnectionLost("reload given up: the stream is being closed")
            for blocker in blockers:
                logger.warning(
                    "reload waits for a transaction",
                    waited_s=round(seconds),
                    transaction=blocker.what,
                    end_it_with=blocker.sql,
                )

        source_id = action.definition.source_id
        is_of_base = action.reason is ReloadReason.RESENT and not action.of_source
        if is_of_base and self._sent_of_base(action, source, assembler):
            return
        try:
            job = open_reload(self._url, action.table, source_id, on_blocked=on_blocked)
        except TableVanished:
            logger.warning("table to be read again is gone", table=str(action.table))
            if action.reason is ReloadReason.RESENT:
                self.cancelled[action.table] = table_unknown(action.table)
            return
        with job:
            yield job.position
            if action.reason is ReloadReason.RESENT and _differs(job.definition, action.definition):
                # The watch determines what has to be done about that.
                current = self._resolver.current(source_id)
                version = current.version if current is not None else 0
                self.cancelled[action.table] = resend_cancelled(action.table, version, version + 1)
                return
            relation = self._resolver.reshape(job.definition)
            job.feed(
                assembler.decoder,
                assembler,
                relation,
                reason=str(action.reason),
                row_limit=assembler.row_limit,
            )

    def _sent_of_base(self, action: Reload, source: PostgresSource, assembler: Assembler) -> bool:
        """Put a table's rows into the log again from the log's base; return whether the base has
        them.
        """
        current = self._resolver.current(action.definition.source_id)
        trx = assembler.decoder.trx
        with self._base.at(action.table, trx, gives_up=lambda: source.is_closing) as found:
            if found is None:
                return False
            if current is None:  # no change came yet
                current = self._resolver.reshape(action.definition)
            if not found.fits(current):
                return False
            count = assembler.give_again(found, current, reason=str(action.reason))
        logger.info("table sent again from the base", table=str(action.table), row_count=count)
        return True


def _tell_dropped(table: TableName, assembler: Assembler) -> Iterator[int]:
    """Write a separate transaction that reports the table as gone, in the decoding thread.

    It is after everything that was decoded, and what the server sends next commits after it.
    """
    decoder = assembler.decoder
    position = max(decoder.end_position, assembler.counts.received_position)
    decoder.begin(position - 1, time.time_ns() // 1000, 0)
    assembler.mark(MarkerKind.DDL, tables=((table.schema, table.name),), data=DROP_TABLE)
    decoder.commit(position)
    assembler.cut()
    yield from ()


def _differs(now: TableDefinition, then: TableDefinition) -> bool:
    """Return whether a table has another name or other columns."""
    return now.name != then.name or list_sent(now) != list_sent(then)


def is_begun_only(action: Action) -> bool:
    """Return whether an action takes a while and settles later."""
    return isinstance(action, Reload | Gone)
