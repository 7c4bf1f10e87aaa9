"""Engine of `penstock extract` for YugabyteDB: slot, catalogue and stream under one port.

The stream of a slot is PostgreSQL's, with the dialect's commands. There is no IDENTIFY_SYSTEM and
no end of a write-ahead log, so the end of the changes is recognised by a pause. Positions are
confirmed as with PostgreSQL, after whole transactions and while idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.source import slot as postgres
from penstock.engines.postgres.source.client import ReplicationConnection, open_replication
from penstock.engines.postgres.source.relations import CatalogShapes
from penstock.engines.postgres.source.slot_owner import SlotOwner, claim_slot
from penstock.engines.postgres.source.source_identity import ServerIdentity
from penstock.engines.postgres.source.stream import PostgresSource, StreamOptions
from penstock.engines.yugabyte import slots
from penstock.engines.yugabyte.catalog import Resolver, connect_catalog
from penstock.engines.yugabyte.options import retention_s, wire_url
from penstock.engines.yugabyte.slots import STATE_FILE, SlotPlace, YbSlot
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import StatementFailed
from penstock.model import FlushPoint, PenstockError, Relation, Run, TableDefinition
from penstock.ports.source import (
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

QUIET_S = 10.0


@dataclass(kw_only=True)
class Known:
    """Facts about a log's slot before a stream begins. found: the slot at the server."""

    place: SlotPlace
    retention_s: float
    found: YbSlot | None = field(default=None)


class YugabyteSource(PostgresSource):
    """Stream of a slot of YugabyteDB."""

    def __init__(self, url: str, *, known: Known, **more: Any) -> None:
        """Store the facts that the slot must match."""
        super().__init__(url, **more)
        self._known = known
        self._moved_s = REAL_CLOCK.monotonic_s()

    def _check(self, connection: ReplicationConnection) -> ServerIdentity:
        options = self._options
        postgres.check_publication(connection, options.publication)
        identity = identify(connection)
        found = slots.check_slot(
            slots.read_slot(connection, options.slot),
            options.slot,
            known=self._known.place,
            database=identity.database,
            position=self._start.position,
        )
        slots.check_retention(found, options.slot, self._known.retention_s)
        self._known.found = found
        return identity

    def _protocol(self, connection: ReplicationConnection) -> list[tuple[str, str]]:
        del connection
        name = pgwire.quoted_name(self._options.publication)
        found = [("proto_version", "1"), ("publication_names", name)]
        if self._known.found is not None and self._known.found.is_served:
            # Heartbeats and names of global transactions, which a merge of logs needs.
            found.append(("messages", "true"))
        return found

    def next_run(self, timeout_s: float) -> Run | None:
        run = super().next_run(timeout_s)
        if run is not None and (run.rows or run.relations):
            self._moved_s = REAL_CLOCK.monotonic_s()
        return run

    def has_given(self, position: int) -> bool:
        """Return as PostgreSQL's; without a position, whether nothing has arrived for a while."""
        if position:
            return super().has_given(position)
        return REAL_CLOCK.monotonic_s() - self._moved_s >= QUIET_S and not self.has_ready


def identify(connection: ReplicationConnection) -> ServerIdentity:
    """Return the database. There is no system identifier: a slot's stream id replaces it."""
    row = connection.query(
        "select datname, oid from pg_database where datname = current_database()",
        doing="identifying the database",
    )[0]
    return ServerIdentity(
        system_id="", timeline=0, database=row["datname"] or "", database_id=int(row["oid"] or 0)
    )


logger = structlog.get_logger()
LOOK_INTERVAL_S = 30.0
ALARM_PART = 0.5  # part of the retention that may pass without a confirmation
CANNOT_COMMENT = "0A000"


