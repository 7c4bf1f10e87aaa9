"""Real Ignite nodes: penstock's consumers beside Ignite's own utility, and taking turns with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.ignite.recordings import (
    Calls,
    cdc_of,
    events_of,
    node_pipeline,
    plain_event,
    unpack_recording,
    walk_entries,
)
from harness.ignite.turns import events, ours, theirs
from penstock.codec.ignite.wal import wal_kernel
from penstock.consume import run as run_consumer
from plugins.ignite_node import Ignite


@pytest.fixture
def place(ignite: Ignite, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that the JVM can write into."""
    made = ignite.work(request.node.name)
    yield made
    shutil.rmtree(made)


def test_a_real_node(ignite: Ignite, place: Path) -> None:
    """Every kind of change and value of a new node comes call for call as from Ignite's utility."""
    work = place / "work"
    ignite.run("Node", "all", work)
    copy = place / "copy" / "work"
    shutil.copytree(work, copy)
    found = ours(work, Calls(cdc_of(work), 5))
    wanted = theirs(ignite, copy, 5)
    assert len(events(wanted)) > 150
    for mine, other in zip(found, wanted, strict=True):
        assert mine == other


def test_taking_turns_with_the_utility(ignite: Ignite, place: Path) -> None:
    """Penstock, then Ignite on penstock's state; Ignite, then penstock on its state, then Ignite
    again.
    """
    wanted = [plain_event(event) for event in events_of("one-0")]
    work = unpack_recording("one", place / "first" / "work")
    first = ours(work, Calls(cdc_of(work), 7, calls=5))
    second = theirs(ignite, work)
    assert len(events(first)) == 35
    assert events(first) + events(second) == wanted

    work = unpack_recording("one", place / "second" / "work")
    later = {path: path.read_bytes() for path in sorted(cdc_of(work).glob("*.wal"))[2:]}
    for path in later:
        path.unlink()
    first = theirs(ignite, work, 7)
    for path, data in later.items():
        path.write_bytes(data)
    second = ours(work, Calls(cdc_of(work), 7))
    assert events(first)
    assert events(second)
    assert events(first) + events(second) == wanted
    assert events(theirs(ignite, work)) == []


def test_encrypted_caches_are_passed_over_by_both(ignite: Ignite, place: Path) -> None:
    """Both skip the records: they give as many events and the same state afterwards."""
    work = unpack_recording("forms", place / "work")
    copy = unpack_recording("forms", place / "copy" / "work")
    ignite.give(place)
    ignite.run("Count", copy, "node-1", place / "count.txt")
    counted = int((place / "count.txt").read_text().split()[0])
    calls = Calls(cdc_of(work), 1)
    run_consumer(node_pipeline(place, work, more='tables = ["shown"]\n'), "all", calls)
    found = walk_entries("forms", wal_kernel(), lambda raw, kind, _: (raw, kind))
    assert len(calls.events) == 6
    assert counted == len(list(found)) == 46
    states = [cdc_of(one) / "state" / "cdc-wal-state.bin" for one in (work, copy)]
    assert states[0].read_bytes() == states[1].read_bytes()
