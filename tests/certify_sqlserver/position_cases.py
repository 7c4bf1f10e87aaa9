"""Cases of positions: log sequence numbers, scans, clean-up, gating roles, snapshots."""

from __future__ import annotations

from certify_sqlserver.capture import enable_database
from certify_sqlserver.case import FENCE, Bench, case
from certify_sqlserver.server import DATABASE, EMPTY, LOGIN, STATEMENT_TIMEOUT_S
from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.source import statements
from penstock.host.errors import StatementFailed

ITEM = "id int NOT NULL PRIMARY KEY, n int, v varchar(20)"
ZERO = bytes(10)


@case("max-lsn", "increment", "unknown-instance")
def lsn_functions(bench: Bench) -> None:
    """The functions of log sequence numbers."""
    bench.table("c_lsn", ITEM)
    bench.sql("INSERT INTO dbo.c_lsn VALUES (1, 1, 'a')")
    row = bench.changes("c_lsn")[-1]
    newest = bench.value("SELECT sys.fn_cdc_get_max_lsn()")
    greatest = bench.value("SELECT MAX(start_lsn) FROM cdc.lsn_time_mapping")
    bench.holds(
        "max-lsn",
        len(newest) == 10 and row["__$start_lsn"] <= newest <= greatest,
        (newest, greatest),
    )
    tried = (row["__$start_lsn"], b"\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff")
    seen = [
        bench.value("SELECT sys.fn_cdc_increment_lsn(CAST(? AS binary(10)))", lsn) for lsn in tried
    ]
    wanted = [(int.from_bytes(lsn) + 1).to_bytes(10) for lsn in tried]
    bench.holds("increment", seen == wanted, seen)
    least = bench.value("SELECT sys.fn_cdc_get_min_lsn(N'dbo_c_nothing')")
    bench.holds("unknown-instance", least == ZERO, least)


@case("no-commits")
def database_without_commits(bench: Bench) -> None:
    """The highest LSN of a database in which nothing was captured yet."""
    bench.server.create(EMPTY)
    with bench.server.open(EMPTY) as session:
        enable_database(session, EMPTY)
        ((newest,),) = session.execute("SELECT sys.fn_cdc_get_max_lsn()")
    bench.holds("no-commits", newest is None, newest)


@case("silent-times")
def times_without_changes(bench: Bench) -> None:
    """Rows of cdc.lsn_time_mapping that only tell the time."""
    bench.wait_captured()
    silent = bench.value("SELECT COUNT(*) FROM cdc.lsn_time_mapping WHERE tran_id = 0x00")
    wrong = bench.value(
        f"SELECT COUNT(*) FROM cdc.lsn_time_mapping AS m JOIN cdc.dbo_{FENCE}_CT AS f "
        "ON f.[__$start_lsn] = m.start_lsn WHERE m.tran_id = 0x00"
    )
    bench.record("silent_times", count=silent)
    bench.holds("silent-times", wrong == 0, wrong)


@case("range-error")
def range_of_changes(bench: Bench) -> None:
    """The change function is asked for commits before the change table."""
    bench.table("c_range", ITEM)
    bench.sql("INSERT INTO dbo.c_range VALUES (1, 1, 'a')")
    bench.wait_captured()
    number = bench.error_number(
        "SELECT * FROM cdc.fn_cdc_get_all_changes_dbo_c_range(0x00000000000000000001, "
        "sys.fn_cdc_get_max_lsn(), N'all update old')"
    )
    bench.holds("range-error", number in (313, 208), number)


@case("scans", "jobs")
def scans_and_jobs(bench: Bench) -> None:
    """Scans of the log, and jobs, which show that capture has read the log to its end."""
    bench.wait_captured()
    scans = bench.sql(statements.LAST_SCAN)
    bench.holds("scans", len(scans) == 1 and scans[0][2] is not None, scans)
    try:
        jobs = {str(kind): (most, kept) for kind, most, kept in bench.sql(statements.JOBS)}
    except StatementFailed as error:
        if not bench.facts.is_azure:
            raise
        bench.skip(f"Azure SQL Database has no msdb: {error.message}")
        return
    bench.record("jobs", **{kind: list(values) for kind, values in jobs.items()})
    bench.holds(
        "jobs",
        jobs.get("capture", (0,))[0] and jobs.get("cleanup", (0, 0))[1],
        jobs,
    )


