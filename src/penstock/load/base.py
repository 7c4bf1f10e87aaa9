"""Run the base's Spark jobs: read it from the source, and advance it while changes flow.

One job reads all chunks of the missing tables. One job per compaction step adds some closed
segments; its tasks are groups of a table's files, and the changed rows. The manifest is replaced
after all tasks have ended, and only then are old files and links removed. Not here: when to run
(`control/run/base_keeper.py`), and a single task (`base_job.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

import structlog

from penstock.base.changes import TableChanges, Window, changes_of, first_trx
from penstock.base.manifest import (
    FILE_BYTES,
    BasePlace,
    BaseTable,
    Manifest,
    empty,
    remove_others,
    save_manifest,
)
from penstock.base.shapes import ShapeUnfit, convert_rows, widest
from penstock.base.state import last_shape
from penstock.host.faults import declare, point
from penstock.load.base_job import CompactTask, Outcome, ReadTask, Written, compact, read_chunks
from penstock.load.session import Session
from penstock.log import links
from penstock.log.layout import SegmentFile, list_segments
from penstock.log.segment import open_segment
from penstock.model import FlushPoint, PenstockError, Relation, TableName

_T = TypeVar("_T")
logger = structlog.get_logger(__name__)
declare("base.compacted.before", "base.compacted.after", "base.links.before")

SEGMENTS_MAX = 16  # of one step: so many keys are in a worker's memory
SMALL_BYTES = FILE_BYTES // 8  # as lz4 leaves them: files below are joined
SHARE = 4  # a step is due when the changes have a fourth of the base's bytes


def read_tables(
    session: Session, tasks: Sequence[ReadTask]
) -> tuple[dict[TableName, tuple[Written, ...]], set[TableName]]:
    """Read chunks; return the files written for each table, and the tables whose point is gone.

    Raises the error of a failed chunk, and the errors of a job.
    """
    partitions = [list(found) for found in _shared_out(tasks, session.parallelism, _chunk_cost)]
    outcomes = session.run(partitions, read_chunks, description="base: rows of the source")
    written: dict[TableName, tuple[Written, ...]] = {}
    gone = {outcome.table for outcome in outcomes if outcome.is_gone}
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        written[outcome.table] = (*written.get(outcome.table, ()), *outcome.written)
    return written, gone


def table_of(
    relation: Relation, written: Sequence[Written], *, ordinal: int = 0, settled: int = 0
) -> BaseTable:
    """Return a table with files in several shapes. relation: its own, which is the last of them."""
    relations: list[Relation] = []
    files = []
    for one in written:
        place = next((n for n, r in enumerate(relations) if r.same_shape(one.relation)), -1)
        if place < 0:
            place = len(relations)
            relations.append(one.relation)
        files += [replace(file, relation=place) for file in one.files]
    relation = widest(relation, relations)
    if not relations or not relations[-1].same_shape(relation):
        relations.append(relation)
    return BaseTable(
        schema=relation.schema,
        name=relation.name,
        relations=tuple(relations),
        files=tuple(files),
        ordinal=str(ordinal),
        settled=str(settled),
    )


class BaseHole(PenstockError):
    """A segment is gone that the base does not include yet: its link was removed."""

    code = "BA06"
    retry = "backoff"


class Compaction:
    """Compaction of one log's base. Only one thread may use it, the base's only writer."""

    def __init__(self, place: BasePlace, *, is_merged: bool = False) -> None:
        """Keep the settings; nothing is read yet.

        is_merged: no source can be read again, so a table whose shape does not fit stays without
        rows until the log empties it.
        """
        self._place, self._is_merged = place, is_merged

    def due(self, manifest: Manifest) -> list[SegmentFile]:
        """Return the segments of the next step; none while the step would cost more than the space
        it frees.
        """
        found = self.waiting(manifest)
        size = sum(file.path.stat().st_size for file in found)
        if len(found) < SEGMENTS_MAX and size * SHARE < manifest.size_bytes:
            return []
        return found

    def waiting(self, manifest: Manifest) -> list[SegmentFile]:
        """Return the next closed segments after the base, at most as many as one step handles."""
        place = self._place
        links.release(
            place.links,
            through=manifest.segment - 1,
            log_id=manifest.log_id,
            extension=place.extension,
        )
        found = [
            file
            for file in list_segments(place.links, place.extension)
            if file.number >= manifest.segment
        ]
        if found and found[0].number != manifest.segment:
            raise BaseHole(
                f"segment {manifest.segment}, which the base needs, is not there any more",
                hint="Nothing to do: the base is read again from the source.",
                segment=manifest.segment,
            )
        return list(_without_hole(found))[:SEGMENTS_MAX]

    def step(self, session: Session, manifest: Manifest, files: Sequence[SegmentFile]) -> Manifest:
        """Add some segments; return the new base. Raises the errors of tasks and job.

        A table whose rows must be read again is not part of the new base (`Manifest.unread`).
        """
        if not files:
            return manifest
        point("base.compacted.before")
        with ExitStack() as stack:
            segments = [
                stack.enter_context(open_segment(file.path, extension=self._place.extension))
                for file in files
            ]
            end = segments[-1].end
            tasks: list[CompactTask] = []
            moved: list[BaseTable] = []
            for table in (*manifest.tables, *manifest.unread):
                window = Window(
                    end=end,
                    gsn_after=manifest.gsn,
                    trx_from=first_trx(segments, int(table.ordinal)),
                    position=int(table.ordinal),
                )
                changes = changes_of(segments, table.table, window)
                is_lost = table in manifest.unread and not changes.is_emptied
                shaped = None if is_lost else _reshape(table, changes)
                if shaped is not None:
                    moved.append(shaped)
                    if not changes.is_empty:
                        tasks += self._tasks(manifest, table, files, end, changes)
        outcomes = self._run(session, tasks)
        advanced = [_advance(_past(one, end), tasks, outcomes) for one in moved]
        tables = tuple(one for one in advanced if one is not None)
        made = replace(
            manifest,
            number=manifest.number + 1,
            segment=files[-1].number + 1,
            gsn=end.gsn,
            tables=tables,
            unread=self._unread(manifest, {one.table for one in tables}),
        )
        save_manifest(self._place.directory, made)
        point("base.compacted.after")
        remove_others(self._place.directory, made)
        point("base.links.before")
        links.release(
            self._place.links,
            through=files[-1].number,
            log_id=made.log_id,
            extension=self._place.extension,
        )
        logger.info("base moved on", segment=made.segment, tables=len(made.tables))
        return made

    def _unread(self, manifest: Manifest, known: Collection[TableName]) -> tuple[BaseTable, ...]:
        """Return the tables that lose their rows, or had lost them. known: the others."""
        if not self._is_merged:
            return ()
        return tuple(
            replace(one, files=())
            for one in (*manifest.tables, *manifest.unread)
            if one.table not in known
        )

    def _run(self, session: Session, tasks: Sequence[CompactTask]) -> list[Outcome]:
        if not tasks:
            return []
        slots = max(1, session.parallelism - 1)  # one is left to the changes
        partitions = [list(found) for found in _shared_out(tasks, slots, lambda task: task.cost)]
        outcomes = session.run(partitions, compact, description="base: compaction")
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, ShapeUnfit):
                raise outcome.error
        return outcomes

    def _tasks(
        self,
        manifest: Manifest,
        table: BaseTable,
        files: Sequence[SegmentFile],
        end: FlushPoint,
        changes: TableChanges,
    ) -> Iterator[CompactTask]:
        shapes = [table.relations[-1], *(layer.relation for layer in changes.layers)]
        has_key = all(shape.key for shape in shapes)
        changed = sum(file.path.stat().st_size for file in files)
        if changes.is_emptied:
            groups: list[tuple[int, ...]] = []
        elif has_key:
            groups = list(_groups(table))
        else:
            groups = [tuple(range(len(table.files)))]  # equal rows are counted over all files
        is_whole = bool(groups) and not has_key
        for group, places in enumerate(groups):
            yield CompactTask(
                table=table,
                files=places,
                adds_rows=is_whole,
                directory=self._place.directory,
                segments=tuple(file.path for file in files),
                extension=self._place.extension,
                end=end,
                gsn_after=manifest.gsn,
                group=group,
                cost=changed + sum(table.files[place].size_bytes for place in places),
            )
        if not is_whole:
            yield CompactTask(
                table=table,
                files=(),
                adds_rows=True,
                directory=self._place.directory,
                segments=tuple(file.path for file in files),
                extension=self._place.extension,
                end=end,
                gsn_after=manifest.gsn,
                group=len(groups),
                cost=2 * changed,
            )


def _groups(table: BaseTable) -> Iterator[tuple[int, ...]]:
    """Return groups of files to rewrite: a large one alone, small ones until they are large
    together.
    """
    waiting: list[int] = []
    size = 0
    for place, file in enumerate(table.files):
        if file.size_bytes >= SMALL_BYTES:
            yield (place,)
            continue
        waiting.append(place)
        size += file.size_bytes
        if size >= SMALL_BYTES:
            yield tuple(waiting)
            waiting, size = [], 0
    if waiting:
        yield tuple(waiting)


def _without_hole(files: Sequence[SegmentFile]) -> Iterator[SegmentFile]:
    """Return the segments before the first gap. The gap is reported when it is next."""
    for place, file in enumerate(files):
        if file.number != files[0].number + place:
            return
        yield file


def _reshape(table: BaseTable, changes: TableChanges) -> BaseTable | None:
    """Return the table in its newest shape, in which its files are read; None if no shape fits all
    files.
    """
    newest = last_shape(changes, table.relations)
    if newest.same_shape(table.relations[-1]):
        return table
    try:
        for relation in () if changes.is_emptied else table.relations:
            convert_rows(empty(relation), relation, newest)
    except ShapeUnfit as error:
        logger.warning("table leaves the base", table=str(table.table), reason=error.message)
        return None
    return replace(table, relations=(*table.relations, newest))


def _past(table: BaseTable, end: FlushPoint) -> BaseTable:
    """Return the table without its copy's point, if the base has passed that point."""
    is_past = end.position >= max(int(table.ordinal), int(table.settled))
    return replace(table, ordinal="0", settled="0") if is_past else table


