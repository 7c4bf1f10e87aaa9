"""Login of libpq, as psycopg uses it, at the server's end of the protocol, and rows
read from it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from penstock.codec.postgres import pgwire_server as wire
from penstock.codec.postgres.scram import SCRAM, ScramServer, Verifier

PASSWORD = "pässwörd"
LIMIT = 1 << 20


class Connection:
    """A client that is served until it leaves: each query is answered with its own
    text and a NULL.
    """

    def __init__(self, client: socket.socket) -> None:
        self.client, self.buffer = client, bytearray()
        self.startup: wire.Startup | None = None

    def more(self) -> None:
        """Wait for more bytes."""
        data = self.client.recv(65_536)
        if not data:
            raise EOFError
        self.buffer += data

    def start(self) -> wire.Startup:
        """Read until the client has identified itself."""
        while True:
            found = wire.start_packet(self.buffer)
            if found is None:
                self.more()
                continue
            packet, length = found
            del self.buffer[:length]
            if isinstance(packet, wire.Startup):
                return packet
            self.client.sendall(wire.NO_ENCRYPTION)

    def message(self) -> tuple[int, bytes]:
        """Return the next message."""
        while (frame := wire.frame_at(self.buffer, 0, len(self.buffer), LIMIT)) is None:
            self.more()
        body = bytes(self.buffer[frame.start : frame.end])
        del self.buffer[: frame.end]
        return frame.kind, body

    def serve(self) -> None:
        """Serve the client from the first byte to the last."""
        try:
            startup = self.start()
            self.log_in(startup)
            while (found := self.message())[0] != ord("X"):
                assert found[0] == ord("Q")
                self.answer(wire.query_text(found[1]))
        except wire.Refused as refused:
            self.client.sendall(wire.error_response(refused, severity="FATAL"))
        except EOFError:
            pass
        finally:
            self.client.close()

    def log_in(self, startup: wire.Startup) -> None:
        """Log the client in by SCRAM."""
        if startup.minor or startup.unknown_options:
            self.client.sendall(wire.negotiate(startup.unknown_options))
        exchange = ScramServer(Verifier.of(PASSWORD))
        self.client.sendall(wire.sasl_mechanisms([SCRAM]))
        mechanism, first = wire.sasl_initial(self.message()[1])
        assert mechanism == SCRAM
        self.client.sendall(wire.sasl_continue(exchange.challenge(first)))
        self.client.sendall(wire.sasl_final(exchange.finish(self.message()[1])))
        greeting = [
            wire.AUTHENTICATED,
            wire.parameter_status("server_version", "15.0"),
            wire.parameter_status("client_encoding", "UTF8"),
            wire.backend_key(7, b"abcd"),
            wire.ready(),
        ]
        self.client.sendall(b"".join(greeting))

    def answer(self, sql: str) -> None:
        """Answer with a row, or with the error that the query asks for."""
        if sql.startswith("fail"):
            error = wire.Refused("0A000", sql, hint="ask for less")
            self.client.sendall(wire.error_response(error) + wire.ready())
            return
        answer = [
            wire.row_description([("text", 25), ("nothing", 23)]),
            wire.data_row([sql, None]),
            wire.command_complete("SELECT 1"),
            wire.ready(),
        ]
        self.client.sendall(b"".join(answer))


@contextmanager
def serve_clients() -> Iterator[int]:
    """Listen at a port that serves one client after the other; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                Connection(client).serve()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def connect(port: int, password: str, **more: str) -> psycopg.Connection:
    """Connect as a user would, with the simple protocol of a replication connection."""
    return psycopg.connect(
        host="127.0.0.1", port=port, user="repl", dbname="shop", password=password, **more
    )


def test_libpq_logs_in_and_reads() -> None:
    """The client proves its password, and checks that the server knows it, too."""
    with serve_clients() as port, connect(port, PASSWORD, autocommit=True) as connection:  # type: ignore[arg-type]
        found = connection.pgconn.exec_("grüße".encode())
        assert (found.get_value(0, 0), found.get_value(0, 1)) == ("grüße".encode(), None)
        failed = connection.pgconn.exec_(b"fail, please")
        assert failed.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"0A000"
        assert failed.error_field(psycopg.pq.DiagnosticField.MESSAGE_HINT) == b"ask for less"
        assert connection.pgconn.exec_(b"more").get_value(0, 0) == b"more"
        assert connection.info.server_version == 150000


def test_libpq_with_another_password_is_refused() -> None:
    """The refusal has its SQLSTATE, and the next client is served."""
    with serve_clients() as port:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            connect(port, "wrong")
        connect(port, PASSWORD).close()


def test_libpq_asks_for_more_than_there_is() -> None:
    """A client that insists on encryption disconnects."""
    with serve_clients() as port, pytest.raises(psycopg.OperationalError, match="SSL"):
        connect(port, PASSWORD, sslmode="require")
