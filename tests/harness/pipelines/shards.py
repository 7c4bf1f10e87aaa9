"""Servers that are shards of one table of accounts, transfers between them, and their merge.

Each transfer takes from an account of one server and gives to one of another, in two prepared
transactions that name the global one of which they are parts. So the total never changes, and a
reader that sees another one sees an invalid state. Not here: the kills meanwhile (the tests).
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import write_pipeline
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.model.change import GLOBAL_PREFIX
from plugins.postgres import Server

ACCOUNTS = 20  # of each shard
CREDIT = 1000
TABLE = "create table account (id int primary key, balance int not null, note text)"
LIVELY = {"flushIntervalSeconds": 0.5, "heartbeatSeconds": 0.3}


class Shards:
    """The servers, each with a pipeline that only extracts, and a merged pipeline.

    Attributes:
        files: Files of the shards' pipelines.
        merged: File of the merged pipeline, into a database of the first server.
    """

    def __init__(
        self, folder: Path, count: int, *, has_target: bool = True, has_bases: bool = False
    ) -> None:
        """Start the servers; has_bases is for the shards' logs and the merged one."""
        self.folder = folder
        self._count = count
        self._has_target, self._has_bases = has_target, has_bases
        self.loaders: list[Process] = []
        self._stack = ExitStack()
        self.servers: list[Server] = []
        self.urls: list[str] = []
        self.files: list[Path] = []
        self.extractors: list[Process] = []
        self.target_url = ""
        self.merged = folder / "merged.toml"
        self.transfers = 0
        self.accounts: dict[int, list[int]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number in range(self._count):
                self.add(stack.enter_context(_server()), f"s{number}")
            self.target_url = self.servers[0].make_database("merged")
            with connect(self.target_url, application_name="test") as target:
                target.execute(TABLE)
                target.commit()
            self.write_merged()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (*self.extractors, *self.loaders):
            process.__exit__(None, None, None)
        self._stack.close()

    def add(self, embedded: EmbeddedPostgres, name: str) -> None:
        """Add a shard with an empty table of accounts, and its pipeline file."""
        server = Server(embedded=embedded)
        first = len(self.servers) * 1000
        self.accounts[len(self.servers)] = list(range(first, first + ACCOUNTS))
        url = server.make_database(name)
        with connect(url, application_name="test") as sql:
            sql.execute(TABLE)
            sql.commit()
        self.servers.append(server)
        self.urls.append(url)
        mode = {"pipeline": {"mode": "data+change"}, "spark": {"master": "local[1]"}}
        self.files.append(
            write_pipeline(
                self.folder,
                url,
                None,
                name=name,
                directory=name,
                file=f"{name}.toml",
                sections={
                    "changeExtractor": {**LIVELY, "replicationSlot": f"slot_{name}"},
                    **(mode if self._has_bases else {}),
                },
            )
        )

    def write_merged(self, files: Sequence[Path] | None = None, **merge: Any) -> None:
        """Write the merged pipeline's file. merge: more keys of [merge]."""
        names = [file.name for file in files or self.files]
        split = merge.pop("split", {})
        lines = ['[pipeline]\nname = "all"\ndirectory = "all"']
        lines += ['mode = "data+change"'] if self._has_bases else []
        lines += ["[merge]"]
        lines += [f"logs = {json.dumps(names)}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in merge.items()]
        if split:
            lines.append("[merge.split]")
            lines += [f'"{key}" = {json.dumps(value)}' for key, value in split.items()]
        lines.append("[changeExtractor]\nflushIntervalSeconds = 0.5")
        if self._has_target:
            lines.append(f'[target]\nurl = "{self.target_url}"')
        if self._has_target or self._has_bases:
            lines.append('[spark]\nmaster = "local[2]"')
        self.merged.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def extract(self, number: int) -> None:
        """Start a shard's extraction."""
        process = Process(self.files[number], "extract")
        if number < len(self.extractors):
            self.extractors[number] = process
        else:
            self.extractors.append(process)

    def load(self, number: int) -> None:
        """Start the process that keeps a shard's base, and wait until there is one."""
        process = Process(self.files[number], "load")
        self.loaders.append(process)
        base = self.folder / self.files[number].stem / "base" / "BASE.json"
        process.until(base.exists, "the base is read")

    def until_extracted(self) -> None:
        """Wait until each shard's log has begun."""
        for process, file in zip(self.extractors, self.files, strict=True):
            log = self.folder / file.stem / "log" / "LOG.json"
            process.until(log.exists, f"{file.name} has a log")

    def split(self, number: int) -> None:
        """Add two shards on their own servers, which share the accounts of an earlier one."""
        rows = self.rows([self.urls[number]])
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            at = len(self.servers)
            self.add(self._stack.enter_context(_server()), f"s{at}")
            self.accounts[at] = [row[0] for row in part]
            with connect(self.urls[at], application_name="test") as sql:
                sql.cursor().executemany("insert into account values (%s, %s, %s)", part)
                sql.commit()

    def fill(self, number: int) -> None:
        """Insert the accounts of a shard, in one transaction."""
        with connect(self.urls[number], application_name="test") as sql:
            first = number * 1000
            sql.execute(
                "insert into account select g, %s, '' from generate_series(%s::int, %s) as g",
                (CREDIT, first, first + ACCOUNTS - 1),
            )
            sql.commit()

    def total(self, url: str) -> tuple[int, int]:
        """Return the number of accounts in a database, and their total."""
        with connect(url, application_name="test") as sql:
            row = sql.execute("select count(*), coalesce(sum(balance), 0)::int from account")
            found = row.fetchone()
        assert found is not None
        return found

    def rows(self, urls: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return all accounts of some databases, by their ids."""
        found: list[tuple[Any, ...]] = []
        for url in urls:
            with connect(url, application_name="test") as sql:
                found += sql.execute("select id, balance, note from account").fetchall()
        return sorted(found)


def _server() -> EmbeddedPostgres:
    return EmbeddedPostgres(settings={"max_prepared_transactions": "20"})


class Transfers(threading.Thread):
    """A thread that commits transfers between shards until it is stopped.

    Attributes:
        error: Error that ended it earlier.
    """

    def __init__(self, shards: Shards, numbers: Sequence[int], seed: int) -> None:
        super().__init__(daemon=True)
        self._shards = shards
        self._numbers = list(numbers)
        self._rng = random.Random(seed)
        self._seed = seed
        self._ended = threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Commit transfers until the thread is stopped or an error ends it."""
        try:
            with ExitStack() as stack:
                open_ = {
                    number: stack.enter_context(
                        connect(self._shards.urls[number], application_name="test", autocommit=True)
                    )
                    for number in self._numbers
                }
                while not self._ended.is_set():
                    self._transfer(open_)
        except BaseException as error:
            self.error = error

    def _transfer(self, open_: dict[int, psycopg.Connection]) -> None:
        giver, taker = self._rng.sample(self._numbers, 2)
        amount, name = self._rng.randint(1, 50), f"t{self._seed}-{self.count}"
        parts = ((giver, -amount), (taker, amount))
        for number, change in parts:
            account = self._rng.choice(self._shards.accounts[number])
            sql = open_[number]
            sql.execute("begin")
            sql.execute(
                "select pg_logical_emit_message(true, %s, %s)", (f"{GLOBAL_PREFIX}/2", name)
            )
            sql.execute(
                "update account set balance = balance + %s, note = %s where id = %s",
                (change, name, account),
            )
            sql.execute(f"prepare transaction '{name}'")
        for number, _ in self._rng.sample(parts, 2):
            open_[number].execute(f"commit prepared '{name}'")
            time.sleep(self._rng.choice((0, 0, 0.002)))
        if self._rng.random() < 0.3:
            number = self._rng.choice(self._numbers)
            open_[number].execute(
                "update account set note = note || '.' where id = %s",
                (self._shards.accounts[number][0],),
            )
        self.count += 1

    def end(self) -> None:
        """Stop it and wait. Raises the error that ended it earlier."""
        self._ended.set()
        self.join(30)
        if self.error is not None:
            raise self.error


class TotalReader(threading.Thread):
    """Reads count and total at the target repeatedly; keeps each pair that it has seen."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.seen: dict[tuple[int, int], int] = {}
        self.versions: set[tuple[Any, ...]] = set()

    def run(self) -> None:
        """Read the accounts every 10 ms until the thread is stopped."""
        with connect(self._url, application_name="test", autocommit=True) as sql:
            while not self._ended.is_set():
                row = sql.execute(
                    "select count(*), coalesce(sum(balance), 0)::int, md5(string_agg(note, ','"
                    " order by id)) from account"
                ).fetchone()
                assert row is not None
                self.seen[row[:2]] = self.seen.get(row[:2], 0) + 1
                self.versions.add(row)
                time.sleep(0.01)

    def end(self) -> None:
        """Stop it and wait."""
        self._ended.set()
        self.join(30)


def wait_until(condition: Callable[[], Any], what: str, within_s: float = 120.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.1)


STOP, CONTINUE, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
