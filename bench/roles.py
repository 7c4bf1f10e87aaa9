"""Who used the CPU: every process of a run, servers' backends by what they are for.

A run's processes share the machine's cores, so the sum over all of them is what a pipeline costs.
Backends are told apart by their application_name, which pg_stat_activity knows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import psutil
import psycopg

SAMPLE_INTERVAL_S = 0.1
ACTIVITY = """
    select pid, backend_type, application_name from pg_stat_activity where pid <> pg_backend_pid()
"""


class RoleSampler:
    """CPU seconds by role while a with block runs.

    servers: a name of each server (`source`, `target`) and its URL. pid: the root of the client
    processes to count, if any.
    """

    def __init__(self, servers: Mapping[str, str], pid: int | None = None) -> None:
        self._connections = {
            name: psycopg.connect(url, autocommit=True, application_name="sampler")
            for name, url in servers.items()
        }
        self._pid = pid
        self._roles: dict[int, str] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> RoleSampler:
        """Start counting."""
        self._sample(starting=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        self._stop.set()
        self._thread.join()
        self._sample()
        for connection in self._connections.values():
            connection.close()

    @property
    def cpu_s(self) -> dict[str, float]:
        """User and system seconds by role, the largest first."""
        found: dict[str, float] = {}
        for pid, seconds in self._last.items():
            used = seconds - self._first.get(pid, 0.0)
            found[self._roles[pid]] = found.get(self._roles[pid], 0.0) + used
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def print_table(self, unit_count: int) -> None:
        """Print a line per role: seconds, and microseconds per unit."""
        for role, seconds in {**self.cpu_s, "sum": sum(self.cpu_s.values())}.items():
            if seconds >= 0.005:
                print(f"    {role:<40}{seconds:>8.2f} s{seconds / unit_count * 1e6:>8.2f} us")

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self, *, starting: bool = False) -> None:
        for name, connection in self._connections.items():
            for pid, kind, application in connection.execute(ACTIVITY).fetchall():
                label = kind if kind != "client backend" else (application or "workload")
                self._roles[pid] = f"{name}: {label}"
                self._count(psutil.Process, pid, starting)
        if self._pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._pid)
            for process in [root, *root.children(recursive=True)]:
                if process.pid not in self._roles:
                    self._roles[process.pid] = f"client: {_client_role(process)}"
                self._count(psutil.Process, process.pid, starting)

    def _count(self, make: type[psutil.Process], pid: int, starting: bool) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = make(pid).cpu_times()
            self._last[pid] = times.user + times.system
            if starting:
                self._first[pid] = self._last[pid]


def _client_role(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.name().startswith("java"):
            return "Spark's JVM"
        command = process.cmdline()
        if "penstock.load.daemon" in command:
            return "Spark's Python workers"
        if "penstock" in command:
            return "penstock " + command[command.index("penstock") + 1]
        return process.name()
    return "gone"
