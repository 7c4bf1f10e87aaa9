"""Messages for clients: every transaction is sent whole and once, always under the same numbers."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import (
    RELATIONS,
    SOURCE,
    Change,
    Row,
    announced_batch,
    inserts,
    number_rows,
    run_of,
    transactions,
)
from harness.servers.serve import (
    Sent,
    all_blocks,
    open_source_log,
    parse_messages,
    table_oid,
    views_of,
    write_log,
)
from penstock.codec.postgres import pgoutput_write as write
from penstock.log import Writer
from penstock.model import Op, TableName
from penstock.serve import chunks, numbers
from penstock.serve.catalog.publications import Publication, PublishedTable

ITEMS = Publication(
    name="items", oid=1, owner="r", tables=(PublishedTable(schema="public", name="item"),)
)
LETTERS = {Op.INSERT: "I", Op.UPDATE: "U", Op.DELETE: "D"}


def list_expected(rows: Sequence[Sequence[Row]], *, after: int = 0) -> list[tuple[str, int]]:
    """Return letters and LSNs for a client of everything whose position is `after`."""
    found: list[tuple[str, int]] = []
    gsn = 0
    for trx, group in enumerate(rows, 1):
        begin = numbers.begin_of(gsn, trx)
        gsn = group[-1].gsn
        end = numbers.end_of(gsn, trx)
        if end > after:
            found.append(("B", begin))
            found += [(LETTERS[r.change.op], numbers.row_of(r.gsn, trx)) for r in group]
            found.append(("C", end))
    return found


def plain(messages: Sequence[Sent]) -> list[tuple[str, int]]:
    """Return letters and LSNs."""
    return [(one.kind, one.position) for one in messages]


def head_of(root: Path) -> int:
    """Return the log's end as an LSN."""
    with open_source_log(root) as log:
        return log.head().position


def encode_after(root: Path, position: int) -> list[Sent]:
    """Return the messages for a client that has all up to an LSN."""
    found: list[Sent] = []
    for block in all_blocks(root, views_of(), position):
        found += parse_messages(block.data[block.start_behind(position) :])
    return found


@given(transactions(max_size=8), st.data())
def test_every_transaction_once_from_every_position(
    committed: list[list], data: st.DataObject
) -> None:
    """Any flushes and rotations give them, from any position; LSNs increase and are unique."""
    rows = number_rows(committed, keys_have_two=True)
    per_flush = data.draw(st.integers(1, 4))
    per_segment = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root / "log", rows, per_flush=per_flush, per_segment=per_segment)
        whole = list_expected(rows)
        assert plain(encode_after(root, 0)) == whole
        positions = [position for kind, position in whole if kind != "C"]
        assert positions == sorted(set(positions))
        ends = [position for kind, position in whole if kind == "C"]
        for end in ends:
            assert plain(encode_after(root, end)) == list_expected(rows, after=end)
            # A position in the middle of a transaction: all of it is sent again.
            assert plain(encode_after(root, end - 1)) == list_expected(rows, after=end - 1)
        assert head_of(root) == ends[-1]


@given(transactions(max_size=6), st.integers(1, 3))
def test_commits_name_their_own_end(committed: list[list], per_flush: int) -> None:
    """B has the LSN of its COMMIT, C the same and its END; and END(n) is below BEGIN(n + 1)."""
    rows = number_rows(committed, keys_have_two=True)
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder) / "log", rows, per_flush=per_flush)
        begun = last = 0
        for one in encode_after(Path(folder), 0):
            if one.kind == "B":
                (begun,) = struct.unpack_from(">Q", one.body)
                assert last < one.position < begun
            elif one.kind == "C":
                _, commit, end = struct.unpack_from(">BQQ", one.body)
                assert (commit, end) == (begun, one.position)
                last = end


@given(transactions(max_size=8), st.integers(1, 3), st.integers(1, 3))
def test_what_is_not_published_moves_the_position_and_sends_nothing(
    committed: list[list], per_flush: int, per_segment: int
) -> None:
    """Only the published table's rows are sent, under the numbers that all clients see."""
    rows = number_rows(committed, keys_have_two=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root / "log", rows, per_flush=per_flush, per_segment=per_segment)
        found: list[tuple[str, int]] = []
        position = 0
        for block in all_blocks(root, views_of(ITEMS)):
            found += plain(parse_messages(block.data))
            position = block.position
        assert position == head_of(root)
        wanted = []
        for trx, group in enumerate(rows, 1):
            of_item = [row for row in group if row.change.relation.name == "item"]
            if of_item:
                before = rows[trx - 2][-1].gsn if trx > 1 else 0
                wanted.append(("B", numbers.begin_of(before, trx)))
                wanted += [(LETTERS[r.change.op], numbers.row_of(r.gsn, trx)) for r in of_item]
                wanted.append(("C", numbers.end_of(group[-1].gsn, trx)))
        assert found == wanted


