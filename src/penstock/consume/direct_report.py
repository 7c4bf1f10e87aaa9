"""Report of a consumer's process on a node's directory: metrics and status file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.consume.metrics import CdcMetrics, MetricRegistry
from penstock.consume.report import status_path
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.status_file import StatusFile
from penstock.ports.direct import LogPlace


class DirectReport:
    """Keeps the published metrics and writes `run/consume-NAME.json`, once a second at most."""

    def __init__(
        self,
        name: str,
        run_directory: Path,
        directory: Path,
        *,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Create the metrics.

        Args:
            name: of the consumer.
            run_directory: directory of the status file.
            directory: of the segments, reported as CdcDir.
            files: the disk.
            clock: the clock.
        """
        self.metrics = CdcMetrics()
        self.own_metrics = MetricRegistry()
        self._name = name
        self._directory = directory
        self._clock = clock
        self._file = StatusFile(status_path(run_directory, name), files=files, clock=clock)
        self._state = "starting"
        self._mode = "passive"
        self._segment: int | None = None

    def mode(self, mode: str) -> None:
        """Set the mode: active with the lock, passive while waiting for it."""
        self._mode = mode
        if mode == "active":
            self._write()

    def note_loaded(self, saved: LogPlace | None) -> None:
        """Note that the state was loaded."""
        self.metrics.committed_segment.set(-1 if saved is None else saved.segment)
        self.metrics.committed_offset.set(0 if saved is None else saved.offset)
        self._write()

    def segment_began(self, segment: int) -> None:
        """Note that a segment is read from now on."""
        self._segment = segment
        self.metrics.current_segment.set(segment)
        self.metrics.last_segment_time.set(self._clock.now_us() // 1000)

    def segment_ended(self, seconds: float) -> None:
        """Note that a segment was read to its end."""
        self.metrics.segment_time.observe(seconds * 1000)

    def metadata_told(self, seconds: float) -> None:
        """Note the duration of callbacks for metadata."""
        self.metrics.metadata_time.observe(seconds * 1000)

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

    def show_state(self, state: str) -> None:
        """Set the state; the file is written when it is due."""
        self._state = state
        if self._file.due():
            self._write()

    def note_end(self, error: dict[str, Any] | None = None) -> None:
        """Note that the process ends, with or without an error; nothing if another one works."""
        if self._mode == "passive":
            return
        self._state = "failed" if error else "stopped"
        self._file.write({**self._facts(), "error": error})

    def _write(self) -> None:
        self._file.write(self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "pid": os.getpid(),
            "state": self._state,
            "mode": self._mode,
            "directory": str(self._directory),
            "segment": self._segment,
            "read": None,
            "saved": None,
            "commit_time_us": 0,
            "updated_us": self._clock.now_us(),
            "metrics": self.metrics.registry.as_dict(),
            "own_metrics": self.own_metrics.as_dict(),
            "error": None,
        }
