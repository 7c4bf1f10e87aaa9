"""Recovery at start-up after a crash. It is idempotent: the next start repairs a crash during it.

- `N.ckt_` with whole transactions is cut at its last flush point, gets its footer and its name.
  The bytes that are cut off are kept unless the source certainly sends them again (`cut.py`).
- `N.ckt_` without any is removed; if its position is later, the state keeps that position. - A
torn tail is expected; damage to durable bytes is SegmentCorrupt: nothing is changed then.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import structlog

from penstock.host import faults
from penstock.host.files import AppendFile
from penstock.log.closing import (
    Place,
    link_consumers,
    publish,
    state_behind,
    store_state,
    write_footer,
)
from penstock.log.cut import CutPlace, keep_tail
from penstock.log.frames import FrameBuffer, FrameReader, is_header_torn
from penstock.log.layout import (
    LogState,
    SegmentFile,
    list_open_segments,
    list_segments,
    list_temporary,
    load_state,
    segment_name,
)
from penstock.log.segment import ClosedSegment, Scan, Segment, open_segment, scan
from penstock.model import FlushPoint, PenstockError

faults.declare(
    "log.recovery.before",
    "log.recovery.discard.before",
    "log.recovery.truncate.before",
    "log.recovery.truncate.after",
    "log.recovery.after",
)

logger = structlog.get_logger(__name__)
_FOOTER_BUFFER_BYTES = 2**20
_COPY_BLOCK_BYTES = 2**20


class LogForeign(PenstockError):
    """The directory holds the log of another pipeline or source.

    Fields: path, key, expected, actual.
    """

    code = "LG04"
    retry = "operator"


class ChainBroken(PenstockError):
    """A segment does not start where the previous one ends."""

    code = "LG09"
    retry = "operator"


class LeftoverUnexpected(PenstockError):
    """A file `N.ckt_` has a number that the writer cannot have left."""

    code = "LG10"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Result of a recovery.

    Attributes:
        state: as stored.
        closed: segments that got their name only now; the caller records them.
    """

    state: LogState
    closed: tuple[ClosedSegment, ...]


def recover(
    place: Place,
    *,
    log_id: str | None,
    source: Mapping[str, str],
    resend_from: int | None = None,
) -> Recovered:
    """Bring a log's directory into order; create it if it does not exist.

    The caller holds the directory's lock.

    Args:
        place: the log.
        log_id: the expected id; None accepts the existing one, or creates one.
        source: identity of the captured database, which must not have changed.
        resend_from: position from which the source can certainly send again. Bytes that are cut
            off before it, or all if it is None, are kept beside the segment (`cut.py`).

    Raises:
        LogForeign: the log is another one.
        ChainBroken: a segment does not continue the previous one.
        LeftoverUnexpected: an open segment has an impossible number.
        SegmentCorrupt: durable bytes are damaged.
        SegmentPresent: a segment cannot get its name.
        DiskFull: the disk is full.
        FileFailed: the disk fails.
    """
    faults.point("log.recovery.before")
    place.files.fsync_directory(place.directory)  # names that are seen below must not vanish later
    for path in list_temporary(place.directory, place.files):
        place.files.unlink(path)
    closed = list_segments(place.directory, place.extension, place.files)
    leftovers = list_open_segments(place.directory, place.extension, place.files)
    state = load_state(place.directory, place.files)
    if state is None:
        state = _make_state(place, closed, leftovers, log_id, source)
    check_owner(place.directory, state.log_id, state.source, log_id, source)
    if closed:
        state = _compared_with_last(place, state, closed[-1])
    repaired = []
    for leftover in leftovers:
        segment, state = _repair(place, state, leftover, resend_from)
        repaired += [segment] if segment else []
    state = _link_last(place, state)
    faults.point("log.recovery.after")
    return Recovered(state=state, closed=tuple(repaired))


