"""Batches applied to a lake by 1, 2 and 4 executors on `local-cluster`: CPU per change.

Workers stage the rows and look keys up; the driver commits. The seconds are those of all processes.
Estimates, CPU microseconds per change: 1.5 to stage and 0.7 to look up with one executor, as in
one process. Eight tables are eight tasks, so more executors cost nothing more. One hot table is
divided into buckets by key, each of which reads all of its frames: 2.3 to stage with four, as
docs/performance.md shows for databases. Its lookups are divided by files, at no cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.bench_lake import NO_UPKEEP
from bench.bench_scale import EXECUTORS, cluster
from bench.harness import describe_machine
from bench.lake_data import (
    FORMATS,
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
from harness.lake.spark import lake_properties
from penstock.load.session import Session
from penstock.model import TableName

TABLES = (1, 8)
FILES = 8
WARM_BATCHES = 2


def make_log(folder: Path, tables: int, rows: int, changes: int, batches: int) -> Log:
    """Write batches, a segment each, that change all tables alike."""
    log = Log(folder)
    keys = [Keys(rows // tables, seed=number) for number in range(tables)]
    for number in range(batches):
        drawn = [one.draw(changes // tables) for one in keys]
        log.write(
            [
                Batch(f"t{place}", make_rows(found, 1000 + number), ops)
                for place, (found, ops) in enumerate(drawn)
            ]
        )
    return log


def measure(
    lake: Lake, session: Session, log: Log, tables: int, rows: int, *, executors: int
) -> tuple[Reading, Reading]:
    """Apply all batches of a log to new tables; return the cheapest staging and applying."""
    catalogue = lake.open(session)
    for number in range(tables):
        fill_table(catalogue, TableName("public", f"t{number}"), rows // tables, FILES // tables)
    best = [Reading(cpu_s=float("inf")), Reading(cpu_s=float("inf"))]
    with closing(
        LakeRun(
            lake.format,
            lake.url,
            log.folder,
            jobs=session,
            log_id=LOG_ID,
            threads_max=executors,
            limits=NO_UPKEEP,
        )
    ) as run:
        for number in itertools.count():
            readings = Reading(), Reading()
            with readings[0].measure():
                staged = run.stage(place=number % 2, files_max=1)
            if staged is None:
                return best[0], best[1]
            with readings[1].measure():
                run.apply(staged)
            if number >= WARM_BATCHES:
                pairs = zip(best, readings, strict=True)
                best = [min(pair, key=lambda one: one.cpu_s) for pair in pairs]
    raise AssertionError("a log ends")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each format with one table and with several."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=800_000, help="of all tables together")
    parser.add_argument("--changes", type=int, default=400_000, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a trial run")
    given = parser.parse_args(arguments)
    if given.quick:
        given.rows, given.changes, given.rounds = 40_000, 20_000, 1
    print(json.dumps(describe_machine()), flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # executors run a function of ours
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        logs = {
            tables: make_log(
                folder / f"log-{tables}",
                tables,
                given.rows,
                given.changes,
                WARM_BATCHES + given.rounds,
            )
            for tables in TABLES
        }
        for executors in EXECUTORS:
            with cluster(executors, folder, lake_properties({})) as session:
                for kind, tables in itertools.product(FORMATS, TABLES):
                    place = folder / f"{kind}-{tables}-{executors}"
                    stage, apply = measure(
                        make_lake(kind, place, session),
                        session,
                        logs[tables],
                        tables,
                        given.rows,
                        executors=executors,
                    )
                    stage_us, apply_us = (one.cpu_s * 1e6 / given.changes for one in (stage, apply))
                    show(
                        "executors",
                        format=kind,
                        tables=tables,
                        executors=executors,
                        stage_us=stage_us,
                        apply_us=apply_us,
                        stage_s=stage.wall_s,
                        apply_s=apply.wall_s,
                    )
                    print(
                        f"{kind:<8} {tables} tables, {executors} executors: {stage_us:.2f} us a "
                        f"change to stage, {apply_us:.2f} to look up and commit; {stage.wall_s:.2f}"
                        f" and {apply.wall_s:.2f} s at load {load_average()}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
