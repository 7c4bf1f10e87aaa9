"""Parts of the simulated Oracle: values, row ids, redo logs, mining sessions, incarnations."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from sim_oracle import lobs
from sim_oracle.cells import RowIdText, decode, encode
from sim_oracle.columns import NanoTime, fit_value, parse_column
from sim_oracle.database import Database
from sim_oracle.errors import Blocked, OraError
from sim_oracle.literals import (
    Nls,
    float_text,
    internal_number,
    internal_time,
    literal,
    number_text,
    unistr,
)
from sim_oracle.mining import CONSTANTS, MiningSession
from sim_oracle.redo import Xid
from sim_oracle.rowids import RowId, order_key, parse_rowid
from sim_oracle.statements import as_dicts, split
from sim_oracle.tables import Table

ONLINE = CONSTANTS["DICT_FROM_ONLINE_CATALOG"] | CONSTANTS["NO_ROWID_IN_STMT"] | 64
COLUMNS = {"ID": "NUMBER(10)", "A": "VARCHAR2(4000)"}


def make(threads: int = 1, **flags: Any) -> tuple[Database, Table]:
    """Return a database with a table."""
    database = Database()
    for number in range(2, threads + 1):
        database.add_thread(number)
    return database, database.add_table("SHOP", "T", dict(COLUMNS), key=["ID"], **flags)


def add(database: Database, table: Table, *keys: int, thread: int = 1) -> int:
    """Insert rows in a transaction; return its commit SCN."""
    transaction = database.begin(thread)
    for key in keys:
        transaction.insert(table, {"ID": key, "A": f"a{key}"})
    return transaction.commit()


def all_files(database: Database) -> list[str]:
    """Return every log once: archived ones by their archive, others by a member."""
    out = []
    for log in database.logs.logs:
        copy = log.archives.get(1)
        if copy is not None and copy.name is not None and copy.exists:
            out.append(copy.name)
        else:
            groups = [one for one in database.logs.groups.values() if one.log is log]
            out += [group.members[0] for group in groups]
    return out


def open_session(
    database: Database, low: int, high: int, options: int = ONLINE, files: Any = None
) -> MiningSession:
    """Return a session with files, by default with all of them."""
    session = MiningSession(database)
    for number, name in enumerate(all_files(database) if files is None else files):
        session.add_file(name, CONSTANTS["ADDFILE" if number else "NEW"])
    session.start(low, high, options)
    return session


def mine(database: Database, low: int = 0, high: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
    """Return the rows of a window, by default of all redo."""
    first, last = low or database.first_scn + 1, high or database.scn
    return as_dicts(open_session(database, first, last, **kwargs).contents(Nls()))


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (Decimal("-0.75"), "-.75"),
        (Decimal("1200.50"), "1200.5"),
        (10**37, "1" + "0" * 37),
        (Decimal("1E-7"), ".0000001"),
        (-12, "-12"),
    ],
)
def test_a_number_is_written_without_a_leading_zero(value: Any, text: str) -> None:
    """TO_CHAR's form, which SQL_REDO quotes."""
    assert number_text(value) == text


def test_binary_floats_are_rounded() -> None:
    """Nine digits, an exponent of three, and names for NaN and the infinities."""
    assert float_text(1.50000005e10) == "1.50000005E+010"
    assert float_text(-2.5) == "-2.5E+000"
    assert float_text(1 / 3) == "3.33333333E-001"
    assert [float_text(float(one)) for one in ("nan", "inf", "-inf")] == ["Nan", "Inf", "-Inf"]


def test_national_text_is_in_utf_16_units() -> None:
    """Surrogates are two units; a long text has several calls."""
    assert unistr("a\\b'é😀") == r"UNISTR('a\\b''\00E9\D83D\DE00')"
    assert unistr("x" * 1500).count("UNISTR(") == 2


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        (0, "80"),
        (1, "c102"),
        (100, "c202"),
        (1200, "c20d"),
        (-5, "3e6066"),
        (Decimal(".5"), "c033"),
    ],
)
def test_internal_numbers_are_of_base_100(value: Any, digits: str) -> None:
    """The exponent's byte comes first; negative numbers are complemented."""
    assert internal_number(value).hex() == digits


