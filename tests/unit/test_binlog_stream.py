"""Places, packets and transactions of a binlog: one suite for the twin and the kernel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.twins.binlog import DECODERS, MANY, fake_rotate, packet
from harness.twins.binlog_events import (
    COMMIT_TIME_US,
    DELETE,
    TIMESTAMP,
    UPDATE,
    WRITE,
    Log,
    Table,
    bare,
    gtid_body,
    image,
    maria_body,
    payload_body,
    query_body,
    rows_body,
)
from harness.twins.binlog_feed import (
    KEYLESS,
    TWO,
    after,
    bind,
    catch_refusal,
    feed,
    inserts,
    number,
    row,
    rows_of,
)
from harness.twins.pgoutput import positions_of
from penstock.codec.mysql import binlog
from penstock.codec.mysql.binary_json import encode_json
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_outcome import OFFSET_BITS
from penstock.codec.mysql.binlog_tables import relation_of, table_map
from penstock.codec.mysql.gtids import GtidSet
from penstock.model import Identity

Decoder = binlog.Decoder
BinlogBroken = binlog.BinlogBroken
Stop = binlog.Stop


@pytest.fixture(params=DECODERS)
def kind(request: pytest.FixtureRequest) -> type[Decoder]:
    """Each implementation in turn."""
    return DECODERS[request.param]


@pytest.fixture
def decoder(kind: type[Decoder]) -> Decoder:
    """A decoder at the start of a stream."""
    return kind()


# --- places


def test_the_place_goes_on_where_the_heads_number_wraps(decoder: Decoder) -> None:
    """A file may be longer than 4 GiB: the head has the lower 32 bits."""
    start = 2**32 - 100
    log = Log(offset=start)
    first = log.events[0]
    log.begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    # The file's description is sent again at a restart, without a place of its own.
    description = Log().events[0][:13] + bytes(4) + Log().events[0][17:-4]
    description += struct.pack("<I", zlib.crc32(description))
    log.events[0] = description
    block = packet(b"\0" + fake_rotate("b.000001", start + len(first))) + log.packets()
    feed(decoder, block)
    assert decoder.offset == log.offset > 2**32
    assert positions_of(decoder) == [1 << OFFSET_BITS | start + len(first)]


def test_events_that_the_server_left_out_do_not_move_the_place(decoder: Decoder) -> None:
    """The next event says where it ends."""
    log = Log().begin(1).commit()
    hidden = log.add(EventKind.ROWS_QUERY, b"\1select").events.pop()
    log.begin(2)
    begin = log.offset - sum(map(len, log.events[-2:]))
    log.table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    assert hidden
    feed(decoder, packet(b"\0" + fake_rotate("b.000003")) + log.packets())
    assert decoder.offset == log.offset
    assert positions_of(decoder) == [3 << OFFSET_BITS | begin]


def test_an_event_never_ends_before_the_one_in_front_of_it(decoder: Decoder) -> None:
    """An event that ends too early would make the place wrong from there on, and the next start."""
    log = Log().begin(1).commit()
    again = b"".join(packet(b"\0" + event) for event in log.events[1:])
    assert catch_refusal(lambda: feed(decoder, log.packets() + again)) == "place"


def test_rotation_names_the_next_file(decoder: Decoder) -> None:
    """Both the real event and the artificial one after it are read."""
    log = Log().begin().commit().rotate("b.000008")
    following = Log().begin().commit()
    block = log.packets() + packet(b"\0" + fake_rotate("b.000008")) + following.packets()
    feed(decoder, block)
    assert (decoder.file_name, decoder.file_number) == ("b.000008", 8)
    assert decoder.offset == following.offset
    block = Log().rotate("nonumber").packets()
    assert catch_refusal(lambda: feed(type(decoder)(), block)) == "file_name"


def test_heartbeats_pass(decoder: Decoder) -> None:
    """Heartbeats are counted and are not a place in the log."""
    log = Log().begin().commit()
    where = log.offset
    log.add(EventKind.HEARTBEAT, b"b.000001").add(EventKind.HEARTBEAT_V2, b"\0", 0x20)
    assert feed(decoder, log.packets()) == len(log.packets())
    assert (decoder.heartbeat_count, decoder.offset) == (2, where)


# --- checksums and packets


def test_a_wrong_checksum_is_an_error(decoder: Decoder) -> None:
    """A flipped bit anywhere in an event is detected, and no part of the event is kept."""
    log = Log().begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a")))
    block = bytearray(log.packets())
    block[-10] ^= 4
    assert catch_refusal(lambda: feed(decoder, bytes(block))) == "checksum"
    assert decoder.take() == []


def test_binlogs_without_checksums_are_read(decoder: Decoder) -> None:
    """The format description says so; it has a checksum itself nevertheless."""
    log = Log(checksums=False).begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    feed(decoder, packet(b"\0" + fake_rotate("b.000001")) + log.packets())
    assert after(decoder) == [(1, "a")]


@pytest.mark.parametrize("checksums", [False, True])
def test_the_first_rotate_event_may_have_a_checksum(decoder: Decoder, checksums: bool) -> None:
    """The checksum depends on the connection's request, not on the file."""
    sealed = Log(checksums=checksums).rotate("b.000004", artificial=True).events[-1]
    feed(decoder, packet(b"\0" + sealed) + Log().packets())
    assert decoder.file_name == "b.000004"


