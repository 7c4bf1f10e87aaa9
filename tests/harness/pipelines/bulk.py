"""Pipelines for the tests of the bulk load: a source, a target, chunks of a megabyte."""

from __future__ import annotations

from pathlib import Path

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load
from penstock.control.verify.compare import TablePair, compare_tables
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.engines.postgres.source.bulk_reader import snapshot_text
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.slot import ConsistentPoint
from penstock.engines.postgres.verify import PostgresVerifyReader
from penstock.load.bulk import BulkResult
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import Point
from penstock.ports.config import Config

ORDERS = TableName("public", "orders")


def between(source_url: str, target_url: str, directory: Path) -> Config:
    """Return a data pipeline between two databases, with chunks of one megabyte."""
    file = directory / "p.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "bulk"
        mode = "data"
        directory = "p"
        [source]
        url = "{source_url}"
        tables = ["public.*"]
        [target]
        url = "{target_url}"
        [dataLoader]
        chunkMegabytes = 1
        """
    )
    return load_config(file)


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with connect(url, application_name="test") as connection:
        for statement in statements:
            connection.execute(statement)


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a query."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def load(config: Config, spark: Session, **how: object) -> BulkResult:
    """Run the bulk load in this process."""
    with PostgresPlanner(config) as planner:
        return bulk_load(config, spark, planner, **how)  # type: ignore[arg-type]


def point_of(config: Config, point: ConsistentPoint) -> Point:
    """Return a held point in the form of the bulk load."""
    return Point(
        position=Lsn(point.position),
        snapshot_id=point.snapshot_id,
        snapshot_text=snapshot_text(config.source.url, point.snapshot_id),
    )


def check_equal(config: Config) -> None:
    """Check that source and target have the same rows, each once."""
    with open_catalog(config.source.url) as catalog:
        tables = captured_tables(catalog, config.source.tables)
    mapped = config.target.map
    pairs = [
        TablePair(source=t, target=TableName(mapped.get(t.name.schema, t.name.schema), t.name.name))
        for t in tables
    ]
    with (
        PostgresVerifyReader(config.source.url, snapshot_id=None, sessions=2) as source,
        PostgresVerifyReader(config.target.url, snapshot_id=None, sessions=2) as target,
    ):
        for result in compare_tables(pairs, source, target):
            assert result.equal, result


def fill_orders(url: str, count: int = 60_000) -> None:
    """Create a table without unique key of about six chunks: a chunk copied twice would be seen."""
    run(
        url,
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        "insert into public.orders select i, repeat(md5(i::text), 3), i / 7.0, "
        f"'2020-01-01'::timestamptz + i * interval '1 min' from generate_series(1, {count}) as i",
    )