def test_internal_times_have_7_11_or_13_bytes() -> None:
    """Hours, minutes and seconds are one higher; zones are stored with UTC."""
    time = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    assert internal_time("DATE", time).hex() == "787e0102040506"
    assert internal_time("TIMESTAMP", NanoTime(time, 7)).hex() == "787e010204050600001777"
    zoned = internal_time("TIMESTAMP WITH TIME ZONE", time.replace(tzinfo=UTC))
    assert (len(zoned), zoned[-2:]) == (13, bytes([20, 60]))


def test_a_value_that_does_not_fit_is_refused() -> None:
    """Precision, length in bytes or characters, NULL in a key."""
    assert fit_value(parse_column("N", "NUMBER(5,2)"), Decimal("1.005")) == Decimal("1.01")
    assert fit_value(parse_column("N", "NUMBER(5,-2)"), 12345) == 12300
    assert fit_value(parse_column("C", "CHAR(3)"), "a") == "a  "
    assert fit_value(parse_column("V", "VARCHAR2(3)"), "") is None
    assert fit_value(parse_column("C", "CLOB"), "") == ""
    refused: list[tuple[str, Any, int]] = [
        ("NUMBER(3)", 1000, 1438),
        ("VARCHAR2(2)", "éé", 12899),
        ("RAW(2)", b"123", 12899),
    ]
    for declaration, value, code in refused:
        with pytest.raises(OraError) as raised:
            fit_value(parse_column("X", declaration), value)
        assert raised.value.code == code
    assert fit_value(parse_column("V", "VARCHAR2(2 CHAR)"), "éé") == "éé"
    with pytest.raises(OraError, match="ORA-01400"):
        fit_value(parse_column("K", "NUMBER", is_nullable=False), None)


def test_settings_of_the_session_change_literals() -> None:
    """The decimal character and the time zone are the session's."""
    nls = Nls(timestamp="YYYY-MM-DD HH24:MI:SS.FF9", numeric=",.", zone_minutes=90)
    assert literal(parse_column("N", "NUMBER"), Decimal("1.5"), nls) == "'1,5'"
    local = parse_column("L", "TIMESTAMP(6) WITH LOCAL TIME ZONE")
    text = literal(local, datetime(2026, 1, 1, 0, 0, tzinfo=UTC), nls)
    assert text == "TO_TIMESTAMP_TZ('2026-01-01 01:30:00.000000000')"


def test_pieces_are_cut_between_characters() -> None:
    """A piece has at most 4000 bytes, and both quotes of a doubled one may be in two."""
    text = "q" * 3999 + "''" + "é" * 3000
    pieces = [one or "" for one in split(text)]
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= 4000 for piece in pieces)
    assert pieces[0].endswith("'")
    assert pieces[1].startswith("'")


def test_row_ids_order_as_numbers() -> None:
    """Letters of row ids are not in the order of their codes."""
    low, high = RowId(90_001, 7, 163, 25), RowId(90_001, 7, 163, 52)
    assert str(low) > str(RowId(90_001, 7, 163, 0))
    assert parse_rowid(str(high)) == high
    assert order_key(str(low)) < order_key(str(high))
    with pytest.raises(ValueError, match="not a row id"):
        parse_rowid("AAA-")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Decimal("1.5"), "NUMBER"),
        (10**30, "NUMBER"),
        (datetime(2026, 1, 1, 0, 0, 0, 5), "DATE"),  # noqa: DTZ001
        (datetime(2026, 1, 1, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE"),
        (NanoTime(datetime(2026, 1, 1), 7), "TIMESTAMP"),  # noqa: DTZ001
        (timedelta(seconds=-5, microseconds=3), "INTERVAL DAY TO SECOND"),
        (RowIdText(str(RowId(5, 6, 7, 8))), None),
        (b"\0\1", "RAW"),
        (2.5, "BINARY_DOUBLE"),
    ],
)
def test_cells_of_sqlite_keep_values(value: Any, kind: str | None) -> None:
    """Values without a type in SQLite are read back exactly."""
    assert decode(encode(value, kind), {}) == value


