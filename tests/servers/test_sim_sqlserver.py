"""The simulated SQL Server, with two clients: Microsoft's driver and python-tds.

What it must do is from the public descriptions of SQL Server, not from penstock's engine.
"""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import mssql_python
import pyarrow as pa
import pytds  # type: ignore[import-untyped]
import pytest
from pytds import tds_types  # type: ignore[import-untyped]

from plugins.shared import SharedServers
from plugins.sqlserver import PASSWORD, TEST_LOGIN, SimServer, running


def moment(*parts: int) -> datetime.datetime:
    """Return a time without a zone."""
    return datetime.datetime(*parts)  # type: ignore[arg-type,misc]  # noqa: DTZ001


TYPES = """CREATE TABLE dbo.every (
    id bigint NOT NULL PRIMARY KEY, c_bit bit, c_tiny tinyint, c_small smallint, c_int int,
    c_dec decimal(38,10), c_money money, c_smoney smallmoney, c_float float, c_real real,
    c_date date, c_time time(7), c_dt datetime, c_sdt smalldatetime, c_dt2 datetime2(7),
    c_dto datetimeoffset(7), c_char char(4), c_nchar nchar(4), c_vc varchar(50),
    c_nvc nvarchar(50), c_bin binary(4), c_vbin varbinary(8), c_guid uniqueidentifier, c_xml xml,
    c_max nvarchar(max), c_vmax varbinary(max), c_text text, c_ntext ntext, c_image image)"""
ROW = """INSERT INTO dbo.every VALUES (1, 1, 255, -32768, 2147483647,
    -1234567890123456789012345678.0123456789, 922337203685477.5807, -214748.3648,
    1.7976931348623157e308, 1.5, '0001-01-01', '23:59:59.9999999', '2026-03-04T05:06:07.002',
    '2026-03-04T05:06:29', '9999-12-31T23:59:59.1234567', '2026-03-04T05:06:07.1234567 -05:30',
    'ab', N'ä', 'x ', N'😀', 0x01, 0x0102, '6F9619FF-8B86-D011-B42D-00C04FC964FF', '<a/>',
    N'größer', 0x00FF, 'old', N'ölder', 0xCAFE)"""
EXPECTED = (
    1, True, 255, -32768, 2147483647, Decimal("-1234567890123456789012345678.0123456789"),
    Decimal("922337203685477.5807"), Decimal("-214748.3648"), 1.7976931348623157e308, 1.5,
    datetime.date(1, 1, 1), datetime.time(23, 59, 59, 999999),
    moment(2026, 3, 4, 5, 6, 7, 3000), moment(2026, 3, 4, 5, 6),
    moment(9999, 12, 31, 23, 59, 59, 123456),
    datetime.datetime(
        2026, 3, 4, 5, 6, 7, 123456, datetime.timezone(datetime.timedelta(minutes=-330))
    ),
    "ab  ", "ä   ", "x ", "😀", b"\x01\0\0\0", b"\x01\x02",
    uuid.UUID("6F9619FF-8B86-D011-B42D-00C04FC964FF"), "<a/>", "größer", b"\0\xff", "old",
    "ölder", b"\xca\xfe",
)  # fmt: skip


def microsoft(server: SimServer, database: str, **options: str) -> Any:
    """Return a connection of Microsoft's driver, in autocommit."""
    text = server.connection_string(database, **options)
    return mssql_python.connect(text, autocommit=True)


def python_tds(server: SimServer, database: str) -> Any:
    """Return a connection of python-tds, in autocommit."""
    return pytds.connect(
        dsn="127.0.0.1",
        port=server.port,
        user=TEST_LOGIN,
        password=PASSWORD,
        database=database,
        autocommit=True,
        enc_login_only=False,
    )


@pytest.fixture(params=[microsoft, python_tds])
def client(
    request: pytest.FixtureRequest, sqlserver: SimServer, sqlserver_database: str
) -> Iterator[Any]:
    """A connection of one of the clients to a fresh database."""
    with closing(request.param(sqlserver, sqlserver_database)) as connection:
        yield connection


@pytest.fixture
def connection(sqlserver: SimServer, sqlserver_database: str) -> Iterator[Any]:
    """A connection of Microsoft's driver to a fresh database."""
    with closing(microsoft(sqlserver, sqlserver_database)) as connection:
        yield connection


