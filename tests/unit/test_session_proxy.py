"""Sessions passed to clients that are killed, silent, too many, or strangers; plain and TLS."""

from __future__ import annotations

import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count

import pytest

from penstock.codec.lines import CellForm, LineDialect, TextCell
from penstock.codec.mysql import mysqlwire
from penstock.engines.mysql.proxy_protocol import (
    ProxyAddress,
    SnapshotGone,
    greet,
    is_alive,
)
from penstock.engines.mysql.source import session_proxy
from penstock.engines.mysql.source.bulk_reader import RowsOfChunk
from penstock.engines.mysql.source.proxied_session import ProxiedSession, open_proxied
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.host.errors import ConnectionLost
from penstock.host.listen import PORTS, SnapshotAddress
from penstock.host.socket import Wire
from penstock.ports.bulk import SnapshotUnreachable

TEXT = "binlog.000001:4/now"
WAIT_S = 30.0
ROW_BYTES = 2000
OK = b"\x00\x00\x00\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"


class FakeServer:
    """The server's end of a session. `select N` returns N rows with its number and theirs."""

    def __init__(self, number: int) -> None:
        self.number = number
        ours, self._theirs = socket.socketpair()
        self.wire = Wire(ours, f"session {number}")
        self.sent_bytes = 0
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End the session, like a server that is stopped."""
        self._theirs.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and its thread."""
        with suppress(OSError):
            self.cut()
        self._thread.join(WAIT_S)
        self._theirs.close()
        self.wire.close()

    def _answer(self) -> None:
        stream = self._theirs.makefile("rb")
        with suppress(OSError), stream:
            while len(head := stream.read(4)) == 4:
                command = stream.read(int.from_bytes(head[:3], "little"))
                self.asked.append(command)
                if command[:1] == b"\x01":
                    return
                for packet in self._result(command[1:]):
                    self._theirs.sendall(packet)
                    self.sent_bytes += len(packet)

    def _result(self, statement: bytes) -> Iterator[bytes]:
        if not statement.startswith(b"select"):
            yield _packet(1, OK)
            return
        numbers = (number % 256 for number in count(1))
        yield _packet(next(numbers), b"\x01")
        yield _packet(next(numbers), b"\x03def\x00\x00\x00\x01t")
        yield _packet(next(numbers), END)
        asked = statement.split()[1]
        if asked.startswith(b"'"):
            yield _packet(next(numbers), bytes([len(asked) - 2]) + asked[1:-1])
        else:
            for row in range(int(asked)):
                text = row_text(self.number, row)
                yield _packet(next(numbers), b"\xfc" + len(text).to_bytes(2, "little") + text)
        yield _packet(next(numbers), END)


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def row_text(session: int, row: int) -> bytes:
    """Return a row of a session's result."""
    return f"{session}:{row}:".encode().ljust(ROW_BYTES, b"x")


Make = Callable[..., tuple[SessionProxy, list[FakeServer]]]


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Function that makes a proxy of some sessions."""
    with ExitStack() as stack:

        def make_proxy(sessions: int = 1, **how: object) -> tuple[SessionProxy, list[FakeServer]]:
            servers = [FakeServer(number) for number in range(sessions)]
            for one in servers:
                stack.callback(one.close)
            wires = [one.wire for one in servers]
            how = {"snapshot_text": TEXT, "encrypts": request.param, **how}
            proxy = SessionProxy(wires, **how)  # type: ignore[arg-type]
            stack.callback(proxy.close)
            return proxy, servers

        yield make_proxy


@contextmanager
def open_session(proxy: SessionProxy) -> Iterator[ProxiedSession]:
    """Yield a client with a session, which it returns at the end."""
    with open_proxied(proxy.snapshot_id, TEXT) as session:
        yield session


def rows_of(session: ProxiedSession, rows: int) -> list[bytes]:
    """Return the rows of a SELECT."""
    cells = [TextCell(form=CellForm.PLAIN)]
    lines = RowsOfChunk(session, f"select {rows}", cells, LineDialect.COPY)
    return b"".join(lines).splitlines()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread fulfils."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def connected_to(proxy: SessionProxy) -> socket.socket:
    """Return a stranger's connection."""
    address = ProxyAddress.parse(proxy.snapshot_id)
    return socket.create_connection((address.host, address.port), WAIT_S)


