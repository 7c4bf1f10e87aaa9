"""The events of a run, each reported once: handover, bulk load, servers, single tables.

Found by comparing each status with the previous one.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any, Protocol

from penstock.control.pipeline.display import human_seconds
from penstock.control.pipeline.outages import Outage
from penstock.control.status.run_summary import RunSummary
from penstock.control.status.status import Status
from penstock.control.tables.table_list import TableLine
from penstock.host.clock import Clock
from penstock.load.bulk_progress import BulkProgress, Rates, share_of
from penstock.model.words import count_words
from penstock.ports.config import HandoverMode
from penstock.ports.handover import Handover

RATE_WINDOW_S = 10.0
POINT = "the point: "  # in the first step of MySQL and MariaDB: how it was taken


class ReportEvent(Protocol):
    """Reporter of an event: a sentence, its type, and its fields."""

    def __call__(self, text: str, kind: str = "note", **fields: Any) -> None:
        """Report it."""
        ...


class ChangeRates:
    """Rows per second into the log and into the target, over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, status: Status) -> tuple[float | None, float | None]:
        """Add a reading; return rows per second extracted and loaded, None if not known.

        While tables are loaded or Spark is starting, no changes are applied: that is not a rate of
        0.
        """
        if status.target.unknown:
            return None, None
        self._seen.append((now_s, status.log.end.gsn, status.target.applied.gsn))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()
        then_s, log_gsn, applied_gsn = self._seen[0]
        span_s = now_s - then_s
        if span_s <= 0:
            return None, None
        log_rate = (status.log.end.gsn - log_gsn) / span_s
        if is_loading(status) or starting(status):
            return log_rate or None, None
        return log_rate, (status.target.applied.gsn - applied_gsn) / span_s


