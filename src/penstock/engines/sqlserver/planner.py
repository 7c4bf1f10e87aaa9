"""Planner of the bulk load for SQL Server sources: points, definitions and chunks.

Sessions of SQL Server cannot share a snapshot, so rows are read after the point, each chunk in a
snapshot of its own if the database allows them, and the changes from the point on are applied over
them: a row's last change decides, found by its key (reference, section 10). The tables are equal to
the source once the changes that were committed before the end of the reading are applied
(`release`).

That converges for tables with a key alone. Tables without one are locked against writers, from a
point that is taken under the locks until all rows are copied. Nothing else is locked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.engines.sqlserver.connect import Connection, connect, is_gone
from penstock.engines.sqlserver.errors import NoLockOnSecondary
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.bulk_reader import LOCKED, has_snapshots, shape_of
from penstock.engines.sqlserver.reading.catalog import captured_tables
from penstock.engines.sqlserver.reading.chunks import KeyChunk, plan_chunks
from penstock.engines.sqlserver.source.beginning import present_place
from penstock.engines.sqlserver.source.caught_up import wait_captured
from penstock.engines.sqlserver.source.reader import read_newest
from penstock.engines.sqlserver.source.statements import READ_ONLY, UPDATEABILITY
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableDefinition, TableName
from penstock.model.position import Position, PositionKind
from penstock.ports.bulk import Chunk, Planning, Point, TableRead, rows_per_chunk
from penstock.ports.config import Config

logger = structlog.get_logger(__name__)
CHUNKS_PER_SESSION = 4
CHUNK_BYTES_MIN = 4 * 2**20


class SQLServerPlanner(Planning):
    """Planner of a SQL Server source. Use as a context manager: it keeps locks.

    first: returns the handover's point; None if there is none.
    """

    positions: PositionKind = SqlServerLsn

    def __init__(
        self, config: Config, *, first: Callable[[], Point | None], clock: Clock = REAL_CLOCK
    ) -> None:
        self._url = config.source.url
        self._patterns = config.source.tables
        self._chunk_bytes = config.data_loader.chunk_megabytes * 2**20
        self._threads = config.data_loader.max_threads
        self._follows = config.pipeline.mode.has_change
        self._first = first
        self._clock = clock
        self._holder: Connection | None = None
        self._held: frozenset[TableName] = frozenset()

    def __enter__(self) -> Self:
        """Return itself; no connection is open yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the locks."""
        self._unlock()

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Return the present position; tables without a key are locked from here on."""
        self._unlock()
        name = secrets.token_hex(8)
        with closing(connect(self._url)) as session:
            how = "snapshots of each chunk" if has_snapshots(session) else "READ COMMITTED"
            logger.info("rows are read after the point, and changes applied over them", by=how)
            keyless = [one.name for one in self._read_captured(session) if not one.row_key]
            if not keyless or not self._follows:
                position = self._position(session)
                return Point(
                    position=position, snapshot_id=str(position), snapshot_text=f"{how}/{name}"
                )
            self._lock(keyless, f"{LOCKED}{name}")
            # The next one: changes of the newest captured commit are in the rows.
            position = SqlServerLsn(wait_captured(session, clock=self._clock) + 1)
        return Point(
            position=position, snapshot_id=f"{LOCKED}{name}", snapshot_text=f"{how}/{name}"
        )

    def _position(self, session: Connection) -> SqlServerLsn:
        if self._follows:
            return SqlServerLsn(present_place(session).position)
        try:
            return SqlServerLsn(read_newest(session).position)
        except (StatementFailed, PrivilegeMissing):
            return SqlServerLsn(0)  # without change data capture there is no position

    def _read_captured(self, session: Connection) -> list[TableDefinition]:
        return captured_tables(session, self._patterns)

    def _lock(self, tables: Sequence[TableName], name: str) -> None:
        """Keep writers off tables, in a session that also holds a name for the readers."""
        logger.warning(
            "tables without a key are locked against writers until their rows are copied",
            tables=[str(one) for one in tables],
        )
        self._holder = connect(self._url)
        _check_primary(self._holder, tables)
        self._holder.begin()
        self._holder.run(statements.HOLD_NAME, name)
        for table in sorted(tables):
            self._holder.execute(statements.lock(table))
        self._held = frozenset(tables)

    def _unlock(self) -> None:
        if self._holder is not None:
            self._holder.close()  # the server rolls back, which ends the locks
        self._holder, self._held = None, frozenset()

    def release(self) -> Position | None:
        """Release the locks, and return the position up to which changes have to be applied.

        It is after all commits that the rows may include: no commit can be there.
        """
        self._unlock()
        if not self._follows:
            return None
        with closing(connect(self._url)) as session:
            return SqlServerLsn(wait_captured(session, clock=self._clock) + 1)

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        with closing(connect(self._url)) as session:
            return [one for one in self._read_captured(session) if one.name in set(tables)]

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return ranges of the key.

        Left out are tables that were dropped, and those without a key that are not locked since
        the point.
        """
        is_locked = point.snapshot_id.startswith(LOCKED)
        found: dict[TableName, list[Chunk]] = {}
        with closing(connect(self._url)) as session:
            for read in wanted:
                name = read.definition.name
                if (
                    self._follows
                    and not read.definition.row_key
                    and not (is_locked and name in self._held)
                ):
                    continue
                try:
                    found[name] = self._chunks(session, read)
                except StatementFailed as error:
                    if not is_gone(error):
                        raise
        return found

    def _chunks(self, session: Connection, read: TableRead) -> list[Chunk]:
        if read.binary:
            raise ValueError(f"rows of {read.definition.name} are not in COPY's binary format")
        shape = shape_of(session, read.definition.name)
        pieces = plan_chunks(
            session, read.definition, row_count_target=self._row_target(read.definition)
        )
        return [_chunk(piece, read, shape) for piece in pieces]

    def _row_target(self, table: TableDefinition) -> int:
        even = max(table.size_bytes // (CHUNKS_PER_SESSION * self._threads), CHUNK_BYTES_MIN)
        return rows_per_chunk(table, min(self._chunk_bytes, even))


def _check_primary(session: Connection, tables: Sequence[TableName]) -> None:
    """Raise NoLockOnSecondary on a readable secondary, which ignores locks of readers (S5)."""
    ((state,),) = session.execute(UPDATEABILITY)
    if str(state) == READ_ONLY:
        table = min(tables)
        raise NoLockOnSecondary(
            f"rows of {table}, which has no key, cannot be copied from a readable secondary: a "
            "lock there keeps no writer off the table",
            hint="Name the primary replica in [source] url, without applicationIntent; or give the "
            f"table a key; or leave it out: put '!{table}' into [source] tables.",
            table=str(table),
        )


def _chunk(piece: KeyChunk, read: TableRead, shape: str) -> Chunk:
    table = read.definition
    row_bytes = table.size_bytes / table.row_estimate if table.row_estimate else 0.0
    return Chunk(
        number=piece.number,
        relation=piece.table,
        copy_out=piece.query(read.columns),
        size_bytes=int(piece.row_estimate * row_bytes),
        row_count=piece.row_estimate,
        shape=shape,
    )


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> SQLServerPlanner:
    """Return the planner of a pipeline's source."""
    return SQLServerPlanner(config, first=first)
