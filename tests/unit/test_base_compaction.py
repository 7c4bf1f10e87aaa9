"""Steps of the base: its rows together with the log stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from harness.pipelines.base import OLD, Log, change, move_key
from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    commit_position,
    inserts,
    make_drop_marker,
    number_rows,
    run_of,
    truncate,
)
from penstock.base.held import BaseNotReady, TableNotInBase
from penstock.base.manifest import BaseCorrupt, empty, save_manifest
from penstock.base.shapes import ShapeUnfit, convert_rows
from penstock.host import faults
from penstock.load.base import BaseHole, Compaction
from penstock.log.layout import list_segments
from penstock.model import Marker, Op, Relation, TableName


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with one table of ten rows."""
    return Log(tmp_path, {ITEM: OLD})


def test_rows_stay_the_same_when_the_base_moves_on(log: Log) -> None:
    """Inserts, updates, deletes and changed keys are applied, also to rows that changed before."""
    log.write(inserts(3), [change(Op.UPDATE, (101, "new"))])
    log.write(
        [change(Op.DELETE, None, before=(102,)), move_key(103, (7, "seven"))],
        [move_key(7, (8, None), absent=b"\2"), move_key(104, (103, None), absent=b"\2")],
    )
    wanted = log.rows(ITEM)
    assert wanted[8, "seven"] == 1
    assert wanted[103, "old 104"] == 1
    assert (102, "old 102") not in wanted
    manifest = log.step()
    assert manifest.segment == 2
    assert list_segments(log.place.links) == []
    assert log.rows(ITEM) == wanted
    named = {file.name for table in manifest.tables for file in table.files}
    assert {path.name for path in log.place.directory.glob("*.arrow")} == named
    log.write([change(Op.DELETE, None, before=(8,))])
    assert log.rows(ITEM) == wanted - Counter({(8, "seven"): 1})
    log.step()
    assert log.rows(ITEM) == wanted - Counter({(8, "seven"): 1})


def test_values_that_were_not_sent_come_from_the_base(log: Log) -> None:
    """Unsent values come from the base, also for a row whose key has changed meanwhile."""
    log.write(
        [move_key(100, (1, None), absent=b"\2"), change(Op.UPDATE, (101, None), absent=b"\2")]
    )
    wanted = log.rows(ITEM)
    assert wanted[1, "old 100"] == wanted[101, "old 101"] == 1
    log.step()
    assert log.rows(ITEM) == wanted


@pytest.mark.parametrize("mark", [truncate, make_drop_marker])
def test_a_table_is_emptied(log: Log, mark: Callable[[int, int, str], Marker]) -> None:
    """Earlier rows are gone, later rows stay; a drop empties the table, too."""
    log.write(inserts(2), [change(Op.UPDATE, (100, "x"))])
    log.write(inserts(1, first=50), empties="item", mark=mark)
    wanted = log.rows(ITEM)
    assert sum(wanted.values()) == 1
    assert log.step().of(TableName("public", "item")) is not None
    assert log.rows(ITEM) == wanted


def test_files_without_changed_rows_are_kept(log: Log) -> None:
    """The step adds only new rows, so the old file stays."""
    big = log.manifest.tables[0].files[0].name
    log.write(inserts(5))
    assert log.step().tables[0].files[0].name == big


def test_a_table_gets_another_shape(log: Log) -> None:
    """Old rows have NULL or the column's default; the shape stays when its segment is gone."""
    log.write([change(Op.INSERT, (1, "one", Decimal("1.50")), ITEM_2)])
    wanted = log.rows(ITEM_2)
    assert wanted[100, "old 100", None] == 1
    log.step()
    assert log.rows(ITEM_2) == wanted
    log.write([change(Op.UPDATE, (100, "x", None), ITEM_2)])
    log.step()
    assert log.rows(ITEM_2)[100, "x", None] == 1


def test_a_value_that_its_type_cannot_hold(tmp_path: Path) -> None:
    """A column is exact text in the base and has its type in the log again: both are read."""
    texts = ITEM_2.with_text_column(2)
    log = Log(tmp_path, {texts: [(1, "a", "NaN"), (2, "b", "2.50")]})
    log.write([change(Op.UPDATE, (2, "c", Decimal("3.50")), ITEM_2)])
    wanted = Counter({(1, "a", "NaN"): 1, (2, "c", "3.50"): 1})
    assert log.rows(ITEM_2) == wanted
    log.step()
    assert log.rows(ITEM_2) == wanted


def test_rows_without_a_key(tmp_path: Path) -> None:
    """Each delete removes one equal row, whichever file it is in."""
    row = (None, b"x", True, 0.5, None, None)
    log = Log(tmp_path, {EVENT: [row, row, row]})
    log.write([change(Op.DELETE, None, EVENT, before=row), change(Op.INSERT, row, EVENT)])
    log.write([change(Op.DELETE, None, EVENT, before=row)] * 2)
    assert log.rows(EVENT) == Counter({row: 1})
    log.step()
    assert log.rows(EVENT) == Counter({row: 1})


def test_a_held_state_stays_what_it_is(log: Log) -> None:
    """Later rows are not in it, and files that the base drops are still there."""
    log.write([change(Op.UPDATE, (101, "new"))])
    wanted = log.rows(ITEM)
    with log.hold_state() as state:
        log.write([change(Op.UPDATE, (102, "later")), change(Op.DELETE, None, before=(103,))])
        log.step()
        (log.root / "log" / "0.ckt").unlink()
        assert log.read(state, ITEM) == wanted
    assert log.rows(ITEM)[102, "later"] == 1


