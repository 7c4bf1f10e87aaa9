"""Load changes into databases: stage in merge tables, apply in one transaction.

To stage a batch is to open its segments, plan, and fill merge tables with one Spark job. It touches
merge tables and the CL rows of the batch's files, never a base table. Staged rows can be discarded
at any moment, and are staged again from the segments. Staging only needs the position after which
the batch begins, so it may run while the previous batch is still being applied.

A batch is applied with all its phases and the applied position in one transaction of the target,
which can be repeated until its commit. Not here: an engine's statements and their order
(`ports.target.SqlTarget`), the choice and time of segments (`prefetch.py`) and of batches
(`loader.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import structlog

from penstock.codec.types import Choices
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementInterrupted
from penstock.load.alteration_cut import cut_at_alteration
from penstock.load.job import TaskOutcome, Work, run_tasks
from penstock.load.job_figures import TaskFigures
from penstock.load.plan import (
    BatchPlan,
    Phase,
    RelationUse,
    SegmentView,
    Task,
    Window,
    list_names,
    plan_batch,
    share_out,
)
from penstock.load.session import Session, SparkJobFailed
from penstock.load.shipping import Freight, spread
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment, SegmentOpener
from penstock.model import MarkerKind, PenstockError, TableName
from penstock.model.policies import Policies
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import (
    LOADING_PART,
    Batch,
    BatchOptions,
    BatchStager,
    Loading,
    Target,
    applied_behind,
)
from penstock.ports.registry import engine_at
from penstock.ports.target import (
    Applied,
    Counts,
    FileProgress,
    MergeSpec,
    MergeTable,
    PhaseSpec,
    ShapeNote,
    SqlTarget,
    Staging,
    StagingWriter,
    TableSync,
    TargetEngine,
    ValueRefused,
    engine_of,
    file_label,
    target_name,
)

faults.declare("load.prepare.before", "load.job.before")


class LogGap(PenstockError):
    """The next segment does not begin where the target's applied rows end."""

    code = "LD21"


class SegmentForeign(PenstockError):
    """A segment belongs to another change log."""

    code = "LD22"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """A batch that is staged in merge tables, to be applied.

    Attributes:
        before, after: required and resulting position of the target.
        place: set of merge tables that holds it.
        extra: those merge tables that no other batch needs.
        is_cut: whether it ends inside its last file (a hold).
        whole: files that are complete once it is applied.
        size_bytes: size of these files.
        source_engine: engine whose types the relations have.
        seconds: duration of each step.
    """

    before: Applied
    after: Applied
    place: int = 0
    is_cut: bool = False
    files: tuple[FileProgress, ...] = ()
    whole: tuple[SegmentFile, ...] = ()
    size_bytes: int = 0
    phases: tuple[PhaseSpec, ...] = ()
    extra: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    tables: int = 0
    heartbeats: tuple[int, ...] = ()
    source_engine: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


