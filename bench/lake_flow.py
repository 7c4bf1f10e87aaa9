"""Long runs of `bench.bench_lake`: a backlog on one hot table, reading it, and a day of commits.

Estimates. Sustained: 640,000 (Iceberg) and 500,000 (Delta) changes per CPU second in batches of
1,000,000 changes, of which a batch of one segment has a fifth; two cores stage and apply at the
same time. Reading: 1.3 times the CPU of rewritten files at most, of which the deletions are 0.1.
Flow: each number of files stays below its limit from the first hour on, but the versions in Delta's
log, which are kept for a day.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from bench.bench_loader import Always
from bench.lake_data import (
    LOG_ID,
    Batch,
    Keys,
    Lake,
    Log,
    fill_table,
    make_lake,
    make_rows,
)
from bench.lake_meter import Reading, load_average, show
from harness.lake.applying import LakeRun
from penstock.engines.lake.upkeep import DEFAULT_LIMITS
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import Session
from penstock.log import list_segments
from penstock.model import TableName

NAME = TableName("public", "hot")
SEGMENT_ROWS = 150_000
WARM_SEGMENTS = 6
READ_BATCHES = 45
READ_CHANGES = 5_000
FLOW_CHANGES = 10
SAMPLES = 20
GOALS = {"delta": 250_000, "iceberg": 300_000}


class OneSession:
    """Keeper of a session that is there already; see `SessionKeeper`."""

    is_local = is_ready = True
    restart_count = 0

    def __init__(self, session: Session) -> None:
        """Keep the session."""
        self._session = session

    def get(self) -> Session:
        """Return it."""
        return self._session

    def wait(self, _stop: Callable[[], bool]) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def renew(self) -> None:
        """Raise RuntimeError: the benchmark has lost its session."""
        raise RuntimeError("the session is lost")


def write_segments(log: Log, keys: Keys, changes: int, segment_rows: int) -> int:
    """Write changes of the hot table in segments; return their number."""
    left = changes
    while left > 0:
        drawn, ops = keys.draw(min(left, segment_rows))
        log.write([Batch(NAME.name, make_rows(drawn, left), ops)])
        left -= len(ops)
    return changes - left


def load_log(lake: Lake, session: Session, log: Path, folder: Path) -> tuple[Reading, int]:
    """Load all segments, as `penstock run` does; return the reading and the number of batches."""
    last = list_segments(log)[-1].number
    loader: Loader
    keeper: Any = OneSession(session)
    loader = Loader(
        LoaderOptions(
            url=lake.url,
            log_directory=log,
            state_directory=folder,
            run_directory=folder,
            exit_when_done=False,
            batch_s=1.0,
        ),
        keeper,
        stop=lambda: loader.state.applied_segment >= last,
        actions=Always(),
    )
    reading = Reading()
    with reading.measure():
        loader.run()
    return reading, loader.state.batch_count


def bench_sustained(given: argparse.Namespace, session: Session) -> None:
    """Load a backlog of changes of one hot table."""
    segment_rows = min(SEGMENT_ROWS, max(1, given.changes // 4))
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            folder = Path(name)
            (folder / "state").mkdir()
            lake = make_lake(kind, folder / kind, session)
            fill_table(lake.open(session), NAME, given.rows, 10)
            log, keys = Log(folder / "log"), Keys(given.rows)
            write_segments(log, keys, WARM_SEGMENTS * segment_rows, segment_rows)
            load_log(lake, session, log.folder, folder / "state")
            changes = write_segments(log, keys, given.changes, segment_rows)
            reading, batches = load_log(lake, session, log.folder, folder / "state")
            figures = {
                "format": kind,
                "changes": changes,
                "batches": batches,
                "changes_per_s": round(changes / reading.wall_s),
                "changes_per_cpu_s": round(changes / reading.cpu_s),
                "cpu_s": reading.cpu_s,
                "wall_s": reading.wall_s,
            }
            show("sustained", **figures)
            print(
                f"{kind:<8} {changes / reading.wall_s:9,.0f} changes a second (goal "
                f"{GOALS[kind]:,}) at load {load_average()}, "
                f"{changes / reading.cpu_s:9,.0f} per CPU second; {batches} batches",
                flush=True,
            )


# -- reading ---------------------------------------------------------------------------------------


def readers(
    lake: Lake, session: Session, version: int, metadata: str
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield readers of a version of the hot table; each returns its rows' number and a sum."""
    columns = "count(*), sum(n), max(b)"
    name = lake.sql_name(NAME)
    if lake.name == "delta":
        path = str(lake.folder / NAME.schema / NAME.name)

        def with_delta_rs() -> object:
            builder = QueryBuilder().register("t", DeltaTable(path, version=version))
            return builder.execute(f"select {columns} from t").read_all()

        def with_polars() -> object:
            return (
                polars.scan_delta(path, version=version)
                .select(polars.len(), polars.col("n").sum(), polars.col("b").max())
                .collect()
            )

        yield "delta-rs", with_delta_rs
        yield "polars", with_polars
    else:

        def with_pyiceberg() -> object:
            scan = StaticTable.from_metadata(metadata).scan(
                snapshot_id=version, selected_fields=("id", "n", "b")
            )
            return scan.to_arrow()

        def with_polars() -> object:
            return (
                polars.scan_iceberg(metadata, snapshot_id=version)
                .select(polars.len(), polars.col("n").sum(), polars.col("b").max())
                .collect()
            )

        yield "pyiceberg", with_pyiceberg
        yield "polars", with_polars

    def with_spark() -> object:
        statement = f"select {columns} from {name} version as of {version}"
        return session.spark.sql(statement).toJSON().collectAsList()

    yield "Spark", with_spark


