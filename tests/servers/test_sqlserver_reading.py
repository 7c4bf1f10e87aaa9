"""Reading of SQL Server's tables with Microsoft's driver, on the simulated server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading.bulk_reader import (
    SQLServerReader,
    TableAltered,
    open_reader,
    open_session,
    shape_of,
)
from penstock.engines.sqlserver.reading.catalog import (
    TableNotCapturable,
    captured_tables,
    read_definitions,
    read_server,
    survey,
)
from penstock.engines.sqlserver.reading.chunks import plan_chunks
from penstock.engines.sqlserver.reading.read_plan import log_plan, read_plan
from penstock.engines.sqlserver.reading.relations import relation_of
from penstock.engines.sqlserver.reading.schema_description import describe
from penstock.model import Identity, Relation, TableDefinition, TableName
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.sql.schema_translation import Default, DefaultKind, IndexPart
from plugins.sqlserver import as_test

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))

SHOP = (
    "CREATE TABLE dbo.customer (id int NOT NULL PRIMARY KEY, name nvarchar(40) NOT NULL "
    "DEFAULT N'new one', score decimal(12,2) NULL DEFAULT 0, since datetime2(7) NULL "
    "DEFAULT sysdatetime(), is_new bit NOT NULL DEFAULT 1)",
    "CREATE TABLE dbo.[order line] (order_id int NOT NULL, line_no smallint NOT NULL, "
    "customer_id int NULL, sku varchar(12) NULL, qty int NOT NULL, "
    "total AS (qty * 2), PRIMARY KEY (order_id, line_no), "
    "FOREIGN KEY (customer_id) REFERENCES dbo.customer (id) ON DELETE CASCADE)",
    "CREATE INDEX by_sku ON dbo.[order line] (sku, qty DESC)",
    "CREATE TABLE dbo.heap (a int NULL, b nvarchar(10) NULL)",
    "CREATE TABLE dbo.stand_in (a int NOT NULL, b int NULL)",
    "CREATE UNIQUE INDEX one_a ON dbo.stand_in (a)",
)


@pytest.fixture
def session(sqlserver_url: str) -> Iterator[Connection]:
    """A session of a fresh database."""
    with connect(sqlserver_url) as connection:
        yield connection


@pytest.fixture
def own(sqlserver_url: str) -> Iterator[Connection]:
    """A session of that database for statements of tests."""
    with connect(as_test(sqlserver_url)) as connection:
        yield connection


@pytest.fixture
def shop(session: Connection, own: Connection) -> Connection:
    """A session of a database with a few tables."""
    for statement in SHOP:
        own.run(statement)
    return session


def one(session: Connection, name: str) -> TableDefinition:
    """Return a table's definition."""
    table = TableName("dbo", name)
    return read_definitions(session, [table])[table]


def task_of(session: Connection, table: TableDefinition, select: str, **more: Any) -> ChunkTask:
    """Return the task of reading a chunk."""
    return ChunkTask(
        source_url="",
        target_url="",
        table=table.name,
        target=table.name,
        chunk=Chunk(
            number=1,
            relation=table.name,
            copy_out=select,
            shape=shape_of(session, table.name),
        ),
        columns=tuple(column.name for column in table.columns),
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan="",
        replica_role=False,
        **more,
    )


def test_definitions(shop: Connection) -> None:
    """Columns, keys, computed columns and the shape in the log are those of the catalogue."""
    assert read_server(shop).version[0] >= 13
    found = {table.name.name: table for table in captured_tables(shop, ["dbo.*"])}
    assert set(found) == {"customer", "order line", "heap", "stand_in"}
    customer = found["customer"]
    assert customer.primary_key == ("id",)
    assert [column.type_text for column in customer.columns] == [
        "int", "nvarchar(40)", "decimal(12,2)", "datetime2(7)", "bit",
    ]  # fmt: skip
    assert [column.not_null for column in customer.columns] == [True, True, False, False, True]
    lines = found["order line"]
    assert lines.primary_key == ("order_id", "line_no")
    assert [column.name for column in lines.columns if column.generated] == ["total"]
    assert [column.name for column in relation_of(lines).columns] == [
        "order_id", "line_no", "customer_id", "sku", "qty",
    ]  # fmt: skip
    assert relation_of(lines).key == (0, 1)
    assert found["heap"].identity is Identity.FULL
    assert relation_of(found["heap"]).key == ()
    assert found["stand_in"].identity is Identity.INDEX
    assert found["stand_in"].identity_columns == ("a",)


