"""Change data capture of the simulated SQL Server, compared with the recorded facts.

The facts are in `data/sqlserver_cdc_samples.jsonl`. Where the reference's corrections differ from a
sample, as for the command of a changed key, the correction holds.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import mssql_python
import pytest

from plugins.sqlserver import SimServer

SAMPLES = Path(__file__).parents[1] / "data" / "sqlserver_cdc_samples.jsonl"
WAIT_S = 20.0
ORDER = "ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
TABLES = {
    "orders": "id int NOT NULL PRIMARY KEY, customer nvarchar(40), total decimal(12,2), "
    "state varchar(10), placed_at datetime2(7)",
    "order_items": "order_id int NOT NULL, line_no smallint NOT NULL, sku varchar(12), qty int, "
    "PRIMARY KEY (order_id, line_no)",
    "docs": "id int NOT NULL PRIMARY KEY, title nvarchar(80), body nvarchar(max), "
    "data varbinary(max), old_text text",
    "nokey": "a int, b varchar(10)",
    "customers": "id int NOT NULL PRIMARY KEY, name nvarchar(40)",
}
PLACED = "'2026-03-04T05:06:07.1234567'"
# What a database's user runs for each case: before capture sees it, and as the case.
SCRIPTS: dict[str, tuple[list[str], list[str]]] = {
    "two_tables_one_transaction": (
        [],
        [f"BEGIN TRAN; INSERT INTO orders VALUES (1, N'Ada', 10, 'NEW', {PLACED}); "
         "INSERT INTO order_items VALUES (1, 1, 'A-1', 2); "
         "INSERT INTO order_items VALUES (1, 2, 'B-7', 1); "
         "UPDATE orders SET total = 25.5 WHERE id = 1; COMMIT"],
    ),
    "update_pairs": (
        [f"INSERT INTO orders VALUES (3, N'Cy', 2, 'NEW', {PLACED})",
         "INSERT INTO order_items VALUES (3, 1, 'Z', 1)"],
        ["BEGIN TRAN; UPDATE orders SET customer = NULL, state = 'PAID' WHERE id = 3; "
         "UPDATE orders SET customer = N'Cyd' WHERE id = 3; "
         "UPDATE order_items SET qty = 4 WHERE order_id = 3; COMMIT"],
    ),
    "primary_key_update": (
        [f"INSERT INTO orders VALUES (3, N'Cyd', 2, 'PAID', {PLACED})"],
        ["UPDATE orders SET id = 300 WHERE id = 3"],
    ),
    "multi_row_key_shift": (
        [f"INSERT INTO orders VALUES (10, N'K', 1, 'NEW', {PLACED}), "
         f"(11, N'L', 1, 'NEW', {PLACED})"],
        ["UPDATE orders SET id = id + 1"],
    ),
    "large_values": (
        [],
        ["BEGIN TRAN; INSERT INTO docs VALUES (1, N't', N'long body', 0xCAFE, 'old'); "
         "UPDATE docs SET title = N't2'; UPDATE docs SET body = NULL; DELETE FROM docs; COMMIT"],
    ),
    "no_key_table": (
        [],
        ["BEGIN TRAN; INSERT INTO nokey VALUES (1, 'x'); "
         "INSERT INTO nokey VALUES (1, 'x'); COMMIT"],
    ),
    "truncate_blocked": (
        ["INSERT INTO order_items VALUES (50, 1, 'S1', 1), (50, 2, 'S2', 2), (50, 3, 'S3', 3), "
         "(50, 4, 'S4', 4)"],
        ["DELETE FROM order_items"],
    ),
    "restart_inside_transaction": (
        [],
        ["BEGIN TRAN; INSERT INTO order_items VALUES (60, 1, 'R1', 1); "
         "INSERT INTO order_items VALUES (60, 2, 'R2', 2); "
         "INSERT INTO order_items VALUES (60, 3, 'R3', 3); COMMIT"],
    ),
}  # fmt: skip


class Database:
    """A captured database, with a connection of Microsoft's driver."""

    def __init__(self, server: SimServer, name: str) -> None:
        self.server, self.name = server, name
        self.connection = mssql_python.connect(server.connection_string(name), autocommit=True)
        self.run("EXEC sys.sp_cdc_enable_db")

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a batch; return the rows of its first result, after all others were read."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(statement, parameters) if parameters else cursor.execute(statement)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            while cursor.nextset():
                pass
            return rows

    def table(self, name: str, instance: str = "", **options: str) -> None:
        """Create a table and a capture instance."""
        if not instance:
            self.run(f"CREATE TABLE dbo.{name} ({TABLES.get(name) or options.pop('columns')})")
        more = "".join(f", @{key} = {value}" for key, value in options.items())
        named = f", @capture_instance = N'{instance}'" if instance else ""
        self.run(
            f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{name}', "
            f"@role_name = NULL{named}{more}"
        )

    def scan(self) -> None:
        """Capture at once."""
        self.run("EXEC sys.sp_cdc_scan")

    def rows(self, instance: str) -> list[dict[str, Any]]:
        """Return an instance's change rows in order."""
        cursor = self.connection.cursor()
        cursor.execute(f"SELECT * FROM cdc.[{instance}_CT] {ORDER}")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def one(self, expression: str) -> Any:
        """Return the value of an expression."""
        return self.run(f"SELECT {expression}")[0][0]


