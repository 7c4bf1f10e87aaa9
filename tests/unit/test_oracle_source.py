"""The source over the model: what each kind of redo becomes, and what ends the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.servers.redo_log import LogRow, RedoLog
from penstock.codec.oracle.redo_outcome import (
    DictionaryMismatch,
    RedoBroken,
    RedoUnlogged,
    RedoUnsupported,
)
from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.reading.catalog import TableNotCapturable
from penstock.engines.oracle.source.assembly import Assembly, Limits
from penstock.engines.oracle.source.entries import Entry, Frame, Spill
from penstock.engines.oracle.source.errors import (
    IncarnationChanged,
    KeysSwapped,
    LobLost,
    ParallelChild,
    RedoLost,
    RedoUnreadable,
    RowsUnlogged,
    ScnAhead,
    TransactionTooLarge,
    TransactionTooOld,
    TransactionTorn,
)
from penstock.engines.oracle.source.relations import read_default
from penstock.engines.oracle.source.undo import find_survivors
from penstock.host.files import REAL_FILES
from penstock.model import FlushPoint, MarkerKind, Relation, TableName
from penstock.model.table_requests import REQUESTS_FILE, Capture, TableRequest, TableRequests
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server

T = {"ID": "NUMBER(10)", "A": "VARCHAR2(40)"}
LOBS = {"ID": "NUMBER(10)", "C": "CLOB", "L": "BLOB"}
Open = Callable[..., RedoLog]


@pytest.fixture
def database() -> Database:
    """Return a database with a table."""
    database = Database()
    database.add_table("SHOP", "T", dict(T), key=["ID"])
    return database


@pytest.fixture
def server(database: Database) -> Server:
    """Return the server of the database."""
    return Server(database)


@pytest.fixture
def open_log(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> Open:
    """Return what begins a log."""
    address = install(monkeypatch, server)

    def begin(**options: Any) -> RedoLog:
        return RedoLog(server, address, tmp_path, **options)

    return begin


def rows(log: RedoLog) -> list[tuple[Any, ...]]:
    """Return op and values of the log's rows; absent values are left out."""
    out = []
    for _, _, event in log.events():
        if isinstance(event, LogRow):
            shown = event.after if event.after is not None else event.before
            assert shown is not None
            values = {one: shown[one] for one in shown if one not in event.absent}
            out.append((event.op, *values.values()))
    return out


def commit(database: Database, *values: Any, thread: int = 1) -> int:
    """Insert a row into T in a transaction of its own; return its SCN."""
    transaction = database.begin(thread)
    transaction.insert(database.table("SHOP", "T"), {"ID": values[0], "A": str(values[-1])})
    return transaction.commit()


# ---------------------------------------------------------------------- transactions


def test_changes_and_undo(database: Database, open_log: Open) -> None:
    """Undone rows are not in the log, the others are in their order."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    first = transaction.insert(table, {"ID": 1, "A": "it's"})
    transaction.update(table, first, {"A": "a"})
    transaction.savepoint("S")
    transaction.update(table, first, {"A": "undone"})
    transaction.insert(table, {"ID": 2, "A": "undone"})
    transaction.rollback_to("S")
    transaction.update(table, first, {"A": "b"})
    transaction.commit()
    gone = database.begin()
    gone.insert(table, {"ID": 3, "A": "x"})
    gone.rollback()
    log.catch_up()
    assert rows(log) == [("I", 1, "it's"), ("U", 1, "a"), ("U", 1, "b")]


def test_keys_that_move_in_one_statement(database: Database, open_log: Open) -> None:
    """`ID = ID + 1` over several rows keeps each row."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    ids = [transaction.insert(table, {"ID": at, "A": f"row {at}"}) for at in (1, 2, 3)]
    transaction.update_many(table, [(one, {"ID": at + 1}) for at, one in enumerate(ids, 1)])
    transaction.commit()
    log.catch_up()
    assert rows(log)[3:] == [("U", 4, "row 3"), ("U", 3, "row 2"), ("U", 2, "row 1")]


