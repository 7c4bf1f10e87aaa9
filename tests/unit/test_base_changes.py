"""Changes of a log that count for a table of its base, and those that are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.base import OLD, Log, change, move_key
from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    Change,
    commit_position,
    inserts,
    make_drop_marker,
    number_rows,
    run_of,
    truncate,
)
from harness.servers.serve import holder
from penstock.base import fold
from penstock.base import held as held_states
from penstock.base import state as base_state
from penstock.base.changes import Window, changes_of
from penstock.base.fold import LogInconsistent
from penstock.base.held import BaseNotReady
from penstock.base.manifest import load_manifest, save_manifest
from penstock.base.shapes import ShapeUnfit
from penstock.log.segment import open_segment
from penstock.model import FlushPoint, Identity, Marker, MarkerKind, Op, Run, TableName

OWN = replace(ITEM, name="own", source_id=9)
ITEM_3 = replace(ITEM, version=3)
NAME = TableName("public", "item")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with one table of ten rows."""
    return Log(tmp_path, {ITEM: OLD})


def reload(gsn: int, trx: int, *names: str) -> Marker:
    """Return a marker after a row which says that all rows follow."""
    return replace(truncate(gsn, trx, *names), kind=MarkerKind.RELOAD)


def write(log: Log, *groups: Sequence[Change], markers: Sequence[Marker] = ()) -> None:
    """Write transactions of the log's first segment in one run; markers have its numbers."""
    rows = [row for group in number_rows(groups) for row in group]
    with log.writer() as writer:
        writer.write(run_of(rows, markers=markers))
        writer.flush()
        writer.rotate()


# -- which changes count ---------------------------------------------------------------------------


def test_a_truncate_from_before_the_copy_leaves_the_copied_rows(log: Log) -> None:
    """The copy was made after it: its rows are not the rows that were removed."""
    log.copied_at(3)
    log.write(inserts(1))
    log.write(inserts(1, first=1), empties="item")
    log.write([change(Op.UPDATE, (100, "new"))])
    wanted = Counter({**dict.fromkeys(OLD, 1), (100, "old 100"): 0, (100, "new"): 1})
    assert log.rows(ITEM) == +wanted
    log.step()
    assert log.rows(ITEM) == +wanted


def test_a_truncate_in_the_transaction_of_the_copy_counts(log: Log) -> None:
    """The first transaction that is not in the copy is the one at the copy's point."""
    log.copied_at(2)
    log.write(inserts(1))
    log.write(inserts(1, first=1), empties="item")
    assert log.rows(ITEM) == Counter({(1, "note 1"): 1})


def test_changes_from_before_the_copy_do_not_count(log: Log) -> None:
    """Changes from before the copy are ignored, also in a frame that has later ones."""
    log.copied_at(2)
    write(log, [change(Op.DELETE, None, before=(100,)), *inserts(1)], inserts(1, first=1))
    assert log.rows(ITEM) == Counter([*OLD, (1, "note 1")])


def test_a_truncate_from_after_the_end_does_not_count(log: Log) -> None:
    """The open segment that a state holds grows after the state's end."""
    first, second = number_rows([inserts(1), inserts(1, first=1)])
    with log.writer() as writer:
        writer.write(run_of(first))
        writer.flush()
        with log.hold_state() as state:
            writer.write(run_of(second, markers=[truncate(1, 2, "item")]))
            writer.flush()
            assert log.read(state, ITEM) == Counter([*OLD, (0, "note 0")])
        assert log.rows(ITEM) == Counter({(1, "note 1"): 1})


def test_a_truncate_of_another_table_empties_no_other(log: Log) -> None:
    """Each marker names its tables."""
    log.write(inserts(1), empties="own")
    assert log.rows(ITEM) == Counter([*OLD, (0, "note 0")])


@pytest.mark.parametrize("mark", [truncate, make_drop_marker, reload])
def test_the_last_emptying_counts(log: Log, mark: Any) -> None:
    """Rows between two of them are gone too, as is the row right before the last one."""
    markers = [mark(1, 2, "item"), mark(2, 3, "item")]
    write(log, inserts(1), inserts(1, first=1), inserts(1, first=2), markers=markers)
    assert log.rows(ITEM) == Counter({(2, "note 2"): 1})