@pytest.fixture
def database(sqlserver: SimServer, sqlserver_database: str) -> Iterator[Database]:
    """A fresh captured database."""
    database = Database(sqlserver, sqlserver_database)
    yield database
    with suppress(mssql_python.Error):  # a test may have cut it
        database.connection.close()


def samples() -> dict[str, list[dict[str, Any]]]:
    """Return the recorded rows by case."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in SAMPLES.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["record"] == "row":
            found[record["case"]].append(record)
    return found


def plain(value: Any) -> Any:
    """Return a tagged value of the samples as the driver returns it."""
    if not isinstance(value, dict):
        return value
    ((tag, text),) = value.items()
    if tag == "$hex":
        return bytes.fromhex(text)
    if tag == "$num":
        return Decimal(text)
    return datetime.datetime.fromisoformat(text[:26])  # $ts; the driver keeps microseconds


def rank_rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows with the ranks of their seqvals and commands, and without LSNs."""
    seqvals = sorted({row["__$seqval"] for row in rows})
    commands = sorted({row["__$command_id"] for row in rows})
    return [
        (
            row["capture_instance"],
            commands.index(row["__$command_id"]),
            seqvals.index(row["__$seqval"]),
            row["__$operation"],
            row["__$update_mask"],
            {k: v for k, v in row.items() if "$" not in k and k in VALUE_NAMES},
        )
        for row in rows
    ]


VALUE_NAMES = {part.split()[0] for columns in TABLES.values() for part in columns.split(", ")} - {
    "PRIMARY"
}


@pytest.mark.parametrize("case", sorted(SCRIPTS))
def test_recorded_rows(database: Database, case: str) -> None:
    """The rows of a recorded case come in the same order, with the same masks and values."""
    before, script = SCRIPTS[case]
    recorded = [
        {key: plain(value) for key, value in row.items() if key != "expect"}
        for row in samples()[case]
    ]
    instances = {row["capture_instance"] for row in recorded}
    for instance in sorted(instances):
        database.table(instance.removeprefix("dbo_"))
    for statement in before:
        database.run(statement)
    database.scan()
    start = database.one("sys.fn_cdc_get_max_lsn()") or b""
    for statement in script:
        database.run(statement)
    database.scan()
    found = []
    for instance in instances:
        for row in database.rows(instance):
            if row["__$start_lsn"] > start:
                found.append({**row, "capture_instance": instance})
    keys = ("__$start_lsn", "__$command_id", "__$seqval", "__$operation")
    found.sort(key=lambda row: tuple(row[key] for key in keys))
    if case == "primary_key_update":  # correction S1: the two rows have different commands
        recorded[1]["__$command_id"] += 1
    assert rank_rows(found) == rank_rows(recorded)
    assert len({row["__$start_lsn"] for row in found}) == 1