def test_events_before_the_format_description_are_refused(decoder: Decoder) -> None:
    """The decoder cannot know whether they have a checksum."""
    log = Log().begin()
    del log.events[0]
    assert catch_refusal(lambda: feed(decoder, log.packets())) == "no_format"


@pytest.mark.parametrize("size", [0xFFFFFF - 200, 17 * 2**20, 2 * 0xFFFFFF])
def test_events_of_several_packets_are_joined(decoder: Decoder, size: int) -> None:
    """Packets are joined if the last one is empty, and if they arrive in pieces."""
    table = Table(kinds=("int", "longtext"), name="big", table_id=4)
    log = Log().begin().table(table)
    for length in (size, 5):
        # One of the sizes fills the packets to the last byte.
        fixed = 1 + 19 + len(rows_body(table, WRITE, image(table, [number(1), b""]))) + 4
        cells = [number(length), b"x" * (length - fixed if length > 5 else length)]
        log.add(WRITE, rows_body(table, WRITE, image(table, cells)))
    block = log.commit().packets()
    at = 0
    for end in range(0, len(block) + 2**22, 2**22):
        while True:
            at = decoder.feed(block, at, min(end, len(block)), MANY)
            if decoder.stop is not Stop.MESSAGE:
                break
            if decoder.message[4] == EventKind.TABLE_MAP:
                bind(decoder)
    assert at == len(block)
    assert [len(one["after"]["c1"]) for one in rows_of(decoder)] == [size - fixed, 5]
    assert decoder.offset == log.offset


def test_any_split_of_the_block_gives_the_same_rows(kind: type[Decoder]) -> None:
    """The block is split at every byte."""
    rows = [row(TWO, 1, "a"), row(TWO, 2, "b")]
    block = Log().begin().table(TWO).add(*inserts(TWO, *rows)).commit().packets()
    decoder = kind()
    at = 0
    for end in range(len(block) + 1):
        while True:
            at = decoder.feed(block, at, end, MANY)
            if decoder.stop is not Stop.MESSAGE:
                break
            if decoder.message[4] == EventKind.TABLE_MAP:
                bind(decoder)
    assert after(decoder) == [(1, "a"), (2, "b")]


def test_a_files_bytes_are_read_like_a_dump(decoder: Decoder) -> None:
    """The first four bytes are checked; other files, and encrypted ones, are refused."""
    log = Log().begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    decoder.start_file("b.000006")
    block = log.file()
    at = 0
    while True:
        at = decoder.feed_file(block, at, len(block), MANY)
        if decoder.stop is not Stop.MESSAGE:
            break
        if decoder.message[4] == EventKind.TABLE_MAP:
            bind(decoder)
    assert at == len(block)
    assert after(decoder) == [(1, "a")]
    assert decoder.end_position == 6 << OFFSET_BITS | len(block)
    for start, reason in ((b"\xfdbin", "encrypted"), (b"junk", "magic")):
        decoder.start_file("b.000001")
        assert catch_refusal(lambda start=start: decoder.feed_file(start, 0, 4, MANY)) == reason
    log = Log().add(EventKind.START_ENCRYPTION, bytes(17))
    decoder.start_file("b.000001")
    at = decoder.feed_file(log.file(), 0, len(log.file()), MANY)
    assert (
        catch_refusal(lambda: decoder.feed_file(log.file(), at, len(log.file()), MANY))
        == "encrypted"
    )


