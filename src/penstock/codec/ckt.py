"""Encoding and decoding of `.ckt` files: frames and payloads. The format is in docs/ckt-format.md.

Pure: no files here (`penstock.log` reads and writes them), and no decision about what a broken
frame means: FrameInvalid says what is wrong, the reader knows the file.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import msgspec
import pyarrow as pa

from penstock.codec.columns import (
    NAMED_TRANSACTIONS_SCHEMA,
    TRANSACTIONS_SCHEMA,
    batch_schema,
)
from penstock.model import LOAD_AGAIN, FlushPoint, Marker, PenstockError, Relation
from penstock.model.position import POSITION_BYTES, to_bytes, to_ordinal

MAGIC = b"\x89CKT\r\n\x1a\n"  # as PNG's: shows text-mode copies and stripped eighth bits
MAGIC_END = b"CKT-END\n"
FORMAT_VERSION = 3
ALIGNMENT = 8
HEADER_REGION_SIZE = 4096  # magic and header frame, alone on a page: durable before any row

HEAD = struct.Struct("<BBHIQ")  # kind, flags (0), reserved (0), crc32c, payload length
_CHECKED = struct.Struct("<QBBHQ")  # what the checksum covers before the payload
_ROWS = struct.Struct("<IIIIqqqq")
_TRANSACTIONS = struct.Struct("<IIqq")
_FLUSH_POINT = struct.Struct(f"<{POSITION_BYTES}sqqqQQQQ")
_PAIR = struct.Struct("<II")
_ENTRY = struct.Struct("<BBHIQQIIqqqq")
_TRAILER = struct.Struct("<QQII8s")
_TRAILER_CHECKED = struct.Struct("<QQI")
TRAILER_SIZE = _TRAILER.size
FLUSH_POINT_SIZE = _FLUSH_POINT.size

COMPRESS_FROM_BYTES = 4096  # smaller batches grow when compressed, and a reader pays for nothing

Parts = list[Any]  # buffers to be written one behind the other
_Decoded = TypeVar("_Decoded")


class FrameInvalid(PenstockError):
    """Bytes that are not the expected frame. fields: offset_bytes, expected, actual."""

    code = "DC40"
    retry = "never"


class FormatUnknown(PenstockError):
    """The file is of another format version, or holds a frame kind this version does not know."""

    code = "DC41"
    retry = "operator"


class FrameKind(IntEnum):
    """Kind of a frame. Files contain these numbers: never change one."""

    HEADER = 1
    RELATION = 2
    ROWS = 3
    MARKER = 4
    TRANSACTIONS = 5
    FLUSH_POINT = 6
    FOOTER = 7


class RowsFlag(IntFlag):
    """Contents of a rows frame; a reader can skip the frame without decoding it."""

    ABSENT = 1  # some column of some row was not sent
    INSERT = 2
    UPDATE = 4
    DELETE = 8


class TransactionsFlag(IntFlag):
    """Contents of a transactions frame."""

    COMMITS = 1  # BEGIN and COMMIT are wanted where the log is printed (processCommits)
    NAMED = 2  # the source's ids are text, not numbers


class FrameEntry(NamedTuple):
    """One frame in the footer's index.

    Attributes:
        offset_bytes: where the frame's head begins.
        length_bytes: length of the payload.
        relation_id: relation of a rows or relation frame; 0 otherwise.
        row_count: number of rows, or of transactions in a transactions frame.
        gsn_first, gsn_last: GSNs of the rows. A frame without rows stands after row gsn_last.
        trx_first, trx_last: numbers of the rows' transactions, or of the transactions; 0 otherwise.
    """

    kind: int
    frame_flags: int
    flags: int
    relation_id: int
    offset_bytes: int
    length_bytes: int
    row_count: int
    updates_with_before: int
    gsn_first: int
    gsn_last: int
    trx_first: int
    trx_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The first frame of a file.

    Attributes:
        log_id: id of the whole log.
        file_id: id of this file alone. It salts every checksum, so a frame of another file is never
            accepted.
        start: where the previous segment ended.
        previous_file_id: id of the previous segment; empty for the first one.
        source: identity of the captured database; equal in all segments of a log.
        created_us: wall time in microseconds, for people.
    """

    format: int
    log_id: str
    file_id: str
    number: int
    start: FlushPoint
    previous_file_id: str
    source: dict[str, str]
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTotals:
    """Totals of one relation version in a segment. The version became current after row `gsn`."""

    id: int
    schema: str
    name: str
    version: int
    gsn: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of a segment in its footer; `end` is the last flush point."""

    end: FlushPoint
    rows: int
    markers: int
    transactions: int
    flush_points: int
    closed_us: int
    tables: tuple[TableTotals, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushFrame:
    """A flush point in a file.

    Attributes:
        durable_bytes: number of bytes from the file's start that were known to be on disk when this
            frame was written. Damage below that in an open file is corruption, never a torn tail.
        row_count, marker_count: numbers in the file up to this frame.
        written_us: wall time in microseconds.
    """

    point: FlushPoint
    durable_bytes: int
    row_count: int
    marker_count: int
    written_us: int


def checksum_salt(file_id: str) -> int:
    """Return the checksum that every frame of the file starts from. Raises ValueError
    for a bad id.
    """
    return int(google_crc32c.value(uuid.UUID(file_id).bytes))


HEADER_SALT = 0  # the header frame holds the file id, so it cannot be salted with it


def _checksum(salt: int, offset_bytes: int, kind: int, length: int, parts: Iterable[Any]) -> int:
    crc = google_crc32c.extend(salt, _CHECKED.pack(offset_bytes, kind, 0, 0, length))
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return int(crc)


def frame(kind: FrameKind, salt: int, offset_bytes: int, parts: Parts) -> Parts:
    """Put a head before a payload. offset_bytes: where in the file the head will be."""
    length = sum(len(part) for part in parts)
    if length % ALIGNMENT:
        raise ValueError(f"payload of {length} bytes is not aligned")
    crc = _checksum(salt, offset_bytes, kind, length, parts)
    return [HEAD.pack(kind, 0, 0, crc, length), *parts]


def parse_head(head: bytes, offset_bytes: int) -> tuple[int, int]:
    """Return a frame's kind and payload length from its head of 16 bytes, which is not verified."""
    if len(head) < HEAD.size:
        raise _invalid("frame head cut short", offset_bytes, HEAD.size, len(head))
    kind, _, _, _, length = HEAD.unpack_from(head)
    return kind, length


