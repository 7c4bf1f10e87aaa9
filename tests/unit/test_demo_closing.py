"""The last words of the demo: the verdict, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.control.run.demo import DemoOutcome, KeptLake, closing_lines
from penstock.control.verify.compare import TableResult
from penstock.control.verify.verify import VerifyResult
from penstock.model import TableName


def outcome(**differences: int) -> DemoOutcome:
    """Return a demo of one table that ended with these differences."""
    name = TableName("public", "purchase")
    table = TableResult(table=name, target=name, source_rows=7, target_rows=7, **differences)
    compared = VerifyResult(position=256, at="0/100", tables=(table,), seconds=1.0)
    return DemoOutcome(transactions=3, rows_changed=5, seconds=61.0, compared=compared)


def test_equal_is_said_with_rows_and_position() -> None:
    """Equality names what was compared and where."""
    assert closing_lines(outcome())[-1] == (
        "source and target are equal: 1 table, 7 rows, compared row by row at position 0/100"
    )
    assert outcome().as_dict()["equal"] is True


def test_a_difference_is_never_called_equal() -> None:
    """One differing row changes the verdict and names its table."""
    for kind in ("missing", "surplus", "different"):
        lines = closing_lines(outcome(**{kind: 1}))
        assert lines[-1].startswith("SOURCE AND TARGET DIFFER")
        assert any(line.startswith("public.purchase: ") for line in lines)
        assert outcome(**{kind: 1}).as_dict()["equal"] is False


def test_a_lake_stays_and_can_be_read() -> None:
    """After the verdict follow the lake's place and the lines that read it."""
    lake = KeptLake(folder=Path("/shop/lake"), reader="delta-rs", lines=("one", "two"))
    told = replace(outcome(), lake=lake)
    *_, verdict, place, first, second = closing_lines(told)
    assert verdict.startswith("source and target are equal")
    assert "/shop/lake" in place
    assert (first, second) == ("one", "two")
    assert told.as_dict()["lake"] == "/shop/lake"
    assert told.as_dict()["read_it"] == ["one", "two"]
