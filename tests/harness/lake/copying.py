"""Bulk loads into a lake in memory, without Spark: jobs run in this process.

All of the load is the real one, but the table format and the session. Files are on disk, so a test
sees what an attempt has left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.lake.fake_format import FakeFormat, FakeStore
from harness.pipelines.bulk import between
from penstock.control.run.bulk_load import bulk_load
from penstock.engines.delta import bulk as delta_bulk
from penstock.engines.lake.chunk_records import COPY_PREFIX, ChunkRecords, TableMark
from penstock.engines.lake.storage import Folder
from penstock.load.bulk import BulkResult
from penstock.model import TableName
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config


class InlineSession:
    """Session whose jobs run in this thread. A test may run a function before each task."""

    parallelism = 2
    slots_are_fixed = True
    alive = True
    is_local = True
    jvm: Any = None
    spark: Any = None

    def __init__(self) -> None:
        self.before_task: Callable[[], None] = lambda: None

    def run(
        self,
        partitions: Sequence[Sequence[Any]],
        work: Callable[[Iterator[Any]], Iterable[Any]],
        **_more: Any,
    ) -> list[Any]:
        """Run the work of each partition, one after the other."""
        found = []
        for partition in partitions:
            self.before_task()
            found += list(work(iter(partition)))
        return found

    def tell(self, *_ignored: Any) -> None:
        """Ignore the figures of tasks."""

    def cancel(self) -> None:
        """Do nothing: no job runs on."""


class Copying:
    """Pipeline of mode data into a lake in memory."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, source_url: str, folder: Path, query: str = ""
    ) -> None:
        """Prepare. query: of the target's URL."""
        root = folder / "lake"
        self.store = FakeStore(root=root)
        monkeypatch.setattr(delta_bulk, "FORMAT", FakeFormat(self.store))
        self.config: Config = between(source_url, f"delta+file://{root}{query}", folder)
        self.session = InlineSession()
        self.records = ChunkRecords(Folder(f"{root}/_penstock"))

    def load(self, **how: Any) -> BulkResult:
        """Run the bulk load, as a new process does."""
        session: Any = self.session
        with open_planner(self.config) as planner:
            return bulk_load(self.config, session, planner, **how)

    def mark(self, table: TableName) -> TableMark:
        """Return a table's mark."""
        mark = self.records.read_mark(table)
        assert mark is not None
        return mark

    def files(self, table: TableName) -> set[str]:
        """Return the names of all data files in a table's folder."""
        folder = self.store.tables[table].folder
        return {path.name for path in folder.rglob("*.parquet")}

    def live(self, table: TableName) -> set[str]:
        """Return the names of the files of the newest version."""
        return {file.name for file in self.store.newest(table).files}

    def copies(self, table: TableName, plan: str) -> set[str]:
        """Return the names of the files that a plan has left in the table's folder."""
        folder = self.store.tables[table].folder / f"{COPY_PREFIX}{plan}"
        return {path.name for path in folder.rglob("*.parquet")}
