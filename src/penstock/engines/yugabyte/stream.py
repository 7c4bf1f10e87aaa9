"""Stream of a YugabyteDB slot: PostgreSQL's, with the dialect's commands.

There is no IDENTIFY_SYSTEM and no end of a write-ahead log, so the end of the changes is recognised
by a pause. Positions are confirmed as with PostgreSQL, after whole transactions and while idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.codec.postgres import pgwire
from penstock.engines.postgres.source import slot as postgres
from penstock.engines.postgres.source.client import ReplicationConnection
from penstock.engines.postgres.source.source_identity import ServerIdentity
from penstock.engines.postgres.source.stream import PostgresSource
from penstock.engines.yugabyte import slots
from penstock.engines.yugabyte.slots import SlotPlace, YbSlot
from penstock.host.clock import REAL_CLOCK
from penstock.model import Run

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
