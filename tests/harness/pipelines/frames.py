"""Work of a batch whose tasks read frames of a log, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from harness.pipelines.changes import Change
from harness.pipelines.loader import LogMaker
from harness.pipelines.log import ITEM
from penstock.load.job import Work
from penstock.load.plan import Task, Window, plan_batch
from penstock.load.sql_target import view
from penstock.log.layout import list_segments
from penstock.log.segment import open_segment

SEGMENTS, ROWS = 3, 40


def task_of_log(directory: Path) -> Task:
    """Make a log of a few segments, and the one task that folds them; row n has gsn n."""
    log = LogMaker(directory)
    for number in range(SEGMENTS):
        for i in range(number * ROWS, (number + 1) * ROWS):
            log.transaction((ITEM, Change(op="I", gsn=0, after=(i, f"row {i}"))), relations=[ITEM])
        log.close_segment()
    log.writer.close()
    segments = [open_segment(file.path) for file in list_segments(directory)]
    window = Window(gsn_after=0, gsn_upto=SEGMENTS * ROWS)
    [task] = plan_batch([view(one) for one in segments], window).tasks
    for one in segments:
        one.close()
    return task


def work_of(task: Task, shipped: Any) -> Work:
    """Return the work that a worker gets, without the writer."""
    return Work(task=task, writer=cast("Any", None), shipped=shipped)


def read_notes() -> Callable[[Iterator[Work]], Iterable[str]]:
    """Return a function that reads the column `note` of all rows in order; sent by value."""

    def read(works: Iterator[Work]) -> Iterable[str]:
        from penstock.log.frames import FrameReader, read_batch

        for work in works:
            for ref in work.task.frames:
                reader = FrameReader(work.open(ref.path))
                batch = read_batch(reader, ref.entry, work.task.relation)
                yield from batch.column("after").field("note").to_pylist()

    return read


NOTES = [f"row {i}" for i in range(SEGMENTS * ROWS)]
