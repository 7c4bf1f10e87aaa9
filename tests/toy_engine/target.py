"""Loading of changes: the part `loading`. A batch is the ordered list of the steps to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.host import faults
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment, SegmentOpener
from penstock.model import Marker, MarkerKind, Op, PenstockError, Relation, TableName
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import BatchOptions, BatchStager, Loading, applied_behind
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    Counts,
    ShapeNote,
    TableSync,
    Target,
    TargetFollowsAnotherLog,
    target_name,
)
from toy_engine.progress import FileNote, Following, ToyProgress, now
from toy_engine.store import Row, Shape, Store, ToyFailed
from toy_engine.values import texts

EMPTYING = (MarkerKind.TRUNCATE, MarkerKind.RELOAD)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step on a table. Without an `op` it empties the table or gives it this shape.

    Attributes:
        trx: The transaction's number; 0 for a shape.
    """

    order: tuple[int, int]
    trx: int
    table: TableName
    relation: Relation | None = None
    op: int = 0
    before: Row | None = None
    after: Row | None = None
    absent: int = 0

    @property
    def gsn(self) -> int:
        """The number of the row change, or of the row change that the step follows."""
        return self.order[0]


def steps_of(segment: Segment) -> Iterator[Step]:
    """Yield all steps of a segment."""
    for totals in segment.tables:
        shape = segment.relation(totals.id)
        name = TableName(shape.schema, shape.name)
        yield Step(order=(totals.gsn, 1), trx=0, table=name, relation=shape)
    for marker in segment.markers():
        for table in marker.tables if marker.kind in EMPTYING else ():
            yield Step(order=(marker.gsn, 2), trx=marker.trx, table=TableName(*table))
    for rows in segment.rows():
        relation, batch = rows.relation, rows.batch
        before_columns = [relation.columns[index] for index in relation.before]
        after = texts(batch.column("after"), relation.columns)
        before = texts(batch.column("before"), before_columns) or [{}] * batch.num_rows
        heads = batch.select(["gsn", "trx", "op", "absent"]).to_pylist()
        has_before = batch.column("before").is_valid().to_pylist()
        for at, head in enumerate(heads):
            yield Step(
                order=(head["gsn"], 0),
                trx=head["trx"],
                table=TableName(relation.schema, relation.name),
                relation=relation,
                op=head["op"],
                before=before[at] if has_before[at] else None,
                after=after[at] if head["op"] != Op.DELETE else None,
                absent=int.from_bytes(head["absent"] or b"", "little"),
            )


@dataclass(frozen=True, kw_only=True)
class ToyBatch:
    """Batch as steps on tables; it has what `ports.loading.Batch` has."""

    before: Applied
    after: Applied
    whole: tuple[SegmentFile, ...]
    counts: Counts
    steps: tuple[Step, ...]
    place: int
    is_cut: bool
    size_bytes: int
    tables: int
    heartbeats: tuple[int, ...]


@dataclass
class ToyStager(BatchStager):
    """Stager of batches in memory only, for which Spark is not needed."""

    options: BatchOptions
    opener: SegmentOpener = field(default_factory=SegmentOpener)

    def empty_ahead(self) -> None:
        """Do nothing: nothing is staged ahead."""

    def stage(
        self,
        files: Sequence[SegmentFile],
        _session: Any,
        *,
        applied: Applied,
        before: int,
        place: int,
    ) -> ToyBatch:
        steps: list[Step] = []
        beats: list[Marker] = []
        after = applied
        for file in files:
            with self.opener.open(file) as segment:
                steps += self._select_steps(segment, applied, before)
                beats += [one for one in segment.markers() if one.kind is MarkerKind.HEARTBEAT]
                after = applied_behind(segment)
                if before != POSITION_MAX:
                    after = cut(segment, applied, before)
        changes = sum(step.op != 0 for step in steps)
        whole = tuple(file for file in files if file.number <= after.segment)
        return ToyBatch(
            before=applied,
            after=after,
            whole=whole,
            counts=Counts(changes=changes),
            steps=tuple(sorted(steps, key=lambda step: step.order)),
            place=place,
            is_cut=before != POSITION_MAX,
            size_bytes=sum(file.path.stat().st_size for file in whole),
            tables=len({step.table for step in steps if step.op}),
            heartbeats=tuple(
                one.data["sent_us"] for one in beats if applied.trx < one.trx <= after.trx
            ),
        )

    def _select_steps(self, segment: Segment, applied: Applied, before: int) -> Iterator[Step]:
        options = self.options
        until = segment.transactions.first_from(before)
        for step in steps_of(segment):
            # A marker after a row has no number of its own; repeating it does no harm.
            is_new = step.gsn > applied.gsn or (not step.op and step.gsn == applied.gsn)
            alone = options.only
            is_ours = step.table == alone if alone else step.table not in options.left_out
            first = segment.transactions.first_from(options.starts.get(step.table, 0))
            is_later = not step.trx or first <= step.trx < until
            if is_new and is_ours and is_later:
                yield step

    def close(self) -> None:
        """Do nothing: nothing is open."""


