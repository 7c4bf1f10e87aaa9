"""Open file of a writer: frames are collected in memory and written out in large pieces."""

from __future__ import annotations

from typing import Any

from penstock.codec import ckt
from penstock.codec.ckt import FrameKind
from penstock.host import faults
from penstock.host.files import AppendFile

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
