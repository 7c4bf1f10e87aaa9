"""Folding a batch and applying it equals applying its changes one by one, for any history."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.changes import Change, batch
from harness.pipelines.histories import STEPS, Row, Step, histories, keyless
from penstock.base.fold import FoldedRows, fold
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.load.split import Bucket
from penstock.model import Identity, Relation
from penstock.ports.target import GONE, NEW, UPSERT


def apply_folded(
    shape: Relation,
    target: dict[int, Row],
    changes: list[Change],
    sizes: list[int],
    buckets: int,
    *,
    ordered: bool = False,
    overlaps: bool = False,
) -> dict[int, Row]:
    """Apply as the merge statements do: fill, delete, upsert.

    With `overlaps` the target may have some of the changes already; then the fold does not
    tell new rows from existing ones.
    """
    frames, at = [], 0
    while at < len(changes):
        size = sizes[len(frames) % len(sizes)]
        frames.append(batch(shape, changes[at : at + size]))
        at += size
    rows: list[dict[str, Any]] = []
    for number in range(buckets):
        own = Bucket(shape, frames, number=number, count=buckets, changes_keys=True)
        folded = FoldedRows(
            net=fold(shape, own, overlaps=overlaps),
            layout=MergeLayout(shape),
            frames=own,
            part=number,
            in_key_order=ordered,
        )
        some = []
        for part in (*folded.deletes(), *folded.upserts()):
            some += part.to_pylist()
        if ordered:
            keys = [(row["wk$n"] > 0, row[shape.columns[0].name]) for row in some]
            assert keys == sorted(keys)
        rows += some
    names = [column.name for column in shape.columns]
    upserts = {}
    for row in rows:
        if row["wk$n"] == GONE:
            continue
        image = [row[name] for name in names]
        assert overlaps or row["wk$n"] == (UPSERT if image[0] in target else NEW)
        bits = row["wk$absent"]
        for index in range(len(names)):
            if bits is not None and bits[index // 8] >> (index % 8) & 1:
                assert image[index] is None
                image[index] = target[row["wk$key1"]][index]
        assert image[0] not in upserts, "one merge row per key"
        upserts[image[0]] = tuple(image)
    gone = [row[names[0]] for row in rows if row["wk$n"] == GONE]
    assert len(gone) == len(set(gone))
    assert not set(gone) & set(upserts)
    result = {key: row for key, row in target.items() if key not in gone}
    return result | upserts


@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
@given(data=st.data())
def test_fold_equals_one_by_one(identity: Identity, data: st.DataObject) -> None:
    """The changes have changed and swapped keys, deletes before inserts, and unsent columns."""
    start, history = data.draw(histories(identity))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    buckets = data.draw(st.integers(1, 3))
    ordered = data.draw(st.booleans())
    result = apply_folded(history.relation, start, history.changes, sizes, buckets, ordered=ordered)
    assert result == history.rows


@given(data=st.data())
def test_fold_of_any_cut_equals_one_by_one(data: st.DataObject) -> None:
    """A history applied in two batches, cut anywhere, ends the same."""
    start, history = data.draw(histories(Identity.DEFAULT))
    cut = data.draw(st.integers(0, len(history.changes)))
    target = apply_folded(history.relation, start, history.changes[:cut], [3], 1)
    target = apply_folded(history.relation, target, history.changes[cut:], [3], 1)
    assert target == history.rows


@given(data=st.data())
def test_changes_that_the_target_has_in_part_lead_to_the_same_rows(data: st.DataObject) -> None:
    """The rows are those of a copy without a lock: of a moment inside the applied changes."""
    start, history = data.draw(histories(Identity.FULL))
    cut = data.draw(st.integers(0, len(history.changes)))
    copied = apply_folded(history.relation, start, history.changes[:cut], [3], 1)
    target = apply_folded(history.relation, copied, history.changes, [3], 2, overlaps=True)
    assert target == history.rows


@given(STEPS, st.integers(1, 3))
def test_table_without_a_key_folds_to_counts(steps: list[Step], buckets: int) -> None:
    """Duplicates count; nulls are equal to nulls; an undone change leaves no row."""
    shape, changes, rows = keyless(Counter(), steps)
    frames = [batch(shape, changes[at : at + 5]) for at in range(0, len(changes), 5)]
    found: Counter[Row] = Counter()
    count = 0
    for number in range(buckets):
        own = Bucket(shape, frames, number=number, count=buckets, changes_keys=True)
        net = fold(shape, own)
        count += net.counts.changes
        folded = FoldedRows(net=net, layout=MergeLayout(shape), frames=own, part=number)
        for part in (*folded.deletes(), *folded.upserts()):
            for row in part.to_pylist():
                assert row["wk$n"] != 0
                assert (row["a"], row["b"]) not in found
                found[row["a"], row["b"]] += row["wk$n"]
    assert count == len(changes)
    assert found == rows