def cut(segment: Segment, applied: Applied, before: int) -> Applied:
    """Return the target's place once all commits before a position are applied."""
    after = replace(applied, position=max(applied.position, before))
    until = segment.transactions.first_from(before)
    for rows in segment.rows(gsn_after=applied.gsn):
        heads = segment.add_commit(rows.batch).select(["gsn", "trx", "commit_time"])
        for head in heads.to_pylist():
            if head["trx"] < until and head["gsn"] > after.gsn:
                time_us = round(head["commit_time"].timestamp() * 1e6)
                after = replace(after, gsn=head["gsn"], trx=head["trx"], commit_time_us=time_us)
    return after


class ToyTarget(ToyProgress, Target):
    """Connection that applies batches."""

    replica = True

    def __init__(self, url: str, namespaces: Mapping[str, str]) -> None:
        super().__init__(url, "")
        self._namespaces = namespaces
        self._log_id = ""

    def bind(self, log_id: str) -> Applied:
        self._log_id = log_id
        with self.store.transaction():
            if self.log_id() not in ("", log_id):
                raise TargetFollowsAnotherLog(
                    "the database follows another change log", hint="Name another one."
                )
            self._put_applied(self.read_applied())
        return self.read_applied()

    def _put_applied(self, applied: Applied) -> None:
        self.store.put("log", "", Following(log_id=self._log_id, applied=applied))

    def _check(self, at: Applied) -> None:
        if not self.read_applied().is_at(at):
            raise AppliedByAnother("another loader has applied changes", hint="Stop it.")

    def apply(
        self, batch: Any, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        """Apply a batch. Rows and progress are written in one transaction."""
        with self.store.transaction():
            self._check(at or batch.before)
            for step in batch.steps:
                take(self.store, target_name(step.table, self._namespaces), step)
            if table_sync is not None:
                self._put_sync(replace(table_sync, applied=batch.after))
            else:
                self._put_applied(batch.after)
                for file in batch.whole:
                    done = FileNote(
                        source=file.path.name,
                        start=now(),
                        finish=now(),
                        mark=str(batch.after.gsn),
                    )
                    self.store.put("CL", file.path.name, done)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        return {}

    def _put_sync(self, row: TableSync) -> None:
        self.store.put("table_sync", str(row.table), row)

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        with self.store.transaction():
            self._check(at)
            for row in rows:
                self._put_sync(row)

    def take_notes(self) -> list[ShapeNote]:
        """Return nothing: the target can apply every change of shape."""
        return []

    def forget(self) -> None:
        """Do nothing: the target caches nothing."""


def take(store: Store, table: TableName, step: Step) -> None:
    """Apply one step to a table of the store."""
    if step.relation is None:
        store.empty(table)
        return
    shape = shape_of(table, step.relation)
    if not step.op:
        reshape(store, shape, step.relation)
        return
    known: Row = {}
    if step.op != Op.INSERT:
        old_key, known = store.find(shape, step.before or step.after or {})
        store.drop_row(table, old_key)
    if step.after is not None:
        row = {
            name: known.get(name) if step.absent >> index & 1 else value
            for index, (name, value) in enumerate(step.after.items())
        }
        store.put_row(table, shape.key_of(row), row)


def shape_of(table: TableName, relation: Relation) -> Shape:
    """Return a relation as the store has it."""
    return Shape(
        table=table,
        version=1,
        columns=tuple((c.name, c.source_type, c.neutral) for c in relation.columns),
        key=tuple(relation.columns[index].name for index in relation.key),
    )


def reshape(store: Store, shape: Shape, relation: Relation) -> None:
    """Give a table this shape, and add its new columns to the rows."""
    known = store.shapes().get(shape.table)
    if known is not None and (known.names, known.key) == (shape.names, shape.key):
        return
    rows = store.rows(shape.table)
    store.empty(shape.table)
    store.put_shape(shape)
    for row in rows:
        moved: Row = {}
        for column in relation.columns:
            is_there = column.name in row
            moved[column.name] = row[column.name] if is_there else column.missing
        store.put_row(shape.table, shape.key_of(moved), moved)


class ToyLoading(Loading):
    """Loading into a store."""

    errors: tuple[type[BaseException], ...] = (sqlite3.Error,)

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        return ToyFailed(f"{doing}: {error}")

    def open_target(self, url: str, namespaces: Mapping[str, str], **_how: Any) -> ToyTarget:
        return ToyTarget(url, namespaces)

    def open_stager(self, options: BatchOptions, **_how: Any) -> ToyStager:
        return ToyStager(options)


LOADING = ToyLoading()
