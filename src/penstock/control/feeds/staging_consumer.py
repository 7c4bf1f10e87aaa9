"""`[staging]` in a pipeline of any source: a consumer that stages each change until it is applied.

It is a consumer like those of the file: it has links of its own, and neither the load nor another
consumer waits for it. Its rows are for operators; no process applies them. A thread beside it marks
the rows that the target has, and retires old ones. Not here: changes as mutations, and their times
(`penstock.feeds.log_changes`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog

from penstock.consume.api import CdcConsumer
from penstock.feeds.log_changes import (
    Changes,
    LogMarks,
    Mark,
    Timed,
    assign_times,
    mutations,
    time_of,
)
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.feeds.retire import Retiring
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.retry import Patience
from penstock.host.supervised import SupervisedThread
from penstock.log.layout import load_state
from penstock.model import PenstockError, Relation, TableName
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import seconds
from penstock.ports.config import Config
from penstock.ports.feeds import (
    Group,
    StagedTable,
    StagingDatabase,
    StagingSession,
    group_name,
    staging_at,
)
from penstock.ports.progress import TargetReader, open_target_reader
from penstock.ports.target import SyncState, target_name

if TYPE_CHECKING:
    from penstock.consume.batches import CdcBatch
    from penstock.consume.metrics import MetricRegistry

logger = structlog.get_logger(__name__)
faults.declare("staging.rows.staged", "staging.marks.saved", "staging.applied.rows")

CHUNK_ROWS = 20_000
CHUNK_MARKS = 100
MARK_POLL_S = 0.5
ADVANCE_S = 1.0
WAITING = (SyncState.PAUSED, SyncState.COPYING, SyncState.CATCHING_UP)


class StagingConsumer(CdcConsumer):
    """Consumer that stages its changes. file: the pipeline file that has [staging]."""

    def __init__(self, file: str) -> None:
        """Read the file; nothing is connected yet."""
        # Not at the top: the configuration names this class.
        from penstock.control.pipeline.config import load_config

        self._config = load_config(Path(file))
        staging = self._config.staging
        assert staging is not None, "a pipeline with [staging]"
        self._database = staging_at(staging.url)
        self._retire_after_s = seconds(staging.retire_offset)
        self._names = _Names(self._config)
        self._stack = ExitStack()
        self._advanced: dict[Group, Hlc] = {}
        self._has_looked = False
        self._advance_s = 0.0

    def start(self, _metrics: MetricRegistry) -> None:
        """Create missing staging tables, and begin marking."""
        self._database.create()
        self._session = self._stack.enter_context(self._database.open_session())
        state = load_state(self._config.layout.log)
        assert state is not None, "a log that is consumed"
        self._marks = LogMarks.load(self._session, state.log_id, self._floor)
        self._applied = _AppliedThread(
            self._config, self._database, self._names, self._marks, self._retire_after_s
        )
        self._stack.callback(self._applied.close)
        for group in self._marks.groups:
            self._advanced[group] = self._session.window(group).proposed

    def _floor(self) -> Hlc:
        """Return the time up to which rows of an earlier log for this target are staged."""
        names = self._session.group_names()
        groups = [found for name in names if (found := self._names.group_of(name)) is not None]
        return max((self._session.window(group).proposed for group in groups), default=ZERO)

    def on_batches(self, batches: Iterator[CdcBatch]) -> bool:
        """Stage these changes. They are durable when it returns."""
        changes: list[Changes] = []
        count = 0
        for one in batches:
            changes.append(Changes(one.relation, one.batch))
            count += one.batch.num_rows
            if one.ends_run and count >= CHUNK_ROWS:
                break
        if changes:
            self._stage(changes)
        return True

    def _stage(self, changes: list[Changes]) -> None:
        first = min(one.batch.column("gsn")[0].as_py() for one in changes)
        times = assign_times(changes, self._marks.before(first))
        found = mutations(changes, times, self._names.staged_table)
        self._session.stage(found)
        faults.point("staging.rows.staged")
        groups = {table.group for table in found}
        self._marks.add(_marks(times), groups, self._applied.gsn)
        self._marks.save(self._session)
        faults.point("staging.marks.saved")
        for group in groups:
            self._advanced.setdefault(group, ZERO)
        self._advance(_whole(times))

    def _advance(self, time: Hlc) -> None:
        """Record that all transactions up to a time are staged; once a second at most."""
        now_s = REAL_CLOCK.monotonic_s()
        if now_s < self._advance_s:
            return
        self._advance_s = now_s + ADVANCE_S
        for group, advanced in self._advanced.items():
            if time > advanced:
                self._session.advance(group, group_name(group), time)
                self._advanced[group] = time

    def on_truncate(self, table: str, gsn: int) -> None:
        """Log the truncate: no mutation represents it, and staged rows stay as history."""
        logger.info("table emptied at the source", table=table, gsn=gsn)

    def alive(self) -> bool:
        """Do the periodic work between two looks at the log, after whole transactions."""
        self._applied.check()
        if self._has_looked:
            self._advance(self._marks.last)
        self._has_looked = True
        return True

    def stop(self) -> None:
        """Close what is open."""
        self._stack.close()


def _marks(times: Timed) -> list[Mark]:
    """Return marks at the ends of some transactions, evenly spread, and of the last one so far."""
    ends = np.flatnonzero(np.diff(times.trxs))
    some = ends[:: len(ends) // CHUNK_MARKS + 1].tolist()
    return [Mark(int(times.gsns[at]), times.time(at)) for at in (*some, len(times.gsns) - 1)]


def _whole(times: Timed) -> Hlc:
    """Return the time through which transactions are certainly whole: the last may continue."""
    at = int((times.trxs != times.trxs[-1]).sum())
    return times.time(at - 1) if at else ZERO


class _Names:
    """Names of the target's tables, and their groups."""

    def __init__(self, config: Config) -> None:
        schemas = TargetSchemas(config)
        self._namespaces: Mapping[str, str] = config.target.map
        self._first = (schemas.database,) if schemas.group_parts == 2 else ()
        self.group_of: Callable[[str], Group | None] = schemas.group_of

    def staged_table(self, relation: Relation) -> StagedTable:
        """Return the table into which a relation's rows are written."""
        return self.table(TableName(relation.schema, relation.name))

    def table(self, source: TableName) -> StagedTable:
        """Return the target table of a source table."""
        target = target_name(source, self._namespaces)
        return StagedTable((*self._first, target.schema), target.name)


