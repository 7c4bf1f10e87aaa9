"""Place of a pipeline in a binlog: what is kept, and what a crash leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.assemble import StreamMark
from penstock.engines.mysql.source.resume_state import (
    EXACT_FILE,
    ResumeStateLost,
    ResumeStates,
    physical,
)
from penstock.extract.extractor import _StateFiles
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES


def mark(text: str, *, shift: int = 0, gtids: str = "u:1") -> StreamMark:
    """Return the mark of a place with this name of the server."""
    place = BinlogPosition.parse(text)
    return StreamMark(
        position=place.ordinal + (shift << 40),
        base=place.base,
        shift=shift,
        gtids=gtids,
        prepared=(),
    )


def open_states(folder: Path) -> ResumeStates:
    """Return what a start finds."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return ResumeStates(_StateFiles(folder / "state", REAL_FILES), run, REAL_FILES, REAL_CLOCK)


def test_the_exact_place_wins_over_the_durable_one(tmp_path: Path) -> None:
    """A killed process leaves both; the place is found whichever flush became durable."""
    first, second, third = (mark(f"binlog.000001:{offset}") for offset in (100, 200, 300))
    before = open_states(tmp_path)
    before.save(first, "server")
    before.before_flush(second)
    before.before_flush(third)
    after = open_states(tmp_path)
    assert after.at(second.position) == second
    assert after.at(third.position) == third
    assert after.at(third.position + 50) == first
    with pytest.raises(ResumeStateLost):
        after.at(first.position - 1)


@pytest.mark.parametrize("damage", [b"", b"00000000[]", b"nonsense"])
def test_a_torn_exact_file_is_as_none(tmp_path: Path, damage: bytes) -> None:
    """The file is written without waiting for the disk: a machine's crash may leave any bytes."""
    first, second = mark("binlog.000001:100"), mark("binlog.000001:200")
    before = open_states(tmp_path)
    before.save(first, "server")
    before.before_flush(second)
    (tmp_path / "run" / EXACT_FILE).write_bytes(damage)
    assert open_states(tmp_path).at(second.position) == first


def test_positions_are_named_as_the_server_of_that_time_does(tmp_path: Path) -> None:
    """Files count on when another server takes over, and are shown with their own names."""
    standings = open_states(tmp_path)
    assert standings.text(0) == ""
    old, new = mark("mysql-bin.000120:4711"), mark("binlog.000003:157", shift=118)
    standings.save(old, "a")
    standings.save(new, "b")
    assert standings.text(old.position) == "mysql-bin.000120:4711"
    assert standings.text(new.position) == "binlog.000003:157"
    assert str(physical(new)) == "binlog.000003:157"
    assert open_states(tmp_path).last == standings.last
