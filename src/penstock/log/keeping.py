"""Limits for segments that the log keeps although they are fully applied or linked.

Such segments cost disk space but are useful: a target that loses its last commits in a crash needs
them, and `read_log` and `penstock log` show what happened. They stay up to an age and up to a
total size. Consumers' links are names of their own and keep what they need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.log.closing import Place
from penstock.log.layout import SegmentFile, list_segments
from penstock.model.keeping import Keeping

faults.declare("log.unlink.before")

logger = structlog.get_logger(__name__)
LOOK_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """Segment that nothing needs.

    Attributes:
        age_s: seconds since it was closed.
    """

    file: SegmentFile
    age_s: float
    size_bytes: int


def find_outlived(files: Sequence[KeptFile], keeping: Keeping) -> list[SegmentFile]:
    """Return the segments to remove, oldest first, up to the first that stays. Pure.

    No younger segment is removed, so the log gets no gap.
    """
    total = sum(file.size_bytes for file in files)
    gone: list[SegmentFile] = []
    for file in files:
        if file.age_s <= keeping.age_s and total <= keeping.size_bytes:
            break
        gone.append(file.file)
        total -= file.size_bytes
    return gone


def measure_files(files: Iterable[SegmentFile], clock: Clock) -> list[KeptFile]:
    """Return age and size of segments, read from the file system."""
    now_s = clock.now_us() / 1e6
    found = ((file, file.path.stat()) for file in files)
    return [
        KeptFile(file=file, age_s=now_s - stat.st_mtime, size_bytes=stat.st_size)
        for file, stat in found
    ]


class SegmentKeeper:
    """Removes segments of a log's directory once they exceed the limits. Not thread-safe."""

    def __init__(self, place: Place, keeping: Keeping) -> None:
        """Look at nothing yet."""
        self._place = place
        self._keeping = keeping
        self._looked_s = -math.inf

    def remove_outlived(self, through: int) -> None:
        """Remove segments up to this number that exceed the limits; look once a minute at most.

        With an age limit below a minute, it looks that often.
        """
        place = self._place
        now_s = place.clock.monotonic_s()
        interval_s = min(LOOK_INTERVAL_S, self._keeping.age_s)
        if not self._keeping.is_limited or now_s < self._looked_s + interval_s:
            return
        self._looked_s = now_s
        closed = list_segments(place.directory, place.extension, place.files)
        unneeded = [file for file in closed if file.number <= through]
        for file in find_outlived(measure_files(unneeded, place.clock), self._keeping):
            faults.point("log.unlink.before")
            place.files.unlink(file.path)
            logger.info("segment removed", segment=file.path.name)


class AppliedFiles:
    """Segments that the loader has applied: removed, moved or kept. Used by its thread alone.

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
        self._keeper = SegmentKeeper(
            Place(directory=directory, extension=extension, files=files, clock=clock), keeping
        )
        self._files = files

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
        if self._done_directory is None:
            self._keeper.remove_outlived(needed)
