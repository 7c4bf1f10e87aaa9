"""Rounds of several logs as runs of the merged one: rows, markers, shapes and transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.pipelines.log import ITEM, ITEM_2, Change, batch_of, number_rows, truncate
from harness.pipelines.merged import BASE_US, OPTIONS, OWN, SECTION, LogOf, merge
from penstock.codec.ckt import FrameKind
from penstock.extract import extractor
from penstock.log import list_segments, open_chain
from penstock.log.segment import Segment
from penstock.merge.order import Global, InputQueue, Order, Reached
from penstock.merge.rows import OfOneInput
from penstock.merge.shapes import Shapes, convert_rows
from penstock.model import Column, Marker, MarkerKind, Op, Relation, Run, TableName
from penstock.model.sections import OfOneLog

ONE_SEGMENT = replace(OPTIONS, flush_interval_s=30)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loop look again soon."""
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)


@dataclass
class Marked(LogOf):
    """A log with markers. marks: by the place of their transaction, at its beginning."""

    marks: dict[int, list[Marker]] = field(default_factory=dict)

    def _run(self, chosen: range) -> Run:
        run = super()._run(chosen)
        markers = [*run.markers, *(one for at in chosen for one in self._markers(at))]
        return replace(run, markers=tuple(sorted(markers, key=lambda one: (one.trx, one.gsn))))

    def _markers(self, at: int) -> Iterator[Marker]:
        gsn = next((r[-1].gsn for r in reversed(self.numbered[:at]) if r), 0)
        for marker in self.marks.get(at, ()):
            yield replace(
                marker,
                gsn=gsn,
                trx=at + 1,
                position=(at + 1) * 100,
                commit_time_us=BASE_US + self.transactions[at][0],
            )


def insert(key: int, note: str, relation: Relation = ITEM) -> Change:
    """Return an insert; its price is NULL if its shape is wider."""
    row = (key, note) if len(relation.columns) == 2 else (key, note, None)
    return Change(relation=relation, op=Op.INSERT, after=row)


def message(text: str) -> Marker:
    """Return a message of a client."""
    return replace(truncate(0, 0), kind=MarkerKind.MESSAGE, data={"prefix": text, "content": text})


def log_of(
    folder: Path,
    name: str,
    times: Sequence[int],
    rows: list[list[Change]],
    marks: dict[int, list[Marker]] | None = None,
    named: dict[int, Global] | None = None,
) -> LogOf:
    """Return a log that has ended."""
    transactions = [(at, (named or {}).get(place)) for place, at in enumerate(times)]
    log = Marked(folder / name, transactions, rows, marks=marks or {})
    log.end()
    return log


@contextmanager
def open_merged(directory: Path) -> Iterator[list[Segment]]:
    """Yield the segments of a merged log."""
    found = list(open_chain(list_segments(directory / "log")))
    with ExitStack() as stack:
        for segment in found:
            stack.enter_context(segment)
        yield found


def story(directory: Path) -> list[Any]:
    """Return the keys of rows, and markers as texts, in order."""
    found: list[Any] = []
    with open_merged(directory) as opened:
        for one in (one for segment in opened for one in segment.in_order()):
            if isinstance(one, Marker):
                found.append(f"{one.data.get('prefix', one.kind.value)} {one.gsn} {one.trx}")
            else:
                found.append(one[2].column("after")[one[1]].as_py()["id"])
    return found


# -- markers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_giant", [False, True])
def test_a_marker_stays_in_front_of_the_first_row_of_a_new_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_giant: bool
) -> None:
    """A marker after that row stays after it: the round is cut wherever the shape changes."""
    if is_giant:
        monkeypatch.setattr("penstock.merge.stream.ROWS_MAX", 0.01)
    again = replace(ITEM, version=3)
    rows = [[insert(1, "a")], [insert(2, "b", ITEM_2)], [insert(3, "c", again)]]
    marks = {1: [message("x"), message("y")], 2: [message("z")]}
    log = log_of(tmp_path, "s1", (10, 20, 30), rows, marks)
    merge([log], tmp_path / "all", options=ONE_SEGMENT).run()
    assert story(tmp_path / "all") == [1, "x 1 2", "y 1 2", 2, "z 2 3", 3]


def test_markers_of_several_logs_keep_their_rows(tmp_path: Path) -> None:
    """Each stays between the rows of its own log; the last one may be after all."""
    first = log_of(
        tmp_path,
        "s1",
        (10, 30, 50),
        [[insert(1, "a")], [insert(2, "b")], []],
        {1: [message("x")], 2: [message("end")]},
    )
    second = log_of(
        tmp_path, "s2", (20, 40), [[insert(7, "c")], [insert(8, "d")]], {1: [message("y")]}
    )
    merge([first, second], tmp_path / "all", options=ONE_SEGMENT).run()
    assert story(tmp_path / "all") == [1, 7, "x 2 3", 2, "y 3 4", 8, "end 4 5"]


