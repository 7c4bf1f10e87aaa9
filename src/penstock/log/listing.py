"""Segments that a reader of a log reads next: its own links, and then the open segment.

Consumers, FlexCDC and merges read this way. Each look first checks that the saved state and the
links belong to this log, then the whole listing for gaps; only then is a link removed, or a
segment returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.host.files import REAL_FILES, Files
from penstock.host.state_of_log import StateOfOtherLog, check_log_id
from penstock.log import links
from penstock.log.layout import EXTENSION_DEFAULT, Durable, SegmentFile, list_segments, load_state
from penstock.log.links import log_id_of
from penstock.log.segment import LogFollower
from penstock.model import PenstockError
from penstock.model.segment_order import GREATER, MISSED, SegmentOrder, already_processed

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSegment:
    """Part of a saved state that a listing needs.

    Attributes:
        segment: the number of the segment to continue with.
        log_id: id of the log; empty if the state was saved before there was one.
    """

    segment: int
    log_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderErrors:
    """Errors of a reader that cannot continue.

    Attributes:
        missed: makes the error for a gap, from its text and the numbers around it.
        other_log: class of the error for a state of another log.
        state: the saved state in words, with its file or table.
        begin_anew: hint of that error.
    """

    missed: Callable[[str, int, int], PenstockError]
    other_log: type[StateOfOtherLog]
    state: str
    begin_anew: str


class Listing:
    """Segments of one reader, as they arrive. Used by one thread."""

    def __init__(
        self,
        directory: Path,
        log_directory: Path,
        *,
        errors: ReaderErrors,
        extension: str = EXTENSION_DEFAULT,
        reads_open: bool = True,
        reads_log: bool = False,
        removes: bool = True,
        files: Files = REAL_FILES,
    ) -> None:
        """Open nothing yet.

        Args:
            directory: the reader's links.
            log_directory: the log itself.
            errors: what the reader says when it cannot go on.
            extension: of segments.
            reads_open: whether durable parts of the open segment are returned too.
            reads_log: whether a closed segment without a link is read by its name in the log.
            removes: whether links that the saved state is past are removed.
            files: the disk.
        """
        self._directory = directory
        self._log_directory = log_directory
        self._errors = errors
        self._extension = extension
        self._reads_open = reads_open
        self._reads_log = reads_log
        self._removes = removes
        self._files = files
        self._follower = LogFollower(log_directory, extension, files)
        self._found: dict[int, SegmentFile] = {}
        self._log_id = ""
        self._order = SegmentOrder(
            numbers=self._numbers,
            check_past=self._check_past,
            remove=self._remove,
            missed=errors.missed,
        )
        self._open_seen = (-1, -1)  # number and last transaction of the open segment
        self._state: object = None

    def look(self, saved: SavedSegment | None, *, is_pending: bool) -> list[SegmentFile]:
        """Return the segments not returned before, in order; the open one, last, as it grows.

        Args:
            saved: the saved state; None if nothing was saved.
            is_pending: whether nothing was read since it was loaded. Segments that it is past are
                left out then, and links of them removed.

        Raises:
            StateOfOtherLog: the state or a link belongs to another log. Nothing is removed.
            PenstockError: there is a gap. Nothing is removed.
        """
        self.check_log(saved)
        self._state = None if saved is None else saved.segment
        pending = saved.segment if is_pending and saved is not None else None
        numbers = self._order.next(pending)
        closed = [self._found[number] for number in numbers]
        return closed + self._open(closed, saved) if self._reads_open else closed

    # -- the log -----------------------------------------------------------------------------

    def check_log(self, saved: SavedSegment | None) -> None:
        """Check that the state, the first link and the log itself have one log id.

        Raises StateOfOtherLog.
        """
        known = saved.log_id if saved is not None else ""
        state = load_state(self._log_directory, self._files)
        actual = state.log_id if state is not None else ""
        if known and actual:
            self._check_id(known, actual, self._errors.state)
        if not self._log_id:
            first = self._first_link()
            if first is not None:
                linked = log_id_of(first.path, self._files)
                self._check_id(known, linked, self._errors.state)
                self._check_id(linked, actual or linked, f"the segment {first.path}")
            self._log_id = known or (first is not None and linked) or ""
        elif actual:
            self._check_id(self._log_id, actual, self._errors.state)

    def _first_link(self) -> SegmentFile | None:
        return next(iter(list_segments(self._directory, self._extension, self._files)), None)

    def _check_id(self, saved: str, actual: str, place: str) -> None:
        errors = self._errors
        check_log_id(saved, actual, place=place, hint=errors.begin_anew, error=errors.other_log)

    # -- closed segments ---------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        there = list_segments(self._log_directory, self._extension, self._files)
        own = {file.number: file for file in there} if self._reads_log else {}
        linked = list_segments(self._directory, self._extension, self._files)
        self._found = own | {file.number: file for file in linked}
        return sorted(self._found)

    def _check_past(self, past: Sequence[int]) -> None:
        for number in past:
            path = self._found[number].path
            if self._log_id:
                self._check_id(self._log_id, log_id_of(path, self._files), self._errors.state)

    def _remove(self, number: int) -> None:
        file = self._found[number]
        if self._removes and file.path.parent == self._directory:
            logger.info(already_processed(number, self._state))
            self._files.unlink(file.path)

    # -- the open segment --------------------------------------------------------------------

    def _open(self, closed: list[SegmentFile], saved: SavedSegment | None) -> list[SegmentFile]:
        """Return the open segment, if it follows the last link and has something new."""
        last = self._order.last
        if last is not None:
            expected = last + 1
        elif saved is not None:
            expected = saved.segment
        else:
            return []  # this reader begins at its first link
        durable = self._follower.durable()
        if durable is None or durable.number < expected:
            return []
        if durable.number > expected:
            if not closed:
                self._check_not_skipped(expected, durable.number)
            return []  # the link of the expected segment is made first
        if (durable.number, durable.end.trx) == self._open_seen:
            return []
        file = self._follower.find(number=expected, trx_after=-1)
        if file is None or file.durable is None:
            return []
        self._open_seen = (file.number, file.durable.end.trx)
        return [file]

    def _check_not_skipped(self, expected: int, number: int) -> None:
        """Raise the error for a gap if the link of `expected` was skipped.

        The log is further than the reader: either the link was made after the last look, or it will
        never be made.
        """
        if not self._reads_log and not links.is_linking(self._directory, self._files):
            return  # it gets no links now, and waits until it does
        if any(one >= expected for one in self._numbers()):
            return
        last = self._order.last
        if last is None:
            text = f"{GREATER}[state={expected}, segment={number}]"
            raise self._errors.missed(text, expected, number)
        text = f"{MISSED}[lastSegment={expected - 1}, nextSegment={number}]"
        raise self._errors.missed(text, expected - 1, number)

    # -- waiting -----------------------------------------------------------------------------

    def durable(self) -> Durable | None:
        """Return how far the open segment is durable; None if the log has none."""
        return self._follower.durable()

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable in the log, at most this long."""
        self._follower.wait(timeout_s)

    def close(self) -> None:
        """Close what is kept open between looks."""
        self._follower.close()
