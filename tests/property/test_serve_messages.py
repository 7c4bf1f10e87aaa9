"""Messages outside of transactions: each has a number, in every form and from any position."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import (
    ITEM,
    SOURCE,
    announced_batch,
    commit_position,
    inserts,
    number_rows,
    run_of,
)
from harness.servers.serve import Sent, all_blocks, parse_messages, views_of
from penstock.codec.postgres.pgoutput_messages import logical_message
from penstock.log import Writer
from penstock.model import FlushPoint, Marker, MarkerKind, Run
from penstock.serve import chunks, numbers
from penstock.serve.catalog.publications import Publication, PublishedTable, everything
from penstock.serve.encode import Views
from penstock.serve.forms import stream_options

NOTHING = Publication(
    name="other", oid=1, owner="r", tables=(PublishedTable(schema="public", name="other"),)
)
WORDS = {
    "all": None,
    "filtered": None,
    "test_decoding": {},
    "wal2json": {},
    "wal2json in chunks": {"write-in-chunks": "1"},
    "wal2json 2": {"format-version": "2"},
}


def lone(gsn: int, trx: int) -> Run:
    """Return a message outside of transactions, as a transaction of its own."""
    position = commit_position(trx)
    marker = Marker(
        kind=MarkerKind.MESSAGE,
        gsn=gsn,
        trx=trx,
        position=position,
        commit_time_us=1,
        data={"prefix": "app", "transactional": False, "content": f"said {trx}"},
    )
    end = FlushPoint(position=position + 50, gsn=gsn, trx=trx, commit_time_us=1)
    return Run(markers=(marker,), transactions=announced_batch([trx]), end=end)


def write(directory: Path, counts: Sequence[int], per_flush: int, per_segment: int) -> list[int]:
    """Write transactions of so many rows, 0: a message; return the ENDs of all."""
    rows = iter(number_rows([inserts(count) if count else inserts(1) for count in counts]))
    ends, gsn, flushes = [], 0, 0
    with Writer.open(directory, log_id=None, source=SOURCE) as writer:
        for trx, count in enumerate(counts, 1):
            group = next(rows)
            if count:
                first = gsn + 1
                gsn += count
                group = [
                    type(row)(gsn=first + n, trx=trx, position=row.position, change=row.change)
                    for n, row in enumerate(group)
                ]
                writer.write(run_of(group))
            else:
                writer.write(lone(gsn, trx))
            ends.append(numbers.end_of(gsn, trx))
            if trx % per_flush == 0 or trx == len(counts):
                writer.flush()
                flushes += 1
                if flushes % per_segment == 0:
                    writer.rotate()
    return ends


def views(name: str) -> Views:
    """Return the views of one form."""
    options = WORDS[name]
    if options is None:
        return views_of(*([NOTHING] if name == "filtered" else []), messages=True, shapes=[ITEM])
    form = stream_options(name.split()[0], options).form
    return views_of(everything(form.actions), form=form)


def read_text(name: str, one: Sent) -> str | None:
    """Return the text of a message outside of transactions; None for all else."""
    body = one.kind.encode() + one.body
    if WORDS[name] is None:
        if one.kind != "M":
            return None
        found = logical_message(one.body)
        assert not found.transactional
        assert found.position == one.position
        return found.content.decode()
    text = body.decode()
    if name == "test_decoding":
        return (
            text.partition("content:")[2] if text.startswith("message: transactional: 0") else None
        )
    if '"transactional":false' not in text:
        return None
    made = json.loads(text)
    return str((made if "content" in made else made["change"][0])["content"])


def collect_sent(root: Path, name: str, position: int) -> list[Sent]:
    """Return what a client is sent that has everything up to an LSN."""
    found: list[Sent] = []
    for block in all_blocks(root, views(name), position):
        found += parse_messages(block.data[block.start_behind(position) :])
    return found


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 3))
@pytest.mark.parametrize("name", WORDS)
def test_messages_come_once_from_every_position(
    name: str, counts: list[int], per_flush: int, per_segment: int
) -> None:
    """Messages stand alone or between transactions; LSNs rise, and none repeats."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        ends = write(root / "log", counts, per_flush, per_segment)
        for rows_max in (1 << 16, 2):
            patch.setattr(chunks, "PART_ROWS_WANTED", rows_max)
            for position in (0, *ends):
                found = collect_sent(root, name, position)
                got = [(text, one.position) for one in found if (text := read_text(name, one))]
                assert got == [
                    (f"said {trx}", end)
                    for trx, (count, end) in enumerate(zip(counts, ends, strict=True), 1)
                    if not count and end > position
                ]
                positions = [one.position for one in found]
                assert positions == sorted(positions)
                assert not positions or positions[0] > position


@pytest.mark.parametrize("rows_max", [2, 100])
def test_a_message_inside_the_rows_of_a_transaction_follows_its_commit(
    rows_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message never stands between BEGIN and COMMIT, in parts neither."""
    monkeypatch.setattr(chunks, "PART_ROWS_WANTED", 1)
    (rows,) = number_rows([inserts(9)])
    marker = lone(1, 1).markers[0]
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(run_of(rows[:3], ended=False, markers=[marker]))
        writer.write(run_of(rows[3:6], ended=False))
        writer.write(run_of(rows[6:]))
        writer.flush()
    found = collect_sent(tmp_path, "all", 0)
    assert "".join(one.kind for one in found) == "B" + "I" * 9 + "CM"
    (begun,) = struct.unpack_from(">Q", found[0].body)
    assert found[-1].position == found[-2].position == begun + 1
