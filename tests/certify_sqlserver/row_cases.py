"""Cases of rows: operations, order in transactions and across tables, work that was undone."""

from __future__ import annotations

from certify_sqlserver.case import Bench, case, operations
from certify_sqlserver.records import changed_columns, has_bit

ITEM = "id int NOT NULL PRIMARY KEY, n int, v varchar(20)"


@case("operations", "end-lsn", "one-commit", "command-order", "full-mask", "time-mapping", "replay")
def insert_update_delete(bench: Bench) -> None:
    """One transaction with an insert, an update and a delete."""
    bench.table("c_ops", ITEM)
    bench.sql(
        "BEGIN TRAN; INSERT INTO dbo.c_ops VALUES (1, 1, 'a'), (2, 2, 'b'); "
        "UPDATE dbo.c_ops SET n = 5 WHERE id = 1; DELETE FROM dbo.c_ops WHERE id = 2; COMMIT"
    )
    rows = bench.changes("c_ops")
    bench.holds("operations", operations(rows) == [2, 2, 3, 4, 1], operations(rows))
    bench.holds("end-lsn", all(row["__$end_lsn"] is None for row in rows))
    bench.holds("one-commit", len({row["__$start_lsn"] for row in rows}) == 1)
    commands = [row["__$command_id"] for row in rows]
    bench.holds(
        "command-order",
        commands == sorted(commands) and len(set(commands)) == 3,
        commands,
    )
    masks = [row["__$update_mask"] for row in rows if row["__$operation"] in (1, 2)]
    bench.holds("full-mask", set(masks) == {b"\x07"}, masks)
    times = bench.record_times(rows)
    bench.holds("time-mapping", len(times) == 1 and int.from_bytes(times[0][3]), times)
    bench.holds_replay(rows, "c_ops")


@case("update-pair", "changed-mask", "replay")
def update_pairs(bench: Bench) -> None:
    """Updates of one column, of two, to NULL and back."""
    bench.table("c_pairs", ITEM)
    bench.sql("INSERT INTO dbo.c_pairs VALUES (1, 1, 'a')")
    for text in ("n = 2", "n = NULL, v = 'b'", "v = NULL", "n = 7"):
        bench.sql(f"UPDATE dbo.c_pairs SET {text}")
    rows = bench.changes("c_pairs")
    pairs = list(zip(rows[1::2], rows[2::2], strict=False))
    fields = ("__$start_lsn", "__$command_id", "__$seqval", "__$update_mask")
    bench.holds(
        "update-pair",
        len(pairs) == 4
        and all([old[one] for one in fields] == [new[one] for one in fields] for old, new in pairs)
        and operations(rows) == [2, *[3, 4] * 4],
        operations(rows),
    )
    seen = [changed_columns(new, ("id", "n", "v")) for _, new in pairs]
    bench.holds("changed-mask", seen == [["n"], ["n", "v"], ["v"], ["n"]], seen)
    bench.holds_replay(rows, "c_pairs")


@case("same-values", "replay")
def update_to_equal_values(bench: Bench) -> None:
    """An update that sets what is there already."""
    bench.table("c_same", ITEM)
    bench.sql("INSERT INTO dbo.c_same VALUES (1, 1, 'a')")
    bench.sql("UPDATE dbo.c_same SET n = 1, v = v")
    rows = bench.changes("c_same")
    more = rows[1:]
    is_pair = operations(more) == [3, 4] and more[0]["v"] == more[1]["v"] == "a"
    bench.holds("same-values", not more or is_pair, operations(more))
    bench.holds_replay(rows, "c_same")


@case("key-update", "replay")
def key_update(bench: Bench) -> None:
    """One row gets another key."""
    bench.table("c_key", ITEM)
    bench.sql("INSERT INTO dbo.c_key VALUES (1, 1, 'a'), (2, 2, 'b')")
    bench.sql("UPDATE dbo.c_key SET id = 10 WHERE id = 1")
    rows = bench.changes("c_key")
    pair = rows[2:]
    bench.record(
        "key_update",
        same_seqval=len({row["__$seqval"] for row in pair}) == 1,
        command_ids=[row["__$command_id"] for row in pair],
    )
    seen = [(row["__$operation"], row["id"]) for row in pair]
    bench.holds("key-update", seen in ([(1, 1), (2, 10)], [(3, 1), (4, 10)]), seen)
    bench.holds_replay(rows, "c_key")


