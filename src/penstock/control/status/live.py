"""Output of `penstock run`: a live view in a terminal, lines elsewhere, JSON on request.

All of it is made from a `Status`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.control.pipeline.display import (
    console,
    grid,
    human_bytes,
    human_count,
    screen,
)
from penstock.control.pipeline.outages import utc_text
from penstock.control.status.drawing import (
    bulk_table,
    change_facts,
    change_rows,
    change_table,
    indent,
    lines_out_of_step,
    shown_count,
    table_states,
    tables_done,
    time_left,
)
from penstock.control.status.lag import Lag
from penstock.control.status.run_events import RunEvents, is_loading, starting
from penstock.control.status.status import Status
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.bulk_progress import BulkProgress, share_of
from penstock.model.words import count_words

LINE_INTERVAL_S = 5.0
TABLE_WIDTH_MIN = 60  # a narrower screen has sentences in place of columns
LINES_BESIDE_TABLES = 15  # of the live view: headings, changes, lag, log, Spark, processes
LINES_OF_STATE = 3  # of a table with an error: its name, why, the next command
LATER = ("  loaded", "  lag")


class View(Protocol):
    """View of a run. Called from one thread."""

    @abstractmethod
    def event(self, text: str, kind: str = "note", **fields: Any) -> None:
        """Show an event: a sentence for people, and its fields."""
        ...

    @abstractmethod
    def show(self, status: Status) -> None:
        """Show the newest status."""
        ...

    @abstractmethod
    def finish(self, status: Status | None) -> None:
        """End a run that went well; the last status, None if it could not be read."""
        ...

    @abstractmethod
    def fail(self) -> None:
        """Show what a run did that failed or was hurried. May be called twice."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Release the terminal. May be called twice."""
        ...


def bulk_line(bulk: BulkProgress) -> str:
    """Return the whole bulk load in one line."""
    paused = "paused at " if bulk.phase == "paused" else ""
    return (
        f"bulk load {paused}{share_of(bulk):.0%}, {tables_done(bulk)}: "
        f"{human_count(bulk.rows_done)} of about {human_count(bulk.rows_total)} rows"
        f"{_rate_words(bulk.rows_per_s)}{_time_words(bulk)}"
    )


def _rate_words(rows_per_s: float) -> str:
    return f", {human_count(rows_per_s)} rows/s" if rows_per_s else ""


def _time_words(bulk: BulkProgress) -> str:
    if share_of(bulk) == 1.0:
        return ", keys and indexes follow"
    left = time_left(bulk)
    return f", {left} to go" if left else ""


def change_line(
    status: Status, log_rate: float | None = None, applied_rate: float | None = None
) -> str:
    """Return extraction, loading and lag in one line.

    Args:
        status: The newest status.
        log_rate: Rows per second into the log; None if not known.
        applied_rate: Rows per second into the target; None if not known.
    """
    lag = status.lag
    behind = f"lag {status.lag_words}"
    if lag is not None and lag.counts_bytes:
        behind += f", {human_bytes(lag.applied_bytes)}"
    extracted = f"extracted {count_words(status.log.end.gsn, 'row')}{_per_s(log_rate)}"
    position = status.log.end.position
    at = f", at {status.positions.text(position)}" if position else ""
    if not status.has_target:
        return f"{extracted}, {behind}{at}"
    if is_loading(status):  # there is no lag before all rows are there
        return f"{extracted}{at}"
    loaded = f"loaded {human_count(status.target.applied.gsn)}{_per_s(applied_rate)}"
    if status.target.unknown:
        loaded = "loaded unknown"
    elif status.outage("target") is not None:
        loaded = f"loaded {human_count(status.target.applied.gsn)} when last read"
    return f"{extracted}, {loaded}, {behind}{at}"


def _per_s(rate: float | None) -> str:
    return "" if rate is None else f" ({human_count(rate)}/s)"


def _following(status: Status) -> bool:
    """Return whether the run has a log of changes to report on."""
    return status.mode != "data" and status.log.end.position > 0