def verify_frame(data: bytes, salt: int, offset_bytes: int) -> tuple[FrameKind, pa.Buffer]:
    """Check one whole frame (head and payload); return its kind and, without a copy, its payload.

    Raises FrameInvalid if length or checksum differ, FormatUnknown for an unknown kind whose
    checksum is right.
    """
    kind, length = parse_head(data, offset_bytes)
    if length != len(data) - HEAD.size:
        raise _invalid("bad frame length", offset_bytes, len(data) - HEAD.size, length)
    _, flags, reserved, expected, _ = HEAD.unpack_from(data)
    payload = pa.py_buffer(data)[HEAD.size :]
    crc = _checksum(salt, offset_bytes, kind, length, (payload,))
    if crc != expected or flags or reserved:
        raise _invalid("bad checksum", offset_bytes, f"{expected:08x}", f"{crc:08x}")
    try:
        return FrameKind(kind), payload
    except ValueError as error:
        raise FormatUnknown(
            f"unknown frame kind {kind} at byte {offset_bytes}",
            hint="This file was written by a later version of penstock; upgrade this one.",
        ) from error


def _invalid(phrase: str, offset_bytes: int, expected: Any, actual: Any) -> FrameInvalid:
    return FrameInvalid(
        f"{phrase} at byte {offset_bytes}: expected {expected}, got {actual}",
        offset_bytes=offset_bytes,
        expected=expected,
        actual=actual,
    )


# --- JSON payloads -----------------------------------------------------------------------------


def _pad(data: bytes, fill: bytes = b" ") -> bytes:
    return data + fill * (-len(data) % ALIGNMENT)


def _decode_json(
    data: bytes | pa.Buffer, kind: type[_Decoded], what: str, at: str = ""
) -> _Decoded:
    """Decode JSON into a dataclass. Raises FrameInvalid if it does not fit (right checksum, wrong
    content).
    """
    try:
        if not at:
            return msgspec.json.decode(data, type=kind)
        return place(msgspec.json.decode(data, type=dict[str, Any]), kind, at)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise FrameInvalid(f"unreadable {what}: {error}") from error


