"""Pipelines for the tests of bulk loads from and into MySQL and MariaDB."""

from __future__ import annotations

from pathlib import Path

from fix_mysql import MySQLServer, database_of
from penstock.control.bulk_load import bulk_load
from penstock.control.config import Config, load_config
from penstock.control.source_planner import data_planner
from penstock.load.bulk import BulkResult
from penstock.load.session import Session


def between(
    source_url: str, target_url: str, directory: Path, *, tables: str = "", more: str = ""
) -> Config:
    """A data pipeline from all tables of a MySQL database, with chunks of a megabyte."""
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
    with data_planner(config) as planner:
        return bulk_load(config, spark, planner, **how)  # type: ignore[arg-type]


def fill_orders(server: MySQLServer, name: str, count: int = 60_000) -> None:
    """A table of several chunks."""
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