def run(connection: Any, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a batch; return the rows of its first result."""
    cursor = connection.cursor()
    if parameters:
        cursor.execute(statement, parameters)
    else:
        cursor.execute(statement)
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def run_all(connection: Any, statement: str, *parameters: Any) -> None:
    """Run a batch to its end; an error of a later statement comes with its result."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, parameters) if parameters else cursor.execute(statement)
        while cursor.nextset():
            pass


def read_refusal(connection: Any, statement: str, *parameters: Any) -> str:
    """Run a batch that must fail; return the message."""
    with pytest.raises((mssql_python.Error, pytds.Error)) as caught:
        run_all(connection, statement, *parameters)
    return str(caught.value)


# --- values ---------------------------------------------------------------------------------------


def test_every_type_arrives(client: Any) -> None:
    """Both clients read the value that was written, at the ends of its range."""
    run(client, TYPES)
    run(client, ROW)
    run(client, "INSERT INTO dbo.every (id) VALUES (2)")
    found = run(client, "SELECT * FROM dbo.every ORDER BY id")
    shown = [
        v.replace(tzinfo=None) - v.utcoffset()
        if isinstance(v, datetime.datetime) and v.tzinfo
        else v
        for v in found[0]
    ]
    wanted = [
        v.replace(tzinfo=None) - (v.utcoffset() or datetime.timedelta())
        if isinstance(v, datetime.datetime)
        else v
        for v in EXPECTED
    ]
    assert shown == wanted
    assert found[1] == (2, *[None] * 28)


def test_parameters_arrive(connection: Any) -> None:
    """Values come back that were sent as parameters, in two prepared runs."""
    run(connection, TYPES)
    cursor = connection.cursor()
    places = (0, 1, 4, 5, 8, 14, 19, 21)
    names = "id, c_bit, c_int, c_dec, c_float, c_dt2, c_nvc, c_vbin"
    for number in (1, 2):
        values = [EXPECTED[place] for place in places]
        values[0] = number
        marks = ", ".join("?" * len(values))
        cursor.execute(f"INSERT INTO dbo.every ({names}) VALUES ({marks})", values)
    found = run(connection, f"SELECT {names} FROM dbo.every ORDER BY id")
    assert [row[1:] for row in found] == [tuple(EXPECTED[place] for place in places[1:])] * 2


def test_null_parameters_arrive(connection: Any) -> None:
    """The driver asks for the types of parameters that are NULL."""
    run(connection, TYPES)
    names = "c_int, c_dec, c_dt2, c_nvc, c_vmax, c_dto, c_guid"
    cursor = connection.cursor()
    cursor.execute(
        f"INSERT INTO dbo.every (id, {names}) VALUES (1, ?, ?, ?, ?, ?, ?, ?)", [None] * 7
    )
    assert run(connection, f"SELECT {names} FROM dbo.every") == [(None,) * 7]


def test_seven_digits_are_kept(client: Any) -> None:
    """Fractions of 100 ns survive, as text shows them; the offset too."""
    run(client, TYPES)
    run(client, ROW)
    found = run(
        client,
        "SELECT CONVERT(varchar(34), c_dt2, 126), CONVERT(varchar(34), c_dto, 126), "
        "CONVERT(varchar(34), c_dto, 127), CONVERT(varchar(34), c_time, 126) FROM dbo.every",
    )
    assert found == [
        ("9999-12-31T23:59:59.1234567", "2026-03-04T05:06:07.1234567-05:30",
         "2026-03-04T10:36:07.1234567Z", "23:59:59.9999999")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "stored"),
    [("00.001", 0), ("00.002", 3000), ("00.004", 3000), ("00.005", 7000), ("00.008", 7000),
     ("00.009", 10000), ("59.999", 0)],
)  # fmt: skip
def test_datetime_has_ticks_of_three_hundredths(connection: Any, given: str, stored: int) -> None:
    """A datetime is rounded to 0, 3 or 7 ms."""
    found = run(connection, f"SELECT CAST('2026-01-01T00:00:{given}' AS datetime)")
    assert found[0][0].microsecond == stored


def test_results_say_their_types(connection: Any) -> None:
    """Lengths, precision and names of a result are those of the table."""
    run(connection, "CREATE TABLE dbo.t (Id int NOT NULL, Name nvarchar(40), d decimal(12,2))")
    cursor = connection.cursor()
    cursor.execute("SELECT id, NAME, d, 1, d AS Total FROM dbo.T")
    assert [column[0] for column in cursor.description] == ["Id", "Name", "d", "", "Total"]
    assert [column[4:6] for column in cursor.description][2] == (12, 2)


def test_texts_of_a_code_page_lose_other_characters(connection: Any) -> None:
    """A varchar has the characters of code page 1252; with a UTF-8 collation it has all."""
    run(
        connection,
        "CREATE TABLE dbo.t (a varchar(9), b varchar(9) COLLATE Latin1_General_100_BIN2_UTF8)",
    )
    run(connection, "INSERT INTO dbo.t VALUES (N'ä漢€', N'ä漢€')")
    assert run(connection, "SELECT * FROM dbo.t") == [("ä?€", "ä漢€")]


