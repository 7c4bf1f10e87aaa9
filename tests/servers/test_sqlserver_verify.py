"""Comparison of SQL Server's tables with PostgreSQL's, on the simulated server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from penstock.codec.image_cells import ImageCell
from penstock.codec.row_images import hash_images, join_cells
from penstock.codec.server_pair import ServerPair
from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.codec.sqlserver.row_images import image_batch
from penstock.codec.types import Engine, Server
from penstock.control.verify.compare import (
    TablePair,
    TableResult,
    compare_tables,
    shared_images,
)
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.verify import VERIFIER as POSTGRES_VERIFIER
from penstock.engines.sqlserver import checksum
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading.bulk_reader import SQLServerReader
from penstock.engines.sqlserver.reading.catalog import read_definitions
from penstock.engines.sqlserver.reading.relations import relation_of
from penstock.engines.sqlserver.reading.row_conditions import row_conditions
from penstock.engines.sqlserver.reading.statements import rows
from penstock.engines.sqlserver.verify import VERIFIER, NoSnapshots
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.ports.verify import Dialect, Hasher, TableChangedMeanwhile, TableGone
from plugins.sqlserver import SimServer, as_test

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
SQLSERVER = Server(engine=Engine.SQLSERVER, version=(16, 0))
NAME = TableName("dbo", "t")

HERE = """
    create table public.t (id int primary key, v varchar(40), n numeric(12,2), f float8, b bytea,
                           d date, t timestamptz, u uuid, ok boolean, h time)
"""
THERE = (
    "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, v nvarchar(80) COLLATE "
    "Latin1_General_100_BIN2 NULL, n decimal(12,2) NULL, f float NULL, b varbinary(max) NULL, "
    "d date NULL, t datetimeoffset(6) NULL, u uniqueidentifier NULL, ok bit NULL, h time(6) NULL)"
)
ROWS_HERE = """
    insert into public.t values
    (1, 'Zoë|:N', 1.50, 0.1, '\\x00ff', '0001-01-01', '2026-03-04 05:06:07.123456+02',
     '6f9619ff-8b86-d011-b42d-00c04fc964ff', true, '23:59:59.999999'),
    (2, '', 0, -1e300, '', '9999-12-31', '0001-01-01 00:00:00+00', null, false, '00:00'),
    (3, null, null, null, null, null, null, null, null, null)
