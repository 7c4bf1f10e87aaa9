"""A status of changefeeds for people, in a terminal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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

RATE_WINDOW_S = 15.0
NOT_YET_ALL = 0.99  # while something waits, even if it is a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Applied share of staged rows. A value of None is not known.

    Attributes:
        staged_per_s: Over the last RATE_WINDOW_S.
        applied_per_s: Over the last RATE_WINDOW_S.
        eta_s: Until no row waits, at the pace at which waiting rows become fewer; None if they do
            not.
        is_estimate: The values are from a sample.
        is_far_behind: A bar is worth showing.
    """

    applied: int
    staged: int
    staged_per_s: float | None = None
    applied_per_s: float | None = None
    eta_s: float | None = None
    is_estimate: bool = False
    is_far_behind: bool = False

    @property
    def share(self) -> float:
        """Finished share, 0 to 1; 1 only if no row waits."""
        if self.applied >= self.staged:
            return 1.0
        return min(self.applied / self.staged, NOT_YET_ALL)

    @property
    def words(self) -> str:
        """Text for people: rows, rate and time to go."""
        about = "about " if self.is_estimate else ""
        rows = f"{human_count(self.applied)} of {about}{human_count(self.staged)} rows applied"
        return ", ".join(filter(None, (rows, _rate(self.applied_per_s), self.to_go)))

    @property
    def to_go(self) -> str:
        """Return the time to go for people; empty if it is not known."""
        if self.share == 1.0:
            return "nothing waits"
        return "" if self.eta_s is None else f"{human_seconds(self.eta_s)} to go"

    def as_dict(self) -> dict[str, Any]:
        """Return the object as JSON has it."""
        return {
            "applied": self.applied,
            "staged": self.staged,
            "staged_per_s": self.staged_per_s,
            "applied_per_s": self.applied_per_s,
            "eta_s": self.eta_s,
            "is_estimate": self.is_estimate,
            "is_far_behind": self.is_far_behind,
        }


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{human_count(per_s)} rows/s"


class BarMeter:
    """Calculator of bars from readings at some moments."""

    def __init__(self) -> None:
        """Begin without readings."""
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    def add(self, now_s: float, schemas: Sequence[SchemaStatus]) -> dict[str, Bar]:
        """Return one bar for each schema whose rows are known. now_s: monotonic."""
        bars = {}
        for schema in schemas:
            staged, waiting = schema.rows, schema.waiting
            if staged is None or waiting is None:
                self._seen.pop(schema.name, None)
                continue
            bars[schema.name] = self._bar(now_s, schema, staged, waiting)
        for name in self._seen.keys() - {schema.name for schema in schemas}:
            del self._seen[name]
        return bars

    def _bar(self, now_s: float, schema: SchemaStatus, staged: int, waiting: int) -> Bar:
        seen = self._seen.setdefault(schema.name, deque())
        if seen and staged < seen[-1][1]:
            seen.clear()  # rows were retired: rows staged and applied since are not known
        seen.append((now_s, staged, waiting))
        while len(seen) > 2 and now_s - seen[0][0] > RATE_WINDOW_S:
            seen.popleft()
        then_s, staged_then, waiting_then = seen[0]
        span_s = now_s - then_s
        bar = Bar(
            applied=staged - waiting,
            staged=staged,
            is_estimate=schema.is_estimate,
            is_far_behind=schema.is_far_behind,
        )
        if span_s <= 0:
            return bar
        staged_per_s = (staged - staged_then) / span_s
        fewer_per_s = (waiting_then - waiting) / span_s
        return replace(
            bar,
            staged_per_s=staged_per_s,
            applied_per_s=max(0.0, staged_per_s + fewer_per_s),
            eta_s=waiting / fewer_per_s if fewer_per_s > 0 else 0.0 if not waiting else None,
        )


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
