"""The tables of database or schema `wirekite` of any target, for the other processes.

The loader itself goes through `ports/target.py`. Not here: the tables (`target/progress.py`
of each engine).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.model import TableName
from penstock.ports.registry import engines, part
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied


class Progress(Protocol):
    """A session that reads and writes progress; every error comes out typed."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    def ensure_tables(self) -> None:
        """Make what is missing. Raises ProgressUnwritable."""
        ...

    def read_action(self) -> str:
        """RUN, PAUSE or STOP; RUN when there is no row or no table. Raises ActionUnknown."""
        ...

    def set_action(self, action: str) -> None:
        """Write RUN, PAUSE or STOP. Raises ActionUnknown for another word."""
        ...

    def read_applied(self) -> Applied:
        """How far the log is applied; all zero when nothing is, or there is no table yet."""
        ...

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """The tables that have, or had, a table sync; see `ports/table_sync.py`."""
        ...

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """By source table the columns that the target does not have, by [schemaChanges]."""
        ...

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        """Insert the CE row of a segment that opens; mark: from where it can be rebuilt."""
        ...

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        """Close the CE row of a segment; mark: the position behind its last COMMIT."""
        ...

    def finished_segments(self, slot: str) -> set[str]:
        """The files whose CE row is closed."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SharedProgress(Protocol):
    """A session that reads and moves the applied positions of shared logs (`SHARED_LOG`)."""

    def take_over(self, log_id: str, holder: str) -> Applied:
        """Let nobody commit who has read the position before: where the log begins again.

        The number of the segment behind which it does is raised, and with it what a loader must
        find there. holder: who takes it over. Makes tables and row where they are missing.
        """
        ...

    def holder(self, log_id: str) -> str:
        """Who has taken a shared log over last; empty for nobody."""
        ...

    def read_shared(self, log_id: str) -> Applied:
        """How far a shared log is applied; all zero where there is no row yet."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_shared_progress(url: str, *, application_name: str) -> SharedProgress:
    """Connect to a target for its shared logs. Raises what connecting does, PartMissing."""
    progress: SharedProgress = part(url, "progress")(url, application_name)
    return progress


def progress_beside(directory: Path) -> str:
    """The URL of the file in this directory that keeps progress where there is no target."""
    engine = next(one for one in engines() if "progress_url" in one.parts)
    url: str = engine.part("progress_url")(directory)
    return url


def open_progress(url: str, *, application_name: str) -> Progress:
    """Connect to a target, whichever engine its URL names."""
    progress: Progress = part(url, "progress")(url, application_name)
    return progress
