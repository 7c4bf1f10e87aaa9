"""A whole pipeline under a bank's load, killed at every named fault point and at random moments.

After each kill the half that died is restarted. A reader of the target always sees the bank's total
unchanged, and in the end source and target are equal row by row: nothing lost, nothing twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.kill_chains import (
    EXTRACT_CHAIN,
    LOAD_CHAIN,
    SHORT,
    kill_at_the_beginning,
    kill_both_along,
)
from harness.faults.kills import POSTGRES, BankPipeline
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.load_process import load_changes
from penstock.host import faults
from penstock.ports.registry import engines
from soak import Story, draw

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

assert extract_changes.__module__  # importing declares the fault points of both halves
assert load_changes.__module__

WHOLE = (EXTRACT_CHAIN, LOAD_CHAIN)
# Points before the first row, and what is killed of the bulk load in the same story: the load
# alone (its snapshot lives on in the extractor), both halves (it is gone), the JVM, or a worker.
BEGINNINGS = (
    ("slot.create.before", "load", "bulk.chunk.copied"),
    ("slot.create.after", "both", "bulk.chunk.committed"),
    ("slot.snapshot.before", "worker", "bulk.chunk.committed"),
    ("slot.snapshot.after", "jvm", "bulk.chunk.copied"),
    ("handover.slot.made", "both", "bulk.chunk.copied"),
    ("handover.captured", "load", "bulk.chunk.committed"),
)
ELSEWHERE = {
    "bulk.chunk.sent",  # Oracle's direct path: tests/unit/test_oracle_bulk_target.py
    "bulk.chunk.reading",  # for sessions that workers borrow: test_cluster.py
    # Points of single tables: test_tables_kills.py
    "extract.capture.before",
    "extract.capture.bound",
    "extract.capture.after",
    "load.apart.before",
    "load.apart.after",
    # Batches in parts: test_parts_kills.py
    *("load.part.before", "load.part.after", "load.parts.joined", "load.part.committed"),
    "extract.done.before",  # here: test_killed_before_it_says_done
    "handover.resumed",  # here: test_killed_at_the_end_of_the_handover
    "handover.paused",  # mode pause: tests/servers/test_handover.py
    # Only a torn write leaves something to cut: test_log_kill.py
    *("log.cut.before", "log.cut.written", "log.cut.after", "log.cut.remove"),
    "log.unlink.before",  # where there is no loader: test_log_kill.py
    *("extract.resend.before", "extract.resend.after"),  # tests/servers/test_resend.py
    "extract.resend.rows",  # tests/servers/test_mysql_resend.py
    # Keys that wait for changes to be applied: tests/servers/test_mysql_deferred_keys.py
    *("load.keys.before", "load.keys.made"),
    # Targets that commit at DDL: tests/servers/test_mysql_load_shapes.py
    *("load.alter.before", "load.alter.aside", "load.alter.fill", "load.alter.between"),
    *("load.alter.after", "load.alter.freed"),
}


def test_no_point_is_forgotten() -> None:
    """A new fault point in extract or load must be added to a chain here."""
    for engine in engines():  # a point is declared when its module is imported
        for name in engine.parts:
            engine.part(name)
    listed = {name.partition(":")[0] for name in (*EXTRACT_CHAIN, *LOAD_CHAIN)}
    listed |= {name for point, _, chunk in BEGINNINGS for name in (point, chunk)} | ELSEWHERE
    prefixes = ("log.", "extract.", "stream.", "spill.", "slot.", "load.", "bulk.", "handover.")
    assert {name for name in faults.names() if name.startswith(prefixes)} - listed == set()
    assert listed - set(faults.names()) == set()


@pytest.mark.promise
@pytest.mark.parametrize(
    ("major", "chains"),
    [
        pytest.param(None, SHORT, id="some"),
        pytest.param(18, WHOLE, id="pg18", marks=pytest.mark.long),
        pytest.param(15, WHOLE, id="pg15", marks=pytest.mark.long),
    ],
)
def test_killed_at_named_points(
    tmp_path: Path, major: int | None, chains: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Both halves die along their chains at the same time while the bank works and its copy is
    read.
    """
    first, *others = chains[0]
    kill_both_along(
        tmp_path, POSTGRES, POSTGRES, (tuple(others), chains[1]), first=first, major=major
    )


def _beginnings() -> list[object]:
    """Return the beginnings: one for everyday runs, all of them in `make test-faults`."""
    everyday = BEGINNINGS[1]
    return [
        pytest.param(*story, marks=[] if story is everyday else pytest.mark.long, id=story[0])
        for story in BEGINNINGS
    ]


@pytest.mark.promise
@pytest.mark.parametrize(("point", "victim", "chunk"), _beginnings())
def test_killed_on_the_way_to_the_first_row(
    tmp_path: Path, point: str, victim: str, chunk: str
) -> None:
    """The extractor dies at a point of the handover, then the bulk load with its snapshot or
    without.
    """
    kill_at_the_beginning(tmp_path, POSTGRES, POSTGRES, (point, victim, chunk))


@pytest.mark.long
def test_killed_at_the_end_of_the_handover(tmp_path: Path) -> None:
    """A kill after the last step is saved changes nothing, as nothing of the handover is needed
    then.
    """
    with BankPipeline(tmp_path, 1) as pipeline:
        pipeline.load.start()
        assert pipeline.kill_at(pipeline.extract, "handover.resumed:1")
        pipeline.start()
        pipeline.finish()


@pytest.mark.long
def test_killed_before_it_says_done(tmp_path: Path) -> None:
    """The next start is idle again and writes CHANGE.DONE if everything but that is in the log."""
    with BankPipeline(tmp_path, 1) as pipeline:
        pipeline.start()
        pipeline.bank.__exit__()
        pipeline.extract.stop()
        pipeline.configure(sections={"changeExtractor": {"exitWhenIdle": True}})
        assert pipeline.kill_at(pipeline.extract, "extract.done.before:1")
        assert not (pipeline.directory / "log" / "CHANGE.DONE").exists()
        pipeline.finish()
        assert (pipeline.directory / "log" / "CHANGE.DONE").exists()


def _stories() -> list[object]:
    """Return a short story for everyday runs and two more for `make test-faults`; `soak.py` has
    more.
    """
    return [
        pytest.param(seed, count, marks=[] if seed == 1 else pytest.mark.long, id=f"seed{seed}")
        for seed, count in ((1, 6), (11, 12), (12, 12))
    ]


@pytest.mark.promise
@pytest.mark.parametrize(("seed", "count"), _stories())
def test_a_story_of_kills(tmp_path: Path, seed: int, count: int) -> None:
    """Halves, the JVM, workers and both servers die at moments and points drawn from a seed."""
    Story(seed, tmp_path).tell(list(draw(seed, count)))
