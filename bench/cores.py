"""Emulated cores: every process below a command gets a share of a core of its own.

`python -m bench.cores --share 0.25 -- python -m bench.bench_end_to_end --rounds 3`

A quarter of a core for each process stands for a machine with four times the cores, each a quarter
as fast, as long as all processes together need no more than this machine has. So the share of the
time in which the machine was full is printed at the end: a measurement during which it was often
full says nothing about more cores. A JVM counts as two processes, because its compiler and its
collector work beside it.

Each process has a group of its own of the cgroup controller `cpu`, of version 1 or 2. This needs
root. A process that has just been forked shares its parent's group until the next look.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

PERIOD_US = 10_000  # short, so that a process without a share left waits for milliseconds
QUOTA_MIN_US = 1000  # Linux's
LOOK_INTERVAL_S = 0.02
SAMPLE_INTERVAL_S = 0.2
FULL = 0.97  # of all cores
JAVA_SHARES = 2
FIRST = "first"
MOUNTS, OWN_GROUPS = Path("/proc/mounts"), Path("/proc/self/cgroup")


class NoController(RuntimeError):
    """This machine has no cgroup controller `cpu`, or does not let us use it."""


class Controller(Protocol):
    """One version of the controller."""

    root: Path

    @abstractmethod
    def delegate(self, parent: Path) -> None:
        """Let the groups below a new one have limits of their own."""
        ...

    @abstractmethod
    def limit(self, group: Path, quota_us: int) -> None:
        """Set what a group may use in PERIOD_US."""
        ...


@dataclass(frozen=True, slots=True)
class Version1(Controller):
    """The controller as a file system of its own."""

    root: Path

    def delegate(self, parent: Path) -> None:
        """Do nothing: every group may have limits."""

    def limit(self, group: Path, quota_us: int) -> None:
        """Set both numbers."""
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


@dataclass(frozen=True, slots=True)
class Version2(Controller):
    """The controller as one of several in the unified file system."""

    root: Path

    def delegate(self, parent: Path) -> None:
        """Enable the controller for the groups below; the parent itself has no processes."""
        (parent / "cgroup.subtree_control").write_text("+cpu")

    def limit(self, group: Path, quota_us: int) -> None:
        """Set both numbers."""
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")


def find_controller(mounts: str, own_groups: str) -> Controller:
    """Return the controller below whose root new groups can be created. Raises NoController.

    mounts, own_groups: contents of the files of these names in /proc.
    """
    own = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path.lstrip("/")))
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Version1(Path(place) / own.get("cpu", ""))
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and "cpu" in _read(Path(place) / "cgroup.controllers").split():
            return Version2(Path(place))
    raise NoController("no mounted cgroup has the controller cpu")


def _read(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


@dataclass(slots=True)
class Use:
    """Use of the machine and of the shares.

    Attributes:
        samples, full: number of looks at the machine, and of those at which no core was idle.
        most_processes: the largest number of processes at one time.
        throttled: number of processes that had to wait for their next share.
    """

    samples: int = 0
    full: int = 0
    most_processes: int = 0
    throttled: set[int] = field(default_factory=set)

    def describe(self, share: float, cores: int) -> str:
        """Return one line."""
        part = self.full / self.samples if self.samples else 0.0
        return (
            f"{share:g} of a core each: the machine's {cores} cores were full in {part:.0%} of "
            f"{self.samples} samples; at most {self.most_processes} processes at a time, "
            f"{len(self.throttled)} reached their share"
        )


class EmulatedCores:
    """Groups of the processes below a command, for the time of a with block."""

    def __init__(self, controller: Controller, share: float) -> None:
        """Store the controller. share: part of a core for each process."""
        self._controller = controller
        self._share = share
        self._parent = controller.root / f"penstock-cores-{os.getpid()}"
        self._limits: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._failure: OSError | None = None
        self.use = Use()

    def __enter__(self) -> EmulatedCores:
        """Create the first group, and begin to look."""
        try:
            self._parent.mkdir()
            self._controller.delegate(self._parent)
            (self._parent / FIRST).mkdir()
        except OSError as error:
            raise NoController(f"no group can be created in {self._parent}: {error}") from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it; processes that are left lose their limits."""
        self._stop.set()
        self._thread.join()
        for group in self._groups():
            for pid in _read(group / "cgroup.procs").split():
                with contextlib.suppress(ProcessLookupError):
                    (self._controller.root / "cgroup.procs").write_text(pid)
            _remove(group)
        _remove(self._parent)
        if self._failure is not None:
            raise self._failure

    def enter(self) -> None:
        """Move the calling process into the first group: its children begin there."""
        (self._parent / FIRST / "cgroup.procs").write_text(str(os.getpid()))

    def _groups(self) -> list[Path]:
        return [group for group in self._parent.iterdir() if group.is_dir()]

    def _watch(self) -> None:
        sampled_s, before = time.monotonic(), psutil.cpu_times()
        try:
            while not self._stop.wait(LOOK_INTERVAL_S):
                self.look()
                if time.monotonic() - sampled_s >= SAMPLE_INTERVAL_S:
                    now = psutil.cpu_times()
                    self.use.samples += 1
                    self.use.full += busy_part(before, now) >= FULL
                    sampled_s, before = time.monotonic(), now
        except OSError as error:
            self._failure = error

    def look(self) -> None:
        """Give each process its own group, and remove the groups of those that ended."""
        count = 0
        for group in self._groups():
            members = [int(pid) for pid in _read(group / "cgroup.procs").split()]
            count += len(members)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    self._settle(pid, group)
            if not members and group.name != FIRST:
                self._note_throttled(group)
                if _remove(group):
                    self._limits.pop(int(group.name), None)
        self.use.most_processes = max(self.use.most_processes, count)

    def _settle(self, pid: int, group: Path) -> None:
        """Move a process into its own group, and set the limit; a JVM is one after its exec."""
        own = self._parent / str(pid)
        shares = JAVA_SHARES if _read(Path(f"/proc/{pid}/comm")).startswith("java") else 1
        if self._limits.get(pid) != shares:
            own.mkdir(exist_ok=True)
            self._controller.limit(own, round(PERIOD_US * self._share * shares))
            self._limits[pid] = shares
        if group != own:
            (own / "cgroup.procs").write_text(str(pid))

    def _note_throttled(self, group: Path) -> None:
        facts = dict(line.split() for line in _read(group / "cpu.stat").splitlines())
        if int(facts.get("nr_throttled", 0)):
            self.use.throttled.add(int(group.name))