"""
ROWS_THERE = (
    "INSERT INTO dbo.t VALUES (1, N'Zoë|:N', 1.50, 0.1E0, 0x00ff, '0001-01-01', "
    "'2026-03-04T03:06:07.123456+00:00', '6F9619FF-8B86-D011-B42D-00C04FC964FF', 1, "
    "'23:59:59.999999')",
    "INSERT INTO dbo.t VALUES (2, N'', 0, -1E300, CONVERT(varbinary(max), ''), '9999-12-31', "
    "'0001-01-01T00:00:00+00:00', NULL, 0, '00:00:00')",
    "INSERT INTO dbo.t (id) VALUES (3)",
)


@pytest.fixture
def there(sqlserver_url: str) -> Iterator[Connection]:
    """A session of a database with the table and its rows."""
    with connect(as_test(sqlserver_url)) as session:
        session.run("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
        session.run(THERE)
        for statement in ROWS_THERE:
            session.run(statement)
        yield session


@pytest.fixture
def here(source_url: str) -> Iterator[TableDefinition]:
    """The same table in PostgreSQL."""
    with open_catalog(source_url) as session:
        session.execute(HERE.encode())
        session.execute(ROWS_HERE.encode())
        (definition,) = captured_tables(session, ["public.t"])
        yield definition


def compare(here: TableDefinition, source_url: str, url: str) -> TableResult:
    """Compare PostgreSQL's table, as the source, with SQL Server's."""
    pair = TablePair(source=here, target=NAME)
    servers = ServerPair(source=POSTGRES, target=SQLSERVER)
    with (
        POSTGRES_VERIFIER.open_target(source_url, sessions=2) as source,
        VERIFIER.open_target(url, sessions=2) as target,
    ):
        [result] = compare_tables([pair], source, target, servers=servers)
    return result


def test_equal_tables(
    here: TableDefinition, there: Connection, source_url: str, sqlserver_url: str
) -> None:
    """Rows that the table of types considers equal are equal."""
    del there
    result = compare(here, source_url, sqlserver_url)
    assert (result.source_rows, result.target_rows) == (3, 3)
    assert result.equal, result


@pytest.mark.parametrize(
    ("statement", "counts", "key"),
    [
        ("UPDATE dbo.t SET v = N'zoë|:N' WHERE id = 1", (0, 0, 1), "(1)"),
        ("UPDATE dbo.t SET v = NULL WHERE id = 2", (0, 0, 1), "(2)"),
        ("UPDATE dbo.t SET t = '2026-03-04T03:06:07.123457+00:00' WHERE id = 1", (0, 0, 1), "(1)"),
        ("UPDATE dbo.t SET f = 0.10000000000000002E0 WHERE id = 1", (0, 0, 1), "(1)"),
        ("UPDATE dbo.t SET ok = NULL WHERE id = 1", (0, 0, 1), "(1)"),
        ("DELETE FROM dbo.t WHERE id = 3", (1, 0, 0), "(3)"),
        ("INSERT INTO dbo.t (id) VALUES (4)", (0, 1, 0), "(4)"),
    ],
)
def test_different_rows(
    here: TableDefinition,
    there: Connection,
    source_url: str,
    sqlserver_url: str,
    statement: str,
    counts: tuple[int, int, int],
    key: str,
) -> None:
    """Each difference is found, counted and named by its key."""
    there.run(statement)
    result = compare(here, source_url, sqlserver_url)
    assert (result.missing, result.surplus, result.different) == counts
    assert [one.key for one in result.named] == [key]


def test_readers_see_one_moment(there: Connection, sqlserver_url: str) -> None:
    """Rows that are committed after the beginning are not compared."""
    with VERIFIER.open_target(sqlserver_url, sessions=2, part_bytes=1) as reader:
        there.run("INSERT INTO dbo.t (id) VALUES (5)")
        (part,), _ = reader.parts(NAME, "target")
        assert reader.fetch("SELECT COUNT_BIG(*) FROM [dbo].[t]", "counting") == [(3,)]
        assert part.relation == NAME


def test_a_table_that_is_gone(sqlserver_url: str, there: Connection) -> None:
    """The error names the table and the side."""
    del there
    with (
        VERIFIER.open_target(sqlserver_url, sessions=1) as reader,
        pytest.raises(TableGone, match=r"no table dbo\.other in the target"),
    ):
        reader.parts(TableName("dbo", "other"), "target")


def test_a_table_that_was_redefined_is_changed_meanwhile(
    sqlserver: SimServer, sqlserver_url: str, there: Connection
) -> None:
    """SQL Server refuses to read it in an older snapshot (error 3961); it is not a difference.

    The simulated server lets the other session wait instead, so it is told to fail.
    """
    del there
    with VERIFIER.open_target(sqlserver_url, sessions=1) as reader:
        database = sqlserver_url.partition("?")[0].rpartition("/")[2]
        sqlserver.execute("EXEC sim.fail_next @number = 3961, @like = N'COUNT'", database)
        with pytest.raises(TableChangedMeanwhile, match="was altered or truncated"):
            reader.fetch("SELECT COUNT_BIG(*) FROM [dbo].[t]", "counting")


def test_a_database_without_snapshots(sqlserver_url: str) -> None:
    """The error says what to run."""
    with pytest.raises(NoSnapshots) as caught, VERIFIER.open_target(sqlserver_url, sessions=1):
        pass
    assert "ALLOW_SNAPSHOT_ISOLATION ON" in caught.value.hint


@contextmanager
def both(url: str) -> Iterator[tuple[TableDefinition, Connection]]:
    """Return a definition of SQL Server's table, and a session."""
    with connect(url) as session:
        yield read_definitions(session, [NAME])[NAME], session


