"""Bulk loads from MySQL and MariaDB on executors, which reach their snapshots at an address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.bulk import rows
from harness.pipelines.mysql_bulk import between, fill_orders, load
from penstock.control.pipeline.config import load_config
from penstock.engines.mysql.proxy_protocol import ProxyAddress
from penstock.load.ledger import read_ledger
from penstock.load.session import SessionOptions, start_session
from plugins.cluster import CONF, MASTER
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_spark", "cluster_home")]


@pytest.fixture
def landing(mysql: MySQLServer) -> Iterator[str]:
    """A database to load into; it and penstock's own database are dropped afterwards."""
    url = mysql.make_database("landing")
    yield url
    mysql.drop_database(url)
    mysql.execute("drop database if exists wirekite")


def test_executors_read_snapshots_at_the_drivers_address(
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    landing: str,
    tmp_path: Path,
    lending: dict[str, str],
) -> None:
    """Every row arrives in PostgreSQL and in the same engine, through TLS."""
    name, address = database_of(mysql_url), lending["snapshotAddress"]
    fill_orders(mysql, name)
    spark = f'[spark]\nmaster = "{MASTER}"\nsnapshotAddress = "{address}"'
    options = SessionOptions(work_directory=tmp_path / "spark", master=MASTER, conf=CONF)
    with start_session(options) as session:
        for target, folder in ((target_url, tmp_path / "one"), (landing, tmp_path / "two")):
            folder.mkdir()
            config = between(mysql_url, target, folder, more=spark)
            if target is landing:
                mapped = f'[target.map]\n{name} = "{database_of(landing)}"\n[dataLoader]'
                config.path.write_text(config.path.read_text().replace("[dataLoader]", mapped))
                config = load_config(config.path)
            load(config, session)
            [plan] = read_ledger(config.layout.state).plans
            assert len(plan.chunks) > 4
            proxy = ProxyAddress.parse(plan.snapshot_id)
            assert proxy.host == address
            assert proxy.fingerprint
    sums = "count(*), count(distinct note), sum(id), sum(total), min(at), max(at)"
    expected = mysql.execute(f"select {sums} from orders", name)
    assert mysql.execute(f"select {sums} from orders", database_of(landing)) == expected
    sums = sums.replace("at)", "at::timestamp(3))")
    assert rows(target_url, f'select {sums} from "{name}".orders') == expected
