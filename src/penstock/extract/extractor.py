"""Write a source's stream into the change log, until stopped.

The loop of Wirekite's guide: wait for runs, write them, make them durable, acknowledge to the
source, rotate at a COMMIT, record the file. The position on disk determines where to continue
after any failure, so a lost connection and a killed process are handled alike. No other module of
this package knows the log, and this one knows no engine (`ports/source.py`). Not here: the
progress table, which is reached through `ProgressRecorder`.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import structlog

from penstock.extract.bookkeeping import BackgroundTasks, Poll
from penstock.extract.report import ControlGate, Ended, ExtractProgress, Outcome, Pace, facts_of
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import State, StateFile, StateFiles, StatusFile
from penstock.log import ClosedSegment, Writer, WriterOptions
from penstock.model import FlushPoint, Marker, MarkerKind, PenstockError, Run
from penstock.model.layout import PipelineLayout
from penstock.ports.lag import Watermark
from penstock.ports.source import (
    RELATIONS_FILE,
    BaseRows,
    EnginePlace,
    ExtractOptions,
    LogAccess,
    NoBase,
    Origin,
    ServerEnd,
    SourceEngine,
    SourceStream,
)

__all__ = [
    "ControlGate",
    "Ended",
    "ExtractOptions",
    "ExtractProgress",
    "Extractor",
    "Outcome",
    "ProgressRecorder",
]

logger = structlog.get_logger()
STATUS_FILE = "extract.json"
ACTION_INTERVAL_S = 5.0  # Wirekite's guide: the action is read every five seconds
SOURCE_INTERVAL_S = 5.0
QUIET_FLUSH_S = 0.2  # after being caught up for so long, pending rows are made durable
WAIT_S = 0.5
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 5.0)  # short, to find the server soon after an outage
BACKOFF_JITTER = 0.3
STEADY_S = 60.0  # a connection that lasted so long resets the back-off

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


class ProgressRecorder(Protocol):
    """Store of the progress (the CE rows). One thread makes its calls in order, each until it
    succeeds.

    Both calls may be repeated for the same segment. Recovery needs neither: the segments are
    authoritative.
    """

    @abstractmethod
    def note_opened(self, number: int, position: int) -> None:
        """Record that segment `number` was begun; it continues from `position`."""
        ...

    @abstractmethod
    def note_closed(self, segment: ClosedSegment) -> None:
        """Record that a segment has its final name."""
        ...


class _StateFiles(StateFiles):
    """The engine's `StateFiles`, in the pipeline's state directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files

    def load(self, name: str, kind: type[State]) -> State | None:
        return StateFile(self._directory / name, kind, files=self._files).load()

    def save(self, name: str, state: Any) -> None:
        if name == RELATIONS_FILE:
            point("extract.relations.before")
        self._files.make_directory(self._directory)
        StateFile(self._directory / name, type(state), files=self._files).save(state)


