"""The bank's pipeline with MySQL and MariaDB on either side, killed at named and random moments.

`test_pipeline_kills.py` describes the same for PostgreSQL; here are the other engines in both
roles.
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
from harness.faults.kills import POSTGRES
from penstock.engines.mysql.source.snapshot import open_snapshots
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.engines.postgres.handover import prepare
from penstock.host import faults
from soak import Story, draw

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# Importing declares the fault points.
assert prepare.__module__
assert MySQLEngine.__module__
assert open_snapshots.__module__

BINLOG_CHAIN = (
    "binlog.start.before:1",
    "binlog.acknowledge.before:2",
    "binlog.acknowledge.after:1",
    "prepared.keep.before:1",
    "prepared.keep.after:2",
    "prepared.remove.before:1",
)
WHOLE = ((*ENGINE_FREE, *BINLOG_CHAIN), LOAD_CHAIN)
# For everyday runs: the points that only these sources have, and one point of each kind.
SOME = (
    (
        "log.fdatasync.after:1",
        "log.recovery.truncate.before:1",
        "log.rename.after:1",
        "extract.acknowledge.after:1",
        "binlog.start.before:1",
        "binlog.acknowledge.before:1",
        "prepared.keep.after:1",
    ),
    ("load.copy.after:1", "load.apply.after:1", "load.commit.after:1"),
)
# Source, target, a point before the first row, and the victim and point in the bulk load.
BEGINNINGS = (
    ("mysql", "mariadb", "snapshot.locked", "load", "bulk.chunk.copied"),
    ("mariadb", "mysql", "snapshot.taken", "both", "bulk.chunk.committed"),
    ("mysql", "mysql", "handover.captured", "worker", "bulk.chunk.committed"),
    ("mariadb", "mariadb", "handover.captured", "jvm", "bulk.chunk.copied"),
    ("mysql", POSTGRES, "snapshot.taken", "both", "bulk.chunk.copied"),
    (POSTGRES, "mysql", "handover.captured", "both", "bulk.chunk.committed"),
)


def test_no_point_is_forgotten() -> None:
    """A new fault point that only these sources have must be added here."""
    listed = {point.partition(":")[0] for point in BINLOG_CHAIN}
    listed |= {point for _, _, point, _, _ in BEGINNINGS}
    prefixes = ("binlog.", "prepared.", "snapshot.")
    assert {name for name in faults.names() if name.startswith(prefixes)} - listed == set()
    assert listed - set(faults.names()) == set()


@pytest.mark.promise
@pytest.mark.parametrize(
    ("source", "target", "chains"),
    [
        pytest.param("mariadb", "mysql", SOME, id="some"),
        pytest.param("mysql", "mariadb", WHOLE, id="mysql-mariadb", marks=pytest.mark.long),
        pytest.param("mariadb", "mysql", WHOLE, id="mariadb-mysql", marks=pytest.mark.long),
        pytest.param("mysql", POSTGRES, WHOLE, id="mysql-postgres", marks=pytest.mark.long),
    ],
)
def test_killed_at_named_points(
    tmp_path: Path, source: str, target: str, chains: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Both halves die along their chains at the same time while the bank works and its copy is
    read.
    """
    kill_both_along(tmp_path, source, target, chains, xa=True)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("source", "target", "point", "victim", "chunk"),
    [pytest.param(*story, id="-".join(story[:4])) for story in BEGINNINGS],
)
def test_killed_on_the_way_to_the_first_row(
    tmp_path: Path, source: str, target: str, point: str, victim: str, chunk: str
) -> None:
    """The extractor dies at a point of the handover, then the bulk load with its sessions or
    without.
    """
    kill_at_the_beginning(tmp_path, source, target, (point, victim, chunk))


# Each engine in each role.
STORIES = (
    (1, 4, "mysql", "mariadb"),
    (2, 8, "mariadb", "mysql"),
    (3, 8, "mysql", POSTGRES),
    (4, 8, POSTGRES, "mariadb"),
    (5, 8, "mariadb", POSTGRES),
    (6, 8, POSTGRES, "mysql"),
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "count", "source", "target"),
    [pytest.param(*story, id=f"{story[2]}-{story[3]}") for story in STORIES],
)
def test_a_story_of_kills(tmp_path: Path, seed: int, count: int, source: str, target: str) -> None:
    """Halves, the JVM, workers and both servers die at moments and points drawn from a seed."""
    story = Story(seed, tmp_path, source=source, target=target)
    story.tell(list(draw(seed, count, source)))
