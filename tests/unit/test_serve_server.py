"""A server of the log, asked by libpq: log-ins, commands, streams, and refusals."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import inserts, number_rows
from harness.servers.serve import (
    EVERYTHING,
    PASSWORD,
    Patterns,
    Running,
    answer_of,
    limits,
    make_publications,
    settings_of,
    write_log,
)
from harness.servers.serve_client import START, Raw, read_stream, wait_until
from penstock.serve import numbers

STATUS = psycopg.pq.ExecStatus
DONE = (STATUS.TUPLES_OK, STATUS.COMMAND_OK, STATUS.EMPTY_QUERY)
ROWS = number_rows([inserts(3), inserts(2, first=3)])
END = numbers.end_of(5, 2)


def lsn(position: int) -> str:
    """Return the position as text."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server over two transactions."""
    write_log(tmp_path / "log", ROWS)
    given = {
        "select 1": answer_of([("one", 23)], [("1",)]),
        "select many": answer_of([("n", 23)], [(str(n),) for n in range(1000)]),
    }
    with Running(tmp_path, patterns=Patterns(given)) as found:
        yield found


def replication(running: Running, **more: str) -> psycopg.Connection:
    """Open a connection for replication commands."""
    return psycopg.connect(running.url(replication="database", **more), autocommit=True)


