"""Planner of the bulk load from PostgreSQL: consistent points, definitions and chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.source.bulk_reader import snapshot_text
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.slot import Blocker, Watch
from penstock.engines.postgres.source.snapshot import (
    NOT_THERE,
    Cut,
    SnapshotGone,
    copy_sql,
    lock_tables,
    open_snapshot,
    plain_point,
    plan_all_chunks,
    reshaped_tables,
    rewritten_tables,
    temporary_consistent_point,
)
from penstock.engines.postgres.standby import paused_point
from penstock.host.waits import Holder, write_waits
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import Chunk, HeldPoint, Planning, Point, TableRead
from penstock.ports.config import Config, HandoverMode

logger = structlog.get_logger()
# A table is cut into enough chunks for all streams to end at about the same time.
CHUNKS_PER_STREAM = 4
CHUNK_BYTES_MIN = 8 * 2**20
TABLES_AT_ONCE = 200  # that are locked while they are cut: well below what the server has room for


class PostgresPlanner(Planning):
    """`Planner` of a PostgreSQL source. Use as a context manager: it keeps its points.

    first: called when the load wants the handover's point; returns None if there is none.
    on_blocked: see `slot.create_slot`.
    """

    positions: PositionKind = Lsn

    def __init__(
        self,
        config: Config,
        *,
        first: Callable[[], Point | None] = lambda: None,
        fresh: Callable[[ExitStack], HeldPoint] | None = None,
        on_blocked: Watch | None = None,
    ) -> None:
        self._url = config.source.url
        self._patterns = config.source.tables
        self._chunk_bytes = config.data_loader.chunk_megabytes * 2**20
        self._threads = config.data_loader.max_threads
        self._first = first
        self._fresh = fresh or self._temporary
        self._on_blocked = on_blocked
        self._kept = ExitStack()

    def __enter__(self) -> Self:
        """Return the planner; it opens nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the snapshots go that fresh points were made with."""
        self._kept.close()

    def _temporary(self, kept: ExitStack) -> HeldPoint:
        return kept.enter_context(
            temporary_consistent_point(self._url, on_blocked=self._on_blocked)
        )

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Export a snapshot, which is kept until this planner is closed."""
        point = self._fresh(self._kept)
        return Point(
            position=Lsn(point.position),
            snapshot_id=point.snapshot_id,
            snapshot_text=snapshot_text(self._url, point.snapshot_id),
        )

    def release(self) -> None:
        self._kept.close()

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        with open_catalog(self._url) as connection:
            found = captured_tables(connection, self._patterns)
        return [definition for definition in found if definition.name in set(tables)]

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return ranges of heap blocks of each storage."""
        found: dict[TableName, list[Chunk]] = {}
        for at in range(0, len(wanted), TABLES_AT_ONCE):
            try:
                found |= self._chunks_at(point, wanted[at : at + TABLES_AT_ONCE])
            except SnapshotGone:
                break
        return found

    def _chunks_at(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Plan tables, except those that were dropped or renamed since they were defined.

        Raises SnapshotGone.
        """
        try:
            with closing(open_snapshot(self._url, point.snapshot_id)) as connection:
                return self._chunks(connection, wanted)
        except PenstockError as error:
            if error.fields.get("sqlstate") not in NOT_THERE:
                raise
        if len(wanted) == 1:
            return {}
        half = len(wanted) // 2
        return self._chunks_at(point, wanted[:half]) | self._chunks_at(point, wanted[half:])

    def _chunks(
        self, connection: psycopg.Connection, wanted: Sequence[TableRead]
    ) -> dict[TableName, list[Chunk]]:
        lock_tables(connection, [read.definition for read in wanted])
        definitions = [read.definition for read in wanted]
        changed = rewritten_tables(connection, definitions)
        changed |= reshaped_tables(connection, definitions)
        reads = {one.definition.name: one for one in wanted if one.definition.name not in changed}
        pieces = plan_all_chunks(
            connection, {name: self._cut(read.definition) for name, read in reads.items()}
        )
        return {
            name: [
                Chunk(
                    number=piece.number,
                    relation=piece.storage,
                    copy_out=copy_sql(piece, read.columns, binary=read.binary),
                    size_bytes=piece.size_bytes,
                    row_count=piece.row_estimate,
                )
                for piece in pieces[name]
            ]
            for name, read in reads.items()
        }

    def _cut(self, table: TableDefinition) -> Cut:
        even = max(table.size_bytes // (CHUNKS_PER_STREAM * self._threads), CHUNK_BYTES_MIN)
        return Cut(source_id=table.source_id, size_bytes=min(self._chunk_bytes, even))


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> PostgresPlanner:
    """Return the planner of a pipeline.

    In mode pause points are taken on the paused standby; if no changes follow, without a slot.
    """
    url = config.source.url
    if config.pipeline.mode.has_change and config.pipeline.handover is HandoverMode.PAUSE:
        return PostgresPlanner(config, first=first, fresh=lambda kept: paused_point(config, kept))
    if not config.pipeline.mode.has_change:
        return PostgresPlanner(
            config, first=first, fresh=lambda kept: kept.enter_context(plain_point(url))
        )
    return PostgresPlanner(
        config, first=first, on_blocked=partial(tell_blockers, config.layout.run)
    )


def tell_blockers(run: Path, waited_s: float, blockers: Sequence[Blocker]) -> None:
    """Report which transactions the creation of a slot waits for, to the log and to displays.

    run: the pipeline's directory run/.
    """
    holders = [Holder(what=one.what, command=one.sql) for one in blockers]
    write_waits(run, "the replication slot that is being created", waited_s, holders)
    for blocker in blockers:
        logger.warning(
            "slot waits for a transaction",
            waited_s=round(waited_s),
            transaction=blocker.what,
            end_it_with=blocker.sql,
        )
