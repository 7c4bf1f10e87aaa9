"""Which segments a consumer reads next: its own links, and behind them the open segment.

The whole listing is checked before its first segment is given out: of one with a hole nothing is.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from penstock.consume.position import Position
from penstock.host.files import REAL_FILES, Files
from penstock.log import links
from penstock.log.layout import SegmentFile, list_segments
from penstock.log.tail import LogFollower
from penstock.model import PenstockError

logger = structlog.get_logger(__name__)


class SegmentsMissed(PenstockError):
    """A consumer's links have a hole: changes are lost to it. fields: consumer, last, next."""

    code = "CN08"
    retry = "operator"


class Listing:
    """The links of one consumer, as they come. For one thread."""

    def __init__(
        self,
        directory: Path,
        log_directory: Path,
        *,
        extension: str,
        reads_open: bool,
        files: Files = REAL_FILES,
    ) -> None:
        """directory: the consumer's. reads_open: also what is durable of the open segment."""
        self._directory = directory
        self._extension = extension
        self._reads_open = reads_open
        self._files = files
        self._follower = LogFollower(log_directory, extension, files)
        self._last: int | None = None
        self._open_seen = (-1, -1)  # number and last transaction of the open segment

    def look(self, saved: Position | None, *, is_pending: bool) -> list[SegmentFile]:
        """The segments that were not given out yet, in order; the open one, last, as it grows.

        saved: the saved position; is_pending: nothing was read since it was loaded. Links that it
        is past are removed then. Raises SegmentsMissed.
        """
        found = self._closed(saved, is_pending)
        if self._reads_open:
            found += self._open(found, saved)
        return found

    def _closed(self, saved: Position | None, is_pending: bool) -> list[SegmentFile]:
        new = self._unseen()
        if is_pending and saved is not None:
            new = self._without_processed(new, saved)
        if self._hole(new) is not None:
            new = self._unseen()  # a link that is made meanwhile can be hidden from one listing
        hole = self._hole(new)
        if hole is not None:
            raise self._missed(*hole)
        if is_pending and saved is not None and new and new[0].number > saved.segment:
            raise self._behind_saved(saved, new[0].number)
        if new:
            self._last = new[-1].number
        return new

    def _unseen(self) -> list[SegmentFile]:
        found = list_segments(self._directory, self._extension, self._files)
        return [file for file in found if self._last is None or file.number > self._last]

    def _without_processed(self, found: list[SegmentFile], saved: Position) -> list[SegmentFile]:
        for file in found:
            if file.number < saved.segment:
                text = (
                    "Already processed segment found. Skipping and deleting the file "
                    f"[segment={file.number}, state={saved.segment}]"
                )
                logger.info(text)
                self._files.unlink(file.path)
        return [file for file in found if file.number >= saved.segment]

    def _hole(self, found: list[SegmentFile]) -> tuple[int, int] | None:
        last = self._last
        for file in found:
            if last is not None and file.number != last + 1:
                return last, file.number
            last = file.number
        return None

    def _open(self, closed: list[SegmentFile], saved: Position | None) -> list[SegmentFile]:
        """The open segment, where it follows the last link and has something new."""
        if self._last is not None:
            expected = self._last + 1
        elif saved is not None:
            expected = saved.segment
        else:
            return []  # the first link says where this consumer begins
        durable = self._follower.durable()
        if durable is None or durable.number < expected:
            return []
        if durable.number > expected:
            if not closed:
                self._check_not_skipped(expected, durable.number)
            return []  # the link of the one expected comes first
        if (durable.number, durable.end.trx) == self._open_seen:
            return []
        file = self._follower.find(number=expected, trx_after=-1)
        if file is None or file.durable is None:
            return []
        self._open_seen = (file.number, file.durable.end.trx)
        return [file]

    def _check_not_skipped(self, expected: int, number: int) -> None:
        """The log is further: the link was made before, or was skipped. Raises SegmentsMissed."""
        if not links.is_linking(self._directory, self._files):
            return  # it gets no links now, and waits until it does
        if any(file.number >= expected for file in self._unseen()):
            return
        if self._last is None:
            raise self._behind_saved(Position(segment=expected, gsn=0), number)
        raise self._missed(expected - 1, number)

    def _missed(self, last: int, following: int) -> SegmentsMissed:
        return self._error(
            "Found missed segments. Some events are missed. Exiting! "
            f"[lastSegment={last}, nextSegment={following}]",
            last,
            following,
        )

    def _behind_saved(self, saved: Position, number: int) -> SegmentsMissed:
        return self._error(
            "Found segment greater then saved state. Some events are missed. Exiting! "
            f"[state={saved.segment}, segment={number}]",
            saved.segment,
            number,
        )

    def _error(self, text: str, last: int, following: int) -> SegmentsMissed:
        name = self._directory.name
        return SegmentsMissed(
            text,
            hint=f"Go on behind the hole: penstock delete-lost-segment-links FILE --consumer {name}"
            "; then fill it: penstock resend FILE --tables with the tables that matter.",
            consumer=name,
            last=last,
            next=following,
        )

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable in the log, at most so long."""
        self._follower.wait(timeout_s)

    def close(self) -> None:
        """Close what is kept open between looks."""
        self._follower.close()
