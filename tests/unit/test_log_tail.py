"""The open segment, read while it is being written: its durable part is visible, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import (
    SOURCE,
    announced_batch,
    end_point,
    inserts,
    number_rows,
    plain_rows,
    plain_segment,
    run_of,
    truncate,
)
from penstock.host.files import FileMissing
from penstock.log import SegmentCorrupt, Writer, check
from penstock.log.layout import DURABLE_NAME, read_durable
from penstock.log.segment import LogFollower, SegmentOpener, open_segment
from penstock.model import Run

LOG = Path("/log")
GROUPS = number_rows([inserts(3), inserts(2, first=3), inserts(4, first=5)])


class Tail(SegmentOpener):
    """A reader that also finds the segment, as a loader does."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(files=disk)
        self.find = LogFollower(LOG, files=disk).find


def open_writer(disk: Disk) -> Writer:
    """Open a writer of the log in LOG."""
    return Writer.open(LOG, log_id=None, source=SOURCE, files=disk)


def read(tail: Tail, *, number: int = 0, trx_after: int = 0) -> list[Any] | None:
    """Return what is found after a transaction, with all earlier rows of the file."""
    file = tail.find(number=number, trx_after=trx_after)
    if file is None:
        return None
    with tail.open(file) as segment:
        assert not segment.is_closed
        segment.verify()
        return plain_segment(segment)


def test_each_flush_shows_more_and_what_is_not_flushed_is_not_there() -> None:
    """The same reader looks repeatedly, as in a loader."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        assert read(tail) is None, "nothing was written"
        log.write(run_of(GROUPS[0]))
        assert read(tail) is None, "nothing was flushed"
        log.flush()
        assert read(tail) == plain_rows(GROUPS[0])
        log.write(run_of(GROUPS[1]))
        assert read(tail) == plain_rows(GROUPS[0])
        assert read(tail, trx_after=1) is None, "nothing new is durable"
        log.flush()
        assert read(tail, trx_after=1) == plain_rows([*GROUPS[0], *GROUPS[1]])
        log.rotate()
        log.write(run_of(GROUPS[2]))
        log.flush()
        assert read(tail) is None, "the segment of this number is closed"
        assert read(tail, number=1, trx_after=2) == plain_rows(GROUPS[2])


def test_nothing_is_shown_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush point that can be read is not necessarily on the disk."""
    disk = Disk()
    tail = Tail(disk)
    seen: list[Any] = []
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        log.write(run_of(GROUPS[1]))
        file = log._segment.buffer._file  # type: ignore[union-attr]
        sync = file.fdatasync
        monkeypatch.setattr(
            file, "fdatasync", lambda: (seen.append(read(tail)), sync()), raising=False
        )
        log.flush()
        assert seen == [plain_rows(GROUPS[0])]
        assert read(tail) == plain_rows([*GROUPS[0], *GROUPS[1]])


def test_a_truncate_alone_is_news() -> None:
    """A TRUNCATE has no row, but a transaction."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        file = tail.find(number=0, trx_after=0)
        assert file is not None
        marker = truncate(3, 2, "item")
        end = end_point(2, 3)
        log.write(Run(markers=(marker,), transactions=announced_batch([2]), end=end))
        log.flush()
        file = tail.find(number=0, trx_after=1)
        assert file is not None
        with tail.open(file) as segment:
            assert list(segment.markers()) == [marker]


def test_a_file_that_is_closed_between_finding_and_reading() -> None:
    """The file has another name then, and more rows: the reader reads what was found."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        file = tail.find(number=0, trx_after=0)
        assert file is not None
        log.write(run_of(GROUPS[1]))
        log.rotate()
        with tail.open(file) as segment:
            assert plain_segment(segment) == plain_rows(GROUPS[0])
        with open_segment(LOG / "0.ckt", files=disk) as segment:
            assert plain_segment(segment) == plain_rows([*GROUPS[0], *GROUPS[1]])
        disk.unlink(LOG / "0.ckt")
        with pytest.raises(FileMissing):
            tail.open(file)


def test_an_idle_source_is_no_news() -> None:
    """The position moves on in the open segment, without a transaction."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        before = log.flush()
        end = type(before)(
            position=before.position + 9,
            gsn=before.gsn,
            trx=before.trx,
            commit_time_us=before.commit_time_us,
        )
        log.write(Run(end=end))
        log.flush()
        assert tail.find(number=0, trx_after=before.trx) is None


def test_damage_is_reported_and_not_read() -> None:
    """A flipped bit in the durable part is SegmentCorrupt, also at the next look."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        durable = read_durable(LOG, disk)
        assert durable is not None
        disk.flip(LOG / "0.ckt_", (durable.size_bytes - 40) * 8)
        for _ in range(2):
            with pytest.raises(SegmentCorrupt):
                read(tail)


@pytest.mark.parametrize("bit", [0, 40, 100, 300, 500, 630])
def test_a_damaged_mark_says_nothing(bit: int) -> None:
    """Only freshness is lost: closed segments are still read, the next flush repairs it."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        disk.flip(LOG / DURABLE_NAME, bit)
        assert read(tail) is None
        log.write(run_of(GROUPS[1]))
        log.flush()
        assert read(tail) == plain_rows([*GROUPS[0], *GROUPS[1]])


def test_the_mark_of_another_file_is_refused() -> None:
    """The number is the same, the file is not: an operator put the directory together."""
    disk = Disk()
    tail = Tail(disk)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        file = tail.find(number=0, trx_after=0)
        assert file is not None
        disk.unlink(LOG / "0.ckt_")
    disk.unlink(LOG / "LOG.json")
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        with pytest.raises(SegmentCorrupt, match="another segment"):
            tail.open(file)


def test_the_mark_is_a_file_of_the_log() -> None:
    """`penstock log check` knows it."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.rotate()
    assert disk.exists(LOG / DURABLE_NAME)
    assert check(LOG, files=disk) == []
