"""The frame codec, byte by byte as docs/ckt-format.md says, and the reader in the docs."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    announced_batch,
    batch_of,
    end_point,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock.codec import ckt
from penstock.codec.columns import (
    NAMED_TRANSACTIONS_SCHEMA,
    POSITION,
    TRANSACTIONS_SCHEMA,
    batch_schema,
)
from penstock.log import Writer, check, load_done, open_segment
from penstock.model import FlushPoint, Marker, MarkerKind
from penstock.model.position import POSITION_MAX, to_bytes

FILE_ID = "00112233-4455-6677-8899-aabbccddeeff"
SALT = ckt.checksum_salt(FILE_ID)
DOCS = Path(__file__).parents[2] / "docs"


def payload(parts: ckt.Parts) -> pa.Buffer:
    """Return parts as a reader sees them."""
    return pa.py_buffer(b"".join(bytes(memoryview(part)) for part in parts))


def build_frame(kind: ckt.FrameKind, parts: ckt.Parts, offset: int = 4096) -> bytes:
    """Return a whole frame."""
    return b"".join(bytes(memoryview(p)) for p in ckt.frame(kind, SALT, offset, parts))


def test_a_frame_is_laid_out_as_documented() -> None:
    """A frame has a head of 16 bytes and a checksum over file id, offset, head and payload."""
    data = build_frame(ckt.FrameKind.MARKER, [b"abcdefgh"], offset=4096)
    kind, flags, reserved, crc, length = struct.unpack("<BBHIQ", data[:16])
    assert (kind, flags, reserved, length, data[16:]) == (4, 0, 0, 8, b"abcdefgh")
    covered = bytes.fromhex(FILE_ID.replace("-", "")) + struct.pack("<QBBHQ", 4096, 4, 0, 0, 8)
    assert crc == google_crc32c.value(covered + b"abcdefgh")


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    """A flipped bit is noticed, and so is a frame at another place or with another file's salt."""
    data = build_frame(ckt.FrameKind.MARKER, [b"abcdefgh"])
    assert ckt.verify_frame(data, SALT, 4096)[1].to_pybytes() == b"abcdefgh"
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ckt.FrameInvalid):
            ckt.verify_frame(bytes(damaged), SALT, 4096)
    with pytest.raises(ckt.FrameInvalid, match="bad checksum"):
        ckt.verify_frame(data, SALT, 4104)
    with pytest.raises(ckt.FrameInvalid, match="bad checksum"):
        ckt.verify_frame(data, SALT + 1, 4096)


def test_an_unknown_kind_or_version_is_never_skipped() -> None:
    """A later version may have changes in frames that this version does not know."""
    head = struct.pack("<QBBHQ", 4096, 99, 0, 0, 0)
    data = struct.pack("<BBHIQ", 99, 0, 0, google_crc32c.extend(SALT, head), 0)
    with pytest.raises(ckt.FormatUnknown, match="unknown frame kind 99"):
        ckt.verify_frame(data, SALT, 4096)
    with pytest.raises(ckt.FormatUnknown, match="format version 4") as caught:
        ckt.decode_header(pa.py_buffer(b'{"format":4}'))
    assert "a later one" in caught.value.hint


# The header of a file that format version 1 wrote.
HEADER_1 = (
    b'{"format":1,"log_id":"00112233-4455-6677-8899-aabbccddeeff","file_id":"00112233-4455-6677-'
    b'8899-aabbccddeeff","number":7,"start":{"position":23820000,"gsn":9,"trx":3,"commit_time_us":'
    b'1},"previous_file_id":"","source":{"engine":"postgresql"},"created_us":1}'
)


