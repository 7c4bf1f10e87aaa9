"""The segment that is being written, read repeatedly up to its durable end.

Its index grows with the file: each look reads only the new frames. Readers get whole transactions
on the disk, which no recovery cuts off. Not here: the file that names the durable end
(`layout.py`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock.codec import ckt
from penstock.host.files import REAL_FILES, FileMissing, Files, ReadFile
from penstock.host.watch import FileWatch
from penstock.log.frames import FrameReader
from penstock.log.index import IndexBuilder, add_scanned, scan_frames
from penstock.log.layout import (
    DURABLE_NAME,
    EXTENSION_DEFAULT,
    Durable,
    DurableReader,
    SegmentFile,
    closed_path,
    next_segments,
    open_name,
)
from penstock.log.segment import Segment, open_segment
from penstock.model import FlushPoint


class LogFollower:
    """Finds the segments after a place in a log, and checks cheaply for more."""

    def __init__(
        self, directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
    ) -> None:
        """Open nothing before the first look."""
        self._directory = directory
        self._extension = extension
        self._files = files
        self._marks = DurableReader(directory, files)
        self._watch = FileWatch(directory / DURABLE_NAME)

    def behind(
        self, segment: int, trx: int, *, count_max: int, size_max: int, reads_open: bool
    ) -> list[SegmentFile]:
        """Return the segments after number `segment`, within the limits, but at least one.

        Args:
            segment: number of the last segment that was read.
            trx: the last transaction that was read.
            count_max: maximum number of segments.
            size_max: maximum total size, in bytes.
            reads_open: include the open segment if it has durable transactions after trx.

        Raises:
            SegmentMissing: there is a gap.
        """
        found = next_segments(
            self._directory,
            after=segment,
            count_max=count_max,
            extension=self._extension,
            files=self._files,
        )
        chosen: list[SegmentFile] = []
        size = 0
        for file in found:
            size += file.path.stat().st_size
            if chosen and size > size_max:
                return chosen
            chosen.append(file)
        if reads_open and len(chosen) < count_max:
            last = self.find(number=segment + len(chosen) + 1, trx_after=trx)
            chosen += [last] if last is not None else []
        return chosen

    def find(self, *, number: int, trx_after: int) -> SegmentFile | None:
        """Return the open segment if it has this number and durable transactions after
        trx_after.
        """
        durable = self._marks.read()
        if durable is None or durable.number != number or durable.end.trx <= trx_after:
            return None
        path = self._directory / open_name(number, self._extension)
        return SegmentFile(number=number, path=path, is_open=True, durable=durable)

    def durable_end(self) -> FlushPoint:
        """Return the durable end of the log; the beginning if the writer has not noted one."""
        durable = self._marks.read()
        return durable.end if durable is not None else FlushPoint(position=0)

    def durable(self) -> Durable | None:
        """Return the writer's last note about the open segment; None if there is none."""
        return self._marks.read()

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable, at most this long."""
        self._watch.wait(timeout_s)

    def close(self) -> None:
        """Close the files that stay open between looks."""
        self._marks.close()
        self._watch.close()


class SegmentOpener:
    """Opens segments for a follower of the log: closed ones, and the open one's durable part.

    For one thread at a time.
    """

    def __init__(self, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES) -> None:
        """Read nothing yet."""
        self._extension = extension
        self._files = files
        self._file_id = ""
        self._builder: IndexBuilder | None = None
        self._end_bytes = 0

    def open(self, file: SegmentFile) -> Segment:
        """Open a segment; an open one up to its durable end when it was found.

        Raises the errors of open_segment(), and FileMissing if it was removed meanwhile.
        """
        durable = file.durable
        if durable is None:
            return open_segment(file.path, extension=self._extension, files=self._files)
        reader = FrameReader(open_either(file.path, self._files))
        try:
            if reader.header.file_id != durable.file_id:
                raise reader.make_damaged(
                    "another segment", len(ckt.MAGIC), durable.file_id, reader.header.file_id
                )
            builder = self._grow_index(reader, durable)
            return Segment(reader, tuple(builder.entries), builder.totals(0), is_closed=False)
        except BaseException:
            reader.file.close()
            raise

    def _grow_index(self, reader: FrameReader, durable: Durable) -> IndexBuilder:
        """Return the index up to the durable end."""
        if (
            self._builder is None
            or self._file_id != durable.file_id
            or self._end_bytes > durable.size_bytes
        ):
            self._builder, self._end_bytes = IndexBuilder(reader.header), ckt.HEADER_REGION_SIZE
            self._file_id = durable.file_id
        builder, self._builder = self._builder, None  # an index that is half done is built again
        end_bytes = self._end_bytes
        if end_bytes < durable.size_bytes:
            for found in scan_frames(reader, end_bytes):
                add_scanned(builder, found)
                end_bytes = found.end_bytes
                if end_bytes >= durable.size_bytes:
                    break
        if end_bytes != durable.size_bytes or builder.end != durable.end:
            raise reader.make_damaged(
                "no flush point", durable.size_bytes, durable.end, builder.end
            )
        self._builder, self._end_bytes = builder, end_bytes
        return builder


def open_either(path: Path, files: Files = REAL_FILES) -> ReadFile:
    """Open `N.ckt_`, or `N.ckt` if it was closed and renamed meanwhile. Raises FileMissing."""
    with suppress(FileMissing):
        return files.open_read(path)
    return files.open_read(closed_path(path))
