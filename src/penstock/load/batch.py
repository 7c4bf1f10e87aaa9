"""One batch: open segments, plan, stage by one Spark job, apply in one target transaction.

The whole batch is repeatable until its commit: merge tables are emptied at its start, and the
applied position moves in the same transaction as the rows. Not here: which segments and when
(`loader.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.connect import StatementInterrupted, quoted, server_errors
from penstock.load.fold import Counts
from penstock.load.job import Outcome, Work, run_tasks
from penstock.load.merge_rows import MergeLayout
from penstock.load.plan import (
    POSITION_MAX,
    Plan,
    RelationUse,
    SegmentView,
    Task,
    Window,
    plan_batch,
    share_out,
)
from penstock.load.postgres import progress
from penstock.load.postgres.apply import MergeSpec, PhaseSpec, Target, ValueRefused, apply_phases
from penstock.load.postgres.enums import add_missing_labels
from penstock.load.postgres.progress import Applied, FileProgress
from penstock.load.postgres.staging import StagingArea
from penstock.load.postgres.types import target_name
from penstock.load.session import Session, SparkJobFailed
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment, open_segment
from penstock.model import PenstockError, Retry, TableName

logger = structlog.get_logger(__name__)
faults.declare(
    "load.job.before",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)

APPLY_ATTEMPTS_MAX = 6


class LogGap(PenstockError):
    """The next segment does not begin where the target's applied rows end."""

    code = "LD21"


class LogForeign(PenstockError):
    """A segment belongs to another change log."""

    code = "LD22"


