"""Histories of tables, with the format in memory: every change once, in order, after failures.

Each test replays the histories and compares the result with the source, and the changes with those
of the log. Not here: the real formats (`test_history_formats.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from harness.lake.applying import LakeRun, Shop, create_table
from harness.lake.fake_format import FakeCatalogue, FakeFormat, FakeStore
from harness.lake.histories import check_changes, in_order, replay
from harness.pipelines.changes import Change, relation
from penstock.codec.types import lake_arrow_type
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import Commit, LakeForeign, Mark
from penstock.engines.lake.history import HistoryForeign
from penstock.engines.lake.history_shape import history_name
from penstock.engines.lake.parquet import DataWriter
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import Column, MarkerKind, PenstockError, Relation, TableName

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

    def write(self, *changes: Change) -> None:
        """Commit one transaction in a segment of its own."""
        self.log.transaction(*((SHAPE, change) for change in changes))
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


def test_a_table_that_was_copied_again_begins_again_in_its_history(lake: Lake) -> None:
    """Replace a table's rows as the bulk load does, and go on with changes."""
    one = One(lake)
    create_table(FakeCatalogue(lake.store), SHAPE)
    one.write(
        Change(op="I", gsn=0, after=(1, 1, "one")), Change(op="I", gsn=0, after=(2, 1, "two"))
    )
    one.load()
    table = FakeCatalogue(lake.store).find(one.name)
    assert table is not None
    rows = pa.table({"id": [2, 3], "a": [5, 6], "b": ["copied", "too"]})
    location = f"{table.data_folder}/copied.parquet"
    columns = table.snapshot().columns
    with DataWriter(location, columns, {}) as writer:
        writer.write(
            [
                rows.column(place).combine_chunks().cast(lake_arrow_type(column.type))
                for place, column in enumerate(columns)
            ]
        )
    table.commit(
        Commit(
            base_version=table.snapshot().version,
            adds=writer.new_files,
            removes_all=True,
            mark=Mark(log_id="bulk/again"),
            operation="copy",
        )
    )
    one.write(Change(op="U", gsn=0, after=(3, 7, "too")))
    one.load()
    one.load()  # nothing is repeated
    assert [tuple(row.values()) for row in one.rows()] == [
        ("insert", 1, 1, "one"),
        ("insert", 2, 1, "two"),
        ("truncate", None, None, None),
        ("read", 2, 5, "copied"),
        ("read", 3, 6, "too"),
        ("update", 3, 7, "too"),
    ]
    assert replay(lake.store.rows(history_name(one.name)), ["id"]) == [
        (2, 5, "copied"),
        (3, 7, "too"),
    ]


def test_a_history_keeps_what_its_table_loses(lake: Lake) -> None:
    """Add, rename, widen, drop and retype columns."""
    one = One(lake)

    def shape(version: int, *columns: tuple[int, str, str, str]) -> Relation:
        made = tuple(Column(id=i, name=n, source_type=s, neutral=k) for i, n, s, k in columns)
        return replace(SHAPE, columns=made, source_id=7, version=version)

    key = (1, "id", "bigint", "int64")
    shapes = [
        shape(1, key, (2, "a", "integer", "int32"), (3, "b", "text", "string")),
        shape(2, key, (2, "a", "bigint", "int64"), (3, "b", "text", "string")),
        shape(3, key, (2, "n", "bigint", "int64"), (3, "b", "text", "string")),
        shape(4, key, (2, "n", "bigint", "int64"), (4, "c", "date", "date")),
        shape(5, key, (2, "n", "bigint", "int64"), (5, "c", "text", "string")),
    ]
    create_table(FakeCatalogue(lake.store), shapes[0])
    values = [(1, 1, "x"), (2, 2**40, "y"), (3, 3, "z"), (4, 4, date(2024, 2, 29)), (5, 5, "text")]
    for after, version in zip(values, shapes, strict=True):
        one.log.transaction((version, Change(op="I", gsn=0, after=after)))
        if version.version in (2, 5):
            one.log.close_segment()  # two changes of shape are in one batch
    one.load()
    found = one.rows()
    assert [(row["id"], row["n"], row["b"], row["c"], row["c_string"]) for row in found] == [
        (1, 1, "x", None, None),
        (2, 2**40, "y", None, None),
        (3, 3, "z", None, None),
        (4, 4, None, date(2024, 2, 29), None),
        (5, 5, None, None, "text"),
    ]


def test_another_table_of_that_name_is_refused(lake: Lake) -> None:
    """Find a table of the user's where the history would be."""
    name = history_name(ORDERS)
    create_table(FakeCatalogue(lake.store), replace(SHAPE, name=name.name))
    with pytest.raises(LakeForeign, match="has another table"):
        lake.open()


def test_a_history_of_another_log_is_refused(lake: Lake) -> None:
    """Begin a new log on a lake whose histories have the changes of another one."""
    lake.open().close()
    lake.store.tables.pop(BATCHES)
    shutil.rmtree(lake.store.root / BATCHES.schema)
    with pytest.raises(HistoryForeign, match="another-log") as caught:
        LakeRun(FakeFormat(lake.store), lake.url, lake.log, log_id="another-log")
    assert "Rename or drop" in caught.value.hint