class Extractor:
    """One extraction into one directory.

    `run` returns if the source is idle (exit_when_idle) or an end was requested, and raises errors
    that reconnecting cannot fix.
    """

    def __init__(
        self,
        engine: SourceEngine,
        directory: Path,
        *,
        options: ExtractOptions,
        recorder: ProgressRecorder | None = None,
        gate: ControlGate | None = None,
        stop: Callable[[], bool] = lambda: False,
        log_id: str | None = None,
        base: BaseRows | None = None,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Connect source and log.

        engine: the source, which serves this extraction alone. directory: directory of the
        pipeline. stop: called repeatedly; True ends the extraction at a flush point. base: base of
        the log, if it has one.
        """
        self.progress = ExtractProgress(started_us=clock.now_us())
        self._engine = engine
        self._layout = PipelineLayout(root=directory)
        self._options = options
        self._recorder = recorder
        self._gate = gate
        self._stop = stop
        self._log_id = log_id
        self._base = base or NoBase()
        self._files = files
        self._clock = clock
        self._background_tasks = BackgroundTasks("recorder")
        self._action: Poll | None = None
        self._server: Poll | None = None
        self._heartbeats: Poll | None = None
        self._source: SourceStream | None = None
        self._watermark = Watermark()
        self._pace = Pace()
        self._flush_interval_s = min(
            options.flush_interval_s, options.apply_interval_s or options.flush_interval_s
        )
        self._status = StatusFile(self._layout.run / STATUS_FILE, files=files, clock=clock)

    # -- the run -----------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Extract until idle or stopped. Raises typed errors; the log is whole then as well."""
        origin = self._engine.begin(
            EnginePlace(
                state=_StateFiles(self._layout.state, self._files),
                spill=self._layout.spill,
                run=self._layout.run,
                log_id=lambda: self._log_id or "",
                files=self._files,
                clock=self._clock,
                base=self._base,
            )
        )
        with ExitStack() as stack:
            stack.enter_context(self._background_tasks)
            if self._gate is not None:
                self._action = stack.enter_context(
                    Poll(self._gate.word, every_s=ACTION_INTERVAL_S, first="RUN", name="action")
                )
            self._server = stack.enter_context(
                Poll(
                    self._engine.server_end,
                    every_s=SOURCE_INTERVAL_S,
                    first=ServerEnd(),
                    name="source position",
                )
            )
            if self._options.heartbeat_s:
                send = stack.enter_context(self._engine.heartbeats())
                self._heartbeats = stack.enter_context(
                    Poll(
                        lambda: send(self._clock.now_us()),
                        every_s=self._options.heartbeat_s,
                        first=None,
                        name="heartbeat",
                    )
                )
            writer = stack.enter_context(self._open_writer(origin))
            self._log_id = writer.log_id
            try:
                return self._run(writer)
            finally:
                self._report(writer, force=True)

    def _run(self, writer: Writer) -> Outcome:
        """Connect, pump, and reconnect as long as that may help."""
        attempt = 0
        while True:
            began_s = self._clock.monotonic_s()
            try:
                with self._engine.attempt():
                    if self._catch_up(writer):
                        return self._finish(writer, None, Ended.STOPPED)
                    with self._engine.stream(writer.durable) as source:
                        self._source = source
                        with self._leaving(writer):
                            return self._pump(writer, source)
            except PenstockError as error:
                if error.retry != "backoff":
                    if self.progress.state != "failed":
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

    def _open_writer(self, origin: Origin) -> Writer:
        options = self._options
        writer = Writer.open(
            self._layout.log,
            log_id=self._log_id,
            source=origin.identity,
            resend_from=origin.resend_from,
            options=WriterOptions(
                operation_count_max=options.operation_count_max,
                flush_interval_s=options.flush_interval_s,
                process_commits=options.process_commits,
                extension=options.extension,
                consumers=self._layout.consumers,
                keeping=options.keeping,
                clock=self._clock,
            ),
            files=self._files,
        )
        self._record_recovered(writer)
        if writer.durable.position == 0 and origin.begin:
            # Durable before the first change: if the whole log is lost again, the source is seen to
            # be further than the log, and its position is not mistaken for a new beginning.
            writer.write(Run(end=FlushPoint(position=origin.begin)))
            writer.flush()
        return writer

    def _catch_up(self, writer: Writer) -> bool:
        """Read ranges as long as the source is far ahead; return True if asked to stop."""
        ranges = self._engine.ranges(writer.durable)
        if ranges is None:
            return False
        self._pace = Pace(flushed_s=self._clock.monotonic_s())
        with ranges as behind:
            while behind.is_worth_it():
                self.progress.state = "catching up"
                self.progress.note_progress()
                for run in behind.read_range():
                    self._write(writer, run)
                    self._report(writer)
                    if writer.at_commit and writer.due():
                        self._rotate(writer, None)
                    if self._asked_to_stop():
                        return True
                self._flush(writer, None)
                self._rotate(writer, None)  # the server is silent while it decodes the next range
                behind.advance()
        return self._asked_to_stop()

    # -- the loop ----------------------------------------------------------------------------

    def _pump(self, writer: Writer, source: SourceStream) -> Outcome:
        now_s = self._clock.monotonic_s()
        self._pace = Pace(flushed_s=now_s, data_s=now_s)
        self.progress.state = "streaming"
        self.progress.note_progress()
        while True:
            if self._asked_to_stop():
                return self._finish(writer, source, Ended.STOPPED)
            if self._word() == "PAUSE":
                self._pause(writer, source)
                continue
            run = source.next_run(self._wait_s(writer))
            if run is not None:
                self._write(writer, run)
            if writer.at_commit:
                self._make_durable(writer, source, quiet=run is None)
                self._engine.tend(_AtEnd(self, writer, source))
            if self._is_idle(writer, source):  # heartbeats may arrive more often than we wait
                return self._finish(writer, source, Ended.IDLE)
            self._report(writer)

    def _write(self, writer: Writer, run: Run) -> None:
        writer.write(run)
        point("extract.write.after")
        self._engine.saw(run)
        count = sum(rows.batch.num_rows for rows in run.rows)
        self._pace.rows_since_flush += count
        self.progress.row_count += count
        if run.rows or run.markers or run.relations:
            self._note_open_segment(writer)
        if run.rows or run.relations or not all(map(_is_heartbeat, run.markers)):
            self._pace.data_s = self._clock.monotonic_s()
            self._pace.target_position = 0

    def _note_open_segment(self, writer: Writer) -> None:
        number = writer.segment_number
        if self._recorder is not None and number != self._pace.segment_open:
            recorder, position = self._recorder, writer.durable.position
            self._background_tasks.add(lambda: recorder.note_opened(number, position))
        self._pace.segment_open = number

    def _wait_s(self, writer: Writer) -> float:
        """Return how long to wait for a run: at most until the loader is due to get the pending
        rows.
        """
        if not writer.has_unflushed or not writer.at_commit:
            return WAIT_S
        interval_s = self._pace.flush_interval_s(self._flush_interval_s)
        left_s = self._pace.flushed_s + interval_s - self._clock.monotonic_s()
        return min(WAIT_S, max(0.0, left_s))

    def _make_durable(self, writer: Writer, source: SourceStream, *, quiet: bool) -> None:
        """Flush and acknowledge if enough has arrived, time has passed, or nothing more arrives."""
        pace, now_s = self._pace, self._clock.monotonic_s()
        if writer.has_unflushed and (
            pace.rows_since_flush >= self._options.events_per_flush
            or quiet
            or now_s - pace.flushed_s >= pace.flush_interval_s(self._flush_interval_s)
            or writer.operation_count == 0  # only the position moves: the source waits for it
        ):
            self._flush(writer, source)
        if writer.due():
            self._rotate(writer, source)

    def _flush(self, writer: Writer, source: SourceStream | None) -> None:
        began_s = self._clock.monotonic_s()
        self._engine.before_flush(writer.end)
        point("extract.flush.before")
        end = writer.flush()
        point("extract.flush.after")
        self._pace.note_flush(began_s, self._clock.monotonic_s())
        if source is not None:
            source.acknowledge(end.position)
            point("extract.acknowledge.after")

    def _rotate(self, writer: Writer, source: SourceStream | None) -> None:
        self._engine.before_flush(writer.end)
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
                recorder.note_closed(closed)
                point("extract.record.after")

            self._background_tasks.add(record)

    def _record_recovered(self, writer: Writer) -> None:
        for closed in writer.recovered:
            self._record_closed(closed)

    # -- pausing, idling, ending -------------------------------------------------------------

    def _asked_to_stop(self) -> bool:
        return self._stop() or self._word() == "STOP"

    def _word(self) -> str:
        return str(self._action.value) if self._action is not None else "RUN"

    def _pause(self, writer: Writer, source: SourceStream) -> None:
        """Pause at a flush point; the connection stays open, and the queue is bounded."""
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

    def _is_idle(self, writer: Writer, source: SourceStream) -> bool:
        """Return whether nothing has arrived for long enough and the server has nothing more to
        send.

        A silent server may still be reading its log: it must have reached the position that its log
        had when the silence was first noticed.
        """
        pace = self._pace
        if not self._options.exit_when_idle:
            return False
        if self._clock.monotonic_s() - pace.data_s < self._options.idle_wait_s:
            return False
        if not writer.at_commit or self._engine.has_outstanding():
            return False
        if pace.target_position == 0:
            end = self._engine.server_end()
            self._watermark.look(end.position, end.now_us)
            pace.target_position = end.position
            source.ask_for_position()
        return source.has_given(pace.target_position)

    def _finish(self, writer: Writer, source: SourceStream | None, ended: Ended) -> Outcome:
        """End at a flush point with every segment closed."""
        if not writer.at_commit:
            writer.rewind()
            self._record_recovered(writer)
        self._rotate(writer, source)
        if ended is Ended.IDLE:
            point("extract.done.before")
            writer.finish()
        self.progress.state = ended.value
        position = self._engine.text(writer.durable.position)
        logger.info("extraction ended", why=ended.value, position=position)
        return Outcome(ended=ended, end=writer.durable)

    @contextmanager
    def _leaving(self, writer: Writer) -> Iterator[None]:
        """Close what is whole after an error of the block, while the engine's stream is there.

        The stream knows what the engine stores before the log becomes durable.
        """
        try:
            yield
        except PenstockError as error:
            if error.retry != "backoff":
                self._leave(writer, error)
            raise

    def _leave(self, writer: Writer, error: PenstockError) -> None:
        """Close what is whole and show the reason before an error is raised."""
        self.progress.state = "failed"
        self.progress.last_error = error.message
        if self._engine.is_loss(error) and writer.cut_files:
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
        self.progress.note_failure(error.message, now_us=self._clock.now_us(), wait_s=wait_s)
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
        """Return the contents of run/extract.json; positions are in the source's notation."""
        end: ServerEnd = self._server.value if self._server is not None else ServerEnd()
        if end.position:
            self._watermark.look(end.position, end.now_us)
        return facts_of(
            self.progress,
            engine=self._engine,
            end=writer.durable,
            segment=writer.segment_number,
            segment_row_count=writer.operation_count,
            source=self._source,
            background_tasks=self._background_tasks,
            server=self._server,
            watermark_us=self._watermark.note_reached(writer.durable.position),
            action=self._action,
            heartbeats=self._heartbeats,
            now_us=self._clock.now_us(),
        )

    def _report(self, writer: Writer, *, force: bool = False) -> None:
        if force or self._status.due():
            self._status.write(self.facts(writer))


def _is_heartbeat(marker: Marker) -> bool:
    """Return whether a marker is our own heartbeat. A source that has only these is idle."""
    return marker.kind is MarkerKind.HEARTBEAT


class _AtEnd(LogAccess):
    """The engine's `LogAccess` at the end of a run."""

    def __init__(self, extractor: Extractor, writer: Writer, source: SourceStream) -> None:
        self._extractor = extractor
        self._writer = writer
        self._source = source

    @property
    def durable(self) -> FlushPoint:
        return self._writer.durable

    def write(self, run: Run) -> None:
        self._extractor._write(self._writer, run)

    def flush(self) -> None:
        self._extractor._flush(self._writer, self._source)

    def close_segment(self) -> None:
        self._extractor._rotate(self._writer, self._source)