def test_keys_that_are_exchanged(database: Database, open_log: Open) -> None:
    """A circle becomes a delete and an insert; with keys alone in the redo it is refused."""
    database.add_table("SHOP", "K", dict(T), key=["ID"], supplemental="PRIMARY KEY")
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    ids = [transaction.insert(table, {"ID": at, "A": f"row {at}"}) for at in (1, 2)]
    transaction.update_many(table, [(ids[0], {"ID": 2}), (ids[1], {"ID": 1})])
    transaction.commit()
    log.catch_up()
    found = {}
    for op, key, *values in rows(log):
        if op != "D":
            found[key] = values[0]
    assert found == {1: "row 2", 2: "row 1"}
    table = database.table("SHOP", "K")
    transaction = database.begin()
    ids = [transaction.insert(table, {"ID": at, "A": f"row {at}"}) for at in (1, 2)]
    transaction.update_many(table, [(ids[0], {"ID": 2}), (ids[1], {"ID": 1})])
    transaction.commit()
    with pytest.raises(KeysSwapped):
        log.catch_up()


def test_several_commits_of_one_scn(database: Database, open_log: Open) -> None:
    """Commits on one SCN are all in the log, also if the log ended between them."""
    log, table = open_log(), database.table("SHOP", "T")
    one, two = database.begin(), database.begin()
    one.insert(table, {"ID": 1, "A": "a"})
    two.insert(table, {"ID": 2, "A": "b"})
    scn = one.commit()
    assert two.commit(same_scn=True) == scn
    database.beat()
    database.beat()
    run = log.stream.next_run(0.5)
    assert run is not None
    assert run.end is not None
    log.pending = [run]
    log.flush()
    assert [position >> 64 for position, _ in log.transactions()] == [scn, scn]
    # The log may end after the first: that is a position of its own.
    first, second = (position for position, _ in log.transactions())
    assert first < second < OraclePosition.of_scn(scn).ordinal
    log.end = log.end.__class__(position=first, gsn=1, trx=1)
    log.reconnect()
    log.runs.clear()
    log.catch_up()
    assert rows(log) == [("I", 2, "b")]


def test_redo_that_is_written_late(database: Database, open_log: Open) -> None:
    """Rows with SCNs that an earlier window has passed are in the log."""
    for late in ("rows", "whole"):
        log, table = open_log(), database.table("SHOP", "T")
        key = {"rows": 1, "whole": 2}[late]
        transaction = database.begin(late=late)
        transaction.insert(table, {"ID": key, "A": late})
        commit(database, key + 10, "other")
        log.catch_up()
        commit(database, key + 20, "other")
        log.catch_up()
        transaction.commit()
        log.catch_up()
        assert ("I", key, late) in rows(log)


@pytest.mark.parametrize("has_later", [True, False])
def test_a_transaction_that_was_open_at_the_begin(
    database: Database, open_log: Open, has_later: bool
) -> None:
    """All its rows are in the log."""
    table = database.table("SHOP", "T")
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "A": "before"})
    database.switch()
    log = open_log()
    if has_later:
        transaction.insert(table, {"ID": 2, "A": "after"})
    transaction.commit()
    log.catch_up()
    assert rows(log) == [("I", 1, "before"), ("I", 2, "after")][: 1 + has_later]


def test_a_start_scn(database: Database, open_log: Open) -> None:
    """A log that begins at a given SCN has the rows of transactions that were open then."""
    table = database.table("SHOP", "T")
    commit(database, 9, "before")
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "A": "before"})
    database.tick(50_000)
    scn = database.read_scn()
    transaction.insert(table, {"ID": 2, "A": "after"})
    transaction.commit()
    for _ in range(5):
        database.switch()
    log = open_log(start_scn=str(scn))
    log.catch_up()
    assert log.begin_scn == scn
    assert rows(log) == [("I", 1, "before"), ("I", 2, "after")]


def test_a_start_scn_that_is_not_there(database: Database, open_log: Open) -> None:
    """An SCN that lies ahead, or whose redo is gone, is refused; so is a torn transaction."""
    with pytest.raises(ScnAhead):
        open_log(start_scn=str(database.scn + 1000))
    transaction = database.begin()
    transaction.insert(database.table("SHOP", "T"), {"ID": 1, "A": "before"})
    early = database.read_scn()
    for _ in range(6):
        database.switch()
    scn = database.read_scn()
    transaction.commit()
    database.logs.purge(scn - 1)
    with pytest.raises(RedoLost):
        open_log(start_scn=str(early))
    log = open_log(start_scn=str(scn))
    with pytest.raises(TransactionTorn):
        log.catch_up()


