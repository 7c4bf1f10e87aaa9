"""What `penstock run` shows: a live view in a terminal, lines elsewhere, JSON when asked.

Everything shown comes from a `Status`. Not here: when it is read (`supervisor.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.control.display import (
    console,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)
from penstock.control.status import Status
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.bulk_progress import BulkProgress, Rates, TableProgress

RATE_WINDOW_S = 10.0
LINE_INTERVAL_S = 5.0
TABLES_SHOWN_MAX = 12
BAR_WIDTH = 28


class View(Protocol):
    """Shows a run. Called from one thread."""

    def event(self, text: str) -> None:
        """Something happened."""
        ...

    def show(self, status: Status) -> None:
        """The newest status."""
        ...

    def finish(self, status: Status | None) -> None:
        """The run ended well; the last status, None when it could not be read."""
        ...

    def close(self) -> None:
        """Let go of the terminal. May be called twice."""
        ...


class ChangeRates:
    """Rows per second into the log and into the target, over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, status: Status) -> tuple[float, float]:
        """Take a reading; rows per second extracted and loaded."""
        self._seen.append((now_s, status.log.end.gsn, status.target.applied.gsn))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()
        then_s, log_gsn, applied_gsn = self._seen[0]
        span_s = now_s - then_s
        if span_s <= 0:
            return 0.0, 0.0
        log_rate = (status.log.end.gsn - log_gsn) / span_s
        return log_rate, (status.target.applied.gsn - applied_gsn) / span_s


class _Common:
    """What all views need: new handover steps, and rates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps_told = 0
        self._bulk_told = False
        self._starting_told = False
        self._first = True
        started = datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC)
        self._started = started.isoformat(timespec="seconds")
        self._change_rates = ChangeRates()
        self._bulk_rates = Rates()
        self.log_rate = 0.0
        self.applied_rate = 0.0
        self.bulk: BulkProgress | None = None

    def take(self, status: Status, tell: Callable[[str], None]) -> None:
        """Compute rates, and tell of handover steps and of the bulk load's end, each once."""
        now_s = self._clock.monotonic_s()
        self.log_rate, self.applied_rate = self._change_rates.add(now_s, status)
        bulk = status.target.bulk
        self.bulk = self._bulk_rates.add(now_s, bulk) if bulk is not None else None
        steps = status.handover.steps if status.handover else ()
        if self._first:
            self._first = False
            self._take_up(status, tell)
        for step in steps[self._steps_told :]:
            tell(f"handover {step.number} of 4: {step.text}")
        self._steps_told = max(self._steps_told, len(steps))
        if len(steps) == 4 and not self._starting_told and starting(status):
            self._starting_told = True
            tell(starting(status))
        if bulk is not None and bulk.phase == "done" and not self._bulk_told:
            self._bulk_told = True
            tell(f"bulk load done: {human_count(bulk.rows_done)} rows in {len(bulk.tables)} tables")

    def _take_up(self, status: Status, tell: Callable[[str], None]) -> None:
        """What an earlier run has done is told in a line, not as if it happened now."""
        steps = status.handover.steps if status.handover else ()
        earlier = [step for step in steps if step.at < self._started]
        self._steps_told = len(earlier)
        if earlier:
            tell(f"goes on from an earlier run; handover {len(earlier)} of 4: {earlier[-1].text}")
        bulk = status.target.bulk
        if bulk is not None and bulk.phase == "done":
            self._bulk_told = True
            rows = human_count(bulk.rows_done)
            tell(f"the bulk load was done before: {rows} rows in {len(bulk.tables)} tables")


def bulk_line(bulk: BulkProgress) -> str:
    """The whole bulk load in one line."""
    share = bulk.bytes_done / bulk.bytes_total if bulk.bytes_total else 0.0
    eta = f", {human_seconds(bulk.eta_s)} to go" if bulk.eta_s is not None else ""
    paused = "paused at " if bulk.phase == "paused" else ""
    return (
        f"bulk load {paused}{share:.0%}: {human_count(bulk.rows_done)} of about "
        f"{human_count(bulk.rows_total)} rows, {human_count(bulk.rows_per_s)} rows/s{eta}"
    )


