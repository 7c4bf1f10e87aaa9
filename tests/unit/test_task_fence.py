"""Tasks that outlive their loader: the next loader ends them, and late ones refuse to begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.host import task_fence
from penstock.host.task_fence import (
    PermitOutdated,
    TaskPermit,
    issue_permit,
    withdraw_permits,
)

HOLDS = """
import sys, time
from pathlib import Path
from penstock.host.task_fence import TaskPermit
with TaskPermit(directory=Path(sys.argv[1]), number=sys.argv[2]).hold():
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def start_task(permit: TaskPermit) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the permit; kill it after the block if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(permit.directory), permit.number],
        stdout=subprocess.PIPE,
        text=True,
    ) as task:
        try:
            assert task.stdout is not None
            assert task.stdout.readline() == "held\n"
            yield task
        finally:
            task.kill()


def test_a_task_in_progress_is_killed_by_the_next_permit(tmp_path: Path) -> None:
    """No task of the previous loader works once the next one has its permit."""
    with start_task(issue_permit(tmp_path)) as task:
        second = issue_permit(tmp_path)
        assert task.wait(1) == -signal.SIGKILL
    with second.hold():
        assert len(list(tmp_path.glob("*.task"))) == 1
    assert not list(tmp_path.glob("*.task"))


def test_a_task_of_another_pipeline_goes_on(tmp_path: Path) -> None:
    """A permit ends the tasks of its own directory only."""
    with start_task(issue_permit(tmp_path / "shop")) as task:
        issue_permit(tmp_path / "bank")
        time.sleep(0.1)
        assert task.poll() is None


def test_a_late_task_refuses(tmp_path: Path) -> None:
    """A task that begins after the next loader does nothing, and leaves no file."""
    first = issue_permit(tmp_path)
    issue_permit(tmp_path)
    with pytest.raises(PermitOutdated), first.hold():
        raise AssertionError("it worked")
    assert not list(tmp_path.glob("*.task"))


def test_withdrawn_permits(tmp_path: Path) -> None:
    """After a reset no task works; a directory without permits stays as it is."""
    withdraw_permits(tmp_path)
    assert not list(tmp_path.iterdir())
    permit = issue_permit(tmp_path)
    withdraw_permits(tmp_path)
    with pytest.raises(PermitOutdated), permit.hold():
        raise AssertionError("it worked")


def test_the_file_of_an_ended_task_is_removed(tmp_path: Path) -> None:
    """The process id in it may belong to another program by now, which must live on."""
    issue_permit(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        (tmp_path / f"{other.pid}.task").touch()
        issue_permit(tmp_path)
        assert not list(tmp_path.glob("*.task"))
        assert other.poll() is None
        other.kill()


def test_a_task_that_cannot_be_killed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has its process id, and the loader does not begin."""
    monkeypatch.setattr(task_fence, "KILL_WAIT_S", 0.1)
    permit = issue_permit(tmp_path)
    with start_task(permit) as task, monkeypatch.context() as deaf:
        deaf.setattr(os, "kill", lambda *_: None)
        with pytest.raises(task_fence.TaskNotEnded, match=str(task.pid)):
            issue_permit(tmp_path)
