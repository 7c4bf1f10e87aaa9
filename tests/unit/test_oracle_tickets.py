"""Histories that other connectors' users have reported: each once, through the whole source.

The tickets are those of Debezium's tracker, unless another project is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.servers.redo_log import LogRow, RedoLog, replay_log
from penstock.engines.oracle.source import emission
from penstock.engines.oracle.source.errors import LobLost
from sim_oracle import lobs
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.errors import OraError
from sim_oracle.session import Server

T = {"ID": "NUMBER(10)", "A": "VARCHAR2(40)"}
LOBS = {"ID": "NUMBER(10)", "C": "CLOB", "D": "CLOB"}
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
    return lambda: RedoLog(server, address, tmp_path)


def rows(log: RedoLog) -> list[tuple[str, dict[str, Any]]]:
    """Return op and values of the log's rows; absent values are left out."""
    out = []
    for _, _, event in log.events():
        if isinstance(event, LogRow):
            shown = event.after if event.after is not None else event.before
            assert shown is not None
            values = {name: shown[name] for name in shown if name not in event.absent}
            out.append((event.op, values))
    return out


def values(log: RedoLog) -> list[tuple[Any, ...]]:
    """Return op and values of the log's rows as tuples."""
    return [(op, *shown.values()) for op, shown in rows(log)]


def state(log: RedoLog) -> dict[int, dict[str, Any]]:
    """Return the rows that a target has, by their IDs."""
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    for _ in replay_log(log, found):
        pass
    return {int(key[0]): row for rows in found.values() for key, row in rows.items()}


# -- transactions ----------------------------------------------------------------------------------


def test_a_restart_inside_of_a_transaction_with_new_keys(
    database: Database, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBZ-1152 and DBZ-2329: nothing of it is in the log twice, and no key is lost."""
    monkeypatch.setattr(emission, "RUN_ROWS", 4)
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    ids = [transaction.insert(table, {"ID": at, "A": f"row {at}"}) for at in range(6)]
    transaction.update_many(table, [(one, {"ID": at + 1}) for at, one in enumerate(ids)])
    transaction.commit()
    database.beat()
    database.beat()
    assert log.follow(runs=2, flush=False) == 2
    assert log.pending[-1].end is None
    log.engine.close()
    log.start()
    log.catch_up()
    assert {key: row["A"] for key, row in state(log).items()} == {
        at + 1: f"row {at}" for at in range(6)
    }
    assert len(rows(log)) == 12


def test_savepoints_inside_of_savepoints(database: Database, open_log: Open) -> None:
    """DBZ-5907: an outer one takes the inner ones' rows along, later rows stay."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    first = transaction.insert(table, {"ID": 1, "A": "a"})
    transaction.savepoint("OUTER")
    transaction.update(table, first, {"A": "b"})
    transaction.savepoint("INNER")
    transaction.insert(table, {"ID": 2, "A": "x"})
    transaction.rollback_to("INNER")
    transaction.update(table, first, {"A": "c"})
    transaction.rollback_to("OUTER")
    transaction.insert(table, {"ID": 3, "A": "d"})
    transaction.commit()
    log.catch_up()
    assert values(log) == [("I", 1, "a"), ("I", 3, "d")]


@pytest.mark.parametrize("switches", [0, 1, 3])
def test_a_transaction_over_a_switch_and_the_begin(
    database: Database, open_log: Open, switches: int
) -> None:
    """DBZ-4367, DBZ-4842 and DBZ-5085: it began before the log, whole or in part."""
    table = database.table("SHOP", "T")
    transaction = database.begin(late="rows")
    transaction.insert(table, {"ID": 1, "A": "before"})
    for _ in range(switches):
        database.archive_current()
    log = open_log()
    transaction.insert(table, {"ID": 2, "A": "after"})
    for _ in range(switches):
        database.archive_current()
    log.catch_up()
    assert rows(log) == []
    transaction.commit()
    log.catch_up()
    assert values(log) == [("I", 1, "before"), ("I", 2, "after")]


def test_a_transaction_that_commits_at_the_begin(database: Database, open_log: Open) -> None:
    """DBZ-8141: a commit where the log begins is in the snapshot, not in the log."""
    table = database.table("SHOP", "T")
    before = database.begin()
    before.insert(table, {"ID": 1, "A": "snapshot"})
    scn = before.commit()
    log = open_log()
    assert log.begin_scn >= scn
    after = database.begin()
    after.insert(table, {"ID": 2, "A": "log"})
    assert after.commit() > log.begin_scn
    log.catch_up()
    assert values(log) == [("I", 2, "log")]


def test_a_failed_insert_of_two_sessions(database: Database, open_log: Open) -> None:
    """DBZ-3322 and DBZ-5090: ORA-00001 leaves a pair of rows in a committed transaction."""
    log, table = open_log(), database.table("SHOP", "T")
    first, second = database.begin(), database.begin()
    first.insert(table, {"ID": 1, "A": "first"})
    second.insert(table, {"ID": 2, "A": "second"})
    first.commit()
    with pytest.raises(OraError, match="00001"):
        second.insert(table, {"ID": 1, "A": "twice"})
    second.insert(table, {"ID": 3, "A": "third"})
    second.commit()
    log.catch_up()
    assert values(log) == [("I", 1, "first"), ("I", 2, "second"), ("I", 3, "third")]


def test_an_array_insert_that_leaves_out_rows(database: Database, open_log: Open) -> None:
    """SAVE EXCEPTIONS: only the refused rows are undone, although all share one address."""
    log, table = open_log(), database.table("SHOP", "T")
    transaction = database.begin()
    given = [{"ID": at, "A": "x"} for at in (1, 2, 1, 3, 2)]
    transaction.insert_many(table, given, save_exceptions=True)
    transaction.commit()
    log.catch_up()
    assert values(log) == [("I", at, "x") for at in (1, 2, 3)]


def test_a_row_that_moves_to_another_partition(database: Database, open_log: Open) -> None:
    """A new row id is a delete and an insert of one transaction, also if it is undone."""
    table = database.add_table(
        "SHOP", "P", dict(T), key=["ID"], partitions={"P1": 901, "P2": 902}, partition_by="A"
    )
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "A": "a"})
    segments = {table.segment_of({"ID": 1, "A": one}).object_id: one for one in "abcdefgh"}
    assert len(segments) == 2
    home = table.segment_of({"ID": 1, "A": "a"}).object_id
    other = next(text for at, text in segments.items() if at != home)
    transaction.savepoint("S")
    transaction.update(table, row_id, {"A": other})
    transaction.rollback_to("S")
    moved = transaction.update(table, row_id, {"A": other})
    assert moved != row_id
    transaction.commit()
    log.catch_up()
    assert state(log) == {1: {"ID": 1, "A": other}}
    assert [op for op, _ in rows(log)] == ["I", "D", "I"]


