"""Log of a feed's consumers: it has applied rows, and missing ones are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.feeds.staging import FakeStaging
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigValueInvalid
from penstock.control.pipeline.consumers import FeedUnknown, select_log
from penstock.engines.feeds.rows import Shapes
from penstock.engines.feeds.windows import FeedNotStaged, FeedRetired, WindowReader
from penstock.model import ColumnDefinition, FlushPoint, Run, TableDefinition, TableName
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import (
    Mutation,
    StagedTable,
    batch_of,
    feed_config,
    feeds,
    group_config,
    group_name,
)

ITEM = StagedTable(("shop", "public"), "item")
TABLE = TableDefinition(
    name=TableName("public", "item"),
    source_id=1,
    columns=(
        ColumnDefinition(
            name="id", type_text="bigint", type_oid=0, typmod=-1, base_type="bigint",
            neutral="int64", not_null=True,
        ),
    ),
    primary_key=("id",),
)  # fmt: skip
START = FlushPoint(position=0, gsn=0, trx=0, commit_time_us=0)
FILE = """
[pipeline]
name = "shop"
directory = "shop"
[staging]
url = "postgresql://stage@localhost:5432/_replicator"
[stage]
[target]
url = "postgresql://loader@localhost:5432/shop"
[consumers.search]
class = "shop:Search"
"""


def _line(time: int, key: int) -> Mutation:
    return Mutation(time=Hlc(time), key=f"[{key}]", after=b'{"id":%d}' % key)


class _Kept:
    """State files that keep nothing."""

    def load(self, _name: str, _kind: Any) -> Any:
        return None

    def save(self, name: str, state: Any) -> None:
        pass


def _reader(staging: FakeStaging, *, with_applied: bool = True) -> WindowReader:
    shapes = Shapes(definitions=lambda: {ITEM: TABLE}, files=_Kept())
    shapes.load()
    return WindowReader(
        session=staging, group=ITEM.group, shapes=shapes, splits=False, with_applied=with_applied
    )


def _window(staging: FakeStaging, after: Hlc, through: Hlc) -> list[Run]:
    return list(_reader(staging).runs(after, through, START))


def _count(runs: list[Run]) -> int:
    return sum(one.batch.num_rows for run in runs for one in run.rows)


def test_what_is_applied_is_read_for_consumers() -> None:
    """The load, which applied them, does not read them."""
    staging = FakeStaging()
    staging.stage({ITEM: batch_of([_line(1, 1), _line(2, 2)])})
    staging.mark_applied_through([ITEM], Hlc(1))
    assert _count(_window(staging, ZERO, Hlc(3))) == 2
    assert _count(list(_reader(staging, with_applied=False).runs(ZERO, Hlc(3), START))) == 1


def test_rows_that_were_retired_are_told() -> None:
    """The error comes before the window's end, so no later row is passed on; a new log may skip
    them.
    """
    staging = FakeStaging()
    staging.stage({ITEM: batch_of([_line(one, one) for one in range(1, 9)])})
    staging.mark_applied_through([ITEM], Hlc(8))
    staging.retire(ITEM, Hlc(5))
    made = _reader(staging)
    given: list[Run] = []
    with pytest.raises(FeedRetired):
        given.extend(made.runs(Hlc(4), Hlc(9), START))
    assert all(run.end is None for run in given)
    assert _count(_window(staging, Hlc(5), Hlc(9))) == 3
    assert _count(_window(staging, ZERO, Hlc(9))) == 4


def test_rows_that_were_never_staged_are_told() -> None:
    """An instance without consumers writes directly and leaves stubs."""
    staging = FakeStaging()
    staging.stage({ITEM: batch_of([_line(3, 3)])})
    staging.mark_applied(ITEM, batch_of([_line(2, 2)]))
    with pytest.raises(FeedNotStaged):
        _window(staging, Hlc(1), Hlc(4))
    assert _count(_window(staging, ZERO, Hlc(4))) == 1


def test_which_log_consumers_read(tmp_path: Path) -> None:
    """The log is the only one, or the one that is named."""
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    config = load_config(file)
    with pytest.raises(FeedUnknown, match="has 0"):
        select_log(config)
    for name in ("public", "Über/x"):
        feed_config(config, ("shop", name)).layout.log.mkdir(parents=True)
        assert select_log(config, f"shop.{name}") == feed_config(config, ("shop", name))
    with pytest.raises(FeedUnknown, match="has 2"):
        select_log(config)
    with pytest.raises(FeedUnknown, match="crm"):
        select_log(config, "crm.public")
    plain = replace(config, stage=None)
    assert select_log(plain) is plain
    with pytest.raises(FeedUnknown):
        select_log(plain, "shop.public")


@pytest.mark.parametrize("group", [("..",), (".",), ("...",), ("a", ".."), ("/etc",), ("a.b",)])
def test_a_groups_directory_is_its_own_and_below_the_pipelines(
    tmp_path: Path, group: tuple[str, ...]
) -> None:
    """Whatever a schema's name is, its log is never the pipeline's, which would be deleted."""
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    config = load_config(file)
    for made in (group_config(config, group), feed_config(config, group)):
        folder = made.directory.resolve()
        assert folder.parent.parent == config.directory.resolve()
    feed_config(config, group).directory.mkdir(parents=True)
    assert feeds(config) == (group_name(group),)


def test_a_consumer_of_a_feed_has_no_snapshot(tmp_path: Path) -> None:
    """There is no source that could be read."""
    file = tmp_path / "shop.toml"
    file.write_text(FILE + 'start = "snapshot"\n')
    with pytest.raises(ConfigValueInvalid, match="start"):
        load_config(file)
