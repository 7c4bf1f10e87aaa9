"""Runs from wire bytes that no server sends on demand, and the order in which they are returned."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.stream import PlainShapes, changes_of
from penstock.codec.postgres.pgoutput import DecodeError, make_decoder
from penstock.codec.postgres.pgwire import copy_data
from penstock.engines.postgres.source.assemble import Assembler, Spill, SpillBroken
from penstock.engines.postgres.source.assembly import Limits, PublicationLost, StreamUnexpected
from penstock.engines.postgres.source.stream import PostgresSource, StreamOptions
from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.model import FlushPoint, MarkerKind, Run
from penstock.sql.decoding import Visit


def message(body: bytes) -> bytes:
    """Return a pgoutput message as CopyData."""
    return copy_data(b"w" + bytes(24) + body)


def begin(position: int) -> bytes:
    """Return a Begin message."""
    return message(b"B" + struct.pack(">QqI", position, 0, 7))


def commit(position: int, end: int) -> bytes:
    """Return a Commit message."""
    return message(b"C" + struct.pack(">BQQq", 0, position, end, 0))


def relation(*columns: str, xid: int | None = None, oid: int = 1) -> bytes:
    """Return a Relation message: table t of text columns, the first one is its key."""
    body = b"R" + (b"" if xid is None else struct.pack(">I", xid))
    body += struct.pack(">I", oid) + b"s\0t\0d" + struct.pack(">h", len(columns))
    for index, name in enumerate(columns):
        body += bytes([index == 0]) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
    return message(body)


def insert(*values: str, xid: int | None = None, oid: int = 1) -> bytes:
    """Return an Insert message."""
    body = b"I" + (b"" if xid is None else struct.pack(">I", xid)) + struct.pack(">I", oid)
    body += b"N" + struct.pack(">h", len(values))
    for value in values:
        body += b"t" + struct.pack(">i", len(value)) + value.encode()
    return message(body)


def keepalive(position: int, *, reply: bool = False) -> bytes:
    """Return a keepalive."""
    return copy_data(b"k" + struct.pack(">QqB", position, 0, reply))


def stream(xid: int, *inside: bytes, first: bool) -> bytes:
    """Return a block of a transaction in progress."""
    start = message(b"S" + struct.pack(">IB", xid, first))
    return start + b"".join(inside) + message(b"E")


def truncate(*oids: int, xid: int | None = None) -> bytes:
    """Return a Truncate message; with an xid, as it is sent inside a block."""
    body = struct.pack(">IB", len(oids), 0)
    body = body if xid is None else struct.pack(">I", xid) + body
    return message(b"T" + body + b"".join(struct.pack(">I", oid) for oid in oids))


def origin(name: str) -> bytes:
    """Return an Origin message: it has no xid, in a block either."""
    return message(b"O" + struct.pack(">Q", 0) + name.encode() + b"\0")


def abort(xid: int, subxid: int) -> bytes:
    """Return a Stream Abort message."""
    return message(b"A" + struct.pack(">II", xid, subxid))


def stream_commit(xid: int, position: int, end: int) -> bytes:
    """Return a Stream Commit message."""
    return message(b"c" + struct.pack(">IBQQq", xid, 0, position, end, 0))


class Bench:
    """An assembler with everything that it needs, and what it returned."""

    def __init__(
        self,
        directory: Path,
        start: FlushPoint,
        limits: Limits,
        *,
        keep_messages: bool = False,
        slot: str = "",
    ) -> None:
        self.runs: list[Run] = []
        self.idle: list[FlushPoint] = []
        self.replies = 0
        self.assembler = Assembler(
            decoder=make_decoder(gsn=start.gsn, trx=start.trx),
            shapes=PlainShapes(),
            spill=Spill(directory / "spill"),
            start=start,
            emit=lambda run, _: self.runs.append(run),
            on_idle=self.idle.append,
            on_reply=self._reply,
            keep_messages=keep_messages,
            slot=slot,
            limits=limits,
        )

    def _reply(self) -> None:
        self.replies += 1

    def feed(self, *frames: bytes) -> None:
        """Feed whole frames at once."""
        data = b"".join(frames)
        assert self.assembler.feed(memoryview(data), 0, len(data)) == len(data)

    def rows(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Cut, and return the rows decoded so far."""
        self.assembler.cut()
        return [(c.gsn, c.trx, c.after or {}) for run in self.runs for c in changes_of(run)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An assembler at the start of a log."""
    return Bench(tmp_path, FlushPoint(position=0), Limits())


def test_a_run_ends_at_the_end_of_its_last_commit(bench: Bench) -> None:
    """A run that ended where the commit record starts would make the server send it again."""
    bench.feed(begin(100), relation("id"), insert("a"), commit(100, 140))
    assert bench.rows() == [(1, 1, {"id": "a"})]
    assert bench.runs[0].end == FlushPoint(
        position=140, gsn=1, trx=1, commit_time_us=946_684_800_000_000
    )


def test_any_cut_of_the_bytes_gives_the_same(tmp_path: Path) -> None:
    """Frames arrive in pieces; the result does not depend on where they were cut."""
    data = b"".join(
        [
            begin(100),
            relation("id", "v"),
            insert("a", "b"),
            commit(100, 140),
            keepalive(150),
            stream(9, relation("id", "v", xid=9), insert("c", "d", xid=9), first=True),
            begin(200),
            insert("e", "f"),
            commit(200, 240),
            stream(9, insert("g", "h", xid=9), keepalive(250), first=False),
            stream_commit(9, 300, 340),
        ]
    )
    seen = []
    for size in (1, 7, 50, len(data)):
        bench = Bench(tmp_path / str(size), FlushPoint(position=0), Limits())
        at = 0
        for end in [*range(size, len(data), size), len(data)]:
            at = bench.assembler.feed(memoryview(data)[:end], at, end)
        assert at == len(data)
        seen.append((bench.rows(), bench.runs[-1].end))
    assert seen[0][0] == [
        (1, 1, {"id": "a", "v": "b"}),
        (2, 2, {"id": "e", "v": "f"}),
        (3, 3, {"id": "c", "v": "d"}),
        (4, 3, {"id": "g", "v": "h"}),
    ]
    assert seen[0][1] is not None
    assert seen[0][1].position == 340
    assert all(other == seen[0] for other in seen)


def test_idle_position_only_when_nothing_is_pending(bench: Bench) -> None:
    """A keepalive inside a transaction does not move the position before the commit."""
    bench.feed(begin(100), relation("id"), insert("a"), keepalive(90))
    bench.assembler.cut()
    assert bench.idle == []
    assert bench.runs[0].end is None
    bench.feed(commit(100, 140))
    bench.assembler.cut()
    assert [run.end and run.end.position for run in bench.runs] == [None, 140]
    bench.feed(keepalive(500))
    bench.assembler.cut()
    assert [end.position for end in bench.idle] == [500]
    assert bench.idle[0].gsn == 1


def test_shape_that_arrived_last_holds_after_a_streamed_transaction(bench: Bench) -> None:
    """A shape inside the stream holds for later rows, unless another one arrived after it."""
    bench.feed(
        begin(100),
        relation("id"),
        insert("a"),
        commit(100, 110),
        stream(9, relation("id", "v", xid=9), insert("b", "1", xid=9), first=True),
        stream_commit(9, 200, 210),
        begin(300),
        insert("c", "2"),
        commit(300, 310),
        stream(10, relation("id", "old", xid=10), insert("d", "3", xid=10), first=True),
        begin(400),
        relation("id", "v", "w"),
        insert("e", "4", "5"),
        commit(400, 410),
        stream_commit(10, 500, 510),
        begin(600),
        insert("f", "6", "7"),
        commit(600, 610),
    )
    assert [row for _, _, row in bench.rows()] == [
        {"id": "a"},
        {"id": "b", "v": "1"},
        {"id": "c", "v": "2"},
        {"id": "e", "v": "4", "w": "5"},
        {"id": "d", "old": "3"},
        {"id": "f", "v": "6", "w": "7"},
    ]


def test_known_transactions_are_dropped_whole(tmp_path: Path) -> None:
    """Plain and streamed ones are dropped; their shapes are kept, as they are not sent again."""
    bench = Bench(tmp_path, FlushPoint(position=200, gsn=5, trx=3), Limits())
    bench.feed(
        begin(100),
        relation("id"),
        insert("old"),
        commit(100, 110),
        stream(9, relation("id", xid=9), insert("old", xid=9), first=True),
        stream_commit(9, 150, 160),
        keepalive(170),
        begin(200),
        insert("new"),
        commit(200, 210),
    )
    assert bench.rows() == [(6, 4, {"id": "new"})]
    assert bench.assembler.counts.skipped_transaction_count == 2


def test_a_transaction_with_an_origin_comes_whole(bench: Bench) -> None:
    """An origin message after the begin marks what another replication wrote; all rows are kept."""
    bench.feed(
        begin(100),
        origin("pg_16401"),
        relation("id"),
        insert("plain"),
        commit(100, 110),
        stream(9, origin("pg_16401"), relation("id", xid=9), insert("a", xid=9), first=True),
        stream(9, insert("b", xid=9), first=False),
        stream_commit(9, 200, 210),
    )
    assert [row["id"] for _, _, row in bench.rows()] == ["plain", "a", "b"]


def test_a_truncate_that_was_rolled_back_empties_nothing(bench: Bench) -> None:
    """A TRUNCATE in a savepoint that was rolled back is dropped; in one that was kept it is a
    marker.
    """
    bench.feed(
        stream(9, relation("id", xid=9), insert("a", xid=9), truncate(1, xid=10), first=True),
        abort(9, 10),
        stream(9, insert("b", xid=9), truncate(1, xid=11), insert("c", xid=9), first=False),
        stream_commit(9, 200, 210),
    )
    assert [row["id"] for _, _, row in bench.rows()] == ["a", "b", "c"]
    marks = [(mark.kind, mark.gsn) for run in bench.runs for mark in run.markers]
    assert marks == [(MarkerKind.TRUNCATE, 2)]


def test_a_truncate_tells_the_shape_that_came_with_it(bench: Bench) -> None:
    """No row may follow for days, and the catalogue's watch does not tell what a message told."""
    bench.feed(begin(100), relation("id"), insert("a"), commit(100, 110))
    bench.feed(begin(200), relation("other"), truncate(1), commit(200, 210))
    bench.assembler.cut()
    told = [[c.name for c in one.columns] for run in bench.runs for one in run.relations]
    assert told == [["other"]]


def test_a_message_that_was_rolled_back_is_no_marker(tmp_path: Path) -> None:
    """A message in a savepoint that was rolled back is dropped, like a TRUNCATE."""
    bench = Bench(tmp_path, FlushPoint(position=0), Limits(), keep_messages=True)

    def build_message(xid: int, text: bytes) -> bytes:
        body = struct.pack(">IBQ", xid, 1, 150) + b"app\0" + struct.pack(">I", len(text)) + text
        return message(b"M" + body)

    bench.feed(
        stream(
            9, relation("id", xid=9), insert("a", xid=9), build_message(10, b"gone"), first=True
        ),
        abort(9, 10),
        stream(9, build_message(9, b"stays"), first=False),
        stream_commit(9, 200, 210),
    )
    assert bench.rows() == [(1, 1, {"id": "a"})]
    assert [m.data["content"] for run in bench.runs for m in run.markers] == ["stays"]


def logical(
    prefix: bytes, content: bytes, *, transactional: bool = True, position: int = 150
) -> bytes:
    """Return a message of pg_logical_emit_message()."""
    head = struct.pack(">BQ", transactional, position)
    return message(b"M" + head + prefix + b"\0" + struct.pack(">I", len(content)) + content)


def test_heartbeats_of_our_slot_become_markers(tmp_path: Path) -> None:
    """Each is a transaction with a number of its own; others and broken ones are dropped."""
    bench = Bench(tmp_path, FlushPoint(position=0), Limits(), keep_messages=True, slot="ours")
    prefix = b"penstock.heartbeat"
    for number, content in enumerate((b"ours 17", b"other 18", b"ours x", b"ours", b"ours 19")):
        at = 100 * (number + 1)
        bench.feed(begin(at), logical(prefix, content), commit(at, at + 40))
    bench.feed(logical(prefix, b"ours 20", transactional=False))
    bench.assembler.cut()
    found = [m for run in bench.runs for m in run.markers]
    assert {m.kind for m in found} == {MarkerKind.HEARTBEAT}
    assert [(m.gsn, m.trx, m.data) for m in found] == [
        (0, 1, {"sent_us": 17}),
        (0, 2, {"sent_us": 19}),
    ]
    assert bench.runs[-1].end is not None
    assert bench.runs[-1].end.trx == 2


def lone(position: int, content: bytes = b"x") -> bytes:
    """Return a message of pg_logical_emit_message(false, …)."""
    return logical(b"app", content, transactional=False, position=position)


def test_a_message_outside_transactions_is_a_transaction_of_its_own(tmp_path: Path) -> None:
    """Each has a number; its position is the end of its record, where the log continues."""
    bench = Bench(tmp_path, FlushPoint(position=0), Limits(), keep_messages=True)
    bench.feed(lone(90), begin(100), relation("id"), insert("a"), commit(100, 140))
    bench.feed(lone(150), lone(170))
    bench.assembler.cut()
    markers = [m for run in bench.runs for m in run.markers]
    assert [(m.gsn, m.trx, m.position) for m in markers] == [(0, 1, 89), (1, 3, 149), (1, 4, 169)]
    assert not any(m.data["transactional"] for m in markers)
    assert bench.rows() == [(1, 2, {"id": "a"})]
    end = bench.runs[-1].end
    assert end is not None
    assert (end.position, end.trx) == (170, 4)


def test_a_message_that_the_log_has_is_dropped(tmp_path: Path) -> None:
    """The server sends it again if its slot is behind the log; a later message is kept."""
    bench = Bench(tmp_path, FlushPoint(position=150, trx=4), Limits(), keep_messages=True)
    bench.feed(lone(100), lone(150), lone(160, b"new"))
    bench.assembler.cut()
    (marker,) = [m for run in bench.runs for m in run.markers]
    assert (marker.trx, marker.data["content"]) == (5, "new")


def test_a_visit_stands_before_a_message_outside_transactions(tmp_path: Path) -> None:
    """The message is after the position that the visit waits for: positions never decrease."""
    bench = Bench(tmp_path, FlushPoint(position=0), Limits(), keep_messages=True)

    def steps(assembler: Assembler) -> Iterator[int]:
        yield 250
        assembler.decoder.begin(249, 0, 0)
        assembler.decoder.note_marker()
        assembler.decoder.commit(250)

    visit = Visit(steps=steps)
    bench.assembler.visit(visit)
    bench.feed(lone(250), lone(251))
    bench.assembler.cut()
    assert visit.trx == 2
    assert [m.trx for run in bench.runs for m in run.markers] == [1, 3]


@pytest.mark.parametrize("streamed", [False, True])
def test_visit_stands_at_its_exact_position(bench: Bench, streamed: bool) -> None:
    """All that commits before it is decoded, nothing at or after it; no keepalive is needed."""
    seen: list[tuple[str, int]] = []

    def steps(assembler: Assembler) -> Iterator[int]:
        seen.append(("begun", assembler.decoder.gsn))
        yield 250
        seen.append(("there", assembler.decoder.gsn))
        assembler.decoder.begin(249, 0, 0)
        assembler.decoder.note_marker()
        assembler.decoder.commit(250)

    bench.feed(begin(50), relation("id"), insert("open"))
    visit = Visit(steps=steps)
    bench.assembler.visit(visit)
    bench.feed(insert("still open"))
    assert seen == []
    bench.feed(commit(50, 60), begin(100), insert("before"), commit(100, 240))
    assert seen == [("begun", 2)]
    behind = [begin(250), insert("behind"), commit(250, 260)]
    if streamed:
        bench.feed(stream(9, relation("id", xid=9), insert("s", xid=9), first=True))
        behind = [stream_commit(9, 250, 260)]
    assert not visit.finished
    bench.feed(*behind)
    assert seen == [("begun", 2), ("there", 3)]
    assert visit.finished
    assert visit.trx == 3
    assert [(gsn, trx) for gsn, trx, _ in bench.rows()] == [(1, 1), (2, 1), (3, 2), (4, 4)]


def test_visit_goes_on_at_a_keepalive_behind_its_position(bench: Bench) -> None:
    """An idle server sends no commit in front of which the visit could stop."""
    seen: list[str] = []

    def steps(assembler: Assembler) -> Iterator[int]:
        yield 250
        seen.append("there")

    bench.assembler.visit(Visit(steps=steps))
    bench.feed(keepalive(249))
    assert seen == []
    bench.feed(keepalive(250))
    assert seen == ["there"]


def test_server_wants_an_answer(bench: Bench) -> None:
    """The wish for an answer is passed on at once, inside a transaction too."""
    bench.feed(begin(100), keepalive(10, reply=True), keepalive(10))
    assert bench.replies == 1


def _other(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([insert("a")], DecodeError),
        ([begin(1), insert("a")], DecodeError),
        ([_other(b"E", b"VERROR\0C42704\0Mnone\0\0")], StatementFailed),
        ([_other(b"N", b"VWARNING\0C55000\0Mskipped loading publication\0\0")], PublicationLost),
        ([_other(b"c", b"")], ConnectionLost),
        ([_other(b"T", b"")], StreamUnexpected),
        ([message(b"b" + struct.pack(">QQqI", 1, 2, 0, 3) + b"gid\0")], StreamUnexpected),
        ([stream_commit(5, 1, 2)], SpillBroken),
        ([stream(5, first=False)], SpillBroken),
        ([stream(5, first=True), stream(5, first=True)], SpillBroken),
        ([message(b"E")], SpillBroken),
    ],
)
def test_what_cannot_be_is_one_typed_error(
    bench: Bench, frames: list[bytes], error: type[Exception]
) -> None:
    """An impossible message raises a typed error and is not skipped."""
    with pytest.raises(error):
        bench.feed(*frames)


