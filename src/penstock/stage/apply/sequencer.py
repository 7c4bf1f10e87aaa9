"""The modes that write straight into the target: immediate, best effort, and which `auto` is in.

Requests are accepted in any thread; sweeps belong to who has the lease of the target schema. Not
here: the consistent mode through log and Spark, leases, when to sweep (`penstock.control`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import pyarrow as pa
import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementFailed
from penstock.host.retry import Backoff, retrying
from penstock.model import PenstockError, TableDefinition
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.row_apply import ReferenceMissing, RowSession, SchemaDrift
from penstock.ports.stage_config import StageMode
from penstock.ports.stage_groups import position_behind, time_through
from penstock.ports.staging import Group, Staged, StagedTable, StagingSession, Window, group_name
from penstock.stage.apply.dead_letters import DEFAULT_NAME
from penstock.stage.apply.dispatching import Batches, dispatched
from penstock.stage.apply.metrics import ApplyMetrics, labels
from penstock.stage.apply.order import (
    Step,
    components_of,
    levels_of,
    net_steps_of,
    parents_of,
    steps_of,
)
from penstock.stage.apply.sweep import FLUSH_ROWS, swept
from penstock.stage.apply.switching import LOOK_AGAIN_S, first_mode, next_mode
from penstock.stage.apply.tables import TableNotThere, Writer, table_not_there
from penstock.stage.consistent.beginning import TakenOver
from penstock.stage.consistent.lease import lease_lost
from penstock.stage.receiver.sessions import Sessions
from penstock.stage.script import Script

logger = structlog.get_logger()
faults.declare(
    "stage.direct.applied",
    "stage.sweep.applied",
    "stage.window.written",
    "stage.window.applied",
    "stage.window.marked",
    "stage.window.committed",
)
T = TypeVar("T")
SHAPES_KEPT_S = 60.0
UNRESOLVED_DELAY_S = 60
"""Before a group has a checkpoint, what is older than this is swept."""
ATTEMPTS = Backoff(first_s=0.1, longest_s=2.0, attempts=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerOptions:
    """mode, best_effort_window_s, dlq_table: see [stage].

    stages_all: what is written directly is staged, too, for the consumers of the feed.
    """

    mode: StageMode = StageMode.AUTO
    best_effort_window_s: float = 3600.0
    dlq_table: str = DEFAULT_NAME
    stages_all: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """The tables of a group as the target had them."""

    tables: Mapping[str, TableDefinition]
    levels: Mapping[StagedTable, int]
    components: Mapping[StagedTable, frozenset[StagedTable]]
    read_s: float


@dataclass(frozen=True, slots=True)
class _Mode:
    mode: StageMode
    looked_s: float


class RowSequencer:
    """Writes mutations into the target row by row."""

    def __init__(
        self,
        target: Sessions[RowSession],
        *,
        metrics: ApplyMetrics,
        script: Script | None = None,
        options: SequencerOptions | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._target, self._metrics, self._clock = target, metrics, clock
        self._script = script or Script()
        self._options = options or SequencerOptions()
        self._lock = threading.Lock()
        self._shapes: dict[Group, _Shape] = {}
        self._modes: dict[Group, _Mode] = {}

    @property
    def metrics(self) -> ApplyMetrics:
        """What applying counts."""
        return self._metrics

    @property
    def dlq_table(self) -> str:
        """The table of dead letters in each target schema."""
        return self._options.dlq_table

    # --- which mode -------------------------------------------------------------------------------

    def mode(self, session: StagingSession, group: Group, *, look: bool = False) -> StageMode:
        """The mode that a group is in now. look: something has changed, so look at the lag."""
        if self._options.mode is not StageMode.AUTO:
            return self._options.mode
        window_s, now_s = self._options.best_effort_window_s, self._clock.monotonic_s()
        with self._lock:
            known = self._modes.get(group)
        if known is not None and not look and now_s - known.looked_s < LOOK_AGAIN_S:
            return known.mode
        current = first_mode(window_s) if known is None else known.mode
        lag_s = self._clock.now_us() / 1e6 - session.window(group).committed.nanos / 1e9
        mode = next_mode(current, lag_s, window_s)
        if known is not None and known.mode is not mode:
            logger.info("mode changed", schema=group_name(group), mode=mode.value, lag_s=lag_s)
        with self._lock:
            self._modes[group] = _Mode(mode, now_s)
        return mode

    def is_rowwise(self, group: Group) -> bool:
        """Whether the user's module has rules for tables of a group that only rows can follow."""
        return any(rules.is_rowwise and rules.may_be_of(group) for rules in self._script.tables)

    # --- requests ---------------------------------------------------------------------------------

    def accept(
        self, session: StagingSession, group: Group, batches: Batches
    ) -> dict[StagedTable, Staged]:
        """Take the mutations of a request: when it returns, they are applied or staged, durably.

        Raises what staging does, and in the mode immediate what applying does.
        """
        batches = dispatched(
            group, batches, self._script, lambda table, why: self._table(group, table, why)
        )
        if not batches:
            return {}
        mode = self.mode(session, group)
        if mode is StageMode.IMMEDIATE:
            return self._retried(group, lambda: self._immediately(session, group, batches))
        if mode is StageMode.BEST_EFFORT:
            return self._at_best(session, group, batches)
        return session.stage(batches)

    def _immediately(
        self, session: StagingSession, group: Group, batches: Batches
    ) -> dict[StagedTable, Staged]:
        with self._applying(group, batches) as (rows, shape):
            pending = {table: session.unapplied_of(table, one) for table, one in batches.items()}
            self._write(rows, group, shape, pending)
            self._mark_written(session, pending)
        return {
            table: Staged(
                added=pending[table].num_rows, duplicates=one.num_rows - pending[table].num_rows
            )
            for table, one in batches.items()
        }

    def _at_best(
        self, session: StagingSession, group: Group, batches: Batches
    ) -> dict[StagedTable, Staged]:
        staged: dict[StagedTable, Staged] = {}
        connected = {}
        for table, batch in batches.items():
            done = self._directly(session, group, table, batch)
            if done is None:
                connected[table] = batch
            else:
                staged[table] = done
        return {**staged, **session.stage(connected)} if connected else staged

    def _directly(
        self, session: StagingSession, group: Group, table: StagedTable, batch: pa.RecordBatch
    ) -> Staged | None:
        """Apply a table's mutations without staging them; None: they are to be staged.

        A key with staged mutations has its new ones staged behind them.
        """
        names = labels(table)
        try:
            shape = self._shape(group)
            if len(shape.components.get(table, ())) != 1:
                return None
            with (
                self._metrics.timed(self._metrics.direct_seconds, table),
                self._applying(group, {table: batch}) as (rows, shape),
            ):
                free = session.stage_if_exists(table, batch)
                self._metrics.direct_deferred.labels(*names).inc(batch.num_rows - free.num_rows)
                pending = session.unapplied_of(table, free)
                if pending.num_rows:
                    self._write(rows, group, shape, {table: pending})
                    faults.point("stage.direct.applied")
                    self._mark_written(session, {table: pending})
        except Exception as error:
            # Of a bug in the user's module no less than of a lost server: the sweep tries again.
            self._metrics.direct_errors.labels(*names).inc()
            logger.warning("not applied directly", table=str(table), error=str(error))
            self._forget(group)
            return None
        self._metrics.direct_applied.labels(*names).inc(pending.num_rows)
        added = batch.num_rows - free.num_rows + pending.num_rows
        return Staged(added=added, duplicates=batch.num_rows - added)

    def _mark_written(self, session: StagingSession, pending: Batches) -> None:
        """Mark what was written without having been staged."""
        if self._options.stages_all:
            session.stage(pending)
        for table, batch in pending.items():
            session.mark_applied(table, batch)

    # --- sweeps -----------------------------------------------------------------------------------

    def sweep(self, session: StagingSession, group: Group) -> Hlc:
        """One round over what is staged, for the mode best effort; everything <= is applied.

        Commits the checkpoints up to there. Call it with the lease of the group, again after
        about ten seconds where something had to wait. Raises what applying does.
        """
        window = session.window(group)
        through = window.proposed
        if window.proposed == ZERO:
            now_s = self._clock.now_us() // 1_000_000
            through = Hlc(max(0, now_s - UNRESOLVED_DELAY_S) * 1_000_000_000)
        if through <= window.committed:
            return window.committed
        tables = session.staged_tables(group)
        components = self._shape(group).components
        done = through
        for component in {components.get(one, frozenset({one})) for one in tables}:
            some = [table for table in tables if table in component]
            waits_from = self._sweep(session, group, some, window.committed, through)
            if waits_from is not None:
                done = min(done, waits_from)
        if done == through and window.proposed != ZERO:
            session.commit(group, through)
        elif window.proposed != ZERO:
            # Checkpoints in front of what waits; the one at or behind its time is not reached.
            done = max(window.committed, _before(done))
            session.commit(group, done)
        self.mode(session, group, look=True)
        return done

    def _sweep(
        self,
        session: StagingSession,
        group: Group,
        tables: list[StagedTable],
        after: Hlc,
        through: Hlc,
    ) -> Hlc | None:
        metrics, first = self._metrics, tables[0]

        def apply(batches: Batches) -> int:
            return self._retried(group, lambda: self._apply_staged(session, group, batches))

        for table in tables:
            metrics.sweep_active.labels(*labels(table)).set(1)
            metrics.sweep_attempt.labels(*labels(table)).set(self._clock.now_us() / 1e6)
        try:
            with metrics.timed(metrics.sweep_seconds, first):
                done = swept(session, tables, after, through, apply)
        finally:
            for table in tables:
                metrics.sweep_active.labels(*labels(table)).set(0)
        if done.waits_from is None:
            for table in tables:
                metrics.sweep_success.labels(*labels(table)).set(self._clock.now_us() / 1e6)
        return done.waits_from

    def _apply_staged(self, session: StagingSession, group: Group, batches: Batches) -> int:
        """Apply a batch that is staged, and mark it."""
        with self._applying(group, batches) as (rows, shape):
            pending = {table: session.unapplied_of(table, one) for table, one in batches.items()}
            self._write(rows, group, shape, pending)
            faults.point("stage.sweep.applied")
            for table, batch in pending.items():
                session.mark_applied(table, batch)
                self._metrics.sweep_applied.labels(*labels(table)).inc(batch.num_rows)
        return sum(batch.num_rows for batch in pending.values())

    def round(
        self, session: StagingSession, group: Group, holder: Callable[[], TakenOver]
    ) -> StageMode:
        """Do what rows can do for a group now, and give its mode. Call it with the group's lease.

        holder: asked where the mode is consistent, when a window is to be applied.
        """
        mode = self.mode(session, group)
        if mode is not StageMode.CONSISTENT:
            self.sweep(session, group)
        else:
            window = session.window(group)
            if window.proposed > window.committed:
                self.apply_window(session, group, window, holder())
        return mode

    def apply_window(
        self, session: StagingSession, group: Group, window: Window, holder: TakenOver
    ) -> None:
        """Apply a window in one target transaction, mark it and commit its checkpoints.

        The transaction moves the position that the target has of the group's log, so a window that
        was applied and not marked is only marked. Raises LeaseLost where another holder has taken
        over.
        """
        tables = session.staged_tables(group)

        def write(*, is_again: bool) -> None:
            with self._applying(group, dict.fromkeys(tables)) as (rows, shape), rows.transaction():
                before = rows.locked_position(holder.log_id)
                if before.segment != holder.segment:
                    raise lease_lost(group_name(group), "another instance has taken over")
                after = max(window.committed, time_through(before.position))
                if after >= window.proposed:
                    return
                writer = self._writer(group, shape)
                slices = session.read(tables, after, window.proposed, limit=FLUSH_ROWS)
                for step in _steps((one.rows for one in slices), shape.levels, is_net=is_again):
                    writer.write(rows, step)
                position = position_behind(window.proposed)
                rows.advance(holder.log_id, before=before, after=replace(before, position=position))
                faults.point("stage.window.written")

        self._retried(group, lambda: _in_two_orders(write))
        faults.point("stage.window.applied")
        session.mark_applied_through(tables, window.proposed, after=window.committed)
        faults.point("stage.window.marked")
        session.commit(group, window.proposed)
        faults.point("stage.window.committed")

    # --- the target -------------------------------------------------------------------------------

    @contextmanager
    def _applying(
        self, group: Group, tables: Mapping[StagedTable, object]
    ) -> Iterator[tuple[RowSession, _Shape]]:
        """A session for which nobody else writes these tables."""
        with self._target.session() as rows, rows.exclusive(tables.keys()):
            yield rows, self._shape(group, rows)

    def _write(self, rows: RowSession, group: Group, shape: _Shape, batches: Batches) -> None:
        writer = self._writer(group, shape)

        def write(*, is_again: bool) -> None:
            with rows.transaction():
                for step in _steps([batches], shape.levels, is_net=is_again):
                    writer.write(rows, step)

        try:
            _in_two_orders(write)
        except Exception:
            for table in batches:
                self._metrics.errors.labels(*labels(table)).inc()
            raise

    def _writer(self, group: Group, shape: _Shape) -> Writer:
        return Writer(
            group=group,
            tables=shape.tables,
            script=self._script,
            metrics=self._metrics,
            dlq_table=self._options.dlq_table,
        )

    def _retried(self, group: Group, work: Callable[[], T]) -> T:
        """Work done again after what may pass, once also after what another shape may explain."""
        try:
            return retrying(work, backoff=ATTEMPTS, may_retry=_may_pass, sleep=self._clock.sleep)
        except (SchemaDrift, TableNotThere, StatementFailed):
            if not self._is_old(group):
                raise
            self._forget(group)
            return retrying(work, backoff=ATTEMPTS, may_retry=_may_pass, sleep=self._clock.sleep)

    def _table(self, group: Group, table: StagedTable, why: str) -> TableDefinition:
        found = self._shape(group).tables.get(table.name)
        if found is None and self._is_old(group):
            self._forget(group)
            found = self._shape(group).tables.get(table.name)
        if found is None:
            raise table_not_there(table, why)
        return found

    def _shape(self, group: Group, rows: RowSession | None = None) -> _Shape:
        with self._lock:
            known = self._shapes.get(group)
        if known is not None and self._clock.monotonic_s() - known.read_s < SHAPES_KEPT_S:
            return known
        if rows is None:
            with self._target.session() as opened:
                tables = opened.tables(group)
        else:
            tables = rows.tables(group)
        parents = parents_of(group, tables)
        now_s = self._clock.monotonic_s()
        shape = _Shape(tables, levels_of(parents), components_of(parents), now_s)
        with self._lock:
            self._shapes[group] = shape
        return shape

    def _is_old(self, group: Group) -> bool:
        """Whether the tables may be others by now than when they were read."""
        with self._lock:
            known = self._shapes.get(group)
        return known is not None and self._clock.monotonic_s() - known.read_s > 1

    def _forget(self, group: Group) -> None:
        with self._lock:
            self._shapes.pop(group, None)


class _Write(Protocol):
    """Writes in a transaction. is_again: in the order of `net_steps_of`."""

    def __call__(self, *, is_again: bool) -> None: ...


def _steps(
    slices: Iterable[Batches], levels: Mapping[StagedTable, int], *, is_net: bool
) -> Iterator[Step]:
    if is_net:
        return net_steps_of(slices, levels)
    return (step for one in slices for step in steps_of(one, levels))


def _in_two_orders(write: _Write) -> None:
    """Write in the published order; where a foreign key objects, in the other one."""
    try:
        write(is_again=False)
    except ReferenceMissing:
        write(is_again=True)


def _may_pass(error: BaseException) -> bool:
    """Whether the same may succeed at once; a missing row that is referred to will not."""
    return isinstance(error, PenstockError) and error.retry == "backoff" and error.code != "ST62"


def _before(time: Hlc) -> Hlc:
    """The last time in front of another."""
    return Hlc(time.nanos, time.logical - 1) if time.logical else Hlc(time.nanos - 1, 10**10 - 1)
