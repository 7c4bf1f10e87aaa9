"""Parts of `bench.bench_lake` that need a database server: bulk load, and from commit to readable.

Estimates. Bulk: 0.5 M rows per CPU second with the server's share, of which decoding is 0.6 µs,
Parquet 0.6 and the server's COPY 0.7 µs a row of W: 300,000 rows a second and more on two cores.
Fresh: half of `batchSeconds` to wait, then 0.2 s to stage and 0.3 to apply; 20 tables 1 s more.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import ServerSampler
from bench.lake_meter import Reading, load_average, show
from bench.pipeline import Running, write_config
from bench.workload import Workload
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load, source_tables
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.session import Session

LOOK_S = 0.02
DRAIN_S = 300.0
BULK_ROWS = 2_000_000
TABLES = (1, 20)
CHANGES = 100
GOALS_S = {1: 2.0, 20: 3.0}
SETTINGS = {"wal_level": "logical", "track_commit_timestamp": "on"}
COMMIT_TIME = (
    "select (extract(epoch from timestamp) * 1000000)::bigint from pg_last_committed_xact()"
)


def write_lake_config(
    folder: Path, source: str, kind: str, *, mode: str, batch_seconds: float = 1.0
) -> Path:
    """Write a pipeline into a lake in this folder; return the file's path."""
    lake = folder / "lake"
    url = f"delta+file://{lake}" if kind == "delta" else "iceberg://lake/shop"
    path = write_config(folder, source, url, mode=mode, exit_when_idle=False, flush_interval_s=1)
    text = path.read_text()
    text = text.replace("[changeExtractor]", f"batchSeconds = {batch_seconds}\n[changeExtractor]")
    if kind == "iceberg":
        text += (
            '[spark.conf]\n"spark.sql.catalog.lake.type" = "hadoop"\n'
            f'"spark.sql.catalog.lake.warehouse" = "{lake}"\n'
        )
    path.write_text(text)
    return path


# -- bulk load -------------------------------------------------------------------------------------


def load_once(session: Session, source: str, kind: str) -> Reading:
    """Run the bulk load as the load process runs it, into an empty lake."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        config = load_config(write_lake_config(Path(name), source, kind, mode="data"))
        definitions = source_tables(config)
        reading = Reading()
        with reading.measure(), PostgresPlanner(config) as planner:
            bulk_load(config, session, planner, definitions=definitions)
    return reading


def bench_bulk(given: argparse.Namespace, session: Session) -> None:
    """Load W's table from PostgreSQL. The server is below this process, so its CPU counts."""
    rows = min(BULK_ROWS, given.rows * 2)
    with EmbeddedPostgres() as server:
        source = server.url("postgres")
        workload = Workload(base_row_count=rows)
        workload.create(source)
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(f"vacuum analyze {workload.table}")
        best: dict[str, tuple[float, float, float]] = {}
        for turn in range(given.rounds):
            for kind in given.formats:
                with ServerSampler(contenders.postmaster(server)) as sampler:
                    reading = load_once(session, source, kind)
                figures = (reading.wall_s, reading.cpu_s, sampler.cpu_s)
                best[kind] = min(best.get(kind, figures), figures)
                show(
                    "bulk",
                    format=kind,
                    round=turn,
                    rows=rows,
                    rows_per_s=round(rows / reading.wall_s),
                    cpu_s=reading.cpu_s,
                    server_cpu_s=sampler.cpu_s,
                    wall_s=reading.wall_s,
                )
        for kind, (wall_s, cpu_s, server_cpu_s) in best.items():
            print(
                f"{kind:<8} bulk from PostgreSQL: {rows / wall_s:9,.0f} rows a second (goal "
                f"300,000) at load {load_average()}; {rows / cpu_s:9,.0f} per CPU second, "
                f"{server_cpu_s / cpu_s:.0%} of it the server's",
                flush=True,
            )


# -- from commit to readable -----------------------------------------------------------------------


