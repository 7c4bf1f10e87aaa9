"""An extractor of the simulated Oracle is killed at every kind of moment, and its server fails,
without any effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.faults.extract_bench import (
    MOMENTS,
    Bench,
    cases_of,
    fail_and_go_on,
    kill_and_start_again,
    kill_at_random,
)
from harness.servers.oracle_place import OraclePlace
from penstock.engines.oracle.source import stream
from penstock.host import faults

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
assert stream.__name__  # Importing declares the fault points.
OWN_MOMENTS = (
    "oracle.window.before:2",
    "oracle.window.after:2",
    "oracle.run.before:2",
    "oracle.acknowledge.after:2",
    "oracle.spill.before:1",
    "oracle.spill.after:1",
)
CONTENTS = "V$LOGMNR_CONTENTS"
SPILL_BYTES_VARIABLE = "PENSTOCK_TEST_ORACLE_SPILL_BYTES"  # read in sim_oracle/driver_path
OracleBench = Bench[OraclePlace]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[OracleBench]:
    """A table, and a log that begins before its first row."""
    with OraclePlace() as place:
        made = Bench(place, tmp_path, "oracle-redo.json")
        assert made.extract() == 0
        yield made


def test_no_point_is_forgotten() -> None:
    """A new fault point that only this source has must be added here."""
    listed = {moment.partition(":")[0] for moment in OWN_MOMENTS}
    found = {name for name in faults.names() if name.startswith("oracle.")}
    assert {name for name in found if ".handover." not in name} == listed


@pytest.mark.promise
@pytest.mark.parametrize(("moment", "is_exact"), cases_of((*MOMENTS, *OWN_MOMENTS)))
def test_killed_and_started_again(
    bench: OracleBench, moment: str, monkeypatch: pytest.MonkeyPatch, *, is_exact: bool
) -> None:
    """Every row comes once and in order, even if only an older state is left."""
    if moment.startswith("oracle.spill."):
        monkeypatch.setenv(SPILL_BYTES_VARIABLE, "1000")
    kill_and_start_again(bench, moment, is_exact=is_exact)


@pytest.mark.promise
def test_killed_again_and_again(bench: OracleBench) -> None:
    """Every row comes once and in order after kills at random moments."""
    kill_at_random(bench)


def _crash(place: OraclePlace) -> None:
    place.crash()
    time.sleep(1.0)
    place.start()


def _switch_while_reading(place: OraclePlace) -> None:
    """Let each fetch of redo find that its logs were archived meanwhile."""

    def switch(text: str) -> None:
        if CONTENTS in text:
            place.database.archive_current()

    place.server.on_fetch = switch


FAILURES: dict[str, Callable[[OraclePlace], None]] = {
    "connection cut while rows are read": lambda place: place.server.fail_next(
        0, CONTENTS, times=2, at_fetch=True
    ),
    "connection cut at the choice of logs": lambda place: place.server.fail_next(
        0, "V$ARCHIVED_LOG", times=2, after=1
    ),
    "log recycled before it was read": lambda place: place.server.fail_next(
        1368, CONTENTS, times=2, at_fetch=True
    ),
    "log missing at the start": lambda place: place.server.fail_next(1291, "START_LOGMNR", times=2),
    "out of process memory": lambda place: place.server.fail_next(
        4030, CONTENTS, times=1, at_fetch=True
    ),
    "crash": _crash,
    "logs switched while they are read": _switch_while_reading,
}


@pytest.mark.promise
@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_server_that_fails(bench: OracleBench, failure: str) -> None:
    """The extraction continues without a new start, and every row comes once and in order."""
    fail_and_go_on(bench, lambda: FAILURES[failure](bench.place))
