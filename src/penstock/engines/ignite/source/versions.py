"""Last delivered version of each key: an older one is never delivered after a newer one.

For one node the last ones are enough. With several nodes each version is delivered once: a
change is in the logs of all nodes that had a copy, and these are read at different speeds. The
versions reach back to the time up to which every node is read (`floor_ms`): an older version can
no longer arrive. They are kept in memory and, as one block per flush point, in a SQLite file
beside the log; if a node stands still and they grow beyond `memory_max` keys, in an indexed
table there.

A flush point that has not become durable leaves no trace: its block is removed at the next
start, and only durable blocks move into the table. Not here: progress of the nodes (`several.py`).
"""

from __future__ import annotations

import sqlite3
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.codec.ignite.wal import Version
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES
from penstock.model import PenstockError

declare("ignite.versions.after")

FILE_NAME = "ignite_versions.db"
RECENT_MAX = 50_000  # keys, twice
MEMORY_MAX = 300_000  # keys, of some 250 bytes each
BLOCK_COUNT_MAX = 2_000
SLACK_MS = 60_000
"""By how much clocks may differ and a backup's record may be later than the primary's."""

_VERSION = struct.Struct(">iqi")  # its bytes are in the order of versions: none is negative
_CACHE = struct.Struct("<i")
_LENGTH = struct.Struct("<I")
_SCHEMA = """
create table if not exists block (
    position integer primary key, state blob not null, floor_ms integer not null,
    time_ms integer not null, given blob not null);
create table if not exists spilled (
    name blob primary key, version blob not null, time_ms integer not null) without rowid;
"""
_LOOKUP = "select version from spilled where name = ?"


class VersionsBroken(PenstockError):
    """The file with the versions that were delivered last cannot be used. fields: path."""

    code = "IG85"
    retry = "operator"


class VersionsLost(PenstockError):
    """The file with the versions given last is missing, or of another time than the log."""

    code = "IG86"
    retry = "operator"


class RecentVersions:
    """Versions of one node's keys that were changed last.

    Its log has the changes of a key in order, except for resent rows: such a row can be just
    after a change that was made while it was being sent. Some hundred rows are being sent at a
    time.
    """

    def __init__(self, key_count: int = RECENT_MAX) -> None:
        """Set the number of keys that are remembered: from key_count to twice as many."""
        self._key_count = key_count
        self._last: dict[bytes, bytes] = {}
        self._before: dict[bytes, bytes] = {}

    def accepts(
        self,
        cache_id: int,
        key_bytes: bytes,
        version: Version | None,
        time_ms: int,  # noqa: ARG002 - as of several nodes
    ) -> bool:
        """Return whether there was no newer version. The same one may be repeated after a crash."""
        if version is None:
            return True
        packed = _VERSION.pack(version.topology, version.order, version.node_order)
        name = _CACHE.pack(cache_id) + key_bytes
        known = self._last.get(name) or self._before.get(name)
        if known is not None and packed < known:
            return False
        self._last[name] = packed
        if len(self._last) >= self._key_count:
            self._before, self._last = self._last, {}
        return True


@dataclass(slots=True)
class Block:
    """Versions delivered up to one position, after the previous block.

    Attributes:
        state: data of the caller.
        floor_ms: no version of an earlier time will arrive.
        time_ms: time of the newest record in it.
        given: packed version by name.
    """

    position: int = 0
    state: bytes = b""
    floor_ms: int = 0
    time_ms: int = 0
    given: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, other: Block) -> None:
        """Add the versions of a later block."""
        self.position, self.state, self.floor_ms = other.position, other.state, other.floor_ms
        self.time_ms = max(self.time_ms, other.time_ms)
        self.given.update(other.given)


