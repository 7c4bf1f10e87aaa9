"""Messages outside of transactions as clients stream them: confirmed, kept and sent again."""

from __future__ import annotations

import struct
from pathlib import Path

from harness.pipelines.log import (
    SOURCE,
    Change,
    announced_batch,
    commit_position,
    inserts,
    number_rows,
    run_of,
)
from harness.servers.serve import EVERYTHING, Running, make_publications, write_log
from harness.servers.serve_client import Raw, wait_until
from penstock.log import Writer
from penstock.model import FlushPoint, Marker, MarkerKind, Run
from penstock.serve import numbers

START = (
    "START_REPLICATION SLOT s LOGICAL 0/0 "
    "(proto_version '1', publication_names 'p', messages 'true')"
)


def message(trx: int, gsn: int, *, own: bool = True) -> Run:
    """Return a message outside of transactions after row `gsn`; own: with a number of its own."""
    position = commit_position(trx) + (0 if own else 60)
    marker = Marker(
        kind=MarkerKind.MESSAGE,
        gsn=gsn,
        trx=trx,
        position=position,
        commit_time_us=1,
        data={"prefix": "app", "transactional": False, "content": f"said {position}"},
    )
    end = FlushPoint(position=position + (50 if own else 10), gsn=gsn, trx=trx, commit_time_us=1)
    return Run(markers=(marker,), transactions=announced_batch([trx] if own else []), end=end)


def append(root: Path, *runs: Run) -> None:
    """Append runs at the log's end, each flushed."""
    with Writer.open(root / "log", log_id=None, source=SOURCE) as writer:
        for run in runs:
            writer.write(run)
            writer.flush()


def begin_stream(running: Running) -> Raw:
    """Return a client that streams."""
    client = Raw(running)
    client.query(START)
    assert client.message()[0] == b"W"
    return client


def take_messages(client: Raw, until: int) -> tuple[list[tuple[str, int]], int]:
    """Return letters and LSNs up to the keepalive with this LSN, and that LSN."""
    found = []
    while True:
        kind, body = client.message()
        assert kind == b"d", (kind, body)
        (position,) = struct.unpack_from(">Q", body, 1)
        if body[:1] == b"w":
            found.append((chr(body[25]), position))
        elif position >= until:
            return found, position


def create(running: Running) -> None:
    """Create the slot at the log's end."""
    client = Raw(running)
    client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
    assert client.message()[0] == b"T"
    client.until(b"Z")
    client.close()


def end_stream(running: Running, client: Raw) -> None:
    """End a stream, and wait until the slot is free."""
    client.close()
    wait_until(lambda: not running.serving.senders)


def confirm(running: Running, client: Raw, lsn: int) -> None:
    """Confirm, and wait until the slot has it."""
    client.status(lsn)
    wait_until(lambda: running.serving.slots.get("s").saved.confirmed == lsn)


def test_messages_are_confirmed_one_by_one(tmp_path: Path) -> None:
    """Confirmed messages are not sent again, others are; on an idle log, too."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    ends = [numbers.end_of(1, trx) for trx in (2, 3, 4)]
    with Running(tmp_path, publications=make_publications(EVERYTHING)) as running:
        create(running)
        append(tmp_path, *(message(trx, 1) for trx in (2, 3, 4)))
        client = begin_stream(running)
        assert take_messages(client, ends[-1]) == ([("M", end) for end in ends], ends[-1])
        end_stream(running, client)
        client = begin_stream(running)
        assert take_messages(client, ends[-1])[0] == [("M", end) for end in ends], (
            "nothing was confirmed"
        )
        confirm(running, client, ends[1])
        end_stream(running, client)
    with Running(tmp_path, publications=make_publications(EVERYTHING)) as running:
        client = begin_stream(running)
        assert take_messages(client, ends[-1])[0] == [("M", ends[2])]
        confirm(running, client, ends[2])
        end_stream(running, client)
        client = begin_stream(running)
        assert take_messages(client, ends[-1])[0] == []
        client.close()


def test_messages_of_an_older_log_are_sent(tmp_path: Path) -> None:
    """An earlier version gave a message no number: its position is the previous END."""
    (rows,) = number_rows([list[Change](inserts(1))])
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with Running(tmp_path, publications=make_publications(EVERYTHING)) as running:
        create(running)
        (second,) = number_rows([inserts(1)])
        row = type(rows[0])(gsn=2, trx=2, position=commit_position(2), change=second[0].change)
        append(tmp_path, run_of([row]))
        client = begin_stream(running)
        end = numbers.end_of(2, 2)
        found = take_messages(client, end)[0]
        assert [kind for kind, _ in found if kind != "R"] == ["B", "I", "C"]
        append(tmp_path, message(2, 2, own=False))
        kind, body = client.message()
        while body[:1] != b"w":
            kind, body = client.message()
        assert (kind, body[25:26]) == (b"d", b"M")
        assert struct.unpack_from(">Q", body, 1) == (end,)
        client.close()
