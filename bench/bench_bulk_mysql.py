"""Bulk load of a table of 10 columns from MariaDB or MySQL into PostgreSQL, against pipes of tools.

Estimate, in microseconds of one core per row of W: the source's session 2.0 (ten values to text),
its bytes into lines of COPY 0.2, a lender in between 0.1, PostgreSQL's COPY of text 2.5, the key
0.3. A pipe is as slow as its slowest process: psql's backend, 2.5, with the client's 1.0 per row and
the source's 2.0 on the second core: 3.0 to 3.5 with the key. Chunks in parallel share 5.1 among two
cores: 2.6, so 1.2 to 1.3 times the pipe, less half a second for snapshots, plan and Spark job.
Limits: `mariadb --batch --quick | psql copy`, with and without sed for NULL, and `mariadb-dump
--tab` with a copy of the file it leaves. The key is part of every figure; Spark's start is not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from bench import contenders
from bench.bench_bulk import postmaster
from bench.harness import Comparison, Contender, Measurement, TreeSampler, arguments
from bench.pipeline import spark, write_config
from penstock.control.bulk_load import bulk_load, source_tables
from penstock.control.config import load_config
from penstock.control.source_planner import data_planner
from penstock.host.embedded import EmbeddedPostgres
from penstock.host.mysql.connect import connect, run
from penstock.host.mysql.server import EmbeddedMariaDB, EmbeddedMySQL
from penstock.load.session import Session

SAMPLE_INTERVAL_S = 0.5
CREATE = """
    create table w (
        id bigint primary key, n int, t varchar(100), amount decimal(12,2), at timestamp(3) null,
        flag bool, doc json, f double, u char(36) character set latin1, note text)
