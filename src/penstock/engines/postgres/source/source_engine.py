"""PostgreSQL as a source: slot, catalogue, watch over tables and stream behind one port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.source import slot as slots
from penstock.engines.postgres.source.catalog import RelationResolver, open_catalog
from penstock.engines.postgres.source.catchup import CatchUp
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.ddl_watch import (
    Action,
    DdlWatch,
    StopPipeline,
    WatchState,
)
from penstock.engines.postgres.source.heartbeat import Heartbeats
from penstock.engines.postgres.source.relations import CatalogShapes, dropped_definitions
from penstock.engines.postgres.source.requests import Captures, Resends
from penstock.engines.postgres.source.slot_owner import SlotOwner, claim_slot
from penstock.engines.postgres.source.snapshot import NOT_THERE
from penstock.engines.postgres.source.source_identity import (
    ServerIdentity,
    identify,
    server_end,
)
from penstock.engines.postgres.source.stream import PostgresSource, StreamOptions
from penstock.engines.postgres.source.table_actions import TableActions, is_begun_only
from penstock.engines.postgres.source.table_shape import TableNotPublished
from penstock.host.socket import is_near
from penstock.model import FlushPoint, PenstockError, Relation, Run, TableDefinition, TableName
from penstock.ports.source import (
    BEHIND_BYTES,
    RELATIONS_FILE,
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
    SourceStream,
)

logger = structlog.get_logger()
WATCH_FILE = "tables.json"
STREAM_FILE = "stream.json"


class PostgresEngine(SourceEngine):
    """The `SourceEngine` of a PostgreSQL source."""

    def __init__(
        self,
        url: str,
        *,
        tables: Sequence[TableDefinition],
        options: ExtractOptions,
        takes: Callable[[TableName], bool] = lambda _: True,
        takes_renamed: Callable[[TableName], bool] = lambda _: True,
        reads_renamed: bool = False,
        start_position: int = 0,
        pipeline: str = "",
    ) -> None:
        """Say what to read.

        tables: what is captured. takes: whether the configuration captures a table's name, also
        of one that is not among tables. takes_renamed, reads_renamed: see `DdlWatch`.
        start_position: where the log must begin when it is still
        empty (the slot's consistent point); 0: at the slot's position. pipeline: the slot's owner;
        empty: it is not recorded.
        """
        self._url = url
        self._tables = tables
        self._takes, self._takes_renamed = takes, takes_renamed
        self._reads_renamed = reads_renamed
        self._options = options
        self._start_position = start_position
        self._pipeline = pipeline
        self._resolver: RelationResolver | None = None
        self._actions: TableActions | None = None
        self._shapes: CatalogShapes | None = None
        self._stream: PostgresSource | None = None
        self._captures: Captures | None = None
        self._resends: Resends | None = None
        self._published_again: set[TableName] = set()

    @property
    def name(self) -> str:
        """The slot."""
        return self._options.slot

    def begin(self, place: EnginePlace) -> Origin:
        """Ask the server for its identity, and for the first position that it can send from."""
        self._place = place
        self._captures = Captures(
            self._url,
            place.state,
            publication=self._options.publication,
            takes=self._takes,
            clock=place.clock,
        )
        self._resends = Resends(place.state, clock=place.clock)
        with open_replication(self._url, application_name=slots.APPLICATION_NAME) as connection:
            slot = slots.read_slot(connection, self._options.slot)
            self._identity = identify(connection)
        # None: it has lost changes that we had not saved.
        resend_from = slot.confirmed_flush if slot and slot.is_whole else None
        return Origin(
            identity={
                "engine": "postgresql",
                "system_id": self._identity.system_id,
                "database": self._identity.database,
                "database_id": str(self._identity.database_id),
                "slot": self._options.slot,
            },
            resend_from=resend_from,
            begin=self._start_position or resend_from or 0,
        )

    def server_end(self) -> ServerEnd:
        """Return the present LSN."""
        return server_end(self._url)

    @contextmanager
    def heartbeats(self) -> Iterator[Callable[[int], None]]:
        with closing(Heartbeats(self._url, self._options.slot)) as heartbeats:
            yield heartbeats.send

    def text(self, position: int) -> str:
        return str(Lsn(position))

    def bytes_between(self, first: int, last: int) -> int:
        return max(last - first, 0) if first and last else 0

    # -- one attempt -------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Open two connections to the catalogue and look at the tables before anything is read."""
        with open_catalog(self._url) as catalog, open_catalog(self._url) as watched:
            self._claim_slot(catalog)
            captures = self._taken_captures()
            if self._resolver is None:
                self._tables = captures.begin(self._tables)
            resolver = self._resolve_with(catalog)
            self._watch_tables(watched, resolver)
            captures.answer_begun()
            captures.begin_stream()
            try:
                yield
            finally:
                self._stream = None

    def _claim_slot(self, catalog: psycopg.Connection) -> None:
        """Claim the slot before anything is read, because reading moves the slot."""
        if self._pipeline:
            owner = SlotOwner(pipeline=self._pipeline, log_id=self._place.log_id())
            claim_slot(catalog, self._options.publication, self._options.slot, owner)

    def _resolve_with(self, catalog: psycopg.Connection) -> RelationResolver:
        """Return the extraction's only resolver, moved to the connection of this attempt."""
        if self._resolver is not None:
            self._resolver.connection = catalog
            self._resolver.forget()
            return self._resolver
        known = self._place.state.load(RELATIONS_FILE, list[Relation]) or []
        state = self._place.state.load(WATCH_FILE, WatchState) or WatchState()
        named = {table.name for table in self._tables}
        takes = self._taken_captures().takes
        lost = [s for s in state.shapes if s.name not in named and takes(s.name)]
        tables = [*self._tables, *dropped_definitions(self._tables, lost, known)]
        self._resolver = RelationResolver(catalog, tables, known=known, shapes=state.shapes)
        return self._resolver

    def _watch_tables(self, connection: psycopg.Connection, resolver: RelationResolver) -> None:
        if self._actions is None:
            watch = DdlWatch(
                connection,
                self._tables,
                publication=self._options.publication,
                state=self._place.state.load(WATCH_FILE, WatchState),
                takes=self._taken_captures().takes,
                takes_renamed=self._is_renamed_taken,
                reads_renamed=self._reads_renamed,
                as_is=self._taken_captures().find_awaited(),
            )
            self._actions = TableActions(
                self._url,
                watch,
                resolver,
                save=lambda state: self._place.state.save(WATCH_FILE, state),
                interval_s=self._options.table_interval_s,
                base=self._place.base,
                clock=self._place.clock,
            )
        self._actions.begin_stream(connection)
        self._actions.look(at_once=True)

    def _is_renamed_taken(self, name: TableName) -> bool:
        """Return whether a new name is captured, by the file and by requests since the start."""
        return self._takes_renamed(name) and self._taken_captures().takes(name)

    def _taken_captures(self) -> Captures:
        assert self._captures is not None
        return self._captures

    def _shapes_of_attempt(self) -> CatalogShapes:
        assert self._resolver is not None
        self._shapes = CatalogShapes(
            self._resolver,
            save=lambda relations: self._place.state.save(RELATIONS_FILE, list(relations)),
        )
        return self._shapes

    def ranges(self, durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        """Return ranges by COPY; None if they are off or the stream is as fast."""
        behind_bytes = self._options.catch_up_bytes
        if behind_bytes is None:
            assert self._resolver is not None
            near = is_near(self._resolver.connection.fileno())
            behind_bytes = 0 if near else BEHIND_BYTES
        return self._ranges(durable, behind_bytes) if behind_bytes else None

    @contextmanager
    def _ranges(self, durable: FlushPoint, behind_bytes: int) -> Iterator[Ranges]:
        shapes = self._shapes_of_attempt()
        with CatchUp(
            self._url,
            options=self._stream_options(),
            start=durable,
            shapes=shapes,
            spill_directory=self._place.spill,
            expected=self._stored_identity() or self._identity,
            before_run=shapes.keep,
            range_bytes=self._options.catch_up_range_bytes,
            files=self._place.files,
        ) as behind:
            yield _CopiedRanges(
                behind,
                behind_bytes,
                keep_identity=self._keep_identity,
                forget=self._forget_shapes,
            )

    def _forget_shapes(self) -> None:
        if self._resolver is not None:
            self._resolver.forget()

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[SourceStream]:
        """Provide the slot's stream."""
        shapes = self._shapes_of_attempt()
        with PostgresSource(
            self._url,
            options=self._stream_options(),
            start=durable,
            shapes=shapes,
            spill_directory=self._place.spill,
            expected=self._stored_identity() or self._identity,
            before_run=shapes.keep,
            files=self._place.files,
            clock=self._place.clock,
        ) as source:
            if source.identity is not None:
                self._keep_identity(source.identity)
            self._stream = source
            yield source

    def _stream_options(self) -> StreamOptions:
        options = self._options
        return StreamOptions(
            slot=options.slot,
            publication=options.publication,
            origin=options.origin,
            keep_messages=options.keep_messages,
            slot_wait_s=options.slot_wait_s,
            idle_flush_s=options.flush_interval_s,
        )

    def _stored_identity(self) -> ServerIdentity | None:
        return self._place.state.load(STREAM_FILE, ServerIdentity)

    def _keep_identity(self, now: ServerIdentity) -> None:
        """Store the server's timeline. After a promotion, positions continue on the new one."""
        if now != self._stored_identity():
            self._place.state.save(STREAM_FILE, now)
        self._identity = now

    # -- tables ------------------------------------------------------------------------------

    def saw(self, run: Run) -> None:
        """Note TRUNCATEs, which explain new files of partitions."""
        if self._actions is not None:
            self._actions.saw(run)

    def before_flush(self, end: FlushPoint) -> None:
        """Do nothing, because the slot keeps the position."""

    def has_outstanding(self) -> bool:
        """Look at the catalogue at once."""
        return self._actions is not None and self._actions.look(at_once=True) > 0

    def tend(self, log_access: LogAccess) -> None:
        """Carry out the actions for tables that changed without sending rows."""
        actions, stream = self._actions, self._stream
        if actions is None or stream is None:
            return
        if self._resolver is not None:
            self._taken_captures().tend(actions, self._resolver, stream)
        if self._resends is not None:
            self._resends.tend(actions, stream)
        if not actions.look():
            return
        while (action := actions.next_due(log_access.durable)) is not None:
            log_access.flush()
            if self._is_published_again(action):
                actions.settle(action)
                continue
            relation = actions.carry_out(action, stream)
            if relation is not None and self._shapes is not None:
                self._shapes.keep()
                log_access.write(Run(relations=(relation,), end=log_access.durable))
                # A shape without rows has no transaction by which a reader of the open segment
                # would notice it.
                log_access.close_segment()
            if is_begun_only(action):
                return
            actions.settle(action)

    def _is_published_again(self, action: Action) -> bool:
        """Publish a captured table that was dropped and created again; return whether that helped.

        The publication lost the table when it was dropped. After this, the next look finds the
        table published, and its rows are read again. A table that an operator took out of the
        publication is left alone.
        """
        if not isinstance(action, StopPipeline) or not isinstance(action.error, TableNotPublished):
            self._published_again.discard(action.table)
            return False
        # Altered since, it was looked at once more before it was published.
        is_known = action.table in self._published_again
        if self._actions is None or not (is_known or self._actions.watch.is_created_again(action)):
            return False
        try:
            self._taken_captures().publish(action.table)
        except PenstockError as error:
            if error.retry == "backoff":
                raise
            if error.fields.get("sqlstate") in NOT_THERE:
                logger.info("table has gone or has another name", table=str(action.table))
                return True  # the next look tells which
            logger.warning("table is not published again", error=error.message)
            return False
        self._published_again.add(action.table)
        logger.info("captured table is published again", table=str(action.table))
        return True

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether the slot, or its changes, are gone."""
        return isinstance(error, slots.CHANGES_GONE)


class _CopiedRanges(Ranges):
    """CatchUp with the interface of `ports.source.Ranges`."""

    def __init__(
        self,
        behind: CatchUp,
        behind_bytes: int,
        *,
        keep_identity: Callable[[ServerIdentity], None],
        forget: Callable[[], None],
    ) -> None:
        self._behind = behind
        self._behind_bytes = behind_bytes
        self._keep_identity = keep_identity
        self._forget = forget

    def is_worth_it(self) -> bool:
        worth = self._behind.is_worth_it(self._behind_bytes)
        self._keep_identity(self._behind.identity)
        return worth

    def read_range(self) -> Iterator[Run]:
        return self._behind.read_range()

    def advance(self) -> None:
        self._behind.advance()
        self._forget()