def test_rows_that_await_a_reload_do_not_count(log: Log) -> None:
    """Their current values are not known: they are sent again."""
    unsure = replace(ITEM_2, awaits_reload="its type was changed")
    log.write([change(Op.UPDATE, (100, "unsure", None), unsure)])
    assert log.rows(ITEM) == Counter(OLD)
    log.write([change(Op.INSERT, (100, "sure"), ITEM_3)], empties="item", mark=reload)
    assert log.rows(ITEM_3) == Counter({(100, "sure"): 1})


# -- shapes ----------------------------------------------------------------------------------------


def test_rows_of_two_shapes_are_not_mixed(log: Log) -> None:
    """Rows of the older shape have no value in the new column."""
    log.write(inserts(1))
    log.write([change(Op.INSERT, (1, "one", None), ITEM_2)])
    found = log.rows(ITEM_2)
    assert found[0, "note 0", None] == found[1, "one", None] == 1
    assert found[100, "old 100", None] == 1


def test_the_newest_shape_is_by_version(log: Log) -> None:
    """A shape without rows does not replace the rows' shape if it was current before that one."""
    (rows,) = number_rows([[change(Op.INSERT, (1, "one"), ITEM_3)]])
    run = run_of(rows)
    with log.writer() as writer:
        writer.write(Run(relations=(ITEM_2,)))
        writer.write(run)
        writer.flush()
        writer.rotate()
    assert log.rows(ITEM_3) == Counter([*OLD, (1, "one")])


def test_a_shape_from_before_the_copy_is_no_news(tmp_path: Path) -> None:
    """The copy has a newer one, whose columns would be lost."""
    log = Log(tmp_path, {ITEM_2: [(*row, None) for row in OLD]})
    log.copied_at(2)
    for number, rows in enumerate(number_rows([inserts(1, OWN), inserts(1, OWN)])):
        with log.writer() as writer:
            writer.write(replace(run_of(rows), relations=() if number else (ITEM,)))
            writer.flush()
            writer.rotate()
    assert log.rows(ITEM_2) == Counter((*row, None) for row in OLD)


@pytest.mark.parametrize(("later", "is_news"), [(0, False), (1, True)])
def test_a_shape_of_a_statement_before_the_copy_is_no_news(
    tmp_path: Path, later: int, is_news: bool
) -> None:
    """No transaction need be between the statement and the copy, so the segment does not tell."""
    log = Log(tmp_path, {ITEM: OLD})
    log.copied_at(1)
    (table,) = log.manifest.tables
    assert int(table.ordinal)
    (rows,) = number_rows([inserts(1, OWN)])
    with log.writer() as writer:
        shape = replace(ITEM_2, since=int(table.ordinal) + later)
        writer.write(replace(run_of(rows), relations=(shape,)))
        writer.flush()
        writer.rotate()
    wanted = Counter((*row, None) if is_news else row for row in OLD)
    assert log.rows(ITEM_2 if is_news else ITEM) == wanted


def test_a_shape_without_rows_is_news(log: Log) -> None:
    """The table has its columns from then on, with or without rows."""
    (rows,) = number_rows([inserts(1, OWN)])
    with log.writer() as writer:
        writer.write(replace(run_of(rows), relations=(ITEM_2,)))
        writer.flush()
        writer.rotate()
    wanted = Counter((*row, None) for row in OLD)
    assert log.rows(ITEM_2) == wanted
    log.step()
    assert log.rows(ITEM_2) == wanted


def test_a_shape_from_after_the_end_does_not_count(log: Log) -> None:
    """A state has the columns of its moment."""
    groups = [inserts(1), inserts(1, OWN), [change(Op.INSERT, (1, "one", None), ITEM_2)]]
    first, *later = number_rows(groups)
    with log.writer() as writer:
        writer.write(run_of(first))
        writer.flush()
        with log.hold_state() as state:
            for rows in later:
                writer.write(run_of(rows))
            writer.flush()
            assert log.read(state, ITEM) == Counter([*OLD, (0, "note 0")])
        assert log.rows(ITEM_2)[1, "one", None] == 1


