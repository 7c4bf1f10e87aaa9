"""The segment behind the one that is worked on: read meanwhile, and what that must not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.ignite.recordings import cdc_of, data_segment, entry_bytes
from harness.ignite.source import made
from penstock.codec.ignite.errors import WalBroken
from penstock.engines.ignite.directory import NodeDirectory, open_directory
from penstock.host.files import REAL_FILES, FileMissing

SEGMENTS = {n: data_segment([[entry_bytes()] * (n + 1)], number=n) for n in range(3)}


def directory_of(folder: Path) -> NodeDirectory:
    """A node's directory with segments."""
    return open_directory(f"ignite://{made(folder, SEGMENTS, 'words')}?consistentId=n")


def waited(directory: NodeDirectory) -> None:
    """Until the segment behind is read."""
    assert directory._ahead is not None
    directory._ahead._thread.join()


def by_one(directory: NodeDirectory, segment: int) -> int:
    """How many changes a segment has, one after the other."""
    return len(list(directory.walk(segment, 0)))


def at_once(directory: NodeDirectory, segment: int) -> int:
    """The same, for the change log."""
    _, found, _ = directory.scan(segment, 0, lambda _: None, reads_ahead=True)
    return len(found)


WAYS = pytest.mark.parametrize("count", [by_one, at_once])
Count = Callable[[NodeDirectory, int], int]


def test_the_next_segment_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its checksums; behind the last one there is none."""
    monkeypatch.setenv("PENSTOCK_PURE", "0")  # the twin computes none ahead
    directory = directory_of(tmp_path)
    read: list[str] = []
    whole = type(REAL_FILES).read_whole

    def noted(files: Any, path: Path) -> bytes:
        if tmp_path in path.parents:  # no other test's thread that is still at it
            read.append(path.name)
        return whole(files, path)

    monkeypatch.setattr(type(REAL_FILES), "read_whole", noted)
    for segment, data in SEGMENTS.items():
        held = directory.read_segment(segment, ahead=directory.check)
        assert held == (data, len(data) if segment else 0, None)
        waited(directory)
    assert sorted(read) == [f"{n:016}.wal" for n in range(3)]
    with pytest.raises(FileMissing):
        directory.read_segment(3)


@WAYS
def test_a_file_that_has_grown_since_is_read_again(tmp_path: Path, count: Count) -> None:
    """What was there of a copy under way is not taken for all of it."""
    directory = directory_of(tmp_path)
    path = cdc_of(tmp_path / "work", "n") / f"{1:016}.wal"
    path.write_bytes(SEGMENTS[1][:29])
    assert count(directory, 0) == 1
    waited(directory)
    path.write_bytes(SEGMENTS[1])
    assert count(directory, 1) == 2


@WAYS
def test_a_segment_that_is_gone_is_missing(tmp_path: Path, count: Count) -> None:
    """Though it was read ahead."""
    directory = directory_of(tmp_path)
    assert count(directory, 0) == 1
    waited(directory)
    (cdc_of(tmp_path / "work", "n") / f"{1:016}.wal").unlink()
    with pytest.raises(FileMissing):
        count(directory, 1)


@WAYS
def test_what_is_broken_is_told_in_its_turn(tmp_path: Path, count: Count) -> None:
    """At its place, and not while another segment is worked on."""
    directory = directory_of(tmp_path)
    path = cdc_of(tmp_path / "work", "n") / f"{1:016}.wal"
    path.write_bytes(SEGMENTS[1][:-1] + b"?")
    assert count(directory, 0) == 1
    waited(directory)
    with pytest.raises(WalBroken, match="checksum"):
        count(directory, 1)
    path.write_bytes(b"?" + SEGMENTS[1][1:])
    assert count(directory, 0) == 1
    waited(directory)
    with pytest.raises(WalBroken, match="header of a segment"):
        count(directory, 1)


def test_from_a_place_further_on(tmp_path: Path) -> None:
    """Only what is behind it comes, though the segment was looked through before."""
    directory = directory_of(tmp_path)
    assert at_once(directory, 1) == 2
    waited(directory)
    _, found, scanned = directory.scan(2, len(SEGMENTS[2]), lambda _: None, reads_ahead=False)
    assert (len(found), scanned.entry_count) == (0, 0)
