"""Long runs of `bench.bench_lake`: a backlog on one hot table, reading it, and a day of commits.

Estimates. Sustained: 640,000 (Iceberg) and 500,000 (Delta) changes per CPU second in batches of
1,000,000 changes, of which a batch of one segment has a fifth; two cores stage and apply at the
same time. Reading: 1.3 times the CPU of rewritten files at most, of which the deletions are 0.1.
Flow: each number of live files and versions stays below its limit from the third hour on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from penstock.host.clock import RealClock
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
FLOW_HOURS = 3
DAY_US = 24 * 3600 * 1_000_000
SAMPLES = 20
GOALS = {"delta": 250_000, "iceberg": 300_000}
# Reads of one measurement: the system counts CPU time in steps of 10 ms.
READS = 10
SUMS = "count(*), sum(n), max(b)"


class OneSession:
    """Keeper of a session that is there already; see `SessionKeeper`."""

    is_local = is_ready = True
    is_lost = False
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


@dataclass(frozen=True)
class Read:
    """A hot table to be read.

    Attributes:
        metadata: Iceberg's newest metadata file; empty for Delta.
        file_count, dead_count: Its files, and their deleted rows.
    """

    lake: Lake
    session: Session
    metadata: str
    file_count: int
    dead_count: int

    @classmethod
    def of(cls, lake: Lake, session: Session) -> Read:
        """Look at the newest version."""
        table: Any = lake.open(session).find(NAME)
        files = table.snapshot(refresh=True).files
        return cls(
            lake=lake,
            session=session,
            metadata="" if lake.place is None else table.metadata_location(),
            file_count=len(files),
            dead_count=sum(file.dead_count for file in files),
        )

    def readers(self) -> dict[str, Callable[[], object]]:
        """Return readers by name; each returns the rows' number and a sum, or the rows."""
        first = {"delta-rs": self._by_delta_rs} if not self.metadata else {}
        second = {"pyiceberg": self._by_pyiceberg} if self.metadata else {}
        return {**first, **second, "polars": self._by_polars, "Spark": self._by_spark}

    @property
    def _path(self) -> str:
        return str(self.lake.folder / NAME.schema / NAME.name)

    def _by_delta_rs(self) -> object:
        builder = QueryBuilder().register("t", DeltaTable(self._path))
        return builder.execute(f"select {SUMS} from t").read_all()

    def _by_pyiceberg(self) -> object:
        scan = StaticTable.from_metadata(self.metadata).scan(selected_fields=("id", "n", "b"))
        return scan.to_arrow().num_rows

    def _by_polars(self) -> object:
        frame = (
            polars.scan_iceberg(self.metadata) if self.metadata else polars.scan_delta(self._path)
        )
        return frame.select(polars.len(), polars.col("n").sum(), polars.col("b").max()).collect()

    def _by_spark(self) -> object:
        statement = f"select {SUMS} from {self.lake.sql_name(NAME)}"
        return self.session.spark.sql(statement).toJSON().collectAsList()


