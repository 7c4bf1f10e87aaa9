"""Figures of Spark's tasks, added up and kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from harness.pipelines.changes import relation
from penstock.codec.ckt import FrameKind
from penstock.host.clock import RealClock
from penstock.load.job import TaskOutcome, Work
from penstock.load.job_figures import (
    JOBS_KEPT,
    REPORT_INTERVAL_S,
    Reporter,
    TaskFigures,
    figures_of,
    read_spark_report,
)
from penstock.load.plan import FrameRef, Task
from penstock.load.session import Session
from penstock.load.sql_target import figures
from penstock.log.frames import place_entry
from penstock.ports.target import StagedRows


class SetClock(RealClock):
    """A clock that moves only by sleeping."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        """Return the set time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        self.now_s += seconds


def tasks(count: int) -> list[TaskFigures]:
    """Return tasks, each longer than the previous one."""
    return [TaskFigures(of=f"t{n}", rows=n, size_bytes=10, seconds=n / 10) for n in range(count)]


def test_a_job_has_the_sums_and_the_longest_tasks() -> None:
    """Five tasks are named; the others are counted."""
    job = figures_of("changes", "changes 1 to 9", tasks(8), at_us=1)
    assert (job.tasks, job.rows, job.size_bytes, round(job.seconds, 3)) == (8, 28, 80, 2.8)
    assert [one.of for one in job.longest] == ["t7", "t6", "t5", "t4", "t3"]
    assert str(job).startswith("done: changes 1 to 9: 28 rows, 80 bytes, 2.80 s of 8 tasks (t7: 7 ")
    assert str(job).endswith("; and 3 more)")
    assert "more" not in str(figures_of("changes", "x", tasks(2), at_us=1))


def test_the_report_is_written_once_in_a_while(tmp_path: Path) -> None:
    """The report adds up what was not written."""
    clock = SetClock()
    reporter = Reporter(tmp_path / "run", clock=clock)
    assert read_spark_report(tmp_path / "run") is None
    reporter.begin("http://here")
    for _ in range(JOBS_KEPT + 1):
        reporter.add("changes", "x", tasks(2))
    report = read_spark_report(tmp_path / "run")
    assert report is not None
    assert (report.pid, report.ui, report.jobs) == (os.getpid(), "http://here", 0)
    clock.sleep(REPORT_INTERVAL_S)
    reporter.add("bulk load", "y", tasks(3))
    reporter.begin("")  # of a session that was restarted
    report = read_spark_report(tmp_path / "run")
    assert report is not None
    assert (report.ui, report.jobs, report.tasks) == ("", JOBS_KEPT + 2, 2 * (JOBS_KEPT + 1) + 3)
    assert len(report.last) == JOBS_KEPT
    assert report.last[-1].group == "bulk load"


@pytest.mark.parametrize(
    ("buckets", "shared", "read"), [(1, None, 900), (3, None, 900), (3, Path("x"), 300)]
)
def test_tasks_of_a_batch_are_named_by_table_and_part(
    buckets: int, shared: Path | None, read: int
) -> None:
    """Tasks have the staged rows and the bytes that were read."""
    shape = relation(("id", "integer", "int32"))
    frame = FrameRef(path=Path("0.ckt"), entry=place_entry(FrameKind.ROWS, 0, 900, 1))
    some = [
        Task(
            phase=0,
            relation=shape,
            frames=(frame,),
            gsn_after=0,
            gsn_upto=9,
            staging="s",
            bucket=bucket,
            buckets=buckets,
        )
        for bucket in range(buckets)
    ]
    done = [
        TaskOutcome(phase=0, staging="s", bucket=n, staged=StagedRows(in_table=n + 5), seconds=0.5)
        for n in range(buckets)
    ]
    works = [Work(task=task, writer=cast("Any", None), shared=shared) for task in some]
    found = figures(works, done)
    assert {one.size_bytes for one in found} == {read}
    assert [one.rows for one in found] == [n + 5 for n in range(buckets)]
    assert found[-1].of == ("public.t" if buckets == 1 else "public.t 3/3")


class Java:
    """Fake Java context of Spark: a job without tasks."""

    def __init__(self) -> None:
        self.described: list[str] = []

    def emptyRDD(self) -> Any:  # noqa: N802 - as Spark calls it
        return self

    def count(self) -> int:
        self.described.append("count")
        return 0


class Context:
    """Fake context of Spark, with web pages or without."""

    defaultParallelism = 1  # noqa: N815 - as Spark calls it

    def __init__(self, url: str) -> None:
        self.uiWebUrl = url
        self._jsc = Java()

    def setJobGroup(self, group: str, text: str) -> None:  # noqa: N802
        self._jsc.described.append(f"{group}: {text}")


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4040"])
def test_a_job_is_described_where_spark_has_pages(tmp_path: Path, url: str) -> None:
    """The description belongs to the group in which it ran."""
    context: Any = Context(url)
    gateway = cast("Any", None)
    session = Session(context, gateway, started_s=0.0, reporter=Reporter(tmp_path))
    session.with_jobs("bulk load").tell("of t", tasks(1))
    session.tell("of nothing", [])
    expected = ["bulk load: done: of t: 0 rows, 10 bytes, 0.00 s of 1 tasks (t0: 0 rows, "]
    said = context._jsc.described
    assert [one[: len(expected[0])] for one in said] == ([*expected, "count"] if url else [])
    report = read_spark_report(tmp_path)
    assert report is not None
    assert report.jobs == 1
