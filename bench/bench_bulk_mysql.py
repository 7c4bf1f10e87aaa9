"""Bulk load of 10 columns between MariaDB or MySQL and PostgreSQL, against pipes of their tools.

Estimate, in microseconds of one core per row of W, from MySQL: the source's session 2.0 (ten values
to text), its bytes into lines of COPY 0.2, a lender in between 0.1, PostgreSQL's COPY of text 2.5,
the key 0.3. A pipe is as slow as its slowest process: psql's backend, 2.5, with the client's 1.0
and the source's 2.0 on the second core: 3.0 to 3.5 with the key. Chunks in parallel share 5.1 among
two cores: 2.6, so 1.2 to 1.3 times the pipe, less half a second for snapshots, plan and Spark job.
Measured since: source 1.3, lines and lender 0.3, COPY 2.1, key 0.3. Into MySQL: PostgreSQL's COPY
1.5, lines 0.2, LOAD DATA 4 to 5, most of it InnoDB's, which two chunks can do side by side: 3 in
all, where the pipe has its one writing thread: 4 to 5. So 1.4.
Limits: `mariadb --batch --quick | psql copy`, with and without sed for NULL, `mariadb-dump --tab`
with a copy of the file it leaves; `psql copy | mariadb --local-infile`. The key is part of every
figure; Spark's start is not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from bench import contenders
from bench.contenders import postmaster
from bench.harness import (
    Comparison,
    Contender,
    Measurement,
    TreeSampler,
    arguments,
    beside_servers,
)
from bench.pipeline import spark, write_config
from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load, source_tables
from penstock.engines.mysql.connect import connect, run
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.session import Session
from penstock.ports.bulk import open_planner

Server = EmbeddedMariaDB | EmbeddedMySQL
SAMPLE_INTERVAL_S = 0.5
CREATE = """
    create table w (
        id bigint primary key, n int, t varchar(100), amount decimal(12,2), at timestamp(3) null,
        flag bool, doc json, f double, u char(36) character set latin1, note text)
"""
FILL = """
    insert into w
    select i, i * 7919 % 1000000, concat('customer number ', i), i * 31 % 10000000 / 100,
           timestampadd(second, i % 31536000, '2024-01-01')
               + interval (i % 1000) * 1000 microsecond,
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
COPY_OUT = (
    "copy (select id, n, t, amount, at at time zone 'utc', flag::int, doc, f, u, note"
    " from public.w) to stdout"
)
LOAD_DATA = "load data local infile '/dev/stdin' into table w character set utf8mb4"
CHARACTER_SET = "--default-character-set=utf8mb4"


def fill(url: str, count: int) -> None:
    """Fill the source's table."""
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
            connection.execute(CREATE_TARGET)
    return url


def client(program: str, url: str, *arguments: str) -> list[str]:
    """Return a command-line tool with its log-in options, and arguments."""
    parts = urlsplit(url)
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"the benchmark compares with {program}: install mariadb-client")
    login = [f"-h{parts.hostname}", f"-P{parts.port}", f"-u{parts.username}", f"-p{parts.password}"]
    return [found, "--no-defaults", "--protocol=tcp", *login, *arguments]