def ask(connection: psycopg.Connection, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a command of the simple protocol."""
    result = connection.pgconn.exec_(text.encode())
    if result.status not in DONE:
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        raise AssertionError(f"{(state or b'').decode()} {result.error_message.decode()}")
    rows = range(result.ntuples)
    cells = [[result.get_value(row, at) for at in range(result.nfields)] for row in rows]
    return [tuple(None if one is None else one.decode() for one in row) for row in cells]


def refusal(connection: psycopg.Connection, text: str) -> str:
    """Return the SQLSTATE of a command that fails."""
    result = connection.pgconn.exec_(text.encode())
    assert result.status == STATUS.FATAL_ERROR, result.status
    return (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()


def test_a_wrong_password_an_unknown_user_another_database(running: Running) -> None:
    """Each is refused; the first two look alike."""
    for changed, state in (
        ({"password": "wrong"}, "28P01"),
        ({"user": "nobody"}, "28P01"),
        ({"dbname": "other"}, "3D000"),
    ):
        url = " ".join(
            f"{k}={v}"
            for k, v in {
                "host": "127.0.0.1",
                "port": str(running.port),
                "user": "repl",
                "dbname": "shop",
                "password": PASSWORD,
                **changed,
            }.items()
        )
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(url)
        text = str(caught.value)
        assert ("password authentication failed" in text) == (state == "28P01")
        assert ("does not exist" in text) == (state == "3D000")


def test_queries_of_both_protocols(running: Running) -> None:
    """Queries are simple, extended, and in pieces; after an error the connection continues."""
    with psycopg.connect(running.url(), autocommit=True) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        assert len(connection.execute("select many").fetchall()) == 1000
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("select unknown")
        assert ask(connection, "select 1") == [("1",)]
        assert refusal(connection, "select unknown") == "0A000"
        assert ask(connection, "") == []
        with connection.pipeline():
            first = connection.execute("select 1")
            second = connection.execute("select many")
        assert (first.fetchone(), len(second.fetchall())) == ((1,), 1000)


def test_binary_results(running: Running) -> None:
    """An int has its binary form."""
    with psycopg.connect(running.url(), autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        assert cursor.execute("select 1").fetchone() == (1,)


def test_the_commands_of_a_replication_connection(running: Running) -> None:
    """Commands tell the server's identity, and handle slots from their creation to their end."""
    with replication(running) as connection:
        ((system, timeline, position, database),) = ask(connection, "IDENTIFY_SYSTEM")
        assert system.isdigit()
        assert (timeline, position, database) == ("1", lsn(END), "shop")
        made = ask(connection, "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')")
        assert made == [("s", lsn(END), None, "pgoutput")]
        create = "CREATE_REPLICATION_SLOT {} LOGICAL {}"
        assert refusal(connection, create.format("s", "pgoutput NOEXPORT_SNAPSHOT")) == "42710"
        assert refusal(connection, create.format("t", "pgoutput")) == "0A000"
        assert refusal(connection, create.format("t", "wal9json NOEXPORT_SNAPSHOT")) == "0A000"
        two_phase = "pgoutput (TWO_PHASE, SNAPSHOT 'nothing')"
        assert refusal(connection, create.format("t", two_phase)) == "0A000"
        assert refusal(connection, "READ_REPLICATION_SLOT s") == "0A000"
        assert ask(connection, "READ_REPLICATION_SLOT t") == [(None, None, None)]
        assert ask(connection, "ALTER_REPLICATION_SLOT s (FAILOVER false)") == []
        assert refusal(connection, "TIMELINE_HISTORY 1") == "58P01"
        start = "START_REPLICATION SLOT {} LOGICAL {} (proto_version '{}', publication_names '{}')"
        assert refusal(connection, start.format("t", "0/0", 1, "p")) == "42704"
        assert refusal(connection, start.format("s", "0/0", 1, "q")) == "42704"
        assert refusal(connection, start.format("s", "0/0", 9, "p")) == "0A000"
        assert refusal(connection, start.format("s", lsn(END + 1), 1, "p")) == "55000"
        assert refusal(connection, "DROP_REPLICATION_SLOT t") == "42704"
        assert ask(connection, "DROP_REPLICATION_SLOT s WAIT") == []
        assert refusal(connection, "SELECT") == "0A000"


def test_slots_outlast_the_server_and_temporary_ones_do_not(tmp_path: Path) -> None:
    """The state file has the former; the latter are dropped at the connection's end."""
    write_log(tmp_path / "log", ROWS)
    with Running(tmp_path) as running, replication(running) as connection:
        ask(connection, "CREATE_REPLICATION_SLOT kept LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        ask(connection, "CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        with replication(running) as other:
            assert refusal(other, "DROP_REPLICATION_SLOT t") == "55006"
        assert [one.slot_name for one in running.serving.slot_rows()] == ["kept", "t"]
    with Running(tmp_path) as running:
        assert [one.slot_name for one in running.serving.slot_rows()] == ["kept"]
        with replication(running) as connection:
            ask(
                connection, "CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
            )
        wait_until(lambda: len(running.serving.slot_rows()) == 1)


def test_a_stream_from_its_begin_to_its_end(tmp_path: Path) -> None:
    """Rows are sent as they are written; three messages answer CopyDone, and the slot keeps its
    place.
    """
    write_log(tmp_path / "log", ROWS)
    with Running(tmp_path) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.query(START)
        assert client.message()[0] == b"W"
        more = number_rows([inserts(3), inserts(2, first=3), inserts(4, first=5)])
        write_log(tmp_path / "log", more[2:])
        found = read_stream(client, until="C")
        assert [kind for kind, _ in found] == ["B", "R", "I", "I", "I", "I", "C"]
        assert found[-1][1] == numbers.end_of(9, 3)
        other = Raw(running)
        other.query(START)
        assert other.message()[0] == b"E"
        client.status(found[-1][1], reply=True)
        while (message := client.message())[1][:1] != b"k":
            pass
        assert message[1][:1] == b"k"
        client.say(b"c")
        kinds = [kind for kind, body in client.until(b"Z") if not body.startswith(b"k")]
        assert kinds == [b"c", b"C", b"C", b"Z"]
        assert running.serving.slot_rows()[0].confirmed_flush_lsn == numbers.end_of(9, 3)
        client.query(START)
        assert client.message()[0] == b"W"
        client.close()
        other.close()


def test_confirming_more_than_was_sent_moves_nothing_further(tmp_path: Path) -> None:
    """A client with a false report loses no row that it was not sent."""
    write_log(tmp_path / "log", ROWS)
    with Running(tmp_path) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.query(START)
        assert client.message()[0] == b"W"
        client.status(END + 1000, reply=True)
        client.message()
        assert running.serving.slot_rows()[0].confirmed_flush_lsn == END
        client.status(0, reply=True)
        client.message()
        assert running.serving.slot_rows()[0].confirmed_flush_lsn == END
        client.close()


def test_a_silent_client_is_asked_and_sent_away(tmp_path: Path) -> None:
    """A keepalive that wants an answer is sent first."""
    write_log(tmp_path / "log", ROWS)
    settings = settings_of(limits=limits(sender_s=1.0))
    with Running(tmp_path, settings=settings) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.query(START)
        asked = False
        with suppress(EOFError, ConnectionResetError):
            while True:  # until it is disconnected
                kind, body = client.message()
                asked = asked or (kind == b"d" and body[:1] == b"k" and body[-1] == 1)
        assert asked
        client.close()
        wait_until(lambda: running.serving.slot_rows()[0].active_pid is None)


def test_a_stream_is_cancelled(tmp_path: Path) -> None:
    """The stream's key cancels it, as in libpq; a wrong key has no effect."""
    write_log(tmp_path / "log", ROWS)
    with Running(tmp_path) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.query(START)
        client.message()
        ((pid, found),) = running.serving.clients.items()
        for secret in (b"\0\0\0\0", found.secret):
            other = Raw(running, login=False)
            other.socket.sendall(struct.pack(">iiI", 16, 80877102, pid) + secret)
            assert other.socket.recv(1) == b""
            other.close()
        messages = client.until(b"Z")
        assert messages[-2][0] == b"E"
        assert b"C57014\0" in messages[-2][1]
        client.query("IDENTIFY_SYSTEM")
        assert client.until(b"Z")[0][0] == b"T"
        client.close()


def test_dropping_waits_for_the_stream(running: Running) -> None:
    """DROP ... WAIT returns when the other client has gone."""
    client = Raw(running)
    client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
    client.until(b"Z")
    client.query(START)
    client.message()
    with replication(running) as other:
        assert refusal(other, "DROP_REPLICATION_SLOT s") == "55006"
        done = threading.Event()

        def drop() -> None:
            ask(other, "DROP_REPLICATION_SLOT s WAIT")
            done.set()

        thread = threading.Thread(target=drop)
        thread.start()
        assert not done.wait(0.3)
        client.close()
        assert done.wait(20)
        thread.join()
    assert running.serving.slot_rows() == []


def test_a_client_that_has_everything_is_told_so(running: Running) -> None:
    """The client is told at once: its user may have asked for a position that it has."""
    client = Raw(running)
    client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
    client.until(b"Z")
    client.query(START)
    assert client.message()[0] == b"W"
    kind, body = client.message()
    assert (kind, body[:1]) == (b"d", b"k")
    assert struct.unpack_from(">Q", body, 1)[0] == END
    client.close()


def test_a_publication_that_is_made_later(tmp_path: Path) -> None:
    """No earlier row is sent, whether it is in the same segment or not."""
    write_log(tmp_path / "log", ROWS)
    publications = make_publications(EVERYTHING)
    with Running(tmp_path, publications=publications) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        more = number_rows(
            [inserts(3), inserts(2, first=3), *(inserts(1, first=n) for n in range(5, 8))]
        )
        write_log(tmp_path / "log", more[2:4])
        position = numbers.end_of(7, 4)
        publications.change(position, "late", replace(EVERYTHING, name="late"))
        client.query(START.replace("'p'", "'late'"))
        assert client.message()[0] == b"W"
        write_log(tmp_path / "log", more[4:])
        found = read_stream(client, until="C")
        assert [kind for kind, _ in found] == ["B", "R", "I", "C"]
        assert found[-1][1] == numbers.end_of(8, 5)
        client.close()
