"""Rows of transactions as they wait for their commit, in memory or in side files.

An entry is a row for the decoder (`RedoRow`) with its operation and row id. Large transactions go
to a file each, as frames of a length and entries in MessagePack. Files are of one window: the next
one reads the redo again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.engines.oracle.source.errors import SpillBroken
from penstock.host.faults import declare, point
from penstock.host.files import Files

SUFFIX = ".spill"
FRAME_ROWS = 16_384
_LENGTH = struct.Struct(">I")

# Flags of Entry.code, above OPERATION_CODE; an unreadable row's reason is above all flags.
UNDO = 1 << 10
MISMATCH = 1 << 11
UNREADABLE = 1 << 12
REASON_BITS = 16
OPERATION = (1 << 10) - 1

declare("oracle.spill.before", "oracle.spill.after")


class Entry(NamedTuple):
    """A row of V$LOGMNR_CONTENTS with its whole statement; the first five are those of RedoRow.

    Attributes:
        code: OPERATION_CODE with flags.
        row_id: ROW_ID, or that of the INTERNAL row after it.
    """

    table: int
    text: str
    scn: int
    xid: str
    rs_id: str
    code: int
    row_id: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])


class SpillFile:
    """Side file of one transaction. size_bytes: of its frames."""

    __slots__ = ("_files", "_frames", "path", "size_bytes")

    def __init__(self, path: Path, files: Files) -> None:
        """Keep the arguments. The file is created by the first `append`."""
        self.path = path
        self.size_bytes = 0
        self._files = files
        self._frames: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._frames)

    def append(self, entries: list[Entry]) -> None:
        """Write entries at the end."""
        point("oracle.spill.before")
        opens = self._files.open_append if self._frames else self._files.create
        file = opens(self.path)
        try:
            for at in range(0, len(entries), FRAME_ROWS):
                data = _encoder.encode(entries[at : at + FRAME_ROWS])
                file.append([_LENGTH.pack(len(data)), data])
                self._frames.append((self.size_bytes + _LENGTH.size, len(data)))
                self.size_bytes += _LENGTH.size + len(data)
        finally:
            file.close()
        point("oracle.spill.after")

    def read(self, frame: int) -> list[Entry]:
        """Return the entries of a frame. Raises SpillBroken."""
        offset, length = self._frames[frame]
        file = self._files.open_read(self.path)
        try:
            data = file.read(offset - _LENGTH.size, _LENGTH.size + length)
        finally:
            file.close()
        try:
            if data[: _LENGTH.size] != _LENGTH.pack(length):
                raise SpillBroken(f"the side file {self.path.name} is not as it was written")
            return _decoder.decode(data[_LENGTH.size :])
        except msgspec.DecodeError as error:
            raise SpillBroken(f"the side file {self.path.name} is not as it was written") from error


class Spill:
    """Directory of side files. Used by one thread."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Create the directory if it is missing, and remove files of earlier windows."""
        self._directory = directory
        self._files = files
        self._count = 0
        files.make_directory(directory)
        for name in files.listdir(directory):
            if name.endswith(SUFFIX):
                files.unlink(directory / name)

    def open_file(self, xid: str) -> SpillFile:
        """Return a new side file for a transaction."""
        self._count += 1
        return SpillFile(self._directory / f"{xid}-{self._count}{SUFFIX}", self._files)

    def remove(self, file: SpillFile) -> None:
        """Remove a side file."""
        if len(file):
            self._files.unlink(file.path)


class Transaction:
    """A transaction of a window.

    Attributes:
        xid: XID, 8 bytes.
        name: The same in hexadecimal digits.
        start_scn: SCN of its START; 0 if the window does not have it.
        parent: XID of the statement that it is a part of; empty for none.
        entries: Its rows, the spilled ones left out, in order.
        count: Number of all rows.
        size_bytes: Estimate of what the entries take in memory.
        has_undo: Whether it has undo rows.
        has_lobs: Whether it has rows of large objects.
        ddl: DDL statements: owner, table, object number, text.
        position: Ordinal of its commit; 0 while it is open.
        time: TIMESTAMP of its START, later that of its commit.
    """

    __slots__ = (
        "count", "ddl", "entries", "file", "has_lobs", "has_undo", "name", "parent", "position",
        "size_bytes", "start_scn", "time", "xid",
    )  # fmt: skip

    def __init__(self, xid: bytes, start_scn: int, time: object) -> None:
        """Begin a transaction without rows."""
        self.xid = xid
        self.name = xid.hex().upper()
        self.start_scn = start_scn
        self.time = time
        self.parent = b""
        self.entries: list[Entry] = []
        self.file: SpillFile | None = None
        self.count = self.size_bytes = self.position = 0
        self.has_undo = self.has_lobs = False
        self.ddl: list[tuple[str, str, int, str]] = []

    @property
    def frame_count(self) -> int:
        """Return the number of parts, the last of which is that in memory."""
        return 1 + (len(self.file) if self.file is not None else 0)

    def frame(self, number: int) -> list[Entry]:
        """Return the entries of a part."""
        if self.file is None or number == len(self.file):
            return self.entries
        return self.file.read(number)

    def frames(self) -> Iterator[list[Entry]]:
        """Yield the entries, part by part."""
        for number in range(self.frame_count):
            yield self.frame(number)

    def spill(self, spill: Spill, keep: int) -> None:
        """Write the entries to the side file, all but the last `keep` ones."""
        if self.file is None:
            self.file = spill.open_file(self.name)
        end = len(self.entries) - keep
        self.file.append(self.entries[:end])
        del self.entries[:end]
        self.size_bytes = 0