def test_format_version_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The header alone is refused, a whole file, and a log of which only the state is left."""
    text = HEADER_1.ljust(4096 - 24)
    with pytest.raises(ckt.FormatUnknown, match="format version 1") as caught:
        ckt.decode_header(pa.py_buffer(text))
    assert caught.value.code == "DC41"
    assert "penstock reset" in caught.value.hint
    parts = ckt.frame(ckt.FrameKind.HEADER, ckt.HEADER_SALT, 8, [text])
    (tmp_path / "7.ckt").write_bytes(b"".join([ckt.MAGIC, *map(bytes, parts)]))
    with pytest.raises(ckt.FormatUnknown, match=r"7.ckt: format version 1"):
        open_segment(tmp_path / "7.ckt")
    raw = b'{"log_id":"a","source":{},"number_next":8,"end":{"position":5,"gsn":9,"trx":3,'
    raw += b'"commit_time_us":1},"last_file_id":"","number_linked":-1,"format":1}'
    crc = google_crc32c.value(raw)
    (tmp_path / "LOG.json").write_bytes(b'{"crc32c":"%08x","state":%b}\n' % (crc, raw))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ckt.FormatUnknown, match="format version 1"):
        Writer.open(tmp_path, log_id=None, source=SOURCE)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert {finding.code for finding in check(tmp_path)} == {"DC41"}
    done = b'{"number_last":7,"end":{"position":5,"gsn":9,"trx":3,"commit_time_us":1}}'
    (tmp_path / "CHANGE.DONE").write_bytes(
        b'{"crc32c":"%08x","state":%b}\n' % (google_crc32c.value(done), done)
    )
    with pytest.raises(ckt.FormatUnknown, match="format version 1"):
        load_done(tmp_path)


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_typed_error_or_a_value(data: bytes) -> None:
    """No parser fails with IndexError or struct.error, whatever the bytes are."""
    buffer = pa.py_buffer(data)
    for parse in (
        ckt.decode_header,
        ckt.decode_marker,
        ckt.decode_relation,
        ckt.decode_transactions,
        ckt.decode_flush_point,
        ckt.decode_footer,
        lambda buffer: ckt.decode_rows_prefix(buffer, 0),
        lambda buffer: ckt.decode_batch(buffer, TRANSACTIONS_SCHEMA, 1),
        lambda buffer: ckt.decode_trailer(buffer.to_pybytes(), 0, 100),
        lambda buffer: ckt.verify_frame(buffer.to_pybytes(), 0, 0),
    ):
        try:
            parse(buffer)
        except (ckt.FrameInvalid, ckt.FormatUnknown):
            continue


def test_payloads_come_back_as_they_were() -> None:
    """Each kind of frame is checked."""
    header = ckt.SegmentHeader(
        format=ckt.FORMAT_VERSION,
        log_id=FILE_ID,
        file_id=FILE_ID,
        number=7,
        start=FlushPoint(position=POSITION_MAX, gsn=2**62, trx=3, commit_time_us=-5),
        previous_file_id="",
        source=SOURCE,
        created_us=1,
    )
    assert ckt.decode_header(payload(ckt.encode_header(header))) == header
    for relation in (ITEM, ITEM_2, EVENT):
        found = ckt.decode_relation(payload(ckt.encode_relation(9, relation)))
        assert found == (9, relation)
    marker = Marker(
        kind=MarkerKind.DDL,
        gsn=1,
        trx=2,
        position=2**100 + 1,
        commit_time_us=4,
        tables=(("ä", "t\n"),),
        data={"sql": "alter", "n": [1, None, {"x": 0.5}]},
    )
    assert ckt.decode_marker(payload(ckt.encode_marker(marker))) == marker
    flush = ckt.FlushFrame(
        point=end_point(4, 9), durable_bytes=5, row_count=6, marker_count=7, written_us=8
    )
    assert ckt.decode_flush_point(payload(ckt.encode_flush_point(flush))) == flush
    totals = ckt.Totals(
        end=FlushPoint(position=2**127),
        rows=0,
        markers=0,
        transactions=0,
        flush_points=1,
        closed_us=5,
    )
    assert ckt.decode_footer(payload(ckt.encode_footer([], totals))) == ((), totals)
    batch = announced_batch([4, 5])
    assert batch is not None
    entry = transactions_entry(2, first=4)
    parts = [ckt.encode_transactions_prefix(entry), batch.serialize()]
    assert ckt.decode_transactions_prefix(payload(parts), 0) == entry._replace(
        length_bytes=payload(parts).size
    )
    assert ckt.decode_transactions(payload(parts)).equals(batch)


def transactions_entry(count: int, *, first: int, flags: int = 0) -> ckt.FrameEntry:
    """Return the fixed part of a transactions frame."""
    kind = ckt.FrameKind.TRANSACTIONS
    return ckt.FrameEntry(kind, 0, flags, 0, 0, 0, count, 0, 0, 0, first, first + count - 1)


def test_a_transactions_frame_is_laid_out_as_documented() -> None:
    """The frame has 24 bytes, then the batch; a source's ids may be text."""
    prefix = ckt.encode_transactions_prefix(transactions_entry(2, first=7, flags=2))
    assert prefix == struct.pack("<IIqq", 2, 2, 7, 8)
    names = pa.array(["0000:000003f2", "å"])
    positions = pa.array([to_bytes(2**79), to_bytes(2**80)], POSITION)
    named = pa.RecordBatch.from_arrays(
        [
            positions,
            positions,
            pa.array([1, 2], TRANSACTIONS_SCHEMA.field(2).type),
            names,
            pa.array([0, 9], pa.uint16()),
        ],
        schema=NAMED_TRANSACTIONS_SCHEMA,
    )
    found = ckt.decode_transactions(payload([prefix, named.serialize()]))
    assert found.equals(named)
    wrong = struct.pack("<IIqq", 2, 0, 7, 9)
    with pytest.raises(ckt.FrameInvalid, match="bad transactions frame"):
        ckt.decode_transactions_prefix(payload([wrong]), 0)


