"""Rows of transactions as they wait for their commit, in memory or in side files.

What memory does not hold goes to one file, as frames of a length and entries of one transaction in
MessagePack. The file is of one window: the next one reads the redo again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.codec.oracle.redo_outcome import RedoRow
from penstock.engines.oracle.source.errors import SpillBroken
from penstock.host.faults import declare, point
from penstock.host.files import AppendFile, Files, ReadFile

SUFFIX = ".spill"
FRAME_ROWS = 16_384
BLOCK_BYTES = 1024 * 1024  # written or read by one call
_LENGTH = struct.Struct(">I")

# Flags of Entry.code, above OPERATION_CODE; an unreadable row's reason is above all flags.
UNDO = 1 << 10
MISMATCH = 1 << 11
UNREADABLE = 1 << 12
REASON_BITS = 16
OPERATION = (1 << 10) - 1

declare("oracle.spill.before", "oracle.spill.after")


class Entry(RedoRow, frozen=True, array_like=True, gc=False):
    """A row for the decoder as it waits for its transaction's commit.

    Attributes:
        code: OPERATION_CODE with flags.
        row_id: ROW_ID, or that of the INTERNAL row after it.
    """

    code: int
    row_id: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])


Frame = tuple[int, int]
"""Offset and length of entries in the side file."""


class Spill:
    """Side file of one window. Used by one thread.

    Many small transactions are written and read as one block, because a system call for each one
    would take longer than its rows.

    Attributes:
        size_bytes: Size of the file, with the frames that wait for the next write.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        """Create the directory if it is missing, and remove files of earlier windows."""
        self.size_bytes = 0
        self._path = directory / f"redo{SUFFIX}"
        self._files = files
        self._file: AppendFile | None = None
        self._reading: ReadFile | None = None
        self._waiting: list[bytes] = []
        self._written_bytes = 0
        self._block = b""
        self._block_at = 0
        files.make_directory(directory)
        for name in files.listdir(directory):
            if name.endswith(SUFFIX):
                files.unlink(directory / name)

    def append(self, entries: list[Entry]) -> list[Frame]:
        """Write entries at the end, at once or with later ones; return their frames."""
        point("oracle.spill.before")
        frames = []
        for at in range(0, len(entries), FRAME_ROWS):
            data = _encoder.encode(entries[at : at + FRAME_ROWS])
            self._waiting += (_LENGTH.pack(len(data)), data)
            frames.append((self.size_bytes, len(data)))
            self.size_bytes += _LENGTH.size + len(data)
            if self.size_bytes - self._written_bytes >= BLOCK_BYTES:
                self._write()
        point("oracle.spill.after")
        return frames

    def _write(self) -> None:
        """Write the frames that wait."""
        if self._file is None:
            self._file = self._files.create(self._path)
        waiting, self._waiting = self._waiting, []
        is_one = len(waiting) == 2  # which may be a long one, and is not copied
        self._file.append(waiting if is_one else [b"".join(waiting)])
        self._written_bytes = self.size_bytes

    def read(self, frame: Frame) -> list[Entry]:
        """Return the entries of a frame. Raises SpillBroken."""
        offset, length = frame
        data = self._bytes(offset, _LENGTH.size + length)
        try:
            if data[: _LENGTH.size] != _LENGTH.pack(length):
                raise SpillBroken(f"the side file {self._path.name} is not as it was written")
            return _decoder.decode(data[_LENGTH.size :])
        except msgspec.DecodeError as error:
            raise SpillBroken(
                f"the side file {self._path.name} is not as it was written"
            ) from error

    def _bytes(self, offset: int, length: int) -> memoryview:
        """Return a part of the file; of frames that follow each other closely, a block is read."""
        after = offset - self._block_at
        if not 0 <= after <= len(self._block) - length:
            if self._written_bytes < self.size_bytes:
                self._write()
            if self._reading is None:
                self._reading = self._files.open_read(self._path)
            if length > BLOCK_BYTES:
                return memoryview(self._reading.read(offset, length))
            is_near = 0 <= after <= len(self._block) + BLOCK_BYTES
            size = BLOCK_BYTES if is_near else length
            self._block, self._block_at = self._reading.read(offset, size), offset
            after = 0
        return memoryview(self._block)[after : after + length]

    def close(self) -> None:
        """Remove the file. May be called twice."""
        self._block, self._waiting = b"", []
        self._block_at = self._written_bytes = self.size_bytes = 0
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._files.unlink(self._path)


class Transaction:
    """A transaction of a window.

    Attributes:
        xid: XID, 8 bytes.
        name: The same in hexadecimal digits.
        start_scn: SCN of its START; 0 if the window does not have it.
        parent: XID of the statement that it is a part of; empty for none.
        entries: Its rows, the spilled ones left out, in order.
        spilled: Frames of the others.
        count: Number of all rows.
        size_bytes: Estimate of the memory of its entries.
        has_marks: Whether it has rows with the flags MISMATCH or UNREADABLE.
        has_undo: Whether it has undo rows.
        has_lobs: Whether it has rows of large objects.
        ddl: DDL statements: owner, table, object number, text.
        position: Ordinal of its commit; 0 while it is open.
        time: TIMESTAMP of its START, later that of its commit.
    """

    __slots__ = (
        "_spill",
        "count",
        "ddl",
        "entries",
        "has_lobs",
        "has_marks",
        "has_undo",
        "name",
        "parent",
        "position",
        "size_bytes",
        "spilled",
        "start_scn",
        "time",
        "xid",
    )  # fmt: skip

    def __init__(self, xid: bytes, start_scn: int, time: object) -> None:
        """Begin a transaction without rows."""
        self.xid = xid
        self.name = xid.hex().upper()
        self.start_scn = start_scn
        self.time = time
        self.parent = b""
        self.entries: list[Entry] = []
        self.spilled: Sequence[Frame] = ()
        self._spill: Spill | None = None
        self.count = self.size_bytes = self.position = 0
        self.has_marks = self.has_undo = self.has_lobs = False
        self.ddl: Sequence[tuple[str, str, int, str]] = ()

    @property
    def frame_count(self) -> int:
        """Return the number of parts, the last of which is that in memory."""
        return 1 + len(self.spilled)

    def frame(self, number: int) -> list[Entry]:
        """Return the entries of a part."""
        if number == len(self.spilled):
            return self.entries
        assert self._spill is not None, "it wrote the part"
        return self._spill.read(self.spilled[number])

    def frames(self) -> Iterator[list[Entry]]:
        """Yield the entries, part by part."""
        for number in range(self.frame_count):
            yield self.frame(number)

    def spill(self, spill: Spill, keep: int) -> None:
        """Write the entries to the side file, all but the last `keep` ones."""
        self._spill = spill
        end = len(self.entries) - keep
        self.spilled = (*self.spilled, *spill.append(self.entries[:end]))
        del self.entries[:end]
        self.size_bytes = 0
