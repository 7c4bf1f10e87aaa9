"""Changes of a segment in pieces, read all at once: they equal those read entry by entry."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.ignite.recordings import data_segment, entry_bytes, record_bytes
from harness.ignite.source import make_work_directory, number, text
from penstock.codec.ignite import wal
from penstock.codec.ignite.changes import Changes
from penstock.codec.ignite.types import cache_id
from penstock.engines.ignite.directory import open_directory
from penstock.engines.ignite.source import node
from penstock.engines.ignite.source.node import NodeReader, Piece, _Marks, _pieces, in_order
from penstock.ports.direct import LogPlace

END = LogPlace(0, 1 << 30, 0)
CACHES = ("words", "more", "not_taken")
NEARS = [
    b"\0",
    *(struct.pack("<Biiq", 1, topology, node, order)
      for topology, node, order in ((1, 1, 7), (1, 2, 7), (2, 1, 7), (1, 1, 8), (1, 1, 9))),
]  # fmt: skip

entries = st.fixed_dictionaries(
    {
        "near": st.sampled_from(NEARS[:1] * 3 + NEARS),
        "cache": st.sampled_from([cache_id(one) for one in CACHES]),
        "flags": st.sampled_from([1, 1, 1, 0, 3]),
        "value": st.sampled_from([text("a"), text("b"), None]),
        "partition": st.integers(0, 3),
    }
)
records = st.lists(st.lists(entries, max_size=4), max_size=24)


def segment_of(found: list[list[dict[str, Any]]]) -> bytes:
    """Return a segment with these records; keys are increasing numbers."""
    keys = iter(range(1 << 20))
    rows = [[entry_bytes(key=number(next(keys)), **one) for one in some] for some in found]
    return data_segment(rows, more=[record_bytes(46, b"x")])


def by_entry(some: list[Any], marks: list[int], limit: int) -> Iterator[tuple[Any, ...]]:
    """Return the readable form: marks first, transactions and the end of each piece."""
    lasts = {one.near_version: one.offset for one in some}
    open_ones: dict[Any, list[Any]] = {}
    left, made_here, given_here = list(marks), [], []
    for offset, record in groupby(some, key=lambda one: one.offset):
        if sum(map(len, given_here)) >= limit:
            end = None if open_ones else min([offset, *left[:1]])
            yield made_here, given_here, end
            made_here, given_here = [], []
        passed = [one for one in left if one < offset]
        if passed:
            if given_here:
                yield made_here, given_here, None
                made_here, given_here = [], []
            made_here += passed
            left = left[len(passed) :]
        by_near: dict[Any, list[Any]] = {}
        for one in record:
            by_near.setdefault(one.near_version, []).append(one)
        for near, here in by_near.items():
            if near is None or lasts[near] == offset:
                given_here.append([*open_ones.pop(near, []), *here])
            else:
                open_ones.setdefault(near, []).extend(here)
    if left:
        if given_here:
            yield made_here, given_here, None
            made_here, given_here = [], []
        made_here += left
    yield made_here, given_here, END.offset


def show_piece(piece: Piece) -> tuple[Any, ...]:
    """Return a piece as by_entry() gives it, with the facts about each transaction."""
    found, at = [], 0
    keys = [] if piece.entries is None else piece.entries.list_marshalled("key")
    for count, *told in zip(
        piece.counts.tolist(), piece.positions.tolist(), piece.times_ms.tolist(),
        piece.numbers.tolist(), strict=True,
    ):  # fmt: skip
        found.append((keys[at : at + count], *told))
        at += count
    assert at == len(keys)
    end = None if piece.end is None else piece.end.offset
    return [place.offset for _, place in piece.made], found, end


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=records, limit=st.integers(1, 9), marks=st.lists(st.integers(29, 1500), max_size=3))
def test_pieces_are_those_of_single_entries(
    monkeypatch: pytest.MonkeyPatch,
    found: list[list[dict[str, Any]]],
    limit: int,
    marks: list[int],
) -> None:
    """Both have equal transactions, order, ends, and places at which reading may resume."""
    monkeypatch.setattr(node, "PIECE_ENTRIES_MAX", limit)
    data = segment_of(found)
    some = list(wal.Walk(data, number=0, name="0.wal", begin=0, decode=lambda *_: None))
    rows = wal.scan(data, number=0, name="0.wal", begin=0).rows
    marks = sorted(marks)
    places = [("cache", LogPlace(0, one, 0)) for one in marks]
    changes = Changes(data, rows, lambda *_: None)
    pieces = [show_piece(one) for one in _pieces(0, in_order(changes), _Marks(places), END)]
    wanted = [
        (
            made_here,
            [
                (
                    [one.key_bytes for one in trx], trx[-1].offset, trx[-1].time_ms,
                    trx[-1].near_version.order if trx[-1].near_version else 0,
                )
                for trx in given_here
            ],
            end,
        )
        for made_here, given_here, end in by_entry(some, marks, limit)
    ]  # fmt: skip
    assert pieces == wanted


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=records, backups=st.booleans(), skip=st.integers(0, 3))
def test_what_a_reader_takes(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[list[dict[str, Any]]],
    backups: bool,
    skip: int,
) -> None:
    """Changes of captured caches are read, and backups if requested; the others are counted."""
    folder: Path = tmp_path_factory.mktemp("node")
    data = segment_of(found)
    work = make_work_directory(folder, {0: data}, *CACHES)
    directory = open_directory(f"ignite://{work}?consistentId=n")
    directory.save_place(LogPlace(0, wal.HEADER_BYTES, skip))
    reader = NodeReader(directory, takes=lambda one: one != "not_taken", backups=backups)
    reader.begin(None)
    keys = [
        key
        for piece in reader.pieces()
        for key in ([] if piece.entries is None else piece.entries.list_marshalled("key"))
    ]
    walk = wal.Walk(data, number=0, name="0.wal", begin=0, decode=lambda *_: None)
    walk.skip(skip)
    told = list(walk)
    names = {cache_id(one) for one in CACHES[:2]}
    wanted = [one for one in told if one.cache_id in names and (backups or one.primary)]
    assert sorted(keys) == sorted(one.key_bytes for one in wanted)
    assert reader.ignored == len(told) - len(wanted)
    assert reader.time_ms == walk.time_ms
