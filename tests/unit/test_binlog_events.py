"""Binlog events that are not rows, from bytes that real servers wrote."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from harness.twins.binlog import file_events, recorded_files
from harness.twins.binlog_events import bare, gtid_body, maria_body, query_body
from penstock.codec.mysql import binlog_events as events
from penstock.codec.mysql.binlog_compressed import Payload, inflated_rows
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_outcome import BinlogBroken
from penstock.codec.mysql.binlog_query import query


def of_kind(name: str, kind: int) -> list[bytes]:
    """Return all events of a kind in a recording, without checksum."""
    found = []
    for _, data in recorded_files(name):
        all_events = file_events(data)
        size = 4 if all_events[0][-5] else 0
        found += [event[: len(event) - size] for event in all_events if event[4] == kind]
    return found


@pytest.mark.parametrize(
    ("name", "version", "maria"),
    [
        ("mysql-8.0", "8.0.15", False),
        ("mysql-9.7", "9.7.4-2", False),
        ("mariadb-10.11", "10.11.19-MariaDB", True),
        ("mariadb-11.4", "11.4.5-MariaDB", True),
    ],
)
def test_format_descriptions(name: str, version: str, maria: bool) -> None:
    """The event tells the server's version and whether events have checksums."""
    files = recorded_files(name)
    told = [events.format_description(file_events(data)[0]) for _, data in files]
    assert all(one.server_version.startswith(version) for one in told)
    assert {one.is_mariadb for one in told} == {maria}
    assert [one.has_checksums for one in told] == [True, True, True, False]


@pytest.mark.parametrize("change", [(19, 3), (75, 20), (-5, 2)])
def test_other_format_descriptions_are_refused(change: tuple[int, int]) -> None:
    """Another format version, heads of another length and an unknown checksum are refused."""
    event = bytearray(file_events(recorded_files("mysql-8.0")[0][1])[0])
    event[change[0]] = change[1]
    with pytest.raises(BinlogBroken) as caught:
        events.format_description(bytes(event))
    assert caught.value.fields["reason"] == "format"


def test_rotate() -> None:
    """The event names the next file and the offset in it."""
    said = events.rotate(of_kind("mysql-9.7", EventKind.ROTATE)[0])
    assert (said.file_name, said.offset) == ("binlog.000002", 4)


def test_gtid_of_mysql() -> None:
    """The event has server, number, and the commit's time in microseconds, which older servers
    omit.
    """
    said = events.gtid(bare(EventKind.GTID, gtid_body(77)))
    assert str(said) == "00010203-0405-0607-0809-0a0b0c0d0e0f:77"
    assert said.commit_time_us == 1_700_000_000_123_456
    old = events.gtid(bare(EventKind.GTID, gtid_body(77)[:42]))
    assert (old.number, old.commit_time_us) == (77, 0)
    anonymous = events.gtid(bare(EventKind.ANONYMOUS_GTID, gtid_body(0)))
    assert str(anonymous) == ""
    with_other_time = bytearray(gtid_body(1))
    with_other_time[48] |= 0x80
    assert events.gtid(bare(33, bytes(with_other_time))).commit_time_us == said.commit_time_us


def test_tagged_gtid() -> None:
    """MySQL 9.7 has an event of its own for it."""
    (event,) = of_kind("mysql-9.7", EventKind.GTID_TAGGED)
    said = events.gtid_tagged(event)
    assert str(said) == "11111111-2222-3333-4444-555555555555:some_tag:7"
    assert said.commit_time_us > 1_700_000_000_000_000


def test_gtid_of_mariadb() -> None:
    """The event has domain, server and number; the flags tell which other fields are there."""
    said = events.maria_gtid(bare(EventKind.MARIA_GTID, maria_body(5, domain=2)))
    assert (str(said), said.flags) == ("2-7-5", 0)
    xid = struct.pack("<IBB", 3, 2, 1) + b"ggb"
    flags = events.MariaFlag.PREPARED_XA | events.MariaFlag.GROUP_COMMIT_ID
    said = events.maria_gtid(bare(162, maria_body(5, flags, more=bytes(8) + xid)))
    assert said.xid == (3, b"gg", b"b")
    said = events.maria_gtid(bare(162, maria_body(5, 1, more=b"\4" + struct.pack("<Q", 88))))
    assert (said.flags_extra, said.alter_number) == (events.MariaExtraFlag.COMMIT_ALTER, 88)
    prepared = [events.maria_gtid(one) for one in of_kind("mariadb-10.11", 162)]
    assert [one.xid for one in prepared if one.flags & events.MariaFlag.PREPARED_XA] == [
        (1, b"two", b""),
        (1, b"three", b""),
    ]