# ---------------------------------------------------------------------- transactions


def test_rows_of_an_array_delete_share_their_address() -> None:
    """A bulk DELETE has records of at most 255 rows with one RS_ID and SSN 0."""
    database, table = make()
    add(database, table, *range(600))
    transaction = database.begin()
    transaction.delete_many(table, list(table.rows))
    transaction.commit()
    rows = [row for row in mine(database) if row["OPERATION_CODE"] == 2]
    addresses = [(row["RS_ID"], row["SSN"]) for row in rows]
    assert (len(rows), len(set(addresses))) == (600, 3)
    assert addresses.count(addresses[0]) == 255


def test_an_array_insert_with_save_exceptions_undoes_refused_rows_alone() -> None:
    """Without it, the first refused row undoes the statement."""
    database, table = make()
    add(database, table, 2)
    transaction = database.begin()
    rows = [{"ID": key} for key in (1, 2, 3)]
    assert transaction.insert_many(table, rows, save_exceptions=True) == [1]
    with pytest.raises(OraError, match="ORA-00001"):
        transaction.insert_many(table, [{"ID": 8}, {"ID": 2}])
    transaction.commit()
    assert sorted(row["ID"] for row in table.rows.values()) == [1, 2, 3]
    ours = [row for row in mine(database) if row["XIDSQN"] == transaction.xid.sequence]
    assert [row["ROLLBACK"] for row in ours] == [0, 0, 0, 1, 0, 0, 0, 1, 1, 0]


def test_keys_can_be_shifted_by_one_statement() -> None:
    """Keys are checked at the statement's end; a duplicate undoes it."""
    database, table = make()
    add(database, table, 1, 2, 3, 9)
    transaction = database.begin()
    rows = [row_id for row_id, row in table.rows.items() if row["ID"] != 9]
    transaction.update_many(table, [(one, {"ID": table.rows[one]["ID"] + 1}) for one in rows])
    assert sorted(row["ID"] for row in table.rows.values()) == [2, 3, 4, 9]
    with pytest.raises(OraError, match="ORA-00001"):
        transaction.update_many(table, [(rows[0], {"ID": 5}), (rows[1], {"ID": 9})])
    assert sorted(row["ID"] for row in table.rows.values()) == [2, 3, 4, 9]
    transaction.commit()
    assert sorted(table.keys) == [(2,), (3,), (4,), (9,)]


def test_a_row_of_another_transaction_blocks() -> None:
    """Changed rows, freed keys and inserted keys are held until the end."""
    database, table = make()
    add(database, table, 1, 2)
    first, second = list(table.rows)
    one, two = database.begin(), database.begin()
    one.update(table, first, {"ID": 7})
    one.delete(table, second)
    for action in (
        lambda: two.update(table, first, {"A": "x"}),
        lambda: two.insert(table, {"ID": 7}),
        lambda: two.insert(table, {"ID": 1}),
        lambda: two.insert(table, {"ID": 2}),
    ):
        with pytest.raises(Blocked):
            action()
    one.rollback()
    two.update(table, first, {"A": "x"})


def test_a_freed_row_id_is_used_again() -> None:
    """After the commit of its delete, or at once after an undone insert."""
    database, table = make()
    transaction = database.begin()
    transaction.savepoint("A")
    first = transaction.insert(table, {"ID": 1})
    transaction.rollback_to("A")
    assert transaction.insert(table, {"ID": 2}) == first
    transaction.delete(table, first)
    assert transaction.insert(table, {"ID": 3}) != first
    transaction.commit()
    assert database.begin().insert(table, {"ID": 4}) == first


