"""Frames of a COPY TO STDOUT from the socket to a decoder, in large blocks.

Whole blocks of CopyData are read from the socket below a psycopg connection, as in `relay.py`;
under TLS libpq's calls are used, row by row. Not here: what a decoder makes of the frames
(`bulk_reader.py`, `binary_rows.py`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

import psycopg
from psycopg import sql

from penstock.codec.lines import Block
from penstock.codec.postgres import pgwire
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.target.relay import BLOCK_BYTES, _Side, plain
from penstock.ports.bulk import CopyCountsDiffer

READ = "reading at the source"
GATHER_BYTES = 256 * 1024
MUCH_BYTES = 8 * 1024  # a server sends that much at a time: more is on its way
NAP_S = 0.001
_COPY_OUT, _COPY_DATA, _COPY_DONE = ord("H"), ord("d"), ord("c")

Feed = Callable[[Block, int, int], int]


class CopyFrames:
    """Frames of one COPY; they can be read once.

    Attributes:
        sent: Rows that the server has sent, by its own count; set at the end.
    """

    sent = 0

    def __init__(
        self, connection: psycopg.Connection, copy_out: str, feed: Feed, *, doing: str
    ) -> None:
        """Keep the arguments.

        feed: takes the frames of CopyData at the front of block[start:end], and returns the offset
        of the first one that is not whole. doing: names the work in errors.
        """
        self._connection = connection
        self._copy_out = copy_out
        self._feed = feed
        self._doing = doing

    def __iter__(self) -> Iterator[None]:
        """Yield each time when frames were fed. Raises the typed errors of
        `engines.postgres.connect`.

        The connection must be closed unless the end was reached: it is in the middle of a copy.
        """
        source = self._by_blocks() if plain(self._connection) else self._through_libpq()
        with server_errors(self._doing):
            yield from source

    def check(self, arrived: int) -> None:
        """Compare the decoder's count of rows with the server's. Raises CopyCountsDiffer."""
        if self.sent != arrived:
            raise CopyCountsDiffer(
                f"the source sent {self.sent} rows, of which {arrived} arrived",
                hint="Please report it.",
                sent=self.sent,
                taken=arrived,
            )

    def _by_blocks(self) -> Iterator[None]:
        pgconn = self._connection.pgconn
        try:
            with _Side(pgconn, READ, BLOCK_BYTES) as giver:
                giver.send(pgwire.query(self._copy_out))
                giver.expect(_COPY_OUT)
                while True:
                    giver.start = self._feed(giver.block, giver.start, giver.end)
                    yield
                    if _is_other(giver):
                        kind, body = giver.message()
                        if kind == _COPY_DONE:
                            break
                        giver.aside(kind, body)
                    else:
                        _receive(giver)
                self.sent = giver.finish()
        except BaseException:
            pgconn.finish()  # in the middle of a copy: the connection is of no more use
            raise

    def _through_libpq(self) -> Iterator[None]:
        frames = bytearray()
        with self._connection.cursor() as cursor:
            with cursor.copy(sql.SQL(self._copy_out)) as copy:
                for row in copy:
                    frames += pgwire.copy_data(bytes(row))
                    if len(frames) >= GATHER_BYTES:
                        self._feed(frames, 0, len(frames))
                        frames.clear()
                        yield
            if frames:
                self._feed(frames, 0, len(frames))
                yield
            self.sent = cursor.rowcount


def _is_other(giver: _Side) -> bool:
    """Return whether the next message is not a row."""
    return giver.start < giver.end and giver.block[giver.start] != _COPY_DATA


def _receive(giver: _Side) -> None:
    """Read more, in large pieces, because a wake-up for each packet takes the servers' CPU."""
    giver.rewind()
    before = giver.end
    while not giver.receive():
        giver._wait(select.POLLIN)
    if giver.end - before >= MUCH_BYTES:
        time.sleep(NAP_S)
        giver.receive()
