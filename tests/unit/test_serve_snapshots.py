"""Snapshots of the base: answers of COPY and SELECT at a slot's position, and their lifetime."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import (
    ITEM,
    SOURCE,
    Change,
    commit_position,
    inserts,
    number_rows,
    run_of,
)
from harness.servers.serve import Running, settings_of, source_log, write_base, write_log
from penstock.log import Writer
from penstock.model import Op

OLD = [(7, "seven"), (8, "eight\t\\\n"), (9, None)]
# Rows 0 to 2 are inserted, 8 changes, 9 is deleted.
CHANGED = [
    inserts(3),
    [
        Change(relation=ITEM, op=Op.UPDATE, after=(8, "acht")),
        Change(relation=ITEM, op=Op.DELETE, after=None, before=(9,)),
    ],
]
ROWS = number_rows(CHANGED)


@pytest.fixture
def based_server(tmp_path: Path) -> Iterator[Running]:
    """A server of a log with a base of one table."""
    write_log(tmp_path / "log", ROWS)
    with closing(source_log(tmp_path)) as log:
        write_base(tmp_path, {ITEM: OLD}, log.head().log_id)
    with Running(tmp_path, relations=[ITEM]) as found:
        yield found


@pytest.fixture
def session(based_server: Running) -> Iterator[psycopg.Connection]:
    """A connection for SQL."""
    with psycopg.connect(based_server.url(), autocommit=True) as found:
        yield found


def notes() -> dict[int, Any]:
    """Return the table at the log's end."""
    return {**{c.after[0]: c.after[1] for c in CHANGED[0] if c.after}, 7: "seven", 8: "acht"}


def copy_out(connection: psycopg.Connection, query: str) -> list[bytes]:
    """Return the messages of a COPY."""
    with connection.cursor().copy(query) as copy:  # type: ignore[arg-type]
        return [bytes(data) for data in copy]


def list_held(running: Running) -> list[Path]:
    """Return the states that are held on the disk."""
    return list((running.root / "base" / "held" / "serve").glob("*"))


def more(running: Running, first: int) -> None:
    """Append a transaction to the log."""
    with Writer.open(running.root / "log", log_id=None, source=SOURCE) as writer:
        start = writer.end
        rows = number_rows([inserts(1, first=first)])[0]
        shifted = [
            type(row)(
                gsn=row.gsn + start.gsn,
                trx=row.trx + start.trx,
                position=commit_position(row.trx + start.trx),
                change=row.change,
            )
            for row in rows
        ]
        writer.write(run_of(shifted))
        writer.flush()


def test_rows_are_those_of_the_base_with_the_log(session: psycopg.Connection) -> None:
    """SELECT of all, of columns, with conditions, sorted; counts; COPY in text and binary."""
    rows = dict(session.execute("select * from item").fetchall())
    assert rows == notes()
    assert session.execute("select note from public.item where id = 8").fetchall() == [("acht",)]
    assert session.execute("select count(*) from item where id >= 7").fetchall() == [(2,)]
    found = session.execute("select id from item order by id desc limit 2 offset 1").fetchall()
    assert found == [(7,), (max(n for n in notes() if n < 7),)]
    assert session.execute("select id from item where id = %s", (7,)).fetchall() == [(7,)]
    assert copy_out(session, "copy item (note, id) to stdout")[-1:] == [b"acht\t8\n"]
    filtered = copy_out(session, "COPY (SELECT id FROM ONLY public.item WHERE (id > 7)) TO STDOUT")
    assert filtered == [b"8\n"]
    binary = copy_out(session, "copy item to stdout (format binary)")
    assert binary[0].startswith(b"PGCOPY\n\xff\r\n\0")
    assert b"\0\2\0\0\0\4\0\0\0\7\0\0\0\5seven" in binary
    assert binary[-1] == b"\xff\xff"


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("select note || 'x' from item", "0A000"),
        ("select * from item, item b", "0A000"),
        ("select nothing from item", "42703"),
        ("select * from missing", "42P01"),
        ("copy missing to stdout", "42P01"),
        ("copy item from stdin", "0A000"),
        ("select * from item where id = (select 1)", "0A000"),
    ],
)
def test_what_is_not_answered_is_refused(
    session: psycopg.Connection, query: str, state: str
) -> None:
    """The refusal has an SQLSTATE; the connection continues."""
    with pytest.raises(psycopg.Error) as caught:
        session.execute(query)  # type: ignore[arg-type]
    assert caught.value.sqlstate == state
    assert session.execute("select count(*) from item").fetchone() == (5,)