def test_a_thread_without_a_number(database: Database, open_log: Open) -> None:
    """An empty transaction, whose commit has THREAD# 0, moves nothing."""
    log = open_log()
    database.commit_empty()
    commit(database, 1, "a")
    database.commit_empty()
    log.catch_up()
    assert rows(log) == [("I", 1, "a")]
    assert len(log.transactions()) == 1


@pytest.mark.parametrize("has_partial_ids", [True, False])
def test_a_rollback_of_a_transaction_of_before(
    database: Database, open_log: Open, has_partial_ids: bool
) -> None:
    """Undo rows with incomplete ids belong to the open transaction of their slot."""
    database.settings.has_partial_ids = has_partial_ids
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "A": "kept"})
    transaction.savepoint("S")
    transaction.insert(table, {"ID": 2, "A": "undone"})
    log.catch_up()
    transaction.rollback_to("S")
    log.catch_up()
    transaction.commit()
    log.catch_up()
    assert rows(log) == [("I", 1, "kept")]


def test_incomplete_ids(tmp_path: Path) -> None:
    """Rows whose XID lacks its sequence belong to the open transaction of their slot."""
    xid, other = bytes(range(8)), bytes(range(1, 9))
    time, text = datetime(2026, 3, 1), 'insert into "S"."T"("ID") values (\'1\')'  # noqa: DTZ001
    partial, address = xid[:4] + b"\xff" * 4, " 0x000001.00000001.0001 "

    def row(xid: bytes, code: int, rollback: int = 0) -> tuple[Any, ...]:
        return (
            7, xid, xid, code, rollback, 0, 0, 1, "S", "T", "AAAV+RAAHAAAACjAAA", address, 5, 1,
            None, time, text,
        )  # fmt: skip

    def assemble(*given: tuple[Any, ...]) -> Assembly:
        found = Assembly(
            0, number_of=lambda *_: 0, spill=Spill(tmp_path, REAL_FILES), limits=Limits()
        )
        found.add(given)
        return found

    start, insert = row(xid, 6), row(xid, 1)
    undone = assemble(row(other, 6), start, insert, row(partial, 2, 1), row(xid, 7))
    (transaction,) = undone.committed
    assert find_survivors(transaction, []) == [bytearray([0, 0])]
    ended = assemble(row(other, 6), start, insert, row(partial, 36))
    assert ended.open_starts() == [7]
    unknown = assemble(row(other, 6), row(partial, 2, 1), row(partial, 36))
    assert unknown.open_starts() == [7]


