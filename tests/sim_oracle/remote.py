"""Sessions over TCP, for processes other than the one that has the model.

The server side runs on threads of the model's process. Each connection has one session, which ends
with it, as when a client dies. Messages are pickled tuples: both ends are tests.
"""

from __future__ import annotations

import itertools
import pickle
import socket
import socketserver
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from sim_oracle.errors import OraError, UnknownText
from sim_oracle.session import Outcome, Server, Session

FETCH_ROWS = 1000
_SIZE = struct.Struct(">I")
_METHODS = frozenset(["execute_many", "commit", "rollback", "load"])


def _send(connection: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    connection.sendall(_SIZE.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    return pickle.loads(_read(connection, _SIZE.unpack(_read(connection, _SIZE.size))[0]))


def _read(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


# ---------------------------------------------------------------------- the model's process


class _Handler(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Serve one connection until it ends."""
        session: Session | None = None
        self.server.connections.add(self.request)
        results: dict[int, Outcome] = {}
        numbers = itertools.count(1)
        try:
            while True:
                name, arguments = _receive(self.request)
                try:
                    if name == "connect":
                        session = self.server.log_on(*arguments)
                        answer: Any = self.server.oracle.database.settings.version
                    else:
                        assert session is not None
                        answer = _answer(session, name, arguments, results, numbers)
                except (OraError, UnknownText) as error:
                    code = error.code if isinstance(error, OraError) else None
                    text = error.text if isinstance(error, OraError) else str(error)
                    _send(self.request, ("error", (code, text)))
                else:
                    _send(self.request, ("ok", answer))
        except (EOFError, OSError):
            pass  # the client ended or died
        finally:
            self.server.connections.discard(self.request)
            if session is not None:
                session.close()


def _answer(
    session: Session, name: str, arguments: Any, results: dict[int, Outcome], numbers: Iterator[int]
) -> Any:
    if name == "execute":
        outcome = session.execute(*arguments)
        number = next(numbers)
        if outcome.rows is not None:
            results[number] = outcome
        return outcome.columns, outcome.count, number
    if name == "fetch":
        number, count = arguments
        results[number].check()
        rows = results[number].rows
        assert rows is not None
        with session.server.lock:
            return list(itertools.islice(rows, count))
    if name == "ping":
        session.server.meet("PING")
        return None
    if name == "state":
        return session.schema, session.transaction is not None, session.nls.zone_minutes
    if name == "schema":
        session.schema = arguments[0]
        return None
    if name not in _METHODS:
        raise AssertionError(name)
    return getattr(session, name)(*arguments[0], **arguments[1])


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, oracle: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.oracle = oracle
        self.connections: set[socket.socket] = set()

    def log_on(self, user: str, password: str, service: str) -> Session:
        """Return a new session; raises OraError 1017, or 12514 of an unknown service."""
        return log_on(self.oracle, user, password, service)


def log_on(server: Server, user: str | None, password: str | None, service: str) -> Session:
    """Return a new session of a server; raises OraError 12541, 12514 or 1017."""
    if server.is_down:
        raise OraError(12541, "simulated")
    container = {name.lower(): one for name, one in server.services.items()}.get(service.lower())
    if container is None:
        raise OraError(12514, service)
    passwords = {name.lower(): one for name, one in server.users.items()}
    if user is None or passwords.get(user.lower()) != password:
        raise OraError(1017)
    server.meet("CONNECT")
    return Session(server, user, container)


class Listening:
    """A server that listens on a port.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, server: Server) -> None:
        self._listener = _Listener(server)
        self.address = f"127.0.0.1:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def sever(self) -> None:
        """Cut all open connections, which rolls their transactions back."""
        for connection in list(self._listener.connections):
            with suppress(OSError):  # the client has closed it
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening; open connections stay."""
        self._listener.shutdown()
        self._listener.server_close()


# ---------------------------------------------------------------------- other processes


class RemoteServer:
    """A server in another process, as far as the fake driver uses one."""

    def __init__(self, version: str) -> None:
        self.lock = threading.RLock()
        self.delays: dict[str, int] = {}
        self.is_down = False
        self.database = SimpleNamespace(settings=SimpleNamespace(version=version))
        self.session: RemoteSession | None = None

    def meet(self, text: str) -> None:
        """Let the other process check that the session lives."""
        if self.session is not None:
            self.session.call("ping", ())


class RemoteSession:
    """A session of a server in another process."""

    def __init__(self, connection: socket.socket, server: RemoteServer) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.server = server
        server.session = self

    def call(self, name: str, arguments: Any) -> Any:
        """Return the answer to a message; raises what the session raised."""
        with self._lock:
            try:
                _send(self._connection, (name, arguments))
                kind, answer = _receive(self._connection)
            except (EOFError, OSError) as error:
                raise OraError(3113, text="end-of-file on communication channel") from error
        if kind == "ok":
            return answer
        code, text = answer
        if code is None:
            raise UnknownText(text)
        raise OraError(code, text=text.replace("{", "{{").replace("}", "}}"))

    def execute(self, text: str, binds: dict[str, Any]) -> Outcome:
        """Run a statement."""
        columns, count, number = self.call("execute", (text, binds))
        if columns is None:
            return Outcome(count=count)
        return Outcome(columns, self._rows(number), count)

    def _rows(self, number: int) -> Iterator[tuple[Any, ...]]:
        while True:
            rows = self.call("fetch", (number, FETCH_ROWS))
            yield from rows
            if len(rows) < FETCH_ROWS:
                return

    def execute_many(
        self, text: str, rows: Iterable[dict[str, Any]], *, saves_exceptions: bool = False
    ) -> Any:
        """Run a statement for many rows."""
        named = {"saves_exceptions": saves_exceptions}
        return self.call("execute_many", ((text, list(rows)), named))

    def load(
        self, schema: str, name: str, columns: list[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Load rows by the direct path."""
        self.call("load", ((schema, name, columns, list(rows)), {}))

    def commit(self) -> None:
        """Commit the transaction."""
        self.call("commit", ((), {}))

    def rollback(self) -> None:
        """Roll the transaction back."""
        self.call("rollback", ((), {}))

    @property
    def schema(self) -> str:
        """Return the schema of names without one."""
        return str(self.call("state", ())[0])

    @schema.setter
    def schema(self, value: str) -> None:
        self.call("schema", (value,))

    @property
    def transaction(self) -> Any:
        """Return an object if a transaction is open, else None."""
        return True if self.call("state", ())[1] else None

    @property
    def nls(self) -> Any:
        """Return the settings that conversions need."""
        return SimpleNamespace(zone_minutes=self.call("state", ())[2])

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def connect_remote(address: str, user: str | None, password: str | None, service: str) -> Any:
    """Return a session of a server at an address, or None if nothing listens there."""
    host, _, port = address.partition(":")
    try:
        connection = socket.create_connection((host, int(port or 1521)), timeout=5)
    except (OSError, ValueError):
        return None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = RemoteServer("19.0.0.0.0")
    session = RemoteSession(connection, server)
    server.database.settings.version = session.call("connect", (user, password, service))
    return session