class Watch(threading.Thread):
    """Thread that notes when each version of the table of batches can be read.

    A version is read from the table's own metadata, and has the source's commit time of the batch.

    Attributes:
        seen: Moments, with the source's commit time up to which all tables are readable then.
    """

    def __init__(self, lake: Path, kind: str) -> None:
        """Keep the place. The table need not exist yet."""
        super().__init__(daemon=True)
        root = lake if kind == "delta" else lake / "shop"
        self._folder = root / "penstock" / "batches"
        self._kind = kind
        self._stopped = threading.Event()
        self._version = -1
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopped.wait(LOOK_S):
            found = self._read_delta() if self._kind == "delta" else self._read_iceberg()
            if found:
                self.seen.append((time.time(), found))

    def _read_delta(self) -> int:
        path = self._folder / "_delta_log" / f"{self._version + 1:020d}.json"
        if not path.exists():
            return 0
        self._version += 1
        times = re.findall(r"commitTime\W+(\d+)", path.read_text())
        return int(times[0]) if times else 0

    def _read_iceberg(self) -> int:
        try:
            version = int((self._folder / "metadata" / "version-hint.text").read_text())
            if version <= self._version:
                return 0
            path = self._folder / "metadata" / f"v{version}.metadata.json"
            metadata = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return 0  # it is being written
        self._version = version
        mark = metadata["properties"].get("penstock.mark")
        return int(json.loads(mark)["commit_time_us"]) if mark else 0

    def moment_of(self, committed_us: int) -> float | None:
        """Return when a commit of the source could be read first; None if not yet."""
        return next((at for at, upto in list(self.seen) if upto >= committed_us), None)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()


def bench_fresh(given: argparse.Namespace, session: Session) -> None:
    """Commit 100 changes again and again; measure the seconds until a reader finds them.

    `penstock run` has a session of its own.
    """
    del session
    for kind in given.formats:
        for tables in TABLES:
            with (
                EmbeddedPostgres(settings=SETTINGS) as server,
                tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
            ):
                found = measure_fresh(given, server.url("postgres"), Path(name), kind, tables)
            cuts = statistics.quantiles(found, n=100)
            show(
                "fresh",
                format=kind,
                tables=tables,
                count=len(found),
                p50_s=cuts[49],
                p90_s=cuts[89],
                p99_s=cuts[98],
            )
            print(
                f"{kind:<8} {tables:>3} tables, batchSeconds = 1: readable after p50 "
                f"{cuts[49]:.2f} s (goal {GOALS_S[tables]:g}), p99 {cuts[98]:.2f} s at load "
                f"{load_average()}",
                flush=True,
            )


def measure_fresh(
    given: argparse.Namespace, source: str, folder: Path, kind: str, tables: int
) -> list[float]:
    """Return the seconds from each COMMIT until all tables have it."""
    with psycopg.connect(source, autocommit=True) as connection:
        for number in range(tables):
            connection.execute(
                f"create table t{number} (id bigint primary key, n int, b text)".encode()
            )
    file = write_lake_config(folder, source, kind, mode="data+change")
    committed_us: list[int] = []
    with Running(file), psycopg.connect(source, autocommit=True) as connection:
        watch = Watch(folder / "lake", kind)
        watch.start()
        share, following = CHANGES // tables, 0
        warm_s = 0 if given.quick else 20
        began = time.time()
        while time.time() - began < warm_s + given.seconds:
            with connection.transaction():
                for number in range(tables):
                    connection.execute(
                        f"insert into t{number} select g, g, 'row ' || g "
                        f"from generate_series({following}, {following + share - 1}) g".encode()
                    )
            row = connection.execute(COMMIT_TIME).fetchone()
            assert row is not None
            if time.time() - began >= warm_s:
                committed_us.append(int(row[0]))
            following += share
            time.sleep(0.73)
        deadline = time.time() + DRAIN_S
        while watch.moment_of(committed_us[-1]) is None:
            if time.time() > deadline:
                raise TimeoutError(f"the last commit was not readable in {DRAIN_S} s")
            time.sleep(LOOK_S)
        watch.stop()
    moments = [(at, watch.moment_of(at)) for at in committed_us]
    return [max(seen - at / 1e6, 0.0) for at, seen in moments if seen is not None]
