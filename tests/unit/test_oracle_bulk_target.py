"""Oracle as target of the bulk load, with the fake driver in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
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
from penstock.codec.types import Choices, Engine, Server
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.target.bulk import OracleBulk
from penstock.engines.oracle.target.chunk import OracleWriter
from penstock.engines.oracle.target.chunk_rows import read_chunk
from penstock.engines.oracle.target.deferred_keys import add_deferred_keys, drop_deferred_keys
from penstock.engines.oracle.target.direct_path import Heaps
from penstock.engines.oracle.target.shapes import TableShape
from penstock.engines.oracle.url import complete_url
from penstock.host.faults import FaultInjected, arming
from penstock.model import (
    PenstockError,
    Relation,
    TableDefinition,
    TableName,
    UniqueKey,
)
from penstock.ports.bulk import (
    ChunksMissing,
    ChunkStatus,
    CopyCountsDiffer,
    TablePlan,
)
from penstock.ports.config import TargetSection
from penstock.ports.deferred_keys import DeferredTable
from penstock.ports.target import TargetShapeDiffers
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server as OracleServer
from sim_oracle.texts import KnownTexts

SERVERS = ServerPair(
    source=Server(engine=Engine.POSTGRESQL, version=(18,)),
    target=Server(engine=Engine.ORACLE, version=(19,)),
    choices=Choices(by_scope={("empty values", ""): "null", ("not a number", ""): "error"}),
)


plan_of = partial(make_plan, "SHOP")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> OracleServer:
    """A database without tables."""
    made = OracleServer(Database("ORCL", pdbs=["SHOPPDB"]), texts=KnownTexts(None))
    made.services["address"] = install(monkeypatch, made)
    return made


@pytest.fixture
def bulk(server: OracleServer) -> Iterator[OracleBulk]:
    """The driver's connection to an empty database."""
    url = f"oracle://c%23%23penstock:secret@{server.services['address']}/shoppdb"
    with closing(
        OracleBulk(url, {"public": "SHOP"}, application_name="test", servers=SERVERS)
    ) as made:
        made.url = url  # type: ignore[attr-defined]
        yield made


def write(
    bulk: OracleBulk, plan: TablePlan, number: int, *rows: tuple[Any, ...]
) -> tuple[ChunkStatus, int]:
    """Write a chunk by a worker of its own."""
    task = task_of(bulk, plan, number)
    with closing(OracleWriter(url_of(bulk))) as writer:
        return writer.write(task, ListReader((task.details.relation, rows)))


def rows_of(bulk: OracleBulk, query: str) -> list[tuple[Any, ...]]:
    """Return what another session sees."""
    with connect(url_of(bulk), autocommit=True) as connection:
        return connection.execute(query)


def load(bulk: OracleBulk, *definitions: TableDefinition) -> list[TablePlan]:
    """Create tables, and put them under plans."""
    assert bulk.create(definitions) == []
    plans = [plan_of(one) for one in definitions]
    bulk.begin_afresh(plans)
    return plans


def test_a_load_creates_tables_then_rows_then_keys(bulk: OracleBulk) -> None:
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
    assert rows_of(bulk, 'SELECT "id", "code" FROM "SHOP"."shop" ORDER BY "id"') == [
        (1, "a"), (2, None), (3, None),
    ]  # fmt: skip
    query = (
        "SELECT constraint_name, constraint_type FROM all_constraints WHERE owner = 'SHOP'"
        " AND constraint_type IN ('P', 'U', 'R') ORDER BY 1"
    )
    assert rows_of(bulk, query) == [
        ("sale_pk", "P"), ("sale_shop", "R"), ("shop_by_code", "U"), ("shop_pk", "P"),
    ]  # fmt: skip
    with pytest.raises(PenstockError), connect(url_of(bulk), autocommit=True) as connection:
        connection.run('INSERT INTO "SHOP"."sale" VALUES (99, 99)')
    assert all(mark.finished for mark in bulk.marks().values())


