"""Hard links of consumers: isolation, limits, gaps, and what frees the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from penstock.host.state_of_log import StateOfOtherLog
from penstock.log import SegmentMissing, Writer, WriterOptions, links, next_segments, open_segment

GROUPS = number_rows([inserts(2, first=2 * n) for n in range(12)])


def rotate_once(log: Writer) -> None:
    """Write one more transaction and one more segment."""
    log.write(run_of(GROUPS[log.durable.trx]))
    assert log.rotate() is not None


def names(directory: Path) -> list[str]:
    """Return the names of segments in a directory, by number."""
    return sorted((p.name for p in directory.glob("*.ckt")), key=lambda name: int(name[:-4]))


def open_log(root: Path) -> Writer:
    """Open a log whose consumers live beside it."""
    options = WriterOptions(consumers=root / "cdc")
    return Writer.open(root / "log", log_id=None, source=SOURCE, options=options)


def test_enabled_consumers_get_a_link_at_each_rotation(tmp_path: Path) -> None:
    """A link is the same file under a second name; consumers know nothing of each other."""
    with open_log(tmp_path) as log:
        rotate_once(log)
        links.enable(tmp_path / "cdc" / "lake")
        rotate_once(log)
        links.enable(tmp_path / "cdc" / "audit")
        rotate_once(log)
        links.disable(tmp_path / "cdc" / "lake")
        rotate_once(log)
    assert names(tmp_path / "cdc" / "lake") == ["1.ckt", "2.ckt"]
    assert names(tmp_path / "cdc" / "audit") == ["2.ckt", "3.ckt"]
    (tmp_path / "cdc" / "no-consumer").mkdir()
    (tmp_path / "cdc" / "file").write_text("")
    assert links.enabled_consumers(tmp_path / "cdc") == ["audit"]
    linked = tmp_path / "cdc" / "audit" / "3.ckt"
    assert os.stat(linked).st_ino == os.stat(tmp_path / "log" / "3.ckt").st_ino  # noqa: PTH116


def test_a_segment_lives_until_its_last_link_goes(tmp_path: Path) -> None:
    """The loader removed it from the log; the consumer still reads it."""
    links.enable(tmp_path / "cdc" / "lake")
    with open_log(tmp_path) as log:
        rotate_once(log)
        rotate_once(log)
    for path in (tmp_path / "log").glob("*.ckt"):
        path.unlink()
    lake = tmp_path / "cdc" / "lake"
    found = next_segments(lake, after=-1, count_max=10)
    assert [file.number for file in found] == [0, 1]
    with open_segment(found[0].path) as segment:
        assert segment.totals.rows == 2
    assert links.release(lake, through=0, log_id=log.log_id) == 1
    assert [file.number for file in next_segments(lake, after=0, count_max=10)] == [1]


def test_a_consumer_at_its_size_limit_is_skipped_and_meets_the_hole(tmp_path: Path) -> None:
    """The gap is never silent: the next segment that it gets is not the next number."""
    lake = tmp_path / "cdc" / "lake"
    with open_log(tmp_path) as log:
        rotate_once(log)
        size = (tmp_path / "log" / "0.ckt").stat().st_size
        links.enable(lake, size_bytes_max=size * 5 // 2)
        for _ in range(3):
            rotate_once(log)
        assert names(lake) == ["1.ckt", "2.ckt"]
        links.release(lake, through=2, log_id=log.log_id)
        rotate_once(log)
    assert names(lake) == ["4.ckt"]
    with pytest.raises(SegmentMissing, match="last segment 2, next 4"):
        next_segments(lake, after=2, count_max=10)


def test_links_before_the_last_hole_are_deleted_as_document_002_says(tmp_path: Path) -> None:
    """The first three of 2 3 8 10 11 are deleted."""
    for number in (2, 3, 8, 10, 11):
        (tmp_path / f"{number}.ckt").write_text("")
    assert [file.number for file in links.delete_lost(tmp_path)] == [2, 3, 8]
    assert names(tmp_path) == ["10.ckt", "11.ckt"]
    assert links.delete_lost(tmp_path) == []


def test_without_a_hole_no_link_is_deleted(tmp_path: Path) -> None:
    """Directories with one link and with none keep what they have."""
    assert links.delete_lost(tmp_path) == []
    (tmp_path / "5.ckt").write_text("")
    assert links.delete_lost(tmp_path) == []
    assert names(tmp_path) == ["5.ckt"]


def test_linking_again_changes_nothing(tmp_path: Path) -> None:
    """Recovery does so when it cannot know."""
    with open_log(tmp_path) as log:
        rotate_once(log)
        links.enable(tmp_path / "cdc" / "lake")
        for _ in range(2):
            assert links.link_segment(tmp_path / "cdc" / "lake", tmp_path / "log" / "0.ckt")
    assert names(tmp_path / "cdc" / "lake") == ["0.ckt"]
    assert not links.link_segment(tmp_path / "log", tmp_path / "log" / "0.ckt")


@pytest.mark.parametrize("seed", range(12))
def test_a_link_survives_a_power_cut(seed: int) -> None:
    """A link survives from the moment on that it counts as created: it is not created again."""
    disk = Disk(seed)
    log, lake = Path("/log"), Path("/cdc/lake")
    links.enable(lake, files=disk)
    with Writer.open(log, log_id=None, source=SOURCE, files=disk) as writer:
        rotate_once(writer)
        assert links.link_segment(lake, log / "0.ckt", disk)
    disk.power_cut()
    assert [file.number for file in next_segments(lake, after=-1, count_max=9, files=disk)] == [0]


@pytest.mark.parametrize("through", [0, 1, 9])
def test_links_of_another_log_are_not_released(tmp_path: Path, through: int) -> None:
    """Another log's number says nothing about them; links of this log are removed."""
    lake = tmp_path / "cdc" / "lake"
    links.enable(lake)
    with open_log(tmp_path) as log:
        rotate_once(log)
        rotate_once(log)
    with pytest.raises(StateOfOtherLog, match="that lake has read up to belongs to change log b"):
        links.release(lake, through=through, log_id="b")
    assert names(lake) == ["0.ckt", "1.ckt"]
    links.release(lake, through=through, log_id=log.log_id)
    assert names(lake) == ["0.ckt", "1.ckt"][through + 1 :]
