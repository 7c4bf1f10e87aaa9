"""The bank's pipeline with Oracle's model on either side, killed at named and random moments.

The model is in the process of the test; when its server is killed, all sessions end and their
transactions are rolled back. `test_pipeline_kills.py` describes the same for PostgreSQL.
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
from harness.faults.kills import ORACLE, POSTGRES
from penstock.engines.oracle import handover
from penstock.engines.oracle.source import stream
from penstock.engines.postgres.handover import prepare
from penstock.host import faults
from soak import Story, draw

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# Importing declares the fault points.
assert prepare.__module__
assert handover.__name__
assert stream.__name__

REDO_CHAIN = (
    "oracle.window.before:2",
    "oracle.window.after:2",
    "oracle.run.before:2",
    "oracle.acknowledge.after:2",
)
WHOLE = ((*ENGINE_FREE, *REDO_CHAIN), LOAD_CHAIN)
# For everyday runs: the points that only this source has, and one point of each kind.
SOME = (
    (
        "log.fdatasync.after:1",
        "log.recovery.truncate.before:1",
        "log.rename.after:1",
        "extract.acknowledge.after:1",
        *REDO_CHAIN,
    ),
    ("load.copy.after:1", "load.apply.after:1", "load.commit.after:1"),
)
CAPTURED = "oracle.handover.captured"
# Source, target, a point before the first row, and the victim and point in the bulk load.
BEGINNINGS = (
    (ORACLE, POSTGRES, CAPTURED, "both", "bulk.chunk.copied"),
    (POSTGRES, ORACLE, "handover.captured", "both", "bulk.chunk.committed"),
    (ORACLE, POSTGRES, "oracle.handover.begun", "load", "bulk.chunk.copied"),
    (POSTGRES, ORACLE, "handover.captured", "worker", "bulk.chunk.copied"),
    (ORACLE, ORACLE, CAPTURED, "jvm", "bulk.chunk.copied"),
)
# Reached with transactions of millions of rows only.
SPILL = {"oracle.spill.before", "oracle.spill.after"}


def test_no_point_is_forgotten() -> None:
    """A new fault point that only this source has must be added here."""
    listed = {point.partition(":")[0] for point in REDO_CHAIN}
    found = {name for name in faults.names() if name.startswith("oracle.")}
    assert found - SPILL == listed | {CAPTURED, "oracle.handover.begun"}


@pytest.mark.promise
@pytest.mark.parametrize(
    ("source", "target", "chains"),
    [
        pytest.param(ORACLE, POSTGRES, SOME, id="some", marks=pytest.mark.long),
        pytest.param(ORACLE, POSTGRES, WHOLE, id="oracle-postgres", marks=pytest.mark.long),
        pytest.param(POSTGRES, ORACLE, (SOME[0][:4], LOAD_CHAIN), id="postgres-oracle",
                     marks=pytest.mark.long),
        pytest.param(ORACLE, "mariadb", WHOLE, id="oracle-mariadb", marks=pytest.mark.long),
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
        pytest.param(*story, id="-".join(story[:4]), marks=[pytest.mark.long] if number else [])
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
    (1, 5, ORACLE, POSTGRES),
    (2, 5, POSTGRES, ORACLE),
    (3, 8, ORACLE, ORACLE),
    (4, 8, ORACLE, "mariadb"),
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