def test_a_killed_reader_session(database: Database, server: Server, open_log: Open) -> None:
    """DBZ-1877: a session that an administrator ends is replaced."""
    log, table = open_log(), database.table("SHOP", "T")
    for at in (1, 2):
        transaction = database.begin()
        transaction.insert(table, {"ID": at, "A": "x"})
        transaction.commit()
        for session in list(server.sessions.values()):
            session.is_killed = True
        log.reconnect()
        log.catch_up()
    assert values(log) == [("I", 1, "x"), ("I", 2, "x")]


# -- large objects ---------------------------------------------------------------------------------


def add_lobs(database: Database, **flags: Any) -> Any:
    """Create a table with two large objects."""
    return database.add_table("SHOP", "LOB", dict(LOBS), key=["ID"], **flags)


@pytest.mark.parametrize("flags", [{"lob_layout": "locator"}, {"lob_layout": "block"}])
def test_two_large_objects_whose_pieces_mix(
    database: Database, open_log: Open, flags: dict[str, Any]
) -> None:
    """DBZ-4366 and DBZ-7006: pieces of both columns, cut beside quotes."""
    table = add_lobs(database, lob_chunk=1000, **flags)
    log = open_log()
    first, second = ("'" + "a" * 998 + "'") * 5, ("b''" * 1400)
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": first, "D": second})
    transaction.commit()
    log.catch_up()
    assert state(log) == {1: {"ID": 1, "C": first, "D": second}}
    transaction = database.begin()
    transaction.update(table, row_id, {"C": second + "c", "D": first + "d"})
    transaction.commit()
    log.catch_up()
    assert state(log) == {1: {"ID": 1, "C": second + "c", "D": first + "d"}}