class _AppliedThread:
    """Thread that marks staged rows applied as far as the target has them, beside the consumer.

    gsn: of the last change that the target has.
    """

    def __init__(
        self,
        config: Config,
        database: StagingDatabase,
        names: _Names,
        marks: LogMarks,
        retire_after_s: float,
    ) -> None:
        self.gsn = 0
        self._config, self._database, self._names, self._marks = config, database, names, marks
        self._retire_after_s = retire_after_s
        self._error: PenstockError | None = None
        self._ended = threading.Event()
        self._done: dict[StagedTable, Hlc] = {}
        self._retiring: dict[Group, SupervisedThread] = {}
        self._thread = SupervisedThread("applied", self._run, wait=self._ended.wait)
        self._thread.start()

    def check(self) -> None:
        """Raise the error after which it cannot continue."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End it."""
        self._ended.set()
        for thread in (self._thread, *self._retiring.values()):
            thread.join()

    def _run(self) -> None:
        patience = Patience()
        while not self._ended.is_set():
            try:
                with self._open() as (session, target):
                    self._done.clear()
                    while not self._ended.wait(MARK_POLL_S):
                        self._mark(session, target)
                        patience.note_progress()
            except PenstockError as error:
                wait_s = patience.wait_s(error)
                if error.retry != "backoff" or wait_s is None:
                    self._error = error
                    return
                logger.warning("marking goes on", error=error.message, wait_s=round(wait_s, 1))
                self._ended.wait(wait_s)

    @contextmanager
    def _open(self) -> Iterator[tuple[StagingSession, TargetReader]]:
        url = self._config.target.url
        with (
            self._database.open_session() as session,
            closing(open_target_reader(url, application_name="penstock staging")) as target,
        ):
            yield session, target

    def _mark(self, session: StagingSession, target: TargetReader) -> None:
        """Mark the applied rows; of a table with a table sync, those up to its position.

        The rows of one that was removed or isolated stay unapplied, and delay no others.
        """
        if not target.present()[0] or target.log_id() != self._marks.log_id:
            return  # it has nothing of this log yet
        syncs = target.table_syncs()
        self.gsn = target.read_applied().gsn
        marks = self._marks.marks
        applied = time_of(marks, self.gsn)
        alone = {
            self._names.table(name): time_of(marks, sync.applied.gsn)
            for name, sync in syncs.items()
            if sync.state is not SyncState.FOLLOWING
        }
        waiting = {self._names.table(name) for name, sync in syncs.items() if sync.state in WAITING}
        for group in self._marks.groups:
            tables = session.staged_tables(group)
            for table in tables:
                self._mark_table(session, table, alone.get(table, applied))
            through = min([applied, *(alone[table] for table in tables if table in waiting)])
            window = session.window(group)
            if min(through, window.proposed) > window.committed:
                session.commit(group, through)
            self._retire(group)

    def _mark_table(self, session: StagingSession, table: StagedTable, applied: Hlc) -> None:
        done = self._done.get(table)
        if done is None:
            done = min(session.window(table.group).committed, applied)
        if applied > done:
            session.mark_applied_through([table], applied, after=done)
            faults.point("staging.applied.rows")
        self._done[table] = max(done, applied)

    def _retire(self, group: Group) -> None:
        """Delete old rows beside all else."""
        if group not in self._retiring:
            retiring = Retiring(
                self._database, group, after_s=self._retire_after_s, check=lambda: None
            )
            thread = SupervisedThread(
                "retire", lambda: retiring.run(self._ended.wait), wait=self._ended.wait
            )
            thread.start()
            self._retiring[group] = thread
