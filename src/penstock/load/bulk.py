"""Run the bulk load: Spark tasks copy chunks of tables at a consistent point; then keys are added.

A killed load continues as long as the snapshot of its plan exists. After that, unfinished tables
are emptied and copied from the beginning at a new consistent point. Each table keeps its own point,
so the loader knows which changes its rows already include.

Not here: the origin of consistent points and chunk plans (the `Planner`, given by the caller), one
chunk's transaction (`chunk.py`), and keys that are created later (`deferred_keys.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.host.clock import REAL_CLOCK
from penstock.load.bulk_progress import OnProgress, Teller, Watch
from penstock.load.deferred_keys import deferred_tables, drop_deferred_keys, put_deferred_keys
from penstock.load.isolation import BrokenCopies
from penstock.load.job import copy_chunks
from penstock.load.job_figures import TaskFigures
from penstock.load.ledger import (
    Ledger,
    Step,
    next_step,
    read_ledger,
    target_not_empty,
    write_ledger,
)
from penstock.load.plan import list_names
from penstock.load.session import Session
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.words import count_words
from penstock.ports.bulk import (
    BulkTarget,
    Chunk,
    ChunkOutcome,
    ChunkStatus,
    ChunkTask,
    Mark,
    Planner,
    Point,
    SnapshotUnreachable,
    TablePlan,
    TableRead,
    bulk_source,
    check_names,
    open_bulk_target,
)
from penstock.ports.deferred_keys import DeferredTable, split_deferred
from penstock.ports.target import TargetShapeDiffers, target_name
from penstock.sql.read_plan import read_for_log, read_plan_of

logger = structlog.get_logger(__name__)

APPLICATION_NAME = "penstock bulk driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Options of a bulk load: where it reads and writes.

    Attributes:
        namespaces: source schema to target schema.
        servers: both servers, unless they have the same types.
        replaces: whether rows of a target table that no plan of this load wrote may be deleted.
        adds_foreign_keys: False leaves them to `finish_foreign_keys`, even if all tables are at one
            position.
        beside: whether the same session applies changes meanwhile, so that a slot is left to them.
        keys_directory: directory of the file with unique keys that wait for changes; None if no
            changes follow, so that none waits.
        shift: number that the change log adds to the source's positions.
        isolates: whether a table that cannot be copied is left behind while the others are loaded.
    """

    source_url: str = field(repr=False)
    target_url: str = field(repr=False)
    state_directory: Path
    run_directory: Path
    namespaces: Mapping[str, str] = field(default_factory=dict)
    max_threads: int = 5
    servers: ServerPair | None = None
    replaces: bool = False
    adds_foreign_keys: bool = True
    beside: bool = False
    keys_directory: Path | None = None
    shift: int = 0
    isolates: bool = False

    def open_target(self, application_name: str = APPLICATION_NAME) -> BulkTarget:
        """Connect to the target."""
        return open_bulk_target(
            self.target_url,
            self.namespaces,
            application_name=application_name,
            servers=self.servers,
        )


