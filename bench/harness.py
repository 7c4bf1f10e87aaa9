"""Harness that runs contenders in turn and prints their results: JSON lines, then one table.

Every figure in docs/performance.md comes from here. Contenders of one measure are interleaved (A
B C A B C ...), so that a machine whose speed drifts is fair to all; the minimum of the rounds is
the figure, the spread is printed beside it. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psutil

ROUND_COUNT = 5
MEMORY_SAMPLE_INTERVAL_S = 0.05
REAPING_S = 0.3  # a backend that has just ended is not counted until it is reaped
SERVER_SAMPLE_INTERVAL_S = 1.0  # a look costs the servers some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Result of one run of one contender.

    Attributes:
        elapsed_s: wall time of the part that counts (set-up excluded).
        cpu_s: user + system seconds of the client processes, servers excluded.
        peak_bytes: the largest sum of resident memory of the client processes at one time.
        server_cpu_s, server_peak_bytes: the same of all processes of the servers, memory that
        they share counted once; 0 if they were not sampled.
        extra: further figures to print, with units in their names.
    """

    elapsed_s: float
    cpu_s: float = 0.0
    peak_bytes: int = 0
    server_cpu_s: float = 0.0
    server_peak_bytes: int = 0
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison. unit_count: rows (or changes) that one run carries."""

    name: str
    run: Callable[[], Measurement]
    unit_count: int
    unit: str = "rows"


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process and those below it have used, ended ones too."""
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


class TreeSampler:
    """Watches a process and its children: peak memory together, CPU seconds used meanwhile.

    without: roots of trees that do not count, such as servers that the same process started.
    interval_s: between looks; each costs milliseconds, which a contender that has all cores busy
    pays for.
    """

    def __init__(
        self,
        pid: int,
        *,
        without: Collection[int] = (),
        interval_s: float = MEMORY_SAMPLE_INTERVAL_S,
    ) -> None:
        self._root = psutil.Process(pid)
        self._without = frozenset(without)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._cpu_s_by_pid: dict[int, float] = {}
        self._cpu_s_at_start: dict[int, float] = {}
        self.peak_bytes = 0

    def __enter__(self) -> TreeSampler:
        self._sample(self._cpu_s_at_start)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample(self._cpu_s_by_pid)

    @property
    def cpu_s(self) -> float:
        """Return user and system seconds since the start, of all processes seen."""
        return sum(self._cpu_s_by_pid.values()) - sum(self._cpu_s_at_start.values())

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample(self._cpu_s_by_pid)

    def _family(self) -> list[psutil.Process]:
        """Return the root and its descendants, without the excluded ones."""
        parents: dict[int, int] = {}
        found = {self._root.pid: self._root}
        for child in self._root.children(recursive=True):
            try:
                parents[child.pid] = child.ppid()
                found[child.pid] = child
            except psutil.NoSuchProcess:
                continue
        return [process for pid, process in found.items() if not self._is_left_out(pid, parents)]

    def _is_left_out(self, pid: int, parents: Mapping[int, int]) -> bool:
        while pid in parents:
            if pid in self._without:
                return True
            pid = parents[pid]
        return False

    def _sample(self, into: dict[int, float]) -> None:
        total = 0
        try:
            family = self._family()
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                times = process.cpu_times()
                into[process.pid] = times.user + times.system
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # it ended between the listing and the look; its last sample stays
        self.peak_bytes = max(self.peak_bytes, total)


