"""Numbers of a message's columns if the catalogue is ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.pipelines.log import ITEM
from penstock.engines.postgres.source.relations import (
    _facts_of,
    _numbers_of,
    _without_doubtful_ids,
    column_of,
)
from penstock.model import ColumnDefinition


@pytest.mark.parametrize(
    ("count", "last", "live", "found"),
    [
        (3, [1, 2, 4], [1, 2, 4], [1, 2, 4]),
        (3, [1, 2, 4], [1, 2, 4, 5, 6], [1, 2, 4]),
        (4, [1, 2, 4], [1, 2, 4, 5, 6], [1, 2, 4, 5]),
        (5, [1, 2, 4], [1, 2, 4, 5, 6], [1, 2, 4, 5, 6]),
        (3, [1, 2, 4], [1, 4], [1, 2, 4]),
        (2, [1, 2, 4], [1, 4], [1, 4]),
    ],
)
def test_a_count_of_columns_means_one_set_of_numbers(
    count: int, last: Sequence[int], live: Sequence[int], found: Sequence[int]
) -> None:
    """One of two shapes has all columns of the other."""
    assert list(_numbers_of(count, last, live, frozenset(live)) or ()) == found


@pytest.mark.parametrize(
    ("count", "last", "live", "all_live"),
    [
        (2, [1, 2, 3], [1], {1}),  # which of the two was dropped first?
        (3, [1, 2, 3], [1, 2, 4], {1, 2, 4}),  # before both, or after
        (3, [1, 2], [1, 2, 4], {1, 2, 4}),  # 3 came and went
        (4, [1, 2, 3], [1, 2, 3], {1, 2, 3}),  # one that came and went
        (2, [1, 3], [1, 2, 3], {1, 2, 3}),  # 2 was computed before
        (2, [0, 0], [1, 2], {1, 2}),  # not known
        (2, [2, 2], [1, 2], {1, 2}),
    ],
)
def test_where_several_sets_are_possible_none_is_taken(
    count: int, last: Sequence[int], live: Sequence[int], all_live: set[int]
) -> None:
    """The table is read again then."""
    assert _numbers_of(count, last, live, frozenset(all_live)) is None


@pytest.mark.parametrize(("ids", "kept"), [((1, 2), (1, 2)), ((2, 2), (0, 0)), ((2, 1), (0, 0))])
def test_numbers_that_cannot_be_right_together_are_left_out(
    ids: tuple[int, int], kept: tuple[int, int]
) -> None:
    """Two columns with one number would be written as one."""
    columns = tuple(replace(one, id=n) for one, n in zip(ITEM.columns, ids, strict=True))
    found = _without_doubtful_ids(replace(ITEM, columns=columns))
    assert tuple(column.id for column in found.columns) == kept


def test_columns_without_a_number_have_no_facts_of_one_another() -> None:
    """Two columns of one type, neither of which has a known number, are not the same column."""
    text = ITEM.columns[-1]
    sent = [
        replace(text, name="a", id=0, nullable=False, missing="of a"),
        replace(text, name="b", id=0, nullable=False),
    ]
    last = replace(ITEM, columns=(replace(sent[0], nullable=True), sent[1]))
    assert list(_facts_of(sent, {"a": 0, "b": 0}, (), last)) == sent


@pytest.mark.parametrize(
    ("missing", "kept"),
    [("infinity", "string"), ("2024-01-02 03:04:05+00", "timestamptz"), (None, "timestamptz")],
)
def test_a_column_is_text_if_its_type_cannot_hold_the_value_of_old_rows(
    missing: str | None, kept: str
) -> None:
    """The base and merged logs give old rows this value, so the log's type must hold it."""
    kind = "timestamp with time zone"
    column = ColumnDefinition(
        name="x", type_text=kind, type_oid=1184, typmod=-1, neutral="timestamptz", missing=missing
    )
    found = column_of(column)
    assert (found.neutral, found.missing) == (kept, missing)
