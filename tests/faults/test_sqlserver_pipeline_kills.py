"""The bank's pipeline with SQL Server on either side, killed at named and random moments.

The server is simulated; each side has one of its own. `test_pipeline_kills.py` describes the same
for PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.kill_chains import (
    ENGINE_FREE,
    LOAD_CHAIN,
    kill_at_the_beginning,
    kill_both_along,
)
from harness.faults.kills import POSTGRES, SQLSERVER
from penstock.engines.postgres.handover import prepare
from penstock.engines.sqlserver import handover
from penstock.engines.sqlserver.source.stream import ChangeStream
from penstock.host import faults
from soak import Story, draw

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]

# Importing declares the fault points.
assert prepare.__module__
assert handover.__name__
assert ChangeStream.__module__

CHANGES_CHAIN = (
    "changes.read.before:2",
    "changes.confirm.before:2",
    "changes.confirm.after:1",
    "changes.acknowledge.after:2",
)
WHOLE = ((*ENGINE_FREE, *CHANGES_CHAIN), LOAD_CHAIN)
# For everyday runs: the points that only this source has, and one point of each kind.
SOME = (
    (
        "log.fdatasync.after:1",
        "log.recovery.truncate.before:1",
        "log.rename.after:1",
        "extract.acknowledge.after:1",
        *CHANGES_CHAIN,
    ),
    ("load.copy.after:1", "load.apply.after:1", "load.commit.after:1"),
)
CAPTURED = "sqlserver.handover.captured"
# Source, target, a point before the first row, and the victim and point in the bulk load.
BEGINNINGS = (
    (SQLSERVER, POSTGRES, CAPTURED, "both", "bulk.chunk.copied"),
    (POSTGRES, SQLSERVER, "handover.captured", "both", "bulk.chunk.committed"),
    (POSTGRES, SQLSERVER, "handover.captured", "worker", "bulk.chunk.copied"),
    (SQLSERVER, SQLSERVER, CAPTURED, "jvm", "bulk.chunk.copied"),
)


def test_no_point_is_forgotten() -> None:
    """A new fault point that only this source has must be added here."""
    listed = {point.partition(":")[0] for point in CHANGES_CHAIN} | {CAPTURED}
    found = {
        name for name in faults.names() if name.startswith(("changes.", "sqlserver.handover."))
    }
    assert found == listed


@pytest.mark.promise
@pytest.mark.parametrize(
    ("source", "target", "chains"),
    [
        pytest.param(SQLSERVER, SQLSERVER, SOME, id="some"),
        pytest.param(SQLSERVER, POSTGRES, WHOLE, id="sqlserver-postgres", marks=pytest.mark.long),
        pytest.param(POSTGRES, SQLSERVER, (SOME[0][:4], LOAD_CHAIN), id="postgres-sqlserver",
                     marks=pytest.mark.long),
        pytest.param(SQLSERVER, "mysql", WHOLE, id="sqlserver-mysql", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_killed_at_named_points(
    tmp_path: Path, source: str, target: str, chains: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Extractor and loader die along their chains at the same time; the bank works, and its copy is
    read.
    """
    kill_both_along(tmp_path, source, target, chains)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("source", "target", "point", "victim", "chunk"),
    [
        pytest.param(*story, id="-".join(story[:4]), marks=[pytest.mark.long] if number > 1 else [])
        for number, story in enumerate(BEGINNINGS)
    ],
)
def test_killed_on_the_way_to_the_first_row(
    tmp_path: Path, source: str, target: str, point: str, victim: str, chunk: str
) -> None:
    """The extractor dies at a point of the handover, then the bulk load with its sessions or
    without.
    """
    kill_at_the_beginning(tmp_path, source, target, (point, victim, chunk))


STORIES = (
    (1, 5, SQLSERVER, POSTGRES),
    (2, 5, POSTGRES, SQLSERVER),
    (3, 8, SQLSERVER, SQLSERVER),
    (4, 8, SQLSERVER, "mariadb"),
    (5, 8, "mysql", SQLSERVER),
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "count", "source", "target"),
    [pytest.param(*story, id=f"{story[2]}-{story[3]}") for story in STORIES],
)
def test_a_story_of_kills(tmp_path: Path, seed: int, count: int, source: str, target: str) -> None:
    """All processes and both servers die at moments and points drawn from a seed."""
    story = Story(seed, tmp_path, source=source, target=target)
    story.tell(list(draw(seed, count, source)))
