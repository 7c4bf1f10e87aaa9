"""Loop of the change loader: segments in, target batches out, until the log is done.

While a batch is applied, the next one is staged. The loop obeys wirekite_action, a stop request
(at a batch's end), and verify's hold; each discards the staged batch. A lost connection, a killed
worker or a dead JVM is retried from the target's applied position, so a COMMIT whose answer was
lost counts once. Not here: staging (`prefetch.py`) and applying (`sql_target.py`) a batch.

Time and size of a batch: a batch has a fixed cost of as much as many thousand rows. While many rows
arrive without a pause, batches of rows that have just become durable would take processor time from
the processes that write and read them. So the more rows a batch had, the later the next one begins,
by at most a second. It begins at once if enough rows wait, if the flow pauses, and while a backlog
is read: those rows are old, so an early first batch makes the last one early as well.

A batch without rows only ends files that are applied. While it waits for the previous batch, none
with rows is staged. So it is created once the log has rested longer than an extractor that catches
up is silent.

One connection applies batch after batch, and applies nothing while it waits for rows. So a batch
that is staged meanwhile is about as large as the amount that can be staged in that time, and the
first one after a pause is small.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from penstock.codec.types import NO_CHOICES, Choices
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.retry import Backoff, Patience, is_outage
from penstock.load.apply_parts import PartedTarget
from penstock.load.deferred_keys import DeferredKeyFlow
from penstock.load.isolation import BrokenTables
from penstock.load.loader_state import (
    Hold,
    HoldAnswer,
    LoaderState,
    read_held,
    read_hold,
    write_held,
    write_loader_state,
)
from penstock.load.prefetch import StagePrefetch, Wanted
from penstock.load.session import SessionKeeper
from penstock.load.sql_target import loading_of
from penstock.load.table_sync import JOBS, Copier, TableSyncFlow, options_for
from penstock.log.closing import AppliedFiles
from penstock.log.layout import (
    DONE_NAME,
    EXTENSION_DEFAULT,
    SegmentFile,
    list_open_segments,
    list_segments,
    load_state,
)
from penstock.log.segment import LogFollower, open_segment
from penstock.model import FlushPoint, PenstockError, TableName
from penstock.model.keeping import Keeping
from penstock.model.policies import EVOLVE_ALL, Policies, SchemaChangeNotApplied
from penstock.model.position import POSITION_MAX
from penstock.ports.deferred_keys import DeferredTable
from penstock.ports.loading import Batch, BatchOptions
from penstock.ports.sql_target import SqlTarget
from penstock.ports.target import Applied, TableSync, Target

MANY_ROWS = 10_000
ENOUGH_ROWS = 100_000
INTERVAL_S = 1.0
INTERVAL_ROWS = 50_000  # of a batch that are followed by the whole interval; fewer by a part of it
PAUSE_S = 0.15  # longer than the log is silent between two flushes of a flow
REST_S = 1.0
BACKLOG_S = 5.0  # what was committed so long ago was not committed beside us

FIRST_BYTES = 8 * 2**20  # of segments; a batch may always have so many
MAX_BYTES = 512 * 2**20
# Part of a batch's cost is fixed: its size may grow a little faster than its cost.
GROWTH = 1.25
AFTER_STAGING = ("apply", "commit", "upkeep")
"""Steps of a batch that follow its staging; the next one is staged meanwhile."""


class Pacing:
    """Pace of batches. Two threads may use it: one reports batches, the other asks."""

    def __init__(self, clock: Clock = REAL_CLOCK, *, batch_s: float = 0.0) -> None:
        """Begin without a wait. batch_s: shortest time between two batches."""
        self._clock = clock
        self._batch_s = batch_s
        self._next_s = self._from_s = float("-inf")
        self._end = -1
        self._grew_s = float("-inf")

    def note_staged(self, row_count: int) -> None:
        """Record that a batch of this many changes is staged, and the next one is due to be looked
        for.
        """
        share = min(1.0, row_count / INTERVAL_ROWS) if row_count >= MANY_ROWS else 0.0
        now_s = self._clock.monotonic_s()
        self._from_s = now_s + share * INTERVAL_S
        self._next_s = now_s + self._batch_s

    def is_due(self, durable: FlushPoint, applied: Applied) -> bool:
        """Return whether to create a batch of the rows after `applied`.

        durable: end of the log on disk.
        """
        now_s = self._clock.monotonic_s()
        if durable.trx != self._end:
            self._end, self._grew_s = durable.trx, now_s
        rested_s = now_s - self._grew_s
        if now_s < self._next_s and durable.gsn - applied.gsn < ENOUGH_ROWS:
            return False
        if durable.trx <= applied.trx:
            return rested_s >= REST_S
        if now_s >= self._from_s or durable.gsn - applied.gsn >= ENOUGH_ROWS:
            return True
        age_us = self._clock.now_us() - durable.commit_time_us if durable.commit_time_us else 0
        return rested_s >= PAUSE_S or age_us >= BACKLOG_S * 1e6


def next_batch_bytes(size_bytes: int, seconds: Mapping[str, float]) -> int:
    """Return the bytes of segments that the next batch may have.

    It may take as long to stage as the last one took after it was staged, so that neither waits for
    the other.

    size_bytes: size of the last applied batch, 0 for none. seconds: duration of its steps; staging
    the next one is expected to take as long for each byte.
    """
    stage_s = seconds.get("stage", 0.0)
    apply_s = sum(seconds.get(step, 0.0) for step in AFTER_STAGING)
    if not size_bytes or stage_s <= 0:
        return FIRST_BYTES
    return min(MAX_BYTES, max(FIRST_BYTES, int(size_bytes * GROWTH * apply_s / stage_s)))


logger = structlog.get_logger(__name__)

faults.declare("load.apart.before", "load.apart.after")

POLL_S = 0.5
PAUSE_CHECK_S = 5.0
STATE_INTERVAL_S = 1.0
ROWS_NAME = "rows"
APPLY_JOBS = "applying"  # of Spark, for targets that need them


class Actions(Protocol):
    """Reader of wirekite_action."""

    def word(self) -> str:
        """Return RUN, PAUSE or STOP; cheap enough to call between batches and while waiting."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Settings of the loader; those of Wirekite's guide have their names there.

    Attributes:
        starts: position of each source table from which its changes count, from the bulk load,
            which no other table had when it ended; None without a bulk load.
        settled: see `Window`, from the bulk load.
        keeping: limits for applied segments that are neither removed at once nor moved.
        read_open_segment: apply the durable part of the segment that is still being written.
        exit_when_done: end once CHANGE.DONE exists and everything before it is applied.
        choices: choices of [target.types], for source and target of different engines.
        isolates: leave a table behind that cannot be applied, while the others continue.
        broken: such tables of the bulk load.
        ships_frames: see BatchOptions.
        batch_s: shortest time between two batches, while fewer than ENOUGH_ROWS changes wait.
        apply_sessions: greatest number of sessions that apply a batch in parts.
        may_divide: whether parts of a batch may be committed one after the other now.
    """

    url: str
    log_directory: Path
    state_directory: Path
    run_directory: Path
    namespaces: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TableName, int] | None = None
    settled: Mapping[TableName, int] = field(default_factory=dict)
    max_files_per_batch: int = 30
    max_threads: int = 5
    remove_files: bool = False
    done_directory: Path | None = None
    keeping: Keeping = field(default_factory=Keeping)
    change_file_extension: str = EXTENSION_DEFAULT
    exit_when_done: bool = True
    read_open_segment: bool = True
    allow_triggers: bool = False
    choices: Choices = NO_CHOICES
    policies: Policies = EVOLVE_ALL
    isolates: bool = False
    broken: Mapping[TableName, PenstockError] = field(default_factory=dict)
    ships_frames: bool = False
    batch_s: float = 0.0
    apply_sessions: int = 1
    may_divide: Callable[[], bool] = lambda: True
    on_note: Callable[[PenstockError], None] = lambda _: None
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=20))


class Loader:
    """Loader of the change log into the target; callers only need run()."""

    def __init__(
        self,
        options: LoaderOptions,
        sessions: SessionKeeper,
        *,
        stop: Callable[[], bool],
        actions: Actions,
        copier: Copier | None = None,
        add_foreign_keys: Callable[[TableName], list[str]] | None = None,
        clock: Clock = REAL_CLOCK,
        files: Files = REAL_FILES,
    ) -> None:
        """Keep the parts; nothing happens yet. stop: whether to end at the next batch boundary.

        copier: copies the rows of tables that are added or loaded again. add_foreign_keys: creates
        those of such a table, with its deferred keys; returns the shortcomings.
        """
        self._options = options
        self._loading = loading_of(options.url)
        self._sessions = sessions
        self._stop = stop
        self._actions = actions
        self._clock = clock
        self._files = files
        self._target: Target | None = None
        self._ahead: StagePrefetch | None = None
        self._ahead_options: BatchOptions | None = None
        self._table_syncs = TableSyncFlow(
            options.state_directory, options.starts, copier, clock=clock, files=files
        )
        self._deferred_keys = DeferredKeyFlow(
            options.state_directory, options.url, add_foreign_keys, files
        )
        self._broken = BrokenTables(options, files)
        self._broken.errors.update(options.broken)
        self._applied, self._log_id = Applied(), ""
        self._batch_bytes = FIRST_BYTES
        self._pacing = Pacing(clock, batch_s=options.batch_s)
        self._tables_ahead: Mapping[TableName, int] = {}  # see `Target.read_ahead`
        self._is_away = False  # the target, according to the last try
        self._log_end = 0  # position up to which whole segments are applied
        self.state = LoaderState(pid=os.getpid())
        self._written_s = float("-inf")
        self._files_applied = AppliedFiles(
            options.log_directory,
            options.change_file_extension,
            removes=options.remove_files,
            done_directory=options.done_directory,
            keeping=options.keeping,
            clock=clock,
            files=files,
        )
        self._follower = LogFollower(options.log_directory, options.change_file_extension, files)
        self._rows_directory = options.run_directory / ROWS_NAME if sessions.is_local else None

    @property
    def applied_position(self) -> Applied:
        """Return the target's applied position, as last read or written."""
        return self._applied

    def run(self) -> LoaderState:
        """Load until the log is done, STOP, or stop(); return the last state.

        Raises errors that cannot be retried, and those that were retried too often.
        """
        patience = Patience(self._options.backoff)
        if self._rows_directory is not None:
            # Remove files of an earlier process; no other process may stage into it.
            shutil.rmtree(self._rows_directory, ignore_errors=True)
        try:
            while not self._has_ended():
                try:
                    if self._once():
                        patience.note_progress()
                except PenstockError as error:
                    self._handle_error(error, patience.wait_s(error))
                except self._loading.errors as error:
                    typed = self._loading.convert_error("loading changes", error)
                    self._handle_error(typed, patience.wait_s(typed))
            self._show("ended", at_once=True)
            return self.state
        finally:
            self._disconnect()

    def _has_ended(self) -> bool:
        return self._stop() or self._actions.word() == "STOP" or self._is_done()

    def _is_done(self) -> bool:
        directory, extension = self._options.log_directory, self._options.change_file_extension
        if not self._options.exit_when_done or not self._files.exists(directory / DONE_NAME):
            return False
        if list_open_segments(directory, extension, self._files):
            return False
        closed = list_segments(directory, extension, self._files)
        if self._target is None and (closed or self._deferred_keys.waiting(())):
            return False
        if self._target is not None and (
            self._table_syncs.is_busy
            or self._deferred_keys.due(self._table_syncs.left_out, self._find_covered)
        ):
            return False
        return not any(file.number > self._applied.segment for file in closed)

    def _once(self) -> bool:
        """Take one step, a batch or a wait; return whether something was applied."""
        if self._actions.word() == "PAUSE":
            self._abandon()
            self._show("paused")
            self._wait(PAUSE_CHECK_S)
            return False
        if not self._connect():
            self._show("waiting")
            self._wait(POLL_S)
            return False
        if self._broken.errors:
            self._isolate()
        is_uneven = self._table_syncs.is_frozen = self._is_uneven(self._applied)
        hold = read_hold(self._options.state_directory)
        if hold is not None and (hold.until is not None or not is_uneven):
            self._abandon()
            self._table_syncs.abandon()
            if self._is_outdated():
                self._open_ahead()
            return self._once_held(hold)
        self._move_tables()
        self._files_applied.remove_outlived(self._table_syncs.segment_needed(self._applied))
        if (not is_uneven and self._create_keys()) or self._catch_up():
            return True
        if self._table_syncs.is_near(self._applied):
            self._wait(POLL_S)  # the other tables wait for one small batch of this one
            return False
        return self._once_free()

    def _once_free(self) -> bool:
        """Apply the staged batch, and have the next one staged meanwhile."""
        assert self._ahead is not None
        if not self._ahead.is_asked:
            self._ahead.request(self._behind(self._applied))
        staged = self._ahead.fetch(POLL_S)
        if staged is None:
            self._show("applying" if self._ahead.is_staging else "waiting")
            return False
        if self._is_outdated() or self._table_syncs.due(self._applied):
            return False  # a table was added or is to be left out: this batch must not have it
        self._pacing.note_staged(staged.counts.changes)
        self._ahead.request(self._behind(staged.after), applying=staged)
        self._apply(staged)
        self._ahead.note_applied()
        return True

    def _once_held(self, hold: Hold) -> bool:
        """Wait, or apply exactly the rows that were committed before the hold's position."""
        if self._answer_hold(hold):
            self._show("held")
            self._wait(POLL_S)
            return False
        assert hold.until is not None, "only a hold with a position lets a loader apply"
        files = self._next_files(self._applied)
        if not files:
            self._show("waiting")
            self._wait(POLL_S)
            return False
        return self._batch_until(files, hold.until)

    def _abandon(self) -> None:
        if self._ahead is not None:
            self._ahead.abandon()

    def _wait(self, seconds: float) -> None:
        end = self._clock.monotonic_s() + seconds
        while not self._stop():
            left = end - self._clock.monotonic_s()
            if left <= 0:
                return
            self._clock.sleep(min(left, POLL_S))

    # --- batches ----------------------------------------------------------------------------------

    def _behind(self, applied: Applied) -> Wanted:
        """Return the batch that follows, of existing or expected segments."""
        size_max = self._batch_bytes
        return Wanted(
            applied=applied,
            look=lambda: self._next_files(applied, size_max) if self._is_due(applied) else [],
            wait=self._follower.wait,
        )

    def _is_due(self, applied: Applied) -> bool:
        """Return whether to look for the next batch; closed segments are due at once."""
        durable = self._follower.durable() if self._reads_open else None
        done = self._options.log_directory / DONE_NAME
        if durable is None or self._pacing.is_due(durable.end, applied):
            return True
        return self._options.exit_when_done and self._files.exists(done)

    @property
    def _reads_open(self) -> bool:
        # A table meets the others if both are at the end of a closed segment.
        meets = self._table_syncs.is_meeting(self._applied)
        return self._options.read_open_segment and not meets

    def _next_files(self, applied: Applied, size_max: int = MAX_BYTES) -> list[SegmentFile]:
        return self._follower.behind(
            applied.segment,
            applied.trx,
            count_max=self._options.max_files_per_batch,
            size_max=size_max,
            reads_open=self._reads_open,
        )

    def _apply(self, staged: Batch) -> None:
        assert self._target is not None
        self._show("applying")
        seconds = self._target.apply(staged)
        self.state.note_latency(staged, now_us=self._clock.now_us())
        for note in self._target.take_notes():
            if note.is_applied:
                self.state.note_alteration(str(note.table), note.text)
            else:
                self._options.on_note(SchemaChangeNotApplied.of(str(note.table), note.text))
        self._table_syncs.note_batch(staged.after.segment - self._applied.segment)
        self._applied = staged.after
        if not staged.is_cut:
            self._log_end = staged.after.position
        self._note(staged, seconds)
        self._batch_bytes = next_batch_bytes(staged.size_bytes, seconds)
        self._files_applied.dispose(staged.whole, self._table_syncs.segment_needed(self._applied))

    def _batch_until(self, files: list[SegmentFile], until: int) -> bool:
        """Apply the rows that were committed before `until`: whole segments first, then
        a cut one.
        """
        whole = []
        for file in files:
            if self._end_of(file) > until:
                break
            whole.append(file)
        if whole:
            return self._batch(whole, POSITION_MAX)
        done = self._batch(files[:1], until)
        if done:
            self._log_end = until
        return done

    def _end_of(self, file: SegmentFile) -> int:
        """Return the position where a segment ends, or the durable part of an open one.

        An open one is not opened for that: it may be closed, and renamed, at any moment.
        """
        if file.durable is not None:
            return file.durable.end.position
        with open_segment(file.path, extension=self._options.change_file_extension) as segment:
            return segment.end.position

    def _batch(self, files: list[SegmentFile], before: int) -> bool:
        """Stage and apply one batch, without staging another; return False if stopped."""
        assert self._ahead is not None
        self._ahead.request(Wanted(applied=self._applied, look=lambda: files, before=before))
        staged = None
        while staged is None:
            if self._stop():
                self._abandon()
                return False
            self._show("applying")
            staged = self._ahead.fetch(POLL_S)
        if self._is_outdated():
            return False
        self._apply(staged)
        return True

    def _note(self, staged: Batch, seconds: Mapping[str, float]) -> None:
        self.state.count_batch(staged, seconds)
        logger.info(
            "batch applied",
            files=len(staged.whole),
            rows=staged.counts.changes,
            tables=staged.tables,
            gsn=staged.after.gsn,
            **{f"{name}_s": value for name, value in seconds.items()},
        )
        self._show("applying")

    # --- table syncs ------------------------------------------------------------------------------

    def _move_tables(self) -> None:
        """Move tables out of the batches and back; see `load/table_sync.py`."""
        assert self._target is not None
        self._table_syncs.look()
        due = self._table_syncs.due(self._applied)
        if due:
            self._write_table_sync(due)
        if self._is_outdated():
            self._open_ahead()

    def _write_table_sync(self, rows: Sequence[TableSync]) -> None:
        assert self._target is not None
        self._abandon()
        faults.point("load.apart.before")
        self._target.write_table_sync(rows, at=self._applied)
        faults.point("load.apart.after")
        self._table_syncs.took(rows)
        self._target.forget()  # a copy may have recreated a table
        self._files_applied.tidy(self._table_syncs.segment_needed(self._applied))

    def _isolate(self) -> None:
        """Leave tables behind that cannot be applied; the reason is on disk before the target's
        row.
        """
        self._broken.keep()
        self._write_table_sync(self._table_syncs.isolate(self._broken.errors, self._applied))
        for error in self._broken.take():
            self._options.on_note(error)
        if self._is_outdated():
            self._open_ahead()

    def _is_outdated(self) -> bool:
        """Return whether the batches now have other tables than the staged ones."""
        self._table_syncs.look()
        return self._batch_options() != self._ahead_options

    def _catch_up(self) -> bool:
        """Apply a staged batch of one table that catches up, if any; return whether
        there was one.
        """
        assert self._target is not None
        found = self._table_syncs.find_staged(self._applied, self._next_files, self._ahead_of)
        if found is None:
            return False
        row, staged = found
        self._show("applying")
        self._target.apply(staged, table_sync=row, at=self._applied)
        self._table_syncs.took([self._table_syncs.caught_up(row, staged)])
        self.state.row_count += staged.counts.changes
        self._files_applied.tidy(self._table_syncs.segment_needed(self._applied))
        return True

    def _ahead_of(self, table: TableName) -> StagePrefetch:
        options = options_for(self._batch_options(), table)
        return StagePrefetch(options, self._sessions, self._loading, jobs=JOBS, clock=self._clock)

    # --- deferred keys ----------------------------------------------------------------------------

    def _create_keys(self) -> bool:
        """Create the deferred keys that are due; return whether there were any.

        Batches staged and catalogue facts read earlier are not used afterwards. Rows written
        directly to a table with one unique key would replace other rows if the table has two.
        """
        due = self._due_keys()
        if not due:
            return False
        assert self._target is not None
        self._abandon()
        self._table_syncs.abandon()
        self._show("applying", at_once=True)
        self._deferred_keys.create(due)
        self._target.forget()
        self._open_ahead()
        return True

    def _due_keys(self) -> list[DeferredTable]:
        return self._deferred_keys.due(self._table_syncs.left_out, self._find_covered)

    # --- holds ------------------------------------------------------------------------------------

    def _answer_hold(self, hold: Hold) -> bool:
        """Answer a hold of verify; return whether the loader has to wait."""
        reached = hold.until is not None and self._find_covered() >= hold.until
        if hold.until is not None and not reached:
            return False
        answer = HoldAnswer(
            nonce=hold.nonce,
            gsn=self._applied.gsn,
            position=self._applied.position,
            reached=hold.until if reached else None,
        )
        if read_held(self._options.state_directory, hold.nonce) != answer:
            if reached and self._target is not None:
                self._target.forget()  # a repair may write to it now
            write_held(self._options.state_directory, answer)
            logger.info("loader held", gsn=answer.gsn, reached=answer.reached)
        return True

    def _find_covered(self) -> int:
        """Return the position before which everything is applied.

        An idle source advances the log's end without a segment.
        """
        state = load_state(self._options.log_directory, self._files)
        if state is not None and state.number_next - 1 <= self._applied.segment:
            self._log_end = max(self._log_end, state.end.position)
        return self._log_end

    # --- connection, retries ----------------------------------------------------------------------

    def _connect(self) -> bool:
        """Connect to the target; return False while there is no log yet."""
        if self._target is not None and not self._target.is_closed:
            return True
        if not self._find_log():
            return False
        self._disconnect()
        target = self._open_target()
        try:
            target.use(lambda: self._sessions.get().with_jobs(APPLY_JOBS))
            applied = target.bind(self._log_id)
            self._tables_ahead = target.read_ahead()
            self._table_syncs.is_frozen = self._is_uneven(applied)
            self._table_syncs.set_rows(target.read_table_syncs())
        except BaseException:
            target.close()
            raise
        self._target = target
        if self._is_away:
            self._is_away = False
            self.state.note_progress()
        self._open_ahead()
        # If the target lost commits, the known end of the log is no longer valid.
        known = self._log_end if applied.is_at(self._applied) else 0
        self._applied, self._log_end = applied, max(known, applied.position)
        self._files_applied.tidy(self._table_syncs.segment_needed(self._applied))
        logger.info(
            "loader connected", gsn=self._applied.gsn, replica=target.replica, log=self._log_id
        )
        return True

    def _open_target(self) -> Target:
        target: Target = self._open_session()
        count = self._options.apply_sessions
        if count == 1 or not isinstance(target, SqlTarget):
            return target
        return PartedTarget(
            target,
            self._open_session,
            session_count=count,
            may_divide=self._options.may_divide,
        )

    def _open_session(self) -> Any:
        return self._loading.open_target(
            self._options.url,
            self._options.namespaces,
            allow_triggers=self._options.allow_triggers,
            choices=self._options.choices,
            policies=self._options.policies,
            clock=self._clock,
        )

    def _is_uneven(self, applied: Applied) -> bool:
        """Return whether some tables have more changes than the others, after a batch in parts."""
        return any(gsn > applied.gsn for gsn in self._tables_ahead.values())

    def _open_ahead(self) -> None:
        """Stage ahead with the current options."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead_options = self._batch_options()
        self._ahead = StagePrefetch(
            self._ahead_options, self._sessions, self._loading, clock=self._clock
        )

    def _batch_options(self) -> BatchOptions:
        return BatchOptions(
            url=self._options.url,
            log_id=self._log_id,
            namespaces=self._options.namespaces,
            threads_max=self._options.max_threads,
            extension=self._options.change_file_extension,
            choices=self._options.choices,
            policies=self._options.policies,
            starts=self._table_syncs.starts,
            settled={**self._options.settled, **self._deferred_keys.settled_positions},
            left_out=self._table_syncs.left_out,
            copied=self._table_syncs.copied_tables,
            rows_directory=self._rows_directory,
            ships_frames=self._options.ships_frames,
            ahead=self._tables_ahead,
        )

    def _find_log(self) -> bool:
        state = load_state(self._options.log_directory, self._files)
        if state is None:
            return False
        self._log_id = state.log_id
        return True

    def _disconnect(self) -> None:
        """Disconnect from the target; no batch is active there afterwards."""
        self._table_syncs.abandon()
        if self._ahead is not None:
            self._ahead.close()
        if self._target is not None:
            self._target.close()
        self._target, self._ahead = None, None
        self._follower.close()  # a log that is restored from a copy has another file

    def _handle_error(self, error: PenstockError, wait_s: float | None) -> None:
        """Leave the table behind that an error names, prepare a retry, or raise the error."""
        is_final = error.retry != "backoff" or wait_s is None
        if is_final and self._broken.learn(
            error, self._table_syncs.rows, self._next_files(self._applied)
        ):
            self._disconnect()
        else:
            self._retry(error, wait_s)

    def _retry(self, error: PenstockError, wait_s: float | None) -> None:
        """Prepare a retry, or raise the error."""
        self._disconnect()
        if error.retry != "backoff" or wait_s is None:
            self.state.problem = error.message
            self._show("ended", at_once=True)
            raise error
        if self._sessions.is_lost:  # whatever noticed it: a job, or a commit of a lake's classes
            self._sessions.renew()
        self._is_away = is_outage(error)
        self.state.note_failure(error.message, now_us=self._clock.now_us(), wait_s=wait_s)
        logger.warning("batch failed, trying again", wait_s=round(wait_s, 2), reason=error.message)
        self._show("retrying", at_once=True)
        self._wait(wait_s)

    # --- state file -------------------------------------------------------------------------------

    def _show(self, state: str, *, at_once: bool = False) -> None:
        now = self._clock.monotonic_s()
        is_due = at_once or now - self._written_s >= STATE_INTERVAL_S
        if not (is_due or (state != self.state.state and state in ("held", "paused"))):
            return
        self._written_s = now
        self.state.state, self.state.updated_us = state, self._clock.now_us()
        self.state.is_spark_starting = not self._sessions.is_ready
        self.state.applied_gsn = self._applied.gsn
        self.state.applied_segment = self._applied.segment
        self.state.applied_position = self._applied.position
        self.state.commit_time_us = self._applied.commit_time_us
        write_loader_state(self._options.run_directory, self.state, self._files)
