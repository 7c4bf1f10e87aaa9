"""The extractor's port to a database engine, and what the engine gets in return.

One class per engine implements `SourceEngine` (`source/source_engine.py` of each); the loop of
document 000 in `penstock.extract` knows nothing else of them. Engines do not know the log: they
keep state through `StateFiles`, and write through `LogAccess`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.model import FlushPoint, PenstockError, Run
from penstock.ports.base_rows import BaseRows, NoBase

RELATIONS_FILE = "relations.json"
State = TypeVar("State")


class StateFiles(Protocol):
    """Small files of a pipeline, by name, replaced whole and durably."""

    def load(self, name: str, kind: type[State]) -> State | None:
        """Return what was saved under this name, or None. Raises CheckpointCorrupt."""
        ...

    def save(self, name: str, state: Any) -> None:
        """Replace it, durably. Raises DiskFull, FileFailed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Place where an engine works.

    Attributes:
        spill: The directory of side files.
        run: The directory of files for display.
        log_id: Returns the log's id, from the first attempt on.
        base: The tables as the log has them.
    """

    state: StateFiles
    spill: Path
    run: Path
    log_id: Callable[[], str]
    files: Files = field(default=REAL_FILES)
    clock: Clock = field(default=REAL_CLOCK)
    base: BaseRows = field(default_factory=NoBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Facts about a source that the log has to know.

    Attributes:
        identity: Values that must never change in the life of a log.
        resend_from: The position from which on the source certainly sends again; None: not known,
            or it has lost changes that we have not saved.
        begin: Where an empty log begins, 0 if the source decides.
    """

    identity: Mapping[str, str]
    resend_from: int | None = None
    begin: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnd:
    """End of the server's log, 0: not known. now_us: its clock, read before that."""

    position: int = 0
    now_us: int = 0


class StreamCounted(Protocol):
    """Counts of what a stream has received, for display."""

    @property
    def byte_count(self) -> int:
        """Number of bytes received."""
        ...

    @property
    def ignored_row_count(self) -> int:
        """Rows of tables that are not captured, if the source reports them."""
        ...


class SourceStream(Protocol):
    """Stream of one connection. All methods belong to the extractor's thread."""

    @property
    def counts(self) -> StreamCounted:
        """Counts of what was received so far."""
        ...

    @property
    def spilled_byte_count(self) -> int:
        """Bytes of transactions in progress on disk."""
        ...

    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run, None if there is none in time; raises the stream's error."""
        ...

    def has_given(self, position: int) -> bool:
        """Return whether `next_run` has returned everything before position."""
        ...

    def ask_for_position(self) -> None:
        """Ask a silent server for its position."""
        ...

    def acknowledge(self, position: int) -> None:
        """Confirm that everything before position is durable in the log."""
        ...


class Ranges(Protocol):
    """Reader of large pieces while far behind."""

    def is_worth_it(self) -> bool:
        """Return whether another range should be read, rather than streamed."""
        ...

    def read_range(self) -> Iterator[Run]:
        """Yield one range's transactions."""
        ...

    def advance(self) -> None:
        """Note that the range is durable in the log."""
        ...


class LogAccess(Protocol):
    """Log as an engine may use it between two transactions."""

    @property
    def durable(self) -> FlushPoint:
        """Last flush point."""
        ...

    def write(self, run: Run) -> None:
        """Put a run into the log."""
        ...

    def flush(self) -> None:
        """Make the log durable, and acknowledge."""
        ...

    def close_segment(self) -> None:
        """Close the open segment: readers then see what it holds outside of a transaction."""
        ...


class SourceEngine(Protocol):
    """Source of one pipeline, over all its connections."""

    @property
    def name(self) -> str:
        """Name of our reader at the server: the slot, the replica's id."""
        ...

    def begin(self, place: EnginePlace) -> Origin:
        """Return the source's identity; called once, before the log is opened."""
        ...

    def server_end(self) -> ServerEnd:
        """Return the end of the server's log, on a connection of its own."""
        ...

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return the sender of heartbeats, for a with block; connects with the first one.

        Each call commits a heartbeat at the source. The time that it is called with is `sent_us` of
        a HEARTBEAT marker in this pipeline's stream and in no other. Raises typed errors.
        """
        ...

    def text(self, position: int) -> str:
        """Return a position as the source writes it."""
        ...

    def bytes_between(self, first: int, last: int, /) -> int:
        """Return the bytes of the source's log between two positions."""
        ...

    def attempt(self) -> AbstractContextManager[None]:
        """Return what one attempt to stream needs beside the stream itself, for a with block."""
        ...

    def ranges(self, durable: FlushPoint, /) -> AbstractContextManager[Ranges] | None:
        """Return the reader of ranges while far behind; None if ranges are not read."""
        ...

    def stream(self, durable: FlushPoint) -> AbstractContextManager[SourceStream]:
        """Return a stream that continues after a flush point; entering it connects."""
        ...

    def saw(self, run: Run, /) -> None:
        """Note that a run was written to the log."""
        ...

    def before_flush(self, end: FlushPoint, /) -> None:
        """Prepare for what was written up to end to become durable."""
        ...

    def has_outstanding(self) -> bool:
        """Return whether work on tables remains before the source counts as idle."""
        ...

    def tend(self, log_access: LogAccess, /) -> None:
        """Do the outstanding work on tables; called between transactions."""
        ...

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether an error says that the source has lost changes that the log lacks."""
        ...