def plain(value: Any, at: str) -> dict[str, Any]:
    """Return the JSON form of a dataclass. Its position becomes 32 hex digits, which sort like it.

    at: the key of the flush point that holds the position, or `position` itself.
    """
    found: dict[str, Any] = msgspec.to_builtins(value)
    holder = found if at == "position" else found[at]
    holder["position"] = to_bytes(holder["position"]).hex()
    return found


def place(found: dict[str, Any], kind: type[_Decoded], at: str) -> _Decoded:
    """Return the dataclass that `plain` turned into a dict.

    Raises msgspec's errors, ValueError, and FormatUnknown if the position is a number, as in
    format version 1.
    """
    holder = found if at == "position" else found.get(at)
    text = holder.get("position") if isinstance(holder, dict) else None
    if isinstance(text, int):
        raise format_unknown(1)
    if not isinstance(holder, dict) or not isinstance(text, str) or len(text) != 32:
        raise ValueError("no position of 32 hex digits")
    holder["position"] = to_ordinal(bytes.fromhex(text))
    return msgspec.convert(found, kind)


def format_unknown(version: Any) -> FormatUnknown:
    """Return the error for a log of another format version."""
    hint = "Read the log with the version of penstock that wrote it, or a later one."
    if version in (1, 2):
        hint = (
            "It was written by an earlier penstock: let that version apply what is not applied "
            f"yet and remove the log, or {LOAD_AGAIN}"
        )
    return FormatUnknown(
        f"format version {version}, this penstock reads {FORMAT_VERSION}", hint=hint
    )


def encode_header(header: SegmentHeader) -> Parts:
    """Return the payload of a header frame, padded so that the frame ends at HEADER_REGION_SIZE.

    Raises ValueError when the source identity is too long for that.
    """
    text = msgspec.json.encode(plain(header, "start"))
    room = HEADER_REGION_SIZE - len(MAGIC) - HEAD.size
    if len(text) > room:
        raise ValueError(f"segment header of {len(text)} bytes, at most {room}")
    return [text.ljust(room)]


def decode_header(payload: pa.Buffer) -> SegmentHeader:
    """Return the header. Raises FormatUnknown for another version, FrameInvalid if unreadable."""
    version = _decode_json(payload, dict[str, Any], "header").get("format")
    if version != FORMAT_VERSION:
        raise format_unknown(version)
    return _decode_json(payload, SegmentHeader, "header", "start")


def encode_marker(marker: Marker) -> Parts:
    """Return the payload of a marker frame."""
    return [_pad(msgspec.json.encode(plain(marker, "position")))]


def decode_marker(payload: pa.Buffer) -> Marker:
    """Return the marker. Raises FrameInvalid if it is unreadable."""
    return _decode_json(payload, Marker, "marker", "position")


def encode_relation(relation_id: int, relation: Relation) -> Parts:
    """Return a relation frame's payload: id, relation as JSON, batch schema as an Arrow message."""
    text = _pad(msgspec.json.encode(relation))
    schema = batch_schema(relation).serialize()
    return [_PAIR.pack(relation_id, len(text)), text, _pad(bytes(schema), b"\0")]


def decode_relation(payload: pa.Buffer) -> tuple[int, Relation]:
    """Return id and relation. Equal shapes become the same object, whichever file they are from."""
    if payload.size < _PAIR.size:
        raise FrameInvalid(f"relation frame of {payload.size} bytes is too short")
    relation_id, text_length = _PAIR.unpack_from(payload)
    body = payload[_PAIR.size :]
    return relation_id, _relation_of(body.to_pybytes(), text_length)


@lru_cache(maxsize=1024)
def _relation_of(body: bytes, text_length: int) -> Relation:
    relation = _decode_json(body[:text_length], Relation, "relation")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(body)[text_length:])
        matches = schema.equals(batch_schema(relation))
    except (pa.ArrowException, KeyError, OSError, EOFError) as error:
        raise FrameInvalid(f"unreadable schema of {relation.full_name}: {error}") from error
    if not matches:
        raise FormatUnknown(
            f"rows of {relation.full_name} are laid out in a way this penstock does not know",
            hint="Read the file with the version of penstock that wrote it, or a later one.",
        )
    return relation


# --- Arrow payloads ----------------------------------------------------------------------------


