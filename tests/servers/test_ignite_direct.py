"""Consumers beside live Ignite nodes get the events of Ignite's utility, whatever happens to a
node.
"""

from __future__ import annotations

import json
import shutil
import time
from typing import Any

import pytest

from harness.ignite.recordings import Calls, cdc_of, plain
from harness.ignite.turns import Kept, events, ours, theirs
from penstock.codec.ignite.types import cache_id
from penstock.consume.position import SegmentsMissed
from penstock.engines.ignite.commands import delete_below_hole
from plugins.ignite_live import LiveNode, LiveNodes
from plugins.ignite_node import Ignite

SCENARIOS = ("people", "transactions", "values", "shapes", "tables", "expiring", "destroyed")


def read(node: LiveNode, per_call: int = 0, calls: int = 1 << 30) -> list[dict[str, Any]]:
    """Return the events that penstock's consumer gets from the live directory, from its saved
    position.
    """
    found = Calls(node.cdc, per_call, calls=calls)
    ours(node.work, found, node.consistent_id)
    return found.events


def rows(told: list[dict[str, Any]], cache: str) -> dict[str, Any]:
    """Return a cache's content after some events: the value with the greatest version of each key.

    Expired entries are left out, as Ignite reports no removal of them.
    """
    newest: dict[str, tuple[list[int], Any]] = {}
    for event in told:
        if event["cacheId"] == cache_id(cache):
            key, version = json.dumps(event["key"]), event["version"][:3]
            gone = 0 < event["expireTime"] < time.time() * 1000
            if key not in newest or version >= newest[key][0]:
                newest[key] = version, None if gone else event["value"]
    return {key: value for key, (_, value) in newest.items() if value is not None}


def truth(node: LiveNode, cache: str) -> dict[str, Any]:
    """Return the result of a scan of a cache."""
    return {json.dumps(plain(key)): plain(value) for key, value, _ in node.scan(cache)}