def test_the_last_byte_of_a_mask_has_the_first_columns(database: Database) -> None:
    """Nine and more columns: ordinal 1 is the lowest bit of the last byte."""
    columns = "id int NOT NULL PRIMARY KEY, " + ", ".join(f"c{n} int" for n in range(2, 28))
    database.table("wide", columns=columns)
    database.run("INSERT INTO wide (id) VALUES (1)")
    database.run("UPDATE wide SET c2 = 1, c9 = 1, c27 = 1")
    database.scan()
    masks = [row["__$update_mask"].hex() for row in database.rows("dbo_wide")]
    assert masks == ["07ffffff", "04000102", "04000102"]
    assert database.one("sys.fn_cdc_is_bit_set(9, 0x04000102)") is not None
    assert [database.one(f"sys.fn_cdc_is_bit_set({n}, 0x04000102)") for n in (1, 2, 9, 27)] == [
        0, 1, 1, 1
    ]  # fmt: skip


def test_computed_columns_are_null(database: Database) -> None:
    """A computed column is NULL in the change table, and marked in captured_columns."""
    database.table("t", columns="id int NOT NULL PRIMARY KEY, twice AS (id * 2), rv rowversion")
    database.run("INSERT INTO t (id) VALUES (4)")
    database.scan()
    (row,) = database.rows("dbo_t")
    assert (row["id"], row["twice"], len(row["rv"])) == (4, None, 8)
    listed = "SELECT column_name, column_ordinal, is_computed FROM cdc.captured_columns ORDER BY 2"
    assert database.run(listed) == [("id", 1, 0), ("twice", 2, 1), ("rv", 3, 0)]


def test_commits_order_transactions(database: Database, sqlserver: SimServer) -> None:
    """The start LSN is that of the commit; seqvals of a later commit may be lower."""
    database.table("nokey")
    with closing(Database(sqlserver, database.name).connection) as other:
        cursor = other.cursor()
        cursor.execute("BEGIN TRAN; INSERT INTO nokey VALUES (1, 'first')")
        database.run("INSERT INTO nokey VALUES (2, 'second')")
        cursor.execute("COMMIT")
    database.scan()
    rows = database.rows("dbo_nokey")
    assert [row["a"] for row in rows] == [2, 1]
    assert rows[0]["__$start_lsn"] < rows[1]["__$start_lsn"]
    assert rows[0]["__$seqval"] > rows[1]["__$seqval"]
    mapped = database.run("SELECT start_lsn, tran_id FROM cdc.lsn_time_mapping ORDER BY 1")
    assert {row["__$start_lsn"] for row in rows} <= {lsn for lsn, _ in mapped}
    assert all(len(tran) == 6 for lsn, tran in mapped if lsn in {r["__$start_lsn"] for r in rows})


def test_what_was_rolled_back_is_not_captured(database: Database) -> None:
    """Neither a transaction nor a failed statement of one leaves rows; commands go on."""
    database.table("customers")
    database.run("BEGIN TRAN; INSERT INTO customers VALUES (1, N'no'); ROLLBACK")
    with pytest.raises(mssql_python.Error):
        database.run("BEGIN TRAN; INSERT INTO customers VALUES (2, N'a'); "
                     "INSERT INTO customers VALUES (2, N'b'); "
                     "INSERT INTO customers VALUES (3, N'c'); COMMIT")  # fmt: skip
    database.run("IF @@TRANCOUNT > 0 COMMIT")
    database.run("UPDATE customers SET name = name")
    database.scan()
    assert [row["id"] for row in database.rows("dbo_customers")] == [2, 3]