def test_sets_at_the_start_of_a_file() -> None:
    """PREVIOUS_GTIDS and GTID_LIST of real servers are read, and the form with tags."""
    told = [events.previous_gtids(one) for one in of_kind("mysql-9.7", EventKind.PREVIOUS_GTIDS)]
    assert str(told[0]) == ""
    assert ":some_tag:7" in str(told[2])
    assert told[2].includes(told[1])
    tagged = "01020000000000 01".replace(" ", "")
    server = bytes(range(16))
    body = bytes.fromhex(tagged) + server + b"\0" + struct.pack("<QQQ", 1, 1, 6)
    body += server + b"\x08tag1" + struct.pack("<QQQ", 1, 1, 4)
    said = events.previous_gtids(bare(35, body))
    assert str(said) == "00010203-0405-0607-0809-0a0b0c0d0e0f:1-5:tag1:1-3"
    lists = [events.gtid_list(one) for one in of_kind("mariadb-11.4", EventKind.GTID_LIST)]
    assert str(lists[-1]).startswith("0-1-")


def test_xa_prepare() -> None:
    """A one-phase commit is marked as such."""
    told = [events.xa_prepare(one) for one in of_kind("mysql-8.0", EventKind.XA_PREPARE)]
    assert [(one.one_phase, one.xid) for one in told] == [
        (True, (3, b"one", b"b")),
        (False, (1, b"two", b"")),
        (False, (1, b"three", b"")),
    ]


def test_incident_and_statement_texts() -> None:
    """Texts that a server sends besides its rows are read."""
    said = events.incident(bare(EventKind.INCIDENT, b"\1\0\4LOST"))
    assert (said.number, said.text) == (1, "LOST")
    assert events.statement_text(bare(EventKind.ROWS_QUERY, b"\3insert")) == "insert"
    assert events.statement_text(bare(EventKind.ANNOTATE_ROWS, b"insert")) == "insert"
    assert any(
        events.statement_text(one).startswith("insert into ints")
        for one in of_kind("mariadb-10.11", EventKind.ANNOTATE_ROWS)
    )


def test_queries_of_real_servers() -> None:
    """Text, schema, settings and the objects that were changed are read."""
    for name in ("mysql-8.0", "mysql-9.7", "mariadb-10.11", "mariadb-11.4"):
        told = [query(one) for one in of_kind(name, EventKind.QUERY)]
        made = next(one for one in told if one.text.startswith("create table ints"))
        assert (made.schema, made.error) == ("rec", 0)
        assert made.collation in (45, 255)
        assert made.checks_foreign_keys
        assert made.has_backslash_escapes
        assert not made.has_ansi_quotes
        if name.startswith("mysql"):
            assert made.ddl_xid > 0
            assert made.schemas == ("rec",)


def test_a_query_that_mariadb_compressed() -> None:
    """The event's text is the statement that was sent."""
    (event, *_) = of_kind("mariadb-10.11", EventKind.QUERY_COMPRESSED)
    assert query(event).text.startswith("create table packed")


def test_a_query_in_another_character_set() -> None:
    """The client's collation names the set; bytes outside the set do not stop the decoder."""
    status = b"\x04" + struct.pack("<HHH", 8, 8, 8)
    said = query(bare(2, query_body("alter table t comment 'ö'".encode("latin-1"), status=status)))
    assert said.text == "alter table t comment 'ö'"
    status = b"\x04" + struct.pack("<HHH", 45, 45, 45)
    said = query(bare(2, query_body(b"insert into t values ('\xff')", status=status)))
    assert said.text == "insert into t values ('�')"
    assert said.raw.endswith(b"('\xff')")
    unknown = query(bare(2, query_body("flush tables", status=b"\xee\1\2\3")))
    assert unknown.text == "flush tables"


def unpack_payload(event: bytes) -> bytes:
    """Return all events inside a TRANSACTION_PAYLOAD event."""
    payload = Payload(event)
    inside = b""
    while not payload.is_used_up:
        inside = payload.more(inside)
    return inside


