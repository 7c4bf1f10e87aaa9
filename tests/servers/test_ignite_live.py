"""Live Ignite nodes obey the tests."""

from __future__ import annotations

import pytest

from plugins.ignite_live import LiveFailed, LiveNode, LiveNodes


def test_a_live_node(live_node: LiveNode) -> None:
    """A node is driven, killed and started again, and its directory fills."""
    live_node.create("person")
    live_node.ask("person", "person", 1, "Ann", 31)
    with live_node.client() as client:
        client.get_or_create_cache("plain").put(1, "one")
    ended = live_node.await_linked()
    assert ended in live_node.segments()
    live_node.kill()
    live_node.start()
    [[key, value, version]] = live_node.scan("person")
    assert key == ["integer", 1]
    assert value[0] == "object"
    assert len(version) == 4
    [[key, value, _]] = live_node.scan("plain")
    assert (key, value) == (["long", 1], ["string", "one"])
    live_node.ask("destroy", "person")
    with pytest.raises(LiveFailed, match="NullPointerException"):
        live_node.scan("person")


def test_transactions_that_stay_open(live_node: LiveNode) -> None:
    """Two transactions at once: one is committed, one rolled back; an expired value is removed."""
    live_node.create("ledger", atomicity="TRANSACTIONAL")
    for name in ("a", "b"):
        live_node.ask("tx", "begin", name)
    live_node.ask("tx", "put", "a", "ledger", 1, "kept")
    live_node.ask("tx", "put", "b", "ledger", 2, "never")
    live_node.ask("tx", "commit", "a")
    live_node.ask("tx", "rollback", "b")
    live_node.ask("put", "ledger", 3, "soon", 50)
    live_node.until(lambda: len(live_node.scan("ledger")) == 1, "it did not expire")
    assert live_node.scan("ledger")[0][1] == ["string", "kept"]


def test_two_live_nodes(ignite_nodes: LiveNodes) -> None:
    """Two nodes share a cache's partitions, and each has the other's as backups."""
    one = ignite_nodes.start("node-1")
    two = ignite_nodes.start("node-2")
    one.ask("baseline")
    assert one.ask("nodes") == 2
    one.create("both", backups=1)
    one.until(lambda: one.ask("settled"), "it was not rebalanced")
    one.ask("fill", "both", 0, 50, 3)
    two.stop()
    assert len(one.scan("both")) == 50
    two.start()
    one.until(lambda: one.ask("settled"), "it was not rebalanced")
    one.kill()
    two.until(lambda: two.ask("nodes") == 1, "the other is still there")
    assert len(two.scan("both")) == 50
