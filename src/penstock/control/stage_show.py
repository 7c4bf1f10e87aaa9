"""A status of changefeeds for people, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from penstock.control.display import console, human_bytes, human_count, human_seconds, pairs
from penstock.control.stage_bars import BarMeter
from penstock.control.stage_status import DEAD_LETTERS_MAX, SchemaStatus, StageStatus


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
    yield "  committed", str(schema.committed or "nothing yet")
    yield "  proposed", str(schema.proposed or "nothing yet")
    yield "  staged", rows_words(schema)
    yield "  dead letters", letters_words(schema)
    for table, rows in schema.state.tables.items():
        waiting = "unknown" if rows.waiting is None else human_count(rows.waiting)
        yield f"  {table.name}", f"{waiting} waiting"


def lease_words(schema: SchemaStatus) -> str:
    """Who works on a schema, for people."""
    held = schema.state.holder
    if held is None:
        return "nobody's: no instance works on it just now"
    until = f"{held.expires:%Y-%m-%d %H:%M:%S} UTC"
    if schema.holder:
        return f"{held.hostname}, until {until}"
    return f"nobody's: that of {held.hostname} has expired at {until}"


def rows_words(schema: SchemaStatus) -> str:
    """What is staged, for people."""
    about = "about " if schema.is_estimate else ""
    rows = "unknown" if schema.rows is None else about + human_count(schema.rows)
    waiting = "unknown" if schema.waiting is None else about + human_count(schema.waiting)
    size = "" if schema.size_bytes is None else f", {human_bytes(schema.size_bytes)}"
    oldest = "" if schema.oldest_s is None else f", the oldest for {human_seconds(schema.oldest_s)}"
    return f"{rows} rows{size}, {waiting} waiting{oldest}"


def letters_words(schema: SchemaStatus) -> str:
    """How many dead letters there are, for people."""
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
                    ("  committed", str(schema.committed or "nothing yet")),
                    ("  staged", rows_words(schema)),
                ]
            )
        )
