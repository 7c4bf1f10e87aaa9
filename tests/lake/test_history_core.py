"""Histories of tables, with the format in memory: every change once, in order, after failures.

Each test replays the histories and compares the result with the source, and the changes with those
of the log. Not here: the real formats (`test_history_formats.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lake.applying import LakeRun, Shop, create_table
from harness.lake.fake_format import FakeCatalogue, FakeFormat, FakeStore
from harness.lake.histories import check_changes, in_order, replay
from harness.pipelines.changes import Change, relation
from penstock.engines.lake.history_shape import history_name
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import MarkerKind, PenstockError, TableName

ORDERS = TableName("public", "orders")
POINTS = (
    "lake.stage.recorded",
    "lake.apply.begun",
    "lake.history.before",
    "lake.history.after",
    "lake.history.done",
    "lake.lookup.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.after",
    "lake.compact.after",
)


class Lake:
    """Lake in memory with the tables of a shop, and their histories."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        """Create the tables."""
        self.url = f"delta+file://{folder}/lake?history=true"
        self.log = folder / "log"
        self.log.mkdir()
        self.store = FakeStore(root=folder / "lake")
        self.shop = Shop(self.log, seed)
        for table in self.shop.tables:
            create_table(FakeCatalogue(self.store), table.shape)

    def open(self) -> LakeRun:
        """Return a new loader."""
        return LakeRun(FakeFormat(self.store), self.url, self.log)

    def check(self) -> None:
        """Compare all histories with the source and its log."""
        for table in self.shop.tables:
            rows = self.store.rows(history_name(table.name))
            key = [table.shape.columns[index].name for index in table.shape.key]
            assert replay(rows, key) == table.content, table.name
            check_changes(rows, self.log, table.shape)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake with the shop's empty tables."""
    lake = Lake(tmp_path)
    yield lake
    lake.shop.log.writer.close()


def test_every_change_is_in_the_history_once(lake: Lake) -> None:
    """Apply a history in several batches, each with changes that its fold drops."""
    lake.shop.write(120)
    run = lake.open()
    run.run(files_max=4)
    run.close()
    lake.check()
    ops = {row["_op"] for row in lake.store.rows(history_name(ORDERS))}
    assert ops == {"insert", "update", "delete", "truncate"}


def test_a_history_is_staged_while_the_batch_before_is_applied(lake: Lake) -> None:
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


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_failure_at_any_step_repeats_no_change(lake: Lake, point: str, nth: int) -> None:
    """Fail at a step, connect again, and cut the batches at other places."""
    lake.shop.write(40)
    run = lake.open()
    with faults.arming(f"{point}:{nth}:error"), pytest.raises(FaultInjected):
        run.run(files_max=1)
    run.fail()
    again = lake.open()
    again.run(files_max=3)
    again.close()
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
        if name.name.endswith("_history") and touched.count(name) < 2:
            touched.append(name)
            lake.store.touch(name)

    run = lake.open()
    lake.store.before_commit = touch
    run.run(files_max=2)
    run.close()
    assert touched
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


# --- one table, by hand ---------------------------------------------------------------------------

SHAPE = relation(("id", "bigint", "int64"), ("a", "integer", "int32"), ("b", "text", "string"))


class One:
    """Lake with one table, and its log."""

    def __init__(self, lake: Lake) -> None:
        """Keep the lake, whose log has nothing yet."""
        self.lake = lake
        self.log = lake.shop.log
        self.name = TableName("public", SHAPE.name)
        self.version = 1

    def write(self, *changes: Change, shape: object = SHAPE) -> None:
        """Commit one transaction in a segment of its own, and apply it."""
        self.log.transaction(*((shape, change) for change in changes))
        self.log.close_segment()

    def load(self) -> None:
        """Apply all segments with a loader of its own."""
        run = self.lake.open()
        run.run()
        run.close()

    def rows(self) -> list[dict[str, object]]:
        """Return the history's rows in order, without the columns of the change."""
        rows = self.lake.store.rows(history_name(self.name))
        return [
            {"op": row["_op"], **{k: v for k, v in row.items() if not k.startswith("_")}}
            for row in in_order(rows)
        ]


def test_existing_rows_come_first(lake: Lake) -> None:
    """Switch histories on for tables that have rows."""
    lake.shop.write(30)
    with_history = lake.url
    lake.url = with_history.partition("?")[0]
    run = lake.open()
    run.run()
    run.close()
    lake.url = with_history
    counts = {table.name: len(table.content) for table in lake.shop.tables}
    lake.shop.write(30)
    run = lake.open()
    run.run(files_max=1)
    run.close()
    for table in lake.shop.tables:
        rows = lake.store.rows(history_name(table.name))
        key = [table.shape.columns[index].name for index in table.shape.key]
        assert replay(rows, key) == table.content
        assert sum(row["_op"] == "read" for row in rows) == counts[table.name]


def test_a_killed_copy_of_existing_rows_is_not_repeated(lake: Lake) -> None:
    """Be killed after the existing rows are in the history."""
    lake.shop.write(30)
    with_history = lake.url
    lake.url = with_history.partition("?")[0]
    run = lake.open()
    run.run()
    run.close()
    lake.url = with_history
    for nth in (1, 2):
        with faults.arming(f"lake.history.copied:{nth}:error"), pytest.raises(FaultInjected):
            lake.open()
    lake.shop.write(30)
    run = lake.open()
    run.run()
    run.close()
    for table in lake.shop.tables:
        rows = lake.store.rows(history_name(table.name))
        key = [table.shape.columns[index].name for index in table.shape.key]
        assert replay(rows, key) == table.content


def test_values_that_were_not_sent_are_found(lake: Lake) -> None:
    """Leave a column out of updates, with its value in the table, in the batch, under a new key."""
    one = One(lake)
    create_table(FakeCatalogue(lake.store), SHAPE)
    absent = frozenset([2])
    one.write(
        Change(op="I", gsn=0, after=(1, 1, "one")), Change(op="I", gsn=0, after=(2, 1, "two"))
    )
    one.load()
    one.write(
        Change(op="U", gsn=0, after=(1, 2, None), absent=absent),
        Change(op="U", gsn=0, after=(1, 3, None), absent=absent),
        Change(op="U", gsn=0, after=(1, 3, "uno")),
        Change(op="U", gsn=0, after=(5, 4, None), before=(1, None, None), absent=absent),
        Change(op="D", gsn=0, before=(5, None, None)),
        Change(op="U", gsn=0, after=(3, 2, None), before=(2, None, None), absent=absent),
        Change(op="I", gsn=0, after=(4, 1, "four")),
        Change(op="U", gsn=0, after=(4, 2, None), absent=absent),
    )
    one.log.transaction((MarkerKind.TRUNCATE, [one.name]))
    one.log.close_segment()
    one.load()
    assert [tuple(row.values()) for row in one.rows()] == [
        ("insert", 1, 1, "one"),
        ("insert", 2, 1, "two"),
        ("update", 1, 2, "one"),
        ("update", 1, 3, "one"),
        ("update", 1, 3, "uno"),
        ("delete", 1, None, None),
        ("insert", 5, 4, "uno"),
        ("delete", 5, None, None),
        ("delete", 2, None, None),
        ("insert", 3, 2, "two"),
        ("insert", 4, 1, "four"),
        ("update", 4, 2, "four"),
        ("truncate", None, None, None),
    ]
    assert lake.store.rows(one.name) == []
