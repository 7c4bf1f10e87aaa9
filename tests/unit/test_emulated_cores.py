"""Emulated cores: the controller that a machine has, a group for each process, a full machine."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

CORES = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "cores.py"))
PERIOD_US = CORES["PERIOD_US"]
VERSION_1 = (
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)


def _groups(folder: Path, *pids: int, share: float = 0.25) -> Any:
    """Return emulated cores in a plain folder, with these processes in the first group."""
    cores = CORES["EmulatedCores"](CORES["Version1"](folder), share)
    first = cores._parent / CORES["FIRST"]
    first.mkdir(parents=True)
    (first / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return cores


def _read_quota(cores: Any, pid: int) -> int:
    return int((cores._parent / str(pid) / "cpu.cfs_quota_us").read_text())


def test_version_1_is_found_below_our_own_group() -> None:
    """The controller may share its file system with another."""
    found = CORES["find_controller"](VERSION_1, "3:cpu,cpuacct:/user/x\n2:cpuset:/\n0::/\n")
    assert found == CORES["Version1"](Path("/sys/fs/cgroup/cpu,cpuacct/user/x"))


def test_version_2_is_found_by_its_controllers(tmp_path: Path) -> None:
    """Version 2 counts only if it has the controller, which version 1 may own."""
    mounts = f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    (tmp_path / "cgroup.controllers").write_text("cpuset io memory\n")
    with pytest.raises(CORES["NoController"]):
        CORES["find_controller"](mounts, "0::/x\n")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    assert CORES["find_controller"](mounts, "0::/x\n") == CORES["Version2"](tmp_path)


def test_version_2_writes_both_numbers(tmp_path: Path) -> None:
    """The parent delegates the controller, the group has quota and period."""
    controller = CORES["Version2"](tmp_path)
    controller.delegate(tmp_path)
    controller.limit(tmp_path, 2500)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "cpu.max").read_text() == f"2500 {PERIOD_US}"


def test_each_process_gets_a_group_of_its_own(tmp_path: Path) -> None:
    """A process that is in its group is left there; one that was forked there is moved."""
    pid, child = os.getpid(), os.getppid()
    cores = _groups(tmp_path, pid)
    cores.look()
    assert (cores._parent / str(pid) / "cgroup.procs").read_text() == str(pid)
    assert _read_quota(cores, pid) == PERIOD_US * 0.25
    (cores._parent / CORES["FIRST"] / "cgroup.procs").write_text("")
    (cores._parent / str(pid) / "cgroup.procs").write_text(f"{pid}\n{child}\n")
    cores.look()
    assert (cores._parent / str(child) / "cgroup.procs").read_text() == str(child)
    assert (cores._parent / str(pid) / "cgroup.procs").read_text() == f"{pid}\n{child}\n"


def test_a_jvm_gets_two_shares_once_it_is_one(tmp_path: Path) -> None:
    """A process is forked before it becomes a JVM."""
    java = tmp_path / "java"
    sleep = shutil.which("sleep")
    assert sleep is not None
    java.symlink_to(sleep)
    with subprocess.Popen(["sh", "-c", f"read go; exec {java} 60"], stdin=subprocess.PIPE) as one:
        cores = _groups(tmp_path / "groups", one.pid)
        cores.look()
        assert _read_quota(cores, one.pid) == PERIOD_US * 0.25
        assert one.stdin is not None
        one.stdin.write(b"go\n")
        one.stdin.flush()
        while psutil.Process(one.pid).name() != "java":
            assert one.poll() is None
        cores.look()
        assert _read_quota(cores, one.pid) == PERIOD_US * 0.5
        one.kill()


def test_processes_that_reached_their_share_are_counted(tmp_path: Path) -> None:
    """The group of an ended process still tells whether it had to wait."""
    cores = _groups(tmp_path)
    for pid, throttled in ((11, 0), (12, 7)):
        group = cores._parent / str(pid)
        group.mkdir()
        (group / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled {throttled}\n")
    cores.look()
    assert cores.use.throttled == {12}


def test_a_machine_without_idle_cores_is_full() -> None:
    """Waiting for a disk is idle."""
    times = psutil.cpu_times()
    zero = times._replace(**dict.fromkeys(times._fields, 0.0))
    assert CORES["busy_part"](zero, zero._replace(user=3.0, idle=0.5, iowait=0.5)) == 0.75
    assert CORES["busy_part"](zero, zero._replace(user=1.0, system=1.0)) == 1.0


def test_the_last_line_says_how_often_the_machine_was_full() -> None:
    """A figure of a full machine says nothing about more cores."""
    use = CORES["Use"](samples=50, full=6, most_processes=17, throttled={3, 4})
    assert use.describe(0.25, 2) == (
        "0.25 of a core each: the machine's 2 cores were full in 12% of 50 samples; at most 17 "
        "processes at a time, 2 reached their share"
    )
