"""Lines of COPY as rows of the log: every neutral type, and values that a type cannot hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import EVENT, ITEM
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.exact_text import date_text, exact_texts, timestamp_text
from penstock.codec.lines import LineDialect
from penstock.model import Column, Relation


def relation(neutral: str) -> Relation:
    """Return a table of one column."""
    return replace(
        ITEM,
        columns=(Column(name="v", source_type="?", neutral=neutral),),
        key=(),
        before=(),
    )


def read(neutral: str, *texts: str | None) -> tuple[str, list[Any]]:
    """Return the neutral type that these texts end as, and the column as exact texts."""
    cells = [None if text is None else text.encode() for text in texts]
    rows = inserts(relation(neutral), [cells], len(cells), gsn=1, trx=1)
    (column,) = rows.relation.columns
    return column.neutral, exact_texts(rows.batch.column("after").field(0), column.neutral)


@pytest.mark.parametrize(
    ("neutral", "texts"),
    [
        ("int16", ["-32768", "0", None]),
        ("uint64", ["18446744073709551615"]),
        ("bool", ["t", "f"]),
        ("decimal(12,2)", ["1.50", "-0.05"]),
        ("date", ["2024-02-29", "0044-03-15 BC", "0001-01-01", "12024-02-29", "0001-12-31 BC"]),
        ("time", ["23:59:59.5", "00:00:00"]),
        ("timestamp", ["2024-02-29 10:11:12.000001", "0044-03-15 10:00:00 BC"]),
        ("timestamptz", ["294246-12-31 23:59:59.999999+00", None]),
        ("uuid", ["00010203-0405-0607-0809-0a0b0c0d0e0f"]),
        ("string", ["", "Grüße\t\n\\", None]),
    ],
)
def test_texts_come_back_as_they_were(neutral: str, texts: list[str | None]) -> None:
    """Read values print as the source printed them."""
    assert read(neutral, *texts) == (neutral, texts)


@pytest.mark.parametrize(
    ("neutral", "text"),
    [
        ("int32", "2147483648"),
        ("decimal(12,2)", "NaN"),
        ("decimal(12,2)", "1.505"),
        ("date", "infinity"),
        ("date", "0000-00-00"),
        ("date", "2024-02-31"),
        ("time", "24:00:00"),
        ("time", "-838:59:59"),
        ("timestamp", "-infinity"),
        ("timestamptz", "0000-00-00 00:00:00"),
    ],
)
def test_what_does_not_fit_makes_the_column_text(neutral: str, text: str) -> None:
    """The column becomes text, so no value is changed or replaced by NULL."""
    assert read(neutral, text, None) == ("string", [text, None])


@given(st.integers(-(2**31) // 3, 2**31 // 3))
def test_dates_of_any_year(days: int) -> None:
    """Dates are kept as printed."""
    assert read("date", date_text(days))[1] == [date_text(days)]


@given(st.integers(-(2**59), 2**59))
def test_moments_of_any_year(microseconds: int) -> None:
    """Moments are kept as printed, with and without a zone."""
    for neutral, zone in (("timestamp", ""), ("timestamptz", "+00")):
        text = timestamp_text(microseconds, zone)
        assert read(neutral, text) == (neutral, [text])


@given(st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary()), max_size=5))
def test_lines_are_what_copy_writes(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    """Lines have escapes of every byte, NULL and empty cells."""
    escapes = {8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t", 11: b"\\v", 92: b"\\\\"}

    def cell(value: bytes | None) -> bytes:
        if value is None:
            return b"\\N"
        return b"".join(escapes.get(byte, bytes([byte])) for byte in value)

    lines = b"".join(b"\t".join(map(cell, row)) + b"\n" for row in rows)
    assert list(zip(*cells_of(lines, 2), strict=True)) == rows


def test_images_are_whole_and_numbered() -> None:
    """Images are inserts of one transaction, in the shape of the log."""
    token = b"\\x00ff"
    line = b"2024-01-01 00:00:00+00\t" + b"\\" + token + b"\tt\tNaN\t2024-01-01\t\\N\n"
    rows = inserts(EVENT, cells_of(line * 2, 6), 2, gsn=5, trx=3)
    (first, second) = rows.batch.to_pylist()
    assert (first["gsn"], second["gsn"], first["trx"], first["op"]) == (5, 6, 3, ord("I"))
    assert (first["after"]["data"], first["after"]["token"], first["before"]) == (
        b"\x00\xff",
        None,
        None,
    )
    raw = inserts(
        relation("binary"), [[b"\\x00", b"\0"]], 2, gsn=1, trx=1, dialect=LineDialect.LOAD_DATA
    )
    assert raw.batch.column("after").field(0).to_pylist() == [b"\\x00", b"\0"]
    with pytest.raises(ValueError):
        cells_of(b"1\t2\n", 3)
