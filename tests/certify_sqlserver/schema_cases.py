"""Cases of changed schemas: ALTER TABLE, capture instances, and what the server refuses."""

from __future__ import annotations

from certify_sqlserver.case import Bench, case, operations
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import instances_of

ITEM = "id int NOT NULL PRIMARY KEY, n int, v varchar(20)"


def record_history(bench: Bench, instance: str) -> list[tuple[bool, str]]:
    """Record the DDL history of an instance; return (required_column_update, text)."""
    rows = bench.sql(
        "SELECT h.required_column_update, h.ddl_command, h.ddl_lsn, h.ddl_time "
        "FROM cdc.ddl_history AS h JOIN cdc.change_tables AS ct ON ct.object_id = h.object_id "
        "WHERE ct.capture_instance = ? ORDER BY h.ddl_lsn",
        instance,
    )
    for required, command, lsn, when in rows:
        bench.record(
            "ddl_history",
            capture_instance=instance,
            required_column_update=bool(required),
            ddl_command=str(command),
            ddl_lsn=bytes(lsn),
            ddl_time=when,
        )
    return [(bool(required), str(command)) for required, command, _, _ in rows]


@case("add-column")
def add_column(bench: Bench) -> None:
    """A column is added to a captured table."""
    bench.table("c_add", ITEM)
    bench.sql("INSERT INTO dbo.c_add VALUES (1, 1, 'a')")
    bench.sql("ALTER TABLE dbo.c_add ADD more int")
    bench.sql("UPDATE dbo.c_add SET more = 5, n = 2")
    rows = bench.changes("c_add")
    history = record_history(bench, "dbo_c_add")
    bench.holds(
        "add-column",
        "more" not in rows[-1] and len(history) == 1 and "more" in history[0][1],
        (history, rows[-1]),
    )


@case("drop-column")
def drop_column(bench: Bench) -> None:
    """A column of a captured table is dropped."""
    bench.table("c_drop", ITEM)
    bench.sql("INSERT INTO dbo.c_drop VALUES (1, 1, 'a')")
    bench.wait_captured()
    bench.sql("ALTER TABLE dbo.c_drop DROP COLUMN v")
    bench.sql("INSERT INTO dbo.c_drop VALUES (2, 2)")
    rows = bench.changes("c_drop")
    history = record_history(bench, "dbo_c_drop")
    seen = [row.get("v", "no column") for row in rows]
    bench.holds("drop-column", seen[-1] is None and len(history) == 1, (seen, history))


@case("alter-column")
def alter_column(bench: Bench) -> None:
    """A column of a captured table gets a wider type."""
    bench.table("c_alter", ITEM)
    bench.sql("INSERT INTO dbo.c_alter VALUES (1, 1, 'a')")
    bench.wait_captured()
    bench.sql("ALTER TABLE dbo.c_alter ALTER COLUMN n bigint")
    bench.sql("UPDATE dbo.c_alter SET n = 5000000000")
    rows = bench.changes("c_alter")
    history = record_history(bench, "dbo_c_alter")
    bench.holds(
        "alter-column",
        rows[-1]["n"] == 5000000000 and [required for required, _ in history] == [True],
        (rows[-1], history),
    )


@case("second-instance", "third-refused", "min-lsn")
def second_instance(bench: Bench) -> None:
    """A second instance after a new column; a third one."""
    bench.table("c_two", ITEM)
    bench.sql("ALTER TABLE dbo.c_two ADD more int")
    bench.capture("c_two", "dbo_c_two_2")
    bench.sql("INSERT INTO dbo.c_two VALUES (1, 1, 'a', 7)")
    old = bench.changes("c_two")
    new = bench.read_changes("dbo_c_two_2")
    bench.holds(
        "second-instance",
        operations(old) == operations(new) == [2] and new[0]["more"] == 7 and "more" not in old[0],
        (old, new),
    )
    number = bench.error_number(
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'c_two', "
        "@role_name = NULL, @supports_net_changes = 0, @capture_instance = N'dbo_c_two_3'"
    )
    bench.holds("third-refused", number == 22962, number)
    wrong = [
        (one.name, one.start, one.least)
        for one in instances_of(bench.sql(statements.INSTANCES))
        if one.start != one.least
    ]
    bench.holds("min-lsn", not wrong, wrong)


@case("recreated")
def recreated_instance(bench: Bench) -> None:
    """Capture of a table is disabled and enabled again, as other tools do it."""
    bench.table("c_again", ITEM)

    def identity() -> set[tuple[int, str]]:
        found = instances_of(bench.sql(statements.INSTANCES))
        return {one.identity for one in found if one.name == "dbo_c_again"}

    before = identity()
    bench.sql(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N'c_again', "
        "@capture_instance = N'dbo_c_again'"
    )
    bench.capture("c_again")
    after = identity()
    bench.holds("recreated", len(after) == 1 and not before & after, (before, after))


@case("truncate-refused")
def truncate_table(bench: Bench) -> None:
    """TRUNCATE TABLE of a captured table."""
    bench.table("c_trunc", ITEM)
    number = bench.error_number("TRUNCATE TABLE dbo.c_trunc")
    bench.holds("truncate-refused", number == 4711, number)


@case("rename-refused")
def rename_column(bench: Bench) -> None:
    """A captured column gets another name."""
    bench.table("c_renamed", ITEM)
    number = bench.error_number("EXEC sys.sp_rename N'dbo.c_renamed.v', N'w', N'COLUMN'")
    bench.holds("rename-refused", number == 4928, number)


@case("table-renamed")
def rename_table(bench: Bench) -> None:
    """A captured table gets another name, and its changes go on."""
    bench.table("c_before", ITEM)
    bench.sql("INSERT INTO dbo.c_before VALUES (1, 1, 'a')")
    number = bench.error_number("EXEC sys.sp_rename N'dbo.c_before', N'c_after'")
    bench.record("renamed_table", errno=number)
    name = "c_before" if number else "c_after"
    bench.sql(f"INSERT INTO dbo.{name} VALUES (2, 2, 'b')")
    rows = bench.changes("c_before")
    found = [
        one.table.name
        for one in instances_of(bench.sql(statements.INSTANCES))
        if one.name == "dbo_c_before" and one.table is not None
    ]
    bench.holds("table-renamed", (len(rows), found) == (2, [name]), (number, rows, found))


@case("columnstore-refused")
def columnstore(bench: Bench) -> None:
    """Capture of a table with a clustered columnstore index."""
    bench.sql("CREATE TABLE dbo.c_store (id int NOT NULL, n int)")
    bench.sql("CREATE CLUSTERED COLUMNSTORE INDEX c_store_index ON dbo.c_store")
    number = bench.error_number(
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'c_store', "
        "@role_name = NULL, @supports_net_changes = 0"
    )
    bench.holds("columnstore-refused", number == 35353, number)
