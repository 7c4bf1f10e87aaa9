"""Batches that Spark merges (`apply = "merge"`), in lakes of the real formats.

Histories with failures, compared by other readers at every batch; tables with features that
penstock itself does not write. Not here: whole pipelines (`tests/servers/test_lake_commands.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from harness.lake.applying import LakeRun, Shop, Table, content_of, create_table, record_of
from harness.lake.sides import DeltaSide, IcebergSide, Side, rows_of
from harness.lake.spark import lake_session
from harness.pipelines.bulk import between, load, rows, run
from harness.pipelines.changes import Change
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import Commit
from penstock.engines.lake.merging import MergeKeyMissing
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.target import (
    AppliedByAnother,
    TargetRowMissing,
    ValueRefused,
)
from plugins.shared import SharedSpark

pytestmark = pytest.mark.spark

ROUNDS = 7
ORDERS = TableName("public", "orders")
POINTS = (
    "lake.alter.before",  # the first batch records the log's shapes
    "lake.alter.after",
    "lake.stage.recorded",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.after",
)


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark"), master="local[2]") as running:
        yield running


@pytest.fixture(params=["delta", "iceberg v3", "iceberg v2"])
def side(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Side:
    """Return a lake of each format, into which Spark merges."""
    if request.param == "delta":
        return DeltaSide(session, tmp_path / "lake", options={"apply": "merge"})
    version = int(request.param[-1])
    return IcebergSide(session, tmp_path / "lake", version, options={"apply": "merge"})


class Merging:
    """Shop whose tables have keys, and loaders that merge its changes."""

    def __init__(self, side: Side, folder: Path, *, seed: int = 3) -> None:
        self.side = side
        self.log = folder / "log"
        self.log.mkdir()
        self.shop = Shop(self.log, seed)
        self.shop.tables = [table for table in self.shop.tables if table.shape.key]

    @property
    def orders(self) -> Table:
        """The table `orders`."""
        return self.shop.tables[0]

    def connect(self) -> LakeRun:
        """Return a new loader."""
        return LakeRun(self.side.table_format, self.side.url, self.log, jobs=self.side.session)

    def check(self) -> None:
        """Compare all tables with the source, now and at each batch."""
        self.shop.log.writer.close()
        for table in self.shop.tables:
            assert content_of(rows_of(self.side.read(table.name))) == table.content, table.name
        checked = 0
        for row in rows_of(self.side.read(BATCHES)):
            for name, version in json.loads(row["versions"] or "{}").items():
                table = TableName(*name.split("."))
                # A table of Iceberg without a snapshot has no rows.
                read = rows_of(self.side.read(table, version)) if version else []
                found = content_of(read)
                assert found == self.shop.states[int(row["position"])][table], (row["gsn"], name)
                checked += 1
        assert checked >= len(self.shop.tables)


@pytest.fixture
def merging(side: Side, tmp_path: Path) -> Merging:
    """Return a shop and its lake."""
    return Merging(side, tmp_path)


def test_a_history_with_failures_and_foreign_maintenance(merging: Merging) -> None:
    """Fail at random steps, rewrite tables as another program, and compare each batch."""
    shop, side = merging.shop, merging.side
    for table in shop.tables:
        create_table(side.catalogue(), table.shape)
    choose, failed = shop.random, 0
    loader = merging.connect()
    for number in range(ROUNDS):
        shop.write(choose.randint(3, 8), per_segment=4)
        point, nth = POINTS[number % len(POINTS)], choose.randint(1, 2)
        try:
            with faults.arming(f"{point}:{nth}:error"):
                loader.run(files_max=choose.randint(1, 3))
        except FaultInjected:
            failed += 1
            choose.choice([loader.fail, loader.kill])()
            loader = merging.connect()
        if number % 3 == 1:
            side.disturb(choose.choice(shop.tables).name)
    loader.run()
    loader.close()
    merging.check()
    assert failed
    assert not list(Path(side.state, "side").iterdir())


def test_a_late_loader_is_refused(merging: Merging) -> None:
    """Have two loaders stage one batch; the later one applies nothing."""
    shop = merging.shop
    for table in shop.tables:
        create_table(merging.side.catalogue(), table.shape)
    shop.write(10, per_segment=10)
    late, newer = merging.connect(), merging.connect()
    staged = late.stage()
    assert staged is not None
    newer.run()
    newer.close()
    with pytest.raises(AppliedByAnother):
        late.apply(staged)
    late.fail()
    merging.check()


def test_a_commit_between_the_mark_and_the_row_is_not_repeated(merging: Merging) -> None:
    """Be killed after one table's merge; its rows that lack columns are not looked for again."""
    shop = merging.shop
    for table in shop.tables:
        create_table(merging.side.catalogue(), table.shape)
    orders = merging.orders
    orders.rows = {1: (1, 1, "b", "big"), 2: (2, 2, "b", "big")}
    shop.log.transaction(
        *((orders.shape, Change(op="I", gsn=0, after=row)) for row in orders.rows.values())
    )
    shop.note()
    shop.log.close_segment()
    loader = merging.connect()
    loader.run()
    old = orders.rows.pop(1)
    orders.rows[7] = (7, 5, "b", "big")
    change = Change(op="U", gsn=0, before=old, after=orders.rows[7], absent=frozenset({3}))
    shop.log.transaction((orders.shape, change))
    shop.note()
    shop.log.close_segment()
    kind = "delta" if isinstance(merging.side, DeltaSide) else "iceberg"
    with faults.arming(f"{kind}.commit.after:1:error"), pytest.raises(FaultInjected):
        loader.run()
    loader.kill()
    again = merging.connect()
    again.run()
    again.close()
    merging.check()