# --- transactions


def test_a_single_statement_stays_open_until_the_next_call(decoder: Decoder) -> None:
    """The caller can put a marker into the transaction before it ends."""
    log = Log().add(EventKind.GTID, gtid_body(5))
    block = log.add(EventKind.QUERY, query_body("create table t (id int)")).packets()
    at = feed(decoder, block)
    assert decoder.stop is Stop.MESSAGE
    assert decoder.in_transaction
    assert decoder.note_marker() == (0, 1)
    assert decoder.commit_time_us == COMMIT_TIME_US
    decoder.feed(block, at, len(block), MANY, 0)
    assert decoder.stop is Stop.COMMIT
    assert decoder.end_position == log.offset
    assert decoder.take_gtids() == [decoder.gtid]
    with pytest.raises(ValueError, match="no transaction"):
        decoder.note_marker()


def test_statements_inside_a_transaction_do_not_end_it(decoder: Decoder) -> None:
    """CREATE TABLE ... START TRANSACTION stands between BEGIN and XID."""
    log = Log().begin().add(EventKind.QUERY, query_body("create table t (id int)"))
    block = log.table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit().packets()
    at = feed(decoder, block)
    decoder.feed(block, at, len(block), MANY)
    assert decoder.in_transaction


def test_mariadb_groups_end_as_they_say(kind: type[Decoder]) -> None:
    """Groups end with an XID, or after one statement if the group is standalone."""
    decoder = kind(trx=4)
    log = Log(version="10.11.6-MariaDB").add(EventKind.MARIA_GTID, maria_body(8, domain=3))
    log.table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    log.add(EventKind.MARIA_GTID, maria_body(9, flags=1, domain=3))
    log.add(EventKind.QUERY, query_body("flush tables"))
    log.add(EventKind.MARIA_GTID, maria_body(1, domain=4)).commit()
    block = log.packets()
    at = feed(decoder, block)
    assert decoder.is_mariadb
    assert decoder.server_version == "10.11.6-MariaDB"
    assert (decoder.gtid, decoder.message[-12:]) == ("3-7-9", b"flush tables")
    assert decoder.commit_time_us == TIMESTAMP * 1_000_000
    decoder.feed(block, at, len(block), MANY)
    assert not decoder.in_transaction
    assert decoder.take_gtids()[-2:] == ["3-7-9", "4-7-1"]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda log: log.begin().begin(), "nested_begin"),
        (lambda log: log.begin().add(2, query_body("BEGIN")), "nested_begin"),
        (lambda log: log.commit(), "no_transaction"),
        (lambda log: log.add(2, query_body("COMMIT")), "no_transaction"),
        (lambda log: log.add(*inserts(TWO, b"")), "no_transaction"),
        (lambda log: log.add(EventKind.XA_PREPARE, bytes(13)), "no_transaction"),
        (lambda log: log.begin().add(EventKind.XID, b"\1"), "event_body"),
        (lambda log: log.add(EventKind.GTID, b"\1" * 24), "event_body"),
        (lambda log: log.add(EventKind.GTID, bytes(25)), "event_body"),
        (lambda log: log.add(EventKind.MARIA_GTID, bytes(12)), "event_body"),
        (lambda log: log.add(EventKind.QUERY, bytes(12)), "event_body"),
        (lambda log: log.add(EventKind.QUERY, bytes(11) + b"\xff\xff"), "event_body"),
        (lambda log: log.add(EventKind.TABLE_MAP, bytes(7)), "event_body"),
        (lambda log: log.add(EventKind.TRANSACTION_PAYLOAD, b"\0junk"), "payload"),
        (lambda log: log.begin().add(166, bytes(20)), "payload"),
        (lambda log: log.add(20), "unknown_event"),
        (lambda log: log.add(200), "unknown_event"),
    ],
)
def test_events_out_of_order_or_unknown_are_refused(
    decoder: Decoder, build: Callable[[Log], Log], reason: str
) -> None:
    """No event is skipped or guessed."""
    assert catch_refusal(lambda: feed(decoder, build(Log()).packets())) == reason


