"""Position and time of each row's commit: taken from its transaction, and never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults.disk import Disk
from harness.pipelines.log import (
    COMMIT_TIME_US,
    ITEM,
    SOURCE,
    batch_of,
    commit_position,
    end_point,
    inserts,
    number_rows,
    run_of,
)
from penstock.codec import ckt
from penstock.codec.columns import POSITION, TRANSACTIONS_SCHEMA, transactions_batch
from penstock.log import Segment, SegmentCorrupt, Writer, check, open_segment
from penstock.log.changes import ChangeLog
from penstock.log.transactions import never_fall
from penstock.model import FlushPoint, Run
from penstock.model.position import POSITION_MAX, to_bytes
from penstock.ports.positions import has_wide_positions

LOG = Path("/log")


def write_log(runs: Sequence[Run], source: dict[str, str] | None = None) -> Disk:
    """Write a log of a closed segment with a flush point after each run that ends a transaction."""
    disk = Disk()
    with Writer.open(LOG, log_id=None, source=source or SOURCE, files=disk) as log:
        for run in runs:
            log.write(run)
            if log.at_commit:
                log.flush()
        log.rotate()
    return disk


def read_times(segment: Segment) -> list[tuple[int, int, int]]:
    """Return gsn, position and time of every row."""
    found = []
    for rows in segment.rows():
        batch = segment.add_commit(rows.batch)
        found += zip(
            batch.column("gsn").to_pylist(),
            (int.from_bytes(one) for one in batch.column("position").to_pylist()),
            batch.column("commit_time").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    return sorted(found)


def place_rows(group: Sequence[Any], positions: Sequence[int]) -> Run:
    """Return rows whose transactions were committed at these positions, as one run that ends."""
    announced = transactions_batch(
        [(at, at + 1, COMMIT_TIME_US + number, 0) for number, at in enumerate(positions, 1)]
    )
    last = group[-1]
    end = replace(end_point(last.trx, last.gsn), position=positions[-1] + 1)
    return Run(rows=(batch_of(ITEM, group),), transactions=announced, end=end)


@given(
    positions=st.lists(st.integers(0, POSITION_MAX - 1), min_size=1, max_size=12).map(sorted),
    asked=st.integers(0, POSITION_MAX),
)
def test_positions_of_16_bytes_come_back_and_are_found(positions: list[int], asked: int) -> None:
    """Positions above 64 bits are found, and several transactions at one position."""
    groups = number_rows([inserts(2, first=2 * n) for n in range(len(positions))])
    disk = write_log([place_rows([row for group in groups for row in group], positions)])
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        assert read_times(segment) == [
            (row.gsn, positions[row.trx - 1], COMMIT_TIME_US + row.trx)
            for group in groups
            for row in group
        ]
        for position in (asked, *positions):
            before = sum(one < position for one in positions)
            assert segment.transactions.first_from(position) == before + 1
        assert segment.end == FlushPoint(
            position=positions[-1] + 1,
            gsn=2 * len(positions),
            trx=len(positions),
            commit_time_us=COMMIT_TIME_US + len(positions),
        )
    assert not [one for one in check(LOG, files=disk) if one.severity == "error"]


def test_rows_of_a_giant_transaction_are_dated_by_its_end() -> None:
    """The transaction's rows are in frames long before the frame that has its commit."""
    groups = number_rows([inserts(1), inserts(3, first=1), inserts(1, first=4)])
    giant = groups[1]
    runs = [
        run_of([*groups[0], giant[0]], ended=False),
        run_of(giant[1:2], ended=False),
        replace(
            run_of([giant[2], *groups[2]]),
            transactions=run_of([giant[2], *groups[2]]).transactions,
        ),
    ]
    with open_segment(LOG / "0.ckt", files=write_log(runs)) as segment:
        assert [position for _, position, _ in read_times(segment)] == [100, 200, 200, 200, 300]
        assert [segment.transactions.first_from(at) for at in (100, 101, 200, 201, 301)] == [
            1,
            2,
            2,
            3,
            4,
        ]
        assert segment.transactions.find(4) is None


def test_an_open_segment_has_the_transactions_of_all_that_is_durable() -> None:
    """A reader that follows it finds them at every flush point."""
    groups = number_rows([inserts(2, first=2 * n) for n in range(3)])
    disk = Disk()
    with Writer.open(LOG, log_id=None, source=SOURCE, files=disk) as log:
        for number, group in enumerate(groups, 1):
            log.write(run_of(group))
            log.flush()
            with open_segment(LOG / "0.ckt_", files=disk) as segment:
                found = {position for _, position, _ in read_times(segment)}
                assert found == {commit_position(n) for n in range(1, number + 1)}
        log.write(run_of(groups[0][:0]))