def test_a_variant_keeps_its_type(connection: Any) -> None:
    """The base type is told, and a conversion gives its value back."""
    given = {
        "int": "5",
        "bigint": "CAST(-5 AS bigint)",
        "tinyint": "CAST(255 AS tinyint)",
        "bit": "CAST(1 AS bit)",
        "decimal": "CAST(12.50 AS decimal(8,2))",
        "money": "CAST(-922337203685477.5808 AS money)",
        "float": "CAST(0.1 AS float)",
        "nvarchar": "N'größer'",
        "varchar": "'a '",
        "varbinary": "0x00FF",
        "date": "CAST('9999-12-31' AS date)",
        "time": "CAST('23:59:59.9999999' AS time)",
        "datetime": "CAST('2026-03-04T05:06:07.003' AS datetime)",
        "datetime2": "CAST('9999-12-31T23:59:59.9999999' AS datetime2)",
        "datetimeoffset": "CAST('2026-03-04T05:06:07.1234567+05:30' AS datetimeoffset)",
        "uniqueidentifier": "CAST('6F9619FF-8B86-D011-B42D-00C04FC964FF' AS uniqueidentifier)",
    }
    run(connection, "CREATE TABLE dbo.t (id int IDENTITY, v sql_variant)")
    for value in given.values():
        run(connection, f"INSERT INTO dbo.t (v) VALUES (CAST({value} AS sql_variant))")
    kinds = run(connection, "SELECT SQL_VARIANT_PROPERTY(v, 'BaseType') FROM dbo.t ORDER BY id")
    assert [kind for (kind,) in kinds] == list(given)
    query = "SELECT CONVERT({}, v{}) FROM dbo.t WHERE SQL_VARIANT_PROPERTY(v, 'BaseType') = '{}'"
    for kind, style, expected in (
        ("money", "", Decimal("-922337203685477.5808")),
        ("varbinary(8000)", "", b"\0\xff"),
        ("bigint", "", -5),
        ("nvarchar(max)", "", "größer"),
    ):
        asked = query.format(kind, style, kind.partition("(")[0])
        assert run(connection, asked) == [(expected,)], kind
    moment_asked = query.format("nvarchar(max)", ", 126", "datetime2")
    assert run(connection, moment_asked) == [("9999-12-31T23:59:59.9999999",)]
    assert "only with CAST" in read_refusal(connection, "INSERT INTO dbo.t (v) VALUES (5)")


def test_classes_have_their_methods(client: Any) -> None:
    """A hierarchyid is a path; a geometry has its SRID and WKB, with Z and M."""
    run(client, "CREATE TABLE dbo.t (id int, h hierarchyid, g geometry, y geography)")
    run(
        client,
        "INSERT INTO dbo.t VALUES (1, '/1/2.1/', geometry::STGeomFromText('POINT (10 1)', 0), "
        "geography::Point(1, 10, 4326)), (2, hierarchyid::Parse('/'), "
        "geometry::STGeomFromWKB(0x01E9030000000000000000F03F00000000000000400000000000000840, 7), "
        "NULL)",
    )
    point = "0101000000000000000000244000000000000" + "0F03F"
    asked = (
        "SELECT h.ToString(), [g].STSrid, CONVERT(varchar(max), x.g.AsBinaryZM(), 2), y.STSrid, "
        "CONVERT(varchar(max), x.[y].STAsBinary(), 2) FROM dbo.t AS x ORDER BY id"
    )
    assert run(client, asked) == [
        ("/1/2.1/", 0, point, 4326, point),
        ("/", 7, "01E9030000000000000000F03F00000000000000400000000000000840", None, None),
    ]
    for column, value, said in (
        ("h", "'1/2'", "24001"),
        ("g", "geometry::STGeomFromWKB(0x0001, 0)", "24210"),
        ("y", "geography::STGeomFromWKB(0x01010000000000000000002440000000000000F03F, 7)", "24204"),
    ):
        assert said in read_refusal(client, f"INSERT INTO dbo.t ({column}) VALUES ({value})")


def test_documents_are_checked(connection: Any) -> None:
    """XML loses its declaration; a text without a root is refused, so is a wrong vector."""
    run(connection, "CREATE TABLE dbo.t (x xml, j json, w vector(3))")
    run(
        connection,
        """INSERT INTO dbo.t VALUES ('<?xml version="1.0"?><a b="1"/>', '{"a": 1.0}',
            '[1, 2, 3]')""",
    )
    assert run(connection, "SELECT x, j, w FROM dbo.t") == [
        ('<a b="1"/>', '{"a": 1.0}', "[1, 2, 3]")
    ]
    for column, value, said in (
        ("x", "<a>", "XML parsing"),
        ("j", "{a", "JSON text"),
        ("w", "[1]", "3 dimensions"),
    ):
        assert said in read_refusal(connection, f"INSERT INTO dbo.t ({column}) VALUES ('{value}')")


def test_a_rowversion_rises(connection: Any) -> None:
    """Each insert and update takes the next value, and none can be given."""
    run(connection, "CREATE TABLE dbo.t (id int, r rowversion)")
    run(connection, "INSERT INTO dbo.t (id) VALUES (1)")
    ((first,),) = run(connection, "SELECT r FROM dbo.t")
    run(connection, "UPDATE dbo.t SET id = 2")
    ((second,),) = run(connection, "SELECT r FROM dbo.t")
    assert len(second) == 8
    assert second > first


def test_guids_sort_by_their_last_bytes(connection: Any) -> None:
    """The last six bytes of a uniqueidentifier count first."""
    run(connection, "CREATE TABLE dbo.t (g uniqueidentifier NOT NULL PRIMARY KEY)")
    low = "FFFFFFFF-FFFF-FFFF-FFFF-000000000001"
    high = "00000000-0000-0000-0000-000000000002"
    run(connection, f"INSERT INTO dbo.t VALUES ('{high}'), ('{low}')")
    found = run(connection, "SELECT g FROM dbo.t ORDER BY g")
    assert found == [(uuid.UUID(low),), (uuid.UUID(high),)]
    assert run(connection, f"SELECT COUNT(*) FROM dbo.t WHERE g < '{high}'") == [(1,)]


