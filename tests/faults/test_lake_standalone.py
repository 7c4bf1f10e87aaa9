"""Workers of a standalone cluster write a lake's files, and one of its machines is lost.

The rows are read by delta-rs and pyiceberg. Not here: databases as targets (`test_standalone.py`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.faults.kills import POSTGRES, listening, make_database, make_server
from harness.lake.readers import LakeReader, Rows, text_of
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from plugins.standalone import Standalone

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

PATIENCE_S = 400.0
LOOK_S = 1.0
TABLES = ("item", "bag")
SCHEMA = (
    "create table item (id int primary key, n int not null, t text)",
    "insert into item select i, 0, repeat(md5(i::text), 10) from generate_series(1, 20000) i",
    "create table bag (n int, t text)",
    "alter table bag replica identity full",
    "insert into bag select i % 100, 'row' from generate_series(1, 2000) i",
)
CHANGES = (
    "update item set n = n + 1 where id % 50 = {0} % 50",
    "insert into item select 20000 + {0}, 1, 'new'",
    "delete from item where id = {0}",
    "update bag set t = 'row {0}' where n = {0} % 100",
)


class LakeOnCluster:
    """A source, its writer, and a pipeline into a lake on a cluster."""

    def __init__(self, folder: Path, cluster: Standalone, source: str, kind: str) -> None:
        """Fill the source, and write the pipeline file."""
        self.once = folder / "once"
        self.once.mkdir()
        self._source = source
        lake = folder / "lake"
        self._reader = LakeReader(kind, lake)
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._error: Exception | None = None
        with psycopg.connect(source, autocommit=True) as sql:
            for statement in SCHEMA:
                sql.execute(statement.encode())
        catalogue = {
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(lake),
        }
        self.path = write_pipeline(
            folder,
            source,
            f"delta+file://{lake}" if kind == "delta" else "iceberg://lake/shop",
            tables=["public.*"],
            sections={
                "target": {"batchSeconds": 0.5},
                "changeExtractor": LIVELY,
                "spark": {"master": cluster.master},
                "spark.conf": {**cluster.conf, **(catalogue if kind == "iceberg" else {})},
            },
        )

    def _write(self) -> None:
        try:
            with psycopg.connect(self._source, autocommit=True) as sql:
                for number in itertools.count(1):
                    if self._ended.wait(0.3):
                        return
                    with sql.transaction():
                        for statement in CHANGES:
                            sql.execute(statement.format(number).encode())
        except Exception as error:
            self._error = error

    def begin_writing(self) -> None:
        """Write into both tables until `end_writing`."""
        self._writer.start()

    def end_writing(self) -> None:
        """End the writer. Raises its error."""
        self._ended.set()
        if self._writer.is_alive():
            self._writer.join()
        if self._error is not None:
            raise self._error

    def in_lake(self, name: str) -> Rows:
        """Return the lake's rows of a table; none while it does not exist."""
        return self._reader.rows("public", name)

    def at_source(self, name: str) -> Rows:
        """Return the source's rows of a table."""
        with psycopg.connect(self._source) as sql:
            rows = sql.execute(f"select * from {name}".encode()).fetchall()
        return sorted(tuple(map(text_of, row)) for row in rows)

    def is_equal(self) -> bool:
        """Return whether the tables have the source's rows, after a pause, because a look costs."""
        time.sleep(LOOK_S)
        return all(self.in_lake(name) == self.at_source(name) for name in TABLES)

    @property
    def newest(self) -> int:
        """Number of the newest change that the lake has."""
        return max((int(row[0]) for row in self.in_lake("item")), default=0)


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, standalone: Standalone
) -> Iterator[LakeOnCluster]:
    """A pipeline into each format, whose source the cluster's machines reach."""
    host = standalone.server_address
    settings = {"wal_level": "logical", **listening(POSTGRES, host)}
    with make_server(POSTGRES, settings=settings) as server:
        url = make_database(server, "shop", host)
        made = LakeOnCluster(tmp_path, standalone, url, request.param)
        try:
            yield made
        finally:
            made.end_writing()


@pytest.mark.parametrize("phase", ["bulk", "changes"])
def test_a_machine_is_lost_while_workers_write_files(
    lake: LakeOnCluster, standalone: Standalone, phase: str
) -> None:
    """A machine is lost in the middle of a file or between batches, and the other one writes on."""
    fault = {"PENSTOCK_FAULT": "lake.bulk.file:1:sleep", "PENSTOCK_FAULT_ONCE": str(lake.once)}
    standalone.remote.start(fault if phase == "bulk" else None)
    with Process(lake.path) as run:
        lake.begin_writing()
        if phase == "bulk":
            run.until(lambda: any(lake.once.iterdir()), "a worker has written a file", PATIENCE_S)
        else:
            run.until(lambda: lake.newest > 20_010, "changes are in the lake", PATIENCE_S)
            assert standalone.remote.finished_tasks > 2
        standalone.remote.kill()
        standalone.near.start()
        before = lake.newest
        run.until(lambda: lake.newest > max(before, 20_000) + 5, "changes flow on", PATIENCE_S)
        lake.end_writing()
        run.until(lake.is_equal, "both are equal", PATIENCE_S)
        assert standalone.near.finished_tasks > 0
        run.stop()
