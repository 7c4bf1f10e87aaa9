"""Fixtures of loader tests with MySQL and MariaDB as targets: a fresh database, applied batches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.loader import Applying, LogMaker
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.ports.target import Applied
from plugins.mysql import MySQLServer, database_of

MyStart = Callable[..., "MyApplying"]
ITEMS = "create table t (id int primary key, name varchar(200), n int)"
COUNTED = "create table t (id int primary key, name text); create table bag (v int)"


class Target:
    """A fresh database of a server; schema `public` of the log is mapped to it."""

    def __init__(self, server: MySQLServer, url: str) -> None:
        self.server = server
        self.url = url
        self.database = database_of(url)
        self.namespaces = {"public": self.database}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL as the superuser, on a connection of its own."""
        return self.server.execute(sql, self.database)

    def check(self, count: int) -> None:
        """Check that rows 0 to count - 1 of `add()` are there, each once."""
        expected = [(number,) for number in range(count)]
        assert self.execute("select id from t order by 1") == expected
        assert self.execute("select v from bag order by 1") == expected


class MyApplying(Applying):
    """Applying for these engines."""

    def __init__(self, target: Target, directory: Path, **more: Any) -> None:
        self.place = target
        super().__init__(
            more.pop("url", target.url), directory, namespaces=target.namespaces, **more
        )

    def execute(self, sql: str) -> None:
        """Run SQL as the superuser."""
        self.place.execute(sql)

    def read_applied(self) -> Applied:
        """Return the position up to which the target has applied the log."""
        return MySQLProgress(self.target.connection).read_applied()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows that another session sees."""
        return self.place.execute(query)


@pytest.fixture
def my_target(mysql: MySQLServer) -> Iterator[Target]:
    """A fresh database, without penstock's database of earlier tests."""
    mysql.execute("drop database if exists wirekite")
    url = mysql.make_database("load")
    yield Target(mysql, url)
    mysql.drop_database(url)


@pytest.fixture
def my_start(my_target: Target, log: LogMaker) -> Iterator[MyStart]:
    """Create tables and a loader."""
    opened: list[MyApplying] = []

    def begin(ddl: str, **more: Any) -> MyApplying:
        my_target.execute(ddl)
        opened.append(MyApplying(my_target, log.directory, **more))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from harness.pipelines.loader import LocalKeeper, Word
from penstock.load.loader import Loader, LoaderOptions
root = Path({root!r})
options = LoaderOptions(
    url={url!r}, log_directory=root / "log", state_directory=root / "state",
    run_directory=root / "run", max_files_per_batch={files}, remove_files=True,
    namespaces={namespaces!r},
)
Loader(options, LocalKeeper(), stop=lambda: False, actions=Word()).run()
"""


def run_killed(
    target: Target, root: Path, fault: str = "", *, files: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a loader in a process of its own that removes applied files; the fault kills it."""
    script = KILLED.format(
        tests=str(Path(__file__).parents[1]),
        root=str(root),
        url=target.url,
        files=files,
        namespaces=target.namespaces,
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | ({"PENSTOCK_FAULT": fault} if fault else {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