class YugabyteEngine(SourceEngine):
    """`SourceEngine` of a YugabyteDB source."""

    def __init__(
        self,
        url: str,
        *,
        tables: Sequence[TableDefinition],
        options: ExtractOptions,
        start_position: int,
        pipeline: str,
        on_start: Callable[[], None],
    ) -> None:
        """Take the position where an empty log begins, and a callback for the begin of a stream."""
        self._url = wire_url(url)
        self._source_url = url
        self._retention_s = retention_s(url)
        self._tables = tables
        self._options = options
        self._start_position = start_position
        self._pipeline = pipeline
        self._on_start = on_start
        self._resolver: Resolver | None = None
        self._looked_s = 0.0

    @property
    def name(self) -> str:
        """Name of the slot."""
        return self._options.slot

    def begin(self, place: EnginePlace) -> Origin:
        """Return the identity. The server sends again from the confirmed position on."""
        self._place = place
        with open_replication(self._url, application_name=postgres.APPLICATION_NAME) as connection:
            found = slots.read_slot(connection, self._options.slot)
            identity = identify(connection)
        resend_from = found.state.confirmed_flush if found and found.state.is_whole else None
        return Origin(
            identity={
                "engine": "yugabytedb",
                "flavour": "postgresql",
                "database": identity.database,
                "database_id": str(identity.database_id),
                "slot": self._options.slot,
            },
            resend_from=resend_from,
            begin=self._start_position or resend_from or 0,
        )

    def server_end(self) -> ServerEnd:
        """Return no end: it is not known."""
        return ServerEnd()

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: an idle server moves its slot automatically."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return str(Lsn(position))

    def bytes_between(self, _first: int, _last: int) -> int:
        """Return 0: LSNs are not bytes."""
        return 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Claim the slot before anything is read."""
        with connect_catalog(self._source_url) as catalog:
            self._claim(catalog)
            if self._resolver is None:
                known = self._place.state.load(RELATIONS_FILE, list[Relation]) or []
                self._resolver = Resolver(catalog, self._tables, known=known)
            else:
                self._resolver.connection = catalog
                self._resolver.forget()
            yield

    def _claim(self, catalog: psycopg.Connection) -> None:
        """Write the owner of the slot beside it, since the server does not lock out a second
        consumer.

        A server that cannot keep comments only speaks the dialect, and refuses a second consumer.
        """
        owner = SlotOwner(pipeline=self._pipeline, log_id=self._place.log_id())
        try:
            claim_slot(catalog, self._options.publication, self._options.slot, owner)
        except StatementFailed as error:
            if error.fields.get("sqlstate") != CANNOT_COMMENT:
                raise
            logger.warning(
                "the server cannot keep whose slot it is", slot=self.name, error=error.message
            )

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        """Return None: the slot is the only way to read."""
        return None

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[SourceStream]:
        assert self._resolver is not None, "attempt() comes first"
        shapes = CatalogShapes(
            self._resolver,
            save=lambda relations: self._place.state.save(RELATIONS_FILE, list(relations)),
        )
        options = self._options
        known = Known(place=self._load_place(), retention_s=self._retention_s)
        with YugabyteSource(
            self._url,
            known=known,
            options=StreamOptions(
                slot=options.slot,
                publication=options.publication,
                slot_wait_s=options.slot_wait_s,
                idle_flush_s=options.flush_interval_s,
            ),
            start=durable,
            shapes=shapes,
            spill_directory=self._place.spill,
            before_run=shapes.keep,
            files=self._place.files,
            clock=self._place.clock,
        ) as source:
            assert known.found is not None
            self._keep(known.found.stream_id, known.found.restart_ht)
            self._on_start()
            yield source

    def _load_place(self) -> SlotPlace:
        return self._place.state.load(STATE_FILE, SlotPlace) or SlotPlace()

    def _keep(self, stream_id: str, restart_ht: int) -> None:
        """Store, with the position, the hybrid time up to which the server saw everything
        confirmed.
        """
        place = SlotPlace(
            stream_id=stream_id,
            restart_ht=max(restart_ht, self._load_place().restart_ht),
            tables=tuple((table.source_id, *table.name) for table in self._tables),
        )
        if place != self._load_place():
            self._place.state.save(STATE_FILE, place)

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:
        """Do nothing."""

    def has_outstanding(self) -> bool:
        return False

    def tend(self, log_access: LogAccess) -> None:
        """Read the slot now and then, store its restart time, and warn of an old one."""
        del log_access
        now_s = self._place.clock.monotonic_s()
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        with open_replication(self._url, application_name=postgres.APPLICATION_NAME) as connection:
            found = slots.read_slot(connection, self._options.slot)
        if found is None:
            return  # the stream reports this
        self._keep(found.stream_id, found.restart_ht)
        age = slots.age_s(found.restart_ht, self._place.clock.now_us())
        if not found.is_served and age is not None and age > ALARM_PART * self._retention_s:
            logger.warning(
                "the server will drop changes that are not confirmed",
                slot=self.name,
                confirmed_s_ago=round(age),
                retention_s=round(self._retention_s),
            )

    def is_loss(self, error: PenstockError) -> bool:
        return isinstance(error, (*postgres.CHANGES_GONE, slots.SlotReplaced, slots.RetentionOver))