class LineView(View):
    """View of plain lines, for logs and pipes: events at once, numbers every LINE_INTERVAL_S."""

    def __init__(self, out: Console | None = None, *, clock: Clock = REAL_CLOCK) -> None:
        self._out = out or console()
        self._clock = clock
        self._events = RunEvents(clock)
        self._shown_s = float("-inf")
        self._last: list[str] = []

    def event(self, text: str, kind: str = "note", **_fields: Any) -> None:
        del kind
        self._out.print(text)

    def show(self, status: Status) -> None:
        self._events.take(status, self.event)
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < LINE_INTERVAL_S:
            return
        events, lines = self._events, []
        if events.is_spark_shown:
            lines.append(f"spark: {events.loads}")
        if events.bulk is not None and events.bulk.phase != "done" and events.bulk.rows_done:
            lines.append(bulk_line(events.bulk))
        if _following(status):
            lines.append(change_line(status, events.log_rate, events.applied_rate))
        new = [line for line in lines if line not in self._last]
        if new:
            self._last, self._shown_s = lines, now_s
            for line in new:
                self._out.print(line)

    def finish(self, status: Status | None) -> None:
        if status is not None:
            self._events.take(status, self.event)
        for line in [*self._events.summary.lines(), *last_lines(status)]:
            self._out.print(line)

    def fail(self) -> None:
        for line in self._events.take_summary():
            self._out.print(line)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def last_lines(status: Status | None) -> list[str]:
    """Return the lines at the end of a run that went well, below its summary."""
    if status is None:
        return ["stopped"]
    lines = []
    if is_idle(status):
        done = "applied" if status.has_target else "in the change log"
        lines.append(f"the source was idle and everything is {done}: done")
    elif is_loaded(status):
        lines.append("everything is loaded: done")
    else:
        lines.append("stopped in order; run it again to go on from here")
    return lines


def is_idle(status: Status) -> bool:
    """Return whether a run ended because its source was idle, with everything applied."""
    return status.log.done and status.lag is not None and status.lag.rows == 0


def is_loaded(status: Status) -> bool:
    """Return whether a run of mode data has loaded everything."""
    bulk = status.target.bulk
    return status.mode == "data" and bulk is not None and bulk.phase == "done"