def test_notices_and_settings_pass(bench: Bench) -> None:
    """A server may send them at any time, inside a block too."""
    notice = _other(b"N", b"VNOTICE\0C00000\0Mhello\0\0")
    setting = _other(b"S", b"TimeZone\0UTC\0")
    bench.feed(
        notice,
        setting,
        stream(9, relation("id", xid=9), notice, insert("a", xid=9), setting, first=True),
        stream_commit(9, 10, 20),
    )
    assert [row for _, _, row in bench.rows()] == [{"id": "a"}]


# -- order in which a stream returns runs -------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> PostgresSource:
    """A stream that is not connected: it returns what the test puts into it."""
    return PostgresSource(
        "postgresql://unused@nowhere/none",
        options=StreamOptions(slot="s", publication="p", idle_flush_s=0.0),
        start=FlushPoint(position=0),
        shapes=PlainShapes(),
        spill_directory=tmp_path,
    )


def test_idle_position_never_ends_a_run_inside_a_transaction(source: PostgresSource) -> None:
    """An idle point from before a transaction's first run is not a flush point after that run."""
    source._put(Run(end=FlushPoint(position=100)), 0)
    source._queue.idle(FlushPoint(position=150))
    source._put(Run(), 0)
    assert source.next_run(0) == Run(end=FlushPoint(position=100))
    assert source.next_run(0) == Run()
    assert source.next_run(0) is None
    source._put(Run(end=FlushPoint(position=200)), 0)
    assert source.next_run(0) == Run(end=FlushPoint(position=200))
    assert source.next_run(0) is None  # 150 lies before the current position


