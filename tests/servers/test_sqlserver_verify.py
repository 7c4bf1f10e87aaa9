"""Comparison of SQL Server's tables with PostgreSQL's, on the simulated server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.control.verify.compare import TablePair, TableResult, compare_tables
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.verify import VERIFIER as POSTGRES_VERIFIER
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading.catalog import read_definitions
from penstock.engines.sqlserver.verify import VERIFIER, NoSnapshots
from penstock.model import TableDefinition, TableName
from penstock.ports.verify import TableGone

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
    with connect(sqlserver_url) as session:
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
        assert reader.fetch("SELECT COUNT(*) FROM dbo.t", "counting") == [(3,)]
        assert part.relation == NAME


def test_a_table_that_is_gone(sqlserver_url: str, there: Connection) -> None:
    """The error names the table and the side."""
    del there
    with (
        VERIFIER.open_target(sqlserver_url, sessions=1) as reader,
        pytest.raises(TableGone, match=r"no table dbo\.other in the target"),
    ):
        reader.parts(TableName("dbo", "other"), "target")


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
