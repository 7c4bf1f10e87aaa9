"""What the extractor asks of a database engine, and what it gives it in return.

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
        """What was saved under this name; None for nothing. Raises CheckpointCorrupt."""
        ...

    def save(self, name: str, state: Any) -> None:
        """Replace it, durably. Raises DiskFull, FileFailed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where an engine works. spill: directory of side files. run: directory of what is for show.

    log_id: returns the log's, from the first attempt on. base: the tables as the log has them.
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
    """What the log has to know of a source.

    identity: what must never change in the life of a log. resend_from: the position from which on
    the source certainly sends again; None: not known, or it has lost what we have not saved. begin:
    where an empty log begins, 0 where the source decides.
    """

    identity: Mapping[str, str]
    resend_from: int | None = None
    begin: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnd:
    """How far the server's log reaches, 0: not known. now_us: its clock, read before that."""

    position: int = 0
    now_us: int = 0


class StreamCounted(Protocol):
    """What has come over a stream, for display."""

    @property
    def byte_count(self) -> int:
        """Bytes received."""
        ...

    @property
    def ignored_row_count(self) -> int:
        """Rows of tables that are not captured, where the source reports them."""
        ...


class SourceStream(Protocol):
    """One connection's stream. All methods belong to the extractor's thread."""

    @property
    def counted(self) -> StreamCounted:
        """What has come so far."""
        ...

    @property
    def spilled_byte_count(self) -> int:
        """Bytes of transactions in progress on disk."""
        ...

    def next_run(self, timeout_s: float) -> Run | None:
        """The next run, None when there is none in time; raises what broke the stream."""
        ...

    def has_given(self, position: int) -> bool:
        """Whether everything before position was given out by `next_run`."""
        ...

    def ask_for_position(self) -> None:
        """Have a silent server say how far it is."""
        ...

    def acknowledge(self, position: int) -> None:
        """Everything before position is durable in the log."""
        ...


class Ranges(Protocol):
    """Reading in large pieces while far behind."""

    def is_worth_it(self) -> bool:
        """Whether another range should be read, rather than streamed."""
        ...

    def read_range(self) -> Iterator[Run]:
        """One range's transactions."""
        ...

    def advance(self) -> None:
        """The range is durable in the log."""
        ...


class LogAccess(Protocol):
    """The log as an engine may use it between two transactions."""

    @property
    def durable(self) -> FlushPoint:
        """The last flush point."""
        ...

    def write(self, run: Run) -> None:
        """Put a run into the log."""
        ...

    def flush(self) -> None:
        """Make it durable, and acknowledge."""
        ...

    def close_segment(self) -> None:
        """Close the open segment: what is in it without a transaction is read from then on."""
        ...


class SourceEngine(Protocol):
    """One source of one pipeline, over all its connections."""

    @property
    def name(self) -> str:
        """What reads the source, as its server knows it: the slot, the replica's id."""
        ...

    def begin(self, place: EnginePlace) -> Origin:
        """Called once, before the log is opened: the source's identity."""
        ...

    def server_end(self) -> ServerEnd:
        """How far the server's log reaches, on a connection of its own."""
        ...

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Who commits heartbeats at the source, for a with block; connects with the first one.

        Called with the time that it comes back with, as `sent_us` of a HEARTBEAT marker, in this
        pipeline's stream and in no other. Raises typed errors.
        """
        ...

    def text(self, position: int) -> str:
        """A position as the source writes it."""
        ...

    def bytes_between(self, first: int, last: int, /) -> int:
        """How much log of the source lies between two positions."""
        ...

    def attempt(self) -> AbstractContextManager[None]:
        """What one attempt to stream needs beside the stream itself, for a with block."""
        ...

    def ranges(self, durable: FlushPoint, /) -> AbstractContextManager[Ranges] | None:
        """What reads ranges while far behind; None where that is not done."""
        ...

    def stream(self, durable: FlushPoint) -> AbstractContextManager[SourceStream]:
        """A stream that goes on behind a flush point; entering it connects."""
        ...

    def saw(self, run: Run, /) -> None:
        """A run was written to the log."""
        ...

    def before_flush(self, end: FlushPoint, /) -> None:
        """What was written up to end is about to become durable."""
        ...

    def has_outstanding(self) -> bool:
        """Whether something has to be done about tables before the source counts as idle."""
        ...

    def tend(self, log_access: LogAccess, /) -> None:
        """Between transactions: do what has to be done about tables."""
        ...

    def is_loss(self, error: PenstockError) -> bool:
        """Whether an error says that the source no longer has what the log does not hold."""
        ...
