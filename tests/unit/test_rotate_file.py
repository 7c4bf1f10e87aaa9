"""The file that a ROTATE event names."""

from __future__ import annotations

import struct
import zlib

import pytest

from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind
from penstock.engines.mysql.source.live_tables import rotate_file

NAME = b"binlog.000001"


def rotation(offset: int, *, checksum: bool) -> bytes:
    """Return a ROTATE event as the server opens a stream with it."""
    body = struct.pack("<Q", offset) + NAME
    size = HEAD_BYTES + len(body) + 4 * checksum
    event = struct.pack("<IBIIIH", 0, EventKind.ROTATE, 1, size, 0, 0x20) + body
    return event + struct.pack("<I", zlib.crc32(event)) * checksum


@pytest.mark.parametrize("checksum", [False, True])
def test_the_checksum_is_no_part_of_the_name(checksum: bool) -> None:
    """The checksum is excluded even if its first bytes look like digits, as for many offsets."""
    events = [rotation(offset, checksum=checksum) for offset in range(4, 2000)]
    digits = [event for event in events if event[-4:-3].isdigit()]
    assert len(digits) > 30 or not checksum
    assert {rotate_file(event) for event in events} == {NAME.decode()}