# --- comparison -----------------------------------------------------------------------------------


def test_keys_ignore_case_and_trailing_blanks(client: Any) -> None:
    """'a', 'A' and 'a ' are one key; the stored text keeps its blanks."""
    run(client, "CREATE TABLE dbo.t (k nvarchar(9) NOT NULL PRIMARY KEY)")
    run(client, "INSERT INTO dbo.t VALUES (N'a ')")
    for same in ("a", "A", "A  "):
        assert "Violation of PRIMARY KEY constraint" in read_refusal(
            client, f"INSERT INTO dbo.t VALUES (N'{same}')"
        )
    assert run(client, "SELECT k FROM dbo.t WHERE k = N'A'") == [("a ",)]


def test_rows_of_other_types_are_the_same(connection: Any) -> None:
    """Rows are compared whole by values: 7 and 7.00, a day and its midnight, 'x' and 'x '."""
    run(connection, "CREATE TABLE dbo.a (n decimal(5,2), d date, t nvarchar(9), c char(3), b int)")
    run(
        connection,
        "CREATE TABLE dbo.b (n int, d datetime2(3), t nvarchar(9), c nvarchar(9), b int)",
    )
    run(
        connection,
        "INSERT INTO dbo.a VALUES (7, '2026-03-04', N'x', 'y', NULL), (8, NULL, N'', '', 1)",
    )
    run(connection, "INSERT INTO dbo.b VALUES (7, '2026-03-04', N'x ', N'y', NULL)")
    same = "SELECT a.n, a.d, a.t, a.c, a.b INTERSECT SELECT b.n, b.d, b.t, b.c, b.b"
    found = run(connection, f"SELECT a.n FROM dbo.a a JOIN dbo.b b ON EXISTS ({same})")
    assert found == [(Decimal(7),)]


def test_a_binary_collation_tells_case_apart(client: Any) -> None:
    """Two keys are 'a' and 'A' under BIN2; trailing blanks still do not count."""
    run(client, "CREATE TABLE dbo.t (k nvarchar(9) COLLATE Latin1_General_100_BIN2 PRIMARY KEY)")
    run(client, "INSERT INTO dbo.t VALUES (N'a'), (N'A')")
    assert "duplicate key" in read_refusal(client, "INSERT INTO dbo.t VALUES (N'a ')")


def test_names_ignore_case(client: Any) -> None:
    """Tables and columns are found in any case."""
    run(client, "CREATE TABLE dbo.Orders (Id int NOT NULL, [Order] int)")
    run(client, "INSERT INTO ORDERS (ID, [order]) VALUES (1, 2)")
    assert run(client, "SELECT [ORDER] FROM dbo.orders WHERE iD = 1") == [(2,)]


# --- errors and transactions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("SELECT * FROM dbo.nothing", 208),
        ("SELECT nothing FROM dbo.t", 207),
        ("INSERT INTO dbo.t VALUES (1, 'x')", 2627),
        ("INSERT INTO dbo.t VALUES (NULL, 'x')", 515),
        ("INSERT INTO dbo.t VALUES (2, 'too long')", 2628),
        ("INSERT INTO dbo.t VALUES (2, '')", 547),
        ("CREATE TABLE dbo.t (a int)", 2714),
        ("SELECT 1 / 0", 8134),
        ("SELECT CAST('x' AS int)", 245),
        ("EXEC dbo.nothing", 2812),
        ("SELEC 1", 2812),
        ("SELECT FROM WHERE", 102),
        ("COMMIT", 3902),
        ("ROLLBACK", 3903),
        ("THROW 51234, N'own', 7", 51234),
        ("SELECT @nothing", 137),
    ],
)
def test_errors_have_their_numbers(
    sqlserver: SimServer, sqlserver_database: str, statement: str, number: int
) -> None:
    """An error has SQL Server's number."""
    with closing(python_tds(sqlserver, sqlserver_database)) as connection:
        run(
            connection,
            "CREATE TABLE dbo.t (a int NOT NULL PRIMARY KEY, b varchar(5) CHECK (b <> ''))",
        )
        run(connection, "INSERT INTO dbo.t VALUES (1, 'a')")
        with pytest.raises(pytds.Error) as caught:
            run(connection, statement)
        assert getattr(caught.value, "msg_no", None) == number
        assert run(connection, "SELECT COUNT(*) FROM dbo.t") == [(1,)]


def test_a_failed_statement_does_not_end_the_transaction(client: Any) -> None:
    """Without XACT_ABORT the rest of the batch and its transaction go on."""
    run(client, "CREATE TABLE dbo.t (a int NOT NULL PRIMARY KEY)")
    read_refusal(
        client,
        "BEGIN TRAN; INSERT INTO dbo.t VALUES (1); INSERT INTO dbo.t VALUES (1); "
        "INSERT INTO dbo.t VALUES (2); COMMIT",
    )
    cursor = client.cursor()
    cursor.execute("SELECT @@TRANCOUNT, COUNT(*) FROM dbo.t")
    assert tuple(cursor.fetchall()[0]) in ((0, 2), (1, 2))


