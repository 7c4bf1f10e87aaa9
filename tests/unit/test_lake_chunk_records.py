"""Marks and chunk records of the bulk load in a lake: exact, whole, and of one plan each."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engines.lake.chunk_records import (
    ChunkRecord,
    ChunkRecords,
    LakeRecordDamaged,
    TableMark,
    folder_name,
    pack_value,
    unpack_value,
)
from penstock.engines.lake.format import ColumnStatistics, NewFile
from penstock.engines.lake.storage import Folder
from penstock.model import TableName

ORDERS = TableName("public", "orders")
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
)


@pytest.fixture
def records(tmp_path: Path) -> ChunkRecords:
    """Return the records of a new lake."""
    return ChunkRecords(Folder(str(tmp_path)))


def make_mark(plan: str, **more: Any) -> TableMark:
    """Return the mark of a plan of the orders."""
    return TableMark(
        source=("public", "orders"), target=("lake", "orders"), plan=plan, position="0/1", **more
    )


def make_record(row_count: int, location: str = "/lake/a.parquet") -> ChunkRecord:
    """Return a record of one file."""
    statistics = {
        "id": ColumnStatistics(low=1, high=row_count, value_count=row_count, size_bytes=9),
        "day": ColumnStatistics(low=date(1, 1, 1), high=date(9999, 12, 31), null_count=2),
        "amount": ColumnStatistics(low=Decimal("-0.10"), high=Decimal("12.50")),
        "at": ColumnStatistics(low=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    }
    file = NewFile(
        location=location,
        size_bytes=100,
        row_count=row_count,
        statistics=statistics,
        split_offsets=(4, 90),
    )
    return ChunkRecord(row_count=row_count, files=(file,))


@given(value=VALUES)
def test_a_statistic_comes_back_as_it_was(value: Any) -> None:
    """A statistic comes back as it was."""
    back = unpack_value(pack_value(value))
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, (float, Decimal)):
        assert str(back) == str(value)  # the sign of zero, digits after the point


def test_a_record_comes_back_whole(records: ChunkRecords) -> None:
    """A record comes back whole."""
    record = make_record(5)
    records.write(ORDERS, "p", 3, record)
    assert records.read(ORDERS, "p", 3) == record
    assert records.read_all(ORDERS, "p") == {3: record}
    assert records.read(ORDERS, "p", 4) is None


def test_a_repeated_chunk_replaces_its_record(records: ChunkRecords) -> None:
    """A repeated chunk replaces its record."""
    records.write(ORDERS, "p", 3, make_record(5))
    records.write(ORDERS, "p", 3, make_record(5, "/lake/b.parquet"))
    [(_, one)] = records.read_all(ORDERS, "p").items()
    assert one.files[0].location == "/lake/b.parquet"


def test_marks_have_the_chunks_of_their_own_plan(records: ChunkRecords) -> None:
    """Marks have the chunks of their own plan."""
    records.write(ORDERS, "old", 0, make_record(99))
    records.write_mark(make_mark("new"))
    records.write(ORDERS, "new", 1, make_record(7))
    found = records.marks()[ORDERS]
    assert (found.plan, found.finished, found.done) == ("new", False, {1: 7})


def test_a_finished_mark_keeps_its_counts_without_records(records: ChunkRecords) -> None:
    """A finished mark keeps its counts without records."""
    records.write(ORDERS, "p", 0, make_record(4))
    records.write_mark(make_mark("p", finished=True, row_count=4, done={0: 4}))
    records.forget(ORDERS)
    found = records.marks()[ORDERS]
    assert (found.finished, found.row_count, found.done) == (True, 4, {0: 4})
    assert records.read_all(ORDERS, "p") == {}


def test_forgetting_leaves_the_plan_to_keep_and_the_mark(records: ChunkRecords) -> None:
    """Forgetting leaves the plan to keep and the mark."""
    records.write_mark(make_mark("b"))
    records.write(ORDERS, "a", 0, make_record(1))
    records.write(ORDERS, "b", 0, make_record(2))
    records.forget(ORDERS, keep="b")
    assert records.read_all(ORDERS, "a") == {}
    assert records.marks()[ORDERS].done == {0: 2}
    records.forget_table(ORDERS)
    assert records.marks() == {}


def test_a_damaged_record_is_told_by_its_path(records: ChunkRecords, tmp_path: Path) -> None:
    """A damaged record is told by its path."""
    records.write(ORDERS, "p", 0, make_record(1))
    [file] = tmp_path.rglob("0.json")
    file.write_text("{")
    with pytest.raises(LakeRecordDamaged) as caught:
        records.read_all(ORDERS, "p")
    assert str(file) in caught.value.message


@given(
    names=st.lists(
        st.builds(TableName, st.text(min_size=1), st.text(min_size=1)), min_size=2, unique=True
    )
)
def test_each_table_has_a_folder_of_its_own(names: list[TableName]) -> None:
    """Each table has a folder of its own."""
    folders = {folder_name(name) for name in names}
    assert len(folders) == len(names)
    assert all(len(one) < 100 and "/" not in one and not one.startswith(".") for one in folders)
