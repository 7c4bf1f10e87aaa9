"""Decoder of binlog rows: one suite for the twin and the compiled kernel."""

from __future__ import annotations

import os
import struct

import pytest

from harness.twins.binlog import DECODERS, MANY, fake_rotate, packet
from harness.twins.binlog_events import (
    DELETE,
    UPDATE,
    WRITE,
    Log,
    Table,
    image,
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
from penstock.codec.columns import TRANSACTIONS_SCHEMA
from penstock.codec.mysql import binlog
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_outcome import BYTE_LIMIT_MAX, OFFSET_BITS
from penstock.codec.mysql.binlog_tables import table_map
from penstock.model.position import to_ordinal

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


def test_the_kernel_is_there_when_it_is_required() -> None:
    """CI sets PENSTOCK_REQUIRE_KERNEL=1: then a missing kernel is a failure, and no fallback is
    used.
    """
    assert binlog.COMPILED or os.environ.get("PENSTOCK_REQUIRE_KERNEL") != "1"


def test_make_decoder_picks_the_kernel_unless_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forces the twin."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert (type(binlog.make_decoder()) is Decoder) == (not binlog.COMPILED)
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert type(binlog.make_decoder()) is Decoder


@pytest.mark.parametrize("limit", [0, BYTE_LIMIT_MAX + 1])
def test_impossible_limits_are_refused(kind: type[Decoder], limit: int) -> None:
    """A batch needs room, and must stay below Arrow's largest offset."""
    with pytest.raises(ValueError, match="byte_limit"):
        kind(byte_limit=limit)
    with pytest.raises(ValueError, match="row_limit"):
        kind().feed(b"", 0, 0, 0)
    with pytest.raises(ValueError, match="within"):
        kind().feed(b"abc", 0, 4, 1)


# --- rows


def test_insert_update_delete_become_rows(kind: type[Decoder]) -> None:
    """Numbers increase, the position is the transaction's start, values are complete."""
    log = Log().begin(4)
    start = log.offset - len(log.events[-1]) - len(log.events[-2])
    log.table(TWO).add(*inserts(TWO, row(TWO, 1, "ä"), row(TWO, 2, None)))
    update = row(TWO, 1, "ä") + row(TWO, 1, "b")
    log.add(UPDATE, rows_body(TWO, UPDATE, update))
    log.add(DELETE, rows_body(TWO, DELETE, row(TWO, 2, None))).commit(77)
    decoder = kind(gsn=10, trx=3)
    block = packet(b"\0" + fake_rotate("bin.000012")) + log.packets()
    assert feed(decoder, block) == len(block)
    assert decoder.stop is Stop.MORE
    rows = rows_of(decoder)
    assert [one["gsn"] for one in rows] == [11, 12, 13, 14]
    assert {one["trx"] for one in rows} == {4}
    assert bytes(one["op"] for one in rows) == b"IIUD"
    assert [one["after"] for one in rows] == [
        {"c0": 1, "c1": "ä"}, {"c0": 2, "c1": None}, {"c0": 1, "c1": "b"}, None,
    ]  # fmt: skip
    assert [one["before"] for one in rows] == [None, None, None, {"c0": 2}]
    assert decoder.end_position == 12 << OFFSET_BITS | log.offset
    assert decoder.xid == 77
    assert decoder.gtid == "00010203-0405-0607-0809-0a0b0c0d0e0f:4"
    transactions = decoder.take_transactions()
    assert transactions is not None
    assert transactions.schema == TRANSACTIONS_SCHEMA
    (one,) = transactions.to_pylist()
    assert to_ordinal(one["position"]) == 12 << OFFSET_BITS | start
    assert to_ordinal(one["end_position"]) == decoder.end_position
    assert (one["source_id"], one["origin"]) == (77, 0)


def test_a_set_is_printed_as_the_server_does(decoder: Decoder) -> None:
    """No comma follows an empty text if a label is empty."""
    table = Table(kinds=("int", "set"))
    rows = [image(table, [number(bits), bytes((bits,))]) for bits in range(8)]
    feed(decoder, Log().begin().table(table).add(*inserts(table, *rows)).commit().packets())
    found = [one["after"]["c1"] for one in rows_of(decoder)]
    assert found == ["", "", "a", "a", "größe", "größe", "a,größe", "a,größe"]


def test_a_changed_key_brings_the_old_one(decoder: Decoder) -> None:
    """An unchanged key does not: the row is found by its current key."""
    same = row(TWO, 1, "a") + row(TWO, 1, "b")
    other = row(TWO, 1, "b") + row(TWO, 2, "b")
    log = Log().begin().table(TWO).add(UPDATE, rows_body(TWO, UPDATE, same + other)).commit()
    feed(decoder, log.packets())
    assert [one["before"] for one in rows_of(decoder)] == [None, {"c0": 1}]


@pytest.mark.parametrize(
    ("old", "new"), [("a", "ab"), ("ab", "a"), ("", "a"), (None, ""), ("", None), ("é", "è")]
)
def test_any_change_of_a_key_is_seen(decoder: Decoder, old: str | None, new: str | None) -> None:
    """A change of the length alone counts, and one between NULL and an empty value."""
    table = Table(kinds=("varchar(60)", "int"), name="named", table_id=9)
    images = row(table, old, 1) + row(table, new, 1) + row(table, new, 1) + row(table, new, 2)
    log = Log().begin().table(table).add(UPDATE, rows_body(table, UPDATE, images)).commit()
    feed(decoder, log.packets())
    assert [one["before"] for one in rows_of(decoder)] == [{"c0": old}, None]


def test_rows_of_a_table_without_a_key_bring_all_old_values(decoder: Decoder) -> None:
    """Such rows are found by all of their values."""
    same = row(KEYLESS, 1, "a") + row(KEYLESS, 1, "a")
    log = Log().begin().table(KEYLESS).add(UPDATE, rows_body(KEYLESS, UPDATE, same)).commit()
    feed(decoder, log.packets())
    assert rows_of(decoder)[0]["before"] == {"c0": 1, "c1": "a"}


def test_columns_that_were_not_sent_are_absent_or_taken_from_the_old_image(
    decoder: Decoder,
) -> None:
    """MINIMAL: the key is taken from the before image, other columns stay unchanged."""
    table = Table(kinds=("int",) * 10, name="wide", table_id=8, key=(9,))
    old = image(table, [number(7)] * 10, [9])
    new = image(table, [number(5), None, *[number(6)] * 8], [0, 1, 8])
    body = rows_body(table, UPDATE, old + new, before=[9], after=[0, 1, 8])
    feed(decoder, Log().begin().table(table).add(UPDATE, body).commit().packets())
    (one,) = rows_of(decoder)
    assert tuple(one["after"].values()) == (5, None, *[None] * 6, 6, 7)
    assert one["absent"] == bytes((0b1111_1100, 0))
    assert one["before"] is None


def test_inserts_without_all_columns_are_refused_unless_asked_for(kind: type[Decoder]) -> None:
    """A missing value is the column's default, which the decoder does not know."""
    body = rows_body(TWO, WRITE, row(TWO, 3, "", present=[0]), after=[0])
    block = Log().begin().table(TWO).add(WRITE, body).commit().packets()
    assert catch_refusal(lambda: feed(kind(), block)) == "defaulted"
    decoder = kind(partial_inserts=True)
    feed(decoder, block)
    assert rows_of(decoder)[0]["absent"] == b"\2"
    nothing = rows_body(TWO, WRITE, b"", after=[])
    block = Log().begin().table(TWO).add(WRITE, nothing).packets()
    assert catch_refusal(lambda: feed(kind(partial_inserts=True), block)) == "defaulted"


def test_a_row_that_cannot_be_identified_is_refused(decoder: Decoder) -> None:
    """A before image without the key does not identify a row."""
    body = rows_body(TWO, DELETE, row(TWO, 3, "x", present=[1]), before=[1])
    block = Log().begin().table(TWO).add(DELETE, body).packets()
    assert catch_refusal(lambda: feed(decoder, block)) == "before"


def test_rows_before_a_broken_one_are_kept(decoder: Decoder) -> None:
    """No part of the broken row is kept, although its first value is right."""
    good, broken = row(TWO, 1, "good"), image(TWO, [number(2), b"\xff\xfe"])
    block = Log().begin().table(TWO).add(*inserts(TWO, good, broken, good)).packets()
    with pytest.raises(BinlogBroken) as caught:
        feed(decoder, block)
    assert caught.value.fields["column"] == "c1"
    assert caught.value.fields["reason"] == "text"
    assert block[caught.value.offset : caught.value.offset + 2] == b"\xff\xfe"
    assert after(decoder) == [(1, "good")]
    assert decoder.gsn == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rows_body(TWO, WRITE, row(TWO, 1, "abc")[:-1]), "truncated"),
        (rows_body(TWO, WRITE, b"\0"), "truncated"),
        (rows_body(TWO, WRITE, b"\0\1\0\0\0\x09abc"), "truncated"),
        (rows_body(KEYLESS, WRITE, row(TWO, 1, "abc")), "unbound"),
        (rows_body(TWO, WRITE, b"")[:11], "event_body"),
        (rows_body(TWO, WRITE, b"")[:7], "event_body"),
        (rows_body(TWO, WRITE, b"").replace(b"\2\0\2", b"\xff\0\2"), "event_body"),
        (rows_body(Table(kinds=("int",), table_id=70), WRITE, b"\0\1\0\0\0"), "column_count"),
    ],
)
def test_broken_rows_events_are_refused(decoder: Decoder, body: bytes, reason: str) -> None:
    """Lengths that exceed the event, another table's rows and short heads are refused."""
    block = Log().begin().table(TWO).add(WRITE, body).packets()
    assert catch_refusal(lambda: feed(decoder, block)) == reason
    assert decoder.take() == []