def test_a_changed_partition_key_moves_the_row() -> None:
    """The log has a DELETE and an INSERT with another row id in one transaction."""
    database = Database()
    columns = {"ID": "NUMBER(10)", "R": "VARCHAR2(5)"}
    parts = {"partitions": ("P1", "P2", "P3"), "partition_by": "R"}
    table = database.add_table("SHOP", "P", columns, key=["ID"], **parts)
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "R": "a"})
    assert transaction.update(table, row_id, {"R": "b"}) != row_id
    transaction.commit()
    rows = [row for row in mine(database) if row["TABLE_NAME"] == "P"]
    assert [row["OPERATION"] for row in rows] == ["INSERT", "DELETE", "INSERT"]
    assert {row["SEG_NAME"] for row in rows} <= {"P,P1", "P,P2", "P,P3"}
    assert len({row["DATA_OBJ#"] for row in rows}) == 2


def test_undo_rows_of_different_rows_are_in_any_order() -> None:
    """Within a row id the newest change is undone first."""
    database, table = make()
    transaction = database.begin()
    transaction.shuffle = random.Random(1)
    transaction.start()
    for key in range(6):
        row_id = transaction.insert(table, {"ID": key})
        transaction.update(table, row_id, {"A": "x"})
    transaction.rollback()
    undone = [(row["ROW_ID"], row["OPERATION"]) for row in mine(database) if row["ROLLBACK"]]
    order = list(dict.fromkeys(row_id for row_id, _ in undone))
    assert order != sorted(order, key=order_key, reverse=True)
    for row_id in order:
        assert [what for one, what in undone if one == row_id] == ["UPDATE", "DELETE"]


def test_nested_savepoints_end_with_an_outer_one() -> None:
    """A rollback to a savepoint forgets later savepoints and keeps its own."""
    database, table = make()
    transaction = database.begin()
    transaction.savepoint("A")
    transaction.insert(table, {"ID": 1})
    transaction.savepoint("B")
    transaction.insert(table, {"ID": 2})
    transaction.rollback_to("A")
    with pytest.raises(OraError, match="ORA-01086"):
        transaction.rollback_to("B")
    transaction.insert(table, {"ID": 3})
    transaction.rollback_to("A")
    transaction.insert(table, {"ID": 4})
    transaction.commit()
    (committed,) = database.truth()
    assert [change.after and change.after["ID"] for change in committed.changes] == [4]


def test_children_of_parallel_dml_name_their_parent() -> None:
    """A switch gives them COMMIT rows or not, as public sources do not tell."""
    for commits in (True, False):
        database, table = make()
        database.settings.children_commit = commits
        parent = database.begin()
        for key in (1, 2):
            database.begin(parent=parent).insert(table, {"ID": key})
        parent.commit()
        rows = mine(database)
        inserted = [row for row in rows if row["OPERATION_CODE"] == 1]
        assert {row["PXID"] for row in inserted} == {parent.xid.raw}
        assert parent.xid.raw not in {row["XID"] for row in inserted}
        ends = [row for row in rows if row["OPERATION_CODE"] == 7]
        assert len(ends) == (3 if commits else 1)
        assert sum(len(one.changes) for one in database.truth()) == 2


def test_a_transaction_without_rows_has_no_thread() -> None:
    """The COMMIT row shows THREAD# 0 and must not move a thread's position."""
    database, _ = make()
    database.commit_empty()
    rows = mine(database)
    assert [(row["OPERATION"], row["THREAD#"]) for row in rows] == [("START", 0), ("COMMIT", 0)]
    assert database.truth() == []


def test_a_direct_insert_differs_by_its_text_only() -> None:
    """OPERATION is DIRECT INSERT, OPERATION_CODE is 1."""
    database, table = make()
    transaction = database.begin()
    transaction.insert(table, {"ID": 1}, direct=True)
    transaction.commit()
    row = mine(database)[1]
    assert (row["OPERATION"], row["OPERATION_CODE"]) == ("DIRECT INSERT", 1)


