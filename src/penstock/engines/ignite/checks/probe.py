"""Input of the checks of one Ignite node, and the lists of these checks."""

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
NODE_CHECKS = Checks(Side.SOURCE)  # of the directories' contents
CLUSTER_CHECKS = Checks(Side.SOURCE)  # of the running node
NAMES_SHOWN_MAX = 10
WAL_PATH = "db/wal"
ARCHIVE_PATH = "db/wal/archive"


@dataclass(frozen=True)
class NodeProbe:
    """A node's directories under examination.

    Attributes:
        folder: name of the node's folders.
        file: the pipeline file, for commands.
        patterns: patterns of the wanted caches.
        wal_path, archive_path: the node's settings, absolute or below the work directory.
    """

    url: IgniteUrl
    folder: str
    file: str
    patterns: tuple[str, ...] = ("*.*",)
    wal_path: str = WAL_PATH
    archive_path: str = ARCHIVE_PATH

    @property
    def directory(self) -> Path:
        """Directory with the segments for consumers."""
        return self.url.work / self.url.cdc_path / self.folder

    @property
    def archive(self) -> Path:
        """Directory with the closed segments."""
        return self.url.work / self.archive_path / self.folder

    @property
    def active(self) -> Path:
        """Directory with the segments that are being written."""
        return self.url.work / self.wal_path / self.folder

    @property
    def store(self) -> Path:
        """Directory with the node's caches."""
        return self.url.work / "db" / self.folder

    @property
    def state(self) -> CdcState:
        """Saved state of consumers."""
        return CdcState(self.directory)

    @cached_property
    def place(self) -> LogPlace | None:
        """Saved place of consumers."""
        return self.state.load_place()

    @property
    def link_severity(self) -> Severity:
        """Return the severity of a missing link: lower after a saved place, because the hole is
        detected later.

        Segments before the hole should be read first.
        """
        return Severity.ERROR if self.place is None else Severity.WARNING

    @cached_property
    def segments(self) -> list[int]:
        """Numbers of the segments for consumers."""
        return segments_in(self.directory)

    @cached_property
    def unread(self) -> list[Path]:
        """Segments after the saved place, in order; the segment of the place itself is half
        read.
        """
        place = self.place
        behind = [one for one in self.segments if place is None or one > place.segment]
        return [segment_path(self.directory, one) for one in behind]

    @cached_property
    def size_bytes(self) -> int:
        """Size of all segments for consumers."""
        return sum(_size(segment_path(self.directory, one)) for one in self.segments)

    @cached_property
    def caches(self) -> list[CacheConfig]:
        """Wanted caches. Raises CacheConfigBroken, CacheConfigUnknown."""
        takes = Selection.parse(self.patterns).takes
        return [one for one in _stored_in(self.store) if takes(TableName("", one.name))]

    def finding(
        self, code: str, severity: Severity, what: str, why: str, command: str = ""
    ) -> Finding:
        """Return a finding on this node."""
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
    except FileNotFoundError:  # a consumer has finished it
        return 0


def names(found: Collection[object]) -> str:
    """Return a text of the first names."""
    shown = [str(name) for name in found][:NAMES_SHOWN_MAX]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(shown) + more
