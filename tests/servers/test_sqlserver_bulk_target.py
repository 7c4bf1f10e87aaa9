"""SQL Server as target of the bulk load, with the real driver on the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from harness.pipelines.bulk_shop import (
    SALE,
    SHOP,
    ListReader,
    make_plan,
    replace_plan,
    task_of,
    url_of,
)
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.target.bulk import SQLServerBulk
from penstock.engines.sqlserver.target.chunk import SQLServerWriter, heap_prefix
from penstock.engines.sqlserver.target.deferred_keys import add_deferred_keys, drop_deferred_keys
from penstock.host.faults import FaultInjected, arming
from penstock.model import (
    PenstockError,
    Relation,
    TableDefinition,
    TableName,
)
from penstock.ports.bulk import (
    ChunksMissing,
    ChunkStatus,
    TablePlan,
)
from penstock.ports.deferred_keys import DeferredTable
from penstock.ports.target import TargetDdlFailed, TargetShapeDiffers
from plugins.sqlserver import as_test

SERVERS = ServerPair(
    source=Server(engine=Engine.POSTGRESQL, version=(18,)),
    target=Server(engine=Engine.SQLSERVER, version=(16,)),
)


plan_of = partial(make_plan, "dbo")


@pytest.fixture
def bulk(sqlserver_url: str) -> Iterator[SQLServerBulk]:
    """The driver's connection to an empty database."""
    with closing(
        SQLServerBulk(sqlserver_url, {"public": "dbo"}, application_name="test", servers=SERVERS)
    ) as made:
        made.url = sqlserver_url  # type: ignore[attr-defined]
        yield made


def write(
    bulk: SQLServerBulk, plan: TablePlan, number: int, *rows: tuple[Any, ...]
) -> tuple[ChunkStatus, int]:
    """Write a chunk by a worker of its own."""
    task = task_of(bulk, plan, number)
    with closing(SQLServerWriter(url_of(bulk))) as writer:
        return writer.write(task, ListReader((task.details.relation, rows)))


def rows_of(bulk: SQLServerBulk, query: str) -> list[tuple[Any, ...]]:
    """Return what another session sees."""
    with connect(as_test(url_of(bulk))) as connection:
        return connection.execute(query)


def heaps(bulk: SQLServerBulk) -> list[str]:
    """Return the names of heaps of chunks."""
    names = (str(name) for (name,) in rows_of(bulk, "SELECT name FROM sys.tables"))
    return [name for name in names if name.startswith("bulk_") and name != "bulk_table"]


def load(bulk: SQLServerBulk, *definitions: TableDefinition) -> list[TablePlan]:
    """Create tables, and put them under plans."""
    assert bulk.create(definitions) == []
    plans = [plan_of(one) for one in definitions]
    bulk.begin_afresh(plans)
    return plans


def test_a_load_creates_tables_then_rows_then_keys(bulk: SQLServerBulk) -> None:
    """A unique key leaves NULL out, as at the source; a foreign key is checked."""
    shop, sale = load(bulk, SHOP, SALE)
    assert write(bulk, shop, 0, (1, "a", None), (2, None, None)) == (ChunkStatus.DONE, 2)
    assert write(bulk, shop, 1, (3, None, None)) == (ChunkStatus.DONE, 1)
    for number in (0, 1):
        write(bulk, sale, number, (10 + number, 1))
    assert bulk.finish_table(shop) == 3
    assert bulk.finish_table(sale) == 2
    bulk.add_keys([SHOP, SALE], threads=2, stop=lambda: False)
    bulk.add_keys([SHOP, SALE], threads=2, stop=lambda: False)
    assert bulk.add_foreign_keys([SHOP, SALE]) == []
    assert bulk.add_foreign_keys([SHOP, SALE]) == []
    assert rows_of(bulk, "SELECT id, code FROM dbo.shop ORDER BY id") == [
        (1, "a"), (2, None), (3, None),
    ]  # fmt: skip
    query = "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.shop') AND index_id > 0"
    indexes = sorted(rows_of(bulk, query))
    assert [name for (name,) in indexes] == ["by_code", "pk_shop"]
    with pytest.raises(PenstockError), connect(as_test(url_of(bulk))) as connection:
        connection.run("INSERT INTO dbo.sale VALUES (99, 99)")
    assert heaps(bulk) == []
    assert all(mark.finished for mark in bulk.marks().values())


@pytest.mark.parametrize("point", ["bulk.chunk.copied", "bulk.chunk.committed"])
def test_a_chunk_is_in_the_table_once(bulk: SQLServerBulk, point: str) -> None:
    """A worker that fails before or after its commit leaves all rows with their record, or none."""
    (plan,) = load(bulk, SHOP)
    with arming(f"{point}:1:error"), pytest.raises(FaultInjected):
        write(bulk, plan, 0, (1, "a", None))
    there = len(rows_of(bulk, "SELECT id FROM dbo.shop"))
    assert there == (1 if point.endswith("committed") else 0)
    assert bulk.read_done() == ({"public.shop": {0: 1}} if there else {})
    status, count = write(bulk, plan, 0, (1, "a", None))
    assert (status, count) == (ChunkStatus.DONE_BEFORE if there else ChunkStatus.DONE, 1)
    assert rows_of(bulk, "SELECT id FROM dbo.shop") == [(1,)]
    with pytest.raises(ChunksMissing):
        bulk.finish_table(plan)


