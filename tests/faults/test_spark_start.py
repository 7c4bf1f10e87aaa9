"""A process that Spark starts may be killed during the start: Spark is started again."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from penstock.load import session
from penstock.load.session import SessionOptions, start_session

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.slow,
]


def _kill_first(name: str, killed: threading.Event) -> None:
    """Send SIGKILL to the first new descendant of this name."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            try:
                if process.pid not in before and process.name().startswith(name):
                    process.kill()
                    killed.set()
                    return
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.01)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("name", ["java", "python"])
def test_killed_while_spark_starts(tmp_path: Path, name: str) -> None:
    """The session starts even if the JVM, or the process that forks workers, is killed."""
    killed = threading.Event()
    killer = threading.Thread(target=_kill_first, args=(name, killed))
    killer.start()
    with start_session(SessionOptions(work_directory=tmp_path, master="local[2]")) as started:
        killer.join()
        assert killed.is_set()
        assert started.run([[1], [2]], list) == [1, 2]


def test_a_jvm_that_is_dying_counts_as_dead() -> None:
    """A JVM whose sockets are closed counts as dead, a moment before it can be waited for."""
    with subprocess.Popen(["sleep", "0.3"]) as dying:
        assert session._is_ending(dying, Py4JNetworkError("Error while sending or receiving"))
    with subprocess.Popen(["sleep", "60"]) as alive:
        assert not session._is_ending(alive, ValueError("a property that Spark refuses"))
        alive.kill()
