"""Read one table again, into the log, at one exact position.

One session sees the table in a snapshot whose position P in the binlog is known, and makes
statements that alter the table wait. A marker RELOAD is written, then all of its rows as they were
at P: one transaction of the log, after every transaction that ends at P or before it and before all
others. Rows get the same form as in a consumer's snapshot: by a SELECT of the texts to which the
binlog's rows print.

The stream's thread drives it, because it alone hands out gsns: between two transactions it calls
`open_reload`, continues to P, and then calls `feed`. A crash in between leaves nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import structlog

from penstock.codec.columns import transactions_batch
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.lines import LineDialect
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.connect import Connection, quote, rows, run
from penstock.engines.mysql.source.assemble import Assembler
from penstock.engines.mysql.source.bulk_reader import RowsOfChunk, tells_rewritten
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.live_tables import LiveTables
from penstock.engines.mysql.source.proxied_session import ProxiedSession, open_proxied
from penstock.engines.mysql.source.read_plan import log_plan
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.engines.mysql.source.snapshot import LOCK_TIMEOUT_S, open_snapshots, read_choices
from penstock.engines.mysql.source.status import read_identity
from penstock.engines.mysql.source.strategies import Choice, NoConsistentPoint, Strategy
from penstock.engines.mysql.url import MySQLUrl
from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.host.faults import declare, point
from penstock.host.request_files import table_unknown
from penstock.model import (
    FlushPoint,
    Marker,
    MarkerKind,
    PenstockError,
    Relation,
    Rows,
    Run,
    TableDefinition,
    TableName,
)
from penstock.ports.bulk import PointUnfit
from penstock.ports.source import TableRows

logger = structlog.get_logger()
declare("extract.resend.rows")
REASON = "it was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadJob:
    """A table held at a consistent point, ready to be read once.

    Attributes:
        position: The consistent point.
        definition: The table at that point; its shape cannot change meanwhile.
    """

    position: BinlogPosition
    definition: TableDefinition
    session: ProxiedSession

    def feed(
        self,
        assembler: Assembler,
        book: SchemaHistory,
        *,
        gives_up: Callable[[], bool],
        reason: str = REASON,
    ) -> int:
        """Write the marker and all rows as one transaction; return the number of rows.

        Args:
            assembler: Assembler whose stream has reached the job's position.
            book: Shapes of the tables.
            gives_up: Called repeatedly; ConnectionLost is raised once it returns True.
            reason: Reason that the marker names.

        Raises:
            PointUnfit: The table was rewritten after the position; nothing was emitted.
        """
        relation = book.read_again(self.definition, assembler.place)
        blocks = self._blocks(relation)
        try:
            first = next(blocks, b"")
        except PenstockError as error:
            if tells_rewritten(error):
                raise rewritten(self.definition.name) from error
            raise
        writing = _Transaction(assembler, book, relation, reason=reason)
        for block in chain([first] if first else [], blocks):
            if gives_up():
                raise ConnectionLost("reload given up: the stream is being closed")
            writing.write(block)
        writing.end()
        logger.info(
            "table read again",
            table=str(self.definition.name),
            row_count=writing.row_count,
            position=str(self.position),
        )
        return writing.row_count

    def _blocks(self, relation: Relation) -> Iterator[bytes]:
        """Yield whole lines of all the table's rows."""
        there = {column.name: column for column in self.definition.columns}
        plan = log_plan([there[column.name] for column in relation.columns])
        select = f"select {', '.join(plan.expressions)} from {quote(*self.definition.name)}"
        yield from RowsOfChunk(self.session, select, plan.cells, LineDialect.LOAD_DATA)