@pytest.mark.parametrize(
    ("column", "last", "beyond"),
    [
        ("datetime(2)", "99b2420000 63", "99b2420000 64"),
        ("datetime(6)", "99b2420000 0f423f", "99b2420000 0f4240"),
        ("timestamp(6)", "00000001 0f423f", "00000001 0f4240"),
        ("time(3)", "800000 270f", "800000 2710"),
        ("time(6)", "800000 0f423f", "800000 0f4240"),
        ("decimal(10,4)", "800001 270f", "800001 2710"),
        ("decimal(10,4)", "8f423f 270f", "8f4240 270f"),
        ("decimal(5,5)", "81869f", "8186a0"),
        ("decimal(38,10)", "80 3b9ac9ff" + 13 * " 00", "80 3b9aca00" + 13 * " 00"),
        ("decimal(65,30)", "85f5e0ff" + 26 * " 00", "85f5e100" + 26 * " 00"),
    ],
)
def test_digits_of_a_value_end_where_they_end(
    kind: type[Decoder], column: str, last: str, beyond: str
) -> None:
    """The last fraction of a second and the last group of digits are read; one more is refused."""
    table = Table(kinds=("int", column))

    def block(data: str) -> bytes:
        one = image(table, [number(1), bytes.fromhex(data)])
        return Log().begin().table(table).add(*inserts(table, one)).commit().packets()

    decoder = kind()
    feed(decoder, block(last))
    assert len(after(decoder)) == 1
    decoder = kind()
    assert catch_refusal(lambda: feed(decoder, block(beyond))) == "value"
    assert after(decoder) == []


