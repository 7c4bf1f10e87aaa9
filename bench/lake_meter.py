"""Measures of `bench.bench_lake`: CPU seconds of all processes, and lines to print."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from bench.harness import tree_cpu_s


@dataclass
class Reading:
    """CPU and wall seconds of a block, of this process and all below it.

    Attributes:
        pids: The only processes that are measured, if any are given. Spark's Python workers end
            some time after their last task, and take their seconds with them.
    """

    pids: Sequence[int] = ()
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the block."""
        began, cpu_s = time.perf_counter(), self._used_s()
        yield
        self.wall_s = time.perf_counter() - began
        self.cpu_s = self._used_s() - cpu_s

    def _used_s(self) -> float:
        if not self.pids:
            return tree_cpu_s(os.getpid())
        used = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return sum(times.user + times.system for times in used)


def load_average() -> float:
    """Return the number of processes that wanted a processor in the last minute."""
    return round(os.getloadavg()[0], 1)


def show(part: str, **figures: object) -> None:
    """Print a JSON line with the load average."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(
        json.dumps({"bench": "lake", "part": part, **rounded, "load": load_average()}), flush=True
    )
