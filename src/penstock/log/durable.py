"""How far the open segment is on the disk: said by the writer after each sync, read by who follows.

A flush point that can be read is not durable yet: its bytes may still be on their way to the disk.
So the writer notes behind every fdatasync up to which byte of which segment that is so, in the
small file `DURABLE` beside the segments. It is never synced itself: what a crash leaves of it tells
at most what was true before. Whoever does not find it reads closed segments.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from penstock.host.files import REAL_FILES, AppendFile, FileMissing, Files, ReadFile
from penstock.model import FlushPoint
from penstock.model.position import POSITION_BYTES, to_bytes, to_ordinal

DURABLE_NAME = "DURABLE"
_MAGIC = b"CKTd"
_BODY = struct.Struct(f"<QQQQq16s{POSITION_BYTES}s")
_HEAD = struct.Struct("<4sI")  # magic, CRC-32 of the body
_SIZE = _HEAD.size + _BODY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """What is on the disk of the open segment: everything before byte size_bytes.

    number, file_id: of the segment. end: the flush point that ends there.
    """

    number: int
    file_id: str
    size_bytes: int
    end: FlushPoint


class DurableMark:
    """The writer's side."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Nothing is opened before there is something to say."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: AppendFile | None = None

    def _opened(self) -> AppendFile:
        if self._file is None:
            there = self._files.exists(self._path)
            self._file = (self._files.open_append if there else self._files.create)(self._path)
            if self._file.size_bytes < _SIZE:
                self._file.append([bytes(_SIZE - self._file.size_bytes)])
        return self._file

    def tell(self, durable: Durable) -> None:
        """Replace what the file says; nothing is synced. Raises FileFailed."""
        end = durable.end
        body = _BODY.pack(
            durable.number,
            durable.size_bytes,
            end.gsn,
            end.trx,
            end.commit_time_us,
            UUID(durable.file_id).bytes,
            to_bytes(end.position),
        )
        self._opened().overwrite(0, _HEAD.pack(_MAGIC, zlib.crc32(body)) + body)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class DurableReader:
    """A reader's side: the file stays open, so that looking costs one read. For one thread."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Nothing is opened before the first look."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: ReadFile | None = None

    def read(self) -> Durable | None:
        """What the writer said last; None where it said nothing, or is saying it just now."""
        if self._file is None:
            try:
                self._file = self._files.open_read(self._path)
            except FileMissing:
                return None
        return _parsed(self._file.read(0, _SIZE))

    def close(self) -> None:
        """Close the file; read() opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_durable(directory: Path, files: Files = REAL_FILES) -> Durable | None:
    """What the writer said last, looked up once; see DurableReader."""
    reader = DurableReader(directory, files)
    try:
        return reader.read()
    finally:
        reader.close()


def _parsed(data: bytes) -> Durable | None:
    if len(data) != _SIZE:
        return None
    magic, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or zlib.crc32(body) != checksum:
        return None
    number, size, gsn, trx, time_us, file_id, position = _BODY.unpack(body)
    return Durable(
        number=number,
        file_id=str(UUID(bytes=file_id)),
        size_bytes=size,
        end=FlushPoint(position=to_ordinal(position), gsn=gsn, trx=trx, commit_time_us=time_us),
    )
