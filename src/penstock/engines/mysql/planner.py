"""Planner of the bulk load for MySQL and MariaDB sources: consistent points, definitions, chunks.

A point is a set of sessions in snapshots at one position of the binlog, which this process proxies
to Spark's workers (`engines.mysql.source.session_proxy`), so that one short lock serves all of them
and a worker that is killed does not end the snapshot.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.beginning import digest_of, settled_digests
from penstock.engines.mysql.source.bulk_reader import shape_text
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.chunks import KeyChunk, plan_all_chunks
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.engines.mysql.source.snapshot import Snapshots, open_snapshots
from penstock.engines.mysql.source.strategies import Choice
from penstock.engines.mysql.url import MySQLUrl
from penstock.host.errors import StatementFailed
from penstock.model import TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import Chunk, Planning, Point, TableRead, rows_per_chunk
from penstock.ports.config import Config, snapshot_address

logger = structlog.get_logger()
# A table has enough chunks for all sessions to end at about the same time.
CHUNKS_PER_SESSION = 4
CHUNK_BYTES_MIN = 4 * 2**20
# Errors of a statement that names a database, column or table that does not exist.
NOT_THERE = (1049, 1054, 1146)
SPARE_SESSIONS = 3  # for those that killed workers leave in the middle of a result


class MySQLPlanner(Planning):
    """`Planner` of a MySQL or MariaDB source, a context manager because it keeps its points open.

    Args:
        first: Returns the handover's point when the load wants it; None if there is none.
        on_choice: Called with the strategy before the snapshots are taken.

    Attributes:
        taken: Snapshots of the latest point; `taken.status` is where the changes after it begin.
    """

    positions: PositionKind = BinlogPosition

    def __init__(
        self,
        config: Config,
        *,
        first: Callable[[], Point | None] = lambda: None,
        on_choice: Callable[[Choice], None] | None = None,
    ) -> None:
        self._url = config.source.url
        self._patterns = config.source.tables
        self._chunk_bytes = config.data_loader.chunk_megabytes * 2**20
        self._threads = config.data_loader.max_threads
        self._address = snapshot_address(config.spark)
        self._first = first
        self._follows = config.pipeline.mode.has_change
        self._on_choice = on_choice
        self._kept = ExitStack()
        self.taken: Snapshots | None = None

    def __enter__(self) -> Self:
        """Return itself; no connection is open yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the snapshots."""
        self._kept.close()

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Take snapshots, whose sessions are open until they are released."""
        tables = self._read_captured()
        count = self._threads + SPARE_SESSIONS
        taken = self._kept.enter_context(
            open_snapshots(
                self._url, tables, count=count, on_choice=self._on_choice, follows=self._follows
            )
        )
        text = f"{taken.status.position}/{secrets.token_hex(8)}"
        place = MySQLUrl.parse(self._url).place
        proxy = self._kept.enter_context(
            SessionProxy.of(taken.connections, place=place, snapshot_text=text, at=self._address)
        )
        self.taken = taken
        return Point(
            position=taken.status.position,
            snapshot_id=proxy.snapshot_id,
            snapshot_text=text,
            settled=taken.settled,
            # A table that was altered meanwhile has no known definition.
            definitions=settled_digests(tables, self._read_captured()),
        )

    def release(self) -> None:
        self._kept.close()

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        return [
            definition for definition in self._read_captured() if definition.name in set(tables)
        ]

    def _read_captured(self) -> list[TableDefinition]:
        with open_catalog(self._url) as connection:
            return captured_tables(connection, self._patterns)

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return ranges of the key, which have each row once in every snapshot."""
        return self._chunks([read for read in wanted if _is_as_then(point, read.definition)])

    def _chunks(self, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Plan tables, except those that were dropped or altered since they were defined."""
        try:
            with open_catalog(self._url) as connection:
                pieces = plan_all_chunks(
                    connection,
                    [(read.definition, self._row_target(read.definition)) for read in wanted],
                )
        except StatementFailed as error:
            if error.fields.get("errno") not in NOT_THERE:
                raise
            if len(wanted) == 1:
                return {}
            half = len(wanted) // 2
            return self._chunks(wanted[:half]) | self._chunks(wanted[half:])
        return {
            read.definition.name: [_chunk(piece, read) for piece in pieces[read.definition.name]]
            for read in wanted
        }

    def _row_target(self, table: TableDefinition) -> int:
        even = max(table.size_bytes // (CHUNKS_PER_SESSION * self._threads), CHUNK_BYTES_MIN)
        return rows_per_chunk(table, min(self._chunk_bytes, even))


def _is_as_then(point: Point, table: TableDefinition) -> bool:
    """Return whether a table still has the definition that it had at a point."""
    known = point.definitions
    return known is None or known.get(str(table.name)) == digest_of(table)


def _chunk(piece: KeyChunk, read: TableRead) -> Chunk:
    if read.binary:
        raise ValueError(f"rows of {piece.table} are not in COPY's binary format")
    table = read.definition
    row_bytes = table.size_bytes / table.row_estimate if table.row_estimate else 0.0
    return Chunk(
        number=piece.number,
        relation=piece.table,
        copy_out=piece.query(read.columns),
        size_bytes=int(piece.row_estimate * row_bytes),
        row_count=piece.row_estimate,
        shape=shape_text(table),
    )


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> MySQLPlanner:
    """Return the planner of a pipeline's source."""
    return MySQLPlanner(config, first=first)
