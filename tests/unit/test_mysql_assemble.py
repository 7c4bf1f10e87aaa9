"""The way from packets to runs: the log's content, wherever the stream resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.twins.binlog import DECODERS, fake_rotate, packet
from harness.twins.binlog_events import (
    Log,
    bare,
    gtid_body,
    payload_body,
    query_body,
)
from harness.twins.binlog_feed import inserts, row
from harness.twins.mysql_assemble import (
    XID,
    Followed,
    Following,
    T,
    build_stream,
    definition,
    mark_at,
    prepare_body,
    whole_log,
)
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.assemble import Assembler, Limits, StreamMark
from penstock.engines.mysql.source.unsupported import PreparedUnseen, StreamUnexpected
from penstock.model import (
    FlushPoint,
    MarkerKind,
    PenstockError,
)
from penstock.model.change import GLOBAL_PREFIX
from penstock.model.position import to_ordinal
from penstock.sql.decoding import Visit


@pytest.fixture(params=sorted(DECODERS))
def following(request: pytest.FixtureRequest, tmp_path: Path) -> Following:
    """A pipeline, with each decoder."""
    return Following(tmp_path / "spill", request.param)


ROWS = [
    (1, 1, "I", (1, "a")),
    (2, 2, "I", (2, "a")),
    (3, 3, "I", (3, "b")),
    (4, 3, "I", (4, "c")),
    (5, 4, "I", (50, "xa")),
    (6, 5, "I", (5, "d", 1)),
    (7, 7, "I", (6, "e", 2)),
    (8, 8, "I", (7, "e", 2)),
]


def test_a_whole_log_comes_in_order(following: Following) -> None:
    """A log has rows, markers, new shapes; XA's prepared rows are at their commit."""
    logs, ends = whole_log()
    found = following.follow(
        lambda begin: build_stream(logs, begin),
        mark=mark_at(1 << 40 | 4),
        durable=FlushPoint(position=1 << 40 | 4),
    )
    assert found.rows == ROWS
    markers = [m for run in found.runs for m in run.markers]
    assert [(m.kind, m.gsn, m.trx) for m in markers if m.kind is not MarkerKind.MESSAGE] == [
        (MarkerKind.TRUNCATE, 6, 6)
    ]
    named = {m.data["prefix"] for m in markers if m.kind is MarkerKind.MESSAGE}
    assert named == {GLOBAL_PREFIX}  # the global transaction of the branch
    assert found.marks[-1].position == ends[-1]
    assert found.marks[-1].gtids.endswith(":1-11")
    assert found.marks[-1].prepared == ()


def savepoints(limit: int) -> list[bytes | int]:
    """Yield statements and rows of one transaction, whose rows are undone to two savepoints."""
    return [
        1, b"SAVEPOINT `a`", *range(10, 10 + limit), b"SAVEPOINT `b`", 3, b"ROLLBACK TO `b`", 4,
        b"SAVEPOINT `B`", 5, b"ROLLBACK TO `A`", 6, b"savepoint x", 7, b"SAVEPOINT `c``d`", 8,
        b"rollback work to savepoint x", 9,
    ]  # fmt: skip


