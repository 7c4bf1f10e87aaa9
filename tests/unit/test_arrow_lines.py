"""Columns of Arrow as lines for COPY and for LOAD DATA."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from penstock.codec.arrow_lines import copy_lines, load_data_lines
from penstock.codec.errors import CellUnfit


def test_copy_has_postgres_texts() -> None:
    """Escapes, bytes, NULL, times in UTC and years that Arrow prints differently are right."""
    moments = pa.array([0, None, -62_200_000_000_000_000], pa.timestamp("us", "UTC"))
    columns = [
        pa.array(["a\tb\\", None, "c\r\nd"]),
        pa.array([b"\x00\xff", None, b""]),
        moments,
        pa.array([True, None, False]),
        pa.array([1.5, None, float("-inf")]),
        pa.array([datetime.date(2024, 2, 29), None, None]),
    ]
    kinds = ["string", "binary", "timestamptz", "bool", "float64", "date"]
    assert copy_lines(columns, kinds).split(b"\n") == [
        b"a\\tb\\\\\t\\\\x00ff\t1970-01-01 00:00:00+00\t1\t1.5\t2024-02-29",
        b"\\N\t\\N\t\\N\t\\N\t\\N\t\\N",
        b"c\\r\\nd\t\\\\x\t0003-12-17 14:13:20+00 BC\t0\t-inf\t\\N",
        b"",
    ]


def test_text_with_the_zero_character_is_named() -> None:
    """The error names row and column; PostgreSQL's error would not tell which."""
    with pytest.raises(CellUnfit) as caught:
        copy_lines([pa.array([1, 2]), pa.array(["a", "b\0"])], ["int64", "string"], first_row=10)
    assert (caught.value.fields["row"], caught.value.fields["column"]) == (12, 1)


def test_load_data_has_bytes_as_they_are() -> None:
    """Zero, tab and newline are escaped, all other bytes are copied."""
    found = load_data_lines([pa.array([b"\x00\t\n\\\xff"]), pa.array([7])])
    assert found == b"\\0\\t\\n\\\\\xff\t7\n"
