"""`penstock ignite` beside a real node and Ignite's own control utility."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.ignite.recordings import Calls, node_pipeline
from penstock import cli
from penstock.consume import run as run_consumer
from penstock.consume.position import SegmentsMissed
from plugins.ignite_live import LiveFailed, LiveNode, LiveNodes
from plugins.ignite_node import Ignite


def call_ignite(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of `penstock ignite ...`."""
    code = 0
    try:
        cli.run_guarded(["ignite", *map(str, arguments)])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    return code, *capsys.readouterr()


def change(node: LiveNode, key: int, *, is_linked: bool = True) -> None:
    """Make one change and end its segment, with a link or without."""
    node.ask("property", "cdc.disabled", "false" if is_linked else "true")
    node.ask("person", "person", key, "Ann", key)
    node.await_linked()


def files(node_or_copy: Path) -> list[str]:
    """Return the files in a CDC directory, except its locks."""
    found = (path.relative_to(node_or_copy) for path in node_or_copy.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.name != "lock")


def test_lost_links_as_the_node_deletes_them(
    ignite_nodes: LiveNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same files are left; the consumer, which refused the gap, continues after it."""
    node = ignite_nodes.start(forceArchive=0)
    node.create("person")
    change(node, 1)
    first = node_pipeline(tmp_path, node.work)
    run_consumer(first, "all", Calls(node.cdc))
    change(node, 2)
    change(node, 3, is_linked=False)
    change(node, 4)
    change(node, 5)
    with pytest.raises(SegmentsMissed, match="Found missed segments"):
        run_consumer(first, "all", Calls(node.cdc))
    node.give()
    work = tmp_path / "copy"
    shutil.copytree(node.work, work)
    copy = work / node.cdc.relative_to(node.work)
    file = node_pipeline(tmp_path, work)

    node.ask("deleteLost")
    capsys.readouterr()
    found = call_ignite(capsys, "delete-lost-segment-links", file, "--yes")
    assert found == (0, "node_1: Lost segment CDC links successfully removed.\n", "")
    assert files(copy) == files(node.cdc)
    consumer = Calls(copy)
    run_consumer(file, "all", consumer)
    assert [event["key"] for event in consumer.events] == [["int", 4], ["int", 5]]


def test_the_node_refuses_too_while_we_read(
    live_node: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node's own command is refused while a consumer of penstock reads its directory."""
    told: list[str] = []

    class Asks(Calls):
        """A consumer that lets the node delete while penstock holds the lock."""

        def on_events(self, _: object) -> bool:
            """Let the node delete, record its refusal, and end the consumer."""
            live_node.give()
            with pytest.raises(LiveFailed) as refused:
                live_node.ask("deleteLost")
            told.append(str(refused.value))
            self._calls_left = 0
            return True

    live_node.create("person")
    live_node.ask("person", "person", 1, "Ann", 1)
    live_node.await_linked()
    calls = Asks(live_node.cdc)
    run_consumer(node_pipeline(tmp_path, live_node.work), "all", calls, stop=calls.has_enough)
    assert "Make sure a CDC app is shut down" in told[0]
    assert "proc=" in told[0]


def test_resend_through_the_control_utility(
    ignite: Ignite, ignite_nodes: LiveNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts and exit codes are Ignite's; all rows come again, with their versions."""
    node = ignite_nodes.start(forceArchive=0, plainRegion="true")
    node.create("person")
    node.create("other", region="plain")
    for key in range(3):
        node.ask("person", "person", key, "Ann", key)
    node.await_linked()
    file = node_pipeline(tmp_path, node.work)
    consumer = Calls(node.cdc)
    run_consumer(file, "all", consumer)
    assert len(consumer.events) == 3
    script = ignite.control_script()

    def resend(caches: str, port: int = node.thin_port) -> tuple[int, str, str]:
        options = ("--caches", caches, "--control", script)
        return call_ignite(capsys, "resend", file, *options, "--", "--port", port)

    code, out, err = resend("person")
    assert (code, err) == (0, ""), out
    assert "Successfully resent all cache data to CDC." in out
    node.await_linked()
    again = Calls(node.cdc)
    run_consumer(file, "all", again)
    by_key = {str(event["key"]): event for event in consumer.events}
    assert {str(event["key"]): event for event in again.events} == by_key

    code, out, err = resend("absent")
    assert code == 1
    assert "Cache does not exist [cacheName=absent]" in out
    code, out, err = resend("other")
    assert code == 1
    assert "CDC is not enabled for given cache [cacheName=other, dataRegionName=plain]" in out
    code, out, err = resend("person", port=1)
    assert code == 1
    assert "cannot connect to the cluster" in err
