"""Batches in a lake, with the format in memory: content, exactly once, other writers.

Each test compares the lake's rows with those that the source had at the same place of the log, at
every row of the table of batches. Not here: the real formats (`test_delta.py`, `test_iceberg.py`)
and Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.lake.applying import LakeRun, Shop, content_of, create_table
from harness.lake.fake_format import FakeCatalogue, FakeFormat, FakeStore
from harness.pipelines.changes import Change
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import (
    DeleteForm,
    DeletionRef,
    FeatureUnknown,
    LakeColumn,
    LiveFile,
    MarkNotNewer,
)
from penstock.engines.lake.upkeep import Limits, choose_files
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import MarkerKind, PenstockError, TableName
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    SyncState,
    TableSync,
    TargetFollowsAnotherLog,
    TargetRowMissing,
)

ORDERS = TableName("public", "orders")
POINTS = (
    "lake.stage.recorded",
    "lake.apply.begun",
    "lake.lookup.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.after",
    "lake.state.after",
    "lake.compact.before",
    "lake.compact.after",
)


class Lake:
    """Lake in memory with the tables of a shop."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        """Create the tables."""
        self.url = f"delta+file://{folder}/lake"
        self.log = folder / "log"
        self.log.mkdir()
        self.store = FakeStore(root=folder / "lake")
        self._checked: set[str] = set()
        self.shop = Shop(self.log, seed)
        for table in self.shop.tables:
            create_table(FakeCatalogue(self.store), table.shape)

    def open(self, **how: Any) -> LakeRun:
        """Return a new loader."""
        return LakeRun(FakeFormat(self.store), self.url, self.log, **how)

    def check(self) -> None:
        """Compare all tables with the source, at the newest version and at each batch."""
        for table in self.shop.tables:
            assert content_of(self.store.rows(table.name)) == table.content, table.name
        self.check_batches()

    def check_batches(self) -> None:
        """Compare the versions that each batch names with the source at the batch's end."""
        for row in self.store.rows(BATCHES):
            if row["versions"] is None or row["position"] in self._checked:
                continue
            self._checked.add(row["position"])
            versions = json.loads(row["versions"])
            for name, content in self.shop.states[int(row["position"])].items():
                found = self.store.rows(name, version=versions[str(name)])
                assert content_of(found) == content, (row["gsn"], name)

    def files(self) -> set[str]:
        """Return the names of all data files below the tables."""
        return {path.name for path in (self.store.root / "public").rglob("*") if path.is_file()}

    def list_referenced(self) -> set[str]:
        """Return the names of the data files that any version has."""
        return {
            Path(location).name
            for data in self.store.tables.values()
            for version in data.versions
            for file in version.files
            for location in (file.location, *(ref.location for ref in file.deletes))
        }


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake with the shop's empty tables."""
    lake = Lake(tmp_path)
    yield lake
    lake.shop.log.writer.close()


def test_batches_make_the_tables_equal_to_the_source(lake: Lake) -> None:
    """Apply a history in several batches."""
    lake.shop.write(60)
    run = lake.open()
    assert run.run(files_max=2) == 6
    run.close()
    lake.check()
    assert len(lake.store.rows(BATCHES)) == 6


def test_a_batch_is_staged_while_the_one_before_is_applied(lake: Lake) -> None:
    """Stage each batch before the previous one is applied, as the loader does."""
    lake.shop.write(40)
    run = lake.open()
    staged, place = run.stage(files_max=1), 0
    while staged is not None:
        place = 1 - place
        ahead = run.stage(applied=staged.after, place=place, files_max=1)
        run.apply(staged)
        staged = ahead
    run.close()
    lake.check()


def test_nothing_is_left_of_staged_files_but_those_of_the_tables(lake: Lake) -> None:
    """Apply batches, give one up, and look for files that no version has."""
    lake.shop.write(20)
    run = lake.open()
    run.run(files_max=1)
    run.stage(applied=Applied())
    run.close()
    assert lake.files() <= lake.list_referenced()
    assert not list((lake.store.root / "_penstock" / "side").iterdir())
    assert not list((lake.store.root / "_penstock" / "staged").iterdir())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failure_at_any_step_counts_each_change_once(lake: Lake, point: str, nth: int) -> None:
    """Fail or be killed at a step, connect again, and cut the batches at other places."""
    lake.shop.write(40)
    run = lake.open()
    with faults.arming(f"{point}:{nth}:error"), pytest.raises(FaultInjected):
        run.run(files_max=1)
    run.fail()
    again = lake.open()
    again.run(files_max=3)  # cut at other places than before
    again.close()
    lake.check()
    # Only vectors of deleted rows may be left, whose names have no token.
    assert all("deletion_vector" in name for name in lake.files() - lake.list_referenced())


