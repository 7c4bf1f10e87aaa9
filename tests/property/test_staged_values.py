"""Limits of the receiver of changefeeds: every accepted value fits into the rows of the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.changefeed import DEPTH_MAX, EXPONENT_MAX, Refused, make_scanner
from penstock.engines.feeds.values import NotNeutral, column_of
from penstock.model import Column

KINDS = [
    ("bigint", "int64"),
    ("smallint", "int16"),
    ("numeric(38,10)", "decimal(38,10)"),
    ("numeric(12,2)", "decimal(12,2)"),
    ("numeric", "string"),
    ("text", "string"),
    ("jsonb", "string"),
    ("text[]", "string"),
    ("real", "float32"),
    ("double precision", "float64"),
    ("boolean", "bool"),
    ("date", "date"),
    ("time", "time"),
    ("timestamptz", "timestamptz"),
    ("uuid", "uuid"),
    ("bytea", "binary"),
]
BYTES_MAX = 3_000  # of a value, and no more than so many times its JSON

NUMBERS = st.tuples(
    st.sampled_from(["", "-"]),
    st.integers(0, 10**40).map(str),
    st.sampled_from(["", ".0", ".123456789", "." + "9" * 50]),
    st.sampled_from(["", "e", "E+", "e-"]).flatmap(
        lambda sign: (
            st.just("")
            if not sign
            else st.integers(0, 2 * EXPONENT_MAX).map(lambda number: f"{sign}{number}")
        )
    ),
).map("".join)
ESCAPES = st.lists(
    st.sampled_from(["a", "\\ud83d", "\\ude00", "\\n", "\\u0041", "é", "\\uDBFF", "1e5", "-"])
).map(lambda parts: f'"{"".join(parts)}"')
VALUES = st.recursive(
    NUMBERS | ESCAPES | st.sampled_from(["true", "null"]) | st.text().map(json.dumps),
    lambda inner: st.lists(inner, max_size=3).map(lambda some: f"[{','.join(some)}]"),
    max_leaves=4,
)


def is_taken(value: str) -> bool:
    """Return whether the receiver accepts a row with this value."""
    line = f'{{"after":{{"v":{value}}},"key":[1],"topic":"t","updated":"7.0000000009"}}'
    try:
        make_scanner().scan_batch(f'{{"payload":[{line}]}}'.encode(), True)
    except Refused:
        return False
    return True


def read(kind: tuple[str, str], value: str) -> Any:
    """Return the value in a column, or None if only text can hold it, or not even text."""
    source_type, neutral = kind
    column = Column(
        name="v", source_type=source_type, neutral=neutral, base_type=source_type.split("(")[0]
    )
    try:
        return column_of(column, [value.encode()])
    except NotNeutral:
        return None


@pytest.mark.parametrize("pure", ["0", "1"])
@given(value=VALUES, kind=st.sampled_from(KINDS))
def test_what_is_taken_is_read_or_is_a_text(pure: str, value: str, kind: tuple[str, str]) -> None:
    """No other error ends the extraction, and no value is much larger than its JSON."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_PURE", pure)
        if is_taken(value):
            found = read(kind, value)
            assert found is None or found.nbytes <= BYTES_MAX + 4 * len(value.encode())


def nest_arrays(depth: int, innermost: str = "1") -> str:
    """Return arrays within each other."""
    return "[" * depth + innermost + "]" * depth


@pytest.mark.parametrize("pure", ["0", "1"])
@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (nest_arrays(DEPTH_MAX - 1), True),  # and the row itself
        (nest_arrays(DEPTH_MAX), False),
        (nest_arrays(10_000), False),
        (f"1e{EXPONENT_MAX}", True),
        (f"1e{EXPONENT_MAX + 1}", False),
        (f"-0.5E-{EXPONENT_MAX + 1}", False),
        ("1e999999999", False),
        ("[[1e99999999999999999999]]", False),
        ("1e000000000000000000000000000001", True),
        (r'"\ud83d\ude00"', True),
        (r'"\ud800"', False),
        (r'"\udc00"', False),
        (r'"\ud800\ud800"', False),
        (r'"\ud800A"', False),
        (r'{"\ud800":1}', False),
        (r'"\ud7ff\ue000"', True),
    ],
)
def test_the_receivers_limits_are_those_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, pure: str, value: str, taken: bool
) -> None:
    """Values beyond the limits are refused with 400; others are read in every kind of column."""
    monkeypatch.setenv("PENSTOCK_PURE", pure)
    assert is_taken(value) is taken
    if taken:
        for kind in KINDS:
            read(kind, value)
