"""A database of every engine under test, for the suites that run against all of them.

`ENGINES` names those that run here, and `SIMULATED` those whose protocol a simulator speaks;
`new_place` makes a fresh database of one. Tests use SQL that every engine understands: plain types,
rows as literals. Anything else is a method of `Place`. A new engine is one more class here and one
more line in `_KINDS`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from harness.servers import oracle_real
from harness.servers.oracle_place import OraclePlace
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.model import TableName
from plugins import mysql, postgres, sqlserver
from plugins.shared import SharedServers

LOCK_WAIT_S = 20  # DDL that has to wait this long would wait forever


class Place(Protocol):
    """A database of a real server.

    Attributes:
        url: URL of the database.
        namespace: Prefix of its tables' names.
        unsent: Statement after which a session's changes leave out unchanged values. PostgreSQL
            leaves out long ones without any.
    """

    url: str
    namespace: str
    unsent: str

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in autocommit, and return the rows of the last one."""
        ...

    def make_keyless(self, table: str, columns: str) -> None:
        """Create a table without a key that can still be captured."""
        ...

    def make_wide(self, table: str) -> None:
        """Create a table (id, n, big) of long texts, in which a source may leave out `big`."""
        ...

    def forget_log(self) -> None:
        """Let the server discard everything written so far, even if a reader has not read it."""
        ...

    def truncate(self, table: str) -> None:
        """Truncate a table."""
        ...

    def count_rows(self, table: str) -> None:
        """Let the server estimate a table again."""
        ...

    def is_running(self, text: str) -> bool:
        """Return whether another session runs a query that contains this text."""
        ...

    def forget_penstock(self) -> None:
        """Drop what penstock keeps at the server outside of this database."""
        ...

    def drop(self) -> None:
        """Drop the database."""
        ...


def name_in(place: Place, table: str) -> TableName:
    """Return a table's full name."""
    return TableName(place.namespace, table)


def insert(place: Place, table: str, rows: Iterable[tuple[int | str | None, ...]]) -> None:
    """Insert rows of numbers and of texts without quotes and backslashes."""
    listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    place.run(f"insert into {table} values {listed}")


def _literal(value: int | str | None) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"'{value}'"


class PostgresPlace:
    """Database of a PostgreSQL server; a `Place`."""

    namespace = "public"
    unsent = ""

    def __init__(self, server: postgres.Server) -> None:
        self._server = server
        self.url = server.make_database("conform")
        self._database = self.url.rpartition("/")[2]

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each with a limited wait for locks; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            limited = f"set lock_timeout = '{LOCK_WAIT_S}s'; {statement}"
            found = self._server.execute(limited, self._database)
        return found

    def make_keyless(self, table: str, columns: str) -> None:
        """Create a table whose replica identity is the whole row."""
        self.run(f"create table {table} ({columns}); alter table {table} replica identity full")

    def make_wide(self, table: str) -> None:
        """Create the table with texts stored out of line and uncompressed."""
        self.run(f"create table {table} (id int primary key, n int, big text)")
        self.run(f"alter table {table} alter big set storage external")

    def forget_log(self) -> None:
        """Drop the replication slots of this database, which keep the log."""
        self.run(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            "where database = current_database()"
        )

    def truncate(self, table: str) -> None:
        self.run(f"truncate table {table}")

    def count_rows(self, table: str) -> None:
        self.run(f"analyze {table}")

    def is_running(self, text: str) -> bool:
        return bool(
            self.run(
                "select 1 from pg_stat_activity where state = 'active' "
                f"and pid <> pg_backend_pid() and query like '%{text}%'"
            )
        )

    def forget_penstock(self) -> None:
        """Do nothing: all of it is in this database."""

    def drop(self) -> None:
        self._server.drop_database(self.url)


class MySQLPlace:
    """Database of a MySQL or MariaDB server; a `Place`."""

    unsent = "set session binlog_row_image = 'minimal'"

    def __init__(self, server: mysql.MySQLServer) -> None:
        self._server = server
        self.url = server.make_database("conform")
        self.namespace = mysql.database_of(self.url)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each with a limited wait for locks; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            limited = f"set lock_wait_timeout = {LOCK_WAIT_S}; {statement}"
            found = self._server.execute(limited, self.namespace)
        return found

    def make_keyless(self, table: str, columns: str) -> None:
        self.run(f"create table {table} ({columns})")

    def make_wide(self, table: str) -> None:
        self.run(f"create table {table} (id int primary key, n int, big text)")

    def forget_log(self) -> None:
        """Purge all binlog files except a new one.

        MariaDB may need a moment to release a file that a reader has used.
        """
        self.run("flush binary logs")
        kept = self._server.status()[0]
        until = time.monotonic() + LOCK_WAIT_S
        while self.run("show binary logs")[0][0] != kept:
            assert time.monotonic() < until, "the files stay"
            self.run(f"purge binary logs to '{kept}'")

    def truncate(self, table: str) -> None:
        self.run(f"truncate table {table}")

    def count_rows(self, table: str) -> None:
        self.run(f"analyze table {table}")

    def is_running(self, text: str) -> bool:
        return bool(
            self.run(
                "select 1 from information_schema.processlist where id <> connection_id() "
                f"and command = 'Query' and info like '%{text}%'"
            )
        )

    def forget_penstock(self) -> None:
        self.run("drop database if exists wirekite")

    def drop(self) -> None:
        self._server.drop_database(self.url)


_KINDS: Mapping[str, int | str] = {
    **{f"pg{version}": version for version in postgres.versions()},
    **{kind: kind for kind in mysql.kinds()},
}
ENGINES = tuple(_KINDS)
SIMULATED = ("sqlserver", "oracle")
FIRST = ENGINES[0]


@contextmanager
def new_place(servers: SharedServers, engine: str) -> Iterator[Place]:
    """Make a fresh database of an engine, for a with block."""
    kind = _KINDS.get(engine, engine)
    place: Place
    if kind == "oracle":
        real = os.environ.get(oracle_real.URL_VARIABLE)
        place = OraclePlace() if real is None else oracle_real.RealOraclePlace(real)
    elif kind == "sqlserver":
        place = SQLServerPlace(sqlserver.shared_server(servers))
    elif isinstance(kind, int):
        place = PostgresPlace(postgres.first_server(servers, kind))
    else:
        place = MySQLPlace(servers.get(kind, lambda: mysql.running(kind)))
    try:
        yield place
    finally:
        place.drop()
