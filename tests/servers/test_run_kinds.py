"""Pipelines of different engines in one `penstock run`.

Those into databases share one Spark; one into a lake has its own. Not here: what happens to the
others when one is killed, stopped or reset (`test_run_several.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.item_shop import WITHIN_S, LakePlace, Shop
from harness.servers.engines import FIRST, new_place
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

PAIRS = (("mariadb", FIRST), ("sqlserver", "mariadb"), (FIRST, "delta"))
OF_ALL, OF_THE_LAKE = 1, 1  # JVMs


@pytest.fixture
def shops(shared_servers: SharedServers, tmp_path: Path) -> Iterator[list[Shop]]:
    """A shop for each pair, in a folder of its own."""
    with ExitStack() as stack:
        made = []
        for number, (kind, other) in enumerate(PAIRS):
            folder = tmp_path / f"shop{number}"
            folder.mkdir()
            source = stack.enter_context(new_place(shared_servers, kind))
            if other == "delta":
                target = LakePlace(other, folder, source.namespace)
            else:
                target = stack.enter_context(new_place(shared_servers, other))
            made.append(Shop(folder, source, target))
        yield made
        for shop in made:
            shop.source.forget_log()


def test_each_has_its_rows_and_changes(shops: list[Shop]) -> None:
    """All tables are equal after the first rows, after changes, and after the end of the run."""
    first, *more = shops
    with Process(first.path, "run", *(str(shop.path) for shop in more)) as process:

        def wait_until_equal(what: str) -> None:
            for shop in shops:
                process.until(shop.is_equal, f"{what} of {shop.path}", WITHIN_S)

        wait_until_equal("the first rows")
        below = psutil.Process(process.pid).children(recursive=True)
        assert [one.name() for one in below].count("java") == OF_ALL + OF_THE_LAKE
        for number in (10_000, 20_000):
            for shop in shops:
                shop.change(number)
        wait_until_equal("the changes")
        process.stop()
    assert all(shop.is_equal() for shop in shops)