class Steps:
    """Seconds of each step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic_s()
        self.seconds: dict[str, float] = {}

    def end_step(self, name: str) -> None:
        """End a step and begin the next one."""
        now = self._clock.monotonic_s()
        self.seconds[name] = round(now - self._since, 4)
        self._since = now


def open_stager(
    engine: TargetEngine, options: BatchOptions, *, clock: Clock = REAL_CLOCK
) -> Stager:
    """Return a stager with its own connection to the target."""
    staging = engine.open_staging(
        options.url, choices=options.choices, directory=options.rows_directory
    )
    return Stager(staging, engine, options, clock=clock)


class Stager(BatchStager):
    """Stager of one batch after the other; it is discarded, with its connection, after an error."""

    def __init__(
        self,
        staging: Staging,
        engine: TargetEngine,
        options: BatchOptions,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the parts. staging: no one else may use it meanwhile."""
        self._staging = staging
        self._engine = engine
        self._options = options
        self._clock = clock
        self._opener = SegmentOpener(options.extension)

    def empty_ahead(self) -> None:
        self._staging.empty_ahead()

    def close(self) -> None:
        """Close the connection, and remove staged files outside of the target."""
        self._staging.close()

    def stage(
        self,
        files: Sequence[SegmentFile],
        session: Session,
        *,
        applied: Applied,
        before: int = POSITION_MAX,
        place: int = 0,
    ) -> StagedBatch:
        """Stage the rows after `applied` of these files, in one of the two sets of merge tables.

        before: limit to rows with a smaller position (a hold), or POSITION_MAX. Raises typed
        errors; then the next batch in this place empties all that is left.
        """
        steps = Steps(self._clock)
        with ExitStack() as stack:
            segments = [stack.enter_context(self._opener.open(file)) for file in files]
            self._check(segments, applied)
            source_engine = _source_engine(segments[0].header.source)
            after = _end(segments, applied, before)
            views = [view(segment) for segment in segments]
            closed = [
                one for one, segment in zip(views, segments, strict=True) if segment.is_closed
            ]
            window = self._window(applied.gsn, after.gsn, before)
            is_cut = before != POSITION_MAX
            plan = self._plan(views, window, session)
            if self._engine.ddl_commits and len(plan.phases) > 1:
                found = cut_at_alteration(segments, window, plan, applied=applied)
                if found is not None:
                    window, after = found
                    plan = self._plan(views, window, session)
                    is_cut = True
        steps.end_step("plan")
        faults.point("load.prepare.before")
        tasks, writers, extra = self._prepare(plan, place, source_engine)
        self._begin_files(closed, applied)
        steps.end_step("prepare")
        faults.point("load.job.before")
        outcomes = self._job(tasks, writers, session, f"changes {applied.gsn + 1} to {after.gsn}")
        steps.end_step("stage")
        sizes = zip(files, (segment.size_bytes for segment in segments), strict=True)
        return StagedBatch(
            before=applied,
            after=after,
            place=place,
            is_cut=is_cut,
            files=self._progress(closed, after),
            whole=tuple(file for file in files if file.number <= after.segment),
            size_bytes=sum(size for file, size in sizes if file.number <= after.segment),
            phases=tuple(
                self._phase(
                    phase, [task for task in tasks if task.phase == number], outcomes, writers
                )
                for number, phase in enumerate(plan.phases)
            ),
            extra=tuple(extra),
            counts=sum(map(_counts, outcomes.values()), Counts()),
            tables=len({task.table for task in tasks}),
            heartbeats=_heartbeats(views, applied, after),
            source_engine=source_engine,
            seconds=steps.seconds,
        )

    def _plan(self, views: Sequence[SegmentView], window: Window, session: Session) -> BatchPlan:
        return plan_batch(
            views,
            window,
            buckets_max=self._options.threads_max,
            on_cluster=not session.slots_are_fixed,
        )

    def _begin_files(self, segments: Sequence[SegmentView], applied: Applied) -> None:
        if self._options.only is None:
            # A file of which a batch has taken a part goes on: it has begun, and not again.
            log_id = self._options.log_id
            begun = [
                file_label(log_id, one.path.name)
                for one in segments
                if one.start.gsn >= applied.gsn
            ]
            self._staging.begin_files(begun)

    def _progress(
        self, segments: Sequence[SegmentView], after: Applied
    ) -> tuple[FileProgress, ...]:
        """Return the files' CL rows; none for a table that catches up, whose files have theirs.

        A segment gets its own once it is closed, even if all of it was applied before.
        """
        if self._options.only is not None:
            return ()
        log_id = self._options.log_id
        return tuple(_file_progress(segment, after, log_id) for segment in segments)

    def _check(self, segments: Sequence[Segment], applied: Applied) -> None:
        for segment in segments:
            if segment.header.log_id != self._options.log_id:
                raise SegmentForeign(
                    f"{segment.path.name} belongs to change log {segment.header.log_id}, expected "
                    f"{self._options.log_id}",
                    hint="Take the file out of the log directory; penstock log check shows all.",
                )
        first = segments[0]
        if not first.start.gsn <= applied.gsn <= first.end.gsn:
            raise LogGap(
                f"{first.path.name} holds rows {first.start.gsn + 1} to {first.end.gsn}, but the "
                f"target has the rows up to {applied.gsn}",
                hint="Run `penstock log check`; put missing segments back or load the tables "
                "afresh.",
            )

    def _prepare(
        self, plan: BatchPlan, place: int, source_engine: str
    ) -> tuple[list[Task], Mapping[str, StagingWriter], list[str]]:
        """Create empty merge tables for every phase of every table; return the tasks with their
        names.

        Also returns the writers by name, and the names that only a change of shape in mid-batch
        needs.
        """
        names: dict[tuple[int, TableName], str] = {}
        uses: dict[TableName, int] = {}
        extra: list[str] = []
        for phase in plan.phases:
            for relation in phase.relations:
                self._merge_name(TableName(relation.schema, relation.name))
        for task in plan.tasks:
            table = task.table
            if (task.phase, table) in names:
                continue
            uses[table] = uses.get(table, 0) + 1
            name = self._engine.staging_name(self._merge_name(table), place=place, use=uses[table])
            names[task.phase, table] = name
            if uses[table] > 1:
                extra.append(name)
        tasks = [replace(task, staging=names[task.phase, task.table]) for task in plan.tasks]
        again = {table for phase in plan.phases for table in phase.reloaded}
        wanted = {
            task.staging: MergeTable(
                name=task.staging,
                source=task.table,
                target=target_name(task.table, self._options.namespaces),
                relation=task.relation,
                is_plain=len(plan.phases) == 1 and task.table not in again,
            )
            for task in tasks
        }
        writers = self._staging.prepare(
            list(wanted.values()), place=place, source_engine=source_engine
        )
        self._staging.forget(extra)
        return tasks, writers, extra

    def _merge_name(self, table: TableName) -> str:
        return self._staging.merge_name(table, target_name(table, self._options.namespaces))

    def _job(
        self,
        tasks: list[Task],
        writers: Mapping[str, StagingWriter],
        session: Session,
        doing: str,
    ) -> dict[str, list[TaskOutcome]]:
        """Run the tasks; return each merge table's buckets, in order. doing: for
        Spark's web pages.
        """
        extension = self._options.extension
        works = [
            [
                Work(task=task, writer=writers[task.staging], extension=extension, shipped=shipped)
                for task in partition
            ]
            for partition in share_out(tasks, partitions_max=self._options.threads_max)
            for shipped in [self._freight(partition)]
        ]
        size = sum(ref.entry.length_bytes for task in tasks for ref in task.frames)
        tables = list_names(dict.fromkeys(task.table for task in tasks))
        doing = f"{doing}: {tables}, {size:,} bytes of the log read"
        way = {"spread": spread} if self._options.ships_frames else {}
        outcomes = session.run(works, run_tasks, description=doing, **way) if tasks else []
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        done = {(outcome.staging, outcome.bucket) for outcome in outcomes}
        if done != {(task.staging, task.bucket) for task in tasks}:
            raise SparkJobFailed(
                f"the Spark job did {len(done)} of {len(tasks)} tasks",
                hint="Look at spark.log in the run directory.",
            )
        if tasks:
            session.tell(doing, figures(tasks, outcomes))
        found: dict[str, list[TaskOutcome]] = {}
        for outcome in sorted(outcomes, key=lambda one: one.bucket):
            found.setdefault(outcome.staging, []).append(outcome)
        for name, buckets in found.items():
            staged = sum(one.staged.row_count for one in buckets)
            counts = _counts(buckets)
            if staged != counts.upserts + counts.deletes:
                raise SparkJobFailed(
                    f"{staged} rows were staged in {name}, expected "
                    f"{counts.upserts + counts.deletes}",
                    hint="This is a defect: nothing was applied. Please report it.",
                )
        return found

    def _freight(self, tasks: Sequence[Task]) -> Freight | None:
        """Return the frames that a partition's tasks read, if the workers cannot read the log."""
        if not self._options.ships_frames:
            return None
        return Freight(ref for task in tasks for ref in task.frames)

    def _window(self, gsn_after: int, gsn_upto: int, before: int) -> Window:
        """Return the window of the segments. before: position at which the batch ends."""
        options = self._options
        return Window(
            gsn_after=gsn_after,
            gsn_upto=gsn_upto,
            position_before=before,
            starts=options.starts,
            truncates=not options.policies.keeps_rows,
            left_out=options.left_out,
            only=options.only,
            copied=options.copied,
            settled=options.settled,
        )

    def _phase(
        self,
        phase: Phase,
        tasks: Sequence[Task],
        outcomes: Mapping[str, Sequence[TaskOutcome]],
        writers: Mapping[str, StagingWriter],
    ) -> PhaseSpec:
        names = self._options.namespaces
        return PhaseSpec(
            truncated=tuple(target_name(table, names) for table in phase.truncated),
            reloaded=tuple(target_name(table, names) for table in phase.reloaded),
            relations=phase.relations,
            starts=self._options.starts,
            merges=tuple(
                MergeSpec(
                    relation=task.relation,
                    table=target_name(task.table, names),
                    staging=task.staging,
                    stamp=writers[task.staging].stamp,
                    counts=_counts(outcomes[task.staging]),
                    absent_columns=frozenset().union(
                        *(one.absent_columns for one in outcomes[task.staging])
                    ),
                    staged=tuple(one.staged for one in outcomes[task.staging]),
                )
                for task in tasks
                if task.bucket == 0
            ),
        )