class ServerSampler:
    """Watches servers: CPU seconds used meanwhile, and peak memory together.

    postmasters: a process id of each server; it reaps its backends, so that the time of those that
    ended is known. Memory is the proportional share (PSS): pages that several map count once.
    """

    def __init__(self, *postmasters: int) -> None:
        self._roots = [psutil.Process(pid) for pid in postmasters]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._began_s = 0.0
        self._ended_s = 0.0
        self.peak_bytes = 0

    def __enter__(self) -> ServerSampler:
        self._began_s = self._used_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        time.sleep(REAPING_S)
        self._ended_s = self._used_s()

    @property
    def cpu_s(self) -> float:
        """Return user and system seconds between the with block's beginning and its end."""
        return self._ended_s - self._began_s

    def _used_s(self) -> float:
        total = 0.0
        for root in self._roots:
            times = root.cpu_times()
            total += times.children_user + times.children_system
            for process in (root, *root.children()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    own = process.cpu_times()
                    total += own.user + own.system
        return total

    def _watch(self) -> None:
        while not self._stop.wait(SERVER_SAMPLE_INTERVAL_S):
            total = 0
            for root in self._roots:
                for process in (root, *root.children()):
                    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                        total += process.memory_full_info().pss
            self.peak_bytes = max(self.peak_bytes, total)


def beside_servers(run: Callable[[], Measurement], *postmasters: int) -> Measurement:
    """Run something, and add to its measurement what these servers used meanwhile."""
    with ServerSampler(*postmasters) as sampler:
        found = run()
    return replace(found, server_cpu_s=sampler.cpu_s, server_peak_bytes=sampler.peak_bytes)


def run_process(arguments: Sequence[str], *, stdin: str | None = None, **env: str) -> Measurement:
    """Run a command to its end and measure it; raise CalledProcessError when it fails."""
    started = time.monotonic()
    process = subprocess.Popen(
        list(arguments),
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    if stdin is not None and process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
    errors = process.stderr.read() if process.stderr is not None else ""
    _, status, usage = os.wait4(process.pid, 0)
    elapsed_s = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, list(arguments), stderr=errors)
    return Measurement(
        elapsed_s=elapsed_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
    )


@dataclass(slots=True)
class Comparison:
    """The rounds of one measure. The first contender is the limit: ratios are against it."""

    bench: str
    contenders: Sequence[Contender]
    results: dict[str, list[Measurement]] = field(default_factory=dict)

    def run(self, round_count: int = ROUND_COUNT) -> Comparison:
        """Run all contenders turn by turn; print a JSON line per run."""
        for round_number in range(round_count):
            for contender in self.contenders:
                measured = contender.run()
                self.results.setdefault(contender.name, []).append(measured)
                print(
                    json.dumps(
                        {
                            "bench": self.bench,
                            "contender": contender.name,
                            "round": round_number,
                            f"{contender.unit}_per_s": round(
                                contender.unit_count / measured.elapsed_s
                            ),
                            "elapsed_s": round(measured.elapsed_s, 4),
                            "cpu_s": round(measured.cpu_s, 3),
                            "peak_mib": round(measured.peak_bytes / 2**20, 1),
                            "server_cpu_s": round(measured.server_cpu_s, 3),
                            "server_peak_mib": round(measured.server_peak_bytes / 2**20, 1),
                            **{k: round(v, 4) for k, v in measured.extra.items()},
                        }
                    ),
                    flush=True,
                )
        return self

    def best_s(self, name: str) -> float:
        """Return the minimum over the rounds, in seconds."""
        return min(m.elapsed_s for m in self.results[name])

    def ratio(self, name: str) -> float:
        """Return how many times as fast as the first contender it is, comparing the minimums."""
        return self.best_s(self.contenders[0].name) / self.best_s(name)

    def print_table(self) -> None:
        """Print one line per contender: best rate, ratio, spread, CPU and memory of both ends."""
        unit = self.contenders[0].unit
        header = f"{'contender':<34}{unit + '/s':>12}{'ratio':>8}{'spread':>24}{'cpu s':>9}"
        print(
            f"\n{self.bench} ({describe_machine()})\n{header}{'us cpu/' + unit[:-1]:>14}{'MiB':>8}"
            f"{'servers: cpu s':>17}{'MiB':>8}"
        )
        for contender in self.contenders:
            runs = self.results[contender.name]
            times = sorted(m.elapsed_s for m in runs)
            cpu_s = min(m.cpu_s for m in runs)
            spread = f"{times[0]:.2f}-{statistics.median(times):.2f}-{times[-1]:.2f} s"
            print(
                f"{contender.name:<34}{contender.unit_count / times[0]:>12,.0f}"
                f"{self.ratio(contender.name):>8.2f}{spread:>24}{cpu_s:>9.2f}"
                f"{cpu_s / contender.unit_count * 1e6:>14.2f}"
                f"{max(m.peak_bytes for m in runs) / 2**20:>8.0f}"
                f"{min(m.server_cpu_s for m in runs):>17.2f}"
                f"{max(m.server_peak_bytes for m in runs) / 2**20:>8.0f}"
            )
        print(flush=True)


def describe_machine() -> str:
    """Return cores, memory and versions, as they are in docs/performance.md."""
    gib = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Python {platform.python_version()}"


def arguments(description: str, **defaults: int | str) -> argparse.Namespace:
    """Return the flags all benches share, plus one flag per default, of its type."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=ROUND_COUNT)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args(sys.argv[1:])
