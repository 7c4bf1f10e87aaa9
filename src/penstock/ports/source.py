"""The extractor's port to a database engine, and what the engine gets in return.

One class per engine implements `SourceEngine` (`source/source_engine.py` of each), and its part
`extraction` makes it; the loop in `penstock.extract` knows nothing else of them.
Engines do not know the log: they keep state through `StateFiles`, write through `LogAccess`, and
read rows that the log has through `BaseRows`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFiles
from penstock.model import FlushPoint, PenstockError, Relation, Run, TableDefinition, TableName
from penstock.model.keeping import Keeping
from penstock.ports.config import Config, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.registry import PartName, part

TABLE_INTERVAL_S = 10.0

RANGE_BYTES = 64 * 1024 * 1024

BEHIND_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """Parameters of Wirekite's guide, and those of one engine.

    Attributes:
        flush_interval_s: The longest time until rows are made durable, and the age at which a
            segment is rotated.
        apply_interval_s: The shortest time between flushes for a loader, while less than
            events_per_flush rows arrive; None: no reader reads the open segment.
        events_per_flush: Number of rows after which they are made durable and acknowledged.
        idle_wait_s: How long no row must arrive before exit_when_idle ends the extraction.
        full_before_images: Updates and deletes have the whole old row, if the source's settings do
            not decide that.
        keeping: Limits for keeping segments that consumers have linked; None: a loader removes
            them.
        slot_wait_s: How long to wait for a slot that another process reads.
        table_interval_s: The longest time until the catalogue is read again for changes that send
            no rows; shorter if that is cheap.
        catch_up_bytes: How far behind the server, in WAL, ranges of catch_up_range_bytes are read
            by COPY before streaming; 0: never; None: BEHIND_BYTES, and never if the server is near.
        server_id: Our id, if the source's readers are replicas; 0: one that is made from the
            pipeline's name and place.
        heartbeat_s: Seconds between heartbeats that are committed at the source; 0: none.
    """

    slot: str = "wirekite_replication_slot"
    publication: str = "wirekite_publication"
    flush_interval_s: float = 5.0
    apply_interval_s: float | None = 0.1
    events_per_flush: int = 5000
    exit_when_idle: bool = False
    idle_wait_s: float = 3.0
    process_commits: bool = False
    keep_messages: bool = False
    full_before_images: bool = False
    origin: str = "any"
    operation_count_max: int = 150_000
    extension: str = "ckt"
    keeping: Keeping | None = None
    slot_wait_s: float = 90.0
    table_interval_s: float = TABLE_INTERVAL_S
    catch_up_bytes: int | None = None
    catch_up_range_bytes: int = RANGE_BYTES
    server_id: int = 0
    heartbeat_s: float = 0.0


class TableRows(Protocol):
    """All rows of a table at a place. relation: their shape."""

    __slots__ = ()

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """Shape of the rows."""
        ...

    @abstractmethod
    def fits(self, relation: Relation) -> bool:
        """Return whether the rows may be written unchanged in another shape of their table."""
        ...

    @abstractmethod
    def inserts(self, *, gsn: int, trx: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as inserts of one transaction, in the log's form. gsn: the first one's."""
        ...


class BaseRows(Protocol):
    """Base of a log, if it has one."""

    @abstractmethod
    def at(
        self, table: TableName, trx: int, *, gives_up: Callable[[], bool]
    ) -> AbstractContextManager[TableRows | None]:
        """Return a table as of a transaction, once that is durable; None if the base lacks the
        table.

        Call it before a later transaction is emitted. gives_up: called repeatedly; if it returns
        True, ConnectionLost is raised.
        """
        ...


class NoBase(BaseRows):
    """Base of a log that has none."""

    def at(
        self,
        _table: TableName,
        _trx: int,
        *,
        gives_up: Callable[[], bool],  # noqa: ARG002 - the port's
    ) -> AbstractContextManager[TableRows | None]:
        """Return None: there is no base. See BaseRows."""
        return nullcontext()


RELATIONS_FILE = "relations.json"


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

    __slots__ = ()

    @property
    @abstractmethod
    def byte_count(self) -> int:
        """Number of bytes received."""
        ...

    @property
    @abstractmethod
    def ignored_row_count(self) -> int:
        """Rows of tables that are not captured, if the source reports them."""
        ...


class SourceStream(Protocol):
    """Stream of one connection. All methods belong to the extractor's thread."""

    @property
    @abstractmethod
    def counts(self) -> StreamCounted:
        """Counts of what was received so far."""
        ...

    @property
    @abstractmethod
    def spilled_byte_count(self) -> int:
        """Bytes of transactions in progress on disk."""
        ...

    @abstractmethod
    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run, None if there is none in time; raises the stream's error."""
        ...

    @abstractmethod
    def has_given(self, position: int) -> bool:
        """Return whether `next_run` has returned everything before position."""
        ...

    @abstractmethod
    def ask_for_position(self) -> None:
        """Ask a silent server for its position."""
        ...

    @abstractmethod
    def acknowledge(self, position: int) -> None:
        """Confirm that everything before position is durable in the log."""
        ...


