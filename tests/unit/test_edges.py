"""Lengths and limits exactly at their edge: a check missing here would not be noticed elsewhere."""

from __future__ import annotations

import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.fold import encode
from penstock.codec.errors import TextBroken
from penstock.codec.lines import LineCell, LineForm
from penstock.codec.mysql.binlog_compressed import inflate
from penstock.codec.mysql.binlog_events import HEAD_BYTES
from penstock.codec.mysql.binlog_query import query_text_start
from penstock.codec.mysql.decimals import decimal_digits
from penstock.codec.mysql.malformed import Malformed
from penstock.codec.mysql.values import decompress, ewkb_hex
from penstock.codec.postgres import pgwire
from penstock.codec.postgres.copytext import LoadLines
from penstock.codec.postgres.lsn import LSN_MAX, Lsn
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.prepared import PreparedFiles
from penstock.engines.mysql.source.unsupported import StreamUnexpected
from penstock.engines.mysql.target.rows_files import RowsFile, pieces_of
from penstock.host import socket as sockets
from penstock.host.errors import ConnectionLost
from penstock.host.files import REAL_FILES
from penstock.host.retry import Backoff
from penstock.log.layout import checked_extension, next_segments
from penstock.model.position import PositionInvalid
from penstock.ports.target import StagingChanged


@pytest.mark.parametrize(("number", "is_right"), [(999_999_999, True), (1_000_000_000, False)])
def test_a_group_of_a_stored_decimal_has_nine_digits(number: int, is_right: bool) -> None:
    """A group of ten would shift all later digits."""
    data = bytearray(number.to_bytes(4, "big"))
    data[0] ^= 0x80
    if is_right:
        assert decimal_digits(bytes(data), 9, 0) == (False, "999999999")
        return
    with pytest.raises(Malformed):
        decimal_digits(bytes(data), 9, 0)


@pytest.mark.parametrize("written", [2, 4])
def test_a_file_of_rows_has_the_size_that_was_written(tmp_path: Path, written: int) -> None:
    """A file that is shorter or longer than what was staged is not applied."""
    path = tmp_path / "rows"
    path.write_bytes(b"abc")
    with (
        pytest.raises(StagingChanged, match="holds 3 bytes"),
        pieces_of(RowsFile(path=path, row_count=1, size_bytes=written), size_bytes=2),
    ):
        pass
    with pieces_of(RowsFile(path=path, row_count=1, size_bytes=3), size_bytes=2) as pieces:
        assert list(pieces) == [b"ab", b"c"]


def test_a_statement_starts_inside_its_event() -> None:
    """Sizes in the head that exceed the event's end are refused."""
    head = bytes(HEAD_BYTES) + struct.pack("<IIBHH", 1, 0, 3, 0, 5)
    start = len(head) + 5 + 3 + 1
    whole = head + bytes(start - len(head))
    assert query_text_start(whole) == start
    for cut in (whole[:-1], head, head[:-1]):
        with pytest.raises(Malformed):
            query_text_start(cut)


@pytest.mark.parametrize("payload", [b"1", b"", b"1\n2"])
def test_a_line_of_copy_ends_with_its_line_end(payload: bytes) -> None:
    """A frame that was cut is not a line."""
    lines = LoadLines([LineCell(form=LineForm.PLAIN)])
    framed = pgwire.copy_data(payload)
    with pytest.raises(TextBroken, match="does not have 1 cells"):
        lines.feed(framed, 0, len(framed))


@pytest.mark.parametrize("name", ["", "tmp", "json", "a.b", "a" * 17, "c/d"])
def test_an_extension_that_could_be_taken_for_something_else_is_refused(name: str) -> None:
    """The log's own small files and temporary ones keep their names."""
    with pytest.raises(ValueError, match="not a usable file extension"):
        checked_extension(name)
    assert checked_extension("a" * 16) == "a" * 16


def test_the_next_segment_is_the_one_behind(tmp_path: Path) -> None:
    """The applied segment is not read again."""
    for number in (3, 4, 5):
        (tmp_path / f"{number}.ckt").touch()
    found = next_segments(tmp_path, after=3, count_max=9)
    assert [file.number for file in found] == [4, 5]


def test_rows_of_an_xa_transaction_that_was_not_begun_are_refused(tmp_path: Path) -> None:
    """Such rows would belong to another transaction's file, or to none."""
    prepared = PreparedFiles(tmp_path, REAL_FILES, ())
    with pytest.raises(StreamUnexpected):
        prepared.append(b"rows")
    with pytest.raises(StreamUnexpected):
        prepared.keep((1, b"a", b"b"), 7)