def test_xact_abort_ends_the_transaction(connection: Any) -> None:
    """A failed statement rolls everything back and ends the batch if XACT_ABORT is on."""
    run(connection, "CREATE TABLE dbo.t (a int NOT NULL PRIMARY KEY)")
    run(connection, "SET XACT_ABORT ON")
    read_refusal(
        connection,
        "BEGIN TRAN; INSERT INTO dbo.t VALUES (1); INSERT INTO dbo.t VALUES (1); "
        "INSERT INTO dbo.t VALUES (2); COMMIT",
    )
    assert run(connection, "SELECT @@TRANCOUNT, COUNT(*) FROM dbo.t") == [(0, 0)]


def test_catch_sees_the_error_and_may_throw_it(connection: Any) -> None:
    """TRY .. CATCH runs; THROW sends the caught error."""
    broken = "DECLARE @x int = 1 / 0"
    caught = f"BEGIN TRY {broken} END TRY BEGIN CATCH SELECT ERROR_NUMBER(), @@TRANCOUNT END CATCH"
    assert run(connection, caught) == [(8134, 0)]
    thrown = f"BEGIN TRY {broken} END TRY BEGIN CATCH THROW END CATCH"
    assert "division by zero" in read_refusal(connection, thrown)


def test_a_transaction_of_the_driver(sqlserver: SimServer, sqlserver_database: str) -> None:
    """Commit and rollback of the driver work; another session sees nothing before."""
    with (
        closing(microsoft(sqlserver, sqlserver_database)) as other,
        closing(mssql_python.connect(sqlserver.connection_string(sqlserver_database))) as own,
    ):
        run(other, "CREATE TABLE dbo.t (a int NOT NULL)")
        run(own, "INSERT INTO dbo.t VALUES (1)")
        assert run(own, "SELECT @@TRANCOUNT") == [(1,)]
        own.rollback()
        run(own, "INSERT INTO dbo.t VALUES (2)")
        own.commit()
        assert run(other, "SELECT a FROM dbo.t") == [(2,)]