class JsonView(View):
    """View of one JSON object per line: events with type, time and fields, in their order.

    Every LINE_INTERVAL_S there is one of type progress, if its figures have changed.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], object], *, clock: Clock = REAL_CLOCK):
        self._emit = emit
        self._clock = clock
        self._events = RunEvents(clock)
        self._shown_s = float("-inf")
        self._last: dict[str, Any] = {}

    def event(self, text: str, kind: str = "note", **fields: Any) -> None:
        self._emit(event(self._clock, kind, text=text, **fields))

    def show(self, status: Status) -> None:
        self._events.take(status, self.event)
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < LINE_INTERVAL_S:
            return
        found = self._figures(status)
        if found != self._last:
            self._last, self._shown_s = found, now_s
            self._emit(event(self._clock, "progress", **found))

    def _figures(self, status: Status) -> dict[str, Any]:
        events, lag, bulk = self._events, status.lag, self._events.bulk
        away = status.outage("target") is not None or not status.has_target
        found: dict[str, Any] = {}
        if bulk is not None and bulk.phase != "done":
            found |= {
                "bulk_share": round(share_of(bulk), 4),
                "bulk_rows": bulk.rows_done,
                "bulk_tables_done": sum(t.chunks_done == t.chunks_total for t in bulk.tables),
                "bulk_tables": len(bulk.tables),
                "bulk_seconds_to_go": bulk.eta_s,
            }
        if _following(status):
            found |= {
                "extracted_rows": status.log.end.gsn,
                "extracted_rows_per_s": _round(events.log_rate),
                "loaded_rows": None if away else status.target.applied.gsn,
                "loaded_rows_per_s": None if away else _round(events.applied_rate),
                **_lag_figures(lag),
                "lag_bytes": lag.applied_bytes if lag is not None and lag.counts_bytes else None,
                "log_position": status.positions.text(status.log.end.position),
            }
        return found

    def finish(self, status: Status | None) -> None:
        fields: dict[str, Any] = {}
        if status is not None:
            self._events.take(status, self.event)
            fields = {
                "done": is_idle(status) or is_loaded(status),
                **self._figures(status),
                **self._events.summary.as_dict(),
            }
        self._emit(event(self._clock, "ended", text=last_lines(status)[-1], **fields))

    def fail(self) -> None:
        lines, fields = self._events.take_summary(), self._events.summary.as_dict()
        if lines:
            self._emit(event(self._clock, "failed", text="; ".join(lines), **fields))

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _round(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _lag_figures(lag: Lag | None) -> dict[str, Any]:
    if lag is None or lag.seconds is None:
        return {"lag_seconds": None, "lag_is_at_most": False}
    return {"lag_seconds": round(lag.seconds, 3), "lag_is_at_most": lag.at_most}


def event(clock: Clock, kind: str, **fields: Any) -> dict[str, Any]:
    """Return an event as `--json` prints it."""
    return {"time": utc_text(clock.now_us()), "type": kind, **fields}


class LiveView(View):
    """View that is drawn again in place, for terminals."""

    def __init__(self, out: Console, *, clock: Clock = REAL_CLOCK) -> None:
        """Begin. out: a console that knows its width; no line is longer."""
        self._out = out
        self._events = RunEvents(clock)
        self._live = Live(Text(""), console=out, refresh_per_second=4, transient=True)
        self._live.start()

    def event(self, text: str, kind: str = "note", **_fields: Any) -> None:
        """Print the event above the drawn part."""
        del kind
        self._live.console.print(indent(text))

    def show(self, status: Status) -> None:
        self._events.take(status, self.event)
        self._live.update(self.draw(status))

    def draw(self, status: Status) -> RenderableType:
        """Return the part that is drawn again in place."""
        events, width = self._events, self._out.width
        parts: list[RenderableType] = [Text("")]
        parts += [indent(line, style="red") for line in status.outage_lines()]
        left = self._out.height - LINES_BESIDE_TABLES
        if events.bulk is not None and events.bulk.phase != "done":
            left -= LINES_OF_STATE * min(len(lines_out_of_step(status)), 2)
            parts += [bulk_table(events.bulk, width, shown_count(left)), Text("")]
            left = 2 * LINES_OF_STATE
        waiting = "" if events.loads else starting(status)
        if _following(status):
            parts += self._changes(status)
        elif events.loads:
            parts.append(grid([("  spark", events.loads)]))
        elif len(parts) == 1:
            preparing = "Spark and the source are" if status.has_target else "the source is"
            waiting = f"{preparing} being prepared"
        parts += table_states(status, width, max(left // LINES_OF_STATE, 2))
        if waiting:
            parts.append(indent(waiting))
        running = ", ".join(status.running) or "nothing yet"
        parts.append(indent(f"running: {running}   Ctrl-C ends it in order", style="dim"))
        return Group(*parts)

    def _changes(self, status: Status) -> list[RenderableType]:
        """Return the figures of the changes, lag, change log, and the work of Spark."""
        events = self._events
        # There is no lag before all rows are there: changes wait for them in the log.
        loading = is_loading(status)
        if self._out.width < TABLE_WIDTH_MIN:
            hidden = LATER if loading else ()
            rows = change_rows(status, events.log_rate, events.applied_rate)
            rows += [("  spark", events.loads)] if events.loads else []
            return [grid([one for one in rows if one[0] not in hidden])]
        return [
            change_table(status, events.log_rate, events.applied_rate, is_loading=loading),
            change_facts(status, events.loads, is_loading=loading),
        ]

    def finish(self, status: Status | None) -> None:
        self._live.stop()
        if status is not None:
            self._events.take(status, self.event)
        for line in [*self._events.summary.lines(), *last_lines(status)]:
            self._out.print(indent(line))

    def fail(self) -> None:
        self._live.stop()
        for line in self._events.take_summary():
            self._out.print(indent(line))

    def close(self) -> None:
        self._live.stop()


def make_view(emit_json: Callable[[dict[str, Any]], None] | None) -> View:
    """Return the view that suits standard output: JSON lines to `emit_json` if that is given."""
    if emit_json is not None:
        return JsonView(emit_json)
    out = console()
    return LiveView(screen()) if out.is_terminal else LineView(out)
