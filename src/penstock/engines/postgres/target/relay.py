"""COPY from one server into another: bytes as they come, both servers working at once.

One thread and no waiting on one side while the other could go on. The bytes are not looked at.
libpq returns one row per call, which costs several times what moving it costs; rows are framed
alike in both directions. So where both sockets carry the plain protocol (`plain` says so), whole
blocks of frames are passed on unchanged: psycopg logs in and does everything else, and for the time
of one COPY, while both connections are idle, this module uses their sockets. It leaves them as it
found them, at ReadyForQuery with nothing unread, or closes them. Under TLS libpq's calls are used,
row by row, joined to large buffers.
Source: PostgreSQL manual, "COPY Operations" and "Message Formats".
"""

from __future__ import annotations

import os
import re
import select
import socket
from typing import ClassVar, NoReturn, Self

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.pgcopy import HEAD_BYTES, make_next_head
from penstock.engines.postgres.connect import server_errors, statement_error
from penstock.model import PenstockError, Retry
from penstock.ports.bulk import CopyCountsDiffer

BUFFER_BYTES = 256 * 1024
WAIT_S_MAX = 60.0  # only so that a broken poll is noticed; TCP keepalives find dead peers


def copy_rows(
    source: psycopg.Connection, copy_out: str, target: psycopg.Connection, copy_in: str
) -> int:
    """Run `copy ... to stdout` on one server into `copy ... from stdin` on the other.

    Both connections must be idle or in a transaction, both statements of the same format. Returns
    the number of rows, which both servers reported in their CommandComplete. Raises the typed
    errors of `engines.postgres.connect`, CopyCountsDiffer or CopyConnectionLost; then nothing that
    the target got may be committed, and the source connection must be closed: it may be in the
    middle of a copy.
    """
    if plain(source) and plain(target):
        sent, taken = relay(source, copy_out, target, copy_in)
    else:
        sent, taken = through_libpq(source, copy_out, target, copy_in)
    if sent != taken:
        raise CopyCountsDiffer(
            f"the source sent {sent} rows and the target took {taken}",
            hint="Look for triggers and rules on the target table that drop or add rows, and "
            "disable them: alter table ... disable trigger ...;",
            sent=sent,
            taken=taken,
        )
    return sent


def through_libpq(
    source: psycopg.Connection, copy_out: str, target: psycopg.Connection, copy_in: str
) -> tuple[int, int]:
    """Return the same by libpq's calls, which understand TLS: rows sent and rows taken in."""
    out, into = source.pgconn, target.pgconn
    _begin(out, copy_out, pq.ExecStatus.COPY_OUT, "starting the copy at the source")
    _begin(into, copy_in, pq.ExecStatus.COPY_IN, "starting the copy at the target")
    into.nonblocking = 1
    try:
        _pump_chunks(out, into)
        sent = _end(out, "reading at the source")
        into.put_copy_end()
        _drain(into)
    except BaseException:
        _abandon(into)
        raise
    finally:
        if into.status == pq.ConnStatus.OK:
            into.nonblocking = 0
    return sent, _end(into, "writing at the target")


def _begin(connection: PGconn, statement: str, expected: pq.ExecStatus, doing: str) -> None:
    result = connection.exec_(statement.encode())
    if result.status != expected:
        raise _refusal(connection, result, doing)


def _pump_chunks(out: PGconn, into: PGconn) -> None:
    """Move rows until the source has no more. The target's buffer in libpq stays bounded."""
    receive = out.get_copy_data
    parts: list[bytes | memoryview] = []
    append = parts.append
    size = 0
    while True:
        length, data = receive(1)
        if length > 0:
            append(data)
            size += length
            if size < BUFFER_BYTES:
                continue
        if parts:
            into.put_copy_data(b"".join(parts))
            parts.clear()
            size = 0
            _drain(into)
        if length == 0:
            _wait(out, select.POLLIN)
            out.consume_input()
        elif length < 0:
            return


def _drain(into: PGconn) -> None:
    """Write libpq's buffer to the socket, and read answers meanwhile as libpq requires."""
    while into.flush():
        if _wait(into, select.POLLIN | select.POLLOUT) & select.POLLIN:
            into.consume_input()


def _wait(connection: PGconn, events: int) -> int:
    poll = select.poll()
    poll.register(connection.socket, events)
    while not (ready := poll.poll(WAIT_S_MAX * 1000)):
        if connection.status != pq.ConnStatus.OK:
            raise CopyConnectionLost("a connection of a running copy broke")
    return ready[0][1]


def _end(connection: PGconn, doing: str) -> int:
    """Read the results up to the end; the row count of the CommandComplete."""
    count: int | None = None
    failed: PGresult | None = None
    while (result := connection.get_result()) is not None:
        if result.status == pq.ExecStatus.COMMAND_OK:
            count = result.command_tuples
        elif result.status == pq.ExecStatus.FATAL_ERROR:
            failed = result
        else:
            break
    if failed is not None:
        raise _refusal(connection, failed, doing)
    if count is None or connection.status != pq.ConnStatus.OK:
        raise CopyConnectionLost(f"{doing}: the connection broke before the copy was complete")
    return count