def test_payloads_of_a_real_server() -> None:
    """Payloads are compressed with zstd; inner events have no checksums and end with the commit."""
    (event,) = of_kind("mysql-9.7", EventKind.TRANSACTION_PAYLOAD)
    inside = unpack_payload(event)
    kinds = [one[4] for one in file_events(b"\xfebin" + inside)]
    assert kinds[0] == EventKind.QUERY
    assert kinds[-1] == EventKind.XID


def payload(data: bytes, packed: bytes, *, method: int = 0, size: int | None = None) -> bytes:
    """Return a TRANSACTION_PAYLOAD event."""
    claimed = struct.pack("<BQ", 0xFE, len(data) if size is None else size)
    body = bytes((2, 1 if method < 0xFB else 3)) + (
        bytes((method,)) if method < 0xFB else b"\xfc" + struct.pack("<H", method)
    )
    body += bytes((3, len(claimed))) + claimed + bytes((1, 9))
    body += struct.pack("<BQ", 0xFE, len(packed)) + b"\0" + packed
    return bare(EventKind.TRANSACTION_PAYLOAD, body)


def zstd(data: bytes) -> bytes:
    """Compress as the server does."""
    return bytes(pa.compress(data, "zstd").to_pybytes())


@pytest.mark.parametrize(
    "event",
    [
        payload(b"abc", zstd(b"abc"), size=2),
        payload(b"abc", zstd(b"abc"), size=4),
        payload(b"abc", zstd(b"abc"), size=2**63),
        payload(b"abc", zstd(b"abc")[:-2]),
        payload(b"abc", b"junk"),
        payload(b"abc", zstd(b"abc"), method=7),
        bare(40, b""),
        bare(40, b"\2\xff"),
    ],
)
def test_broken_payloads_are_refused(event: bytes) -> None:
    """Wrong sizes, streams that end early and unknown methods are refused."""
    with pytest.raises(BinlogBroken) as caught:
        unpack_payload(event)
    assert caught.value.fields["reason"] == "payload"


def test_payloads_may_be_stored_or_of_several_frames() -> None:
    """The format allows both."""
    assert unpack_payload(payload(b"abc", b"abc", method=255)) == b"abc"
    assert unpack_payload(payload(b"abcdef", zstd(b"abc") + zstd(b"def"))) == b"abcdef"


def test_rows_that_mariadb_compressed() -> None:
    """Compressed events are turned into the plain event, of the right length."""
    (event, *_) = of_kind("mariadb-10.11", EventKind.WRITE_ROWS_COMPRESSED_V1)
    plain = inflated_rows(event)
    assert plain[4] == EventKind.WRITE_ROWS_V1
    assert struct.unpack_from("<I", plain, 9)[0] == len(plain)
    assert b"packed packed packed" in plain
    rows = b"\x80" + b"x" * 300
    head = bytes(6) + b"\1\0\1\1"
    made = bare(166, head + b"\x82" + (301).to_bytes(2, "big") + zlib.compress(rows))
    assert inflated_rows(made)[19:] == head + rows
    for broken in (made[:-1], made[:-9], bare(166, head), bare(166, head + b"\x85" + rows)):
        with pytest.raises(BinlogBroken):
            inflated_rows(broken)


PARSERS: list[tuple[Callable[[bytes], Any], int]] = [
    (events.rotate, EventKind.ROTATE),
    (events.previous_gtids, EventKind.PREVIOUS_GTIDS),
    (events.gtid_list, EventKind.GTID_LIST),
    (events.gtid, EventKind.GTID),
    (events.gtid_tagged, EventKind.GTID_TAGGED),
    (events.maria_gtid, EventKind.MARIA_GTID),
    (events.xa_prepare, EventKind.XA_PREPARE),
    (events.incident, EventKind.INCIDENT),
    (query, EventKind.QUERY),
]


@pytest.mark.parametrize(("parse", "kind"), PARSERS)
def test_short_bodies_are_refused(parse: Callable[[bytes], Any], kind: int) -> None:
    """A typed error is raised, wherever a body ends."""
    for size in range(3):
        with pytest.raises(BinlogBroken) as caught:
            parse(bare(kind, b"\xff" * size))
        assert caught.value.fields["reason"] == "event_body"


def test_every_cut_of_a_real_event_is_read_or_refused() -> None:
    """No other error is raised."""
    for parse, kind in PARSERS:
        for name in ("mysql-9.7", "mariadb-11.4"):
            for event in of_kind(name, kind)[:2]:
                for end in range(19, len(event)):
                    try:
                        parse(event[:end])
                    except BinlogBroken:
                        continue
