"""Reports of a consumer's process: its metrics, and `run/consume-NAME.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.codec.ckt import FrameKind
from penstock.consume.metrics import CdcMetrics, MetricRegistry
from penstock.consume.position import Position
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StatusFile
from penstock.log.segment import Segment
from penstock.ports.direct import LogPlace


def status_path(run_directory: Path, name: str) -> Path:
    """Return the status file of a consumer."""
    return run_directory / f"consume-{name}.json"


class ProcessReport:
    """Keeps a consumer's metrics and writes its status file, once a second at most.

    Attributes:
        metrics: the published ones.
        own_metrics: those that the consumer made.
    """

    def __init__(
        self,
        name: str,
        run_directory: Path,
        *,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
        directory: Path | None = None,
    ) -> None:
        """Create the metrics.

        Args:
            name: of the consumer.
            run_directory: directory of the status file.
            files: the disk.
            clock: the clock.
            directory: the consumer's, reported as CdcDir.
        """
        self.metrics = CdcMetrics()
        self.own_metrics = MetricRegistry()
        self._name = name
        self._directory = "" if directory is None else str(directory)
        self._clock = clock
        self._file = StatusFile(status_path(run_directory, name), files=files, clock=clock)
        self._state = "starting"
        self._mode = "passive"

    def mode(self, mode: str) -> None:
        """Set the mode: active with the lock, passive while waiting for it."""
        self._mode = mode
        if mode == "active":
            self.write()

    def segment_ended(self, seconds: float) -> None:
        """Note that a closed segment was read to its end."""
        self.metrics.segment_time.observe(seconds * 1000)

    def metadata_told(self, seconds: float) -> None:
        """Note how long the callbacks for metadata took."""
        self.metrics.metadata_time.observe(seconds * 1000)

    def show_state(self, state: str) -> None:
        """Set the state; the file is written when it is due."""
        is_news = state != self._state and state == "paused"
        self._state = state
        if is_news or self._file.due():
            self.write()

    def write(self) -> None:
        """Write the file now."""
        self._file.write(self._facts())

    def note_end(self, error: dict[str, Any] | None = None) -> None:
        """Note that the process ends, with or without an error. Does nothing if another process is
        active.
        """
        if self._mode == "passive":
            return
        self._state = "failed" if error else "stopped"
        self._file.write({**self._facts(), "error": error})

    def _facts(self) -> dict[str, Any]:
        """Return the content of the status file."""
        return {
            "name": self._name,
            "pid": os.getpid(),
            "state": self._state,
            "mode": self._mode,
            "directory": self._directory,
            "segment": None,
            "read": None,
            "saved": None,
            "commit_time_us": 0,
            "updated_us": self._clock.now_us(),
            "metrics": self.metrics.registry.as_dict(),
            "own_metrics": self.own_metrics.as_dict(),
            "error": None,
        }


class Report(ProcessReport):
    """Report of a consumer of a change log."""

    _read: Position | None = None
    _saved: Position | None = None
    _commit_time_us = 0

    def note_loaded(self, saved: Position | None) -> None:
        """Note that the state was loaded."""
        self._read = self._saved = saved
        self.metrics.committed_segment.set(-1 if saved is None else saved.segment)
        self.write()

    def segment_began(self, place: Position, segment: Segment) -> None:
        """Note that a segment is read from now on, from this place."""
        if self._saved is not None and self._saved.segment == segment.number:
            self.metrics.committed_offset.set(bytes_before(self._saved.gsn, segment))
        self._read = self._read or place
        self.metrics.current_segment.set(place.segment)
        self.metrics.last_segment_time.set(self._clock.now_us() // 1000)

    def note_given(self, read: Position, segment: Segment) -> None:
        """Note that the consumer was called, and how far it has read."""
        now_us = self._clock.now_us()
        if self._count(read):
            self.metrics.last_event_time.set(now_us // 1000)
        if read.gsn == segment.end.gsn and segment.end.commit_time_us:
            self._commit_time_us = segment.end.commit_time_us
            late_us = max(0, now_us - segment.end.commit_time_us)
            self.metrics.capture_time.observe(late_us / 1000)
        self.show_state("reading")

    def note_moved(self, read: Position) -> None:
        """Note that the position moved over changes that the consumer does not want."""
        self._count(read)

    def _count(self, read: Position) -> int:
        """Note the position; return the number of changes since the last noted one."""
        count = 0 if self._read is None else max(0, read.gsn - self._read.gsn)
        self.metrics.events.add(count)
        self._read = read
        return count

    def note_saved(self, saved: Position, segment: Segment) -> None:
        """Note that a position was saved, in this segment."""
        self._saved = saved
        self.metrics.committed_segment.set(saved.segment)
        self.metrics.committed_offset.set(bytes_before(saved.gsn, segment))

    def note_refused(self, error: dict[str, Any]) -> None:
        """Note that the process could not begin, if no other process runs the consumer."""
        self._state = "failed"
        self._file.write({**self._facts(), "error": error})

    def _facts(self) -> dict[str, Any]:
        return {
            **super()._facts(),
            "segment": None if self._read is None else self._read.segment,
            "read": None if self._read is None else self._read.gsn,
            "saved": None if self._saved is None else self._saved.gsn,
            "commit_time_us": self._commit_time_us,
        }


class DirectReport(ProcessReport):
    """Report of a consumer that reads a node's directory."""

    _segment: int | None = None

    def note_loaded(self, saved: LogPlace | None) -> None:
        """Note that the state was loaded."""
        self.metrics.committed_segment.set(-1 if saved is None else saved.segment)
        self.metrics.committed_offset.set(0 if saved is None else saved.offset)
        self.write()

    def segment_began(self, segment: int) -> None:
        """Note that a segment is read from now on."""
        self._segment = segment
        self.metrics.current_segment.set(segment)
        self.metrics.last_segment_time.set(self._clock.now_us() // 1000)

    def note_given(self, count: int, time_ms: int) -> None:
        """Note that the consumer was called and read `count` entries; the last is from
        `time_ms`.
        """
        now_ms = self._clock.now_us() // 1000
        if count:
            self.metrics.events.add(count)
            self.metrics.last_event_time.set(now_ms)
            self.metrics.capture_time.observe(max(0, now_ms - time_ms))
        self.show_state("reading")

    def passed_over(self, count: int) -> None:
        """Note the number of records whose changes cannot be read."""
        self.metrics.unreadable.add(count)

    def note_saved(self, place: LogPlace) -> None:
        """Note that a place was saved."""
        self.metrics.committed_segment.set(place.segment)
        self.metrics.committed_offset.set(place.offset)

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "segment": self._segment}


def bytes_before(gsn: int, segment: Segment) -> int:
    """Return the bytes of the segment before the first frame with a row after this one."""
    if gsn >= segment.end.gsn:
        return segment.size_bytes
    behind = [
        entry.offset_bytes
        for entry in segment.entries
        if entry.kind == FrameKind.ROWS and entry.gsn_last > gsn
    ]
    return min(behind, default=0)
