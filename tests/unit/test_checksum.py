"""Checksum SQL and the merge of hashed rows, without a server."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.checksum import (
    BUCKETS_MAX,
    BUCKETS_MIN,
    Part,
    add_sums,
    as_source_prints,
    bucket_count,
    differing_buckets,
)
from penstock.control.compare import PART_BYTES, HashedRow, cut, merged
from penstock.model import TableName

T = TableName("public", "t")


def hashed(rows: Counter[tuple[int, int]]) -> list[HashedRow]:
    """Rows `(key, value)` as a server would send them."""
    return sorted((key, key * 7, value, -value, f"({key})") for key, value in rows.elements())


rows = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 3), max_size=12
).map(Counter)


@given(rows, rows)
def test_merge_counts_each_row_that_has_no_equal_on_the_other_side(
    source: Counter[tuple[int, int]], target: Counter[tuple[int, int]]
) -> None:
    """Missing, surplus and different add up to the difference of the two multisets, per key."""
    found = Counter(d.kind for d in merged(hashed(source), hashed(target)))
    expected: Counter[str] = Counter()
    for key in {k for k, _ in source | target}:
        only_source = sum(n for (k, _), n in (source - target).items() if k == key)
        only_target = sum(n for (k, _), n in (target - source).items() if k == key)
        both = min(only_source, only_target)
        expected.update(different=both, missing=only_source - both, surplus=only_target - both)
    assert found == +expected


def test_equal_sides_have_no_difference() -> None:
    """Equal streams, duplicates included, merge to nothing."""
    side = hashed(Counter({(1, 1): 2, (2, 5): 1}))
    assert list(merged(side, side)) == []


def test_parts_cover_every_block_once() -> None:
    """Ranges follow each other without gap or overlap, and the last one has an open end."""
    parts = cut(T, 3 * PART_BYTES + 8192, 8192, whole=False)
    assert [p.block_first for p in parts] == [None, 32768, 65536, 98304]
    assert [p.block_end for p in parts] == [32768, 65536, 98304, None]
    assert parts[1].condition == "ctid >= '(32768,0)' and ctid < '(65536,0)'"


def test_a_small_or_blockless_relation_is_one_part() -> None:
    """A table below one part, and a foreign table of any size, are read by one query."""
    assert cut(T, 8192, 8192, whole=False) == [Part(relation=T, size_bytes=8192)]
    assert cut(T, 9 * PART_BYTES, 8192, whole=True)[0].condition == "true"


@pytest.mark.parametrize("estimate", [-1, 0, 1, 10_000, 1_000_000, 10**12])
def test_bucket_count_is_a_power_of_two_within_bounds(estimate: int) -> None:
    """The count is used as a bit mask."""
    count = bucket_count(estimate)
    assert count & (count - 1) == 0
    assert BUCKETS_MIN <= count <= BUCKETS_MAX


def test_sums_of_parts_add_up() -> None:
    """A bucket spread over two parts has the checksum of both; unequal buckets are found."""
    total: dict[int, tuple[int, int, int]] = {}
    add_sums(total, {1: (2, 10, -5)})
    add_sums(total, {1: (1, 1, 1), 2: (1, 0, 0)})
    assert total == {1: (3, 11, -4), 2: (1, 0, 0)}
    assert differing_buckets(total, {1: (3, 11, -4), 3: (1, 0, 0)}) == [2, 3]


@pytest.mark.parametrize(
    ("source_type", "target_type"),
    [("text", "character varying(5)"), ("integer", "bigint"), ("json", "jsonb")],
)
def test_types_whose_text_needs_no_help_are_compared_raw(
    source_type: str, target_type: str
) -> None:
    """Only listed widenings are brought into the source's form."""
    assert as_source_prints('"c"', source_type, target_type) == '"c"'
