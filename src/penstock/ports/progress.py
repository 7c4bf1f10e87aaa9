"""The tables of database or schema `wirekite` of any target, for the other processes.

`TargetReader` asks the same questions repeatedly, for display. The loader itself uses
`ports/target.py`. Not here: the tables (`target/progress.py` of each engine).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.registry import PartName, engines, part
from penstock.ports.target import Applied, TableSync


class Progress(Protocol):
    """Session that reads and writes progress; every error is typed."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        ...

    @abstractmethod
    def ensure_tables(self) -> None:
        """Create missing tables. Raises ProgressUnwritable."""
        ...

    @abstractmethod
    def read_action(self) -> str:
        """Return RUN, PAUSE or STOP; RUN without a row or table. Raises ActionUnknown."""
        ...

    @abstractmethod
    def set_action(self, action: str) -> None:
        """Write RUN, PAUSE or STOP. Raises ActionUnknown for another word."""
        ...

    @abstractmethod
    def read_applied(self) -> Applied:
        """Return how far the log is applied; all zero if nothing is applied or no table exists."""
        ...

    @abstractmethod
    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """Return the tables that have, or had, a table sync; see `load/table_sync.py`."""
        ...

    @abstractmethod
    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """Return by source table the columns that the target lacks, by [schemaChanges]."""
        ...

    @abstractmethod
    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        """Insert the CE row of a segment that opens; mark: from where it can be rebuilt."""
        ...

    @abstractmethod
    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        """Close the CE row of a segment; mark: the position after its last COMMIT."""
        ...

    @abstractmethod
    def finished_segments(self, slot: str) -> set[str]:
        """Return the files whose CE row is closed."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


class SharedProgress(Protocol):
    """Session that reads and moves the applied positions of shared logs (`SHARED_LOG`)."""

    @abstractmethod
    def take_over(self, log_id: str, holder: str) -> Applied:
        """Take a log over and return where it begins again: no earlier holder can commit any more.

        Increments the segment number after which the log begins, and with it the number that a
        loader must find there. Creates tables and row if they are missing. holder: the new holder.
        """
        ...

    @abstractmethod
    def holder(self, log_id: str) -> str:
        """Return the last holder of a shared log; empty if there is none."""
        ...

    @abstractmethod
    def read_shared(self, log_id: str) -> Applied:
        """Return how far a shared log is applied; all zero without a row."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


# An engine of shared logs has one part for both; others have only the first.
PROGRESS_PART: PartName[Callable[[str, str], Progress]] = PartName("progress")
SHARED_PROGRESS_PART: PartName[Callable[[str, str], SharedProgress]] = PartName("progress")
PROGRESS_URL_PART: PartName[Callable[[Path], str]] = PartName("progress_url")


def open_shared_progress(url: str, *, application_name: str) -> SharedProgress:
    """Connect to a target for its shared logs. Raises the errors of connecting, PartMissing."""
    return part(url, SHARED_PROGRESS_PART)(url, application_name)


def progress_beside(directory: Path) -> str:
    """Return the URL of the file in this directory that keeps progress without a target."""
    engine = next(one for one in engines() if PROGRESS_URL_PART in one.parts)
    return engine.part(PROGRESS_URL_PART)(directory)


def open_progress(url: str, *, application_name: str) -> Progress:
    """Connect to a target of any engine, by its URL."""
    return part(url, PROGRESS_PART)(url, application_name)


SHOWN_MAX = 5  # rows of wirekite_progress in a status, for each half


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """Row of wirekite_progress as the query of Wirekite's guide returns it; times are UTC."""

    source: str
    mark: str | None
    start_time: datetime
    finish_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Rest of a batch that is applied in part.

    Attributes:
        tables: Source tables that are ahead of the applied position.
        prepared: Names of prepared transactions.
    """

    tables: tuple[TableName, ...] = ()
    prepared: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is such a rest."""
        return bool(self.tables or self.prepared)

    @property
    def text(self) -> str:
        """A sentence that says what is left."""
        words = []
        if self.tables:
            names = ", ".join(map(str, self.tables[:SHOWN_MAX]))
            more = f" and {len(self.tables) - SHOWN_MAX} more" if self.tables[SHOWN_MAX:] else ""
            words.append(f"only these tables have its changes: {names}{more}")
        if self.prepared:
            names = ", ".join(map(repr, self.prepared[:SHOWN_MAX]))
            words.append(f"prepared transactions keep locks: {names}")
        return "a batch is applied in part: " + "; ".join(words)


class TargetReader(Protocol):
    """Reader of the target. Used by one thread; every error is typed."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        ...

    @property
    @abstractmethod
    def counts(self) -> ChunkCounts:
        """Counts of the bulk load's chunks."""
        ...

    @abstractmethod
    def present(self) -> tuple[bool, bool]:
        """Return whether there are progress tables, and those of a bulk load."""
        ...

    @abstractmethod
    def log_id(self) -> str:
        """Return the change log that the target follows; empty for none."""
        ...

    @abstractmethod
    def newest(self, operation: str) -> Sequence[ProgressRow]:
        """Return the last SHOWN_MAX rows of an operation, CE or CL, by their beginning."""
        ...

    @abstractmethod
    def restarts(self) -> int:
        """Return how often work has begun again, as noted in the progress rows."""
        ...

    @abstractmethod
    def action(self) -> str:
        """Return the word in wirekite_action."""
        ...

    @abstractmethod
    def read_applied(self) -> Applied:
        """Return how far the log is applied."""
        ...

    @abstractmethod
    def table_syncs(self) -> Mapping[TableName, TableSync]:
        """Return the tables that have, or had, a table sync."""
        ...

    def read_unfinished(self) -> Unfinished:
        """Return what is left of a batch that was applied in part; a loader may be at it."""
        return Unfinished()

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


TARGET_STATE_PART: PartName[Callable[[str, str], TargetReader]] = PartName("target_state")


def open_target_reader(url: str, *, application_name: str) -> TargetReader:
    """Connect to a target of any engine, by its URL."""
    return part(url, TARGET_STATE_PART)(url, application_name)