def test_snapshots_must_be_allowed(connection: Any) -> None:
    """A snapshot is refused until the database allows it; then it does not move."""
    run(connection, "CREATE TABLE dbo.t (a int NOT NULL)")
    read = (
        "SET TRANSACTION ISOLATION LEVEL SNAPSHOT; BEGIN TRAN; SELECT COUNT(*) FROM dbo.t; COMMIT"
    )
    assert "snapshot isolation is not allowed" in read_refusal(connection, read)
    run(connection, "IF @@TRANCOUNT > 0 ROLLBACK; SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    run(connection, "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    assert run(connection, read) == [(0,)]


def test_deadlock_has_a_victim(sqlserver: SimServer, sqlserver_database: str) -> None:
    """One of two sessions that wait for each other gets error 1205 and loses its transaction."""
    with closing(microsoft(sqlserver, sqlserver_database)) as first:
        run(first, "CREATE TABLE dbo.t (a int NOT NULL PRIMARY KEY, b int)")
        run(first, "INSERT INTO dbo.t VALUES (1, 0), (2, 0)")
        said: list[str] = []

        def change(mine: int, theirs: int, both: threading.Barrier) -> None:
            with closing(python_tds(sqlserver, sqlserver_database)) as own:
                run(own, f"BEGIN TRAN; UPDATE dbo.t SET b = 1 WHERE a = {mine}")
                both.wait(20)
                try:
                    run(own, f"UPDATE dbo.t SET b = 1 WHERE a = {theirs}")
                    run(own, "COMMIT")
                except pytds.Error as error:
                    said.append(str(error))

        both = threading.Barrier(2)
        threads = [threading.Thread(target=change, args=(*pair, both)) for pair in ((1, 2), (2, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(said) == 1
    assert "deadlock victim" in said[0]


def test_an_attention_ends_a_statement(sqlserver: SimServer, sqlserver_database: str) -> None:
    """A query that its client gives up ends, and the connection is of use again."""
    with closing(python_tds(sqlserver, sqlserver_database)) as own:
        cursor = own.cursor()
        timer = threading.Timer(0.5, cursor._session.put_cancel)
        timer.start()
        started = time.monotonic()
        cursor.execute("WAITFOR DELAY '00:01:00'")
        assert time.monotonic() - started < 30
        timer.join()
        assert run(own, "SELECT 1") == [(1,)]


# --- bulk load ------------------------------------------------------------------------------------


def test_bulk_load_of_arrow(connection: Any) -> None:
    """An Arrow table arrives, NULLs included."""
    run(connection, "CREATE TABLE dbo.b (id int NOT NULL, t nvarchar(40), d decimal(12,2), "
                    "w datetime2(6), x varbinary(max), f float, y bit)")  # fmt: skip
    rows = 3000
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int32()),
            "t": ["zeile\tä\n\\" if n % 2 else None for n in range(rows)],
            "d": pa.array([Decimal("12.34")] * rows, pa.decimal128(12, 2)),
            "w": pa.array([moment(2026, 1, 2, 3, 4, 5, 678901)] * rows, pa.timestamp("us")),
            "x": [b"\0\\x" * (n % 3) for n in range(rows)],
            "f": [0.1] * rows,
            "y": [True] * rows,
        }
    )
    connection.cursor().bulkcopy_arrow("dbo.b", table)
    assert run(connection, "SELECT * FROM dbo.b WHERE id IN (1, 2) ORDER BY id") == [
        (1, "zeile\tä\n\\", Decimal("12.34"), moment(2026, 1, 2, 3, 4, 5, 678901),
         b"\0\\x", 0.1, True),
        (2, None, Decimal("12.34"), moment(2026, 1, 2, 3, 4, 5, 678901),
         b"\0\\x\0\\x", 0.1, True),
    ]  # fmt: skip
    assert run(connection, "SELECT COUNT(*) FROM dbo.b") == [(rows,)]


def test_bulk_load_of_python_tds(sqlserver: SimServer, sqlserver_database: str) -> None:
    """The second client's bulk load arrives too."""
    with closing(python_tds(sqlserver, sqlserver_database)) as own:
        run(own, "CREATE TABLE dbo.b (id int NOT NULL, name nvarchar(40))")
        cursor = own.cursor()
        columns = [
            pytds.Column("id", type=tds_types.IntType()),
            pytds.Column("name", type=tds_types.NVarCharType(40)),
        ]
        cursor.copy_to(table_or_view="b", schema="dbo", columns=columns, data=[(3, "ü"), (4, None)])
        assert run(own, "SELECT id, name FROM dbo.b ORDER BY id") == [(3, "ü"), (4, None)]


def test_bulk_load_trusts_nothing(connection: Any) -> None:
    """Foreign keys are not checked and not trusted after a bulk load; keys are checked."""
    run(connection, "CREATE TABLE dbo.p (a int NOT NULL PRIMARY KEY)")
    run(connection, "CREATE TABLE dbo.c (b int NOT NULL PRIMARY KEY, a int REFERENCES dbo.p (a))")
    connection.cursor().bulkcopy("dbo.c", [(1, 7)])
    assert run(connection, "SELECT is_disabled, is_not_trusted FROM sys.foreign_keys") == [(0, 1)]
    with pytest.raises(Exception, match="PRIMARY KEY"):
        connection.cursor().bulkcopy("dbo.c", [(1, 8)])


# --- definitions ----------------------------------------------------------------------------------


def test_the_catalogue_tells_what_was_created(client: Any) -> None:
    """Columns, keys, indexes and constraints are in the catalogue views."""
    run(client, "CREATE SCHEMA s")
    run(
        client,
        "CREATE TABLE s.t (id bigint IDENTITY(10,5) NOT NULL, v nvarchar(20) NOT NULL "
        "CONSTRAINT df DEFAULT (N'x'), c AS (id * 2), rv rowversion, CONSTRAINT pk PRIMARY KEY "
        "NONCLUSTERED (v DESC), CONSTRAINT uq UNIQUE (id), CONSTRAINT ck CHECK (v <> ''))",
    )
    run(client, "CREATE CLUSTERED INDEX ix ON s.t (id, v DESC)")
    columns = run(
        client,
        "SELECT c.name, t.name, c.max_length, c.is_nullable, c.is_identity, c.is_computed "
        "FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = c.user_type_id "
        "WHERE c.object_id = OBJECT_ID(N's.t') ORDER BY c.column_id",
    )
    assert columns == [
        ("id", "bigint", 8, False, True, False), ("v", "nvarchar", 40, False, False, False),
        ("c", "bigint", 8, True, False, True), ("rv", "timestamp", 8, True, False, False),
    ]  # fmt: skip
    indexes = run(
        client,
        "SELECT name, type_desc, is_primary_key, is_unique FROM sys.indexes "
        "WHERE object_id = OBJECT_ID(N's.t') ORDER BY name",
    )
    assert indexes == [
        ("ix", "CLUSTERED", False, False), ("pk", "NONCLUSTERED", True, True),
        ("uq", "NONCLUSTERED", False, True),
    ]  # fmt: skip
    assert run(client, "SELECT definition FROM sys.default_constraints") == [("(N'x')",)]
    assert run(client, "SELECT seed_value, increment_value FROM sys.identity_columns") == [(10, 5)]


def test_identity_values_are_the_servers(connection: Any) -> None:
    """A value for an identity column needs IDENTITY_INSERT, and moves the next one."""
    run(connection, "CREATE TABLE dbo.t (id int IDENTITY(1,1) NOT NULL, v int)")
    run(connection, "INSERT INTO dbo.t VALUES (10)")
    assert "IDENTITY_INSERT is set to OFF" in read_refusal(
        connection, "INSERT INTO dbo.t (id, v) VALUES (5, 11)"
    )
    run(connection, "SET IDENTITY_INSERT dbo.t ON; INSERT INTO dbo.t (id, v) VALUES (5, 11); "
                    "SET IDENTITY_INSERT dbo.t OFF; INSERT INTO dbo.t (v) VALUES (12)")  # fmt: skip
    assert run(connection, "SELECT * FROM dbo.t ORDER BY v") == [(1, 10), (5, 11), (6, 12)]


def test_constraints_can_rest(connection: Any) -> None:
    """NOCHECK lets a foreign key rest; WITH CHECK CHECK looks at all rows."""
    run(connection, "CREATE TABLE dbo.p (a int NOT NULL PRIMARY KEY)")
    run(connection, "CREATE TABLE dbo.c (a int CONSTRAINT fk REFERENCES dbo.p (a))")
    assert 'FOREIGN KEY constraint "fk"' in read_refusal(connection, "INSERT INTO dbo.c VALUES (1)")
    run(connection, "ALTER TABLE dbo.c NOCHECK CONSTRAINT ALL")
    run(connection, "INSERT INTO dbo.c VALUES (1)")
    read_refusal(connection, "ALTER TABLE dbo.c WITH CHECK CHECK CONSTRAINT ALL")
    run(
        connection, "INSERT INTO dbo.p VALUES (1); ALTER TABLE dbo.c WITH CHECK CHECK CONSTRAINT fk"
    )
    assert run(connection, "SELECT is_disabled, is_not_trusted FROM sys.foreign_keys") == [(0, 0)]


def test_one_statement_may_shift_keys(connection: Any) -> None:
    """Keys are checked at the end of a statement."""
    run(connection, "CREATE TABLE dbo.t (a int NOT NULL PRIMARY KEY)")
    run(connection, "INSERT INTO dbo.t VALUES (1), (2), (3)")
    run(connection, "UPDATE dbo.t SET a = a + 1")
    assert run(connection, "SELECT a FROM dbo.t ORDER BY a") == [(2,), (3,), (4,)]


def test_triggers_run_unless_disabled(connection: Any) -> None:
    """An AFTER trigger sees the inserted rows."""
    run(connection, "CREATE TABLE dbo.t (a int NOT NULL); CREATE TABLE dbo.log (a int)")
    run(
        connection,
        "CREATE TRIGGER tr ON dbo.t AFTER INSERT AS INSERT INTO dbo.log SELECT a FROM inserted",
    )
    run(connection, "INSERT INTO dbo.t VALUES (1), (2)")
    run(connection, "DISABLE TRIGGER tr ON dbo.t; INSERT INTO dbo.t VALUES (3)")
    run(connection, "ENABLE TRIGGER ALL ON dbo.t; INSERT INTO dbo.t VALUES (4)")
    assert run(connection, "SELECT a FROM dbo.log ORDER BY a") == [(1,), (2,), (4,)]


def test_altered_columns_keep_their_values(connection: Any) -> None:
    """Added, altered, renamed and dropped columns."""
    run(connection, "CREATE TABLE dbo.t (a int NOT NULL, b varchar(5))")
    run(connection, "INSERT INTO dbo.t VALUES (1, 'x')")
    run(connection, "ALTER TABLE dbo.t ADD c int NULL DEFAULT 5, d int NOT NULL DEFAULT 6")
    run(connection, "ALTER TABLE dbo.t ALTER COLUMN b nvarchar(100) NOT NULL")
    run(connection, "EXEC sp_rename N'dbo.t.a', N'A2', N'COLUMN'")
    assert run(connection, "SELECT * FROM dbo.t") == [(1, "x", None, 6)]
    assert "is dependent on column" in read_refusal(connection, "ALTER TABLE dbo.t DROP COLUMN c")
    assert "cannot be added" in read_refusal(connection, "ALTER TABLE dbo.t ADD e int NOT NULL")


# --- limits ---------------------------------------------------------------------------------------


def test_no_more_than_2100_parameters(
    sqlserver: SimServer, sqlserver_database: str, connection: Any
) -> None:
    """More parameters are refused with error 8003."""
    statement = "SELECT " + " + ".join("?" * 2100)
    assert run(connection, statement, *[1] * 2100) == [(2100,)]
    with closing(python_tds(sqlserver, sqlserver_database)) as other:
        statement = "SELECT " + " + ".join(["%s"] * 2101)
        assert "maximum of 2100" in read_refusal(other, statement, *[1] * 2101)


def test_keys_have_at_most_900_or_1700_bytes(connection: Any) -> None:
    """A longer key is refused with error 1946, when a row has it."""
    run(connection, "CREATE TABLE dbo.t (a varchar(1701) NOT NULL, b varchar(901) NOT NULL)")
    run(connection, "CREATE INDEX i ON dbo.t (a); CREATE CLUSTERED INDEX c ON dbo.t (b)")
    run(connection, "INSERT INTO dbo.t VALUES (REPLICATE('x', 1700), REPLICATE('x', 900))")
    assert "1701 bytes" in read_refusal(
        connection, "INSERT INTO dbo.t VALUES (REPLICATE('x', 1701), 'x')"
    )
    assert "901 bytes" in read_refusal(
        connection, "INSERT INTO dbo.t VALUES ('x', REPLICATE('x', 901))"
    )


def test_no_more_than_1024_columns(connection: Any) -> None:
    """A table of more columns is refused with error 1702."""
    columns = ", ".join(f"c{n} int" for n in range(1025))
    assert "maximum of 1024 columns" in read_refusal(connection, f"CREATE TABLE dbo.t ({columns})")


def test_a_row_has_at_most_8060_bytes(connection: Any) -> None:
    """Long values leave the row; the rest has to fit, and a table that never can is refused."""
    run(
        connection, "CREATE TABLE dbo.t (id int, a varchar(8000), b nvarchar(4000), c varchar(max))"
    )
    run(
        connection,
        "INSERT INTO dbo.t VALUES (1, REPLICATE('x', 8000), REPLICATE('x', 4000), "
        "REPLICATE('x', 9000))",
    )
    refused = "CREATE TABLE dbo.fixed (a char(8000), b char(60))"
    assert "minimum row size would be 806" in read_refusal(connection, refused)
    names = [f"c{number}" for number in range(330)]
    columns = ", ".join(f"{name} varchar(30)" for name in names)
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"CREATE TABLE dbo.short (id int, {columns})")
        assert "maximum row size exceeds" in str(cursor.messages)
    run(connection, "INSERT INTO dbo.short (id) VALUES (1)")
    row = ", ".join(f"{name} = REPLICATE('x', 30)" for name in names)
    assert "Cannot create a row of size" in read_refusal(connection, f"UPDATE dbo.short SET {row}")
    assert run(connection, "SELECT COUNT(*) FROM dbo.short WHERE c0 IS NULL") == [(1,)]


