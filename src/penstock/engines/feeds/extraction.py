"""Part `extraction`: a group's engine and its stream, with its tables from the target's catalogue.

The window of a group (`ports.feeds.Window`) is polled; the rows between the end of the log and
the proposed time are read, window by window. Nothing is ever acknowledged here: rows are marked
applied from the target's progress.

A transaction has the position of its time. A flush point's position is the number after the time up
to which everything is in the log: a resolved time, or one at which a window is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Self

from penstock.engines.feeds.rows import Shapes
from penstock.engines.feeds.windows import WindowReader
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, PenstockError, Run, TableDefinition, TableName
from penstock.model.hlc import NANOS_MAX, Hlc, HlcInvalid
from penstock.model.patterns import as_pattern
from penstock.model.position import Position, PositionInvalid
from penstock.ports.config import Config, Pipeline, SourceSection
from penstock.ports.feeds import (
    Group,
    StagedTable,
    StagingDatabase,
    StagingSession,
    group_at,
    group_name,
    position_behind,
    source_identity,
    staging_at,
    time_through,
)
from penstock.ports.identity import SourceIdentity
from penstock.ports.positions import Positions
from penstock.ports.source import (
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
    SourceStream,
    StreamCounted,
)
from penstock.ports.tables import tables_at


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    group = group_name(group_at(config.source.url))
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="staged",  # as written in existing logs
        system_id=group,
        timeline=0,
        database=group,
        database_id=0,
        slot="",
        publication="",
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[StagedEngine]:
    """Return the engine. The tables are those of the target."""
    del options, tables, stop
    config = pipeline.config
    assert config.staging is not None, "a file with [stage] has it"
    assert config.stage is not None
    url = config.source.url
    group = group_at(url)
    yield StagedEngine(
        database=staging_at(config.staging.url),
        group=group,
        url=url,
        definitions=lambda: definitions_of(config, group),
        splits=config.stage.split_windows and not config.consumers,
        with_applied=bool(config.consumers),
        name=group_name(group),
    )


def definitions_of(config: Config, group: Group) -> Mapping[StagedTable, TableDefinition]:
    """Read the tables of a target schema from its catalogue. Raises the errors of reading it."""
    url, schema = config.target.url, group[-1]
    pattern = as_pattern(TableName(schema, "x")).removesuffix("x") + "*"
    asked = replace(config, source=SourceSection(url=url, tables=(pattern,)))
    found = tables_at(url).read_captured(asked, dropped=())
    return {StagedTable(group, one.name.name): one for one in found if one.name.schema == schema}


POLL_S = 0.1


@dataclass
class StagedEngine(SourceEngine):
    """Source engine over the staged mutations of a group.

    Attributes:
        url: that of the group.
        definitions: reads the target's catalogue.
        with_applied: the log is for consumers, which also get applied rows.
    """

    database: StagingDatabase
    group: Group
    url: str
    definitions: Callable[[], Mapping[StagedTable, TableDefinition]]
    splits: bool = False
    with_applied: bool = False
    name: str = ""
    _shapes: Shapes | None = None
    _clock: Clock = REAL_CLOCK

    def begin(self, place: EnginePlace) -> Origin:
        """Return the group's identity. Unapplied rows can be read again at any time."""
        self._shapes = Shapes(definitions=self.definitions, files=place.state)
        self._clock = place.clock
        return Origin(identity=source_identity(self.url), resend_from=0)

    def server_end(self) -> ServerEnd:
        """Return the proposed checkpoint; called by a separate thread."""
        now_us = self._clock.now_us()
        with self.database.open_session() as session:
            proposed = session.window(self.group).proposed
        return ServerEnd(now_us=now_us, position=position_behind(proposed))

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: resolved times are this source's heartbeats."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return str(HlcPosition(position))

    def bytes_between(self, _first: int, _last: int) -> int:
        """Return 0: the number is unknown."""
        return 0

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[StagedStream]:
        assert self._shapes is not None, "begin() comes first"
        self._shapes.load()
        with self.database.open_session() as session:
            reader = WindowReader(
                session=session,
                group=self.group,
                shapes=self._shapes,
                splits=self.splits,
                with_applied=self.with_applied,
            )
            reader.go_on(time_through(durable.position))
            yield StagedStream(
                session=session, group=self.group, reader=reader, end=durable, clock=self._clock
            )

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:
        """Do nothing."""

    def has_outstanding(self) -> bool:
        return False

    def tend(self, log_access: LogAccess) -> None:
        """Do nothing."""

    def is_loss(self, _error: PenstockError) -> bool:
        return False


@dataclass
class Counted(StreamCounted):
    """Counts of staged mutations."""

    byte_count: int = 0
    ignored_row_count: int = 0


@dataclass(slots=True)
class StagedStream(SourceStream):
    """Stream of one window after another. end: the end of the last window that was returned
    whole.
    """

    session: StagingSession
    group: Group
    reader: WindowReader
    end: FlushPoint
    clock: Clock = REAL_CLOCK
    counts: Counted = field(default_factory=Counted)
    spilled_byte_count: int = 0
    _runs: Iterator[Run] | None = None

    def next_run(self, timeout_s: float) -> Run | None:
        until_s = self.clock.monotonic_s() + timeout_s
        while True:
            if self._runs is None:
                self._runs = self._next_window()
            if self._runs is not None:
                run = next(self._runs, None)
                if run is not None:
                    self.end = run.end or self.end
                    self.counts.byte_count += sum(rows.batch.nbytes for rows in run.rows)
                    return run
                self._runs = None
                continue
            left_s = until_s - self.clock.monotonic_s()
            if left_s <= 0:
                return None
            self.clock.sleep(min(POLL_S, left_s))

    def _next_window(self) -> Iterator[Run] | None:
        """Return the runs of the rows proposed after the last window; None if there are none."""
        after, proposed = time_through(self.end.position), self.session.window(self.group).proposed
        return self.reader.runs(after, proposed, self.end) if proposed > after else None

    def has_given(self, position: int) -> bool:
        return self._runs is None and self.end.position >= position

    def ask_for_position(self) -> None:
        """Do nothing: the tables are polled all the time."""

    def acknowledge(self, position: int) -> None:
        """Do nothing: rows are marked once the target has them."""


_MAX = Hlc(NANOS_MAX, 2**34 - 1).number


@dataclass(frozen=True, slots=True, order=True)
class HlcPosition(Position):
    """Position of a staged mutation: its time. Its text is `1600000000000000000.0000000001`."""

    ordinal: int = field()
    BITS = 128

    def __post_init__(self) -> None:
        """Raise PositionInvalid if the number cannot be a time."""
        if not 0 <= self.ordinal <= _MAX:
            raise PositionInvalid(f"{self.ordinal} is not a position of a changefeed")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a time. Raises PositionInvalid on anything else."""
        try:
            return cls(Hlc.parse(text).number)
        except HlcInvalid as error:
            raise PositionInvalid(error.message, hint=error.hint) from error

    def __str__(self) -> str:
        """Return the time in the form of changefeeds."""
        return str(Hlc.from_number(self.ordinal))


class HlcPositions(Positions):
    """Printer and parser of times."""

    def __init__(self, config: Config) -> None:
        """Take the names of a group's pipeline."""
        self._origin = f"stage/{config.pipeline.name}/{'.'.join(group_at(config.source.url))}"

    def text(self, position: int) -> str:
        return str(HlcPosition(position))

    def origin(self, _position: int) -> str:
        """Return pipeline and target schema."""
        return self._origin

    def parse(self, text: str) -> int:
        return HlcPosition.parse(text).ordinal
