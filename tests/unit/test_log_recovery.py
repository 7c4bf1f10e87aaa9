"""Recovery: the result of a start for everything that a crash, or an operator, can leave."""

from __future__ import annotations

import copy
import errno
from pathlib import Path

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import FLUSH_FRAME_BYTES, SOURCE, end_point, inserts, number_rows, run_of
from penstock.codec import ckt
from penstock.codec.ckt import HEADER_REGION_SIZE, FrameKind
from penstock.host import faults
from penstock.host.files import FileFailed
from penstock.host.state_file import CheckpointCorrupt
from penstock.log import (
    LogForeign,
    SegmentCorrupt,
    Writer,
    WriterOptions,
    check,
    load_state,
    open_segment,
)
from penstock.log.closing import SegmentPresent
from penstock.log.frames import FrameReader
from penstock.log.recovery import ChainBroken, LeftoverUnexpected
from penstock.log.segment import scan_frames
from penstock.model import FlushPoint

LOG = Path("/log")
GROUPS = number_rows([inserts(3), inserts(2, first=3), inserts(4, first=5)])


def open_writer(disk: Disk) -> Writer:
    """Open a writer on a simulated disk."""
    return Writer.open(LOG, log_id=None, source=SOURCE, files=disk)


def left_over(*, flushes: int = 2) -> Disk:
    """Return a disk with a closed segment, an open one of some flushes, and a dead process."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.rotate()
    log.write(run_of(GROUPS[1]))
    if flushes:
        log.flush()
    log.write(run_of(GROUPS[2]))
    if flushes > 1:
        log.flush()
    disk.process_died()
    return disk


def test_a_tail_torn_at_any_byte_is_cut_at_the_last_flush_point() -> None:
    """The cut is there whatever part of the last flush reached the disk."""
    base = left_over()
    whole = base.content(LOG / "1.ckt_")
    with open_segment(LOG / "1.ckt_", files=base) as segment:
        heads = [e.offset_bytes for e in segment.entries]
        first, second = (
            e.offset_bytes + FLUSH_FRAME_BYTES
            for e in segment.entries
            if e.kind == ckt.FrameKind.FLUSH_POINT
        )
    assert second == len(whole)
    # Cuts are at every byte near a frame's head, and at every fifth of long payloads.
    near = {head + step for head in heads for step in range(-3, 20)}
    for size in range(first, second + 1):
        if size % 5 and size not in near and size not in (second, second - 1):
            continue
        disk = copy.deepcopy(base)
        disk.open_append(LOG / "1.ckt_").truncate(size)
        with open_writer(disk) as log:
            assert log.resume == (end_point(3, 9) if size == second else end_point(2, 5))
        assert not [f for f in check(LOG, files=disk) if f.severity == "error"]


def test_damage_to_durable_bytes_of_an_open_segment_is_corruption_not_a_torn_tail() -> None:
    """The later flush point proves that those bytes were on the disk: nothing is cut off."""
    disk = left_over()
    with open_segment(LOG / "1.ckt_", files=disk) as segment:
        rows = next(iter(segment.row_frames()))
    disk.flip(LOG / "1.ckt_", (rows.offset_bytes + 100) * 8)
    before = disk.content(LOG / "1.ckt_")
    with pytest.raises(SegmentCorrupt, match=f"byte {rows.offset_bytes}"):
        open_writer(disk)
    assert disk.content(LOG / "1.ckt_") == before
    assert (SegmentCorrupt.code, "1.ckt_") in [(f.code, f.file) for f in check(LOG, files=disk)]


def test_a_damaged_header_in_front_of_rows_is_corruption() -> None:
    """The header was durable before any row."""
    disk = left_over()
    disk.flip(LOG / "1.ckt_", 30 * 8)
    with pytest.raises(SegmentCorrupt):
        open_writer(disk)


@pytest.mark.parametrize("size", [0, 8, 4095, 4096])
def test_an_open_segment_without_anything_in_it_is_discarded(size: int) -> None:
    """Torn or complete, a header alone has no changes."""
    disk = left_over()
    content = disk.content(LOG / "1.ckt_")[:size]
    disk.unlink(LOG / "1.ckt_")
    disk.create(LOG / "1.ckt_").append([content])
    with open_writer(disk) as log:
        assert log.resume == end_point(1, 3)
        assert log.segment_number == 1
    assert "1.ckt_" not in disk.listdir(LOG)


def test_state_is_made_again_from_the_segments() -> None:
    """The segments are the truth."""
    for flushes, expected in ((0, end_point(1, 3)), (1, end_point(2, 5))):
        disk = left_over(flushes=flushes)
        disk.unlink(LOG / "LOG.json")
        with open_writer(disk) as log:
            assert log.resume == expected
    disk = left_over()
    disk.unlink(LOG / "LOG.json")
    disk.unlink(LOG / "0.ckt")
    with open_writer(disk) as log:
        assert log.resume == end_point(3, 9)
        assert [closed.number for closed in log.recovered] == [1]


def test_a_damaged_state_file_is_refused() -> None:
    """Trusting half of it would give numbers twice."""
    disk = left_over()
    disk.flip(LOG / "LOG.json", 40 * 8)
    with pytest.raises(CheckpointCorrupt):
        open_writer(disk)


def test_a_state_older_than_the_segments_gives_way() -> None:
    """Segments are newer in a directory that was put together from copies."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.rotate()
        old = disk.content(LOG / "LOG.json")
        log.write(run_of(GROUPS[1]))
        log.rotate()
    disk.replace(LOG / "LOG.json", old)
    with open_writer(disk) as log:
        assert log.resume == end_point(2, 5)
        assert log.segment_number == 2


