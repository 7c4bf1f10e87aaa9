"""Bounds of columns in Iceberg's manifests: bytes of known values, and values cut in order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engines.iceberg.bounds import (
    CUT,
    decode_bound,
    encode_bound,
    lower_bound,
    upper_bound,
)

# Source: Iceberg's specification, appendix D, single-value serialization.
KNOWN = [
    ("boolean", True, "01"),
    ("int", -2, "feffffff"),
    ("long", 1, "0100000000000000"),
    ("float", -1.5, "0000c0bf"),
    ("double", 1.5, "000000000000f83f"),
    ("date", date(1970, 1, 2), "01000000"),
    ("date", date(1, 1, 1), "c606f5ff"),
    ("timestamp", datetime.fromisoformat("1970-01-01 00:00:01"), "40420f0000000000"),
    ("timestamptz", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "ffffffffffffffff"),
    ("decimal(5, 2)", Decimal("1.27"), "7f"),
    ("decimal(5, 2)", Decimal("1.28"), "0080"),
    ("decimal(5, 2)", Decimal("-1.28"), "80"),
    ("decimal(5, 2)", Decimal("0.00"), "00"),
    ("decimal(38, 0)", Decimal("9" * 38), "4b3b4ca85a86c47a098a223fffffffff"),
    ("string", "ü", "c3bc"),
    ("binary", b"\x00\xff", "00ff"),
]


class TestBounds:
    @pytest.mark.parametrize(("kind", "value", "raw"), KNOWN)
    def test_values_have_the_bytes_of_the_specification(
        self, kind: str, value: Any, raw: str
    ) -> None:
        assert encode_bound(kind, value).hex() == raw
        assert decode_bound(kind, bytes.fromhex(raw)) == value

    @pytest.mark.parametrize(
        ("kind", "value"),
        [("long", 2**63), ("int", "1"), ("uuid", b"x"), ("string", 5), ("date", 1.5)],
    )
    def test_a_value_of_another_type_is_refused(self, kind: str, value: Any) -> None:
        with pytest.raises(ValueError, match=kind):
            encode_bound(kind, value)

    def test_bounds_of_a_column_before_it_was_widened_are_read(self) -> None:
        assert decode_bound("long", bytes.fromhex("feffffff")) == -2
        assert decode_bound("double", bytes.fromhex("0000c0bf")) == -1.5
        assert decode_bound("decimal(9, 2)", bytes.fromhex("0080")) == Decimal("1.28")

    def test_values_that_python_has_not_are_no_bounds(self) -> None:
        assert decode_bound("double", encode_bound("double", float("nan"))) is None
        assert decode_bound("date", (2**31 - 1).to_bytes(4, "little")) is None
        assert decode_bound("timestamp", (2**63 - 1).to_bytes(8, "little")) is None
        assert decode_bound("uuid", bytes(16)) is None

    def test_zeros_are_wide_enough_for_both(self) -> None:
        assert [str(lower_bound(0.0)), str(upper_bound(-0.0))] == ["-0.0", "0.0"]

    @given(st.decimals(min_value="-9e35", max_value="9e35", places=3, allow_nan=False))
    def test_decimals_of_many_digits_are_kept(self, value: Decimal) -> None:
        assert decode_bound("decimal(38, 3)", encode_bound("decimal(38, 3)", value)) == value

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=CUT * 2))
    def test_texts_lie_between_their_bounds(self, text: str) -> None:
        low, high = lower_bound(text), upper_bound(text)
        assert isinstance(low, str)
        assert low.encode() <= text.encode()
        assert len(low) <= CUT
        if high is not None:
            assert isinstance(high, str)
            assert text.encode() <= high.encode()
            assert len(high) <= CUT

    @given(st.binary(max_size=CUT * 2))
    def test_binaries_lie_between_their_bounds(self, value: bytes) -> None:
        low, high = lower_bound(value), upper_bound(value)
        assert isinstance(low, bytes)
        assert low <= value
        if high is not None:
            assert isinstance(high, bytes)
            assert value <= high

    def test_texts_at_the_end_of_the_alphabet_have_no_upper_bound(self) -> None:
        last = "\U0010ffff"
        assert upper_bound(last * 40) is None
        assert upper_bound("a" + last * 40) == "b"
        assert upper_bound("a" * 15 + "\ud7ff" + "x") == "a" * 15 + "\ue000"
        assert upper_bound(b"\xff" * 40) is None
        assert upper_bound(b"a" + b"\xff" * 40) == b"b"
