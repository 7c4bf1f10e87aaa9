"""COPY from one server into another: bytes as they come, both servers working at once.

One thread and no waiting on one side while the other could go on. Where both sockets carry the
protocol as it is, `relay.py` passes whole blocks on; under TLS libpq's calls are used, row by row,
joined to large buffers. The bytes are not looked at.
"""

from __future__ import annotations

import select

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from penstock.engines.postgres.connect import statement_error
from penstock.engines.postgres.target.relay import CopyConnectionLost, plain, relay
from penstock.model import PenstockError
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
        _pump(out, into)
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


def _pump(out: PGconn, into: PGconn) -> None:
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
    """Hand what libpq holds to the socket, reading answers meanwhile as libpq asks for."""
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
    """Make the target discard what it has got, if it can still be reached."""
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
