"""Tables of every type, brought into a lake by the bulk load and again as changes.

All of the pipeline is the real one, but Spark's jobs, which run in this process. Rows 1 to n are
there before the log begins. The same values come again as inserts, with 1000 added to `id`, and
rows with odd ids are updated, so that their values come as changes alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.lake import delta, iceberg
from harness.pipelines.mysql_pipe import Keeper
from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.actions import ActionWatch, StopRequest
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.load_process import _Load
from penstock.control.verify.verify import VerifyResult, verify
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.lake.demo import open_library
from penstock.load.bulk import BulkResult
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config
from penstock.ports.lake import VersionReader
from penstock.ports.verify import VerifyReader

MOVED = 1000
Cases = Mapping[str, Sequence[str]]
"""Values by type, as SQL or as text."""


class InlineSession:
    """Session whose JVM is that of another one, and whose jobs run in this process."""

    slots_are_fixed = True
    alive = True
    is_local = True
    parallelism = 1

    def __init__(self, session: Session) -> None:
        """Keep the session with the JVM."""
        self._session = session
        self.jvm = session.jvm
        self.spark = session.spark
        self.hadoop_conf = session.hadoop_conf

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Run all tasks; return their results."""
        del description
        return [result for tasks in partitions for result in work(iter(tasks))]

    def with_jobs(self, jobs: str) -> InlineSession:
        """Return the same session."""
        del jobs
        return self

    def tell(self, of: str, tasks: Sequence[Any]) -> None:
        """Do nothing: there are no pages."""

    def cancel(self) -> None:
        """Do nothing: no job runs on."""


class Kept(Keeper):
    """Keeper of such a session."""

    def __init__(self, session: InlineSession) -> None:
        """Keep it."""
        super().__init__()
        self.session = session  # type: ignore[assignment]


class TypedLake:
    """Lake of one format, and pipelines into it from one source."""

    def __init__(
        self,
        session: Session,
        kind: str,
        source_url: str,
        schema: str,
        folder: Path,
        *,
        choices: Mapping[str, str],
    ) -> None:
        """Write the pipeline files. kind: `delta`, `iceberg-2` or `iceberg-3`."""
        self._session = session
        self._inline = InlineSession(session)
        self._source_url, self._schema, self._folder = source_url, schema, folder
        if kind == "delta":
            self._format: Any = DELTA
            self.url = f"delta+file://{folder}/lake"
            self._place: iceberg.Place | None = None
        else:
            self._format = ICEBERG
            self._place = iceberg.hadoop_place(folder / "lake")
            self._place.register(session)
            self.url = self._place.url(int(kind[-1]))
        self.choices = dict(choices)
        self.write_files()

    def write_files(self) -> None:
        """Write both pipeline files with the present choices."""
        self.copy = self._config("data", "copy")
        self.follow = self._config("change", "follow")

    def _config(self, mode: str, name: str) -> Config:
        path = write_pipeline(
            self._folder,
            self._source_url,
            self.url,
            mode=mode,
            name=name,
            directory=name,
            file=f"{name}.toml",
            tables=[f"{self._schema}.*"],
            sections={
                "target.types": self.choices,
                **(
                    {"changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 0.5}}
                    if mode == "change"
                    else {}
                ),
            },
        )
        return load_config(path)

    def load_rows(self) -> None:
        """Copy the rows that are there."""
        session: Any = self._inline
        with open_planner(self.copy) as planner:
            bulk_load(self.copy, session, planner)

    def extract(self) -> None:
        """Write all changes into the log; the first time, let it begin."""
        extract_changes(self.follow, checked=True)
        lock = self.follow.layout.log / "LOCK"
        if lock.exists():
            lock.write_text("")

    def apply(self) -> None:
        """Apply the log."""
        keeper: Any = Kept(self._inline)
        self.follow.layout.run.mkdir(exist_ok=True)
        actions = ActionWatch(self.follow.target.url, name="test")
        try:
            _Load(self.follow, keeper, actions, StopRequest()).follow(BulkResult())
        finally:
            actions.close()

    def read(self, table: str) -> dict[str, pa.Table]:
        """Return a table's rows as each reader reads them, in the order of `id`."""
        every = self.read_table(self._schema, table)
        return {name: rows.sort_by("id") for name, rows in every.items()}

    def read_table(self, schema: str, table: str) -> dict[str, pa.Table]:
        """Return a table's rows as each reader reads them."""
        found = self._find(TableName(schema, table))
        if self._place is None:
            return delta.read_all(found, self._session)
        return iceberg.read_all(self._session, self._place, found)

    def _find(self, name: TableName) -> Any:
        return self._format.open(self.url, self._inline, {}).find(name)

    def version(self, table: str) -> int:
        """Return the newest version of a table."""
        return int(self._find(TableName(self._schema, table)).snapshot(refresh=True).version)

    def sql_name(self, table: str) -> str:
        """Return the name of an Iceberg table in Spark's SQL."""
        assert self._place is not None, "Delta has folders"
        return self._place.sql_name(self._find(TableName(self._schema, table)))

    def files_of_repairs(self) -> list[str]:
        """Return the records of repairs that did not end."""
        return [str(path) for path in self._folder.rglob("_penstock/staged/*.json")]

    def compare(self, tables: Sequence[str]) -> dict[str, VerifyResult]:
        """Compare with the source as `penstock verify` does, by each reader's rows."""
        rows = {table: self.read(table) for table in tables}
        return {
            reader: verify(self.follow, open_target=_Opens(reader, rows, self._schema))
            for reader in next(iter(rows.values()))
        }


class _Opens:
    """Function that opens rows which a reader has read already."""

    def __init__(
        self, reader: str, rows: Mapping[str, Mapping[str, pa.Table]], schema: str
    ) -> None:
        self._rows = {table: found[reader] for table, found in rows.items()}
        self._schema = schema

    def __call__(self, url: str, *, sessions: int) -> AbstractContextManager[VerifyReader]:
        """Return the rows."""
        del url
        return open_library(_Read(self._rows, self._schema), sessions=sessions)


class _Read(VersionReader):
    """Rows of tables that were read."""

    place = "a test"

    def __init__(self, rows: Mapping[str, pa.Table], schema: str) -> None:
        self._rows, self._schema = rows, schema

    def read_batches(self, session: Any = None) -> Any:
        """Return a row that names each table."""
        del session
        versions = json.dumps({f"{self._schema}.{table}": 0 for table in self._rows})
        return pa.table({"applied_at": [0], "versions": [versions]})

    def arrow(self, table: TableName, version: int) -> Any:
        """Return the rows of a table."""
        del version
        return self._rows[table.name]

    def frame(self, table: TableName, version: int, session: Any) -> Any:
        """Refuse: there is no session."""
        raise NotImplementedError


def wide_rows(cases: Cases) -> Iterator[list[str | None]]:
    """Yield rows with a column for each type, each value at least once, then a row of NULLs."""
    for at in range(max(map(len, cases.values()))):
        yield [found[at % len(found)] for found in cases.values()]
    yield [None] * len(cases)
