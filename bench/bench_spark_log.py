"""Read the change log in Spark, beside Spark's own Parquet reader on the same rows.

Estimate for a change of ten columns: the segment's frame is read and checked, 0.15 us; the columns
of the change and the casts, 0.1 us; the socket to the JVM and Arrow's columns as rows, 0.5 us.
Parquet has no socket, and decodes in the JVM: 0.6 us. Goal: at most 1.4 times its CPU for whole
rows, less with the option `columns`. Limit: the same rows read by pyarrow in one process.

Each contender reads all rows into nothing, in turn; the smallest CPU of the rounds counts, of the
JVM and of Python's workers, which live on between the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock
from bench.bench_log import runs
from bench.lake_meter import Reading, load_average
from penstock.log import Writer, change_tables, list_segments, open_segment

SEGMENTS = 100
WARM_UP = 3


def write_log(directory: Path, rows: int) -> None:
    """Write the rows into a log of SEGMENTS segments."""
    with Writer.open(directory, log_id=None, source={"engine": "bench"}) as log:
        for run in runs(rows, rows // SEGMENTS):
            log.write(run)
            log.rotate()


def write_parquet(log: penstock.ChangeLog, folder: Path) -> None:
    """Write the changes as files of the same number."""
    folder.mkdir()
    table = change_tables.for_spark(log.table())
    size = table.num_rows // SEGMENTS
    for at in range(SEGMENTS):
        pq.write_table(table.slice(at * size, size), folder / f"{at}.parquet")


def read_by_pyarrow(directory: Path) -> None:
    """Read all frames in this process."""
    for file in list_segments(directory):
        with open_segment(file.path) as segment:
            for rows in segment.rows():
                assert rows.batch.num_rows


def main() -> None:
    """Print a JSON line for each contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_log(root / "log", given.rows)
        log = penstock.read_log(root)
        write_parquet(log, root / "parquet")
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.python.worker.reuse", "true")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")

        def drain(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        def ckt(**options: object) -> Any:
            read = spark.read.format("ckt").options(table="public.item", **options)
            return read.load(os.fspath(root))

        contenders: dict[str, Callable[[], None]] = {
            "parquet": lambda: drain(spark.read.parquet(os.fspath(root / "parquet"))),
            "ckt": lambda: drain(ckt()),
            "ckt, one column": lambda: drain(ckt(columns="ratio")),
            "parquet, one column": lambda: drain(
                spark.read.parquet(os.fspath(root / "parquet")).select("_gsn", "ratio")
            ),
            "ckt, last 1 %": lambda: drain(ckt(gsnAfter=given.rows * 99 // 100)),
            "pyarrow, one process": lambda: read_by_pyarrow(root / "log"),
        }
        best: dict[str, tuple[float, float]] = {}
        for turn in range(WARM_UP + given.rounds):
            for contender, run in contenders.items():
                reading = Reading()
                with reading.measure():
                    run()
                if turn >= WARM_UP:
                    known = best.get(contender, (float("inf"), float("inf")))
                    best[contender] = (
                        min(known[0], reading.cpu_s),
                        min(known[1], reading.wall_s),
                    )
        for contender, (cpu_s, wall_s) in best.items():
            shown = {
                "bench": "spark_log",
                "contender": contender,
                "us_per_row": round(cpu_s / given.rows * 1e6, 3),
                "wall_s": round(wall_s, 2),
                "to_parquet": round(cpu_s / best["parquet"][0], 2),
                "load": load_average(),
            }
            print(json.dumps(shown), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