def test_array_statements(database: Database, open_log: Open) -> None:
    """Rows that share RS_ID and SSN are all in the log."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    transaction.insert_many(table, [{"ID": at, "A": "x"} for at in range(600)])
    transaction.delete_many(table, list(table.rows))
    transaction.commit()
    log.catch_up()
    assert len(rows(log)) == 1200
    assert sum(one[0] == "D" for one in rows(log)) == 600


def test_long_statements(database: Database, open_log: Open) -> None:
    """A statement in pieces is read whole, wherever it was cut."""
    table = database.add_table("SHOP", "P", {"ID": "NUMBER(10)", "A": "VARCHAR2(4000)"}, key=["ID"])
    log = open_log()
    texts = ["q" * at + "'" * 3900 for at in range(3)] + ["é" * 1900]
    transaction = database.begin()
    for at, text in enumerate(texts):
        row_id = transaction.insert(table, {"ID": at, "A": text})
        transaction.update(table, row_id, {"A": text + "x"})
    transaction.commit()
    log.catch_up()
    assert rows(log) == [
        one for at, text in enumerate(texts) for one in (("I", at, text), ("U", at, text + "x"))
    ]


def test_parallel_statements(database: Database, open_log: Open) -> None:
    """Parts with commits of their own are transactions; one without is refused."""
    log, table = open_log(), database.table("SHOP", "T")
    parent = database.begin()
    database.begin(parent=parent).insert(table, {"ID": 1, "A": "child"})
    parent.insert(table, {"ID": 2, "A": "parent"})
    parent.commit()
    log.catch_up()
    assert sorted(rows(log)) == [("I", 1, "child"), ("I", 2, "parent")]
    database.settings.children_commit = False
    parent = database.begin()
    database.begin(parent=parent).insert(table, {"ID": 3, "A": "child"})
    parent.commit()
    with pytest.raises(ParallelChild):
        log.catch_up()


def test_a_second_thread(database: Database, open_log: Open) -> None:
    """Transactions of all threads are in the log in order of their SCNs."""
    database.add_thread(2, sequence=70)
    log = open_log()
    for at in range(20):
        commit(database, at, "x", thread=1 + at % 2)
        if at % 7 == 0:
            database.switch(1 + at % 2)
    log.catch_up()
    assert [one[1] for one in rows(log)] == list(range(20))


# ---------------------------------------------------------------------- limits, side files


def test_limits(database: Database, open_log: Open) -> None:
    """A transaction that is too large or too old ends the log by name."""
    table = database.table("SHOP", "T")
    log = open_log(limits=Limits(rows_max=3))
    transaction = database.begin()
    for at in range(3):
        transaction.insert(table, {"ID": at, "A": "x"})
    log.catch_up()
    transaction.insert(table, {"ID": 3, "A": "x"})
    with pytest.raises(TransactionTooLarge):
        log.catch_up()
    transaction.rollback()
    log = open_log(limits=Limits(age_max_s=3600))
    transaction = database.begin()
    transaction.insert(table, {"ID": 4, "A": "x"})
    log.catch_up()
    before = database.now
    while database.now - before <= timedelta(seconds=3600):
        database.tick(100_000)
    commit(database, 5, "x")
    with pytest.raises(TransactionTooOld):
        log.catch_up()


@pytest.mark.parametrize("spill_bytes", [0, 2000, 100_000])
def test_side_files(
    database: Database,
    open_log: Open,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spill_bytes: int,
) -> None:
    """Large transactions go through files, with undo rows in another part than what they undo."""
    sizes: list[int] = []
    append = Spill.append

    def count(spill: Spill, entries: list[Entry]) -> list[Frame]:
        sizes.append(len(entries))
        return append(spill, entries)

    monkeypatch.setattr(Spill, "append", count)
    log, table = open_log(spill_bytes=spill_bytes), database.table("SHOP", "T")
    transaction = database.begin()
    for at in range(3000):
        transaction.insert(table, {"ID": at, "A": "x"})
    transaction.savepoint("S")
    for at in range(3000, 4000):
        transaction.insert(table, {"ID": at, "A": "y"})
    transaction.rollback_to("S")
    transaction.insert(table, {"ID": 5000, "A": "z"})
    log.catch_up()
    assert len(sizes) > 1
    transaction.commit()
    log.catch_up()
    found = rows(log)
    assert found == [("I", at, "x") for at in range(3000)] + [("I", 5000, "z")]
    assert not list((tmp_path / "spill").iterdir())


# ---------------------------------------------------------------------- idle, restart


def test_an_idle_source_moves_on(database: Database, open_log: Open) -> None:
    """Positions move without changes, so that old archives are not needed."""
    log = open_log()
    begin = log.end.position
    database.tick(1000)
    log.catch_up()
    assert log.end.position > begin
    assert not log.transactions()
    for _ in range(6):
        database.switch()
    log.catch_up()
    database.logs.purge(log.end.position >> 64)
    commit(database, 1, "a")
    log.start()
    log.catch_up()
    assert rows(log) == [("I", 1, "a")]


def test_redo_that_is_gone(database: Database, open_log: Open) -> None:
    """Archives that were purged before they were read end the log."""
    log = open_log()
    log.catch_up()
    commit(database, 1, "a")
    for _ in range(6):
        database.switch()
    database.logs.purge(database.scn - 3)
    with pytest.raises(RedoLost) as caught:
        log.catch_up()
    assert log.engine.is_loss(caught.value)


def test_another_incarnation(database: Database, open_log: Open) -> None:
    """A restore to an earlier time is a loss, in a stream and at the next start."""
    log = open_log()
    commit(database, 1, "a")
    scn = database.scn
    database.tick(10)
    commit(database, 2, "b")
    log.catch_up()
    database.restore(scn)
    with pytest.raises(IncarnationChanged) as caught:
        log.catch_up()
    assert log.engine.is_loss(caught.value)
    with pytest.raises(IncarnationChanged):
        log.start()


def test_a_gap_in_the_redo(database: Database, open_log: Open) -> None:
    """MISSING_SCN ends the log."""
    log = open_log()
    database.mark_gap()
    with pytest.raises(RedoUnreadable):
        log.catch_up()


def test_a_load_without_redo(
    database: Database, open_log: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    """A NOLOGGING load is told once."""
    log = open_log()
    log.catch_up()
    database.load_without_logging(database.table("SHOP", "T"), [{"ID": 7, "A": "x"}])
    log.stream.watch()
    log.stream.watch()
    assert capsys.readouterr().out.count("rows were loaded without redo") == 1


# ---------------------------------------------------------------------- DDL


def test_columns_that_come_and_go(database: Database, open_log: Open) -> None:
    """A table has a new version after a DDL statement, and earlier rows have theirs."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    log.catch_up()
    commit(database, 2, "b")  # read after the DDL, by the kept version
    database.add_column(table, "N", "NUMBER(12,2)")
    transaction = database.begin()
    transaction.insert(table, {"ID": 3, "A": "c", "N": 5})
    transaction.commit()
    log.catch_up()
    database.drop_column(table, "A")
    transaction = database.begin()
    transaction.insert(table, {"ID": 4, "N": 6})
    transaction.commit()
    log.catch_up()
    found = rows(log)
    assert found[:2] == [("I", 1, "a"), ("I", 2, "b")]
    assert [one[1] for one in found] == [1, 2, 3, 4]
    shapes = [
        [one.name for one in event.relation.columns]
        for _, _, event in log.events()
        if isinstance(event, LogRow)
    ]
    assert shapes == [["ID", "A"], ["ID", "A"], ["ID", "A", "N"], ["ID", "N"]]
    versions = [event.relation.version for _, _, event in log.events()]
    assert versions == [1, 1, 2, 3]