def change_line(status: Status, log_rate: float, applied_rate: float) -> str:
    """Extraction, loading and lag in one line."""
    lag = status.lag
    behind = (
        f"lag {human_seconds(lag.seconds)}, {human_bytes(lag.applied_bytes)}"
        if lag is not None
        else f"lag unknown: {status.source_error}"
    )
    return (
        f"extracted {human_count(status.log.end.gsn)} rows ({human_count(log_rate)}/s), "
        f"loaded {human_count(status.target.applied.gsn)} ({human_count(applied_rate)}/s), "
        f"{behind}, at {status.positions.text(status.log.end.position)}"
    )


def starting(status: Status) -> str:
    """What the bulk load waits for before its first sign of life; empty when it waits no more."""
    if status.mode == "change" or status.target.bulk is not None:
        return ""
    return "Spark is starting; the bulk load begins when it is there"


def _following(status: Status) -> bool:
    """Whether there is a log to tell of."""
    return status.mode != "data" and status.log.end.position > 0


class LineView:
    """Plain lines, for logs and pipes: events at once, numbers every LINE_INTERVAL_S."""

    def __init__(self, out: Console | None = None, *, clock: Clock = REAL_CLOCK) -> None:
        self._out = out or console()
        self._clock = clock
        self._common = _Common(clock)
        self._told_s = float("-inf")
        self._last = ""

    def event(self, text: str) -> None:
        """See View."""
        self._out.print(text)

    def show(self, status: Status) -> None:
        """See View."""
        self._common.take(status, self.event)
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s < LINE_INTERVAL_S:
            return
        common, lines = self._common, []
        if common.bulk is not None and common.bulk.phase != "done" and common.bulk.rows_done:
            lines.append(bulk_line(common.bulk))
        if _following(status):
            lines.append(change_line(status, common.log_rate, common.applied_rate))
        if lines and "\n".join(lines) != self._last:
            self._last = "\n".join(lines)
            self._told_s = now_s
            for line in lines:
                self._out.print(line)

    def finish(self, status: Status | None) -> None:
        """See View."""
        if status is not None:
            self._common.take(status, self.event)
        for line in last_lines(status):
            self._out.print(line)

    def close(self) -> None:
        """See View."""


def last_lines(status: Status | None) -> list[str]:
    """What is said at the end of a run that ended well."""
    if status is None:
        return ["stopped"]
    lines = []
    if status.mode != "data":
        lines.append(change_line(status, 0.0, 0.0).replace(" (0/s)", ""))
    if status.log.done and status.lag is not None and status.lag.rows == 0:
        lines.append("the source was idle and everything is applied: done")
    elif status.mode == "data" and status.target.bulk and status.target.bulk.phase == "done":
        lines.append("everything is loaded: done")
    else:
        lines.append("stopped in order; run it again to go on from here")
    return lines