@pytest.mark.parametrize("number", ["0", "65536", "4000000000", "9" * 5000])
def test_a_parameter_that_no_statement_has_is_refused(
    session: psycopg.Connection, number: str
) -> None:
    """The preceding parameters are not kept."""
    query = f"select id from item where id = ${number}"
    found = session.pgconn.prepare(b"", query.encode())
    assert found.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"42P02"
    assert session.execute("select count(*) from item").fetchone() == (5,)


def test_a_cursor_reads_piece_by_piece(session: psycopg.Connection) -> None:
    """A driver with a fetch size does so."""
    with session.transaction():
        found = session.cursor().stream("select id from item")
        assert sorted(row[0] for row in found) == sorted(notes())


def test_a_slots_snapshot_is_that_of_its_position(based_server: Running) -> None:
    """The transaction that created it uses it; later rows are not in it, and are streamed."""
    with psycopg.connect(based_server.url(replication="database"), autocommit=True) as connection:
        for text in (
            "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ",
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'use')",
        ):
            result = connection.pgconn.exec_(text.encode())
            assert result.status in (1, 2), result.error_message
        more(based_server, 100)
        rows = connection.pgconn.exec_(b"select count(*) from item")
        assert rows.get_value(0, 0) == b"5"
        assert len(list_held(based_server)) == 1
        connection.pgconn.exec_(b"COMMIT")
        assert not list_held(based_server)
        rows = connection.pgconn.exec_(b"select count(*) from item")
        assert rows.get_value(0, 0) == b"6"


def test_an_exported_snapshot_lives_until_the_next_command(based_server: Running) -> None:
    """Another session imports it, and has it as long as its transaction lasts."""
    with (
        psycopg.connect(based_server.url(replication="database"), autocommit=True) as maker,
        psycopg.connect(based_server.url(), autocommit=True) as reader,
    ):
        made = maker.pgconn.exec_(b"CREATE_REPLICATION_SLOT e LOGICAL pgoutput EXPORT_SNAPSHOT")
        name = (made.get_value(0, 2) or b"").decode()
        more(based_server, 100)
        reader.execute("begin transaction isolation level repeatable read")
        reader.execute(f"set transaction snapshot '{name}'")  # type: ignore[arg-type]
        assert reader.execute("select count(*) from item").fetchone() == (5,)
        maker.pgconn.exec_(b"IDENTIFY_SYSTEM")
        assert reader.execute("select count(*) from item").fetchone() == (5,)
        reader.execute("commit")
        assert not list_held(based_server)
        reader.execute("begin transaction isolation level repeatable read")
        with pytest.raises(psycopg.Error) as caught:
            reader.execute(f"set transaction snapshot '{name}'")  # type: ignore[arg-type]
        assert caught.value.sqlstate in ("42704", "22023")
        reader.execute("rollback")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_repeatable_read_sees_one_state(based_server: Running, level: str) -> None:
    """The state begins with its first query; read committed sees the present state each time."""
    with psycopg.connect(based_server.url(), autocommit=True) as connection:
        connection.execute(f"begin isolation level {level}")  # type: ignore[arg-type]
        assert connection.execute("select count(*) from item").fetchone() == (5,)
        more(based_server, 100)
        assert connection.execute("select count(*) from item").fetchone() == (5,)
        connection.execute("commit")
        assert connection.execute("select count(*) from item").fetchone() == (6,)
    wait = threading.Event()
    for _ in range(100):
        if not list_held(based_server):
            break
        wait.wait(0.05)
    assert not list_held(based_server)


def test_a_read_time_is_a_snapshot_of_its_slot(tmp_path: Path) -> None:
    """The snapshot lasts until the slot is streamed from or dropped, in the dialect that has it."""
    write_log(tmp_path / "log", ROWS)
    with closing(source_log(tmp_path)) as log:
        write_base(tmp_path, {ITEM: OLD}, log.head().log_id)
    settings = settings_of(dialect="yugabyte")
    with (
        Running(tmp_path, relations=[ITEM], settings=settings) as running,
        psycopg.connect(running.url(replication="database"), autocommit=True) as maker,
        psycopg.connect(running.url(), autocommit=True) as reader,
    ):
        made = maker.pgconn.exec_(b"CREATE_REPLICATION_SLOT y LOGICAL yboutput")
        name = (made.get_value(0, 2) or b"").decode()
        assert name.isdigit()
        maker.pgconn.exec_(b"IDENTIFY_SYSTEM")
        more(running, 100)
        reader.execute("begin")
        reader.execute(f"set local yb_read_time to '{name} ht'")  # type: ignore[arg-type]
        assert reader.execute("select count(*) from item").fetchone() == (5,)
        reader.execute("commit")
        assert reader.execute("select count(*) from item").fetchone() == (6,)
        assert len(list_held(running)) == 1
        maker.pgconn.exec_(b"DROP_REPLICATION_SLOT y")
        assert not list_held(running)
