"""Facts of the change log about itself: its end, its segments, its unapplied transactions.

They are read from the files alone; the extractor and the loader may be at work meanwhile, so that a
listed file may be missing a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.control.pipeline.running import processes
from penstock.extract.extractor import STATUS_FILE
from penstock.host.files import REAL_FILES, FileMissing
from penstock.log.frames import FrameReader
from penstock.log.layout import (
    DONE_NAME,
    Durable,
    SegmentFile,
    list_segments,
    load_state,
    read_durable,
)
from penstock.log.segment import Segment, list_begun_segments, open_segment
from penstock.model import FlushPoint
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd
from penstock.ports.target import Applied

T = TypeVar("T")


def read_log_end(config: Config, *, look_into_open: bool = True) -> LogEnd:
    """Return the end of the log. look_into_open: also look into the open segment.

    That is cheap if its writer reports how far it is durable; otherwise it is scanned.
    """
    directory = config.layout.log
    extension = config.change_loader.change_file_extension
    # Read this first: changes that it reports must be in the log that is read afterwards.
    watermark_us = read_watermark(config)
    state = load_state(directory)
    if state is None:
        return LogEnd()
    closed = list_segments(directory, extension)
    unfinished = list_begun_segments(directory, extension)
    end = state.end
    if look_into_open:
        durable = read_durable(directory)
        for file in unfinished:
            with suppress(FileMissing):  # closed and renamed meanwhile: the state was older
                end = max(end, _open_end(file, durable), key=_order)
    return LogEnd(
        log_id=state.log_id,
        end=end,
        number_next=state.number_next,
        segments=len(closed),
        size_bytes=sum(_size(file.path) for file in (*closed, *unfinished)),
        done=(directory / DONE_NAME).exists(),
        watermark_us=watermark_us,
        has_writer=any(one.name == "extract" and one.pid for one in processes(config)),
    )


def outstanding_commit_us(config: Config, applied: Applied) -> int | None:
    """Return the commit time of the log's first unapplied transaction; None for none.

    Transactions count, not rows: a TRUNCATE has none.
    """
    directory = config.layout.log
    extension = config.change_loader.change_file_extension
    # In this order a file that is closed and renamed meanwhile is seen at least once.
    files = [*list_begun_segments(directory, extension), *list_segments(directory, extension)]
    for file in sorted(files):
        if file.number > applied.segment:
            with suppress(FileMissing):
                found = _with(file, lambda segment: segment.transactions.find(applied.trx + 1))
                if found is not None:
                    return found.commit_time_us
    return None


def read_watermark(config: Config) -> int:
    """Return the last watermark that an extractor of this log has noted; 0 for none.

    It remains true, whether an extractor runs or not: changes stay in the log.
    """
    try:
        data = REAL_FILES.read_whole(config.layout.run / STATUS_FILE)
        return msgspec.json.decode(data, type=_Noted).watermark_us
    except (FileMissing, msgspec.DecodeError):  # a crash of the machine may empty it
        return 0


class _Noted(msgspec.Struct):
    watermark_us: int = 0


def _with(file: SegmentFile, ask: Callable[[Segment], T]) -> T:
    with open_segment(file.path, extension=file.path.suffix.strip("._")) as segment:
        return ask(segment)


def _open_end(file: SegmentFile, durable: Durable | None) -> FlushPoint:
    """Return the end of an open segment; a report about another file of its number is ignored."""
    if durable is not None and durable.number == file.number:
        with closing(REAL_FILES.open_read(file.path)) as opened:
            if FrameReader(opened).header.file_id == durable.file_id:
                return durable.end
    return _with(file, lambda segment: segment.end)


def _order(point: FlushPoint) -> tuple[int, int]:
    return point.gsn, point.position


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