@pytest.mark.long
def test_a_node_that_is_followed(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """Every kind of change and value is read at once, over many segments and restarts.

    The node is killed and started again in between; the events are those that Ignite's utility
    gives for the same segments, and they add up to the caches' content.
    """
    node = ignite_nodes.start(forceArchive=0)
    kept = Kept(node)
    found: list[dict[str, Any]] = []
    for at, scenario in enumerate(SCENARIOS):
        node.ask("scenario", scenario)
        kept.end_segment()
        found += read(node, per_call=7 if at % 2 else 0)
        if scenario in ("transactions", "tables"):
            node.ask("put", "words" if scenario == "tables" else "person", 999, "before the kill")
            node.kill()
            node.start()
    kept.end_segment()
    found += read(node)
    assert found == events(kept.read_calls(ignite))
    assert len(found) > 150
    assert len(truth(node, "expiring")) == 2
    for cache in (
        *("person", "words", "place", "bank", "value", "shape", "typed", "SQL_PUBLIC_KEYED"),
        "expiring",
    ):
        assert rows(found, cache) == truth(node, cache), cache
    assert truth(node, "again").items() < rows(found, "again").items()  # clear() is not reported


def test_segments_that_are_forced(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """The node closes a segment because of walForceArchiveTimeout, which brings a change."""
    node = ignite_nodes.start(forceArchive=300)
    kept = Kept(node)
    node.create("person")
    found: list[dict[str, Any]] = []

    def is_there(key: int) -> bool:
        kept.take()
        found.extend(read(node))
        kept.take()  # of a segment that came in between: the last ones read are still there
        return any(event["key"] == ["int", key] for event in found)

    for key in (1, 2, 3):
        node.ask("person", "person", key, "Ann", key)
        node.until(lambda key=key: is_there(key), "it did not come")
    assert [event["key"] for event in found] == [["int", 1], ["int", 2], ["int", 3]]
    assert found == events(kept.read_calls(ignite))


def test_taking_turns_on_a_live_node(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """Penstock and Ignite's utility take turns on the directory of a node that keeps running.

    Each continues exactly where the other stopped, in the middle of a segment and of a record, and
    after a kill of the node.
    """
    node = ignite_nodes.start(forceArchive=0)
    kept = Kept(node)
    node.create("person")
    node.create("bank", atomicity="TRANSACTIONAL")
    found: list[dict[str, Any]] = []

    def change(begin: int) -> None:
        node.ask("fill", "person", begin, begin + 25, 5)
        node.ask("tx", "begin", "t")
        for key in range(begin, begin + 5):
            node.ask("tx", "put", "t", "bank", key, f"account {key}")
        node.ask("tx", "rollback" if begin % 2 else "commit", "t")
        node.ask("remove", "person", begin)
        kept.end_segment()

    for begin in (0, 10):
        change(begin)
        found += read(node, per_call=7, calls=3)
        node.give()
        change(begin + 5)
        found += events(theirs(ignite, node.work, 4))
        if begin == 0:
            node.kill()
            node.start()
    change(100)
    found += read(node)
    assert found == events(kept.read_calls(ignite))
    assert rows(found, "person") == truth(node, "person")
    assert rows(found, "bank") == truth(node, "bank")


def test_a_hole_between_segments(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """Both refuse in the same words and continue in the same way after CDC was disabled for a
    while.
    """
    node = ignite_nodes.start(forceArchive=0)
    kept = Kept(node)
    node.create("person")

    def change(key: int, disabled: str) -> None:
        node.ask("property", "cdc.disabled", disabled)
        node.ask("person", "person", key, "Ann", key)
        kept.end_segment()

    change(1, "false")
    assert [event["key"] for event in read(node)] == [["int", 1]]
    for key, disabled in ((2, "false"), (3, "true"), (4, "false"), (5, "false")):
        change(key, disabled)
    node.give()
    copy = node.work.parent / "copy" / "work"
    shutil.copytree(node.work, copy)
    with pytest.raises(AssertionError) as their_refusal:
        theirs(ignite, copy)
    with pytest.raises(SegmentsMissed) as our_refusal:
        read(node)
    assert our_refusal.value.message.startswith("Found missed segments. Some events are missed.")
    assert our_refusal.value.message in str(their_refusal.value)
    for work in (node.work, copy):
        assert delete_below_hole(cdc_of(work))
    assert [event["key"] for event in read(node)] == [["int", 4], ["int", 5]]
    assert [event["key"] for event in events(theirs(ignite, copy))] == [["int", 4], ["int", 5]]
    node.ask("resend", "person")
    change(6, "false")
    rest = read(node)
    assert {str(event["key"]) for event in rest} == {str(["int", key]) for key in range(1, 7)}
    assert rows(rest, "person") == truth(node, "person")


@pytest.mark.long
def test_nodes_with_backups(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """Two nodes' writes are read as by Ignite's utility while one is stopped and the other killed.

    The primary changes of both add up to the cache's content, ordered by version per key.
    """
    one, two = (
        ignite_nodes.start("node-1", forceArchive=0),
        ignite_nodes.start("node-2", forceArchive=0),
    )
    one.ask("baseline")
    one.create("both", backups=1)
    one.create("bank", backups=1, atomicity="TRANSACTIONAL")
    one.until(lambda: one.ask("settled"), "it was not rebalanced")
    kept = {node.consistent_id: Kept(node) for node in (one, two)}
    found: dict[str, list[dict[str, Any]]] = {"node-1": [], "node-2": []}

    def read_all(*nodes: LiveNode) -> None:
        for node in nodes:
            kept[node.consistent_id].end_segment()
            found[node.consistent_id] += read(node, per_call=9)

    one.ask("fill", "both", 0, 60, 3)
    one.ask("tx", "begin", "t")
    for key in range(10):
        one.ask("tx", "put", "t", "bank", key, "first")
    one.ask("tx", "commit", "t")
    read_all(one, two)
    two.stop()
    one.ask("fill", "both", 40, 80, 9)
    one.ask("remove", "both", 1)
    read_all(one)
    two.start()
    one.until(lambda: one.ask("nodes") == 2 and one.ask("settled"), "it was not rebalanced")
    two.ask("fill", "both", 70, 90, 4)
    read_all(one, two)
    one.kill()
    two.until(lambda: two.ask("nodes") == 1, "the other is still there")
    two.ask("fill", "both", 85, 95, 5)
    read_all(two)
    one.start()
    two.until(lambda: two.ask("nodes") == 2 and two.ask("settled"), "it was not rebalanced")
    two.ask("person", "both", 3, "last", 3)
    read_all(one, two)
    for node in (one, two):
        name = node.consistent_id
        assert found[name] == events(kept[name].read_calls(ignite)), name
        assert {event["primary"] for event in found[name]} == {True, False}
    primary = [event for told in found.values() for event in told if event["primary"]]
    assert rows(primary, "both") == truth(two, "both")
    assert rows(primary, "bank") == truth(two, "bank")