def _abandon(into: PGconn) -> None:
    """Make the target discard the rows that it got, if it can still be reached."""
    if into.status != pq.ConnStatus.OK:
        return
    into.nonblocking = 0
    try:
        into.put_copy_end(b"the source failed")
        while into.get_result() is not None:
            continue
    except psycopg.Error:
        into.finish()  # it could not be reached: a closed connection rolls back as well


def _refusal(connection: PGconn, result: PGresult, doing: str) -> PenstockError:
    error = psycopg.errors.error_from_result(result)
    if connection.status != pq.ConnStatus.OK and error.sqlstate is None:
        return CopyConnectionLost(f"{doing}: the connection broke")
    return statement_error(doing, error)


BLOCK_BYTES = 1024 * 1024
ANSWER_BYTES = 8 * 1024
# A server sends 8 kB at a time. Being woken for each would take the CPU that the servers need.
GATHER_BYTES = 256 * 1024
GATHER_MS_MAX = 2
WAIT_MS_MAX = 60_000  # only so that a broken poll is noticed; TCP keepalives find dead peers

_COPY_OUT, _COPY_IN, _COPY_DONE = ord("H"), ord("G"), ord("c")
_COMPLETE, _READY, _ERROR = ord("C"), ord("Z"), ord("E")
# What a server may send at any time: NoticeResponse, ParameterStatus, NotificationResponse.
_ASIDE = frozenset(b"NSA")
_STATUS = {pq.TransactionStatus.IDLE: b"I", pq.TransactionStatus.INTRANS: b"T"}


class CopyConnectionLost(PenstockError):
    """One of the two connections of a copy broke."""

    code = "LD41"
    retry: ClassVar[Retry] = "backoff"


def plain(connection: psycopg.Connection) -> bool:
    """Return whether a connection's socket has the plain protocol: no TLS, no GSS encryption."""
    pgconn = connection.pgconn
    return not pgconn.ssl_in_use and not pgconn.used_gssapi


def relay(
    source: psycopg.Connection, copy_out: str, target: psycopg.Connection, copy_in: str
) -> tuple[int, int]:
    """Run `copy ... to stdout` on one server into `copy ... from stdin` on the other.

    Both connections must be `plain` and idle or in a transaction, both statements of the same
    format. Returns the rows that the source sent and those that the target took in, as their
    CommandCompletes say; the transactions are open as before. Raises CopyConnectionLost, WireError
    or the typed errors of `engines.postgres.connect`; then both connections are closed, and the
    target rolls back.
    """
    try:
        with (
            _Side(source.pgconn, "reading at the source", BLOCK_BYTES) as giver,
            _Side(target.pgconn, "writing at the target", ANSWER_BYTES) as taker,
        ):
            giver.send(pgwire.query(copy_out))
            taker.send(pgwire.query(copy_in))
            taker.expect(_COPY_IN)
            giver.expect(_COPY_OUT)  # comes with the first rows
            _pump(giver, taker)
            sent = giver.finish()
            taker.send(pgwire.COPY_DONE)
            return sent, taker.finish()
    except BaseException:
        # They may be anywhere in a message: they cannot be used any more.
        source.pgconn.finish()
        target.pgconn.finish()
        raise


def _pump(giver: _Side, taker: _Side) -> None:
    """Pass CopyData frames on, in as large pieces as there are, up to the source's CopyDone."""
    next_head = make_next_head()
    both = select.poll()
    both.register(giver, select.POLLIN)
    both.register(taker, select.POLLIN)
    giver.gather(GATHER_BYTES)
    head = giver.start
    while True:
        head = next_head(giver.block, head, giver.end)
        known = min(head, giver.end)
        taker.send(giver.view[giver.start : known])
        giver.start = known
        if giver.end - head >= HEAD_BYTES:
            giver.gather(1)  # the rest of this message may be all that comes; so libpq wants it
            kind, body = giver.message()
            if kind == _COPY_DONE:
                return
            giver.aside(kind, body)
            giver.gather(GATHER_BYTES)
            head = giver.start
            continue
        head -= giver.rewind()
        _wait_for_more(giver, taker, both)


def _wait_for_more(giver: _Side, taker: _Side, both: select.poll) -> None:
    """Read at least one byte, if possible GATHER_BYTES. Raises errors that the target sends
    meanwhile.
    """
    wait_ms = GATHER_MS_MAX
    while True:
        ready = {number for number, _ in both.poll(wait_ms)}
        if taker.fileno() in ready:
            taker.listen()
        if giver.receive():
            break
        if wait_ms != WAIT_MS_MAX:
            wait_ms = WAIT_MS_MAX
            giver.gather(1)  # now the first byte has to wake us
    if wait_ms == WAIT_MS_MAX:
        giver.gather(GATHER_BYTES)


