"""Values of every type in use: one table for each type, rows inserted, changed and deleted."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import psycopg

from harness.pipelines.bank_engines import POSTGRES, Session, dialect_of, session, transaction
from harness.servers import mysql_types, postgres_types
from penstock.engines.postgres.connect import literal

PAUSE_S = 0.02
STATEMENTS_MAX = 4  # of one transaction


class Kinds:
    """A workload of small transactions over the tables of all types, until it is stopped."""

    def __init__(self, url: str, seed: int, *, leaves_out: Sequence[str] = ()) -> None:
        """Create the tables, empty. leaves_out: types that the destination cannot hold."""
        self._url = url
        self._dialect = dialect_of(url)
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._error: BaseException | None = None
        self._last_id = 0
        self._values: dict[str, list[str]] = {}
        with session(url, self._dialect.namespace) as connection:
            every = self._every(connection)
            for number, (kind, values) in enumerate(every.items()):
                if kind not in leaves_out:
                    self._values[f"kind{number}"] = values
                    self._make(connection, f"kind{number}", kind)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._values)

    def __enter__(self) -> Kinds:
        """Start it."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it. Raises an error that the workload could not survive."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _every(self, connection: Session) -> dict[str, list[str]]:
        """Return the values of each type as SQL."""
        if self._dialect is not POSTGRES:
            version = str(connection.execute("select version()")[0][0])
            return mysql_types.values_for("MariaDB" in version)
        with psycopg.connect(self._url, autocommit=True) as server:
            with_xml, version_number = (
                postgres_types.has_xml(server),
                server.info.server_version // 10000,
            )
        connection.execute(postgres_types.SETUP)
        found = postgres_types.values_for(version_number, set(), with_xml=with_xml)
        return {
            kind: [f"{literal(value)}::{kind}" for value in values]
            for kind, values in found.items()
            if kind.removesuffix("[]").removeprefix("kinds.") not in postgres_types.EXTENSION_VALUES
        }

    def _make(self, connection: Session, table: str, kind: str) -> None:
        # A timestamp would not accept NULL otherwise.
        null = "" if self._dialect is POSTGRES else " null"
        connection.execute(f"create table {table} (id int primary key, v {kind}{null})")
        if self._dialect is POSTGRES:
            connection.execute(f"alter table {table} replica identity full")

    def _work(self) -> None:
        try:
            with session(self._url, self._dialect.namespace) as connection:
                while not self._stop.wait(PAUSE_S):
                    self._transact(connection)
        except BaseException as error:
            self._error = error

    def _transact(self, connection: Session) -> None:
        with transaction(connection):
            for _ in range(self._random.randint(1, STATEMENTS_MAX)):
                table = self._random.choice(self.tables)
                connection.execute(self._statement(table))

    def _statement(self, table: str) -> str:
        value = self._random.choice([*self._values[table], "null"])
        some = f"mod(id, 7) = {self._random.randrange(7)}"
        self._last_id += 1
        match self._random.randrange(6):
            case 0:
                return f"update {table} set v = {value} where {some}"
            case 1:
                return f"delete from {table} where {some}"
            case 2:
                return f"update {table} set id = -id where {some} and id > 0"
            case _:
                return f"insert into {table} values ({self._last_id}, {value})"