def figures(tasks: Sequence[Task], outcomes: Sequence[TaskOutcome]) -> list[TaskFigures]:
    """Return the figures of each task."""
    sizes = {
        (task.staging, task.bucket): sum(ref.entry.length_bytes for ref in task.frames)
        for task in tasks
    }
    names = {task.staging: str(task.table) for task in tasks}
    parts = {task.staging: task.buckets for task in tasks}
    return [
        TaskFigures(
            of=names[one.staging]
            + (f" {one.bucket + 1}/{parts[one.staging]}" if parts[one.staging] > 1 else ""),
            rows=one.staged.row_count,
            size_bytes=sizes[one.staging, one.bucket],
            seconds=one.seconds,
        )
        for one in outcomes
    ]


def _counts(buckets: Iterable[TaskOutcome]) -> Counts:
    """Return the counts of a whole table: each row is in one of its buckets."""
    return sum((one.counts for one in buckets), Counts())


def _source_engine(source: Mapping[str, str]) -> str:
    """Return the engine whose types a log has; flavours differ if their types do."""
    return source.get("flavour") or source.get("engine", "")


def _end(segments: Sequence[Segment], applied: Applied, before: int) -> Applied:
    """Return the target's position after this batch."""
    last = segments[-1]
    if before == POSITION_MAX:
        return applied_behind(last)
    cut = replace(applied, position=max(applied.position, before))
    trx_before = last.transactions.first_from(before)
    entries = [entry for entry in last.row_frames() if entry.trx_first < trx_before]
    for entry in sorted(entries, key=lambda e: e.gsn_last, reverse=True):
        if entry.gsn_last <= cut.gsn:
            break
        batch = last.read_rows(entry).batch
        count = int(np.searchsorted(batch.column("trx").to_numpy(), trx_before, side="left"))
        if count and batch.column("gsn")[count - 1].as_py() > cut.gsn:
            row = last.add_commit(batch.slice(count - 1, 1))
            cut = replace(
                cut,
                gsn=row.column("gsn")[0].as_py(),
                trx=row.column("trx")[0].as_py(),
                commit_time_us=row.column("commit_time")[0].value,
            )
    return cut