def is_closed(stranger: socket.socket) -> bool:
    """Wait until the other side has closed; skip its reason."""
    try:
        while stranger.recv(1000):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def read_to_the_end(session: ProxiedSession) -> None:
    """Read a result and drop it."""
    while True:
        session.start = session.end
        session.receive()


def drip(stranger: socket.socket) -> None:
    """Send the beginning of a TLS handshake and then a byte at a time, until it is closed."""
    deadline = time.monotonic() + WAIT_S
    with suppress(OSError):
        stranger.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc")
        while time.monotonic() < deadline:
            stranger.sendall(b"a")
            time.sleep(0.05)


def test_two_tasks_read_at_once(make: Make) -> None:
    """Each has the rows of its session, complete, and both sessions are returned."""
    proxy, _ = make(2)
    found: dict[int, list[bytes]] = {}

    def read(task: int) -> None:
        with open_session(proxy) as session:
            found[task] = rows_of(session, 4000)

    tasks = [threading.Thread(target=read, args=(task,)) for task in range(2)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(WAIT_S)
    for rows in found.values():
        session = int(rows[0][:1])
        assert rows == [row_text(session, row) for row in range(4000)]
    assert len(found) == 2
    assert proxy.session_count == 2


def test_a_session_is_used_by_one_task_after_the_other(make: Make) -> None:
    """The second one waits for the first."""
    proxy, _ = make()
    second = threading.Event()
    with open_session(proxy) as session:

        def wait() -> None:
            with open_session(proxy) as other:
                rows_of(other, 1)
                second.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert rows_of(session, 3) == [row_text(0, row) for row in range(3)]
        assert not second.wait(0.2)
    assert second.wait(WAIT_S)
    waiting.join(WAIT_S)


def test_what_a_killed_client_leaves_is_read_and_its_session_serves_the_next(make: Make) -> None:
    """The rest of its result reaches no client."""
    proxy, [server] = make()
    for _ in range(3):
        killed = open_proxied(proxy.snapshot_id, TEXT)
        killed.select("select 9000", doing="test")
        killed.receive()
        killed._socket.close()
        with open_session(proxy) as session:
            assert rows_of(session, 100) == [row_text(0, row) for row in range(100)]
        assert proxy.session_count == 1
    assert b"\x03rollback to savepoint penstock_chunk" in server.asked


def test_half_a_statement_never_gets_to_the_server(make: Make) -> None:
    """A client that is cut in the middle of a statement leaves the session as it was."""
    proxy, [server] = make()
    statement = mysqlwire.packet(b"\x03select 5")
    killed = greet(proxy.snapshot_id, "borrow", TEXT)
    killed.sendall(mysqlwire.packet(b"\x03savepoint a"))
    killed.recv(100)
    killed.sendall(statement[:-3])
    killed.close()
    with open_session(proxy) as session:
        assert rows_of(session, 5) == [row_text(0, row) for row in range(5)]
    assert b"\x03select 5" in server.asked
    assert not [one for one in server.asked if one == statement[4:-3]]


def test_nothing_but_statements_gets_to_the_server(make: Make) -> None:
    """A client with the token still cannot change the database or end the session."""
    proxy, [server] = make()
    bad = greet(proxy.snapshot_id, "borrow", TEXT)
    bad.sendall(mysqlwire.packet(b"\x02elsewhere"))
    bad.settimeout(WAIT_S)
    assert is_closed(bad)
    bad.close()
    huge = greet(proxy.snapshot_id, "borrow", TEXT)
    huge.sendall(b"\xfe\xff\xff\x00\x03")
    huge.settimeout(WAIT_S)
    assert is_closed(huge)
    huge.close()
    with open_session(proxy) as session:
        assert rows_of(session, 1)
    assert not [one for one in server.asked if one[:1] not in b"\x03"]


def test_the_last_session_that_its_server_ends_takes_the_snapshot_with_it(make: Make) -> None:
    """A client in the middle of a result gets ConnectionLost; a waiting one gets SnapshotGone."""
    proxy, [server] = make()
    assert is_alive(proxy.snapshot_id, TEXT)
    assert not is_alive(proxy.snapshot_id, "another")
    session = open_proxied(proxy.snapshot_id, TEXT)
    session.select("select 100000", doing="test")
    told: list[type[Exception]] = []

    def wait() -> None:
        try:
            open_proxied(proxy.snapshot_id, TEXT)
        except SnapshotGone as error:
            told.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.cut()
    with pytest.raises(ConnectionLost):
        read_to_the_end(session)
    session.close()
    waiting.join(WAIT_S)
    assert told == [SnapshotGone]
    until(lambda: proxy.session_count == 0)
    assert not is_alive(proxy.snapshot_id, TEXT)


def test_a_client_that_takes_nothing_stops_the_server(make: Make) -> None:
    """Rows that it has not read are not kept for it."""
    proxy, [server] = make()
    rows = 40_000
    with open_session(proxy) as session:
        session.select(f"select {rows}", doing="test")
        before = -1
        while before != server.sent_bytes:
            before = server.sent_bytes
            time.sleep(0.3)
        assert before < rows * ROW_BYTES / 2


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff junk", b"x" * 5000, b"drip"]
)
def test_strangers_are_closed_and_harm_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Strangers are silent, or send junk, or a byte now and then, while a task reads."""
    monkeypatch.setattr(session_proxy, "GREETING_TIMEOUT_S", 1.0)
    proxy, _ = make(2)
    with open_session(proxy) as session, connected_to(proxy) as stranger:
        with suppress(OSError):
            drip(stranger) if said == b"drip" else stranger.sendall(said)
        assert rows_of(session, 1000) == [row_text(1, row) for row in range(1000)]
        assert is_closed(stranger)
        until(lambda: proxy._listener.pending_count == 0)
    assert proxy.session_count == 2


def test_a_crowd_of_strangers_keeps_nobody_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them are closed, long before their time."""
    monkeypatch.setattr(session_proxy, "GREETING_TIMEOUT_S", 600.0)
    proxy, _ = make()
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(connected_to(proxy)) for _ in range(session_proxy.PENDING_MAX + 20)
        ]
        assert all(is_closed(stranger) for stranger in crowd[:20])
        assert proxy._listener.pending_count <= session_proxy.PENDING_MAX
        with open_session(proxy) as session:
            assert len(rows_of(session, 10)) == 10


