"""Consumer application on the directory of a source's node, without a change log.

The algorithm, including its state, is that of Ignite's utility, so both can take turns on
one directory. Not here: the contents of the directory (`ports.direct`, an engine's part).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.consume.api import CdcConsumer, PlaceKeeper
from penstock.consume.classes import ConsumerClassInvalid, call, call_at, call_for_answer
from penstock.consume.metadata import not_drained
from penstock.consume.position import SegmentsMissed
from penstock.consume.report import DirectReport
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.model import PenstockError
from penstock.ports.direct import DirectListing, DirectLog, DirectWalk, LogPlace, Told

declare("direct.answer.after", "direct.state.after")

logger = structlog.get_logger(__name__)
SPIN_WAIT_S = 0.05  # a consumer that took nothing is asked again after this
POLL_S = 0.1
CALLBACKS = {"mappings": "on_mappings", "types": "on_types", "caches": "on_cache_change"}


class EntryNotRestored(PenstockError):
    """The saved place is past the last entry of its record. Fields: state, passed."""

    code = "CN21"
    retry = "operator"


def check_delivers_directly(consumer: CdcConsumer) -> None:
    """Check that a consumer needs no change log. Raises ConsumerClassInvalid."""
    if isinstance(consumer, PlaceKeeper):
        raise ConsumerClassInvalid(
            f"{type(consumer).__qualname__} stores its own place, which needs a change log",
            hint="Set direct = false in its section of the pipeline file; then start the consumer "
            "again: penstock consume FILE NAME.",
            **{"class": type(consumer).__qualname__},
        )


def _everything(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectOptions:
    """Settings of a consumer, with the published names and defaults.

    Attributes:
        takes: returns whether a table is wanted, by name.
    """

    takes: Callable[[str], bool] = _everything
    takes_all: bool = True
    lock_timeout_ms: int = 1000
    check_frequency_ms: int = 1000
    standby: bool = False


class DirectApplication:
    """One consumer at work on a node's directory. run() returns when it was asked to stop."""

    def __init__(
        self,
        consumer: CdcConsumer,
        log: DirectLog,
        *,
        report: DirectReport,
        options: DirectOptions | None = None,
        stop: Callable[[], bool] = lambda: False,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Set the parts.

        Args:
            consumer: the consumer.
            log: the engine's.
            report: the report.
            options: settings.
            stop: returns whether to stop.
            clock: the clock.
        """
        self._consumer = consumer
        self._log = log
        self._report = report
        self._options = options or DirectOptions()
        self._stop = stop
        self._clock = clock
        self._listing = DirectListing(log, self._make_missed, check_past=self._check_past)
        self._told: dict[str, dict[str, Any]] = {}
        self._unknown: set[str] = set()  # ids of tables whose changes are skipped

    def run(self) -> None:
        """Take the lock, deliver events until stopped, and stop the consumer once.

        Raises SegmentsMissed, EntryNotRestored, MetadataNotDrained, ConsumerFailed, and the errors
        of the log; the saved state is then that of the last True.
        """
        options = self._options
        timeout_ms = None if options.standby else options.lock_timeout_ms
        self._report.mode("passive")
        lock = self._log.lock(timeout_ms, stop=self._stop, clock=self._clock)
        if lock is None:
            return
        with ExitStack() as stack:
            stack.callback(lock.release)
            self._report.mode("active")
            self._listing.load()
            self._told = {name: self._log.load_told(name) for name in CALLBACKS}
            self._report.note_loaded(self._listing.pending)
            self._work()

    def _work(self) -> None:
        try:
            call(self._consumer, "start", self._report.own_metrics)
            while not self._stop() and self._is_alive():
                self._round()
        except BaseException as error:
            if isinstance(error, PenstockError):
                logger.error("Cdc error", error=error.message, code=error.code)
            with contextlib.suppress(Exception):
                call(self._consumer, "stop")  # the first error is reported
            raise
        logger.info(self._log.stopping)
        call(self._consumer, "stop")

    def _is_alive(self) -> bool:
        if call(self._consumer, "alive"):
            return True
        logger.warning(self._log.not_alive)
        return False

    # -- segments ----------------------------------------------------------------------------

    def _round(self) -> None:
        """List the segments, check the whole listing, read them, and wait."""
        listing = self._listing
        for segment in listing.new():
            if self._stop():
                return
            if not self._read(segment):
                if self._stop():
                    return
                listing.begin_again()
                break
            listing.pending = None
        if listing.is_new:
            self._tell_all()
        self._report.show_state("waiting")
        self._wait(self._options.check_frequency_ms / 1000)

    def _check_past(self, segments: Sequence[int]) -> None:
        self._log.check_read([self._log.path(one) for one in segments])

    def _make_missed(self, text: str, last: int, following: int) -> SegmentsMissed:
        return SegmentsMissed(
            text,
            hint=self._log.hole_hint,
            consumer=str(self._log.directory),
            last=last,
            next=following,
        )

    def _read(self, segment: int) -> bool:
        """Read a segment; return False if the node's mode changed in it, or if stopped."""
        self._tell_all()
        text = f"Processing WAL segment [segment={self._log.path(segment)}]"
        logger.info(text)
        self._report.segment_began(segment)
        began_s = self._clock.monotonic_s()
        listing = self._listing
        if listing.is_active:
            begin = listing.pending.offset if listing.pending is not None else 0
            if not self._deliver(segment, self._log.walk(segment, begin)):
                return False
        elif not listing.follow_node(segment, self._save):
            return False
        self._report.segment_ended(self._clock.monotonic_s() - began_s)
        listing.note_processed(segment)
        return True

    # -- events ------------------------------------------------------------------------------

    def _deliver(self, segment: int, walk: DirectWalk) -> bool:
        """Call the consumer until the segment is read; return False if stopped before."""
        self._restore(segment, walk)
        events = iter(walk) if self._options.takes_all else self._take_events(walk)
        told = 0
        while True:
            before = walk.count
            is_saved = call_for_answer(self._consumer, "on_events", events)
            point("direct.answer.after")
            self._report.note_given(walk.count - before, walk.time_ms)
            if is_saved and walk.place is not None:
                self._save(walk.place)
            is_drained = walk.is_drained
            self._report.passed_over(walk.unreadable - told)
            told = walk.unreadable
            if is_drained:
                return True
            if walk.count == before:
                self._clock.sleep(SPIN_WAIT_S)
            if self._stop():
                return False

    def _restore(self, segment: int, walk: DirectWalk) -> None:
        saved = self._listing.pending
        if saved is None or not saved.entry:
            return
        passed = walk.skip(saved.entry)
        if passed < saved.entry:
            raise EntryNotRestored(
                f"Failed to restore entry index [idx={saved.entry}, rec={saved.offset}]: segment "
                f"{segment} has {passed} entries there",
                hint="The state is of another directory, or the segment was replaced. Put "
                "cdc-wal-state.bin back from a copy; without it everything in the directory is "
                "delivered again.",
                state=list(saved),
                passed=passed,
            )

    def _take_events(self, walk: DirectWalk) -> Iterator[Any]:
        takes = self._options.takes
        for event in walk:
            if takes(event.table):
                yield event
            elif event.table == str(event.cache_id) and event.table not in self._unknown:
                self._unknown.add(event.table)
                warning = (
                    "Changes of a table that is gone are passed over, as its name is not known: "
                    f"name it in tables without wildcards [cacheId={event.table}]"
                )
                logger.warning(warning)

    def _save(self, place: Any) -> None:
        """Save the place, durably, and remove the earlier segments that were read."""
        self._log.save_place(LogPlace(*place))
        point("direct.state.after")
        self._report.note_saved(place)
        self._listing.remove_before(place)

    # -- metadata ----------------------------------------------------------------------------

    def _tell_all(self) -> None:
        began_s = self._clock.monotonic_s()
        for name in CALLBACKS:
            self._tell(name, getattr(self._log, name)())
        self._report.metadata_told(self._clock.monotonic_s() - began_s)

    def _tell(self, name: str, there: list[Told]) -> None:
        known = self._told[name]
        new = [one for one in there if known.get(one.key) != one.stamp]
        if new or name == "caches":
            items = (one.read() for one in new)
            call(self._consumer, CALLBACKS[name], items)
            if next(items, None) is not None:
                raise not_drained(self._consumer, CALLBACKS[name])
            known.update({one.key: one.stamp for one in new})
        gone = sorted(known.keys() - {one.key for one in there}) if name == "caches" else []
        if gone:
            numbers = iter([int(key) for key in gone])
            call_at(self._consumer, "on_cache_destroy", numbers, 0)
            if next(numbers, None) is not None:
                raise not_drained(self._consumer, "on_cache_destroy")
            for key in gone:
                del known[key]
        if new or gone:
            self._log.save_told(name, known)

    def _wait(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self._stop() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep(min(left_s, POLL_S))