def check_owner(
    path: Path,
    actual_id: str,
    actual_source: Mapping[str, str],
    log_id: str | None,
    source: Mapping[str, str],
) -> None:
    """Raise LogForeign unless the log id and every key of the source's identity are the same."""
    expected = {"log id": log_id or actual_id, **source}
    actual = {"log id": actual_id, **actual_source}
    for key in sorted(expected.keys() | actual.keys()):
        if expected.get(key) != actual.get(key):
            raise LogForeign(
                f"{path} holds the log of another source: {key} is {actual.get(key)!r} there, "
                f"expected {expected.get(key)!r}",
                hint="Give this pipeline a directory of its own, or correct the source's URL and "
                "slot in its configuration.",
                path=str(path),
                key=key,
                expected=expected.get(key),
                actual=actual.get(key),
            )


def _make_state(
    place: Place,
    closed: list[SegmentFile],
    leftovers: list[SegmentFile],
    log_id: str | None,
    source: Mapping[str, str],
) -> LogState:
    """Store and return the first state of a new log, or the state that follows from
    the segments.
    """
    if closed:
        with _open(place, closed[-1]) as segment:
            state = _state_of(segment)
    elif leftovers and not is_header_torn(leftovers[-1].path, place.files):
        with _open(place, leftovers[-1]) as segment:
            header = segment.header
        state = LogState(
            log_id=header.log_id,
            source=header.source,
            number_next=header.number,
            end=header.start,
            last_file_id=header.previous_file_id,
        )
    else:
        state = LogState(
            log_id=log_id or str(uuid.uuid4()),
            source=dict(source),
            number_next=0,
            end=FlushPoint(position=0),
        )
    check_owner(place.directory, state.log_id, state.source, log_id, source)
    return store_state(place, state)


def _open(place: Place, file: SegmentFile) -> Segment:
    return open_segment(file.path, extension=place.extension, files=place.files)


def _state_of(segment: Segment) -> LogState:
    return LogState(
        log_id=segment.header.log_id,
        source=segment.header.source,
        number_next=segment.number + 1,
        end=segment.end,
        last_file_id=segment.header.file_id,
    )


def _compared_with_last(place: Place, state: LogState, last: SegmentFile) -> LogState:
    """Check the last closed segment against the state, and return the newer state."""
    with _open(place, last) as segment:
        header, end = segment.header, segment.end
        from_last = _state_of(segment)
    check_owner(last.path, header.log_id, header.source, state.log_id, state.source)
    if last.number == state.number_next - 1:
        if header.file_id != state.last_file_id or not state.end.continues(end):
            raise broken_chain(last.path, state.end, end)
        return state
    if last.number >= state.number_next:
        logger.warning("log state was older than its segments", segment=last.path.name)
        return store_state(place, changed(from_last, number_linked=state.number_linked))
    logger.info(
        "newest segments are gone from the log, as after loading",
        segment=last.path.name,
        number_next=state.number_next,
    )
    return state


def broken_chain(path: Path, expected: FlushPoint, actual: FlushPoint) -> ChainBroken:
    """Return the error for a segment that does not fit its place."""
    return ChainBroken(
        f"{path.name} does not continue the log: expected {_point_text(expected)}, "
        f"got {_point_text(actual)}",
        hint="Run penstock log check: one of the files is from a copy or from another log.",
        path=str(path),
        expected=_point_text(expected),
        actual=_point_text(actual),
    )


def _point_text(point: FlushPoint) -> str:
    return f"gsn {point.gsn}, transaction {point.trx}, position {point.position}"


