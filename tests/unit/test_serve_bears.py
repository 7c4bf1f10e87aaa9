"""Abuse that a server withstands: junk, silence, crowds, slow readers; others notice nothing."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.pipelines.log import ITEM, Change, commit_position, inserts, number_rows
from harness.servers.serve import Patterns, Running, answer_of, limits, settings_of, write_log
from harness.servers.serve_client import START, Raw, read_stream, wait_until
from penstock.codec.postgres.pgwire_server import Refused, frame_at, start_packet
from penstock.model import Op
from penstock.serve import chunks, numbers

MEMORY_MAX = 128 << 20
LARGE_ROWS = 65_535
SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server over a few rows, with low limits."""
    write_log(tmp_path / "log", number_rows([inserts(3)]))
    wanted = settings_of(limits=limits(pending=300, connections=20, login_s=10.0))
    patterns = Patterns({"select 1": answer_of([("one", 23)], [("1",)])})
    with Running(tmp_path, settings=wanted, patterns=patterns) as found:
        yield found


def answers(running: Running) -> None:
    """Check that the server answers another client."""
    with psycopg.connect(running.url(connect_timeout="20"), autocommit=True) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def memory() -> int:
    """Return the memory of this process, in which the server runs, too."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def open_connection(running: Running, stack: ExitStack, first: bytes) -> socket.socket:
    """Open a connection and send some bytes."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
    with suppress(OSError):  # it may have been closed already
        client.sendall(first)
    return client


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of descriptors, for both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


JUNK = {
    "silence": b"",
    "half a length": b"\0\0",
    "half a packet": struct.pack(">i", 9000) + b"\0\3\0\0user\0",
    "a huge length": b"\x7f\xff\xff\xff" + b"x" * 100_000,
    "letters": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4000,
    "zeros": bytes(200_000),
    "half a handshake": SSL_REQUEST + SSL_REQUEST[:5],
    "a login and junk": struct.pack(">ii", 27, 196608)
    + b"user\0repl\0a\0b\0\0\0\0\0"
    + b"p" * 200_000,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_thousand_connections_of_junk(running: Running, junk: bytes, many_files: None) -> None:
    """Memory grows by less than 128 MiB, and a client can log in all the time."""
    answers(running)
    before = memory()
    with ExitStack() as stack:
        first = open_connection(running, stack, junk)
        for _ in range(999):
            open_connection(running, stack, junk)
        answers(running)
        first.settimeout(5)  # less than the time after which silence closes it
        with suppress(ConnectionResetError):
            while first.recv(65_536):  # the oldest was closed for a new one, or was refused
                pass
        assert memory() - before < MEMORY_MAX
        assert running.server.pending_count <= 301
    answers(running)


def test_who_does_not_log_in_is_sent_away(tmp_path: Path) -> None:
    """The client is disconnected however slowly it continues."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    wanted = settings_of(limits=limits(login_s=0.5))
    with Running(tmp_path, settings=wanted) as running:
        client = Raw(running, login=False)
        packet = struct.pack(">ii", 100, 196608) + b"user\0repl"
        with suppress(OSError):
            for at in range(len(packet)):
                client.socket.sendall(packet[at : at + 1])
                time.sleep(0.1)
        with suppress(ConnectionResetError):
            assert client.socket.recv(1) in (b"", b"E")
        client.close()
        wait_until(lambda: running.server.pending_count == 0)


def test_too_many_clients(running: Running) -> None:
    """The error has the limit, and a client that leaves makes room."""
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(psycopg.connect(running.url()))
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(running.url())
    wait_until(lambda: not running.serving.clients)
    answers(running)


def test_a_message_that_is_too_long(running: Running) -> None:
    """The message's length is refused; no byte of it is read."""
    client = Raw(running)
    client.socket.sendall(b"Q" + struct.pack(">i", 1 << 30))
    assert b"C08P01\0" in client.message()[1]
    client.close()


@contextmanager
def speaking(client: Raw) -> Iterator[None]:
    """Keep reporting the client's position, as real ones do while they wait."""
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(0.5):
            client.status(0)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """The client's queue is limited, others are served, and it is disconnected in the end."""
    note = "x" * 10_000
    groups = number_rows([inserts(1)])
    write_log(tmp_path / "log", groups)
    wanted = settings_of(limits=limits(sender_s=6.0))
    patterns = Patterns({"select 1": answer_of([("one", 23)], [("1",)])})
    with Running(tmp_path, settings=wanted, patterns=patterns) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.query(START)
        client.message()
        from dataclasses import replace

        before = memory()
        made = [inserts(1)]
        for at in range(40):
            rows = inserts(500, first=1 + 500 * at)
            made.append([replace(one, after=(one.after[0], note)) for one in rows])  # type: ignore[index]
        write_log(tmp_path / "log", number_rows(made)[1:])
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            answers(running)
            assert memory() - before < MEMORY_MAX
        wait_until(lambda: not running.serving.senders)
        client.close()
        again = Raw(running)
        again.query(START)
        again.message()
        end = numbers.end_of(1 + 40 * 500, 41)
        found: list[tuple[str, int]] = []
        with speaking(again):
            while not found or found[-1] != ("C", end):
                found = read_stream(again, until="C")
        again.close()


@given(st.binary(max_size=60), st.booleans())
def test_start_packets_of_any_bytes(data: bytes, framed: bool) -> None:
    """Packets are parsed, incomplete, or refused, with no other result."""
    if framed:
        data = struct.pack(">ii", 8 + len(data), 196608) + data
    with suppress(Refused):
        start_packet(data)


_LETTERS = st.sampled_from([bytes((letter,)) for letter in b"QPBDECHSFdcfXpRZ\0"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            _LETTERS,
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        b"select 1\0",
                        b"\0select 1\0\0\0",
                        b"\0\0\0\0\0\0\0\0",
                        b"S\0",
                        b"P\0",
                        b"\0\0\0\0\0",
                        START.encode() + b"\0",
                        b"IDENTIFY_SYSTEM\0",
                    ]
                ),
            ),
        ),
        max_size=12,
    )
)
def test_messages_of_any_bytes(fuzzed_server: Running, messages: list[tuple[bytes, bytes]]) -> None:
    """Messages are answered or refused; the server continues, and is ready when it should be."""
    client = Raw(fuzzed_server)
    try:
        for kind, body in messages:
            client.say(kind, body)
        client.say(b"S")
        client.say(b"X")
        while True:
            client.message()
    except (EOFError, OSError):
        pass
    finally:
        client.close()
    assert not fuzzed_server.serving.failed.done()


