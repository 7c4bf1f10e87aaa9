"""Cases of rows: operations, transactions, work that was undone, supplemental logging."""

from __future__ import annotations

from certify_oracle.case import Bench, case, changes, codes, join_pieces, scan, texts_of
from certify_oracle.server import SCHEMA

ITEM = "id NUMBER(10) PRIMARY KEY, n NUMBER(10), v VARCHAR2(40)"


@case("codes", "ends", "one-commit", "scanned", "set-changed", "where-all", "fetch-order")
def insert_update_delete(bench: Bench) -> None:
    """One transaction with an insert, an update and a delete."""
    bench.table("C_OPS", ITEM)
    bench.run(
        "INSERT INTO c_ops VALUES (1, 1, 'a')",
        "UPDATE c_ops SET n = 5 WHERE id = 1",
        "DELETE FROM c_ops WHERE id = 1",
    )
    rows = bench.mine()
    seen = [code for code in codes(rows) if code != 0]
    bench.holds("codes", [code for code in seen if code in (1, 2, 3)] == [1, 3, 2], seen)
    bench.holds("ends", seen[:1] == [6] and seen[-1:] == [7], seen)
    bench.holds("one-commit", all(row["SCN"] <= rows[-1]["SCN"] for row in rows))
    bench.holds("fetch-order", [row["SCN"] for row in rows] == sorted(row["SCN"] for row in rows))
    texts = [row["SQL_REDO"] for row in changes(rows)]
    scanned = [scan(text) for text in texts]
    bench.holds("scanned", all(one.table == b"C_OPS" for one in scanned), texts)
    new = texts_of(scanned[1], texts[1], is_new=True)
    old = texts_of(scanned[1], texts[1], is_new=False)
    bench.holds("set-changed", new == {"N": "'5'"}, texts[1])
    bench.holds("where-all", old == {"ID": "'1'", "N": "'1'", "V": "'a'"}, texts[1])


@case("rolled-back", "undo-rows")
def full_rollback(bench: Bench) -> None:
    """A transaction that is rolled back."""
    bench.table("C_BACK", ITEM)
    bench.session.run("INSERT INTO c_back VALUES (1, 1, 'a')")
    bench.session.run("INSERT INTO c_back VALUES (2, 2, 'b')")
    bench.session.rollback()
    rows = bench.mine()
    bench.holds("rolled-back", 36 in codes(rows) and 7 not in codes(rows), codes(rows))
    undone = [row for row in rows if row["ROLLBACK"] and row["OPERATION_CODE"] == 2]
    made = [row["ROW_ID"] for row in changes(rows)]
    bench.holds("undo-rows", sorted(made) == sorted(row["ROW_ID"] for row in undone), codes(rows))


@case("undo-newest")
def savepoint(bench: Bench) -> None:
    """Two updates of one row after a savepoint, to which the transaction goes back."""
    bench.table("C_SAVE", ITEM)
    bench.run("INSERT INTO c_save VALUES (1, 0, 'a')")
    bench.session.run("UPDATE c_save SET n = 1")
    bench.session.run("SAVEPOINT here")
    bench.session.run("UPDATE c_save SET n = 2")
    bench.session.run("UPDATE c_save SET n = 3")
    bench.session.run("ROLLBACK TO SAVEPOINT here")
    bench.run("UPDATE c_save SET v = 'z'")
    undone = [row["SQL_REDO"] for row in bench.mine() if row["ROLLBACK"]]
    is_right = len(undone) == 2 and "= '2'" in undone[0] and "= '1'" in undone[1]
    bench.holds("undo-newest", is_right, undone)


@case("failed-undone")
def failed_statement(bench: Bench) -> None:
    """A duplicate key inside a transaction that commits."""
    bench.table("C_FAIL", ITEM)
    bench.run("INSERT INTO c_fail VALUES (1, 1, 'a')")
    bench.session.run("INSERT INTO c_fail VALUES (2, 2, 'b')")
    number = bench.error_number("INSERT INTO c_fail VALUES (1, 9, 'z')")
    bench.session.commit()
    rows = bench.mine()
    refused = [row for row in changes(rows) if "'z'" in row["SQL_REDO"]]
    undone = {row["ROW_ID"] for row in rows if row["ROLLBACK"]}
    is_undone = all(row["ROW_ID"] in undone for row in refused)
    bench.holds("failed-undone", number == 1 and is_undone, (number, codes(rows)))


