"""Pipelines into a lake without Spark's workers: jobs run in this process.

All else is the real pipeline: bulk load, extraction, loading. A lake of kind `memory` has files on
disk and a format in memory, and needs no JVM; the others have that of a session. Each can be read
as other programs see it, and spoilt as another client would.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from harness.lake import delta, iceberg
from harness.lake.fake_format import FakeFormat, FakeStore
from harness.pipelines.mysql_pipe import Keeper
from harness.pipelines.pipeline import write_pipeline
from penstock.codec.types import lake_arrow_type
from penstock.control.pipeline.actions import ActionWatch, StopRequest
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.load_process import _Load
from penstock.control.verify.verify import VerifyResult, verify
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.lake import repair as repair_module
from penstock.engines.lake import verify as verify_module
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.demo import open_library
from penstock.engines.lake.format import Change, ChangeKind, Commit, LakeColumn, Snapshot
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.rows import read_rows
from penstock.load.bulk import BulkResult
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config
from penstock.ports.lake import VersionReader
from penstock.ports.verify import VerifyReader

MOVED = 1000
MEMORY = "memory"
KINDS = (
    MEMORY,
    *(
        pytest.param(kind, marks=[pytest.mark.spark, pytest.mark.slow])
        for kind in ("delta", "iceberg-3", "iceberg-2")
    ),
)
Cases = Mapping[str, Sequence[str]]
"""Values by type, as SQL or as text."""


class InlineSession:
    """Session whose JVM is that of another one, and whose jobs run in this process."""

    slots_are_fixed = True
    alive = True
    is_local = True
    parallelism = 1

    jvm: Any = None
    spark: Any = None
    hadoop_conf: Any = None

    def __init__(self, session: Session | None) -> None:
        """Keep the session with the JVM; None for a lake in memory."""
        if session is not None:
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
        kind: str,
        source_url: str,
        schema: str,
        folder: Path,
        *,
        session: Session | None,
        monkeypatch: pytest.MonkeyPatch,
        choices: Mapping[str, str],
    ) -> None:
        """Write the pipeline files. kind: one of `KINDS`; session: None in memory."""
        self._is_spoilt = False
        self._session: Any = session
        self._inline = InlineSession(session)
        self._source_url, self._schema, self._folder = source_url, schema, folder
        self.store: FakeStore | None = None
        self._place: iceberg.Place | None = None
        self._format: Any = DELTA
        self.url = f"delta+file://{folder}/lake"
        monkeypatch.setattr(verify_module, "open_java", lambda *_: nullcontext(self._inline))
        monkeypatch.setattr(repair_module, "keep_java", lambda *_: self._inline)
        if kind == MEMORY:
            self.store = FakeStore(root=folder / "lake")
            monkeypatch.setattr(DELTA, "open", FakeFormat(self.store).open)
        elif kind != "delta":
            assert session is not None
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
        if self.store is not None:
            return {"penstock": pa.Table.from_batches(self._own_rows(found.snapshot()))}
        if self._place is None:
            return delta.read_all(found, self._session)
        # Deletion vectors of Spark name no file in their bounds: polars takes them for each.
        return iceberg.read_all(self._session, self._place, found, by_polars=not self._is_spoilt)

    def _own_rows(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table as penstock reads them, after one batch without rows."""
        fields = [pa.field(one.name, lake_arrow_type(one.type)) for one in snapshot.columns]
        yield pa.RecordBatch.from_pylist([], pa.schema(fields))
        for file in snapshot.files:
            yield from read_rows(file, snapshot.columns, {})

    def spoil(self, *statements: str) -> None:
        """Run SQL on the lake as another client. {orders} stands for the table of that name."""
        for statement in statements:
            [name] = set(re.findall(r"{(\w+)}", statement))
            if self.store is not None:
                self._spoil_own(TableName(self._schema, name), statement.format(**{name: name}))
                continue
            place = f"delta.`{self._folder}/lake/{self._schema}/{name}`"
            if self._place is not None:
                place = self._place.sql_name(self._find(TableName(self._schema, name)))
            self._is_spoilt = True
            self._session.spark.sql(statement.format(**{name: place})).collect()

    def add_column(self, table: str, name: str) -> None:
        """Add a column of int to a table, as another client."""
        if self.store is None:
            self.spoil(f"alter table {{{table}}} add column {name} int")
            return
        found = self._find(TableName(self._schema, table))
        snapshot = found.snapshot(refresh=True)
        column = LakeColumn(name=name, type="int32", field_id=snapshot.next_field_id)
        change = Change(kind=ChangeKind.ADD, name=name, column=column)
        found.commit(Commit(base_version=snapshot.version, changes=(change,), operation="foreign"))

    def _spoil_own(self, name: TableName, statement: str) -> None:
        """Run a statement on the rows of a table in memory, by SQLite, and write all of them."""
        table = self._find(name)
        snapshot = table.snapshot(refresh=True)
        rows = pa.Table.from_batches(self._own_rows(snapshot))
        plain = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in rows.columns
        ]
        names = ", ".join(f'"{column.name}"' for column in snapshot.columns)
        with sqlite3.connect(":memory:") as sql:
            sql.execute(f"create table {name.name} ({names})")
            slots = ", ".join("?" * len(plain))
            values = zip(*(column.to_pylist() for column in plain), strict=True)
            sql.executemany(f"insert into {name.name} values ({slots})", values)
            sql.execute(statement)
            found = sql.execute(f"select {names} from {name.name}").fetchall()
        sql.close()
        arrays = [
            pa.array(column, own.type).cast(kind.type)
            for column, own, kind in zip(zip(*found, strict=True), plain, rows.schema, strict=True)
        ]
        location = f"{table.data_folder}/spoilt-{snapshot.version}.parquet"
        with DataWriter(location, snapshot.columns, {}) as writer:
            writer.write(arrays)
        assert writer.new_file is not None
        table.commit(
            Commit(
                base_version=snapshot.version,
                adds=(writer.new_file,),
                removes_all=True,
                operation="foreign",
            )
        )

    def _find(self, name: TableName) -> Any:
        return self._format.open(self.url, self._inline, {}).find(name)

    def version(self, table: str) -> int:
        """Return the newest version of a table."""
        return int(self._find(TableName(self._schema, table)).snapshot(refresh=True).version)

    def named_versions(self) -> Mapping[str, int]:
        """Return the versions that a reader of all tables at one commit reads."""
        if self.store is None:
            return penstock.lake(self.url).at_commit().versions
        rows = [row for row in self.store.rows(BATCHES) if row["versions"]]
        newest = max(rows, key=lambda row: row["applied_at"])
        found: dict[str, int] = json.loads(newest["versions"])
        return found

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
