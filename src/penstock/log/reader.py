"""Several segments in a row, and the examination of a whole log.

Reading changes nothing: a finding's hint says what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.codec import ckt
from penstock.host.files import REAL_FILES, TEMPORARY_SUFFIX, FileMissing, Files
from penstock.host.state_file import CheckpointCorrupt
from penstock.log import layout
from penstock.log.cut import CutPlace, parse_cut_name, read_cut
from penstock.log.frames import FrameReader, corrupt
from penstock.log.layout import (
    DURABLE_NAME,
    EXTENSION_DEFAULT,
    LogState,
    SegmentFile,
    SegmentMissing,
    load_state,
)
from penstock.log.recovery import ChainBroken, LogForeign, broken_chain
from penstock.log.segment import (
    ClosedSegment,
    IndexBuilder,
    Segment,
    add_scanned,
    open_segment,
    scan,
    scan_frames,
)
from penstock.model import FlushPoint, PenstockError
from penstock.model.words import count_words

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """One observation about a log.

    Attributes:
        code: of the error that a reader would raise for it.
    """

    severity: Severity
    code: str
    file: str
    message: str
    hint: str = ""


def open_chain(
    segments: Sequence[SegmentFile],
    *,
    log_id: str | None = None,
    gsn_applied: int | None = None,
    extension: str = EXTENSION_DEFAULT,
    files: Files = REAL_FILES,
) -> list[Segment]:
    """Open consecutive closed segments and check that each continues the previous one.

    The caller closes each of them. If an error is raised, none stays open.

    Args:
        segments: the files.
        log_id: the log that they must belong to.
        gsn_applied: the first segment may start at or before this row's end, never after it.
        extension: of segments.
        files: the disk.

    Raises:
        SegmentMissing: a segment is missing.
        ChainBroken: a segment does not continue the previous one.
        LogForeign: a segment belongs to another log.
        PenstockError: all that open_segment() raises.
    """
    with ExitStack() as stack:
        opened: list[Segment] = []
        for file in segments:
            segment = stack.enter_context(open_segment(file.path, extension=extension, files=files))
            check_link(opened[-1].facts() if opened else None, segment)
            opened.append(segment)
        if opened:
            _check_first(opened[0], log_id, gsn_applied)
        stack.pop_all()
    return opened


def _check_first(segment: Segment, log_id: str | None, gsn_applied: int | None) -> None:
    if log_id is not None and segment.header.log_id != log_id:
        raise _foreign(segment, log_id)
    if gsn_applied is not None and segment.start.gsn > gsn_applied:
        raise broken_chain(
            segment.path,
            FlushPoint(position=segment.start.position, gsn=gsn_applied),
            segment.start,
        )


def _foreign(segment: Segment, log_id: str) -> LogForeign:
    return LogForeign(
        f"{segment.path.name} belongs to log {segment.header.log_id}, expected {log_id}",
        hint="A file of another pipeline is in this directory: move it away.",
        path=str(segment.path),
        key="log id",
        expected=log_id,
        actual=segment.header.log_id,
    )


def check_link(before: ClosedSegment | None, segment: Segment) -> None:
    """Raise unless the segment follows `before` (None: nothing to compare)."""
    if before is None:
        return
    if segment.header.log_id != before.log_id:
        raise _foreign(segment, before.log_id)
    if segment.number != before.number + 1:
        raise layout.missing(
            segment.path.parent,
            before.number,
            segment.number,
            extension=segment.path.suffix.lstrip("."),
        )
    if segment.header.previous_file_id != before.file_id or not segment.start.continues(before.end):
        raise broken_chain(segment.path, before.end, segment.start)


def check(
    directory: Path,
    *,
    extension: str = EXTENSION_DEFAULT,
    files: Files = REAL_FILES,
    on_segment: Callable[[SegmentFile], None] | None = None,
) -> list[LogFinding]:
    """Examine a whole log: every byte of every segment, numbers, chain, state, left-overs.

    A writer may be at work meanwhile.

    Args:
        directory: the log.
        extension: of segments.
        files: the disk.
        on_segment: called before each segment (progress).

    Raises:
        FileMissing: the directory does not exist.
        FileFailed: the disk cannot be read.
    """
    findings: list[LogFinding] = []
    names = files.listdir(directory)
    findings += _strange_names(names, extension)
    state, problem = _state_of(directory, files)
    findings += problem
    before: ClosedSegment | None = None
    for file in layout.list_segments(directory, extension, files):
        if on_segment is not None:
            on_segment(file)
        found, before = _check_closed(file, before, extension, files)
        findings += found
    findings += _compare_state(state, before)
    for file in layout.list_open_segments(directory, extension, files):
        findings += _check_open(file, before, state, files)
    for name in sorted(names):
        at = parse_cut_name(name, extension)
        if at is not None:
            findings += _check_cut(directory / name, at, files)
    return findings


def _finding(severity: Severity, file: Path, error: PenstockError) -> LogFinding:
    return LogFinding(
        severity=severity, code=error.code, file=file.name, message=error.message, hint=error.hint
    )


def _strange_names(names: list[str], extension: str) -> Iterator[LogFinding]:
    known = (layout.LOCK_NAME, layout.STATE_NAME, layout.DONE_NAME, DURABLE_NAME)
    for name in sorted(names):
        if name.endswith(TEMPORARY_SUFFIX):
            yield LogFinding(
                severity="info",
                code="LG20",
                file=name,
                message=f"{name} is a file whose replacement was interrupted",
                hint="The extractor removes it at its next start.",
            )
        elif (
            name not in known
            and layout.parse_name(name, extension) is None
            and parse_cut_name(name, extension) is None
        ):
            yield LogFinding(
                severity="info",
                code="LG21",
                file=name,
                message=f"{name} is not a file of the log",
                hint="Nothing reads it; move it away if it is not yours.",
            )


def _state_of(directory: Path, files: Files) -> tuple[LogState | None, list[LogFinding]]:
    path = directory / layout.STATE_NAME
    try:
        state = load_state(directory, files)
    except (CheckpointCorrupt, ckt.FormatUnknown) as error:
        return None, [_finding("error", path, error)]
    if state is not None:
        return state, []
    message = f"{layout.STATE_NAME} is not there"
    hint = "The extractor makes it from the segments at its next start."
    return None, [
        LogFinding(severity="warning", code="LG22", file=path.name, message=message, hint=hint)
    ]


def _check_closed(
    file: SegmentFile, before: ClosedSegment | None, extension: str, files: Files
) -> tuple[list[LogFinding], ClosedSegment | None]:
    """Return findings about one closed segment, and its facts (None: unknown) for the next."""
    findings = []
    try:
        with open_segment(file.path, extension=extension, files=files) as segment:
            try:
                check_link(before, segment)
            except (ChainBroken, SegmentMissing, LogForeign) as error:
                findings.append(_finding("error", file.path, error))
            facts = segment.facts()
            verify_whole(segment)
    except FileMissing:
        return [], None  # removed by the loader meanwhile
    except PenstockError as error:
        findings.append(_finding("error", file.path, error))
        return findings, None
    return findings, facts


def verify_whole(segment: Segment) -> None:
    """Read every frame of a closed segment and compare with its index. Raises SegmentCorrupt."""
    segment.verify()
    builder = IndexBuilder(segment.header)
    for found in scan_frames(segment.frame_reader):
        add_scanned(builder, found)
    same = tuple(builder.entries) == segment.entries
    if not same or builder.totals(segment.totals.closed_us) != segment.totals:
        error = ckt.FrameInvalid("footer does not match what the file holds", offset_bytes=0)
        raise corrupt(segment.path, error)


def _compare_state(state: LogState | None, last: ClosedSegment | None) -> Iterator[LogFinding]:
    if state is None or last is None:
        return
    if last.log_id != state.log_id:
        yield LogFinding(
            severity="error",
            code=LogForeign.code,
            file=last.path.name,
            message=f"log id {last.log_id}, the log's state says {state.log_id}",
            hint="A file of another pipeline is in this directory: move it away.",
        )
    elif last.number == state.number_next - 1 and last.file_id != state.last_file_id:
        yield _finding("error", last.path, broken_chain(last.path, state.end, last.end))
    elif last.number < state.number_next - 1:
        yield LogFinding(
            severity="info",
            code="LG23",
            file=last.path.name,
            message=f"segments {last.number + 1} to {state.number_next - 1} are gone",
            hint="Nothing to do if a load with removeFiles or doneDirectory removed them; if not, "
            "they are lost.",
        )


def _check_open(
    file: SegmentFile, before: ClosedSegment | None, state: LogState | None, files: Files
) -> list[LogFinding]:
    """Return findings about `N.ckt_`, which a running extractor writes, or which is left over."""
    try:
        source = files.open_read(file.path)
    except FileMissing:
        return []  # closed meanwhile
    try:
        if source.size_bytes <= ckt.HEADER_REGION_SIZE:
            return [_open_finding("info", file, "holds nothing yet")]
        reader = FrameReader(source)
        found = scan(reader)
    except PenstockError as error:
        return [_finding("error", file.path, error)]
    finally:
        source.close()
    expected = state.number_next if state is not None else before.number + 1 if before else None
    if expected is not None and file.number not in (expected, expected - 1):
        return [_open_finding("error", file, f"is left over; segment {expected} is expected")]
    rows = found.builder.row_count
    tail = source.size_bytes - found.flush_end_bytes
    return [
        _open_finding(
            "info",
            file,
            f"is open: {count_words(rows, 'row')}, {count_words(tail, 'byte')} not yet whole",
        )
    ]


def _open_finding(severity: Severity, file: SegmentFile, what: str) -> LogFinding:
    return LogFinding(
        severity=severity,
        code="LG24",
        file=file.path.name,
        message=f"{file.path.name} {what}",
        hint="Nothing to do: a running extractor writes the file, or the next start recovers it.",
    )


def _check_cut(path: Path, at: CutPlace, files: Files) -> list[LogFinding]:
    """Return findings about bytes that a recovery cut off and kept."""
    try:
        cut = read_cut(path, at, files)
    except FileMissing:
        return []  # the log has its changes again by now
    rows = (
        f"{count_words(cut.row_count, 'row')} up to gsn {cut.gsn_last}"
        if cut.row_count
        else "no whole rows"
    )
    return [
        LogFinding(
            severity="info",
            code="LG25",
            file=path.name,
            message=f"{path.name}: {cut.size_bytes} bytes cut off at a recovery, {rows}",
            hint="The extractor removes it when the log has these changes again; nothing reads it.",
        )
    ]