@case("array-address", "scanned")
def array_delete(bench: Bench) -> None:
    """A thousand rows are deleted by one statement."""
    bench.table("C_ARRAY", ITEM)
    bench.session.run_many(
        "INSERT INTO c_array VALUES (:1, :2, :3)", [(n, n, f"v{n}") for n in range(1000)]
    )
    bench.session.commit()
    bench.run("DELETE FROM c_array")
    gone = [row for row in bench.mine() if row["OPERATION_CODE"] == 2]
    places = {(row["RS_ID"], row["SSN"]) for row in gone}
    bench.record(rows=len(gone), places=len(places))
    bench.holds("array-address", len(gone) == 1000 and len(places) <= 1000, len(gone))
    bench.holds("scanned", all(scan(text).old for text in join_pieces(gone)))


@case("key-update")
def key_update(bench: Bench) -> None:
    """A row gets another key, and keys are shifted by one statement."""
    bench.table("C_KEY", ITEM)
    bench.run("INSERT INTO c_key VALUES (1, 1, 'a')", "INSERT INTO c_key VALUES (2, 2, 'b')")
    bench.run("UPDATE c_key SET id = 10 WHERE id = 1")
    bench.run("UPDATE c_key SET id = id + 1")
    texts = [row["SQL_REDO"] for row in changes(bench.mine()) if row["OPERATION_CODE"] == 3]
    parts = [scan(text) for text in texts]
    first = texts_of(parts[0], texts[0], is_new=True), texts_of(parts[0], texts[0], is_new=False)
    is_one = first[0] == {"ID": "'10'"} and first[1]["ID"] == "'1'"
    bench.holds("key-update", is_one and len(texts) == 3, texts)


@case("where-key")
def key_logging(bench: Bench) -> None:
    """A table whose key alone is logged."""
    bench.table("C_PK", ITEM, logs="PRIMARY KEY")
    bench.run("INSERT INTO c_pk VALUES (1, 1, 'a')")
    bench.run("UPDATE c_pk SET n = 2")
    text = next(row["SQL_REDO"] for row in changes(bench.mine()) if row["OPERATION_CODE"] == 3)
    old = texts_of(scan(text), text, is_new=False)
    bench.holds("where-key", old == {"ID": "'1'", "N": "'1'"}, text)


@case("no-where")
def no_logging(bench: Bench) -> None:
    """A table without supplemental logging."""
    bench.table("C_BARE", ITEM, logs="")
    bench.run("INSERT INTO c_bare VALUES (1, 1, 'a')")
    bench.run("UPDATE c_bare SET n = 2")
    row = next(one for one in changes(bench.mine()) if one["OPERATION_CODE"] == 3)
    is_known = row["STATUS"] == 3 or " where " not in row["SQL_REDO"] or "ROWID" in row["SQL_REDO"]
    bench.holds("no-where", is_known, (row["STATUS"], row["INFO"], row["SQL_REDO"]))


@case("row-movement")
def moved_row(bench: Bench) -> None:
    """A row whose partition changes."""
    options = (
        "PARTITION BY LIST (n) (PARTITION p1 VALUES (1), PARTITION p2 VALUES (2)) "
        "ENABLE ROW MOVEMENT"
    )
    bench.table("C_PART", ITEM, options=options)
    bench.run("INSERT INTO c_part VALUES (1, 1, 'a')")
    bench.run("UPDATE c_part SET n = 2")
    seen = [row["OPERATION_CODE"] for row in changes(bench.mine())]
    bench.holds("row-movement", seen in ([1, 2, 1], [1, 1, 2]), seen)


@case("direct")
def direct_load(bench: Bench) -> None:
    """A direct-path insert into a table that logs."""
    bench.table("C_DIRECT", ITEM, options="LOGGING")
    bench.run("INSERT /*+ APPEND */ INTO c_direct SELECT 1, 1, 'a' FROM dual")
    rows = [row for row in bench.mine() if row["SEG_OWNER"] is not None]
    seen = [(row["OPERATION"], row["OPERATION_CODE"]) for row in rows]
    bench.holds("direct", any(code == 1 for _, code in seen), seen)