def _remove(group: Path) -> bool:
    """Remove a group; return False if a process has just been forked into it."""
    with contextlib.suppress(OSError):
        group.rmdir()
        return True
    return False


def busy_part(before: psutil._ntuples.scputimes, now: psutil._ntuples.scputimes) -> float:
    """Return which part of all cores was busy between two looks."""
    total = sum(now[:8]) - sum(before[:8])
    idle = now.idle + now.iowait - before.idle - before.iowait
    return 1.0 - idle / total if total > 0 else 0.0


def run(command: Sequence[str], share: float) -> tuple[int, Use]:
    """Run a command to its end; return its exit code, and what its processes used."""
    controller = find_controller(_read(MOUNTS), _read(OWN_GROUPS))
    with EmulatedCores(controller, share) as cores:
        process = subprocess.Popen(list(command), preexec_fn=cores.enter)
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        cores.look()
    return process.returncode, cores.use


def main() -> int:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=0.25, help="of a core, for each process")
    parser.add_argument("command", nargs="+", help="after --")
    flags = parser.parse_args()
    if PERIOD_US * flags.share < QUOTA_MIN_US:
        parser.error(f"--share is at least {QUOTA_MIN_US / PERIOD_US:g}")
    code, use = run(flags.command, flags.share)
    print(use.describe(flags.share, os.cpu_count() or 1), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