def test_two_sql_servers(there: Connection, sqlserver_url: str) -> None:
    """A table is equal to itself by the types of SQL Server; names of columns ignore case."""
    del there
    with both(sqlserver_url) as (definition, _):
        pair = TablePair(source=definition, target=TableName("dbo", "T"))
        servers = ServerPair(source=SQLSERVER, target=SQLSERVER)
        with (
            VERIFIER.open_target(sqlserver_url, sessions=1) as source,
            VERIFIER.open_target(sqlserver_url, sessions=1) as target,
        ):
            [result] = compare_tables([pair], source, target, servers=servers)
    assert result.equal
    assert result.source_rows == 3


KEYLESS = (
    "CREATE TABLE dbo.bag (v nvarchar(10) NULL, w varchar(10) NULL, f float NULL, "
    "b varbinary(8) NULL, d datetime2(7) NULL)",
    "INSERT INTO dbo.bag VALUES (N'a', 'x', 0.1E0, 0x00, '2026-03-04T05:06:07.1234567')",
    "INSERT INTO dbo.bag VALUES (N'a ', 'x', 0.1E0, 0x00, '2026-03-04T05:06:07.1234567')",
    "INSERT INTO dbo.bag VALUES (N'A', 'x', 0.1E0, 0x00, '2026-03-04T05:06:07.1234567')",
    "INSERT INTO dbo.bag VALUES (N'it''s', NULL, 0.1E0, 0x0000, '2026-03-04T05:06:07.1234567')",
    "INSERT INTO dbo.bag VALUES (N'it''s', NULL, 0.1E0, 0x0000, '2026-03-04T05:06:07.1234567')",
    "INSERT INTO dbo.bag VALUES (NULL, NULL, NULL, NULL, NULL)",
)


def _choose(session: Connection, table: TableName, place: int) -> tuple[str, list[str]]:
    """Return the choice of one row by its hash, and the conditions for it."""
    definition = read_definitions(session, [table])[table]
    servers = ServerPair(source=SQLSERVER, target=SQLSERVER)
    dialect = cast(Dialect, checksum)
    image, _ = shared_images(
        definition, table, list(definition.columns), servers, (dialect, dialect)
    )
    columns = [SourceColumn.from_column(column) for column in definition.columns]
    cells = [ImageCell(*one) for one in json.loads(image.key)]
    (batch,) = session.arrow(rows(table, [select_expression(column) for column in columns], ""))
    hashes = hash_images(join_cells(image_batch(batch, columns, cells), [c[:5] for c in cells]))
    choice = dialect.chosen_rows(image, 0, [], [int(hashes[place, 0])], Hasher.SHARED)
    return choice, list(row_conditions(session, table, choice))


@pytest.mark.parametrize(("place", "count"), [(0, 1), (1, 1), (2, 1), (3, 2), (5, 1)])
def test_rows_that_a_repair_deletes(sqlserver_url: str, place: int, count: int) -> None:
    """Only rows with the chosen image are deleted: case, blanks and zeros at the end count."""
    table = TableName("dbo", "bag")
    with connect(as_test(sqlserver_url)) as session:
        for statement in KEYLESS:
            session.run(statement)
        _, conditions = _choose(session, table, place)
        (condition,) = conditions
        assert session.execute(f"SELECT COUNT(*) FROM dbo.bag WHERE {condition}") == [(count,)]


def test_rows_that_a_repair_copies(sqlserver_url: str) -> None:
    """The bulk reader returns the chosen rows alone, without the columns that choose them."""
    table = TableName("dbo", "bag")
    with connect(as_test(sqlserver_url)) as session:
        for statement in KEYLESS:
            session.run(statement)
        choice, _ = _choose(session, table, 3)
        definition = read_definitions(session, [table])[table]
        relation = relation_of(definition)
        text = checksum.select_rows(definition, [one.name for one in relation.columns], [], choice)
        task = ChunkTask(
            source_url="", target_url="", table=table, target=table,
            chunk=Chunk(number=1, relation=table, copy_out=text), columns=(), binary=False,
            snapshot_id="", snapshot_text="", plan="", replica_role=False,
        )  # fmt: skip
        found = [
            row
            for shaped in SQLServerReader(session).batches(task, relation)
            for row in shaped.batch.to_pylist()
        ]
    assert [(row["v"], row["w"], row["b"]) for row in found] == [("it's", None, b"\0\0")] * 2