def test_a_row_to_complete_that_is_missing_stops_by_name(merging: Merging) -> None:
    """Change a row without all of its columns that the lake does not have."""
    orders = merging.orders
    create_table(merging.side.catalogue(), orders.shape)
    change = Change(
        op="U",
        gsn=0,
        before=(1, 1, "b", None),
        after=(1, 2, "b", None),
        absent=frozenset({3}),
    )
    merging.shop.log.transaction((orders.shape, change))
    merging.shop.log.close_segment()
    loader = merging.connect()
    with pytest.raises(TargetRowMissing, match="lacks 1 rows"):
        loader.run()
    loader.fail()
    merging.shop.log.writer.close()


def test_a_table_without_a_key_is_refused_by_name(side: Side, tmp_path: Path) -> None:
    """Name the table, and the way that takes it."""
    log = tmp_path / "log"
    log.mkdir()
    shop = Shop(log, seed=3)
    events = shop.tables[-1]
    create_table(side.catalogue(), events.shape)
    shop.log.transaction((events.shape, Change(op="I", gsn=0, after=(1, "b"))))
    shop.log.close_segment()
    loader = LakeRun(side.table_format, side.url, log, jobs=side.session)
    with pytest.raises(MergeKeyMissing, match=r"public\.events has no key"):
        loader.run()
    loader.fail()
    shop.log.writer.close()


# -- tables of others ------------------------------------------------------------------------------

COLUMNS = "id bigint, a int, b string, big string"


def create_foreign(side: Side) -> None:
    """Create orders as another program does, with features that penstock does not write."""
    sql = side.session.spark.sql
    table = side.sql_name(ORDERS)
    if isinstance(side, DeltaSide):
        sql(
            f"create table {table} ({COLUMNS}, twice bigint generated always as "
            "(cast(a as bigint) * 2)) using delta "
            "tblproperties (delta.enableChangeDataFeed = true, delta.enableRowTracking = true)"
        )
        sql(f"alter table {table} add constraint small check (a is null or a < 100)")
        return
    version = cast(IcebergSide, side).format_version
    sql(
        f"create table {table} ({COLUMNS}, tags array<string>) using iceberg "
        "partitioned by (bucket(4, id)) "
        f"tblproperties ('format-version' = '{version}', 'write.format.default' = 'orc')"
    )
    sql(f"insert into {table} values (-1, 1, 'x', 'y', null)")
    sql(f"alter table {table} replace partition field bucket(4, id) with truncate(2, b)")
    sql(f"delete from {table}")


def side_sql(side: Side, text: str) -> list[dict[str, Any]]:
    """Return the rows of a query in Spark's SQL."""
    return [json.loads(one) for one in side.session.spark.sql(text).toJSON().collectAsList()]


def read_foreign(side: Side) -> list[Any]:
    """Return the rows of orders by Spark, which knows every feature."""
    found = side_sql(side, f"select * from {side.sql_name(ORDERS)}")
    names = ("id", "a", "b", "big")
    if isinstance(side, DeltaSide):  # NULL is left out of JSON
        wanted = [None if "a" not in row else 2 * row["a"] for row in found]
        assert [row.get("twice") for row in found] == wanted
    return sorted((tuple(row.get(name) for name in names) for row in found), key=repr)