class MessageParts:
    """File object that collects the buffers that pyarrow's stream writer writes."""

    closed = False

    def __init__(self) -> None:
        self.parts: Parts = []

    def write(self, data: Any) -> int:
        """Keep the buffer itself."""
        self.parts.append(data)
        return len(data)

    def take(self) -> Parts:
        """Return the collected buffers, and begin again."""
        parts, self.parts = self.parts, []
        return parts

    def tell(self) -> int:
        """Return 0: the stream format does not use the position."""
        return 0

    def flush(self) -> None:
        """Do nothing: no data is held back."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def readable(self) -> bool:
        """Return False: the object is only written to."""
        return False

    def writable(self) -> bool:
        """Return True: the object is only written to."""
        return True

    def seekable(self) -> bool:
        """Return False: the file is written from start to end."""
        return False


class MessageEncoder:
    """Encoder of record batches of one schema as Arrow IPC messages with compressed bodies.

    It keeps one stream writer, and drops the writer's schema message: a new writer for each batch
    costs more than twice as much for batches of 50,000 rows. Not thread-safe.
    """

    def __init__(self, schema: pa.Schema, compression: str | None = "lz4") -> None:
        """Keep the compression: lz4, zstd or None."""
        self._sink = MessageParts()
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)
        self._schema_written = False
        self._schema = schema
        self._compression = compression

    def encode(self, batch: pa.RecordBatch) -> Parts:
        """Return one encapsulated message, aligned to 8 bytes. Raises ValueError for another
        schema.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError("batch does not have the schema of its relation")
        if self._compression is None or batch.nbytes < COMPRESS_FROM_BYTES:
            return [batch.serialize()]
        if not self._schema_written:
            self._writer.write_batch(batch.slice(0, 0))  # forces the schema message out
            self._schema_written = True
        self._sink.take()
        self._writer.write_batch(batch)
        return self._sink.take()


def decode_batch(message: pa.Buffer, schema: pa.Schema, row_count: int) -> pa.RecordBatch:
    """Return the batch in a verified frame's Arrow message. Raises FrameInvalid if it
    does not fit.
    """
    try:
        batch = pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise FrameInvalid(f"unreadable record batch: {error}") from error
    if batch.num_rows != row_count:
        raise FrameInvalid(f"record batch of {batch.num_rows} rows, expected {row_count}")
    return batch


def encode_rows_prefix(entry: FrameEntry) -> bytes:
    """Return the fixed part of a rows frame, before its Arrow message."""
    return _ROWS.pack(
        entry.relation_id,
        entry.row_count,
        entry.flags,
        entry.updates_with_before,
        entry.gsn_first,
        entry.gsn_last,
        entry.trx_first,
        entry.trx_last,
    )


def decode_rows_prefix(payload: pa.Buffer, offset_bytes: int) -> FrameEntry:
    """Return the index entry in a rows frame's fixed part."""
    if payload.size < _ROWS.size:
        raise _invalid("rows frame too short", offset_bytes, _ROWS.size, payload.size)
    relation_id, rows, flags, updates, *bounds = _ROWS.unpack_from(payload)
    return FrameEntry(
        FrameKind.ROWS, 0, flags, relation_id, offset_bytes, payload.size, rows, updates, *bounds
    )


def rows_message(payload: pa.Buffer) -> pa.Buffer:
    """Return the Arrow message after a rows frame's fixed part."""
    return payload[_ROWS.size :]


def encode_transactions_prefix(entry: FrameEntry) -> bytes:
    """Return the fixed part of a transactions frame, before its Arrow message."""
    return _TRANSACTIONS.pack(entry.row_count, entry.flags, entry.trx_first, entry.trx_last)


def decode_transactions_prefix(payload: pa.Buffer, offset_bytes: int) -> FrameEntry:
    """Return the index entry in a transactions frame's fixed part, its gsn still 0."""
    if payload.size < _TRANSACTIONS.size:
        raise _invalid(
            "transactions frame too short", offset_bytes, _TRANSACTIONS.size, payload.size
        )
    count, flags, first, last = _TRANSACTIONS.unpack_from(payload)
    if flags > 0xFFFF or count != last - first + 1:
        raise _invalid("bad transactions frame", offset_bytes, last - first + 1, count)
    kind = FrameKind.TRANSACTIONS
    return FrameEntry(kind, 0, flags, 0, offset_bytes, payload.size, count, 0, 0, 0, first, last)


def transactions_schema(flags: int) -> pa.Schema:
    """Return the schema of a transactions frame with these flags."""
    return NAMED_TRANSACTIONS_SCHEMA if flags & TransactionsFlag.NAMED else TRANSACTIONS_SCHEMA


