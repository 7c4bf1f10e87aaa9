"""Requirements of the change loader for every target: a fake in memory, a toy, and every engine.

A new target is complete when these pass. Not here: values of every type (`test_types_across.py`),
and the merge tables of an engine (`test_merge.py`, `test_mysql_load.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.faults.fake_target import FakeLoading
from harness.pipelines.changes import relation
from harness.pipelines.loader import LocalSession, LogMaker
from harness.pipelines.merge import ITEM, delete, insert, update
from harness.servers.engines import ENGINES, SIMULATED, Place, new_place
from penstock.codec.types import NO_CHOICES
from penstock.host.clock import REAL_CLOCK
from penstock.host.faults import FaultInjected, arming
from penstock.load.sql_target import loading_of
from penstock.log.layout import next_segments
from penstock.log.segment import LogFollower
from penstock.model import Identity, MarkerKind, TableName
from penstock.model.policies import EVOLVE_ALL
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import Batch, BatchOptions, Loading
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    SyncState,
    TableSync,
    Target,
    TargetFollowsAnotherLog,
)
from plugins.shared import SharedServers
from toy_engine.store import Store
from toy_engine.target import LOADING

T = TableName("public", "t")
BAG = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")
WIDER = relation(
    *((column.name, column.source_type, column.neutral) for column in ITEM.columns),
    ("more", "integer", "int32"),
    version=2,
)
LOG_ID = "test-log"


@dataclass
class Side:
    """A target and a log that is loaded into it. place: its database; None for fake and toy."""

    loading: Loading
    place: Place | None
    log: LogMaker
    directory: Path
    applied: Applied = field(default_factory=Applied)
    stack: ExitStack = field(default_factory=ExitStack)
    toy: Store | None = None

    def __post_init__(self) -> None:
        """Connect."""
        self.target = self.connect()

    @property
    def _where(self) -> tuple[str, dict[str, str]]:
        if self.place is None:
            return self.toy.url if self.toy is not None else "fake://", {}
        return self.place.url, {"public": self.place.namespace}

    def connect(self, log_id: str = LOG_ID) -> Target:
        """Return another connection, like that of a process that starts."""
        target = self.loading.open_target(
            *self._where,
            allow_triggers=False,
            choices=NO_CHOICES,
            policies=EVOLVE_ALL,
            clock=REAL_CLOCK,
        )
        self.stack.callback(target.close)
        self.applied = target.bind(log_id)
        return target

    def stage(self, *, after: Applied | None = None, **more: Any) -> Batch:
        """Stage all closed segments after a place; more: of BatchOptions."""
        url, namespaces = self._where
        options = BatchOptions(
            url=url,
            log_id=LOG_ID,
            namespaces=namespaces,
            threads_max=2,
            extension="ckt",
            starts=more.pop("starts", {}),
            rows_directory=self.directory / "rows",
            **more,
        )
        stager = self.loading.open_stager(options, clock=REAL_CLOCK)
        self.stack.callback(stager.close)
        after = after or self.applied
        files = next_segments(self.log.directory, after=after.segment, count_max=100)
        with closing(LogFollower(self.log.directory)) as finder:
            found = finder.find(number=after.segment + len(files) + 1, trx_after=after.trx)
        files += [found] if found is not None else []
        return stager.stage(files, LocalSession(), applied=after, before=POSITION_MAX, place=0)

    def write(self, *changes: Any, **more: Any) -> None:
        """Write a segment of one transaction."""
        self.log.transaction(*changes, **more)
        self.log.close_segment()

    def apply(self, *changes: Any, **more: Any) -> Batch:
        """Write changes as a segment and apply it."""
        if changes:
            self.write(*changes)
        batch = self.stage(**more)
        self.target.apply(batch)
        self.applied = batch.after
        return batch

    def rows(self, table: str = "t") -> Sequence[tuple[Any, ...]]:
        """Return what another session sees, in order."""
        if self.toy is not None:
            return toy_rows(self.toy, TableName("public", table))
        if self.place is None:
            assert isinstance(self.loading, FakeLoading)
            found = self.loading.state.rows.get(TableName("public", table), [])
            return sorted(tuple(row.values()) for row in found)
        return sorted(self.place.run(f"select * from {table}"))


def toy_rows(store: Store, table: TableName) -> list[tuple[Any, ...]]:
    """Return rows of texts as the values that the texts mean."""
    shape = store.shapes().get(table)
    kinds = {name: kind for name, kind, _ in shape.columns} if shape is not None else {}
    return sorted(
        tuple(int(v) if v is not None and kinds[n] == "integer" else v for n, v in row.items())
        for row in store.rows(table)
    )


@pytest.fixture(params=["fake", "toy", *ENGINES, *SIMULATED])
def side(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Side]:
    """A target with empty tables."""
    with ExitStack() as stack:
        log = LogMaker(tmp_path / "log")
        stack.callback(log.writer.close)
        place, toy = None, None
        loading: Loading = FakeLoading()
        if request.param == "toy":
            toy, loading = Store.create(tmp_path / "toy.db"), LOADING
            stack.callback(toy.close)
        elif request.param != "fake":
            place = stack.enter_context(new_place(shared_servers, request.param))
            place.forget_penstock()
            place.run("create table t (id int primary key, name varchar(50), n int)")
            place.run("create table bag (v int)")
            loading = loading_of(place.url)
        made = Side(loading, place, log, tmp_path, stack=stack, toy=toy)
        yield made


def test_changes_of_one_key_count_in_order(side: Side) -> None:
    """The last change of a row stays, whatever else happens to it in the batch."""
    side.apply(
        insert(ITEM, 1, "a", 1),
        update(ITEM, 1, "b", 2),
        insert(ITEM, 2, "c", 3),
        delete(ITEM, 2, None, None),
        insert(ITEM, 2, "d", 4),
        insert(ITEM, 3, "e", 5),
        delete(ITEM, 3, None, None),
    )
    assert side.rows() == [(1, "b", 2), (2, "d", 4)]
    side.apply(delete(ITEM, 2, None, None), update(ITEM, 1, None, None))
    assert side.rows() == [(1, None, None)]


def test_a_changed_key_moves_its_row(side: Side) -> None:
    """The old key is gone; two rows swap keys by way of a third key."""
    side.apply(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2))
    side.apply(
        update(ITEM, 9, "a", 1, old=(1, None, None)),
        update(ITEM, 1, "b", 2, old=(2, None, None)),
        update(ITEM, 2, "a", 1, old=(9, None, None)),
    )
    assert side.rows() == [(1, "b", 2), (2, "a", 1)]


def test_a_column_that_was_not_sent_stays(side: Side) -> None:
    """An unsent column stays in a row whose key has changed, too."""
    side.apply(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2))
    side.apply(
        update(ITEM, 1, None, 5, absent=(1,)),
        update(ITEM, 3, None, 6, old=(2, None, None), absent=(1,)),
    )
    assert side.rows() == [(1, "a", 5), (3, "b", 6)]


def test_rows_without_a_key_are_counted(side: Side) -> None:
    """The target has equal rows as often as they were inserted; each delete removes one."""
    side.apply(insert(BAG, 1), insert(BAG, 1), insert(BAG, 1), insert(BAG, 2))
    side.apply(delete(BAG, 1), delete(BAG, 2))
    assert side.rows("bag") == [(1,), (1,)]


def test_a_truncate_inside_a_batch(side: Side) -> None:
    """Earlier rows are gone, later ones stay; other tables keep all rows."""
    side.apply(insert(ITEM, 1, "a", 1), insert(BAG, 7))
    side.log.transaction(insert(ITEM, 2, "b", 2))
    side.log.transaction((MarkerKind.TRUNCATE, [T]))
    side.write(insert(ITEM, 3, "c", 3))
    side.apply()
    assert side.rows() == [(3, "c", 3)]
    assert side.rows("bag") == [(7,)]


def test_a_change_of_shape(side: Side) -> None:
    """The target gets the new column before rows that have it."""
    side.apply(insert(ITEM, 1, "a", 1))
    side.apply(insert(WIDER, 2, "b", 2, 3), update(WIDER, 1, "a", 1, 4))
    assert side.rows() == [(1, "a", 1, 4), (2, "b", 2, 3)]


def test_the_open_segment_is_applied_in_pieces(side: Side) -> None:
    """Each flush is applied at once; rows, a TRUNCATE and a new shape once, the end last."""

    def follow(*changes: Any) -> Batch:
        side.log.transaction(*changes)
        side.log.writer.flush()
        batch = side.stage()
        assert batch.whole == ()
        side.target.apply(batch)
        side.applied = batch.after
        assert side.applied.segment == -1
        return batch

    follow(insert(ITEM, 1, "a", 1), insert(BAG, 1), insert(BAG, 1))
    assert side.rows() == [(1, "a", 1)]
    follow(update(ITEM, 1, "b", 2), insert(BAG, 1))
    assert side.rows("bag") == [(1,), (1,), (1,)]
    follow((MarkerKind.TRUNCATE, [T]))
    assert side.rows() == []
    side.target = side.connect()
    follow(insert(ITEM, 2, "c", 3))
    follow(delete(BAG, 1))
    assert (side.rows(), side.rows("bag")) == ([(2, "c", 3)], [(1,), (1,)])
    follow(insert(WIDER, 3, "d", 4, 5))
    assert side.rows() == [(2, "c", 3, None), (3, "d", 4, 5)]
    follow(update(WIDER, 2, "c", 3, 6))
    assert side.applied.is_at(side.connect().bind(LOG_ID))
    side.log.close_segment()
    end = side.apply(*[])
    assert [file.number for file in end.whole] == [0]
    assert end.counts.changes == 0
    assert side.rows() == [(2, "c", 3, 6), (3, "d", 4, 5)]
    assert side.rows("bag") == [(1,), (1,)]


def test_a_closed_segment_and_the_open_one_are_one_batch(side: Side) -> None:
    """One batch has both segments, of which the first was partly applied while it was open."""
    side.log.transaction(insert(BAG, 1))
    side.log.writer.flush()
    side.apply()
    side.write(insert(BAG, 2))
    side.log.transaction(insert(BAG, 3))
    side.log.writer.flush()
    batch = side.apply()
    assert ([file.number for file in batch.whole], side.applied.segment) == ([0], 0)
    assert side.rows("bag") == [(1,), (2,), (3,)]


def test_a_failed_batch_of_the_open_segment_leaves_nothing(side: Side) -> None:
    """No row is left, and the retry succeeds also if the segment was closed before it."""
    side.log.transaction(insert(BAG, 1))
    side.log.writer.flush()
    with arming("load.commit.before:1:error"), pytest.raises(FaultInjected):
        side.target.apply(side.stage())
    assert side.rows("bag") == []
    side.target = side.connect()
    side.write(insert(BAG, 2))
    side.apply()
    assert (side.rows("bag"), side.applied.segment) == ([(1,), (2,)], 0)


def test_progress_is_read_back(side: Side) -> None:
    """Another process continues where this one stopped; several segments are one batch."""
    assert side.applied == Applied()
    side.write(insert(ITEM, 1, "a", 1))
    batch = side.apply(insert(ITEM, 2, "b", 2))
    assert batch.counts.changes == 2
    assert [file.number for file in batch.whole] == [0, 1]
    assert side.connect().bind(LOG_ID).is_at(batch.after)


def test_a_failed_batch_leaves_nothing(side: Side) -> None:
    """Neither rows nor progress are left; staged again, the batch is applied."""
    side.apply(insert(ITEM, 1, "a", 1))
    before = side.applied
    side.write(update(ITEM, 1, "b", 2), insert(ITEM, 2, "c", 3))
    with arming("load.commit.before:1:error"), pytest.raises(FaultInjected):
        side.target.apply(side.stage())
    assert side.rows() == [(1, "a", 1)]
    side.target = side.connect()
    assert side.applied.is_at(before)
    side.apply()
    assert side.rows() == [(1, "b", 2), (2, "c", 3)]


def test_a_batch_is_applied_once(side: Side) -> None:
    """After a crash following the commit, the target knows, and refuses the repeated batch."""
    side.write(insert(BAG, 1))
    start = side.applied
    batch = side.stage()
    with arming("load.commit.after:1:error"), pytest.raises(FaultInjected):
        side.target.apply(batch)
    side.target = side.connect()
    assert side.applied.is_at(batch.after)
    again = side.stage(after=start)
    with pytest.raises(AppliedByAnother):
        side.target.apply(again)
    assert side.rows("bag") == [(1,)]


def test_another_log_is_refused(side: Side) -> None:
    """The numbers of two logs are unrelated."""
    side.apply(insert(ITEM, 1, "a", 1))
    with pytest.raises(TargetFollowsAnotherLog):
        side.connect("another-log")


def test_a_table_that_is_left_out_catches_up(side: Side) -> None:
    """The table waits while others continue; then batches of it alone move its own place."""
    side.apply(insert(ITEM, 1, "a", 1), insert(BAG, 1))
    row = TableSync(table=T, state=SyncState.PAUSED, applied=side.applied)
    side.target.write_table_sync([row], at=side.applied)
    side.apply(insert(ITEM, 2, "b", 2), insert(BAG, 2), left_out=frozenset({T}))
    assert side.rows() == [(1, "a", 1)]
    assert side.rows("bag") == [(1,), (2,)]
    alone = side.stage(after=row.applied, only=T)
    side.target.apply(alone, table_sync=row, at=side.applied)
    assert side.rows() == [(1, "a", 1), (2, "b", 2)]
    assert side.rows("bag") == [(1,), (2,)]
    found = side.connect().read_table_syncs()[T]
    assert found.applied.is_at(alone.after)
    assert side.applied.is_at(alone.after)


def test_a_row_of_a_table_needs_the_place(side: Side) -> None:
    """A loader that is behind does not write it."""
    start = side.applied
    side.apply(insert(ITEM, 1, "a", 1))
    with pytest.raises(AppliedByAnother):
        side.target.write_table_sync([TableSync(table=T, state=SyncState.PAUSED)], at=start)
    assert side.connect().read_table_syncs() == {}


def test_changes_before_a_table_began_do_not_count(side: Side) -> None:
    """The bulk load's rows include them."""
    side.log.transaction(insert(ITEM, 1, "old", 1))
    start = side.log.transaction(insert(ITEM, 2, "new", 2))
    side.log.close_segment()
    side.apply(starts={T: start})
    assert side.rows() == [(2, "new", 2)]