def test_rows_before_and_between_statements(database: Database, open_log: Open) -> None:
    """Rows that were not read before several statements have the columns of their time."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    database.add_column(table, "N", "NUMBER(12,2)")
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 2, "A": "b", "N": 5})
    transaction.commit()
    database.rename_column(table, "A", "B")
    transaction = database.begin()
    transaction.update(table, row_id, {"B": "c"})
    transaction.commit()
    database.drop_column(table, "N")
    database.add_column(table, "N", "VARCHAR2(20)")
    transaction = database.begin()
    transaction.insert(table, {"ID": 3, "B": "d", "N": "x"})
    transaction.commit()
    log.catch_up()
    assert rows(log) == [("I", 1, "a"), ("I", 2, "b", Decimal(5)), ("U", 2, "c", Decimal(5)),
                         ("I", 3, "d", "x")]  # fmt: skip
    shapes = [
        [(one.name, one.id) for one in event.relation.columns]
        for _, _, event in log.events()
        if isinstance(event, LogRow)
    ]
    assert shapes == [
        [("ID", 1), ("A", 2)],
        [("ID", 1), ("A", 2), ("N", 3)],
        [("ID", 1), ("B", 2), ("N", 3)],
        [("ID", 1), ("B", 2), ("N", 4)],
    ]


PLAIN_VALUES: dict[str, tuple[Any, ...]] = {
    "NUMBER(12,2)": (Decimal("-1234.5"), Decimal(0)),
    "BINARY_FLOAT": (1.5, -0.25),
    "BINARY_DOUBLE": (0.0, -2.25),
    "VARCHAR2(20)": ("it's", "é"),
    "NVARCHAR2(20)": ("😀", "n"),
    "CHAR(3)": ("abc", "d  "),
    "RAW(5)": (b"\0\xff", b"a"),
    "DATE": tuple(map(datetime.fromisoformat, ("2020-02-29 12:34:56", "1000-01-01"))),
    "TIMESTAMP(6)": tuple(
        map(datetime.fromisoformat, ("2020-02-29 01:02:03.456789", "1969-12-31 23:59:00"))
    ),
    "INTERVAL YEAR(4) TO MONTH": (147, -13),
    "INTERVAL DAY(4) TO SECOND(6)": (
        timedelta(days=1, hours=2, seconds=3.25), timedelta(seconds=-1.5),
    ),
}  # fmt: skip


def test_every_type_before_a_statement(database: Database, open_log: Open) -> None:
    """A value comes in the server's internal form then, and is the one that comes afterwards."""
    names = [f"C{number}" for number in range(len(PLAIN_VALUES))]
    columns = {"ID": "NUMBER(10)", **dict(zip(names, PLAIN_VALUES, strict=True))}
    table = database.add_table("SHOP", "EVERY", columns, key=["ID"])
    log = open_log()

    def write(first: int) -> None:
        for place in (0, 1):
            values = [given[place] for given in PLAIN_VALUES.values()]
            transaction = database.begin()
            transaction.insert(
                table, {"ID": first + place, **dict(zip(names, values, strict=True))}
            )
            transaction.commit()

    write(1)
    database.add_column(table, "MORE", "NUMBER(1)")
    write(11)
    log.catch_up()
    before, after = rows(log)[:2], rows(log)[2:]
    assert [len(row) for row in before] == [len(columns) + 1] * 2
    assert [row[2:] for row in before] == [row[2:-1] for row in after]