class RunEvents:
    """Parts that every view of a run needs: events, each once, and rates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps_reported = 0
        self._bulk_reported = False
        self._starting_reported = ""
        self._first = True
        self._is_quiet = False
        self._summary_taken = False
        started = datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC)
        self._started = started.isoformat(timespec="seconds")
        self._change_rates = ChangeRates()
        self._bulk_rates = Rates()
        self._away: dict[str, Outage] = {}
        self._tables: dict[str, str] = {}
        self._waited_for: frozenset[str] = frozenset()
        self._alteration_of = (0, 0)  # pid and number of the last one reported
        self.log_rate: float | None = None
        self.applied_rate: float | None = None
        self.bulk: BulkProgress | None = None
        self.loads = ""
        self._loads_since: tuple[str, float] = ("", 0.0)
        self.summary = RunSummary(clock.monotonic_s())

    @property
    def is_spark_shown(self) -> bool:
        """Return whether nothing is loaded now, so that Spark's work is all there is to show."""
        return bool(self.loads) and self._is_quiet

    def take_summary(self) -> list[str]:
        """Return the lines of the summary once; afterwards none."""
        lines = [] if self._summary_taken else self.summary.lines()
        self._summary_taken = self._summary_taken or bool(lines)
        return lines

    def take(self, status: Status, report: ReportEvent) -> None:
        """Compute rates, and report new events."""
        now_s = self._clock.monotonic_s()
        self.log_rate, self.applied_rate = self._change_rates.add(now_s, status)
        bulk = status.target.bulk
        self.bulk = self._bulk_rates.add(now_s, bulk) if bulk is not None else None
        self._take_outages(status, report)
        self._take_waits(status, report)
        if self._first:
            self._first = False
            self._take_up(status, report)
        self._take_steps(status, report)
        if bulk is not None and bulk.phase == "done" and not self._bulk_reported:
            self._bulk_reported = True
            rows, tables = bulk.rows_done, len(bulk.tables)
            text = f"bulk load done: {count_words(rows, 'row')} in {count_words(tables, 'table')}"
            report(text, "bulk load done", rows=rows, tables=tables)
        self._take_tables(status, report)
        self._take_alterations(status, report)
        self._take_loads(status, now_s)
        self.summary.add(status, now_s)

    def _take_loads(self, status: Status, now_s: float) -> None:
        """Put the work of the load process into words; what takes long has its seconds."""
        words = load_words(status)
        if words != self._loads_since[0]:
            self._loads_since = (words, now_s)
        lasted_s = now_s - self._loads_since[1]
        self._is_quiet = words in PREPARING and lasted_s >= 1
        shown = f", for {human_seconds(lasted_s)}" if self._is_quiet else ""
        self.loads = words + shown

    def _take_up(self, status: Status, report: ReportEvent) -> None:
        """Report the work of an earlier run in one line, not as if it happened now."""
        if status.loader is not None and status.running_loader is None:
            alterations = status.loader.alterations
            last = alterations[-1].number if alterations else 0
            self._alteration_of = (status.loader.pid, last)
        handover = status.handover
        earlier = [step for step in handover.steps if step.at < self._started] if handover else []
        self._steps_reported = len(earlier)
        if earlier and handover is not None:
            done = f"handover {len(earlier)} of 4: {earlier[-1].text}"
            if in_flight(handover):
                done = f"changes are those from {handover.position or 'its slot'} on"
            report(f"goes on from an earlier run; {done}", "resumed", position=handover.position)
        bulk = status.target.bulk
        if bulk is not None and bulk.phase == "done":
            self._bulk_reported = True
            rows, tables = bulk.rows_done, len(bulk.tables)
            loaded = f"{count_words(rows, 'row')} in {count_words(tables, 'table')}"
            report(f"the bulk load was done before: {loaded}")

    def _take_steps(self, status: Status, report: ReportEvent) -> None:
        """Report the four steps if something was stopped for the handover; otherwise only its
        position.
        """
        handover = status.handover
        steps = handover.steps if handover is not None else ()
        for step in steps[self._steps_reported :]:
            if handover is not None and not in_flight(handover):
                text = f"handover {step.number} of 4: {step.text}"
                report(text, "handover", step=step.number, name=step.name)
            elif handover is not None and step.number == 2:
                report(point_text(handover), "position", position=handover.position)
        self._steps_reported = max(self._steps_reported, len(steps))
        is_due = len(steps) >= 2 or status.mode == "change"
        words = starting(status)
        if is_due and words and words != self._starting_reported:
            self._starting_reported = words
            report(words, "starting")

    def _take_outages(self, status: Status, report: ReportEvent) -> None:
        """Report servers that went away, and that answer again, each once."""
        now = {one.side: one for one in status.outages}
        if now.keys() - self._away.keys():
            fields = {"servers": [one.as_dict() for one in status.outages]}
            text = "; ".join(status.outage_lines())
            report(text, "unreachable", **fields, tries=[one.as_dict() for one in status.retries])
        for side, before in self._away.items():
            if side not in now:
                lasted_s = max(status.read_us - before.since_us, 0) / 1e6
                text = f"{side} answers again, after {human_seconds(lasted_s)}"
                report(text, "reachable", side=side, seconds=round(lasted_s, 1))
        self._away = {side: self._away.get(side, one) for side, one in now.items()}

    def _take_waits(self, status: Status, report: ReportEvent) -> None:
        """Report what a process waits for at the source, each once."""
        holders = status.waits.holders if status.waits is not None else ()
        now = frozenset(one.command for one in holders)
        if status.waits is not None and now - self._waited_for:
            report("; ".join(status.waits.lines()), "waiting", waits=status.waits.as_dict())
        if self._waited_for and not now:
            report("the transactions that were waited for have ended", "waited")
        self._waited_for = now

    def _take_tables(self, status: Status, report: ReportEvent) -> None:
        """Report the progress of tables for which there was a request."""
        now = {str(line.table): line for line in status.tables}
        for name, line in now.items():
            if line.state == self._tables.get(name, "following"):
                continue
            report(table_text(line), "table", **line.as_dict())
        self._tables = {name: line.state for name, line in now.items()}

    def _take_alterations(self, status: Status, report: ReportEvent) -> None:
        """Report each schema change that the loader has carried out."""
        if status.loader is None:
            return
        pid, last = status.loader.pid, 0
        if self._alteration_of[0] == pid:
            last = self._alteration_of[1]
        for one in status.loader.alterations:
            if one.number > last:
                last = one.number
                self.summary.alteration_count += 1
                text = f"schema change applied to {one.table}: {one.change}"
                report(text, "schema change", table=one.table, change=one.change)
        self._alteration_of = (pid, last)