@pytest.mark.parametrize("point", POINTS[:5])
def test_a_second_failure_before_the_tables_are_level_again(lake: Lake, point: str) -> None:
    """Be killed after one table's commit, and again while the others have not caught up."""
    lake.shop.write(20)
    for spec in ("lake.commit.after:2:error", f"{point}:1:error"):
        run = lake.open()
        with faults.arming(spec), pytest.raises(FaultInjected):
            run.run(files_max=2)
        run.kill()
    last = lake.open()
    last.run(files_max=1)
    last.close()
    lake.check()
    assert not list((lake.store.root / "_penstock" / "staged").iterdir())


def test_many_failures_in_a_long_history(lake: Lake) -> None:
    """Fail at random steps of a random history."""
    choose = lake.shop.random
    failed = 0
    run = lake.open()
    for _ in range(25):
        lake.shop.write(choose.randint(1, 6), per_segment=choose.randint(1, 3))
        point, nth = choose.choice(POINTS), choose.randint(1, 8)
        try:
            with faults.arming(f"{point}:{nth}:error"):
                run.run(files_max=choose.randint(1, 3))
        except FaultInjected:
            failed += 1
            choose.choice([run.fail, run.kill])()
            lake.check_batches()
            run = lake.open()
    run.run()
    run.close()
    lake.check()
    assert failed > 3


def test_a_commit_is_repeated_if_another_writer_was_faster(lake: Lake) -> None:
    """Let another writer commit before each table's first two commits."""
    lake.shop.write(20)
    touched: list[TableName] = []

    def touch(name: TableName) -> None:
        if touched.count(name) < 2:
            touched.append(name)
            lake.store.touch(name)

    lake.store.before_commit = touch
    run = lake.open()
    run.run(files_max=2)
    run.close()
    assert touched
    lake.check()


def test_a_second_loader_is_refused(lake: Lake) -> None:
    """Stage the same rows in two loaders, and apply both."""
    lake.shop.write(20)
    one, other = lake.open(), lake.open()
    first, second = one.stage(files_max=1), other.stage(files_max=2)
    assert first is not None
    assert second is not None
    one.apply(first)
    with pytest.raises((AppliedByAnother, MarkNotNewer)):
        other.apply(second)
    other.fail()
    one.run()
    one.close()
    lake.check()


def test_two_loaders_that_take_turns_count_each_change_once(lake: Lake) -> None:
    """Let two loaders work on one lake, each of which connects again once it is refused."""
    lake.shop.write(40)
    choose, refused = lake.shop.random, 0
    runs = [lake.open(), lake.open()]
    for _ in range(30):
        number = choose.randint(0, 1)
        run = runs[number]
        try:
            if (staged := run.stage(files_max=choose.randint(1, 3))) is not None:
                run.apply(staged)
        except PenstockError:
            refused += 1
            run.fail()
            runs[number] = lake.open()
    for run in runs:
        run.fail()
    last = lake.open()
    last.run()
    last.close()
    lake.check()
    assert refused


def test_a_lake_follows_one_log(lake: Lake) -> None:
    """Bind a lake to another log."""
    lake.open().close()
    with pytest.raises(TargetFollowsAnotherLog):
        LakeRun(FakeFormat(lake.store), lake.url, lake.log, log_id="another")


def test_inserts_are_not_looked_up(lake: Lake) -> None:
    """Apply a batch of new rows alone, and look at the jobs."""
    table = lake.shop.tables[0]
    lake.shop.log.transaction(
        *((table.shape, Change(op="I", gsn=0, after=(key, 1, "b", "c"))) for key in range(5))
    )
    lake.shop.log.close_segment()
    run = lake.open()
    run.run()
    run.close()
    assert not [job for job in run.jobs.jobs if job.startswith("keys of")]
    assert len(lake.store.rows(ORDERS)) == 5


