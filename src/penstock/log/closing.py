"""Last steps of a segment: footer, state, final name, links; and how long it is kept after that.

Rotation and recovery share this code, so a crash in either is repaired by the same steps.

The order has reasons. The footer is durable before the state says that the segment is closed. The
state is durable before the file gets its final name, under which a loader may apply and remove it.
The name exists before consumers' links, which are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import structlog

from penstock.codec import ckt
from penstock.codec.ckt import FrameKind
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.log import links
from penstock.log.frames import FrameBuffer
from penstock.log.layout import (
    EXTENSION_DEFAULT,
    LogState,
    SegmentFile,
    list_segments,
    open_name,
    save_state,
    segment_name,
)
from penstock.log.segment import ClosedSegment, IndexBuilder, open_segment
from penstock.model import PenstockError
from penstock.model.keeping import Keeping

faults.declare(
    "log.footer.before",
    "log.state.before",
    "log.rename.before",
    "log.rename.after",
    "log.link.before",
    "log.link.after",
)

logger = structlog.get_logger(__name__)


class SegmentPresent(PenstockError):
    """A segment cannot get its name: a file already has that name."""

    code = "LG08"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Directory of a log and its file system.

    Attributes:
        consumers: directory of the consumers' directories.
    """

    directory: Path
    extension: str = EXTENSION_DEFAULT
    consumers: Path | None = None
    files: Files = REAL_FILES
    clock: Clock = REAL_CLOCK


def write_footer(buffer: FrameBuffer, builder: IndexBuilder, clock: Clock) -> None:
    """Append footer and trailer after a durable flush point, and make them durable."""
    faults.point("log.footer.before")
    totals = builder.totals(clock.now_us())
    offset, length = buffer.add(FrameKind.FOOTER, ckt.encode_footer(builder.entries, totals))
    size = offset + ckt.HEAD.size + length + ckt.TRAILER_SIZE
    buffer.add_raw(ckt.encode_trailer(buffer.salt, offset, size))
    buffer.sync()


def state_behind(state: LogState, header: ckt.SegmentHeader, builder: IndexBuilder) -> LogState:
    """Return the state in which this segment counts as closed."""
    return changed(
        state, number_next=header.number + 1, end=builder.end, last_file_id=header.file_id
    )


def store_state(place: Place, state: LogState) -> LogState:
    """Replace the log's state, durably; return it."""
    faults.point("log.state.before")
    save_state(place.directory, state, place.files)
    return state


def publish(place: Place, state: LogState, number: int) -> tuple[ClosedSegment, LogState]:
    """Give a complete segment its final name, and consumers their links.

    Returns facts about the segment, and the state that was stored last.

    Args:
        place: the log.
        state: the stored state, with number_next = number + 1.
        number: number of the segment.
    """
    path = place.directory / segment_name(number, place.extension)
    if place.files.exists(path):
        raise SegmentPresent(
            f"cannot name segment {number}: {path} exists",
            hint="Run penstock log check: there are two writers, or a file was put back by hand.",
            path=str(path),
        )
    faults.point("log.rename.before")
    place.files.rename(place.directory / open_name(number, place.extension), path)
    place.files.fsync_directory(place.directory)
    faults.point("log.rename.after")
    state = link_consumers(place, state, number)
    with open_segment(path, extension=place.extension, files=place.files) as segment:
        facts = segment.facts()
    return facts, state


def link_consumers(place: Place, state: LogState, number: int) -> LogState:
    """Link a closed segment for every enabled consumer; return the state stored last."""
    if place.consumers is None:
        return state
    path = place.directory / segment_name(number, place.extension)
    names = links.enabled_consumers(place.consumers, place.files)
    if not names:
        return state
    if links.are_all_disabled(place.consumers, place.files):
        logger.warning(links.DISABLED_WARNING, segment=path.name)
        return state
    faults.point("log.link.before")
    for name in names:
        links.link_segment(place.consumers / name, path, place.files)
    faults.point("log.link.after")
    return store_state(place, changed(state, number_linked=number))


faults.declare("log.unlink.before")

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
    """Removes segments of a log's directory once they exceed the limits. Not thread-safe.

    Segments that are fully applied or linked cost disk space but are useful: a target that loses
    its last commits in a crash needs them, and `read_log` and `penstock log` show what happened.
    They stay up to an age and up to a total size. Consumers' links are names of their own and keep
    what they need.
    """

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
        """Keep the arguments. `removes`, `done_directory` and `keeping` are those of
        `LoaderOptions`.
        """
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
        """Remove the segments that were kept for long enough. Called now and then."""
        if self._done_directory is None:
            self._keeper.remove_outlived(needed)
