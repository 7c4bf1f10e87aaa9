"""Kills of a pipeline's processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.control.run.supervisor import HEALTHY_AFTER_S

# Extract and load are killed by turns. penstock stops when a process is killed repeatedly before it
# was healthy, so each lives for longer than that.
KILL_EVERY_S = 0.6 * HEALTHY_AFTER_S


def kill_one(path: Path, turn: int) -> int:
    """Kill extract or load, by turns; return how many were killed."""
    wanted = ("extract", "load")[turn % 2]
    pids = [one.pid for one in processes(load_config(path)) if one.name == wanted and one.pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def end_processes(path: Path) -> None:
    """End what still runs of the pipeline."""
    for one in processes(load_config(path)):
        if one.pid:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
