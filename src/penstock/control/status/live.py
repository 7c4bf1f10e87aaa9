"""Output of `penstock run`: a live view in a terminal, lines elsewhere, JSON on request.

All of it is made from a `Status`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.control.pipeline.display import (
    console,
    grid,
    human_bytes,
    human_count,
    human_seconds,
    screen,
)
from penstock.control.pipeline.outages import utc_text
from penstock.control.status.lag import Lag
from penstock.control.status.run_events import RunEvents, is_loading, starting, table_text
from penstock.control.status.status import Status
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.bulk_progress import BulkProgress, TableProgress, share_of
from penstock.model.words import count_words

LINE_INTERVAL_S = 5.0
TABLES_SHOWN_MAX = 12
BAR_WIDTH = 28
BAR_WIDTH_NARROW = 10
WIDE = 100
MIDDLE = 76
NAME_WIDTH_MIN = 11  # of `  bulk load`
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
    def close(self) -> None:
        """Release the terminal. May be called twice."""
        ...


def bulk_line(bulk: BulkProgress) -> str:
    """Return the whole bulk load in one line."""
    paused = "paused at " if bulk.phase == "paused" else ""
    return (
        f"bulk load {paused}{share_of(bulk):.0%}, {_tables_done(bulk)}: "
        f"{human_count(bulk.rows_done)} of about {human_count(bulk.rows_total)} rows"
        f"{_rate(bulk.rows_per_s or None)}{_time_left(bulk)}"
    )


def _tables_done(bulk: BulkProgress) -> str:
    loaded = sum(t.chunks_done == t.chunks_total for t in bulk.tables)
    return f"{loaded} of {count_words(len(bulk.tables), 'table')}"


def _time_left(item: TableProgress | BulkProgress) -> str:
    """Return the time to go; empty if it is not known."""
    if share_of(item) == 1.0:
        return ", keys and indexes follow" if isinstance(item, BulkProgress) else ""
    return f", {human_seconds(item.eta_s)} to go" if item.eta_s is not None else ""


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
        self._last = ""

    def event(self, text: str, kind: str = "note", **_fields: Any) -> None:
        del kind
        self._out.print(text)

    def show(self, status: Status) -> None:
        self._events.take(status, self.event)
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < LINE_INTERVAL_S:
            return
        events, lines = self._events, []
        if events.bulk is not None and events.bulk.phase != "done" and events.bulk.rows_done:
            lines.append(bulk_line(events.bulk))
        if _following(status):
            lines.append(change_line(status, events.log_rate, events.applied_rate))
        if lines and "\n".join(lines) != self._last:
            self._last = "\n".join(lines)
            self._shown_s = now_s
            for line in lines:
                self._out.print(line)

    def finish(self, status: Status | None) -> None:
        if status is not None:
            self._events.take(status, self.event)
        for line in last_lines(status):
            self._out.print(line)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def last_lines(status: Status | None) -> list[str]:
    """Return the lines at the end of a run that went well."""
    if status is None:
        return ["stopped"]
    lines = []
    if status.mode != "data":
        lines.append(change_line(status))
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
            fields = {"done": is_idle(status) or is_loaded(status), **self._figures(status)}
        self._emit(event(self._clock, "ended", text=last_lines(status)[-1], **fields))

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
        events = self._events
        parts: list[RenderableType] = [Text("")]
        parts += [indent(line, style="red") for line in status.outage_lines()]
        if events.bulk is not None and events.bulk.phase != "done":
            parts += [bulk_table(events.bulk, self._out.width), Text("")]
        if _following(status):
            rows = change_rows(status, events.log_rate, events.applied_rate)
            # There is no lag before all rows are there: changes wait for them in the log.
            hidden = LATER if is_loading(status) else ()
            parts.append(grid([one for one in rows if one[0] not in hidden]))
        parts += [indent(text, style) for text, style in table_rows(status)]
        preparing = "Spark and the source are" if status.has_target else "the source is"
        waiting = starting(status) if len(parts) > 1 else f"{preparing} being prepared"
        if waiting:
            parts.append(indent(waiting))
        running = ", ".join(status.running) or "nothing yet"
        parts.append(indent(f"running: {running}   Ctrl-C ends it in order", style="dim"))
        return Group(*parts)

    def finish(self, status: Status | None) -> None:
        self._live.stop()
        for line in last_lines(status):
            self._out.print(indent(line))

    def close(self) -> None:
        self._live.stop()


def indent(text: str, style: str = "") -> RenderableType:
    """Return a line of the view; its continuation lines are indented as well."""
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def table_rows(status: Status) -> list[tuple[str, str]]:
    """Return a text and style for each table that is not in step; tables with errors first."""
    lines = [line for line in status.tables if line.state != "following" or line.wanted]
    lines = [line for line in lines if line.state != "removed" or line.wanted]
    lines.sort(key=lambda line: not line.error)
    rows = [
        (table_text(line), "red" if line.error else "yellow") for line in lines[:TABLES_SHOWN_MAX]
    ]
    if len(lines) > TABLES_SHOWN_MAX:
        rows.append((f"and {len(lines) - TABLES_SHOWN_MAX} more: penstock table ls", ""))
    return rows


def change_rows(
    status: Status, log_rate: float | None = None, applied_rate: float | None = None
) -> list[tuple[str, str]]:
    """Return label and value of present changes. Rates in rows/s; None: not known."""
    rows = [
        (
            "  extracted",
            f"{_rows_in(status.log.end.gsn, status.log.end.trx)}{_rate(log_rate)}"
            f"{_up_to(status, status.log.end.position)}",
        ),
    ]
    if status.has_target:
        rows.append(("  loaded", _loaded_text(status, applied_rate)))
    lag = status.lag
    words = status.lag_words
    if lag is not None and lag.seconds is not None:
        parts = [count_words(lag.rows, "row")] if status.has_target else []
        if lag.counts_bytes:
            parts.append(f"{human_bytes(lag.applied_bytes)} of the source's log")
        words = ", ".join([words, *parts])
    rows.append(("  lag", words))
    rows.append(
        (
            "  change log",
            f"{count_words(status.log.segments, 'segment')}, {human_bytes(status.log.size_bytes)}",
        )
    )
    if status.target.action != "RUN":
        rows.append(("  action", f"{status.target.action} (wirekite.wirekite_action)"))
    return rows


def _loaded_text(status: Status, applied_rate: float | None) -> str:
    if status.target.unknown:
        return f"unknown: {status.why_no_lag}"
    applied = status.target.applied
    rows = _rows_in(applied.gsn, applied.trx)
    if status.outage("target") is not None:
        read_at = datetime.fromtimestamp(status.target_read_us / 1e6, UTC)
        return f"{rows} when last read, at {read_at:%H:%M:%S} UTC"
    return f"{rows}{_rate(applied_rate)}{_up_to(status, applied.position)}"


def _rows_in(rows: int, transactions: int) -> str:
    return f"{count_words(rows, 'row')} in {count_words(transactions, 'transaction')}"


def _up_to(status: Status, position: int) -> str:
    """Return the words for a position where something ends; empty if no position is known yet."""
    return f", up to {status.positions.text(position)}" if position else ""


def _rate(rows_per_s: float | None) -> str:
    return "" if rows_per_s is None else f", {human_count(rows_per_s)} rows/s"


def bulk_table(bulk: BulkProgress, width: int = WIDE) -> Table:
    """Return a bar per table that is not loaded yet, the largest first, and one for all.

    width: of the screen; a narrow one has shorter bars and fewer figures.
    """
    open_tables = [t for t in bulk.tables if t.chunks_done < t.chunks_total]
    open_tables.sort(key=lambda t: -t.bytes_total)
    rows = [_bar_row(str(item.table), item, width) for item in open_tables[:TABLES_SHOWN_MAX]]
    hidden = len(open_tables) - TABLES_SHOWN_MAX
    name = "bulk load paused" if bulk.phase == "paused" else "bulk load"
    is_wide = width >= WIDE
    whole = _bar_row(f"{name} ({_tables_done(bulk)})" if is_wide else name, bulk, width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    most = _name_width([*rows, whole], width)
    table.add_column(no_wrap=True, overflow="ellipsis", min_width=NAME_WIDTH_MIN, max_width=most)
    for _ in range(_columns(width) - 1):
        table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if hidden > 0:
        table.add_row(f"  and {hidden} more")
    table.add_row(*whole)
    if not is_wide:
        table.caption, table.caption_justify = f"  {_tables_done(bulk)}", "left"
        table.caption_style = ""
    return table


def _name_width(rows: list[list[RenderableType]], width: int) -> int:
    """Return the width that remains for names beside the figures."""
    texts = [[cell for cell in row[1:] if isinstance(cell, str)] for row in rows]
    figures = sum(max(map(len, column)) for column in zip(*texts, strict=True))
    bar = BAR_WIDTH if width >= WIDE else BAR_WIDTH_NARROW
    return max(width - figures - bar - 2 * _columns(width), NAME_WIDTH_MIN)


def _columns(width: int) -> int:
    return 6 if width >= WIDE else 5 if width >= MIDDLE else 4


def _bar_row(name: str, item: TableProgress | BulkProgress, width: int) -> list[RenderableType]:
    share = share_of(item)
    waits = "waits" if not item.rows_done and share == 0.0 else ""
    left = _time_left(item).removeprefix(", ") or ("done" if share == 1.0 else waits)
    bar = ProgressBar(
        total=1.0, completed=share, width=BAR_WIDTH if width >= WIDE else BAR_WIDTH_NARROW
    )
    figures = [
        count_words(item.rows_done, "row"),
        _rate(item.rows_per_s or None).removeprefix(", "),
    ]
    shown = figures[: _columns(width) - 4]
    return [f"  {name}", bar, f"{share:4.0%}", *shown, left]


def make_view(emit_json: Callable[[dict[str, Any]], None] | None) -> View:
    """Return the view that suits standard output: JSON lines to `emit_json` if that is given."""
    if emit_json is not None:
        return JsonView(emit_json)
    out = console()
    return LiveView(screen()) if out.is_terminal else LineView(out)