def in_flight(handover: Handover) -> bool:
    """Return whether the handover's point is a snapshot of the source, so that nothing was stopped
    for it.
    """
    return handover.mode is HandoverMode.SNAPSHOT


def point_text(handover: Handover) -> str:
    """Return where a handover that stops nothing begins, and its consequence."""
    _, _, captured = handover.steps[1].text.partition(": ")
    _, _, how = handover.steps[0].text.partition(POINT)
    taken = f"; {how}" if how else ""
    return f"position {captured}{taken}: tables are copied as of it, changes from it on follow them"


def table_text(line: TableLine) -> str:
    """Return the state of a table, and why it makes no progress."""
    way = f", on its way to {line.wanted}" if line.wanted else ""
    why = f": {line.code} {line.error}; next: {line.hint}" if line.error else ""
    return f"table {line.table} {line.state}{way}{why}"


def is_loading(status: Status) -> bool:
    """Return whether the bulk load is still to be done, so that changes wait in the log."""
    if status.mode == "change" or not status.has_target or status.target.unknown:
        return False
    return status.target.bulk is None or status.target.bulk.phase != "done"


def starting(status: Status) -> str:
    """Return what the load waits for before its first sign of life; empty once it works."""
    if status.target.unknown:
        return ""
    loader = status.running_loader
    if status.mode != "change" and status.target.bulk is None:
        if loader is not None and not loader.is_spark_starting:
            return "Spark is ready; tables are created and divided into chunks"
        return "Spark is starting; the bulk load begins when it is there"
    if loader is not None and loader.is_spark_starting:
        return "Spark is starting; changes are applied when it is there"
    return ""


STARTING = "is starting"
DIVIDING = "creates tables and divides them into chunks"
FIRST_CHUNKS = "copies the first chunks"
KEYS = "all rows are copied; keys and indexes are created"
PREPARING = (STARTING, DIVIDING, FIRST_CHUNKS, KEYS)
WORK = {
    "paused": "paused",
    "held": "waits for `penstock verify` at one position",
    "retrying": "tries again",
    "ended": "ended",
}


def load_words(status: Status) -> str:
    """Return what Spark does now, in a few words; empty if no load process runs."""
    if not status.has_target or "load" not in status.running:
        return ""
    loader, bulk = status.running_loader, status.target.bulk
    if loader is None or loader.is_spark_starting:
        return STARTING
    if loader.state in WORK:
        return WORK[loader.state]
    if status.mode != "change" and (bulk is None or bulk.phase != "done"):
        return _copying_words(bulk)
    if not loader.batch_count:
        return "ready; no batch yet"
    seconds = sum(loader.seconds.values())
    batch = (
        f"{count_words(loader.batch_rows, 'row')}, {count_words(loader.batch_tables, 'table')}, "
        f"{human_seconds(seconds)}"
    )
    now = "applies a batch" if loader.state == "applying" else "waits for changes"
    if not loader.batch_rows:  # it had no more than a heartbeat or another marker
        return now
    return f"{now}; last batch: {batch}"


def _copying_words(bulk: BulkProgress | None) -> str:
    if bulk is None:
        return DIVIDING
    if bulk.phase == "paused":
        return "paused"
    if share_of(bulk) == 1.0:
        return KEYS
    if not bulk.rows_done:
        return FIRST_CHUNKS
    under_way = sum(t.rows_done > 0 and t.chunks_done < t.chunks_total for t in bulk.tables)
    return f"copies {count_words(under_way, 'table')}" if under_way else "copies tables"
