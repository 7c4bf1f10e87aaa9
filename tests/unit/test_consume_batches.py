"""Batches of a segment: the rows of the log, one batch per table and run, from any place on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.consume import FULL, anything, is_full, write, write_segment
from harness.pipelines.log import (
    ITEM,
    inserts,
    number_rows,
    plain_batches,
    plain_segment,
    run_of,
    transactions,
    truncate,
)
from penstock.consume import batches
from penstock.consume.batches import BatchIterator, CdcBatch, batches_of
from penstock.consume.pieces import Piece
from penstock.log import Segment
from penstock.model import MarkerKind, Rows, TableName


def pieces(
    segment: Segment,
    *,
    takes: Callable[[TableName], bool] = anything,
    gsn_after: int = 0,
    entries_after: int = 0,
) -> list[tuple[Piece[BatchIterator], list[CdcBatch]]]:
    """Return the pieces with their batches."""
    found = batches_of(segment, takes=takes, gsn_after=gsn_after, entries_after=entries_after)
    return [(piece, list(piece.events)) for piece in found]


def shapes(found: list[CdcBatch]) -> list[tuple[str, list[int], bool]]:
    """Return table, gsns and resent of each."""
    return [(b.table, b.batch.column("gsn").to_pylist(), b.resent) for b in found]


def plain(found: list[CdcBatch]) -> list[Any]:
    """Return their rows, ordered by gsn."""
    return plain_batches(Rows(relation=b.relation, batch=b.batch) for b in found)


def test_a_batch_is_a_table_in_a_run(tmp_path: Path) -> None:
    """A batch has the columns of the log, and the time and position of each row's commit."""
    mixed = [change for pair in zip(inserts(2), inserts(2, FULL), strict=True) for change in pair]
    with write_segment(tmp_path, [mixed, inserts(1)]) as segment:
        ((piece, found),) = pieces(segment)
        assert shapes(found) == [
            ("public.item", [1, 3], False),
            ("public.full", [2, 4], False),
            ("public.item", [5], False),
        ]
        assert (piece.gsn_end, piece.events.place_read) == (5, (5, 0))
        assert [one.ends_run for one in found] == [False, True, True]
        ((_, taken),) = pieces(segment, takes=is_full)
        assert (shapes(taken), taken[0].cache_id) == ([("public.full", [2, 4], False)], 7)
    assert found[2].batch.schema.names[-2:] == ["position", "commit_time"]


def test_markers_cut_and_rows_of_a_reload_are_apart(tmp_path: Path) -> None:
    """Rows of a reload are apart, also if its transaction's rows share a frame with others."""
    reload = replace(truncate(2, 1, "item"), kind=MarkerKind.RELOAD)
    with write_segment(tmp_path, [inserts(4)], reload) as segment:
        (_, front), (piece, behind) = pieces(segment)
        assert piece.markers_before == (reload,)
        assert (shapes(front), shapes(behind)) == (
            [("public.item", [1, 2], False)],
            [("public.item", [3, 4], True)],
        )
        reader = batches.BatchReader(segment, anything)
        (entry,) = segment.row_frames()
        again, others = reader.read(entry, 0, 4)
        assert again is not None
        assert others is None


def test_reading_goes_on_between_rows_read_again_and_others(tmp_path: Path) -> None:
    """Reading stops between the two kinds of rows of one frame, and continues with the second."""
    first, second = number_rows([inserts(2), inserts(2, first=2)])
    reload = replace(truncate(0, 1, "item"), kind=MarkerKind.RELOAD)
    with write(tmp_path, run_of([*first, *second], markers=[reload])) as segment:
        ((piece, found),) = pieces(segment)
        assert shapes(found) == [("public.item", [1, 2], True), ("public.item", [3, 4], False)]
        (piece,) = batches_of(segment, takes=anything, gsn_after=0)
        next(piece.events)
        gsn, entries = piece.events.place_read
        ((_, rest),) = pieces(segment, gsn_after=gsn, entries_after=entries)
        assert shapes(rest) == [("public.item", [3, 4], False)]


@given(transactions())
def test_batches_have_the_rows_of_the_log(tmp_path_factory: Any, groups: Any) -> None:
    """All rows are there once, those of a table in order."""
    with write_segment(tmp_path_factory.mktemp("log"), groups) as segment:
        ((_, found),) = pieces(segment)
        assert plain(found) == plain_segment(segment)


@given(transactions(max_size=4), st.lists(st.integers(0, 12), max_size=2))
def test_reading_goes_on_behind_any_batch(
    tmp_path_factory: Any, groups: Any, places: list[int]
) -> None:
    """Stopped after any number of batches and resumed there, it neither misses nor repeats one."""
    last = len(groups[0])
    markers = [truncate(gsn, 1, "item") for gsn in sorted(places) if gsn <= last]
    with write_segment(tmp_path_factory.mktemp("log"), groups, *markers) as segment:
        for is_wanted in (anything, is_item):
            whole = plain(
                [batch for _, found in pieces(segment, takes=is_wanted) for batch in found]
            )
            for stop in range(sum(len(found) for _, found in pieces(segment, takes=is_wanted)) + 1):
                front: list[CdcBatch] = []
                gsn = entries = 0
                for piece in batches_of(segment, takes=is_wanted, gsn_after=0):
                    front += itertools.islice(piece.events, stop - len(front))
                    gsn, entries = piece.events.place_read
                    if len(front) == stop:
                        break
                rest = pieces(segment, takes=is_wanted, gsn_after=gsn, entries_after=entries)
                assert plain([*front, *(batch for _, found in rest for batch in found)]) == whole


def is_item(table: TableName) -> bool:
    """Return whether this is the one table: a filter."""
    return table.name == ITEM.name


def test_what_is_filtered_out_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position moves on after it nevertheless."""
    with write_segment(tmp_path, [inserts(2), inserts(1, FULL), inserts(3)]) as segment:
        monkeypatch.setattr(Segment, "read_rows", lambda *_: pytest.fail("read"))
        ((piece, found),) = pieces(segment, takes=lambda _: False)
        assert (found, piece.gsn_end, piece.events.gsn_read) == ([], 6, 6)
