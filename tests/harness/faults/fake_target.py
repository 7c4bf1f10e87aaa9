"""A target in memory instead of a database: tables are lists of rows, batches are applied by a
swap.

It fulfils the duties of a target, and no more: slow, but simple enough to be trusted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.host import faults
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment, SegmentOpener
from penstock.model import MarkerKind, Op, PenstockError, Relation, TableName
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import BatchOptions, applied_behind
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    Counts,
    ShapeNote,
    TableSync,
    TargetFollowsAnotherLog,
)

# gsn, order among its steps, table, its shape, a change as the log has it. No shape: empty.
Step = tuple[int, int, TableName, Relation | None, Mapping[str, Any] | None]


@dataclass
class State:
    """Everything that a target stores."""

    log_id: str = ""
    applied: Applied = field(default_factory=Applied)
    table_syncs: dict[TableName, TableSync] = field(default_factory=dict)
    rows: dict[TableName, list[dict[str, Any]]] = field(default_factory=dict)

    def take(self, name: TableName, shape: Relation | None, change: Any) -> None:
        """Apply one step."""
        rows = self.rows.setdefault(name, [])
        if shape is None:
            rows.clear()
        elif change is None:
            names = [column.name for column in shape.columns]
            self.rows[name] = [{one: row.get(one) for one in names} for row in rows]
        else:
            _change(rows, shape, change)


def _change(rows: list[dict[str, Any]], shape: Relation, change: Mapping[str, Any]) -> None:
    names = [column.name for column in shape.columns]
    key = [names[index] for index in shape.key] or names
    old = change["before"] or (change["after"] if change["op"] == Op.UPDATE else None)
    known = next((row for row in rows if old and all(row[one] == old[one] for one in key)), {})
    if known:
        rows.remove(known)
    if change["op"] != Op.DELETE:
        sent, bits = change["after"], int.from_bytes(change["absent"] or b"", "little")
        rows.append({n: (known if bits >> i & 1 else sent)[n] for i, n in enumerate(names)})


@dataclass(frozen=True, kw_only=True)
class FakeBatch:
    """Batch whose steps are kept in memory, ordered by gsn; a `Batch`."""

    before: Applied
    after: Applied
    whole: tuple[SegmentFile, ...]
    counts: Counts
    steps: tuple[Step, ...]
    place: int = 0
    is_cut: bool = False
    size_bytes: int = 0
    tables: int = 0
    heartbeats: tuple[int, ...] = ()


@dataclass
class FakeStager:
    """Stager of batches in memory; a `BatchStager`, but none of its batches ends inside a file."""

    options: BatchOptions
    opener: SegmentOpener = field(default_factory=SegmentOpener)

    def empty_ahead(self) -> None:
        """Do nothing: a batch takes no room before it is staged."""

    def stage(self, files: Sequence[SegmentFile], _session: Any, **how: Any) -> FakeBatch:
        """Return a batch of the steps in these files that the target has not applied."""
        assert how["before"] == POSITION_MAX
        applied: Applied = how["applied"]
        steps: list[Step] = []
        for file in files:
            with self.opener.open(file) as segment:
                steps += self._steps(segment, applied)
                after = applied_behind(segment)
        return FakeBatch(
            before=applied,
            after=after,
            whole=tuple(file for file in files if file.number <= after.segment),
            counts=Counts(changes=sum(step[4] is not None for step in steps)),
            steps=tuple(sorted(steps, key=lambda step: step[:2])),
        )

    def _steps(self, segment: Segment, applied: Applied) -> Iterator[Step]:
        only, left_out = self.options.only, self.options.left_out
        for step in _all_steps(segment):
            gsn, _, name, _, change = step
            is_new = gsn > applied.gsn or (change is None and gsn == applied.gsn)
            is_ours = name == only if only is not None else name not in left_out
            start = segment.transactions.first_from(self.options.starts.get(name, 0))
            if is_new and is_ours and (change is None or change["trx"] >= start):
                yield step

    def close(self) -> None:
        """Do nothing: what is staged is in the batches alone."""


def _all_steps(segment: Segment) -> Iterator[Step]:
    for totals in segment.tables:
        shape = segment.relation(totals.id)
        yield totals.gsn, 1, TableName(shape.schema, shape.name), shape, None
    for marker in segment.markers():
        tables = marker.tables if marker.kind is MarkerKind.TRUNCATE else ()
        yield from ((marker.gsn, 2, TableName(*table), None, None) for table in tables)
    for entry in segment.row_frames():
        rows = segment.read_rows(entry)
        name = TableName(rows.relation.schema, rows.relation.name)
        yield from ((row["gsn"], 0, name, rows.relation, row) for row in rows.batch.to_pylist())


@dataclass
class FakeTarget:
    """Connection to the target in memory; a `Target`."""

    loading: FakeLoading
    replica: bool = True
    is_closed: bool = False

    def bind(self, log_id: str) -> Applied:
        """Bind the target to this log; return how far it is applied.

        Raises TargetFollowsAnotherLog.
        """
        if self.loading.state.log_id not in ("", log_id):
            raise TargetFollowsAnotherLog("it follows another log", hint="None.")
        self.loading.state.log_id = log_id
        return self.loading.state.applied

    def apply(
        self, batch: Any, *, table_sync: TableSync | None = None, at: Any = None
    ) -> dict[str, float]:
        """Apply a batch and its progress to a copy of the state, which then replaces the state."""
        state = self.loading.copy_state(at or batch.before)
        for step in batch.steps:
            state.take(*step[2:])
        if table_sync is not None:
            state.table_syncs[table_sync.table] = replace(table_sync, applied=batch.after)
        else:
            state.applied = batch.after
        faults.point("load.commit.before")
        self.loading.state = state
        faults.point("load.commit.after")
        return {}

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return dict(self.loading.state.table_syncs)

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        state = self.loading.copy_state(at)
        state.table_syncs.update({row.table: row for row in rows})
        self.loading.state = state

    def take_notes(self) -> list[ShapeNote]:
        """Return no notes: the fake does not record changes of shape."""
        return []

    def forget(self) -> None:
        """Do nothing: the fake remembers no shapes between batches."""

    def close(self) -> None:
        """Mark the connection as closed."""
        self.is_closed = True


@dataclass
class FakeLoading:
    """Kind of target whose tables are in memory; a `Loading`.

    Attributes:
        state: Part that outlives connections; replaced as a whole.
    """

    state: State = field(default_factory=State)
    errors: tuple[type[BaseException], ...] = ()

    def copy_state(self, at: Applied) -> State:
        """Return a copy of the state to be changed; the target must be at this position."""
        if not self.state.applied.is_at(at):
            raise AppliedByAnother("the target is elsewhere", hint="None.")
        return copy.deepcopy(self.state)

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        """Raise AssertionError: the fake has no driver whose errors could be converted."""
        raise AssertionError(doing) from error

    def open_target(self, *_where: Any, **_how: Any) -> FakeTarget:
        """Return a new connection to the state."""
        return FakeTarget(self)

    def open_stager(self, options: BatchOptions, **_how: Any) -> FakeStager:
        return FakeStager(options)