def test_the_wrong_token_gives_nothing(make: Make) -> None:
    """The client gets neither a session nor an answer."""
    proxy, [server] = make()
    right = ProxyAddress.parse(proxy.snapshot_id)
    wrong = str(
        ProxyAddress(
            host=right.host, port=right.port, token="0" * 32, fingerprint=right.fingerprint
        )
    )
    with pytest.raises(SnapshotUnreachable, match="without an answer"):
        open_proxied(wrong, TEXT)
    assert not is_alive(wrong, TEXT)
    assert not server.asked
    assert right.token not in repr(right)


def test_a_client_that_is_silent_for_too_long_gives_its_session_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open connections do not end the snapshot."""
    monkeypatch.setattr(session_proxy, "IDLE_TIMEOUT_S", 0.3)
    proxy, _ = make()
    silent = open_proxied(proxy.snapshot_id, TEXT)
    silent.run("savepoint a", doing="test")
    with open_session(proxy) as session:
        assert len(rows_of(session, 3)) == 3
    with pytest.raises(ConnectionLost):
        silent.run("savepoint b", doing="test")
    silent.close()


def test_the_end_wakes_everybody(make: Make) -> None:
    """One client reads, and one waits."""
    proxy, _ = make()
    session = open_proxied(proxy.snapshot_id, TEXT)
    session.select("select 100000", doing="test")
    told: list[Exception] = []

    def wait() -> None:
        try:
            open_proxied(proxy.snapshot_id, TEXT)
        except (SnapshotGone, SnapshotUnreachable) as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    proxy.close()
    waiting.join(WAIT_S)
    assert len(told) == 1
    with pytest.raises(ConnectionLost):
        read_to_the_end(session)
    session.close()
    with pytest.raises(SnapshotUnreachable, match="cannot reach the sessions of the snapshot"):
        open_proxied(proxy.snapshot_id, TEXT)


# -- off loopback --------------------------------------------------------------------------------


def start_proxy(at: SnapshotAddress, server: FakeServer) -> SessionProxy:
    """Yield a proxy at an address."""
    return SessionProxy([server.wire], snapshot_text=TEXT, at=at)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server of one session."""
    found = FakeServer(0)
    yield found
    found.close()