@dataclass(slots=True)
class BulkResult:
    """Result of a bulk load.

    Attributes:
        rows: total per source table, including earlier runs.
        positions: consistent point of each source table as an ordered number.
        notes: sentences for the user: tables copied from the beginning and why, and what the target
            lacks.
        foreign_keys_pending: whether tables are at different positions, so that their foreign keys
            wait (`finish_foreign_keys`) until changes are applied up to `settled`.
        broken: tables that were left behind, each with its error.
    """

    rows: dict[TableName, int] = field(default_factory=dict)
    positions: dict[TableName, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    foreign_keys_pending: bool = False
    settled: int = 0
    broken: Mapping[TableName, PenstockError] = field(default_factory=dict)

    @property
    def stands_at_one_position(self) -> bool:
        """Return whether all tables have the source's rows of one moment."""
        return all(position == self.settled for position in self.positions.values())


# Small chunks share a task: a task costs time, and so do new connections.
SMALL_TASK_BYTES = 16 * 2**20
CHUNK_COST_BYTES = 2**20  # what a chunk costs even if it is empty, in bytes that could be copied


def streams_per_task(slots: int, max_threads: int) -> int:
    """Return how many chunks a Spark task copies at once, so that all have at most max_threads.

    Spark runs as many tasks as there are cores. The two servers do the work, and a task waits for
    them: one chunk per core does not keep them busy.
    """
    return max(max_threads // slots, 1)


def chunk_tasks(
    plan: TablePlan,
    chunks: Sequence[Chunk],
    *,
    source_url: str,
    target_url: str,
    is_replica: bool,
    is_repeated: bool,
    details: object = None,
) -> list[ChunkTask]:
    """Return the tasks that copy these chunks of a plan.

    is_replica: whether the target receives rows as a replica. is_repeated: whether an earlier job
    may have copied them. details: of the target for its writers.
    """
    return [
        ChunkTask(
            source_url=source_url,
            target_url=target_url,
            table=plan.source,
            target=plan.target,
            chunk=chunk,
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=plan.snapshot_id,
            snapshot_text=plan.snapshot_text,
            plan=plan.name,
            replica_role=is_replica,
            read_plan=plan.read_plan,
            repeated=is_repeated,
            details=details,
        )
        for chunk in chunks
    ]


def partitions(tasks: Sequence[ChunkTask], slots: int, max_threads: int) -> list[list[ChunkTask]]:
    """Group tasks into Spark partitions, the largest tables first.

    With fewer threads than slots there are as many partitions as threads, loaded evenly. Otherwise
    each round of slots gets half of the rest: few partitions while there is much to do, and small
    ones at the end, so that all slots end together, whatever the tasks cost.
    """
    tables: dict[TableName, int] = {}
    for task in tasks:
        tables[task.table] = tables.get(task.table, 0) + task.chunk.size_bytes
    ordered = sorted(tasks, key=lambda t: (-tables[t.table], t.table, t.chunk.number))
    if max_threads < slots:
        return _evenly(ordered, max_threads)
    waiting = deque(ordered)
    left = sum(_cost(task) for task in ordered)
    least = min(SMALL_TASK_BYTES, left // (slots * 4))
    groups: list[list[ChunkTask]] = []
    while waiting:
        share = max(least, left / (2 * slots))
        for _ in range(slots):
            group, size = [], 0
            while waiting and size < share:
                size += _cost(waiting[0])
                group.append(waiting.popleft())
            left -= size
            if group:
                groups.append(group)
    return groups


def partitions_beside(
    tasks: Sequence[ChunkTask], slots: int, max_threads: int
) -> list[list[ChunkTask]]:
    """Group tasks so that other jobs always find a slot, or get the only one after each chunk."""
    ordered = sorted(tasks, key=lambda t: (t.table, t.chunk.number))
    if slots == 1:
        return [[task] for task in ordered]
    return _evenly(ordered, min(slots - 1, max_threads))


def describe_job(plans: Sequence[TablePlan], tasks: Sequence[ChunkTask]) -> str:
    """Return the description of a job for Spark's web pages."""
    size = sum(task.chunk.size_bytes for task in tasks)
    return (
        f"bulk load at {' '.join(sorted({plan.position for plan in plans}))}: "
        f"{list_names(plan.source for plan in plans)}, {count_words(len(tasks), 'chunk')}, "
        f"{size:,} bytes"
    )


def chunk_figures(
    tasks: Sequence[ChunkTask], outcomes: Sequence[ChunkOutcome]
) -> list[TaskFigures]:
    """Return the figures of each chunk's copy; bytes are those of the plan."""
    sizes = {(task.table, task.chunk.number): task.chunk.size_bytes for task in tasks}
    return [
        TaskFigures(
            of=f"{one.table} chunk {one.number}",
            rows=one.rows,
            size_bytes=sizes[one.table, one.number],
            seconds=one.seconds,
        )
        for one in outcomes
    ]


def _cost(task: ChunkTask) -> int:
    return task.chunk.size_bytes + CHUNK_COST_BYTES


def _evenly(ordered: Sequence[ChunkTask], count: int) -> list[list[ChunkTask]]:
    bins: list[tuple[int, int, list[ChunkTask]]] = [(0, i, []) for i in range(count)]
    for task in sorted(ordered, key=lambda t: -_cost(t)):
        size, index, held = heapq.heappop(bins)
        held.append(task)
        heapq.heappush(bins, (size + _cost(task), index, held))
    return [held for _, _, held in sorted(bins, key=lambda b: b[1]) if held]


FRESH_POINTS_MAX = 10  # a table that is truncated every few seconds is met in between
ROUNDS_MAX = 6
PAUSE_CHECK_S = 5.0  # Wirekite's guide: a paused loader looks every five seconds
STOP_CHECK_S = 0.2


class BulkUnsettled(PenstockError):
    """The source's tables were rewritten, or snapshots lost, too often."""

    code = "LD47"
    retry = "backoff"


class BulkStopped(PenstockError):
    """The bulk load was stopped; committed chunks are kept."""

    code = "LD48"


def load_in_bulk(
    session: Session,
    options: BulkOptions,
    definitions: Sequence[TableDefinition],
    planner: Planner,
    *,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> BulkResult:
    """Load tables that are not loaded yet; return when all rows, keys and indexes exist.

    While wirekite_action says PAUSE, running chunks are finished and no new one begins. It is safe
    to call this again after any end. Raises TargetHoldsRows, TargetFires, NamesCollide (nothing is
    changed then), errors of creating tables, BulkStopped if stop() or the action requested it, and
    the errors of failed chunks.
    """
    check_names(definitions, options.namespaces)
    with closing(options.open_target()) as target:
        target.use(lambda: session)
        load = _Load(session, options, definitions, planner, target, on_progress, stop)
        return load.run()


def finish_foreign_keys(options: BulkOptions, definitions: Sequence[TableDefinition]) -> list[str]:
    """Add the foreign keys that had to wait; call it when all tables are at one position.

    That is when the loader has applied everything before the greatest consistent point. Does
    nothing if they exist. Returns notes like `add_foreign_keys`.
    """
    ledger = read_ledger(options.state_directory)
    if ledger.foreign_keys_done:
        return []
    with closing(options.open_target()) as target:
        notes = target.add_foreign_keys(definitions)
    ledger.foreign_keys_done = True
    write_ledger(options.state_directory, ledger)
    return notes


class _Load:
    """One run of the bulk load; see load_in_bulk."""

    def __init__(
        self,
        session: Session,
        options: BulkOptions,
        definitions: Sequence[TableDefinition],
        planner: Planner,
        target: BulkTarget,
        on_progress: OnProgress | None,
        stop: Callable[[], bool],
    ) -> None:
        self.session = session
        self.options = options
        self.definitions = {definition.name: definition for definition in definitions}
        self.planner = planner
        self.target = target
        self.stop = stop
        self.ledger: Ledger = read_ledger(options.state_directory)
        self.begun = {plan.name for plan in self.ledger.plans}  # an earlier job may have had them
        self.result = BulkResult()
        self.replica_role = False
        self.unreachable: PenstockError | None = None
        self.gone: set[TableName] = set()  # at the source, since the load has begun
        self.broken = BrokenCopies(isolates=options.isolates)
        self.teller = Teller(options.run_directory, lambda: self.ledger.plans, on_progress)

    def run(self) -> BulkResult:
        if not self.ledger.finished:
            self.wait_while_paused()
        steps = self.first_steps()
        self.copy_all(steps)
        if not self.ledger.finished:  # else nothing was copied, and the source is not asked
            end = self.planner.release()
            if end is not None:
                self.ledger.settle(end)
            self.ledger.copied = True
            write_ledger(self.options.state_directory, self.ledger)
            self.wait_while_paused()
            self.tell("indexing")
            self.add_all_keys()
            self.ledger.finish()
            write_ledger(self.options.state_directory, self.ledger)
            self.tell("done")
        marks = self.target.marks()
        for plan in self.ledger.plans:
            position, settled = plan.ordinals(self.planner.positions)
            self.result.positions[plan.source] = position
            self.result.settled = max(self.result.settled, settled)
            self.result.rows[plan.source] = marks[plan.source].row_count or 0
        self.result.foreign_keys_pending = not self.ledger.foreign_keys_done
        self.result.broken = self.broken.errors
        return self.result

    def tell(self, phase: str) -> None:
        self.teller.tell(self.target, phase)

    def wait_while_paused(self) -> None:
        """Begin nothing while the action is PAUSE. Raises BulkStopped on a request to stop."""
        is_paused = False
        while True:
            word = self.target.read_action()
            if self.stop() or word == "STOP":
                raise _make_stop()
            if word == "RUN":
                break
            if not is_paused:
                is_paused = True
                logger.info("bulk load paused")
                self.tell("paused")
            until_s = REAL_CLOCK.monotonic_s() + PAUSE_CHECK_S
            while REAL_CLOCK.monotonic_s() < until_s and not self.stop():
                REAL_CLOCK.sleep(STOP_CHECK_S)
        if is_paused:
            logger.info("bulk load goes on")

    # -- before the first row ----------------------------------------------------------------------

    def first_steps(self) -> dict[TableName, Step]:
        """Check the target, refuse unfit tables, then create the missing ones."""
        targets = {name: target_name(name, self.options.namespaces) for name in self.definitions}
        found = self.target.look(targets.values())
        self.replica_role = self.target.is_replica()
        steps = {
            name: next_step(
                self.ledger.plan_of(name),
                found.marks.get(name),
                empty=found.empty.get(target, True),
                made=target not in found.empty,
            )
            for name, target in targets.items()
        }
        for name, step in steps.items():
            if step is Step.REFUSE and not self.options.replaces:
                raise target_not_empty(targets[name], found.truncates[targets[name]])
            if step is Step.REFUSE:
                steps[name] = Step.AFRESH
        for name, step in steps.items():
            if step is not Step.DONE and targets[name] in found.refusals:
                raise found.refusals[targets[name]]
        # A copy that is begun or done keeps its definition: the log has what the source did since.
        for name, step in steps.items():
            plan = self.ledger.plan_of(name)
            if step in (Step.GO_ON, Step.DONE) and plan is not None and plan.definition is not None:
                self.definitions[name] = plan.definition
        due = [self.definitions[name] for name, step in steps.items() if step is not Step.DONE]
        self.result.notes += self.create(due, steps)
        return steps

    def create(self, due: Sequence[TableDefinition], steps: dict[TableName, Step]) -> Sequence[str]:
        """Create the missing tables.

        A table that penstock created and that no longer has the source's shape is recreated: none
        of these tables holds a complete copy. Raises TargetShapeDiffers for any other table.
        """
        try:
            return self.target.create(due)
        except TargetShapeDiffers:
            outdated = [one for one in due if self.is_outdated(one)]
        for definition in outdated:
            self.target.drop_if_made(target_name(definition.name, self.options.namespaces))
        notes = self.target.create(due)
        for definition in outdated:
            steps[definition.name] = Step.AFRESH
            self.note(f"{definition.name} was altered in the source and is loaded from the start")
        return notes

    def is_outdated(self, definition: TableDefinition) -> bool:
        """Return whether the target's table does not fit. Creates the table if it is missing."""
        try:
            self.target.create([definition])
        except TargetShapeDiffers:
            return True
        return False

    # -- the rows ----------------------------------------------------------------------------------

    def copy_all(self, steps: dict[TableName, Step]) -> None:
        """Copy until every table is complete, in as few rounds as possible."""
        late = self.ledger.finished  # changes may be applied: an old snapshot will not do
        pending: dict[TableName, Step] = {
            name: step for name, step in steps.items() if step is not Step.DONE
        }
        if pending and self.ledger.finished:
            self.ledger.reopen()
        rounds = 0
        while rounds < ROUNDS_MAX:
            self.mark_lost_snapshots(pending)
            self.plan_afresh([t for t, s in pending.items() if s is Step.AFRESH], fresh=late)
            pending = {name: step for name, step in pending.items() if name not in self.gone}
            if not pending:
                return
            outcomes = self.copy_round(list(pending))
            pending = self.settle(pending, outcomes)
            if not pending:
                return
            if any(outcome.status is ChunkStatus.HELD for outcome in outcomes):
                self.wait_while_paused()
                continue
            late = True
            rounds += 1
            logger.info("bulk load goes into another round", round=rounds + 1, tables=len(pending))
        raise self.unreachable or BulkUnsettled(
            f"no consistent point in {ROUNDS_MAX} rounds for {next(iter(pending))}, the first of "
            f"the tables that could not be read ({len(pending)})",
            hint="Stop what truncates or rewrites these tables, then run the same command again.",
        )

    def mark_lost_snapshots(self, pending: dict[TableName, Step]) -> None:
        """Mark the tables whose snapshot is gone, so that they are copied from the beginning.

        If another snapshot of the same point exists, they continue with that.
        """
        alive, marks = dict[str, bool](), self.target.marks()
        for name, step in pending.items():
            plan = self.ledger.plan_of(name)
            if step is not Step.GO_ON or plan is None or not self.chunks_left(plan, marks):
                continue
            if plan.snapshot_id not in alive:
                alive[plan.snapshot_id] = self.is_alive(plan)
            if alive[plan.snapshot_id]:
                continue
            point = self.living_first_point()
            if point is not None and str(point.position) == plan.position:
                settled = str(point.settled) if point.settled is not None else ""
                self.ledger.put([plan.at(point.snapshot_id, point.snapshot_text, settled)])
                write_ledger(self.options.state_directory, self.ledger)
                continue
            pending[name] = Step.AFRESH
            self.note_lost_snapshot(plan)

    def note_lost_snapshot(self, plan: TablePlan) -> None:
        self.note(
            f"{plan.source} is loaded again from the start: the snapshot at {plan.position} that "
            "its load had begun with is gone",
        )

    def is_alive(self, it: TablePlan | Point) -> bool:
        url = self.options.source_url
        return bulk_source(url).snapshot_alive(url, it.snapshot_id, it.snapshot_text)

    def plan_afresh(self, tables: Sequence[TableName], *, fresh: bool) -> None:
        """Plan tables at a consistent point, in bulk.json first, then in the target."""
        if not tables:
            return
        point = None if fresh else self.living_first_point()
        plans, unfit = self.plans_at(point, tables) if point is not None else ([], list(tables))
        for _ in range(FRESH_POINTS_MAX):
            if not unfit:
                break
            point = self.planner.fresh_point()
            unfit = self.define_again(unfit)
            if unfit and (plans or any(self.ledger.plan_of(name) for name in unfit)):
                self.note(f"tables loaded at a later point, {point.position}: {len(unfit)}")
            later, unfit = self.plans_at(point, unfit)
            plans += later
        if unfit:
            raise BulkUnsettled(
                f"{unfit[0]} was truncated, altered or rewritten again while its load was planned, "
                f"{FRESH_POINTS_MAX} times in a row",
                hint="Stop what changes this table, then run the same command again.",
            )
        self.ledger.put(plans)
        self.ledger.foreign_keys_done = False
        write_ledger(self.options.state_directory, self.ledger)
        for table in self.deferred_tables(plans):
            drop_deferred_keys(self.options.target_url, table)
        self.target.begin_afresh(plans)

    def living_first_point(self) -> Point | None:
        point = self.planner.first_point()
        if point is None or not self.is_alive(point):
            return None
        return point

    def plans_at(
        self, point: Point, tables: Sequence[TableName]
    ) -> tuple[list[TablePlan], list[TableName]]:
        """Return the plans of the tables that are readable at a point, and the other tables."""
        reads = {name: self.read_of(self.definitions[name]) for name in tables}
        found = self.planner.chunks(point, [read for read, _ in reads.values()])
        plans = [
            self.plan_one(point, *reads[name], found[name]).with_new_name(self.ledger.plan_of(name))
            for name in tables
            if name in found
        ]
        return plans, [name for name in tables if name not in found]

    def read_of(self, definition: TableDefinition) -> tuple[TableRead, ReadPlan | None]:
        """Return the columns to read from a table, and how, for a target of another engine."""
        if self.target.reads_log_rows():
            relation, log_plan = read_for_log(definition, self.options.source_url)
            names = tuple(column.name for column in relation.columns)
            listed = names if log_plan is None else log_plan.expressions
            return TableRead(definition=definition, columns=listed), log_plan
        binary = self.target.takes_binary(definition)
        if self.options.servers is None:
            columns = tuple(c.name for c in definition.columns if not c.generated)
            return TableRead(definition=definition, columns=columns, binary=binary), None
        read_plan = read_plan_of(definition, self.options.servers, self.options.source_url)
        columns = tuple(read_plan.expressions or read_plan.columns)
        return TableRead(definition=definition, columns=columns, binary=binary), read_plan

    def plan_one(
        self, point: Point, read: TableRead, read_plan: ReadPlan | None, chunks: Sequence[Chunk]
    ) -> TablePlan:
        definition = read.definition
        return TablePlan(
            source=definition.name,
            target=target_name(definition.name, self.options.namespaces),
            columns=read.columns if read_plan is None else tuple(read_plan.columns),
            binary=read.binary,
            position=str(point.position),
            settled=str(point.settled) if point.settled is not None else "",
            snapshot_id=point.snapshot_id,
            snapshot_text=point.snapshot_text,
            chunks=tuple(chunks),
            read_plan=read_plan,
            definition=definition,
        )

    def chunks_left(self, plan: TablePlan, marks: Mapping[TableName, Mark]) -> list[Chunk]:
        """Return the chunks that the target does not record as done."""
        mark = marks.get(plan.source)
        done = mark.done if mark and mark.plan == plan.name else {}
        return [chunk for chunk in plan.chunks if chunk.number not in done]

    def copy_round(self, tables: Sequence[TableName]) -> list[ChunkOutcome]:
        """Run one Spark job over all remaining chunks of these tables."""
        plans = [plan for plan in self.ledger.plans if plan.source in set(tables)]
        marks = self.target.marks()
        tasks = [task for plan in plans for task in self.tasks(plan, marks)]
        self.begun.update(plan.name for plan in plans)
        description = describe_job(plans, tasks)
        slots, threads = self.session.parallelism, self.options.max_threads
        share = partitions_beside if self.options.beside else partitions
        if not self.options.beside and not self.session.slots_are_fixed:
            slots = threads + 1  # more may come while the job runs: `threads` tasks of one stream
        work, streams = share(tasks, slots, threads), streams_per_task(slots, threads)
        logger.info(
            "bulk copy began",
            tables=len(plans),
            chunks=len(tasks),
            tasks=len(work),
            streams=streams,
        )
        with Watch(
            self.options.open_target, self.teller, stop=self.stop, on_stop=self.session.cancel
        ):
            try:
                outcomes = self.session.run(
                    work, partial(copy_chunks, streams=streams), description=description
                )
            except PenstockError as error:
                if self.stop():
                    raise _make_stop() from error
                if error.retry != "backoff" or not self.session.alive:
                    raise
                logger.warning("bulk job is repeated", reason=error.message)
                return []
        self.session.tell(description, chunk_figures(tasks, outcomes))
        if self.stop():
            raise _make_stop()
        return outcomes

    def tasks(self, plan: TablePlan, marks: Mapping[TableName, Mark]) -> list[ChunkTask]:
        return chunk_tasks(
            plan,
            self.chunks_left(plan, marks),
            source_url=self.options.source_url,
            target_url=self.options.target_url,
            is_replica=self.replica_role,
            is_repeated=plan.name in self.begun,
            details=self.target.details_of(plan),
        )

    def settle(
        self, pending: dict[TableName, Step], outcomes: Sequence[ChunkOutcome]
    ) -> dict[TableName, Step]:
        """Finish the tables that are complete; return what to do with the others."""
        left: dict[TableName, Step] = {}
        gone = self.of_gone_snapshots(outcomes)
        errors = [
            (o.table, o.error)
            for o in outcomes
            if o.error is not None
            and not (isinstance(o.error, SnapshotUnreachable) and o.table in gone)
        ]
        rewritten = {o.table for o in outcomes if o.status is ChunkStatus.REWRITTEN}
        rewritten |= self.find_altered(errors)
        errors = [(table, error) for table, error in errors if table not in rewritten]
        again = gone | rewritten
        marks = self.target.marks()
        for name in pending:
            plan = self.ledger.plan_of(name)
            assert plan is not None
            if name in again:
                left[name] = Step.AFRESH
                if name in gone:
                    self.note_lost_snapshot(plan)
            elif self.chunks_left(plan, marks):
                left[name] = Step.GO_ON
            else:
                self.target.finish_table(plan)
                logger.info("bulk table copied", table=str(name), position=plan.position)
        for table, error in errors:
            self.broken.leave(table, error)
            left.pop(table, None)
        for name in sorted(rewritten):
            self.note(f"{name} was altered or rewritten in the source and is loaded again")
        return left

    def find_altered(self, errors: Sequence[tuple[TableName, PenstockError]]) -> set[TableName]:
        """Return the tables with errors of their rows that the source altered since their plan.

        Their rows need not fit the target table, which has the shape of the plan.
        """
        refused = {table for table, error in errors if "table" in error.fields}
        refused -= {table for table, error in errors if error.retry == "backoff"}
        if not refused:
            return set()
        now = {one.name: _made_by(one) for one in self.planner.define(sorted(refused))}
        plans = {plan.source: plan for plan in self.ledger.plans}
        return {
            table
            for table in refused
            if (planned := plans[table].definition) and now.get(table) != _made_by(planned)
        }

    def of_gone_snapshots(self, outcomes: Sequence[ChunkOutcome]) -> set[TableName]:
        """Return the tables that must be read at another point.

        Includes tables whose snapshot the workers could not reach, if this process cannot reach it
        either: then the holder of the snapshot is gone, and the network is fine.
        """
        gone = {o.table for o in outcomes if o.status is ChunkStatus.SNAPSHOT_GONE}
        alive: dict[str, bool] = {}
        for one in outcomes:
            if not isinstance(one.error, SnapshotUnreachable):
                continue
            plan = self.ledger.plan_of(one.table)
            assert plan is not None, "a chunk is of a plan"
            if plan.snapshot_id not in alive:
                alive[plan.snapshot_id] = self.is_alive(plan)
            if not alive[plan.snapshot_id]:
                gone.add(one.table)
                self.unreachable = one.error
        return gone

    def define_again(self, tables: Sequence[TableName]) -> list[TableName]:
        """Read the current definitions of tables; return the tables that still exist.

        A target table of ours with another shape is recreated.
        """
        changed = []
        there = {definition.name: definition for definition in self.planner.define(tables)}
        for name, definition in there.items():
            if _made_by(self.definitions[name]) != _made_by(definition):
                self.target.drop_if_made(target_name(name, self.options.namespaces))
                changed.append(definition)
            self.definitions[name] = definition
        self.target.create(changed)
        for name in tables:
            if name not in there:
                self.note(f"{name} was dropped in the source before it was copied")
                del self.definitions[name]
                self.gone.add(name)
                # Its later changes are not those of a copy: the loader passes over them.
                self.ledger.forget([name])
                write_ledger(self.options.state_directory, self.ledger)
        return list(there)

    # -- after the rows ----------------------------------------------------------------------------

    def add_all_keys(self) -> None:
        """Add keys, indexes and statistics; then foreign keys, if all tables are at one position.

        Tables that an earlier load finished are left out: they follow the log, and may lack what
        their current definitions at the source have.
        """
        definitions = list(self.definitions.values())
        plans = [plan for plan in self.ledger.plans if not plan.has_keys]
        names = {plan.source for plan in plans}
        deferred = {one.source: one for one in self.deferred_tables(plans)}
        if self.options.keys_directory is not None:
            put_deferred_keys(self.options.keys_directory, deferred.values(), instead_of=names)
        complete = [
            split_deferred(one)[0] if one.name in deferred else one
            for one in definitions
            if one.name in names
        ]
        add = partial(self.target.add_keys, threads=self.options.max_threads, stop=self.stop)
        self.broken.add_keys(add, complete)
        if self.stop():
            raise _make_stop()
        positions = {plan.settled or plan.position for plan in self.ledger.plans}
        positions |= {plan.position for plan in self.ledger.plans}
        if len(positions) <= 1 and self.options.adds_foreign_keys:
            self.result.notes += self.target.add_foreign_keys(definitions)
            self.ledger.foreign_keys_done = True

    def deferred_tables(self, plans: Sequence[TablePlan]) -> list[DeferredTable]:
        """Return the tables whose rows are of several moments, with their deferred keys."""
        if self.options.keys_directory is None:
            return []
        return deferred_tables(
            plans,
            self.definitions,
            self.target,
            positions=self.planner.positions,
            shift=self.options.shift,
            with_foreign_keys=not self.options.adds_foreign_keys,
        )

    def note(self, sentence: str) -> None:
        logger.warning("bulk load note", note=sentence)
        self.result.notes.append(sentence)


def _made_by(definition: TableDefinition) -> tuple[object, ...]:
    """Return the parts of a definition that determine how a target table is created."""
    return definition.columns, definition.primary_key, definition.unique_keys, definition.types


def _make_stop() -> BulkStopped:
    return BulkStopped(
        "the bulk load was stopped", hint="Run the same command again: it goes on where it was."
    )
