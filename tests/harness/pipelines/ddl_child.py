"""Processes of a pipeline that start very fast: forked from one that has imported everything.

`penstock load` runs its tasks in its own process there: everything except Spark.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import penstock.engines.delta
import penstock.engines.iceberg
import penstock.engines.lake
import penstock.engines.mysql
import penstock.engines.oracle
import penstock.engines.postgres
import penstock.engines.sqlserver
from harness.pipelines.ddl_lake_java import JavaPlace, connect
from penstock.cli import main
from penstock.control.run import load_process
from penstock.engines.lake.own_java import OwnJava

for package in (
    penstock.engines.mysql,
    penstock.engines.oracle,
    penstock.engines.postgres,
    penstock.engines.sqlserver,
    penstock.engines.lake,
    penstock.engines.delta,
    penstock.engines.iceberg,
):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

for name in ("pandas", "pyspark.sql"):  # which would be imported in each process
    importlib.import_module(name)

PASSWORD = "s3cret"
os.environ["SERVE_PASSWORD"] = PASSWORD
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
PR_SET_PDEATHSIG = 1


class InProcess:
    """A session of one slot, in this process."""

    slots_are_fixed = True
    parallelism = 1
    alive = True

    def __init__(self) -> None:
        self._turn = threading.Lock()  # like one slot: workers keep connections per process

    def run(
        self,
        partitions: Sequence[Sequence[Any]],
        work: Callable[[Iterator[Any]], Any],
        **_: object,
    ) -> list[Any]:
        """Run all tasks in this process, one job at a time, and return their results."""
        with self._turn:
            return [result for tasks in partitions for result in work(iter(tasks))]

    def with_jobs(self, _: str) -> InProcess:
        """Return the same session: its jobs cannot be cancelled."""
        return self

    def tell(self, *_: object) -> None:
        """Do nothing: the figures of tasks are not reported."""

    def cancel(self) -> None:
        """Do nothing: tasks in this process run to their end."""


class WithJava(InProcess):
    """A session whose JVM has the classes of a lake; another process has started it."""

    def __init__(self, java: OwnJava) -> None:
        """Keep the connection."""
        super().__init__()
        self.jvm, self.hadoop_conf = java.jvm, java.hadoop_conf
        self._java = java

    @property
    def spark(self) -> Any:
        """Return the JVM's SparkSession."""
        return self._java.spark


class Keeper:
    """A SessionKeeper whose session always exists."""

    is_local = True
    restart_count = 0
    is_ready = True

    java: JavaPlace | None = None

    def __init__(self, *_: object) -> None:
        self._session = InProcess() if self.java is None else WithJava(connect(self.java))

    def get(self) -> InProcess:
        """Return the session."""
        return self._session

    def wait(self, _: Callable[[], bool]) -> bool:
        """Return that it is available."""
        return True

    is_lost = False

    def renew(self) -> None:
        """Do nothing: a session in this process cannot be lost."""

    def close(self) -> None:
        """Do nothing: the session ends with this process."""


def run_command(
    arguments: Sequence[str], out: str, java: JavaPlace | None, paths: Sequence[str]
) -> None:
    """Run a command of penstock in this process, which ends with the one that forked it.

    paths: of modules, before those that the forked process has.
    """
    sys.path[:0] = paths
    Keeper.java = java
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    load_process.SessionKeeper = Keeper  # type: ignore[attr-defined,assignment,misc]
    load_process.PendingSession = lambda _: None  # type: ignore[attr-defined,assignment,misc]
    sys.argv[:] = ["penstock", *arguments]
    main()


class Child:
    """One of a pipeline's processes, which may be killed and started again."""

    def __init__(
        self, name: str, file: Path, words: Sequence[str] = (), *, java: JavaPlace | None = None
    ) -> None:
        """Prepare the command `name`; words replace it and the file, if they do not follow it.

        java: of a loader into a lake.
        """
        self.name = name
        self._java = java
        self._arguments = [*(words or (name, str(file))), "--json", "--checked"]
        self._out = file.parent / f"{name}.out"
        self._process: BaseProcess | None = None

    def start(self) -> None:
        """Start it."""
        paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        given = (self._arguments, str(self._out), self._java, paths)
        self._process = FORKED.Process(target=run_command, args=given, daemon=True)
        self._process.start()

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.exitcode if self._process else None

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(60)

    @property
    def error(self) -> dict[str, Any]:
        """Last error that it printed."""
        return self.last("code", "error") or {"code": "?", "error": self._text()[-500:]}

    def last(self, *keys: str) -> dict[str, Any]:
        """Return the last object with these keys that it printed; empty if there is none."""
        for line in reversed(self._text().splitlines()):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and set(keys) <= found.keys():
                    return found
        return {}

    def _text(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""
