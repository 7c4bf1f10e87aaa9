"""A table of the base with the changes since equals the source's table, for any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.changes import Change, batch
from harness.pipelines.histories import STEPS, VALUES, Row, Step, histories, keyless
from penstock.base.changes import TableChanges
from penstock.base.manifest import columns_schema
from penstock.base.state import Piece, needs_old_rows, state
from penstock.model import Identity, Relation


@dataclass
class Told:
    """A layer whose frames are in memory."""

    relation: Relation
    frames: list[pa.RecordBatch]
    overlaps: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the frames; this can be repeated."""
        return iter(self.frames)


def layers(shape: Relation, changes: Sequence[Change], cuts: Sequence[int]) -> TableChanges:
    """Return the changes in layers that end at these places, each in frames of three."""
    edges = sorted({0, len(changes), *(cut % (len(changes) + 1) for cut in cuts)})
    made: list[Any] = []
    for first, last in pairwise(edges):
        some = changes[first:last]
        frames = [batch(shape, some[at : at + 3]) for at in range(0, len(some), 3)]
        made.append(Told(relation=shape, frames=frames))
    return TableChanges(layers=tuple(made), is_emptied=False, relation=None)


def files(shape: Relation, rows: Sequence[Row], sizes: Sequence[int]) -> list[Piece]:
    """Return rows as the base's files have them."""
    found, at = [], 0
    while at < len(rows):
        some = rows[at : at + sizes[len(found) % len(sizes)]]
        at += len(some)
        names = [column.name for column in shape.columns]
        dicts = [dict(zip(names, row, strict=True)) for row in some]
        table = pa.Table.from_pylist(dicts, schema=columns_schema(shape)).combine_chunks()
        found.append(Piece(relation=shape, rows=table.to_batches()[0]))
    return found


def plain(pieces: Iterator[Piece], *, only_new: bool = False) -> Counter[Row]:
    """Return the rows of pieces, with their counts."""
    return Counter(
        tuple(row.values())
        for piece in pieces
        if not (only_new and piece.is_old)
        for row in piece.rows.to_pylist()
    )


@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
@given(data=st.data())
def test_rows_are_those_of_the_source(identity: Identity, data: st.DataObject) -> None:
    """Rows are equal for any files of the base and any layers of changes; also file by file."""
    start, history = data.draw(histories(identity))
    shape = history.relation
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=2))
    changes = layers(shape, history.changes, cuts)
    pieces = files(shape, list(start.values()), sizes)
    wanted = Counter(history.rows.values())
    assert plain(state(pieces, changes, shapes=[shape])) == wanted
    # Like compaction, which reads each file without new rows, and the new rows separately.
    parts: Counter[Row] = Counter()
    for piece in pieces:
        parts += plain(state([piece], changes, shapes=[shape], adds_rows=False))
    below = pieces if needs_old_rows(changes) else []
    parts += plain(state(below, changes, shapes=[shape]), only_new=True)
    assert parts == wanted


@given(
    st.lists(st.tuples(VALUES, VALUES), max_size=12),
    STEPS,
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 30), max_size=2),
)
def test_rows_without_a_key_are_counted(
    start: list[Row], steps: list[Step], sizes: list[int], cuts: list[int]
) -> None:
    """There are as many copies as in the source, wherever they are."""
    shape, changes, end = keyless(Counter(start), steps)
    pieces = files(shape, start, sizes)
    found = state(pieces, layers(shape, changes, cuts), shapes=[shape])
    assert plain(found) == end
