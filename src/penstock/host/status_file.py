"""A small file in which a process reports its progress to readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile, report_file


class StatusFile:
    """JSON file for display, replaced whole; readers never see half of it."""

    def __init__(
        self,
        path: Path,
        *,
        every_s: float = 1.0,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Create the directory; the first `write` creates the file."""
        files.make_directory(path.parent)
        self._file: StateFile[Any] = report_file(path, dict, files)
        self._every_s = every_s
        self._clock = clock
        self._written_s: float | None = None

    def due(self) -> bool:
        """Return whether the last write was long enough ago."""
        now_s = self._clock.monotonic_s()
        return self._written_s is None or now_s - self._written_s >= self._every_s

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file."""
        self._written_s = self._clock.monotonic_s()
        self._file.save(facts)
