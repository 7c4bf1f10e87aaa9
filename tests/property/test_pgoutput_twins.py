"""Equality of twin and kernel for any bytes: valid streams, cut streams and broken ones."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from harness.twins.examples import examples
from harness.twins.pgoutput import (
    assert_same_batch,
    begin,
    commit,
    delete,
    frame,
    insert,
    keepalive,
    update,
    xlog,
)
from harness.twins.pgoutput_draw import TEXTS, proper, relations, row_cells
from harness.twins.pgoutput_twins import (
    IGNORED_COUNT_PLACE,
    MODES,
    WORLD,
    Case,
    assert_same,
)
from penstock.codec.postgres.pgoutput import DecodeError
from penstock.model import Identity, Relation

if TYPE_CHECKING:
    from collections.abc import Callable

IGNORED = st.sampled_from([(), (), (1,), (2, 4), (3, 99)])
CORPUS = Path(__file__).parent / "corpus" / "pgoutput"


_SPICE = "0123456789-+:. eEBCntfxyN\\/_infinityNaN\0é"


@st.composite
def broken_texts(draw: st.DrawFn, neutral: str) -> str:
    """Return a valid text with a few letters changed, added or removed."""
    text = list(draw(TEXTS[neutral]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(st.text(_SPICE, max_size=2))
    return "".join(text)


@st.composite
def row_frames(
    draw: st.DrawFn,
    shapes: dict[int, Relation],
    texts: Callable[[str], st.SearchStrategy[str]],
    xid: int | None = None,
) -> bytes:
    """Return one row change of one of the relations."""
    source_id = draw(st.sampled_from(sorted(shapes)))
    shape = shapes[source_id]
    kind = draw(st.sampled_from("IUKOD"))
    if kind == "I":
        return insert(source_id, draw(row_cells(shape, texts)), xid)
    old = draw(row_cells(shape, texts))
    if kind == "K" or (kind == "D" and shape.identity is not Identity.FULL):
        old = [cell if index in shape.before else None for index, cell in enumerate(old)]
    if kind == "D":
        full = shape.identity is Identity.FULL
        return delete(source_id, **{"old" if full else "key": old}, xid=xid)  # type: ignore[arg-type]
    new = draw(row_cells(shape, texts, unchanged=True))
    before = {"K": {"key": old}, "O": {"old": old}}.get(kind, {})
    return update(source_id, new, xid=xid, **before)  # type: ignore[arg-type]


@st.composite
def streams(
    draw: st.DrawFn,
    shapes: dict[int, Relation],
    texts: Callable[[str], st.SearchStrategy[str]],
) -> bytes:
    """Return transactions, also empty and open ones, with keepalives and other messages between."""
    parts: list[bytes] = []
    count = draw(st.integers(1, 4))
    for number in range(count):
        position = 100 * (number + 1)
        parts.append(begin(position, draw(st.integers(-(2**60), 2**60)), 7 + number))
        for _ in range(draw(st.integers(0, 5))):
            parts.append(
                draw(
                    st.one_of(
                        row_frames(shapes, texts),
                        row_frames(shapes, texts),
                        st.just(keepalive()),
                        st.just(xlog(b"T" + bytes(9))),
                    )
                )
            )
        if number + 1 < count or draw(st.booleans()):
            parts.append(commit(position, position + 50))
    if draw(st.integers(0, 9)) == 0:
        parts.append(frame(b"", b"c"))
    return b"".join(parts)


def spice_texts(neutral: str) -> st.SearchStrategy[str]:
    """Return texts, most of them broken somewhere."""
    return broken_texts(neutral)


WORLDS = st.dictionaries(st.integers(0, 2**32 - 1), relations(), min_size=1, max_size=4)


@given(data=st.data(), shapes=WORLDS)
def test_valid_streams_decode_equally_however_they_are_cut(
    data: st.DataObject, shapes: dict[int, Relation]
) -> None:
    """Rows, numbers, stops and batches are the same, with any limits and blocks."""
    block = data.draw(streams(shapes, proper))
    case = Case(
        block=block,
        relations=shapes,
        cuts=tuple(data.draw(st.lists(st.integers(0, len(block)), max_size=4))),
        row_limit=data.draw(st.integers(1, 12)),
        commit_limit=data.draw(st.none() | st.integers(0, 4)),
        byte_limit=data.draw(st.sampled_from([1, 500, 1 << 20])),
        ignored=tuple(data.draw(st.sets(st.sampled_from(sorted(shapes)), max_size=2))),
    )
    events, _ = assert_same(case)
    assert not any(isinstance(event[0], type) for event in events), "a valid stream was refused"


@given(data=st.data())
@examples(0.03)  # each decodes a hundred cuts or more
def test_a_stream_cut_at_every_byte_gives_the_same_rows(data: st.DataObject) -> None:
    """Every split of a block in two gives the rows of the whole (of a long block, some).

    There are 3 blocks in `make check`, 6 in CI, 150 in `make soak`.
    """
    block = data.draw(streams(WORLD, proper))
    _, whole = assert_same(Case(block=block))
    counts = sorted((rows.relation.name, rows.batch.num_rows) for rows in whole)
    for cut in range(0, len(block) + 1, max(1, len(block) // 150)):
        _, parts = assert_same(Case(block=block, cuts=(cut,)))
        assert sorted((rows.relation.name, rows.batch.num_rows) for rows in parts) == counts


@given(data=st.data(), shapes=WORLDS)
def test_ignored_rows_leave_no_trace(data: st.DataObject, shapes: dict[int, Relation]) -> None:
    """The others are as if the ignored ones were never sent, except in the counts."""
    unwanted = data.draw(st.sampled_from(sorted(shapes)))
    block = data.draw(streams(shapes, proper))
    frames, at = [], 0
    while at < len(block):
        behind = at + 1 + int.from_bytes(block[at + 1 : at + 5])
        frames.append(block[at:behind])
        at = behind
    is_row = [one[30:31] in (b"I", b"U", b"D") for one in frames]
    dropped = [
        found and int.from_bytes(one[31:35]) == unwanted
        for one, found in zip(frames, is_row, strict=True)
    ]
    rest = b"".join(one for one, gone in zip(frames, dropped, strict=True) if not gone)
    events, batches = assert_same(Case(block=block, relations=shapes, ignored=(unwanted,)))
    _, expected = assert_same(Case(block=rest, relations=shapes))
    assert [rows.relation for rows in batches] == [rows.relation for rows in expected]
    for rows, other in zip(batches, expected, strict=True):
        assert_same_batch(rows.batch, other.batch)
    assert events[-1][IGNORED_COUNT_PLACE] == sum(dropped)


@given(data=st.data(), shapes=WORLDS)
def test_broken_values_fail_equally(data: st.DataObject, shapes: dict[int, Relation]) -> None:
    """Each is right, widened or refused by both, at the same place."""
    assert_same(Case(block=data.draw(streams(shapes, spice_texts)), relations=shapes))


@given(data=st.data())
def test_broken_bytes_fail_equally(data: st.DataObject) -> None:
    """Bytes are changed, removed, doubled or cut off anywhere, lengths too."""
    block = bytearray(data.draw(streams(WORLD, proper)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(block)))
        drop = data.draw(st.integers(0, 3))
        block[at : at + drop] = data.draw(st.binary(max_size=4))
    cut = data.draw(st.integers(0, len(block)))
    assert_same(Case(block=bytes(block), cuts=(cut,), ignored=data.draw(IGNORED)))


@given(data=st.data())
def test_a_row_with_any_body_fails_or_decodes_equally(data: st.DataObject) -> None:
    """The frame is complete and its row message is not: no byte outside the frame is read."""
    whole = data.draw(row_frames(WORLD, proper))
    message = bytearray(whole[30:])
    at = data.draw(st.integers(0, len(message)))
    message[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    after = insert(4, [])
    block = begin() + xlog(bytes(message) or b"I") + after + commit()
    assert_same(Case(block=block, ignored=data.draw(IGNORED)))


@given(data=st.data())
def test_streamed_rows_replay_equally(data: st.DataObject) -> None:
    """Rows have xids, and some are rolled back; skipping them stops equally too."""
    parts = [
        data.draw(row_frames(WORLD, data.draw(st.sampled_from([proper, spice_texts])), xid=xid))
        for xid in data.draw(st.lists(st.integers(7, 12), max_size=6))
    ]
    block = bytearray(b"".join(parts))
    if data.draw(st.booleans()) and block:
        block[data.draw(st.integers(0, len(block) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for mode in ("replay", "skip"):
        case = Case(block=bytes(block), mode=mode, dropped=(8, 9, 12), row_limit=3)
        assert_same(replace(case, ignored=data.draw(IGNORED)))


@given(data=st.data())
def test_copy_lines_decode_equally(data: st.DataObject) -> None:
    """The lines are COPY's text format, valid and broken."""
    source_id = data.draw(st.sampled_from(sorted(WORLD)))
    texts = data.draw(st.sampled_from([proper, spice_texts]))
    lines = []
    for _ in range(data.draw(st.integers(0, 4))):
        cells = data.draw(row_cells(WORLD[source_id], texts))
        lines.append("\t".join(_escape_cell(cell) for cell in cells) + "\n")
    block = bytearray("".join(lines).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(block)))
        block[at : at + 1] = data.draw(st.sampled_from([b"", b"\\", b"\t", b"\n", b"\xff", b"\\N"]))
    assert_same(
        Case(
            block=bytes(block),
            mode="copy",
            source_id=source_id,
            row_limit=data.draw(st.integers(1, 5)),
            cuts=(data.draw(st.integers(0, len(block))),),
        )
    )


