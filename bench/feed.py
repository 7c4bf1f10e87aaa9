"""A changefeed as CockroachDB posts it, created beforehand: bodies, resolved marks, and their
sender.

Three tables, transactions of five rows, inserts, updates and deletes mixed 6:3:1, rows of about 130
bytes of JSON. Each span between two marks also writes the only row of the table `mark`, by which a
reader of the target sees which spans are there.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

TABLES = ("customers", "orders", "order_lines")
PATH = "/postgres/public"
ROWS_PER_TRANSACTION = 5
CONNECTIONS = 4
DDL = (
    *(
        f"create table {name} (id int8 primary key, customer text, total numeric(12, 2),"
        " note text, placed_at timestamp)"
        for name in TABLES
    ),
    "create table mark (id int primary key, n int8)",
)


@dataclass(frozen=True, slots=True)
class Span:
    """Requests between two marks, and the mark. number: as in the table `mark`."""

    number: int
    bodies: Sequence[bytes]
    mark: bytes
    row_count: int


class History:
    """Maker of spans, one after the other."""

    def __init__(self, seed: int = 1) -> None:
        """Begin the times a minute ago: no row is far behind."""
        self._dice = random.Random(seed)
        self._nanos = time.time_ns() - 60_000_000_000
        self._last = dict.fromkeys(TABLES, 0)
        self._number = 0

    def span(self, row_count: int, rows_per_body: int) -> Span:
        """Return the next one; its mark's row is one of its rows."""
        self._number += 1
        lines = []
        for place in range(row_count - 1):
            if place % ROWS_PER_TRANSACTION == 0:
                self._nanos += 50_000
            lines.append(self._line())
        self._nanos += 50_000
        lines.append(
            f'{{"after":{{"id":1,"n":{self._number}}},"key":[1],"topic":"mark",'
            f'"updated":"{self._nanos}.0000000000"}}'
        )
        parts = [lines[at : at + rows_per_body] for at in range(0, row_count, rows_per_body)]
        bodies = [
            f'{{"payload":[{",".join(part)}],"length":{len(part)}}}'.encode() for part in parts
        ]
        mark = f'{{"resolved":"{self._nanos + 1}.0000000000"}}'.encode()
        return Span(self._number, bodies, mark, row_count)

    def _line(self) -> str:
        dice = self._dice
        table = dice.choice(TABLES)
        kind = dice.random()
        if kind < 0.6 or not self._last[table]:
            self._last[table] = key = self._last[table] + 1
        else:
            key = dice.randrange(1, self._last[table] + 1)
        after = "null"
        if kind < 0.9:
            after = (
                f'{{"customer":"customer {key}","id":{key},"note":"as long as notes are",'
                f'"placed_at":"2024-01-01T10:00:00.{dice.randrange(10**6):06}",'
                f'"total":{dice.randrange(10**6) / 100:.2f}}}'
            )
        return (
            f'{{"after":{after},"key":[{key}],"topic":"{table}",'
            f'"updated":"{self._nanos}.0000000000"}}'
        )


class Sender:
    """Sender of spans over connections that stay open; a mark follows once all before it was
    answered.
    """

    def __init__(self, port: int) -> None:
        """Store the port of the receiver on this host."""
        self._port = port
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="feed")

    def __enter__(self) -> Sender:
        """Return the sender; it connects later."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for requests in progress."""
        self._pool.shutdown()

    def send(self, span: Span) -> float:
        """Post a span; return when its mark was posted, in time.monotonic()."""
        for _ in self._pool.map(self._post, span.bodies):
            pass
        posted = time.monotonic()
        self._post(span.mark)
        return posted

    def _post(self, body: bytes) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
            self._local.connection = connection
        try:
            answer = _post(connection, body)
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            # closed by the receiver, after it was idle; the next request opens it
            connection.close()
            answer = _post(connection, body)
        text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{answer.status}: {text.decode()}")


def _post(connection: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
    connection.request("POST", PATH, body)
    return connection.getresponse()


def spans(history: History, total: int, per_mark: int, rows_per_body: int) -> Iterator[Span]:
    """Yield spans up to the total number of rows."""
    for low in range(0, total, per_mark):
        yield history.span(min(per_mark, total - low), rows_per_body)
