"""Commit to visible at low load: 200 commits, one at a time, flushIntervalSeconds = 0.2.

Estimate: a commit waits up to 0.2 s for its segment, up to 0.05 s for the loader's look, and a
batch of one change costs 0.2-0.4 s through Spark: half a second in the middle, one at the worst.
Reference: PostgreSQL's own subscription, which has a backend waiting for each commit.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import arguments, describe_machine
from bench.pipeline import Running, write_config
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

PAUSE_S = 0.05


def latencies_s(source: str, target: str, count: int) -> list[float]:
    """Commit one row, wait until it is seen, and again."""
    found = []
    with (
        psycopg.connect(source, autocommit=True) as writer,
        psycopg.connect(target, autocommit=True) as reader,
    ):
        for number in range(count):
            writer.execute("insert into ping values (%s)", (number,))
            began = time.monotonic()
            while reader.execute("select 1 from ping where id = %s", (number,)).fetchone() is None:
                time.sleep(0.001)
            found.append(time.monotonic() - began)
            time.sleep(PAUSE_S)
    return found


def report(name: str, found: list[float]) -> None:
    """Print quantiles as JSON and as a line."""
    cuts = statistics.quantiles(found, n=100)
    figures = {"p50_s": cuts[49], "p90_s": cuts[89], "p99_s": cuts[98], "max_s": max(found)}
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"bench": "latency", "contender": name, "commits": len(found), **rounded}))
    print(f"{name:<24}" + "".join(f"{k} {v:<10}" for k, v in rounded.items()), flush=True)


def main() -> None:
    """The subscription, then penstock, each on fresh servers."""
    flags = arguments(__doc__ or "", commits=200)
    print(f"latency ({describe_machine()})")
    with EmbeddedPostgres() as origin, EmbeddedPostgres() as destination:
        source, target = origin.url("postgres"), destination.url("postgres")
        for url in (source, target):
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("create table ping (id int primary key)")
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("create publication bench for table ping")
        with contenders.subscription(
            source, target, publication="bench", name="bench", options="copy_data = false"
        ):
            report("CREATE SUBSCRIPTION", latencies_s(source, target, flags.commits))
    with (
        EmbeddedPostgres() as origin,
        EmbeddedPostgres() as destination,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        source, target = origin.url("postgres"), destination.url("postgres")
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("create table ping (id int primary key)")
        file = write_config(
            Path(scratch), source, target, exit_when_idle=False, flush_interval_s=0.2
        )
        with Running(file):
            report("penstock run", latencies_s(source, target, flags.commits))


if __name__ == "__main__":
    main()
