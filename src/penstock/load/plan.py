"""Plan a batch of segments: phases, and in each the tasks per table. Pure.

A barrier is a place in the log where a table's shape changes: rows before it have the old shape,
rows after it the new one, and the target is altered in between. Phases are the pieces between
barriers; all are applied in one target transaction. Truncations and reloads need no barrier: they
make a table's earlier rows in the phase void and empty it at the phase's start.

Not here: reading frames and folding (`job.py`), SQL (the target's engine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from penstock.codec.ckt import FrameEntry
from penstock.model import FlushPoint, Marker, MarkerKind, PenstockError, Relation, TableName
from penstock.model.position import POSITION_MAX
from penstock.model.whole_number import INT64_MAX

EMPTYING = (MarkerKind.TRUNCATE, MarkerKind.RELOAD)
NAMES_SHOWN_MAX = 5
# What a task costs, to share tasks out: a fixed part, and bytes of frames read.
TASK_COST_BYTES = 60_000
PARTITION_COST_BYTES = 1_000_000
# How much a bucket has at least. Several buckets cost more for the same rows (`shared_rows.py`,
# `split.py`), and where the servers share the machine there is no processor that would be idle
# otherwise.
BUCKET_BYTES = 48 * 2**20
CLUSTER_BUCKET_BYTES = 4 * 2**20
# On a cluster each bucket reads the frames of all: more buckets would spend more than they spare.
# The target applies a table in one session, which is slower.
BUCKETS_MAX = 8


class PlanImpossible(PenstockError):
    """The segments of a batch do not follow one another."""

    code = "LD20"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationUse:
    """A relation version in a segment. gsn: row after which it became current. id: id in frames."""

    id: int
    gsn: int
    relation: Relation

    @property
    def table(self) -> TableName:
        """Return the table that has the shape."""
        return TableName(self.relation.schema, self.relation.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """Facts about a segment for planning, without rows. frames: rows frames, in file order.

    trx_from: returns the number of its first transaction at or after a position; without one, the
    number after its last transaction. transactions: transactions frames, in file order.
    """

    number: int
    path: Path
    start: FlushPoint
    end: FlushPoint
    relations: tuple[RelationUse, ...]
    frames: tuple[FrameEntry, ...]
    trx_from: Callable[[int], int]
    markers: tuple[Marker, ...] = ()
    transactions: tuple[FrameEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRef:
    """Place of one rows frame."""

    path: Path
    entry: FrameEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task that folds and stages one table of one phase, or one bucket of it.

    Rows count with gsn_after < gsn <= gsn_upto and trx >= trx_from. bucket: number of this bucket
    among those into which the table's keys are split. overlaps: see `Fold`. staging: the merge
    table. is_history: all changes are staged, without a fold, and transactions are the frames with
    their commits.
    """

    phase: int
    relation: Relation
    frames: tuple[FrameRef, ...]
    gsn_after: int
    gsn_upto: int
    trx_from: int = 0
    bucket: int = 0
    buckets: int = 1
    overlaps: bool = False
    staging: str = ""
    is_history: bool = False
    transactions: tuple[FrameRef, ...] = ()

    @property
    def table(self) -> TableName:
        """Return the source table."""
        return TableName(self.relation.schema, self.relation.name)

    @property
    def size_bytes(self) -> int:
        """Return the size of its frames in the log, for all buckets."""
        return sum(frame.entry.length_bytes for frame in self.frames)

    @property
    def cost_bytes(self) -> int:
        """Return its cost in bytes read, to distribute tasks."""
        return TASK_COST_BYTES + self.size_bytes // self.buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Part of the batch between two barriers: the rows with gsn_after < gsn <= gsn_upto.

    truncated, reloaded: source tables that are emptied at its start. emptyings: every marker of
    these, in order, for each source table. relations: the current shape of each table.
    """

    gsn_after: int
    gsn_upto: int
    truncated: tuple[TableName, ...] = ()
    reloaded: tuple[TableName, ...] = ()
    emptyings: tuple[tuple[TableName, Marker], ...] = ()
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch: its phases and all their tasks."""

    phases: tuple[Phase, ...]
    tasks: tuple[Task, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the batch has no event of any table."""
        return not self.tasks and not any(
            phase.truncated or phase.reloaded or phase.relations for phase in self.phases
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Part of the segments that a batch covers: gsn_after < gsn <= gsn_upto.

    Attributes:
        position_before: position at which a hold ends the batch: markers from there on do not
            count, and gsn_upto is the last row before it.
        markers_before: number of the transaction from which on markers do not count. Positions do
            not tell: tables that are read again at one place have the same one.
        shapes_before: shapes that became current at this row or later do not count.
        starts: position of each source table from which its rows count (from the bulk load).
        truncates: whether TRUNCATE empties the target too.
        left_out: tables that the window excludes.
        only: the only table that it covers.
        copied: tables whose rows were copied; no other table counts. None if none were copied.
        settled: for each source table whose copied rows are of several moments, the position before
            which the copy may already include changes.
        ahead: for tables that have more than the target's applied position says, the last row that
            they have; rows and markers up to there do not count.
    """

    gsn_after: int
    gsn_upto: int
    position_before: int = POSITION_MAX
    markers_before: int = INT64_MAX
    shapes_before: int = POSITION_MAX
    starts: Mapping[TableName, int] = field(default_factory=dict)
    truncates: bool = True
    left_out: frozenset[TableName] = frozenset()
    only: TableName | None = None
    copied: frozenset[TableName] | None = None
    settled: Mapping[TableName, int] = field(default_factory=dict)
    ahead: Mapping[TableName, int] = field(default_factory=dict)

    def applied_to(self, table: TableName) -> int:
        """Return the number of the last row that the target's table has."""
        return max(self.gsn_after, self.ahead.get(table, 0))

    def takes(self, table: TableName) -> bool:
        """Return whether the window covers this table."""
        if self.only is not None:
            return table == self.only
        if self.copied is not None and table not in self.copied:
            # It was dropped before its rows were copied; if it is created again, it is copied then.
            return False
        return table not in self.left_out

    def start(self, table: TableName) -> int:
        """Return the position from which this table's rows count."""
        return self.starts.get(table, 0)

    def settled_at(self, table: TableName) -> int:
        """Return the position before which the copy of the table may already include changes."""
        return self.settled.get(table, 0)


class _Places:
    """Positions as numbers of transactions, each found once per batch."""

    def __init__(self, segments: Sequence[SegmentView]) -> None:
        self._segments = segments
        self._found: dict[int, int] = {0: 0}

    def trx_from(self, position: int) -> int:
        """Return the log's first transaction at or after this position; 0 if all are."""
        if position not in self._found:
            self._found[position] = self._find(position)
        return self._found[position]

    def _find(self, position: int) -> int:
        found = 0
        for segment in self._segments:
            found = segment.trx_from(position)
            if found <= segment.end.trx:
                break
        return found


@dataclass(slots=True)
class _Table:
    """Events of one table in the batch."""

    frames: list[tuple[FrameRef, Relation]] = field(default_factory=list)
    versions: list[tuple[int, Relation]] = field(default_factory=list)
    emptied: list[Marker] = field(default_factory=list)


def plan_batch(
    segments: Sequence[SegmentView],
    window: Window,
    *,
    buckets_max: int = 1,
    on_cluster: bool = False,
    with_history: bool = False,
) -> BatchPlan:
    """Plan a batch. Raises PlanImpossible when the segments are not one after the other.

    A large table is split into buckets, up to buckets_max. on_cluster: into smaller ones, because
    the executors have processors of their own. with_history: tasks stage all changes, too.
    """
    cut = (buckets_max, CLUSTER_BUCKET_BYTES if on_cluster else BUCKET_BYTES)
    _check_chain(segments)
    places = _Places(segments)
    stories = _stories(segments, window, places)
    barriers = sorted(
        {
            gsn
            for story in stories.values()
            for gsn, _ in story.versions[1:]
            if window.gsn_after < gsn <= window.gsn_upto
        }
    )
    # A change of shape behind the last row makes a last phase without rows.
    edges = [window.gsn_after, *barriers, window.gsn_upto]
    phases = []
    tasks: list[Task] = []
    commits = tuple(
        FrameRef(path=segment.path, entry=entry)
        for segment in segments
        for entry in segment.transactions
    )
    for number, (after, upto) in enumerate(pairwise(edges)):
        last = number == len(edges) - 2
        phase = Phase(gsn_after=after, gsn_upto=upto)
        for table, story in sorted(stories.items()):
            phase = _tell(phase, table, story, first=number == 0, last=last)
            tasks += _tasks(number, phase, table, story, window, places, cut)
            if with_history:
                tasks += _history_tasks(number, phase, table, story, window, places, commits)
        phases.append(phase)
    return BatchPlan(phases=tuple(phases), tasks=tuple(tasks))


def _check_chain(segments: Sequence[SegmentView]) -> None:
    for before, segment in pairwise(segments):
        if segment.number != before.number + 1 or not segment.start.continues(before.end):
            raise PlanImpossible(
                f"segment {segment.path.name} does not follow {before.path.name}: it starts at "
                f"gsn {segment.start.gsn}, expected {before.end.gsn}",
                hint="Run `penstock log check`.",
            )


def _stories(
    segments: Sequence[SegmentView], window: Window, places: _Places
) -> dict[TableName, _Table]:
    stories: dict[TableName, _Table] = {}
    for segment in segments:
        by_id = {use.id: use for use in segment.relations}
        used: set[int] = set()
        for entry in segment.frames:
            if entry.relation_id not in by_id:
                raise PlanImpossible(
                    f"{segment.path.name} has rows of relation {entry.relation_id}, which it does "
                    "not describe",
                    hint="Run `penstock log check`.",
                )
            use = by_id[entry.relation_id]
            if use.relation.awaits_reload or not _counts(entry, use.table, window, places):
                continue
            used.add(use.id)
            story = stories.setdefault(use.table, _Table())
            story.frames.append((FrameRef(path=segment.path, entry=entry), use.relation))
        for use in segment.relations:
            if use.relation.awaits_reload:
                continue
            if use.id in used or _is_news(use, segment, window):
                stories.setdefault(use.table, _Table()).versions.append((use.gsn, use.relation))
        for marker in segment.markers:
            is_kept = marker.kind is MarkerKind.TRUNCATE and not window.truncates
            if marker.kind in EMPTYING and marker.gsn >= window.gsn_after and not is_kept:
                _empty(stories, marker, window)
    for table, story in stories.items():
        story.versions = _changes(story)
        if not story.versions and not story.emptied:
            raise PlanImpossible(f"no shape is known of table {table}")
    return stories


def _counts(entry: FrameEntry, table: TableName, window: Window, places: _Places) -> bool:
    return (
        window.takes(table)
        and entry.gsn_last > window.applied_to(table)
        and entry.gsn_first <= window.gsn_upto
        and entry.trx_last >= places.trx_from(window.start(table))
    )


def _is_news(use: RelationUse, segment: SegmentView, window: Window) -> bool:
    """Return whether a shape without rows counts, which it does only if it is certainly newer than
    the bulk load.
    """
    has_rows = any(entry.relation_id == use.id for entry in segment.frames)
    if has_rows or window.position_before != POSITION_MAX or not window.takes(use.table):
        return False
    if use.gsn >= window.shapes_before:
        return False
    start, since = window.start(use.table), use.relation.since
    is_newer = since > start if since else segment.start.position >= start
    return is_newer and use.gsn >= window.applied_to(use.table)


def _empty(stories: dict[TableName, _Table], marker: Marker, window: Window) -> None:
    if marker.gsn > window.gsn_upto or marker.trx >= window.markers_before:
        return
    if marker.position >= window.position_before:
        return
    for schema, name in marker.tables:
        table = TableName(schema, name)
        is_new = marker.gsn >= window.applied_to(table)
        if is_new and window.takes(table) and marker.position >= window.start(table):
            story = stories.setdefault(table, _Table())
            story.emptied.append(marker)


def _changes(story: _Table) -> list[tuple[int, Relation]]:
    """Return where the shape really changes, moved to the emptying that belongs to the change."""
    result: list[tuple[int, Relation]] = []
    for gsn, relation in sorted(story.versions, key=lambda item: (item[0], item[1].version)):
        if result and result[-1][1].same_shape(relation):
            continue
        before = max(
            (r.entry.gsn_last for r, _ in story.frames if r.entry.gsn_last <= gsn), default=0
        )
        emptied = [marker.gsn for marker in story.emptied if before <= marker.gsn <= gsn]
        result.append((max(emptied, default=gsn), relation))
    return result


def _tell(phase: Phase, table: TableName, story: _Table, *, first: bool, last: bool) -> Phase:
    """Add the events of this table at the phase's start."""

    def here(gsn: int) -> bool:
        return phase.gsn_after <= gsn < phase.gsn_upto or (last and gsn == phase.gsn_upto)

    relations = [relation for gsn, relation in story.versions if here(gsn)]
    if first and not relations:
        # The first shape may have become current before this batch.
        relations = [r for gsn, r in story.versions[:1] if gsn < phase.gsn_after]
    emptied = [marker for marker in story.emptied if here(marker.gsn)]
    if emptied:
        phase = replace(
            phase, emptyings=(*phase.emptyings, *((table, marker) for marker in emptied))
        )
        if any(marker.kind is MarkerKind.TRUNCATE for marker in emptied):
            phase = replace(phase, truncated=(*phase.truncated, table))
        else:
            phase = replace(phase, reloaded=(*phase.reloaded, table))
    return replace(phase, relations=(*phase.relations, *relations)) if relations else phase


def _tasks(
    number: int,
    phase: Phase,
    table: TableName,
    story: _Table,
    window: Window,
    places: _Places,
    cut: tuple[int, int],
) -> list[Task]:
    void = [
        marker.gsn for marker in story.emptied if phase.gsn_after <= marker.gsn <= phase.gsn_upto
    ]
    after = max([phase.gsn_after, window.applied_to(table), *void])
    frames, relation = _choose_frames(phase, table, story, after)
    if relation is None:
        return []
    size = sum(ref.entry.length_bytes for ref in frames)
    buckets_max, bucket_bytes = cut
    buckets = max(1, min(buckets_max, BUCKETS_MAX, size // bucket_bytes))
    first = min(ref.entry.trx_first for ref in frames)
    # For a table that catches up alone it is not known which changes its copy has already.
    overlaps = window.only is not None or first < places.trx_from(window.settled_at(table))
    return [
        Task(
            phase=number,
            relation=relation,
            frames=frames,
            gsn_after=after,
            gsn_upto=phase.gsn_upto,
            trx_from=places.trx_from(window.start(table)),
            bucket=bucket,
            buckets=buckets,
            overlaps=overlaps,
        )
        for bucket in range(buckets)
    ]


def _choose_frames(
    phase: Phase, table: TableName, story: _Table, after: int
) -> tuple[tuple[FrameRef, ...], Relation | None]:
    """Return the frames with rows of a table in a phase, and their shape; None without rows.

    after: rows up to this number do not count. Raises PlanImpossible.
    """
    chosen = [
        (ref, relation)
        for ref, relation in story.frames
        if ref.entry.gsn_last > after and ref.entry.gsn_first <= phase.gsn_upto
    ]
    if not chosen or after >= phase.gsn_upto:
        return (), None
    relation = chosen[-1][1]
    if not all(other.same_shape(relation) for _, other in chosen):
        raise PlanImpossible(f"rows of two shapes of {table} in one phase")
    return tuple(ref for ref, _ in chosen), relation


def _history_tasks(
    number: int,
    phase: Phase,
    table: TableName,
    story: _Table,
    window: Window,
    places: _Places,
    commits: Sequence[FrameRef],
) -> list[Task]:
    """Return the task that stages all changes of a table in a phase; none if there are none.

    Rows that an emptying makes void are among them. One task has them all, because values that
    were not sent are found in earlier changes of the row.
    """
    after = max(phase.gsn_after, window.applied_to(table))
    frames, relation = _choose_frames(phase, table, story, after)
    if relation is None:
        return []
    first = min(ref.entry.trx_first for ref in frames)
    last = max(ref.entry.trx_last for ref in frames)
    return [
        Task(
            phase=number,
            relation=relation,
            frames=frames,
            gsn_after=after,
            gsn_upto=phase.gsn_upto,
            trx_from=places.trx_from(window.start(table)),
            overlaps=window.only is not None or first < places.trx_from(window.settled_at(table)),
            is_history=True,
            transactions=tuple(
                ref
                for ref in commits
                if ref.entry.trx_first <= last and ref.entry.trx_last >= first
            ),
        )
    ]


def share_out(tasks: Iterable[Task], *, partitions_max: int) -> list[list[Task]]:
    """Group tasks into partitions of about equal cost; small batches get few partitions."""
    ordered = sorted(tasks, key=lambda task: task.cost_bytes, reverse=True)
    total = sum(task.cost_bytes for task in ordered)
    count = min(len(ordered), partitions_max, 1 + total // PARTITION_COST_BYTES)
    loads = [0] * count
    result: list[list[Task]] = [[] for _ in range(count)]
    for task in ordered:
        lightest = loads.index(min(loads))
        loads[lightest] += task.cost_bytes
        result[lightest].append(task)
    return result


def list_names(tables: Iterable[TableName]) -> str:
    """Return some tables by name, and the number of others, for a job's description."""
    names = [str(name) for name in tables]
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if names[NAMES_SHOWN_MAX:] else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more
