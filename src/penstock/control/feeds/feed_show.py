"""A status of changefeeds for people, in a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.control.feeds.feed_bars import Bar, BarMeter
from penstock.control.feeds.feed_status import (
    DEAD_LETTERS_MAX,
    SchemaStatus,
    StageStatus,
    StageStatusReader,
)
from penstock.control.pipeline.display import (
    console,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.ports.config import Config

logger = structlog.get_logger(__name__)
LOOK_S = 2.0
LINE_INTERVAL_S = 10.0
BAR_WIDTH = 24


def show_stage_status(status: StageStatus, out: Console | None = None) -> None:
    """Print a status."""
    out = out or console()
    what = f"{status.pipeline}, mode {status.mode_setting}, in {status.directory}"
    out.print(pairs([("pipeline", what)]))
    for line in status.outage_lines():
        out.print(Text(line, style="red"))
    if status.schemas is not None and not status.schemas:
        out.print("nothing has been received yet")
    bars = BarMeter().add(0.0, status.schemas or ())
    for schema in status.schemas or ():
        out.print(Text(f"schema {schema.name}", style="bold"))
        rows = list(_rows(schema))
        bar = bars.get(schema.name)
        if bar is not None and bar.is_far_behind:
            rows.append(("  backfill", f"{bar.share:.0%} applied"))
        out.print(pairs(rows))
        for text, style in _problem(schema):
            out.print(Text(text, style=style))


def _rows(schema: SchemaStatus) -> Iterator[tuple[str, str]]:
    yield "  mode", schema.mode or "unknown"
    yield "  lease", lease_words(schema)
    yield "  lag", schema.lag_words
    yield "  committed", str(schema.committed_time or "nothing yet")
    yield "  proposed", str(schema.proposed_time or "nothing yet")
    yield "  staged", rows_words(schema)
    yield "  dead letters", letters_words(schema)
    for table, rows in schema.state.tables.items():
        waiting = "unknown" if rows.waiting is None else human_count(rows.waiting)
        yield f"  {table.name}", f"{waiting} waiting"


def lease_words(schema: SchemaStatus) -> str:
    """Return who works on a schema, for people."""
    held = schema.state.holder
    if held is None:
        return "free: no instance works on it just now"
    until = f"{held.expires:%Y-%m-%d %H:%M:%S} UTC"
    if schema.holder:
        return f"{held.hostname}, until {until}"
    return f"free: that of {held.hostname} has expired at {until}"


def rows_words(schema: SchemaStatus) -> str:
    """Return the staged rows, for people."""
    about = "about " if schema.is_estimate else ""
    rows = "unknown" if schema.rows is None else about + human_count(schema.rows)
    waiting = "unknown" if schema.waiting is None else about + human_count(schema.waiting)
    size = "" if schema.size_bytes is None else f", {human_bytes(schema.size_bytes)}"
    oldest = "" if schema.oldest_s is None else f", the oldest for {human_seconds(schema.oldest_s)}"
    return f"{rows} rows{size}, {waiting} waiting{oldest}"


def letters_words(schema: SchemaStatus) -> str:
    """Return the number of dead letters, for people."""
    if schema.dead_letters is None:
        return "unknown"
    more = " or more" if schema.dead_letters == DEAD_LETTERS_MAX else ""
    return human_count(schema.dead_letters) + more


def _problem(schema: SchemaStatus) -> Iterator[tuple[str, str]]:
    problem = schema.note.problem
    if problem is None:
        return
    style = "dim" if schema.problem_is_over else "red"
    since = ", something was applied since" if schema.problem_is_over else ""
    yield f"  last problem: {problem.code} {problem.error}{since}", style
    if problem.hint and not schema.problem_is_over:
        yield f"  next: {problem.hint}", ""


def show_stage_lag(status: StageStatus, out: Console | None = None) -> None:
    """Print how far each schema of the target is behind."""
    out = out or console()
    out.print(pairs([("lag", status.lag_words)]))
    for line in status.outage_lines():
        out.print(Text(line, style="red"))
    for schema in status.schemas or ():
        received = "unknown"
        if schema.proposed_lag_s is not None:
            received = f"{human_seconds(schema.proposed_lag_s)} ago"
        out.print(
            pairs(
                [
                    (f"schema {schema.name}", schema.lag_words),
                    ("  received up to", received),
                    ("  committed", str(schema.committed_time or "nothing yet")),
                    ("  staged", rows_words(schema)),
                ]
            )
        )


# --- while `penstock stage` works -------------------------------------------------------------


class BackfillView:
    """View of the schemas that are far behind, and of problems: in place, as lines or JSON."""

    def __init__(
        self,
        emit_json: Callable[[dict[str, Any]], None] | None,
        out: Console | None = None,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare the view. emit_json: for --json. out: standard output if not given."""
        self._emit, self._out, self._clock = emit_json, out or console(), clock
        self._live: Live | None = None
        self._shown_s = float("-inf")
        self._last: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._began_us = clock.now_us()

    def tell_problems(self, schemas: Sequence[SchemaStatus]) -> None:
        """Print what keeps a schema from continuing, once for each new problem."""
        for schema in schemas:
            problem = schema.note.problem
            is_over = schema.problem_is_over
            if problem is None or is_over or problem.at_us < self._began_us:
                if is_over:
                    self._problems.pop(schema.name, None)
                continue
            text = f"{problem.code} {problem.error}"
            if self._problems.get(schema.name) == text:
                continue
            self._problems[schema.name] = text
            if self._emit is not None:
                self._emit({"schema": schema.name, "problem": msgspec.to_builtins(problem)})
                continue
            out = self._out if self._live is None else self._live.console
            out.print(Text(f"schema {schema.name} is held: {text}", style="red"))
            if problem.hint:
                out.print(Text(f"        > {problem.hint}"))

    def show(self, bars: dict[str, Bar]) -> None:
        """Show the present bars; report once that a schema has caught up."""
        far = {name: bar for name, bar in bars.items() if bar.is_far_behind}
        if self._out.is_terminal and self._emit is None:
            self._draw(far)
            return
        now_s = self._clock.monotonic_s()
        for name in self._last.keys() - far.keys():
            del self._last[name]
            self._say(name, "caught up", bars.get(name))
        if now_s - self._shown_s < LINE_INTERVAL_S:
            return
        for name, bar in far.items():
            if self._last.get(name) != bar.words:
                self._shown_s = now_s
                self._last[name] = bar.words
                self._say(name, f"{bar.share:.0%}, {bar.words}", bar)

    def _say(self, name: str, text: str, bar: Bar | None) -> None:
        if self._emit is None:
            self._out.print(f"backfill of {name}: {text}")
        else:
            shown = None if bar is None else {**bar.as_dict(), "share": bar.share}
            self._emit({"backfill": name, "text": text, "progress": shown})

    def _draw(self, far: dict[str, Bar]) -> None:
        if not far:
            self.close()
            return
        if self._live is None:
            self._live = Live(console=self._out, refresh_per_second=4, transient=True)
            self._live.start()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for name, bar in far.items():
            drawn = ProgressBar(total=1.0, completed=bar.share, width=BAR_WIDTH)
            table.add_row(f"  {name}", drawn, f"{bar.share:4.0%}", bar.words)
        self._live.update(table)

    def close(self) -> None:
        """Remove what is drawn."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@contextmanager
def backfills_shown(config: Config, view: BackfillView) -> Iterator[None]:
    """Show bars while the block runs, from a thread that reads both databases."""
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(config, view, ended), name="bars", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LOOK_S)  # it may wait for a server that hangs
        view.close()


def _follow(config: Config, view: BackfillView, ended: threading.Event) -> None:
    reader, meter = StageStatusReader(config), BarMeter()
    try:
        while not ended.wait(LOOK_S):
            status = reader.read()
            if status.schemas is not None:  # else an outage, which stage.log has
                view.tell_problems(status.schemas)
                view.show(meter.add(REAL_CLOCK.monotonic_s(), status.schemas))
    except Exception as error:
        logger.error("bars end", exc_info=error)
    finally:
        reader.close()