def test_a_column_that_was_dropped(database: Database, open_log: Open) -> None:
    """The columns behind it stay what they are, though the server gives them other numbers."""
    log, table = open_log(), database.table("SHOP", "T")
    database.add_column(table, "N", "NUMBER(12,2)")
    log.catch_up()
    before = {one.name: one.id for one in _relation(log).columns}
    database.drop_column(table, "A")
    log.catch_up()
    assert {one.name: one.id for one in _relation(log).columns} == {
        name: before[name] for name in ("ID", "N")
    }


def _relation(log: RedoLog) -> Relation:
    return log.engine.shapes.relations[TableName("SHOP", "T")]


def test_rows_of_an_unknown_version(database: Database, open_log: Open) -> None:
    """A row whose columns are not known any more ends the log."""
    log, table = open_log(), database.table("SHOP", "T")
    log.catch_up()
    database.add_column(table, "N", "NUMBER(12,2)", "ALTER TABLE T ADD N MADE BY A NEW SYNTAX")
    commit(database, 1, "a")
    database.add_column(table, "M", "NUMBER(12,2)")
    with pytest.raises((DictionaryMismatch, RowsUnlogged)):
        log.catch_up()


def test_truncate_and_drop(database: Database, open_log: Open) -> None:
    """Both become markers; a table that is created again is captured again."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    log.catch_up()
    database.truncate(table)
    commit(database, 1, "b")
    log.catch_up()
    database.drop_table(table)
    log.catch_up()
    database.create_table("SHOP", "T", dict(T), key=["ID"])
    commit(database, 1, "c")
    log.catch_up()
    assert [one.kind for one in log.markers] == [MarkerKind.TRUNCATE, MarkerKind.DDL]
    assert [one.tables for one in log.markers] == [(("SHOP", "T"),)] * 2
    assert rows(log) == [("I", 1, "a"), ("I", 1, "b"), ("I", 1, "c")]


def test_rows_before_a_drop(database: Database, open_log: Open) -> None:
    """Rows of a table that was dropped before they were read are in the log."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    log.catch_up()
    commit(database, 2, "b")
    database.drop_table(table)
    log.catch_up()
    assert rows(log) == [("I", 1, "a"), ("I", 2, "b")]
    assert [one.kind for one in log.markers] == [MarkerKind.DDL]


@pytest.mark.parametrize(
    "text",
    [
        "alter table SHOP.T truncate partition P1",
        'ALTER TABLE "SHOP"."T" EXCHANGE PARTITION P1 WITH TABLE X',
    ],
)
def test_rows_that_a_statement_moves(database: Database, open_log: Open, text: str) -> None:
    """Rows that come or go without redo end the log."""
    log = open_log()
    database.ddl(text, database.table("SHOP", "T"))
    with pytest.raises(RowsUnlogged):
        log.catch_up()


def test_other_ddl(database: Database, open_log: Open) -> None:
    """Statements of other tables and of the server itself change nothing."""
    log = open_log()
    database.create_table("OTHER", "X", dict(T))
    database.ddl("alter table x", database.table("SHOP", "T"), info="INTERNAL DDL (PlSql=0)")
    commit(database, 1, "a")
    log.catch_up()
    assert rows(log) == [("I", 1, "a")]


# ---------------------------------------------------------------------- rows that cannot be read


def test_a_table_without_supplemental_logging(database: Database, open_log: Open) -> None:
    """An update without its key ends the log, by name."""
    table = database.add_table("SHOP", "N", dict(T), key=["ID"], supplemental="NONE")
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "A": "x"})
    transaction.update(table, row_id, {"A": "y"})
    transaction.commit()
    with pytest.raises(RedoUnlogged):
        log.catch_up()


