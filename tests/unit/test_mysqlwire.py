"""Packets of MySQL and commands of a replica, byte by byte."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.mysql import mysqlwire as w

EVENT = struct.pack("<IBIIIH", 1, 19, 7, 23, 200, 0) + b"body"


def format_description(flags: int = 0, checksum: bytes = b"abcd") -> bytes:
    """Return a format description event, cut to what its identity needs."""
    return struct.pack("<IBIIIH", 5, 15, 7, 27, 120, flags) + b"data" + checksum


def test_commands() -> None:
    """Commands equal those of a real replica."""
    assert w.register_replica(258, host="h", port=3306).hex() == (
        "13000000150201000001680000ea0c0000000000000000"
    )
    assert w.dump(server_id=1, file="binlog.000001", offset=4, flags=w.DUMP_NON_BLOCK).hex() == (
        "180000001204000000010001000000" + b"binlog.000001".hex()
    )
    seen = bytes(8)
    assert w.dump_gtid(server_id=1, seen=seen).hex() == (
        "1f0000001e00000100000000000000040000000000000008000000" + "00" * 8
    )
    assert w.QUIT == b"\x01\0\0\0\x01"


def test_offsets_that_the_command_cannot_name() -> None:
    """Above 4 GiB the number would wrap, and the server would begin elsewhere."""
    w.dump(server_id=1, file="b.1", offset=2**32 - 1)
    with pytest.raises(w.PacketInvalid, match="only a GTID set"):
        w.dump(server_id=1, file="b.1", offset=2**32)
    with pytest.raises(w.PacketInvalid, match="does not fit"):
        w.packet(bytes(0xFFFFFF))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 10))
def test_packets_are_cut_wherever_the_block_ends(bodies: list[bytes], missing: int) -> None:
    """A packet is returned once it is complete, and not before."""
    block = b"".join(w.packet(body) for body in bodies)
    end = max(len(block) - missing, 0)
    offset, found = 0, []
    while (packet := w.packet_at(block, offset, end)) is not None:
        found.append(block[packet.start : packet.end])
        assert not packet.is_continued
        offset = packet.end
    assert found == bodies[: len(found)]
    if not missing:
        assert len(found) == len(bodies)


def test_a_full_packet_is_continued() -> None:
    """Only its length says so."""
    block = b"\xff\xff\xff\x09" + bytes(0xFFFFFF)
    assert w.packet_at(block, 0, len(block)) == (9, 4, len(block), True)
    assert w.packet_at(block, 0, len(block) - 1) is None


def test_errors_and_ends() -> None:
    """An error may have an SQLSTATE or not; an end is short."""
    said = w.server_error(b"\xff\xd4\x04#HY000no log")
    assert (said.number, said.sqlstate, said.message) == (1236, "HY000", "no log")
    assert w.server_error(b"\xff\x10\x04too many").message == "too many"
    assert w.is_end(b"\xfe\0\0\x02\0")
    assert not w.is_end(b"\xfe" + bytes(8))
    assert not w.is_end(b"\0")
    for broken in (b"", b"\xff", b"\0\0\0"):
        with pytest.raises(w.PacketInvalid):
            w.server_error(broken)


def test_event_heads() -> None:
    """The length that an event states must be its length."""
    head = w.event_head(EVENT)
    assert (head.kind, head.server_id, head.length, head.end_position) == (19, 7, 23, 200)
    assert not head.is_artificial
    for broken in (EVENT[:18], EVENT[:-1], EVENT + b"x"):
        with pytest.raises(w.PacketInvalid):
            w.event_head(broken)


def test_a_files_identity() -> None:
    """The identity has the checksum without the in-use flag, and the previous GTIDs if present."""
    gtids = struct.pack("<IBIIIH", 5, 35, 7, 23, 143, 0x80) + b"gtid"
    assert w.log_identity([format_description()]) == b"abcd".hex()
    assert w.log_identity([format_description(flags=1), EVENT]) == b"abcd".hex()
    assert w.log_identity([format_description(), gtids]) == (
        b"abcd".hex() + f"{zlib.crc32(b'gtid'):08x}"
    )
    with pytest.raises(w.PacketInvalid, match="begins with an event of type 19"):
        w.log_identity([EVENT])