class Ranges(Protocol):
    """Reader of large ranges of the source's log, for a large backlog."""

    @abstractmethod
    def is_worth_it(self) -> bool:
        """Return whether another range should be read, rather than streamed."""
        ...

    @abstractmethod
    def read_range(self) -> Iterator[Run]:
        """Yield one range's transactions."""
        ...

    @abstractmethod
    def advance(self) -> None:
        """Note that the range is durable in the log."""
        ...


class LogAccess(Protocol):
    """Log as an engine may use it between two transactions."""

    @property
    @abstractmethod
    def durable(self) -> FlushPoint:
        """Last flush point."""
        ...

    @abstractmethod
    def write(self, run: Run) -> None:
        """Put a run into the log."""
        ...

    @abstractmethod
    def flush(self) -> None:
        """Make the log durable, and acknowledge."""
        ...

    @abstractmethod
    def close_segment(self) -> None:
        """Close the open segment: readers then see what it holds outside of a transaction."""
        ...


class SourceEngine(Protocol):
    """Source of one pipeline, over all its connections."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of our reader at the server: the slot, the replica's id."""
        ...

    @abstractmethod
    def begin(self, place: EnginePlace) -> Origin:
        """Return the source's identity; called once, before the log is opened."""
        ...

    @abstractmethod
    def server_end(self) -> ServerEnd:
        """Return the end of the server's log, on a connection of its own."""
        ...

    @abstractmethod
    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return the sender of heartbeats, for a with block; connects with the first one.

        Each call commits a heartbeat at the source. The time that it is called with is `sent_us` of
        a HEARTBEAT marker in this pipeline's stream and in no other. Raises typed errors.
        """
        ...

    @abstractmethod
    def text(self, position: int) -> str:
        """Return a position as the source writes it."""
        ...

    @abstractmethod
    def bytes_between(self, first: int, last: int, /) -> int:
        """Return the bytes of the source's log between two positions."""
        ...

    @abstractmethod
    def attempt(self) -> AbstractContextManager[None]:
        """Return a context with what one streaming attempt needs besides the stream itself."""
        ...

    @abstractmethod
    def ranges(self, durable: FlushPoint, /) -> AbstractContextManager[Ranges] | None:
        """Return the reader of ranges while far behind; None if ranges are not read."""
        ...

    @abstractmethod
    def stream(self, durable: FlushPoint) -> AbstractContextManager[SourceStream]:
        """Return a stream that continues after a flush point; entering it connects."""
        ...

    @abstractmethod
    def saw(self, run: Run, /) -> None:
        """Note that a run was written to the log."""
        ...

    @abstractmethod
    def before_flush(self, end: FlushPoint, /) -> None:
        """Prepare for what was written up to end to become durable."""
        ...

    @abstractmethod
    def has_outstanding(self) -> bool:
        """Return whether work on tables remains before the source counts as idle."""
        ...

    @abstractmethod
    def tend(self, log_access: LogAccess, /) -> None:
        """Do the outstanding work on tables; called between transactions."""
        ...

    @abstractmethod
    def is_loss(self, error: PenstockError) -> bool:
        """Return whether an error says that the source has lost changes that the log lacks."""
        ...


class Extraction(Protocol):
    """Part `extraction` of an engine."""

    def identity(self, config: Config, /) -> SourceIdentity:
        """Ask the source for its identity. Raises the errors of connecting."""
        ...

    def open_engine(
        self,
        pipeline: Pipeline,
        options: ExtractOptions,
        /,
        *,
        tables: Callable[[], list[TableDefinition]],
        stop: Callable[[], bool],
    ) -> AbstractContextManager[SourceEngine]:
        """Return the engine, for as long as changes are extracted.

        In mode data+change the handover surrounds it: entering waits until the position is
        captured, leaving until the bulk load no longer needs its snapshot, unless stop()
        returns True. tables: returns the tables that the pipeline captures. Raises
        LogWithoutBulkLoad and the engine's refusals.
        """
        ...

    def has_begun(self, pipeline: Pipeline, /) -> bool:
        """Return whether the log has a position, from which it continues in any case."""
        ...


EXTRACTION_PART: PartName[Extraction] = PartName("extraction")


def extraction_of(config: Config) -> Extraction:
    """Return the part `extraction` of the engine that a pipeline's source URL names."""
    return part(config.source.url, EXTRACTION_PART)
