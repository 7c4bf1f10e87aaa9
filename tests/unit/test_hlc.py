"""Times of changefeeds: text, decimal, number, order."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.hlc import NANOS_MAX, Hlc, HlcInvalid

TIMES = st.builds(Hlc, st.integers(0, NANOS_MAX), st.integers(0, 10**10 - 1))


@given(TIMES, TIMES)
def test_every_form_is_exact_and_keeps_the_order(one: Hlc, other: Hlc) -> None:
    """Every form is exact at 29 digits and at both ends, too."""
    assert Hlc.parse(str(one)) == one
    assert Hlc.from_decimal(one.decimal) == one
    assert Hlc.from_number(one.number) == one
    assert (one < other) == (one.decimal < other.decimal) == (one.number < other.number)


@pytest.mark.parametrize("text", ["7.0", "7.0000000000", "7.000", "007.0"])
def test_any_spelling_of_zero_is_taken(text: str) -> None:
    """Zeros may be spelled in any published form."""
    assert Hlc.parse(text) == Hlc(7)


def test_a_decimal_without_a_fraction_has_no_logical_part() -> None:
    """A database may return it in this form."""
    assert Hlc.from_decimal(Decimal("1E+3")) == Hlc(1000)


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "7.", ".0", "7.5", "7.000000001", "-7.0000000000", "7.0.0", "7.00000000010"),
        *("x.0000000000", "7.x", " 7.0", "7.0 ", "9223372036854775808.0", "7.0\n", "\u0667.0"),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """The errors have the published text."""
    with pytest.raises(HlcInvalid, match="can't parse timestamp"):
        Hlc.parse(text)
