"""Doctor and verify, begun by a button: each is a process, and its results are shown at once.

It is a process because that can be ended at any moment, and ends with us.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import structlog

from penstock.control.run.child_ends import describe_end
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.process import Child
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError

logger = structlog.get_logger()
TASK_MODULE = "penstock.web.task"
TASKS_MAX = 4
END_WITHIN_S = 5.0


class TaskKind(StrEnum):
    """Kinds of tasks."""

    DOCTOR = "doctor"
    VERIFY = "verify"


class Stage(StrEnum):
    """Progress of a task."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class TaskRuns(PenstockError):
    """The requested task is already running."""

    code = "WB03"


class TooManyTasks(PenstockError):
    """Too many checks and comparisons are running to begin another."""

    code = "WB04"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """Known facts of a task.

    Attributes:
        stage: Its progress.
        number: Grows with every change of the task.
        began_us: When it began, UTC microseconds.
        ended_us: When it ended; 0 before.
        findings: Doctor's, in the order of their arrival, and sorted once there is a report.
        waiting: What verify waits for; empty if it does not.
        progress: How far verify is.
        report: Doctor's result, as `--json` prints it.
        result: Verify's result, as `--json` prints it.
        error: The error that ended the task, as `--json` prints it.
    """

    stage: Stage = Stage.NONE
    number: int = 0
    began_us: int = 0
    ended_us: int = 0
    findings: tuple[dict[str, Any], ...] = ()
    waiting: str = ""
    progress: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class WebTask:
    """Running or ended process of a task. Any thread may read `view`."""

    def __init__(
        self, kind: TaskKind, path: Path, on_change: Callable[[], object], clock: Clock
    ) -> None:
        """Start the process. Raises ProcessNotStarted."""
        self.view = TaskView(stage=Stage.RUNNING, number=1, began_us=clock.now_us())
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._stopping = False
        arguments = [sys.executable, "-m", TASK_MODULE, str(kind), str(path)]
        self._child = Child(arguments, on_line=self._take)
        self._waiter = SupervisedThread(f"web-{kind}", self._wait, wait=clock.sleep)
        self._waiter.start()

    def stop(self) -> None:
        """Ask the process to end."""
        self._stopping = True
        self._child.signal(signal.SIGTERM)

    def close(self) -> None:
        """End the process and wait until it has ended."""
        self.stop()
        if self._child.wait(END_WITHIN_S) is None:
            self._child.kill_group()
        self._waiter.join(timeout=END_WITHIN_S)

    def _take(self, line: str) -> None:
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            logger.warning("a task printed a line that is not JSON", line_length=len(line))
            return
        view = self.view
        if "finding" in event:
            self._change(findings=(*view.findings, event["finding"]))
        elif "report" in event:
            self._note_done(report=event["report"], findings=tuple(event["report"]["findings"]))
        elif "waiting" in event:
            self._change(waiting=event["waiting"])
        elif "progress" in event:
            self._change(progress=event["progress"], waiting="")
        elif "result" in event:
            self._note_done(result=event["result"], waiting="")
        elif "error" in event:
            self._change(error=event["error"], waiting="")

    def _note_done(self, **fields: Any) -> None:
        """Note that everything is reported; the process ends a moment later."""
        self._change(stage=Stage.DONE, ended_us=self._clock.now_us(), **fields)

    def _wait(self) -> None:
        code = None
        while code is None:
            code = self._child.wait(1.0)
        self._child.close()
        view = self.view
        if view.stage is Stage.DONE:
            return
        stage, error = Stage.STOPPED if self._stopping else Stage.FAILED, view.error
        if error is None and stage is Stage.FAILED:
            text = f"{describe_end('', code)} and left no message"
            error = {"code": "PS99", "error": text, "hint": "Try the command in a terminal."}
        self._change(stage=stage, ended_us=self._clock.now_us(), error=error, waiting="")

    def _change(self, **fields: Any) -> None:
        with self._lock:
            self.view = replace(self.view, number=self.view.number + 1, **fields)
        self._on_change()


class Tasks:
    """Newest task of each kind, for each pipeline. Changed by one thread; any may call `view`."""

    def __init__(self, *, clock: Clock = REAL_CLOCK) -> None:
        self._clock = clock
        self._tasks: dict[tuple[str, TaskKind], WebTask] = {}

    def view(self, pipeline: str, kind: TaskKind) -> TaskView:
        """Return the known facts of the newest task."""
        task = self._tasks.get((pipeline, kind))
        return task.view if task is not None else TaskView()

    def begin(
        self,
        pipeline: str,
        kind: TaskKind,
        path: Path,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """Start a task. Raises TaskRuns, TooManyTasks, ProcessNotStarted."""
        running = [key for key, task in self._tasks.items() if task.view.stage is Stage.RUNNING]
        if (pipeline, kind) in running:
            raise TaskRuns(f"{kind} of {pipeline} is already running", hint="Wait for its end.")
        if len(running) >= TASKS_MAX:
            raise TooManyTasks(
                f"{len(running)} checks and comparisons are running; no more are begun",
                hint="Wait until one has ended, or stop it.",
            )
        self._tasks[pipeline, kind] = WebTask(kind, path, on_change, self._clock)

    def stop(self, pipeline: str, kind: TaskKind) -> None:
        """Ask the running task to end, if one runs."""
        task = self._tasks.get((pipeline, kind))
        if task is not None:
            task.stop()

    def close(self) -> None:
        """End all running tasks."""
        for task in self._tasks.values():
            task.close()
