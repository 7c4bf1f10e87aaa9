"""Applying of a staged batch to a lake: lookups, commits of all tables, the batch's row.

The order of the steps is what makes a batch count once. Each table's commit has the batch's mark,
and is refused unless the table is as it was when its keys were looked up. The row of the table of
batches comes last; after a crash in between, the tables that have the mark are ahead, and their
changes up to there are not staged again (`OpenLake.ahead`). Not here: lookups (`apply_lookups.py`),
shapes (`shape.py`), the commit itself (the format).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import structlog

from penstock.engines.lake.apply_files import rewrite_table
from penstock.engines.lake.apply_lookups import discard, look_up_keys
from penstock.engines.lake.apply_merge import alter_table, merge_rows
from penstock.engines.lake.batches import BATCHES, applied_by_another
from penstock.engines.lake.format import (
    Commit,
    CommitRefused,
    FeatureNeeded,
    LakeRows,
    LookupOutcome,
    Mark,
    MarkNotNewer,
    NewFile,
    Prepared,
    Snapshot,
    WriterSpec,
)
from penstock.engines.lake.history import HistoryApply
from penstock.engines.lake.history_shape import history_name
from penstock.engines.lake.known_tables import encode_record
from penstock.engines.lake.opened import OpenLake, TableHistories
from penstock.engines.lake.partitions import same_fields
from penstock.engines.lake.shape import (
    Planner,
    Shape,
    ShapePlan,
    columns_for,
    same_columns,
)
from penstock.engines.lake.state import StagedState
from penstock.engines.lake.writer import staged_columns
from penstock.host import faults
from penstock.host.clock import Steps
from penstock.model import PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import (
    Applied,
    MergeBatch,
    MergeSpec,
    PhaseSpec,
    ShapeNotApplicable,
    ShapeNote,
    StagingChanged,
    TableRecord,
    TableSync,
    TargetRowMissing,
)

logger = structlog.get_logger(__name__)

faults.declare(
    "lake.apply.begun",
    "lake.alter.before",
    "lake.alter.after",
    "lake.fill.before",
    "lake.fill.written",
    "lake.fill.after",
    "lake.lookup.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.together.before",
    "lake.together.after",
    "lake.batch.before",
    "lake.batch.after",
    "lake.state.after",
)

COMMITS_MAX = 5
"""Attempts at a table's commit while other writers are faster."""


@dataclass(slots=True, kw_only=True)
class TableWork:
    """Work on one table in one phase.

    Attributes:
        name: The lake's name.
        mark: The mark that the commit gets.
        relation: The source's newest shape in the phase; None if it is not told.
        merge: The staged rows; None if there are none.
        is_emptied: All existing rows are removed.
        snapshot: The version that is looked at.
        plan: The changes of shape.
        lookups: The results of its lookups in that version.
    """

    name: TableName
    mark: Mark
    relation: Relation | None = None
    merge: MergeSpec | None = None
    is_emptied: bool = False
    snapshot: Snapshot | None = None
    plan: ShapePlan | None = None
    lookups: list[LookupOutcome] = field(default_factory=list)

    @property
    def parts(self) -> tuple[LakeRows, ...]:
        """Staged parts of the table."""
        parts = () if self.merge is None else self.merge.staged
        return tuple(part for part in parts if isinstance(part, LakeRows))

    @property
    def adds(self) -> tuple[NewFile, ...]:
        """New data files of the table."""
        staged = (file for part in self.parts for file in part.adds)
        completed = (file for one in self.lookups for file in one.adds)
        return tuple(file for file in (*staged, *completed) if file.row_count)

    @property
    def looks_up(self) -> bool:
        """Return whether keys must be found in live files."""
        return not self.is_emptied and any(part.key_count or part.open_count for part in self.parts)


def forgotten(table: TableName) -> StagingChanged:
    """Return the error for staged rows that the stager has given up."""
    return StagingChanged(
        f"the staged rows of {table} are of a batch that was given up",
        hint="penstock stages the batch again.",
        table=str(table),
    )


@contextmanager
def _needed_features() -> Iterator[None]:
    try:
        yield
    except FeatureNeeded as error:
        raise ShapeNotApplicable(error.message, hint=error.hint, **error.fields) from error