"""
FILL = """
    insert into w
    select i, i * 7919 % 1000000, concat('customer number ', i), i * 31 % 10000000 / 100,
           timestampadd(second, i % 31536000, '2024-01-01') + interval (i % 1000) * 1000 microsecond,
           i % 3 = 0, json_object('id', i, 'tags', json_array('a', i % 10)), sqrt(i),
           insert(insert(insert(insert(md5(i), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-'),
           if(i % 4 = 0, concat('note ', i), null)
      from (select d.n + 1000 * e.n + 1000000 * f.n + 1 as i
              from thousand as d, thousand as e, thousand as f
             where f.n < {millions} and d.n + 1000 * e.n + 1000000 * f.n < {count}) as numbers
"""
CREATE_TARGET = """
    create table public.w (
        id bigint, n int, t varchar(100), amount numeric(12,2), at timestamptz(3),
        flag smallint, doc jsonb, f float8, u varchar(36), note text)
"""
ARGUMENTS = ("--no-defaults", "--default-character-set=utf8mb4", "--protocol=tcp")


def fill(url: str, count: int) -> None:
    """The source's table."""
    with connect(url, application_name="bench") as connection:
        run(connection, "create table thousand (n int primary key)", doing="filling")
        digits = "(" + " union all ".join(f"select {n} as n" for n in range(10)) + ")"
        run(
            connection,
            "insert into thousand select a.n + 10 * b.n + 100 * c.n "
            f"from {digits} a, {digits} b, {digits} c",
            doing="filling",
        )
        run(connection, CREATE, doing="filling")
        millions = count // 1_000_000 + 1
        run(connection, FILL.format(count=count, millions=millions), doing="filling")
        run(connection, "drop table thousand", doing="filling")
        run(connection, "analyze table w", doing="filling")


def fresh_target(server: EmbeddedPostgres, *, table: bool) -> str:
    """An empty database; with the table, without its key, when asked for."""
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
            connection.execute(CREATE_TARGET)
    return url


def client(program: str, url: str) -> list[str]:
    """A command-line tool with what it needs to log in."""
    parts = urlsplit(url)
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"the benchmark compares with {program}: install mariadb-client")
    login = [f"-h{parts.hostname}", f"-P{parts.port}", f"-u{parts.username}", f"-p{parts.password}"]
    return [found, *ARGUMENTS, *login]


def batch_pipe(bindir: Path, source: str, target: str, *, through_sed: bool) -> Measurement:
    """`mariadb --batch --quick | psql copy`, then the key."""
    name = urlsplit(source).path.lstrip("/")
    mariadb = " ".join([*client("mariadb", source), "--batch", "--quick", "--skip-column-names"])
    sed = r"| sed -e 's/\tNULL/\t\\N/g' " if through_sed else ""
    null = "" if through_sed else "with (null 'NULL')"
    began = time.monotonic()
    piped = contenders.pipe(
        ["sh", "-c", f"{mariadb} -e 'select * from w' {name} {sed}"],
        psql(bindir, target, f"copy public.w from stdin {null}"),
    )
    add_key(target)
    return Measurement(
        elapsed_s=time.monotonic() - began, cpu_s=piped.cpu_s, peak_bytes=piped.peak_bytes
    )


def psql(bindir: Path, url: str, statement: str) -> list[str]:
    """psql with one statement."""
    return [str(bindir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", statement]


def add_key(target: str) -> None:
    """What every side ends with."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("alter table public.w add primary key (id)")


def dump_tab(bindir: Path, source: str, target: str, folder: Path) -> Measurement:
    """`mariadb-dump --tab`, then the file through psql, then the key."""
    name = urlsplit(source).path.lstrip("/")
    file = folder / "w.txt"
    file.unlink(missing_ok=True)
    began = time.monotonic()
    dump = [*client("mariadb-dump", source), "--no-create-info", f"--tab={folder}", name, "w"]
    contenders.run_process(dump)
    contenders.run_process(psql(bindir, target, f"\\copy public.w from '{file}'"))
    add_key(target)
    return Measurement(elapsed_s=time.monotonic() - began)


def penstock(
    session: Session, source: str, target: str, *, servers: Collection[int]
) -> Measurement:
    """The bulk load as the load process runs it, into an empty database."""
    name = urlsplit(source).path.lstrip("/")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        file = write_config(Path(directory), source, target, mode="data", tables=f"{name}.*")
        config = load_config(file)
        definitions = source_tables(config)
        with TreeSampler(os.getpid(), without=servers, interval_s=SAMPLE_INTERVAL_S) as sampler:
            began = time.monotonic()
            with data_planner(config) as planner:
                bulk_load(config, session, planner, definitions=definitions)
            elapsed_s = time.monotonic() - began
    return Measurement(elapsed_s=elapsed_s, cpu_s=sampler.cpu_s, peak_bytes=sampler.peak_bytes)


def main() -> None:
    """All contenders in turn, each into an empty database."""
    flags = arguments(__doc__ or "", rows=1_000_000, mysql=0)
    settings = {"innodb_buffer_pool_size": "1G"}
    kind = EmbeddedMySQL if flags.mysql else EmbeddedMariaDB
    with (
        kind(settings=settings) as origin,
        EmbeddedPostgres() as destination,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        spark(Path(directory)) as session,
    ):
        with connect(origin.url(), application_name="bench") as connection:
            run(connection, "create database bench", doing="making a database")
        source = origin.url("bench")
        fill(source, flags.rows)
        bindir = destination.bindir
        ours = [postmaster(destination), origin.pid]

        def side(name: str, run: Callable[[], Measurement]) -> Contender:
            return Contender(name=name, run=run, unit_count=flags.rows)

        def empty(table: bool = True) -> str:
            return fresh_target(destination, table=table)

        Comparison(
            bench=f"bulk_{origin.flavour}_postgresql",
            contenders=[
                side(
                    "mariadb --batch | psql",
                    lambda: batch_pipe(bindir, source, empty(), through_sed=False),
                ),
                side(
                    "mariadb --batch | sed | psql",
                    lambda: batch_pipe(bindir, source, empty(), through_sed=True),
                ),
                side("penstock", lambda: penstock(session, source, empty(False), servers=ours)),
            ],
        ).run(flags.rounds).print_table()


if __name__ == "__main__":
    main()
