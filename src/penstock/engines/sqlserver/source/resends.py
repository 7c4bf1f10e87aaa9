"""Requests to put a table's rows into the log again, at one exact position.

SQL Server does not tell at which log sequence number a snapshot is. So writers are kept off the
table until the capture job has read the log to its end: then every commit that the table has is
captured, and the newest captured one is the position. A snapshot of the table begins, and the lock
ends; rows are read from the snapshot without it. The stream continues to the position and no
further, and then the marker RELOAD and all rows follow as one transaction of the log.

The rows are those columns that the change table has, selected as in the change table. If the log
has a base, rows come from there, and the table is not locked.

Tables whose columns have lost values (`shapes.py`) are read again in the same way, without a
request and from the source only, if a row has such a value that no change row has. A table without
a key is always read again, because the loader waits for that: if its rows cannot be read, the
extractor stops.

Not here: requests to capture (`captures.py`), locks of the bulk load (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import structlog

from penstock.codec.sqlserver.columns import make_columns, select_expression
from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.connect import BEGIN, quote
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.source.caught_up import LOCKED_S, CaughtUp, wait_captured
from penstock.engines.sqlserver.source.change_rows import Layout
from penstock.engines.sqlserver.source.instances import instances_of, lsn_bytes, lsn_text
from penstock.engines.sqlserver.source.reader import ChangeReader, Session
from penstock.engines.sqlserver.source.statements import (
    INSTANCES,
    READ_ONLY,
    UPDATEABILITY,
    change_table,
)
from penstock.engines.sqlserver.source.stream import ChangeStream, Visit
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.host.request_files import (
    RequestFiles,
    ResendCancelled,
    ResendRefused,
    resend_cancelled,
    table_not_captured,
    table_unknown,
)
from penstock.host.state_file import StateFiles
from penstock.model import (
    FlushPoint,
    PenstockError,
    Relation,
    Run,
    TableName,
)
from penstock.model.table_requests import TableRequest
from penstock.ports.source import BaseRows, LogAccess, NoBase, TableRows
from penstock.sql.sent_again import SentAgain, make_removed

LOOK_INTERVAL_S = 0.5
LOCKED_INTERVAL_S = 10.0  # between two attempts to lock a table
LOCK_WAIT_MS = 5_000  # other writers wait behind this lock
BASE_WAIT_S = 60.0
ROWS_AT_ONCE = 16_384
LOCK_WAIT = f"SET LOCK_TIMEOUT {LOCK_WAIT_MS}"
_ALTERED = frozenset({207, 208, 3961})  # no such column, no such table, altered since the snapshot

logger = structlog.get_logger(__name__)
faults.declare("sqlserver.resend.rows", "extract.resend.before", "extract.resend.after")


class Lost(NamedTuple):
    """Columns of a table whose values in older rows the log lacks. source_id: its object id."""

    source_id: int
    columns: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Work:
    """A request under way.

    Attributes:
        source_id: The table's object id.
        request: It is answered once the log is durable with its rows.
        visit: The stream's.
        lost: The columns whose values were lost; None for a request.
        held: Sessions of the rows, or the log's base.
        error: Why the rows are not in the log.
    """

    source_id: int
    request: TableRequest
    visit: Visit
    held: ExitStack
    lost: Lost | None = None
    error: PenstockError | None = None


class Resends:
    """Requests to send rows again, one after the other. Used by the extractor's thread.

    A request is answered once its rows are durable; one that a crash left unanswered is carried out
    again. An error answers a request, and the stream continues.
    """

    def __init__(
        self,
        state: StateFiles,
        reader: ChangeReader,
        *,
        base: BaseRows | None = None,
        name: str = "",
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the arguments. base: of the log. name: of the pipeline's way of reading."""
        self._files = RequestFiles(state)
        self._reader = reader
        self._base = base or NoBase()
        self._name = name
        self._clock = clock
        self._work: _Work | None = None
        self._waits: CaughtUp | None = None  # until the stream has what was captured
        self._next_look_s = float("-inf")
        self._cancelled: dict[int, int] = {}  # versions in which awaited rows could not be read

    @property
    def is_at_work(self) -> bool:
        """Return whether a request is under way."""
        waits = any(not self._was_cancelled(one) for one in self._reader.shapes.lost)
        return self._work is not None or self._waits is not None or waits

    def forget_stream(self) -> None:
        """Forget what is under way: the stream ended, and requests are carried out again."""
        work, self._work, self._waits = self._work, None, None
        if work is not None:
            work.held.close()
            self._reader.shapes.end_reload(work.source_id, is_durable=False)

    def tend(self, stream: ChangeStream, log_access: LogAccess) -> None:
        """Answer a finished request, and begin the next one; cheap if there are none."""
        work = self._work
        if work is not None:
            if work.error is not None or work.visit.is_in_log(log_access.durable):
                self._finish(work)
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        for request, lost in self._find_open():
            try:
                self._begin(request, lost, stream, log_access)
            except StatementInterrupted as error:  # locked, or not captured for long
                logger.info("rows are sent later", table=str(request.table), said=error.message)
                self._next_look_s = now_s + LOCKED_INTERVAL_S
                self._waits = None
            except PenstockError as error:
                if error.retry == "backoff":
                    raise
                self._answer(request, lost, error)
                self._waits = None
            return
        self._waits = None

    def _find_open(self) -> Iterator[tuple[TableRequest, Lost | None]]:
        """Yield open requests, then the tables whose columns have lost values."""
        requests, answers = self._files.read()
        for request in answers.open_resends(requests.tables):
            yield request, None
        book, shapes = self._reader.book, self._reader.shapes
        for source_id, columns in list(shapes.lost.items()):
            known = book.tables.get(source_id) if source_id not in book.gone else None
            if self._was_cancelled(source_id):
                continue
            if known is not None and self._source_name(source_id) is not None:
                yield TableRequest(table=known.table), Lost(source_id, columns)
            else:
                shapes.forget_lost(source_id, columns)

    def _was_cancelled(self, source_id: int) -> bool:
        """Return whether a table's rows cannot be read in its newest shape."""
        relation = self._reader.shapes.relations.get(source_id)
        return relation is not None and self._cancelled.get(source_id) == relation.version

    def _has_lost(self, lost: Lost, position: int) -> bool:
        """Return whether a row has a value in one of these columns that no change row has.

        A table that awaits its rows is read in any case. position: The log's end, which is that of
        the captured changes.
        """
        reader = self._reader
        if reader.shapes.awaits_reload(lost.source_id):
            return True
        table, relation = self._source_name(lost.source_id), reader.shapes.relations[lost.source_id]
        instance = reader.instance_at(lost.source_id, position)
        if table is None or instance is None:
            return False
        key = [relation.columns[at].name for at in relation.key]
        types = {one.name: one.base_type or one.source_type for one in relation.columns}
        # A change row may lack a large value: it proves nothing then.
        if any(one not in types or parse_type(types[one]).is_large for one in lost.columns):
            key = []
        sql = _lost_value(table, lost.columns, instance.name, key)
        parameters = (lsn_bytes(relation.since),) if key else ()
        try:
            return bool(reader.session.execute(sql, *parameters))
        except StatementFailed as error:
            if error.fields.get("errno") in _ALTERED:
                return False  # a column is gone again, which a later shape tells
            raise

    def _finish(self, work: _Work) -> None:
        self._work = None
        work.held.close()
        self._reader.shapes.end_reload(work.source_id, is_durable=work.error is None)
        self._answer(work.request, work.lost, work.error)

    def _answer(
        self, request: TableRequest, lost: Lost | None, error: PenstockError | None
    ) -> None:
        shapes = self._reader.shapes
        if lost is not None:
            is_there = self._source_name(lost.source_id) is not None
            if error is not None and is_there and shapes.awaits_reload(lost.source_id):
                if not isinstance(error, ResendCancelled):
                    raise error
                # Another shape follows, in which they can be read.
                self._cancelled[lost.source_id] = shapes.relations[lost.source_id].version
                return
            if isinstance(error, ResendRefused):
                logger.warning(
                    "values of altered columns are not in the log",
                    table=str(request.table),
                    columns=", ".join(lost.columns),
                    said=error.message,
                    hint=error.hint,
                )
            shapes.forget_lost(*lost)
            return
        faults.point("extract.resend.before")
        self._files.answer_resend(request, error)
        faults.point("extract.resend.after")

    # -- beginning ---------------------------------------------------------------------------

    def _begin(
        self,
        request: TableRequest,
        lost: Lost | None,
        stream: ChangeStream,
        log_access: LogAccess,
    ) -> None:
        source_id, relation = self._find(request.table)
        with ExitStack() as stack:
            found = None
            if lost is None:
                found = self._open_base(request, relation, stack, log_access)
            if found is not None and relation is not None and found.fits(relation):
                visit = Visit(0, lambda start: self._runs_of_base(found, relation, start))
            else:
                stack.close()
                if not self._is_caught_up(stream):
                    return
                if lost is not None and not self._has_lost(lost, stream.end.position):
                    self._reader.shapes.forget_lost(*lost)
                    self._waits = None
                    return
                visit = self._read_source(request, source_id, stack)
            self._work = _Work(
                source_id=source_id,
                request=request,
                lost=lost,
                visit=visit,
                held=stack.pop_all(),
            )
        self._waits = None
        stream.visit(visit)

    def _find(self, table: TableName) -> tuple[int, Relation | None]:
        """Return a captured table's object id, and its shape in the log if that has one."""
        reader = self._reader
        source_id = reader.book.id_of(table)
        if source_id is None or source_id in reader.book.gone:
            raise table_not_captured(table, self._name)
        return source_id, reader.shapes.relations.get(source_id)

    def _open_base(
        self,
        request: TableRequest,
        relation: Relation | None,
        stack: ExitStack,
        log_access: LogAccess,
    ) -> TableRows | None:
        """Return the table as the log's base has it; None if the base may lack its changes."""
        if relation is None or request.comes_with_copy or isinstance(self._base, NoBase):
            return None
        if relation.awaits_reload:
            return None  # the base has the rows before ALTER TABLE
        log_access.flush()
        log_access.close_segment()
        until_s = self._clock.monotonic_s() + BASE_WAIT_S
        return stack.enter_context(
            self._base.at(
                request.table,
                log_access.durable.trx,
                gives_up=lambda: self._clock.monotonic_s() > until_s,
            )
        )

    def _is_caught_up(self, stream: ChangeStream) -> bool:
        """Return whether the log has what was captured; writers need not wait for a backlog."""
        session = self._reader.session
        if self._waits is None:
            self._waits = CaughtUp(clock=self._clock)
            self._waits.begin(session)
        return self._waits.is_reached(session, stream.end.position)

    def _read_source(self, request: TableRequest, source_id: int, stack: ExitStack) -> Visit:
        """Take the snapshot; return the visit that gives its rows. stack: keeps the session."""
        table = self._source_name(source_id)
        if table is None:
            raise table_unknown(request.table)
        session = stack.enter_context(closing(self._reader.opens()))
        # ALTER TABLE may wait for our lock, and a query waits for ALTER TABLE, also in a snapshot.
        session.execute(LOCK_WAIT)
        may_copy = not self._reader.shapes.awaits_reload(source_id)
        _check_snapshots(session, request.table, may_copy=may_copy)
        with closing(self._reader.opens()) as locking:
            _lock(locking, table)
            position = wait_captured(
                locking, clock=self._clock, limit_s=LOCKED_S, who_waits=f"writers of {table}"
            )
            session.execute(statements.SNAPSHOT_ISOLATION)
            session.execute(BEGIN)
            session.execute(statements.touch(table))
        logger.info("table is read again", table=str(table), position=lsn_text(position))
        return Visit(position, lambda start: self._runs_of_source(source_id, session, start))

    def _source_name(self, source_id: int) -> TableName | None:
        """Return the name that the source has for a table; the log may have an older one."""
        for one in instances_of(self._reader.session.execute(INSTANCES)):
            if one.source_id == source_id and one.table is not None:
                return one.table
        return None

    # -- rows, called by the stream at the position ----------------------------------------------

    def _runs_of_source(self, source_id: int, session: Session, start: FlushPoint) -> Iterator[Run]:
        writing = SentAgain(start, time_us=self._clock.now_us())
        shapes = self._reader.shapes
        try:
            layout, name = self._layout(source_id, start)
            relation = shapes.begin_reload(source_id, layout.relation, since=start.position + 1)
            layout = replace(layout, relation=relation)
            writing.begin(layout.relation)
            for batch in self._batches(session, name, layout):
                made = make_columns(batch, layout.columns)
                if made.as_text:
                    layout = shapes.widen(source_id, layout, made.as_text)
                faults.point("sqlserver.resend.rows")
                yield writing.inserts(layout.relation, made.arrays, batch.num_rows)
        except PenstockError as error:
            self._fail(writing, error, source_id)
            return
        logger.info("table sent again", table=layout.relation.full_name, rows=writing.row_count)
        yield writing.last()

    def _layout(self, source_id: int, start: FlushPoint) -> tuple[Layout, TableName]:
        """Return how the change table is read after a position, and the table's present name."""
        reader = self._reader
        instance = reader.instance_at(source_id, start.position)
        known = reader.book.tables.get(source_id)
        if instance is None or known is None or instance.table is None:
            raise table_unknown(known.table if known is not None else TableName("", str(source_id)))
        return reader.layout_of(instance, start.position + 1), instance.table

    @staticmethod
    def _batches(session: Session, name: TableName, layout: Layout) -> Iterator[pa.RecordBatch]:
        sql = statements.rows(name, [select_expression(one) for one in layout.columns])
        yield from session.arrow(sql, rows=ROWS_AT_ONCE)

    def _runs_of_base(
        self, found: TableRows, relation: Relation, start: FlushPoint
    ) -> Iterator[Run]:
        writing = SentAgain(start, time_us=self._clock.now_us())
        writing.begin(relation)
        for batch in found.inserts(gsn=writing.gsn + 1, trx=writing.trx):
            yield writing.batch(relation, batch)
        logger.info("table sent again from the base", table=relation.full_name)
        yield writing.last()

    def _fail(self, writing: SentAgain, error: PenstockError, source_id: int) -> None:
        """Note why a table was not read. Raises ConnectionLost if some of its rows were given."""
        self._reader.shapes.end_reload(source_id, is_durable=False)
        if error.fields.get("errno") in _ALTERED:
            known = self._reader.book.tables[source_id]
            relation = self._reader.shapes.relations.get(source_id)
            version = relation.version if relation is not None else 0
            error = resend_cancelled(known.table, version, version + 1)
        if writing.row_count or self._work is None or error.retry == "backoff":
            raise make_removed(error) from error
        self._work.error = error