def test_extras(shop: Connection) -> None:
    """Defaults, indexes and foreign keys are described in the terms of all engines."""
    customer = describe(one(shop, "customer"))
    assert customer.defaults == {
        "name": Default(DefaultKind.LITERAL, "new one"),
        "score": Default(DefaultKind.NUMBER, "0"),
        "since": Default(DefaultKind.NOW),
        "is_new": Default(DefaultKind.BOOL, "true"),
    }
    lines = describe(one(shop, "order line"))
    assert [(index.name, index.parts, index.unlike) for index in lines.indexes] == [
        ("by_sku", (IndexPart("sku"), IndexPart("qty", is_down=True)), "")
    ]
    (key,) = lines.foreign_keys
    assert (key.columns, key.target, key.target_columns) == (
        ("customer_id",), TableName("dbo", "customer"), ("id",),
    )  # fmt: skip
    assert (key.on_delete, key.on_update) == ("CASCADE", "NO ACTION")


def test_tables_that_are_not_captured(shop: Connection, own: Connection) -> None:
    """A named table that does not exist is an error; penstock's own tables are left out."""
    own.run("CREATE SCHEMA wirekite")
    own.run("CREATE TABLE wirekite.own (a int NOT NULL PRIMARY KEY)")
    found = survey(shop, ["*.*"])
    assert [str(out) for out in found.excluded] == [
        "wirekite.own: it is one of penstock's own tables"
    ]
    with pytest.raises(TableNotCapturable, match=r"no table dbo.Customer .*there is dbo.customer"):
        captured_tables(shop, ["dbo.Customer"])
    assert captured_tables(shop, ["dbo.gone"], dropped=[TableName("dbo", "gone")]) == []


def _fill(own: Connection, count: int) -> list[tuple[str, int, str]]:
    own.run(
        "CREATE TABLE dbo.keyed (g uniqueidentifier NOT NULL, n int NOT NULL, "
        "s nvarchar(20) NOT NULL, PRIMARY KEY (g, n))"
    )
    rows = [(str(uuid.UUID(int=(7919 * n) << 60 | n)), n, f"it's {n}") for n in range(count)]
    for row in rows:
        own.run("INSERT INTO dbo.keyed (g, n, s) VALUES (?, ?, ?)", *row)
    return rows


def _read(session: Connection, selects: Sequence[str]) -> list[tuple[Any, ...]]:
    return [row for select in selects for row in session.execute(select)]


def test_chunks_of_a_key_of_guids(session: Connection, own: Connection) -> None:
    """Together the chunks have each row once, in the server's order of GUIDs."""
    rows = _fill(own, 50)
    chunks = plan_chunks(session, one(session, "keyed"), row_count_target=7)
    assert len(chunks) == 50 // 7 + 1
    found = _read(session, [chunk.query(["[g]", "[n]"]) for chunk in chunks])
    assert sorted(int(n) for _, n in found) == [n for _, n, _ in rows]
    # A row that comes between two bounds later is in one chunk, too.
    own.run(
        "INSERT INTO dbo.keyed (g, n, s) VALUES (?, ?, ?)", str(uuid.UUID(int=5 << 80)), 99, "new"
    )
    found = _read(session, [chunk.query(["[n]"]) for chunk in chunks])
    assert sorted(int(n) for (n,) in found) == [*range(50), 99]


@pytest.mark.parametrize(
    ("type_text", "values"),
    [
        ("bigint", [str(n) for n in range(-20, 20)]),
        ("nvarchar(20)", [f"N'it''s {n}'" for n in range(40)]),
        ("varchar(20)", [f"'a{n}'" for n in range(40)]),
        ("datetime2(7)", [f"'2026-01-01T00:00:00.{n:07}'" for n in range(40)]),
        ("datetime", [f"'2026-01-01T00:00:{n:02}.997'" for n in range(40)]),
        ("date", [f"'2026-01-{n:02}'" for n in range(1, 31)]),
        ("varbinary(8)", [f"0x{n:04x}" for n in range(40)]),
        ("decimal(20,4)", [f"{n}.0001" for n in range(40)]),
        ("money", [f"{n}.0001" for n in range(40)]),
    ],
)
def test_chunks_of_other_keys(
    session: Connection, own: Connection, type_text: str, values: list[str]
) -> None:
    """The bounds are exact for each type that a key may have."""
    own.run(f"CREATE TABLE dbo.k (v {type_text} NOT NULL PRIMARY KEY)")
    for value in values:
        own.run(f"INSERT INTO dbo.k (v) VALUES ({value})")
    chunks = plan_chunks(session, one(session, "k"), row_count_target=6)
    assert len(chunks) > 4
    shown = "CONVERT(varchar(34), [v], 126)" if type_text == "datetime2(7)" else "[v]"
    found = _read(session, [chunk.query([shown]) for chunk in chunks])
    assert len(found) == len(values)
    assert len(set(found)) == len(values)


