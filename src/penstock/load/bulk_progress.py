"""Progress of the bulk load, always read from the target, never from a worker's own count.

Rows of finished chunks come from their DL rows, rows of running chunks from pg_stat_progress_copy.
`run/bulk.json` has the last reading for `penstock status`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES
from penstock.host.state_file import report_file
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import BulkTarget, ChunkCounts, TablePlan

logger = structlog.get_logger(__name__)

RUN_FILE = "bulk.json"
POLL_INTERVAL_S = 0.5
WRITE_INTERVAL_S = 1.0
RATE_WINDOW_S = 15.0
CHUNK_COST_BYTES = 4 * 2**20  # what a chunk costs besides its bytes: many small tables take time
NOT_YET_ALL = 0.99  # an estimate may be reached before all chunks are committed


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the bulk load. Totals are estimates until it is finished; then rows_done is
    exact.
    """

    table: TableName
    rows_done: int = 0
    rows_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    chunks_done: int = 0
    chunks_total: int = 0
    rows_per_s: float = 0.0
    eta_s: float | None = None


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The whole bulk load. phase: copying, paused, indexing or done; bytes are the source's."""

    phase: str
    tables: tuple[TableProgress, ...]
    rows_done: int = 0
    rows_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    elapsed_s: float = 0.0


def share_of(item: TableProgress | BulkProgress) -> float:
    """Return the share of the work that is done, 0 to 1; 1 only if every chunk is done."""
    if isinstance(item, BulkProgress):
        if all(table.chunks_done == table.chunks_total for table in item.tables):
            return 1.0
        return min(_work_done(item) / max(_work(item), 1.0), NOT_YET_ALL)
    if item.chunks_done == item.chunks_total:
        return 1.0
    done, total = item.bytes_done, item.bytes_total
    if not total:
        done, total = item.chunks_done, item.chunks_total
    return min(done / total, NOT_YET_ALL)


def _work(item: TableProgress | BulkProgress) -> float:
    """Return the whole work in bytes."""
    if isinstance(item, BulkProgress):
        return sum(map(_work, item.tables))
    return float(item.bytes_total + CHUNK_COST_BYTES * item.chunks_total)


def _work_done(item: TableProgress | BulkProgress) -> float:
    if isinstance(item, BulkProgress):
        return sum(map(_work_done, item.tables))
    return share_of(item) * _work(item)


OnProgress = Callable[[BulkProgress], None]


def table_progress(plan: TablePlan, done: Mapping[int, int], under_way: int) -> TableProgress:
    """Return one table's progress. done: rows by chunk number. under_way: uncommitted rows."""
    finished = [chunk for chunk in plan.chunks if chunk.number in done]
    rows_total = sum(chunk.row_count for chunk in plan.chunks)
    bytes_total = sum(chunk.size_bytes for chunk in plan.chunks)
    committed = sum(chunk.size_bytes for chunk in finished)
    row_bytes = bytes_total / rows_total if rows_total else 0.0
    complete = len(finished) == len(plan.chunks)
    rows_done = sum(done.values()) + (0 if complete else under_way)
    bytes_done = min(bytes_total, committed + int(under_way * row_bytes))
    return TableProgress(
        table=plan.source,
        rows_done=rows_done,
        rows_total=rows_done if complete else max(rows_total, rows_done),
        bytes_done=bytes_total if complete else bytes_done,
        bytes_total=bytes_total,
        chunks_done=len(finished),
        chunks_total=len(plan.chunks),
    )