def test_a_decimal_of_zero_has_no_sign(decoder: Decoder) -> None:
    """Zero has no sign in any stored form, nor in a column that is text due to its many digits."""
    table = Table(kinds=("int", "decimal(65,30)"))
    rows = [
        image(table, [number(at), data])
        for at, data in enumerate((b"\x80" + bytes(29), b"\x7f" + b"\xff" * 29))
    ]
    feed(decoder, Log().begin().table(table).add(*inserts(table, *rows)).commit().packets())
    assert [values[1] for values in after(decoder)] == ["0." + "0" * 30] * 2


def test_old_rows_events_and_those_of_partitions_are_read(decoder: Decoder) -> None:
    """Version 1 has no extra data; version 2 may have a partition's number."""
    log = Log().begin().table(TWO)
    log.add(EventKind.WRITE_ROWS_V1, rows_body(TWO, 23, row(TWO, 1, "a")))
    log.add(EventKind.DELETE_ROWS_V1, rows_body(TWO, 25, row(TWO, 1, "a")))
    log.add(*inserts(TWO, row(TWO, 2, "b"), extra=b"\1\5\0")).commit()
    feed(decoder, log.packets())
    assert after(decoder) == [(1, "a"), None, (2, "b")]


def test_an_event_without_rows_ends_a_statement(decoder: Decoder) -> None:
    """The event's table id belongs to no table."""
    nowhere = Table(kinds=("int",), table_id=0xFFFFFF)
    log = Log().begin().add(WRITE, rows_body(nowhere, WRITE, b"")).commit()
    assert feed(decoder, log.packets()) == len(log.packets())


# --- stops


def test_a_new_table_stops_and_a_known_one_does_not(decoder: Decoder) -> None:
    """A known id may later mean another table, or the same one with other columns."""
    other = Table(kinds=("int", "tinytext"), name="two", table_id=70)
    log = Log().begin().table(TWO).table(TWO).table(other).table(other).commit()
    block = log.packets()
    at = decoder.feed(block, 0, len(block), MANY)
    kinds = []
    while decoder.stop is Stop.MESSAGE:
        kinds.append(decoder.message[4])
        if kinds[-1] == EventKind.TABLE_MAP:
            bind(decoder)
        at = decoder.feed(block, at, len(block), MANY)
    assert kinds == [15, 19, 19]
    relation = decoder.bindings()[70]
    assert relation is not None
    assert relation.columns[1].source_type == "tinytext"


def test_rows_of_two_ids_of_one_table_come_in_one_batch(decoder: Decoder) -> None:
    """A server gives a table a new id whenever it opens it again."""
    again = Table(kinds=TWO.kinds, name="two", table_id=99)
    log = Log().begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "a")))
    log.table(again).add(*inserts(again, row(again, 2, "b"))).commit()
    feed(decoder, log.packets())
    (rows,) = decoder.take()
    assert rows.batch.num_rows == 2


