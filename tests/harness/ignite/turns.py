"""Penstock's consumers beside Ignite's own utility: on copies of one directory, or in
turns on it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness.ignite.recordings import Calls, cdc_of, node_pipeline, sorted_call
from penstock.consume import run as run_consumer
from plugins.ignite_live import LiveNode
from plugins.ignite_node import Ignite


def ours(work: Path, calls: Calls, node: str = "node-1") -> list[dict[str, Any]]:
    """Give a node's events to a consumer of penstock."""
    file = node_pipeline(work.parent, work, node)
    run_consumer(file, "all", calls, stop=calls.has_enough)
    return [sorted_call(call) for call in calls.told]


def theirs(
    ignite: Ignite, work: Path, per_call: int = 0, node: str = "node-1"
) -> list[dict[str, Any]]:
    """Return the calls of Ignite's utility to its consumer."""
    text = ignite.calls(work, node, per_call, "calls.jsonl")
    return [sorted_call(json.loads(line), is_recorded=True) for line in text.splitlines()]


def events(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all events of some calls."""
    return [event for call in calls for event in call.get("events", [])]


class Kept:
    """Every segment that a live node has linked, saved from consumers that remove read segments."""

    def __init__(self, node: LiveNode) -> None:
        """Begin without segments."""
        self._node = node
        self._segments = node.work.parent / f"kept-{node.consistent_id}"
        self._segments.mkdir()

    def end_segment(self) -> None:
        """Let the node close its segment, and save the existing ones."""
        self._node.await_linked()
        self.take()

    def take(self) -> None:
        """Save the existing segments."""
        for path in self._node.cdc.glob("*.wal"):
            if not (self._segments / path.name).exists():
                shutil.copy(path, self._segments / path.name)

    def copy(self, name: str) -> Path:
        """Make a work directory with all segments and the node's other files, without state."""
        work = self._node.work.parent / name / "work"
        for part in ("binary_meta", "marshaller", self._node.cdc.name):
            source = self._node.work / "db" / part
            shutil.copytree(source, work / "db" / part, ignore=_not_pages)
        cdc = cdc_of(work, self._node.cdc.name)
        shutil.copytree(self._segments, cdc)
        return work

    def read_calls(self, ignite: Ignite) -> list[dict[str, Any]]:
        """Return the calls of Ignite's utility for all segments, from the first one on."""
        name = self._node.consistent_id
        return theirs(ignite, self.copy(f"reference-{name}"), node=name)


def _not_pages(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".bin") and name.startswith(("part-", "index"))]
