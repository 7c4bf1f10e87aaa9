"""Stream of change tables as runs of the change log.

The server is polled; each poll reads one batch of commits. The rows of a batch come in pieces, each
a run; only the last run of a batch ends at a flush point, because the batch counts only when the
loss checks after it have passed. Until then a failure takes everything back to the flush point
before it, so a transaction of any size is in the log whole or not at all.

The position moves with the newest captured commit also if no captured table changed (S3), so that
the clean-up job never seems to have removed what we need. On a source that is silent for longer it
moves one further: what was read after a commit (a copied table) waits until the log has passed that
commit. Two commits may have adjacent LSNs, of which a scan captures only one if it ends there
(`maxtrans`). So the capture job has to read its log to the end first: both were written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from penstock.codec.columns import transactions_batch
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.engines.sqlserver.source.instances import lsn_text
from penstock.engines.sqlserver.source.merging import Merge, Window
from penstock.engines.sqlserver.source.reader import Batch, ChangeReader
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, Run, TableName
from penstock.model.change import DROP_TABLE
from penstock.ports.source import SourceStream, StreamCounted

POLL_S = 0.5

logger = structlog.get_logger(__name__)
faults.declare(
    *("changes.read.before", "changes.confirm.before", "changes.confirm.after"),
    "changes.acknowledge.after",
)


@dataclass
class Counted(StreamCounted):
    """Counts of a stream. Change tables have no rows of other tables."""

    byte_count: int = 0
    ignored_row_count: int = 0


class Visit:
    """Transaction of the log's own that a stream gives at a position.

    Attributes:
        position: The log has all commits up to this one, and none after it.
        runs: Returns the transaction's runs, to follow the log's end. Without any, the stream
            continues.
        end: The log's end after them; None until they were given.
    """

    def __init__(self, position: int, runs: Callable[[FlushPoint], Iterator[Run]]) -> None:
        """Keep the arguments. position: 0 for wherever the stream is."""
        self.position = position
        self.runs = runs
        self.end: FlushPoint | None = None

    def is_in_log(self, durable: FlushPoint) -> bool:
        """Return whether the runs are durable."""
        return self.end is not None and durable.trx >= self.end.trx


class ChangeStream(SourceStream):
    """Stream that continues after a flush point."""

    spilled_byte_count = 0

    def __init__(
        self,
        reader: ChangeReader,
        *,
        start: FlushPoint,
        caught_up: CaughtUp,
        clock: Clock = REAL_CLOCK,
        poll_s: float = POLL_S,
    ) -> None:
        """Keep the arguments. start: where the log ends."""
        self._reader = reader
        self._caught_up = caught_up
        self._drained = replace(caught_up)  # a question of its own: since the silence began
        self._clock = clock
        self._poll_s = poll_s
        self._end = start
        self._gsn, self._trx = start.gsn, start.trx
        self._runs: Iterator[Run] = iter(())
        self._is_inside = False
        self._is_silent = False  # the last call found nothing
        self._introduced: dict[int, Relation] = {}
        self._visit: Visit | None = None
        reader.book.rewind()
        self._counts = Counted()

    @property
    def counts(self) -> StreamCounted:
        self._counts.byte_count = self._reader.byte_count
        return self._counts

    @property
    def end(self) -> FlushPoint:
        """Return the end of what was given, as far as it is whole."""
        return self._end

    def visit(self, visit: Visit) -> None:
        """Give a transaction of the log's own once the stream is at its position.

        Call it between two transactions, and before a later one than that position is given.
        """
        self._visit = visit

    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run. Raises the errors of `ChangeReader.next_batch` and `confirm`."""
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            run = next(self._runs, None)
            if run is not None:
                self._is_inside = run.end is None
                return run
            visit = self._visit
            if visit is not None and self._end.position >= visit.position:
                self._visit = None
                self._runs = self._give(visit)
                continue
            through = visit.position if visit is not None else None
            batch = self._reader.next_batch(self._end.position, through=through)
            if batch is not None:
                self._is_silent = False
                self._runs = self._read(batch)
                continue
            if self._is_past_newest():
                self._end = replace(self._end, position=self._end.position + 1)
                return Run(end=self._end)
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                if not self._is_silent and self._reader.newest:
                    self._drained.begin(self._reader.session)
                    self._is_silent = True
                return None
            self._clock.sleep(min(self._poll_s, left_s))

    def _give(self, visit: Visit) -> Iterator[Run]:
        for run in visit.runs(self._end):
            if run.end is not None:
                self._end = visit.end = run.end
                self._gsn, self._trx = run.end.gsn, run.end.trx
            yield run

    def _is_past_newest(self) -> bool:
        """Return whether no later commit can have the LSN after the newest captured one."""
        position = self._end.position
        return (
            self._is_silent
            and position == self._reader.newest != 0
            and self._drained.is_reached(self._reader.session, position)
        )

    def has_given(self, position: int) -> bool:
        """Return whether everything before position was given, and the capture job has read the
        log since `ask_for_position`.
        """
        if self._is_inside or self._end.position < position:
            return False
        return self._caught_up.is_reached(self._reader.session, self._end.position)

    def ask_for_position(self) -> None:
        """Note the moment from which on the capture job has to read the log to its end (S6)."""
        self._caught_up.begin(self._reader.session)

    def acknowledge(self, position: int) -> None:
        """Forget instances that are not needed again. The server cleans change tables up by age."""
        self._reader.book.prune(position)
        faults.point("changes.acknowledge.after")

    # -- one batch ---------------------------------------------------------------------------

    def _read(self, batch: Batch) -> Iterator[Run]:
        """Yield the runs of a batch; the last one ends at a flush point."""
        faults.point("changes.read.before")
        for lsn, text in batch.ddl:
            logger.info("table altered at the source", position=lsn_text(lsn), statement=text)
        book = self._reader.book
        fresh = self._fresh_relations() if batch.feeds else ()
        dropped = [book.tables[source_id].table for source_id in batch.dropped]
        writing = _Writing(batch, self._gsn, self._trx, self._end, fresh, dropped)
        kept: Window | None = None
        for window in Merge(batch.feeds, number=self._gsn).windows():
            if kept is not None:
                yield writing.run(kept)
            kept = window
        if batch.feeds:
            faults.point("changes.confirm.before")
            self._reader.confirm(batch)
            faults.point("changes.confirm.after")
        run = writing.last_run(kept)
        for source_id, table in zip(batch.dropped, dropped, strict=True):
            logger.info("table dropped or renamed at the source", table=str(table))
            book.gone[source_id] = batch.end
        assert run.end is not None, "it is the last one"
        self._end = run.end
        self._gsn, self._trx = run.end.gsn, run.end.trx
        yield run

    def _fresh_relations(self) -> tuple[Relation, ...]:
        """Return the relations that this stream has not given yet, for tables without rows."""
        now = self._reader.shapes.relations
        fresh = {
            source_id: one
            for source_id, one in now.items()
            if self._introduced.get(source_id) != one and source_id in self._reader.book.tables
        }
        self._introduced.update(fresh)
        return tuple(fresh.values())


