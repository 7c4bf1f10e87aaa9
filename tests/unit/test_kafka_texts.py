"""Texts of many rows: the compiled functions and their twins give the same, and what is meant."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka import texts
from penstock.kafka.errors import MessageTooLarge
from penstock.kafka.json_format import texts_of
from penstock.kafka.texts import PlainTexts, text_kernel

KERNELS: list[Any] = [PlainTexts, *([text_kernel()] if texts.COMPILED else [])]


def cut(made: Any) -> list[bytes]:
    """Return texts as bytes objects, by both."""
    first, *others = [kernel.cut(*made) for kernel in KERNELS]
    assert all(one == first for one in others)
    return first


def by_all(name: str, *arguments: Any) -> list[bytes]:
    """Return what a function gives, which must be the same in all kernels."""
    first, *others = [cut(getattr(kernel, name)(*arguments)) for kernel in KERNELS]
    assert all(one == first for one in others)
    return first


def test_the_kernel_is_compiled_here() -> None:
    """The tests below compare two implementations."""
    assert texts.COMPILED


@given(st.lists(st.text()))
def test_json_strings(values: list[str]) -> None:
    """Each text is a JSON string of the same value."""
    made = by_all("quote_json", *texts_of(pa.array(values, pa.string())))
    assert [json.loads(one) for one in made] == values


@given(st.lists(st.binary()))
def test_base64(values: list[bytes]) -> None:
    """Each value is its base64 in quotes."""
    made = by_all("quote_base64", *texts_of(pa.array(values, pa.binary())))
    assert [base64.b64decode(json.loads(one), validate=True) for one in made] == values


@given(st.lists(st.integers(-(2**127), 2**127 - 1)))
def test_shortest_bytes(values: list[int]) -> None:
    """Each integer has the bytes of Java's BigInteger: no more than its sign needs."""
    data = b"".join(one.to_bytes(16, "little", signed=True) for one in values)
    made = by_all("shortest_bytes", np.frombuffer(data, np.uint8))
    assert [int.from_bytes(one, "big", signed=True) for one in made] == values
    for value, one in zip(values, made, strict=True):
        assert len(one) == (value if value >= 0 else ~value).bit_length() // 8 + 1


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_instants(values: list[int]) -> None:
    """Each time is ISO 8601 with Z; Python reads those of its years."""
    made = by_all("instants", np.array(values, np.int64))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for value, one in zip(values, made, strict=True):
        if -62_135_596_800_000_000 <= value < 253_402_300_800_000_000:
            text = one.decode()
            assert datetime.datetime.fromisoformat(text) - epoch == datetime.timedelta(
                microseconds=value
            )
            assert not text.endswith(("0Z", ".Z")) or "." not in text


def test_instants_of_far_years() -> None:
    """Years are as Java prints them."""
    day = 86_400_000_000
    moments = [0, 1, -1, 1_500_000, 2_932_897 * day, -719_163 * day, -719_893 * day]
    assert by_all("instants", np.array(moments, np.int64)) == [
        b"1970-01-01T00:00:00Z",
        b"1970-01-01T00:00:00.000001Z",
        b"1969-12-31T23:59:59.999999Z",
        b"1970-01-01T00:00:01.5Z",
        b"+10000-01-01T00:00:00Z",
        b"0000-12-31T00:00:00Z",
        b"-0001-01-01T00:00:00Z",
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints(values: list[int]) -> None:
    """Each has seven bits a byte, the lowest first."""
    for value, one in zip(values, by_all("varints", np.array(values, np.int64)), strict=True):
        number = sum((byte & 127) << 7 * at for at, byte in enumerate(one))
        assert number == value % 2**64
        assert [byte >> 7 for byte in one] == [1] * (len(one) - 1) + [0]


@given(st.lists(st.tuples(st.binary(max_size=4), st.booleans(), st.binary(max_size=3))))
def test_join_rows(rows: list[tuple[bytes, bool, bytes]]) -> None:
    """Each row has its pieces in order; an invalid one is replaced."""
    first = texts_of(pa.array([row[0] for row in rows], pa.binary()))
    last = texts_of(pa.array([row[2] for row in rows], pa.binary()))
    valid = np.array([row[1] for row in rows], np.uint8)
    pieces = [b"<", (*first, valid, b"+", b"null"), b"|", (*last, None, b"", b"x"), b">"]
    assert by_all("join_rows", pieces, len(rows)) == [
        b"<" + (b"+" + one if is_valid else b"null") + b"|" + other + b">"
        for one, is_valid, other in rows
    ]


def test_an_empty_prefix_and_an_equal_replacement() -> None:
    """A row that is replaced does not get its own text, even if both fixed parts are the same."""
    given = texts_of(pa.array([b"a", b"b"], pa.binary()))
    valid = np.array([1, 0], np.uint8)
    assert by_all("join_rows", [(*given, valid, b"", b"")], 2) == [b"a", b""]


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_gib_are_refused(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """KF04: the texts of a batch have places of 31 bits."""
    if kernel is PlainTexts:
        monkeypatch.setattr(texts, "LIMIT", 9)
        pieces, count = [b"12345"], 2
    else:
        pieces, count = [b"x" * 2**20], 2**11
    with pytest.raises(MessageTooLarge):
        kernel.join_rows(pieces, count)