def test_idle_position_comes_after_everything_before_it(source: PostgresSource) -> None:
    """The runs are returned first, then the position, once."""
    source._put(Run(end=FlushPoint(position=100)), 0)
    source._queue.idle(FlushPoint(position=150))
    ends = [run.end.position for _ in range(3) if (run := source.next_run(0)) and run.end]
    assert ends == [100, 150]


def test_a_position_is_given_only_when_all_before_it_was_taken(source: PostgresSource) -> None:
    """Received rows do not count until they are taken: if extraction ended, they would be lost."""
    source.counts.received_position = 300
    assert not source.has_given(300)
    source._put(Run(), 0)
    source._put(Run(end=FlushPoint(position=300)), 0)
    assert not source.has_given(300)
    source.next_run(0)
    assert not source.has_given(200)
    source.next_run(0)
    assert source.has_given(300)
    source._queue.idle(FlushPoint(position=400))
    assert source.has_given(400)
    assert not source.has_given(401)


def test_runs_before_an_error_are_given_first(source: PostgresSource) -> None:
    """Decoded rows are not lost because of a later error."""
    source._put(Run(end=FlushPoint(position=100)), 0)

    def fail() -> None:
        raise ConnectionLost("gone")

    source._run_guarded(fail)
    assert source.next_run(0) == Run(end=FlushPoint(position=100))
    with pytest.raises(ConnectionLost):
        source.next_run(0)