def test_what_comes_into_the_same_segment_is_not_in_a_held_state(log: Log) -> None:
    """The open segment grows after the position."""
    first, second = number_rows([inserts(2), [change(Op.UPDATE, (0, "later"))]])
    with log.writer() as writer:
        writer.write(run_of(first))
        writer.flush()
        with log.hold_state() as state:
            wanted = log.read(state, ITEM)
            writer.write(run_of(second))
            writer.flush()
            assert log.read(state, ITEM) == wanted
        assert log.rows(ITEM)[0, "later"] == 1
        assert wanted[0, "later"] == 0


def test_it_is_not_read_before_the_log_is_at_its_point(log: Log) -> None:
    """Rows of that moment with changes of an earlier one are not a state."""
    log.write(inserts(1))
    manifest = log.manifest
    late = replace(manifest.tables[0], ordinal=f"{commit_position(2)}")
    save_manifest(log.place.directory, replace(manifest, tables=(late,)))
    with pytest.raises(BaseNotReady):
        log.rows(ITEM)
    log.write([change(Op.UPDATE, (100, "x"))], inserts(1, first=1))
    assert log.rows(ITEM)[100, "x"] == 1
    assert (0, inserts(1)[0].after[1]) not in log.rows(ITEM)  # type: ignore[index]


@pytest.mark.parametrize("fault", ["base.manifest.before", "base.manifest.after"])
def test_a_step_that_ends_in_the_middle(log: Log, fault: str) -> None:
    """Either the old base or the new one is there, and the next step continues."""
    log.write(inserts(3), [change(Op.UPDATE, (101, "new"))])
    wanted = log.rows(ITEM)
    with faults.arming(f"{fault}:1:error"), pytest.raises(faults.FaultInjected):
        log.step()
    assert log.rows(ITEM) == wanted
    log.write([change(Op.DELETE, None, before=(109,))])
    log.step()
    assert log.rows(ITEM) == wanted - Counter({(109, "old 109"): 1})


def test_a_damaged_file_gives_no_rows(log: Log) -> None:
    """The error names the file."""
    path = next(log.place.directory.glob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BaseCorrupt, match=path.name):
        log.rows(ITEM)


def test_a_lost_segment_is_a_hole(log: Log) -> None:
    """The base cannot skip it."""
    log.write(inserts(1))
    log.write(inserts(1, first=1))
    (log.place.links / "0.ckt").unlink()
    with pytest.raises(BaseHole):
        log.compaction.waiting(log.manifest)


def test_values_that_a_type_has_changed_are_not_known() -> None:
    """The server has recalculated the values of such a column."""
    changed = replace(
        ITEM,
        columns=(
            ITEM.columns[0],
            replace(ITEM.columns[1], source_type="integer", neutral="int32"),
        ),
    )
    with pytest.raises(ShapeUnfit):
        convert_rows(empty(ITEM), ITEM, changed)


def retype(neutral: str, source_type: str) -> Relation:
    """Return the third version of the table, whose price has another type."""
    price = replace(ITEM_2.columns[2], neutral=neutral, source_type=source_type)
    return replace(ITEM_2, columns=(*ITEM_2.columns[:2], price), version=3)


@pytest.mark.parametrize(
    ("neutral", "kept", "price"),
    [
        ("decimal(4,2)", Decimal("2.50"), Decimal("2.50")),
        ("decimal(14,3)", Decimal("2.50"), Decimal("2.500")),
        ("decimal(4,2)", Decimal("123.00"), None),
        ("decimal(12,1)", Decimal("2.55"), None),
        ("int32", Decimal("2.00"), 2),
        ("int32", Decimal("2.50"), None),
    ],
)
def test_numbers_keep_their_values_or_are_not_known(
    tmp_path: Path, neutral: str, kept: Decimal, price: Decimal | int | None
) -> None:
    """MySQL narrows a column without a RELOAD if all values fit; the base sees whether they do."""
    later = retype(neutral, neutral)
    log = Log(tmp_path, {ITEM_2: [(1, "a", kept)]})
    log.write([change(Op.INSERT, (2, "b", None), later)])
    made = log.step()
    if price is None:
        assert made.tables == made.unread == ()
    else:
        assert log.rows(later) == Counter({(1, "a", price): 1, (2, "b", None): 1})


def test_whole_numbers_become_decimals(tmp_path: Path) -> None:
    """A 64-bit number has fewer digits than its type could have."""
    whole = replace(
        ITEM_2, columns=(*ITEM_2.columns[:2], replace(ITEM_2.columns[2], neutral="int64"))
    )
    log = Log(tmp_path, {whole: [(1, "a", 1234)]})
    later = replace(ITEM_2, version=3)
    log.write([change(Op.INSERT, (2, "b", Decimal("0.50")), later)])
    log.step()
    assert log.rows(later) == Counter(
        {(1, "a", Decimal("1234.00")): 1, (2, "b", Decimal("0.50")): 1}
    )


def test_a_table_of_a_merged_log_whose_rows_are_lost_returns_with_a_reload(tmp_path: Path) -> None:
    """Rows of later changes alone are not a table: until the log empties it, it is refused."""
    log = Log(tmp_path, {ITEM_2: [(1, "a", Decimal("2.50"))]})
    log.compaction = Compaction(log.place, is_merged=True)
    later = retype("int32", "integer")
    log.write([change(Op.INSERT, (2, "b", 7), later)])
    for _ in range(2):
        log.step()
        assert log.manifest.tables == ()
        with pytest.raises(TableNotInBase, match="its shape has changed") as refused:
            log.rows(later)
        assert "penstock table resync" in refused.value.hint
        log.write([change(Op.UPDATE, (2, "c", 7), later)])
    log.write([change(Op.INSERT, (3, "d", 8), later)], empties="item")
    log.step()
    assert log.manifest.unread == ()
    assert log.rows(later) == Counter({(3, "d", 8): 1})
