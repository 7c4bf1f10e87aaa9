"""Changes of a slot as rows of a query: consumed, peeked at, as text and binary, with limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.serve import Running, write_log
from penstock.serve import numbers, server_functions

GROUPS = [inserts(2), inserts(1, first=2), inserts(3, first=3), inserts(2, first=6)]
ROWS = number_rows(GROUPS)
ENDS = [numbers.end_of(2, 1), numbers.end_of(3, 2), numbers.end_of(6, 3), numbers.end_of(8, 4)]
OPTIONS = "'proto_version', '1', 'publication_names', 'p'"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server whose log had one transaction when its slots were created, and has three more."""
    write_log(tmp_path / "log", ROWS[:1])
    with Running(tmp_path, relations=[ITEM]) as found:
        with psycopg.connect(found.url(), autocommit=True) as asked:
            for name, plugin in (("b", "pgoutput"), ("t", "test_decoding"), ("j", "wal2json")):
                asked.execute("select pg_create_logical_replication_slot(%s, %s)", (name, plugin))
        write_log(tmp_path / "log", ROWS[1:])
        yield found


@pytest.fixture
def session(running: Running) -> Iterator[psycopg.Connection]:
    """A connection for SQL."""
    with psycopg.connect(running.url(), autocommit=True) as found:
        yield found


def lsn(text: str) -> int:
    """Return a position as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def read_confirmed(session: psycopg.Connection, slot: str) -> int:
    """Return a slot's confirmed position."""
    query = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
    return lsn(session.execute(query, (slot,)).fetchall()[0][0])


def rows(session: psycopg.Connection, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return session.execute(query).fetchall()  # type: ignore[arg-type]


def test_changes_are_peeked_at_and_got_once(session: psycopg.Connection) -> None:
    """Text has whole transactions with a common number; the slot moves when they are consumed."""
    query = "select * from pg_logical_slot_{}_changes('t', null, null)"
    peeked = rows(session, query.format("peek"))
    words = [data.split()[0] for _, _, data in peeked]
    table = ["table"]
    wanted = [
        *("BEGIN", *table, "COMMIT"),
        *("BEGIN", *table * 3, "COMMIT"),
        *("BEGIN", *table * 2, "COMMIT"),
    ]
    assert words == wanted
    assert [lsn(at) for at, _, data in peeked if data.startswith("COMMIT")] == ENDS[1:]
    assert len({xid for _, xid, _ in peeked}) == 3
    assert all(f"BEGIN {xid}" == data for _, xid, data in peeked if data.startswith("BEGIN"))
    assert read_confirmed(session, "t") == ENDS[0]
    assert rows(session, query.format("get")) == peeked
    assert read_confirmed(session, "t") == ENDS[-1]
    assert rows(session, query.format("get")) == []


def test_numbers_of_transactions_that_a_text_leaves_out(session: psycopg.Connection) -> None:
    """The numbers are in their column nevertheless."""
    query = "select xid from pg_logical_slot_peek_changes('t', null, null{}) "
    without = rows(session, query.format(", 'include-xids', '0', 'skip-empty-xacts', '1'"))
    assert without == rows(session, query.format(""))
    assert ("0",) not in without
    assert (0,) not in without


def test_limits_are_of_whole_transactions(session: psycopg.Connection) -> None:
    """The limits are rows and position; the next call returns the rest."""

    def count(limits: str, word: str = "get") -> int:
        query = f"select count(*) from pg_logical_slot_{word}_changes('t', {limits})"
        return int(rows(session, query)[0][0])

    assert count("null, 1", "peek") == 3
    assert count("null, 3", "peek") == 3
    assert count("null, 4", "peek") == 8
    inside = f"'0/{ENDS[2] - 1:X}', null"
    assert count(inside, "peek") == 3
    assert count(f"'0/{ENDS[2]:X}', null", "peek") == 8
    assert count("'0/1', null") == 0
    assert read_confirmed(session, "t") == ENDS[0]
    assert count("null, 1") == 3
    assert read_confirmed(session, "t") == ENDS[1]
    assert count(inside) == 0
    assert read_confirmed(session, "t") == ENDS[2] - 1
    assert count("null, null") == 9


def test_binary_changes(session: psycopg.Connection) -> None:
    """Binary changes have pgoutput's shapes first, and texts as their bytes."""
    query = f"pg_logical_slot_get_binary_changes('b', null, null, {OPTIONS})"
    found = rows(session, f"select data, xid, lsn from {query}")
    assert [bytes(data)[:1] for data, _, _ in found] == [
        *(b"B", b"R", b"I", b"C"),
        *(b"B", b"I", b"I", b"I", b"C"),
        *(b"B", b"I", b"I", b"C"),
    ]
    assert read_confirmed(session, "b") == ENDS[-1]
    (first,) = rows(
        session, "select data from pg_logical_slot_peek_binary_changes('t', null, null) limit 1"
    )
    assert bytes(first[0]).startswith(b"BEGIN")


def test_changes_in_a_select_list(session: psycopg.Connection) -> None:
    """A change is one value, like any record; wal2json has its options."""
    found = rows(session, "select pg_logical_slot_peek_changes('t', null, 1)::text")
    assert str(found[0][0]).startswith("(0/")
    query = (
        "select data from pg_logical_slot_peek_changes('j', null, null, 'format-version', '2',"
        " 'include-transaction', 'false')"
    )
    assert len(rows(session, query)) == 6


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("pg_logical_slot_get_changes('none', null, null)", "42704"),
        ("pg_logical_slot_get_changes(null, null, null)", "22004"),
        (f"pg_logical_slot_get_changes('b', null, null, {OPTIONS})", "0A000"),
        ("pg_logical_slot_get_binary_changes('b', null, null)", "0A000"),
        ("pg_logical_slot_get_changes('t', null, null, 'include-xids')", "0A000"),
        ("pg_logical_slot_get_changes('t', null, null, 'colour', 'red')", "22023"),
    ],
)
def test_changes_that_are_refused(session: psycopg.Connection, call: str, state: str) -> None:
    """The slot is free afterwards, and unmoved."""
    with pytest.raises(psycopg.Error) as caught:
        rows(session, f"select * from {call}")
    assert caught.value.sqlstate == state
    query = "select count(*) from pg_replication_slots where not active"
    assert rows(session, query) == [(3,)]
    assert read_confirmed(session, "t") == ENDS[0]


def test_what_is_answered_at_once_is_limited(
    session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has whole transactions; the next call has the rest; a too large one is refused."""
    query = "select data from pg_logical_slot_get_changes('t', null, null)"
    monkeypatch.setattr(server_functions, "CHANGES_BYTES_MAX", 70)
    assert len(rows(session, query)) == 3
    assert read_confirmed(session, "t") == ENDS[1]
    with pytest.raises(psycopg.Error) as caught:
        rows(session, query)
    assert caught.value.sqlstate == "54000"
    assert read_confirmed(session, "t") == ENDS[1]


def test_what_is_got_is_durable(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new position is durable before the answer."""
    slots = running.serving.slots
    written: list[int] = []
    write = slots._write

    def watch_write(*given: Any) -> None:
        write(*given)
        written.append(next(one.saved.confirmed for one in slots.all() if one.saved.name == "t"))

    monkeypatch.setattr(slots, "_write", watch_write)
    with psycopg.connect(running.url(), autocommit=True) as asked:
        asked.execute("select * from pg_logical_slot_peek_changes('t', null, 1)")
        assert written == []
        asked.execute("select * from pg_logical_slot_get_changes('t', null, 1)")
        assert written[0] == ENDS[1]
