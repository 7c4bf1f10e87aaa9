"""Reading one table again, into the log, at one exact position.

Where a table lost or gained rows that were not sent, a marker RELOAD is written, followed by all
of its rows as they were at a consistent point X: one transaction of the log, placed behind every
transaction whose commit record starts before X and before all others. Readers of the log then have
the table's contents at X and follow it as before.

The stream's thread drives it, because it alone hands out gsns: between two frames it calls
`open_reload`, goes on until the next commit would lie at or behind `position`, and then calls
`feed`. Nothing is remembered meanwhile: the watch settles the action only when the end of this
transaction is on disk, so that a crash in between comes to the same action again.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgoutput_outcome import Stop
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.catalog import open_catalog
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.slot import Watch
from penstock.engines.postgres.source.snapshot import (
    NOT_THERE,
    TableRewritten,
    check_not_rewritten,
    copy_sql,
    lock_tables,
    open_snapshot,
    plan_chunks,
    temporary_consistent_point,
)
from penstock.host.errors import StatementInterrupted
from penstock.host.faults import declare, point
from penstock.model import (
    ColumnDefinition,
    MarkerKind,
    PenstockError,
    Relation,
    TableDefinition,
    TableName,
)

logger = structlog.get_logger()
declare("extract.resend.rows")
ATTEMPTS_MAX = 5
LOCK_TIMEOUT_MS = 500
BLOCK_BYTES = 1024 * 1024
WHOLE_STORAGE_BYTES = 2**62  # one chunk per storage: they are read one after the other anyway


class CopyDecoder(Protocol):
    """Interface of `penstock.codec.postgres.pgoutput.Decoder` for a reload."""

    stop: Stop
    in_transaction: bool

    def begin(self, commit_position: int, commit_time_us: int, xid: int) -> None:
        """Open a transaction."""
        ...

    def commit(self, end_position: int) -> None:
        """End it."""
        ...

    def feed_copy(self, block: bytes, start: int, end: int, source_id: int, row_limit: int) -> int:
        """Decode lines of COPY's text format."""
        ...


class Sink(Protocol):
    """Receiver of the rows: the stream's assembler."""

    @abstractmethod
    def bind(self, source_id: int, relation: Relation) -> None:
        """Give the rows of source_id this relation from now on."""
        ...

    @abstractmethod
    def widen(self) -> None:
        """Bind the table with the column as text, after Stop.WIDEN."""
        ...

    @abstractmethod
    def mark(
        self, kind: MarkerKind, *, tables: tuple[tuple[str, str], ...], data: dict[str, Any]
    ) -> None:
        """Place a marker behind the last row of the open transaction."""
        ...

    @abstractmethod
    def introduce(self, relation: Relation) -> None:
        """Have the next run say a shape, whether rows have it or not."""
        ...

    @abstractmethod
    def cut(self) -> None:
        """Emit the decoded rows; this ends a transaction if none is open."""
        ...


class TableVanished(PenstockError):
    """The table that should be read again does not exist."""

    code = "PG62"
    retry = "backoff"


