"""Cases of values: all types, large values, computed columns, and how values are compared."""

from __future__ import annotations

from certify_sqlserver.case import Bench, case, operations
from certify_sqlserver.records import changed_columns

# Type, and literals of its edges.
TYPES: dict[str, tuple[str, ...]] = {
    "bit": ("0", "1"),
    "tinyint": ("0", "255"),
    "smallint": ("-32768", "32767"),
    "int": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "decimal(38,10)": ("-9999999999999999999999999999.9999999999", "0.0000000001"),
    "numeric(5,0)": ("-99999", "99999"),
    "money": ("-922337203685477.5808", "922337203685477.5807"),
    "smallmoney": ("-214748.3648", "214748.3647"),
    "float": ("-1.7976931348623157e308", "2.2250738585072014e-308"),
    "real": ("-3.4e38", "1.5"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "time(7)": ("'00:00:00'", "'23:59:59.9999999'"),
    "datetime": ("'1753-01-01T00:00:00'", "'9999-12-31T23:59:59.997'"),
    "smalldatetime": ("'1900-01-01T00:00:00'", "'2079-06-06T23:59:00'"),
    "datetime2(7)": ("'0001-01-01T00:00:00'", "'9999-12-31T23:59:59.9999999'"),
    "datetimeoffset(7)": ("'0001-01-01T14:00:00 +14:00'", "'2026-03-04T05:06:07.1234567 -12:30'"),
    "char(5)": ("'a'", "''"),
    "varchar(20)": ("'a  '", "''"),
    "nchar(5)": ("N'ä'", "N''"),
    "nvarchar(20)": ("N'日本 😀'", "N''"),
    "binary(4)": ("0x01", "0xFFFFFFFF"),
    "varbinary(20)": ("CONVERT(varbinary(20), '')", "0x00FF00"),
    "uniqueidentifier": (
        "'00000000-0000-0000-0000-000000000000'",
        "'6F9619FF-8B86-D011-B42D-00C04FC964FF'",
    ),
}
# The same values, as text of the server: drivers round what they cannot hold.
_TEXT = {
    "time(7)": "CONVERT(varchar(34), {0}, 126)",
    "datetime2(7)": "CONVERT(varchar(34), {0}, 126)",
    "datetimeoffset(7)": "CONVERT(varchar(40), {0}, 126)",
}


@case("captured-values")
def all_types(bench: Bench) -> None:
    """Rows of every type with the edges of each, and with NULL."""
    names = [f"c{at}" for at in range(len(TYPES))]
    listed = ", ".join(f"{name} {kind}" for name, kind in zip(names, TYPES, strict=True))
    bench.table("c_types", f"id int NOT NULL PRIMARY KEY, {listed}")
    for at in range(2):
        values = ", ".join(edges[at] for edges in TYPES.values())
        bench.sql(f"INSERT INTO dbo.c_types VALUES ({at}, {values})")
    bench.sql("INSERT INTO dbo.c_types (id) VALUES (2)")
    bench.changes("c_types")
    shown = ", ".join(
        _TEXT.get(kind, "{0}").format(name) for name, kind in zip(names, TYPES, strict=True)
    )
    wanted = bench.sql(f"SELECT id, {shown} FROM dbo.c_types ORDER BY id")
    found = bench.sql(f"SELECT id, {shown} FROM cdc.dbo_c_types_CT ORDER BY id")
    wrong = [
        (kind, old, new)
        for old_row, new_row in zip(wanted, found, strict=True)
        for kind, old, new in zip(TYPES, old_row[1:], new_row[1:], strict=True)
        if old != new
    ]
    bench.holds("captured-values", not wrong and len(found) == 3, wrong)


@case("captured-values")
def xml_and_row_versions(bench: Bench) -> None:
    """A document and a row version, which each update changes: eight bytes."""
    bench.table("c_odd", "id int NOT NULL PRIMARY KEY, x xml, r rowversion")
    bench.sql("INSERT INTO dbo.c_odd (id, x) VALUES (1, N'<a b=\"1\">ä</a>')")
    bench.sql("UPDATE dbo.c_odd SET x = N'<b/>'")
    rows = bench.changes("c_odd")
    ((x, r),) = bench.sql("SELECT CONVERT(nvarchar(max), x), CONVERT(binary(8), r) FROM dbo.c_odd")
    seen = bench.sql(
        "SELECT CONVERT(nvarchar(max), x), CONVERT(binary(8), r) FROM cdc.dbo_c_odd_CT "
        "WHERE [__$operation] = 4"
    )
    bench.holds("captured-values", len(rows) == 3 and seen == [(x, r)], (seen, x, r))


@case("datetime-ticks")
def datetime_rounding(bench: Bench) -> None:
    """Milliseconds of datetime are 0, 3 or 7; .999 is the next second."""
    bench.table("c_ticks", "id int NOT NULL PRIMARY KEY, t datetime")
    for at, text in enumerate(("00.001", "00.002", "00.004", "00.005", "00.999")):
        bench.sql(f"INSERT INTO dbo.c_ticks VALUES ({at}, '2026-03-04T05:06:{text}')")
    bench.changes("c_ticks")
    seen = bench.sql(
        "SELECT DATEPART(second, t), DATEPART(millisecond, t) FROM cdc.dbo_c_ticks_CT ORDER BY id"
    )
    bench.holds("datetime-ticks", seen == [(0, 0), (0, 3), (0, 3), (0, 7), (1, 0)], seen)


@case("computed-null")
def computed_columns(bench: Bench) -> None:
    """A computed and a persisted column."""
    bench.table(
        "c_computed", "id int NOT NULL PRIMARY KEY, n int, twice AS n * 2, more AS n + 1 PERSISTED"
    )
    bench.sql("INSERT INTO dbo.c_computed (id, n) VALUES (1, 4)")
    bench.sql("UPDATE dbo.c_computed SET n = 5")
    rows = bench.changes("c_computed")
    seen = [(row.get("twice"), row.get("more")) for row in rows]
    bench.holds("computed-null", len(rows) == 3 and set(seen) == {(None, None)}, seen)


@case("large-unchanged", "large-changed", "large-to-null")
def large_values(bench: Bench) -> None:
    """Columns of max types: unchanged, changed, and set to NULL."""
    bench.table(
        "c_large",
        "id int NOT NULL PRIMARY KEY, n int, a nvarchar(max), b varbinary(max), c varchar(max)",
    )
    bench.sql(
        "INSERT INTO dbo.c_large VALUES (1, 1, REPLICATE(CONVERT(nvarchar(max), N'x'), 9000), "
        "0xCAFE, 'short')"
    )
    bench.sql("UPDATE dbo.c_large SET n = 2")
    bench.sql("UPDATE dbo.c_large SET c = 'changed'")
    bench.sql("UPDATE dbo.c_large SET a = NULL")
    rows = bench.changes("c_large")
    columns = bench.columns("dbo_c_large")
    old, new = rows[1], rows[2]
    whole = ("x" * 9000, b"\xca\xfe", "short")
    seen = [(row["a"], row["b"], row["c"], changed_columns(row, columns)) for row in (old, new)]
    bench.holds(
        "large-unchanged",
        seen[0] == (None, None, None, ["n"])
        and changed_columns(new, columns) == ["n"]
        and all(value in (None, there) for value, there in zip(seen[1], whole, strict=False)),
        seen,
    )
    changed = rows[4]
    bench.holds(
        "large-changed",
        (changed["c"], changed_columns(changed, columns)) == ("changed", ["c"]),
        changed,
    )
    emptied = rows[6]
    bench.holds(
        "large-to-null",
        emptied["a"] is None and changed_columns(emptied, columns) == ["a"],
        emptied,
    )


@case("old-large")
def old_large_types(bench: Bench) -> None:
    """text, ntext and image."""
    bench.table("c_old", "id int NOT NULL PRIMARY KEY, n int, a text, b ntext, c image")
    bench.sql("INSERT INTO dbo.c_old VALUES (1, 1, 'old', N'old', 0x01)")
    bench.sql("UPDATE dbo.c_old SET n = 2")
    bench.sql("DELETE FROM dbo.c_old")
    rows = bench.changes("c_old")
    seen = [
        (row["__$operation"], row["a"], row["b"], row["c"])
        for row in rows
        if row["__$operation"] in (1, 3)
    ]
    bench.holds("old-large", seen == [(3, None, None, None), (1, None, None, None)], seen)


@case("blanks-and-case")
def blanks_and_case(bench: Bench) -> None:
    """Keys of a case-insensitive and of a binary collation."""
    bench.table(
        "c_ci",
        "k varchar(10) COLLATE Latin1_General_100_CI_AS NOT NULL PRIMARY KEY",
        is_captured=False,
    )
    bench.table(
        "c_bin",
        "k varchar(10) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY",
        is_captured=False,
    )
    bench.sql("INSERT INTO dbo.c_ci VALUES ('a')")
    bench.sql("INSERT INTO dbo.c_bin VALUES ('a')")
    seen = [
        bench.error_number(f"INSERT INTO dbo.{table} VALUES ('{key}')")
        for table in ("c_ci", "c_bin")
        for key in ("A", "a ")
    ]
    bench.holds("blanks-and-case", seen == [2627, 2627, 0, 2627], seen)


@case("case-update", "replay")
def key_in_other_letters(bench: Bench) -> None:
    """A key of a case-insensitive collation gets other letters, and stays the same key."""
    bench.table(
        "c_letters",
        "k varchar(10) COLLATE Latin1_General_100_CI_AS NOT NULL PRIMARY KEY, n int",
    )
    bench.sql("INSERT INTO dbo.c_letters VALUES ('a', 1)")
    bench.sql("UPDATE dbo.c_letters SET k = 'A'")
    rows = bench.changes("c_letters")
    bench.holds("case-update", operations(rows)[1:] in ([1, 2], [3, 4]), operations(rows))
    bench.holds_replay(rows, "c_letters", ("k",))


@case("guid-order")
def uniqueidentifier_order(bench: Bench) -> None:
    """Two values whose order by bytes is the other one."""
    first = "FFFFFFFF-0000-0000-0000-000000000001"
    second = "00000000-0000-0000-0000-000000000002"
    bench.table("c_guid", "g uniqueidentifier NOT NULL PRIMARY KEY", is_captured=False)
    bench.sql(f"INSERT INTO dbo.c_guid VALUES ('{second}'), ('{first}')")
    seen = [str(value).upper() for (value,) in bench.sql("SELECT g FROM dbo.c_guid ORDER BY g")]
    bench.holds("guid-order", seen == [first, second], seen)


@case("identity", "replay")
def identity_values(bench: Bench) -> None:
    """Identity values, a gap, and one that is given."""
    bench.table("c_identity", "id int IDENTITY(1, 1) NOT NULL PRIMARY KEY, n int")
    bench.sql("INSERT INTO dbo.c_identity (n) VALUES (1)")
    bench.sql("BEGIN TRAN; INSERT INTO dbo.c_identity (n) VALUES (2); ROLLBACK")
    bench.sql("INSERT INTO dbo.c_identity (n) VALUES (3)")
    bench.sql(
        "SET IDENTITY_INSERT dbo.c_identity ON; INSERT INTO dbo.c_identity (id, n) VALUES (50, 4); "
        "SET IDENTITY_INSERT dbo.c_identity OFF"
    )
    rows = bench.changes("c_identity")
    seen = [row["id"] for row in rows]
    bench.holds("identity", seen == [1, 3, 50], seen)
    bench.holds_replay(rows, "c_identity")