@pytest.mark.parametrize("key", [(0,), ()])
def test_a_shape_from_before_an_emptying_does_not_count(tmp_path: Path, key: Any) -> None:
    """No row with this shape is left, so it is ignored whether its values can be converted."""
    first = replace(ITEM, key=key, identity=Identity.FULL, before=(0, 1))
    columns = (ITEM.columns[0], replace(ITEM.columns[1], source_type="bytea", neutral="binary"))
    other = replace(first, columns=columns, version=2)
    log = Log(tmp_path, {first: OLD})
    log.write(inserts(1, first))
    with log.writer() as writer:
        number = writer.end.trx + 1
        (rows,) = number_rows([[*inserts(1, OWN)]])
        rows = [replace(row, gsn=writer.end.gsn + 1, trx=number) for row in rows]
        marks = [reload(writer.end.gsn, number, "item")]
        writer.write(replace(run_of(rows, markers=marks), relations=(other,)))
        writer.flush()
        writer.rotate()
    assert log.rows(other) == Counter()
    made = log.step()
    table = made.of(NAME)
    assert table is not None
    assert table.relations[-1].same_shape(other)
    assert log.rows(other) == Counter()


# -- rows of several moments -----------------------------------------------------------------------


def test_changes_that_the_copy_has_already_change_nothing(tmp_path: Path) -> None:
    """A copy without a lock has such changes: rows that were inserted and deleted meanwhile are
    absent.
    """
    log = Log(tmp_path, {ITEM: [(1, "copied"), (2, "moved"), (3, "new")]})
    log.copied_at(1, settled=3)
    log.write([change(Op.INSERT, (1, "copied")), move_key(9, (2, "moved"))])
    log.write([change(Op.DELETE, None, before=(1,)), change(Op.UPDATE, (3, None), absent=b"\2")])
    log.write(inserts(1))
    wanted = Counter([(2, "moved"), (3, "new"), (0, "note 0")])
    assert log.rows(ITEM) == wanted
    log.step()
    assert log.rows(ITEM) == wanted


def test_unsent_values_of_a_row_whose_key_changed_during_the_copy_are_not_guessed(
    tmp_path: Path,
) -> None:
    """Two rows have swapped keys before or after they were copied: the table is read again."""
    log = Log(tmp_path, {ITEM: [(1, "second"), (2, "first")]})
    log.copied_at(1, settled=2)
    swap = [
        move_key(1, (3, None), absent=b"\2"),
        move_key(2, (1, None), absent=b"\2"),
        move_key(3, (2, None), absent=b"\2"),
    ]
    log.write(swap)
    log.write(inserts(1))
    with pytest.raises(ShapeUnfit, match="column note was not sent") as caught:
        log.rows(ITEM)
    assert caught.value.fields == {"table": "public.item", "column": "note"}
    assert log.step().of(NAME) is None


def test_unsent_values_of_a_moved_row_come_from_an_exact_copy(tmp_path: Path) -> None:
    """An exact copy holds the values from before the whole move, so each row keeps its own."""
    log = Log(tmp_path, {ITEM: [(1, "first"), (2, "second")]})
    log.copied_at(1)
    swap = [
        move_key(1, (3, None), absent=b"\2"),
        move_key(2, (1, None), absent=b"\2"),
        move_key(3, (2, None), absent=b"\2"),
    ]
    log.write(swap)
    assert log.rows(ITEM) == Counter([(1, "second"), (2, "first")])


# -- rows ------------------------------------------------------------------------------------------


