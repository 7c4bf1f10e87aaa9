"""Positions in a binlog: ordered as the server writes, printed and parsed under its file names."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.mysql.binlog_position import (
    BINLOG_NUMBER_MAX,
    BINLOG_OFFSET_MAX,
    BinlogPosition,
)
from penstock.model.position import PositionInvalid

numbers = st.integers(0, BINLOG_NUMBER_MAX)
offsets = st.integers(0, BINLOG_OFFSET_MAX)


def test_text_form() -> None:
    """The text is file, colon, offset; the file has over six digits if a server wrote that many."""
    position = BinlogPosition.parse("binlog.000003:154")
    assert (position.file, position.number, position.offset) == ("binlog.000003", 3, 154)
    assert position.ordinal == 3 << 40 | 154
    assert str(position) == "binlog.000003:154"
    assert str(BinlogPosition.at("my.host-bin.1234567", 4)) == "my.host-bin.1234567:4"
    assert BinlogPosition(3 << 40 | 154) == position
    last = BinlogPosition.at(f"binlog.{BINLOG_NUMBER_MAX}", BINLOG_OFFSET_MAX)
    assert last.ordinal == 2**64 - 1


@given(numbers, offsets, numbers, offsets)
def test_order_is_that_of_writing(number: int, offset: int, number2: int, offset2: int) -> None:
    """An earlier file is before a later one, whatever the offsets are."""
    first = BinlogPosition(number << 40 | offset)
    second = BinlogPosition(number2 << 40 | offset2)
    assert (first < second) == ((number, offset) < (number2, offset2))
    assert BinlogPosition.parse(str(first)) == first
    assert pickle.loads(pickle.dumps(first)) == first


@pytest.mark.parametrize(
    "text",
    ["", "binlog.000003", "binlog:4", "binlog.x:4", ".000003:4", "binlog.000003:-1",
     "binlog.000003:x", "0/16B3740", f"binlog.1:{2**40}", "binlog.16777216:4", "a/b.000001:4"],
)  # fmt: skip
def test_what_is_no_position_is_refused(text: str) -> None:
    """An invalid position is an error; no part of it is guessed."""
    with pytest.raises(PositionInvalid):
        BinlogPosition.parse(text)
    with pytest.raises(PositionInvalid):
        BinlogPosition(-1)