def decode_transactions(payload: pa.Buffer) -> pa.RecordBatch:
    """Return the transactions of a frame, in order of their numbers. Raises FrameInvalid."""
    entry = decode_transactions_prefix(payload, 0)
    return decode_batch(
        payload[_TRANSACTIONS.size :], transactions_schema(entry.flags), entry.row_count
    )


# --- flush points, footer, trailer -------------------------------------------------------------


def encode_flush_point(flush: FlushFrame) -> Parts:
    """Return the payload of a flush point frame."""
    point = flush.point
    return [
        _FLUSH_POINT.pack(
            to_bytes(point.position),
            point.gsn,
            point.trx,
            point.commit_time_us,
            flush.durable_bytes,
            flush.row_count,
            flush.marker_count,
            flush.written_us,
        )
    ]


def decode_flush_point(payload: pa.Buffer) -> FlushFrame:
    """Return the flush point. Raises FrameInvalid if its payload has a wrong size."""
    if payload.size != _FLUSH_POINT.size:
        raise FrameInvalid(f"flush point of {payload.size} bytes, expected {_FLUSH_POINT.size}")
    position, gsn, trx, time_us, durable, rows, markers, written = _FLUSH_POINT.unpack(payload)
    point = FlushPoint(position=to_ordinal(position), gsn=gsn, trx=trx, commit_time_us=time_us)
    return FlushFrame(
        point=point,
        durable_bytes=durable,
        row_count=rows,
        marker_count=markers,
        written_us=written,
    )


FLUSH_POINT_HEAD_START = HEAD.pack(FrameKind.FLUSH_POINT, 0, 0, 0, 0)[:4]
"""The first bytes of a flush point's head, by which one is found after damaged bytes."""


def encode_footer(entries: Sequence[FrameEntry], totals: Totals) -> Parts:
    """Return the payload of a footer frame: counts, the index, the totals as JSON."""
    text = _pad(msgspec.json.encode(plain(totals, "end")))
    index = b"".join(_ENTRY.pack(*entry) for entry in entries)
    return [_PAIR.pack(len(entries), len(text)), index, text]


def decode_footer(payload: pa.Buffer) -> tuple[tuple[FrameEntry, ...], Totals]:
    """Return index and totals. Raises FrameInvalid if the parts do not add up."""
    if payload.size < _PAIR.size:
        raise FrameInvalid(f"footer of {payload.size} bytes is too short")
    entry_count, text_length = _PAIR.unpack_from(payload)
    index_end = _PAIR.size + entry_count * _ENTRY.size
    if payload.size != index_end + text_length:
        raise FrameInvalid(f"footer of {payload.size} bytes, {index_end + text_length} expected")
    index = memoryview(payload)[_PAIR.size : index_end]
    entries = tuple(map(FrameEntry._make, _ENTRY.iter_unpack(index)))
    return entries, _decode_json(payload[index_end:], Totals, "footer", "end")


def encode_trailer(salt: int, footer_offset_bytes: int, file_size_bytes: int) -> bytes:
    """Return the last 32 bytes of a closed file. file_size_bytes: size including the trailer."""
    checked = _TRAILER_CHECKED.pack(footer_offset_bytes, file_size_bytes, 0)
    crc = google_crc32c.extend(salt, checked)
    return _TRAILER.pack(footer_offset_bytes, file_size_bytes, 0, crc, MAGIC_END)


def decode_trailer(data: bytes, salt: int, file_size_bytes: int) -> int:
    """Return the offset of the footer frame. Raises FrameInvalid if the bytes are not a trailer."""
    offset = file_size_bytes - TRAILER_SIZE
    if len(data) != TRAILER_SIZE:
        raise _invalid("trailer cut short", max(offset, 0), TRAILER_SIZE, len(data))
    footer_offset, size, _, crc, magic = _TRAILER.unpack(data)
    if magic != MAGIC_END:
        raise _invalid("no trailer", offset, MAGIC_END.hex(), magic.hex())
    expected = google_crc32c.extend(salt, data[: _TRAILER_CHECKED.size])
    if crc != expected:
        raise _invalid("bad trailer checksum", offset, f"{expected:08x}", f"{crc:08x}")
    if size != file_size_bytes:
        raise _invalid("bad file size", offset, size, file_size_bytes)
    return int(footer_offset)