@pytest.mark.parametrize("row_limit", [1, 3, 1000])
@pytest.mark.parametrize("ending", [b"COMMIT", b"ROLLBACK", b"XID", b"XA"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_rows_behind_a_savepoint_are_undone(
    following: Following, row_limit: int, ending: bytes, is_packed: bool
) -> None:
    """A replica does the same, however much was read before the server undid a part."""
    events = [bare(EventKind.QUERY, query_body(b"XA START " + XID if ending == b"XA" else "BEGIN"))]
    for one in savepoints(6):
        if isinstance(one, bytes):
            events.append(bare(EventKind.QUERY, query_body(one)))
        else:
            events.append(bare(EventKind.TABLE_MAP, T.body()))
            events.append(bare(*inserts(T, row(T, one, "a"))))
    if ending == b"XA":
        events.append(bare(EventKind.QUERY, query_body(b"XA END " + XID)))
        events.append(bare(EventKind.XA_PREPARE, b"\1" + prepare_body()[1:]))
    elif ending == b"XID":
        events.append(bare(EventKind.XID, bytes(8)))
    elif row_limit == 1000 or ending == b"COMMIT":
        events.append(bare(EventKind.QUERY, query_body(ending)))
    else:
        return  # rows before the first savepoint are passed on
    log = Log().add(EventKind.GTID, gtid_body(1))
    if is_packed:
        log.add(EventKind.TRANSACTION_PAYLOAD, payload_body(*events, zstd=True))
    else:
        for event in events:
            log.add(event[4], event[19:])
    log.begin(2).table(T).add(*inserts(T, row(T, 20, "b"))).commit()
    found = following.follow(
        lambda begin: build_stream([log], begin),
        mark=mark_at(1 << 40 | 4),
        durable=FlushPoint(position=1 << 40 | 4),
        limits=Limits(row_count=row_limit),
    )
    kept = [] if ending == b"ROLLBACK" else [1, 6, 9]
    assert [(c[0], c[3][0]) for c in found.rows] == list(enumerate([*kept, 20], 1))
    assert {c[1] for c in found.rows[:-1]} == ({1} if kept else set())
    assert not list(following.folder.iterdir())


@pytest.mark.parametrize("first", [b"XA START " + XID, b"SAVEPOINT a"])
def test_rows_behind_a_transaction_that_a_crash_cut_off_are_read(
    following: Following, first: bytes
) -> None:
    """The server died while rows of it were spilled; its next file continues with others."""
    log, second = Log(), Log()
    log.add(EventKind.GTID, gtid_body(1))
    if not first.startswith(b"XA"):
        log.add(EventKind.QUERY, query_body("BEGIN"))
    log.add(EventKind.QUERY, query_body(first)).table(T).add(*inserts(T, row(T, 1, "a")))
    second.begin(2).table(T).add(*inserts(T, row(T, 2, "b"))).commit()
    found = following.follow(
        lambda begin: build_stream([log, second], begin),
        mark=mark_at(1 << 40 | 4),
        durable=FlushPoint(position=1 << 40 | 4),
    )
    assert found.rows == [(1, 1, "I", (2, "b"))]
    assert not list(following.folder.iterdir())


def test_a_savepoint_that_is_not_there_stops_the_extraction(following: Following) -> None:
    """The undone rows cannot be determined."""
    log = Log().begin().table(T).add(*inserts(T, row(T, 1, "a")))
    log.add(EventKind.QUERY, query_body("ROLLBACK TO `a`")).commit()
    found = following.broken(lambda begin: build_stream([log], begin), mark=mark_at(1 << 40 | 4))
    assert found.rows == []


def test_going_on_anywhere_gives_the_rest_and_nothing_twice(
    following: Following, tmp_path: Path
) -> None:
    """The rest is complete from every durable end, read again from every earlier place that is
    kept.
    """
    logs, ends = whole_log()
    whole = 0
    for number, cut in enumerate(ends):
        for early in ends[: number + 1]:
            folder = tmp_path / f"{cut}-{early}"
            one = Following(folder, following.kind)
            before = one.follow(
                lambda begin, cut=cut: build_stream(logs, begin)[: _upto(logs, cut)],  # type: ignore[misc]
                mark=mark_at(1 << 40 | 4),
                durable=FlushPoint(position=1 << 40 | 4),
            )
            kept = _find_kept(before, early)
            durable = _durable(before, cut)
            after = one.follow(
                lambda begin: build_stream(logs, begin),
                mark=kept,
                durable=durable,
                notes=before.notes,
            )
            assert before.rows + after.rows == ROWS, (cut, early)
            assert after.marks[-1].gtids.endswith(":1-11") if after.marks else True
            whole += 1
    assert whole == len(ends) * (len(ends) + 1) // 2


def _upto(logs: list[Log], cut: int) -> int:
    """Return how many bytes of the whole stream end at a position."""
    whole, rest = build_stream(logs, 1 << 40 | 4), build_stream(logs, cut)
    number = cut >> 40
    head = len(packet(b"\0" + fake_rotate(f"binlog.{number:06d}")))
    if cut & (1 << 40) - 1 > 4:
        head += len(packet(b"\0" + logs[number - 1].events[0]))
    return len(whole) - len(rest) + head


def _durable(before: Followed, cut: int) -> FlushPoint:
    """Return the flush point at a position, as the log has it."""
    ends = [run.end for run in before.runs if run.end is not None]
    gsn = max((end.gsn for end in ends), default=0)
    trx = max((end.trx for end in ends), default=0)
    return FlushPoint(position=cut, gsn=gsn, trx=trx)


def _find_kept(before: Followed, early: int) -> StreamMark:
    """Return the last mark at or before a position, or the very first place."""
    marks = [*before.marks, *(mark for _, mark in before.idle)]
    fit = [mark for mark in marks if mark.position <= early]
    return max(fit, key=lambda mark: mark.position, default=mark_at(1 << 40 | 4))


def test_small_blocks_and_runs_make_no_difference(following: Following) -> None:
    """A giant transaction is passed on in pieces; packets may be torn anywhere."""
    logs, _ = whole_log()
    found = following.follow(
        lambda begin: build_stream(logs, begin),
        mark=mark_at(1 << 40 | 4),
        durable=FlushPoint(position=1 << 40 | 4),
        block_bytes=37,
        limits=Limits(row_count=1, byte_count=1),
    )
    assert found.rows == ROWS


def test_another_server_counts_on_behind_the_old_one(following: Following) -> None:
    """Positions of the new server are moved by so many files that they never decrease."""
    logs, ends = whole_log()
    durable = FlushPoint(position=900 << 40 | 77, gsn=10, trx=4)
    found = following.follow(
        lambda _: build_stream(logs, 1 << 40 | 4),
        mark=mark_at(900 << 40 | 77),
        durable=durable,
        shift=None,
    )
    told = [run.transactions for run in found.runs if run.transactions is not None]
    positions = [to_ordinal(one) for batch in told for one in batch.column(0).to_pylist()]
    behind = [to_ordinal(one) for batch in told for one in batch.column(1).to_pylist()]
    assert all(first < last for first, last in zip(positions, behind, strict=True))
    assert min(positions) >> 40 == 901
    assert found.marks[-1].shift == 900
    assert found.marks[-1].position == ends[-1] + (900 << 40)
    assert found.rows[0][0] == 11


def test_a_log_that_ends_inside_a_transaction_is_refused(following: Following) -> None:
    """Such a log means another binlog than the one from which the log was filled."""
    logs, ends = whole_log()
    with pytest.raises(StreamUnexpected, match="inside a transaction"):
        following.follow(
            lambda begin: build_stream(logs, begin),
            mark=mark_at(1 << 40 | 4),
            durable=FlushPoint(position=ends[1] - 5, gsn=1, trx=1),
        )


def test_what_was_prepared_before_the_log_begins_stops_it(following: Following) -> None:
    """The prepared rows precede the beginning of the log."""
    logs, ends = whole_log()
    with pytest.raises(PreparedUnseen):
        following.follow(
            lambda begin: build_stream(logs, begin),
            mark=mark_at(ends[5]),
            durable=FlushPoint(position=ends[5]),
        )


def test_an_alter_is_reported_when_the_catalogue_is_sure(following: Following) -> None:
    """The shapes before and after it come before the first row in the new one."""
    following.catalogue.now = definition("c2")
    logs = [Log()]
    logs[0].add(EventKind.GTID, gtid_body(1))
    logs[0].add(EventKind.QUERY, query_body("alter table t add c2 int not null default 9"))
    found = following.follow(
        lambda begin: build_stream(logs, begin),
        mark=mark_at(1 << 40 | 4),
        durable=FlushPoint(position=1 << 40 | 4),
    )
    shown = [r for run in found.runs for r in run.relations]
    assert [len(r.columns) for r in shown] == [2, 3]
    assert shown[1].columns[2].missing == "9"
    assert [r.version for r in shown] == [1, 2]


@pytest.mark.parametrize(
    "text", ["insert into t values (1)", "delete from rec.t", "call p(t)", "update x, t set a = 1"]
)
def test_statements_as_text_stop_by_name(following: Following, text: str) -> None:
    """Statements stop it if they name a captured table."""
    logs = [Log()]
    logs[0].begin(1).add(EventKind.QUERY, query_body(text)).commit()
    with pytest.raises(PenstockError, match="logged as text"):
        following.follow(
            lambda begin: build_stream(logs, begin),
            mark=mark_at(1 << 40 | 4),
            durable=FlushPoint(position=1 << 40 | 4),
        )
    logs = [Log()]
    logs[0].begin(1).add(EventKind.QUERY, query_body(text, schema="else")).commit()
    if "rec" not in text:  # tables of another database are ignored
        following.follow(
            lambda begin: build_stream(logs, begin),
            mark=mark_at(1 << 40 | 4),
            durable=FlushPoint(position=1 << 40 | 4),
        )


def test_what_is_whole_in_front_of_an_error_is_given_out(following: Following) -> None:
    """The error's own transaction is not: the log ends before it."""
    logs = [Log()]
    log = logs[0]
    log.begin(1).table(T).add(*inserts(T, row(T, 1, "a"))).commit()
    end = 1 << 40 | log.offset
    log.begin(2).table(T).add(*inserts(T, row(T, 2, "b")))
    log.add(EventKind.QUERY, query_body("delete from t"))
    found = following.broken(lambda begin: build_stream(logs, begin), mark=mark_at(1 << 40 | 4))
    assert found.rows == [(1, 1, "I", (1, "a"))]
    assert found.runs[-1].end == FlushPoint(position=end, gsn=1, trx=1)
    assert found.marks[-1].gtids.endswith(":1")


@pytest.mark.parametrize("block_bytes", [1 << 20, 37])
def test_a_visit_stands_in_front_of_the_transaction_at_its_position(
    following: Following, block_bytes: int
) -> None:
    """The position may be after events without a transaction, at the head of a file."""
    logs, ends = whole_log()
    heads = [2 << 40 | 4, 2 << 40 | len(logs[1].events[0]) + 4]
    for position in sorted({*ends[1:], *heads}):  # a visit begins at the end of a transaction
        seen: list[tuple[int, int]] = []

        def steps(assembler: Assembler, at: int = position, found: Any = seen) -> Iterator[int]:
            yield at
            found.append((assembler.end.position, assembler.decoder.gsn))
            assembler.decoder.skip(10, 1)

        visit = Visit(steps=steps)
        followed = following.follow(
            lambda begin: build_stream(logs, begin),
            mark=mark_at(ends[0]),
            durable=FlushPoint(position=ends[0]),
            block_bytes=block_bytes,
            visit=visit,
        )
        ((place, gsn),) = seen
        before = [row for row in followed.rows if row[0] <= gsn]
        behind = [row for row in followed.rows if row[0] > gsn]
        assert before == ROWS[:gsn]
        assert [(one[0] - 10, one[1] - 1, *one[2:]) for one in behind] == ROWS[gsn:]
        told = [
            (to_ordinal(one["position"]), to_ordinal(one["end_position"]))
            for run in followed.runs
            if run.transactions is not None
            for one in run.transactions.to_pylist()
        ]
        assert place == position
        count = visit.trx - 1  # without its own
        assert all(end <= position for _, end in told[:count])
        assert all(begin >= position for begin, _ in told[count:])


def test_a_visit_stands_behind_events_that_are_passed_over(following: Following) -> None:
    """A server's position may be after them, and the next transaction begins there."""
    log = Log()
    begin = 1 << 40 | log.offset
    log.begin(1).table(T).add(*inserts(T, row(T, 1, "a"))).commit()
    log.add(EventKind.BINLOG_CHECKPOINT, bytes(4) + b"binlog.000001")
    position = 1 << 40 | log.offset
    log.begin(2).table(T).add(*inserts(T, row(T, 2, "b"))).commit()
    seen: list[tuple[int, int]] = []

    def steps(assembler: Assembler) -> Iterator[int]:
        yield position
        seen.append((assembler.end.position, assembler.decoder.gsn))

    following.follow(
        lambda begin: build_stream([log], begin),
        mark=mark_at(begin),
        durable=FlushPoint(position=begin),
        visit=Visit(steps=steps),
    )
    assert seen == [(position, 1)]


def test_a_snapshot_in_front_of_what_was_given_out_is_not_waited_for(following: Following) -> None:
    """The snapshot's rows would follow changes that it does not have."""
    logs, ends = whole_log()
    seen: list[list[int | None]] = []

    def steps(assembler: Assembler) -> Iterator[int]:
        yield ends[2]
        wanted = [BinlogPosition(position) for position in (ends[1], ends[2], ends[3])]
        seen.append([assembler.place_of(position) for position in wanted])

    following.follow(
        lambda begin: build_stream(logs, begin),
        mark=mark_at(ends[0]),
        durable=FlushPoint(position=ends[0]),
        visit=Visit(steps=steps),
    )
    assert seen == [[None, ends[2], ends[3]]]


def test_a_visit_that_was_left_lets_go_of_what_it_holds(following: Following) -> None:
    """The stream ends before it reaches the position."""
    logs, ends = whole_log()
    seen: list[str] = []

    def steps(_: Assembler) -> Iterator[int]:
        try:
            yield 9 << 40
        finally:
            seen.append("let go")

    following.follow(
        lambda begin: build_stream(logs, begin),
        mark=mark_at(ends[0]),
        durable=FlushPoint(position=ends[0]),
        visit=Visit(steps=steps),
    )
    assert seen == []
    following.assembler.close()
    assert seen == ["let go"]
