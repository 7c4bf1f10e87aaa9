"""`penstock run` through Spark between the simulated Oracle and other engines.

All processes are those that a user starts. Not here: source or target alone
(`tests/unit/test_oracle_source.py`, `test_oracle_target.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.item_shop import WITHIN_S, LakePlace, Shop, check_through_kills
from harness.servers.engines import FIRST, new_place
from harness.servers.oracle_place import OraclePlace
from plugins.mysql import kinds
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]
LAKES = ("delta", "iceberg")
PAIRS = (
    ("oracle", FIRST),
    (FIRST, "oracle"),
    *(("oracle", kind) for kind in (*kinds(), *LAKES)),
    *((kind, "oracle") for kind in kinds()),
)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.long] if number else [])
        for number, pair in enumerate(PAIRS)
    ],
)
def test_rows_and_changes_arrive_through_kills(
    shared_servers: SharedServers, tmp_path: Path, source: str, target: str
) -> None:
    """After SIGKILL of the loader and of the extractor, no row is missing or there twice."""
    with ExitStack() as stack:
        origin = stack.enter_context(new_place(shared_servers, source))
        copy = (
            LakePlace(target, tmp_path, origin.namespace)
            if target in LAKES
            else stack.enter_context(new_place(shared_servers, target))
        )
        check_through_kills(Shop(tmp_path, origin, copy))
        origin.forget_log()


@pytest.mark.long
def test_rows_arrive_by_the_direct_path(shared_servers: SharedServers, tmp_path: Path) -> None:
    """Chunks of Spark's workers are written by it, and changes are not."""
    with ExitStack() as stack:
        origin = stack.enter_context(new_place(shared_servers, FIRST))
        copy = stack.enter_context(new_place(shared_servers, "oracle"))
        assert isinstance(copy, OraclePlace)
        shop = Shop(tmp_path, origin, copy, {"target": {"directPath": True}})
        with Process(shop.path) as run:
            run.until(shop.is_equal, "existing rows are there", WITHIN_S)
            count = _count_direct_loads(copy)
            shop.change(10_000)
            run.until(shop.is_equal, "changes are there", WITHIN_S)
            run.stop()
        assert count >= 2, "each table has a chunk"
        assert _count_direct_loads(copy) == count
        heaps = "SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = 'WIREKITE'"
        assert not [name for (name,) in copy.run_unchanged(heaps) if name.startswith("DIRECT_")]
        origin.forget_log()


def _count_direct_loads(place: OraclePlace) -> int:
    return sum(one.startswith("DIRECT PATH LOAD") for one in place.server.statements)