def test_a_decided_xa_file_stays_until_nothing_leads_back_to_it(tmp_path: Path) -> None:
    """A new start from the exact place of the decision still needs it."""
    prepared = PreparedFiles(tmp_path, REAL_FILES, ())
    prepared.begin(5)
    prepared.append(b"rows")
    prepared.keep((1, b"a", b"b"), 5)
    assert prepared.take((1, b"a", b"b"), 100) is not None
    prepared.forget_decided(100)
    assert len(list(tmp_path.iterdir())) == 1
    prepared.forget_decided(101)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x85aaaaa", b"\x10\x01", b"\x84\xff\xff\xff\xff"])
def test_a_compressed_statement_says_its_size(data: bytes) -> None:
    """The size has one to four bytes, and stays below an event's limit."""
    with pytest.raises(Malformed):
        inflate(data)


# It is stored like one byte, but with another method in its first byte.
DEFLATED = zlib.compress(b"a", wbits=-15)


@pytest.mark.parametrize(
    "data", [b"\x19\x01" + DEFLATED, b"\x90a", b"\x80", b"\x85aaaaa", b"\x82a"]
)
def test_a_compressed_value_says_its_size(data: bytes) -> None:
    """Another method, no size, a size of five bytes, and a cut value are refused."""
    with pytest.raises(Malformed):
        decompress(data)


def test_a_stored_geometry_has_its_head() -> None:
    """The head has nine bytes: SRID, byte order and kind; big-endian is never stored."""
    point = struct.pack("<IBIdd", 0, 1, 1, 1.0, 2.0)
    assert ewkb_hex(point) == point[4:].hex().upper()
    for bad in (point[:8], point[:4] + b"\0" + point[5:]):
        with pytest.raises(Malformed):
            ewkb_hex(bad)


def test_a_message_of_the_server_ends_where_it_says() -> None:
    """A row description whose last column is cut, and a name without an end, are refused."""
    body = struct.pack(">h", 1) + b"a\0" + bytes(18)
    assert pgwire.row_description(body) == ["a"]
    for cut in (body[:-1], struct.pack(">h", 1) + b"a"):
        with pytest.raises(pgwire.WireError):
            pgwire.row_description(cut)
    assert pgwire.parameter_status(b"a\0b\0") == ("a", "b")
    assert pgwire.command_tag(b"COPY 1\0") == "COPY 1"
    with pytest.raises(pgwire.WireError):
        pgwire.parameter_status(b"a\0b")
    with pytest.raises(pgwire.WireError):
        pgwire.command_tag(b"COPY 1")


def test_an_lsn_has_64_bits() -> None:
    """An LSN has no more bits, and no sign."""
    assert str(Lsn(LSN_MAX)) == "FFFFFFFF/FFFFFFFF"
    for wrong in (-1, LSN_MAX + 1):
        with pytest.raises(PositionInvalid):
            Lsn(wrong)


def test_versions_are_compared_by_all_their_numbers() -> None:
    """An equal version counts as new enough; a text without a number is not a version."""
    mysql = ServerVersion.parse("8.0.15")
    assert (mysql.mysql(8, 0, 15), mysql.mysql(8, 0, 16), mysql.mariadb(8)) == (True, False, False)
    with pytest.raises(ValueError, match="no version"):
        ServerVersion.parse("mariadb")


def test_a_back_off_may_be_of_one_attempt_and_without_growth() -> None:
    """Fewer attempts or less growth is refused."""
    assert list(Backoff(attempts=1).waits()) == []
    assert list(Backoff(first_s=2, longest_s=2, attempts=2, jitter=0).waits()) == [2]
    for wrong in ({"attempts": 0}, {"first_s": 3.0, "longest_s": 2.0}, {"first_s": -1.0}):
        with pytest.raises(ValueError, match="not a usable back-off"):
            Backoff(**wrong)  # type: ignore[arg-type]


def test_keys_of_many_columns_stay_distinct() -> None:
    """The numbers of keys do not overflow, however many values each column has."""
    count, width = 2_000, 7
    columns = [pa.array([(7 * n + c * n * n) % count for n in range(count)]) for c in range(width)]
    columns[0] = pa.array(range(count))
    codes = encode([[column] for column in columns], [[column.slice(0, 0)] for column in columns])
    assert len(set(codes.after.tolist())) == count
    assert codes.size == count


def test_a_peer_that_takes_nothing_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unsent data is limited."""
    monkeypatch.setattr(sockets, "UNSENT_BYTES_MAX", 1000)
    ours, theirs = socket.socketpair()
    block: Any = bytes(2**20)

    def send_on() -> None:
        for _ in range(64):
            wire.send(block)

    with sockets.Wire(ours, "test") as wire, theirs, pytest.raises(ConnectionLost):
        send_on()