@pytest.mark.parametrize("flags", [{"lob_layout": "locator"}, {"lob_layout": "block"}])
def test_a_bulk_update_of_rows_with_large_objects(
    database: Database, open_log: Open, flags: dict[str, Any]
) -> None:
    """DBZ-6107: each row gets its own value, and not that of the row before it."""
    table = add_lobs(database, **flags)
    log = open_log()
    transaction = database.begin()
    ids = [transaction.insert(table, {"ID": at, "C": "-", "D": "-"}) for at in range(4)]
    transaction.commit()
    transaction = database.begin()
    for at, row_id in enumerate(ids):
        transaction.update(table, row_id, {"C": f"{at}" * 5000})
    for at, row_id in enumerate(ids):
        transaction.update(table, row_id, {"D": f"{at}" * 4500})
    transaction.commit()
    log.catch_up()
    assert state(log) == {
        at: {"ID": at, "C": f"{at}" * 5000, "D": f"{at}" * 4500} for at in range(4)
    }


def test_an_erased_part_of_a_large_object(database: Database, open_log: Open) -> None:
    """DBZ-5773: the redo does not have the value, so it is read as of the commit."""
    table = add_lobs(database)
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": "c" * 5000, "D": "d"})
    transaction.commit()
    log.catch_up()
    transaction = database.begin()
    lobs.edit_lob(transaction, table, row_id, "C", erase=(3, 2))
    transaction.commit()
    log.catch_up()
    assert rows(log)[-1] == ("U", {"ID": 1, "C": "c" + " " * 3 + "c" * 4996})


def test_large_objects_of_a_table_without_a_key(database: Database, open_log: Open) -> None:
    """DBZ-7790: two equal rows stay two rows."""
    table = database.add_table("SHOP", "LOB", dict(LOBS))
    log = open_log()
    transaction = database.begin()
    for _ in range(2):
        transaction.insert(table, {"ID": 1, "C": "c" * 5000, "D": "d"})
    transaction.commit()
    log.catch_up()
    written = [shown["C"] for _, shown in rows(log) if shown.get("C")]
    assert [op for op, _ in rows(log)].count("I") == 2
    assert written.count("c" * 5000) == 2


def test_an_update_of_a_large_object_alone(database: Database, open_log: Open) -> None:
    """The redo has no row of the table: the log has an update with all else absent."""
    table = add_lobs(database)
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "C": "c", "D": "d"})
    transaction.commit()
    transaction = database.begin()
    transaction.update(table, row_id, {"C": "x" * 6000})
    transaction.commit()
    log.catch_up()
    assert rows(log)[-1] == ("U", {"ID": 1, "C": "x" * 6000})


# -- texts of 32 KB --------------------------------------------------------------------------------


def add_texts(database: Database) -> Any:
    """Create a table with an extended VARCHAR2."""
    columns = {"ID": "NUMBER(10)", "A": "VARCHAR2(32767)", "B": "NUMBER(5)"}
    return database.add_table("SHOP", "TEXTS", columns, key=["ID"])


def test_extended_texts(database: Database, open_log: Open) -> None:
    """Long values are read as of the commit; short ones, and undone ones, are in the redo."""
    table = add_texts(database)
    log = open_log()
    long, longer = "it's " * 1500, "é" * 16_000
    transaction = database.begin()
    one = transaction.insert(table, {"ID": 1, "A": long, "B": 1})
    two = transaction.insert(table, {"ID": 2, "A": "short", "B": 2})
    transaction.savepoint("S")
    transaction.insert(table, {"ID": 3, "A": long, "B": 3})
    transaction.rollback_to("S")
    transaction.update(table, two, {"A": longer, "B": 4})
    transaction.commit()
    log.catch_up()
    assert state(log) == {
        1: {"ID": 1, "A": long, "B": 1},
        2: {"ID": 2, "A": longer, "B": 4},
    }
    transaction = database.begin()
    transaction.update(table, one, {"A": longer})
    transaction.savepoint("S")
    transaction.update(table, two, {"A": long})
    transaction.rollback_to("S")
    transaction.update(table, one, {"B": 9})
    transaction.commit()
    log.catch_up()
    assert state(log) == {
        1: {"ID": 1, "A": longer, "B": 9},
        2: {"ID": 2, "A": longer, "B": 4},
    }


def test_an_extended_text_that_is_gone(database: Database, open_log: Open) -> None:
    """Without undo the log ends by name; a row that the transaction deletes needs no value."""
    table = add_texts(database)
    log = open_log()
    transaction = database.begin()
    row_id = transaction.insert(table, {"ID": 1, "A": "x" * 5000, "B": 1})
    transaction.delete(table, row_id)
    transaction.commit()
    log.catch_up()
    assert state(log) == {}
    transaction = database.begin()
    transaction.insert(table, {"ID": 2, "A": "x" * 5000, "B": 1})
    transaction.commit()
    database.settings.undo_scn = database.scn + 10
    with pytest.raises(LobLost):
        log.catch_up()
