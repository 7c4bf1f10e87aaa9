"""Any value of SQL Server's dates, times and GUIDs passes the column code unchanged."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.sqlserver.columns import SourceColumn, ValueBroken, make_columns
from penstock.codec.sqlserver.goals import Form, Goal, reach
from penstock.codec.sqlserver.moments import moment_texts, parse_moments
from penstock.codec.sqlserver.types import SqlServerType, parse_type

TEXT = pa.large_string()
TICKS = st.integers(0, 9_999_999)
SECONDS = st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30))  # noqa: DTZ001
OFFSETS = st.integers(-14 * 60, 14 * 60)


def server_text(moment: dt.datetime, ticks: int, offset: int | None, digits: int) -> str:
    """Return what CONVERT(varchar(34), value, 126) prints of a value with so many digits."""
    kept = ticks - ticks % 10 ** (7 - digits)
    fraction = f".{kept:07}"[: digits + 1] if kept and digits else ""
    text = f"{moment.replace(microsecond=0).isoformat()}{fraction}"
    if offset is None:
        return text
    sign = "-" if offset < 0 else "+"
    return f"{text}{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"


Row = tuple[dt.datetime, int, int] | None
ROWS = st.lists(st.none() | st.tuples(SECONDS, TICKS, OFFSETS), min_size=1, max_size=20)


@given(ROWS, st.integers(0, 7))
def test_offsets_and_digits_are_kept(rows: list[Row], digits: int) -> None:
    """The log's text has the local time, each digit that is not zero at the end, and the offset."""
    texts = [None if row is None else server_text(*row, digits) for row in rows]
    batch = pa.record_batch({"v": pa.array(texts, TEXT)})
    made = make_columns(batch, [SourceColumn.of("v", f"datetimeoffset({digits})")])
    for row, found in zip(rows, made.arrays[0].to_pylist(), strict=True):
        if row is None:
            assert found is None
            continue
        moment, ticks, offset = row
        local, sign, zone = found[:-6], found[-6], found[-5:]
        hours, minutes = zone.split(":")
        assert (1 if sign == "+" else -1) * (int(hours) * 60 + int(minutes)) == offset
        whole, _, fraction = local.partition(".")
        assert whole == moment.replace(microsecond=0).isoformat(" ")
        assert not fraction.endswith("0")
        assert int(fraction.ljust(7, "0") or 0) == ticks - ticks % 10 ** (7 - digits)


@given(ROWS)
def test_a_datetime2_is_rounded_half_up(rows: list[Row]) -> None:
    """A rounded value is the nearest microsecond; the later one if two are equally near."""
    texts = [None if row is None else server_text(row[0], row[1], None, 7) for row in rows]
    goal = Goal(type_text="datetime2(7)", form=Form.TIMESTAMP, rounds=True)
    found = reach(pa.array(texts, TEXT), goal).cast(pa.int64()).to_pylist()
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    for row, microseconds in zip(rows, found, strict=True):
        if row is None:
            assert microseconds is None
            continue
        seconds = (row[0].replace(microsecond=0) - epoch) // dt.timedelta(seconds=1)
        exact = Decimal(seconds) * 10**6 + Decimal(row[1]) / 10
        assert -Decimal("0.5") < microseconds - exact <= Decimal("0.5")


@given(ROWS)
def test_the_moment_in_utc(rows: list[Row]) -> None:
    """A target without offsets gets the moment that the value means."""
    texts = [
        None if row is None else server_text(row[0], row[1] // 10 * 10, row[2], 7) for row in rows
    ]
    goal = Goal(type_text="datetimeoffset(7)", form=Form.MOMENT, drops_offset=True)
    found = reach(pa.array(texts, TEXT), goal).to_pylist()
    for row, moment in zip(rows, found, strict=True):
        if row is None:
            assert moment is None
            continue
        zone = dt.timezone(dt.timedelta(minutes=row[2]))
        expected = row[0].replace(microsecond=row[1] // 10, tzinfo=zone)
        assert moment == expected


@given(st.lists(st.none() | st.uuids(), min_size=1, max_size=20), st.booleans())
def test_guids(values: list[uuid.UUID | None], is_upper: bool) -> None:
    """A GUID has the 16 bytes of its text in either case."""
    texts = [None if v is None else str(v).upper() if is_upper else str(v) for v in values]
    batch = pa.record_batch({"v": pa.array(texts, TEXT)})
    made = make_columns(batch, [SourceColumn.of("v", "uniqueidentifier")])
    assert made.arrays[0].to_pylist() == [None if v is None else v.bytes for v in values]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.booleans())
def test_any_text_is_a_moment_or_an_error(texts: list[str], has_offset: bool) -> None:
    """No text is taken for another moment than it prints, and none raises an untyped error."""
    try:
        moments = parse_moments(pa.array(texts, TEXT), has_offset=has_offset)
    except ValueBroken:
        return
    for text, again in zip(texts, moment_texts(moments, with_offset=has_offset), strict=True):
        assert again.as_py()[:10] == text[:10]


BASES = st.sampled_from(
    ["char", "varchar", "nvarchar", "binary", "varbinary", "decimal", "datetime2", "time", "int"]
)


@given(BASES, st.integers(1, 4000), st.integers(1, 38), st.integers(0, 7))
def test_a_type_is_what_it_prints(base: str, length: int, precision: int, scale: int) -> None:
    """The text of a type is read as the same type."""
    kinds: dict[str, Any] = {
        "decimal": SqlServerType(base, None, max(precision, scale), scale),
        "datetime2": SqlServerType(base, None, None, scale),
        "time": SqlServerType(base, None, None, scale),
        "int": SqlServerType(base),
    }
    kind = kinds.get(base, SqlServerType(base, length))
    assert parse_type(kind.text) == kind
    assert parse_type(kind.text.upper()) == kind