def test_ranges_are_checked(database: Database) -> None:
    """The function refuses a range outside of what is captured, with error 313."""
    database.table("customers")
    database.run("INSERT INTO customers VALUES (1, N'a'); UPDATE customers SET name = N'b'")
    database.scan()
    ask = "SELECT [__$operation], name FROM cdc.[fn_cdc_get_all_changes_dbo_customers]({}, {}, {})"
    low, high = "sys.fn_cdc_get_min_lsn('dbo_customers')", "sys.fn_cdc_get_max_lsn()"
    assert database.run(ask.format(low, high, "N'all'")) == [(2, "a"), (4, "b")]
    assert len(database.run(ask.format(low, high, "N'all update old'"))) == 3
    for first, last in (
        ("0x00000000000000000001", high),
        (low, "0xFFFFFFFFFFFFFFFFFFFF"),
        (high, low),
        ("NULL", high),
        (f"sys.fn_cdc_increment_lsn({high})", high),
    ):
        with pytest.raises(mssql_python.Error, match="insufficient number of arguments"):
            database.run(ask.format(first, last, "N'all'"))
    assert database.one("sys.fn_cdc_get_min_lsn('nothing')") == b"\0" * 10
    assert database.one("sys.fn_cdc_increment_lsn(0x000000000000000000FF)") == b"\0" * 8 + b"\1\0"


def test_capture_is_behind(database: Database) -> None:
    """Changes arrive after the lag; a stopped Agent holds them back."""
    database.table("customers")
    database.run("EXEC sim.set_lag 1.5")
    database.run("INSERT INTO customers VALUES (1, N'a')")
    time.sleep(0.5)
    assert database.rows("dbo_customers") == []
    until = time.monotonic() + WAIT_S
    while not database.rows("dbo_customers"):
        assert time.monotonic() < until
        time.sleep(0.1)
    database.run("EXEC sim.set_lag 0")
    database.run("EXEC sim.stop_agent")
    status = (
        "SELECT status FROM sys.dm_server_services WHERE servicename LIKE N'SQL Server Agent (%'"
    )
    assert database.run(status) == [(1,)]
    database.run("INSERT INTO customers VALUES (2, N'b')")
    time.sleep(0.5)
    assert len(database.rows("dbo_customers")) == 1
    database.run("EXEC sim.start_agent")
    assert database.run(status) == [(4,)]
    until = time.monotonic() + WAIT_S
    while len(database.rows("dbo_customers")) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_cleanup_moves_the_low_end(database: Database) -> None:
    """Cleanup removes old rows and raises the instances' start; an idle log may become empty."""
    database.table("customers")
    database.run("INSERT INTO customers VALUES (1, N'a')")
    database.scan()
    first = database.one("sys.fn_cdc_get_min_lsn('dbo_customers')")
    time.sleep(0.05)
    database.run("INSERT INTO customers VALUES (2, N'b')")
    database.scan()
    database.run("EXEC sim.clean_up 0")
    assert database.one("sys.fn_cdc_get_min_lsn('dbo_customers')") > first
    assert [row["id"] for row in database.rows("dbo_customers")] in ([2], [])
    database.run("EXEC sim.empty_log")
    assert database.one("sys.fn_cdc_get_max_lsn()") is None
    database.run("INSERT INTO customers VALUES (3, N'c')")
    database.scan()
    assert [row["id"] for row in database.rows("dbo_customers")] == [3]
    assert database.one("sys.fn_cdc_get_max_lsn()") is not None


def test_an_idle_database_moves_on(database: Database) -> None:
    """Work on tables that are not captured moves the highest LSN, with transaction 0x00."""
    database.run("EXEC sim.[set] N'idle_s', N'0.1'")
    database.run("CREATE TABLE dbo.other (a int)")
    before = database.one("sys.fn_cdc_get_max_lsn()") or b""
    until = time.monotonic() + WAIT_S
    while (database.one("sys.fn_cdc_get_max_lsn()") or b"") <= before:
        database.run("INSERT INTO other VALUES (1)")
        assert time.monotonic() < until
        time.sleep(0.1)
    assert {row[0] for row in database.run("SELECT tran_id FROM cdc.lsn_time_mapping")} == {b"\0"}