def test_an_engine_with_wide_positions_is_read_by_python() -> None:
    """Single ones are numbers, a table has 16 bytes, since no Arrow number holds them."""
    groups = number_rows([inserts(1), inserts(1, first=1)])
    wide = [2**64, 2**127 + 5]
    disk = write_log([place_rows([*groups[0], *groups[1]], wide)], {"engine": "one of tomorrow"})
    log = ChangeLog(LOG, is_wide=has_wide_positions, files=disk)
    assert [change.position for change in log] == wide
    table = log.table("public.item")
    assert table.schema.field("_position").type == POSITION
    assert table.column("_position").to_pylist() == [to_bytes(one) for one in wide]
    narrow = write_log([place_rows([*groups[0], *groups[1]], [7, 8])])
    read = ChangeLog(LOG, is_wide=has_wide_positions, files=narrow)
    column = read.table("public.item").column("_position")
    assert (column.type, column.to_pylist()) == (pa.uint64(), [7, 8])


# --- what is missing or wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("missing", [[1], [2], [3], [1, 2, 3]])
def test_a_transaction_that_is_missing_is_damage(
    missing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever frame is missing, no row is returned without a position, and none is skipped."""
    groups = number_rows([inserts(2, first=2 * n) for n in range(3)])
    write = Writer._write_transactions

    def some(log: Writer, batch: pa.RecordBatch, first: int) -> None:
        if first not in missing:
            write(log, batch, first)

    monkeypatch.setattr(Writer, "_write_transactions", some)
    disk = Disk()
    with Writer.open(LOG, log_id=None, source=SOURCE, files=disk) as log:
        for group in groups:
            log.write(run_of(group))
            log.flush()
        with pytest.raises(SegmentCorrupt, match="transactions are missing"):
            open_segment(LOG / "0.ckt_", files=disk)
        with pytest.raises(SegmentCorrupt, match="transactions are missing"):
            log.rotate()
    with pytest.raises(SegmentCorrupt, match="transactions are missing"):
        open_segment(LOG / "0.ckt", files=disk)
    assert "LG01" in {one.code for one in check(LOG, files=disk)}


def test_positions_that_fall_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's start is looked up in them: in a wrong order rows would be skipped."""
    monkeypatch.setattr("penstock.log.writer.never_fall", lambda _: True)
    groups = number_rows([inserts(1), inserts(1, first=1), inserts(1, first=2)])
    disk = write_log([place_rows([row for group in groups for row in group], [100, 300, 200])])
    with (
        open_segment(LOG / "0.ckt", files=disk) as segment,
        pytest.raises(SegmentCorrupt, match="positions fall"),
    ):
        segment.transactions.first_from(200)
    assert "LG01" in {one.code for one in check(LOG, files=disk)}


def test_a_row_of_a_transaction_that_the_segment_does_not_have_is_damage() -> None:
    """The segment invents no position for rows that are not its own."""
    groups = number_rows([inserts(2), inserts(2, first=2)])
    with open_segment(LOG / "0.ckt", files=write_log([run_of(groups[0])])) as segment:
        with pytest.raises(SegmentCorrupt, match="transactions are missing"):
            segment.add_commit(batch_of(ITEM, groups[1]).batch)
        assert segment.add_commit(batch_of(ITEM, []).batch).num_rows == 0


@given(st.lists(st.integers(0, POSITION_MAX), max_size=8))
def test_falling_positions_are_seen_over_all_16_bytes(positions: list[int]) -> None:
    """Positions are compared as memcmp does, for a slice, too."""
    column = pa.array([to_bytes(one) for one in (POSITION_MAX, *positions)], POSITION)
    assert never_fall(column.slice(1)) == (positions == sorted(positions))


def test_numbers_that_rise_take_few_bytes() -> None:
    """A transaction of one row costs no more than the position and time that rows once had."""
    count = 20_000
    announced = transactions_batch(
        [
            (2**40 + 264 * n, 2**40 + 264 * n + 48, COMMIT_TIME_US + 9 * n, 700 + n)
            for n in range(count)
        ]
    )
    assert announced is not None
    encoder = ckt.MessageEncoder(TRANSACTIONS_SCHEMA, "zstd")
    assert sum(map(len, encoder.encode(announced))) < 9 * count