class _Side:
    """Server during a relayed copy: its socket, and the received bytes that are not used yet.

    These bytes are block[start:end]; view is the same memory. doing names the work in errors.
    """

    def __init__(self, connection: PGconn, doing: str, size_bytes: int) -> None:
        self._connection = connection
        self._doing = doing
        with server_errors(doing):
            self._status = _idle_status(connection)
        if not self._status:
            self._raise_lost("the connection was not idle when the copy began")
        # libpq keeps its own descriptor: closing this one leaves the connection open.
        self._socket = socket.socket(fileno=os.dup(connection.socket))
        self._socket.setblocking(False)
        self.block = bytearray(size_bytes)
        self.view = memoryview(self.block)
        self.start = 0
        self.end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ignored: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket, for poll."""
        return self._socket.fileno()

    def gather(self, count: int) -> None:
        """Set the number of bytes that must arrive before poll wakes us; a read may return
        fewer.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    # -- to the server -----------------------------------------------------------------------------

    def send(self, data: bytes | memoryview) -> None:
        """Write all data to the socket, and read meanwhile. Raises errors that the server sends."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                if self._wait(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                    self.listen()
            except OSError as error:
                self.listen()  # it may have said why
                self._raise_lost(str(error), error)

    # -- from the server ---------------------------------------------------------------------------

    def receive(self) -> bool:
        """Read available bytes; return False if there are none. Raises CopyConnectionLost at the
        end.
        """
        if self.end == len(self.block):
            self._make_room()
        try:
            count = self._socket.recv_into(self.view[self.end :])
        except BlockingIOError:
            return False
        except OSError as error:
            self._raise_lost(str(error), error)
        if count == 0:
            self._raise_lost("the server closed the connection")
        self.end += count
        return True

    def rewind(self) -> int:
        """Move unused bytes to the front; return how far they were moved."""
        moved, rest = self.start, self.end - self.start
        self.view[:rest] = self.view[self.start : self.end]
        self.start, self.end = 0, rest
        return moved

    def _make_room(self) -> None:
        """Move to the front, and enlarge a block that one message fills."""
        if self.rewind() == 0:
            self.block = self.block + bytes(len(self.block))
            self.view = memoryview(self.block)

    def message(self) -> tuple[int, bytes]:
        """Return kind and body of the next message, whatever it is."""
        while True:
            frame = pgwire.frame_at(self.view, self.start, self.end)
            if frame is not None:
                self.start = frame.end
                return frame.kind, bytes(self.view[frame.start : frame.end])
            if not self.receive():
                self._wait(select.POLLIN)

    def aside(self, kind: int, body: bytes) -> None:
        """Handle a message that is not part of the copy. Raises the server's error if it is one."""
        if kind == _ERROR:
            raise statement_error(self._doing, server_error(body))
        if kind not in _ASIDE:
            shown = chr(kind)
            self._raise_lost(f"the server sent a message of type {shown!r} in the middle of a copy")

    def listen(self) -> None:
        """Read from the server that only receives: an error, or another message."""
        while self.receive():
            while pgwire.frame_at(self.view, self.start, self.end) is not None:
                self.aside(*self.message())

    def expect(self, kind: int) -> bytes:
        """Return the body of the next message of the copy, which must be of this kind."""
        while True:
            found, body = self.message()
            if found == kind:
                return body
            self.aside(found, body)

    def finish(self) -> int:
        """Read up to ReadyForQuery; return the number of rows of the COPY."""
        tag = pgwire.command_tag(self.expect(_COMPLETE))
        status = self.expect(_READY)
        while self.start < self.end:  # all of it: libpq must find the beginning of a message
            self.aside(*self.message())
        match = re.fullmatch(r"COPY (\d+)", tag)
        if match is None or status != self._status:
            self._raise_lost(f"the copy ended with {tag!r} in transaction state {status!r}")
        return int(match[1])

    # -- both --------------------------------------------------------------------------------------

    def _wait(self, events: int) -> int:
        """Return the events that the socket is ready for; 0 when WAIT_MS_MAX passed."""
        poll = select.poll()
        poll.register(self._socket, events)
        ready = poll.poll(WAIT_MS_MAX)
        return ready[0][1] if ready else 0

    def _raise_lost(self, why: str, error: OSError | None = None) -> NoReturn:
        raise CopyConnectionLost(f"{self._doing}: {why}") from error


def _idle_status(connection: PGconn) -> bytes:
    """Return the transaction state of ReadyForQuery; empty if libpq has anything left to do."""
    connection.consume_input()
    if connection.is_busy() or connection.flush():
        return b""
    return _STATUS.get(pq.TransactionStatus(connection.transaction_status), b"")


def server_error(body: bytes) -> psycopg.Error:
    """Return the error that psycopg would raise for an ErrorResponse. body: of the message."""
    said = pgwire.server_message(body)
    field = pq.DiagnosticField
    info: dict[int, bytes | None] = {
        field.SEVERITY: said.severity.encode(),
        field.SQLSTATE: said.sqlstate.encode(),
        field.MESSAGE_PRIMARY: said.message.encode(),
        field.MESSAGE_DETAIL: said.detail.encode(),
        field.MESSAGE_HINT: said.hint.encode(),
    }
    try:
        kind = psycopg.errors.lookup(said.sqlstate)
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(said.message, info=info)
