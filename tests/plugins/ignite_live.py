"""Live Ignite nodes that tests start, drive, kill and start again.

`ignite_nodes` makes them. A node is driven in two ways: through its thin client (pyignite), as by
any program, and through `LiveNode.ask`, whose commands (`tests/ignite/Live.java`) do what a thin
client cannot. A node ends with the test process: it reads its commands from a pipe.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyignite import Client

from penstock.host.server_process import free_port
from plugins.ignite_node import TIMEOUT_S, Ignite

HEAP_MB = 256
CLUSTER_NODES_MAX = 3
ANSWER_S = 90.0
POLL_S = 0.1


class LiveFailed(AssertionError):
    """Error: a node did not do what it was asked; it has the node's message."""


class LiveNode:
    """One node.

    Attributes:
        work: Its directory.
        consistent_id: Its name.
        thin_port: Port of its thin client.
    """

    def __init__(
        self, ignite: Ignite, work: Path, consistent_id: str, cluster: list[int], at: int
    ) -> None:
        """Prepare a node; cluster has the discovery ports of all nodes, at is the index of this
        one.
        """
        self.work = work
        self.consistent_id = consistent_id
        self.thin_port = free_port()
        self._ignite = ignite
        self._ports = {
            "cluster": ",".join(map(str, cluster)),
            "discovery": cluster[at],
            "communication": free_port(),
            "thin": self.thin_port,
        }
        self._options: dict[str, object] = {}
        self._child: subprocess.Popen[str] | None = None
        self.output = work.parent / f"{work.name}-{consistent_id}.out"

    # -- life --------------------------------------------------------------------------------

    def start(self, **options: object) -> LiveNode:
        """Start it; again with the options of the first time unless others are given.

        Options are properties of `Live.java`: persistence, cdc (true), forceArchive (ms, 500),
        segment (bytes, 512 KiB), cdcMax (bytes, 0), walMode, cdcPath, authentication, plainRegion
        (a second data region, `plain`, without CDC), keystore, tlsKeys and tlsTrusted (files of
        PKCS12), region (MB), active (false, true).
        """
        assert self._child is None, "it runs"
        self._options = {"active": "true", **self._options, **options}
        with self.output.open("a") as output:
            self._child = self._ignite.child(
                "Live", self.work, self.consistent_id, output=output, memory=HEAP_MB,
                has_pipes=True, **self._ports, **self._options,
            )  # fmt: skip
        self._answer()
        return self

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._child is not None, "it does not run"
        return self._child.pid

    def stop(self) -> None:
        """Stop it as an operator does: it leaves the cluster, and its data are on disk."""
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(TIMEOUT_S)
            self._close(child)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        child, self._child = self._child, None
        assert child is not None, "it does not run"
        child.send_signal(signal.SIGKILL)
        child.wait(TIMEOUT_S)
        self._close(child)

    @staticmethod
    def _close(child: subprocess.Popen[str]) -> None:
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    # -- commands ----------------------------------------------------------------------------

    def ask(self, *words: object) -> Any:
        """Give it a command of `Live.java`, and return the answer. Raises LiveFailed with its
        message.
        """
        assert self._child is not None, "it does not run"
        assert self._child.stdin is not None
        self._child.stdin.write("\t".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        word, _, text = line.rstrip("\n").partition("\t")
        if word == "ok":
            return json.loads(text)
        if word == "error":
            raise LiveFailed(json.loads(text))
        raise LiveFailed(f"no answer: {self.output.read_text(errors='replace')[-4000:]}")

    def create(self, cache: str, **settings: object) -> None:
        """Create a cache. atomicity, backups, group, partitions, region, expiry (ms),
        encryption.
        """
        self.ask("create", cache, *(f"{name}={value}" for name, value in settings.items()))

    def scan(self, cache: str) -> list[Any]:
        """Return [key, value, version] of each entry, as `Shown.java` shows them.

        The scan is repeated while another node leaves, which ends a scan.
        """
        end = time.monotonic() + ANSWER_S
        while True:
            try:
                return list(self.ask("scan", cache))
            except LiveFailed as error:
                if "ClusterTopology" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(POLL_S)

    def sql(self, text: str) -> list[Any]:
        """Run a statement in the schema PUBLIC, and return its rows."""
        return list(self.ask("sql", text))

    @property
    def address(self) -> str:
        """HOST:PORT of its thin client."""
        return f"127.0.0.1:{self.thin_port}"

    @property
    def url(self) -> str:
        """URL of the node as a pipeline's source."""
        return f"ignite://{self.work}?consistentId={self.consistent_id}"

    @contextmanager
    def client(self, **options: Any) -> Iterator[Client]:
        """Connect a thin client for a with block."""
        client = Client(**options)
        with client.connect("127.0.0.1", self.thin_port):
            yield client

    # -- its directories ---------------------------------------------------------------------

    @property
    def cdc(self) -> Path:
        """Directory of the node with segments for consumers."""
        return self.work / "db/wal/cdc" / self.consistent_id.replace("-", "_")

    def give(self) -> None:
        """Give the files that a test wrote below the node's directory to the node's user."""
        self._ignite.give(self.work)

    def segments(self) -> list[int]:
        """Return the segments of its CDC directory, in order."""
        return sorted(int(path.stem) for path in self.cdc.glob("*.wal"))

    def await_linked(self) -> int:
        """End the active segment, wait until all before the new one are archived; return the last
        of them.
        """
        ended = int(self.ask("rotate"))
        self.until(lambda: self.ask("wal")[1] >= ended, "the segment was not archived")
        return ended

    def until(self, done: Callable[[], object], otherwise: str) -> None:
        """Wait until `done` returns true; otherwise is the message if it does not."""
        end = time.monotonic() + ANSWER_S
        while not done():
            assert time.monotonic() < end, otherwise
            time.sleep(POLL_S)


class LiveNodes:
    """Nodes of one cluster. Each has its own work directory unless another one's is given."""

    def __init__(self, ignite: Ignite, folder: Path) -> None:
        """Prepare a cluster; folder will contain the work directories."""
        self._ignite = ignite
        self._folder = folder
        self._ports = [free_port() for _ in range(CLUSTER_NODES_MAX)]
        self._made: list[LiveNode] = []

    def start(
        self, consistent_id: str = "node-1", *, work: Path | None = None, **options: object
    ) -> LiveNode:
        """Return a running node; see LiveNode.start. work: an existing directory."""
        if work is None:
            work = self._folder / f"work-{consistent_id}"
            work.mkdir()
        self._ignite.give(work)
        node = LiveNode(self._ignite, work, consistent_id, self._ports, len(self._made))
        self._made.append(node)
        return node.start(**options)

    def stop(self) -> None:
        """Stop all that still run."""
        with ExitStack() as stack:
            for node in self._made:
                stack.callback(node.stop)


@pytest.fixture
def ignite_nodes(ignite: Ignite, request: pytest.FixtureRequest) -> Iterator[LiveNodes]:
    """Maker of nodes of one cluster, which end with the test."""
    folder = ignite.work(request.node.name.replace("/", "_"))
    nodes = LiveNodes(ignite, folder)
    try:
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(folder)


@pytest.fixture
def live_node(ignite_nodes: LiveNodes) -> LiveNode:
    """A node with change data capture."""
    return ignite_nodes.start()
