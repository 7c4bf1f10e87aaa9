"""The directories of a pipeline. Nothing here opens a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """The directories of one pipeline, below `[pipeline].directory`."""

    root: Path

    @property
    def log(self) -> Path:
        """Segments, the log's own state, its lock and CHANGE.DONE."""
        return self.root / "log"

    @property
    def state(self) -> Path:
        """Small files replaced whole: handover, bulk ledger, holds."""
        return self.root / "state"

    @property
    def copies(self) -> Path:
        """Ledgers of tables that are copied while the others are followed, by number."""
        return self.state / "copies"

    @property
    def spill(self) -> Path:
        """Side files of transactions in progress; emptied at every connect."""
        return self.root / "spill"

    @property
    def run(self) -> Path:
        """Process ids, diagnostics, and rows that wait for their batch: nothing that must last."""
        return self.root / "run"

    @property
    def consumers(self) -> Path:
        """One directory of hard links per consumer."""
        return self.root / "cdc"

    @property
    def base(self) -> Path:
        """The tables as they were at a position of the log: files, and which of them count."""
        return self.root / "base"
