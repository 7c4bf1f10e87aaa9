"""A session's connection to PostgreSQL, by libpq, so that results stay bytes.

While a statement runs, the client's socket is watched: an attention ends the statement.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg import pq

from sim_sqlserver.errors import ConnectionDropped, SqlError, diagnostics, from_postgres

CHUNK_ROWS = 1000
_ROWS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE)
_HAS_CHUNKS = hasattr(pq.ExecStatus, "TUPLES_CHUNK")


class Backend:
    """Connection of one session.

    Attributes:
        spid: Number of the session.
        watch: Returns True if the client wants the running statement to end; called when its socket
            has input.
        was_cancelled: Whether the client has given up the running request.
        client: Descriptor of the client's socket; None if it is not watched.
    """

    def __init__(self, dsn: str, database: str, spid: int) -> None:
        self._connection = psycopg.connect(dsn, dbname=database, autocommit=True)
        self._pg = self._connection.pgconn
        self.spid = spid
        self.watch: Callable[[], bool] = lambda: False
        self.client: int | None = None
        self.was_cancelled = False
        self._prepared: str | None = None  # a later simple query forgets it
        self.pid = self._pg.backend_pid

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def cancel(self) -> None:
        """Cancel the running statement, if there is one, and wait for its end.

        PostgreSQL forgets a request that arrives before the statement, so it is repeated.
        """
        while self._pg.transaction_status == pq.TransactionStatus.ACTIVE:
            self._connection.cancel_safe()
            while self._pg.is_busy() and select.select([self._pg.socket], [], [], 0.1)[0]:
                self._pg.consume_input()
            if not self._pg.is_busy():
                self._pg.get_result()

    @property
    def has_failed(self) -> bool:
        """Return whether an error has ended the transaction that PostgreSQL is in."""
        return self._pg.transaction_status == pq.TransactionStatus.INERROR

    @property
    def is_in_transaction(self) -> bool:
        """Return whether PostgreSQL is in a transaction."""
        return self._pg.transaction_status != pq.TransactionStatus.IDLE

    def run(self, statement: str) -> None:
        """Run statements without results."""
        self._prepared = None
        self._check(self._pg.exec_(statement.encode()))

    def texts(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement as psycopg reads them."""
        self._prepared = None
        try:
            cursor = self._connection.execute(statement.encode(), prepare=False)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            result = error.pgresult
            if result is None:
                raise ConnectionDropped from error
            raise self._error(result) from error

    def prepare(self, statement: str) -> Any:
        """Prepare a statement; return the description of its result."""
        self._pg.send_prepare(b"", statement.encode())
        self._check(self._last_result())
        self._prepared = statement
        # libpq's own describe_prepared waits for a table's lock while it has the GIL, and the
        # session that has the lock would never end.
        self._pg.send_describe_prepared(b"")
        return self._last_result()

    def _last_result(self) -> Any:
        last = None
        while True:
            self._wait()
            result = self._pg.get_result()
            if result is None:
                return last
            last = result

    def stream(self, statement: str) -> Iterator[Any]:
        """Run a statement; yield its results of libpq, rows in chunks and in binary format."""
        if self.was_cancelled:
            raise SqlError(3617, "The client has given up the request.")
        if self._prepared == statement:
            self._prepared = None
            self._pg.send_query_prepared(b"", None, result_format=pq.Format.BINARY)
        else:
            self._pg.send_query_params(statement.encode(), None, result_format=pq.Format.BINARY)
        if _HAS_CHUNKS:
            self._pg.set_chunked_rows_mode(CHUNK_ROWS)
        failed: SqlError | None = None
        while True:
            self._wait()
            result = self._pg.get_result()
            if result is None:
                break
            if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
                failed = self._error(result)
                continue
            yield result
        if failed is not None:
            raise failed

    def _wait(self) -> None:
        while True:
            if self._pg.status == pq.ConnStatus.BAD:
                raise ConnectionDropped
            self._pg.flush()
            if not self._pg.is_busy():
                return
            sockets = [self._pg.socket]
            if self.client is not None and not self.was_cancelled:
                sockets.append(self.client)
            ready = select.select(sockets, [], [], 60)[0]
            if self._pg.socket in ready:
                try:
                    self._pg.consume_input()
                except psycopg.OperationalError as error:
                    raise ConnectionDropped from error
            elif self.client in ready and self.watch():
                self.was_cancelled = True
                self._connection.cancel_safe()

    def copy_in(self, statement: str, rows: Iterator[bytes]) -> int:
        """Copy encoded lines into a table; return how many rows there were."""
        try:
            with self._connection.cursor() as cursor:
                with cursor.copy(statement.encode()) as copy:
                    for row in rows:
                        copy.write(row)
                return cursor.rowcount
        except psycopg.Error as error:
            if error.pgresult is None:
                raise ConnectionDropped from error
            raise self._error(error.pgresult) from error

    def _check(self, result: Any) -> None:
        if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            raise self._error(result)

    def _error(self, result: Any) -> SqlError:
        if self._pg.status == pq.ConnStatus.BAD:
            raise ConnectionDropped
        fields = diagnostics(result)
        if fields.get("sqlstate") == "57P01":
            raise ConnectionDropped
        return from_postgres(fields, self.spid)


def is_rows(result: Any) -> bool:
    """Return whether a result of libpq has columns."""
    return result.status in _ROWS or (_HAS_CHUNKS and result.status == pq.ExecStatus.TUPLES_CHUNK)