def test_a_chunk_of_an_older_plan_is_not_written(bulk: SQLServerBulk) -> None:
    """The table was begun again, and is empty."""
    (plan,) = load(bulk, SHOP)
    write(bulk, plan, 0, (1, "a", None))
    again = replace_plan(plan, "plan-2")
    bulk.begin_afresh([again])
    assert rows_of(bulk, "SELECT id FROM dbo.shop") == []
    assert write(bulk, plan, 1, (2, "b", None)) == (ChunkStatus.PLAN_GONE, 0)
    assert rows_of(bulk, "SELECT id FROM dbo.shop") == []
    assert bulk.read_done() == {}


def test_heaps_of_lost_workers_are_dropped_with_the_table(bulk: SQLServerBulk) -> None:
    """No other worker reads them."""
    (plan,) = load(bulk, SHOP)
    with connect(as_test(url_of(bulk))) as connection:
        connection.run(f"CREATE TABLE wirekite.[{heap_prefix(plan.name)}0_ff_0] (id int)")
        connection.run("CREATE TABLE wirekite.bulk_other_0 (id int)")
    for number in (0, 1):
        write(bulk, plan, number, (number, None, None))
    bulk.finish_table(plan)
    assert heaps(bulk) == ["bulk_other_0"]


def test_a_column_that_becomes_text_inside_a_chunk(bulk: SQLServerBulk) -> None:
    """Rows before and after are of two shapes, and in one table."""
    (plan,) = load(bulk, SHOP)
    task = task_of(bulk, plan, 0)
    shape: Relation = task.details.relation
    as_text = replace(
        shape,
        version=2,
        columns=(*shape.columns[:2], replace(shape.columns[2], neutral="string")),
    )
    reader = ListReader((shape, [(1, "a", Decimal("1.25"))]), (as_text, [(2, "b", "2.50")]))
    with closing(SQLServerWriter(url_of(bulk))) as writer:
        assert writer.write(task, reader) == (ChunkStatus.DONE, 2)
    assert rows_of(bulk, "SELECT id, price FROM dbo.shop ORDER BY id") == [
        (1, Decimal("1.25")), (2, Decimal("2.50")),
    ]  # fmt: skip


def test_an_existing_table_is_checked(bulk: SQLServerBulk) -> None:
    """Another shape is refused, before anything is created."""
    with connect(as_test(url_of(bulk))) as connection:
        connection.run("CREATE TABLE dbo.shop (id bigint NOT NULL, code int)")
    with pytest.raises(TargetShapeDiffers, match="id is bigint, expected int"):
        bulk.create([SALE, SHOP])
    assert rows_of(bulk, "SELECT name FROM sys.tables WHERE name = N'sale'") == []


def test_a_table_with_foreign_keys_or_triggers_is_refused(bulk: SQLServerBulk) -> None:
    """Rows arrive in any order, and triggers would do their work twice."""
    with connect(as_test(url_of(bulk))) as connection:
        connection.run("CREATE TABLE dbo.shop (id int NOT NULL PRIMARY KEY)")
        connection.run("CREATE TABLE dbo.sale (id int, shop int REFERENCES dbo.shop (id))")
        connection.run("CREATE TABLE dbo.seen (id int)")
        connection.run(
            "CREATE TRIGGER dbo.tr ON dbo.shop AFTER INSERT AS"
            " INSERT INTO dbo.seen SELECT id FROM inserted"
        )
    found = bulk.look([TableName("dbo", "shop"), TableName("dbo", "sale")])
    assert {name.name for name in found.refusals} == {"shop", "sale"}
    assert found.empty == dict.fromkeys(found.empty, True)


def test_deferred_keys_come_and_go(bulk: SQLServerBulk) -> None:
    """Two rows of one value are refused without the value, and the key is dropped again."""
    (plan,) = load(bulk, SHOP)
    keys = bulk.deferred_keys(SHOP)
    assert [key.name for key in keys] == ["by_code"]
    table = DeferredTable(source=plan.source, target=plan.target, settled=1, keys=keys)
    write(bulk, plan, 0, (1, "same", None), (2, "same", None))
    with pytest.raises(TargetDdlFailed) as caught:
        add_deferred_keys(url_of(bulk), table)
    assert "same" not in caught.value.message.replace("the same values", "")
    write(bulk, plan, 1, (3, "other", None))
    with connect(as_test(url_of(bulk))) as connection:
        connection.run("DELETE FROM dbo.shop WHERE id = 2")
    assert add_deferred_keys(url_of(bulk), table) == []
    assert add_deferred_keys(url_of(bulk), table) == []
    assert drop_deferred_keys(url_of(bulk), table) == []
    assert drop_deferred_keys(url_of(bulk), table) == []


def test_tables_of_ours_are_dropped_and_others_stay(bulk: SQLServerBulk) -> None:
    """A table that penstock did not create is never dropped."""
    load(bulk, SHOP)
    with connect(as_test(url_of(bulk))) as connection:
        connection.run("CREATE TABLE dbo.mine (id int)")
    bulk.drop_if_made(TableName("dbo", "shop"))
    bulk.drop_if_made(TableName("dbo", "mine"))
    left = rows_of(bulk, "SELECT t.name FROM sys.tables AS t JOIN sys.schemas AS s"
                         " ON s.schema_id = t.schema_id WHERE s.name = N'dbo'")  # fmt: skip
    assert left == [("mine",)]