@given(position=st.integers(0, POSITION_MAX), other=st.integers(0, POSITION_MAX))
def test_positions_are_ordered_as_their_bytes_and_their_texts(position: int, other: int) -> None:
    """Positions are 16 bytes in frames, 32 hex digits in JSON; numbers fill the last bytes."""
    point, more = FlushPoint(position=position), FlushPoint(position=other)
    frames = [
        ckt.FlushFrame(point=one, durable_bytes=0, row_count=0, marker_count=0, written_us=0)
        for one in (point, more)
    ]
    first, second = (payload(ckt.encode_flush_point(frame)).to_pybytes() for frame in frames)
    assert (first[:16] < second[:16]) == (position < other)
    assert first[:16] == position.to_bytes(16, "big")
    texts = [ckt.plain(frame, "point")["point"]["position"] for frame in frames]
    assert (texts[0] < texts[1]) == (position < other)
    assert ckt.place(ckt.plain(frames[0], "point"), ckt.FlushFrame, "point") == frames[0]


def test_a_source_identity_that_does_not_fit_the_header_is_refused() -> None:
    """The header frame always ends at byte 4096."""
    header = ckt.SegmentHeader(
        format=ckt.FORMAT_VERSION,
        log_id=FILE_ID,
        file_id=FILE_ID,
        number=0,
        start=FlushPoint(position=0),
        previous_file_id="",
        source={"x": "y" * 5000},
        created_us=1,
    )
    with pytest.raises(ValueError, match="at most 4072"):
        ckt.encode_header(header)


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
@pytest.mark.parametrize("count", [1, 10, 5000])
def test_batches_are_messages_that_pyarrow_reads(count: int, compression: str | None) -> None:
    """One encoder writes many batches, also slices; small ones stay uncompressed."""
    encoder = ckt.MessageEncoder(batch_schema(ITEM), compression)
    whole = batch_of(ITEM, number_rows([inserts(count + 3)])[0]).batch
    for batch in (whole.slice(0, count), whole.slice(3), whole.slice(1, 1)):
        message = payload(encoder.encode(batch))
        assert message.size % 8 == 0
        assert ckt.decode_batch(message, batch_schema(ITEM), batch.num_rows).equals(batch)
    with pytest.raises(ckt.FrameInvalid, match="expected 2"):
        ckt.decode_batch(message, batch_schema(ITEM), 2)
    with pytest.raises(ValueError, match="schema"):
        encoder.encode(batch_of(EVENT, []).batch)


