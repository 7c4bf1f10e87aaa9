"""Rows that a consumer with `start = "snapshot"` gets before its first change.

They are a small log of their own in the folder `snapshot` of the consumer's directory: inserts of
the rows as they were before one position of the source. READY.json says where the pipeline's log
continues after them. The consumer's saved position belongs to that small log until it is past it;
then the folder is removed. Not here: reading the rows (`penstock.control.run.consumer_snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.consume.pieces import TOLD
from penstock.consume.position import ConsumerState, Position
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.log.layout import (
    SegmentFile,
    list_segments,
    load_state,
    open_name,
    read_durable,
    segment_name,
)
from penstock.log.links import LogPlace
from penstock.log.segment import Segment, SegmentOpener

declare("consume.snapshot.made", "consume.snapshot.placed", "consume.snapshot.ready")

FOLDER = "snapshot"
WANTED_FILE = "WANTED.json"
MADE_FILE = "MADE.json"
READY_FILE = "READY.json"
WAIT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Complete snapshot.

    Attributes:
        log_id: of its small log.
        ordinal: the rows are as they were before this position.
        begin: where the pipeline's log continues; None while the log is not that far.
    """

    log_id: str
    ordinal: str  # a number that JSON readers may not hold
    begin: Position | None = None


class Snapshot:
    """Folder of one consumer's snapshot."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Set the folder; nothing is read yet.

        Args:
            directory: the consumer's.
            files: the disk.
        """
        self.folder = directory / FOLDER
        self._directory = directory
        self._files = files

    @property
    def is_wanted(self) -> bool:
        """Return whether the snapshot must be read, or get its place, before the consumer can
        begin.
        """
        return self._files.exists(self.folder / WANTED_FILE)

    def want(self) -> None:
        """Request a snapshot."""
        self._files.make_directory(self.folder)
        StateFile(self.folder / WANTED_FILE, dict, files=self._files).save({})

    def clear(self) -> None:
        """Remove the left-overs of an incomplete snapshot."""
        self._remove_but(WANTED_FILE)

    def _remove_but(self, kept: str) -> None:
        for name in self._files.listdir(self.folder):
            if name != kept:
                self._files.unlink(self.folder / name)

    def _file(self, name: str) -> StateFile[Made]:
        return StateFile(self.folder / name, Made, files=self._files)

    def load_made(self) -> Made | None:
        """Return the facts about the snapshot's rows; None unless all rows are stored."""
        return self._file(MADE_FILE).load()

    def save_made(self, made: Made) -> None:
        """Record, durably, that all rows are there."""
        self._file(MADE_FILE).save(made)
        point("consume.snapshot.made")

    def begin(self, made: Made) -> None:
        """Let the consumer begin with the snapshot. Its position is saved first; that step may be
        repeated.
        """
        point("consume.snapshot.placed")
        start = Position(segment=0, gsn=0, log_id=made.log_id)
        ConsumerState(self._directory, self._files).save(start)
        point("consume.snapshot.ready")
        self._file(READY_FILE).save(made)
        self._files.unlink(self.folder / WANTED_FILE)

    def pending(self, saved: Position | None) -> Made | None:
        """Return the snapshot that a saved position is in; remove one that it is past."""
        made = self._file(READY_FILE).load()
        if made is None:
            return None
        if saved is not None and saved.log_id == made.log_id:
            return made
        self.remove()
        return None

    def segments(self, number: int, extension: str) -> list[SegmentFile]:
        """Return its segments from this number on."""
        found = list_segments(self.folder, extension, self._files)
        return [file for file in found if file.number >= number]

    def remove(self) -> None:
        """Remove the folder. READY.json goes last, because it marks a snapshot that is being
        removed.
        """
        self._remove_but(READY_FILE)
        self._files.unlink(self.folder / READY_FILE)


def place_behind(
    place: LogPlace,
    directory: Path,
    after: Position,
    ordinal: int,
    *,
    stop: Callable[[], bool],
    clock: Clock = REAL_CLOCK,
) -> Position | None:
    """Return the place in the log before the first transaction at or after a position.

    It waits until the log is that far, and returns None when asked to stop meanwhile. Raises
    SegmentCorrupt, FileMissing.

    Args:
        place: the log.
        directory: the consumer's.
        after: an earlier place.
        ordinal: the position of the source.
        stop: returns whether to stop.
        clock: the clock.
    """
    opener = SegmentOpener(place.extension, place.files)
    number = after.segment
    while not stop():
        file = _segment(place, directory, number)
        if file is not None:
            with opener.open(file) as segment:
                found = _in_segment(segment, ordinal)
                if found is not None:
                    return found
                if segment.is_closed:
                    number += 1
                    continue
        elif found := _at_end(place, number, ordinal):
            return found
        clock.sleep(WAIT_S)
    return None


def _at_end(place: LogPlace, number: int, ordinal: int) -> Position | None:
    """Return the place before a segment that does not exist yet, if the log's end has reached it.

    An idle source moves the log's end without beginning a segment.
    """
    state = load_state(place.log, place.files)
    if state is None or state.number_next != number or state.end.position < ordinal:
        return None
    return Position(segment=number, gsn=state.end.gsn, log_id=state.log_id)


def _segment(place: LogPlace, directory: Path, number: int) -> SegmentFile | None:
    """Return a segment by its link, its name in the log, or the durable part of the open one."""
    name = segment_name(number, place.extension)
    for path in (directory / name, place.log / name):
        if place.files.exists(path):
            return SegmentFile(number=number, path=path)
    durable = read_durable(place.log, place.files)
    if durable is None or durable.number != number:
        return None
    path = place.log / open_name(number, place.extension)
    if not place.files.exists(path):
        return None
    return SegmentFile(number=number, path=path, is_open=True, durable=durable)


def _in_segment(segment: Segment, ordinal: int) -> Position | None:
    """Return the place if it is in this segment or at its end; None if the log may
    have it later.
    """
    first = segment.transactions.first_from(ordinal)
    if first > segment.transactions.last and segment.end.position < ordinal:
        return None
    gsn = segment.start.gsn
    for entry in segment.row_frames():
        if entry.trx_last < first:
            gsn = max(gsn, entry.gsn_last)
        elif entry.trx_first < first:
            batch = segment.read_rows(entry).batch
            earlier = batch.column("trx").to_numpy() < first
            gsn = max(gsn, int(batch.column("gsn").to_numpy()[earlier].max()))
    done = [
        marker
        for marker in segment.markers()
        if marker.kind in TOLD and marker.gsn == gsn and marker.trx < first
    ]
    return Position(
        segment=segment.number, gsn=gsn, markers=len(done), log_id=segment.header.log_id
    )
