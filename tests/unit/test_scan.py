"""Scans of a log: readers' parts, limits by transaction, key changes as two rows, JSON rows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import (
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    announced_batch,
    changes,
    end_point,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock import read_log
from penstock.host.state_of_log import StateOfOtherLog
from penstock.log import SegmentMissing, Writer
from penstock.log.change_tables import ChangeShape
from penstock.log.changes import ColumnNotInLog, TableNotInLog
from penstock.log.scan import Scan
from penstock.model import FlushPoint, Op, Run

MOVED = Change(relation=ITEM, op=Op.UPDATE, after=(2, None), before=(1,), absent=b"\x02")


def write(root: Path, *runs: Run) -> Path:
    """Write a log with a segment per run."""
    with Writer.open(root / "log", log_id=None, source=SOURCE) as log:
        for run in runs:
            log.write(run)
            log.rotate()
    return root


def empty_after(end: FlushPoint) -> Run:
    """Return a transaction that only truncates the table."""
    trx = end.trx + 1
    return Run(
        end=end_point(trx, end.gsn),
        transactions=announced_batch([trx]),
        markers=(truncate(end.gsn, trx, "item"),),
    )


def read_all(scan: Scan) -> pa.Table:
    """Return what all readers of a scan return together."""
    tables = [table for part in scan.parts for table in scan.read(part.number)]
    return pa.concat_tables([scan.shape.schema.empty_table(), *tables])


@given(
    groups=st.lists(st.lists(changes(ITEM) | changes(ITEM_2), min_size=1, max_size=4), max_size=6)
)
def test_readers_of_a_scan_return_what_the_log_has(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Change]]
) -> None:
    """All parts together are the table that `read_log` returns, also after they were pickled."""
    runs = [run_of(group) for group in number_rows([inserts(1), *groups])]
    log = read_log(write(tmp_path_factory.mktemp("log"), *runs))
    scan = pickle.loads(pickle.dumps(log.scan("public.item")))
    assert read_all(scan).drop_columns(["_sent"]).equals(log.table("public.item"))


@given(
    groups=st.lists(st.lists(changes(ITEM), min_size=1, max_size=3), min_size=1, max_size=6),
    cut=st.integers(0, 7),
)
def test_ranges_of_transactions_have_every_change_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Change]], cut: int
) -> None:
    """Changes up to a transaction and those after it are all changes; truncates too."""
    numbered = number_rows(groups)
    pairs = [numbered[at : at + 2] for at in range(0, len(numbered), 2)]
    runs = [run_of([row for group in pair for row in group]) for pair in pairs]
    last = runs[-1].end
    assert last is not None
    runs.append(empty_after(last))
    scan = read_log(write(tmp_path_factory.mktemp("log"), *runs)).scan("public.item")
    whole = read_all(scan)
    first = replace(scan, wanted=replace(scan.wanted, trx_through=cut))
    second = replace(scan, wanted=replace(scan.wanted, trx_after=cut))
    found = pa.concat_tables([read_all(first), read_all(second)])
    order = [("_trx", "ascending"), ("_gsn", "ascending"), ("_op", "ascending")]
    assert found.sort_by(order).equals(whole.sort_by(order))
    assert all(trx <= cut for trx in read_all(first).column("_trx").to_pylist())


def test_a_scan_ends_with_what_was_there_when_it_was_planned(tmp_path: Path) -> None:
    """A truncate has the gsn of the row before it, and is later: the transaction tells."""
    (group,) = number_rows([inserts(2)])
    run = run_of(group)
    assert run.end is not None
    root = tmp_path
    with Writer.open(root / "log", log_id=None, source=SOURCE) as log:
        log.write(run)
        log.flush()
        scan = read_log(root).scan()
        log.write(empty_after(run.end))
        log.flush()
        log.rotate()
    assert read_all(scan).column("_op").to_pylist() == ["insert", "insert"]
    assert read_all(read_log(root).scan()).num_rows == 3


def test_a_changed_key_is_a_delete_and_an_insert_if_wanted(tmp_path: Path) -> None:
    """The delete has the number before; a column that was not sent stays so."""
    rows = number_rows([inserts(1), [MOVED]])
    moved = [replace(row, gsn=row.gsn + 1) for row in rows[1]]  # it has two numbers in the log
    log = read_log(write(tmp_path, run_of(rows[0]), run_of(moved)))
    found = read_all(log.scan(splits=True)).select(["_gsn", "_op", "_absent", "_sent", "id"])
    assert found.to_pylist()[1:] == [
        {"_gsn": 2, "_op": "delete", "_absent": ["note"], "_sent": ["id"], "id": 1},
        {"_gsn": 3, "_op": "insert", "_absent": ["note"], "_sent": ["id"], "id": 2},
    ]
    assert read_all(log.scan()).column("_op").to_pylist() == ["insert", "update"]


def test_an_update_that_leaves_the_key_is_one_row(tmp_path: Path) -> None:
    """Also if the source sent the old row."""
    same = Change(relation=ITEM, op=Op.UPDATE, after=(1, "x"), before=(1,))
    (group,) = number_rows([[same]])
    log = read_log(write(tmp_path, run_of(group)))
    assert read_all(log.scan(splits=True)).column("_op").to_pylist() == ["update"]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    """Others are neither read nor named."""
    log = read_log(
        write(
            tmp_path,
            run_of(number_rows([[Change(relation=ITEM_2, op=Op.INSERT, after=(1, "x", None))]])[0]),
        )
    )
    shape = log.scan(columns=["price"]).shape
    assert isinstance(shape, ChangeShape)
    assert list(shape.columns) == ["price"]
    with pytest.raises(ColumnNotInLog) as wrong:
        log.scan("public.item", columns=["prise"])
    assert "price" in wrong.value.hint


def test_all_tables_come_as_json(tmp_path: Path) -> None:
    """A column that was not sent is not in the row; NULL is null."""
    story = [
        inserts(1),
        [MOVED],
        [Change(relation=ITEM_2, op=Op.INSERT, after=(3, None, Decimal("1.50")))],
        [Change(relation=ITEM, op=Op.DELETE, after=None, before=(2,))],
    ]
    log = read_log(write(tmp_path, *(run_of(group) for group in number_rows(story))))
    found = read_all(log.scan_all()).to_pylist()
    assert [(row["_op"], row["_table"]) for row in found] == [
        ("insert", "public.item"),
        ("update", "public.item"),
        ("insert", "public.item"),
        ("delete", "public.item"),
    ]
    rows = [msgspec.json.decode(row["_row"]) for row in found]
    assert rows == [
        {"id": 0, "note": "note 0"},
        {"id": 2},
        {"id": 3, "note": None, "price": 1.50},
        {"id": 2},
    ]
    assert found[2]["_row"].endswith('"price":1.50}'), "a number keeps its digits"


def test_a_segment_that_was_removed_is_an_error(tmp_path: Path) -> None:
    """Readers never pass over it."""
    scan = read_log(write(tmp_path, run_of(number_rows([inserts(1)])[0]))).scan()
    (tmp_path / "log" / "0.ckt").unlink()
    with pytest.raises(SegmentMissing):
        list(scan.read(0))


def test_a_segment_of_another_log_is_refused(tmp_path: Path) -> None:
    """Numbers mean nothing in another log."""
    run = run_of(number_rows([inserts(1)])[0])
    scan = read_log(write(tmp_path / "one", run)).scan()
    other = write(tmp_path / "two", run)
    moved = replace(scan, directories=(other / "log",))
    with pytest.raises(StateOfOtherLog):
        list(moved.read(0))


def test_changes_to_come_need_a_log(tmp_path: Path) -> None:
    """A log that has not begun has no id."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "LOG.json").touch()
    (tmp_path / "log" / "LOG.json").unlink()
    write(tmp_path, run_of(number_rows([inserts(1)])[0]))
    assert read_log(tmp_path).scan_later().parts == ()
    with pytest.raises(TableNotInLog):
        read_log(tmp_path).scan("public.other")