def test_a_type_that_logminer_lacks(database: Database, open_log: Open) -> None:
    """A change of a table with BOOLEAN ends the log, unless it was rolled back."""
    table = database.add_table("SHOP", "B", {"ID": "NUMBER(10)", "F": "BOOLEAN"}, key=["ID"])
    log = open_log()
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "F": True})
    transaction.rollback()
    log.catch_up()
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "F": True})
    transaction.commit()
    with pytest.raises(RedoUnsupported):
        log.catch_up()


def remove(log: RedoLog, name: str) -> None:
    """Request that a table is not captured any more, and follow the others by a new process."""
    request = TableRequest(table=TableName("SHOP", name), capture=Capture.REMOVED, capture_id=1)
    log.states.save(REQUESTS_FILE, TableRequests(serial=1, tables=(request,)))
    log.start()
    log.catch_up()


def test_documents_that_logminer_shows_in_parts(database: Database, open_log: Open) -> None:
    """A change with XML ends the log with the table's name, unless it was rolled back."""
    table = database.add_table("SHOP", "DOCS", {"ID": "NUMBER(10)", "X": "XMLTYPE"}, key=["ID"])
    log = open_log()
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "X": "<a/>"})
    transaction.rollback()
    log.catch_up()
    transaction = database.begin()
    transaction.insert(table, {"ID": 2, "X": "<a/>"})
    scn = transaction.commit()
    with pytest.raises(RedoUnsupported, match=r"SHOP\.DOCS.*SCN [0-9]+, XID [0-9A-F]+") as caught:
        log.catch_up()
    assert caught.value.fields["table"] == "SHOP.DOCS"
    assert caught.value.fields["scn"] <= scn
    assert "penstock table remove" in (caught.value.hint or "")
    assert rows(log) == []
    commit(database, 3, "c")
    remove(log, "DOCS")
    assert rows(log) == [("I", 3, "c")]