@pytest.fixture(scope="module")
def fuzzed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for many clients."""
    root = tmp_path_factory.mktemp("fuzzed")
    write_log(root / "log", number_rows([inserts(3)]))
    patterns = Patterns({"select 1": answer_of([("one", 23)], [("1",)])})
    with Running(root, patterns=patterns) as found:
        yield found
        answers(found)


@given(st.binary(max_size=12), st.integers(4, 64))
def test_frames_of_any_bytes(data: bytes, length_max: int) -> None:
    """A frame is inside the buffer, incomplete, or refused."""
    with suppress(Refused):
        found = frame_at(data, 0, len(data), length_max)
        assert found is None or found.end <= len(data)


def create_text_slot(running: Running) -> None:
    """Create a slot of test_decoding, which is encoded row by row, from the log's beginning on."""
    client = Raw(running)
    client.query("CREATE_REPLICATION_SLOT s LOGICAL test_decoding NOEXPORT_SNAPSHOT")
    client.until(b"Z")
    client.close()


TEXT_START = "START_REPLICATION SLOT s LOGICAL 0/0"


@pytest.mark.usefixtures("block_limit")
def test_a_client_hears_of_us_while_a_large_block_is_made(tmp_path: Path) -> None:
    """The client asks repeatedly, and is answered at once each time, long before the block is
    there.
    """
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with Running(tmp_path) as running:
        create_text_slot(running)
        append_large(tmp_path)
        client = Raw(running)
        client.query(TEXT_START)
        assert client.message()[0] == b"W"
        began = last = time.monotonic()
        longest, answers, size = 0.0, 0, 0
        ended = threading.Event()

        def ask() -> None:
            while not ended.wait(0.02):
                with suppress(OSError):
                    client.status(0, reply=True)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            while True:
                _, body = client.message()
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                if body[:1] == b"w":
                    break
                answers += 1
            made_s = now - began
            size = len(body)
            while body[25:26] != b"C" or body[:1] != b"w":
                _, body = client.message()
                size += len(body)
        finally:
            ended.set()
            asking.join()
        client.close()
    assert size > 8 << 20
    assert answers > 5
    assert longest < made_s / 3, (longest, made_s)


@pytest.mark.usefixtures("block_limit")
def test_a_client_that_answers_is_not_sent_away_while_a_large_block_is_made(
    tmp_path: Path,
) -> None:
    """The client only sends answers; the question does not wait for any part of the block."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    settings = settings_of(limits=limits(sender_s=0.8))
    with Running(tmp_path, settings=settings) as running:
        create_text_slot(running)
        append_large(tmp_path, rows=6 * LARGE_ROWS)  # longer than sender_s on a fast machine
        client = Raw(running)
        client.query(TEXT_START)
        assert client.message()[0] == b"W"
        began, asked = time.monotonic(), 0
        while True:
            _, body = client.message()
            if body[:1] == b"w":
                break
            if body[-1]:
                asked += 1
                client.status(0)
        made_s = time.monotonic() - began
        client.close()
    assert made_s > settings.limits.sender_s, "else nothing was tested"
    assert asked


@pytest.fixture
def block_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit at which a block has a whole transaction, however large."""
    monkeypatch.setattr(chunks, "PART_ROWS_WANTED", 10 * LARGE_ROWS)
    monkeypatch.setattr(chunks, "PART_BYTES_WANTED", 1 << 30)


def append_large(root: Path, *, rows: int = LARGE_ROWS) -> None:
    """Append a transaction of many MB whose text takes a while."""
    body = "x" * 200
    one = number_rows([inserts(1)])[0][0]
    written = [
        replace(one, gsn=n, trx=2, position=commit_position(2), change=change)
        for n, change in enumerate(
            (Change(relation=ITEM, op=Op.INSERT, after=(n, f"{body}{n}")) for n in range(rows)),
            2,
        )
    ]
    write_log(root / "log", [written])
