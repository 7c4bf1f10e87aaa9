"""The bulk load from MySQL and MariaDB into PostgreSQL: every row once, every value unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pipelines.bulk import rows
from harness.pipelines.mysql_bulk import between, fill_orders, load
from penstock.load.ledger import read_ledger
from penstock.load.session import Session
from penstock.model import TableName
from plugins.mysql import MySQLServer, database_of

pytestmark = pytest.mark.spark


def test_rows_arrive_in_chunks(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """A table has several chunks: each row arrives once, and the key afterwards."""
    name = database_of(mysql_url)
    fill_orders(mysql, name)
    config = between(mysql_url, target_url, tmp_path)
    result = load(config, spark)
    assert result.rows == {TableName(name, "orders"): 60_000}
    assert len(read_ledger(config.layout.state).plans[0].chunks) > 4
    expected = mysql.execute(
        "select count(*), sum(id), sum(total), min(at), max(at), sum(crc32(note)) from orders", name
    )[0]
    got = rows(
        target_url,
        f"select count(*), sum(id), sum(total), min(at at time zone 'utc'), "
        f"max(at at time zone 'utc') from \"{name}\".orders",
    )[0]
    assert tuple(got) == tuple(expected[:5])
    done = rows(
        target_url,
        "select count(*), sum(mark::int), count(finish_time) from wirekite.wirekite_progress "
        "where operation = 'DL'",
    )[0]
    assert done[0] == done[2]
    assert done[1] == 60_000