def test_tables_that_are_not_captured_are_passed_over(decoder: Decoder) -> None:
    """The content of their rows is ignored."""
    log = Log().begin().table(TWO).add(WRITE, rows_body(TWO, WRITE, b"\xff\xff")).commit()
    block = log.packets()
    at = decoder.feed(block, 0, len(block), MANY)
    at = decoder.feed(block, at, len(block), MANY)
    decoder.bind(table_map(decoder.message[19:], is_mariadb=False), None)
    assert decoder.feed(block, at, len(block), MANY) == len(block)
    assert (decoder.gsn, decoder.trx) == (0, 0)


def test_limits_stop_inside_an_event_and_the_next_call_goes_on(decoder: Decoder) -> None:
    """Every row is returned once, also when the block is moved meanwhile."""
    rows = [row(TWO, index, "x") for index in range(10)]
    block = Log().begin().table(TWO).add(*inserts(TWO, *rows)).commit().packets()
    seen = []
    while block:
        at = feed(decoder, block, limit=3)
        block = block[at:]
        seen += after(decoder)
        if decoder.stop is Stop.MORE:
            break
    assert seen == [(index, "x") for index in range(10)]
    assert decoder.trx == 1


def test_bytes_limit_a_batch_too(kind: type[Decoder]) -> None:
    """Text that grew by its conversion counts."""
    table = Table(kinds=("int", "varchar(300) latin1"), name="l", table_id=5)
    decoder = kind(byte_limit=300)
    rows = [image(table, [number(index), b"\x80" * 100]) for index in range(3)]
    block = Log().begin().table(table).add(*inserts(table, *rows)).packets()
    feed(decoder, block)
    assert decoder.stop is Stop.LIMIT
    assert decoder.byte_count >= 300
    assert after(decoder) == [(0, "€" * 100)]


def test_commit_stops_when_enough_is_there(decoder: Decoder) -> None:
    """A limit of zero stops at every end of a transaction, also of one without rows."""
    block = Log().begin(1).commit().begin(2).commit().packets()
    at = feed(decoder, block, commit_limit=0)
    assert decoder.stop is Stop.COMMIT
    assert decoder.gtid.endswith(":1")
    assert not decoder.in_transaction
    decoder.feed(block, at, len(block), MANY, 0)
    assert decoder.gtid.endswith(":2")
    assert decoder.take_gtids()[-1].startswith("00010203")


def test_a_value_that_does_not_fit_widens_its_column_in_the_middle_of_an_event(
    decoder: Decoder,
) -> None:
    """The rows before it keep their shape; from it on the text is exact."""
    table = Table(kinds=("int", "datetime(2)", "time(3)"), name="when", table_id=6)
    moment = struct.pack(">Q", 0x80_0000_0000 + ((2024 * 13 + 2) << 22 | 29 << 17 | 12 << 12))[3:]
    zero = b"\x80\0\0\0\0"
    rows = [
        image(table, [number(1), moment + b"\x19", b"\x80\0\0\0\0"]),
        image(table, [number(2), zero + b"\0", bytes.fromhex("7ffffeec78")]),
        image(table, [number(3), moment + b"\x19", None]),
    ]
    block = Log().begin().table(table).add(*inserts(table, *rows)).commit().packets()
    at = feed(decoder, block)
    widened = []
    while decoder.stop is Stop.WIDEN:
        table_id, index = decoder.widen
        relation = decoder.bindings()[table_id]
        assert relation is not None
        widened.append(index)
        decoder.bind(decoder.table(table_id), relation.with_text_column(index))
        at = decoder.feed(block, at, len(block), MANY)
    assert widened == [1, 2]
    assert decoder.row_count == 3
    rows_seen = rows_of(decoder)
    assert [one["after"]["c0"] for one in rows_seen] == [1, 2, 3]
    assert str(rows_seen[0]["after"]["c1"]) == "2024-02-29 12:00:00.250000"
    assert rows_seen[1]["after"]["c1"] == "0000-00-00 00:00:00.00"
    assert rows_seen[1]["after"]["c2"] == "-00:00:01.500"
    assert rows_seen[2]["after"]["c1"] == "2024-02-29 12:00:00.25"


def test_what_is_no_event_stops_before_it(decoder: Decoder) -> None:
    """Examples are the end of a dump that was told not to wait, and the server's errors."""
    for payload in (b"\xfe\0\0\2\0", b"\xff\xd4\x04#HY000gone"):
        block = packet(payload, 9)
        assert decoder.feed(block, 0, len(block), MANY) == 0
        assert decoder.stop is Stop.OTHER_FRAME
        assert decoder.message == payload
    assert catch_refusal(lambda: decoder.feed(packet(b"\1"), 0, 5, MANY)) == "packet"
    assert catch_refusal(lambda: decoder.feed(packet(b""), 0, 4, MANY)) == "packet"