class Versions:
    """Versions of several nodes' keys. All methods belong to the extractor's thread."""

    def __init__(
        self, path: Path, *, gives_copies: bool = False, memory_max: int = MEMORY_MAX
    ) -> None:
        """Store the path. gives_copies: the last version is delivered again for each copy of it."""
        self._path = path
        self._gives_copies = gives_copies
        self._memory_max = memory_max
        self._connection: sqlite3.Connection | None = None
        self._reset()

    def _reset(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._open = Block()  # being filled
        self._ended: deque[Block] = deque()  # not in the file yet
        self._kept: deque[Block] = deque()  # in the file, oldest first
        self._durable = 0
        self._floor_ms = 0  # of the durable blocks
        self._spilled_ms = 0  # of the newest version in the table
        self._spilled_count = self._pruned_count = 0  # rows of the table; and when last pruned

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- reading -----------------------------------------------------------------------------

    def accepts(
        self, cache_id: int, key_bytes: bytes, version: Version | None, time_ms: int
    ) -> bool:
        """Return whether this version of a key is to be delivered. time_ms: of its record.

        A change without a version is always delivered: nothing orders it.
        """
        if version is None:
            return True
        packed = _VERSION.pack(version.topology, version.order, version.node_order)
        name = _CACHE.pack(cache_id) + key_bytes
        known = self._known.get(name)
        if known is None and self._spilled_count:
            known = self._read_spilled(name)
        if known is not None and packed <= known:
            return self._gives_copies and packed == known
        block = self._open
        self._known[name] = block.given[name] = packed
        block.time_ms = max(block.time_ms, time_ms)
        return True

    def _read_spilled(self, name: bytes) -> bytes | None:
        try:
            row: tuple[bytes] | None = self._lookup(_LOOKUP, (name,)).fetchone()
        except sqlite3.Error as error:
            raise broken(self._path, error) from error
        return None if row is None else row[0]

    def ends(self, position: int, state: bytes, floor_ms: int) -> None:
        """Note a flush point. floor_ms: no record of an earlier time follows it."""
        block, self._open = self._open, Block()
        block.position, block.state, block.floor_ms = position, state, floor_ms
        self._ended.append(block)

    # -- flush points ------------------------------------------------------------------------

    def go_on(self, position: int) -> bytes:
        """Forget the versions after a durable flush point; return its state, empty for position
        0.

        Raises VersionsBroken, VersionsLost.
        """
        self.close()
        self._reset()
        self._connection = self._open_file()
        self._lookup = self._connection.cursor().execute
        with self._open_typed() as database:
            database.execute("delete from block where position > ?", (position,))
            rows = database.execute("select * from block order by position")
            for at, state, floor_ms, time_ms, given in rows:
                block = Block(at, state, floor_ms, time_ms, dict(_unpack(given)))
                self._known.update(block.given)
                self._kept.append(block)
            (count,) = database.execute("select count(*) from spilled").fetchone()
            self._spilled_count = self._pruned_count = count
            (self._spilled_ms,) = database.execute(
                "select coalesce(max(time_ms), 0) from spilled"
            ).fetchone()
        if position and (not self._kept or self._kept[-1].position != position):
            raise VersionsLost(
                f"the change log ends at {position}, and {self._path} is of another time",
                hint="Restore the whole directory from one copy; or start over: penstock reset, "
                "then the bulk load.",
                path=str(self._path),
            )
        self.acknowledge(position)
        return self._kept[-1].state if self._kept else b""

    def _open_file(self) -> sqlite3.Connection:
        REAL_FILES.make_directory(self._path.parent)
        with typed_errors(self._path):
            found = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            found.execute("pragma journal_mode = wal")
            found.execute("pragma synchronous = full")
            found.executescript(_SCHEMA)
            return found

    def before_flush(self, position: int) -> None:
        """Write the versions up to here, which become durable in the log next. Raises
        VersionsBroken.
        """
        block = Block()
        while self._ended and self._ended[0].position <= position:
            block.add(self._ended.popleft())
        if not block.position:
            return
        passed, spilled = self._find_passed(), self._to_spill()
        with self._open_typed() as database:
            database.execute("begin immediate")
            database.execute(
                "insert into block values (?, ?, ?, ?, ?)",
                (block.position, block.state, block.floor_ms, block.time_ms, _pack(block.given)),
            )
            database.executemany(
                "delete from block where position = ?",
                [(one.position,) for one in (*passed, *spilled)],
            )
            self._spill(database, spilled)
            database.execute("commit")
        point("ignite.versions.after")
        self._kept.append(block)
        for one in (*passed, *spilled):
            self._kept.remove(one)
            for name, version in one.given.items():
                if self._known.get(name) is version:
                    del self._known[name]

    def acknowledge(self, position: int) -> None:
        """Note that the log is durable up to here."""
        self._durable = position
        for block in reversed(self._kept):
            if block.position <= position:
                self._floor_ms = block.floor_ms
                return

    def _movable(self) -> list[Block]:
        """Return the durable blocks, except for the last one: it has the state."""
        return [block for block in self._kept if block.position <= self._durable][:-1]

    def _find_passed(self) -> list[Block]:
        """Return blocks after which nothing older can arrive."""
        return [one for one in self._movable() if not one.given or one.time_ms < self._floor_ms]

    def _to_spill(self) -> list[Block]:
        """Return the older durable blocks, if memory exceeds its limit."""
        left = [one for one in self._movable() if one.given and one.time_ms >= self._floor_ms]
        key_count = sum(len(one.given) for one in left)
        if key_count <= self._memory_max and len(left) <= BLOCK_COUNT_MAX:
            return []
        found = []
        for at, block in enumerate(left):
            if key_count <= self._memory_max // 2 and len(left) - at <= BLOCK_COUNT_MAX // 2:
                break
            key_count -= len(block.given)
            found.append(block)
        return found

    def _spill(self, database: sqlite3.Connection, blocks: list[Block]) -> None:
        """Move blocks into the table. The table is pruned when it has doubled, or when nothing in
        it is needed.
        """
        for block in blocks:
            database.executemany(
                "insert or replace into spilled values (?, ?, ?)",
                ((name, version, block.time_ms) for name, version in block.given.items()),
            )
            self._spilled_count += len(block.given)
            self._spilled_ms = max(self._spilled_ms, block.time_ms)
        is_over = self._spilled_count and self._spilled_ms < self._floor_ms
        if is_over or self._spilled_count > 2 * self._pruned_count + self._memory_max:
            database.execute("delete from spilled where time_ms < ?", (self._floor_ms,))
            (count,) = database.execute("select count(*) from spilled").fetchone()
            self._spilled_count = self._pruned_count = count

    @contextmanager
    def _open_typed(self) -> Iterator[sqlite3.Connection]:
        """Provide the file, with typed errors."""
        assert self._connection is not None, "go_on() comes first"
        with typed_errors(self._path):
            yield self._connection


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors to typed ones. Raises VersionsBroken."""
    try:
        yield
    except sqlite3.Error as error:
        raise broken(path, error) from error


def broken(path: Path, error: sqlite3.Error) -> VersionsBroken:
    """Return the error for a broken file."""
    return VersionsBroken(
        f"{path} cannot be used: {error}",
        hint=f"Let this user write {path.parent}, with room on its disk. A damaged file: put "
        "the whole directory back from one copy, or start over with penstock reset.",
        path=str(path),
    )


def _pack(given: dict[bytes, bytes]) -> bytes:
    parts: list[bytes] = []
    for name, version in given.items():
        parts += (_LENGTH.pack(len(name)), name, version)
    return b"".join(parts)


def _unpack(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size
        end = begin + _LENGTH.unpack_from(data, at)[0]
        at = end + _VERSION.size
        yield data[begin:end], data[end:at]