def test_unknown_events_that_may_be_ignored_are(decoder: Decoder) -> None:
    """The server marks events that can be ignored."""
    log = Log().add(200, b"x", 0x80).add(EventKind.STOP).begin().commit()
    assert feed(decoder, log.packets()) == len(log.packets())


def test_statement_texts_are_handed_out_when_asked_for(kind: type[Decoder]) -> None:
    """Texts that were not requested are skipped."""
    block = Log().begin().add(EventKind.ROWS_QUERY, b"\6select").commit().packets()
    feed(kind(), block)
    decoder = kind(statements=True)
    feed(decoder, block)
    assert decoder.message[19:] == b"\6select"


def test_abandon_takes_the_open_transaction_back(decoder: Decoder) -> None:
    """Rows and numbers are taken back; those of earlier transactions stay."""
    log = Log().begin(1).table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit().begin(2)
    log.add(UPDATE, rows_body(TWO, UPDATE, row(TWO, 1, "a") + row(TWO, 2, "b")))
    log.add(DELETE, rows_body(TWO, DELETE, row(TWO, 2, "b")))
    block = log.add(EventKind.QUERY, query_body("ROLLBACK")).begin(3).packets()
    at = feed(decoder, block)
    before = decoder.byte_count
    assert decoder.abandon()
    assert (decoder.gsn, decoder.trx, decoder.row_count) == (1, 1, 1)
    assert decoder.byte_count < before
    assert decoder.in_transaction, "its end is noted by the next call"
    more = log.add(*inserts(TWO, row(TWO, 3, "c"))).commit().packets()
    decoder.feed(more, at, len(more), MANY)
    assert [(one["gsn"], one["trx"], one["before"]) for one in rows_of(decoder)] == [
        (1, 1, None),
        (2, 2, None),
    ]
    seen = GtidSet()
    for piece in decoder.take_gtids():
        seen.update(GtidSet.parse(piece))
    assert str(seen).endswith(":1-3")
    with pytest.raises(ValueError, match="no transaction"):
        decoder.abandon()


def test_an_update_of_the_key_takes_two_numbers(decoder: Decoder) -> None:
    """The row has the second one; without a key any change of a value is a change of the key."""
    log = Log().begin().table(TWO).table(KEYLESS)
    for table, old, new in [
        (TWO, (1, "a"), (2, "a")),
        (TWO, (2, "a"), (2, "b")),
        (KEYLESS, (1, "a"), (1, "b")),
        (KEYLESS, (1, "b"), (1, "b")),
        (KEYLESS, (1, None), (1, "b")),
    ]:
        log.add(UPDATE, rows_body(table, UPDATE, row(table, *old) + row(table, *new)))
    feed(decoder, log.add(*inserts(TWO, row(TWO, 9, "c"))).packets())
    assert (decoder.gsn, decoder.row_count) == (9, 6)
    assert sorted(one["gsn"] for one in rows_of(decoder)) == [2, 3, 5, 6, 8, 9]
    assert not decoder.abandon()


def test_with_whole_old_rows_only_the_key_makes_two_numbers(decoder: Decoder) -> None:
    """The before image is there in both cases."""
    log = Log().begin().table(TWO)
    at = decoder.feed(log.packets(), 0, len(log.packets()), MANY)
    while decoder.stop is Stop.MESSAGE and decoder.message[4] != EventKind.TABLE_MAP:
        at = decoder.feed(log.packets(), at, len(log.packets()), MANY)
    table = table_map(decoder.message[19:], is_mariadb=False)
    shape = relation_of(table, is_mariadb=False)
    decoder.bind(table, replace(shape, before=(0, 1), identity=Identity.FULL))
    for old, new in [((1, "a"), (1, "b")), ((1, "b"), (2, "b"))]:
        log.add(UPDATE, rows_body(TWO, UPDATE, row(TWO, *old) + row(TWO, *new)))
    block = log.packets()
    decoder.feed(block, at, len(block), MANY)
    found = [(one["gsn"], one["before"]["c0"]) for one in rows_of(decoder)]
    assert found == [(1, 1), (3, 1)]