def adopt(merging: Merging) -> None:
    """Give a table of others the record that the bulk load gives it."""
    record = record_of(merging.orders.shape, made=False)
    table = merging.side.catalogue().find(ORDERS)
    assert table is not None
    version = table.snapshot(refresh=True).version
    table.commit(Commit(base_version=version, record=record, operation="copy"))


def test_a_table_of_others_keeps_its_features(merging: Merging) -> None:
    """Merge a history into a table with a check, a computed column, other files and partitions."""
    create_foreign(merging.side)
    adopt(merging)
    merging.shop.tables = [merging.orders]
    loader = merging.connect()
    for number in range(4):
        merging.shop.write(10, per_segment=5)
        with faults.arming(f"lake.commit.after:{number + 1}:error"):
            try:
                loader.run(files_max=1)
            except FaultInjected:
                loader.kill()
                loader = merging.connect()
    loader.run()
    assert read_foreign(merging.side) == merging.orders.content
    snapshot = merging.side.catalogue().find(ORDERS).snapshot()
    assert snapshot.unwritable
    loader.close()
    if isinstance(merging.side, DeltaSide):
        history = side_sql(merging.side, f"describe history {merging.side.sql_name(ORDERS)}")
        # The record alone was committed by penstock itself: adopted, and of the log.
        assert [one["operation"] for one in history].count("STREAMING UPDATE") == 2
    merging.shop.log.writer.close()


def test_a_row_that_a_check_refuses_stops_by_name(session: Session, tmp_path: Path) -> None:
    """Refuse a row by the table's own check, and go on once the check is dropped."""
    merging = Merging(DeltaSide(session, tmp_path / "lake", options={"apply": "merge"}), tmp_path)
    create_foreign(merging.side)
    adopt(merging)
    orders = merging.orders
    orders.rows = {1: (1, 100, "b", "big")}
    merging.shop.log.transaction((orders.shape, Change(op="I", gsn=0, after=orders.rows[1])))
    merging.shop.log.close_segment()
    loader = merging.connect()
    with pytest.raises(ValueRefused, match="refuses a row"):
        loader.run()
    loader.fail()
    session.spark.sql(f"alter table {merging.side.sql_name(ORDERS)} drop constraint small")
    again = merging.connect()
    again.run()
    assert read_foreign(merging.side) == orders.content
    again.close()
    merging.shop.log.writer.close()


def test_the_mark_survives_checkpoints(session: Session, tmp_path: Path) -> None:
    """Read a merge's mark where the version before is known by a checkpoint alone."""
    side = DeltaSide(session, tmp_path / "lake", options={"apply": "merge"})
    merging = Merging(side, tmp_path)
    merging.shop.tables = [merging.orders]
    create_table(side.catalogue(), merging.orders.shape)
    merging.shop.write(10, per_segment=5)
    loader = merging.connect()
    loader.run()
    loader.close()
    path = tmp_path / "lake" / "public" / "orders"
    log = session.jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session.spark, str(path))
    log.checkpoint()
    session.spark.sql(f"alter table {side.sql_name(ORDERS)} set tblproperties ('other' = 'x')")
    before = side.catalogue().find(ORDERS)
    assert before is not None
    mark = before.snapshot(refresh=True).mark
    assert mark is not None
    assert mark.place == loader.applied
    merging.shop.log.writer.close()


def test_the_bulk_load_fills_a_table_of_others(side: Side, source_url: str, tmp_path: Path) -> None:
    """Copy into a table with features that penstock does not write; it keeps them."""
    create_foreign(side)
    run(
        source_url,
        f"create table public.orders ({COLUMNS.replace('string', 'text')}, primary key (id))",
        "insert into public.orders select i, i % 90, 'b' || i, null from "
        "generate_series(1, 3000) as i",
        "create table public.late (id int primary key, note text)",
        "insert into public.late values (1, 'new')",
    )
    config = between(source_url, side.url, tmp_path)
    assert load(config, side.session).rows[ORDERS] == 3000
    expected = rows(source_url, "select * from public.orders")
    assert read_foreign(side) == sorted(expected, key=repr)
    assert rows_of(side.read(TableName("public", "late"))) == [{"id": 1, "note": "new"}]