class Rates:
    """Rates over the last RATE_WINDOW_S seconds of readings."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, BulkProgress]] = deque()

    def add(self, now_s: float, reading: BulkProgress) -> BulkProgress:
        """Return the reading with rates and remaining times. A reading that went back resets the
        window.
        """
        if self._seen and reading.rows_done < self._seen[-1][1].rows_done:
            self._seen.clear()
        self._seen.append((now_s, reading))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()
        then_s, before = self._seen[0]
        span_s = now_s - then_s
        if span_s <= 0:
            return reading
        bytes_per_s = (reading.bytes_done - before.bytes_done) / span_s
        earlier = {table.table: table for table in before.tables}
        return msgspec.structs.replace(
            reading,
            rows_per_s=(reading.rows_done - before.rows_done) / span_s,
            bytes_per_s=bytes_per_s,
            eta_s=_eta(reading, before, span_s),
            tables=tuple(_add_rates(t, earlier.get(t.table), span_s) for t in reading.tables),
        )


def _add_rates(table: TableProgress, before: TableProgress | None, span_s: float) -> TableProgress:
    if before is None:
        return table
    rows_per_s = max(0.0, (table.rows_done - before.rows_done) / span_s)
    eta_s = _eta(table, before, span_s)
    return msgspec.structs.replace(table, rows_per_s=rows_per_s, eta_s=eta_s)


def _eta(
    now: TableProgress | BulkProgress, before: TableProgress | BulkProgress, span_s: float
) -> float | None:
    """Return the remaining time at the pace of the window; None if nothing moved in it."""
    if share_of(now) == 1.0:
        return 0.0
    per_s = (_work_done(now) - _work_done(before)) / span_s
    return (_work(now) - _work_done(now)) / per_s if per_s > 0 else None


class Teller:
    """Reporter that reads the progress on request, passes it on and writes run/bulk.json.

    plans: current plans of all tables. One thread at a time.
    """

    def __init__(
        self,
        run_directory: Path,
        plans: Callable[[], Sequence[TablePlan]],
        on_progress: OnProgress | None,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._file = report_file(run_directory / RUN_FILE, BulkProgress)
        self._plans = plans
        self._on_progress = on_progress
        self._clock = clock
        self._rates = Rates()
        self._begun_s = clock.monotonic_s()
        self._written_s = float("-inf")

    def tell(self, target: ChunkCounts, phase: str) -> None:
        """Read the progress now, report it and write it."""
        now_s = self._clock.monotonic_s()
        reading = self._rates.add(now_s, read_progress(target, self._plans(), phase))
        reading = msgspec.structs.replace(reading, elapsed_s=now_s - self._begun_s)
        if phase != "copying" or now_s - self._written_s >= WRITE_INTERVAL_S:
            self._written_s = now_s
            REAL_FILES.make_directory(self._file.path.parent)
            self._file.save(reading)
        if self._on_progress is not None:
            self._on_progress(reading)


class Watch:
    """Thread that reports progress while chunks are copied, and obeys a stop.

    This thread calls on_stop once, when stop() first returns true. Its errors never end the load: a
    target that does not answer is noted in the diagnostics.
    """

    def __init__(
        self,
        open_target: Callable[[str], BulkTarget],
        teller: Teller,
        *,
        stop: Callable[[], bool],
        on_stop: Callable[[], None],
    ) -> None:
        self._open_target = open_target
        self._teller = teller
        self._stop = stop
        self._on_stop = on_stop
        self._ended = threading.Event()
        self._thread = SupervisedThread("bulk-watch", self._run, wait=self._ended.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        target: BulkTarget | None = None
        stopped = False
        try:
            while not self._ended.wait(POLL_INTERVAL_S):
                if not stopped and self._stop():
                    stopped = True
                    self._on_stop()
                try:
                    target = target or self._open_target("penstock bulk progress")
                    self._teller.tell(target, "copying")
                except PenstockError as error:
                    logger.warning("bulk progress not read", reason=type(error).__name__)
                    if target is not None:
                        target.close()
                    target = None
        finally:
            if target is not None:
                target.close()


def read_progress(target: ChunkCounts, plans: Sequence[TablePlan], phase: str) -> BulkProgress:
    """Return one reading from the target, without rates."""
    under_way, done = target.under_way(), target.read_done()
    tables = tuple(
        table_progress(plan, done.get(str(plan.source), {}), under_way.get(plan.target, 0))
        for plan in plans
    )
    return BulkProgress(
        phase=phase,
        tables=tables,
        rows_done=sum(t.rows_done for t in tables),
        rows_total=sum(t.rows_total for t in tables),
        bytes_done=sum(t.bytes_done for t in tables),
        bytes_total=sum(t.bytes_total for t in tables),
    )


def stored_progress(run_directory: Path) -> BulkProgress | None:
    """Return the last written reading; None if no bulk load has begun here."""
    return report_file(run_directory / RUN_FILE, BulkProgress).load()