def test_rows_of_another_layout_are_refused() -> None:
    """The Arrow schema of a relation frame must be the one that its types imply."""
    parts = ckt.encode_relation(1, ITEM)
    other = ckt.encode_relation(1, EVENT)
    with pytest.raises(ckt.FormatUnknown, match="laid out"):
        ckt.decode_relation(payload([parts[0], parts[1], other[2]]))


@pytest.fixture(scope="module")
def segment_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed segment on the real disk."""
    directory = tmp_path_factory.mktemp("log")
    with Writer.open(directory, log_id=None, source=SOURCE) as log:
        log.write(run_of(number_rows([inserts(1000)])[0], markers=[truncate(10, 1, "item")]))
        log.rotate()
    return directory / "0.ckt"


def test_the_file_is_laid_out_as_documented(segment_path: Path) -> None:
    """The header ends at 4096; frames without gaps, a footer and a trailer follow."""
    data = segment_path.read_bytes()
    assert data[:8] == b"\x89CKT\r\n\x1a\n"
    offset, kinds = 8, []
    while offset < len(data) - 32:
        kind, _, _, _, length = struct.unpack_from("<BBHIQ", data, offset)
        kinds.append((offset, kind))
        offset += 16 + length
    assert [kind for _, kind in kinds] == [1, 2, 3, 4, 5, 6, 7]
    assert kinds[1][0] == 4096
    footer, size, zero, _, magic = struct.unpack("<QQII8s", data[-32:])
    assert (footer, size, zero, magic) == (kinds[-1][0], len(data), 0, b"CKT-END\n")
    count, _ = struct.unpack_from("<II", data, footer + 16)
    entry = struct.unpack_from("<BBHIQQIIqqqq", data, footer + 24 + 2 * 64)
    assert count == 6
    assert entry[:2] + entry[3:5] == (3, 0, 1, kinds[2][0])
    assert entry[-2:] == (1, 1)
    rows, transactions, point = kinds[2][0] + 16, kinds[4][0] + 16, kinds[5][0] + 16
    assert struct.unpack_from("<IIIIqqqq", data, rows) == (1, 1000, 2, 0, 1, 1000, 1, 1)
    assert struct.unpack_from("<IIqq", data, transactions) == (1, 0, 1, 1)
    assert data[point : point + 16] == bytes(15) + bytes([150])
    assert struct.unpack_from("<qq", data, point + 16) == (1000, 1)
    with open_segment(segment_path) as segment:
        assert len(segment.entries) == 6


def test_the_reader_in_the_docs_reads_with_pyarrow_alone(segment_path: Path) -> None:
    """The reader has thirty lines, imports nothing of penstock, and prints every row."""
    script = DOCS / "examples" / "read_ckt.py"
    source = script.read_text()
    assert len(source.splitlines()) <= 30
    assert "penstock" not in source
    done = subprocess.run(
        [sys.executable, str(script), str(segment_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1000
    assert lines[0].startswith("1 I public item ")
    assert "note 999" in lines[-1]


def test_the_format_page_names_every_kind_flag_and_size() -> None:
    """The numbers of page and code cannot diverge."""
    page = (DOCS / "ckt-format.md").read_text()
    for kind in ckt.FrameKind:
        assert f"| {kind.value} | {kind.name.lower().replace('_', ' ')} |" in page
    for marker in MarkerKind:
        assert f"| `{marker}` |" in page
    assert ckt.HEADER_REGION_SIZE == 4096
    assert f"version {ckt.FORMAT_VERSION}\n" in page
    assert (ckt.HEAD.size, ckt.FLUSH_POINT_SIZE, ckt.TRAILER_SIZE) == (16, 72, 32)
