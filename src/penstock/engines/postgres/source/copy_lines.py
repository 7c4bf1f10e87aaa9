"""A chunk's rows out of PostgreSQL for MySQL: the lines of a COPY, as lines for LOAD DATA.

Whole blocks of CopyData are read from the socket below a psycopg connection, as in `relay.py`, and
become lines in one walk without the GIL; under TLS libpq's calls are used, row by row.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from penstock.codec.lines import LineCell
from penstock.codec.postgres import pgwire
from penstock.codec.postgres.copytext import make_load_lines
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.target.relay import BLOCK_BYTES, _Side, plain
from penstock.ports.bulk import CopyCountsDiffer, Lines

READ = "reading at the source"
GATHER_BYTES = 256 * 1024
MUCH_BYTES = 8 * 1024  # a server sends that much at a time: more is on its way
NAP_S = 0.001
_COPY_OUT, _COPY_DATA, _COPY_DONE = ord("H"), ord("d"), ord("c")


class PlainLines(Lines):
    """The lines of one COPY as they are; row_count is final at the end."""

    row_count = 0

    def __init__(self, connection: psycopg.Connection, copy_out: str, *, doing: str = READ) -> None:
        """doing: the work, for errors."""
        self._connection = connection
        self._copy_out = copy_out
        self._doing = doing

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of whole lines, of about BLOCK_BYTES. As `LinesOfCopy`."""
        lines: list[bytes] = []
        size = 0
        with (
            server_errors(self._doing),
            self._connection.cursor() as cursor,
            cursor.copy(sql.SQL(self._copy_out)) as copy,
        ):
            for row in copy:  # a message of its own for each
                self.row_count += 1
                lines.append(bytes(row))
                size += len(row)
                if size >= BLOCK_BYTES:
                    yield b"".join(lines)
                    lines, size = [], 0
            if lines:
                yield b"".join(lines)


class LinesOfCopy(Lines):
    """The lines of one COPY, in blocks; row_count is final at the end."""

    def __init__(
        self,
        connection: psycopg.Connection,
        copy_out: str,
        cells: Sequence[LineCell],
        *,
        doing: str = READ,
    ) -> None:
        """doing: the work, for errors."""
        self._connection = connection
        self._copy_out = copy_out
        self._doing = doing
        self._lines = make_load_lines(cells)

    @property
    def row_count(self) -> int:
        """Rows so far."""
        return self._lines.row_count

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of whole lines. Raises the typed errors of `engines.postgres.connect`.

        The connection must be closed unless the end was reached: it is in the middle of a copy.
        """
        source = self._by_blocks() if plain(self._connection) else self._through_libpq()
        with server_errors(self._doing):
            yield from source

    def _by_blocks(self) -> Iterator[bytes]:
        lines, pgconn = self._lines, self._connection.pgconn
        try:
            with _Side(pgconn, READ, BLOCK_BYTES) as giver:
                giver.send(pgwire.query(self._copy_out))
                giver.expect(_COPY_OUT)
                while True:
                    giver.start = lines.feed(giver.block, giver.start, giver.end)
                    if block := lines.take():
                        yield block
                    if _is_other(giver):
                        kind, body = giver.message()
                        if kind == _COPY_DONE:
                            break
                        giver.aside(kind, body)
                    else:
                        _receive(giver)
                self._check(giver.finish())
        except BaseException:
            pgconn.finish()  # in the middle of a copy: the connection is of no more use
            raise

    def _through_libpq(self) -> Iterator[bytes]:
        lines = self._lines
        frames = bytearray()
        with self._connection.cursor() as cursor:
            with cursor.copy(sql.SQL(self._copy_out)) as copy:
                for row in copy:
                    frames += pgwire.copy_data(bytes(row))
                    if len(frames) >= GATHER_BYTES:
                        lines.feed(frames, 0, len(frames))
                        frames.clear()
                        yield lines.take()
            if frames:
                lines.feed(frames, 0, len(frames))
                yield lines.take()
            self._check(cursor.rowcount)

    def _check(self, sent: int) -> None:
        if sent != self.row_count:
            raise CopyCountsDiffer(
                f"the source sent {sent} rows, of which {self.row_count} arrived",
                hint="Please report it.",
                sent=sent,
                taken=self.row_count,
            )


def _is_other(giver: _Side) -> bool:
    """Return whether the next message is not a row."""
    return giver.start < giver.end and giver.block[giver.start] != _COPY_DATA


def _receive(giver: _Side) -> None:
    """Read more, rather a lot at once: being woken for each packet takes the servers' CPU."""
    giver.rewind()
    before = giver.end
    while not giver.receive():
        giver._wait(select.POLLIN)
    if giver.end - before >= MUCH_BYTES:
        time.sleep(NAP_S)
        giver.receive()
