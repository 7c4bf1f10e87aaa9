"""Real Ignite nodes: our consumers beside Ignite's own utility, and taking turns with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_ignite import (
    Calls,
    cdc_of,
    events_of,
    node_pipeline,
    plain_event,
    sorted_call,
    unpacked,
    walked,
)
from fix_ignite_node import Ignite
from penstock.codec.ignite.wal import wal_kernel
from penstock.consume import run as run_consumer

Run = Callable[[Path, Calls], list[dict[str, Any]]]


def ours(work: Path, calls: Calls) -> list[dict[str, Any]]:
    """Give a node's events to a consumer of ours."""
    file = node_pipeline(work.parent, work)
    run_consumer(file, "all", calls, stop=calls.has_enough)
    return [sorted_call(call) for call in calls.told]


def theirs(ignite: Ignite, work: Path, per_call: int = 0) -> list[dict[str, Any]]:
    """What Ignite's utility calls its consumer with."""
    text = ignite.calls(work, "node-1", per_call, "calls.jsonl")
    return [sorted_call(json.loads(line), is_recorded=True) for line in text.splitlines()]


def events(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All events of some calls."""
    return [event for call in calls for event in call.get("events", [])]


@pytest.fixture
def place(ignite: Ignite, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that the JVM can write into."""
    made = ignite.work(request.node.name)
    yield made
    shutil.rmtree(made)


def test_a_real_node(ignite: Ignite, place: Path) -> None:
    """Every kind of change and value, fresh from a node: call for call as Ignite's utility."""
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
    """We, then Ignite's on our state; Ignite's, then we on its state, then Ignite's once more."""
    wanted = [plain_event(event) for event in events_of("one-0")]
    work = unpacked("one", place / "first" / "work")
    first = ours(work, Calls(cdc_of(work), 7, calls=5))
    second = theirs(ignite, work)
    assert len(events(first)) == 35
    assert events(first) + events(second) == wanted

    work = unpacked("one", place / "second" / "work")
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
    """As many events, and the same state behind them: Ignite's utility skips the records, too."""
    work = unpacked("forms", place / "work")
    copy = unpacked("forms", place / "copy" / "work")
    ignite.give(place)
    ignite.run("Count", copy, "node-1", place / "count.txt")
    counted = int((place / "count.txt").read_text().split()[0])
    calls = Calls(cdc_of(work), 1)
    run_consumer(node_pipeline(place, work, more='tables = ["shown"]\n'), "all", calls)
    found = walked("forms", wal_kernel(), lambda raw, kind, _: (raw, kind))
    assert len(calls.events) == 6
    assert counted == len(list(found)) == 46
    states = [cdc_of(one) / "state" / "cdc-wal-state.bin" for one in (work, copy)]
    assert states[0].read_bytes() == states[1].read_bytes()