def test_abandon_in_the_middle_makes_it_as_if_it_had_not_begun(decoder: Decoder) -> None:
    """A server that died in a transaction continues with a new file and another transaction."""
    log = Log().begin(1).table(TWO).add(*inserts(TWO, row(TWO, 1, "a")))
    following = Log().begin(1).commit()
    feed(decoder, log.packets())
    assert decoder.abandon()
    assert (decoder.in_transaction, decoder.gsn, decoder.trx) == (False, 0, 0)
    block = packet(b"\0" + fake_rotate("b.000002")) + following.packets()
    assert feed(decoder, block) == len(block)
    assert len(decoder.take_gtids()) == 1


def test_abandon_does_nothing_when_rows_were_taken(decoder: Decoder) -> None:
    """Taken rows cannot be taken back: the caller has to undo them."""
    block = Log().begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).packets()
    feed(decoder, block)
    assert len(decoder.take()) == 1
    assert not decoder.abandon()
    assert decoder.in_transaction
    assert decoder.gsn == 1


def test_prepared_transactions_are_parked_and_replayed(decoder: Decoder) -> None:
    """Their rows count in the transaction that commits them, with its place and number."""
    log = Log().add(EventKind.GTID, gtid_body(1)).add(EventKind.QUERY, query_body("XA START X'01'"))
    log.table(TWO).add(*inserts(TWO, row(TWO, 1, "a"), row(TWO, 2, "b")))
    log.add(*inserts(TWO, row(TWO, 3, "c")))
    log.add(EventKind.XA_PREPARE, bytes(13)).add(EventKind.GTID, gtid_body(2))
    block = log.add(EventKind.QUERY, query_body("XA COMMIT X'01'")).packets()
    at = feed(decoder, block)
    parked = b""
    while decoder.stop is not Stop.MESSAGE or decoder.message[4] != EventKind.XA_PREPARE:
        at = decoder.park(block, at, len(block), 60)
        parked += decoder.take_parked()
    at = decoder.feed(block, at, len(block), MANY, 0)
    assert (decoder.stop, decoder.gsn) == (Stop.COMMIT, 0)
    at = decoder.feed(block, at, len(block), MANY, 0)
    start = decoder.commit_position
    where = 0
    while where < len(parked):
        where = decoder.replay(parked, where, len(parked), 2)
        if decoder.stop is Stop.MESSAGE:
            bind(decoder)
        elif decoder.stop is Stop.LIMIT:
            assert len(rows_of(decoder)) == 2
    assert decoder.feed(block, at, len(block), MANY, 0) == len(block)
    assert decoder.stop is Stop.COMMIT
    (one,) = rows_of(decoder)
    assert (one["gsn"], one["trx"]) == (3, 1)
    assert positions_of(decoder) == [start]
    with pytest.raises(ValueError, match="no transaction"):
        decoder.replay(parked, 0, 0, 1)


def test_parked_events_hold_rows_alone(kind: type[Decoder]) -> None:
    """Any other event among them is an error."""
    decoder = kind()
    feed(decoder, Log().begin().packets())
    broken = Log(checksums=False).commit().events[-1]
    assert catch_refusal(lambda: decoder.replay(broken, 0, len(broken), 1)) == "unknown_event"


def test_reset_forgets_the_stream_and_keeps_the_rows(decoder: Decoder) -> None:
    """The rows of the open transaction, which are sent again, are dropped."""
    log = Log().begin(1).table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit()
    log.begin(2).add(*inserts(TWO, row(TWO, 2, "b")))
    block = log.packets()
    feed(decoder, block)
    decoder.reset()
    assert (decoder.file_name, decoder.offset, decoder.bindings()) == ("", 0, {})
    feed(decoder, block)
    assert [one["gsn"] for one in rows_of(decoder)][:2] == [1, 2]


# --- compressed transactions


