"""Loaders into lakes, killed at every named fault point while a bank works on the source.

At each batch the money of three tables has the bank's total, as delta-rs, pyiceberg and polars read
the versions that the table of batches names, and in the end all tables equal the source's.
`tests/soak_lake.py` tells longer stories. Not here: failures inside of one process
(`tests/lake/test_core_*.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.faults.kills import Half
from harness.lake.bank import LakeBank
from harness.lake.bank_kills import (
    BULK_POINTS,
    COMPACT_POINTS,
    ELSEWHERE,
    EXPIRE_POINTS,
    FILL_POINTS,
    FORMAT_POINTS,
    KINDS,
    WORKER_POINTS,
    Step,
    carry_out,
    draw,
    fills,
    points_of,
)
from harness.lake.spark import lake_session
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.host import faults
from penstock.load.session import Session
from penstock.ports.registry import engines
from plugins.postgres import Server
from plugins.shared import SharedSpark
from soak_lake import PROPERTIES

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3000)]

LATER = {"lake.commit.after": 2, "lake.commit.before": 2}
"""Points that are passed once for each table: between the commits of two tables of one batch."""


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session whose JVM the lives of loaders use."""
    shared_spark.close()
    folder = tmp_path_factory.mktemp("spark")
    with lake_session(folder, PROPERTIES, master="local[2]") as running:
        yield running


@pytest.fixture(scope="module")
def source() -> Iterator[Server]:
    """Server of the sources."""
    with EmbeddedPostgres() as server:
        yield Server(embedded=server)


def test_no_point_is_forgotten() -> None:
    """A new fault point of lakes must be added to a list of `bank_kills.py`."""
    for engine in engines():  # a point is declared when its module is imported
        for name in engine.parts:
            engine.part(name)
    listed = {*COMPACT_POINTS, *FILL_POINTS, *BULK_POINTS, *WORKER_POINTS}
    listed |= {*EXPIRE_POINTS, *ELSEWHERE}
    listed |= {point for kind in KINDS for point in points_of(kind)}
    prefixes = ("lake.", *(f"{name}." for name in FORMAT_POINTS))
    assert {name for name in faults.names() if name.startswith(prefixes)} <= listed
    assert listed <= set(faults.names())


def list_steps(kind: str) -> list[Step]:
    """Return a kill at every point: of the bulk load, of batches, of upkeep, of changed shapes."""
    steps = [_kill(point, 2) for point in BULK_POINTS]
    steps += [Step(action="expire", point=f"{point}:2") for point in EXPIRE_POINTS]
    steps += [_kill(point, LATER.get(point, 1)) for point in points_of(kind)]
    steps += [_kill(point) for point in COMPACT_POINTS]
    shapes = FILL_POINTS if fills(kind) else ("lake.commit.before", "lake.commit.after")
    steps += [Step(action="column", point=f"{point}:1") for point in shapes]
    for action in ("empty", "resend"):
        steps += [
            Step(action=action, point=f"{point}:1")
            for point in ("lake.commit.before", "lake.commit.after", "lake.batch.before")
        ]
    steps += [Step(action="resync", point=f"{point}:1") for point in BULK_POINTS]
    return steps


def _kill(point: str, nth: int = 1) -> Step:
    return Step(action="kill", point=f"{point}:{nth}")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_point(tmp_path: Path, source: Server, session: Session, kind: str) -> None:
    """One loader after the other dies, each at another point."""
    with LakeBank(tmp_path, source, session, kind, seed=1) as bank:
        outcomes = carry_out(bank, list_steps(kind))
        bank.finish()
    assert not [outcome for outcome in outcomes if outcome.endswith("elsewhere")], outcomes


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[:2])
def test_killed_between_the_commits_of_two_tables(
    tmp_path: Path, source: Server, session: Session, kind: str
) -> None:
    """The fewest kills with which each table has its own commit."""
    steps = [
        _kill("lake.bulk.commit.after", 2),
        _kill("lake.bulk.marked", 2),
        _kill("lake.commit.after", 2),
        _kill("lake.batch.before"),
    ]
    with LakeBank(tmp_path, source, session, kind, seed=2) as bank:
        outcomes = carry_out(bank, steps)
        counts = bank.finish()
    assert outcomes == {"kill: at its point": len(steps)}
    assert counts["batches read"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_old_loader_goes_on_after_a_new_one(
    tmp_path: Path, source: Server, session: Session, kind: str
) -> None:
    """A loader is paused inside a batch, another one applies more, and the first continues."""
    points = ("lake.apply.begun:1", "lake.commit.before:1", "lake.batch.before:1")
    steps = [_kill("lake.bulk.begin", 3), _kill("lake.bulk.commit.before")]
    steps += [Step(action="zombie", point=point) for point in points]
    with LakeBank(tmp_path, source, session, kind, seed=3) as bank:
        outcomes = carry_out(bank, steps)
        bank.finish()
    assert outcomes["zombie: point not reached"] == 0, outcomes


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_story_beside_another_program(
    tmp_path: Path, source: Server, session: Session, kind: str
) -> None:
    """Loaders die at random while another program maintains the tables and deletes rows."""
    steps = list(draw(random.Random(4), kind, 12))
    with LakeBank(tmp_path, source, session, kind, seed=4) as bank:
        bank.disturb_always()
        carry_out(bank, steps)
        bank.finish()
        assert sum(bank.foreign.values())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_is_killed_in_the_bulk_load(
    tmp_path: Path, source: Server, session: Session, kind: str, point: str
) -> None:
    """A worker dies after it has written a file, in a loader with a JVM of its own."""
    with LakeBank(tmp_path, source, session, kind, seed=5) as bank:
        whole = Half("load", bank.file)
        whole.start(f"{point}:1:kill")
        bank.until(lambda: whole.has_reached, point, by="extract")
        bank.until(bank.batch_count, "a batch", by="extract")
        assert whole.running, whole.read_output()
        whole.kill()
        bank.until_loaded()
        bank.finish()