class ReloadJob:
    """A table held at a consistent point, ready to be read once. A context manager.

    position: X. definition: the table as it is at X; its shape cannot change until close().
    """

    def __init__(
        self, reader: psycopg.Connection, position: int, definition: TableDefinition
    ) -> None:
        """Take over a reader's connection. Use `open_reload` to create a job."""
        self.position = position
        self.definition = definition
        self._reader = reader

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the snapshot and the lock."""
        self.close()

    def close(self) -> None:
        """Release the snapshot and the lock; harmless when done twice."""
        self._reader.close()

    def feed(
        self, decoder: CopyDecoder, sink: Sink, relation: Relation, *, reason: str, row_limit: int
    ) -> int:
        """Write the marker and all rows as one transaction; returns the number of rows.

        decoder: outside of a transaction, all that was decoded before position emitted.
        relation: of the definition's columns (`RelationResolver.reshaped`). Whole transactions
        that commit before position must have been fed, and none behind it. Runs of row_limit rows
        are cut, so memory is bounded. Rows have position - 1: they are older than what commits
        at position. Raises typed errors; the transaction is then open and must be given up.
        """
        if decoder.in_transaction:
            raise ValueError("a reload begins between transactions")
        source_id = self.definition.source_id
        decoder.begin(self.position - 1, time.time_ns() // 1000, 0)
        sink.bind(source_id, relation)
        sink.mark(
            MarkerKind.RELOAD,
            tables=((relation.schema, relation.name),),
            data={"reason": reason, "position": str(Lsn(self.position))},
        )
        sink.introduce(relation)
        count = 0
        for block in self._blocks([column.name for column in relation.columns]):
            count += block.count(b"\n")
            at = 0
            while at < len(block):
                at = decoder.feed_copy(block, at, len(block), source_id, row_limit)
                if decoder.stop is Stop.WIDEN:
                    sink.widen()
                elif decoder.stop is Stop.LIMIT:
                    sink.cut()
            point("extract.resend.rows")
        decoder.commit(self.position)
        sink.cut()
        logger.info(
            "table read again",
            table=str(self.definition.name),
            row_count=count,
            position=str(Lsn(self.position)),
            reason=reason,
        )
        return count

    def _blocks(self, columns: list[str]) -> Iterator[bytes]:
        """Yield the lines of the table's rows, in blocks of whole lines of about BLOCK_BYTES."""
        chunks = plan_chunks(self._reader, self.definition, size_bytes_target=WHOLE_STORAGE_BYTES)
        for chunk in chunks:
            with (
                server_errors(f"reading {chunk.storage}"),
                self._reader.cursor().copy(copy_sql(chunk, columns)) as copy,
            ):
                lines: list[bytes] = []
                size = 0
                # The server sends each row as a message of its own, so a piece is whole lines.
                for piece in copy:
                    lines.append(bytes(piece))
                    size += len(piece)
                    if size >= BLOCK_BYTES:
                        yield b"".join(lines)
                        lines, size = [], 0
                if lines:
                    yield b"".join(lines)


def open_reload(
    url: str, table: TableName, source_id: int, *, on_blocked: Watch | None = None
) -> ReloadJob:
    """Take a consistent point for one table and hold its shape.

    Must be called while the stream is paused: transactions decoded meanwhile could be behind the
    point. Waits for every transaction that runs on the server now (see `slot.create_slot`, also for
    on_blocked). Raises TableVanished, TableRewritten when the table keeps changing, and what
    connecting and making a slot raise.
    """
    for attempt in range(ATTEMPTS_MAX):
        with temporary_consistent_point(url, on_blocked=on_blocked) as point:
            reader = open_snapshot(url, point.snapshot_id, application_name="penstock reload")
            try:
                definition = _lock_table(url, reader, table, source_id)
            except TableRewritten as error:
                reader.close()
                logger.info("table changes meanwhile", table=str(table), error=error.message)
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            except BaseException:
                reader.close()
                raise
            else:
                return ReloadJob(reader, point.position, definition)
    raise AssertionError("unreachable")


def list_sent(table: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns without the expressions that one of two definitions was read with."""
    return [replace(column, default=None) for column in table.columns]


def _read_definition(url: str, table: TableName, source_id: int) -> TableDefinition | None:
    """Return a locked table's present definition; None if it is gone. Raises TableRewritten.

    The query would wait for an ALTER TABLE that waits for the lock of the caller, so it gives up,
    and so must the caller.
    """
    try:
        with open_catalog(url) as catalog, server_errors(f"reading the definition of {table}"):
            catalog.execute(f"set lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
            found = definitions_of(catalog, [source_id], shape_only=True, expressions=True)
    except StatementInterrupted as error:
        raise TableRewritten(
            f"{table} is being altered",
            hint="Nothing to do: the table is read at a later point.",
        ) from error
    return found.get(source_id)


def _lock_table(
    url: str, reader: psycopg.Connection, table: TableName, source_id: int
) -> TableDefinition:
    """Lock the table; return its definition, which must be the same in the snapshot and now."""
    with server_errors(f"reading the definition of {table}"):
        seen = definitions_of(reader, [source_id], shape_only=True).get(source_id)
    if seen is None:
        raise TableVanished(
            f"{table} is not there to be read again",
            hint="Nothing to do: the catalogue is looked at again.",
        )
    try:
        lock_tables(reader, [seen])
    except PenstockError as error:
        if error.fields.get("sqlstate") in NOT_THERE:
            raise TableRewritten(
                f"{table} was dropped or renamed after the snapshot",
                hint="Nothing to do: it is looked at again.",
            ) from error
        raise
    check_not_rewritten(reader, [seen])
    now = _read_definition(url, table, source_id)
    # The COPY reads the present columns; the rows of the stream behind X have those of the
    # snapshot.
    if now is None or now.name != seen.name or list_sent(now) != list_sent(seen):
        raise TableRewritten(
            f"{table} got other columns after the snapshot",
            hint="Nothing to do: the table is read at a later point.",
        )
    return now
