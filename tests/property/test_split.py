"""Rows that are split by key and then folded: the result equals one fold, for any keys."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.changes import Change, batch, relation
from harness.pipelines.histories import History, histories
from penstock.base.fold import FoldedRows, encode, fold
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.load.split import Bucket, _hashes, key_hashes
from penstock.model import Identity, Relation
from penstock.ports.target import Counts

NAN_TOO = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, float("nan"), NAN_TOO, 1.5]), st.floats(width=32))
DECIMALS = st.decimals(-(10**6), 10**6, places=2)
ARRAYS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-3, 3)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), FLOATS),
    (pa.float32(), FLOATS),
    (pa.decimal128(12, 2), DECIMALS),
    (pa.decimal256(60, 2), DECIMALS),
    (pa.string(), st.text("ab\0é", max_size=20)),
    (pa.large_string(), st.text("ab\0é", max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(16), st.sampled_from([bytes(16), bytes(range(16)), bytes([1]) + bytes(15)])),
    (pa.timestamp("us"), st.integers(0, 5)),
    (pa.null(), st.none()),
]


@given(st.data())
def test_equal_keys_have_equal_hashes(data: st.DataObject) -> None:
    """This covers every type, nulls, the middle of a longer array, and several columns."""
    columns = []
    size = data.draw(st.integers(1, 12))
    for _ in range(data.draw(st.integers(1, 2))):
        kind, values = data.draw(st.sampled_from(ARRAYS))
        skipped = data.draw(st.integers(0, 9))
        drawn = st.lists(st.none() | values, min_size=size + skipped, max_size=size + skipped)
        columns.append(pa.array(data.draw(drawn), kind).slice(skipped))
    codes = encode([[column] for column in columns], [[] for _ in columns]).after
    hashes = _hashes(columns)
    by_code: dict[int, set[int]] = {}
    for code, number in zip(codes.tolist(), hashes.tolist(), strict=True):
        by_code.setdefault(code, set()).add(number)
    assert all(len(numbers) == 1 for numbers in by_code.values())


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(4_000)),
        pa.array([f"customer number {number}" for number in range(4_000)]),
        pa.array([number / 8 for number in range(4_000)]),
        pa.array([bytes(14) + number.to_bytes(2) for number in range(4_000)], pa.binary(16)),
    ],
    ids=str,
)
def test_keys_are_spread(column: Any) -> None:
    """Each of the buckets has about as many keys as the others."""
    hashes = _hashes([column])
    assert len(np.unique(hashes)) == 4_000
    for count in (2, 3, 16):
        sizes = np.bincount(hashes % np.uint64(count), minlength=count)
        assert 0.7 < sizes.min() * count / 4_000 <= sizes.max() * count / 4_000 < 1.3


def fold_frames(shape: Relation, frames: Any, *, overlaps: bool) -> tuple[Counts, Counter[str]]:
    """Return what folding these frames leaves, whatever the order is."""
    rows: Counter[str] = Counter()
    result = FoldedRows(
        net=fold(shape, frames, overlaps=overlaps), layout=MergeLayout(shape), frames=frames
    )
    for part in (*result.deletes(), *result.upserts()):
        rows.update(map(repr, part.to_pylist()))
    return result.counts, rows


@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
@given(data=st.data())
def test_split_then_fold_is_fold(identity: Identity, data: st.DataObject) -> None:
    """Keys change and are swapped, rows return, columns are unsent: the buckets have them all."""
    _, history = data.draw(histories(identity))
    check(history.relation, history, data)


@given(data=st.data())
def test_split_then_fold_is_fold_without_a_key(data: st.DataObject) -> None:
    """Only all columns together distinguish such rows."""
    shape = relation(
        ("a", "integer", "int32"), ("b", "text", "string"), key=(), identity=Identity.FULL
    )
    image = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("xy"))
    history = History(shape)
    for op in data.draw(st.lists(st.sampled_from("IUD"), max_size=30)):
        after = data.draw(image) if op != "D" else None
        before = data.draw(image) if op != "I" else None
        history.log(op, after=after, before=before)
    check(shape, history, data)


def check(shape: Relation, history: History, data: st.DataObject) -> None:
    """Fold all, and each bucket on its own."""
    size = data.draw(st.integers(1, 9))
    changes = history.changes
    frames = [batch(shape, changes[at : at + size]) for at in range(0, len(changes), size)]
    overlaps = data.draw(st.booleans()) and bool(shape.key)
    count = data.draw(st.integers(2, 5))
    whole = fold_frames(shape, frames, overlaps=overlaps)
    counts, rows = Counts(), Counter[str]()
    for number in range(count):
        own = Bucket(shape, frames, number=number, count=count, changes_keys=True)
        some = fold_frames(shape, own, overlaps=overlaps)
        counts, rows = counts + some[0], rows + some[1]
    assert (counts, rows) == whole


def test_a_chain_of_keys_is_one_buckets() -> None:
    """The original row of a key that was changed many times is found."""
    shape = relation(("id", "integer", "int32"), ("v", "text", "string"))
    changes = [
        Change(op="U", gsn=gsn, after=(gsn, None), before=(gsn - 1, None), absent=frozenset({1}))
        for gsn in range(1, 200)
    ]
    frames = [batch(shape, changes[at : at + 7]) for at in range(0, len(changes), 7)]
    origin, destination = key_hashes(shape, frames[0])
    assert not (origin == destination).any()
    found = [
        fold_frames(shape, own, overlaps=False)[0]
        for number in range(4)
        if (own := Bucket(shape, frames, number=number, count=4, changes_keys=True))
    ]
    assert sorted(one.changes for one in found) == [0, 0, 0, 199]
    assert sum(found, Counts()) == Counts(changes=199, upserts=1, deletes=1, absent=1, new=1)