def test_off_loopback_nothing_is_said_without_tls(server: FakeServer) -> None:
    """A listener on the way sees no token and no row, and the server must be the point's owner."""
    anywhere = SnapshotAddress(host="127.0.0.1", bind="0.0.0.0")
    with start_proxy(anywhere, server) as proxy:
        address = ProxyAddress.parse(proxy.snapshot_id)
        assert address.fingerprint
        plain = ProxyAddress(host=address.host, port=address.port, token=address.token)
        with pytest.raises(SnapshotUnreachable):
            open_proxied(str(plain), TEXT)
        with connected_to(proxy) as other:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(OSError):
                context.wrap_socket(other)
        with open_session(proxy) as session:
            assert isinstance(session._socket, ssl.SSLSocket)
            assert rows_of(session, 2) == [row_text(0, 0), row_text(0, 1)]


def test_a_client_tells_nobody_else_the_token(server: FakeServer) -> None:
    """Another proxy listens at the address that the client was told."""
    heard: list[str] = []
    impostor = session_proxy.ProxyListener(
        SnapshotAddress(), lambda _client, request: heard.append(request), encrypts=True
    )
    with start_proxy(SnapshotAddress(host="127.0.0.1", bind="0.0.0.0"), server) as proxy:
        real = ProxyAddress.parse(proxy.snapshot_id)
        told = ProxyAddress(
            host="127.0.0.1",
            port=impostor.address.port,
            token=impostor.address.token,
            fingerprint=real.fingerprint,
        )
        with pytest.raises(SnapshotUnreachable, match="another certificate"):
            open_proxied(str(told), TEXT)
    impostor.close()
    assert heard == []


def test_an_unreachable_proxy_is_an_error_of_its_own() -> None:
    """The error names the place and what to set, and passes through Spark unchanged."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    address = ProxyAddress(host="127.0.0.1", port=port, token="t")
    with pytest.raises(SnapshotUnreachable) as caught:
        open_proxied(str(address), TEXT)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.code == "LD51"
    assert error.fields["address"] == f"127.0.0.1:{port}"
    assert "refused" in error.fields["cause"]
    assert "snapshotAddress" in error.hint
    with pytest.raises(SnapshotGone):
        open_proxied("nonsense", TEXT)


def test_a_port_is_the_first_of_some(server: FakeServer) -> None:
    """Two points of one pipeline have two proxies."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start_proxy(SnapshotAddress(port=port), server) as proxy:
            found = ProxyAddress.parse(proxy.snapshot_id).port
            assert port < found < port + PORTS
            assert is_alive(proxy.snapshot_id, TEXT)


def test_an_address_of_another_machine_is_refused(server: FakeServer) -> None:
    """The error is raised where the point is created, with what to set."""
    from penstock.host.listen import ListenFailed

    with pytest.raises(ListenFailed, match="could not read a snapshot") as caught:
        start_proxy(SnapshotAddress(host="192.0.2.77", bind="192.0.2.77"), server)
    assert "snapshotAddress" in caught.value.hint
