"""What the checks of one Ignite node look at, and the lists of these checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from penstock.codec.ignite.cache_config import CacheConfig, read_cache_config
from penstock.engines.ignite.directory import SYSTEM_CACHE, segment_path, segments_in
from penstock.engines.ignite.state import CdcState
from penstock.engines.ignite.url import IgniteUrl
from penstock.model import TableName
from penstock.model.patterns import Selection
from penstock.ports.checks import Checks, Finding, Severity, Side
from penstock.ports.direct import LogPlace

PLACE_CHECKS = Checks(Side.SOURCE)  # of the directories: whether the others can be done
NODE_CHECKS = Checks(Side.SOURCE)  # of what is in them
CLUSTER_CHECKS = Checks(Side.SOURCE)  # of what only the running node tells
NAMES_SHOWN_MAX = 10
WAL_PATH = "db/wal"
ARCHIVE_PATH = "db/wal/archive"


@dataclass(frozen=True)
class NodeProbe:
    """A node's directories under examination. file: the pipeline's, to be typed in commands.

    folder: the name of the node's folders. patterns: of the caches that are wanted. wal_path,
    archive_path: as the node has them, absolute or below the work directory.
    """

    url: IgniteUrl
    folder: str
    file: str
    patterns: tuple[str, ...] = ("*.*",)
    wal_path: str = WAL_PATH
    archive_path: str = ARCHIVE_PATH

    @property
    def directory(self) -> Path:
        """With the segments for consumers."""
        return self.url.work / self.url.cdc_path / self.folder

    @property
    def archive(self) -> Path:
        """With the segments that are closed."""
        return self.url.work / self.archive_path / self.folder

    @property
    def active(self) -> Path:
        """With the segments that are being written."""
        return self.url.work / self.wal_path / self.folder

    @property
    def stored(self) -> Path:
        """With the node's caches."""
        return self.url.work / "db" / self.folder

    @property
    def state(self) -> CdcState:
        """What consumers have saved."""
        return CdcState(self.directory)

    @cached_property
    def place(self) -> LogPlace | None:
        """Where consumers are."""
        return self.state.load_place()

    @property
    def skipped(self) -> Severity:
        """How bad a link is that is not made: behind a saved place the hole is seen, later.

        What is there before it should be read first.
        """
        return Severity.ERROR if self.place is None else Severity.WARNING

    @cached_property
    def segments(self) -> list[int]:
        """The numbers of those for consumers."""
        return segments_in(self.directory)

    @cached_property
    def unread(self) -> list[Path]:
        """The segments behind the saved place, in order; the one that it is in is half read."""
        place = self.place
        behind = [one for one in self.segments if place is None or one > place.segment]
        return [segment_path(self.directory, one) for one in behind]

    @cached_property
    def size_bytes(self) -> int:
        """Of all segments for consumers."""
        return sum(_size(segment_path(self.directory, one)) for one in self.segments)

    @cached_property
    def caches(self) -> list[CacheConfig]:
        """The caches that are wanted. Raises CacheConfigBroken, CacheConfigUnknown."""
        takes = Selection.parse(self.patterns).takes
        return [one for one in _stored_in(self.stored) if takes(TableName("", one.name))]

    def found(
        self, code: str, severity: Severity, what: str, why: str, command: str = ""
    ) -> Finding:
        """A finding on this node."""
        return Finding(
            code=code, severity=severity, side=Side.SOURCE, what=what, why=why, command=command
        )


def _stored_in(stored: Path) -> list[CacheConfig]:
    found = [
        read_cache_config(path.read_bytes(), str(path))
        for path in sorted(stored.glob("cache*/*cache_data.dat"))
        if path.parent.name != SYSTEM_CACHE
    ]
    return sorted(found, key=lambda one: one.name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a consumer is done with it
        return 0


def names(found: Collection[object]) -> str:
    """Names in a row, the first ones of many."""
    shown = [str(name) for name in found][:NAMES_SHOWN_MAX]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(shown) + more