@given(transactions(max_size=5), st.data())
def test_a_huge_transaction_comes_in_parts(committed: list[list], data: st.DataObject) -> None:
    """Parts of it are blocks of their own; joined they equal one block."""
    rows = number_rows(committed, keys_have_two=True)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        with Writer.open(root / "log", log_id=None, source={"engine": "postgresql"}) as writer:
            flat = [row for group in rows for row in group]
            at = 0
            while at < len(flat):
                size = data.draw(st.integers(1, 4))
                piece = flat[at : at + size]
                at += size
                is_last = at >= len(flat)
                writer.write(_piece(piece, flat[at] if not is_last else None, ended=is_last))
            writer.flush()
        patch.setattr(chunks, "PART_ROWS_WANTED", 1)
        blocks = all_blocks(root, views_of())
        joined = b"".join(block.data for block in blocks)
        assert plain(parse_messages(joined)) == list_expected(rows)
        assert [block.position for block in blocks[:-1]] == [0] * (len(blocks) - 1)
        for end in [position for kind, position in list_expected(rows) if kind == "C"]:
            rest = b"".join(block.data[block.start_behind(end) :] for block in blocks)
            assert plain(parse_messages(rest)) == list_expected(rows, after=end)
        only = all_blocks(root, views_of(ITEMS))
        # A transaction without a published row may be sent empty, never in part.
        kinds = "".join(one.kind for block in only for one in parse_messages(block.data))
        assert kinds.count("B") == kinds.count("C")
        assert kinds.count("I") + kinds.count("U") + kinds.count("D") == sum(
            row.change.relation.name == "item" for row in flat
        )


def _piece(rows: Sequence[Row], following: Row | None, *, ended: bool) -> object:
    """Return a run that ends inside a transaction, or at the end of all."""
    run = run_of(rows, ended=ended)
    known = list(dict.fromkeys(row.trx for row in rows))
    if not ended and following is not None and following.trx == rows[-1].trx:
        known = known[:-1]
    return replace(run, transactions=announced_batch(known))


def test_shapes_are_told_where_they_change() -> None:
    """Each shape precedes the first row that has it, and is repeated after another one."""
    item, item_2, _ = RELATIONS
    made = [
        [Change(relation=one, op=Op.INSERT, after=(1, "a", *(() if one is item else (None,))))]
        for one in (item, item, item_2, item)
    ]
    rows = number_rows(made)
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder) / "log", rows, per_flush=4)
        (block,) = all_blocks(Path(folder), views_of())
        starts = [at for at, kind in _places(block.data) if kind == "I"]
        assert [shape.offset for shape in block.shapes] == [starts[0], starts[2], starts[3]]
        told = [shape.message for shape in block.shapes]
        assert told[0] == told[2] != told[1]
        oid = table_oid(TableName(item.schema, item.name))
        assert told[0] == write.relation(item, oid)


def _places(data: bytes) -> list[tuple[int, str]]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at + 1)
        found.append((at, chr(data[at + 30])))
        at += 1 + length
    return found


@pytest.mark.parametrize("flushed", [1, 3, 5])
@pytest.mark.parametrize("keeps", [0, 2])
def test_numbers_outlast_the_extractor_and_the_segments(
    flushed: int, keeps: int, tmp_path: Path
) -> None:
    """A crash inside a segment, a repetition, and removed old segments make no difference.

    Rows that were read before the crash have the same numbers afterwards.
    """
    rows = number_rows([inserts(2, first=2 * at) for at in range(8)])
    crashed, after = tmp_path / "crashed" / "log", tmp_path / "after" / "log"
    with Writer.open(crashed, log_id=None, source=SOURCE) as writer:
        for at, group in enumerate(rows[:flushed]):
            writer.write(run_of(group))
            writer.flush()
            if at == 1:
                writer.rotate()
        seen = plain(encode_after(crashed.parent, 0))
        writer.write(run_of(rows[flushed]))  # never durable
        shutil.copytree(crashed, after)
    with Writer.open(after, log_id=None, source=SOURCE) as writer:
        assert writer.durable.trx == flushed
        for group in rows[flushed:]:
            writer.write(run_of(group))
            writer.flush()
            writer.rotate()
    whole = list_expected(rows)
    assert seen == whole[: len(seen)]
    assert plain(encode_after(after.parent, 0)) == whole
    for number in range(keeps):
        (after / f"{number}.ckt").unlink(missing_ok=True)
    with open_source_log(after.parent) as log:
        first = log.first_kept()
        assert first is not None
        position = log.start_of(first)
    assert plain(encode_after(after.parent, position)) == list_expected(rows, after=position)
