"""Folds of single histories: cases that the property test cannot name."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from harness.pipelines.changes import Change, batch, relation
from penstock.base.fold import Fold, FoldedRows, LogInconsistent, RowUnidentified, encode
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.load.job import cut
from penstock.model import Identity, Relation
from penstock.ports.target import Counts

TWO = relation(("id", "integer", "int32"), ("v", "text", "string"))


def fold_changes(
    shape: Relation, *changes: Change, in_key_order: bool = False
) -> tuple[list[dict[str, Any]], Counts]:
    """Return the merge rows and counts of these changes in one frame."""
    frame = batch(shape, changes)
    fold = Fold(shape)
    fold.add(frame)
    result = FoldedRows(
        net=fold.finish(), layout=MergeLayout(shape), frames=[frame], in_key_order=in_key_order
    )
    parts = [*result.deletes(), *result.upserts()]
    rows = [row for part in parts for row in part.to_pylist()]
    return rows, result.counts


def change(op: str, gsn: int, **more: Any) -> Change:
    """Return a change."""
    return Change(op=op, gsn=gsn, **more)


def test_inserted_and_deleted_in_one_batch_leaves_nothing() -> None:
    """A queue table costs the target nothing for rows that were inserted and deleted."""
    rows, counts = fold_changes(
        TWO, change("I", 1, after=(1, "a")), change("D", 2, before=(1, None))
    )
    assert rows == []
    assert counts == Counts(changes=2)


def test_deleted_and_inserted_again_is_one_upsert() -> None:
    """The last image counts, and the key is not deleted."""
    rows, _ = fold_changes(TWO, change("D", 1, before=(1, None)), change("I", 2, after=(1, "b")))
    assert [(row["wk$n"], row["id"], row["v"]) for row in rows] == [(1, 1, "b")]


def test_origin_key_is_named_where_the_target_must_fill() -> None:
    """After two key changes in a row, the origin is the key before the batch."""
    rows, counts = fold_changes(
        TWO,
        change("U", 1, after=(2, None), before=(1, None), absent=frozenset([1])),
        change("U", 2, after=(3, None), before=(2, None), absent=frozenset([1])),
    )
    assert counts == Counts(changes=2, upserts=1, deletes=1, absent=1, new=1)
    assert rows[0] == {"wk$n": -1, "wk$absent": None, "wk$key1": None, "id": 1, "v": None}
    assert rows[1] == {"wk$n": 2, "wk$absent": b"\x02", "wk$key1": 1, "id": 3, "v": None}


def test_composite_keys_of_all_kinds() -> None:
    """Text, decimal, uuid, date and time stamps can be parts of one key."""
    kinds = [
        ("integer", "int64", 1, 2),
        ("text", "string", "a", "b"),
        ("numeric(9,2)", "decimal(9,2)", Decimal("1.00"), Decimal("2.00")),
        ("uuid", "uuid", b"\0" * 16, b"\1" * 16),
        ("date", "date", 1, 2),
        ("timestamp", "timestamp", 1, 2),
        ("oid", "uint32", 1, 2**32 - 1),
        ("bytea", "binary", b"", b"\0"),
        ("boolean", "bool", True, False),
    ]
    columns = [(f"k{place}", kind, neutral) for place, (kind, neutral, *_) in enumerate(kinds)]
    shape = relation(*columns, ("v", "integer", "int32"), key=range(len(columns)))
    base = tuple(first for _, _, first, _ in kinds)
    changes = [change("I", 1, after=(*base, 0))]
    for place, (_, _, _, other) in enumerate(kinds):
        key = (*base[:place], other, *base[place + 1 :])
        changes.append(change("I", place + 2, after=(*key, place + 1)))
    again = len(changes) + 1
    changes.append(change("U", again, after=(*base, 99)))
    rows, counts = fold_changes(shape, *changes)
    assert counts.upserts == len(kinds) + 1
    assert sorted(row["v"] for row in rows) == [*range(1, len(kinds) + 1), 99]


@pytest.mark.parametrize(
    ("neutral", "keys"),
    [
        ("int64", [3, -1, 2]),
        ("string", ["b", "", "ab"]),
        ("decimal(9,2)", [Decimal("2.00"), Decimal("-1.00"), Decimal("10.00")]),
        ("uuid", [b"\2" * 16, b"\0" * 16, b"\1" * 16]),
        ("date", [2, 1, 3]),
        ("timestamptz", [2, 1, 3]),
        ("uint32", [2**32 - 1, 0, 7]),
        ("binary", [b"\1", b"", b"\0"]),
        ("bool", [True, False]),
        ("float64", [1.5, -2.0, 0.0]),
        ("time", [2, 1, 3]),
    ],
)
@pytest.mark.parametrize("width", [1, 2])
def test_rows_in_order_of_keys_of_any_kind(neutral: str, keys: list[Any], width: int) -> None:
    """Rows are in order for one key column or two, whatever order the changes had."""
    columns = [(f"k{place}", "any", neutral) for place in range(width)]
    shape = relation(*columns, ("v", "integer", "int32"), key=range(width))
    pairs = [tuple(pair) for pair in product(keys, repeat=width)]
    half = len(pairs) // 2
    changes = [
        *[change("D", i + 1, before=(*pair, None)) for i, pair in enumerate(pairs[:half])],
        *[change("I", half + i + 1, after=(*pair, 1)) for i, pair in enumerate(pairs[half:])],
    ]
    rows, _ = fold_changes(shape, *changes, in_key_order=True)
    kind = int if neutral == "uint32" else lambda kept: kept  # it waits as text
    found = [(row["v"] or 0, *[kind(row[f"k{i}"]) for i in range(width)]) for row in rows]
    assert found == sorted(found)
    assert len(found) == len(pairs)


def test_zeros_are_one_key_and_two_values() -> None:
    """An index has one zero; a comparison of whole rows distinguishes two."""
    arrays = [[pa.array([0.0, -0.0, float("nan"), float("nan")])]]
    assert encode(arrays, [[]]).size == 2
    assert encode(arrays, [[]], whole_rows=True).size == 3
    small = [[pa.array([0.0, -0.0], pa.float32())]]
    assert (encode(small, [[]]).size, encode(small, [[]], whole_rows=True).size) == (1, 2)


def test_many_key_columns_do_not_overflow() -> None:
    """The product of the sizes exceeds 64 bits; the codes are compacted in between."""
    count = 3000
    columns = [[pa.array([(i * (p + 1)) % count for i in range(count)])] for p in range(8)]
    assert encode(columns, [[] for _ in columns]).size == count


def test_column_names_that_look_like_ours() -> None:
    """Our own columns get another name."""
    shape = relation(("wk$n", "integer", "int32"), ("wk$$absent", "text", "string"))
    layout = MergeLayout(shape)
    assert len(set(layout.schema.names)) == len(layout.schema.names)
    assert layout.count == "wk$$$n"


def test_wide_tables_keep_their_bits_separate() -> None:
    """Column 17 of 20 was not sent."""
    shape = relation(*[(f"c{i}", "integer", "int32") for i in range(20)])
    values = tuple(range(20))
    rows, _ = fold_changes(shape, change("U", 1, after=values, absent=frozenset([17])))
    bits = rows[0]["wk$absent"]
    assert [i for i in range(20) if bits[i // 8] >> (i % 8) & 1] == [17]
    assert rows[0]["c17"] is None
    assert rows[0]["c16"] == 16


@pytest.mark.parametrize(
    "changes",
    [
        [change("D", 1)],
        [change("U", 1, after=(1, "a"), before=(2, None)), change("D", 2, before=(2, None))],
        [
            change("U", 1, after=(1, "a"), before=(2, None)),
            change("U", 2, after=(1, "b"), before=(3, None)),
        ],
        [change("I", 1, after=(1, None), absent=frozenset([1]))],
        [
            change("D", 1, before=(1, None)),
            change("U", 2, after=(1, None), absent=frozenset([1])),
        ],
    ],
    ids=[
        "delete without key",
        "delete of a moved row",
        "two rows, one key",
        "insert not whole",
        "update of a deleted row",
    ],
)
def test_contradictions_stop_the_load(changes: list[Change]) -> None:
    """No batch is better than a wrong one."""
    with pytest.raises(LogInconsistent) as caught:
        fold_changes(TWO, *changes)
    assert "public.t" in caught.value.message


def test_table_without_a_key_needs_whole_images() -> None:
    """An update without before image identifies no row there."""
    shape = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL)
    with pytest.raises(LogInconsistent):
        fold_changes(shape, change("U", 1, after=(1,)))


def test_a_table_without_a_key_of_which_old_values_are_not_sent() -> None:
    """The error names the column, and says that a key is needed."""
    shape = relation(
        ("v", "integer", "int32"), ("large", "text", "string"), key=(), identity=Identity.FULL
    )
    shape = replace(shape, before=(0,))
    with pytest.raises(RowUnidentified) as caught:
        fold_changes(shape, change("D", 1, before=(1,)))
    assert "old values of large" in caught.value.message
    assert "penstock table resync FILE public.t" in caught.value.hint


def test_frames_must_be_the_same_at_the_second_reading() -> None:
    """A frame left out would silently lose rows."""
    frames = [batch(TWO, [change("I", gsn, after=(gsn, "x"))]) for gsn in (1, 2)]
    fold = Fold(TWO)
    for frame in frames:
        fold.add(frame)
    net = fold.finish()
    with pytest.raises(LogInconsistent):
        list(FoldedRows(net=net, layout=MergeLayout(TWO), frames=frames[:1]).upserts())


def test_cut_takes_a_range_of_rows() -> None:
    """The cut is limited by number on both sides, and by a table's first transaction."""
    frame = batch(TWO, [change("I", gsn, after=(gsn, ""), trx=gsn // 2) for gsn in (2, 4, 6, 8)])

    def cut_gsns(**bounds: int) -> list[int]:
        found: list[int] = cut(frame, **bounds).column("gsn").to_pylist()
        return found

    assert cut_gsns(gsn_after=2, gsn_upto=7) == [4, 6]
    assert cut_gsns(gsn_after=0, gsn_upto=9, trx_from=3) == [6, 8]
    assert cut_gsns(gsn_after=0, gsn_upto=4, trx_from=3) == []
    assert cut_gsns(gsn_after=9, gsn_upto=20) == []