def test_a_delete_of_a_row_without_a_key_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Base and log contradict each other: no other row is deleted instead."""
    row = (None, b"x", True, 0.0, None, None)
    other = (None, b"x", True, -0.0, None, None)
    log = Log(tmp_path, {EVENT: [row]})
    log.write([change(Op.DELETE, None, EVENT, before=other)])
    with pytest.raises(LogInconsistent, match="a row that is not there"):
        log.rows(EVENT)


def test_a_shape_without_rows_of_a_table_without_a_key_is_news(tmp_path: Path) -> None:
    """No row is deleted then, and the copied rows are all that the table has."""
    row = (None, b"x", True, 0.0, None, None)
    log = Log(tmp_path, {EVENT: [row, row]})
    renamed = replace(EVENT.columns[1], name="renamed")
    shape = replace(EVENT, columns=(EVENT.columns[0], renamed, *EVENT.columns[2:]), version=2)
    (rows,) = number_rows([inserts(1, OWN)])
    with log.writer() as writer:
        writer.write(replace(run_of(rows), relations=(shape,)))
        writer.flush()
        writer.rotate()
    wanted = Counter([(None, None, *row[2:])] * 2)
    assert log.rows(shape) == wanted
    log.step()
    assert log.rows(shape) == wanted


def test_an_update_of_a_row_that_is_not_there_is_an_error(log: Log) -> None:
    """The row's unsent values are missing everywhere."""
    log.write([change(Op.UPDATE, (7, None), absent=b"\2")])
    with pytest.raises(LogInconsistent, match="a row that is not there"):
        log.rows(ITEM)


def test_rows_come_once_in_pieces(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is returned once, whatever the number of rows per piece."""
    monkeypatch.setattr(base_state, "FILE_BYTES", 1)
    monkeypatch.setattr(fold, "ROWS_PER_BATCH", 2)
    log.write(inserts(7))
    assert log.rows(ITEM) == Counter([*OLD, *((n, f"note {n}") for n in range(7))])


# -- states that are held --------------------------------------------------------------------------


def test_a_base_of_another_log_is_not_held(log: Log) -> None:
    """The other log's numbers have no meaning in this one."""
    log.write(inserts(1))
    save_manifest(log.place.directory, replace(log.manifest, log_id="f" * 32))
    with pytest.raises(BaseNotReady, match="no base of the log's tables"):
        log.rows(ITEM)


def test_a_base_is_not_held_before_its_rows_are_of_one_moment(log: Log) -> None:
    """The moment is later than the base's point if the base was read without a lock."""
    log.copied_at(1, settled=3)
    log.write(inserts(1))
    with pytest.raises(BaseNotReady, match="not as far yet"):
        log.rows(ITEM)
    log.write(inserts(1, first=1), inserts(1, first=2))
    assert sum(log.rows(ITEM).values()) == 13


def test_a_base_that_moves_on_while_it_is_held_is_held_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files vanish while they are linked: the next base is held, no link of the first is left."""
    log.write([change(Op.UPDATE, (100, "new"))])
    wanted = log.rows(ITEM)
    steps = iter([log.step])
    real = load_manifest

    def load(*args: Any) -> Any:
        found = real(*args)
        for step in steps:
            step()
        return found

    monkeypatch.setattr(held_states, "load_manifest", load)
    with log.hold_state() as state:
        assert log.read(state, ITEM) == wanted
        assert state.manifest.segment == 1
        assert [path.name for path in state.directory.parent.iterdir()] == [state.directory.name]


def test_a_segment_that_is_closed_meanwhile_is_held(log: Log) -> None:
    """The segment was open when the log's end was read."""
    log.write(inserts(1), inserts(1, first=1))
    first = FlushPoint(position=commit_position(1) + 50, gsn=1, trx=1)
    (log.root / "log" / "0.ckt").unlink()  # the base's link stays
    found = holder(log.root).hold(log.manifest.log_id, 0, first, is_open=True)
    assert [path.name for path in found.segments] == ["0.ckt"]
    assert log.read(found, ITEM) == Counter([*OLD, (0, "note 0")])
    found.release()


def test_a_table_in_segments_is_read_by_name(log: Log) -> None:
    """Rows and shapes of other tables are not returned."""
    log.write(inserts(2, OWN), inserts(1))
    with open_segment(log.root / "log" / "0.ckt", extension="ckt") as segment:
        found = changes_of([segment], NAME, Window(end=segment.end))
        counts = [sum(batch.num_rows for batch in layer.batches()) for layer in found.layers]
    assert (found.relation, counts) == (ITEM, [1])
