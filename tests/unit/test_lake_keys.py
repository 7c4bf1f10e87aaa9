"""Keys of a lake: a set finds its members among rows, whatever their types and order."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engines.lake.keys import KeySet, comparable, is_of_token, vector_uuid

TOKEN = "00112233445566ff"
SOME = st.lists(st.integers(-5, 60), max_size=40)


def find(keys: KeySet, columns: list[pa.Array], bounds: Any = None) -> tuple[list[int], list[int]]:
    """Return the rows and numbers of all members."""
    rows, numbers = keys.find(keys.span(bounds), lambda place: columns[place])
    return rows.tolist(), numbers.tolist()


@given(st.lists(st.integers(-5, 60), min_size=1, max_size=40), SOME, st.booleans())
def test_one_column_is_found_in_rows_of_any_order(wanted, rows, in_order):
    """Rows may repeat keys; sorted ones are searched another way."""
    rows = sorted(rows * 4) if in_order else rows
    keys = KeySet([pa.array(wanted, pa.int64())])
    found, numbers = find(keys, [pa.array(rows, pa.int64())])
    assert found == [at for at, value in enumerate(rows) if value in set(wanted)]
    distinct = sorted(set(wanted))
    assert [distinct[number] for number in numbers] == [rows[at] for at in found]
    assert [distinct[number] for number in keys.numbers.tolist()] == wanted


PAIRS = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([0.5, 1.0, -0.0]))


@given(st.lists(PAIRS, min_size=1, max_size=20), st.lists(PAIRS, max_size=30))
def test_several_columns_are_one_key(wanted, rows):
    """All columns count, and the number of a key is the same each time."""
    keys = KeySet(columns_of(wanted))
    found, numbers = find(keys, columns_of(rows))
    assert found == [at for at, value in enumerate(rows) if value in set(wanted)]
    by_number = dict(zip(keys.numbers.tolist(), wanted, strict=True))
    assert [by_number[number] for number in numbers] == [rows[at] for at in found]
    assert keys.size == len(set(wanted))


def columns_of(rows: list[Any]) -> list[pa.Array]:
    """Return rows as columns."""
    kinds = (pa.string(), pa.int32(), pa.float64())
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.lists(st.integers(0, 50)))
def test_bounds_exclude_no_member(wanted, rows):
    """A row group between its bounds is searched for the keys inside of them alone."""
    rows = sorted(rows)
    keys = KeySet([pa.array(wanted, pa.int64())])
    bounds = (rows[0], rows[-1]) if rows else None
    column = pa.array(rows, pa.int64())
    assert find(keys, [column], bounds) == find(keys, [column])


def test_bounds_exclude_keys_outside():
    """A span is empty if no key is inside of the bounds."""
    keys = KeySet([pa.array([5, 9], pa.int64())])
    assert keys.span((6, 8)) == (1, 1)
    assert keys.span((5, 5)) == (0, 1)
    assert keys.span((0, 100)) == (0, 2)
    assert keys.span(("a", "b")) == (0, 2)
    assert keys.span(None) == (0, 2)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (["a", "ab", "b", "\U0001f600", "\uffff"], "ab", "b"),
        ([b"", b"\x00", b"\xff"], b"\x00", b"\x01"),
        ([dt.date(1, 1, 1), dt.date(2024, 1, 1)], dt.date(1, 1, 2), dt.date(9999, 1, 1)),
    ],
)
def test_bounds_of_other_types_are_compared_as_values_are_sorted(values, low, high):
    """Texts are sorted by their bytes."""
    keys = KeySet([pa.array(values)])
    inside = [value for value in values if low <= value <= high]
    start, end = keys.span((low, high))
    assert end - start == len(inside)
    assert keys.span((values[0], values[0]))[1] == 1


def test_whole_rows_have_null_and_both_zeros():
    """NULL equals NULL, NaN equals NaN, and minus zero is another value."""
    wanted = [pa.array([None, 0.0, math.nan]), pa.array(["a", None, "n"])]
    keys = KeySet(wanted, whole_rows=True)
    rows = [pa.array([0.0, -0.0, None, math.nan, 0.0]), pa.array([None, None, "a", "n", "x"])]
    assert find(keys, rows)[0] == [0, 2, 3]


def test_floats_are_compared_by_value_in_keys():
    """Zeros are equal whatever their sign, and so is every NaN."""
    other_nan = np.array([0x7FF8000000000001], np.int64).view(np.float64)
    values = pa.array([0.0, -0.0, math.nan, other_nan[0]])
    assert len(set(comparable(values).to_pylist())) == 2
    assert len(set(comparable(values, whole_rows=True).to_pylist())) == 3


def test_a_file_of_vectors_is_named_by_its_token():
    """Files of a batch that was given up are found by their names."""
    name = f"deletion_vector_{vector_uuid(TOKEN + '-lookup1-0', '0' * 16)}.bin"
    assert is_of_token(name, TOKEN)
    assert is_of_token(f"{TOKEN}-1.parquet", TOKEN)
    assert not is_of_token(name, "ff" + TOKEN[2:])
    assert not is_of_token("part-1.parquet", TOKEN)
