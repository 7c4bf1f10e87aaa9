"""Memory of the server, counted in decompressed size."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from harness.servers.serve import (
    Running,
    all_blocks,
    limits,
    make_publications,
    open_blocks,
    open_source_log,
    settings_of,
    views_of,
)
from harness.servers.serve_client import Raw, wait_until
from penstock.log import Writer
from penstock.serve import blocks, chunks, numbers
from penstock.serve.blocks import find_place
from penstock.serve.catalog.publications import Publication
from penstock.serve.chunks import Counted, next_chunk
from penstock.serve.source_log import SourceLog

STREAMS = 64
TEXT = "all alike " * 400


def write_alike(root: Path, *, frames: int, rows: int) -> None:
    """Write one flush of transactions whose rows compress 200 to 1."""
    changes = [replace(one, after=(n, TEXT)) for n, one in enumerate(inserts(frames * rows))]
    groups = number_rows([changes[at : at + rows] for at in range(0, len(changes), rows)])
    with Writer.open(root / "log", log_id=None, source=SOURCE) as writer:
        for group in groups:
            writer.write(run_of(group))
        writer.flush()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and budgets a sixteenth of those in use, so that a small log is enough."""
    monkeypatch.setattr(chunks, "PART_BYTES_WANTED", chunks.PART_BYTES_WANTED // 16)
    monkeypatch.setattr(blocks, "LIVE_BYTES", 8 << 20)


@pytest.mark.usefixtures("small")
def test_a_block_has_the_size_that_its_rows_have_in_memory(tmp_path: Path) -> None:
    """Rows of one frame are divided, too."""
    write_alike(tmp_path, frames=2, rows=2000)
    with open_source_log(tmp_path) as log, log.segment(0, log.head()) as segment:
        plain = sum(one.row_count for one in segment.entries) * len(TEXT)
        assert plain > 100 * segment.size_bytes, "the rows compress well"
        chunk = next_chunk(0, segment.entries, 0, Counted(gsn=0, trx=0))
        assert chunk is not None
        assert len(chunk.rows) == 2
    sizes = [len(one.data) for one in all_blocks(tmp_path, views_of())]
    assert sum(sizes) > plain
    assert max(sizes) < 1.2 * chunks.PART_BYTES_WANTED
    least = sum(sizes) / chunks.PART_BYTES_WANTED
    assert len(sizes) < 1.5 * least, "and is not cut more than needed"


@pytest.mark.usefixtures("small")
def test_many_streams_do_not_read_ahead_without_room(tmp_path: Path) -> None:
    """Each of 64 streams whose client does not read has one block, or two if there is room."""
    write_alike(tmp_path, frames=2, rows=2000)
    several = [
        Publication(name=f"p{n}", oid=n, owner="repl", all_tables=True) for n in range(STREAMS)
    ]
    settings = settings_of(limits=limits(slots=STREAMS))
    with Running(tmp_path, publications=make_publications(*several), settings=settings) as running:
        running.serving.blocks._room = 0  # no room is reserved for others
        clients = []
        for number in range(STREAMS):
            client = Raw(running)
            client.query(f"CREATE_REPLICATION_SLOT s{number} LOGICAL pgoutput NOEXPORT_SNAPSHOT")
            client.until(b"Z")
            clients.append(client)
        for slot in running.serving.slots.all():
            slot.saved = replace(slot.saved, confirmed=numbers.BEFORE_ALL)
        for number, client in enumerate(clients):
            options = f"(proto_version '1', publication_names 'p{number}')"
            client.query(f"START_REPLICATION SLOT s{number} LOGICAL 0/0 {options}")
        seen: list[int] = []

        def are_stuck() -> bool:
            seen.append(running.serving.blocks.live_bytes)
            time.sleep(0.05)
            return len(seen) > 20 and len(set(seen[-20:])) == 1 and seen[-1] > 0

        wait_until(lambda: len(running.serving.senders) == STREAMS)
        wait_until(are_stuck)
        assert max(seen) > blocks.LIVE_BYTES
        assert max(seen) < blocks.LIVE_BYTES + 1.1 * STREAMS * chunks.PART_BYTES_WANTED
        for client in clients:
            client.close()
        wait_until(lambda: not running.serving.senders)
        gc.collect()
        assert running.serving.blocks.live_bytes == 0


@pytest.fixture
def memory_trace() -> Iterator[None]:
    """Counting of Python's own memory."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("memory_trace")
def test_the_cache_counts_what_its_entries_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of a few bytes have keys, places and futures, which count."""
    monkeypatch.setattr(chunks, "ROWS_WANTED", 1)
    groups = number_rows([inserts(1, first=at) for at in range(300)])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        for group in groups:
            writer.write(run_of(group))
            writer.flush()

    async def fill(log: SourceLog) -> None:
        with open_blocks(log, cache_bytes=1 << 30) as kept:
            views, head = views_of(), log.head()
            place = find_place(log, 0)
            borders = frozenset(range(20))
            made = await kept.next(place, views, head, borders, 0)
            assert made is not None
            place = made.behind
            gc.collect()
            before, room = tracemalloc.get_traced_memory()[0], kept._room
            while (made := await kept.next(place, views, head, frozenset(borders), 0)) is not None:
                place = made.behind
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - before
            assert kept.made_count >= 300
            assert 0.5 * taken < room - kept._room
            assert taken < room - kept._room

    with open_source_log(tmp_path) as log:
        asyncio.run(fill(log))


def test_frames_that_are_kept_have_a_limit(tmp_path: Path) -> None:
    """The least recently used one is dropped first."""
    write_alike(tmp_path, frames=4, rows=100)
    with open_source_log(tmp_path) as log, log.segment(0, log.head()) as segment:
        entries = list(segment.row_frames())
        size = segment.read_rows(entries[0]).batch.nbytes
        reader = chunks.RowsReader(kept_bytes=3 * size)
        for entry in entries:
            reader.keep(segment, entry, reader.read(segment, entry))
        assert len(reader._kept) == 3
        assert reader._room >= 0
        assert reader.read(segment, entries[3]) is reader.read(segment, entries[3])
        assert reader.read(segment, entries[0]) is not reader.read(segment, entries[0])


def test_a_chunk_looks_at_each_entry_once(tmp_path: Path) -> None:
    """The time is linear in the number of a segment's flush points."""
    groups = number_rows([inserts(1, first=at) for at in range(50)])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        for group in groups:
            writer.write(run_of(group))
            writer.flush()
    looks = 0

    class Entry:
        """An entry that counts how often its size is requested."""

        def __init__(self, of: object) -> None:
            self._of = of

        def __getattr__(self, name: str) -> object:
            nonlocal looks
            looks += name == "row_count"
            return getattr(self._of, name)

    with open_source_log(tmp_path) as log, log.segment(0, log.head()) as segment:
        entries = [Entry(one) for one in segment.entries]
        chunk = next_chunk(0, entries, 0, Counted(gsn=0, trx=0))  # type: ignore[arg-type]
    assert chunk is not None
    assert len(chunk.rows) == 50
    assert looks == 50
