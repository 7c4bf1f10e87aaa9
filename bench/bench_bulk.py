"""Bulk load of a table of 10 columns with its key, against pipes of PostgreSQL's own tools.

Estimate, in microseconds of one core per row of W, measured here: the source's backend 0.9, the
target's 1.5, the key 0.3 (0.45 if it has to look for NULLs first, as with the pipes, whose table is
created without it), what moves the bytes 0.1 (psql to psql 0.35). A pipe is as slow as its one
writing backend and then its key: 1.9, at most 520,000 rows/s. Chunks in parallel share all but the
key among two cores: 1.5, 650,000 rows/s, less 0.2 s for point, plan and Spark job. So 1.2 is near
the most that two cores can give; with more of them the pipe stays where it is.
Limits: COPY binary pipe, COPY text pipe, pg_dump | psql, CREATE SUBSCRIPTION with copy_data.
The key is part of every figure; Spark's start is not, and is printed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import (
    Comparison,
    Contender,
    Measurement,
    TreeSampler,
    arguments,
    beside_servers,
)
from bench.pipeline import read_config, spark
from bench.workload import CREATE_TABLE, Workload
from penstock.control.run.bulk_load import bulk_load, source_tables
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.session import Session

PUBLICATION = "bench_publication"
SAMPLE_INTERVAL_S = 0.5  # all cores are busy: a look takes milliseconds of them


def fresh_target(server: EmbeddedPostgres, *, table: str = "") -> str:
    """Return an empty database; with the table, without its key, if requested."""
    name = f"target_{time.monotonic_ns()}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for (old,) in connection.execute(
            "select datname from pg_database where datname like 'target\\_%'"
        ).fetchall():
            connection.execute(f"drop database {old} with (force)")
        connection.execute(f"create database {name}")
        connection.execute("checkpoint")
    url = server.url(name)
    if table:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(CREATE_TABLE.format(table=table).replace(" primary key", ""))
    return url


def penstock(
    session: Session, source: str, target: str, *, servers: Collection[int] = ()
) -> Measurement:
    """Run the bulk load as the load process runs it, into an empty database.

    servers: processes that are not ours and do not count.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        config = read_config(Path(directory), source, target, mode="data")
        definitions = source_tables(config)
        with TreeSampler(os.getpid(), without=servers, interval_s=SAMPLE_INTERVAL_S) as sampler:
            began = time.monotonic()
            with PostgresPlanner(config) as planner:
                bulk_load(config, session, planner, definitions=definitions)
            elapsed_s = time.monotonic() - began
    return Measurement(elapsed_s=elapsed_s, cpu_s=sampler.cpu_s, peak_bytes=sampler.peak_bytes)


def subscribe(source: str, target: str, row_count: int) -> Measurement:
    """Run CREATE SUBSCRIPTION until all rows are there; the key exists from the start."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("alter table public.w add primary key (id)")
    began = time.monotonic()
    with contenders.subscription(
        source, target, publication=PUBLICATION, name="bench", options="copy_data = true"
    ):
        contenders.wait_for_value(
            target, "select bool_and(srsubstate = 'r') from pg_subscription_rel", expected=True
        )
        elapsed_s = time.monotonic() - began
    contenders.wait_for_value(target, "select count(*) from public.w", row_count)
    return Measurement(elapsed_s=elapsed_s)


def main() -> None:
    """Run all contenders in turn, each into an empty database."""
    flags = arguments(__doc__ or "", rows=2_000_000)
    workload = Workload(base_row_count=flags.rows)
    with (
        EmbeddedPostgres() as origin,
        EmbeddedPostgres() as destination,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        spark(Path(directory)) as session,
    ):
        source, table = origin.url("postgres"), workload.table
        workload.create(source)
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for table {table}")
            connection.execute(f"vacuum analyze {table}")
        bindir = origin.bindir
        servers = [contenders.postmaster(server) for server in (origin, destination)]

        def side(
            name: str, run: Callable[[str], Measurement], *, has_table: bool = True
        ) -> Contender:
            """Return a contender. run: gets the URL of an empty target; has_table: with the table,
            without key.
            """

            def measure_once() -> Measurement:
                target = fresh_target(destination, table=table if has_table else "")
                return beside_servers(lambda: run(target), *servers)

            return Contender(name=name, run=measure_once, unit_count=flags.rows)

        def pipe(*, binary: bool) -> Callable[[str], Measurement]:
            return lambda target: contenders.copy_pipe(bindir, source, target, table, binary=binary)

        Comparison(
            bench="bulk",
            contenders=[
                side("psql COPY binary pipe", pipe(binary=True)),
                side("psql COPY text pipe", pipe(binary=False)),
                side(
                    "pg_dump | psql",
                    lambda target: contenders.dump_pipe(bindir, source, target, table),
                    has_table=False,
                ),
                side("CREATE SUBSCRIPTION", lambda target: subscribe(source, target, flags.rows)),
                side(
                    "penstock",
                    lambda target: penstock(session, source, target, servers=servers),
                    has_table=False,
                ),
            ],
        ).run(flags.rounds).print_table()


if __name__ == "__main__":
    main()
