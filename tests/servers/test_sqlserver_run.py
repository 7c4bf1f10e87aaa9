"""`penstock run` through Spark between PostgreSQL and a simulated SQL Server, in both directions.

All processes are those that a user starts; rows are compared with the test's own statements, and by
`penstock verify`. Not here: source or target alone (`test_sqlserver_source.py` and `_target.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.pipelines.item_shop import Shop, check_through_kills
from harness.servers.engines import FIRST, new_place
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(params=["postgres-to-sqlserver", "sqlserver-to-postgres"])
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """A shop for each direction."""
    with ExitStack() as stack:
        kinds = [FIRST, "sqlserver"]
        if request.param.startswith("sqlserver"):
            kinds.reverse()
        source, target = (stack.enter_context(new_place(shared_servers, one)) for one in kinds)
        yield Shop(tmp_path, source, target)
        source.forget_log()


def test_rows_and_changes_arrive_through_kills(shop: Shop) -> None:
    """After SIGKILL of the loader and of the extractor, no row is missing or there twice."""
    check_through_kills(shop)