def test_the_table_of_batches_joins_its_files(lake: Lake) -> None:
    """Apply more batches than the table of batches keeps files."""
    run = lake.open()
    for _ in range(70):
        lake.shop.write(1)
        run.run()
    run.close()
    assert len(lake.store.newest(BATCHES).files) < 64
    assert len(lake.store.rows(BATCHES)) == 70
    lake.check()


def test_states_for_other_processes_follow(lake: Lake) -> None:
    """Read the state files and the steps' seconds after a batch."""
    lake.shop.write(10)
    run = lake.open()
    staged = run.stage()
    assert staged is not None
    assert {"stage", "apply", "commit"} <= run.apply(staged).keys()
    state = run.target._lake.state
    log = state.read_log()
    assert log is not None
    assert log.applied == run.applied
    assert log.versions[str(ORDERS)] == lake.store.newest(ORDERS).version
    files = state.read_files()
    assert files is not None
    assert all(row.ended for row in files.rows)
    run.close()
    assert replace(log, updated_us=0).log_id == "test-log"


@pytest.mark.parametrize(
    "point", ["", "lake.commit.before", "lake.commit.after", "lake.batch.before"]
)
def test_a_table_catches_up_alone(lake: Lake, point: str) -> None:
    """Pause a table, and let it catch up, with a failure on the way."""
    lake.shop.write(15)
    run = lake.open()
    run.run()
    row = TableSync(table=ORDERS, state=SyncState.PAUSED, applied=run.applied)
    run.target.write_table_sync([row], at=run.applied)
    run.close()
    lake.shop.write(15)
    paused = lake.open(left_out=frozenset([ORDERS]))
    paused.run()
    row = replace(paused.target.read_table_syncs()[ORDERS], state=SyncState.CATCHING_UP)
    paused.target.write_table_sync([row], at=paused.applied)
    if point:
        with faults.arming(f"{point}:1:error"), pytest.raises(FaultInjected):
            paused.catch_up(row)
        paused.fail()
        paused = lake.open(left_out=frozenset([ORDERS]))
    row = paused.catch_up(paused.target.read_table_syncs()[ORDERS])
    assert row.applied.is_at(paused.applied)
    paused.target.write_table_sync([replace(row, state=SyncState.FOLLOWING)], at=paused.applied)
    paused.close()
    lake.shop.write(15)
    last = lake.open()
    last.run()
    last.close()
    for table in lake.shop.tables:
        assert content_of(lake.store.rows(table.name)) == table.content


def write_changes(lake: Lake, *changes: Change) -> None:
    """Commit changes of orders in a segment of their own."""
    shape = lake.shop.tables[0].shape
    lake.shop.log.transaction(*((shape, change) for change in changes))
    lake.shop.log.close_segment()


def test_rows_that_a_copy_has_already_are_not_there_twice(lake: Lake) -> None:
    """Apply inserts and updates to a table whose copy has some of them."""
    inserts = [Change(op="I", gsn=0, after=(key, 1, "b", "c")) for key in range(6)]
    write_changes(lake, *inserts[:3])
    copy = lake.open()
    copy.run()
    copy.close()
    for name in (BATCHES, ORDERS):  # the rows stay, without a mark of the log
        lake.store.put(name, replace(lake.store.newest(name), mark=None), "copy")
    write_changes(lake, *inserts[3:], Change(op="U", gsn=0, after=(0, 2, "b", "c")))
    run = lake.open(settled={ORDERS: 10**6}, starts={ORDERS: 1})
    run.run()
    run.close()
    found = sorted((row["id"], row["a"]) for row in lake.store.rows(ORDERS))
    assert found == [(0, 2), *((key, 1) for key in range(1, 6))]


@pytest.mark.parametrize("point", ["", "lake.commit.before", "lake.commit.after"])
def test_rows_that_come_again_replace_those_of_the_lake(lake: Lake, point: str) -> None:
    """Let the log have all rows of two tables again, after another program has changed them."""
    lake.shop.write(20)
    run = lake.open()
    run.run()
    tables = lake.shop.tables[:2]
    for number, table in enumerate(tables):
        snapshot = lake.store.newest(table.name)
        kept = snapshot.files[:1] if number else ()
        lake.store.put(table.name, replace(snapshot, files=kept), "foreign")
    for table in tables:
        rows = [Change(op="I", gsn=0, after=row) for row in table.content]
        lake.shop.log.transaction(
            (MarkerKind.RELOAD, [table.name]), *((table.shape, row) for row in rows)
        )
        lake.shop.note()
    lake.shop.write(5)
    if point:
        with faults.arming(f"{point}:2:error"), pytest.raises(FaultInjected):
            run.run()
        run.kill()
        run = lake.open()
    run.run()
    run.close()
    lake.check()


