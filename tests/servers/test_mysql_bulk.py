"""The bulk load from MySQL and MariaDB into PostgreSQL: every row once, every value as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_bulk import rows, two_slots
from fix_mysql import MySQLServer, database_of
from fix_mysql_bulk import between, load
from penstock.load.ledger import read_ledger
from penstock.load.session import Session
from penstock.model import TableName

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session shared by the tests."""
    with two_slots(tmp_path_factory.mktemp("spark")) as session:
        yield session


def fill_orders(server: MySQLServer, name: str, count: int = 60_000) -> None:
    """A table of several chunks."""
    server.execute(
        "create table numbers (n int primary key);"
        "insert into numbers values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9);"
        "create table orders (id bigint primary key, note varchar(200), total decimal(12,2),"
        " at timestamp(3) null);"
        "insert into orders select d.i, repeat(md5(d.i), 3), d.i / 7.0,"
        " timestampadd(minute, d.i, '2020-01-01')"
        " from (select a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n as i"
        f"  from numbers a, numbers b, numbers c, numbers d, numbers e) as d where d.i < {count};"
        "drop table numbers; analyze table orders",
        name,
    )


def test_rows_arrive_in_chunks(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """Several chunks of one table, each row once, and its key afterwards."""
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
