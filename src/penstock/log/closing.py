"""The last steps of a segment: footer, state, final name, links. One code for rotation and
recovery, so that a crash in either is mended by the same steps.

Order, and why: the footer is durable before the state says that the segment is closed; the state
before the file gets its final name, under which a loader may apply and remove it; the name before
consumers' links, which are made from it.
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
    """A segment cannot get its name: a file has it already."""

    code = "LG08"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A log's directory and its file system. consumers: directory of their directories."""

    directory: Path
    extension: str = EXTENSION_DEFAULT
    consumers: Path | None = None
    files: Files = REAL_FILES
    clock: Clock = REAL_CLOCK


def write_footer(buffer: FrameBuffer, builder: IndexBuilder, clock: Clock) -> None:
    """Append footer and trailer behind a durable flush point, and make them durable."""
    faults.point("log.footer.before")
    totals = builder.totals(clock.now_us())
    offset, length = buffer.add(FrameKind.FOOTER, ckt.encode_footer(builder.entries, totals))
    size = offset + ckt.HEAD.size + length + ckt.TRAILER_SIZE
    buffer.add_raw(ckt.encode_trailer(buffer.salt, offset, size))
    buffer.sync()


def state_behind(state: LogState, header: ckt.SegmentHeader, builder: IndexBuilder) -> LogState:
    """The state once this segment counts as closed."""
    return changed(
        state, number_next=header.number + 1, end=builder.end, last_file_id=header.file_id
    )


def store_state(place: Place, state: LogState) -> LogState:
    """Replace the log's state, durably; returns it."""
    faults.point("log.state.before")
    save_state(place.directory, state, place.files)
    return state


def publish(place: Place, state: LogState, number: int) -> tuple[ClosedSegment, LogState]:
    """Give a complete segment its final name, and consumers their links.

    state: already stored, with number_next = number + 1. Returns facts and the state stored last.
    """
    path = place.directory / segment_name(number, place.extension)
    if place.files.exists(path):
        raise SegmentPresent(
            f"cannot name segment {number}: {path} exists",
            hint="Two writers, or a file put back by hand: run penstock log check.",
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
    """Link a closed segment for every enabled consumer; returns the state stored last."""
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
