"""Requests to put a table's rows into the log again, at one exact position.

When the stream has given all redo that is written, the log has every commit up to one SCN and none
after it. The table's rows as of this SCN then follow the marker RELOAD, as one transaction of the
log. No lock is needed. The rows have the shape that the log has at this position: if the table was
altered since, they are sent after that statement is in the log.

Not here: requests to capture (`captures.py`), the bulk load (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import structlog

from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.reading.bulk_reader import OracleReader, shape_of
from penstock.engines.oracle.reading.statements import rows as rows_text
from penstock.engines.oracle.source.shapes import Shapes
from penstock.engines.oracle.source.stream import RedoStream, Visit
from penstock.host import faults
from penstock.host.clock import Clock
from penstock.host.request_files import RequestFiles, table_not_captured
from penstock.host.state_file import StateFiles
from penstock.model import FlushPoint, PenstockError, Relation, Run, TableName
from penstock.model.table_requests import TableRequest
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.ports.source import LogAccess
from penstock.sql.sent_again import SentAgain, make_removed

LOOK_INTERVAL_S = 0.5
ALTERED_INTERVAL_S = 5.0  # between two attempts to read a table that was altered
_ALTERED = frozenset({904, 1466})  # no such column; altered after the SCN

logger = structlog.get_logger(__name__)
faults.declare("extract.resend.rows", "extract.resend.before", "extract.resend.after")


@dataclass(slots=True, kw_only=True)
class _Work:
    """A request under way.

    Attributes:
        visit: The stream's.
        error: Why the rows are not in the log.
    """

    request: TableRequest
    visit: Visit
    error: PenstockError | None = None


class Resends:
    """Requests to send rows again, one after the other. Used by the extractor's thread.

    A request is answered once its rows are durable; one that a crash left unanswered is carried out
    again. An error answers a request, and the stream continues.
    """

    def __init__(
        self,
        state: StateFiles,
        shapes: Shapes,
        opens: Callable[[], Connection],
        *,
        name: str,
        clock: Clock,
    ) -> None:
        """Keep the arguments.

        Args:
            state: State files.
            shapes: Of the captured tables.
            opens: Opens a session in the container of the tables.
            name: Of the pipeline's way of reading.
            clock: Clock of the process.
        """
        self._files = RequestFiles(state)
        self._shapes = shapes
        self._opens = opens
        self._name = name
        self._clock = clock
        self._work: _Work | None = None
        self._next_look_s = float("-inf")

    @property
    def is_at_work(self) -> bool:
        """Return whether a request is under way."""
        return self._work is not None

    def forget_stream(self) -> None:
        """Forget what is under way: the stream ended, and requests are carried out again."""
        self._work = None

    def tend(self, stream: RedoStream, log_access: LogAccess) -> None:
        """Answer a finished request, and begin the next one; cheap if there are none."""
        work, now_s = self._work, self._clock.monotonic_s()
        if work is not None:
            if work.error is not None or work.visit.is_in_log(log_access.durable):
                self._finish(work, now_s)
            return
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open_resends(requests.tables):
            if request.table not in self._shapes.tables:
                self._answer(request, table_not_captured(request.table, self._name))
                continue
            visit = Visit(lambda start, table=request.table: self._runs(table, start))  # type: ignore[misc]
            self._work = _Work(request=request, visit=visit)
            stream.visit(visit)
            return

    def _finish(self, work: _Work, now_s: float) -> None:
        self._work = None
        if work.error is not None and work.error.fields.get("errno") in _ALTERED:
            logger.info("rows are sent later", table=str(work.request.table),
                        said=work.error.message)  # fmt: skip
            self._next_look_s = now_s + ALTERED_INTERVAL_S
            return
        self._answer(work.request, work.error)

    def _answer(self, request: TableRequest, error: PenstockError | None) -> None:
        faults.point("extract.resend.before")
        self._files.answer_resend(request, error)
        faults.point("extract.resend.after")

    # -- rows, called by the stream at the position ----------------------------------------------

    def _runs(self, table: TableName, start: FlushPoint) -> Iterator[Run]:
        writing = SentAgain(start, time_us=self._clock.now_us())
        try:
            if table not in self._shapes.tables:
                raise table_not_captured(table, self._name)
            relation = self._shapes.present_relation(table)
            writing.begin(relation)
            with closing(self._opens()) as session:
                reader = OracleReader(session)
                task = _task(table, relation, start.position >> 64, shape_of(session, table))
                shape = relation
                for rows in reader.batches(task, relation):
                    if rows.relation != shape:
                        shape = rows.relation
                        relation = self._shapes.reshape(table, shape, start.position)
                    faults.point("extract.resend.rows")
                    yield writing.inserts(relation, rows.batch.columns, rows.batch.num_rows)
        except PenstockError as error:
            self._fail(writing, error)
            return
        logger.info("table sent again", table=str(table), rows=writing.row_count)
        yield writing.last()

    def _fail(self, writing: SentAgain, error: PenstockError) -> None:
        """Note why a table was not read. Raises ConnectionLost if some of its rows were given."""
        is_passing = error.retry == "backoff" and not isinstance(error, SnapshotLost)
        if writing.row_count or self._work is None or is_passing:
            raise make_removed(error) from error
        self._work.error = error


def _task(table: TableName, relation: Relation, scn: int, shape: str) -> ChunkTask:
    """Return a chunk of all rows as of an SCN, with the columns of the log."""
    listed = [select_expression(ReadColumn.from_column(one)) for one in relation.columns]
    return ChunkTask(
        source_url="",
        target_url="",
        table=table,
        target=table,
        chunk=Chunk(number=0, relation=table, copy_out=rows_text(table, listed, scn), shape=shape),
        columns=tuple(one.name for one in relation.columns),
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan="",
        replica_role=False,
    )
