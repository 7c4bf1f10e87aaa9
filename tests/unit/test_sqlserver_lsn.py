"""LSNs of SQL Server: their spellings, order and limits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.sqlserver.lsn import LSN_MAX, SqlServerLsn
from penstock.model.position import PositionInvalid, to_bytes

SAMPLES = Path(__file__).parents[1] / "data" / "sqlserver_cdc_samples.jsonl"
RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()
]
SPELLINGS = [one for one in RECORDS if one["record"] == "lsn"]
LSNS = st.binary(min_size=10, max_size=10)


@pytest.mark.parametrize("record", SPELLINGS, ids=lambda one: one["text"])
def test_recorded_spellings_are_one_value(record: dict[str, Any]) -> None:
    """Every spelling of the samples is read, and printed as text and as numeric."""
    lsn = SqlServerLsn.of_bytes(bytes.fromhex(record["binary10"]["$hex"]))
    digits = record["binary10"]["$hex"]
    spellings = [record["text"], record["fn_dblog_text_hex"], f"0x{digits}", record["numeric25"]]
    spellings += [f"0x{digits.upper()}", record["text"].upper(), f" {record['text']}\n"]
    assert {SqlServerLsn.parse(text) for text in spellings} == {lsn}
    assert str(lsn) == record["text"]
    assert str(lsn.numeric) == record["numeric25"]


def test_recorded_rows_name_their_position() -> None:
    """Each row's commit LSN has the text and the number that the samples expect."""
    rows = [one for one in RECORDS if one["record"] == "row" and "lsn_text" in one["expect"]]
    assert len(rows) > 40
    for row in rows:
        lsn = SqlServerLsn.of_bytes(bytes.fromhex(row["__$start_lsn"]["$hex"]))
        assert str(lsn) == row["expect"]["lsn_text"]
        assert str(lsn.numeric) == row["expect"]["lsn_numeric"]


@given(LSNS)
def test_every_spelling_is_read_again(data: bytes) -> None:
    """Text and numeric of any LSN give the same LSN; ordinals are the bytes."""
    lsn = SqlServerLsn.of_bytes(data)
    assert SqlServerLsn.parse(str(lsn)) == lsn == SqlServerLsn.of_numeric(lsn.numeric)
    assert lsn.data == data
    assert SqlServerLsn(lsn.ordinal) == lsn


@given(st.lists(LSNS, min_size=2, max_size=9))
def test_order_is_that_of_bytes(several: list[bytes]) -> None:
    """Ordinals, positions in the log and numerics are ordered as memcmp orders LSNs."""
    ordered = [SqlServerLsn.of_bytes(data) for data in sorted(several)]
    assert ordered == sorted(ordered)
    for low, high in pairwise(ordered):
        assert to_bytes(low.ordinal) <= to_bytes(high.ordinal)
        assert low.numeric <= high.numeric


def test_digits_that_mean_two_things_are_refused() -> None:
    """Twenty decimal digits may be binary(10) in hexadecimal, or numeric(25, 0)."""
    with pytest.raises(PositionInvalid, match="could be hexadecimal or decimal"):
        SqlServerLsn.parse("12345000018800000005")
    assert SqlServerLsn.parse("00000027000007580005") == SqlServerLsn.parse("39000000188000005")


@pytest.mark.parametrize(
    "text",
    """ 0 39:1880:5 00000027:00000758 0x27 0/16B3740 00000027:00000758:00050 -39000000188000005
    39000000188070000 1_0 4294967296000000000000000 44444444444444444444444444
    00000027:00000758:000g ٣٩٠٠٠٠٠٠١٨٨٠٠٠٠٠٥""".replace("\n    ", " ").split(" "),
)
def test_other_texts_are_refused(text: str) -> None:
    """A text of another form never becomes an LSN by accident."""
    with pytest.raises(PositionInvalid):
        SqlServerLsn.parse(text)


def test_bytes_and_numbers_out_of_range_are_refused() -> None:
    """An LSN has exactly ten bytes."""
    assert SqlServerLsn(LSN_MAX).data == b"\xff" * 10
    for bad in (-1, LSN_MAX + 1):
        with pytest.raises(PositionInvalid):
            SqlServerLsn(bad)
    for length in (0, 9, 11):
        with pytest.raises(PositionInvalid, match="10 bytes"):
            SqlServerLsn.of_bytes(bytes(length))
    with pytest.raises(PositionInvalid):
        SqlServerLsn.of_numeric(-1)