# --- logins ---------------------------------------------------------------------------------------


def test_wrong_logins_are_refused(sqlserver: SimServer, sqlserver_database: str) -> None:
    """A wrong password and a missing database have different errors."""
    with pytest.raises(mssql_python.Error, match="Login failed for user 'tests'"):
        mssql_python.connect(sqlserver.connection_string(sqlserver_database, password="x"))
    with pytest.raises(mssql_python.Error, match="Cannot open database"):
        mssql_python.connect(sqlserver.connection_string("nothing_of_this_name"))


@pytest.fixture(scope="module")
def tls_server(
    shared_servers: SharedServers, sqlserver: SimServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimServer]:
    """A simulator with TLS over the same PostgreSQL server."""
    with running(sqlserver.postgres_url, "--tls", str(tmp_path_factory.mktemp("tls"))) as server:
        yield server


@pytest.mark.parametrize("encrypt", ["yes", "no", "strict"])
def test_tls(tls_server: SimServer, sqlserver_database: str, encrypt: str) -> None:
    """The driver encrypts everything, the login alone, or begins with TLS; bulk load included."""
    assert tls_server.certificate is not None
    options = {"Encrypt": encrypt}
    if encrypt == "strict":
        options["TrustServerCertificate"] = "no"
        options["ServerCertificate"] = str(tls_server.certificate.with_name("server.pem"))
    with closing(microsoft(tls_server, sqlserver_database, **options)) as own:
        assert run(own, "SELECT REPLICATE(CAST('x' AS varchar(max)), 40000)") == [("x" * 40_000,)]
        run(own, "CREATE TABLE dbo.b (a int NOT NULL, b varchar(5000))")
        own.cursor().bulkcopy("dbo.b", [(n, "y" * 3000) for n in range(100)])
        assert run(own, "SELECT COUNT(*) FROM dbo.b WHERE b = REPLICATE('y', 3000)") == [(100,)]