def _escape_cell(cell: str | None) -> str:
    if cell is None:
        return "\\N"
    marks = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(marks.get(letter, letter) for letter in cell)


@given(st.binary(max_size=300))
def test_any_bytes_are_handled_equally(block: bytes) -> None:
    """Noise gives a typed error or nothing, in every mode."""
    for mode in MODES:
        assert_same(Case(block=block, mode=mode))


def test_kept_inputs_are_handled_equally() -> None:
    """The fuzzer kept these inputs because they reached new code or once failed."""
    paths = sorted(CORPUS.glob("*.bin"))
    assert paths
    for path in paths:
        check_kept(path)


def check_kept(path: Path) -> None:
    """Check one input; pytest shows the path of one that fails."""
    case = Case.of(path.read_bytes())
    assert_same(case)
    assert_same(replace(case, ignored=(2, 3)))


def test_lengths_of_four_gigabytes_are_refused_at_once() -> None:
    """A broken length asks for no memory and reads nothing."""
    for length in (2**32 - 1, 2**31, 2**31 - 1, 2**30):
        cell = xlog(b"I" + struct.pack(">IcH", 3, b"N", 3) + b"t" + struct.pack(">I", length))
        events, _ = assert_same(Case(block=begin() + cell))
        assert events[0][0] is DecodeError
