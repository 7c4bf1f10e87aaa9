"""SQL Server end to end through Spark at the demo's size: existing rows, customers, a new column.

The simulated server is shared with nothing else while it works. Not here: kills
(`tests/servers/test_sqlserver_run.py`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import penstock, write_pipeline
from harness.pipelines.sqlserver_shop import TABLES, Customers, open_shop
from harness.servers.engines import FIRST, new_place
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.control.pipeline.config import load_config
from penstock.control.verify.verify import verify
from penstock.engines.postgres.server import shop
from penstock.ports.demo import WorkloadOptions, demo_lakes
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]

SECONDS = float(os.environ.get("PENSTOCK_TEST_DEMO_SECONDS", "60"))
WITHIN_S = 1500.0
ERRORS = {"*": "error"}
CHOICES = {
    **ERRORS,
    "public.Gift Card.valid_to dates out of range": "text",
    "public.Gift Card.Größe not a number": "text",
}
DOCS = Path(__file__).parents[2] / "docs" / "sqlserver.md"


def run_to_the_end(path: Path) -> float:
    """Run a pipeline until its source is idle; return the seconds."""
    began_s = time.monotonic()
    done = penstock("run", path, "--json", timeout_s=WITHIN_S)
    assert done.code == 0, (done.out[-3000:], done.err[-3000:])
    return time.monotonic() - began_s


def write(folder: Path, source: str, target: str, **sections: Mapping[str, Any]) -> Path:
    """Write a pipeline file that ends when its source is idle."""
    return write_pipeline(
        folder,
        source,
        target,
        tables=["*.*"],
        sections={
            "changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 10},
            "spark": {"master": "local[2]"},
            **sections,
        },
    )


def published_queries() -> list[str]:
    """Return the queries for monitoring, as the page for SQL Server prints them."""
    text = DOCS.read_text(encoding="utf-8").partition("published queries in T-SQL")[2]
    block = re.search(r"```sql\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [one.strip() for one in block[1].split(";") if one.strip()]


def test_the_demos_shop_arrives_in_sql_server(
    shared_servers: SharedServers, tmp_path: Path, record_property: Any
) -> None:
    """PostgreSQL's demo with its customers; the published queries tell about it at the target."""
    with ExitStack() as stack:
        source = stack.enter_context(new_place(shared_servers, FIRST))
        target = stack.enter_context(new_place(shared_servers, "sqlserver"))
        assert isinstance(target, SQLServerPlace)
        shop.open_shop(source.url)
        path = write(
            tmp_path,
            source.url,
            target.url,
            **{"target.map": {"public": "dbo"}, "target.types": CHOICES},
        )
        options = WorkloadOptions(duration_s=SECONDS)
        with shop.Workload(source.url, options) as customers:
            record_property("seconds", run_to_the_end(path))
            customers.join()
        assert customers.counts.transactions > SECONDS
        source.run("update customer set balance = balance + 1 where id % 10 = 0")
        source.run("delete from review where stars = 1")
        run_to_the_end(path)
        result = verify(load_config(path), on_waiting=print)
        assert result.equal, result
        assert sum(one.source_rows for one in result.tables) > 100_000
        latest, lag = published_queries()
        assert 1 <= len(target.run(latest)) <= 5
        assert target.run(lag)[0][0] >= 0


@pytest.mark.parametrize("kind", [FIRST, "delta", "iceberg"])
def test_a_shop_of_sql_server_arrives(
    shared_servers: SharedServers, tmp_path: Path, kind: str, record_property: Any
) -> None:
    """Customers work from before the bulk load on; a column is added while they do."""
    with ExitStack() as stack:
        source = stack.enter_context(new_place(shared_servers, "sqlserver"))
        assert isinstance(source, SQLServerPlace)
        text = source.connection_string()
        open_shop(text)
        opens = None
        more: dict[str, Mapping[str, Any]] = {"target.types": ERRORS}
        if kind == FIRST:
            target = stack.enter_context(new_place(shared_servers, kind)).url
            more["target.map"] = {"dbo": "public"}
        else:
            part = demo_lakes()[kind]
            target = part.url(tmp_path / "lake")
            more["spark.conf"] = part.properties(tmp_path / "lake")
            opens = part.open_reader
        path = write(tmp_path, source.url, target, **more)
        with Customers(text, seconds=SECONDS) as customers:
            record_property("seconds", run_to_the_end(path))
            customers.join()
        assert customers.transactions > SECONDS
        result = verify(load_config(path), on_waiting=print, open_target=opens)
        assert result.equal, result
        assert {one.table.name for one in result.tables} == set(TABLES)
