"""The extractor: from a source's stream into the change log, until told to stop.

The loop of document 000: wait for runs, write them, make them durable, tell the source, rotate at
a COMMIT, record the file. What the log has on disk decides where to go on after any failure: a
lost connection and a killed process take the same way back. The only module of this room that
knows the log. Not here: the stream itself (`postgres.stream`), the progress table
(`load.postgres.progress`, reached through `ProgressRecorder`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.log import ClosedSegment, PipelineLayout, Writer, WriterOptions, checkpoint
from penstock.model import (
    FlushPoint,
    Lsn,
    PenstockError,
    Relation,
    Run,
    TableDefinition,
    TableName,
)
from penstock.source.bookkeeping import Chores, Poll, StatusFile
from penstock.source.extract_options import (
    ControlGate,
    Ended,
    ExtractOptions,
    Outcome,
    Pace,
    Progress,
    ProgressRecorder,
)
from penstock.source.extract_report import facts_of
from penstock.source.postgres import slot as slots
from penstock.source.postgres.catalog import RelationResolver, open_catalog
from penstock.source.postgres.catchup import CatchUp
from penstock.source.postgres.client import open_replication
from penstock.source.postgres.ddl_watch import DdlWatch, WatchState
from penstock.source.postgres.relations import dropped_definitions
from penstock.source.postgres.shapes import CatalogShapes
from penstock.source.postgres.source_identity import ServerIdentity, identify, server_position
from penstock.source.postgres.stream import PostgresSource, StreamOptions
from penstock.source.postgres.table_actions import TableActions, is_begun_only

__all__ = [
    "ControlGate",
    "Ended",
    "ExtractOptions",
    "Extractor",
    "Outcome",
    "Progress",
    "ProgressRecorder",
    "followed",
]

logger = structlog.get_logger()
RELATIONS_FILE = "relations.json"
WATCH_FILE = "tables.json"
STREAM_FILE = "stream.json"
STATUS_FILE = "extract.json"
ACTION_INTERVAL_S = 5.0  # document 000: the action is looked at every five seconds
SOURCE_INTERVAL_S = 5.0
QUIET_FLUSH_S = 0.2  # caught up for so long: make durable what there is
WAIT_S = 0.2
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
BACKOFF_JITTER = 0.3
STEADY_S = 60.0  # a connection that lasted so long starts the back-off anew

declare(
    "extract.write.after",
    "extract.flush.before",
    "extract.flush.after",
    "extract.acknowledge.after",
    "extract.rotate.before",
    "extract.rotate.after",
    "extract.record.before",
    "extract.record.after",
    "extract.relations.before",
    "extract.done.before",
)


def followed(layout: PipelineLayout, files: Files = REAL_FILES) -> WatchState | None:
    """What a pipeline's extraction remembers of the tables it follows; None before its first look.

    Raises CheckpointCorrupt.
    """
    return checkpoint.load(layout.state / WATCH_FILE, WatchState, files)


class Extractor:
    """One extraction into one directory.

    `run` returns when the source is idle (exit_when_idle) or an end was asked for, and raises what
    can not be mended by connecting again.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        tables: Sequence[TableDefinition],
        options: ExtractOptions,
        recorder: ProgressRecorder | None = None,
        gate: ControlGate | None = None,
        stop: Callable[[], bool] = lambda: False,
        log_id: str | None = None,
        start_position: int = 0,
        takes: Callable[[TableName], bool] = lambda _: True,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Say from where to where.

        directory: the pipeline's. tables: what is captured. takes: whether the configuration
        stands for a table's name, also of one that is not among tables. stop: asked again and
        again; True ends the extraction at a flush point. start_position: where the log must begin
        when it is still empty (the slot's consistent point); 0: where the slot stands.
        """
        self.progress = Progress(started_us=clock.now_us())
        self._url = url
        self._layout = PipelineLayout(root=directory)
        self._tables = tables
        self._takes = takes
        self._options = options
        self._recorder = recorder
        self._gate = gate
        self._stop = stop
        self._log_id = log_id
        self._start_position = start_position
        self._files = files
        self._clock = clock
        self._chores = Chores("recorder")
        self._action: Poll | None = None
        self._server: Poll | None = None
        self._source: PostgresSource | None = None
        self._actions: TableActions | None = None
        self._shapes: CatalogShapes | None = None
        self._pace = Pace()
        self._status = StatusFile(self._layout.run / STATUS_FILE, files=files, clock=clock)

    # -- the whole ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Extract until idle or told to stop. Raises typed errors; the log is whole then too."""
        identity, resend_from = self._identify()
        with ExitStack() as stack:
            stack.enter_context(self._chores)
            if self._gate is not None:
                self._action = stack.enter_context(
                    Poll(self._gate.word, every_s=ACTION_INTERVAL_S, first="RUN", name="action")
                )
            self._server = stack.enter_context(
                Poll(
                    lambda: server_position(self._url),
                    every_s=SOURCE_INTERVAL_S,
                    first=0,
                    name="source position",
                )
            )
            writer = stack.enter_context(self._open_writer(identity, resend_from))
            try:
                return self._run(writer, identity)
            finally:
                self._report(writer, force=True)

    def _run(self, writer: Writer, identity: ServerIdentity) -> Outcome:
        """Connect, pump, and connect again as long as that may help."""
        attempt = 0
        resolver: RelationResolver | None = None
        while True:
            began_s = self._clock.monotonic_s()
            try:
                with open_catalog(self._url) as catalog, open_catalog(self._url) as watched:
                    resolver = self._resolver(catalog, resolver)
                    self._watch_tables(watched, resolver)
                    if self._catch_up(writer, resolver, identity):
                        return self._finish(writer, None, Ended.STOPPED)
                    with self._connect(writer, resolver, identity) as source:
                        self._source = source
                        identity = self._keep_identity(source, identity)
                        return self._pump(writer, source)
            except PenstockError as error:
                if error.retry != "backoff":
                    self._leave(writer, error)
                    raise
                if self._clock.monotonic_s() - began_s > STEADY_S:
                    attempt = 0
                self._back_off(writer, error, attempt)
                attempt += 1
                if self._asked_to_stop():
                    return self._finish(writer, None, Ended.STOPPED)
            finally:
                self._source = None

    def _resolver(
        self, catalog: psycopg.Connection, before: RelationResolver | None
    ) -> RelationResolver:
        """One resolver serves the whole extraction, on the connection of each attempt."""
        if before is None:
            path = self._layout.state / RELATIONS_FILE
            known = checkpoint.load(path, list[Relation], self._files) or []
            state = followed(self._layout, self._files) or WatchState()
            named = {table.name for table in self._tables}
            lost = [s for s in state.shapes if s.name not in named and self._takes(s.name)]
            tables = [*self._tables, *dropped_definitions(catalog, lost, known)]
            return RelationResolver(catalog, tables, known=known)
        before.connection = catalog
        before.forget()
        return before

    def _watch_tables(self, connection: psycopg.Connection, resolver: RelationResolver) -> None:
        if self._actions is None:
            watch = DdlWatch(
                connection,
                self._tables,
                publication=self._options.publication,
                state=followed(self._layout, self._files),
                takes=self._takes,
            )
            self._actions = TableActions(
                self._url,
                watch,
                resolver,
                save=self._save_watch,
                interval_s=self._options.table_interval_s,
                clock=self._clock,
            )
        self._actions.connected(connection)
        self._actions.look(at_once=True)

    def _save_watch(self, state: WatchState) -> None:
        self._files.make_directory(self._layout.state)
        checkpoint.save(self._layout.state / WATCH_FILE, state, self._files)

    # -- opening -----------------------------------------------------------------------------

    def _identify(self) -> tuple[ServerIdentity, int | None]:
        """The server, and from where on it can send; None: it has lost what we had not saved."""
        with open_replication(self._url, application_name=slots.APPLICATION_NAME) as connection:
            slot = slots.read_slot(connection, self._options.slot)
            return identify(connection), slot.confirmed_flush if slot and slot.is_whole else None

    def _open_writer(self, identity: ServerIdentity, resend_from: int | None) -> Writer:
        options = self._options
        writer = Writer.open(
            self._layout.log,
            log_id=self._log_id,
            source={
                "engine": "postgresql",
                "system_id": identity.system_id,
                "database": identity.database,
                "database_id": str(identity.database_id),
                "slot": options.slot,
            },
            resend_from=resend_from,
            options=WriterOptions(
                operation_count_max=options.operation_count_max,
                flush_interval_s=options.flush_interval_s,
                extension=options.extension,
                consumers=self._layout.consumers,
                clock=self._clock,
            ),
            files=self._files,
        )
        self._record_recovered(writer)
        begin = self._start_position or resend_from
        if writer.durable.position == 0 and begin:
            # Durable before the first change: should all of the log be lost again, the slot is
            # seen to be further than the log, and not taken for a place to begin at.
            writer.write(Run(end=FlushPoint(position=begin)))
            writer.flush()
        return writer

    def _connect(
        self, writer: Writer, resolver: RelationResolver, identity: ServerIdentity
    ) -> PostgresSource:
        self._shapes = shapes = CatalogShapes(resolver, save=self._save_relations)
        return PostgresSource(
            self._url,
            options=self._stream_options(),
            start=writer.durable,
            shapes=shapes,
            spill_directory=self._layout.spill,
            expected=self._stored_identity() or identity,
            before_run=shapes.keep,
            files=self._files,
            clock=self._clock,
        )

    def _stream_options(self) -> StreamOptions:
        options = self._options
        return StreamOptions(
            slot=options.slot,
            publication=options.publication,
            origin=options.origin,
            keep_messages=options.keep_messages,
            record_transactions=options.process_commits,
            slot_wait_s=options.slot_wait_s,
            idle_flush_s=options.flush_interval_s,
        )

    def _catch_up(
        self, writer: Writer, resolver: RelationResolver, identity: ServerIdentity
    ) -> bool:
        """Read ranges by COPY as long as the source is far ahead; True when asked to stop."""
        options = self._options
        if not options.catch_up_bytes:
            return False
        self._shapes = shapes = CatalogShapes(resolver, save=self._save_relations)
        self._pace = Pace(flushed_s=self._clock.monotonic_s())
        with CatchUp(
            self._url,
            options=self._stream_options(),
            start=writer.durable,
            shapes=shapes,
            spill_directory=self._layout.spill,
            expected=self._stored_identity() or identity,
            before_run=shapes.keep,
            range_bytes=options.catch_up_range_bytes,
            files=self._files,
        ) as behind:
            while behind.is_worth_it(options.catch_up_bytes):
                self.progress.state = "catching up"
                for run in behind.read_range():
                    self._write(writer, run)
                    self._report(writer)
                    if writer.at_commit and writer.due():
                        self._rotate(writer, None)
                    if self._asked_to_stop():
                        return True
                self._flush(writer, None)
                behind.advance()
                resolver.forget()
        return self._asked_to_stop()

    def _stored_identity(self) -> ServerIdentity | None:
        return checkpoint.load(self._layout.state / STREAM_FILE, ServerIdentity, self._files)

    def _keep_identity(self, source: PostgresSource, before: ServerIdentity) -> ServerIdentity:
        """Remember the server's timeline: after a promotion positions go on from the new one."""
        now = source.identity
        if now is not None and now != self._stored_identity():
            self._files.make_directory(self._layout.state)
            checkpoint.save(self._layout.state / STREAM_FILE, now, self._files)
        return now or before

    def _save_relations(self, relations: Sequence[Relation]) -> None:
        point("extract.relations.before")
        self._files.make_directory(self._layout.state)
        checkpoint.save(self._layout.state / RELATIONS_FILE, list(relations), self._files)

    # -- the loop ----------------------------------------------------------------------------

    def _pump(self, writer: Writer, source: PostgresSource) -> Outcome:
        now_s = self._clock.monotonic_s()
        self._pace = Pace(flushed_s=now_s, data_s=now_s)
        self.progress.state = "streaming"
        while True:
            if self._asked_to_stop():
                return self._finish(writer, source, Ended.STOPPED)
            if self._word() == "PAUSE":
                self._pause(writer, source)
                continue
            run = source.next_run(WAIT_S)
            if run is not None:
                self._write(writer, run)
            if writer.at_commit:
                self._make_durable(writer, source, quiet=run is None)
                self._tend_tables(writer, source)
            if run is None and self._is_idle(writer, source):
                return self._finish(writer, source, Ended.IDLE)
            self._report(writer)

    def _write(self, writer: Writer, run: Run) -> None:
        writer.write(run)
        point("extract.write.after")
        if self._actions is not None:
            self._actions.saw(run)
        count = sum(rows.batch.num_rows for rows in run.rows)
        self._pace.rows_since_flush += count
        self.progress.row_count += count
        if run.rows or run.markers or run.relations:
            self._pace.data_s = self._clock.monotonic_s()
            self._pace.target_position = 0
            self._note_open_segment(writer)

    def _note_open_segment(self, writer: Writer) -> None:
        number = writer.segment_number
        if self._recorder is not None and number != self._pace.segment_open:
            recorder, position = self._recorder, writer.durable.position
            self._chores.add(lambda: recorder.opened(number, position))
        self._pace.segment_open = number

    def _make_durable(self, writer: Writer, source: PostgresSource, *, quiet: bool) -> None:
        """Flush and acknowledge when enough came, or time has passed, or nothing more comes."""
        pace, now_s = self._pace, self._clock.monotonic_s()
        if writer.has_unflushed and (
            pace.rows_since_flush >= self._options.events_per_flush
            or quiet
            or now_s - pace.flushed_s >= self._options.flush_interval_s
            or writer.operation_count == 0  # only the position moves: the source waits for it
        ):
            self._flush(writer, source)
        if writer.due():
            self._rotate(writer, source)

    def _tend_tables(self, writer: Writer, source: PostgresSource) -> None:
        """Carry out what has to be done about tables that changed without sending rows."""
        actions = self._actions
        if actions is None or not actions.look():
            return
        while (action := actions.next_due(writer.durable)) is not None:
            self._flush(writer, source)
            relation = actions.carry_out(action, source)
            if relation is not None and self._shapes is not None:
                self._shapes.keep()
                self._write(writer, Run(relations=(relation,), end=writer.durable))
                self._flush(writer, source)
            if is_begun_only(action):
                return
            actions.settle(action)

    def _flush(self, writer: Writer, source: PostgresSource | None) -> None:
        point("extract.flush.before")
        end = writer.flush()
        point("extract.flush.after")
        self._pace.rows_since_flush = 0
        self._pace.flushed_s = self._clock.monotonic_s()
        if source is not None:
            source.acknowledge(end.position)
            point("extract.acknowledge.after")

    def _rotate(self, writer: Writer, source: PostgresSource | None) -> None:
        point("extract.rotate.before")
        closed = writer.rotate()
        point("extract.rotate.after")
        if source is not None:
            source.acknowledge(writer.durable.position)
        if closed is not None:
            self._record_closed(closed)

    def _record_closed(self, closed: ClosedSegment) -> None:
        self.progress.segment_count += 1
        self.progress.transaction_count += closed.transaction_count
        logger.info(
            "segment closed",
            segment=closed.path.name,
            gsn_first=closed.gsn_first,
            gsn_last=closed.gsn_last,
            size_bytes=closed.size_bytes,
        )
        if self._recorder is not None:
            recorder = self._recorder

            def record() -> None:
                point("extract.record.before")
                recorder.closed(closed)
                point("extract.record.after")

            self._chores.add(record)

    def _record_recovered(self, writer: Writer) -> None:
        for closed in writer.recovered:
            self._record_closed(closed)

    # -- pausing, idling, ending -------------------------------------------------------------

    def _asked_to_stop(self) -> bool:
        return self._stop() or self._word() == "STOP"

    def _word(self) -> str:
        return str(self._action.value) if self._action is not None else "RUN"

    def _pause(self, writer: Writer, source: PostgresSource) -> None:
        """Hold at a flush point; the connection lives on and the queue is bounded."""
        if self.progress.state != "paused":
            while not writer.at_commit and not self._asked_to_stop():
                run = source.next_run(WAIT_S)
                if run is not None:
                    self._write(writer, run)
            if writer.at_commit:
                self._flush(writer, source)
                self._rotate(writer, source)
            self.progress.state = "paused"
            logger.info("extraction paused")
        self._report(writer)
        self._clock.sleep(WAIT_S)
        if self._word() != "PAUSE":
            self.progress.state = "streaming"
            self._pace.data_s = self._clock.monotonic_s()
            logger.info("extraction goes on")

    def _is_idle(self, writer: Writer, source: PostgresSource) -> bool:
        """Whether nothing came for long enough and the server has nothing more to send.

        Silence alone may be a server that is still reading its log: it must have got as far as
        its log reached when the silence was first noticed.
        """
        pace = self._pace
        quiet_s = self._clock.monotonic_s() - pace.data_s
        if not self._options.exit_when_idle or quiet_s < self._options.idle_wait_s:
            return False
        if not writer.at_commit or (self._actions and self._actions.look(at_once=True)):
            return False
        if pace.target_position == 0:
            pace.target_position = server_position(self._url)
            source.ask_for_position()
        return source.has_given(pace.target_position)

    def _finish(self, writer: Writer, source: PostgresSource | None, ended: Ended) -> Outcome:
        """End at a flush point with every segment closed."""
        if not writer.at_commit:
            writer.rewind()
            self._record_recovered(writer)
        self._rotate(writer, source)
        if ended is Ended.IDLE:
            point("extract.done.before")
            writer.done()
        self.progress.state = ended.value
        logger.info("extraction ended", why=ended.value, position=str(Lsn(writer.durable.position)))
        return Outcome(ended=ended, end=writer.durable)

    def _leave(self, writer: Writer, error: PenstockError) -> None:
        """Before an error goes up: close what is whole, and show why it ended."""
        self.progress.state = "failed"
        self.progress.last_error = error.message
        if isinstance(error, slots.CHANGES_GONE) and writer.cut_files:
            kept = ", ".join(path.name for path in writer.cut_files)
            error.hint += f" What the log's open segment held behind that point is kept: {kept}."
        try:
            if not writer.at_commit:
                writer.rewind()
                self._record_recovered(writer)
            self._rotate(writer, None)
        except PenstockError as second:
            logger.warning("last segment stays open", error=second.message)

    def _back_off(self, writer: Writer, error: PenstockError, attempt: int) -> None:
        """Go back to the last flush point and wait before connecting again."""
        wait_s = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
        wait_s *= 1 - BACKOFF_JITTER * random.random()  # noqa: S311 - spreads load only
        self.progress.state = "reconnecting"
        self.progress.reconnect_count += 1
        self.progress.last_error = error.message
        logger.warning("stream broke", error=error.message, retry_in_s=round(wait_s, 1))
        if writer.at_commit:
            self._flush(writer, None)
        else:
            writer.rewind()
            self._record_recovered(writer)
        until_s = self._clock.monotonic_s() + wait_s
        while self._clock.monotonic_s() < until_s and not self._asked_to_stop():
            if writer.due():
                self._rotate(writer, None)
            self._report(writer)
            self._clock.sleep(WAIT_S)

    # -- the report --------------------------------------------------------------------------

    def facts(self, writer: Writer) -> dict[str, Any]:
        """What run/extract.json holds; positions as the source writes them."""
        return facts_of(
            self.progress,
            slot=self._options.slot,
            end=writer.durable,
            segment=writer.segment_number,
            segment_row_count=writer.operation_count,
            source=self._source,
            chores=self._chores,
            server=self._server,
            action=self._action,
            now_us=self._clock.now_us(),
        )

    def _report(self, writer: Writer, *, force: bool = False) -> None:
        if force or self._status.due():
            self._status.write(self.facts(writer))