def test_a_second_instance_has_the_new_column(database: Database) -> None:
    """The old instance keeps its columns, the new one has more; DDL is in the history."""
    database.table("customers")
    database.run("INSERT INTO customers VALUES (1, N'Ada')")
    database.run("ALTER TABLE dbo.customers ADD phone varchar(20) NULL")
    database.run("INSERT INTO customers VALUES (2, N'Bo', '1')")
    database.table("customers", "dbo_customers_v2")
    database.run("INSERT INTO customers VALUES (3, N'Cy', '555')")
    database.scan()
    assert [row["id"] for row in database.rows("dbo_customers")] == [1, 2, 3]
    (row,) = database.rows("dbo_customers_v2")
    assert (row["id"], row["phone"], row["__$update_mask"]) == (3, "555", b"\x07")
    history = database.run("SELECT ddl_command, required_column_update FROM cdc.ddl_history")
    assert history == [("ALTER TABLE dbo.customers ADD phone varchar(20) NULL", False)]
    with pytest.raises(mssql_python.Error, match="Two capture instances already exist"):
        database.table("customers", "third")
    database.run("EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', "
                 "@source_name = N'customers', @capture_instance = N'dbo_customers'")  # fmt: skip
    database.table("customers", "third")
    names = database.run("SELECT capture_instance FROM cdc.change_tables ORDER BY 1")
    assert names == [("dbo_customers_v2",), ("third",)]


def test_ddl_on_captured_columns(database: Database) -> None:
    """A dropped column becomes NULL, a type change is followed, a rename is refused."""
    database.table("orders")
    database.run("ALTER TABLE dbo.orders ALTER COLUMN customer nvarchar(100)")
    database.run("ALTER TABLE dbo.orders DROP COLUMN state")
    database.run(f"INSERT INTO orders VALUES (1, N'{'x' * 90}', 1, NULL)")
    database.scan()
    (row,) = database.rows("dbo_orders")
    assert (row["customer"], row["state"]) == ("x" * 90, None)
    history = database.run("SELECT required_column_update FROM cdc.ddl_history ORDER BY ddl_lsn")
    assert history == [(True,), (False,)]
    with pytest.raises(mssql_python.Error, match="Cannot alter column 'total'"):
        database.run("EXEC sp_rename N'dbo.orders.total', N'sum', N'COLUMN'")
    with pytest.raises(mssql_python.Error, match="Cannot truncate table"):
        database.run("TRUNCATE TABLE dbo.orders")


def test_scans_are_reported(database: Database) -> None:
    """The newest finished scan tells whether capture has caught up."""
    database.table("customers")
    database.run("INSERT INTO customers VALUES (1, N'a')")
    database.scan()
    newest = database.run(
        "SELECT TOP (1) scan_phase, tran_count, last_commit_lsn FROM sys.dm_cdc_log_scan_sessions "
        "WHERE tran_count > 0 ORDER BY session_id DESC"
    )
    lsn = database.rows("dbo_customers")[-1]["__$start_lsn"].hex()
    assert newest[0][0] == "Done"
    assert newest[0][2] == f"{lsn[:8]}:{lsn[8:16]}:{lsn[16:]}"
    jobs = database.run("SELECT job_type, maxtrans, retention FROM msdb.dbo.cdc_jobs ORDER BY 1")
    assert jobs == [("capture", 500, 0), ("cleanup", 0, 4320)]