class StagingChanged(PenstockError):
    """A merge table does not hold what this batch staged: lost in a crash, or a late worker's."""

    code = "LD13"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What a batch must know besides its segments. starts: see `Window`."""

    url: str
    log_id: str
    namespaces: Mapping[str, str]
    threads_max: int
    extension: str
    starts: Mapping[TableName, int]


@dataclass(slots=True)
class BatchResult:
    """What a batch did. whole: files that are done with. seconds: per step."""

    applied: Applied
    whole: list[SegmentFile] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    tables: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Batch:
    """One batch on its way; use once. position_before: cut there (a hold), or POSITION_MAX."""

    def __init__(
        self,
        options: BatchOptions,
        target: Target,
        area: StagingArea,
        *,
        applied: Applied,
        position_before: int = POSITION_MAX,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._options = options
        self._target = target
        self._area = area
        self._applied = applied
        self._before = position_before
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._since = clock.monotonic_s()

    def run(self, files: Sequence[SegmentFile], session: Session) -> BatchResult:
        """Do it. Raises typed errors with nothing applied, or with all of it (a lost COMMIT)."""
        with ExitStack() as stack:
            segments = [
                stack.enter_context(open_segment(file.path, extension=self._options.extension))
                for file in files
            ]
            self._check(segments)
            after = self._end(segments)
            views = [view(segment) for segment in segments]
        progress_rows = [_file_progress(segment, after) for segment in views]
        window = Window(
            gsn_after=self._applied.gsn,
            gsn_upto=after.gsn,
            position_before=self._before,
            starts=self._options.starts,
        )
        plan = plan_batch(views, window, buckets_max=self._options.threads_max)
        self._step("plan")
        result = BatchResult(applied=after, seconds=self._seconds)
        whole = {segment.number for segment in segments if segment.number <= after.segment}
        result.whole = [file for file in files if file.number in whole]
        tasks = self._named(plan.tasks)
        phases = self._stage(files, plan, tasks, session, result)
        self._apply(progress_rows, phases, after)
        self._drop_extra(tasks)
        return result

    def _step(self, name: str) -> None:
        now = self._clock.monotonic_s()
        self._seconds[name] = round(now - self._since, 4)
        self._since = now

    # --- what there is ----------------------------------------------------------------------------

    def _check(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment.header.log_id != self._options.log_id:
                raise LogForeign(
                    f"{segment.path.name} belongs to change log {segment.header.log_id}, expected "
                    f"{self._options.log_id}",
                    hint="Take the file out of the log directory; penstock log check shows all.",
                )
        first = segments[0]
        if not first.start.gsn <= self._applied.gsn <= first.end.gsn:
            raise LogGap(
                f"{first.path.name} holds rows {first.start.gsn + 1} to {first.end.gsn}, but the "
                f"target has the rows up to {self._applied.gsn}",
                hint="Run `penstock log check`; put missing segments back or load the tables "
                "afresh.",
            )

    def _end(self, segments: Sequence[Segment]) -> Applied:
        """Where the target will stand after this batch."""
        last = segments[-1]
        if self._before == POSITION_MAX:
            end = last.end
            return Applied(
                segment=last.number,
                gsn=end.gsn,
                trx=end.trx,
                position=end.position,
                commit_time_us=end.commit_time_us,
            )
        cut = replace(self._applied, position=max(self._applied.position, self._before))
        entries = [e for e in last.row_frames() if e.position_first < self._before]
        for entry in sorted(entries, key=lambda e: e.gsn_last, reverse=True):
            if entry.gsn_last <= cut.gsn:
                break
            batch = last.read_rows(entry).batch
            position = batch.column("position").to_numpy()
            count = int(np.searchsorted(position, np.uint64(self._before), side="left"))
            if count and batch.column("gsn")[count - 1].as_py() > cut.gsn:
                cut = replace(
                    cut,
                    gsn=batch.column("gsn")[count - 1].as_py(),
                    trx=batch.column("trx")[count - 1].as_py(),
                    commit_time_us=batch.column("commit_time")[count - 1].value,
                )
        return cut

    # --- staging ----------------------------------------------------------------------------------

    def _named(self, tasks: Sequence[Task]) -> list[Task]:
        """Give every phase of every table a merge table of its own."""
        names: dict[tuple[int, TableName], str] = {}
        uses: dict[TableName, int] = {}
        for task in tasks:
            place = (task.phase, task.table)
            if place not in names:
                table = task.table
                record = self._target.record(table, target_name(table, self._options.namespaces))
                uses[table] = uses.get(table, 0) + 1
                extra = "" if uses[table] == 1 else str(uses[table])
                names[place] = record.merge_name + extra
        return [replace(task, staging=names[task.phase, task.table]) for task in tasks]

    def _stage(
        self,
        files: Sequence[SegmentFile],
        plan: Plan,
        tasks: list[Task],
        session: Session,
        result: BatchResult,
    ) -> list[PhaseSpec]:
        with server_errors("reading the target's tables"):
            self._target.need(target_name(t.table, self._options.namespaces) for t in tasks)
        self._area.prepare({task.staging: MergeLayout(task.relation) for task in tasks})
        with server_errors("writing progress rows"):
            progress.begin_files(self._target.connection, [file.path.name for file in files])
        self._step("prepare")
        faults.point("load.job.before")
        outcomes = self._job(tasks, session)
        self._step("stage")
        result.tables = len({task.table for task in tasks})
        for outcome in outcomes.values():
            result.counts = result.counts + outcome.counts
        return [self._phase(number, plan, tasks, outcomes) for number in range(len(plan.phases))]

    def _job(self, tasks: list[Task], session: Session) -> dict[str, Outcome]:
        works = [
            [
                Work(task=task, url=self._options.url, extension=self._options.extension)
                for task in partition
            ]
            for partition in share_out(tasks, partitions_max=self._options.threads_max)
        ]
        outcomes: list[Outcome] = session.run(works, run_tasks) if tasks else []
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        done = {(outcome.staging, outcome.bucket) for outcome in outcomes}
        if done != {(task.staging, task.bucket) for task in tasks}:
            raise SparkJobFailed(
                f"the Spark job did {len(done)} of {len(tasks)} tasks",
                hint="Look at spark.log in the run directory.",
            )
        staged: dict[str, int] = {}
        for outcome in outcomes:
            staged[outcome.staging] = staged.get(outcome.staging, 0) + outcome.staged_rows
        for outcome in outcomes:
            if staged[outcome.staging] != outcome.counts.upserts + outcome.counts.deletes:
                raise SparkJobFailed(
                    f"{staged[outcome.staging]} rows were staged in {outcome.staging}, expected "
                    f"{outcome.counts.upserts + outcome.counts.deletes}",
                    hint="This is a defect: nothing was applied. Please report it.",
                )
        return {outcome.staging: outcome for outcome in outcomes}

    def _phase(
        self, number: int, plan: Plan, tasks: list[Task], outcomes: Mapping[str, Outcome]
    ) -> PhaseSpec:
        phase, names = plan.phases[number], self._options.namespaces
        merges = []
        for task in tasks:
            if task.phase == number and task.bucket == 0:
                outcome = outcomes[task.staging]
                merges.append(
                    MergeSpec(
                        relation=task.relation,
                        table=target_name(task.table, names),
                        staging=task.staging,
                        counts=outcome.counts,
                        absent_columns=outcome.absent_columns,
                    )
                )
        return PhaseSpec(
            truncated=tuple(target_name(table, names) for table in phase.truncated),
            reloaded=tuple(target_name(table, names) for table in phase.reloaded),
            relations=phase.relations,
            merges=tuple(merges),
        )

    # --- applying ---------------------------------------------------------------------------------

    def _apply(
        self, rows: Sequence[FileProgress], phases: Sequence[PhaseSpec], after: Applied
    ) -> None:
        """Apply and commit; what a lock or a deadlock interrupts is done again as it stands."""
        mended = False
        for attempt in range(1, APPLY_ATTEMPTS_MAX + 1):
            try:
                self._apply_once(rows, phases, after)
                return
            except StatementInterrupted as error:
                self._target.forget()
                if attempt == APPLY_ATTEMPTS_MAX or self._target.connection.closed:
                    raise
                logger.warning("apply interrupted", attempt=attempt, reason=error.message)
                self._clock.sleep(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311
            except ValueRefused as error:
                self._target.forget()
                if mended or error.fields.get("sqlstate") != "22P02" or not self._mend(phases):
                    raise
                mended = True
            except BaseException:
                self._target.forget()
                raise

    def _mend(self, phases: Sequence[PhaseSpec]) -> bool:
        """Give the target's enums the labels they lack; whether there were any."""
        merges = [(spec.table, spec.staging) for phase in phases for spec in phase.merges]
        with server_errors("reading enum labels"):
            return add_missing_labels(self._target.connection, merges) > 0

    def _apply_once(
        self, rows: Sequence[FileProgress], phases: Sequence[PhaseSpec], after: Applied
    ) -> None:
        connection = self._target.connection
        faults.point("load.apply.before")
        with server_errors("committing a batch"), connection.transaction():
            # First of all, so that a second loader waits here and then finds itself refused.
            progress.advance(
                connection, log_id=self._options.log_id, before=self._applied, after=after
            )
            self._check_staged(phases)
            apply_phases(self._target, phases)
            faults.point("load.apply.after")
            self._step("apply")
            faults.point("load.progress.before")
            progress.end_files(connection, rows)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        self._step("commit")

    def _check_staged(self, phases: Sequence[PhaseSpec]) -> None:
        """Lock the merge tables against writers and count their rows.

        A worker of an earlier try, which Spark gave up, may still be sending rows; and a crash
        of the server empties unlogged tables.
        """
        specs = [spec for phase in phases for spec in phase.merges]
        if not specs:
            return
        names = [quoted(progress.SCHEMA, spec.staging) for spec in specs]
        self._target.connection.execute(f"lock table {', '.join(names)} in share mode")
        counts = " union all ".join(
            f"select {place}, count(*) from {name}" for place, name in enumerate(names)
        )
        for place, count in self._target.connection.execute(counts).fetchall():
            expected = specs[place].counts.upserts + specs[place].counts.deletes
            if count != expected:
                raise StagingChanged(
                    f"merge table {names[place]} holds {count} rows, {expected} were staged",
                    hint="The batch is staged again by itself.",
                )

    def _drop_extra(self, tasks: Sequence[Task]) -> None:
        """Drop the merge tables that only a change of shape in mid-batch needed."""
        names = {task.staging for task in tasks}
        self._area.drop([name for name in names if not name.endswith("_wkm")])


def _file_progress(segment: SegmentView, after: Applied) -> FileProgress:
    """A file's CL row: its own last gsn, or how far the batch goes into it."""
    return FileProgress(
        file=segment.path.name,
        mark=min(segment.end.gsn, after.gsn),
        finished=segment.number <= after.segment,
    )


def view(segment: Segment) -> SegmentView:
    """What planning must know of a segment."""
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
        markers=tuple(segment.markers()),
    )
