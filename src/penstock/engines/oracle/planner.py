"""Planner of the bulk load for Oracle sources: points, definitions and chunks.

A point is an SCN. Every reader names it in its statements, so nothing is kept open, and all tables
are read at one moment. If the server has lost the undo of a table's rows by then, or the table was
altered, the table is planned again at a later point.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.beginning import read_scn
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.reading import statements
from penstock.engines.oracle.reading.bulk_reader import read_incarnation, shape_of, short_digest
from penstock.engines.oracle.reading.catalog import captured_tables, read_tables
from penstock.engines.oracle.reading.chunks import RowChunk, plan_chunks
from penstock.engines.oracle.server_errors import is_gone
from penstock.host.errors import StatementFailed
from penstock.model import TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import Chunk, Planning, Point, TableRead, rows_per_chunk
from penstock.ports.config import Config

logger = structlog.get_logger(__name__)
CHUNKS_PER_SESSION = 4
ROWS_UNKNOWN = 50_000  # of a range of keys, without statistics


class OraclePlanner(Planning):
    """Planner of an Oracle source. first: returns the handover's point; None if there is none."""

    positions: PositionKind = OraclePosition

    def __init__(self, config: Config, *, first: Callable[[], Point | None]) -> None:
        self._url = config.source.url
        self._patterns = config.source.tables
        self._chunk_bytes = config.data_loader.chunk_megabytes * 2**20
        self._threads = config.data_loader.max_threads
        self._first = first

    def __enter__(self) -> Self:
        """Return itself; nothing is kept open."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Return the present SCN, with the tables that had the same definition around it."""
        with connect(self._url) as session, connect_root(self._url) as root:
            before = self._read_captured(session)
            scn = read_scn(root)
            after = self._read_captured(session)
            text = snapshot_text(root)
        position = OraclePosition.of_scn(scn)
        return Point(
            position=position,
            snapshot_id=str(position),
            snapshot_text=text,
            definitions=settled_digests(before, after),
        )

    def release(self) -> None:
        """Do nothing: no point is kept open."""

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        with connect(self._url) as session:
            return [one for one in self._read_captured(session) if one.name in set(tables)]

    def _read_captured(self, session: Connection) -> list[TableDefinition]:
        return captured_tables(session, self._patterns)

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return ranges of rows as of the point.

        Left out are tables that were dropped or altered since the point, and those whose rows the
        server can no longer read as of it.
        """
        scn = OraclePosition.parse(point.snapshot_id).scn
        found: dict[TableName, list[Chunk]] = {}
        with connect(self._url) as session:
            organized = {
                name for name, row in read_tables(session).items() if row.is_index_organized
            }
            for read in wanted:
                name = read.definition.name
                if not _is_as_then(point, read.definition):
                    continue
                try:
                    found[name] = self._chunks(
                        session, read, scn, is_index_organized=name in organized
                    )
                except SnapshotLost as error:
                    logger.info("a table needs a later point", table=str(name), why=error.message)
                except StatementFailed as error:
                    if not is_gone(error):
                        raise
        return found

    def _chunks(
        self, session: Connection, read: TableRead, scn: int, *, is_index_organized: bool
    ) -> list[Chunk]:
        definition = read.definition
        if read.binary:
            raise ValueError(f"rows of {definition.name} are not in COPY's binary format")
        shape = shape_of(session, definition.name)
        pieces = plan_chunks(
            session,
            definition,
            scn=scn,
            is_index_organized=is_index_organized,
            bytes_target=self._chunk_bytes,
            pieces=CHUNKS_PER_SESSION * self._threads,
            rows_target=(
                rows_per_chunk(definition, self._chunk_bytes)
                if definition.row_estimate
                else ROWS_UNKNOWN
            ),
        )
        return [_chunk(piece, read, scn, shape) for piece in pieces]


def _chunk(piece: RowChunk, read: TableRead, scn: int, shape: str) -> Chunk:
    return Chunk(
        number=piece.number,
        relation=piece.table,
        copy_out=statements.rows(piece.table, read.columns, scn, piece.condition),
        size_bytes=piece.size_bytes,
        row_count=piece.row_estimate,
        shape=shape,
    )


def snapshot_text(root: Connection) -> str:
    """Return the text of a new point: the database's incarnation, and a name of its own."""
    return f"{read_incarnation(root)}/{secrets.token_hex(8)}"


def digest_of(table: TableDefinition) -> str:
    """Return a digest that distinguishes a table's definition from earlier and later ones."""
    return short_digest((table.source_id, table.columns, table.primary_key))


def settled_digests(
    before: Sequence[TableDefinition], after: Sequence[TableDefinition]
) -> dict[str, str]:
    """Return the digests of tables that were the same before and after a moment, by name."""
    digests = {str(one.name): digest_of(one) for one in before}
    later = {str(one.name): digest_of(one) for one in after}
    return {name: digest for name, digest in later.items() if digests.get(name) == digest}


def _is_as_then(point: Point, table: TableDefinition) -> bool:
    """Return whether a table still has the definition that it had at a point."""
    known = point.definitions
    return known is None or known.get(str(table.name)) == digest_of(table)


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> OraclePlanner:
    """Return the planner of a pipeline's source."""
    return OraclePlanner(config, first=first)