def test_tables_that_are_one_chunk(shop: Connection, own: Connection) -> None:
    """A table without a key, or with floating-point numbers in it, is read whole."""
    own.run("CREATE TABLE dbo.floats (v float NOT NULL PRIMARY KEY)")
    for name in ("heap", "floats"):
        (chunk,) = plan_chunks(shop, one(shop, name), row_count_target=1)
        assert chunk.condition == ""


@pytest.fixture
def reader(shop: Connection, own: Connection, sqlserver_url: str) -> Iterator[SQLServerReader]:
    """A reader of the shop's rows."""
    own.run(
        "INSERT INTO dbo.customer (id, name, score, since) VALUES "
        "(1, N'Zoë', 1.50, '2026-03-04T05:06:07.1234567'), (2, N'tab\there', NULL, NULL)"
    )
    found = open_reader(sqlserver_url, "position", "text")
    assert found is not None
    yield found
    found.close()


def test_rows_in_the_shape_of_the_log(shop: Connection, reader: SQLServerReader) -> None:
    """A value that does not fit turns its column into text, in a new version of the relation."""
    table = one(shop, "customer")
    relation = relation_of(table)
    plan = log_plan(table.columns)
    select = f"SELECT {', '.join(plan.expressions)} FROM [dbo].[customer] ORDER BY [id]"
    (found,) = reader.batches(task_of(shop, table, select), relation)
    assert found.relation.version == relation.version + 1
    assert found.relation.columns[3].neutral == "string"
    assert found.batch.to_pylist() == [
        {"id": 1, "name": "Zoë", "score": pa.scalar("1.50").cast(pa.decimal128(12, 2)).as_py(),
         "since": "2026-03-04 05:06:07.1234567", "is_new": True},
        {"id": 2, "name": "tab\there", "score": None, "since": None, "is_new": True},
    ]  # fmt: skip


def test_rows_as_lines(shop: Connection, reader: SQLServerReader) -> None:
    """Lines of COPY and of LOAD DATA have the values that the choices allow."""
    table = one(shop, "customer")
    servers = ServerPair(source=read_server(shop), target=POSTGRES)
    plan = read_plan(table.columns, servers.mappings(table), servers)
    goals = [msgspec.json.decode(text) for text in plan.goals]
    rounded = msgspec.structs.replace(
        plan, goals=tuple(msgspec.json.encode(goal | {"rounds": True}).decode() for goal in goals)
    )
    select = f"SELECT {', '.join(plan.expressions)} FROM [dbo].[customer] ORDER BY [id]"
    lines = reader.lines(task_of(shop, table, select, read_plan=rounded), LineDialect.COPY)
    assert b"".join(lines) == (
        "1\tZoë\t1.50\t2026-03-04 05:06:07.123457\t1\n2\ttab\\there\t\\N\t\\N\t1\n".encode()
    )
    assert lines.row_count == 2


def test_a_table_that_is_altered_while_it_is_read(
    shop: Connection, own: Connection, reader: SQLServerReader
) -> None:
    """The chunk fails, and the error says that the table has to be planned again."""
    table = one(shop, "customer")
    task = task_of(shop, table, "SELECT [id] FROM [dbo].[customer]")
    assert not reader.was_rewritten(task)
    own.run("ALTER TABLE dbo.customer ADD more int NULL")
    assert reader.was_rewritten(task)
    relation = relation_of(table)
    narrow = Relation(schema="dbo", name="customer", columns=relation.columns[:1])
    with pytest.raises(TableAltered) as caught:
        list(reader.batches(task, narrow))
    assert reader.tells_rewritten(caught.value)


def test_isolation_of_a_reading_session(
    shop: Connection, own: Connection, sqlserver_url: str
) -> None:
    """Rows are read in a snapshot only if the database allows snapshots."""
    with open_session(as_test(sqlserver_url)) as committed:
        assert committed.execute("SELECT COUNT(*) FROM dbo.heap") == [(0,)]
    own.run("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    with open_session(as_test(sqlserver_url)) as snapshot:
        snapshot.begin()
        assert snapshot.execute("SELECT COUNT(*) FROM dbo.heap") == [(0,)]
        own.run("INSERT INTO dbo.heap (a) VALUES (1)")
        assert snapshot.execute("SELECT COUNT(*) FROM dbo.heap") == [(0,)]
        snapshot.rollback()
        assert snapshot.execute("SELECT COUNT(*) FROM dbo.heap") == [(1,)]
