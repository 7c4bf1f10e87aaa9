"""Single frames of one file: read and verified, or collected in memory and written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.codec import ckt
from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.codec.columns import batch_schema
from penstock.host import faults
from penstock.host.files import REAL_FILES, AppendFile, Files, ReadFile
from penstock.log.transactions import never_fall
from penstock.model import PenstockError, Relation


class SegmentCorrupt(PenstockError):
    """A file does not hold what was written (a torn tail of an open file is not corruption).

    Fields: path, offset_bytes, expected, actual.
    """

    code = "LG01"
    retry = "operator"


def corrupt(path: Path, error: PenstockError) -> SegmentCorrupt:
    """Return the error for a damaged frame as an error of its file."""
    return SegmentCorrupt(
        f"{path.name} is damaged: {error.message}",
        hint="Run penstock log check to see all damage; put the file back from a copy, or load "
        "its tables afresh.",
        path=str(path),
        **error.fields,
    )


class FrameReader:
    """One file: its verified header, and single frames verified with its salt."""

    def __init__(self, file: ReadFile) -> None:
        """Read the header. Raises SegmentCorrupt, FormatUnknown."""
        self.file = file
        self.path = file.path
        region = file.read(0, ckt.HEADER_REGION_SIZE)
        offset = len(ckt.MAGIC)
        if region[:offset] != ckt.MAGIC:
            raise self.make_damaged("not a segment file", 0, ckt.MAGIC.hex(), region[:offset].hex())
        try:
            if len(region) != ckt.HEADER_REGION_SIZE:
                raise self.make_damaged("header cut short", 0, ckt.HEADER_REGION_SIZE, len(region))
            kind, payload = ckt.verify_frame(region[offset:], ckt.HEADER_SALT, offset)
            if kind is not FrameKind.HEADER:
                raise self.make_damaged("no header", offset, FrameKind.HEADER.name, kind.name)
            self.header = ckt.decode_header(payload)
            self.salt = ckt.checksum_salt(self.header.file_id)
        except ckt.FormatUnknown as error:
            raise ckt.FormatUnknown(
                f"{self.path.name}: {error.message}", hint=error.hint, path=str(self.path)
            ) from error
        except (ckt.FrameInvalid, ValueError) as error:
            if isinstance(error, ckt.FrameInvalid):
                raise corrupt(self.path, error) from error
            raise self.make_damaged("bad file id", offset, "a uuid", str(error)) from error

    def make_damaged(self, phrase: str, offset: int, expected: Any, actual: Any) -> SegmentCorrupt:
        """Return an error that names the place."""
        error = ckt.FrameInvalid(
            f"{phrase} at byte {offset}: expected {expected}, got {actual}",
            offset_bytes=offset,
            expected=expected,
            actual=actual,
        )
        return corrupt(self.path, error)

    def length_at(self, offset: int) -> int:
        """Return the payload length in a frame's head; it is only checked to lie
        inside the file.
        """
        try:
            _, length = ckt.parse_head(self.file.read(offset, ckt.HEAD.size), offset)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error
        room = self.file.size_bytes - offset - ckt.HEAD.size
        if length > room or length % ckt.ALIGNMENT:
            raise self.make_damaged("bad frame length", offset, f"at most {room}", length)
        return length

    def frame(self, offset: int, length: int) -> tuple[FrameKind, pa.Buffer]:
        """Read and verify one frame whose payload length is known; return kind and payload."""
        data = self.file.read(offset, ckt.HEAD.size + length)
        if len(data) != ckt.HEAD.size + length:
            raise self.make_damaged("frame cut short", offset, ckt.HEAD.size + length, len(data))
        try:
            return ckt.verify_frame(data, self.salt, offset)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error


def read_payload(reader: FrameReader, entry: FrameEntry, expected: FrameKind) -> pa.Buffer:
    """Return the verified payload of a frame in an index. Raises SegmentCorrupt."""
    kind, payload = reader.frame(entry.offset_bytes, entry.length_bytes)
    if kind is not expected:
        raise reader.make_damaged("bad kind", entry.offset_bytes, expected.name, kind.name)
    return payload


def read_batch(reader: FrameReader, entry: FrameEntry, relation: Relation) -> pa.RecordBatch:
    """Return the verified rows of a frame in an index. Raises SegmentCorrupt.

    Nothing else of the file is read.

    Args:
        reader: the file.
        entry: the frame.
        relation: the shape of the rows.
    """
    payload = read_payload(reader, entry, FrameKind.ROWS)
    try:
        found = ckt.decode_rows_prefix(payload, entry.offset_bytes)
        if found != entry:
            raise reader.make_damaged("bad index", entry.offset_bytes, entry, found)
        return ckt.decode_batch(ckt.rows_message(payload), batch_schema(relation), entry.row_count)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error


def read_transactions(reader: FrameReader, entry: FrameEntry) -> pa.RecordBatch:
    """Return the verified transactions of a frame in an index. Raises SegmentCorrupt."""
    payload = read_payload(reader, entry, FrameKind.TRANSACTIONS)
    offset = entry.offset_bytes
    try:
        found = ckt.decode_transactions_prefix(payload, offset)
        if found != entry._replace(gsn_first=0, gsn_last=0):
            raise reader.make_damaged("bad index", offset, entry, found)
        batch = ckt.decode_transactions(payload)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error
    if not never_fall(batch.column(0)):
        raise reader.make_damaged("positions fall", offset, "rising ones", "a lower one")
    return batch


def place_entry(
    kind: FrameKind, offset: int, length: int, gsn: int, relation: int = 0
) -> FrameEntry:
    """Return the index entry of a frame without rows, which follows row gsn."""
    return FrameEntry(kind, 0, 0, relation, offset, length, 0, 0, gsn, gsn, 0, 0)


def is_header_torn(path: Path, files: Files = REAL_FILES) -> bool:
    """Return whether an open segment has no whole header yet, so that it holds nothing.

    The writer makes the header durable first. In a longer file a damaged header is therefore
    corruption, and reading it raises an error.
    """
    file = files.open_read(path)
    try:
        if file.size_bytes > ckt.HEADER_REGION_SIZE:
            return False
        FrameReader(file)
    except SegmentCorrupt:
        return True
    finally:
        file.close()
    return False


faults.declare("log.write.before", "log.write.after", "log.fdatasync.before", "log.fdatasync.after")


class FrameBuffer:
    """Frames on their way into one file. Beyond buffer_size_bytes_max they are written out.

    Bytes that were written out are not durable: only sync() makes them so.
    """

    def __init__(self, file: AppendFile, salt: int, buffer_size_bytes_max: int) -> None:
        """Take over a file.

        Args:
            file: positioned at its end, where the next frame will be.
            salt: of the file's checksums.
            buffer_size_bytes_max: limit of the frames in memory.
        """
        self._file = file
        self.salt = salt
        self._parts: list[Any] = []
        self._buffered_bytes = 0
        self._buffer_size_bytes_max = buffer_size_bytes_max
        self.durable_bytes = file.size_bytes

    @property
    def end_bytes(self) -> int:
        """Offset of the next frame."""
        return self._file.size_bytes + self._buffered_bytes

    def add(self, kind: FrameKind, payload: ckt.Parts) -> tuple[int, int]:
        """Add a frame; return its offset and the length of its payload, both in bytes."""
        offset = self.end_bytes
        parts = ckt.frame(kind, self.salt, offset, payload)
        size = sum(len(part) for part in parts)
        self._parts += parts
        self._buffered_bytes += size
        if self._buffered_bytes > self._buffer_size_bytes_max:
            self.write_out()
        return offset, size - ckt.HEAD.size

    def add_raw(self, data: bytes) -> None:
        """Add bytes that are not a frame: the trailer."""
        self._parts.append(data)
        self._buffered_bytes += len(data)

    def write_out(self) -> None:
        """Hand all buffered frames to the operating system."""
        if not self._parts:
            return
        faults.point("log.write.before")
        self._file.append(self._parts)
        self._parts = []
        self._buffered_bytes = 0
        faults.point("log.write.after")

    def sync(self) -> None:
        """Write out, and return once everything is on the disk."""
        self.write_out()
        faults.point("log.fdatasync.before")
        self._file.fdatasync()
        self.durable_bytes = self._file.size_bytes
        faults.point("log.fdatasync.after")

    def close(self) -> None:
        """Close the file; frames still in the buffer are dropped."""
        self._file.close()
