"""Two instances of `penstock stage` that a test interleaves and kills, over databases in memory.

A row's value is its time, so a key that moves back, and a row that is marked but was never written,
are detected at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from harness.feeds.row_target import GROUP, FakeRowTarget
from harness.feeds.sequencer import row
from harness.feeds.staging import FakeStaging, WentBack
from penstock.feeds.apply.admission import MutationLate
from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
from penstock.feeds.metrics import ApplyMetrics
from penstock.feeds.position import Marking, TakenOver, take_over
from penstock.feeds.sessions import Sessions
from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import (
    Mutation,
    StagedTable,
    batch_of,
    mutations_of,
    position_behind,
    time_through,
)
from penstock.ports.target import Applied, AppliedByAnother

LOG = "stage/test/shop.public"
MODES = (StageMode.CONSISTENT, StageMode.BEST_EFFORT, StageMode.IMMEDIATE)
POINTS = (
    "stage.direct.looked",
    "stage.direct.applied",
    "stage.sweep.applied",
    "stage.sweep.moved",
    "stage.window.written",
    "stage.window.applied",
    "stage.mark.rows",
    "stage.mark.checkpoint",
)
IN_TRANSACTION = ("stage.window.written",)
TABLES = {"a": "t", "b": "p"}


class Killed(BaseException):
    """Error: the instance was killed."""


class NoSleep:
    """A clock that does not wait."""

    def now_us(self) -> int:
        """Return a time at which everything is old."""
        return 2**62 // 1000

    def monotonic_s(self) -> float:
        """Return 0: no time passes."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Return without waiting."""


