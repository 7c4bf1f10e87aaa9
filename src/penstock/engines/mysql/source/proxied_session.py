"""A MySQL or MariaDB session that another process has opened and proxies.

A client sends a statement and reads the packets of its result in large blocks. Not here: connecting
to the proxy (`engines.mysql.proxy_protocol`), the content of the rows (`codec.mysql.mysqltext`).
"""

from __future__ import annotations

import socket
from typing import ClassVar, Self

import structlog

from penstock.codec.mysql import mysqlwire
from penstock.engines.mysql.proxy_protocol import OPEN_SESSION, greet
from penstock.host.errors import LOST, ConnectionLost
from penstock.model import PenstockError, Retry

logger = structlog.get_logger(__name__)
COM_QUERY = b"\x03"
BLOCK_BYTES = 1024 * 1024
# A SELECT holds a table's shape until its transaction ends, unless it is undone.
SAVEPOINT = "savepoint penstock_chunk"
LET_GO = "rollback to savepoint penstock_chunk"


class SessionProtocolBroken(PenstockError):
    """A proxied session sent what no server would send there."""

    code = "LD50"
    retry: ClassVar[Retry] = "backoff"


def open_proxied(snapshot_id: str, snapshot_text: str) -> ProxiedSession:
    """Open a session of a snapshot; wait until one is free.

    Raises SnapshotGone if none is left.
    """
    connected = greet(snapshot_id, OPEN_SESSION, snapshot_text)
    connected.settimeout(None)
    return ProxiedSession(connected)


class ProxiedSession:
    """A session that another process opened. Not for two threads.

    block[start:end] holds bytes that arrived and are not used yet.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take a connection to a proxy that has granted a session."""
        self._socket = connected
        self._is_idle = True
        self._in_rows = False
        self._holds = False
        self.block = bytearray(BLOCK_BYTES)
        self._view = memoryview(self.block)
        self.start = 0
        self.end = 0

    def __enter__(self) -> Self:
        """Return itself; the way out gives the session back."""
        return self

    def __exit__(self, *_ignored: object) -> None:
        """Give the session back."""
        self.close()

    def close(self) -> None:
        """Give the session back; the rest of a result is read first, or the session is lost."""
        if self._socket.fileno() < 0:
            return
        try:
            if self._in_rows:
                self._read_out()
            if self._is_idle:
                self.let_go()
                self._socket.sendall(mysqlwire.QUIT)
        except (OSError, PenstockError) as error:
            logger.info("proxied session not returned", reason=str(error))
        self._socket.close()

    def _read_out(self) -> None:
        """Read the rest of a result and discard it, which is cheaper than another snapshot."""
        is_first = True
        while True:
            found = mysqlwire.packet_at(self._view, self.start, self.end)
            if found is None:
                self.receive()
                continue
            head = bytes(self._view[found.start : min(found.end, found.start + 9)])
            self.start = found.end
            ended = mysqlwire.is_end(head) or head[:1] == bytes([mysqlwire.ERROR])
            if is_first and ended and not found.is_continued:
                self._in_rows, self._is_idle = False, True
                return
            is_first = not found.is_continued

    # -- statements ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Release the tables that were read: from here on an ALTER does not wait for us."""
        if self._holds:
            self.run(LET_GO, doing="releasing a table")
            self._holds = False

    def run(self, statement: str, *, doing: str) -> None:
        """Run a statement without a result. Raises the errors of
        `engines.mysql.connect.server_errors`.
        """
        self._send(statement)
        payload = self._packet()
        self._raise_error(payload, doing)
        if payload[:1] != bytes([mysqlwire.OK]):
            raise SessionProtocolBroken(f"{doing}: a statement without a result has one")
        self._is_idle = True

    def select(self, statement: str, *, doing: str) -> int:
        """Begin to read a result; return the number of its columns. Its rows follow.

        No other statement can run until `end_result` is called.
        """
        return len(self._begin(statement, doing=doing))

    def columns(self, statement: str, *, doing: str) -> list[str]:
        """Return the names of a result's columns, in order; the result has no rows."""
        names = [mysqlwire.column_name(payload) for payload in self._begin(statement, doing=doing)]
        if not mysqlwire.is_end(self._packet()):
            raise SessionProtocolBroken(f"{doing}: a result without rows has one")
        self.end_result()
        return names

    def _begin(self, statement: str, *, doing: str) -> list[bytes]:
        """Send a SELECT; return the descriptions of its columns. Its rows follow."""
        if not self._holds:
            self.run(SAVEPOINT, doing=doing)
            self._holds = True
        self._send(statement)
        payload = self._packet()
        self._raise_error(payload, doing)
        count = payload[0]
        if count in (0xFC, 0xFD):
            count = int.from_bytes(payload[1 : 3 if count == 0xFC else 4], "little")
        described = [self._packet() for _ in range(count)]
        self._raise_error(last := self._packet(), doing)
        if not mysqlwire.is_end(last):
            raise SessionProtocolBroken(f"{doing}: the columns of a result do not end")
        self._in_rows = True
        return described

    def end_result(self) -> None:
        """Note that the packet that ends the result has been used."""
        if self.start != self.end:
            raise SessionProtocolBroken("the server sent something after a result")
        self._in_rows, self._is_idle = False, True

    def error_of(self, payload: bytes, *, doing: str) -> PenstockError:
        """Return the error of a packet that ended a result early."""
        self._in_rows, self._is_idle = False, True
        from penstock.engines.mysql.connect import (
            server_error,  # with the driver, which has logged in
        )

        said = mysqlwire.server_error(payload)
        return server_error(doing, said.number, said.sqlstate, said.message)

    def _raise_error(self, payload: bytes, doing: str) -> None:
        if payload[:1] == bytes([mysqlwire.ERROR]):
            raise self.error_of(payload, doing=doing)

    # -- bytes -----------------------------------------------------------------------------------

    def receive(self) -> None:
        """Read at least one more byte, making space for it. Raises ConnectionLost."""
        if self.start == self.end:
            self.start = self.end = 0
        elif self.end == len(self.block):
            self._make_room()
        try:
            count = self._socket.recv_into(self._view[self.end :])
        except OSError as error:
            raise ConnectionLost(f"a proxied session broke: {error}", hint=LOST) from error
        if count == 0:
            raise ConnectionLost("a proxied session was closed", hint=LOST)
        self.end += count

    def _make_room(self) -> None:
        """Move the rest to the front, and enlarge a block that one row fills."""
        rest = self.end - self.start
        if self.start == 0:
            self.block = self.block + bytes(len(self.block))
            self._view = memoryview(self.block)
        else:
            self._view[:rest] = self._view[self.start : self.end]
        self.start, self.end = 0, rest

    def _send(self, statement: str) -> None:
        if not self._is_idle:
            raise SessionProtocolBroken("a statement was begun in the middle of a result")
        self._is_idle = False
        try:
            self._socket.sendall(mysqlwire.packet(COM_QUERY + statement.encode()))
        except OSError as error:
            raise ConnectionLost(f"a proxied session broke: {error}", hint=LOST) from error

    def _packet(self) -> bytes:
        while True:
            found = mysqlwire.packet_at(self._view, self.start, self.end)
            if found is not None:
                self.start = found.end
                return bytes(self._view[found.start : found.end])
            self.receive()
