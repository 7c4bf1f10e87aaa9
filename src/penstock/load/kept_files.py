"""What becomes of applied segments: removed or moved at once, or kept for a while.

Applied segments cost disk space but are useful: a target that loses its last commits in
a crash needs them, and `read_log` and `penstock log` show what came. So with removeFiles = false
they stay up to an age and up to a total size. Consumers' links are names of their own and keep what
they need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.log.layout import SegmentFile, list_segments

logger = structlog.get_logger(__name__)
LOOK_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What is kept of the segments that are applied: so young, and so many bytes together."""

    age_s: float = math.inf
    size_bytes: float = math.inf

    @property
    def is_limited(self) -> bool:
        """Whether any of them ever goes."""
        return math.isfinite(self.age_s) or math.isfinite(self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """An applied segment. age_s: since it was closed."""

    file: SegmentFile
    age_s: float
    size_bytes: int


def outlived(files: Sequence[KeptFile], keeping: Keeping) -> list[SegmentFile]:
    """Those to remove, oldest first, up to the first that stays: the log gets no gap. Pure."""
    total = sum(file.size_bytes for file in files)
    gone: list[SegmentFile] = []
    for file in files:
        if file.age_s <= keeping.age_s and total <= keeping.size_bytes:
            break
        gone.append(file.file)
        total -= file.size_bytes
    return gone


def measured(files: Iterable[SegmentFile], clock: Clock) -> list[KeptFile]:
    """Age and size of segments, from the file system."""
    now_s = clock.now_us() / 1e6
    found = ((file, file.path.stat()) for file in files)
    return [
        KeptFile(file=file, age_s=now_s - stat.st_mtime, size_bytes=stat.st_size)
        for file, stat in found
    ]


class AppliedFiles:
    """The segments that the loader has applied. Used by its thread alone.

    `needed`, in each method: the last segment that is applied to every table.
    """

    def __init__(
        self,
        directory: Path,
        extension: str,
        *,
        removes: bool,
        done_directory: Path | None,
        keeping: Keeping,
        clock: Clock = REAL_CLOCK,
        files: Files = REAL_FILES,
    ) -> None:
        """removes, done_directory, keeping: see `LoaderOptions`."""
        self._directory = directory
        self._extension = extension
        self._removes = removes
        self._done_directory = done_directory
        self._keeping = keeping
        self._clock = clock
        self._files = files
        self._looked_s = -math.inf

    def dispose(self, files: Sequence[SegmentFile], needed: int) -> None:
        """Remove or move files that are applied and committed, to every table."""
        for file in files:
            if file.number > needed:
                continue
            if self._removes:
                self._files.unlink(file.path)
            elif self._done_directory is not None:
                self._files.make_directory(self._done_directory)
                self._files.rename(file.path, self._done_directory / file.path.name)

    def tidy(self, needed: int) -> None:
        """Remove or move segments that a table with a table sync was the last to need."""
        if self._removes or self._done_directory is not None:
            self.dispose(list_segments(self._directory, self._extension, self._files), needed)

    def remove_outlived(self, needed: int) -> None:
        """Now and then: remove those that have been kept for long enough."""
        if self._done_directory is not None or not self._keeping.is_limited:
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._looked_s + LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        closed = list_segments(self._directory, self._extension, self._files)
        applied = [file for file in closed if file.number <= needed]
        for file in outlived(measured(applied, self._clock), self._keeping):
            self._files.unlink(file.path)
            logger.info("applied segment removed", segment=file.path.name)