@pytest.mark.parametrize("kind", ["XMLTYPE", "JSON", "BOOLEAN"])
def test_a_column_that_logminer_does_not_show(
    database: Database, open_log: Open, kind: str
) -> None:
    """A captured table that gets one is refused at the statement: its values would be missing."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    database.add_column(table, "X", kind)
    commit(database, 2, "b")
    with pytest.raises(TableNotCapturable, match=rf"SHOP\.T.*SCN [0-9]+.*X {kind}") as caught:
        log.catch_up()
    assert caught.value.fields["table"] == "SHOP.T"
    assert "penstock table remove" in (caught.value.hint or "")
    before = rows(log)
    assert before in ([], [("I", 1, "a")])
    remove(log, "T")
    assert rows(log) == before


def test_a_statement_that_takes_a_table_out_of_the_capture(
    database: Database, open_log: Open
) -> None:
    """A text that is not understood ends the log if the catalogue does not tell the columns."""
    database.add_table("SHOP", "U", dict(T), key=["ID"])
    log, table = open_log(), database.table("SHOP", "T")
    database.add_column(table, "X", "XMLTYPE", "alter table SHOP.T add (X SYS.XMLTYPE)")
    log.takes = lambda one: one.name == "U"  # the other one has a column that is not shown
    commit(database, 2, "b")
    with pytest.raises(RowsUnlogged, match=r"SHOP\.T in a way that is not understood.*SYS\.XML"):
        log.catch_up()


def test_a_defect_of_the_server(database: Database, open_log: Open) -> None:
    """Quotes that are not doubled end the log: nothing is guessed."""
    database.settings.doubles_quotes = False
    log = open_log()
    commit(database, 1, "l',' x")
    with pytest.raises(RedoBroken):
        log.catch_up()


# ---------------------------------------------------------------------- large objects


@pytest.mark.parametrize(
    "flags", [{"lob_layout": "locator"}, {"lob_layout": "block"}, {"lob_storage": "BASICFILE"}]
)
def test_large_objects(database: Database, open_log: Open, flags: dict[str, Any]) -> None:
    """Values are whole, in and out of the row, inserted, updated and undone."""
    table = database.add_table("SHOP", "LOB", dict(LOBS), key=["ID"], **flags)
    log = open_log()
    large, other = "l'ong 😀 " * 900, bytes(range(256)) * 20
    transaction = database.begin()
    one = transaction.insert(table, {"ID": 1, "C": large, "L": other})
    transaction.insert(table, {"ID": 2, "C": "short", "L": b"\1"})
    transaction.savepoint("S")
    transaction.update(table, one, {"C": "u" * 3000, "L": b"u" * 3000})
    transaction.rollback_to("S")
    transaction.commit()
    log.catch_up()
    state: dict[int, dict[str, Any]] = {}
    for _, _, event in log.events():
        after = {name: event.after[name] for name in event.after if name not in event.absent}
        assert (event.op == "I") == (after["ID"] not in state)
        state.setdefault(after["ID"], {}).update(after)
    assert state == {1: {"ID": 1, "C": large, "L": other}, 2: {"ID": 2, "C": "short", "L": b"\1"}}
    transaction = database.begin()
    transaction.update(table, one, {"C": "v" * 4000})
    transaction.commit()
    log.catch_up()
    *_, (_, _, last) = log.events()
    assert last.op == "U"
    assert last.after["C"] == "v" * 4000
    assert "L" in last.absent


def test_a_part_of_a_large_object(database: Database, open_log: Open) -> None:
    """A value of which the redo has a part is read as of the commit."""
    table = database.add_table("SHOP", "LOB", dict(LOBS), key=["ID"])
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": "a" * 3000, "L": b"x"})
    gone = transaction.insert(table, {"ID": 2, "C": "a" * 3000, "L": b"x"})
    transaction.commit()
    log.catch_up()
    from sim_oracle import lobs

    transaction = database.begin()
    lobs.edit_lob(transaction, table, row_id, "C", write=(5, "zz"))
    lobs.edit_lob(transaction, table, gone, "C", erase=(2, 1))
    transaction.delete(table, gone)
    transaction.commit()
    log.catch_up()
    last = [event for _, _, event in log.events()][-2:]
    assert [one.op for one in last] == ["U", "D"]
    assert last[0].after["C"] == "a" * 4 + "zz" + "a" * 2994
    transaction = database.begin()
    lobs.edit_lob(transaction, table, row_id, "C", write=(1, "yy"))
    transaction.commit()
    database.settings.undo_scn = database.scn + 10
    with pytest.raises(LobLost) as caught:
        log.catch_up()
    assert log.engine.is_loss(caught.value)


# ---------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", "5"),
        (" -1.5 ", "-1.5"),
        ("- .5", "-.5"),  # a statement's tokens, joined by blanks
        ("+ 2", "2"),
        ("1.5e-3", "1.5e-3"),
        ("2.5f", "2.5"),
        ("'it''s'", "it's"),
        ("''", None),
        ("null", None),
        (None, None),
    ],
)
def test_defaults(text: str | None, value: str | None) -> None:
    """A literal is the value of earlier rows."""
    assert read_default(text) == value


@pytest.mark.parametrize("text", ["SYSDATE", "1+1", "'a'||'b'", "TO_DATE('2026-01-01')", "5x"])
def test_other_defaults(text: str) -> None:
    """An expression is not."""
    with pytest.raises(ValueError, match=r"."):
        read_default(text)


def test_an_added_column_with_a_default(database: Database, open_log: Open) -> None:
    """Earlier rows have a literal default; any other one ends the log."""
    log, table = open_log(), database.table("SHOP", "T")
    commit(database, 1, "a")
    log.catch_up()
    database.add_column(table, "N", "NUMBER(12,2)", "ALTER TABLE T ADD N NUMBER(12,2) DEFAULT 7")
    log.catch_up()
    relation = log.engine.shapes.relations[TableName("SHOP", "T")]
    assert [one.missing for one in relation.columns] == [None, None, "7"]
    database.add_column(table, "M", "DATE", "ALTER TABLE T ADD M DATE DEFAULT SYSDATE")
    with pytest.raises(RowsUnlogged):
        log.catch_up()


def test_a_log_that_was_cut(database: Database, open_log: Open) -> None:
    """A log that ends before all watermarks reads back to what was open."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    transaction.insert(table, {"ID": 1, "A": "open"})
    database.tick(30_000)
    commit(database, 2, "b")
    log.catch_up()
    transaction.commit()
    commit(database, 3, "c")
    log.catch_up()
    first = log.transactions()[0][0]
    log.end = FlushPoint(position=first, gsn=1, trx=1)
    log.runs.clear()
    log.engine._marks._marks = log.engine._marks._marks[-1:]
    log.reconnect()
    log.catch_up()
    assert rows(log) == [("I", 1, "open"), ("I", 3, "c")]