def test_gating_roles_hide_instances(database: Database, sqlserver: SimServer) -> None:
    """A login outside the gating role sees 0x0 as the lowest LSN."""
    database.table("customers")
    database.run("CREATE TABLE dbo.secret (a int NOT NULL PRIMARY KEY)")
    database.run("EXEC sys.sp_cdc_enable_table N'dbo', N'secret', @role_name = N'readers'")
    database.run(
        "CREATE LOGIN tests_eve WITH PASSWORD = 'Eve#1'; CREATE USER eve FOR LOGIN tests_eve"
    )
    ask = "SELECT sys.fn_cdc_get_min_lsn(N'dbo_secret'), sys.fn_cdc_get_min_lsn(N'dbo_customers')"
    text = sqlserver.connection_string(database.name, "tests_eve", "Eve#1")
    with closing(mssql_python.connect(text, autocommit=True)) as eve:
        secret, public = eve.cursor().execute(ask).fetchone()
        assert (secret, public > secret) == (b"\0" * 10, True)
        database.run("ALTER ROLE readers ADD MEMBER tests_eve")
        assert eve.cursor().execute(ask).fetchone()[0] > b"\0" * 10


def test_a_bulk_load_is_captured(database: Database) -> None:
    """Rows of a bulk load are inserts of one statement, each with its own seqval."""
    database.table("customers")
    database.connection.cursor().bulkcopy("dbo.customers", [(n, f"n{n}") for n in range(500)])
    database.scan()
    rows = database.rows("dbo_customers")
    assert [row["id"] for row in rows] == list(range(500))
    assert len({row["__$seqval"] for row in rows}) == 500
    assert {(row["__$command_id"], row["__$operation"]) for row in rows} == {(1, 2)}


def test_a_fail_over_ends_sessions_and_capture(database: Database, sqlserver: SimServer) -> None:
    """Other sessions are cut, the jobs are gone, and captured commits may be lost."""
    database.table("customers")
    database.run("INSERT INTO customers VALUES (1, N'a')")
    database.run("INSERT INTO customers VALUES (2, N'b')")
    database.scan()
    before = database.one("sys.fn_cdc_get_max_lsn()")
    other = mssql_python.connect(sqlserver.connection_string(database.name))
    other.cursor().execute("SELECT 1").fetchall()
    database.run("EXEC sim.fail_over 1")
    with pytest.raises(mssql_python.Error):
        other.cursor().execute("SELECT 1")
    with suppress(mssql_python.Error):
        other.close()
    assert [row["id"] for row in database.rows("dbo_customers")] == [1]
    assert database.one("sys.fn_cdc_get_max_lsn()") < before
    assert database.run("SELECT * FROM msdb.dbo.cdc_jobs") == []
    database.run("EXEC sys.sp_cdc_add_job @job_type = N'capture'")
    database.run("INSERT INTO customers VALUES (3, N'c')")
    database.scan()
    assert [row["id"] for row in database.rows("dbo_customers")] == [1, 3]


def test_statements_can_be_made_to_fail(database: Database) -> None:
    """sim.fail_next sends an error for a text, or cuts the connection."""
    database.run("EXEC sim.fail_next @number = 1205, @like = N'fn_cdc_get_max_lsn'")
    with pytest.raises(mssql_python.Error, match=r"sim\.fail_next"):
        database.one("sys.fn_cdc_get_max_lsn()")
    assert database.one("1") == 1
    database.run("EXEC sim.fail_next @number = 0, @like = N'cut me'")
    with pytest.raises(mssql_python.Error):
        database.run("SELECT 'cut me'")


def test_a_killed_simulator_forgets_nothing(database: Database, sqlserver: SimServer) -> None:
    """A simulator that starts again captures what the one before had not."""
    from plugins.sqlserver import running

    database.table("customers")
    database.run("EXEC sim.stop_agent")
    database.run("INSERT INTO customers VALUES (1, N'a')")
    with running(sqlserver.postgres_url) as second:
        second.execute("EXEC sim.start_agent", database.name)
        until = time.monotonic() + WAIT_S
        while not second.execute("SELECT id FROM cdc.dbo_customers_CT", database.name):
            assert time.monotonic() < until
            time.sleep(0.1)
    assert [row["id"] for row in database.rows("dbo_customers")] == [1]
