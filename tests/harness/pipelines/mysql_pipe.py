"""A pipeline in mode change between two databases of one server, without Spark, by its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.pipelines.loader import LocalKeeper, LocalSession
from harness.pipelines.mysql_extract import sql
from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.actions import ActionWatch, StopRequest
from penstock.control.pipeline.config import load_config
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.load_process import _Load
from penstock.extract.extractor import Outcome
from penstock.load.bulk import BulkResult
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of


class Keeper(LocalKeeper):
    """A keeper that counts how many tasks may run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Counting = Counting()

    def wait(self, _: Callable[[], bool]) -> bool:
        """Return that the session is available."""
        return True


class Counting(LocalSession):
    """A session that records how many partitions its jobs had."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions: list[int] = []

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Record how many partitions the job has, then run it."""
        self.partitions.append(len(partitions))
        return super().run(partitions, work, description=description)


def load_log(path: Path) -> None:
    """Apply the log in this process and without Spark."""
    config, stop, keeper = load_config(path), StopRequest(), Keeper()
    config.layout.run.mkdir(exist_ok=True)
    actions = ActionWatch(config.target.url, name="test")
    try:
        loading: Any = keeper
        _Load(config, loading, actions, stop).follow(BulkResult())
    finally:
        actions.close()


class Pipe:
    """A pipeline between two databases of one server, by its file."""

    def __init__(self, server: MySQLServer, source: str, target: str, folder: Path) -> None:
        self.server = server
        self.source = source
        self.target = target
        self.folder = folder
        self.config = self.write_config()

    def write_config(
        self,
        extractor: dict[str, Any] | None = None,
        loader: dict[str, Any] | None = None,
        directory: str = "shop",
    ) -> Config:
        """Write the file with these parameters and read it."""
        sections = {
            "target.map": {database_of(self.source): database_of(self.target)},
            "changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 0.5} | (extractor or {}),
            "changeLoader": loader or {},
        }
        path = write_pipeline(
            self.folder,
            self.source,
            self.target,
            mode="change",
            directory=directory,
            tables=[f"{database_of(self.source)}.*"],
            sections=sections,
        )
        self.config = load_config(path)
        return self.config

    def run(self, text: str) -> None:
        """Run statements at the source."""
        sql(self.server, self.source, text)

    def extract(self) -> Outcome:
        """Run one extraction and release its lock, as the end of its process would."""
        try:
            return extract_changes(self.config, checked=True)
        finally:
            lock = self.config.layout.log / "LOCK"
            if lock.exists():
                lock.write_text("")

    def load(self) -> tuple[dict[str, Any], list[int]]:
        """Apply the log; return the content of run/load.json then, and the jobs' partitions."""
        config, stop, keeper = self.config, StopRequest(), Keeper()
        config.layout.run.mkdir(exist_ok=True)
        actions = ActionWatch(config.target.url, name="test")
        try:
            loading: Any = keeper
            _Load(config, loading, actions, stop).follow(BulkResult())
        finally:
            actions.close()
        state: dict[str, Any] = json.loads((config.layout.run / "load.json").read_text())
        return state, keeper.session.partitions

    def ids(self, table: str = "a") -> list[int]:
        """Return the ids that have arrived."""
        found = self.server.execute(f"select id from {table} order by id", database_of(self.target))
        return [row[0] for row in found]


@contextmanager
def empty_pipe(
    server: MySQLServer, folder: Path, *, prepare: Callable[[str], None] = lambda _: None
) -> Iterator[Pipe]:
    """Make two databases and a pipeline between them; prepare: creates tables in
    each, by its URL.
    """
    server.execute("drop database if exists wirekite")
    urls = [server.make_database(name) for name in ("source", "target")]
    for url in urls:
        prepare(url)
    yield Pipe(server, urls[0], urls[1], folder)
    for url in urls:
        server.drop_database(url)
    server.execute("drop database if exists wirekite")
