"""Stream of merged transactions: it reads the inputs that hold it back, and returns runs in order.

An input that nothing waits for is not read: its transactions stay in their segments on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.base.held import HeldState
from penstock.host.clock import Clock
from penstock.host.state_file import StatusFile
from penstock.merge.inputs import Chunk, InputPlace, MergeInput
from penstock.merge.order import NEVER, InputQueue, Order, Round
from penstock.merge.rows import RowMerger
from penstock.merge.shapes import Shapes, ShapeState
from penstock.merge.state import InputState, MergeState
from penstock.model import FlushPoint, Run
from penstock.model.sections import MergeSection, OfOneLog
from penstock.ports.source import SourceStream, StreamCounted

logger = structlog.get_logger(__name__)

STATUS_FILE = "merge.json"
ROWS_MAX = 50_000  # of a round in memory, more only if one transaction's piece has more
POLL_S = 0.02
HELD_BACK_S = 10.0
"""Time that one input may hold the others back before that is reported, seconds."""


@dataclass
class Member:
    """Input in its place in the order.

    Attributes:
        goes_behind: inputs that have to end first.
        ends: its extractor is stopped, and writes nothing more.
    """

    state: InputState
    source: MergeInput
    goes_behind: frozenset[str] = frozenset()
    ends: bool = False


@dataclass
class Counted(StreamCounted):
    """Counts of the merged rows."""

    byte_count: int = 0
    ignored_row_count: int = 0


class MergeStream(SourceStream):
    """Stream of the inputs' transactions in one order.

    Attributes:
        members: in the order of their numbers.
    """

    spilled_byte_count = 0

    def __init__(
        self,
        members: Sequence[Member],
        *,
        start: FlushPoint,
        state: MergeState,
        over: tuple[InputState, ...],
        shapes: ShapeState,
        section: MergeSection,
        run_directory: Path,
        clock: Clock,
        has_writer: Callable[[InputPlace], bool],
        on_acknowledge: Callable[[int], None],
        begins_with: Sequence[tuple[str, HeldState]] = (),
    ) -> None:
        """Open the inputs.

        Args:
            members: the inputs.
            start: the merged log's end.
            state: the merge's state at that end.
            over: inputs that have ended.
            shapes: the shapes at that end.
            section: [merge].
            run_directory: directory of the report.
            clock: the clock.
            has_writer: returns whether an extractor writes a log.
            on_acknowledge: called with each acknowledged transaction.
            begins_with: states of inputs' bases whose rows come first.
        """
        self.members = tuple(members)
        self._counts = Counted()
        self._over = over
        self._clock = clock
        self._has_writer = has_writer
        self._on_acknowledge = on_acknowledge
        self._skew_us = round(section.clock_skew_seconds * 1e6)
        self._order = Order(
            [
                InputQueue(one.state.name, one.state.reached, skew_us=self._skew_us)
                for one in self.members
            ],
            join_us=round(section.join_seconds * 1e6),
            skew_us=self._skew_us,
            weight_max=ROWS_MAX,
            watermark_us=state.watermark_us,
            joined_count=state.joined_count,
            unjoined_count=state.unjoined_count,
        )
        self._shapes = Shapes.of(shapes)
        self._rows = RowMerger(
            inputs=[one.source for one in self.members],
            numbers=[one.state.number for one in self.members],
            shapes=self._shapes,
            trx=start.trx,
            gsn=start.gsn,
            leaves_tables=section.of_one_log is OfOneLog.LEAVE,
        )
        self._runs: Iterator[Run] | None = self._rows.first(begins_with) if begins_with else None
        self._begins_with = begins_with
        self._has_base, self._settles_us = state.has_base, state.settles_us
        self._states: dict[int, tuple[MergeState, ShapeState | None]] = {}
        self._status = StatusFile(run_directory / STATUS_FILE, clock=clock)
        self._held = (frozenset[int](), clock.monotonic_s())
        self._is_told = False

    # -- for the extractor -------------------------------------------------------------------

    def next_run(self, timeout_s: float) -> Run | None:
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            run = self._give()
            if run is not None:
                return run
            found = self._order.next()
            if found is not None:
                self._begin(found)
            elif not self._read_on():
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return None
                self._wait(min(left_s, POLL_S))

    def has_given(self, position: int) -> bool:
        """Return whether all rows of the inputs were emitted, so that only heartbeats can wait."""
        del position
        return self._runs is None and all(
            one.source.durable_trx() <= one.source.read_trx and not queue.weights.sum()
            for one, queue in self._pairs()
        )

    def ask_for_position(self) -> None:
        """Do nothing: the inputs are watched all the time."""

    def acknowledge(self, position: int) -> None:
        self._on_acknowledge(position - 1)

    def state_at(self, trx: int) -> tuple[MergeState, ShapeState | None] | None:
        """Return the inputs' state after a merged transaction; earlier ones are forgotten.

        The shapes are included if they differ from those of the last call.
        """
        found = self._states.get(trx)
        new = [shapes for at, (_, shapes) in self._states.items() if at <= trx and shapes]
        self._states = {at: one for at, one in self._states.items() if at > trx}
        if found is None:
            return None
        return found[0], replace(new[-1], since=trx) if new else None

    def close(self) -> None:
        """Close the files."""
        self._let_go()
        for one in self.members:
            one.source.close()

    @property
    def counts(self) -> StreamCounted:
        return self._counts

    # -- rounds ------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[Member, InputQueue]]:
        return zip(self.members, self._order.queues, strict=True)

    def _give(self) -> Run | None:
        if self._runs is None:
            return None
        run = next(self._runs, None)
        if run is None:
            self._runs = None
            return None
        if run.end is not None:
            self._let_go()
        self._counts.byte_count += sum(rows.batch.nbytes for rows in run.rows)
        if run.end is not None:
            self._note(run.end.trx)
        return run

    def _begin(self, found: Round) -> None:
        self._rows.set_taken([queue.trx for queue in self._order.queues])
        self._runs = self._rows.runs(found, ROWS_MAX)

    def _let_go(self) -> None:
        """Release the states of the bases, which were read or are no longer needed."""
        for _, state in self._begins_with:
            state.release()
        self._begins_with = ()

    def _note(self, trx: int) -> None:
        """Note the state after a merged transaction."""
        is_over = all(queue.is_ended and not len(queue) for queue in self._order.queues)
        if is_over or self._order.watermark_us >= self._settles_us:
            self._settles_us = 0
        for queue in self._order.queues:
            if queue.is_ended and not len(queue):
                queue.claim(self._order.watermark_us)
        inputs = [
            replace(
                one.state,
                log_id=one.source.log_id,
                segment=one.source.number_of(queue.trx),
                reached=queue.position,
                is_over=one.ends and queue.is_ended and not len(queue),
            )
            for one, queue in self._pairs()
        ]
        state = MergeState(
            trx=trx,
            watermark_us=self._order.watermark_us,
            joined_count=self._order.joined_count,
            unjoined_count=self._order.unjoined_count,
            has_base=self._has_base,
            settles_us=self._settles_us,
            inputs=tuple(sorted((*self._over, *inputs), key=lambda one: one.number)),
        )
        shapes = self._shapes.state(trx) if self._shapes.has_news else None
        self._states[trx] = state, shapes

    # -- reading -----------------------------------------------------------------------------

    def _read_on(self) -> bool:
        """Read the inputs that the order waits for; return whether there was anything new."""
        wanted = self._order.holding or frozenset(range(len(self.members)))
        found = [self._read(index) for index in sorted(self._in_front(wanted))]
        return any(found)

    def _in_front(self, wanted: frozenset[int]) -> set[int]:
        """Return these inputs, each replaced by the inputs that have to end before it."""
        found = set()
        for index in wanted:
            before = [
                other
                for other, (one, queue) in enumerate(self._pairs())
                if one.state.name in self.members[index].goes_behind and not queue.is_ended
            ]
            found |= set(before) or {index}
        return found

    def _read(self, index: int) -> bool:
        one, queue = self.members[index], self._order.queues[index]
        was_ended = queue.is_ended
        chunk = one.source.read()
        if chunk is None:
            return not was_ended and self._ends(one, queue)
        if was_ended:  # others continued meanwhile
            queue.claim(self._order.watermark_us)
        self._append(one, queue, chunk)
        return True

    def _append(self, one: Member, queue: InputQueue, chunk: Chunk) -> None:
        if not queue.read_trx:
            queue.trx = chunk.first - 1  # its oldest segment is not its first
        left_out = queue.append(chunk.times_us, chunk.weights, chunk.globals)
        if left_out:
            one.source.markers(queue.trx)

    def _ends(self, one: Member, queue: InputQueue) -> bool:
        """Return whether an input is read to its end and does not hold the others back."""
        if one.ends:
            over = not self._has_writer(one.source.place) and not self._has_more(one)
        else:
            over = one.source.is_done()
        if not over:
            return False
        last_us = queue.resolved_us
        queue.is_ended = True
        for other, following in self._pairs():
            if one.state.name in other.goes_behind:
                following.raise_floor(last_us + 1)
        return True

    def _has_more(self, one: Member) -> bool:
        """Return whether more arrived after the last read, before its extractor was
        seen stopped.
        """
        return one.source.durable_trx() > one.source.read_trx

    def _wait(self, timeout_s: float) -> None:
        holding = self._order.holding
        if len(holding) == 1:
            self.members[next(iter(holding))].source.wait(timeout_s)
        else:
            self._clock.sleep(timeout_s)

    # -- the report --------------------------------------------------------------------------

    def report(self) -> None:
        """Report what holds the others back and how the clocks differ, about once a second."""
        if self._status.due():
            self._status.write(self.facts())

    def facts(self) -> dict[str, Any]:
        """Return the content of run/merge.json; times are microseconds since 1970."""
        now_s = self._clock.monotonic_s()
        holding = self._order.holding
        if holding != self._held[0]:
            self._held, self._is_told = (holding, now_s), False
        held_s = now_s - self._held[1]
        names = [self.members[index].state.name for index in sorted(holding)]
        waits = any(queue.weights.sum() for queue in self._order.queues)
        is_held = bool(names) and waits and held_s >= HELD_BACK_S
        if is_held and not self._is_told:
            self._is_told = True
            logger.warning(
                "merge waits for a log that brings nothing new: is its extractor running, and is "
                "heartbeatSeconds set in its pipeline file?",
                inputs=names,
            )
        skews = [one.source.skew_us for one in self.members if one.source.skew_us is not None]
        apart_us = max(skews) - min(skews) if skews else 0
        if apart_us > self._skew_us:
            logger.warning("servers' clocks differ by more than clockSkewSeconds", us=apart_us)
        return {
            "now_us": self._clock.now_us(),
            "watermark_us": self._order.watermark_us,
            "held_by": names,
            "held_s": round(held_s, 1) if is_held else 0.0,
            "clock_skew_us": apart_us,
            "clock_skew_max_us": self._skew_us,
            "joined_count": self._order.joined_count,
            "unjoined_count": self._order.unjoined_count,
            "left_out_count": self._rows.left_out,
            "inputs": [self._fact(one, queue) for one, queue in self._pairs()]
            + [{"name": one.name, "number": one.number, "is_over": True} for one in self._over],
        }

    def _fact(self, one: Member, queue: InputQueue) -> dict[str, Any]:
        durable = one.source.durable_trx()
        resolved = queue.resolved_us
        return {
            "name": one.state.name,
            "number": one.state.number,
            "trx": queue.trx,
            "durable_trx": durable,
            "behind": max(durable - queue.trx, 0),
            "resolved_us": resolved if resolved < NEVER else 0,
            "clock_skew_us": one.source.skew_us,
            "is_over": one.ends and queue.is_ended and not len(queue),
        }
