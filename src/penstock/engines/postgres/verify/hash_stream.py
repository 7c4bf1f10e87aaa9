"""Rows as four hashes, streamed out of PostgreSQL by COPY, whole arrays at a time."""

from __future__ import annotations

import select
from collections.abc import Iterator

import numpy as np
import psycopg
from psycopg import pq

from penstock.engines.postgres.connect import statement_error
from penstock.host.errors import ConnectionLost
from penstock.ports.verify import ARRAY_ROWS, Hashes

WAIT_S = 60.0
_HEADER_BYTES = 19  # signature, flags, length of an empty extension
_ROW = np.dtype(
    [
        ("fields", ">i2"),
        *(
            (f"{part}{i}", f">i{size}")
            for i in range(4)
            for part, size in (("length", 4), ("hash", 8))
        ),
    ]
)


def read_hashes(connection: psycopg.Connection, query: str, doing: str) -> Iterator[Hashes]:
    """Yield the rows of a query of four bigint columns as arrays, in the query's order.

    Raises the typed errors of `engines.postgres.connect`.
    """
    raw = connection.pgconn
    begun = raw.exec_(f"copy ({query}) to stdout (format binary)".encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise statement_error(doing, psycopg.errors.error_from_result(begun))
    parts: list[bytes | memoryview] = []
    first = True
    while True:
        length, data = raw.get_copy_data(1)
        if length > 0:
            parts.append(data)
        elif length == 0:
            _wait(raw, doing)
            raw.consume_input()
        if parts and (length < 0 or len(parts) >= ARRAY_ROWS):
            block = b"".join(parts)
            parts.clear()
            yield _decode(block[_HEADER_BYTES:] if first else block)
            first = False
        if length < 0:
            break
    while (result := raw.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise statement_error(doing, psycopg.errors.error_from_result(result))


def _wait(raw: pq.abc.PGconn, doing: str) -> None:
    poll = select.poll()
    poll.register(raw.socket, select.POLLIN)
    while not poll.poll(WAIT_S * 1000):
        if raw.status != pq.ConnStatus.OK:
            raise ConnectionLost(f"{doing}: the connection broke")


def _decode(block: bytes) -> Hashes:
    rows = np.frombuffer(block, dtype=_ROW, count=len(block) // _ROW.itemsize)
    return np.stack([rows[f"hash{i}"].astype(np.int64) for i in range(4)], axis=1)
