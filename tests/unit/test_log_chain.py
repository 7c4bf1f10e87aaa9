"""The chain of segments and state: by number, by file and by place, each checked on its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from penstock.log import Writer, load_state, open_segment
from penstock.log.layout import save_state
from penstock.log.reader import check_link
from penstock.log.recovery import ChainBroken
from penstock.model import FlushPoint

LOG = Path("/log")
GROUPS = number_rows([inserts(3), inserts(2, first=3)])


def open_writer(disk: Disk) -> Writer:
    """Open a writer on a simulated disk."""
    return Writer.open(LOG, log_id=None, source=SOURCE, files=disk)


def begin_log() -> Disk:
    """Return a log without a segment."""
    disk = Disk()
    open_writer(disk).close()
    return disk


def fill_log(disk: Disk, *, closed: bool) -> Disk:
    """Close segment 0, flush segment 1 and perhaps close it, too; the process is gone."""
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.rotate()
    log.write(run_of(GROUPS[1]))
    log.flush()
    if closed:
        log.rotate()
    disk.process_died()
    return disk


def move_end(disk: Disk, **changes: int) -> None:
    """Set the state's end to another place."""
    state = load_state(LOG, disk)
    assert state is not None
    end = FlushPoint(
        position=state.end.position + changes.get("position", 0),
        gsn=state.end.gsn + changes.get("gsn", 0),
        trx=state.end.trx + changes.get("trx", 0),
        commit_time_us=state.end.commit_time_us,
    )
    save_state(LOG, replace(state, end=end), disk)


def put(disk: Disk, name: str, other: Disk) -> None:
    """Replace a file by that of a twin, which has the same rows and another identity."""
    disk.unlink(LOG / name)
    disk.create(LOG / name).append([other.content(LOG / name)])


@pytest.mark.parametrize(
    "changes", [{"position": -1}, {"gsn": -1}, {"gsn": 1}, {"trx": -1}, {"trx": 1}]
)
def test_a_state_that_does_not_end_where_the_last_segment_does(changes: dict[str, int]) -> None:
    """Only an idle source moves it."""
    disk = fill_log(Disk(), closed=True)
    move_end(disk, **changes)
    with pytest.raises(ChainBroken):
        open_writer(disk)
    disk = fill_log(Disk(), closed=True)
    move_end(disk, position=1)
    open_writer(disk).close()


def test_an_open_segment_that_begins_before_the_state_ends() -> None:
    """The segment would repeat what the log already has."""
    disk = fill_log(Disk(), closed=False)
    move_end(disk, position=1)
    with pytest.raises(ChainBroken):
        open_writer(disk)


@pytest.mark.parametrize(("name", "closed"), [("1.ckt", True), ("1.ckt_", False)])
def test_a_segment_of_a_twin_does_not_fit(name: str, closed: bool) -> None:
    """A twin has the same log and places, but another process wrote it: a restored copy."""
    first = begin_log()
    second = copy.deepcopy(first)
    fill_log(first, closed=closed)
    fill_log(second, closed=closed)
    put(first, name, second)
    with pytest.raises(ChainBroken):
        open_writer(first)


def test_readers_see_each_break_of_the_chain() -> None:
    """Another file precedes it, or the segment ends elsewhere."""
    first = begin_log()
    second = copy.deepcopy(first)
    for disk in (first, second):
        fill_log(disk, closed=True)
    with (
        open_segment(LOG / "0.ckt", files=first) as one,
        open_segment(LOG / "0.ckt", files=second) as other,
        open_segment(LOG / "1.ckt", files=first) as segment,
    ):
        before = one.facts()
        check_link(before, segment)
        with pytest.raises(ChainBroken):
            check_link(other.facts(), segment)
        for end in (
            replace(before.end, position=before.end.position + 1),
            replace(before.end, gsn=before.end.gsn - 1),
            replace(before.end, trx=before.end.trx + 1),
        ):
            with pytest.raises(ChainBroken):
                check_link(replace(before, end=end), segment)
