"""Links of the server that hold the segments of slots, and are removed when no slot needs them.

The server is one consumer of the log, whatever the number of its slots. While it has no slot it
gets no links, so no segment is held needlessly.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import structlog

from penstock.host.files import REAL_FILES, Files
from penstock.log import links
from penstock.log.layout import list_segments
from penstock.serve.slots import Slot
from penstock.serve.source_log import SegmentGone, SourceLog

NAME = "serve"
"""Name of the server's directory among those of consumers."""

logger = structlog.get_logger(__name__)


class Retention:
    """Links of the server. Blocking; for several threads."""

    def __init__(
        self, log: SourceLog, *, keep_bytes: int | None, files: Files = REAL_FILES
    ) -> None:
        """Set the limit of bytes that one slot may hold; None: no limit."""
        self._log, self._files = log, files
        self._keep_bytes = keep_bytes
        self._starts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def directory(self) -> Path:
        """Directory of the links."""
        return self._log.links

    def hold(self) -> None:
        """Let each segment that is closed from now on have a link."""
        with self._lock:
            known = links.load_consumer(self.directory, self._files)
            if known is None or not known.enabled:
                links.enable(self.directory, files=self._files)

    def is_linking(self) -> bool:
        """Return whether segments get links now, for which `cdc.disabled` must not be set."""
        return links.is_linking(self.directory, self._files)

    def let_go(self) -> None:
        """Remove all links, and get no more."""
        with self._lock:
            links.disable(self.directory, self._files)
            found = list_segments(self.directory, self._log.extension, self._files)
            if found:
                self._release(found[-1].number)

    def release(self, position: int) -> None:
        """Remove links before a position that is durably confirmed."""
        with self._lock:
            self._look()
            numbers = sorted(self._starts)
            # A segment is needed as long as the next one begins after the position.
            at = bisect_right([self._starts[n] for n in numbers], position) - 1
            if at > 0:
                self._release(numbers[at] - 1)

    def _release(self, through: int) -> None:
        links.release(
            self.directory,
            through=through,
            log_id="",  # compared when the slots were loaded
            extension=self._log.extension,
            files=self._files,
        )
        for number in [n for n in self._starts if n <= through]:
            del self._starts[number], self._sizes[number]

    def _look(self) -> None:
        for file in list_segments(self.directory, self._log.extension, self._files):
            if file.number not in self._starts:
                self._starts[file.number] = self._log.start_of(file.number)
                self._sizes[file.number] = file.path.stat().st_size

    def held_bytes(self, position: int) -> int:
        """Return the bytes that are held for a slot at a position."""
        with self._lock:
            numbers = sorted(self._starts)
            at = max(bisect_right([self._starts[n] for n in numbers], position) - 1, 0)
            return sum(self._sizes[n] for n in numbers[at:])

    def over(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return the slots that cannot continue: their segments are gone, or they hold too much."""
        with self._lock:
            self._look()
        first = self._log.first_kept()
        head = self._log.head()
        found: list[Slot] = []
        for slot in slots:
            if slot.saved.lost:
                continue
            position = slot.saved.confirmed
            try:
                is_gone = position < self._log.start_of(head.number if first is None else first)
            except SegmentGone:
                is_gone = position < head.position  # the next segment has not begun
            limit = self._keep_bytes
            if is_gone or (limit is not None and self.held_bytes(position) > limit):
                found.append(slot)
        return found