def bench_read(given: argparse.Namespace, session: Session) -> None:
    """Compare reading a table between two compactions with reading its rewritten files.

    The batches leave as many small files and deleted rows as upkeep lets be. Two lakes get the same
    batches, so that each reader reads the newest version of both by turns.
    """
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            folder = Path(name)
            changes = min(READ_CHANGES, given.rows // 200)
            log = Log(folder / "log")
            write_segments(log, Keys(given.rows), READ_BATCHES * changes, changes)
            lakes = [make_lake(kind, folder / place / kind, session) for place in "ab"]
            for lake in lakes:
                fill_table(lake.open(session), NAME, given.rows, 10)
                apply_batches(lake, session, log)
            rewrite(lakes[1], session)
            compare_reads(*(Read.of(lake, session) for lake in lakes), given.rounds)


def apply_batches(lake: Lake, session: Session, log: Log) -> None:
    """Apply each segment of a log as a batch."""
    run = LakeRun(
        lake.format,
        lake.url,
        log.folder,
        jobs=session,
        log_id=LOG_ID,
        limits=DEFAULT_LIMITS,
    )
    for number in itertools.count():
        staged = run.stage(place=number % 2, files_max=1)
        if staged is None:
            run.close()
            return
        run.apply(staged)


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


def compare_reads(before: Read, after: Read, rounds: int) -> None:
    """Read both tables in turn with each reader, and print the ratio of the CPU seconds."""
    for reader in before.readers():
        best = [float("inf")] * 2
        for _ in range(rounds + 2):
            found = []
            for number, side in enumerate((before, after)):
                reading = Reading(pids=(os.getpid(), before.session.java_pid))
                with reading.measure():
                    for _ in range(READS):
                        rows = side.readers()[reader]()
                found.append(rows)
                best[number] = min(best[number], reading.cpu_s / READS)
            if str(found[0]) != str(found[1]):
                raise ValueError(f"{reader} reads {found[0]} and {found[1]}")
        show(
            "read",
            format=before.lake.name,
            reader=reader,
            files=before.file_count,
            dead_rows=before.dead_count,
            rewritten_files=after.file_count,
            cpu_s=best[0],
            rewritten_cpu_s=best[1],
        )
        print(
            f"{before.lake.name:<8} {reader:<10} {best[0]:.3f} CPU s with {before.file_count} "
            f"files and {before.dead_count:,} deleted rows, {best[1]:.3f} with "
            f"{after.file_count} rewritten files: ratio {best[0] / max(best[1], 1e-9):.2f} (goal "
            "1.3 at most)",
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


class DayClock(RealClock):
    """Clock by which a number of commits takes a day."""

    def __init__(self, commits: int) -> None:
        """Begin now. commits: of a day."""
        self._began_us = time.time_ns() // 1000
        self._step_us = DAY_US // commits
        self.count = 0

    def now_us(self) -> int:
        """Return the wall time of the day: microseconds since 1970 UTC."""
        return self._began_us + self.count * self._step_us


def bench_flow(given: argparse.Namespace, session: Session) -> None:
    """Commit the batches of a day to one table, and count its files meanwhile.

    A batch every 4.3 s is 20,000 a day. The loader's clock runs faster, so that upkeep is due as
    often as on a day, and versions are kept as long: three hours. Jobs run in the driver, since the
    counts are the figures. Files that no version needs any more are not deleted on the first day.
    """
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            flow(given, make_lake(kind, Path(name) / kind, session), session, Path(name))


def flow(given: argparse.Namespace, lake: Lake, session: Session, folder: Path) -> None:
    """Run the flow on one lake."""
    fill_table(lake.open(session), NAME, min(given.rows, 100_000), 2)
    log, keys = Log(folder / "log"), Keys(min(given.rows, 100_000))
    clock = DayClock(given.commits)
    run = LakeRun(
        lake.format,
        lake.url + ("&" if "?" in lake.url else "?") + f"versionHours={FLOW_HOURS}",
        log.folder,
        jobs=DriverJobs(session),
        log_id=LOG_ID,
        limits=DEFAULT_LIMITS,
        clock=clock,
    )
    sample = max(1, given.commits // SAMPLES)
    began = time.monotonic()
    place = lake.folder / NAME.schema / NAME.name
    if lake.place is not None:
        place = lake.folder / lake.place.namespace / NAME.schema / NAME.name
    for first in range(0, given.commits, sample):
        reading = Reading()
        with reading.measure():
            for number in range(sample):
                write_segments(log, keys, FLOW_CHANGES, FLOW_CHANGES)
                staged = run.stage(place=number % 2, files_max=1)
                assert staged is not None
                run.apply(staged)
                clock.count += 1
        for path in list_segments(log.folder)[:-1]:
            path.path.unlink()
        table: Any = lake.open(session).find(NAME)
        snapshot = table.snapshot(refresh=True)
        show(
            "flow",
            format=lake.name,
            commits=first + sample,
            live_files=len(snapshot.files),
            dead_rows=sum(file.dead_count for file in snapshot.files),
            versions=table.version_count,
            cpu_s_per_commit=reading.cpu_s / sample,
            wall_s_per_commit=reading.wall_s / sample,
            **count_files(place),
        )
    run.close()
    print(f"{lake.name}: {given.commits} commits in {time.monotonic() - began:.0f} s", flush=True)
