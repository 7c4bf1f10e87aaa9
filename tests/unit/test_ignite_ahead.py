"""The segment after the current one: it is read ahead, which must not change the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.ignite.recordings import cdc_of, data_segment, entry_bytes
from harness.ignite.source import make_work_directory
from penstock.codec.ignite.errors import WalBroken
from penstock.engines.ignite.directory import NodeDirectory, open_directory
from penstock.host.files import REAL_FILES, FileMissing

SEGMENTS = {n: data_segment([[entry_bytes()] * (n + 1)], number=n) for n in range(3)}


def directory_of(folder: Path) -> NodeDirectory:
    """Return a node's directory with segments."""
    return open_directory(
        f"ignite://{make_work_directory(folder, SEGMENTS, 'words')}?consistentId=n"
    )


def wait_until_read(directory: NodeDirectory) -> None:
    """Wait until the next segment is read."""
    assert directory._ahead is not None
    directory._ahead._thread.join()


def by_one(directory: NodeDirectory, segment: int) -> int:
    """Return how many changes a segment has, read one by one."""
    return len(list(directory.walk(segment, 0)))


def at_once(directory: NodeDirectory, segment: int) -> int:
    """Return how many changes a segment has, by the scan that fills the change log."""
    _, found, _ = directory.scan(segment, 0, lambda _: None, reads_ahead=True)
    return len(found)


WAYS = pytest.mark.parametrize("count", [by_one, at_once])
Count = Callable[[NodeDirectory, int], int]


def test_the_next_segment_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums are computed ahead; after the last segment there is none."""
    monkeypatch.setenv("PENSTOCK_PURE", "0")  # the twin computes none ahead
    directory = directory_of(tmp_path)
    read: list[str] = []
    whole = type(REAL_FILES).read_whole

    def note_read(files: Any, path: Path) -> bytes:
        if tmp_path in path.parents:  # not a thread of another test that is still running
            read.append(path.name)
        return whole(files, path)

    monkeypatch.setattr(type(REAL_FILES), "read_whole", note_read)
    for segment, data in SEGMENTS.items():
        held = directory.read_segment(segment, ahead=directory.check)
        assert held == (data, len(data) if segment else 0, None)
        wait_until_read(directory)
    assert sorted(read) == [f"{n:016}.wal" for n in range(3)]
    with pytest.raises(FileMissing):
        directory.read_segment(3)


@WAYS
def test_a_file_that_has_grown_since_is_read_again(tmp_path: Path, count: Count) -> None:
    """The part of a copy in progress is not taken for the whole segment."""
    directory = directory_of(tmp_path)
    path = cdc_of(tmp_path / "work", "n") / f"{1:016}.wal"
    path.write_bytes(SEGMENTS[1][:29])
    assert count(directory, 0) == 1
    wait_until_read(directory)
    path.write_bytes(SEGMENTS[1])
    assert count(directory, 1) == 2


@WAYS
def test_a_segment_that_is_gone_is_missing(tmp_path: Path, count: Count) -> None:
    """The segment is missing although it was read ahead."""
    directory = directory_of(tmp_path)
    assert count(directory, 0) == 1
    wait_until_read(directory)
    (cdc_of(tmp_path / "work", "n") / f"{1:016}.wal").unlink()
    with pytest.raises(FileMissing):
        count(directory, 1)


@WAYS
def test_what_is_broken_is_told_in_its_turn(tmp_path: Path, count: Count) -> None:
    """The error comes at its place, and not while another segment is read."""
    directory = directory_of(tmp_path)
    path = cdc_of(tmp_path / "work", "n") / f"{1:016}.wal"
    path.write_bytes(SEGMENTS[1][:-1] + b"?")
    assert count(directory, 0) == 1
    wait_until_read(directory)
    with pytest.raises(WalBroken, match="checksum"):
        count(directory, 1)
    path.write_bytes(b"?" + SEGMENTS[1][1:])
    assert count(directory, 0) == 1
    wait_until_read(directory)
    with pytest.raises(WalBroken, match="header of a segment"):
        count(directory, 1)


def test_from_a_place_further_on(tmp_path: Path) -> None:
    """Only later changes are returned, although the segment was read ahead."""
    directory = directory_of(tmp_path)
    assert at_once(directory, 1) == 2
    wait_until_read(directory)
    _, found, scanned = directory.scan(2, len(SEGMENTS[2]), lambda _: None, reads_ahead=False)
    assert (len(found), scanned.entry_count) == (0, 0)
