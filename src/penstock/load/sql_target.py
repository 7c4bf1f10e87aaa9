"""Stage changes for a database, in merge tables.

To stage a batch is to open its segments, plan, and fill merge tables with one Spark job. It touches
merge tables and the CL rows of the batch's files, never a base table. Staged rows can be discarded
at any moment, and are staged again from the segments. Staging only needs the position after which
the batch begins, so it may run while the previous batch is still being applied.

Not here: applying a staged batch (`ports.sql_target.SqlTarget`), the choice and time of segments
(`prefetch.py`) and of batches (`loader.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from penstock.codec.ckt import FrameKind
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock, Steps
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
from penstock.load.shared_rows import open_directories
from penstock.load.shipping import Freight, spread
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment, SegmentOpener
from penstock.model import MarkerKind, PenstockError, TableName
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import LOADING_PART, BatchOptions, BatchStager, Loading, applied_behind
from penstock.ports.registry import engine_at
from penstock.ports.target import (
    Applied,
    Counts,
    FileProgress,
    HistoryWriter,
    MergeBatch,
    MergeSpec,
    MergeTable,
    PhaseSpec,
    Staging,
    StagingWriter,
    Target,
    TargetEngine,
    engine_of,
    file_label,
    target_name,
)

faults.declare("load.prepare.before", "load.job.before")


HISTORY_SUFFIX = "_history"
"""End of the name under which all changes of a table are staged."""


class LogGap(PenstockError):
    """The next segment does not begin where the target's applied rows end."""

    code = "LD21"


class SegmentForeign(PenstockError):
    """A segment belongs to another change log."""

    code = "LD22"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch(MergeBatch):
    """A batch that is staged in merge tables, as the loader sees it (`Batch`).

    Attributes:
        place: set of merge tables that holds it.
        is_cut: whether it ends inside its last file (a hold).
        whole: files that are complete once it is applied.
        size_bytes: size of these files.
    """

    place: int = 0
    is_cut: bool = False
    whole: tuple[SegmentFile, ...] = ()
    size_bytes: int = 0
    counts: Counts = field(default_factory=Counts)
    tables: int = 0
    heartbeats: tuple[int, ...] = ()


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
            tables=len({task.table for task in tasks if not task.is_history}),
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
            with_history=self._staging.takes_history,
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
            self._staging.progress.begin_files(begun)

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
    ) -> tuple[list[Task], Mapping[str, StagingWriter | HistoryWriter], list[str]]:
        """Create empty merge tables for every phase of every table; return the tasks with their
        names.

        Also returns the writers by name, and the names that only a change of shape in mid-batch
        needs.
        """
        names: dict[tuple[int, TableName, bool], str] = {}
        uses: dict[tuple[TableName, bool], int] = {}
        extra: list[str] = []
        for phase in plan.phases:
            for relation in phase.relations:
                self._merge_name(TableName(relation.schema, relation.name))
        for task in plan.tasks:
            table, is_history = task.table, task.is_history
            if (task.phase, table, is_history) in names:
                continue
            use = uses[table, is_history] = uses.get((table, is_history), 0) + 1
            merge_name = self._merge_name(table) + (HISTORY_SUFFIX if is_history else "")
            name = self._staging.staging_name(merge_name, place=place, use=use)
            names[task.phase, table, is_history] = name
            if use > 1:
                extra.append(name)
        tasks = [
            replace(task, staging=names[task.phase, task.table, task.is_history])
            for task in plan.tasks
        ]
        again = {table for phase in plan.phases for table in phase.reloaded}
        emptied = [{*phase.truncated, *phase.reloaded} for phase in plan.phases]
        wanted = {
            task.staging: MergeTable(
                name=task.staging,
                source=task.table,
                target=target_name(task.table, self._options.namespaces),
                relation=task.relation,
                is_plain=len(plan.phases) == 1 and task.table not in again,
                is_emptied=task.table in emptied[task.phase],
                overlaps=task.overlaps,
                copied_at=self._options.starts.get(task.table),
                is_history=task.is_history,
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
        writers: Mapping[str, StagingWriter | HistoryWriter],
        session: Session,
        doing: str,
    ) -> dict[str, list[TaskOutcome]]:
        """Run the tasks; return each merge table's buckets, in order. doing: for
        Spark's web pages.
        """
        extension = self._options.extension
        tables = list_names(dict.fromkeys(task.table for task in tasks))
        way = {"spread": spread} if self._options.ships_frames else {}
        with open_directories(self._options.rows_directory, tasks) as shared:
            works = [
                [
                    Work(
                        task=task,
                        writer=writers[task.staging],
                        extension=extension,
                        shipped=shipped,
                        shared=shared.get(task.staging),
                    )
                    for task in partition
                ]
                for partition in share_out(tasks, partitions_max=self._options.threads_max)
                for shipped in [self._freight(partition)]
            ]
            size = sum(one.read_bytes for works_together in works for one in works_together)
            doing = f"{doing}: {tables}, {size:,} bytes of the log read"
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
            session.tell(doing, figures([one for some in works for one in some], outcomes))
        found: dict[str, list[TaskOutcome]] = {}
        for outcome in sorted(outcomes, key=lambda one: one.bucket):
            found.setdefault(outcome.staging, []).append(outcome)
        histories = {task.staging for task in tasks if task.is_history}
        for name, buckets in found.items():
            if name in histories:
                continue
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
        return Freight(ref for task in tasks for ref in (*task.frames, *task.transactions))

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
            ahead=options.ahead,
        )

    def _phase(
        self,
        phase: Phase,
        tasks: Sequence[Task],
        outcomes: Mapping[str, Sequence[TaskOutcome]],
        writers: Mapping[str, StagingWriter | HistoryWriter],
    ) -> PhaseSpec:
        names = self._options.namespaces
        specs = {
            task.staging: MergeSpec(
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
        }
        histories = {task.staging for task in tasks if task.is_history}
        return PhaseSpec(
            truncated=tuple(target_name(table, names) for table in phase.truncated),
            reloaded=tuple(target_name(table, names) for table in phase.reloaded),
            relations=phase.relations,
            starts=self._options.starts,
            gsn=phase.gsn_upto,
            merges=tuple(spec for name, spec in specs.items() if name not in histories),
            histories=tuple(spec for name, spec in specs.items() if name in histories),
            emptyings=tuple((target_name(table, names), one) for table, one in phase.emptyings),
        )


def figures(works: Sequence[Work], outcomes: Sequence[TaskOutcome]) -> list[TaskFigures]:
    """Return the figures of each task."""
    tasks = [work.task for work in works]
    sizes = {(work.task.staging, work.task.bucket): work.read_bytes for work in works}
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
        transactions=tuple(
            entry for entry in segment.entries if entry.kind == FrameKind.TRANSACTIONS
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLoading(Loading):
    """Loading into a database (`Loading`): the engine's functions, and our stager.

    The load has one engine object, whose parts share their knowledge.
    """

    errors: tuple[type[BaseException], ...]
    convert_error: Callable[..., PenstockError]
    open_target: Callable[..., Target]
    open_stager: Callable[..., BatchStager]


def loading_of(url: str) -> Loading:
    """Return the loading of the target that a URL names. Raises EngineUnknown, PartMissing."""
    engine = engine_at(url)
    if LOADING_PART in engine.parts:
        return engine.part(LOADING_PART)
    database = engine_of(url)
    return SqlLoading(
        errors=database.errors,
        convert_error=database.convert_error,
        open_target=database.open_target,
        open_stager=partial(open_stager, database),
    )