@case("codes", "fetch-order")
def two_sessions(bench: Bench) -> None:
    """Two sessions whose changes alternate; each transaction has its own id."""
    bench.table("C_TWO", ITEM)
    other = bench.open()
    bench.session.run("INSERT INTO c_two VALUES (1, 1, 'a')")
    other.run("INSERT INTO c_two VALUES (2, 2, 'b')")
    bench.session.run("UPDATE c_two SET n = 3 WHERE id = 1")
    other.commit()
    bench.session.commit()
    rows = bench.mine()
    by_xid = {row["XID"]: [] for row in rows}  # type: dict[bytes, list[int]]
    for row in rows:
        if row["OPERATION_CODE"] in (1, 2, 3, 7):
            by_xid[row["XID"]].append(row["OPERATION_CODE"])
    bench.holds("codes", sorted(by_xid.values()) == [[1, 3, 7], [1, 7]], by_xid)
    ends = [row["XID"] for row in rows if row["OPERATION_CODE"] == 7]
    bench.holds("fetch-order", [len(by_xid[xid]) for xid in ends] == [2, 3], by_xid)


@case("nested")
def nested_savepoints(bench: Bench) -> None:
    """A savepoint inside another; the transaction goes back to the outer one."""
    bench.table("C_NEST", ITEM)
    for text in (
        "INSERT INTO c_nest VALUES (1, 1, 'a')",
        "SAVEPOINT outer_one",
        "INSERT INTO c_nest VALUES (2, 2, 'b')",
        "SAVEPOINT inner_one",
        "INSERT INTO c_nest VALUES (3, 3, 'c')",
        "ROLLBACK TO SAVEPOINT outer_one",
    ):
        bench.session.run(text)
    bench.session.commit()
    rows = bench.mine()
    undone = sum(1 for row in rows if row["ROLLBACK"] and row["OPERATION_CODE"] == 2)
    bench.holds("nested", undone == 2 and len(changes(rows)) == 3, codes(rows))


@case("array-insert")
def array_insert(bench: Bench) -> None:
    """Five hundred rows are inserted by one array."""
    bench.table("C_MANY", ITEM)
    bench.session.run_many(
        "INSERT INTO c_many VALUES (:1, :2, :3)", [(n, n, "v") for n in range(500)]
    )
    bench.session.commit()
    rows = changes(bench.mine())
    places = {(row["RS_ID"], row["SSN"]) for row in rows}
    bench.holds("array-insert", len(rows) == len(places) == 500, (len(rows), len(places)))


@case("temporary")
def temporary_table(bench: Bench) -> None:
    """Rows of a global temporary table."""
    text = f"CREATE GLOBAL TEMPORARY TABLE {SCHEMA}.c_temp (id NUMBER(10)) ON COMMIT DELETE ROWS"
    bench.session.run(text)
    bench.run("INSERT INTO c_temp VALUES (1)")
    texts = [
        row["SQL_REDO"] or "" for row in changes(bench.mine()) if row["TABLE_NAME"] == "C_TEMP"
    ]
    bench.holds("temporary", not any(one.startswith("insert") for one in texts), texts)


@case("renamed")
def renamed_table(bench: Bench) -> None:
    """A table is renamed between two inserts."""
    bench.table("C_NAME", ITEM)
    bench.run("INSERT INTO c_name VALUES (1, 1, 'a')")
    bench.session.run(f"ALTER TABLE {SCHEMA}.c_name RENAME TO c_name_after")
    bench.run("INSERT INTO c_name_after VALUES (2, 2, 'b')")
    seen = [
        (row["TABLE_NAME"], row["DATA_OBJ#"]) for row in bench.mine() if row["OPERATION_CODE"] == 1
    ]
    is_right = {name for name, _ in seen} == {"C_NAME_AFTER"} and len({obj for _, obj in seen}) == 1
    bench.holds("renamed", is_right and len(seen) == 2, seen)


@case("commit-order")
def many_commits(bench: Bench) -> None:
    """Fifty small transactions."""
    bench.table("C_COMMITS", ITEM)
    for number in range(50):
        bench.run(f"INSERT INTO c_commits VALUES ({number}, 0, 'x')")
    scns = [row["SCN"] for row in bench.mine() if row["OPERATION_CODE"] == 7]
    bench.holds("commit-order", len(scns) >= 50 and scns == sorted(scns), scns[:20])