def _repair(
    place: Place, state: LogState, leftover: SegmentFile, resend_from: int | None
) -> tuple[ClosedSegment | None, LogState]:
    if leftover.number == state.number_next - 1:
        return _finish(place, state, leftover)
    if leftover.number != state.number_next:
        raise LeftoverUnexpected(
            f"{leftover.path} was left over, but the open segment would be {state.number_next}",
            hint="Run penstock log check, and move the file away if it belongs to another log.",
            path=str(leftover.path),
        )
    if is_header_torn(leftover.path, place.files):
        return None, _discard(place, state, leftover)
    reader = FrameReader(place.files.open_read(leftover.path))
    try:
        found = _checked_scan(reader, state)
    finally:
        reader.file.close()
    end = found.builder.end
    is_cut = not found.is_complete and found.flush_end_bytes < reader.file.size_bytes
    if is_cut and (resend_from is None or resend_from > end.position):
        keep_tail(place, leftover.path, CutPlace(found.flush_end_bytes, end.gsn))
    if not found.builder.has_content:
        if end != state.end:
            state = store_state(place, changed(state, end=end))
        return None, _discard(place, state, leftover)
    _complete(place, leftover, reader, found)
    state = store_state(place, state_behind(state, reader.header, found.builder))
    segment, state = publish(place, state, leftover.number)
    logger.info("left-over segment closed", segment=segment.path.name, gsn_last=segment.gsn_last)
    return segment, state


def _checked_scan(reader: FrameReader, state: LogState) -> Scan:
    """Scan an open file, and check that it follows the state."""
    header = reader.header
    check_owner(reader.path, header.log_id, header.source, state.log_id, state.source)
    follows = header.number == state.number_next and header.previous_file_id == state.last_file_id
    if not follows or not header.start.continues(state.end):
        raise broken_chain(reader.path, state.end, header.start)
    found = scan(reader)
    if found.torn is not None:
        logger.info(
            "torn tail cut",
            segment=reader.path.name,
            kept_bytes=found.flush_end_bytes,
            size_bytes=reader.file.size_bytes,
            reason=found.torn.message,
        )
    return found


def _discard(place: Place, state: LogState, leftover: SegmentFile) -> LogState:
    """Remove a file without one whole transaction."""
    faults.point("log.recovery.discard.before")
    place.files.unlink(leftover.path)
    place.files.fsync_directory(place.directory)
    logger.info("left-over segment discarded", segment=leftover.path.name)
    return state


def _complete(place: Place, leftover: SegmentFile, reader: FrameReader, found: Scan) -> None:
    """Cut after the last flush point and write the footer, or write the last bytes again."""
    file = place.files.open_append(leftover.path)
    try:
        faults.point("log.recovery.truncate.before")
        if not found.is_complete:
            file.truncate(found.flush_end_bytes)
        _write_again(place, file, found)
        file.fsync()
        faults.point("log.recovery.truncate.after")
        if found.is_complete:
            return
        buffer = FrameBuffer(file, reader.salt, _FOOTER_BUFFER_BYTES)
        write_footer(buffer, found.builder, place.clock)
    finally:
        file.close()


def _write_again(place: Place, file: AppendFile, found: Scan) -> None:
    """Rewrite, unchanged, the bytes that may never have reached the disk.

    A failed fdatasync leaves pages that can be read, but count as clean and are never written, so a
    later fsync succeeds without them. Bytes that were durable at the last flush point are not
    touched.
    """
    source = place.files.open_read(file.path)
    try:
        offset = found.last_flush.durable_bytes if found.last_flush else 0
        while offset < file.size_bytes:
            block = source.read(offset, min(_COPY_BLOCK_BYTES, file.size_bytes - offset))
            file.overwrite(offset, block)
            offset += len(block)
    finally:
        source.close()


def _finish(
    place: Place, state: LogState, leftover: SegmentFile
) -> tuple[ClosedSegment | None, LogState]:
    """Give this segment the name that it has in the state."""
    reader = FrameReader(place.files.open_read(leftover.path))
    try:
        found = scan(reader)
    finally:
        reader.file.close()
    right = reader.header.file_id == state.last_file_id and found.builder.end == state.end
    if not found.is_complete or not right:
        raise reader.make_damaged(
            "segment is not what the log's state says",
            found.flush_end_bytes,
            _point_text(state.end),
            _point_text(found.builder.end),
        )
    return publish(place, state, leftover.number)


def _link_last(place: Place, state: LogState) -> LogState:
    """Make the links of the last segment that a crash prevented."""
    last = state.number_next - 1
    path = place.directory / segment_name(last, place.extension)
    if state.number_linked >= last or not place.files.exists(path):
        return state
    return link_consumers(place, state, last)
