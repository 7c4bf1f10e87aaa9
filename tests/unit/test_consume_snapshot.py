"""Snapshots of consumers: where the log continues after one, and what a crash leaves of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.pipelines.log import SOURCE, commit_position, inserts, number_rows, run_of, truncate
from penstock.consume.position import ConsumerState, Position
from penstock.consume.snapshot import Made, Snapshot, place_behind
from penstock.log import Writer
from penstock.log.links import LogPlace

START = Position(segment=0, gsn=0)


def find_place(
    place: LogPlace, ordinal: int, after: Position = START
) -> tuple[int, int, int] | None:
    """Return segment, gsn and markers of the place, or None if two looks did not find it."""
    looks = iter([False, False])
    at = place_behind(place, place.consumers / "c", after, ordinal, stop=lambda: next(looks, True))
    return None if at is None else (at.segment, at.gsn, at.markers)


@pytest.fixture
def place(tmp_path: Path) -> LogPlace:
    """An empty log."""
    return LogPlace(log=tmp_path / "log", consumers=tmp_path / "cdc")


def test_the_log_goes_on_with_the_first_transaction_behind_the_point(place: LogPlace) -> None:
    """The transaction may be in any segment, also inside a frame; markers before it are done."""
    first, second, third, fourth = number_rows([inserts(2), inserts(3), inserts(1), inserts(2)])
    with Writer.open(place.log, log_id=None, source=SOURCE) as log:
        log.write(run_of([*first, *second], markers=[truncate(2, 1, "item")]))
        log.rotate()
        log.write(run_of(third))
        log.write(run_of(fourth, markers=[truncate(6, 4, "item")]))
        log.flush()
        assert find_place(place, commit_position(1)) == (0, 0, 0)
        assert find_place(place, commit_position(1) + 1) == (0, 2, 1)
        assert find_place(place, commit_position(2)) == (0, 2, 1)
        assert find_place(place, commit_position(3)) == (1, 5, 0)
        assert find_place(place, commit_position(4)) == (1, 6, 0)
        assert find_place(place, commit_position(4) + 50) == (1, 8, 0)  # the log is that far
        assert find_place(place, commit_position(4) + 51) is None  # the log is not yet that far
        assert find_place(place, commit_position(3), Position(segment=1, gsn=5)) == (1, 5, 0)


def test_it_waits_until_the_log_is_that_far(place: LogPlace) -> None:
    """A transaction that is in the rows may still be on its way into the log."""
    first, second = number_rows([inserts(2), inserts(1)])
    with Writer.open(place.log, log_id=None, source=SOURCE) as log:
        log.write(run_of(first))
        log.flush()
        places: list[Position | None] = []
        thread = threading.Thread(
            target=lambda: places.append(
                place_behind(
                    place, place.consumers / "c", START, commit_position(2), stop=lambda: False
                )
            )
        )
        thread.start()
        thread.join(0.5)
        assert places == []
        log.write(run_of(second))
        log.flush()
        thread.join(10)
    assert [at and (at.segment, at.gsn) for at in places] == [(0, 2)]


def test_it_is_wanted_until_it_is_ready_and_goes_when_it_is_past(tmp_path: Path) -> None:
    """The snapshot is created, placed, begun and removed; each step may be repeated."""
    snapshot, state = Snapshot(tmp_path), ConsumerState(tmp_path)
    assert not snapshot.is_wanted
    snapshot.want()
    (snapshot.folder / "0.ckt_").write_bytes(b"torn")
    snapshot.clear()
    assert [path.name for path in snapshot.folder.iterdir()] == ["WANTED.json"]
    assert snapshot.is_wanted
    assert snapshot.load_made() is None
    begin = Position(segment=3, gsn=9, log_id="log")
    made = Made(log_id="small", ordinal=str(2**80), begin=begin)
    snapshot.save_made(made)
    for _ in range(2):
        snapshot.begin(made)
        assert not snapshot.is_wanted
        assert state.load() == Position(segment=0, gsn=0, log_id="small")
        assert snapshot.pending(state.load()) == made
        snapshot.want()
    snapshot.begin(made)
    assert snapshot.pending(begin) is None
    assert list(snapshot.folder.iterdir()) == []
    assert snapshot.pending(begin) is None
