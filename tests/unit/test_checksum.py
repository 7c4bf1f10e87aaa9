"""Checksum SQL and the merge of hashed rows, without a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.verify.hashed_rows import (
    BUCKETS_MAX,
    BUCKETS_MIN,
    add_sums,
    bucket_count,
    differing_buckets,
    merge,
)
from penstock.engines.postgres.checksum import as_source_prints
from penstock.engines.postgres.verify import cut
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from penstock.ports.verify import PART_BYTES, Hashes, Part, key_columns

T = TableName("public", "t")


def hash_rows(rows: Counter[tuple[int, int]], size: int) -> Iterator[Hashes]:
    """Return rows `(key, value)` as a server would send them, in arrays of `size` rows.

    Keys 0 and 1 share their first hash, so that the second one has to distinguish them.
    """
    found = sorted((key // 2, key, value, -value) for key, value in rows.elements())
    for start in range(0, len(found), size):
        yield np.array(found[start : start + size], dtype=np.int64)


rows = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 3), max_size=12
).map(Counter)


@given(rows, rows, st.integers(1, 5), st.integers(1, 5))
def test_merge_counts_each_row_that_has_no_equal_on_the_other_side(
    source: Counter[tuple[int, int]],
    target: Counter[tuple[int, int]],
    source_size: int,
    target_size: int,
) -> None:
    """Missing, surplus and different add up to the difference of the two multisets, per key."""
    found = merge(hash_rows(source, source_size), hash_rows(target, target_size), 1000)
    expected: Counter[tuple[str, int]] = Counter()
    for key in {k for k, _ in source | target}:
        only_source = sum(n for (k, _), n in (source - target).items() if k == key)
        only_target = sum(n for (k, _), n in (target - source).items() if k == key)
        both = min(only_source, only_target)
        expected["different", key] = both
        expected["missing", key] = only_source - both
        expected["surplus", key] = only_target - both
    assert Counter((kind, key) for kind, _, key in found.named or ()) == +expected
    for kind in ("missing", "surplus", "different"):
        assert getattr(found, kind) == sum(n for (k, _), n in expected.items() if k == kind)


def test_counts_are_exact_beyond_what_is_named() -> None:
    """Only the first differences are named."""
    found = merge(hash_rows(Counter({(i, 1): 1 for i in range(50)}), 7), iter(()), 3)
    assert (found.missing, len(found.named or ())) == (50, 3)


def test_parts_cover_every_block_once() -> None:
    """Ranges follow each other without gap or overlap, and the last one has an open end."""
    parts = cut(T, 3 * PART_BYTES + 8192, 8192, part_bytes=PART_BYTES, whole=False)
    assert [p.condition for p in parts] == [
        "ctid < '(32768,0)'",
        "ctid >= '(32768,0)' and ctid < '(65536,0)'",
        "ctid >= '(65536,0)' and ctid < '(98304,0)'",
        "ctid >= '(98304,0)'",
    ]


def test_a_small_or_blockless_relation_is_one_part() -> None:
    """A table below one part, and a foreign table of any size, are read by one query."""
    assert cut(T, 8192, 8192, part_bytes=PART_BYTES, whole=False) == [
        Part(relation=T, size_bytes=8192)
    ]
    assert cut(T, 9 * PART_BYTES, 8192, part_bytes=PART_BYTES, whole=True)[0].condition == "true"


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


def test_a_generated_column_makes_no_key() -> None:
    """The rest of the row does not identify it with identity FULL: several may be equal."""
    columns = tuple(
        ColumnDefinition(name=name, type_text="integer", type_oid=23, typmod=-1, generated=made)
        for name, made in (("a", ""), ("g", "s"))
    )
    table = TableDefinition(
        name=T, source_id=1, columns=columns, identity=Identity.FULL, identity_columns=("a",)
    )
    assert key_columns(table) == ()