def _advance(
    table: BaseTable, tasks: Sequence[CompactTask], outcomes: Sequence[Outcome]
) -> BaseTable | None:
    """Return the table with its new files; None if it must be read again."""
    own = [task for task in tasks if task.table.table == table.table]
    if not own:
        return table
    found = {outcome.group: outcome for outcome in outcomes if outcome.table == table.table}
    if any(outcome.error is not None for outcome in found.values()):
        logger.warning("table leaves the base", table=str(table.table))
        return None
    written: list[Written] = []
    for task in own:
        outcome = found[task.group]
        if outcome.kept:
            files = tuple(table.files[place] for place in task.files)
            written += [
                Written(relation=table.relations[file.relation], files=(file,)) for file in files
            ]
        else:
            written += outcome.written
    made = table_of(table.relations[-1], written)
    return replace(table, relations=made.relations, files=made.files)


def _chunk_cost(task: ReadTask) -> int:
    return task.chunk.chunk.size_bytes + (1 << 20)


def _shared_out(tasks: Sequence[_T], slots: int, cost: Callable[[_T], int]) -> list[list[_T]]:
    """Return the tasks in at most this many partitions of similar size."""
    bins: list[tuple[int, int, list[_T]]] = [(0, n, []) for n in range(min(slots, len(tasks)))]
    for task in sorted(tasks, key=cost, reverse=True):
        size, number, held = heapq.heappop(bins)
        held.append(task)
        heapq.heappush(bins, (size + cost(task), number, held))
    return [held for _, _, held in bins]