def _heartbeats(
    segments: Sequence[SegmentView], applied: Applied, after: Applied
) -> tuple[int, ...]:
    """Return the sending times of heartbeats between two places of the log."""
    return tuple(
        int(marker.data["sent_us"])
        for segment in segments
        for marker in segment.markers
        if marker.kind is MarkerKind.HEARTBEAT and applied.trx < marker.trx <= after.trx
    )


def _file_progress(segment: SegmentView, after: Applied, log_id: str) -> FileProgress:
    """Return a file's CL row, with the smaller of the file's last gsn and the batch's."""
    return FileProgress(
        file=file_label(log_id, segment.path.name),
        mark=min(segment.end.gsn, after.gsn),
        finished=segment.number <= after.segment,
    )


def view(segment: Segment) -> SegmentView:
    """Return the facts about a segment for planning."""
    return SegmentView(
        number=segment.number,
        path=Path(segment.path),
        start=segment.start,
        end=segment.end,
        relations=tuple(
            RelationUse(id=totals.id, gsn=totals.gsn, relation=segment.relation(totals.id))
            for totals in segment.tables
        ),
        frames=tuple(segment.row_frames()),
        trx_from=segment.transactions.first_from,
        markers=tuple(segment.markers()),
    )


logger = structlog.get_logger(__name__)
faults.declare(
    "load.alter.before",
    "load.alter.aside",
    "load.alter.freed",
    "load.alter.fill",
    "load.alter.between",
    "load.alter.after",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)

APPLY_ATTEMPTS_MAX = 6


