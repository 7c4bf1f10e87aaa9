"""Side files for transactions that the server streams before they are committed.

One append-only file per top-level xid, holding the raw frames of its blocks in arrival order:
nothing is decoded before the commit, and a roll-back costs nothing but the file. The files need
no fsync: after a reconnect the server sends such a transaction again from its first block, so
they are wiped then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, AppendFile, Files, ReadFile
from penstock.model import PenstockError

SUFFIX = ".spill"

declare("spill.append.before", "spill.append.after", "spill.remove.before")


class SpillBroken(PenstockError):
    """The server's streamed blocks do not fit together, or a side file was changed from outside."""

    code = "PG70"
    retry = "backoff"


@dataclass(slots=True, kw_only=True)
class Streamed:
    """One transaction in progress.

    size_bytes: of its file. aborted: xids of subtransactions that were rolled back.
    relation_arrivals: for each Relation message in the file, in order, when it arrived (a count
    over the whole connection), to distinguish it from one outside the stream.
    """

    xid: int
    path: Path
    size_bytes: int = 0
    aborted: set[int] = field(default_factory=set)
    relation_arrivals: list[int] = field(default_factory=list)


class Spill:
    """The side files of one connection. One thread."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Make the directory when it is missing and remove what an earlier connection left."""
        self._directory = directory
        self._files = files
        self._open: dict[int, Streamed] = {}
        self._current: Streamed | None = None
        self._file: AppendFile | None = None
        files.make_directory(directory)
        for name in files.listdir(directory):
            if name.endswith(SUFFIX):
                files.unlink(directory / name)

    @property
    def in_block(self) -> bool:
        """True while the stream is between StreamStart and StreamStop."""
        return self._current is not None

    @property
    def size_bytes(self) -> int:
        """Bytes in all side files."""
        return sum(streamed.size_bytes for streamed in self._open.values())

    def transactions(self) -> list[int]:
        """Return the xids in progress."""
        return list(self._open)

    def start_block(self, xid: int, *, first: bool) -> None:
        """A block of xid begins. first: it is the transaction's first one on this connection."""
        if self._current is not None:
            raise SpillBroken(f"block of transaction {xid} inside one of {self._current.xid}")
        known = self._open.get(xid)
        if first is (known is not None):
            raise SpillBroken(f"block of transaction {xid} is out of order")
        if known is None:
            known = Streamed(xid=xid, path=self._directory / f"{xid}{SUFFIX}")
            self._open[xid] = known
            self._file = self._files.create(known.path)
        else:
            self._file = self._files.open_append(known.path)
        self._current = known

    def append(self, frames: memoryview) -> None:
        """Add whole frames to the block that is open."""
        if self._current is None or self._file is None:
            raise SpillBroken("streamed rows outside a block")
        if not frames:
            return
        point("spill.append.before")
        self._file.append([frames])
        point("spill.append.after")
        self._current.size_bytes += len(frames)

    def note_relation(self, arrival: int) -> None:
        """The frames just added, or to be added next, hold a Relation message."""
        if self._current is None:
            raise SpillBroken("streamed relation outside a block")
        self._current.relation_arrivals.append(arrival)

    def stop_block(self) -> None:
        """The block ends."""
        if self._current is None or self._file is None:
            raise SpillBroken("end of a block that was not begun")
        self._file.close()
        self._current = self._file = None

    def abort(self, xid: int, subxid: int) -> None:
        """Forget a transaction, or remember that a part of it was rolled back.

        A transaction that is not known here had no block of its own on this connection: nothing
        is to be forgotten.
        """
        if xid == subxid:
            if xid in self._open:
                self.remove(xid)
        elif xid in self._open:
            self._open[xid].aborted.add(subxid)

    def commit(self, xid: int) -> Streamed:
        """Return the transaction to replay; raises SpillBroken if it had no block."""
        if self._current is not None:
            raise SpillBroken(f"transaction {xid} is committed inside a block")
        if xid not in self._open:
            raise SpillBroken(f"transaction {xid} is committed but none of it was sent")
        return self._open[xid]

    def open_read(self, streamed: Streamed) -> ReadFile:
        """Return the transaction's file, to be read in pieces; frames may lie across them."""
        return self._files.open_read(streamed.path)

    def remove(self, xid: int) -> None:
        """Forget a transaction and its file."""
        streamed = self._open.pop(xid)
        point("spill.remove.before")
        self._files.unlink(streamed.path)

    def close(self) -> None:
        """Close the file in use; the files themselves are wiped by the next connection."""
        if self._file is not None:
            self._file.close()
        self._current = self._file = None
