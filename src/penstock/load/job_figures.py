"""Figures of Spark's tasks: rows, bytes and seconds of each, and sums since the process began.

They are returned with each task's result, because Spark does not show accumulators of Python tasks.
So they are in the load's log and in `run/spark.json`, for the web page and its metrics, and, if
Spark's pages are enabled, in the description of a job without tasks that follows each job. For
displays, never for decisions.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import report_file
from penstock.load.plan import NAMES_SHOWN_MAX

REPORT_NAME = "spark.json"
REPORT_INTERVAL_S = 1.0
JOBS_KEPT = 10


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One task. of: table and part. rows: written rows. size_bytes: bytes read for them."""

    of: str
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the text for display."""
        return f"{self.of}: {self.rows:,} rows, {self.size_bytes:,} bytes, {self.seconds:.2f} s"


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One job. group: Spark's job group. of: description. longest: its longest tasks."""

    group: str
    of: str
    at_us: int
    tasks: int
    rows: int
    size_bytes: int
    seconds: float
    longest: tuple[TaskFigures, ...]

    def __str__(self) -> str:
        """Return the text for display."""
        each = "; ".join(map(str, self.longest))
        left = self.tasks - len(self.longest)
        more = f"; and {left} more" if left else ""
        return (
            f"done: {self.of}: {self.rows:,} rows, {self.size_bytes:,} bytes, {self.seconds:.2f} s "
            f"of {self.tasks} tasks ({each}{more})"
        )


class SparkReport(msgspec.Struct, kw_only=True):
    """Contents of `run/spark.json`. pid: the load's. ui: URL of Spark's pages, empty if disabled.

    The sums are those of this process. last: the newest jobs, oldest first.
    """

    pid: int
    ui: str = ""
    jobs: int = 0
    tasks: int = 0
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    last: tuple[JobFigures, ...] = ()

    def add(self, job: JobFigures) -> None:
        """Add a job that has ended."""
        self.jobs += 1
        self.tasks += job.tasks
        self.rows += job.rows
        self.size_bytes += job.size_bytes
        self.seconds += job.seconds
        self.last = (*self.last, job)[-JOBS_KEPT:]


def figures_of(group: str, of: str, tasks: Iterable[TaskFigures], *, at_us: int) -> JobFigures:
    """Return the sums of a job's tasks, and its longest tasks."""
    every = list(tasks)
    return JobFigures(
        group=group,
        of=of,
        at_us=at_us,
        tasks=len(every),
        rows=sum(one.rows for one in every),
        size_bytes=sum(one.size_bytes for one in every),
        seconds=sum(one.seconds for one in every),
        longest=tuple(heapq.nlargest(NAMES_SHOWN_MAX, every, key=lambda one: one.seconds)),
    )


class Reporter:
    """Keeper of this process's report, also across sessions."""

    def __init__(
        self, directory: Path, *, clock: Clock = REAL_CLOCK, files: Files = REAL_FILES
    ) -> None:
        """Keep the directory of the file, which is written after the first job."""
        self._directory = directory
        self._clock = clock
        self._files = files
        self._report = SparkReport(pid=os.getpid())
        self._written_s = float("-inf")

    def begin(self, ui: str) -> None:
        """Record that a session has started."""
        self._report.ui = ui
        self._write()

    def add(self, group: str, of: str, tasks: Sequence[TaskFigures]) -> JobFigures:
        """Add a job that has ended; write the file from time to time."""
        job = figures_of(group, of, tasks, at_us=self._clock.now_us())
        self._report.add(job)
        if self._clock.monotonic_s() - self._written_s >= REPORT_INTERVAL_S:
            self._write()
        return job

    def _write(self) -> None:
        self._written_s = self._clock.monotonic_s()
        self._files.make_directory(self._directory)
        report_file(self._directory / REPORT_NAME, SparkReport, self._files).save(self._report)


def read_spark_report(directory: Path, files: Files = REAL_FILES) -> SparkReport | None:
    """Return the report that the load last wrote, or None."""
    return report_file(directory / REPORT_NAME, SparkReport, files).load()