class _Transaction:
    """A transaction of the log's own, in runs of a block each."""

    def __init__(
        self,
        assembler: Assembler,
        book: SchemaHistory,
        relation: Relation,
        *,
        reason: str = REASON,
    ) -> None:
        self.row_count = 0
        self._assembler = assembler
        self._book = book
        self._relation = relation
        self._relations: tuple[Relation, ...] = (relation,)  # emitted even if no row has it
        self._place = assembler.place
        self._time_us = time.time_ns() // 1000
        # In front of transactions that begin at the position, and after all that end there.
        self._end = assembler.end.position
        self._position = self._end - 1
        assembler.decoder.skip(0, 1)
        self._markers: tuple[Marker, ...] = (
            Marker(
                kind=MarkerKind.RELOAD,
                gsn=assembler.decoder.gsn,
                trx=assembler.decoder.trx,
                position=self._position,
                commit_time_us=self._time_us,
                tables=((relation.schema, relation.name),),
                data={"reason": reason},
            ),
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows as inserts, numbered after the previous ones."""
        self._assembler.decoder.skip(batch.num_rows, 0)
        self.row_count += batch.num_rows
        point("extract.resend.rows")
        self._give((Rows(relation=self._relation, batch=batch),), batch.nbytes)

    def write(self, block: bytes) -> None:
        """Write whole lines, at least one."""
        decoder = self._assembler.decoder
        columns = cells_of(block, len(self._relation.columns))
        count = len(columns[0])
        found = inserts(
            self._relation,
            columns,
            count,
            gsn=decoder.gsn + 1,
            trx=decoder.trx,
            dialect=LineDialect.LOAD_DATA,
        )
        self._widen(found.relation)
        decoder.skip(count, 0)
        self.row_count += count
        point("extract.resend.rows")
        self._give((replace(found, relation=self._relation),), len(block))

    def _widen(self, now: Relation) -> None:
        """Keep columns that became text as text from here on, in versions that the book numbers."""
        for place, column in enumerate(now.columns):
            if column.neutral != self._relation.columns[place].neutral:
                self._relation = self._book.widen(self._relation, place, self._place)

    def _give(self, found: tuple[Rows, ...], byte_count: int) -> None:
        run = Run(rows=found, markers=self._markers, relations=self._relations)
        self._assembler.give(run, byte_count)
        self._markers, self._relations = (), ()

    def end(self) -> None:
        """End the transaction: all rows are written."""
        decoder = self._assembler.decoder
        told = transactions_batch([(self._position, self._end, self._time_us, 0)])
        end = FlushPoint(
            position=self._end, gsn=decoder.gsn, trx=decoder.trx, commit_time_us=self._time_us
        )
        self._assembler.give(
            Run(markers=self._markers, relations=self._relations, transactions=told, end=end)
        )


def give_again(
    assembler: Assembler, book: SchemaHistory, found: TableRows, relation: Relation
) -> int:
    """Emit the rows of the log's base as a transaction before later ones; return their number."""
    writing = _Transaction(assembler, book, relation)
    decoder = assembler.decoder
    for batch in found.inserts(gsn=decoder.gsn + 1, trx=decoder.trx):
        writing.add(batch)
    writing.end()
    return writing.row_count


@contextmanager
def open_reload(
    url: str, table: TableDefinition, *, live: LiveTables, server: str
) -> Iterator[ReloadJob]:
    """Take a consistent point for one table and hold its shape, for a with block.

    Call it while the stream is paused: transactions that are decoded meanwhile could be after the
    point. server: name of the server that the stream comes from. Raises ConnectionLost if another
    one answers, NoConsistentPoint, ResendRefused for a table that no longer exists, and the errors
    of snapshots.
    """
    with ExitStack() as stack:
        taken = stack.enter_context(
            open_snapshots(url, [table], count=1, among=_exact_choices(url, table))
        )
        (reader,) = taken.connections
        if (found := read_identity(reader).name) != server:
            raise ConnectionLost(
                f"the rows would come from another server ({found}) than the stream ({server})"
            )
        definition = _hold(reader, table.name, live)
        text = f"{taken.status.position}/{secrets.token_hex(8)}"
        proxy = stack.enter_context(
            SessionProxy.of(taken.connections, place=MySQLUrl.parse(url).place, snapshot_text=text)
        )
        session = stack.enter_context(open_proxied(proxy.snapshot_id, text))
        yield ReloadJob(position=taken.status.position, definition=definition, session=session)


def _exact_choices(url: str, table: TableDefinition) -> Sequence[Choice]:
    """Return the strategies with a lock: without one a snapshot has no exact position, and its rows
    could not be put in order.
    """
    with open_catalog(url) as connection:
        found = read_choices(connection, [table])
    exact = [choice for choice in found if choice.strategy is not Strategy.LOCK_FREE]
    if not exact:
        raise NoConsistentPoint(
            f"{table.name} cannot be read at an exact position: {'; '.join(found[0].lacking)}",
            hint=f"Run at the server: grant lock tables on {quote(table.name.schema)}.* to "
            "'USER'@'HOST';",
        )
    return exact


def _hold(reader: Connection, name: TableName, live: LiveTables) -> TableDefinition:
    """Block statements that alter the table; return its definition, which now cannot change."""
    doing = f"holding {name}"
    run(reader, f"set session lock_wait_timeout = {LOCK_TIMEOUT_S}", doing=doing)
    try:
        rows(reader, f"select 1 from {quote(*name)} limit 0", doing=doing)
    except StatementFailed as error:
        if live.read(name) is None:
            raise table_unknown(name) from error
        raise
    definition = live.read(name)
    if definition is None:
        raise table_unknown(name)
    return definition


def rewritten(name: TableName) -> PointUnfit:
    """Return the error for a table whose rows at the point are gone."""
    return PointUnfit(
        f"{name} cannot be read at the point: it was rewritten",
        hint="Nothing to do: a later point is taken.",
    )
