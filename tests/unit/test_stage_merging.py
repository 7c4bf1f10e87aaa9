"""Three-way merges: changes in the source with changes in the target."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.script import (
    MergeOperation,
    StandardMerge,
    Unmerged,
    document_of,
    is_same,
    text_of,
    three_way,
)

KEY = ("id",)


def operation(before: Any, proposed: Any, target: Any) -> MergeOperation:
    """Return the arguments of a merge function."""
    return MergeOperation(before=before, meta={}, proposed=proposed, target=target)


@pytest.mark.parametrize(
    ("before", "proposed", "target", "merged"),
    [
        # col1 is deleted, set to NULL, changed; col0 was changed in the target alone
        ({"a": 0, "b": 1}, {"a": 0}, {"a": 9, "b": 1}, {"a": 9}),
        ({"a": 0, "b": 1}, {"a": 0, "b": None}, {"a": 9, "b": 1}, {"a": 9, "b": None}),
        ({"a": 0, "b": 1}, {"a": 0, "b": 42}, {"a": 9, "b": 1}, {"a": 9, "b": 42}),
        # properties without a column
        ({"x": False}, {"x": True}, {"y": True}, {"x": True, "y": True}),
        # no row before: an insert that is repeated
        (None, {"a": 0, "b": 42}, {"a": 0, "b": 42}, {"a": 0, "b": 42}),
        (None, {"a": 0, "new": 99}, {"a": 0, "old": 101}, {"a": 0, "old": 101, "new": 99}),
        # both sides made the same change
        ({"a": 1}, {"a": 2}, {"a": 2}, {"a": 2}),
        # equal numbers are equal
        ({"a": 1}, {"a": 5}, {"a": Decimal("1.0")}, {"a": 5}),
        # nothing is there
        ({"a": 1}, {"a": 2}, {}, {"a": 2}),
    ],
)
def test_standard_merge(before: Any, proposed: Any, target: Any, merged: Any) -> None:
    """Properties that are unchanged or equal stay, safe changes are applied."""
    assert StandardMerge().merge(operation(before, proposed, target), key=KEY) == {"apply": merged}


@pytest.mark.parametrize(
    ("before", "proposed", "target", "unmerged"),
    [
        ({"a": 99, "b": 1}, {"a": 0, "b": 42}, {"a": 1000, "b": 1}, ["a"]),
        (None, {"z": 99, "a": 101, "id": 1}, {"z": 0, "a": 42, "id": 2}, ["a", "z"]),
        ({"a": 1}, {}, {"a": 2}, ["a"]),
        ({"a": 1}, {"a": True}, {"a": 0}, ["a"]),
    ],
)
def test_what_changed_on_both_sides_goes_to_the_fallback(
    before: Any, proposed: Any, target: Any, unmerged: list[str]
) -> None:
    """The fallback gets them sorted, with the rest merged; without a fallback it is an error."""
    with pytest.raises(Unmerged) as caught:
        StandardMerge().merge(operation(before, proposed, target), key=KEY)
    assert caught.value.properties == unmerged
    seen: list[MergeOperation] = []

    def fallback(op: MergeOperation) -> dict[str, Any]:
        seen.append(op)
        return {"dlq": "dead"}

    result = StandardMerge(fallback).merge(operation(before, proposed, target), key=KEY)
    assert result == {"dlq": "dead"}
    assert seen[0].unmerged == unmerged
    assert seen[0].target.get("b") == proposed.get("b", target.get("b"))


values = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.just(Decimal("1.0")))
rows = st.dictionaries(st.sampled_from("abc"), values)


@given(before=rows, proposed=rows, target=rows)
def test_merging_loses_no_change(before: Any, proposed: Any, target: Any) -> None:
    """A property of the result is the source's change, or what the target had, and each change of
    the source is in the result or among the unmerged.
    """
    absent = object()
    merged, unmerged = three_way(before, proposed, target, key=())
    for name in "abc":
        old, new, there, result = (
            one.get(name, absent) for one in (before, proposed, target, merged)
        )
        if name in unmerged:
            assert not is_same(old, new)
            assert not is_same(old, there)
            assert is_same(result, there)
        elif is_same(old, new):
            assert is_same(result, there)
        else:
            assert is_same(result, new)
    again, nothing = three_way(before, proposed, merged, key=())
    assert (again, nothing) == (merged, unmerged)  # repeating a merge changes nothing


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.decimals(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_documents_keep_every_number(value: Any) -> None:
    """A value is read as it was written."""
    assert is_same(document_of(text_of(value)), document_of(text_of(document_of(text_of(value)))))
    if not isinstance(value, int) or abs(value) < 2**63:
        assert is_same(document_of(text_of(value)), value)
