"""Faults of segment files: each has an error of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    inserts,
    number_rows,
    plain_rows,
    plain_segment,
    run_of,
    truncate,
)
from penstock.codec import ckt
from penstock.host.files import FileMissing
from penstock.log import (
    ChainBroken,
    LogForeign,
    SegmentCorrupt,
    SegmentMisnamed,
    SegmentMissing,
    Writer,
    check,
    list_segments,
    next_segments,
    open_chain,
    open_segment,
)
from penstock.model import FlushPoint, Op, Run, TableName

LOG = Path("/log")


def make_log(disk: Disk, segments: int = 3, *, leave_open: bool = False) -> None:
    """Write segments of a transaction of two rows each; with leave_open two flushes in another."""
    groups = number_rows([inserts(2, first=2 * n) for n in range(segments + 2 * leave_open)])
    with Writer.open(LOG, log_id=None, source=SOURCE, files=disk) as log:
        for group in groups[:segments]:
            log.write(run_of(group))
            log.rotate()
        for group in groups[segments:]:
            log.write(run_of(group))
            log.flush()


@pytest.fixture
def disk() -> Disk:
    """A disk with a log of three segments."""
    disk = Disk()
    make_log(disk)
    return disk


def overwrite(disk: Disk, name: str, content: bytes) -> None:
    """Replace a file by other bytes."""
    if disk.exists(LOG / name):
        disk.unlink(LOG / name)
    disk.create(LOG / name).append([content])


def errors(disk: Disk) -> list[tuple[str, str]]:
    """Return the errors of check() as (code, file)."""
    return [(f.code, f.file) for f in check(LOG, files=disk) if f.severity == "error"]


def test_segments_are_listed_by_number_not_by_name(disk: Disk) -> None:
    """10.ckt comes after 9.ckt; files with other names are not listed."""
    for name in ("10.ckt", "9.ckt", "007.ckt", "x.ckt", "3.ckt_", "4.ckt.tmp", "4.ckt2", ".ckt"):
        overwrite(disk, name, b"")
    assert [file.number for file in list_segments(LOG, files=disk)] == [0, 1, 2, 9, 10]


def test_a_directory_that_is_not_there_has_no_segments() -> None:
    """A loader may start before the extractor has created the directory."""
    assert list_segments(Path("/nowhere"), files=Disk()) == []
    assert next_segments(Path("/nowhere"), after=-1, count_max=3, files=Disk()) == []


def test_next_segments_are_consecutive_and_bounded(disk: Disk) -> None:
    """The requested number is returned, in order, from the segment after the last."""
    assert [f.number for f in next_segments(LOG, after=-1, count_max=2, files=disk)] == [0, 1]
    assert [f.number for f in next_segments(LOG, after=1, count_max=9, files=disk)] == [2]
    assert next_segments(LOG, after=2, count_max=9, files=disk) == []


def test_a_hole_in_the_numbers_is_reported_and_names_both_sides(disk: Disk) -> None:
    """The next existing segment never counts as the next one."""
    disk.unlink(LOG / "1.ckt")
    with pytest.raises(SegmentMissing, match="last segment 0, next 2") as caught:
        next_segments(LOG, after=-1, count_max=9, files=disk)
    assert caught.value.fields == {"after": 0, "next": 2}
    with pytest.raises(SegmentMissing, match=r"1\.ckt is not there"):
        next_segments(LOG, after=0, count_max=9, files=disk)
    with pytest.raises(SegmentMissing):
        open_chain(list_segments(LOG, files=disk), files=disk)
    assert errors(disk) == [(SegmentMissing.code, "2.ckt")]


def test_a_hole_behind_what_was_asked_for_does_not_stop_a_batch(disk: Disk) -> None:
    """The complete segments are loaded first."""
    disk.unlink(LOG / "1.ckt")
    assert [f.number for f in next_segments(LOG, after=-1, count_max=1, files=disk)] == [0]


def test_a_segment_cut_at_any_byte_is_corrupt(disk: Disk) -> None:
    """A closed segment is complete or refused; it has no torn tail."""
    content = disk.content(LOG / "1.ckt")
    for size in (*range(0, 4096, 97), *range(4090, len(content))):
        overwrite(disk, "1.ckt", content[:size])
        with pytest.raises(SegmentCorrupt):
            open_segment(LOG / "1.ckt", files=disk)


def test_a_segment_with_bytes_behind_its_trailer_is_corrupt(disk: Disk) -> None:
    """Appended bytes are damage, too."""
    content = disk.content(LOG / "1.ckt")
    overwrite(disk, "1.ckt", content + bytes(8))
    with pytest.raises(SegmentCorrupt, match="no trailer"):
        open_segment(LOG / "1.ckt", files=disk)
    overwrite(disk, "1.ckt", content + content[-32:])
    with pytest.raises(SegmentCorrupt, match="bad file size"):
        open_segment(LOG / "1.ckt", files=disk)


def test_a_damaged_footer_is_reported_with_file_and_byte(disk: Disk) -> None:
    """The error says where to look, what was expected and what was found."""
    content = disk.content(LOG / "1.ckt")
    disk.flip(LOG / "1.ckt", (len(content) - 40) * 8)
    with pytest.raises(SegmentCorrupt, match=r"1\.ckt is damaged: bad checksum at byte") as caught:
        open_segment(LOG / "1.ckt", files=disk)
    assert caught.value.fields["path"] == "/log/1.ckt"
    assert caught.value.fields.keys() == {"path", "offset_bytes", "expected", "actual"}
    assert errors(disk)[0] == (SegmentCorrupt.code, "1.ckt")


def test_an_empty_or_foreign_file_is_not_a_segment(disk: Disk) -> None:
    """A typed error is raised, whatever the bytes are."""
    for content in (b"", b"\x89CKT", b"PAR1" * 2000, bytes(5000)):
        overwrite(disk, "3.ckt", content)
        with pytest.raises(SegmentCorrupt, match="not a segment file"):
            open_segment(LOG / "3.ckt", files=disk)
    with pytest.raises(FileMissing):
        open_segment(LOG / "4.ckt", files=disk)


def test_a_renamed_segment_is_noticed_by_its_header(disk: Disk) -> None:
    """1.ckt under the name 3.ckt would be applied twice."""
    overwrite(disk, "3.ckt", disk.content(LOG / "1.ckt"))
    with pytest.raises(SegmentMisnamed, match="it is segment 1"):
        open_segment(LOG / "3.ckt", files=disk)
    assert (SegmentMisnamed.code, "3.ckt") in errors(disk)


def test_a_segment_of_another_log_in_the_chain_is_refused(disk: Disk) -> None:
    """Number and start are the same and the file is complete: only the ids differ."""
    other = Disk()
    make_log(other)
    overwrite(disk, "1.ckt", other.content(LOG / "1.ckt"))
    with pytest.raises(LogForeign):
        open_chain(list_segments(LOG, files=disk), files=disk)
    assert (LogForeign.code, "1.ckt") in errors(disk)


def test_a_batch_must_continue_what_was_applied(disk: Disk) -> None:
    """A first segment that starts after the row following the last applied one would skip rows."""
    later = list_segments(LOG, files=disk)[1:]
    assert [s.number for s in open_chain(later, gsn_applied=2, files=disk)] == [1, 2]
    assert [s.number for s in open_chain(later, gsn_applied=3, files=disk)] == [1, 2]
    with pytest.raises(ChainBroken, match="expected gsn 1"):
        open_chain(later, gsn_applied=1, files=disk)
    with pytest.raises(LogForeign):
        open_chain(later, log_id="00000000-0000-0000-0000-000000000000", files=disk)


def test_damage_to_rows_stops_the_reader_at_that_frame(disk: Disk) -> None:
    """Earlier frames are returned, no part of the damaged one is."""
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        entry = next(iter(segment.row_frames()))
    disk.flip(LOG / "1.ckt", (entry.offset_bytes + 16 + 60) * 8)
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        assert segment.totals.rows == 2
        with pytest.raises(SegmentCorrupt, match=f"bad checksum at byte {entry.offset_bytes}"):
            list(segment.rows())


def test_swapped_frames_of_equal_length_are_noticed(disk: Disk) -> None:
    """A checksum includes the place: a frame from elsewhere in the file, or another file, is
    refused.
    """
    content = bytearray(disk.content(LOG / "1.ckt"))
    other = disk.content(LOG / "2.ckt")
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        entry = next(iter(segment.row_frames()))
    span = slice(entry.offset_bytes, entry.offset_bytes + 16 + entry.length_bytes)
    content[span] = other[span]
    overwrite(disk, "1.ckt", bytes(content))
    with (
        open_segment(LOG / "1.ckt", files=disk) as segment,
        pytest.raises(SegmentCorrupt, match="bad checksum"),
    ):
        list(segment.rows())


def test_an_open_segment_is_read_up_to_its_last_flush_point() -> None:
    """Later frames are not a transaction yet, whether they are complete or not."""
    disk = Disk()
    make_log(disk, 0, leave_open=True)
    with open_segment(LOG / "0.ckt_", files=disk) as segment:
        assert not segment.is_closed
        assert segment.totals.rows == 4
        assert segment.totals.flush_points == 2
        assert len(plain_segment(segment)) == 4
    disk.open_append(LOG / "0.ckt_").append([b"torn"])
    with open_segment(LOG / "0.ckt_", files=disk) as segment:
        assert segment.totals.rows == 4
    assert errors(disk) == []


def test_a_file_moved_away_can_still_be_read(tmp_path: Path) -> None:
    """DoneDirectory may keep it under any name."""
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as log:
        log.write(run_of(number_rows([inserts(2)])[0]))
        log.rotate()
    shutil.move(tmp_path / "log" / "0.ckt", tmp_path / "kept")
    with open_segment(tmp_path / "kept") as segment:
        assert segment.number == 0


def test_index_tells_what_frames_hold_without_reading_them(disk: Disk) -> None:
    """The index has ABSENT columns, operations, updates with before images, positions, rows per
    table.
    """
    changes = [
        Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02"),
        Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,)),
        Change(relation=ITEM, op=Op.DELETE, after=None, before=(2,)),
        Change(relation=EVENT, op=Op.INSERT, after=(None,) * 6),
        Change(relation=ITEM_2, op=Op.INSERT, after=(5, "y", None)),
    ]
    other = Disk()
    with Writer.open(LOG, log_id=None, source=SOURCE, files=other) as log:
        log.write(run_of(number_rows([changes])[0], markers=[truncate(4, 1, "item")]))
        closed = log.rotate()
    assert closed is not None
    assert (closed.gsn_first, closed.gsn_last, closed.marker_count) == (1, 5, 1)
    assert [(t.name, t.version, t.rows, t.gsn) for t in closed.tables] == [
        ("item", 1, 3, 0),
        ("événement", 1, 1, 3),
        ("item", 2, 1, 4),
    ]
    with open_segment(LOG / "0.ckt", files=other) as segment:
        first, second, third = segment.row_frames()
        flags = ckt.RowsFlag.ABSENT | ckt.RowsFlag.UPDATE | ckt.RowsFlag.DELETE
        assert (first.flags, first.updates_with_before, first.row_count) == (flags, 1, 3)
        assert (second.flags, third.flags) == (ckt.RowsFlag.INSERT, ckt.RowsFlag.INSERT)
        assert (first.trx_first, first.trx_last) == (1, 1)
        assert [e.gsn_first for e in segment.row_frames(table=TableName("public", "item"))] == [
            1,
            5,
        ]
        assert list(segment.row_frames(table=TableName("public", "none"))) == []
        assert [(gsn, r.version) for gsn, r in segment.relations() if r.name == "item"] == [
            (0, 1),
            (4, 2),
        ]


def test_relations_without_rows_keep_their_place_and_never_follow_a_later_version() -> None:
    """A shape that is older than one with rows in the segment would look like a change back."""
    disk = Disk()
    groups = number_rows([inserts(2), [Change(relation=ITEM_2, op=Op.INSERT, after=(1, "", None))]])
    with Writer.open(LOG, log_id=None, source=SOURCE, files=disk) as log:
        log.write(run_of(groups[0]))
        log.write(Run(relations=(EVENT,), end=FlushPoint(position=155, gsn=2, trx=1)))
        run = run_of(groups[1])
        log.write(replace(run, relations=(ITEM,)))
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        found = [(gsn, r.name, r.version) for gsn, r in segment.relations()]
    assert found == [(0, "item", 1), (2, "événement", 1), (2, "item", 2)]


def test_rows_after_a_number_are_cut_inside_a_batch(disk: Disk) -> None:
    """A batch that was applied in part continues at the next row."""
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        expected = plain_segment(segment)
        for gsn in range(2, 5):
            batches = list(segment.rows(gsn_after=gsn))
            assert sum(rows.batch.num_rows for rows in batches) == 4 - gsn
        assert expected == plain_rows(number_rows([inserts(2, first=2 * n) for n in range(3)])[1])


def test_check_is_content_with_a_whole_log_and_one_being_written() -> None:
    """There are no errors, and files that are not the log's are only mentioned."""
    disk = Disk()
    make_log(disk, 2, leave_open=True)
    overwrite(disk, "notes.txt", b"")
    findings = check(LOG, files=disk)
    assert [(f.severity, f.file) for f in findings] == [("info", "notes.txt"), ("info", "2.ckt_")]


def test_check_sees_a_footer_that_does_not_tell_what_the_file_holds(disk: Disk) -> None:
    """The footer's checksums are right, its content is wrong: a defect, not the disk, caused it."""
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        entries = tuple(e for e in segment.entries if e.kind != ckt.FrameKind.ROWS)
        salt = ckt.checksum_salt(segment.header.file_id)
        last = segment.entries[-1]
        end = last.offset_bytes + ckt.HEAD.size + last.length_bytes
        payload = ckt.encode_footer(entries, segment.totals)
    footer = b"".join(ckt.frame(ckt.FrameKind.FOOTER, salt, end, payload))
    size = end + len(footer) + ckt.TRAILER_SIZE
    content = disk.content(LOG / "1.ckt")[:end] + footer + ckt.encode_trailer(salt, end, size)
    overwrite(disk, "1.ckt", content)
    assert (SegmentCorrupt.code, "1.ckt") in errors(disk)
