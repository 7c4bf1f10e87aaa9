"""A whole pipeline for tests: two databases, `penstock run` between them, and a comparison.

The comparison is the test's own, by text and column by column, and independent of penstock's
verify. Not here: the work of a single half (`harness/pipelines/loader.py`,
`harness/pipelines/extract.py`).
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from harness.pipelines.pipeline import write_pipeline
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote
from plugins.postgres import Server

WAIT_S = 120.0
LIVELY = {"flushIntervalSeconds": 0.3, "idleWaitSeconds": 1.5}


class Process:
    """A `penstock <command> file --json`; killed at the end of the block if it still runs."""

    def __init__(self, path: Path, command: str = "run", *more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", command, str(path), *more, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        pairs = ((self._process.stdout, self.out), (self._process.stderr, self.err))
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(iter(stream.readline, ""))

    @property
    def events(self) -> list[str]:
        """Texts of the events of the run so far."""
        objects = [json.loads(line) for line in self.out]
        return [item["text"] for item in objects if "text" in item]

    def events_of(self, key: str) -> list[Any]:
        """Return the values of a key in its output so far."""
        return [item[key] for item in map(json.loads, self.out) if key in item]

    @property
    def error(self) -> dict[str, Any]:
        """Error with which it ended."""
        found: dict[str, Any] = json.loads(self.err[-1])
        return found

    @property
    def running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def until(self, condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
        """Wait for a condition while the process runs."""
        deadline = time.monotonic() + within_s
        while not condition():
            if not self.running:
                self._join()
                if condition():
                    return
                raise AssertionError(f"ended with {self._process.returncode}: {self.err}")
            assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
            time.sleep(0.05)

    def wait_for_end(self, within_s: float = WAIT_S) -> int:
        """Wait for its end, and return the exit code."""
        code = self._process.wait(within_s)
        self._join()
        return code

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and check that it ends without an error."""
        self._process.send_signal(number)
        assert self.wait_for_end() == 0, self.err

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(10)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._process.kill()
            self._process.wait()
        self._join()


class Pair:
    """A source and a target database, a pipeline file between them, and its processes."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        *,
        target_user: tuple[str, str] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        mode: str = "data+change",
        tables: Sequence[str] = ("*.*",),
    ) -> None:
        """Make the databases, empty. target_user: name and password of the loader."""
        self.folder = folder
        self.server = server
        self.source_url = server.make_database("source")
        self.target_url = server.make_database("target")
        settings = {**EXACT_TEXT_SETTINGS, "search_path": "public"}
        self.source = connect(self.source_url, application_name="test", options=settings)
        self.target = connect(self.target_url, application_name="test", options=settings)
        self.source.execute("create table public.fence (id int primary key)")
        self._fences = itertools.count(1)
        url = self.target_url
        if target_user is not None:
            url = server.url(self.target.info.dbname, *target_user)
        given = {name: dict(keys) for name, keys in (sections or {}).items()}
        given["changeExtractor"] = {**LIVELY, **given.get("changeExtractor", {})}
        given.setdefault("spark", {"master": "local[2]"})
        self.map: Mapping[str, str] = given.get("target.map", {})
        self.options: dict[str, Any] = {"mode": mode, "tables": tables, "sections": given}
        self.loader_url = url
        self.path = self.write()
        self.process: Process | None = None

    def write(self, **changed: Any) -> Path:
        """Write the pipeline file, with some options changed."""
        options = {**self.options, **changed}
        return write_pipeline(self.folder, self.source_url, self.loader_url, **options)

    @property
    def directory(self) -> Path:
        """Directory of the pipeline."""
        return self.folder / "shop"

    def run(self, sql: str) -> None:
        """Run SQL on the source, in one transaction if it has several statements."""
        if sql:
            self.source.execute(sql.encode())

    def start(self, command: str = "run") -> Process:
        """Start a process; the last one started is watched by waits."""
        self.process = Process(self.path, command)
        return self.process

    def stop(self) -> None:
        """Stop the process in order."""
        assert self.process is not None
        self.process.stop()

    def settle(self) -> None:
        """Wait until everything that is committed at the source now is in the target.

        The first fence may come with the bulk load, while other tables are still copied; the second
        one comes after its snapshot as a change, when all are copied.
        """
        assert self.process is not None
        for number in (next(self._fences), next(self._fences)):
            self.run(f"insert into public.fence values ({number})")
            self.process.until(
                lambda n=number: self._has_passed(n), f"fence {number} in the target"
            )

    def _has_passed(self, number: int) -> bool:
        name = quote(self.map.get("public", "public"), "fence")
        try:
            found = self.target.execute(f"select 1 from {name} where id = {number}".encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return False
        return found.fetchone() is not None

    def differences(self, table: str, schema: str = "public", *, types: bool = True) -> list[str]:
        """Return the differences of a table's two sides, by text; empty when they are equal."""
        sides = []
        for connection, name in (
            (self.source, quote(schema, table)),
            (self.target, quote(self.map.get(schema, schema), table)),
        ):
            try:
                sides.append(read_side(connection, name))
            except psycopg.errors.UndefinedTable:
                return [f"no table {name}"]
            except psycopg.errors.UndefinedColumn:  # the columns changed since they were listed
                return [f"{name} is altered at this moment"]
        (source_columns, source_rows), (target_columns, target_rows) = sides
        found = []
        if types and dict(source_columns) != dict(target_columns):
            found.append(f"{table}: columns {source_columns} became {target_columns}")
        if [name for name, _ in source_columns] != [name for name, _ in target_columns]:
            target_rows = Counter()
        found += [f"{table}: lacks {row!r:.500}" for row in (source_rows - target_rows).elements()]
        found += [f"{table}: has {row!r:.500}" for row in (target_rows - source_rows).elements()]
        return found

    def check(self, *tables: str, schema: str = "public", types: bool = True) -> None:
        """Settle, and raise an error if a table differs."""
        self.settle()
        wrong = [line for t in tables for line in self.differences(t, schema, types=types)]
        assert not wrong, "\n".join(wrong[:20])

    def until_equal(self, *tables: str, schema: str = "public", within_s: float = WAIT_S) -> None:
        """Wait until the tables are equal."""
        assert self.process is not None

        def wrong() -> list[str]:
            return [line for t in tables for line in self.differences(t, schema)]

        try:
            self.process.until(lambda: not wrong(), f"{tables} are equal", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(wrong()[:20])) from error

    def close_process(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None:
            self.process.__exit__()

    def close(self) -> None:
        """Stop everything and drop the databases."""
        self.close_process()
        self.source.close()
        self.target.close()
        self.server.drop_database(self.source_url)
        self.server.drop_database(self.target_url)


def read_side(
    connection: psycopg.Connection, name: str
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return columns with their types, by name, and the rows as the server prints them, counted."""
    columns = connection.execute(
        """
        select attname, format_type(atttypid, atttypmod)
          from pg_attribute
         where attrelid = %s::regclass
           and attnum > 0
           and not attisdropped
         order by attname collate "C"
        """,
        (name,),
    ).fetchall()
    listed = ", ".join(f"t.{quote(column[0])}" for column in columns)
    kind = connection.execute(
        "select relkind::text from pg_class where oid = %s::regclass", (name,)
    )
    only = "" if kind.fetchone() == ("p",) else "only "  # tables that inherit count separately
    query = f"select row({listed})::text from {only}{name} as t"
    rows = connection.execute(query.encode()).fetchall()
    return [(c[0], c[1]) for c in columns], Counter(row[0] for row in rows)