def test_the_log_goes_on_after_the_loader_removed_every_segment() -> None:
    """Numbers and positions are in the state if removeFiles is set."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.rotate()
    disk.unlink(LOG / "0.ckt")
    with open_writer(disk) as log:
        assert log.resume == end_point(1, 3)
        log.write(run_of(GROUPS[1]))
        closed = log.rotate()
    assert closed is not None
    assert (closed.number, closed.gsn_first) == (1, 4)


def test_a_crash_between_state_and_name_is_finished() -> None:
    """The state says that 0 is closed; the file still has its old name."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    with faults.arming("log.rename.before:1:error"), pytest.raises(faults.FaultInjected):
        log.rotate()
    disk.process_died()
    state = load_state(LOG, disk)
    assert state is not None
    assert state.number_next == 1
    assert "0.ckt_" in disk.listdir(LOG)
    with open_writer(disk) as log:
        assert [closed.number for closed in log.recovered] == [0]
        assert log.resume == end_point(1, 3)


def test_files_that_do_not_belong_there_stop_the_start() -> None:
    """Another number, another history, or both names at once are not guessed about."""
    content = left_over().content(LOG / "1.ckt_")
    disk = left_over()
    disk.create(LOG / "5.ckt_").append([content])
    with pytest.raises(LeftoverUnexpected):
        open_writer(disk)
    disk = left_over()
    disk.unlink(LOG / "1.ckt_")
    other = left_over()
    disk.create(LOG / "1.ckt_").append([other.content(LOG / "1.ckt_")])
    with pytest.raises((ChainBroken, LogForeign)):
        open_writer(disk)
    disk = left_over()
    disk.create(LOG / "0.ckt_").append([disk.content(LOG / "0.ckt")])
    with pytest.raises(SegmentPresent):
        open_writer(disk)


def test_left_overs_of_replaced_files_are_removed() -> None:
    """A crash inside a replacement leaves a temporary file."""
    disk = left_over()
    disk.create(LOG / "LOG.json.77.tmp")
    with open_writer(disk):
        assert "LOG.json.77.tmp" not in disk.listdir(LOG)


@pytest.mark.parametrize("buffer_bytes", [1, 2**20])
def test_a_flush_point_vouches_for_what_was_synced_before_it(buffer_bytes: int) -> None:
    """Bytes written with it are not covered: a crash in between is a torn tail, no corruption."""
    disk = Disk()
    options = WriterOptions(buffer_size_bytes_max=buffer_bytes)
    sizes = [HEADER_REGION_SIZE]
    groups = number_rows([inserts(2, first=2 * n) for n in range(3)])
    with Writer.open(LOG, log_id=None, source=SOURCE, options=options, files=disk) as log:
        for group in groups:
            log.write(run_of(group))
            log.flush()
            sizes.append(len(disk.content(LOG / "0.ckt_")))
        found = list(scan_frames(FrameReader(disk.open_read(LOG / "0.ckt_"))))
    flushes = [one.content for one in found if one.entry.kind == FrameKind.FLUSH_POINT]
    assert [one.durable_bytes for one in flushes] == sizes[:-1]


@pytest.mark.parametrize(
    ("gsn", "trx", "position", "expected"),
    [
        (5, 2, 250, True),
        (5, 2, 251, True),
        (5, 2, 249, False),
        (4, 2, 250, False),
        (6, 2, 250, False),
        (5, 1, 250, False),
        (5, 3, 250, False),
    ],
)
def test_what_continues_a_log(gsn: int, trx: int, position: int, expected: bool) -> None:
    """Rows and transactions are the same; an idle source moves the position forward, never back."""
    end = FlushPoint(position=250, gsn=5, trx=2)
    assert FlushPoint(position=position, gsn=gsn, trx=trx).continues(end) is expected


def test_bytes_that_a_failed_sync_may_have_lost_are_written_again() -> None:
    """Such bytes can be read, yet the disk has none of them: a later sync succeeds without them."""

    def write_and_fail(fail_at: tuple[int, int] | None) -> Disk:
        disk = Disk()
        log = open_writer(disk)
        log.write(run_of(GROUPS[0]))
        log.flush()
        log.write(run_of(GROUPS[1]))
        disk.fail_at = fail_at
        if fail_at is None:
            log.flush()
        else:
            with pytest.raises(FileFailed):
                log.flush()
        disk.process_died()
        return disk

    trace = write_and_fail(None).trace
    last = max(number for number, one in enumerate(trace) if one.startswith("fdatasync"))
    disk = write_and_fail((last, errno.EIO))
    wanted = open_writer(disk).resume
    assert wanted.gsn == 5, "the process that starts reads what was written"
    disk.power_cut()
    assert open_writer(disk).resume == wanted
    assert check(LOG, files=disk) == []
