"""What the change log says about itself: its end, its segments, what is not applied yet.

Read from the files alone; the extractor and the loader may be at work meanwhile, so that a file
that was there a moment ago may be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penstock.control.running import processes
from penstock.host.files import FileMissing
from penstock.log.layout import DONE_NAME, SegmentFile, list_segments
from penstock.log.segment import Segment, list_begun_segments, open_segment
from penstock.log.state import load_state
from penstock.model import FlushPoint
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd

T = TypeVar("T")


def read_log_end(config: Config, *, look_into_open: bool = True) -> LogEnd:
    """How far the log goes. look_into_open: scan the open segment too, which costs its size."""
    directory = config.layout.log
    extension = config.change_loader.change_file_extension
    state = load_state(directory)
    if state is None:
        return LogEnd()
    closed = list_segments(directory, extension)
    unfinished = list_begun_segments(directory, extension)
    end = state.end
    if look_into_open:
        for file in unfinished:
            with suppress(FileMissing):  # closed and renamed meanwhile: the state was older
                end = max(end, _with(file, lambda segment: segment.end), key=_order)
    return LogEnd(
        log_id=state.log_id,
        end=end,
        number_next=state.number_next,
        segments=len(closed),
        size_bytes=sum(_size(file.path) for file in (*closed, *unfinished)),
        done=(directory / DONE_NAME).exists(),
        has_writer=any(one.name == "extract" and one.pid for one in processes(config)),
    )


def outstanding_commit_us(config: Config, applied_gsn: int) -> int | None:
    """Commit time of the first row in the log behind applied_gsn; None when there is none."""
    directory = config.layout.log
    extension = config.change_loader.change_file_extension
    files = [*list_segments(directory, extension), *list_begun_segments(directory, extension)]
    for number, file in enumerate(files):
        following = files[number + 1] if number + 1 < len(files) else None
        with suppress(FileMissing):
            if following is not None and _with(following, lambda s: s.start.gsn) <= applied_gsn:
                continue
            found = _with(file, lambda segment: _first_commit_us(segment, applied_gsn))
            if found is not None:
                return found
    return None


def _first_commit_us(segment: Segment, applied_gsn: int) -> int | None:
    entries = list(segment.row_frames(gsn_after=applied_gsn))
    if not entries:
        return None
    first = min(entries, key=lambda entry: max(entry.gsn_first, applied_gsn + 1))
    batch = segment.read_rows(first).batch
    numbers = batch.column("gsn").to_numpy(zero_copy_only=False)
    row = int((numbers > applied_gsn).argmax())
    return int(segment.dated(batch.slice(row, 1)).column("commit_time")[0].value)


def _with(file: SegmentFile, ask: Callable[[Segment], T]) -> T:
    with open_segment(file.path, extension=file.path.suffix.strip("._")) as segment:
        return ask(segment)


def _order(point: FlushPoint) -> tuple[int, int]:
    return point.gsn, point.position


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
