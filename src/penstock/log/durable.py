"""Durable end of the open segment: the writer notes it after each sync, followers read it.

A flush point that can be read is not durable yet: its bytes may still be on their way to the disk.
So after every fdatasync the writer notes the segment and the byte up to which it is durable in the
small file `DURABLE` beside the segments. This file is never synced: after a crash it says at most
what was true before. A reader that does not find it reads closed segments.
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
    """Durable part of the open segment: everything before byte size_bytes.

    Attributes:
        number: number of the segment.
        file_id: file id of the segment.
        size_bytes: first byte that is not durable.
        end: the flush point that ends there.
    """

    number: int
    file_id: str
    size_bytes: int
    end: FlushPoint


class DurableMark:
    """Writer's side of the file."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Open nothing before the first note."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: AppendFile | None = None

    def _open(self) -> AppendFile:
        if self._file is None:
            there = self._files.exists(self._path)
            self._file = (self._files.open_append if there else self._files.create)(self._path)
            if self._file.size_bytes < _SIZE:
                self._file.append([bytes(_SIZE - self._file.size_bytes)])
        return self._file

    def tell(self, durable: Durable) -> None:
        """Replace the contents of the file; nothing is synced. Raises FileFailed."""
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
        self._open().overwrite(0, _HEAD.pack(_MAGIC, zlib.crc32(body)) + body)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class DurableReader:
    """Reader's side: the file stays open, so a look costs one read. For one thread."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Open nothing before the first look."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: ReadFile | None = None

    def read(self) -> Durable | None:
        """Return the writer's last note; None if there is none, or it is being written."""
        if self._file is None:
            try:
                self._file = self._files.open_read(self._path)
            except FileMissing:
                return None
        return _parse(self._file.read(0, _SIZE))

    def close(self) -> None:
        """Close the file; read() opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_durable(directory: Path, files: Files = REAL_FILES) -> Durable | None:
    """Return the writer's last note with a single look; see DurableReader."""
    reader = DurableReader(directory, files)
    try:
        return reader.read()
    finally:
        reader.close()


def _parse(data: bytes) -> Durable | None:
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
