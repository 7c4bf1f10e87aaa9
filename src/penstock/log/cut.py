"""Bytes that recovery cuts off an open segment, kept in a file until the log has them again.

`N.ckt_.cut-OFFSET-GSN` holds the segment's header region and then all its bytes from OFFSET on,
after the flush point of row GSN. The source is expected to send those changes again; if it cannot,
this file is their only copy. Only `check` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from penstock.codec import ckt
from penstock.codec.ckt import FrameKind
from penstock.host import faults
from penstock.host.files import REAL_FILES, TEMPORARY_SUFFIX, Files, ReadFile
from penstock.log.closing import Place
from penstock.log.frames import FrameReader, SegmentCorrupt
from penstock.log.layout import EXTENSION_DEFAULT, parse_name
from penstock.log.segment import scan_frames
from penstock.model import FlushPoint

faults.declare("log.cut.before", "log.cut.written", "log.cut.after", "log.cut.remove")

logger = structlog.get_logger(__name__)
_COPY_BLOCK_BYTES = 2**20
_NAME = re.compile(r"(?P<segment>.+)\.cut-(?P<offset>[1-9][0-9]{0,17})-(?P<gsn>[0-9]{1,18})\Z")


class CutPlace(NamedTuple):
    """Place of a cut in a segment.

    Attributes:
        offset_bytes: the first byte that was cut off.
        gsn: the last row before it.
    """

    offset_bytes: int
    gsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Kept tail of a segment.

    Attributes:
        row_count: rows in its whole frames.
        gsn_last: the last of these rows, or the last one before them.
        has_only_rows: every byte belongs to a whole frame, and none is a marker.
    """

    path: Path
    size_bytes: int
    row_count: int
    gsn_last: int
    has_only_rows: bool

    def is_passed(self, durable: FlushPoint) -> bool:
        """Return whether the log, which is durable up to this point, has the changes again."""
        if durable.gsn == self.gsn_last:
            return self.has_only_rows and self.row_count > 0
        return durable.gsn > self.gsn_last


class _Shifted(ReadFile):
    """A cut file, read with the offsets that its bytes had in the segment."""

    def __init__(self, file: ReadFile, offset_bytes: int) -> None:
        self._file = file
        self._shift = offset_bytes - ckt.HEADER_REGION_SIZE
        self.path = file.path
        self.size_bytes = file.size_bytes + self._shift

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        shift = self._shift if offset_bytes >= ckt.HEADER_REGION_SIZE else 0
        return self._file.read(offset_bytes - shift, length_bytes)

    def close(self) -> None:
        self._file.close()


def parse_cut_name(name: str, extension: str = EXTENSION_DEFAULT) -> CutPlace | None:
    """Return the place in a cut file's name; None for any other name."""
    match = _NAME.match(name)
    if match is None:
        return None
    segment = parse_name(match["segment"], extension)
    if segment is None or not segment[1]:
        return None
    return CutPlace(int(match["offset"]), int(match["gsn"]))


def keep_tail(place: Place, segment: Path, at: CutPlace) -> Path:
    """Copy the rest of a segment from `at` into its cut file, durably; return that file.

    An existing cut file of the same size is kept: an earlier start was interrupted, or cut the
    same bytes. Raises DiskFull, FileFailed; then the segment is unchanged.
    """
    faults.point("log.cut.before")
    path = segment.with_name(f"{segment.name}.cut-{at.offset_bytes}-{at.gsn}")
    source = place.files.open_read(segment)
    try:
        size = ckt.HEADER_REGION_SIZE + source.size_bytes - at.offset_bytes
        if _size_of(path, place.files) < size:
            _copy(place, source, at.offset_bytes, path)
    finally:
        source.close()
    faults.point("log.cut.after")
    logger.warning("cut bytes are kept", file=path.name, size_bytes=size)
    return path


def _size_of(path: Path, files: Files) -> int:
    if not files.exists(path):
        return 0
    file = files.open_read(path)
    file.close()
    return file.size_bytes


def _copy(place: Place, source: ReadFile, offset_bytes: int, path: Path) -> None:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if place.files.exists(temporary):
        place.files.unlink(temporary)
    file = place.files.create(temporary)
    try:
        file.append([source.read(0, ckt.HEADER_REGION_SIZE)])
        while offset_bytes < source.size_bytes:
            block = source.read(offset_bytes, _COPY_BLOCK_BYTES)
            file.append([block])
            offset_bytes += len(block)
        file.fsync()
    finally:
        file.close()
    faults.point("log.cut.written")
    place.files.rename(temporary, path)
    place.files.fsync_directory(place.directory)


def list_cuts(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[Cut]:
    """Return all cut files of a log, by name."""
    names = sorted(files.listdir(directory))
    return [
        read_cut(directory / name, at, files)
        for name in names
        if (at := parse_cut_name(name, extension)) is not None
    ]


def read_cut(path: Path, at: CutPlace, files: Files = REAL_FILES) -> Cut:
    """Read a cut file up to the first byte that is not whole. Raises FileMissing."""
    file = files.open_read(path)
    try:
        row_count, gsn_last, has_only_rows = 0, at.gsn, True
        try:
            reader = FrameReader(_Shifted(file, at.offset_bytes))
            for found in scan_frames(reader, at.offset_bytes):
                has_only_rows &= found.entry.kind != FrameKind.MARKER
                if found.entry.kind == FrameKind.ROWS:
                    row_count += found.entry.row_count
                    gsn_last = max(gsn_last, found.entry.gsn_last)
        except SegmentCorrupt:
            has_only_rows = False
        return Cut(
            path=path,
            size_bytes=file.size_bytes - ckt.HEADER_REGION_SIZE,
            row_count=row_count,
            gsn_last=gsn_last,
            has_only_rows=has_only_rows,
        )
    finally:
        file.close()


def remove_passed(place: Place, cuts: list[Cut], durable: FlushPoint) -> list[Cut]:
    """Remove the cut files whose changes the log has again; return the others."""
    left = []
    for cut in cuts:
        if not cut.is_passed(durable):
            left.append(cut)
            continue
        faults.point("log.cut.remove")
        place.files.unlink(cut.path)
        logger.info("cut bytes are in the log again", file=cut.path.name)
    return left
