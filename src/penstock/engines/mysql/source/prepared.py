"""Keep prepared XA transactions: their rows wait in files until commit or rollback.

That may take days and many restarts, and the binlog has the rows only where they were prepared. So
a file is durable before the log's position passes that place, and it is kept until nothing that the
log holds can lead back in front of the decision. Rows after a savepoint wait in the same way until
their transaction's end, and undone rows are cut off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.engines.mysql.source.unsupported import StreamUnexpected
from penstock.host.faults import declare, point
from penstock.host.files import AppendFile, Files, ReadFile
from penstock.model.change import GLOBAL_PREFIX

SUFFIX = ".prepared"
# As the servers write them, and as users may have typed them.
_SAVEPOINT = re.compile(
    rb"\s*(?:SAVEPOINT|(ROLLBACK)\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT)?)\s+"
    rb"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\";]+)\s*;?\s*",
    re.IGNORECASE,
)
_ROLLBACK_TO = re.compile(rb"\s*ROLLBACK\s+(WORK\s+)?TO\b", re.IGNORECASE)
_ID = re.compile(rb"X'([0-9a-fA-F]*)',X'([0-9a-fA-F]*)',(\d+)")

declare("prepared.keep.before", "prepared.keep.after", "prepared.remove.before")

Xid = tuple[int, bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One prepared transaction. xid: as hex. since: the position where it was prepared."""

    xid: str
    since: int
    file: str
    size_bytes: int


def xid_text(xid: Xid) -> str:
    """Return a transaction's id, as unique text."""
    form, first, second = xid
    return f"{form}:{first.hex()}:{second.hex()}"


def xid_in(statement: bytes) -> Xid | None:
    """Return the id in XA COMMIT, XA ROLLBACK and XA START as the servers log them."""
    match = _ID.search(statement)
    if match is None:
        return None
    return int(match[3]), bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode())


def savepoint_in(statement: bytes) -> tuple[bytes, bool] | None:
    """Return the savepoint that a statement sets, or goes back to (True); None for other
    statements.

    Raises StreamUnexpected if the savepoint of a ROLLBACK TO cannot be read.
    """
    match = _SAVEPOINT.fullmatch(statement)
    if match is None:
        if _ROLLBACK_TO.match(statement):
            raise StreamUnexpected("a ROLLBACK TO whose savepoint cannot be read")
        return None
    name = match[2]
    if name[:1] in (b"`", b'"'):
        name = name[1:-1].replace(2 * name[:1], name[:1])
    # The servers compare these names without case.
    return name.decode("utf-8", "surrogateescape").casefold().encode(
        "utf-8", "surrogateescape"
    ), match[1] is not None


class PreparedFiles:
    """Files, and transactions that they hold at this place of the stream. Used by one thread.

    `held` is replaced as a whole at each change, so that a place may keep it as it was.
    """

    def __init__(self, directory: Path, files: Files, held: tuple[Prepared, ...]) -> None:
        """Continue with the transactions that were held; delete other files, which an earlier
        stream left.
        """
        self.held = held
        self._decided: list[tuple[int, Prepared]] = []
        self._directory = directory
        self._files = files
        self._open: AppendFile | None = None
        self._path = Path()
        self._size = 0
        self._savepoints: list[tuple[bytes, int]] = []  # with the file's size where it was set
        files.make_directory(directory)
        kept = {one.file for one in held}
        for name in files.listdir(directory):
            if name.endswith(SUFFIX) and name not in kept:
                files.unlink(directory / name)

    @property
    def size_bytes(self) -> int:
        """Number of bytes in all files."""
        return sum(one.size_bytes for one in self.held) + self._size

    def begin(self, since: int) -> None:
        """Begin the file of a transaction that may be prepared."""
        self.drop()
        self._path = self._directory / f"{since}{SUFFIX}"
        self._open = self._files.create(self._path)

    def append(self, events: bytes) -> None:
        """Add whole events."""
        if self._open is None:
            raise StreamUnexpected("rows of an XA transaction that was not begun")
        if events:
            self._open.append([memoryview(events)])
            self._size += len(events)

    def save(self, name: bytes) -> None:
        """Note a savepoint; an older one of that name is forgotten."""
        self._savepoints = [one for one in self._savepoints if one[0] != name]
        self._savepoints.append((name, self._size))

    def undo_to(self, name: bytes) -> bool:
        """Cut off rows after a savepoint, which stays; return False if it was not set."""
        found = next((at for at, one in enumerate(self._savepoints) if one[0] == name), None)
        if found is None or self._open is None:
            return False
        del self._savepoints[found + 1 :]
        self._size = self._savepoints[found][1]
        self._open.truncate(self._size)
        return True

    def drop(self) -> None:
        """Drop the rows' file of the transaction begun last, if it was not prepared or its rows
        were read.
        """
        self._savepoints.clear()
        if self._open is not None:
            self._open.close()
            self._open, self._size = None, 0
            self._files.unlink(self._path)

    def keep(self, xid: Xid, since: int) -> None:
        """Keep the transaction as prepared. It is durable from here on."""
        if self._open is None:
            raise StreamUnexpected("an XA transaction was prepared that was not begun")
        point("prepared.keep.before")
        self._open.fdatasync()
        self._open.close()
        self._files.fsync_directory(self._directory)
        point("prepared.keep.after")
        one = Prepared(xid=xid_text(xid), since=since, file=self._path.name, size_bytes=self._size)
        self._open, self._size = None, 0
        self._savepoints.clear()
        self.held = (*(other for other in self.held if other.xid != one.xid), one)

    def take(self, xid: Xid, at: int) -> Prepared | None:
        """Note that the transaction prepared at that position is decided. Its file stays."""
        text = xid_text(xid)
        found = next((one for one in self.held if one.xid == text), None)
        self.held = tuple(one for one in self.held if one is not found)
        if found is not None:
            self._decided.append((at, found))
        return found

    @staticmethod
    def global_of(xid: Xid) -> dict[str, str]:
        """Return a message's content about the global transaction with this branch."""
        return {"prefix": GLOBAL_PREFIX, "content": xid[1].decode("utf-8", "backslashreplace")}

    def open_begun(self) -> ReadFile:
        """Open the transaction that was begun for reading: it was committed in one phase."""
        return self._files.open_read(self._path)

    def open_read(self, one: Prepared) -> ReadFile:
        """Open a transaction's events for reading."""
        return self._files.open_read(self._directory / one.file)

    def forget_decided(self, position: int) -> None:
        """Delete files that were decided before position: no stream will begin before it."""
        for at, one in [pair for pair in self._decided if pair[0] < position]:
            point("prepared.remove.before")
            self._files.unlink(self._directory / one.file)
            self._decided.remove((at, one))
