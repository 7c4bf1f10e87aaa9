"""Positions of Oracle: their order is that of commits, and their text comes back."""

from __future__ import annotations

import random

import pytest

from penstock.codec.oracle.scn import SCN_MAX, OraclePosition
from penstock.engines.oracle.positions import ScnPositions
from penstock.model.position import PositionInvalid, to_bytes


def test_the_order() -> None:
    """Positions are ordered by SCN, thread and address, a whole SCN after its commits."""
    places = [
        OraclePosition.of_scn(7),
        OraclePosition.of_commit(8, 1, " 0x0001a4.00002f13.0010 "),
        OraclePosition.of_commit(8, 1, " 0x0001a4.00002f13.0011 "),
        OraclePosition.of_commit(8, 1, " 0x0001a4.00002f14.0000 "),
        OraclePosition.of_commit(8, 2, " 0x000001.00000001.0001 "),
        OraclePosition.of_scn(8),
        OraclePosition.of_commit(9, 0, " 0x000000.00000000.0000 "),
    ]
    assert places == sorted(places)
    assert [to_bytes(one.ordinal) for one in places] == sorted(
        to_bytes(one.ordinal) for one in places
    )
    assert len({one.ordinal for one in places}) == len(places)
    assert {one.scn for one in places} == {7, 8, 9}


def test_the_text() -> None:
    """A position's text is parsed to the same position."""
    assert str(OraclePosition.of_scn(8_800_153)) == "8800153"
    commit = OraclePosition.of_commit(8_800_153, 1, " 0x00010a.0000b3c1.0010 ")
    assert str(commit) == "8800153:1:0x0a.0000b3c1.0010"
    assert str(OraclePosition(0)) == "0"
    rng = random.Random(1)
    for _ in range(200):
        one = OraclePosition(rng.randrange(SCN_MAX) << 64 | rng.randrange(255 << 56))
        assert OraclePosition.parse(str(one)) == one
        assert len(str(one)) <= 64
    assert OraclePosition.parse(" 12 ") == OraclePosition.of_scn(12)


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "0x10", "1:1", "1:255:0x0a.0000b3c1.0010", "1:1:0a.0000b3c1.0010", "٣",
     str(2**63), "1:1:0x0a.0000b3c1.0010:1"],
)  # fmt: skip
def test_other_texts(text: str) -> None:
    """Any other text is refused."""
    with pytest.raises(PositionInvalid):
        OraclePosition.parse(text)


@pytest.mark.parametrize(
    ("scn", "thread", "rs_id"),
    [
        (1, 255, " 0x1.1.1 "),
        (-1, 1, " 0x1.1.1 "),
        (1, 1, ""),
        (1, 1, "0x1.1"),
        (2**63, 1, "0x1.1.1"),
    ],
)
def test_other_commits(scn: int, thread: int, rs_id: str) -> None:
    """A row without a COMMIT's values is refused."""
    with pytest.raises(PositionInvalid):
        OraclePosition.of_commit(scn, thread, rs_id)


def test_the_part() -> None:
    """The part prints and parses, and shows the thread of a COMMIT."""
    positions = ScnPositions()
    place = positions.parse("8800153:2:0x0a.0000b3c1.0010")
    assert positions.text(place) == "8800153:2:0x0a.0000b3c1.0010"
    assert positions.origin(place) == "2"
    assert positions.origin(positions.parse("8800153")) == "redo"
