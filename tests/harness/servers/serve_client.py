"""A client of a served log that sends raw bytes, so that it can do what no library would."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.servers.serve import PASSWORD, Running
from penstock.codec.postgres.scram import ScramClient

START = "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')"


def wait_until(what: Any) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass(frozen=True, kw_only=True)
class At:
    """A server by its port, in any process."""

    port: int
    password: str


def connection_at(port: int, password: str) -> At:
    """Return a server in another process."""
    return At(port=port, password=password)


class Raw:
    """A client that sends raw bytes, and logs in if it is told to."""

    def __init__(self, running: Running | At, *, login: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", running.port))
        self.socket.settimeout(20)
        self.buffer = b""
        self.password = running.password if isinstance(running, At) else PASSWORD
        if login:
            try:
                self.log_in()
            except BaseException:
                self.close()
                raise

    def log_in(self) -> None:
        """Log in as libpq does, for replication."""
        words = b"user\0repl\0database\0shop\0replication\0database\0\0"
        body = struct.pack(">i", 196608) + words
        self.socket.sendall(struct.pack(">i", len(body) + 4) + body)
        assert self.message()[0] == b"R"
        client = ScramClient(self.password)
        first = client.first()
        name = client.mechanism.encode() + b"\0"
        self.say(b"p", name + struct.pack(">i", len(first)) + first)
        self.say(b"p", client.final(self.message()[1][4:]))
        client.verify(self.message()[1][4:])
        self.until(b"Z")

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message."""
        self.socket.sendall(kind + struct.pack(">i", len(body) + 4) + body)

    def message(self) -> tuple[bytes, bytes]:
        """Return the next message."""
        while len(self.buffer) < 5 or len(self.buffer) < 1 + int.from_bytes(self.buffer[1:5]):
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.buffer += data
        end = 1 + int.from_bytes(self.buffer[1:5])
        found, self.buffer = (self.buffer[:1], self.buffer[5:end]), self.buffer[end:]
        return found

    def until(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Return all messages up to one of this kind."""
        found = [self.message()]
        while found[-1][0] != kind:
            found.append(self.message())
        return found

    def query(self, text: str) -> None:
        """Send a query."""
        self.say(b"Q", text.encode() + b"\0")

    def status(self, flush: int, *, reply: bool = False) -> None:
        """Confirm a position."""
        self.say(b"d", struct.pack(">cQQQqB", b"r", flush, flush, flush, 0, reply))

    def close(self) -> None:
        """Disconnect without a message."""
        self.socket.close()


def read_stream(client: Raw, *, until: str) -> list[tuple[str, int]]:
    """Return letters and LSNs of the sent messages, up to a letter."""
    found: list[tuple[str, int]] = []
    while not found or found[-1][0] != until:
        kind, body = client.message()
        assert kind == b"d", (kind, body)
        if body[:1] == b"w":
            found.append((chr(body[25]), struct.unpack_from(">Q", body, 1)[0]))
    return found


def streamed_until(client: Raw, end: int, *, last: Sequence[int] = ()) -> Iterator[tuple[str, int]]:
    """Yield letters and LSNs as they come, up to this END; none if the client has it already."""
    while not (last and last[-1] >= end):
        kind, body = client.message()
        assert kind == b"d", (kind, body)
        if body[:1] == b"w":
            found = (chr(body[25]), struct.unpack_from(">Q", body, 1)[0])
            yield found
            if found == ("C", end):
                return