def batch_pipe(bindir: Path, source: str, target: str, *, through_sed: bool) -> Measurement:
    """Run `mariadb --batch --quick | psql copy`, then add the key."""
    name = urlsplit(source).path.lstrip("/")
    how = (CHARACTER_SET, "--batch", "--quick", "--skip-column-names")
    mariadb = " ".join(client("mariadb", source, *how))
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
    """Return psql with one statement."""
    return [str(bindir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", statement]


def add_key(target: str) -> None:
    """Add the key, the last step of every side."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("alter table public.w add primary key (id)")


def dump_tab(bindir: Path, source: str, target: str, folder: Path) -> Measurement:
    """Run `mariadb-dump --tab`, send the file through psql, then add the key."""
    name = urlsplit(source).path.lstrip("/")
    file = folder / "w.txt"
    file.unlink(missing_ok=True)
    began = time.monotonic()
    how = (CHARACTER_SET, "--no-create-info", f"--tab={folder}")
    dump = client("mariadb-dump", source, *how, name, "w")
    contenders.run_process(dump)
    contenders.run_process(psql(bindir, target, f"\\copy public.w from '{file}'"))
    add_key(target)
    return Measurement(elapsed_s=time.monotonic() - began)


def load_pipe(bindir: Path, source: str, target: str) -> Measurement:
    """Run `psql copy to stdout | mariadb load data`, into a table that has its key."""
    name = urlsplit(target).path.lstrip("/")
    copy = psql(bindir, source, COPY_OUT)
    into = client("mariadb", target, CHARACTER_SET, "--local-infile=1", name, "-e", LOAD_DATA)
    return contenders.pipe(copy, into)


def penstock(
    session: Session, source: str, target: str, *, tables: str, servers: Collection[int]
) -> Measurement:
    """Return the bulk load as the load process runs it, into an empty database."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        file = write_config(Path(directory), source, target, mode="data", tables=tables)
        lines = file.read_text().splitlines(keepends=True)
        others = ("replicationSlot", "publication")  # parameters of PostgreSQL alone
        file.write_text("".join(line for line in lines if not line.startswith(others)))
        config = load_config(file)
        definitions = source_tables(config)
        with TreeSampler(os.getpid(), without=servers, interval_s=SAMPLE_INTERVAL_S) as sampler:
            began = time.monotonic()
            with open_planner(config) as planner:
                bulk_load(config, session, planner, definitions=definitions)
            elapsed_s = time.monotonic() - began
    return Measurement(elapsed_s=elapsed_s, cpu_s=sampler.cpu_s, peak_bytes=sampler.peak_bytes)


def fill_postgres(url: str, count: int) -> None:
    """Fill the same table in PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CREATE_TARGET.replace("flag smallint", "flag boolean"))
        connection.execute(
            "insert into public.w select i, i::bigint * 7919 % 1000000, 'customer number ' || i, "
            "(i::bigint * 31 % 10000000) / 100.0, timestamptz '2024-01-01' "
            "+ (i % 31536000) * interval '1 second' + i % 1000 * interval '1 millisecond', "
            "i % 3 = 0, jsonb_build_object('id', i, 'tags', jsonb_build_array('a', i % 10)), "
            "sqrt(i), md5(i::text)::uuid::text, case when i % 4 = 0 then 'note ' || i end "
            f"from generate_series(1, {count}) as i"
        )
        add_key(url)
        connection.execute("vacuum analyze public.w")


def fresh_mysql(url: str, *, table: bool) -> None:
    """Return an empty database `public`; with the table and its key, if requested."""
    with connect(url, application_name="bench") as connection:
        for name in ("public", "wirekite"):
            run(connection, f"drop database if exists {name}", doing="emptying")
        run(connection, "create database public", doing="emptying")
        if table:
            shape = CREATE.replace("table w", "table public.w").replace("json", "longtext")
            run(connection, shape, doing="emptying")


def into_postgres(
    origin: Server, destination: EmbeddedPostgres, session: Session, flags: Namespace
) -> Comparison:
    """Return the comparison from MySQL or MariaDB into PostgreSQL."""
    with connect(origin.url(), application_name="bench") as connection:
        run(connection, "create database bench", doing="making a database")
    source, bindir = origin.url("bench"), destination.bindir
    fill(source, flags.rows)
    ours = [postmaster(destination), origin.pid]
    contestants: dict[str, Callable[[], Measurement]] = {
        "mariadb --batch | psql": lambda: batch_pipe(
            bindir, source, fresh_target(destination, table=True), through_sed=False
        ),
        "mariadb --batch | sed | psql": lambda: batch_pipe(
            bindir, source, fresh_target(destination, table=True), through_sed=True
        ),
        "penstock": lambda: penstock(
            session, source, fresh_target(destination, table=False), tables="bench.*", servers=ours
        ),
    }
    return compare(f"bulk_{origin.flavour}_postgresql", contestants, flags, ours)


def into_mysql(
    origin: EmbeddedPostgres, destination: Server, session: Session, flags: Namespace
) -> Comparison:
    """Return the comparison from PostgreSQL into MySQL or MariaDB."""
    source, bindir = fresh_target(origin, table=False), origin.bindir
    fill_postgres(source, flags.rows)
    ours = [postmaster(origin), destination.pid]

    def empty(table: bool) -> str:
        fresh_mysql(destination.url(), table=table)
        return destination.url("public")

    contestants: dict[str, Callable[[], Measurement]] = {
        "psql | mariadb load data": lambda: load_pipe(bindir, source, empty(True)),
        "penstock": lambda: penstock(
            session, source, empty(False), tables="public.*", servers=ours
        ),
    }
    return compare(f"bulk_postgresql_{destination.flavour}", contestants, flags, ours)


def compare(
    bench: str,
    contestants: Mapping[str, Callable[[], Measurement]],
    flags: Namespace,
    servers: Collection[int],
) -> Comparison:
    """Return the rounds of one direction. Servers' figures include creating an empty database."""
    contenders_ = [
        Contender(name=name, run=partial(beside_servers, run_once, *servers), unit_count=flags.rows)
        for name, run_once in contestants.items()
    ]
    return Comparison(bench=bench, contenders=contenders_).run(flags.rounds)


def main() -> None:
    """Run all contenders in turn, each into an empty database, in both directions."""
    flags = arguments(__doc__ or "", rows=1_000_000, mysql=0, directions=3)
    settings = {"innodb_buffer_pool_size": "1G"}
    kind = EmbeddedMySQL if flags.mysql else EmbeddedMariaDB
    with (
        kind(settings=settings) as server,
        EmbeddedPostgres() as postgres,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        spark(Path(directory)) as session,
    ):
        if flags.directions & 1:
            into_postgres(server, postgres, session, flags).print_table()
        if flags.directions & 2:
            into_mysql(postgres, server, session, flags).print_table()


if __name__ == "__main__":
    main()