@pytest.mark.parametrize("position", [0, 5000])
def test_a_block_of_a_transaction_in_progress_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """A block is appended to the side file whole, also while known transactions are skipped."""
    pieces: list[int] = []
    append = Spill.append

    def note_and_append(spill: Spill, data: memoryview) -> None:
        pieces.append(len(data))
        append(spill, data)

    monkeypatch.setattr(Spill, "append", note_and_append)
    bench = Bench(tmp_path, FlushPoint(position=position), Limits())
    rows = [insert(str(number), xid=7) for number in range(500)]
    bench.feed(stream(7, relation("id", xid=7), *rows, first=True))
    bench.feed(stream(7, *rows, first=False))
    assert len(pieces) <= 6
    bench.feed(stream_commit(7, 6000, 6050))
    assert len(bench.rows()) == 1000


def test_a_streamed_transaction_that_the_log_has_is_dropped(tmp_path: Path) -> None:
    """The commit lies before the start position; the next transaction is returned."""
    bench = Bench(tmp_path, FlushPoint(position=5000, gsn=3, trx=2), Limits())
    bench.feed(stream(7, relation("id", xid=7), insert("1", xid=7), first=True))
    bench.feed(stream_commit(7, 4000, 4050))
    bench.feed(stream(8, relation("id", xid=8), insert("2", xid=8), first=True))
    bench.feed(stream_commit(8, 6000, 6050))
    assert bench.rows() == [(4, 3, {"id": "2"})]
    assert bench.assembler.counts.skipped_transaction_count == 1