class LockingTarget(FakeRowTarget):
    """A target whose exclusive tables are refused to others."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: set[StagedTable] = set()

    @contextmanager
    def exclusive(self, tables: Collection[StagedTable]) -> Iterator[None]:
        """Lock the tables; refuse at once if they are locked, as a server does after a while."""
        if self.locked & set(tables):
            raise StatementInterrupted("locked", hint="")
        self.locked |= set(tables)
        try:
            yield
        finally:
            self.locked -= set(tables)


@dataclass
class Feed:
    """A changefeed of one table: it sends each key in order, and everything at least once.

    Attributes:
        name: The partition.
        unsent: Times and keys that are not answered yet, in order.
        sent: Times and keys that are answered.
        resolved: The last resolved timestamp that was answered.
    """

    name: str
    unsent: list[tuple[int, int]] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    resolved: int = 0

    @property
    def table(self) -> StagedTable:
        """Table that it sends."""
        return StagedTable(GROUP, TABLES[self.name])


@dataclass
class SparkLog:
    """Log between an extractor and a loader of one instance."""

    place: Applied
    end: Hlc
    windows: list[tuple[Hlc, list[Mutation], StagedTable]] = field(default_factory=list)


class World:
    """Both instances, the feeds, and the invariants."""

    def __init__(self, stack: ExitStack) -> None:
        self.staging, self.target = FakeStaging(), LockingTarget()
        sessions: Any = stack.enter_context(Sessions(self.target, 9))  # type: ignore[type-var]
        self.sequencers = {
            mode: RowSequencer(
                sessions,
                metrics=ApplyMetrics(CollectorRegistry()),
                log_id=lambda _group: LOG,
                options=SequencerOptions(mode=mode),
                clock=NoSleep(),
            )
            for mode in MODES
        }
        self.feeds = {name: Feed(name) for name in TABLES}
        self.now = 10
        self.holders: dict[int, TakenOver] = {}
        self.logs: dict[int, SparkLog] = {}
        self.plan: list[tuple[str, Callable[[], None]]] = []
        self.highest: dict[tuple[str, str], int] = {}

    # -- fault points ----------------------------------------------------------------------------

    def point(self, name: str) -> None:
        """Stand in for `faults.point`: carry out the planned action there, once."""
        if self.plan and self.plan[0][0] == name:
            _, action = self.plan.pop(0)
            action()

    def kill(self) -> None:
        """Kill the instance at this point."""
        raise Killed

    def attempt(self, work: Callable[[], object]) -> bool:
        """Return whether work succeeded; it may be killed or refused, and is checked afterwards."""
        try:
            work()
        except Killed:
            return False
        except PenstockError as error:
            # A lease is lost, a lock is held, a position has moved: the caller tries again.
            if error.retry != "backoff" and not isinstance(error, AppliedByAnother):
                raise
            return False
        finally:
            self.check()
        return True

    # -- feeds -----------------------------------------------------------------------------------

    def change(self, name: str, key: int, age: int = 0) -> None:
        """Change something at the source; age: how long before now, for a feed that is new."""
        feed = self.feeds[name]
        self.now += 1
        last = max((time for time, _ in (*feed.unsent, *feed.sent)), default=0)
        time = max(self.now - age, last + 1, feed.resolved + 1, 2)
        self.now = max(self.now, time)
        feed.unsent.append((time, key))

    def _accept(self, feed: Feed, mode: StageMode, rows: list[tuple[int, int]]) -> None:
        batch = batch_of([row(time, key, v=time) for time, key in rows])
        self.sequencers[mode].accept(self.staging, GROUP, {feed.table: batch}, feed.name)

    def send(self, name: str, mode: StageMode, count: int) -> None:
        """Send the next rows, which are sent again until they are answered."""
        feed = self.feeds[name]
        rows = feed.unsent[:count]
        if rows and self.attempt(lambda: self._accept(feed, mode, rows)):
            feed.unsent = [one for one in feed.unsent if one not in rows]
            feed.sent += [one for one in rows if one not in feed.sent]

    def send_again(self, name: str, mode: StageMode, place: int) -> None:
        """Send a row that was answered before."""
        feed = self.feeds[name]
        if feed.sent:
            rows = feed.sent[place % len(feed.sent) :][:2]
            self.attempt(lambda: self._accept(feed, mode, rows))

    def break_promise(self, name: str, mode: StageMode, key: int) -> None:
        """Send a new row at or before a resolved time: refused, unless a later one is there."""
        feed = self.feeds[name]
        known = {time for time, _ in (*feed.sent, *feed.unsent)}
        time = next((one for one in range(feed.resolved, 1, -1) if one not in known), 0)
        if not time or self.staging.feed_state(GROUP, name).is_joining:
            return
        before = dict(self.target.rows[feed.table.name])
        later = [
            place
            for place, one in self.staging.tables.get(feed.table, {}).items()
            if place[1] == f"[{key}]" and place[0] > Hlc(time) and one.applied
        ]
        try:
            self._accept(feed, mode, [(time, key)])
        except (MutationLate, StatementInterrupted):
            pass
        else:
            assert later, f"{time} was answered, and is nowhere"
        assert self.target.rows[feed.table.name] == before

    def resolve(self, name: str, back: int) -> None:
        """Resolve everything that was answered; back: repeat, or send an earlier one."""
        feed = self.feeds[name]
        if back and not feed.resolved:
            return
        if back:
            try:
                self.staging.advance(GROUP, name, Hlc(max(2, feed.resolved - back + 1)))
            except WentBack:
                return
            self.check()
            return
        if feed.unsent:
            time = feed.unsent[0][0] - 1
        else:
            self.now += 1
            time = self.now
        if time > max(feed.resolved, 1):
            self.staging.advance(GROUP, name, Hlc(time))
            feed.resolved = time

    # -- instances -------------------------------------------------------------------------------

    def take_over(self, instance: int) -> None:
        """Give the lease to an instance; the other one may not know yet."""
        self.holders[instance] = take_over(LOG, self.target)
        self.logs.pop(instance, None)

    def round(self, instance: int, mode: StageMode) -> None:
        """Let an instance apply rows as if it still had the lease."""
        if instance not in self.holders:
            self.take_over(instance)
        holder = self.holders[instance]
        self.attempt(lambda: self.sequencers[mode].round(self.staging, GROUP, lambda: holder))

    def extract(self, instance: int) -> None:
        """Read a window into an instance's log, which begins at the target's position."""
        log = self.logs.get(instance)
        if log is None:
            self.take_over(instance)
            place = self.target.read_shared(LOG)
            log = self.logs[instance] = SparkLog(place, time_through(place.position))
        proposed = self.staging.window(GROUP).proposed
        if proposed <= log.end:
            return
        for table in self.staging.staged_tables(GROUP):
            found = [
                one
                for part in self.staging.read([table], log.end, proposed, limit=9)
                for batch in part.rows.values()
                for one in mutations_of(batch)
            ]
            log.windows.append((proposed, found, table))
        if not self.staging.staged_tables(GROUP):
            log.windows.append((proposed, [], StagedTable(GROUP, "t")))
        log.end = proposed

    def load(self, instance: int) -> None:
        """Apply the windows of an instance's log in one transaction."""
        log = self.logs.get(instance)
        if log is not None and log.windows:
            self.attempt(lambda: self._load(log))

    def _load(self, log: SparkLog) -> None:
        with self.target.transaction():
            for _, mutations, table in log.windows:
                definition = self.target.tables(GROUP)[table.name]
                for one in mutations:
                    self.target.upsert(definition, None, [one])  # type: ignore[arg-type]
            after = replace(
                log.place,
                segment=log.place.segment + 1,
                gsn=log.place.gsn + 1,
                position=position_behind(log.windows[-1][0]),
            )
            self.target.advance(LOG, before=log.place, after=after)
        log.place, log.windows = after, []

    def mark(self) -> None:
        """Mark rows that the target has, in any instance."""
        marking = Marking(self.staging, GROUP, LOG, target=lambda: self.target)
        self.attempt(lambda: marking.mark(self.staging, self.target))

    # -- invariants ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that no key moves back, and that all rows marked applied have been written."""
        for name, rows in self.target.rows.items():
            for key, found in rows.items():
                place = name, key
                assert found["v"] >= self.highest.get(place, 0), f"{place} went back"
                self.highest[place] = found["v"]
        for table, kept in self.staging.tables.items():
            for (time, key), one in kept.items():
                there = self.target.rows[table.name].get(key, {"v": 0})["v"]
                assert not one.applied or there >= time.nanos, f"{table} {key}@{time} is lost"
        window = self.staging.window(GROUP)
        position = time_through(self.target.read_shared(LOG).position)
        assert window.committed <= position <= window.proposed

    def settle(self) -> None:
        """Send, resolve and apply everything; check that the target equals the source."""
        self.plan = []
        self.take_over(0)
        for _ in range(60):
            for name in self.feeds:
                self.send(name, StageMode.CONSISTENT, 100)
                self.resolve(name, 0)
            self.round(0, StageMode.BEST_EFFORT)
        for feed in self.feeds.values():
            assert feed.unsent == [], "what was to be sent was not answered"
            expected = {f"[{key}]": time for time, key in sorted(feed.sent)}
            found = {key: one["v"] for key, one in self.target.rows[feed.table.name].items()}
            assert found == expected
        waiting = [
            (str(table), time.nanos)
            for table, kept in self.staging.tables.items()
            for (time, _), one in kept.items()
            if not one.applied
        ]
        assert waiting == []