def test_a_load_without_logging_is_not_in_the_log() -> None:
    """The rows are there, the log has nothing, the data file has an SCN."""
    database, table = make()
    database.load_without_logging(table, [{"ID": 1, "A": "x"}])
    assert mine(database) == []
    assert [row["ID"] for _, row in table.at(database.scn)] == [1]
    assert database.first_scn < database.unrecoverable_scn < database.scn
    assert database.truth() == []
    assert len(database.truth(is_logged=False)) == 1


def test_lobs_on_basicfile_precede_their_row() -> None:
    """The writes come first, and the INSERT does not name the column."""
    database = Database()
    columns = {"ID": "NUMBER(10)", "C": "CLOB"}
    table = database.add_table("SHOP", "L", columns, key=["ID"], lob_storage="BASICFILE")
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": "x" * 1500})
    transaction.commit()
    rows = [row for row in mine(database) if row["TABLE_NAME"] == "L"]
    assert [row["OPERATION_CODE"] for row in rows] == [9, 10, 10, 0, 1, 0]
    assert rows[4]["SQL_REDO"] == 'insert into "SHOP"."L"("ID") values (\'1\')'
    assert {row["ROW_ID"] for row in rows if row["OPERATION_CODE"] == 0} == {row_id}
    one = database.begin()
    one.update(table, row_id, {"C": "y" * 1500})
    one.commit()
    codes = [row["OPERATION_CODE"] for row in mine(database) if row["XIDSQN"] == one.xid.sequence]
    assert codes == [6, 9, 11, 10, 10, 0, 7]


def test_writes_of_two_lobs_interleave_in_blocks() -> None:
    """Each block has its own select, so its column is known."""
    database = Database()
    columns = {"ID": "NUMBER(10)", "C": "CLOB", "D": "CLOB"}
    table = database.add_table("SHOP", "L", columns, key=["ID"], lob_layout="block")
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "C": "x" * 1500, "D": "y" * 1500})
    transaction.commit()
    writes = [row["SQL_REDO"] for row in mine(database) if row["OPERATION_CODE"] == 10]
    assert ['select "C"' in text for text in writes] == [True, False, True, False]


def test_a_part_of_a_lob_changes_the_value_in_the_table() -> None:
    """The log does not have the rest of it."""
    database = Database()
    columns = {"ID": "NUMBER(10)", "C": "CLOB"}
    table = database.add_table("SHOP", "L", columns, key=["ID"])
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": "abcdef"})
    transaction.savepoint("A")
    lobs.edit_lob(transaction, table, row_id, "C", erase=(2, 1))
    assert table.rows[row_id]["C"] == "  cdef"
    transaction.rollback_to("A")
    lobs.edit_lob(transaction, table, row_id, "C", write=(3, "XX"))
    transaction.commit()
    assert [row["C"] for _, row in table.at(database.scn)] == ["abXXef"]


# ---------------------------------------------------------------------- logs


@pytest.mark.parametrize("late", ["rows", "whole"])
def test_late_redo_appears_below_a_closed_window(late: str) -> None:
    """Records of a private strand are written after records with higher SCNs."""
    database, table = make()
    slow = database.begin(late=late)
    slow.insert(table, {"ID": 1})
    database.tick(5)
    end = add(database, table, 2)
    before = [row["XIDSQN"] for row in mine(database, high=end)]
    assert before.count(slow.xid.sequence) == (late == "rows")
    database.tick(5)
    slow.commit()
    rows = mine(database, high=end)
    assert [row["OPERATION_CODE"] for row in rows if row["XIDSQN"] == slow.xid.sequence] == [6, 1]
    scns = [row["SCN"] for row in rows]
    assert scns != sorted(scns) or late == "no"


def test_a_switch_writes_private_strands() -> None:
    """After a log switch all earlier redo of open transactions is in the logs."""
    database, table = make()
    slow = database.begin(late="whole")
    slow.insert(table, {"ID": 1})
    assert slow.has_strand
    database.switch()
    assert not slow.has_strand
    assert [row["OPERATION_CODE"] for row in mine(database)] == [6, 1]