class JsonView:
    """One JSON object per line: events, and a status about every second."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], *, clock: Clock = REAL_CLOCK):
        self._emit = emit
        self._common = _Common(clock)

    def event(self, text: str) -> None:
        """See View."""
        self._emit({"event": text})

    def show(self, status: Status) -> None:
        """See View."""
        self._common.take(status, self.event)
        common = self._common
        self._emit(
            {
                "status": status.as_dict(),
                "extracted_rows_per_s": round(common.log_rate, 1),
                "loaded_rows_per_s": round(common.applied_rate, 1),
            }
        )

    def finish(self, status: Status | None) -> None:
        """See View."""
        self._emit({"event": "ended", "status": status.as_dict() if status else None})

    def close(self) -> None:
        """See View."""


class LiveView:
    """A view that is drawn anew in place, for terminals."""

    def __init__(self, out: Console, *, clock: Clock = REAL_CLOCK) -> None:
        self._out = out
        self._common = _Common(clock)
        self._note = ""
        self._live = Live(Text(""), console=out, refresh_per_second=4, transient=True)
        self._live.start()

    def event(self, text: str) -> None:
        """See View: printed above the part that is drawn anew."""
        self._live.console.print(Text(f"  {text}"))

    def show(self, status: Status) -> None:
        """See View."""
        self._common.take(status, self.event)
        self._live.update(self._drawn(status))

    def _drawn(self, status: Status) -> RenderableType:
        common = self._common
        parts: list[RenderableType] = [Text("")]
        if common.bulk is not None and common.bulk.phase != "done":
            parts += [bulk_table(common.bulk), Text("")]
        if _following(status):
            parts.append(pairs(change_rows(status, common.log_rate, common.applied_rate)))
        running = [process.name for process in status.processes if process.pid]
        waiting = "" if len(parts) > 1 else "  Spark and the source are being prepared"
        parts.append(
            Text(f"  running: {', '.join(running)}{waiting}   Ctrl-C ends it in order", style="dim")
        )
        return Group(*parts)

    def finish(self, status: Status | None) -> None:
        """See View."""
        self._live.stop()
        for line in last_lines(status):
            self._out.print(Text(f"  {line}"))

    def close(self) -> None:
        """See View."""
        self._live.stop()


def change_rows(
    status: Status, log_rate: float | None = None, applied_rate: float | None = None
) -> list[tuple[str, str]]:
    """Label and value of what changes do now. Rates in rows/s; None: not known."""
    text = status.positions.text
    rows = [
        (
            "  extracted",
            f"{human_count(status.log.end.gsn)} rows in {human_count(status.log.end.trx)} "
            f"transactions{_rate(log_rate)}, up to {text(status.log.end.position)}",
        ),
        (
            "  loaded",
            f"{human_count(status.target.applied.gsn)} rows in "
            f"{human_count(status.target.applied.trx)} transactions{_rate(applied_rate)}, "
            f"up to {text(status.target.applied.position)}",
        ),
    ]
    lag = status.lag
    if lag is None:
        rows.append(("  lag", f"unknown: {status.source_error or 'no change extraction'}"))
    else:
        rows.append(
            (
                "  lag",
                f"{human_seconds(lag.seconds)}, {human_count(lag.rows)} rows, "
                f"{human_bytes(lag.applied_bytes)} of the source's log",
            )
        )
    rows.append(
        (
            "  change log",
            f"{status.log.segments} segments, {human_bytes(status.log.size_bytes)}",
        )
    )
    if status.target.action != "RUN":
        rows.append(("  action", f"{status.target.action} (wirekite.wirekite_action)"))
    return rows


def _rate(rows_per_s: float | None) -> str:
    return "" if rows_per_s is None else f", {human_count(rows_per_s)} rows/s"


def bulk_table(bulk: BulkProgress) -> Table:
    """A bar per table that is not loaded yet, the largest first, and one for all."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    open_tables = [t for t in bulk.tables if t.chunks_done < t.chunks_total]
    open_tables.sort(key=lambda t: -t.bytes_total)
    for item in open_tables[:TABLES_SHOWN_MAX]:
        table.add_row(*_bar_row(str(item.table), item))
    hidden = len(open_tables) - TABLES_SHOWN_MAX
    if hidden > 0:
        table.add_row(f"  and {hidden} more")
    loaded = len(bulk.tables) - len(open_tables)
    name = "bulk load paused" if bulk.phase == "paused" else "bulk load"
    table.add_row(*_bar_row(f"{name} ({loaded} of {len(bulk.tables)} tables)", bulk))
    return table


def _bar_row(name: str, item: TableProgress | BulkProgress) -> tuple[RenderableType, ...]:
    total = max(item.bytes_total, 1)
    share = item.bytes_done / total
    eta = human_seconds(item.eta_s) if item.eta_s is not None else "?"
    return (
        f"  {name}",
        ProgressBar(total=total, completed=item.bytes_done, width=BAR_WIDTH),
        f"{share:4.0%}",
        f"{human_count(item.rows_done)} rows",
        f"{human_count(item.rows_per_s)} rows/s",
        f"{eta} to go",
    )


def make_view(emit_json: Callable[[dict[str, Any]], None] | None) -> View:
    """The view that suits standard output: JSON lines to `emit_json` when that is given."""
    if emit_json is not None:
        return JsonView(emit_json)
    out = console()
    return LiveView(out) if out.is_terminal else LineView(out)