def test_tables_of_others_are_passed_over(lake: Lake) -> None:
    """Apply batches beside a table without a record, and one that penstock cannot read."""
    plain, odd = TableName("others", "plain"), TableName("others", "odd")
    write_changes(lake, Change(op="I", gsn=0, after=(1, 1, "b", "c")))
    run = lake.open()
    for name in (plain, odd):
        run.target._lake.catalogue.create(name, (LakeColumn(name="id", type="int64"),))
    lake.store.unknown.add(odd)
    run.run()
    state = run.target._lake.state.read_log()
    assert state is not None
    assert str(ORDERS) in state.versions
    assert not {str(plain), str(odd)} & state.versions.keys()
    lake.store.unknown.add(ORDERS)
    run.target.forget()
    other = lake.shop.tables[1]
    lake.shop.log.transaction((other.shape, lake.shop._change(other)))
    lake.shop.log.close_segment()
    with pytest.raises(FeatureUnknown):
        run.run()
    run.fail()


def test_missing_rows_are_counted(lake: Lake) -> None:
    """Update and delete rows that another program has removed from the lake."""
    write_changes(lake, *(Change(op="I", gsn=0, after=(key, 1, "b", "c")) for key in range(3)))
    run = lake.open()
    run.run()
    snapshot = lake.store.newest(ORDERS)
    lake.store.put(ORDERS, replace(snapshot, files=()), "foreign")
    write_changes(
        lake,
        Change(op="U", gsn=0, after=(0, 2, "b", "c")),
        Change(op="D", gsn=0, before=(1, 1, "b", "c")),
    )
    run.run()
    state = run.target._lake.state.read_log()
    run.close()
    assert [row["id"] for row in lake.store.rows(ORDERS)] == [0]
    assert state is not None
    assert state.missing == {str(ORDERS): 2}


def test_a_row_that_cannot_be_completed_stops_by_name(lake: Lake) -> None:
    """Update a row without all of its columns that another program has removed from the lake."""
    write_changes(lake, Change(op="I", gsn=0, after=(1, 1, "b", "c")))
    run = lake.open()
    run.run()
    lake.store.put(ORDERS, replace(lake.store.newest(ORDERS), files=()), "foreign")
    write_changes(lake, Change(op="U", gsn=0, after=(1, 2, "b", "c"), absent=frozenset([3])))
    with pytest.raises(TargetRowMissing, match="lacks 1 rows"):
        run.run()
    run.fail()
    assert lake.store.rows(ORDERS) == []


def test_tables_have_few_files_after_many_batches(lake: Lake) -> None:
    """Apply many small batches, and count the files of the newest versions."""
    lake.shop.write(60, per_segment=1)
    run = lake.open()
    run.run(files_max=1)
    run.close()
    lake.check()
    for table in lake.shop.tables:
        data = lake.store.tables[table.name]
        assert len(data.versions[-1].files) < 12
        assert "compact" in data.operations


def test_files_of_one_tier_are_joined() -> None:
    """Choose among files of several sizes and with deleted rows."""
    limits = Limits(count=2, tier_bytes=100, tiers=2, dead_rows_min=5)

    def file(name: str, size_bytes: int, dead: int = 0) -> LiveFile:
        ref = DeletionRef(form=DeleteForm.DELTA, cardinality=dead)
        deletes = (ref,) if dead else ()
        return LiveFile(
            name=name, location=name, size_bytes=size_bytes, row_count=10, deletes=deletes
        )

    files = [file("a", 50), file("b", 150), file("c", 60, 1), file("d", 999), file("e", 999, 6)]
    groups = choose_files([*files, file("f", 999, 10)], limits)
    assert sorted(tuple(one.name for one in group) for group in groups) == [
        ("a", "c"),
        ("e",),
        ("f",),
    ]