class MergingTarget(Target):
    """Target that merges staged rows in one transaction with its progress."""

    def __init__(self, sql: SqlTarget, clock: Clock) -> None:
        """Keep the connection that applies."""
        self._sql = sql
        self._clock = clock
        self._log_id = ""

    @property
    def is_closed(self) -> bool:
        return self._sql.is_closed

    @property
    def replica(self) -> bool:
        return self._sql.replica

    def bind(self, log_id: str) -> Applied:
        self._log_id = log_id
        return self._sql.bind(log_id)

    def apply(
        self, batch: Batch, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        assert isinstance(batch, StagedBatch), "it was staged by our stager"
        return apply_batch(
            self._sql, batch, log_id=self._log_id, table_sync=table_sync, at=at, clock=self._clock
        )

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self._sql.read_table_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        with self._sql.transaction():
            self._sql.advance(log_id=self._log_id, before=at, after=at)
            for row in rows:
                self._sql.write_table_sync(row)

    def take_notes(self) -> list[ShapeNote]:
        return self._sql.take_notes()

    def forget(self) -> None:
        self._sql.forget()

    def close(self) -> None:
        self._sql.close()


def apply_batch(
    target: SqlTarget,
    staged: StagedBatch,
    *,
    log_id: str,
    table_sync: TableSync | None = None,
    at: Applied | None = None,
    clock: Clock = REAL_CLOCK,
) -> Mapping[str, float]:
    """Apply a staged batch and commit it; return the seconds of each step, also of staging.

    table_sync: the only table of the batch, which is then behind it. at: the target's position,
    which stays and keeps every other loader out. Raises typed errors. Then nothing of the batch is
    applied, or all of it (a lost COMMIT): the target's applied position shows which.
    """
    return _Batch(target, staged, log_id, table_sync, at or staged.before, clock).run()


class _Batch:
    """One staged batch while it is applied."""

    def __init__(
        self,
        target: SqlTarget,
        staged: StagedBatch,
        log_id: str,
        table_sync: TableSync | None,
        at: Applied,
        clock: Clock,
    ) -> None:
        self._table_sync = table_sync
        self._at = at
        self._target = target
        self._staged = staged
        self._log_id = log_id
        self._clock = clock
        self._steps = Steps(clock)
        self._merges = [spec for phase in staged.phases for spec in phase.merges]
        self._expected = {
            spec.staging: (spec.stamp, spec.staged_row_count) for spec in self._merges
        }

    def run(self) -> Mapping[str, float]:
        """Apply and commit; work that a lock or a deadlock interrupts is repeated unchanged."""
        self._target.need(spec.table for spec in self._merges)
        for attempt in range(1, APPLY_ATTEMPTS_MAX + 1):
            try:
                self._once()
                break
            except StatementInterrupted as error:
                self._target.forget()
                if attempt == APPLY_ATTEMPTS_MAX or self._target.is_closed:
                    raise
                logger.warning("apply interrupted", attempt=attempt, reason=error.message)
                self._clock.sleep(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311
            except ValueRefused as error:
                self._target.forget()
                last = attempt == APPLY_ATTEMPTS_MAX
                if last or not self._target.resolve_refusal(error, self._merges):
                    raise
            except BaseException:
                self._target.forget()
                raise
        self._target.drop_merge_tables(self._staged.extra)
        return {**self._staged.seconds, **self._steps.seconds}

    def _once(self) -> None:
        target, staged = self._target, self._staged
        faults.point("load.apply.before")
        target.reshape(staged.phases, source_engine=staged.source_engine, before=self._at)
        with target.transaction():
            # First of all, so that a second loader waits here and then finds itself refused.
            self._advance()
            target.check_staged(self._expected)
            target.apply_phases(staged.phases)
            faults.point("load.apply.after")
            self._steps.end_step("apply")
            faults.point("load.progress.before")
            target.end_files(staged.files)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        self._steps.end_step("commit")

    def _advance(self) -> None:
        target, staged, at = self._target, self._staged, self._at
        if self._table_sync is None:
            target.advance(log_id=self._log_id, before=at, after=staged.after)
            return
        target.advance(log_id=self._log_id, before=at, after=at)
        target.write_table_sync(replace(self._table_sync, applied=staged.after))


class SqlLoading(Loading):
    """Loading into a database. The load has one engine object, whose parts share their
    knowledge.
    """

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        return self._engine.errors

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        return self._engine.convert_error(doing, error)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool,
        choices: Choices,
        policies: Policies,
        clock: Clock,
    ) -> Target:
        sql = self._engine.open_target(
            url, namespaces, allow_triggers=allow_triggers, choices=choices, policies=policies
        )
        return MergingTarget(sql, clock)

    def open_stager(self, options: BatchOptions, *, clock: Clock) -> Stager:
        return open_stager(self._engine, options, clock=clock)


def loading_of(url: str) -> Loading:
    """Return the loading of the target that a URL names. Raises EngineUnknown, PartMissing."""
    engine = engine_at(url)
    if LOADING_PART in engine.parts:
        return engine.part(LOADING_PART)
    return SqlLoading(engine_of(url))
