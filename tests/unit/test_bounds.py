"""Exact bounds of a batch: the position of a hold, and the bulk start of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import SOURCE, commit_position, inserts, number_rows, run_of
from penstock.load.job import cut
from penstock.load.plan import Window, plan_batch
from penstock.load.sql_target import _end, view
from penstock.log import Segment, Writer, open_segment
from penstock.model import TableName
from penstock.ports.target import Applied

LOG = Path("/log")
ITEM = TableName("public", "item")
BEGIN = Applied()


@pytest.fixture(params=["one frame", "frames"])
def segment(request: pytest.FixtureRequest) -> Segment:
    """Three transactions of two rows each, all in one rows frame or in one each."""
    disk = Disk()
    groups = number_rows([inserts(2, first=2 * n) for n in range(3)])
    runs: Sequence[Sequence[object]] = groups
    if request.param == "one frame":
        runs = [[row for group in groups for row in group]]
    with Writer.open(LOG, log_id=None, source=SOURCE, files=disk) as log:
        for run in runs:
            log.write(run_of(run))  # type: ignore[arg-type]
        log.rotate()
    return open_segment(LOG / "0.ckt", files=disk)


@pytest.mark.parametrize(
    ("before", "gsn", "trx"),
    [
        (commit_position(1), 0, 0),
        (commit_position(1) + 1, 2, 1),
        (commit_position(2), 2, 1),
        (commit_position(2) + 1, 4, 2),
        (commit_position(3), 4, 2),
        (commit_position(3) + 1, 6, 3),
    ],
)
def test_a_hold_takes_what_was_committed_before_its_position(
    segment: Segment, before: int, gsn: int, trx: int
) -> None:
    """A row exactly at the position is not read: it is not in the snapshot that is compared."""
    end = _end([segment], BEGIN, before)
    assert (end.segment, end.gsn, end.trx, end.position) == (-1, gsn, trx, before)
    window = Window(gsn_after=0, gsn_upto=end.gsn, position_before=before)
    tasks = plan_batch([view(segment)], window, buckets_max=1).tasks
    taken = {ref.entry.gsn_first for task in tasks for ref in task.frames}
    assert taken == {
        entry.gsn_first
        for entry in segment.row_frames()
        if commit_position(entry.trx_first) < before
    }


@pytest.mark.parametrize(("copied", "is_read"), [(None, True), ({ITEM}, True), (set(), False)])
def test_a_table_whose_rows_were_never_copied_does_not_count(
    segment: Segment, copied: set[TableName] | None, is_read: bool
) -> None:
    """The table was dropped before the copy; if no table was copied, all tables count."""
    names = None if copied is None else frozenset(copied)
    window = Window(gsn_after=0, gsn_upto=6, copied=names)
    assert bool(plan_batch([view(segment)], window, buckets_max=1).tasks) is is_read


@pytest.mark.parametrize("trx", [1, 2, 3])
def test_frames_that_reach_a_tables_start_are_read(segment: Segment, trx: int) -> None:
    """A frame that began before it is read too: then each row's transaction decides."""
    start = commit_position(trx)
    window = Window(gsn_after=0, gsn_upto=6, starts={ITEM: start})
    [task] = plan_batch([view(segment)], window, buckets_max=1).tasks
    assert task.trx_from == trx
    kept = [
        cut(segment.read_rows(ref.entry).batch, gsn_after=0, gsn_upto=6, trx_from=task.trx_from)
        for ref in task.frames
    ]
    # A row exactly at the start is read, one before it is not, and each row is read once.
    assert [gsn for batch in kept for gsn in batch.column("gsn").to_pylist()] == list(
        range(2 * trx - 1, 7)
    )


def test_frames_before_a_tables_start_are_not_read(segment: Segment) -> None:
    """The bulk load has their rows."""
    window = Window(gsn_after=0, gsn_upto=6, starts={ITEM: commit_position(4)})
    assert plan_batch([view(segment)], window, buckets_max=1).tasks == ()


def test_the_index_tells_the_first_and_the_last_transaction(segment: Segment) -> None:
    """The index has both transactions, also for a frame of several transactions."""
    for entry in segment.row_frames():
        numbers = segment.read_rows(entry).batch.column("trx").to_pylist()
        assert (entry.trx_first, entry.trx_last) == (min(numbers), max(numbers))