@pytest.mark.parametrize("point", ["bulk.chunk.copied", "bulk.chunk.committed"])
def test_a_chunk_is_in_the_table_once(bulk: OracleBulk, point: str) -> None:
    """A worker that fails before or after its commit leaves all rows with their record, or none."""
    (plan,) = load(bulk, SHOP)
    with arming(f"{point}:1:error"), pytest.raises(FaultInjected):
        write(bulk, plan, 0, (1, "a", None))
    there = len(rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"'))
    assert there == (1 if point.endswith("committed") else 0)
    assert bulk.read_done() == ({"public.shop": {0: 1}} if there else {})
    status, count = write(bulk, plan, 0, (1, "a", None))
    assert (status, count) == (ChunkStatus.DONE_BEFORE if there else ChunkStatus.DONE, 1)
    assert rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"') == [(1,)]
    with pytest.raises(ChunksMissing):
        bulk.finish_table(plan)


def test_a_chunk_of_an_older_plan_is_not_written(bulk: OracleBulk) -> None:
    """The table was begun again, and is empty."""
    (plan,) = load(bulk, SHOP)
    write(bulk, plan, 0, (1, "a", None))
    again = replace_plan(plan, "plan-2")
    bulk.begin_afresh([again])
    assert rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"') == []
    assert write(bulk, plan, 1, (2, "b", None)) == (ChunkStatus.PLAN_GONE, 0)
    assert rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"') == []
    assert bulk.read_done() == {}


def test_a_column_that_becomes_text_inside_a_chunk(bulk: OracleBulk) -> None:
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
    with closing(OracleWriter(url_of(bulk))) as writer:
        assert writer.write(task, reader) == (ChunkStatus.DONE, 2)
    assert rows_of(bulk, 'SELECT "id", TO_CHAR("price") FROM "SHOP"."shop" ORDER BY "id"') == [
        (1, "1.25"), (2, "2.5"),
    ]  # fmt: skip


def test_an_existing_table_is_checked(bulk: OracleBulk) -> None:
    """Another shape is refused, before anything is created."""
    with connect(url_of(bulk), autocommit=True) as connection:
        connection.run('CREATE TABLE "SHOP"."shop" ("id" NUMBER(19) NOT NULL, "code" NUMBER(10))')
    with pytest.raises(TargetShapeDiffers, match=r"id is NUMBER\(19,0\), expected NUMBER\(10\)"):
        bulk.create([SALE, SHOP])
    query = "SELECT table_name FROM all_tables WHERE owner = 'SHOP' ORDER BY 1"
    assert rows_of(bulk, query) == [("shop",)]


def test_a_wider_table_with_a_column_of_its_own_is_taken(bulk: OracleBulk) -> None:
    """The definition says whether wider types are allowed; the own column may be left out."""
    with connect(url_of(bulk), autocommit=True) as connection:
        connection.run(
            'CREATE TABLE "SHOP"."shop" ("id" NUMBER(19) NOT NULL, "code" VARCHAR2(99 CHAR),'
            ' "price" NUMBER(12,2), "own" NUMBER(10))'
        )
    assert bulk.create([replace(SHOP, widens=True)]) == []


def test_a_table_with_foreign_keys_or_triggers_is_refused(bulk: OracleBulk) -> None:
    """Rows arrive in any order."""
    with connect(url_of(bulk), autocommit=True) as connection:
        connection.run('CREATE TABLE "SHOP"."shop" ("id" NUMBER(10) PRIMARY KEY)')
        connection.run(
            'CREATE TABLE "SHOP"."sale" ("id" NUMBER(10), "shop" NUMBER(10) REFERENCES'
            ' "SHOP"."shop" ("id"))'
        )
    found = bulk.look([TableName("SHOP", "shop"), TableName("SHOP", "sale")])
    assert "has foreign key" in found.refusals[TableName("SHOP", "sale")].message
    assert "DISABLE CONSTRAINT" in found.refusals[TableName("SHOP", "sale")].hint
    assert found.empty == {TableName("SHOP", "shop"): True, TableName("SHOP", "sale"): True}


def test_a_load_that_is_killed_while_it_creates_continues(
    bulk: OracleBulk, server: OracleServer
) -> None:
    """A table that was created before the kill is ours, and gets its keys."""

    def kill(text: str) -> None:
        if text.startswith('CREATE TABLE "SHOP"."sale"'):
            raise FaultInjected("killed")

    server.on_statement = kill
    with pytest.raises(FaultInjected):
        bulk.create([SHOP, SALE])
    server.on_statement = lambda _: None
    with closing(
        OracleBulk(url_of(bulk), {"public": "SHOP"}, application_name="test", servers=SERVERS)
    ) as again:
        assert again.create([SHOP, SALE]) == []
        again.add_keys([SHOP, SALE], threads=1, stop=lambda: False)
    query = "SELECT constraint_name FROM all_constraints WHERE owner = 'SHOP' ORDER BY 1"
    keys = {name for (name,) in rows_of(bulk, query)}
    assert {"sale_pk", "shop_pk", "shop_by_code"} <= keys


def test_a_plan_that_is_killed_while_it_begins_leaves_no_old_row(
    bulk: OracleBulk, server: OracleServer
) -> None:
    """Rows of the plan before are gone once the new plan is written."""
    (plan,) = load(bulk, SHOP)
    write(bulk, plan, 0, (1, "a", None))

    def kill(text: str) -> None:
        if text.startswith("DELETE FROM"):
            raise FaultInjected("killed")

    server.on_statement = kill
    with pytest.raises(FaultInjected):
        bulk.begin_afresh([replace_plan(plan, "plan-2")])
    server.on_statement = lambda _: None
    assert {mark.plan for mark in bulk.marks().values()} == {"plan-1"}
    bulk.begin_afresh([replace_plan(plan, "plan-2")])
    assert rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"') == []
    assert bulk.read_done() == {}


def test_a_table_that_cannot_be_truncated_is_emptied_by_delete(
    bulk: OracleBulk, server: OracleServer
) -> None:
    """A foreign key refers to it, or a session of a lost worker uses it."""
    (plan,) = load(bulk, SHOP)
    write(bulk, plan, 0, (1, "a", None))
    for number in (2266, 54):
        server.fail_next(number, "TRUNCATE TABLE")
        bulk.begin_afresh([replace_plan(plan, f"plan-{number}")])
        assert rows_of(bulk, 'SELECT "id" FROM "SHOP"."shop"') == []
        plan = replace_plan(plan, f"plan-{number}")
        write(bulk, plan, 0, (1, "a", None))


def test_deferred_keys_are_created_and_dropped(bulk: OracleBulk) -> None:
    """A key whose rows are equal in it names its columns, not the values."""
    (plan,) = load(bulk, SHOP)
    write(bulk, plan, 0, (1, "a", None), (2, "a", None))
    (key,) = bulk.deferred_keys(SHOP)
    table = DeferredTable(
        source=SHOP.name, target=TableName("SHOP", "shop"), settled=1, keys=(key,)
    )
    with pytest.raises(PenstockError, match="rows have the same values in code"):
        add_deferred_keys(url_of(bulk), table)
    with connect(url_of(bulk), autocommit=True) as connection:
        connection.run('DELETE FROM "SHOP"."shop" WHERE "id" = 2')
    assert add_deferred_keys(url_of(bulk), table) == []
    assert add_deferred_keys(url_of(bulk), table) == []
    query = "SELECT constraint_name FROM all_constraints WHERE owner = 'SHOP' ORDER BY 1"
    assert ("shop_by_code",) in rows_of(bulk, query)
    assert drop_deferred_keys(url_of(bulk), table) == []
    assert ("shop_by_code",) not in rows_of(bulk, query)


def test_a_unique_key_with_null_in_some_columns(bulk: OracleBulk) -> None:
    """Oracle takes (1, NULL) and (1, NULL) for equal; the source does not."""
    key = UniqueKey(name="both", columns=("id", "code"), definition="UNIQUE (id, code)",
                    is_constraint=True)  # fmt: skip
    table = replace(SHOP, primary_key=(), identity_columns=(), unique_keys=(key,))
    shape = TableShape.of(table, TableName("SHOP", "shop"), SERVERS)
    assert shape.unique_key_sql(key) == (
        'CREATE UNIQUE INDEX "SHOP"."shop_both" ON "SHOP"."shop"'
        ' (CASE WHEN "code" IS NOT NULL THEN "id" END,'
        ' CASE WHEN "code" IS NOT NULL THEN "code" END)'
    )


def test_names_of_a_schema_begin_with_the_tables() -> None:
    """Two tables may have keys of one name at the source; here they would be one."""
    shape = TableShape.of(SHOP, TableName("SHOP", "shop"), SERVERS)
    assert shape.own_name("by_code") == "shop_by_code"
    assert shape.own_name("shop_key") == "shop_key"
    old = replace_version(SERVERS, (12, 1))
    short = TableShape.of(SHOP, TableName("SHOP", "shop"), old).own_name("x" * 40)
    assert len(short.encode()) <= 30


def replace_version(servers: ServerPair, version: tuple[int, ...]) -> ServerPair:
    """Return the servers with another version of the target."""
    return replace(servers, target=Server(engine=Engine.ORACLE, version=version))


# -- the direct path -----------------------------------------------------------------------------


def heaps_of(bulk: OracleBulk) -> list[str]:
    """Return the heaps that are there."""
    query = "SELECT table_name FROM all_tables WHERE owner = 'WIREKITE'"
    return [str(name) for (name,) in rows_of(bulk, query) if str(name).startswith("DIRECT_")]


@pytest.fixture
def direct(server: OracleServer, bulk: OracleBulk) -> Iterator[OracleBulk]:
    """The driver's connection of a pipeline with directPath."""
    server.statements.clear()
    target = TargetSection(url=url_of(bulk), direct_path=True)
    url = complete_url(target, {})
    with closing(
        OracleBulk(url, {"public": "SHOP"}, application_name="test", servers=SERVERS)
    ) as made:
        made.url = url  # type: ignore[attr-defined]
        yield made


def test_chunks_by_the_direct_path(direct: OracleBulk, server: OracleServer) -> None:
    """Rows have the same values as those of array INSERTs, and no heap is left."""
    (plan,) = load(direct, SHOP)
    assert write(direct, plan, 0, (1, "a", Decimal("1.50")), (2, None, None))[1] == 2
    assert write(direct, plan, 1, (3, "c", None)) == (ChunkStatus.DONE, 1)
    loads = [
        one for one in server.statements if one.startswith("DIRECT PATH LOAD WIREKITE.DIRECT_")
    ]
    assert len(loads) == 2
    assert direct.finish_table(plan) == 3
    assert rows_of(direct, 'SELECT "id", "code", "price" FROM "SHOP"."shop" ORDER BY "id"') == [
        (1, "a", 1.5), (2, None, None), (3, "c", None),
    ]  # fmt: skip
    assert heaps_of(direct) == []


@pytest.mark.parametrize("point", ["bulk.chunk.sent", "bulk.chunk.copied", "bulk.chunk.committed"])
def test_a_killed_worker_leaves_a_heap(
    direct: OracleBulk, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are in the table once, and the heap is dropped when the table is finished."""
    (plan,) = load(direct, SHOP)
    plan = msgspec.structs.replace(plan, chunks=plan.chunks[:1])
    with monkeypatch.context() as patch:
        patch.setattr(Heaps, "close", lambda _: None)  # as of a process that is gone
        with arming(f"{point}:1:error"), pytest.raises(FaultInjected):
            write(direct, plan, 0, (1, "a", None), (2, "b", None))
    assert len(heaps_of(direct)) == 1
    there = rows_of(direct, 'SELECT "id" FROM "SHOP"."shop"')
    assert len(there) == (2 if point.endswith("committed") else 0)
    _, count = write(direct, plan, 0, (1, "a", None), (2, "b", None))
    assert count == 2
    assert rows_of(direct, 'SELECT "id" FROM "SHOP"."shop" ORDER BY 1') == [(1,), (2,)]
    assert direct.finish_table(plan) == 2
    assert heaps_of(direct) == []


def test_a_late_worker_fills_its_own_heap(direct: OracleBulk) -> None:
    """Rows of a late worker are never in the table, also if the next attempt has ended before."""
    (plan,) = load(direct, SHOP)
    task = task_of(direct, plan, 0)
    reader = ListReader((task.details.relation, [(1, "a", None)]))
    late = connect(url_of(direct), autocommit=True)
    heaps = Heaps(late, task, task.details)
    heaps.fill(read_chunk(reader, task, task.details))
    write(direct, plan, 0, (1, "a", None))
    heaps.fill(read_chunk(reader, task, task.details))
    late.close()
    assert rows_of(direct, 'SELECT "id" FROM "SHOP"."shop"') == [(1,)]
    assert len(heaps_of(direct)) == 1
    direct.begin_afresh([replace_plan(plan, "plan-2")])
    assert heaps_of(direct) == []


def test_a_column_that_becomes_text_has_two_heaps(direct: OracleBulk) -> None:
    """Rows of both shapes are in one table, by one transaction."""
    (plan,) = load(direct, SHOP)
    task = task_of(direct, plan, 0)
    shape: Relation = task.details.relation
    columns = (*shape.columns[:2], shape.columns[2].as_text())
    as_text = replace(shape, version=2, columns=columns)
    reader = ListReader((shape, [(1, "a", Decimal("1.50"))]), (as_text, [(2, "b", "2.50")]))
    with closing(OracleWriter(url_of(direct))) as writer:
        assert writer.write(task, reader) == (ChunkStatus.DONE, 2)
    assert rows_of(direct, 'SELECT "id", "price" FROM "SHOP"."shop" ORDER BY 1') == [
        (1, 1.5), (2, 2.5),
    ]  # fmt: skip


def test_rows_that_the_table_does_not_take_are_counted(
    direct: OracleBulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heap with fewer rows than were sent stops the load, and leaves nothing."""
    (plan,) = load(direct, SHOP)
    send = Connection.load_direct

    def lose(self: Connection, schema: str, table: str, columns: list[str], data: Any) -> None:
        send(self, schema, table, columns, data.slice(1))

    monkeypatch.setattr(Connection, "load_direct", lose)
    with pytest.raises(CopyCountsDiffer, match="2 rows and the target took 1"):
        write(direct, plan, 0, (1, "a", None), (2, "b", None))
    assert rows_of(direct, 'SELECT "id" FROM "SHOP"."shop"') == []
    assert heaps_of(direct) == []
