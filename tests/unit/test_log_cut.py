"""Bytes that recovery cuts off: kept unless the source has them, until the log has them again."""

from __future__ import annotations

import copy
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from harness.faults.disk import Disk, PowerCut
from harness.pipelines.log import (
    FLUSH_FRAME_BYTES,
    SOURCE,
    announced_batch,
    end_point,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock.codec.ckt import HEAD
from penstock.host.files import DiskFull
from penstock.log import Writer, check, open_segment
from penstock.log.cut import CutPlace, parse_cut_name
from penstock.model import Run

LOG = Path("/log")
GROUPS = number_rows([inserts(3), inserts(2, first=3), inserts(4, first=5), inserts(1, first=9)])


def open_writer(disk: Disk, resend_from: int | None = None) -> Writer:
    """Open a writer on a simulated disk."""
    return Writer.open(LOG, log_id=None, source=SOURCE, resend_from=resend_from, files=disk)


def crash_writer(*, torn_bytes: int = 0) -> Disk:
    """Write a flushed transaction and an unflushed one after it, as a crash leaves them.

    torn_bytes: that many bytes of its rows are missing too.
    """
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.flush()
    log.write(run_of(GROUPS[1]))
    log.flush()
    disk.process_died()
    size = len(disk.content(LOG / "0.ckt_")) - FLUSH_FRAME_BYTES
    if torn_bytes:
        with open_segment(LOG / "0.ckt_", files=disk) as segment:
            *_, rows = segment.row_frames()
        size = rows.offset_bytes + HEAD.size + rows.length_bytes - torn_bytes
    # Without its last flush point the second transaction is incomplete.
    disk.open_append(LOG / "0.ckt_").truncate(size)
    return disk


def cuts(disk: Disk) -> list[str]:
    """Return names of the cut files, and of files that a cut left unfinished."""
    return sorted(name for name in disk.listdir(LOG) if ".cut-" in name)


def test_names_of_cut_files() -> None:
    """Names have an open segment, an offset and a row; other names are not accepted."""
    assert parse_cut_name("7.ckt_.cut-4096-12") == CutPlace(4096, 12)
    for name in ("7.ckt.cut-4096-1", "7.ckt_.cut-4096", "7.ckt_.cut-0-1", "07.ckt_.cut-1-1"):
        assert parse_cut_name(name) is None
    assert parse_cut_name("7.ckt_.cut-4096-12", "log") is None


@pytest.mark.parametrize("resend_from", [0, end_point(1, 3).position])
def test_what_the_source_sends_again_is_not_kept(resend_from: int) -> None:
    """The source says so before the cut: the slot is at or before the log's last flush point."""
    disk = crash_writer()
    with open_writer(disk, resend_from) as log:
        assert log.resume == end_point(1, 3)
        assert log.cut_files == ()
    assert cuts(disk) == []


@pytest.mark.parametrize("resend_from", [None, end_point(1, 3).position + 1])
def test_what_the_source_may_not_have_any_more_is_kept(resend_from: int | None) -> None:
    """Every byte is kept and readable, and check reports it; it is deleted once the log has it
    again.
    """
    disk = crash_writer()
    before = disk.content(LOG / "0.ckt_")
    with open_writer(disk, resend_from) as log:
        assert log.resume == end_point(1, 3)
        (path,) = log.cut_files
        at = parse_cut_name(path.name)
        assert at is not None
        kept = disk.content(path)
        assert kept == before[:4096] + before[at.offset_bytes :]
        (finding,) = [f for f in check(LOG, files=disk) if f.code == "LG25"]
        assert (finding.severity, finding.file) == ("info", path.name)
        assert "2 rows up to gsn 5" in finding.message
        log.write(run_of(GROUPS[1][:1], ended=False))
        assert cuts(disk) == [path.name]
        log.write(run_of(GROUPS[1][1:]))
        assert cuts(disk) == [path.name], "not durable yet"
        log.flush()
        assert cuts(disk) == []
        assert log.cut_files == ()


def test_a_torn_tail_is_passed_by_the_next_row() -> None:
    """The bytes after its last whole frame are unknown: the log must have more than those."""
    disk = crash_writer(torn_bytes=8)
    with open_writer(disk) as log:
        assert len(log.cut_files) == 1
    with open_writer(disk) as log:
        assert len(log.cut_files) == 1
        log.write(Run(end=end_point(1, 3)))
        log.flush()
        assert len(log.cut_files) == 1
        log.write(run_of(GROUPS[1]))
        log.flush()
        assert log.cut_files == ()


def test_a_marker_behind_the_last_row_waits_for_the_next_row() -> None:
    """The marker's transaction has no row: row numbers do not tell whether the log has it."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.flush()
    emptied = Run(
        markers=(truncate(3, 2, "item"),), transactions=announced_batch([2]), end=end_point(2, 3)
    )
    log.write(emptied)
    log.flush()
    disk.process_died()
    disk.open_append(LOG / "0.ckt_").truncate(len(disk.content(LOG / "0.ckt_")) - FLUSH_FRAME_BYTES)
    with open_writer(disk) as log:
        assert len(log.cut_files) == 1
        log.write(emptied)
        log.flush()
        assert len(log.cut_files) == 1
        log.write(run_of([replace(row, trx=3, position=300) for row in GROUPS[1]]))
        log.flush()
    assert cuts(disk) == []


def test_a_file_without_any_flush_point_is_kept_whole() -> None:
    """No part of it stays in the log, so all of it is cut."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.flush()
    disk.process_died()
    disk.open_append(LOG / "0.ckt_").truncate(len(disk.content(LOG / "0.ckt_")) - FLUSH_FRAME_BYTES)
    before = disk.content(LOG / "0.ckt_")
    with open_writer(disk) as log:
        assert log.resume.position == 0
        assert disk.content(log.cut_files[0]) == before
    assert cuts(disk) == ["0.ckt_.cut-4096-0"]


def test_power_cut_at_every_operation_of_a_start_that_keeps() -> None:
    """The segment's bytes are at every moment complete, in the segment or in the cut file."""
    base = crash_writer()
    base.power_cut()  # the present content is durable
    before = base.content(LOG / "0.ckt_")
    tail = before[-200:]
    at = 0
    while True:
        disk = copy.deepcopy(base)
        disk.operation_count, disk.cut_at = 0, at
        try:
            open_writer(disk).close()
            break
        except PowerCut:
            disk.is_off, disk.cut_at = False, None
        disk.power_cut()
        names = [name for name in disk.listdir(LOG) if name.startswith("0.ckt_")]
        assert any(disk.content(LOG / name).endswith(tail) for name in names), names
        with open_writer(disk) as log:
            assert log.resume == end_point(1, 3)
            assert len(log.cut_files) == 1
            assert disk.content(log.cut_files[0]).endswith(tail)
        assert not [f for f in check(LOG, files=disk) if f.severity == "error"]
        at += 1
    assert at > 5


def test_a_full_disk_cuts_nothing() -> None:
    """Without room for the kept bytes the start fails, and the next one finds all of them."""
    base = crash_writer()
    before = base.content(LOG / "0.ckt_")
    for at in range(2):
        disk = copy.deepcopy(base)
        disk.operation_count = 0
        writes = [n for n, line in enumerate(_trace_of_a_start(base)) if line.startswith("write")]
        disk.fail_at = (writes[at], errno.ENOSPC)
        with pytest.raises(DiskFull):
            open_writer(disk)
        assert disk.content(LOG / "0.ckt_") == before
        disk.fail_at = None
        disk.process_died()
        with open_writer(disk) as log:
            assert len(log.cut_files) == 1


def _trace_of_a_start(base: Disk) -> list[str]:
    disk = copy.deepcopy(base)
    known = len(disk.trace)
    open_writer(disk).close()
    return disk.trace[known:]
