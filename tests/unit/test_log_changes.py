"""Changes of the log as mutations: their times, their keys, and which ones the target has."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.feeds.staging import FakeStaging
from penstock.feeds.log_changes import (
    KEPT_MAX,
    Changes,
    LogMarks,
    Mark,
    assign_times,
    mutations,
    time_of,
)
from penstock.model import Column, Relation
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import Mutation, StagedTable, mutations_of

GROUP = ("shop", "public")
COLUMNS = (Column(name="id", source_type="int", neutral="int32"),
           Column(name="n", source_type="text", neutral="string"))  # fmt: skip
TABLE = Relation(schema="public", name="t", columns=COLUMNS, key=(0,), before=(0, 1), source_id=1)
KEYLESS = Relation(schema="public", name="k", columns=COLUMNS, key=(), before=(0, 1), source_id=2)


def change(
    gsn: int,
    op: str,
    after: Any,
    before: Any = None,
    *,
    trx: int = 1,
    us: int = 5,
    absent: bytes | None = None,
) -> dict[str, Any]:
    """Return a row of a batch."""
    return {"gsn": gsn, "trx": trx, "op": ord(op), "absent": absent, "after": after,
            "before": before, "commit_time": us}  # fmt: skip


def changes(relation: Relation, *rows: dict[str, Any]) -> Changes:
    """Return a batch of rows."""
    image = pa.struct([("id", pa.int32()), ("n", pa.string())])
    schema = pa.schema(
        [("gsn", pa.int64()), ("trx", pa.int64()), ("op", pa.uint8()), ("absent", pa.binary()),
         ("after", image), ("before", image), ("commit_time", pa.timestamp("us", "UTC"))]
    )  # fmt: skip
    return Changes(relation, pa.RecordBatch.from_pylist(list(rows), schema=schema))


def stage_changes(*found: Changes, before: Hlc = ZERO) -> dict[str, list[tuple[Any, ...]]]:
    """Return time, key and images of the mutations, by table."""
    made = mutations(
        found, assign_times(found, before), lambda relation: StagedTable(GROUP, relation.name)
    )
    return {table.name: list(map(_row, mutations_of(batch))) for table, batch in made.items()}


def _row(one: Mutation) -> tuple[Any, ...]:
    return one.time, one.key, _image(one.after), _image(one.before)


def _image(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def test_each_change_has_a_time_of_its_own_in_the_order_of_the_log() -> None:
    """Times increase between tables, too, and when clocks are set back."""
    found = stage_changes(
        changes(TABLE, change(1, "I", {"id": 1, "n": "a"}, us=5),
                change(4, "I", {"id": 2, "n": "b"}, us=4, trx=2)),
        changes(KEYLESS, change(2, "I", {"id": 1, "n": "a"}, us=5),
                change(5, "I", {"id": 1, "n": "c"}, us=9, trx=3)),
    )  # fmt: skip
    assert [row[:2] for row in found["t"]] == [(Hlc(5000, 0), "[1]"), (Hlc(5000, 2), "[2]")]
    assert [row[:2] for row in found["k"]] == [(Hlc(5000, 1), "[]"), (Hlc(9000, 0), "[]")]


def test_updates_removals_and_changed_keys() -> None:
    """A changed key is a removal and a row; a column that was not sent is absent."""
    found = stage_changes(
        changes(
            TABLE,
            change(1, "U", {"id": 1, "n": "b"}, {"id": 1, "n": "a"}),
            change(3, "U", {"id": 2, "n": "b"}, {"id": 1, "n": "b"}),
            change(4, "U", {"id": 2, "n": None}, absent=b"\2"),
            change(5, "D", None, {"id": 2, "n": "b"}),
        )
    )["t"]
    assert [row[1:] for row in found] == [
        ("[1]", {"id": 1, "n": "b"}, {"id": 1, "n": "a"}),
        ("[1]", None, {"id": 1, "n": "b"}),
        ("[2]", {"id": 2, "n": "b"}, {"id": 1, "n": "b"}),
        ("[2]", {"id": 2}, None),
        ("[2]", None, {"id": 2, "n": "b"}),
    ]
    assert found[1][0] == found[2][0]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.data(),
)
def test_times_are_the_same_however_often_the_log_is_read(
    commits: list[int], data: st.DataObject
) -> None:
    """Times are the same for one piece and any pieces, each continuing after the previous one."""
    rows = [
        change(gsn, "I", {"id": gsn, "n": ""}, us=us, trx=gsn) for gsn, us in enumerate(commits, 1)
    ]
    whole = stage_changes(changes(TABLE, *rows))["t"]
    assert [row[0] for row in whole] == sorted({row[0] for row in whole})
    pieces, last = [], ZERO
    while rows:
        count = data.draw(st.integers(1, len(rows)))
        piece, rows = changes(TABLE, *rows[:count]), rows[count:]
        pieces += stage_changes(piece, before=last)["t"]
        last = assign_times([piece], last).last
    assert pieces == whole


# --- marks ----------------------------------------------------------------------------------------


def marks(*gsns: int) -> list[Mark]:
    """Return marks at these changes."""
    return [Mark(gsn, Hlc(gsn * 10)) for gsn in gsns]


def test_marks_are_kept_and_those_behind_a_place_are_void() -> None:
    """A change gets its earlier time when it is read again."""
    staging = FakeStaging()
    kept = LogMarks.load(staging, "log", lambda: Hlc(7))
    assert kept.before(1) == Hlc(7)
    kept.add(marks(3, 5), [GROUP], 0)
    kept.add(marks(9), [GROUP], 0)
    kept.save(staging)
    again = LogMarks.load(staging, "log", lambda: pytest.fail("it is known"))
    assert (again.marks, again.groups) == (tuple(marks(3, 5, 9)), (GROUP,))
    assert again.before(6) == Hlc(50)
    assert again.last == Hlc(50)


def test_what_is_applied_needs_no_marks_but_the_last_ones() -> None:
    """The consumer resumes at the end of the last but one, or at the last one."""
    kept = LogMarks("log", ZERO)
    for gsn in range(1, 50):
        kept.add(marks(gsn), [], gsn - 1)
        assert time_of(kept.marks, gsn) == Hlc(gsn * 10)
        assert len(kept.marks) <= 3
    assert time_of(kept.marks, 3) == ZERO


def test_marks_are_bounded() -> None:
    """A target that is far behind has larger steps; both places to resume at stay."""
    kept, rng = LogMarks("log", ZERO), np.random.default_rng(4)
    gsn = 0
    for _ in range(300):
        before = kept.marks[-1:]
        new = [gsn := gsn + 1 for _ in range(int(rng.integers(1, 30)))]
        kept.add(marks(*new), [], 0)
        assert len(kept.marks) <= KEPT_MAX + 30
        assert set(before) | {kept.marks[-1]} <= set(kept.marks)
        assert list(kept.marks) == sorted(kept.marks)
        assert kept.marks[-1].gsn == gsn
