"""Last steps of a segment: footer, state, final name, links.

Rotation and recovery share this code, so a crash in either is repaired by the same steps.

The order has reasons. The footer is durable before the state says that the segment is closed. The
state is durable before the file gets its final name, under which a loader may apply and remove it.
The name exists before consumers' links, which are made from it.
"""

from __future__ import annotations

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
from penstock.log.frame_buffer import FrameBuffer
from penstock.log.index import IndexBuilder
from penstock.log.layout import EXTENSION_DEFAULT, open_name, segment_name
from penstock.log.segment import ClosedSegment, open_segment
from penstock.log.state import LogState, save_state
from penstock.model import PenstockError

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