def test_positions_of_one_log_are_not_the_merged_logs(tmp_path: Path) -> None:
    """A resolved time belongs to the log that announces it."""
    resolved = replace(truncate(0, 0), kind=MarkerKind.RESOLVED)
    log = log_of(tmp_path, "s1", (10, 20), [[insert(1, "a")], [insert(2, "b")]], {1: [resolved]})
    merge([log], tmp_path / "all").run()
    assert story(tmp_path / "all") == [1, 2]


def test_a_truncate_of_a_table_that_no_other_log_has_stays(tmp_path: Path) -> None:
    """The truncate stays even if another log has rows of the table later."""
    rows = [[insert(1, "a", OWN)], [], [insert(4, "d", OWN)]]
    own = log_of(tmp_path, "s1", (10, 20, 40), rows, {1: [truncate(0, 0, "own")]})
    item = log_of(tmp_path, "s2", (15, 30), [[insert(2, "b")], [insert(3, "c", OWN)]])
    merge([own, item], tmp_path / "all", options=ONE_SEGMENT).run()
    assert story(tmp_path / "all") == [1, 2, "truncate 2 3", 3, 4]


@pytest.mark.parametrize("rounds", [1, 10])
def test_a_truncate_of_a_table_that_another_log_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """The other log's rows may be in the same round or in an earlier one."""
    if rounds > 1:
        monkeypatch.setattr("penstock.merge.stream.ROWS_MAX", 1.0)
    first = log_of(
        tmp_path, "s1", (10, 30), [[insert(1, "a")], []], {1: [truncate(0, 0, "own", "item")]}
    )
    other = replace(ITEM, name="other", source_id=8)
    rows = [[insert(9, "z", other)], [insert(2, "b")], [insert(3, "c")]]
    second = log_of(tmp_path, "s2", (5, 20, 40), rows)
    with pytest.raises(OfOneInput, match=r"truncate of public\.item, of which s2 has rows"):
        merge([first, second], tmp_path / "all").run()
    left = replace(SECTION, of_one_log=OfOneLog.LEAVE)
    merge([first, second], tmp_path / "all", section=left).run()
    assert story(tmp_path / "all") == [9, 1, 2, 3]


# -- rows and transactions -------------------------------------------------------------------------


def test_rows_of_one_table_of_several_logs_are_in_order(tmp_path: Path) -> None:
    """Rows are one batch of the table's frame, in which numbers increase."""
    first = log_of(tmp_path, "s1", (10, 30), [[insert(1, "a")], [insert(3, "c")]])
    second = log_of(tmp_path, "s2", (20, 40), [[insert(2, "b")], [insert(4, "d")]])
    merge([first, second], tmp_path / "all", options=ONE_SEGMENT).run()
    with open_merged(tmp_path / "all") as opened:
        batches = [rows.batch for segment in opened for rows in segment.rows()]
    assert max(batch.num_rows for batch in batches) > 2
    for name, wanted in (("gsn", [1, 2, 3, 4]), ("trx", [1, 2, 3, 4])):
        assert [one for batch in batches for one in batch.column(name).to_pylist()] == wanted
    rows = [row["id"] for batch in batches for row in batch.column("after").to_pylist()]
    assert rows == [1, 2, 3, 4]


def test_a_joined_transaction_is_that_of_its_last_part(tmp_path: Path) -> None:
    """The transaction was committed with its last part, and has the log and id of that part."""
    part = Global(id="g", parts=2)
    first = log_of(tmp_path, "s1", (10, 20), [[insert(1, "a")], [insert(2, "b")]], None, {1: part})
    second = log_of(tmp_path, "s2", (25, 60), [[insert(3, "c")], [insert(4, "d")]], None, {0: part})
    merge([first, second], tmp_path / "all", options=ONE_SEGMENT).run()
    with open_merged(tmp_path / "all") as opened:
        found = [
            segment.transactions.find(trx)
            for segment in opened
            for trx in range(segment.start.trx + 1, segment.end.trx + 1)
        ]
        trxs = [
            trx
            for segment in opened
            for rows in segment.rows()
            for trx in rows.batch.column("trx").to_pylist()
        ]
    assert [(one.commit_time_us - BASE_US, one.origin, one.source_id) for one in found if one] == [
        (10, 1, 701),
        (25, 2, 701),
        (60, 2, 702),
    ]
    assert trxs == [1, 2, 2, 3]


