"""Pipelines for the tests of bulk loads from and into MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from harness.pipelines.loader import LocalSession
from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load
from penstock.engines.mysql.source.bulk_reader import RowsOfChunk
from penstock.engines.mysql.source.chunks import KeyChunk
from penstock.engines.mysql.source.proxied_session import ProxiedSession, open_proxied
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.engines.mysql.source.snapshot import open_snapshots
from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.chunk import into_postgres
from penstock.load.bulk import BulkResult
from penstock.load.session import Session
from penstock.model import TableDefinition
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config
from penstock.sql.read_plan import read_plan_of
from plugins.mysql import MySQLServer, database_of


class Here(LocalSession):
    """Session that runs the tasks of a bulk load in this process."""

    parallelism = 2

    def run(
        self, partitions: Sequence[Sequence[Any]], work: Any, *, description: str = ""
    ) -> list[Any]:
        """Run tasks of any kind in this process, and return their results."""
        assert description
        return [result for tasks in partitions for result in work(iter(tasks))]


def between(
    source_url: str, target_url: str, directory: Path, *, tables: str = "", more: str = ""
) -> Config:
    """Return a data pipeline from all tables of a MySQL database, with chunks of a megabyte."""
    file = directory / "p.toml"
    pattern = tables or f"{database_of(source_url)}.*"
    file.write_text(
        f"""
        [pipeline]
        name = "bulk"
        mode = "data"
        directory = "p"
        [source]
        url = "{source_url}"
        tables = ["{pattern}"]
        [target]
        url = "{target_url}"
        [dataLoader]
        chunkMegabytes = 1
        {more}
        """
    )
    return load_config(file)


def load(config: Config, spark: Session, **how: object) -> BulkResult:
    """Run the bulk load in this process."""
    with open_planner(config) as planner:
        return bulk_load(config, spark, planner, **how)  # type: ignore[arg-type]


def fill_orders(server: MySQLServer, name: str, count: int = 60_000) -> None:
    """Create a table of several chunks."""
    server.execute(
        "create table numbers (n int primary key);"
        "insert into numbers values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9);"
        "create table orders (id bigint primary key, note varchar(200), total decimal(12,2),"
        " at timestamp(3) null);"
        "insert into orders select d.i, repeat(left(sha2(d.i, 256), 32), 3), d.i / 7.0,"
        " timestampadd(minute, d.i, '2020-01-01')"
        " from (select a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n as i"
        f"  from numbers a, numbers b, numbers c, numbers d, numbers e) as d where d.i < {count};"
        "drop table numbers; analyze table orders",
        name,
    )


@contextmanager
def lend_session(server: MySQLServer, table: TableDefinition) -> Iterator[ProxiedSession]:
    """Lend a session in a snapshot."""
    with (
        open_snapshots(server.url(), [table], count=1) as taken,
        SessionProxy.of(taken.connections, place="here", snapshot_text="now") as proxy,
        open_proxied(proxy.snapshot_id, "now") as session,
    ):
        yield session


def copy_table(
    server: MySQLServer,
    table: TableDefinition,
    servers: ServerPair,
    target: psycopg.Connection,
    schema: str = "",
) -> int:
    """Copy a table whole, into this schema, and return the number of rows."""
    read_plan, name = read_plan_of(table, servers, server.url()), table.name
    with lend_session(server, table) as session:
        select = KeyChunk(table=table.name, number=1).query(read_plan.expressions)
        rows = RowsOfChunk(session, select, read_plan.cells, LineDialect.COPY)
        return into_postgres(
            rows, target, f"copy {quote(schema or name.schema, name.name)} from stdin"
        )
