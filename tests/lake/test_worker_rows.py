"""Rows of a lake as the workers write them: after any history they are those of the source."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lake.positions import PositionTable, lake_columns
from harness.pipelines.changes import Change, relation
from harness.pipelines.histories import STEPS, histories, keyless
from penstock.codec.lake import NO_POSITIONS
from penstock.engines.lake import lookup
from penstock.engines.lake.format import DeleteForm
from penstock.model import Identity

FORMS = list(DeleteForm)


def insert(rows: dict[int, Any], shape: Any) -> list[Change]:
    """Return the changes that insert rows."""
    del shape
    return [Change(op="I", gsn=number, after=row) for number, row in enumerate(rows.values(), 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
@settings(max_examples=12)
@given(data=st.data())
def test_rows_after_two_batches_are_those_of_the_source(form, identity, data):
    """Keys change and swap, rows are deleted before others take their keys, columns are unsent."""
    start, history = data.draw(histories(identity))
    cut = data.draw(st.integers(0, len(history.changes)))
    buckets, tasks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    ordered = data.draw(st.booleans())
    shape = history.relation
    with tempfile.TemporaryDirectory() as folder:
        columns = lake_columns(shape, field_ids=form is not DeleteForm.DELTA)
        table = PositionTable(Path(folder), shape, columns, form)
        table.apply(insert(start, shape))
        for part in (history.changes[:cut], history.changes[cut:]):
            table.apply(part, sizes=[3, 5], buckets=buckets, tasks=tasks, ordered=ordered)
            required = sum(one.required_count for one in table.staged)
            assert table.found_count() == required
            waiting = sum(one.open_count for one in table.staged)
            assert sum(one.completed_count for one in table.outcomes) == waiting
        assert sorted(table.rows()) == sorted(history.rows.values())


@settings(max_examples=12)
@given(data=st.data())
def test_rows_that_a_copy_has_already_are_not_doubled(data):
    """The copy is of a moment inside the changes, which are then all applied."""
    start, history = data.draw(histories(Identity.FULL))
    cut = data.draw(st.integers(0, len(history.changes)))
    shape = history.relation
    with tempfile.TemporaryDirectory() as folder:
        table = PositionTable(Path(folder), shape, lake_columns(shape))
        table.apply(insert(start, shape))
        table.apply(history.changes[:cut])
        table.apply(history.changes, buckets=2, overlaps=True)
        assert sum(one.required_count for one in table.staged) == 0
        assert sorted(table.rows()) == sorted(history.rows.values())


@settings(max_examples=12)
@given(STEPS, STEPS, st.integers(1, 3))
def test_a_table_without_a_key_loses_as_many_equal_rows_as_were_deleted(first, second, buckets):
    """Rows are equal by all values, also NULL; of three equal ones some may be left."""
    shape, changes, rows = keyless(Counter(), first)
    _, more, wanted = keyless(rows, second)
    with tempfile.TemporaryDirectory() as folder:
        table = PositionTable(Path(folder), shape, lake_columns(shape), DeleteForm.DELTA)
        table.apply(changes, buckets=buckets)
        table.apply(more, buckets=buckets)
        assert table.found_count() == sum(one.required_count for one in table.staged)
        assert Counter(table.rows()) == wanted


def test_a_key_that_the_table_lacks_is_counted(tmp_path: Path) -> None:
    """A row that is missing in the lake is neither an error nor silent."""
    shape = relation(("k", "integer", "int32"), ("v", "text", "string"))
    table = PositionTable(tmp_path, shape, lake_columns(shape))
    table.apply([Change(op="I", gsn=1, after=(1, "a"))])
    table.apply(
        [
            Change(op="D", gsn=2, before=(1, None)),
            Change(op="D", gsn=3, before=(2, None)),
            Change(op="U", gsn=4, after=(3, "c")),
        ]
    )
    assert table.staged[0].required_count == 3
    assert table.found_count() == 1
    assert table.rows() == [(3, "c")]


def test_an_emptied_table_looks_nothing_up(tmp_path: Path) -> None:
    """Rows after a TRUNCATE need no lookup, whatever the log calls them."""
    shape = relation(("k", "integer", "int32"), ("v", "text", "string"))
    table = PositionTable(tmp_path, shape, lake_columns(shape))
    table.apply([Change(op="I", gsn=1, after=(1, "a"))])
    table.apply([Change(op="U", gsn=2, after=(1, "b"))], is_emptied=True)
    assert table.staged[0].key_count == 0
    assert not table.outcomes
    assert table.rows() == [(1, "b")]


KEYS: list[tuple[str, str, list[Any]]] = [
    ("uuid", "uuid", [bytes([number]) * 16 for number in range(9)]),
    ("text", "string", ["", "a", "b", "ä", "ab", "\0", "z" * 300, "A", " a"]),
    ("double precision", "float64", [0.0, 1.5, -1.5, float("inf"), 1e300, 2.0, 3.0, 4.0, 5.0]),
    ("date", "date", list(range(9))),
    ("timestamp with time zone", "timestamptz", list(range(9))),
    ("boolean", "bool", [True, False]),
    ("bytea", "binary", [b"", b"\0", b"\xff", b"ab", b"b", b"c", b"d", b"e", b"f"]),
    ("numeric(20,2)", "decimal(20,2)", ["1.00", "2.50", "-3.10", "0.00", "4.00", "5.00"]),
    ("xid8", "uint64", [2**64 - 1, 0, 1, 2**63, 5, 6, 7, 8, 9]),
]


@pytest.mark.parametrize(("source_type", "neutral", "values"), KEYS, ids=[one[1] for one in KEYS])
@pytest.mark.parametrize("wide", [False, True])
def test_keys_of_every_type_are_found(tmp_path: Path, source_type, neutral, values, wide) -> None:
    """The key is one column, or two of which the second decides."""
    values = [as_value(neutral, one) for one in values]
    columns = [("k", source_type, neutral), ("n", "bigint", "int64"), ("v", "text", "string")]
    key = (0, 1) if wide else (0,)
    shape = relation(*columns, key=key)
    table = PositionTable(tmp_path, shape, lake_columns(shape, field_ids=True))
    numbers = [0, 1] if wide else [0]
    rows = [(value, number, "old") for value in values for number in numbers]
    table.apply([Change(op="I", gsn=at, after=row) for at, row in enumerate(rows, 1)], buckets=2)
    gone, kept = rows[::2], rows[1::2]
    changes = [
        *(Change(op="D", gsn=at, before=row) for at, row in enumerate(gone, 1)),
        *(
            Change(op="U", gsn=at, after=(*row[:2], "new"))
            for at, row in enumerate(kept, 1 + len(gone))
        ),
    ]
    table.apply(changes, tasks=2)
    assert table.found_count() == len(rows)
    assert [row[2] for row in table.rows()] == ["new"] * len(kept)


def as_value(neutral: str, value: Any) -> Any:
    """Return a value as pyarrow takes it."""
    if neutral == "date":
        return dt.date(2024, 1, 1) + dt.timedelta(days=value)
    if neutral == "timestamptz":
        return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    return Decimal(value) if neutral.startswith("decimal") else value


def test_zeros_of_either_sign_are_one_key(tmp_path: Path) -> None:
    """An index of the source has both as one."""
    shape = relation(("k", "double precision", "float64"))
    table = PositionTable(tmp_path, shape, lake_columns(shape))
    table.apply([Change(op="I", gsn=1, after=(0.0,)), Change(op="I", gsn=2, after=(1.0,))])
    table.apply([Change(op="D", gsn=3, before=(-0.0,))])
    assert table.rows() == [(1.0,)]


def test_planted_defect_a_deletion_vector_that_is_not_merged_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the positions of earlier batches, deleted rows come back."""
    shape = relation(("k", "integer", "int32"))
    table = PositionTable(tmp_path, shape, lake_columns(shape))
    table.apply([Change(op="I", gsn=at, after=(at,)) for at in range(1, 6)])
    table.apply([Change(op="D", gsn=6, before=(1,))])
    monkeypatch.setattr(lookup, "read_deleted", lambda _file, _storage: NO_POSITIONS)
    table.apply([Change(op="D", gsn=7, before=(2,))])
    assert sorted(table.rows()) != [(3,), (4,), (5,)]