class _Writing:
    """Numbers of the transactions of one batch, as its windows are given."""

    def __init__(
        self,
        batch: Batch,
        gsn: int,
        trx: int,
        end: FlushPoint,
        fresh: tuple[Relation, ...],
        dropped: Sequence[TableName],
    ) -> None:
        self._batch = batch
        self._gsn = gsn
        self._trx = trx  # of the last transaction that has a row so far
        self._open: int | None = None  # index of the transaction whose rows continue
        self._time_us = end.commit_time_us
        self._fresh = fresh  # relations for the next run
        self._dropped = tuple((one.schema, one.name) for one in dropped)

    def run(self, window: Window, end: Callable[[int, int, int], FlushPoint] | None = None) -> Run:
        """Return the run of a window. end: returns the flush point from gsn, trx and time."""
        first = int(window.indexes[0])
        log_number = self._trx if first == self._open else self._trx + 1
        rows = window.rows(log_number)
        ended = window.indexes if window.is_last_ended else window.indexes[:-1]
        self._trx = log_number + len(window.indexes) - 1
        self._open = None if window.is_last_ended else int(window.indexes[-1])
        self._gsn = window.last_number
        commits = [self._batch.commits[int(at)] for at in ended]
        if commits:
            self._time_us = commits[-1].time_us
        return Run(
            rows=rows,
            relations=self._take_fresh(),
            transactions=transactions_batch(
                [(one.position, one.position, one.time_us, one.id) for one in commits]
            ),
            end=None if end is None else end(self._gsn, self._trx, self._time_us),
        )

    def _take_fresh(self) -> tuple[Relation, ...]:
        fresh, self._fresh = self._fresh, ()
        return fresh

    def last_run(self, window: Window | None) -> Run:
        """Return the batch's last run, after which the log is at its end."""

        def point(gsn: int, trx: int, time_us: int) -> FlushPoint:
            return FlushPoint(position=self._batch.end, gsn=gsn, trx=trx, commit_time_us=time_us)

        if not self._dropped:
            if window is not None:
                return self.run(window, point)
            end = point(self._gsn, self._trx, self._time_us)
            return Run(relations=self._take_fresh(), end=end)
        found = self.run(window) if window is not None else Run()
        self._trx += 1
        marker = Marker(
            kind=MarkerKind.DDL,
            gsn=self._gsn,
            trx=self._trx,
            position=self._batch.end,
            commit_time_us=self._time_us,
            tables=self._dropped,
            data=DROP_TABLE,
        )
        told = [(self._batch.end, self._batch.end, self._time_us, 0)]
        return Run(
            rows=found.rows,
            relations=found.relations,
            markers=(marker,),
            transactions=_join_transactions(found, told),
            end=point(self._gsn, self._trx, self._time_us),
        )


def _join_transactions(found: Run, told: list[tuple[int, int, int, int]]) -> pa.RecordBatch | None:
    """Return the transactions of a run and some more."""
    more = transactions_batch(told)
    if found.transactions is None:
        return more
    return pa.concat_batches([found.transactions, more])
