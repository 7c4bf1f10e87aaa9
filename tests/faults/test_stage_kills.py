"""`penstock stage` is killed repeatedly under a changefeed: the target equals the model.

The servers are killed, too; the lease is stolen, connections are cut, answers lost, columns added
and dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.feeds.stage import Stage

SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "16"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that ends servers after the test."""
    with ExitStack() as made:
        yield made


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("mode", "target"),
    [("rowwise", "postgres"), ("rowwise", "mariadb"), ("bestEffort", "postgres")],
)
def test_a_target_under_a_feed_after_kills(
    stack: ExitStack, tmp_path: Path, mode: str, target: str
) -> None:
    """The target equals the model after about one kill at each point, at any moment, and of
    servers.
    """
    Stage(stack, tmp_path, mode, target, SEED).run(12)


@pytest.mark.promise
@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["postgres", "mariadb"])
def test_windows_through_spark_after_kills(stack: ExitStack, tmp_path: Path, target: str) -> None:
    """An instance begins its own log at the target's position when the other one's log is left."""
    Stage(stack, tmp_path, "consistent", target, SEED).run(5)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("target", ["postgres", "mysql", "mariadb"])
@pytest.mark.parametrize("mode", ["consistent", "rowwise", "bestEffort", "auto"])
def test_a_target_under_a_feed_after_many_kills(
    stack: ExitStack, tmp_path: Path, mode: str, target: str
) -> None:
    """The target equals the model after many kills: 23 in each case, 276 in total."""
    Stage(stack, tmp_path, mode, target, SEED + 1).run(23)