def test_rows_inside_a_payload_are_limited_and_widened_like_others(decoder: Decoder) -> None:
    """The payload is consumed at once; the next calls return the rest of its rows."""
    table = Table(kinds=("int", "date"), name="p", table_id=12)
    rows = [image(table, [number(index), b"\0\0\0" if index == 3 else None]) for index in range(5)]
    log = Log().add(EventKind.GTID, gtid_body(1))
    start = log.offset - len(log.events[-1])
    inside = payload_body(
        bare(EventKind.QUERY, query_body("BEGIN")),
        bare(EventKind.TABLE_MAP, table.body()),
        bare(WRITE, rows_body(table, WRITE, b"".join(rows))),
        bare(EventKind.XID, struct.pack("<Q", 5)),
    )
    block = log.add(EventKind.TRANSACTION_PAYLOAD, inside).begin(2).commit().packets()
    at = feed(decoder, block, limit=2)
    assert decoder.stop is Stop.LIMIT
    seen = rows_of(decoder)
    behind = at
    at = feed(decoder, block[at:], limit=100)
    assert (decoder.stop, at) == (Stop.WIDEN, 0)
    relation = decoder.bindings()[12]
    assert relation is not None
    decoder.bind(decoder.table(12), relation.with_text_column(1))
    while at < len(block) - behind:
        at += feed(decoder, block[behind + at :], limit=100, commit_limit=0)
        seen += rows_of(decoder)
    assert [one["after"]["c0"] for one in seen] == list(range(5))
    assert seen[3]["after"]["c1"] == "0000-00-00"
    assert [one & 0xFF_FFFF_FFFF for one in positions_of(decoder)] == [start]
    assert decoder.gtid.endswith(":2")


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (EventKind.TRANSACTION_PAYLOAD, payload_body(b"")),  # it could go on without an end
        # Its checksum would be read after the payload's last byte.
        (EventKind.FORMAT_DESCRIPTION, Log().events[0][19:-4]),
        (EventKind.ROTATE, bytes(8) + b"binlog.000009"),
        (EventKind.GTID, gtid_body(3)),
        (EventKind.MARIA_GTID, bytes(19)),
    ],
)
def test_what_says_where_the_stream_stands_is_refused_inside_a_payload(
    decoder: Decoder, event: EventKind, body: bytes
) -> None:
    """No server writes such an event there, and it has no checksum."""
    log = Log(checksums=False).add(EventKind.TRANSACTION_PAYLOAD, payload_body(bare(event, body)))
    assert catch_refusal(lambda: feed(decoder, log.packets())) == "unknown_event"
    assert (decoder.offset, decoder.file_name) == (log.offset, "")


def test_a_payload_that_ends_inside_an_event_is_refused(decoder: Decoder) -> None:
    """No other event can follow it."""
    inner = bare(EventKind.XID, bytes(8))[:-1]
    block = Log().add(EventKind.TRANSACTION_PAYLOAD, payload_body(inner)).packets()
    assert catch_refusal(lambda: feed(decoder, block)) == "event_length"


def test_partial_updates_need_the_document_before(decoder: Decoder) -> None:
    """Partial updates return the whole document after the change."""
    table = Table(kinds=("int", "json"), name="j", table_id=13)
    old = image(table, [number(1), encode_json({"a": 1, "b": [True]})])
    change = b"\0\3$.a\3" + b"\5\2\0"
    new = b"\1\1" + image(table, [number(1), change])
    kind = EventKind.PARTIAL_UPDATE_ROWS
    log = Log().begin().table(table).add(kind, rows_body(table, kind, old + new)).commit()
    feed(decoder, log.packets())
    assert after(decoder) == [(1, '{"a": 2, "b": [true]}')]
    body = rows_body(table, kind, image(table, [number(1), None], [0]) + new, before=[0])
    block = Log().begin().table(table).add(kind, body).packets()
    assert catch_refusal(lambda: feed(type(decoder)(), block)) == "before"


def test_numbers_pass_for_rows_from_elsewhere(decoder: Decoder) -> None:
    """Such rows take numbers between transactions, when the decoder has no rows left to take."""
    log = Log().begin(1).table(TWO).add(*inserts(TWO, row(TWO, 1, "a"))).commit().begin(2)
    block = log.packets()
    at = feed(decoder, block, commit_limit=0)
    with pytest.raises(ValueError, match="given out"):
        decoder.skip(5, 1)
    decoder.take()
    decoder.skip(5, 1)
    assert (decoder.gsn, decoder.trx) == (6, 2)
    decoder.feed(block, at, len(block), MANY)
    assert decoder.in_transaction
    with pytest.raises(ValueError, match="given out"):
        decoder.skip(1, 0)
