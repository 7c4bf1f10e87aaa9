"""Batches whose tables are committed in one step, with the format in memory.

Not here: Iceberg's REST catalogues (`test_several_tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lake.applying import content_of
from lake.test_core_apply import Lake
from penstock.engines.lake.batches import BATCHES
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import TableName
from penstock.ports.target import AppliedByAnother

POINTS = ("lake.together.before", "lake.together.after", "lake.batch.after", "lake.state.after")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Lake of a catalogue that commits several tables in one step."""
    lake = Lake(tmp_path)
    lake.store.together = True
    yield lake
    lake.shop.log.writer.close()


def check_newest(lake: Lake) -> None:
    """Fail unless the newest versions of all tables are those of one commit of the source."""
    rows = lake.store.rows(BATCHES)
    if not rows:
        return
    newest = max(int(row["position"]) for row in rows)
    for name, content in lake.shop.states[newest].items():
        assert content_of(lake.store.rows(name)) == content, name


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_loader_leaves_all_tables_at_one_commit(lake: Lake, point: str) -> None:
    """Kill it in the second batch, look at the newest versions, and let another one go on."""
    lake.shop.write(30)
    run = lake.open()
    with faults.arming(f"{point}:2:error"), pytest.raises(FaultInjected):
        run.run(files_max=1)
    run.kill()
    check_newest(lake)
    run = lake.open()
    assert not run.target._lake.ahead
    run.run(files_max=1)
    run.close()
    check_newest(lake)
    lake.check()
    assert all(row["versions"] for row in lake.store.rows(BATCHES))
    assert lake.store.together_count


def test_another_writer_that_is_faster_makes_all_tables_wait(lake: Lake) -> None:
    """All tables are looked at again, and nothing of the refused commit is in any of them."""
    lake.shop.write(20)
    disturbed: list[TableName] = []

    def disturb(name: TableName) -> None:
        if name != BATCHES and len(disturbed) < 3:
            disturbed.append(name)
            lake.store.touch(name)
            check_newest(lake)

    lake.store.before_commit = disturb
    run = lake.open()
    run.run(files_max=2)
    run.close()
    assert len(disturbed) == 3
    lake.check()


def test_a_catalogue_that_cannot_after_all(lake: Lake) -> None:
    """The tables are committed one by one, and no other attempt is made."""
    lake.store.together = None
    lake.shop.write(20)
    run = lake.open()
    run.run(files_max=1)
    run.close()
    assert lake.store.together_count == 0
    assert not run.target._lake.catalogue.can_commit_together
    lake.check()


def test_a_second_loader_is_refused(lake: Lake) -> None:
    """The commit of the table of batches is in the step, so no table has a batch twice."""
    lake.shop.write(10)
    slow, fast = lake.open(), lake.open()
    staged = slow.stage()
    assert staged is not None
    fast.run()
    with pytest.raises(AppliedByAnother):
        slow.apply(staged)
    slow.kill()
    fast.close()
    lake.check()
