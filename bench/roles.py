"""CPU use over time: every process of a run, servers' backends by their role."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

import psutil
import psycopg

SAMPLE_INTERVAL_S = 0.1
LOOK_INTERVAL_S = 0.3  # between looks for new processes: each reads all of /proc
COLUMNS = 60
SHADES = " .:-=+*%#"  # shares of one core: none to all
OTHERS = "other processes of the machine"
IDLE = "idle cores"
ACTIVITY = """
    select pid, backend_type, application_name from pg_stat_activity where pid <> pg_backend_pid()
"""


class RoleSampler:
    """CPU seconds by role while a with block runs.

    servers: a name of each server (`source`, `target`) and its URL. pids: the roots of the client
    processes to count.
    """

    def __init__(self, servers: Mapping[str, str], *pids: int) -> None:
        self._connections = {
            name: psycopg.connect(url, autocommit=True, application_name="sampler")
            for name, url in servers.items()
        }
        self._pids = pids
        self._roles: dict[int, str] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._looked_s = 0.0
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        # time, and seconds by role since the previous one
        self._used: list[tuple[float, dict[str, float]]] = []
        self._machine = psutil.cpu_times()
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
        self._sample(ending=True)
        for connection in self._connections.values():
            connection.close()

    @property
    def cpu_s(self) -> dict[str, float]:
        """Return user and system seconds by role, the largest first."""
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

    def print_timeline(self) -> None:
        """Print a line per role, darker for more use of a core, and the idle cores below."""
        if len(self._used) < 2:
            return
        began, ended = self._used[0][0], self._used[-1][0]
        column_s = max((ended - began) / COLUMNS, SAMPLE_INTERVAL_S)
        cells: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        lengths: dict[int, float] = defaultdict(float)
        before = began
        for at, used in self._used[1:]:
            column = int((before - began) / column_s)
            lengths[column] += at - before
            for role, seconds in used.items():
                cells[role][column] += seconds
            before = at
        print(f"    a column is {column_s:.2f} s")
        for role in [*(role for role in self.cpu_s if role in cells), OTHERS, IDLE]:
            shares = [cells[role][at] / lengths[at] if lengths[at] else 0 for at in range(COLUMNS)]
            if max(shares) > 0.1:
                print(f"    {role:<40}|{''.join(map(_shade, shares))}|")

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self, *, starting: bool = False, ending: bool = False) -> None:
        used: dict[str, float] = defaultdict(float)
        now_s = time.monotonic()
        if starting or ending or now_s - self._looked_s >= LOOK_INTERVAL_S:
            self._look_for_processes()
            self._looked_s = now_s
        for pid in self._processes:
            self._count(pid, used, starting)
        machine, before = psutil.cpu_times(), self._machine
        self._machine = machine
        idle_s = machine.idle + machine.iowait - before.idle - before.iowait
        busy_s = sum(machine[:8]) - sum(before[:8]) - idle_s
        used[OTHERS] = max(0.0, busy_s - sum(used.values()))
        used[IDLE] = idle_s
        self._used.append((time.monotonic(), used))

    def _look_for_processes(self) -> None:
        """Note the processes that are there now, and the role of each."""
        for name, connection in self._connections.items():
            for pid, kind, application in connection.execute(ACTIVITY).fetchall():
                label = kind if kind != "client backend" else (application or "workload")
                self._note(pid, f"{name}: {label}")
        for root in self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in _family(root):
                    if process.pid not in self._roles:
                        self._note(process.pid, f"client: {_client_role(process)}")

    def _note(self, pid: int, role: str) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._processes.setdefault(pid, psutil.Process(pid))
            self._roles[pid] = role

    def _count(self, pid: int, used: dict[str, float], starting: bool) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = self._processes[pid].cpu_times()
            now_s = times.user + times.system
            if starting:
                self._first[pid] = now_s
            used[self._roles[pid]] += now_s - self._last.get(pid, self._first.get(pid, 0.0))
            self._last[pid] = now_s


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _shade(share: float) -> str:
    return SHADES[min(len(SHADES) - 1, round(min(share, 1.0) * (len(SHADES) - 1)))]


def _client_role(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.name().startswith("java"):
            return "Spark's JVM"
        command = process.cmdline()
        if "penstock.load.daemon" in command:
            return "Spark's Python workers"
        if "bench.bench_end_to_end" in command:
            return "penstock extract"
        if "--half" in command:
            return "penstock stage, " + command[command.index("--half") + 1]
        if "penstock" in command:
            return "penstock " + command[command.index("penstock") + 1]
        return process.name()
    return "gone"
