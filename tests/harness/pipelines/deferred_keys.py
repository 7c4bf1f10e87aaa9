"""Guests who change seats all the time: unique values that move between the rows of a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.engines.mysql.connect import run
from penstock.engines.mysql.source import snapshot
from plugins.mysql import MySQLServer, database_of

ROW_COUNT = 6000  # of several chunks
MOVES_MAX = 400
EVERY = 100  # one of so many rows has a moving value
TABLES = """
    create table seat (id int primary key, guest varchar(20), pad varchar(600) not null,
                       unique key guest_once (guest));
    create table coat (id int primary key, guest varchar(20), foreign key (guest)
                       references seat (guest));
    create table ticket (number int not null, guest varchar(20) not null, unique key (number),
                         unique key holder (guest, number));
"""
# All guests take their predecessor's seat at once. If ranges of the key are seen before
# and after that, two rows somewhere in the circle have the same value.
MOVE = (
    "update seat set guest = concat('t', guest) where id < {rows} and guest is not null",
    "update seat set guest = concat('g', (id div {every} + {n}) mod ({rows} div {every})) "
    "where id < {rows} and guest is not null",
    "delete from seat where id = 1",
    "insert into seat values (1, null, 'x'), ({rows} + {n}, 'n{n}', 'y')",
    "insert into ticket values ({n}, 'n{n}')",
)


class Party:
    """The source: each guest has one seat at any moment."""

    def __init__(self, server: MySQLServer, url: str) -> None:
        self.server, self.name = server, database_of(url)
        self._moves = 0
        self._turn = threading.Lock()
        server.execute(TABLES, self.name)
        for first in range(0, ROW_COUNT, 1000):
            values = ", ".join(
                f"({n}, if({n % EVERY}, null, 'g{n // EVERY}'), '{'x' * 600}')"
                for n in range(first, first + 1000)
            )
            server.execute(f"insert into seat values {values}", self.name)
        server.execute("insert into coat values (1, 'g3'); analyze table seat", self.name)

    def move(self) -> None:
        """Move all guests to another seat, in one transaction."""
        with (
            self._turn,
            self.server.connect(self.name) as connection,
            connection.cursor() as cursor,
        ):
            self._moves += 1
            cursor.execute("set foreign_key_checks = 0")
            cursor.execute("begin")
            for statement in MOVE:
                cursor.execute(statement.format(rows=ROW_COUNT, every=EVERY, n=self._moves))
            cursor.execute("commit")

    def between_snapshots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Move all guests between one snapshot and the next, whichever way they are taken."""

        def begin(taking: Any) -> None:
            for reader in taking.readers:
                run(reader, snapshot.BEGIN, doing="taking a snapshot")
                if reader is not taking.readers[-1]:
                    self.move()

        monkeypatch.setattr(snapshot._Taking, "_begin", begin)

    @contextmanager
    def moving(self, until: Callable[[], bool], more: int) -> Iterator[None]:
        """Move all guests all the time until a condition holds, and some times more."""
        ended = threading.Event()

        def go() -> None:
            left = more
            for _ in range(MOVES_MAX):
                if not left or ended.wait(0.1):
                    return
                self.move()
                left -= until()

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table, in order."""
        return self.server.execute(f"select * from {table} order by 1", self.name)


class Copy:
    """The target: a database of PostgreSQL, or another one of the same server."""

    def __init__(self, url: str, schema: str, server: MySQLServer | None = None) -> None:
        self.url, self.schema, self._server = url, schema, server

    def _query(self, mysql: str, postgres: str) -> list[tuple[Any, ...]]:
        if self._server is not None:
            return self._server.execute(mysql, self.schema)
        with psycopg.connect(self.url) as connection:
            return connection.execute(postgres.encode()).fetchall()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table, in order."""
        query = f"select * from {{}}{table} order by 1"
        return self._query(query.format(""), query.format(f'"{self.schema}".'))

    def execute(self, sql: str) -> None:
        """Run a statement on either kind of server."""
        if self._server is not None:
            self._server.execute(sql, self.schema)
            return
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'set search_path = "{self.schema}"'.encode())
            connection.execute(sql.encode())

    def unique_keys(self) -> list[str]:
        """Return the columns of each unique key that is not primary, as `table: column,column`."""
        found = self._query(
            "select concat(table_name, ': ', group_concat(column_name order by seq_in_index)) as k"
            " from information_schema.statistics where table_schema = database()"
            " and non_unique = 0 and index_name <> 'PRIMARY'"
            " group by table_name, index_name order by 1",
            "select t.relname || ': ' || string_agg(a.attname, ',' order by a.attnum)"
            "  from pg_index as i join pg_class as t on t.oid = i.indrelid"
            "  join pg_namespace as n on n.oid = t.relnamespace"
            "  join pg_attribute as a on a.attrelid = i.indexrelid"
            f" where n.nspname = '{self.schema}' and i.indisunique and not i.indisprimary"
            " group by t.relname, i.indexrelid order by 1",
        )
        return sorted(str(row[0]) for row in found)

    def foreign_keys(self) -> int:
        """Return the number of foreign keys."""
        found = self._query(
            "select count(*) as n from information_schema.referential_constraints"
            " where constraint_schema = database()",
            "select count(*) from pg_constraint as c join pg_namespace as n"
            f" on n.oid = c.connamespace where n.nspname = '{self.schema}' and contype = 'f'",
        )
        return int(found[0][0])