@case("replay")
def multi_row_key_shift(bench: Bench) -> None:
    """All keys move up by one in one statement."""
    bench.table("c_shift", ITEM)
    bench.sql("INSERT INTO dbo.c_shift VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    bench.sql("UPDATE dbo.c_shift SET id = id + 1")
    bench.holds_replay(bench.changes("c_shift"), "c_shift")


@case("row-order", "replay")
def multi_row_update(bench: Bench) -> None:
    """One statement changes three rows."""
    bench.table("c_multi", ITEM)
    bench.sql("INSERT INTO dbo.c_multi VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    bench.sql("UPDATE dbo.c_multi SET n = n + 1")
    rows = bench.changes("c_multi")
    new = [row for row in rows if row["__$operation"] == 4]
    commands, places = ({row[f"__${one}"] for row in new} for one in ("command_id", "seqval"))
    bench.holds(
        "row-order",
        len(new) == 3 and (len(commands), len(places)) == (1, 3),
        (commands, places),
    )
    bench.holds_replay(rows, "c_multi")


@case("one-commit", "command-order")
def several_tables(bench: Bench) -> None:
    """One transaction changes two tables alternately."""
    bench.table("c_left", ITEM)
    bench.table("c_right", ITEM)
    bench.sql(
        "BEGIN TRAN; INSERT INTO dbo.c_left VALUES (1, 1, 'l'); "
        "INSERT INTO dbo.c_right VALUES (1, 1, 'r'); UPDATE dbo.c_left SET n = 2; "
        "UPDATE dbo.c_right SET n = 2; COMMIT"
    )
    rows = [*bench.changes("c_left"), *bench.changes("c_right")]
    bench.holds("one-commit", len({row["__$start_lsn"] for row in rows}) == 1)
    ordered = sorted(
        rows, key=lambda row: (row["__$command_id"], row["__$seqval"], row["__$operation"])
    )
    seen = [(row["__$operation"], row["v"]) for row in ordered]
    wanted = [(2, "l"), (2, "r"), (3, "l"), (4, "l"), (3, "r"), (4, "r")]
    bench.holds("command-order", seen == wanted, seen)


@case("commit-order", "time-mapping", "local-time")
def overlapping_transactions(bench: Bench) -> None:
    """The transaction that begins first commits last."""
    bench.table("c_overlap", ITEM)
    first, second = bench.open(), bench.open()
    first.execute("BEGIN TRAN; INSERT INTO dbo.c_overlap VALUES (1, 1, 'first')")
    second.execute("BEGIN TRAN; INSERT INTO dbo.c_overlap VALUES (2, 2, 'second'); COMMIT")
    first.execute("INSERT INTO dbo.c_overlap VALUES (3, 3, 'first'); COMMIT")
    rows = bench.changes("c_overlap")
    bench.holds("commit-order", [row["id"] for row in rows] == [2, 1, 3], rows)
    times = bench.record_times(rows)
    bench.holds("time-mapping", len(times) == 2 and all(int.from_bytes(t[3]) for t in times), times)
    now = bench.value("SELECT GETDATE()")
    seconds = [abs((now - ended).total_seconds()) for _, _, ended, _ in times]
    bench.holds("local-time", seconds and max(seconds) < 900, (now, times))


@case("rolled-back", "savepoint", "replay")
def rollback_and_savepoint(bench: Bench) -> None:
    """A transaction is rolled back, and another one to a savepoint."""
    bench.table("c_undone", ITEM)
    bench.sql("BEGIN TRAN; INSERT INTO dbo.c_undone VALUES (1, 1, 'gone'); ROLLBACK")
    bench.sql(
        "BEGIN TRAN; INSERT INTO dbo.c_undone VALUES (2, 2, 'stays'); SAVE TRANSACTION here; "
        "INSERT INTO dbo.c_undone VALUES (3, 3, 'gone'); UPDATE dbo.c_undone SET n = 9; "
        "ROLLBACK TRANSACTION here; INSERT INTO dbo.c_undone VALUES (4, 4, 'stays'); COMMIT"
    )
    rows = bench.changes("c_undone")
    seen = [(row["__$operation"], row["id"]) for row in rows]
    bench.holds("rolled-back", all(number != 1 for _, number in seen), seen)
    bench.holds("savepoint", seen == [(2, 2), (2, 4)], seen)
    bench.holds_replay(rows, "c_undone")


@case("merge-rows", "replay")
def merge_statement(bench: Bench) -> None:
    """MERGE inserts a row, updates one and deletes one."""
    bench.table("c_merge", ITEM)
    bench.table("c_merge_from", ITEM, is_captured=False)
    bench.sql("INSERT INTO dbo.c_merge VALUES (1, 1, 'old'), (2, 2, 'old')")
    bench.sql("INSERT INTO dbo.c_merge_from VALUES (1, -1, 'del'), (2, 5, 'upd'), (3, 3, 'ins')")
    bench.sql(
        "MERGE dbo.c_merge AS t USING dbo.c_merge_from AS s ON t.id = s.id "
        "WHEN MATCHED AND s.n < 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = s.n, v = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, n, v) VALUES (s.id, s.n, s.v);"
    )
    rows = bench.changes("c_merge")
    seen = sorted(operations(rows[2:]))
    bench.holds("merge-rows", seen in ([1, 2, 3, 4], [1, 1, 2, 2]), seen)
    bench.holds_replay(rows, "c_merge")


@case("equal-rows")
def duplicates_without_a_key(bench: Bench) -> None:
    """A table without a key has equal rows; one of them is deleted."""
    bench.table("c_bag", "a int, b varchar(10)")
    bench.sql("INSERT INTO dbo.c_bag VALUES (1, 'x'), (1, 'x'), (1, 'x')")
    bench.sql("DELETE TOP (1) FROM dbo.c_bag")
    rows = bench.changes("c_bag")
    bench.holds("equal-rows", operations(rows) == [2, 2, 2, 1], operations(rows))


@case("last-byte", "ordinals")
def mask_of_nine_columns(bench: Bench) -> None:
    """A mask of two bytes: the first and the ninth column change."""
    listed = ", ".join(f"c{at} int" for at in range(1, 9))
    bench.table("c_nine", f"id int NOT NULL PRIMARY KEY, {listed}")
    bench.sql("INSERT INTO dbo.c_nine (id) VALUES (1)")
    bench.sql("UPDATE dbo.c_nine SET c1 = 1")
    bench.sql("UPDATE dbo.c_nine SET c8 = 1")
    masks = [row["__$update_mask"] for row in bench.changes("c_nine") if row["__$operation"] == 4]
    bench.holds("last-byte", masks == [b"\x00\x02", b"\x01\x00"], masks)
    bench.holds("ordinals", bench.columns("dbo_c_nine")[0] == "id", bench.columns("dbo_c_nine"))


@case("last-byte", "ordinals", "full-mask")
def mask_of_seventy_columns(bench: Bench) -> None:
    """A mask of nine bytes: each column changes alone."""
    names = [f"c{at}" for at in range(1, 70)]
    bench.table("c_wide", f"id int NOT NULL PRIMARY KEY, {', '.join(f'{n} int' for n in names)}")
    bench.sql("INSERT INTO dbo.c_wide (id) VALUES (1)")
    tried = ("c1", "c7", "c8", "c31", "c32", "c63", "c64", "c69")
    for name in tried:
        bench.sql(f"UPDATE dbo.c_wide SET {name} = 1")
    rows = bench.changes("c_wide")
    columns = bench.columns("dbo_c_wide")
    new = [row for row in rows if row["__$operation"] == 4]
    seen = [changed_columns(row, columns) for row in new]
    bench.holds("ordinals", seen == [[name] for name in tried], seen)
    is_long = all(len(row["__$update_mask"]) == 9 for row in rows)
    bench.holds("last-byte", is_long and has_bit(new[0]["__$update_mask"], 2))
    bench.holds("full-mask", rows[0]["__$update_mask"] == b"\x3f" + b"\xff" * 8, rows[0])


@case("full-mask", "ordinals")
def some_columns_captured(bench: Bench) -> None:
    """An instance of some columns: ordinals are those of the instance."""
    bench.table("c_part", "id int NOT NULL PRIMARY KEY, x int, y int, z int", is_captured=False)
    bench.sql(
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'c_part', "
        "@role_name = NULL, @supports_net_changes = 0, @captured_column_list = N'id, z'"
    )
    bench.sql("INSERT INTO dbo.c_part VALUES (1, 1, 1, 1)")
    bench.sql("UPDATE dbo.c_part SET z = 2")
    rows = bench.changes("c_part")
    bench.holds("full-mask", rows[0]["__$update_mask"] == b"\x03", rows[0])
    seen = [changed_columns(row, bench.columns("dbo_c_part")) for row in rows[1:]]
    bench.holds("ordinals", seen == [["z"], ["z"]], seen)


@case("error-continues", "replay")
def error_does_not_end_the_transaction(bench: Bench) -> None:
    """A key that is there already fails its statement; the transaction goes on and commits."""
    bench.table("c_error", ITEM)
    session = bench.open()
    session.execute("SET XACT_ABORT OFF; BEGIN TRAN; INSERT INTO dbo.c_error VALUES (1, 1, 'a')")
    number = bench.error_number("INSERT INTO dbo.c_error VALUES (1, 2, 'b')", session=session)
    session.execute("INSERT INTO dbo.c_error VALUES (2, 2, 'c'); COMMIT")
    rows = bench.changes("c_error")
    seen = [row["id"] for row in rows]
    bench.holds("error-continues", (number, seen) == (2627, [1, 2]), (number, seen))
    bench.holds_replay(rows, "c_error")


@case("xact-abort")
def xact_abort_rolls_back(bench: Bench) -> None:
    """The same error rolls everything back under XACT_ABORT."""
    bench.table("c_abort", ITEM)
    session = bench.open()
    session.execute("SET XACT_ABORT ON; BEGIN TRAN; INSERT INTO dbo.c_abort VALUES (1, 1, 'a')")
    number = bench.error_number("INSERT INTO dbo.c_abort VALUES (1, 2, 'b')", session=session)
    ((left,),) = session.execute("SELECT @@TRANCOUNT")
    rows = bench.changes("c_abort")
    bench.holds("xact-abort", (number, left, rows) == (2627, 0, []), (number, left, rows))