def bench_read(given: argparse.Namespace, session: Session) -> None:
    """Compare reading a table between two compactions with reading its rewritten files.

    The batches leave as many small files and deleted rows as upkeep lets be.
    """
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            folder = Path(name)
            lake = make_lake(kind, folder / kind, session)
            fill_table(lake.open(session), NAME, given.rows, 10)
            log, keys = Log(folder / "log"), Keys(given.rows)
            batches, changes = READ_BATCHES, min(READ_CHANGES, given.rows // 200)
            write_segments(log, keys, batches * changes, changes)
            run = LakeRun(
                lake.format,
                lake.url,
                log.folder,
                jobs=session,
                log_id=LOG_ID,
                limits=DEFAULT_LIMITS,
            )
            for number in range(batches):
                staged = run.stage(place=number % 2, files_max=1)
                assert staged is not None
                run.apply(staged)
            run.close()
            before = read_table(lake, session)
            rewrite(lake, session)
            after = read_table(lake, session)
            compare_reads(lake, session, before, after, given.rounds)


def read_table(lake: Lake, session: Session) -> tuple[int, str, int, int]:
    """Return version and metadata file of the hot table, and its files and deleted rows."""
    table: Any = lake.open(session).find(NAME)
    snapshot = table.snapshot(refresh=True)
    metadata = "" if lake.place is None else table.metadata_location()
    dead = sum(file.dead_count for file in snapshot.files)
    return snapshot.version, metadata, len(snapshot.files), dead


def rewrite(lake: Lake, session: Session) -> None:
    """Rewrite all files of the hot table with the format's own command."""
    name = lake.sql_name(NAME)
    if lake.place is None:
        statements = [f"reorg table {name} apply (purge)", f"optimize {name}"]
    else:
        table = f"{lake.place.namespace}.{NAME.schema}.{NAME.name}"
        statements = [
            f"call {lake.place.name}.system.rewrite_data_files(table => '{table}', "
            "options => map('rewrite-all', 'true'))"
        ]
    for statement in statements:
        session.spark.sql(statement).collect()


def compare_reads(
    lake: Lake,
    session: Session,
    before: tuple[int, str, int, int],
    after: tuple[int, str, int, int],
    rounds: int,
) -> None:
    """Read both versions in turn with each reader, and print the ratio of the CPU seconds."""
    sides = [
        dict(readers(lake, session, version, after[1] or metadata))
        for version, metadata, _, _ in (before, after)
    ]
    for reader in sides[0]:
        best = [float("inf")] * 2
        for _ in range(rounds + 2):
            found = []
            for number, side in enumerate(sides):
                reading = Reading()
                with reading.measure():
                    found.append(side[reader]())
                best[number] = min(best[number], reading.cpu_s)
            if reader != "pyiceberg" and str(found[0]) != str(found[1]):
                raise ValueError(f"{reader} reads {found[0]} and {found[1]}")
        show(
            "read",
            format=lake.name,
            reader=reader,
            files=before[2],
            dead_rows=before[3],
            rewritten_files=after[2],
            cpu_s=best[0],
            rewritten_cpu_s=best[1],
        )
        print(
            f"{lake.name:<8} {reader:<10} {best[0]:.3f} CPU s with {before[2]} files and "
            f"{before[3]:,} deleted rows, {best[1]:.3f} with {after[2]} rewritten files: ratio "
            f"{best[0] / max(best[1], 1e-9):.2f} (goal 1.3 at most)",
            flush=True,
        )


# -- a day of commits ------------------------------------------------------------------------------


class DriverJobs:
    """Session whose jobs run in this process; Java is that of a real one."""

    def __init__(self, session: Session) -> None:
        """Keep the real session."""
        self._session = session

    def __getattr__(self, name: str) -> Any:
        """Return what the real session has."""
        return getattr(self._session, name)

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Run all tasks; return their results."""
        del description
        found: Iterable[Any] = (one for tasks in partitions for one in work(iter(tasks)))
        return list(found)

    def with_jobs(self, jobs: str) -> DriverJobs:
        """Return the same session."""
        del jobs
        return self

    def tell(self, of: str, tasks: Sequence[Any]) -> None:
        """Do nothing: there are no pages."""


def count_files(folder: Path) -> dict[str, int]:
    """Return the number of files of each kind below a table's folder."""
    found = {"data_files": 0, "deletion_files": 0, "metadata_files": 0, "metadata_kib": 0}
    for path in folder.rglob("*"):
        if not path.is_file() or path.suffix == ".crc":
            continue
        if "_delta_log" in path.parts or "metadata" in path.parts:
            found["metadata_files"] += 1
            found["metadata_kib"] += path.stat().st_size // 1024
        elif path.suffix == ".parquet" and "deletes" not in path.name:
            found["data_files"] += 1
        else:
            found["deletion_files"] += 1
    return found


def bench_flow(given: argparse.Namespace, session: Session) -> None:
    """Commit the batches of a day to one table, and count its files meanwhile.

    A batch every 4.3 s is 20,000 a day. Retention is scaled: a version lives as many commits as on
    a day. Jobs run in the driver, since the counts are the figures.
    """
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            flow(given, make_lake(kind, Path(name) / kind, session), session, Path(name))


def flow(given: argparse.Namespace, lake: Lake, session: Session, folder: Path) -> None:
    """Run the flow on one lake."""
    fill_table(lake.open(session), NAME, min(given.rows, 100_000), 2)
    log, keys = Log(folder / "log"), Keys(min(given.rows, 100_000))
    run = LakeRun(
        lake.format,
        lake.url,
        log.folder,
        jobs=DriverJobs(session),
        log_id=LOG_ID,
        limits=DEFAULT_LIMITS,
    )
    sample = max(1, given.commits // SAMPLES)
    began = time.monotonic()
    for first in range(0, given.commits, sample):
        reading = Reading()
        with reading.measure():
            for number in range(sample):
                write_segments(log, keys, FLOW_CHANGES, FLOW_CHANGES)
                staged = run.stage(place=number % 2, files_max=1)
                assert staged is not None
                run.apply(staged)
        if lake.place is not None and first == 0:
            # Three hours are an eighth of the day that the commits simulate.
            day_ms = reading.wall_s / sample * given.commits * 1000
            session.spark.sql(
                f"alter table {lake.sql_name(NAME)} set tblproperties "
                f"('history.expire.max-snapshot-age-ms' = '{max(1, round(day_ms / 8))}')"
            ).collect()
        for path in list_segments(log.folder)[:-1]:
            path.path.unlink()
        table: Any = lake.open(session).find(NAME)
        snapshot = table.snapshot(refresh=True)
        place = lake.folder / NAME.schema / NAME.name
        if lake.place is not None:
            place = lake.folder / lake.place.namespace / NAME.schema / NAME.name
        show(
            "flow",
            format=lake.name,
            commits=first + sample,
            live_files=len(snapshot.files),
            dead_rows=sum(file.dead_count for file in snapshot.files),
            versions=getattr(table, "version_count", -1),
            cpu_s_per_commit=reading.cpu_s / sample,
            wall_s_per_commit=reading.wall_s / sample,
            **count_files(place),
        )
    run.close()
    print(f"{lake.name}: {given.commits} commits in {time.monotonic() - began:.0f} s", flush=True)