def test_transactions_end_where_their_rows_do(tmp_path: Path) -> None:
    """No transaction of a cut round is reported as ended before its last row is there, either."""
    rows = [[insert(1, "a")], [insert(2, "b"), insert(3, "c", ITEM_2)], [insert(4, "d", ITEM_2)]]
    log = log_of(tmp_path, "s1", (10, 20, 30), rows)
    merge([log], tmp_path / "all", options=ONE_SEGMENT).run()
    ended, seen = 0, 0
    with open_merged(tmp_path / "all") as opened:
        for entry in (entry for segment in opened for entry in segment.entries):
            if entry.kind == FrameKind.ROWS:
                seen = max(seen, entry.trx_last)
            if entry.kind == FrameKind.TRANSACTIONS:
                assert entry.trx_last <= seen
                assert entry.trx_first == ended + 1
                ended = entry.trx_last
    assert ended == 3
    assert story(tmp_path / "all") == [1, 2, 3, 4]


@pytest.mark.parametrize("is_giant", [False, True])
def test_a_table_without_rows_gets_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_giant: bool
) -> None:
    """The shape comes with the transactions that it follows: a later start would miss it."""
    if is_giant:
        monkeypatch.setattr("penstock.merge.stream.ROWS_MAX", 0.01)
    log = LogOf(tmp_path / "s1", [(10, None)], [[insert(1, "a")]])
    writer = log.open_writer()
    writer.write(replace(log._run(range(1)), relations=(OWN,)))
    writer.flush()
    writer.rotate()
    writer.finish()
    log.close()
    merge([log], tmp_path / "all").run()
    with open_merged(tmp_path / "all") as opened:
        found = [(table.name, table.rows) for segment in opened for table in segment.tables]
    assert sorted(found) == [("item", 1), ("own", 0)]


# -- shapes ----------------------------------------------------------------------------------------


def test_a_row_without_a_column_leaves_it_as_another_log_wrote_it() -> None:
    """An update does not have it: NULL would overwrite it."""
    price = Column(name="price", source_type="integer", neutral="int32", id=3)
    own = replace(
        ITEM, columns=tuple(replace(one, id=at) for at, one in enumerate(ITEM.columns, 1))
    )
    into = replace(own, columns=(*own.columns, price), version=2)
    change = Change(relation=ITEM, op=Op.UPDATE, after=(1, "a"))
    found = convert_rows(batch_of(ITEM, number_rows([[change]])[0]).batch, own, into)
    assert found.column("absent").to_pylist() == [b"\4"]


def test_a_dropped_column_is_not_the_one_that_is_added_again() -> None:
    """The identity decides: the new one has no values of the old one."""
    ids = tuple(replace(one, id=at) for at, one in enumerate(ITEM.columns, 1))
    shapes = Shapes()
    shapes.apply("s1", replace(ITEM, columns=ids))
    again = (ids[0], replace(ids[1], id=9))
    assert shapes.apply("s1", replace(ITEM, columns=again, version=2))
    old = shapes.number_columns("s1", replace(ITEM, columns=ids)).columns[1].id
    new = shapes.number_columns("s1", replace(ITEM, columns=again)).columns[1].id
    assert old != new
    kept = Shapes.of(shapes.state(3))
    assert not kept.apply("s1", replace(ITEM, columns=again, version=2))
    assert kept.merged[TableName("public", "item")].columns[1].id == new


def test_an_older_shape_of_a_log_is_no_change() -> None:
    """Rows of the shape are later in the file; the current shape stays."""
    shapes = Shapes()
    shapes.apply("s1", ITEM)
    shapes.apply("s1", ITEM_2)
    assert not shapes.apply("s1", ITEM)
    assert len(shapes.merged[TableName("public", "item")].columns) == 3


# -- order -----------------------------------------------------------------------------------------


def queue(name: str, *times: int, ended: bool = False, reached: Reached = Reached()) -> InputQueue:  # noqa: B008
    """Return an input that was read so far."""
    found = InputQueue(name, reached, skew_us=8)
    if times:
        found.append(np.array(times, np.int64), np.ones(len(times)), {})
    found.is_ended = ended
    return found


def take_transactions(*queues: InputQueue) -> list[tuple[int, int]]:
    """Return the next transactions: input and time of each."""
    order = Order(list(queues), join_us=30, skew_us=8, weight_max=100)
    found = order.next()
    return (
        []
        if found is None
        else list(zip(found.which.tolist(), found.times_us.tolist(), strict=True))
    )


def test_of_equal_times_the_first_logs_transaction_comes_first() -> None:
    """Only what no log can precede is returned: the second one may have more at its last time."""
    assert take_transactions(queue("s1", 10, 20), queue("s2", 10, 20)) == [
        (0, 10),
        (1, 10),
        (0, 20),
    ]
    assert take_transactions(queue("s1", 20), queue("s2", 10)) == [(1, 10)]


def test_what_a_log_has_given_out_is_not_undercut() -> None:
    """Other logs were merged up to this time without it."""
    late = queue("s1", ended=True)
    late.claim(50)
    late.append(np.array([45, 60], np.int64), np.ones(2), {})
    assert late.at.tolist() == [50, 60]
    assert late.position.floor_us == 50
    late.take(1)
    assert (late.position.trx, late.position.seen_us) == (1, 50)
