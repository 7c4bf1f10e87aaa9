"""Slots on an idle source: its newest segment is closed, and no other has begun."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from harness.servers.serve import Running, open_source_log, settings_of
from harness.servers.serve_client import Raw, wait_until
from penstock.log import Writer, WriterOptions, links
from penstock.model.keeping import KEEP_NONE
from penstock.serve.blocks import find_place

ROWS = number_rows([inserts(1), inserts(1, first=5)])
KINDS = ("", "SEQUENCE", "HYBRID_TIME")


def writer_of(root: Path) -> Writer:
    """Open a log whose segments are removed once another consumer has its links."""
    links.enable(root / "cdc" / "other")
    options = WriterOptions(consumers=root / "cdc", keeping=KEEP_NONE)
    return Writer.open(root / "log", log_id=None, source=SOURCE, options=options)


def begin_stream(running: Running) -> Raw:
    """Return a client that streams."""
    client = Raw(running)
    plugin_options = "(proto_version '1', publication_names 'p')"
    client.query(f"START_REPLICATION SLOT s LOGICAL 0/0 {plugin_options}")
    assert client.message()[0] == b"W"
    return client


def test_the_end_is_not_in_a_segment_that_is_closed(tmp_path: Path) -> None:
    """The end of the log moves to the next segment, also for a server that saw this one open."""
    with open_source_log(tmp_path) as log, writer_of(tmp_path) as writer:
        writer.write(run_of(ROWS[0]))
        writer.flush()
        seen = log.head()
        assert (seen.number, seen.is_open) == (0, True)
        writer.rotate()
        head = log.head()
        assert (head.number, head.is_open, head.end) == (1, False, seen.end)
        assert find_place(log, head.position).number == 1
        writer.write(run_of(ROWS[1]))
        writer.flush()
        assert (log.head().number, log.head().is_open) == (1, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_slot_is_made_and_begins_before_the_next_change(
    kind: str, is_open: bool, tmp_path: Path
) -> None:
    """is_open: whether the newest segment was open when the server started."""
    with writer_of(tmp_path) as writer:
        writer.write(run_of(ROWS[0]))
        writer.flush()
        if not is_open:
            writer.rotate()
        settings = settings_of(dialect="yugabyte" if kind else "postgres")
        with Running(tmp_path, settings=settings) as running:
            if is_open:
                writer.rotate()
            client = Raw(running)
            client.query(f"CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT {kind}")
            assert client.message()[0] == b"T"
            client.until(b"Z")
            client.close()
            client = begin_stream(running)
            kind_of, body = client.message()
            assert (kind_of, body[:1]) == (b"d", b"k")
            writer.write(run_of(ROWS[1]))
            writer.flush()
            letters = []
            while letters[-1:] != ["C"]:
                _, body = client.message()
                letters += [chr(body[25])] if body[:1] == b"w" else []
            assert [one for one in letters if one != "R"] == ["B", "I", "C"]
            (end,) = struct.unpack_from(">Q", body, 1)
            client.status(end)
            wait_until(lambda: running.serving.slots.get("s").saved.lsn == end)
            client.close()
            assert running.serving.slots.get("s").saved.lost == ""
