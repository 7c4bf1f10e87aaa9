"""A standalone Spark cluster of several machines, the last of which can be cut off.

It is in a network namespace of its own, with two cables: one to the cluster's master and to the
driver, the other to the database servers. If namespaces cannot be created (not root, no `ip`), it
is a machine like the others, and tests that cut its cables are skipped. Not here: pipelines.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from plugins.cluster import standalone_master

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 90.0
POLL_S = 0.1
REGISTERED = "Successfully registered with master"
# Networks of 198.18.0.0/15 are reserved for such tests; so many are tried.
NETWORKS = range(1, 250)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A pair of linked interfaces.

    Attributes:
        here: Address of the interface on this side.
        there: Address of the other one.
        name: Name of the interface on this side.
        namespace: Namespace of the other one.
    """

    name: str
    namespace: str
    here: str
    there: str

    def cut(self) -> None:
        """Drop all packets without notifying either side."""
        self._queue("replace", "blackhole")

    def slow(self, rate: str) -> None:
        """Limit the rate in each direction; rate: as `tc` reads it."""
        self._queue("replace", *f"tbf rate {rate} burst 32k latency 400ms".split())

    def restore(self) -> None:
        """Restore the initial state."""
        self._queue("delete")

    def _queue(self, verb: str, *kind: str) -> None:
        for inside, name in (((), self.name), (("-n", self.namespace), _other(self.name))):
            run("tc", *inside, "qdisc", verb, "dev", name, "root", *kind)


def ip(*arguments: str) -> str:
    """Run `ip`, and return its output."""
    return run("ip", *arguments)


def run(*command: str) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def _other(name: str) -> str:
    return f"{name}i"


@dataclass(slots=True, kw_only=True)
class Machine:
    """A machine with a worker and its executors.

    Attributes:
        address: Address of the machine, for Spark.
        namespace: Network namespace; empty on this machine itself.
    """

    home: Path
    folder: Path
    master: str
    address: str
    namespace: str = ""
    process: psutil.Popen | None = field(default=None)
    _log: Path = field(default=Path())

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start a worker, wait until the master knows it; environment adds variables
        for executors.
        """
        self._log = self.folder / f"worker-{next(_numbers)}.log"
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        command = [*inside, os.fspath(self.home / "bin" / "spark-class")]
        command += ["org.apache.spark.deploy.worker.Worker", "--host", self.address]
        command += ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
        command += ["--work-dir", os.fspath(self.folder / "work"), self.master]
        with self._log.open("ab") as log:
            self.process = psutil.Popen(
                command,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": self.address,
                    "SPARK_DAEMON_MEMORY": "192m",
                    **(environment or {}),
                },
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while REGISTERED not in self._log.read_text(errors="replace"):
            assert self.process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, self._log.read_text(errors="replace")[-2000:]
            time.sleep(POLL_S)

    def executors(self) -> list[psutil.Process]:
        """Return the executors' JVMs."""
        if self.process is None or not self.process.is_running():
            return []
        return [one for one in self.process.children() if one.name() == "java"]

    def pythons(self) -> list[psutil.Process]:
        """Return the Python processes of the executors, the one that forks the others first."""
        return [
            one
            for executor in self.executors()
            for one in executor.children(recursive=True)
            if one.name().startswith("python")
        ]

    @property
    def finished_tasks(self) -> int:
        """Number of tasks that its executors have finished, whether or not the driver knows."""
        logs = (self.folder / "work").rglob("stderr")
        return sum(log.read_text(errors="replace").count(": Finished task ") for log in logs)

    def kill(self) -> None:
        """Send SIGKILL to the worker, the executors and their Python processes."""
        if self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for one in [self.process, *self.process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None


@dataclass(slots=True, kw_only=True)
class Standalone:
    """A cluster: its master, a machine like this one, and a remote one.

    Attributes:
        spark: Cable of the remote machine to master and driver; None without namespaces.
        data: Cable of the remote machine to the database servers; None without namespaces.
        address: Address of this machine, for executors.
        server_address: Address on which the database servers have to listen.
    """

    master: str
    near: Machine
    remote: Machine
    spark: Cable | None
    data: Cable | None

    @property
    def address(self) -> str:
        """Address at which executors find the driver."""
        return self.spark.here if self.spark else LOOPBACK

    @property
    def server_address(self) -> str:
        """Address at which executors find the database servers."""
        return self.data.here if self.data else LOOPBACK

    @property
    def conf(self) -> dict[str, str]:
        """Spark properties of a pipeline on this cluster."""
        return {"spark.executor.memory": "512m", "spark.driver.host": self.address}

    def cables(self) -> tuple[Cable, Cable]:
        """Return both cables; skips the test if there are none."""
        if self.spark is None or self.data is None:
            pytest.skip("no network namespaces here (they need root and `ip`)")
        return self.spark, self.data

    def vanish(self) -> None:
        """Cut both cables of the remote machine."""
        for cable in self.cables():
            cable.cut()


@pytest.fixture
def standalone(cluster_home: Path, tmp_path: Path) -> Iterator[Standalone]:
    """A cluster with a master and machines that are not started; all its processes end with it."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="standalone-", dir=tmp_path))
        found = stack.enter_context(network())
        namespace, spark, data = found if found else ("", None, None)
        here, there = (spark.here, spark.there) if spark else (LOOPBACK, LOOPBACK)
        master = stack.enter_context(standalone_master(cluster_home, here))

        def machine(name: str, address: str, namespace: str = "") -> Machine:
            (folder / name).mkdir()
            made = Machine(
                home=cluster_home,
                folder=folder / name,
                master=master,
                address=address,
                namespace=namespace,
            )
            stack.callback(made.kill)
            return made

        yield Standalone(
            master=master,
            near=machine("near", here),
            remote=machine("remote", there, namespace),
            spark=spark,
            data=data,
        )


@contextmanager
def network() -> Iterator[tuple[str, Cable, Cable] | None]:
    """Create a namespace with its cables, removed at the end; yield None if that is
    not possible.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        yield None
        return
    number = _free_network()
    namespace = f"pst{number}"
    try:
        ip("netns", "add", namespace)
    except AssertionError:  # a container that lacks the privilege
        yield None
        return
    try:
        ip("-n", namespace, "link", "set", "lo", "up")
        spark, data = (
            Cable(
                name=f"{namespace}{name}",
                namespace=namespace,
                here=f"198.18.{number}.{at}",
                there=f"198.18.{number}.{at + 1}",
            )
            for name, at in (("s", 1), ("d", 5))
        )
        for cable in (spark, data):
            _lay(cable, namespace)
        yield namespace, spark, data
    finally:
        run("ip", "netns", "del", namespace)  # also removes its interfaces and their peers


def _lay(cable: Cable, namespace: str) -> None:
    inside = _other(cable.name)
    ip("link", "add", cable.name, "type", "veth", "peer", "name", inside)
    ip("link", "set", inside, "netns", namespace)
    ip("addr", "add", f"{cable.here}/30", "dev", cable.name)
    ip("link", "set", cable.name, "up")
    ip("-n", namespace, "addr", "add", f"{cable.there}/30", "dev", inside)
    ip("-n", namespace, "link", "set", inside, "up")


def _free_network() -> int:
    taken = ip("-o", "addr") + ip("netns", "list")
    start = os.getpid() % len(NETWORKS)
    for step in NETWORKS:
        number = NETWORKS[(start + step) % len(NETWORKS)]
        if f" 198.18.{number}." not in taken and f"pst{number} " not in f"{taken} ":
            return number
    raise AssertionError("no network is free")