@case("log-commit")
def log_position(bench: Bench) -> None:
    """The position of the transaction log, which is used if nothing was captured."""
    if bench.facts.is_azure:
        bench.skip("Azure SQL Database does not show its log")
    bench.wait_captured()
    newest = bench.value("SELECT sys.fn_cdc_get_max_lsn()")
    text = str(bench.value(statements.LOG_COMMIT))
    found = SqlServerLsn.parse(text).ordinal
    bench.record("fn_dblog", text=text, max_lsn=newest)
    bench.holds("log-commit", found >= int.from_bytes(newest), (text, newest.hex()))


@case("clean-up", "min-lsn")
def clean_up(bench: Bench) -> None:
    """The clean-up of one change table up to a mark."""
    bench.table("c_clean", ITEM)
    for at in range(3):
        bench.sql(f"INSERT INTO dbo.c_clean VALUES ({at}, 1, 'a')")
    rows = bench.changes("c_clean")
    mark = rows[1]["__$start_lsn"]
    bench.sql(
        "DECLARE @mark binary(10) = 0x" + mark.hex() + "; EXEC sys.sp_cdc_cleanup_change_table "
        "@capture_instance = N'dbo_c_clean', @low_water_mark = @mark, @threshold = 5000"
    )
    left = [row["id"] for row in bench.read_changes("dbo_c_clean")]
    ((start, least),) = bench.sql(
        "SELECT start_lsn, sys.fn_cdc_get_min_lsn(capture_instance) FROM cdc.change_tables "
        "WHERE capture_instance = N'dbo_c_clean'"
    )
    bench.holds("clean-up", (left, start) == ([1, 2], mark), (left, start, mark))
    bench.holds("min-lsn", start == least, (start, least))


@case("gating-role")
def gating_role(bench: Bench) -> None:
    """A user without the role of an instance asks for its lowest LSN."""
    if bench.facts.is_azure:
        bench.skip("Azure SQL Database creates log-ins in master only")
    bench.table("c_open", ITEM)
    bench.table("c_gated", ITEM, is_captured=False)
    bench.capture("c_gated", role="certify_readers")
    url = bench.server.create_login(DATABASE)
    bench.sql(f"GRANT SELECT ON SCHEMA::[dbo] TO [{LOGIN}]")
    ask = "SELECT sys.fn_cdc_get_min_lsn(N'dbo_c_gated'), sys.fn_cdc_get_min_lsn(N'dbo_c_open')"
    with connect(url, timeout_s=STATEMENT_TIMEOUT_S) as reader:
        ((gated, public),) = reader.execute(ask)
        bench.sql(f"ALTER ROLE [certify_readers] ADD MEMBER [{LOGIN}]")
        ((member, _),) = reader.execute(ask)
    bench.holds(
        "gating-role",
        gated == ZERO and public > ZERO and member > ZERO,
        (gated, public, member),
    )


@case("snapshot", "snapshot-conflict")
def snapshot_isolation(bench: Bench) -> None:
    """A reader's snapshot, and an update of a row that changed after it."""
    bench.sql("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    bench.table("c_snap", ITEM, is_captured=False)
    bench.sql("INSERT INTO dbo.c_snap VALUES (1, 1, 'a'), (2, 1, 'a')")
    reader = bench.open()
    count = "SELECT SUM(n) FROM dbo.c_snap"
    reader.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT; BEGIN TRAN")
    ((before,),) = reader.execute(count)
    bench.sql("UPDATE dbo.c_snap SET n = 9")
    ((after,),) = reader.execute(count)
    number = bench.error_number("UPDATE dbo.c_snap SET n = 5 WHERE id = 1", session=reader)
    reader.rollback()
    ((later,),) = reader.execute(count)
    bench.holds("snapshot", (before, after, later) == (2, 2, 18), (before, after, later))
    bench.holds("snapshot-conflict", number == 3960, number)
