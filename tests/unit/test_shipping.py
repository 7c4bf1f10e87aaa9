"""Frames sent to workers that cannot read the log: they are as in the files."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.pipelines.frames import NOTES, SEGMENTS, read_notes, task_of_log, work_of
from penstock.load import shipping
from penstock.load.job import Work
from penstock.load.plan import Task
from penstock.load.shipping import Freight, Shipped
from penstock.log.frames import SegmentCorrupt


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A task with frames of several segments."""
    return task_of_log(tmp_path / "log")


@dataclass
class Piece:
    """A broadcast, as a worker has it: read from its file on request."""

    kept: Any
    _path: str = "somewhere"

    @property
    def value(self) -> Any:
        self._value = self.kept
        return self._value


class Context:
    """Fake context that makes broadcasts."""

    def broadcast(self, value: Any) -> Piece:
        return Piece(value)


def carry_work(work: Work) -> Work:
    """Return the work as it arrives."""
    found: Work = pickle.loads(pickle.dumps(work))
    return found


def test_frames_go_with_the_task(task: Task, tmp_path: Path) -> None:
    """The worker reads them although the log is missing."""
    arrived = carry_work(work_of(task, Freight(task.frames)))
    shutil.rmtree(tmp_path / "log")
    assert list(read_notes()(iter([arrived]))) == NOTES
    assert len(NOTES) == arrived.task.gsn_upto


def test_tasks_of_a_partition_share_them(task: Task) -> None:
    """A frame that two tasks read is sent once."""
    freight = Freight([*task.frames, *task.frames])
    assert freight.size_bytes == Freight(task.frames).size_bytes
    once = pickle.dumps([work_of(task, freight)])
    twice = pickle.dumps([work_of(task, freight), work_of(replace(task, bucket=1), freight)])
    assert len(twice) - len(once) < min(ref.entry.length_bytes for ref in task.frames)


def test_many_frames_go_in_pieces(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is below the limit, and one of them is in memory at a time."""
    monkeypatch.setattr(shipping, "PIECE_BYTES_MAX", 6000)
    shipped = Freight(task.frames).broadcast(cast("Any", Context()))
    shutil.rmtree(tmp_path / "log")
    pieces = cast("tuple[Piece, ...]", shipped.pieces)
    assert len(pieces) >= SEGMENTS
    assert all(sum(map(len, one.kept.values())) <= 6000 for one in pieces)
    notes = []
    for note in read_notes()(iter([work_of(task, shipped)])):
        notes.append(note)
        assert sum("_value" in vars(one) for one in pieces) == 1
    assert notes == NOTES


def test_what_is_damaged_on_the_way_is_seen(task: Task) -> None:
    """The frame's checksum shows it: it is the one that it has in the log."""
    arrived = carry_work(work_of(task, Freight(task.frames))).shipped
    assert isinstance(arrived, Shipped)
    place = (task.frames[1].path, task.frames[1].entry.offset_bytes)
    data = bytearray(arrived.inline[place])
    data[-1] ^= 1
    damaged = replace(arrived, inline={**arrived.inline, place: bytes(data)})
    with pytest.raises(SegmentCorrupt, match="checksum"):
        list(read_notes()(iter([work_of(task, damaged)])))
