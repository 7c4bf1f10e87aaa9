"""Stream of LogMiner's rows as runs of the change log, window by window.

A window begins at the oldest transaction that is not in the log yet, and has no memory of earlier
windows: redo of an open transaction may be written late, with SCNs that an earlier window has
passed. So each window reads again what is open, and gives what was committed after the log's end
(reference, sections 2, 7 and 1b.6).

A window may lack the START of a transaction: it was open when the position was taken, and was not
known. Then the window begins earlier, until it has the START, or no redo is left.

A finished window moves the position even if it had no change, so that archived logs are not purged
under it. A window ends at a DDL statement of a captured table, after which definitions are read
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.source.assembly import Assembly, Limits
from penstock.engines.oracle.source.emission import Emission
from penstock.engines.oracle.source.entries import Spill
from penstock.engines.oracle.source.errors import RELOAD, TransactionTorn
from penstock.engines.oracle.source.mining import Miner, Sink
from penstock.engines.oracle.source.shapes import Shapes
from penstock.engines.oracle.source.statements import contents
from penstock.engines.oracle.source.watermarks import Watermarks
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, Run
from penstock.ports.source import SourceStream, StreamCounted

POLL_S = 0.5
POLL_MAX_S = 10.0
MOVE_INTERVAL_S = 2.0  # between positions of a silent source
WATCH_INTERVAL_S = 60.0
STEP_BACK = 10_000  # SCNs, doubled

logger = structlog.get_logger(__name__)
faults.declare("oracle.run.before", "oracle.acknowledge.after")


@dataclass
class Counted(StreamCounted):
    """Counts of a stream. Rows of other tables are not sent by the server."""

    byte_count: int = 0
    ignored_row_count: int = 0


class Visit:
    """Transaction of the log's own that a stream gives when it has all redo that is written.

    Attributes:
        runs: Returns the transaction's runs, to follow the log's end, which is after all commits of
            one SCN. Without any, the stream continues.
        end: The log's end after them; None until they were given.
    """

    def __init__(self, runs: Callable[[FlushPoint], Iterator[Run]]) -> None:
        """Keep the argument."""
        self.runs = runs
        self.end: FlushPoint | None = None

    def is_in_log(self, durable: FlushPoint) -> bool:
        """Return whether the runs are durable."""
        return self.end is not None and durable.trx >= self.end.trx


class RedoStream(SourceStream):
    """Stream that continues after a flush point.

    Attributes:
        is_reading: Whether a window is being read.
    """

    def __init__(
        self,
        miner: Miner,
        shapes: Shapes,
        marks: Watermarks,
        emits: Callable[[FlushPoint], Emission],
        *,
        start: FlushPoint,
        spill: Callable[[], Spill],
        container: str = "",
        limits: Limits | None = None,
        refresh: Callable[[], None] = lambda: None,
        clock: Clock = REAL_CLOCK,
        poll_s: float = POLL_S,
        spill_bytes: int | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            miner: Reader of windows.
            shapes: Of the captured tables.
            marks: Watermarks of the log.
            emits: Returns a converter of transactions that continues after a flush point.
            start: Where the log ends.
            spill: Returns an empty directory for side files.
            container: Pluggable database of the tables; empty without one.
            limits: Of open transactions.
            refresh: Reads the definitions of tables again.
            clock: Clock of the process.
            poll_s: Seconds between windows while nothing happens.
            spill_bytes: Bytes of rows that are kept in memory.
        """
        self._miner = miner
        self._shapes = shapes
        self._marks = marks
        self._emits = emits
        self._emission = emits(start)
        self._open_spill = spill
        self._container = container
        self._limits = limits or Limits()
        self._refresh = refresh
        self._clock = clock
        self._poll_s = poll_s
        self._spill_bytes = spill_bytes
        self._end = start
        self._given = start.position  # all commits up to here were given
        self.is_reading = False
        self._is_inside = False
        self._steps: Iterator[Run | None] = iter(())
        self._next_s = float("-inf")
        self._moved_s = self._watched_s = clock.monotonic_s()
        self._spill: Spill | None = None
        self._assembly: Assembly | None = None
        self._counts = Counted()
        self._visit: Visit | None = None
        self._is_current = False  # all redo was given that was written at the last look
        self._emission.introduce()

    # ------------------------------------------------------------------ the port

    @property
    def counts(self) -> StreamCounted:
        return self._counts

    @property
    def spilled_byte_count(self) -> int:
        return self._assembly.spilled_byte_count if self._assembly is not None else 0

    @property
    def end(self) -> FlushPoint:
        """Return the end of what was given, as far as it is whole."""
        return self._end

    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run.

        Raises the errors of `Miner.read`, `Assembly` and `Emission.give`, and TransactionTorn.
        """
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            for run in self._steps:
                if run is not None:
                    return self._give_out(run)
                if self._clock.monotonic_s() > until_s:
                    return None  # the window is not read yet
            visit = self._visit
            if visit is not None and self._is_current:
                self._visit = None
                self._steps = self._give_visit(visit)
                continue
            now_s = self._clock.monotonic_s()
            if now_s >= self._next_s:
                self._steps = self._window()
                continue
            left_s = until_s - now_s
            if left_s <= 0:
                return None
            self._clock.sleep(min(self._next_s - now_s, left_s))

    def _give_out(self, run: Run) -> Run:
        faults.point("oracle.run.before")
        self._is_inside = run.end is None
        if run.end is not None:
            self._end = run.end
            self._moved_s = self._clock.monotonic_s()
        return run

    def visit(self, visit: Visit) -> None:
        """Give a transaction of the log's own after the next window that has all redo."""
        self._visit = visit
        self._is_current = False

    def _give_visit(self, visit: Visit) -> Iterator[Run]:
        yield self._emission.take(self._given)
        for run in visit.runs(self._end):
            if run.end is not None:
                visit.end = run.end
            yield run
        if visit.end is not None:  # rows and transactions are numbered after those of the visit
            self._emission = self._emits(visit.end)
            self._emission.introduce()

    def has_given(self, position: int) -> bool:
        """Return whether everything before position was given."""
        return not self._is_inside and self._given >= position

    def ask_for_position(self) -> None:
        """Do nothing: each window tells the server's position."""

    def acknowledge(self, position: int) -> None:
        """Forget watermarks and layouts that are not needed again."""
        self._marks.prune(position)
        self._shapes.prune(position)
        faults.point("oracle.acknowledge.after")

    def close(self) -> None:
        """Remove the side file."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    # ------------------------------------------------------------------ windows

    def _window(self) -> Iterator[Run | None]:
        """Read a window, and yield its runs; None while it is read."""
        began_s = self._clock.monotonic_s()
        self._is_current = False
        last_scn = self._given >> 64
        mark = self._marks.low_at(self._given)
        flushed = self._miner.read_end(mark - 1)
        starts = self._miner.open_starts()
        low = min([mark, *starts])
        if flushed <= last_scn:
            self._next_s = began_s + self._poll_s
            yield from self._move(is_waited_for=False)
            self._is_current = self._given == OraclePosition.of_scn(last_scn).ordinal
            return
        high = self._miner.span.end(low, last_scn, flushed)
        self.is_reading = True
        yield from self._read(low, high)
        self.is_reading = False
        assembly = self._assembly
        assert assembly is not None, "the miner began it"
        following = min([high, *assembly.open_starts(), *starts])
        is_pinned = following <= low < high
        self._miner.span.note(assembly.row_count, is_pinned=is_pinned)
        has_rows = bool(assembly.committed)
        is_cut = False
        for run, is_last in self._give(assembly, high):
            is_cut = is_last and run.end is not None and run.end.position >> 64 < high
            yield run
        self._assembly = None
        self.close()
        if is_cut:
            return
        self._marks.note(self._given, following)
        if not has_rows:
            yield from self._move(is_waited_for=False)
        self._is_current = high >= flushed
        if self._is_current:
            self._pause(began_s, is_pinned=is_pinned)

    def _pause(self, began_s: float, *, is_pinned: bool) -> None:
        """Wait after a window that has all redo; longer if each one reads much again."""
        now_s = self._clock.monotonic_s()
        pause_s = min(now_s - began_s, POLL_MAX_S) if is_pinned else 0.0
        self._next_s = now_s + max(self._poll_s, pause_s)
        if now_s - self._watched_s >= WATCH_INTERVAL_S:
            self._watched_s = now_s
            self.watch()

    def watch(self) -> None:
        """Warn of rows that were loaded without redo."""
        known = dict(self._marks.unrecoverable)
        begin = self._marks.first[0] >> 64 if self._marks.first is not None else 0
        self._miner.check_recoverable(known, begin)
        if known != self._marks.unrecoverable:
            self._marks.unrecoverable = known
            self._marks.is_changed = True

    def _move(self, *, is_waited_for: bool) -> Iterator[Run]:
        """Yield the position that was reached, now and then."""
        is_due = self._clock.monotonic_s() - self._moved_s >= MOVE_INTERVAL_S
        if self._given > self._end.position and (is_due or is_waited_for):
            yield self._emission.take(self._given)

    def _read(self, low: int, high: int) -> Iterator[None]:
        """Read the transactions of a window that begins at low, or earlier if it must."""
        query = contents(
            self._shapes.tables,
            self._shapes.objects,
            container=self._container,
            has_large=self._shapes.has_large,
        )
        step = STEP_BACK
        while True:
            yield from self._miner.read(query, low, high, self._begin)
            assembly = self._assembly
            assert assembly is not None, "the miner began it"
            torn = self._find_torn(assembly)
            if not torn:
                assembly.finish()
                return
            oldest = self._miner.oldest_scn() + 1
            if low <= oldest:
                raise TransactionTorn(
                    f"transaction {torn[0]} was committed after "
                    f"{OraclePosition(self._given)}, and began before SCN {low}, where the oldest "
                    "redo begins",
                    hint="Restore older archived logs, or begin at a later SCN, when no "
                    f"transaction is open. {RELOAD}",
                    xid=torn[0],
                )
            low = max(low - step, oldest)
            step *= 2
            logger.info("a transaction began earlier", xid=torn[0], read_from=low)

    def _find_torn(self, assembly: Assembly) -> list[str]:
        """Return the transactions that may lack rows in the window.

        While the watermark is only the position that a user gave, each one may have rows before.
        Later, one without any row in the window is one of other tables.
        """
        has_low = self._marks.has_low(self._given)
        return [name for name, has_rows in assembly.torn.items() if has_rows or not has_low]

    def _begin(self) -> Sink:
        self.close()
        self._spill = self._open_spill()
        assembly = Assembly(
            self._given,
            number_of=self._shapes.number_of,
            spill=self._spill,
            limits=self._limits,
            spill_bytes=self._spill_bytes,
        )
        self._assembly = assembly
        return assembly.add

    # ------------------------------------------------------------------ runs

    def _give(self, assembly: Assembly, high: int) -> Iterator[tuple[Run, bool]]:
        """Yield the runs of a window, and whether each is the last one."""
        emission = self._emission
        committed = sorted(assembly.committed, key=lambda one: one.position)
        for transaction in committed:
            for run in emission.give(transaction):
                yield run, False
            assembly.release(transaction)
            self._given = transaction.position
            if emission.has_ddl:
                self._shapes_changed()
                yield emission.take(transaction.position), True
                return
            if emission.is_full:
                yield emission.take(transaction.position), False
        self._given = OraclePosition.of_scn(high).ordinal
        if not emission.is_empty:
            yield emission.take(self._given), True

    def _shapes_changed(self) -> None:
        self._refresh()
        self._emission.introduce()