def test_an_unknown_certificate_is_refused(tls_server: SimServer, sqlserver_database: str) -> None:
    """The driver checks the certificate unless it is told to trust it."""
    with pytest.raises(mssql_python.Error, match="certificate"):
        microsoft(tls_server, sqlserver_database, TrustServerCertificate="no")


# --- known texts ----------------------------------------------------------------------------------


def test_a_strict_server_knows_its_texts(sqlserver: SimServer, tmp_path: Path) -> None:
    """A strict server accepts recorded texts and those of tests, and refuses others."""
    known = tmp_path / "known.sql"
    with running(sqlserver.postgres_url, "--record", str(known)) as server:
        with closing(microsoft(server, "master", UID="sa")) as own:
            run(own, "SELECT 1,  ?", 5)
        server.execute("SELECT 'of a test'", "master")
    assert known.read_text() == "SELECT 1,  @P1\n;;\n"
    refused = tmp_path / "refused.sql"
    options = ("--strict", str(known), "--refused", str(refused))
    with running(sqlserver.postgres_url, *options) as server:
        with closing(microsoft(server, "master", UID="sa")) as own:
            assert run(own, "SELECT 2, ?", 6) == [(2, 6)]
            assert "unknown text: SELECT 'a'" in read_refusal(own, "SELECT 'a'")
        assert server.execute("SELECT 'a'", "master") == [("a",)]
    assert refused.read_text() == "SELECT 'a'\n-- new: [\"|SELECT: 's'\"]\n;;\n"