def test_groups_are_used_again_after_archiving() -> None:
    """Three groups; a fourth log needs the first one's archive."""
    database, table = make()
    database.logs.archive_lag = 9
    add(database, table, 1)
    for _ in range(3):
        assert not database.logs.logs[0].is_archived
        database.switch()
    assert [log.is_archived for log in database.logs.logs] == [True, False, False, False]
    statuses = [database.logs.status_of(group) for group in database.logs.groups.values()]
    assert statuses == ["CURRENT", "INACTIVE", "ACTIVE"]
    database.archive_current()
    assert [log.is_archived for log in database.logs.logs] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("rman", (None, "D")),
        ("delete", ("kept", "D")),
        ("expired", ("kept", "X")),
        ("rm", ("kept", "A")),
    ],
)
def test_purged_archives_are_shown_in_four_ways(how: str, shown: tuple[Any, str]) -> None:
    """Only ORA-01284 tells of a file that rm removed."""
    database, table = make()
    add(database, table, 1)
    database.switch()
    name = all_files(database)[0]
    assert database.logs.purge(database.scn, how) == 1
    (copy,) = database.logs.archives()
    assert (copy.name and "kept", copy.status) == shown
    for _ in range(2):
        database.switch()
    with pytest.raises(OraError, match="ORA-01284"):
        MiningSession(database).add_file(name, 1)


def test_several_commits_may_have_one_scn() -> None:
    """The order is that of thread and address; a snapshot never lies between them."""
    database, table = make()
    one, two = database.begin(), database.begin()
    one.insert(table, {"ID": 1})
    two.insert(table, {"ID": 2})
    assert one.commit() == two.commit(same_scn=True)
    assert [committed.xid for committed in database.truth()] == [one.xid, two.xid]
    snapshot = database.read_scn()
    three = database.begin()
    three.insert(table, {"ID": 3})
    assert three.commit(same_scn=True) > snapshot


def test_an_scn_reads_what_was_committed_then() -> None:
    """Rows come as of an SCN, or an error tells of lost undo or a changed definition."""
    database, table = make()
    first = add(database, table, 1)
    database.tick()
    transaction = database.begin()
    transaction.update(table, next(iter(table.rows)), {"A": "new"})
    transaction.commit()
    assert [row["A"] for _, row in database.rows_at(table, first)] == ["a1"]
    assert [row["A"] for _, row in database.rows_at(table, database.scn)] == ["new"]
    for scn, undo, code in (
        (database.scn + 9, 0, 8181),
        (5, 0, 8181),
        (first, first + 1, 1555),
    ):
        database.settings.undo_scn = undo
        with pytest.raises(OraError) as raised:
            database.rows_at(table, scn)
        assert raised.value.code == code
    database.settings.undo_scn = 0
    database.add_column(table, "B", "NUMBER")
    with pytest.raises(OraError, match="ORA-01466"):
        database.rows_at(table, first)
    assert [row["B"] for _, row in database.rows_at(table, database.scn)] == [None]


def test_a_restore_begins_an_incarnation() -> None:
    """Sequences start again, later commits are gone, old archives keep their RESETLOGS."""
    database, table = make()
    kept = add(database, table, 1)
    database.switch()
    database.tick(5)
    add(database, table, 2)
    open_ = database.begin()
    open_.insert(table, {"ID": 3})
    database.restore(kept)
    assert [row["ID"] for row in table.rows.values()] == [1]
    assert database.logs.threads[1].log.sequence == 1
    assert [one.number for one in database.logs.incarnations] == [1, 2]
    assert {copy.log.incarnation for copy in database.logs.archives()} == {1}
    assert not database.open
    add(database, table, 2)
    assert len(database.truth()) == 2


def test_every_destination_has_its_copy() -> None:
    """The same log is listed once for each, and one of them may be a standby's."""
    database, table = make()
    database.logs.destinations = {1: False, 2: False, 3: True}
    add(database, table, 1)
    database.switch()
    copies = list(database.logs.archives())
    assert [(copy.destination, copy.is_standby) for copy in copies] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert len({copy.name for copy in copies}) == 3
    assert len({id(copy.log) for copy in copies}) == 1


