"""Measures of `bench.bench_lake`: CPU seconds of all processes, and lines to print."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness import tree_cpu_s


@dataclass
class Reading:
    """CPU and wall seconds of a block, of this process and all below it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the block."""
        began, cpu_s = time.perf_counter(), tree_cpu_s(os.getpid())
        yield
        self.wall_s = time.perf_counter() - began
        self.cpu_s = tree_cpu_s(os.getpid()) - cpu_s


def load_average() -> float:
    """Return the number of processes that wanted a processor in the last minute."""
    return round(os.getloadavg()[0], 1)


def show(part: str, **figures: object) -> None:
    """Print a JSON line with the load average."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(
        json.dumps({"bench": "lake", "part": part, **rounded, "load": load_average()}), flush=True
    )