def _check_snapshots(session: Session, table: TableName, *, may_copy: bool) -> None:
    """Raise ResendRefused if the session cannot read a snapshot that the lock precedes.

    may_copy: copying the rows to the target would do.
    """
    (row,) = session.execute(UPDATEABILITY)
    if str(row[0]) == READ_ONLY:
        raise ResendRefused(
            f"rows of {table} cannot be put into the log again from a readable secondary: a lock "
            "there keeps no writer off the table",
            hint="Name the primary replica in the source's URL, without applicationIntent.",
            table=str(table),
        )
    ((state,),) = session.execute(statements.SNAPSHOT_STATE)
    if int(state or 0) != statements.SNAPSHOT_ON:
        ((name,),) = session.execute("SELECT DB_NAME() AS name")
        raise ResendRefused(
            f"rows of {table} cannot be put into the log again: the database does not allow "
            "snapshots, so that they cannot be read at one moment",
            hint=f"Run at the source: ALTER DATABASE [{name}] SET ALLOW_SNAPSHOT_ISOLATION ON"
            + (f"; or copy the rows: penstock table resync FILE {table}" if may_copy else ""),
            table=str(table),
        )


def _lost_value(table: TableName, columns: Sequence[str], instance: str, key: Sequence[str]) -> str:
    """Return the query that has a row if a value of these columns is in no change row.

    Rows are found in the instance's change table by their key, and only from the LSN on that is the
    query's parameter: the log has older change rows in the older shape. Without a key there is no
    parameter, and any value counts.
    """
    condition = " OR ".join(f"t.{quote(one)} IS NOT NULL" for one in columns)
    sql = f"SELECT TOP (1) 1 AS one FROM {quote(*table)} AS t WHERE ({condition})"
    if not key:
        return sql
    alike = " AND ".join(f"c.{quote(one)} = t.{quote(one)}" for one in key)
    return (
        f"{sql} AND NOT EXISTS (SELECT 1 AS one FROM {change_table(instance)} AS c "
        f"WHERE {alike} AND c.[__$operation] IN (2, 4) "
        "AND c.[__$start_lsn] >= CAST(? AS binary(10)))"
    )


def _lock(session: Session, table: TableName) -> None:
    """Keep writers off a table until the session ends. Raises StatementInterrupted if it waits."""
    session.execute(LOCK_WAIT)
    session.execute(BEGIN)
    session.execute(statements.lock(table))
