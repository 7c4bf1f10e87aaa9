"""Directories of a pipeline. This module opens no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """Directories of one pipeline, below `[pipeline].directory`."""

    root: Path

    @property
    def log(self) -> Path:
        """Segments, the log's own state, its lock and CHANGE.DONE."""
        return self.root / "log"

    @property
    def state(self) -> Path:
        """Small files that are replaced as a whole: handover, bulk ledger, holds."""
        return self.root / "state"

    @property
    def copies(self) -> Path:
        """Ledgers of tables that are copied while other tables are followed, by number."""
        return self.state / "copies"

    @property
    def spill(self) -> Path:
        """Side files of transactions in progress; emptied at every connect."""
        return self.root / "spill"

    @property
    def run(self) -> Path:
        """Files that need not last: process ids, diagnostics, rows that wait for their batch."""
        return self.root / "run"

    @property
    def consumers(self) -> Path:
        """Directory with one directory of hard links per consumer."""
        return self.root / "cdc"

    @property
    def base(self) -> Path:
        """Tables as they were at a position of the log: the files, and which of them count."""
        return self.root / "base"