def test_a_closed_thread_is_complete_up_to_its_checkpoint() -> None:
    """Open transactions of its instance are rolled back, and a window may end after it."""
    database, table = make(2)
    add(database, table, 1, thread=2)
    open_ = database.begin(2)
    open_.insert(table, {"ID": 2})
    database.close_thread(2)
    thread = database.logs.threads[2]
    assert (thread.status, thread.checkpoint_scn) == ("CLOSED", thread.groups[0].log.next_scn)
    add(database, table, 3)
    database.archive_current()
    names = [name for name in all_files(database) if "redo04" not in name and "redo05" not in name]
    codes = [row["OPERATION_CODE"] for row in mine(database, files=names)]
    assert codes.count(36) == 1
    assert codes.count(7) == 2
    database.open_thread(2)
    add(database, table, 4, thread=2)


# ---------------------------------------------------------------------- mining


def test_a_defect_of_the_server_leaves_quotes_single() -> None:
    """A switch: such a text cannot be parsed, and must not be guessed."""
    database, table = make()
    database.settings.doubles_quotes = False
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "A": "l'eau"})
    transaction.commit()
    assert mine(database)[1]["SQL_REDO"].endswith("values ('1','l'eau')")


def test_errors_of_a_mining_session() -> None:
    """Each is raised where the server raises it."""
    database, table = make(2)
    for key in range(6):
        add(database, table, key)
        database.archive_current()
    files = all_files(database)
    low, high = database.first_scn + 1, database.scn
    session = MiningSession(database)
    cases: list[tuple[int, Any]] = [
        (1307, session.end),
        (1306, lambda: list(session.contents(Nls()))),
        (1292, lambda: session.start(low, high, ONLINE)),
        (1284, lambda: session.add_file("/no/file", 1)),
        (65040, lambda: session.add_file(files[0], 1, is_in_pdb=True)),
        (1281, lambda: open_session(database, high, low)),
        (1281, lambda: open_session(database, low, low)),
        (1291, lambda: open_session(database, low, high, files=files[2:])),
        (1291, lambda: open_session(database, low, high, files=[*files[:2], *files[4:]])),
        (1291, lambda: open_session(database, low, high, files=files[:2])),
        (1289, lambda: open_session(database, low, high, files=[files[0], files[0]])),
        (1371, lambda: open_session(database, low, high, CONSTANTS["DICT_FROM_REDO_LOGS"])),
        (44609, lambda: open_session(database, low, high, ONLINE | 1024)),
    ]
    for code, action in cases:
        with pytest.raises(OraError) as raised:
            action()
        assert raised.value.code == code, code


def test_one_log_by_two_names_is_a_duplicate() -> None:
    """A log that is CURRENT and archived at once, as managed services show it."""
    database, table = make()
    add(database, table, 1)
    thread = database.logs.threads[1]
    database.logs.list_current_as_archived(thread, database.now)
    assert thread.current is not None
    session = MiningSession(database)
    session.add_file(thread.log.archives[1].name or "", 1)
    with pytest.raises(OraError, match="ORA-01289"):
        session.add_file(thread.current.members[1], 3)


def test_a_missing_thread_is_not_noticed() -> None:
    """The result is silently partial, as on a server."""
    database, table = make(2)
    add(database, table, 1)
    add(database, table, 2, thread=2)
    rows = mine(database)
    assert {row["THREAD#"] for row in rows} == {1, 2}
    names = [name for name in all_files(database) if "redo01" in name]
    assert {row["THREAD#"] for row in mine(database, files=names)} == {1}


def test_a_log_that_is_recycled_fails() -> None:
    """ORA-01368 before the first row, ORA-00310 while rows are fetched."""
    database, table = make()
    add(database, table, 1)
    thread = database.logs.threads[1]
    assert thread.current is not None
    member = thread.current.members[0]
    session = open_session(database, database.first_scn + 1, database.scn, files=[member])
    database.switch()
    session.check_readable()
    assert len(list(session.contents(Nls()))) == 3
    for _ in range(2):
        database.switch()
    with pytest.raises(OraError, match="ORA-00310"):
        session.check_readable()
    with pytest.raises(OraError, match="ORA-01368"):
        session.start(database.first_scn + 1, database.scn, ONLINE)