class BatchApply:
    """One staged batch while it is applied."""

    def __init__(
        self,
        lake: OpenLake,
        batch: MergeBatch,
        executor: Executor,
        *,
        table_sync: TableSync | None,
        at: Applied,
    ) -> None:
        """Keep the parts; `run` fills `names`, `notes`, and the `versions` of the batch's row.

        Args:
            lake: The lake, bound to its log.
            batch: The batch.
            executor: Runs commits.
            table_sync: See `Target.apply`.
            at: See `Target.apply`.
        """
        self._lake = lake
        self._batch = batch
        self._executor = executor
        self._table_sync = table_sync
        self._at = at
        self._steps = Steps(lake.clock)
        self._records: dict[TableName, TableRecord] = {}
        self._specs: dict[str, WriterSpec] = {}
        self._token = ""
        self.notes: list[ShapeNote] = []
        self.versions: Mapping[str, int] | None = None
        self._is_ended = False
        self._row_count = 0
        self.names: set[TableName] = set()

    def run(self) -> Mapping[str, float]:
        """Apply all of it; return the seconds of each step.

        Raises AppliedByAnother, StagingChanged, ShapeNotApplicable, TargetRowMissing, CommitRefused
        and the errors of the format. Some tables may have their commits then.
        """
        lake, batch = self._lake, self._batch
        lake.batches.check_at(self._at)
        self._check_policies()
        self._find_specs()
        phases = self._phases()
        self.names = {work.name for works in phases for work in works}
        histories = lake.histories
        if histories is not None:
            histories.begin(self.names)
            self.names |= self._find_histories()
        staged = self._begin(self.names)
        faults.point("lake.apply.begun")
        history = None if histories is None else self._make_history(histories)
        for number, works in enumerate(phases):
            for work in works:
                self._look_at(work)
            if history is not None:
                history.apply_phase(number)
            self._apply_phase(works, ends=number == len(phases) - 1 and self._may_end_together)
        self._steps.end_step("apply")
        faults.point("lake.batch.before")
        self._end()
        faults.point("lake.batch.after")
        lake.state.end_files(lake.log_id, batch.files)
        if self._records:
            lake.state.put_records(lake.log_id, self._records.values())
        if staged is not None:
            lake.remove_side_files(staged.token)
            lake.state.remove_staged(staged.token)
            lake.begun.discard(staged.token)
            lake.applied.add(staged.token)
        faults.point("lake.state.after")
        self._steps.end_step("commit")
        return {**batch.seconds, **self._steps.seconds}

    # --- before -----------------------------------------------------------------------------------

    def _check_policies(self) -> None:
        for phase in self._batch.phases:
            for name in phase.truncated:
                what = "all rows were removed (TRUNCATE)"
                self._lake.policies.check(ChangeKind.TRUNCATE, what, table=str(name))

    def _find_specs(self) -> None:
        """Find the facts of the staged tables. Raises StagingChanged if the stager forgot them."""
        phases = self._batch.phases
        for merge in (one for phase in phases for one in (*phase.merges, *phase.histories)):
            known = self._lake.specs.get(merge.stamp)
            if known is None:
                raise forgotten(merge.table)
            self._token, self._specs[merge.staging] = known

    def _find_histories(self) -> set[TableName]:
        """Return the histories that get rows."""
        phases = self._batch.phases
        tables = {spec.table for phase in phases for spec in phase.histories}
        tables |= {table for phase in phases for table, _ in phase.emptyings}
        return set(map(history_name, tables))

    def _make_history(self, histories: TableHistories) -> HistoryApply:
        """Return the part that commits histories. Raises StagingChanged if the stager forgot."""
        specs = {}
        for one in (one for phase in self._batch.phases for one in phase.histories):
            spec = self._lake.history_specs.get(one.stamp)
            if spec is None:
                raise forgotten(one.table)
            specs[one.staging] = spec
        return HistoryApply(self._lake, histories, self._batch, specs, self._executor, self._token)

    def _phases(self) -> list[list[TableWork]]:
        """Return the work of each phase.

        A table's last commit has the batch's mark; an earlier one says how far the table is inside
        of the batch.
        """
        after = Mark.of(self._lake.log_id, self._batch.after)
        found: list[list[TableWork]] = []
        later: set[TableName] = set()
        for number, phase in reversed(list(enumerate(self._batch.phases))):
            is_last = number == len(self._batch.phases) - 1
            inside = Mark.of(self._lake.log_id, replace(self._batch.before, gsn=phase.gsn))
            works = {
                name: TableWork(name=name, mark=inside if name in later and not is_last else after)
                for name in self._names_in(phase)
            }
            for relation in phase.relations:
                source = TableName(relation.schema, relation.name)
                works[self._lake.target_name(source)].relation = relation
            for merge in phase.merges:
                works[merge.table].merge = merge
                works[merge.table].relation = works[merge.table].relation or merge.relation
            for name in (*phase.truncated, *phase.reloaded):
                works[name].is_emptied = True
            found.append([works[name] for name in sorted(works)])
            later |= works.keys()
        return found[::-1]

    def _names_in(self, phase: PhaseSpec) -> set[TableName]:
        sources = {TableName(one.schema, one.name) for one in phase.relations}
        return {
            *(self._lake.target_name(source) for source in sources),
            *(merge.table for merge in phase.merges),
            *phase.truncated,
            *phase.reloaded,
        }

    def _begin(self, names: Iterable[TableName]) -> StagedState | None:
        """Record all tables of the batch before the first commit.

        The record of the stager has those with staged rows.
        """
        lake = self._lake
        tables = sorted(set(names))
        staged = {spec.target for spec in self._specs.values()}
        if self._lake.histories is not None:
            phases = self._batch.phases
            staged |= {history_name(one.table) for phase in phases for one in phase.histories}
        if not tables:
            return None
        if staged == set(tables):
            lake.begun.add(self._token)
            return StagedState(log_id=lake.log_id, token=self._token)
        self._token = self._token or secrets.token_hex(8)
        lake.begun.add(self._token)
        return lake.new_staged(self._token, [(name, lake.folders_of(name)) for name in tables])

    # --- one phase --------------------------------------------------------------------------------

    def _apply_phase(self, works: Sequence[TableWork], *, ends: bool) -> None:
        """Look up, and commit all tables of a phase; repeat what other writers were faster at.

        ends: The batch's row may be committed with them.
        """
        pending = [work for work in works if self._has_work(work)]
        for attempt in range(1, COMMITS_MAX + 1):
            self._look_up(pending, attempt)
            faults.point("lake.lookup.after")
            refused = (
                self._commit_together(pending) if ends and pending else self._commit_all(pending)
            )
            if not refused:
                return
            if attempt == COMMITS_MAX:
                raise refused[0][1]
            pending = [work for work, _ in refused]
            for work, error in refused:
                logger.info("commit is repeated", table=str(work.name), reason=error.message)
                discard(work.lookups, self._lake.storage)
                work.snapshot = None
                self._look_at(work, refresh=True)

    def _look_at(self, work: TableWork, *, refresh: bool = False, attempt: int = 1) -> None:
        """Read the table's newest version, and plan the change of its shape.

        attempt: at its change of shape. Raises AppliedByAnother if it has changes that the batch
        has too.
        """
        lake = self._lake
        snapshot = lake.snapshot(work.name, refresh=refresh)
        work.snapshot = snapshot
        record = lake.record(work.name)
        mark = snapshot.mark
        floor = max(self._batch.before.gsn, lake.ahead.get(record.source, 0))
        if not work.mark.is_newer(mark) and work.merge is None:
            return  # after a crash: the table has the whole batch
        is_later = mark is not None and mark.log_id == lake.log_id and mark.gsn > floor
        if mark is not None and is_later and not self._is_inside(work, mark):
            raise applied_by_another(self._at, mark.place)
        work.plan = self._plan(work, Shape.of(snapshot, record), snapshot)
        self._check_columns(work)
        if lake.merges:
            self._alter(work, attempt)
        else:
            self._fill(work)

    def _is_inside(self, work: TableWork, mark: Mark) -> bool:
        """Return whether a mark is that of an earlier phase of this batch."""
        inside = {phase.gsn for phase in self._batch.phases[:-1]}
        return mark.gsn in inside and work.mark.is_newer(mark)

    def _plan(self, work: TableWork, shape: Shape, snapshot: Snapshot) -> ShapePlan:
        if work.relation is None:
            return ShapePlan(shape=shape)
        lake, engine = self._lake, self._batch.source_engine
        source = TableName(work.relation.schema, work.relation.name)
        planner = Planner(
            table=lake.table(work.name),
            policies=lake.policies,
            source_engine=engine,
            mapping_of=lambda column: lake.mapping_of(source, column, engine),
            log_id=lake.log_id,
            starts={name: at for phase in self._batch.phases for name, at in phase.starts.items()},
            is_emptied=work.is_emptied,
        )
        return planner.plan(shape, work.relation, snapshot)

    def _alter(self, work: TableWork, attempt: int) -> None:
        """Commit the change of shape before the rows, which Spark commits.

        Look again if another writer was faster.
        """
        plan, snapshot = work.plan, work.snapshot
        assert plan is not None, "it was planned"
        assert snapshot is not None, "it was looked at"
        faults.point("lake.alter.before")
        is_emptied = work.is_emptied
        try:
            with _needed_features():
                if not alter_table(self._lake, work.name, snapshot, plan, is_emptied=is_emptied):
                    return
        except CommitRefused:
            if attempt == COMMITS_MAX:
                raise
            self._look_at(work, refresh=True, attempt=attempt + 1)
            return
        faults.point("lake.alter.after")
        self._records[work.name] = plan.shape.record
        self.notes += plan.notes
        self._look_at(work)

    def _fill(self, work: TableWork) -> None:
        """Give existing rows the values of added and retyped columns, by new files.

        They are in a commit of its own.

        The change of shape is in it, so that a crash afterwards leaves a whole table.
        """
        snapshot, plan = work.snapshot, work.plan
        if snapshot is None or plan is None or not plan.is_rewrite:
            return
        if not (snapshot.files or plan.casts):
            return
        lake = self._lake
        faults.point("lake.fill.before")
        files = rewrite_table(lake, work.name, snapshot, plan, token=f"{self._token}-fill")
        faults.point("lake.fill.written")
        lake.commit(
            work.name,
            Commit(
                base_version=snapshot.version,
                adds=files,
                removes_all=True,
                changes=plan.changes,
                record=encode_record(plan.shape.record),
                operation="fill",
            ),
        )
        faults.point("lake.fill.after")
        self._records[work.name] = plan.shape.record
        self.notes += plan.notes
        self._look_at(work)

    def _check_columns(self, work: TableWork) -> None:
        """Raise StagingChanged unless rows were staged with the columns that the table has now."""
        if work.merge is None or work.plan is None or work.snapshot is None:
            return
        spec = self._specs[work.merge.staging]
        columns = columns_for(work.plan.shape, spec.relation)
        is_same = same_columns(staged_columns(columns, merges=spec.merges), spec.columns)
        if not spec.merges:
            is_same = is_same and same_fields(spec.partition, work.snapshot.partition)
        if not is_same:
            raise StagingChanged(
                f"rows of {work.name} were staged for other columns than the table has",
                hint="penstock stages the batch again.",
                table=str(work.name),
            )

    def _has_work(self, work: TableWork) -> bool:
        if work.plan is None or work.snapshot is None:
            return False
        is_new = work.plan.shape.record != self._lake.record(work.name)
        is_emptied = work.is_emptied and bool(work.snapshot.files)
        return is_new or is_emptied or any(part.row_count for part in work.parts)

    # --- lookups ----------------------------------------------------------------------------------

    def _look_up(self, works: Sequence[TableWork], attempt: int) -> None:
        """Find the keys of these tables in their live files, with one Spark job."""
        lake = self._lake
        wanted = [] if lake.merges else [work for work in works if work.looks_up]
        for work in works:
            work.lookups = []
        outcomes = look_up_keys(
            lake,
            {work.name: self._lookup_of(work) for work in wanted},
            token=f"{self._token}-lookup{attempt}",
        )
        for work in wanted:
            work.lookups = outcomes.get(work.name, [])
            self._check_found(work)

    def _lookup_of(self, work: TableWork) -> tuple[WriterSpec, Snapshot, tuple[LakeRows, ...]]:
        assert work.merge is not None, "it has keys"
        assert work.snapshot is not None, "it was looked at"
        return self._specs[work.merge.staging], work.snapshot, work.parts

    def _check_found(self, work: TableWork) -> None:
        """Refuse a lookup that cannot complete rows; report keys that are missing."""
        found = sum(one.found_count for one in work.lookups)
        required = sum(part.required_count for part in work.parts)
        completed = sum(one.completed_count for one in work.lookups)
        open_count = sum(part.open_count for part in work.parts)
        source = self._lake.record(work.name).source
        if completed < open_count:
            raise TargetRowMissing(
                f"the lake's table {work.name} lacks {open_count - completed} rows that the log "
                "changes without all of their columns",
                hint="Another client wrote there, or it drifted. Copy it again: penstock table "
                f"resync FILE {source}",
                table=str(work.name),
            )
        self._note_missing(work, required - found)

    def _note_missing(self, work: TableWork, count: int) -> None:
        """Report keys that a table lacks. count: of them, if it is positive."""
        source = self._lake.record(work.name).source
        if count > 0:
            self._lake.note_missing(work.name, count)
            logger.warning(
                "rows that the log changes were missing in the lake",
                table=str(work.name),
                count=count,
                hint=f"penstock verify FILE {source}",
            )

    # --- commits ----------------------------------------------------------------------------------

    def _commit_all(self, works: Sequence[TableWork]) -> list[tuple[TableWork, CommitRefused]]:
        """Commit tables in parallel; return those whose commits were refused.

        Raises the first other error, once all commits have ended.
        """
        pending = [(work, self._executor.submit(self._commit, work)) for work in works]
        refused: list[tuple[TableWork, CommitRefused]] = []
        failed: list[PenstockError] = []
        for work, future in pending:
            try:
                future.result()
            except CommitRefused as error:
                refused.append((work, error))
            except PenstockError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return refused

    def _commit(self, work: TableWork) -> None:
        if self._lake.merges:
            self._merge(work)
            return
        commit = self._make_commit(work)
        faults.point("lake.commit.before")
        with _needed_features():
            self._lake.commit(work.name, commit)
        faults.point("lake.commit.after")
        self._note_commit(work, commit)

    def _merge(self, work: TableWork) -> None:
        """Have Spark merge the rows of a table."""
        assert work.snapshot is not None, "it was looked at"
        faults.point("lake.commit.before")
        found = merge_rows(
            self._lake,
            work.name,
            None if work.merge is None else self._specs[work.merge.staging],
            work.parts,
            base_version=work.snapshot.version,
            mark=work.mark,
            is_emptied=work.is_emptied,
        )
        faults.point("lake.commit.after")
        if found is not None and not work.is_emptied:
            self._note_missing(work, sum(part.required_count for part in work.parts) - found)

    def _make_commit(self, work: TableWork) -> Commit:
        assert work.snapshot is not None, "it was looked at"
        assert work.plan is not None, "it was looked at"
        record = work.plan.shape.record
        return Commit(
            base_version=work.snapshot.version,
            adds=work.adds,
            deletes=tuple(file for one in work.lookups for file in one.deletes),
            removes_all=work.is_emptied,
            changes=work.plan.changes,
            mark=work.mark,
            record=encode_record(record) if record != self._lake.record(work.name) else None,
        )

    def _note_commit(self, work: TableWork, commit: Commit) -> None:
        assert work.plan is not None, "it was looked at"
        if commit.record is not None:
            self._records[work.name] = work.plan.shape.record
        self.notes += work.plan.notes

    @property
    def _may_end_together(self) -> bool:
        """Return whether the batch's row may be in one commit with its tables."""
        is_alone = self._table_sync is not None or self._lake.histories is not None
        return self._lake.catalogue.can_commit_together and not is_alone

    def _commit_together(self, works: Sequence[TableWork]) -> list[tuple[TableWork, CommitRefused]]:
        """Commit tables and the batch's row in one step; return the works if that was refused.

        Commits them one by one if the catalogue cannot do it. Raises AppliedByAnother.
        """
        lake = self._lake
        commits = [(work, self._make_commit(work)) for work in works]
        try:
            with _needed_features():
                prepared = list(self._executor.map(self._prepare, commits))
            found = {str(one.table.name): one.snapshot.version for one in prepared}
            versions = {**lake.complete_versions(), **found}
            row = lake.prepare(BATCHES, self._make_row(versions))
            faults.point("lake.together.before")
            if not lake.commit_together([*prepared, row]):
                logger.info("catalogue commits tables one by one")
                return self._commit_all(works)
        except (CommitRefused, MarkNotNewer) as error:
            lake.batches.refresh()
            lake.batches.check_at(self._at)
            if isinstance(error, MarkNotNewer):
                raise
            return [(work, error) for work in works]
        faults.point("lake.together.after")
        self._is_ended = True
        for work, commit in commits:
            self._note_commit(work, commit)
        return []

    def _prepare(self, made: tuple[TableWork, Commit]) -> Prepared:
        work, commit = made
        return self._lake.prepare(work.name, commit)

    # --- after ------------------------------------------------------------------------------------

    def _make_row(self, versions: Mapping[str, int]) -> Commit:
        """Return the commit of the batch's row. versions: of all tables."""
        lake, after = self._lake, self._batch.after
        self.versions = dict(versions) if lake.has_passed(after) else None
        self._row_count += 1  # one that was refused has left its file
        return lake.batches.make_commit(
            self._at,
            after,
            self.versions,
            token=f"{self._token or secrets.token_hex(8)}-{self._row_count}",
            applied_us=lake.clock.now_us(),
        )

    def _end(self) -> None:
        """Write the batch's row, or move the table that catches up."""
        lake, batch = self._lake, self._batch
        if self._table_sync is not None:
            row = replace(self._table_sync, applied=batch.after)
            lake.write_syncs([row], self._at)
            return
        if not self._is_ended:
            lake.batches.commit(self._make_row(lake.complete_versions()), self._at)
        lake.forget_ahead(batch.after)
        lake.write_log(batch.after)
