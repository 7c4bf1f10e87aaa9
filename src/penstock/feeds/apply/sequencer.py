"""Modes that write straight into the target: immediate, best effort, and the choice of `auto`.

Requests are accepted in any thread; sweeps belong to the holder of the target schema's lease. Not
here: the consistent mode through log and Spark, leases, the times of sweeps (`penstock.control`).

A sweep goes over the staged mutations of tables that foreign keys connect, in order of time.
Batches of whole times are written to the target, one transaction each, and are marked. If foreign
keys do not fit, the batch is tried once more; then its keys are poisoned: a later batch that has
one of them waits, too, and everything from the first such time on stays staged for the next round.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa
import structlog

from penstock.feeds.apply.admission import FeedEarly, admit, unreplaced_of
from penstock.feeds.apply.order import (
    Step,
    components_of,
    levels_of,
    net_steps_of,
    parents_of,
    steps_of,
)
from penstock.feeds.apply.tables import (
    DEFAULT_NAME,
    Batches,
    TableNotThere,
    Writer,
    dispatch,
    table_not_there,
)
from penstock.feeds.metrics import ApplyMetrics, labels
from penstock.feeds.position import (
    LeaseLost,
    PositionMoved,
    TakenOver,
    advance_to,
    check_fence,
    check_unmoved,
    settle,
    start_of,
)
from penstock.feeds.script import Script
from penstock.feeds.sessions import Sessions
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementFailed
from penstock.host.retry import Backoff, retrying
from penstock.model import PenstockError, TableDefinition
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import (
    CheckpointMoved,
    Group,
    Slice,
    Staged,
    StagedTable,
    StagingSession,
    Window,
    group_name,
)
from penstock.ports.row_apply import ReferenceMissing, RowSession, SchemaDrift
from penstock.ports.target import Applied

LOOK_AGAIN_S = 10.0
"""Seconds between looks at the lag, if nothing changes."""


def first_mode(window_s: float) -> StageMode:
    """Return the mode of `auto` before the lag is known."""
    return StageMode.BEST_EFFORT if window_s else StageMode.CONSISTENT


def next_mode(current: StageMode, lag_s: float, window_s: float) -> StageMode:
    """Return the mode of `auto`: the present one, unless the lag has become large or small.

    current: BEST_EFFORT or CONSISTENT. window_s: bestEffortWindow; 0: always consistent.
    """
    if not window_s:
        return StageMode.CONSISTENT
    if lag_s >= window_s:
        return StageMode.BEST_EFFORT
    if lag_s <= window_s / 4:
        return StageMode.CONSISTENT
    return current


logger = structlog.get_logger()
faults.declare(
    "stage.direct.looked",
    "stage.direct.applied",
    "stage.sweep.applied",
    "stage.sweep.moved",
    "stage.window.written",
    "stage.window.applied",
    "stage.window.committed",
)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SHAPES_KEPT_S = 60.0
UNRESOLVED_DELAY_S = 60
"""Seconds after which mutations are sweep_once before a group has a checkpoint."""
ATTEMPTS = Backoff(first_s=0.1, longest_s=2.0, attempts=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerOptions:
    """Options: for mode, best_effort_window_s and dlq_table see [stage].

    stages_all: directly written mutations are staged, too, for the consumers of the feed.
    """

    mode: StageMode = StageMode.AUTO
    best_effort_window_s: float = 3600.0
    dlq_table: str = DEFAULT_NAME
    stages_all: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """Tables of a group as the target had them."""

    tables: Mapping[str, TableDefinition]
    levels: Mapping[StagedTable, int]
    components: Mapping[StagedTable, frozenset[StagedTable]]
    read_s: float


@dataclass(frozen=True, slots=True)
class _Mode:
    mode: StageMode
    looked_s: float


class RowSequencer:
    """Writer of mutations into the target, row by row."""

    def __init__(
        self,
        target: Sessions[RowSession],
        *,
        metrics: ApplyMetrics,
        log_id: Callable[[Group], str],
        script: Script | None = None,
        options: SequencerOptions | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare. log_id: names the shared log that has a target schema's position."""
        self._log_id = log_id
        self._target, self._metrics, self._clock = target, metrics, clock
        self._script = script or Script()
        self._options = options or SequencerOptions()
        self._lock = threading.Lock()
        self._shapes: dict[Group, _Shape] = {}
        self._modes: dict[Group, _Mode] = {}

    @property
    def metrics(self) -> ApplyMetrics:
        """Counts of applying."""
        return self._metrics

    @property
    def dlq_table(self) -> str:
        """Name of the table of dead letters in each target schema."""
        return self._options.dlq_table

    # --- the mode ---------------------------------------------------------------------------------

    def mode(self, session: StagingSession, group: Group, *, look: bool = False) -> StageMode:
        """Return the present mode of a group. look: something has changed, so look at the lag."""
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

    def table_names(self, group: Group) -> list[str]:
        """Return the names of the tables of a target schema. Raises the target's errors."""
        return sorted(self._shape(group).tables)

    def is_rowwise(self, group: Group) -> bool:
        """Return whether the user's module has rules for a group that require row by row writes."""
        return any(rules.is_rowwise and rules.may_be_of(group) for rules in self._script.tables)

    # --- requests ---------------------------------------------------------------------------------

    def accept(
        self, session: StagingSession, group: Group, batches: Batches, partition: str
    ) -> dict[StagedTable, Staged]:
        """Apply or stage the mutations of a request, durably; return their outcome by table.

        Raises MutationLate, FeedEarly, the errors of staging, and in the mode immediate those of
        applying. partition: the feed that sends them.
        """
        batches = dispatch(
            group, batches, self._script, lambda table, why: self._table(group, table, why)
        )
        if not batches:
            return {}
        request = _Request(session, group, partition)
        added = retrying(
            lambda: self._accept(request, batches),
            backoff=ATTEMPTS,
            may_retry=lambda error: isinstance(error, PositionMoved | CheckpointMoved),
            sleep=self._clock.sleep,
        )
        return {
            table: Staged(added=added[table], duplicates=batch.num_rows - added[table])
            for table, batch in batches.items()
        }

    def _accept(self, request: _Request, batches: Batches) -> Counter[StagedTable]:
        """Return how many mutations are new, by table."""
        session, group = request.session, request.group
        admitted = admit(session, group, request.partition, batches)
        added: Counter[StagedTable] = Counter()
        if admitted.joining:
            self._check_consumers(group)
            write = partial(self._write_now, request, admitted.joining, is_joining=True)
            added += self._retry(group, write)
        mode = self.mode(session, group)
        if not admitted.on_time:
            return added
        if mode is StageMode.IMMEDIATE:
            return added + self._retry(group, partial(self._write_now, request, admitted.on_time))
        if mode is StageMode.BEST_EFFORT:
            return added + self._at_best(request, admitted.on_time)
        return added + self._stage(request, admitted.on_time)

    def _check_consumers(self, group: Group) -> None:
        """Raise FeedEarly if consumers would not get rows of a feed that joins."""
        if self._options.stages_all:
            raise FeedEarly(
                f"consumers of {group_name(group)} have read further than a new feed has begun",
                hint="Stop `penstock stage`, remove the folder feeds/ in the pipeline's directory "
                "and [consumers] of its file until the feed has resolved something; then consumers "
                "begin with what is still staged.",
                group=group_name(group),
            )

    def _stage(self, request: _Request, batches: Batches) -> Counter[StagedTable]:
        staged = request.session.stage(batches, partition=request.partition)
        return Counter({table: one.added for table, one in staged.items()})

    def _at_best(self, request: _Request, batches: Batches) -> Counter[StagedTable]:
        added: Counter[StagedTable] = Counter()
        connected = {}
        for table, batch in batches.items():
            done = self._directly(request, table, batch)
            if done is None:
                connected[table] = batch
            else:
                added += done
        return added + self._stage(request, connected) if connected else added

    def _directly(
        self, request: _Request, table: StagedTable, batch: pa.RecordBatch
    ) -> Counter[StagedTable] | None:
        """Apply a table's mutations without staging them; return None if they must be staged."""
        try:
            if len(self._shape(request.group).components.get(table, ())) != 1:
                return None
            with self._metrics.measure(self._metrics.direct_seconds, table):
                return self._write_now(request, {table: batch})
        except Exception as error:
            # The sweep also retries after a bug in the user's module, as after a lost server.
            self._metrics.direct_errors.labels(*labels(table)).inc()
            logger.warning("not applied directly", table=str(table), error=str(error))
            self._forget(request.group)
            return None

    def _write_now(
        self, request: _Request, batches: Batches, *, is_joining: bool = False
    ) -> Counter[StagedTable]:
        """Write mutations without staging them; return how many are new, by table.

        A key with staged mutations has its new ones staged after them. Raises PositionMoved if the
        facts that were looked at may have changed. is_joining: the mutations are those of a joining
        feed, which are earlier than any staged one.
        """
        session, group = request.session, request.group
        added: Counter[StagedTable] = Counter()
        with self._applying(group, batches) as (rows, shape):
            seen = rows.read_position(self._log_id(group))
            pending = {}
            for table, batch in batches.items():
                if is_joining:
                    free, pending[table] = batch, unreplaced_of(session, table, batch)
                else:
                    free = session.stage_if_exists(table, batch, partition=request.partition)
                    pending[table] = session.unapplied_of(table, free)
                deferred = batch.num_rows - free.num_rows
                self._metrics.direct_deferred.labels(*labels(table)).inc(deferred)
                added[table] = deferred + pending[table].num_rows
            faults.point("stage.direct.looked")
            self._write(
                rows, group, shape, pending, lambda there: check_unmoved(group, there, seen)
            )
            faults.point("stage.direct.applied")
            for table, batch in pending.items():
                session.mark_applied(table, batch, keep=self._options.stages_all)
                self._metrics.direct_applied.labels(*labels(table)).inc(batch.num_rows)
        return added

    # --- sweeps -----------------------------------------------------------------------------------

    def sweep(self, session: StagingSession, group: Group, holder: Callable[[], TakenOver]) -> Hlc:
        """Do one round over staged mutations, for the modes best effort and immediate.

        Moves the position to the returned time, up to which everything is applied. Call it with
        the lease of the group, again after about ten seconds if something had to wait. Raises
        the errors of applying, and LeaseLost.
        """
        window = settle(session, group, self._position(group))
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
            waits_from = self._sweep(session, group, some, window.committed, through, holder())
            if waits_from is not None:
                # Everything before the first waiting mutation is applied, and nothing at its time.
                done = min(done, _before(waits_from))
        if window.proposed != ZERO:
            done = max(window.committed, done)
            there = self._move(group, holder(), done)
            faults.point("stage.sweep.moved")
            settle(session, group, there)
        self.mode(session, group, look=True)
        return done

    def _position(self, group: Group) -> Applied:
        with self._target.session() as rows:
            return rows.read_position(self._log_id(group))

    def _move(self, group: Group, holder: TakenOver, through: Hlc) -> Applied:
        """Move the group's position to a time, unless it is there already; return the position."""
        with self._target.session() as rows, rows.transaction():
            there = rows.locked_position(holder.log_id)
            check_fence(group, there, holder)
            after = advance_to(there, through)
            if after != there:
                rows.advance(holder.log_id, before=there, after=after)
        return after

    def _sweep(
        self,
        session: StagingSession,
        group: Group,
        tables: list[StagedTable],
        after: Hlc,
        through: Hlc,
        holder: TakenOver,
    ) -> Hlc | None:
        metrics, first = self._metrics, tables[0]

        def apply(batches: Batches) -> int:
            return self._retry(group, lambda: self._apply_staged(session, group, batches, holder))

        for table in tables:
            metrics.sweep_active.labels(*labels(table)).set(1)
            metrics.sweep_attempt.labels(*labels(table)).set(self._clock.now_us() / 1e6)
        try:
            with metrics.measure(metrics.sweep_seconds, first):
                done = sweep_once(session, tables, after, through, apply)
        finally:
            for table in tables:
                metrics.sweep_active.labels(*labels(table)).set(0)
        if done.waits_from is None:
            for table in tables:
                metrics.sweep_success.labels(*labels(table)).set(self._clock.now_us() / 1e6)
        return done.waits_from

    def _apply_staged(
        self, session: StagingSession, group: Group, batches: Batches, holder: TakenOver
    ) -> int:
        """Apply a staged batch, and mark it."""
        with self._applying(group, batches) as (rows, shape):
            pending = {table: session.unapplied_of(table, one) for table, one in batches.items()}
            self._write(
                rows, group, shape, pending, lambda there: check_fence(group, there, holder)
            )
            faults.point("stage.sweep.applied")
            for table, batch in pending.items():
                session.mark_applied(table, batch)
                self._metrics.sweep_applied.labels(*labels(table)).inc(batch.num_rows)
        return sum(batch.num_rows for batch in pending.values())

    def round(
        self, session: StagingSession, group: Group, holder: Callable[[], TakenOver]
    ) -> StageMode:
        """Do the work of rows for a group now, and return its mode. Call it with the group's lease.

        holder: asked when something must be applied.
        """
        mode = self.mode(session, group)
        if mode is not StageMode.CONSISTENT:
            self.sweep(session, group, holder)
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
        was applied and not marked is only marked. Raises LeaseLost if another holder has taken
        over.
        """
        tables = session.staged_tables(group)

        def write(*, is_again: bool) -> Applied:
            with self._applying(group, dict.fromkeys(tables)) as (rows, shape), rows.transaction():
                there = rows.locked_position(holder.log_id)
                check_fence(group, there, holder)
                after = start_of(window, there)
                if after >= window.proposed:
                    return there
                writer = self._writer(group, shape)
                slices = session.read(tables, after, window.proposed, limit=FLUSH_ROWS)
                for step in _steps((one.rows for one in slices), shape.levels, is_net=is_again):
                    writer.write(rows, step)
                then = advance_to(there, window.proposed)
                rows.advance(holder.log_id, before=there, after=then)
                faults.point("stage.window.written")
            return then

        there = self._retry(group, lambda: _in_two_orders(write))
        faults.point("stage.window.applied")
        settle(session, group, there)
        faults.point("stage.window.committed")

    # --- the target -------------------------------------------------------------------------------

    @contextmanager
    def _applying(
        self, group: Group, tables: Mapping[StagedTable, object]
    ) -> Iterator[tuple[RowSession, _Shape]]:
        """Yield a session that locks these tables against other writers."""
        with self._target.session() as rows, rows.exclusive(tables.keys()):
            yield rows, self._shape(group, rows)

    def _write(
        self,
        rows: RowSession,
        group: Group,
        shape: _Shape,
        batches: Batches,
        check: Callable[[Applied], None],
    ) -> None:
        """Write mutations in one transaction. check: raises if the locked position forbids it."""
        if not any(batch.num_rows for batch in batches.values()):
            return
        writer = self._writer(group, shape)

        def write(*, is_again: bool) -> None:
            with rows.transaction():
                check(rows.locked_position(self._log_id(group), is_shared=True))
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

    def _retry(self, group: Group, work: Callable[[], T]) -> T:
        """Do work; repeat it after transient errors, and once if the shape may have changed."""
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
        """Return whether the tables may have changed since they were read."""
        with self._lock:
            known = self._shapes.get(group)
        return known is not None and self._clock.monotonic_s() - known.read_s > 1

    def _forget(self, group: Group) -> None:
        with self._lock:
            self._shapes.pop(group, None)


@dataclass(frozen=True, slots=True)
class _Request:
    """Request of a feed. partition: the feed, as in the table checkpoints."""

    session: StagingSession
    group: Group
    partition: str


class _Write(Protocol[T_co]):
    """Writer in a transaction. is_again: in the order of `net_steps_of`."""

    def __call__(self, *, is_again: bool) -> T_co: ...


def _steps(
    slices: Iterable[Batches], levels: Mapping[StagedTable, int], *, is_net: bool
) -> Iterator[Step]:
    if is_net:
        return net_steps_of(slices, levels)
    return (step for one in slices for step in steps_of(one, levels))


def _in_two_orders(write: _Write[T]) -> T:
    """Write in the published order or, if a foreign key refuses that, in the order of the net
    result.
    """
    try:
        return write(is_again=False)
    except ReferenceMissing:
        return write(is_again=True)


def _may_pass(error: BaseException) -> bool:
    """Return whether a retry may succeed at once.

    A missing referenced row stays missing, a lost lease stays lost,
    and a position that has moved makes another look at the request necessary.
    """
    stays = (ReferenceMissing, LeaseLost, PositionMoved, CheckpointMoved)
    return (
        isinstance(error, PenstockError)
        and error.retry == "backoff"
        and not isinstance(error, stays)
    )


def _before(time: Hlc) -> Hlc:
    """Return the last time before another."""
    return Hlc(time.nanos, time.logical - 1) if time.logical else Hlc(time.nanos - 1, 10**10 - 1)


FLUSH_ROWS = 1_000
"""Rows of a batch; more only if one slice has more."""

Apply = Callable[[Batches], int]
"""Applies the unapplied mutations of a batch, and marks them; returns their number."""


@dataclass(slots=True)
class Round:
    """Result of a round. waits_from: the first time that could not be applied."""

    applied: int = 0
    poisoned: set[tuple[StagedTable, str]] = field(default_factory=set)
    waits_from: Hlc | None = None


def sweep_once(
    session: StagingSession,
    tables: Collection[StagedTable],
    after: Hlc,
    through: Hlc,
    apply: Apply,
) -> Round:
    """Apply the staged mutations with after < time <= through, as far as possible.

    Raises the errors of apply except ReferenceMissing.
    """
    done = Round()
    for batches in _gather(session.read(tables, after, through, limit=FLUSH_ROWS)):
        keys = {
            (table, key)
            for table, batch in batches.items()
            for key in batch.column("key").to_pylist()
        }
        count = None if keys & done.poisoned else _try_apply(apply, batches)
        if count is None:
            done.poisoned |= keys
            first = _first_time(batches)
            done.waits_from = min(done.waits_from or first, first)
        else:
            done.applied += count
    return done


def _try_apply(apply: Apply, batches: Batches) -> int | None:
    """Apply a batch; return None if a foreign key does not fit, twice."""
    try:
        return apply(batches)
    except ReferenceMissing:
        pass
    try:
        return apply(batches)
    except ReferenceMissing as error:
        logger.warning("mutations wait for others", code=error.code, error=error.message)
        return None


def _gather(slices: Iterator[Slice]) -> Iterator[Batches]:
    """Yield slices put together until they are enough for a batch."""
    waiting: dict[StagedTable, list[pa.RecordBatch]] = {}
    count = 0
    for one in slices:
        for table, batch in one.rows.items():
            waiting.setdefault(table, []).append(batch)
            count += batch.num_rows
        if count >= FLUSH_ROWS:
            yield {table: _join(batches) for table, batches in waiting.items()}
            waiting, count = {}, 0
    if count:
        yield {table: _join(batches) for table, batches in waiting.items()}


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _first_time(batches: Batches) -> Hlc:
    return min(
        Hlc(batch.column("nanos")[0].as_py(), batch.column("logical")[0].as_py())
        for batch in batches.values()
        if batch.num_rows
    )