def test_the_end_beyond_written_redo_loses_rows() -> None:
    """The current log covers any end, whatever is written later."""
    database, table = make()
    add(database, table, 1)
    end = database.scn + 50
    assert len(mine(database, high=end)) == 3
    add(database, table, 2)
    assert len(mine(database, high=end)) == 6


def test_the_first_scn_may_be_left_out() -> None:
    """A switch, as bounds were seen to be exclusive in places."""
    database, table = make()
    scn = add(database, table, 1)
    for is_exclusive, count in ((False, 1), (True, 0)):
        database.settings.has_exclusive_start = is_exclusive
        rows = mine(database, low=scn, high=scn + 1)
        assert len([row for row in rows if row["OPERATION_CODE"] == 7]) == count


def test_committed_data_only_loses_transactions_of_two_windows() -> None:
    """A transaction that began before the window is not shown; undone rows neither."""
    database, table = make()
    one = database.begin()
    one.insert(table, {"ID": 1})
    database.tick(3)
    middle = database.scn
    two = database.begin()
    two.savepoint("A")
    two.insert(table, {"ID": 2})
    two.rollback_to("A")
    two.insert(table, {"ID": 3})
    two.commit()
    one.commit()
    rows = mine(database, low=middle, options=ONLINE | CONSTANTS["COMMITTED_DATA_ONLY"])
    assert [row["OPERATION_CODE"] for row in rows] == [6, 1, 7]
    assert {row["XIDSQN"] for row in rows} == {two.xid.sequence}


def test_a_dictionary_in_the_redo_decodes_older_versions() -> None:
    """Rows from before a DDL have their names with DDL_DICT_TRACKING."""
    database, table = make()
    database.build_dictionary()
    add(database, table, 1)
    database.add_column(table, "B", "NUMBER")
    online = [row for row in mine(database) if row["OPERATION_CODE"] == 1]
    assert (online[0]["STATUS"], online[0]["INFO"]) == (2, "Dictionary Mismatch")
    assert '"COL 1"' in online[0]["SQL_REDO"]
    options = CONSTANTS["DICT_FROM_REDO_LOGS"] | CONSTANTS["DDL_DICT_TRACKING"] | 2048 | 64
    rows = [row for row in mine(database, options=options) if row["OPERATION_CODE"] == 1]
    assert rows[0]["SQL_REDO"].startswith('insert into "SHOP"."T"("ID","A") values')
    add(database, table, 2)
    rows = [row for row in mine(database) if row["OPERATION_CODE"] == 1]
    assert [row["DATA_OBJV#"] for row in rows] == [1, 2]
    assert '"B"' in rows[1]["SQL_REDO"]


def test_truncate_gives_a_physical_id() -> None:
    """DATA_OBJ# stays, DATA_OBJD# and row ids are new; the truth has the truncation."""
    database, table = make()
    add(database, table, 1)
    database.truncate(table)
    add(database, table, 1)
    rows = [row for row in mine(database) if row["OPERATION_CODE"] == 1]
    assert rows[0]["DATA_OBJ#"] == rows[1]["DATA_OBJ#"]
    assert rows[0]["DATA_OBJD#"] != rows[1]["DATA_OBJD#"]
    assert parse_rowid(rows[1]["ROW_ID"]).object == rows[1]["DATA_OBJD#"]
    assert [one.changes[0].op for one in database.truth()] == ["c", "t", "c"]


def test_a_slot_is_used_by_one_transaction_at_a_time() -> None:
    """Undo segment and slot come again with another sequence."""
    database, table = make()
    xids: set[Xid] = set()
    for key in range(300):
        transaction = database.begin()
        transaction.insert(table, {"ID": key})
        xids.add(transaction.xid)
        transaction.commit()
    assert len(xids) == 300
    assert len({xid[:2] for xid in xids}) < 300
