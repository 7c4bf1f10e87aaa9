"""Batches that several sessions apply in parts: kills, errors, holds, and two loaders at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.parts import (
    TABLES,
    WAYS,
    ahead,
    check,
    count_prepared,
    place_for,
    run_child,
    write_segments,
)
from harness.servers.engines import Place
from plugins.shared import SharedServers

# `name:nth`: the first batch brings the shapes, so one session applies it.
POINTS = (
    "load.part.before:1",
    "load.part.before:2",
    "load.part.after:1",
    "load.part.after:2",
    "load.part.after:4",
    "load.parts.joined:1",
    "load.apply.after:2",
    "load.progress.before:2",
    "load.commit.before:2",
    "load.commit.after:2",
)
PREPARED_POINTS = ("load.part.committed:1", "load.part.committed:2")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    """A change log with four segments of two transactions each."""
    maker = LogMaker(tmp_path / "log")
    write_segments(maker, 4)
    maker.writer.finish()
    yield maker
    maker.writer.close()


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A target with empty tables, for each way in which parts are committed."""
    with place_for(shared_servers, request.param) as found:
        found.run(*TABLES)
        yield found


@pytest.fixture
def is_prepared(request: pytest.FixtureRequest) -> bool:
    """Whether parts are prepared in this test's place."""
    return "prepared" in request.node.callspec.params["place"]


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_kills_between_the_parts(place: Place, tmp_path: Path, log: LogMaker, point: str) -> None:
    """The next loader ends equal after a kill anywhere, and nothing is left behind."""
    del log
    code, said = run_child(place, tmp_path, f"{point}:kill")
    assert code == -signal.SIGKILL, said
    code, said = run_child(place, tmp_path)
    assert code == 0, said
    check(place, 8)
    assert ahead(place) == {}
    assert count_prepared(place) == 0
