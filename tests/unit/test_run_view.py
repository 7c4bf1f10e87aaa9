"""View of a run on a screen of 80 columns and 24 lines, and the summary at its end."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.pipelines.run_states import (
    LAGGING,
    LONG_NAMES,
    Hands,
    bulk_load,
    loader,
    refused_line,
    run_status,
    table,
)
from penstock.control.pipeline.display import console
from penstock.control.status.drawing import shorten, shown_names
from penstock.control.status.lag import TargetState
from penstock.control.status.live import JsonView, LineView, LiveView
from penstock.control.status.run_events import load_words
from penstock.control.status.status import Status
from penstock.model import TableName

SCREEN = (80, 24)


def draw(*statuses: Status, size: tuple[int, int] = SCREEN, step_s: float = 2.0) -> list[str]:
    """Return the lines of the live view after these statuses."""
    clock = Hands()
    width, height = size
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    view = LiveView(screen, clock=clock)
    view.close()
    for status in statuses:
        view.show(status)
        clock.now_s += step_s
    paper = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    paper.print(view.draw(statuses[-1]))
    return [line.rstrip() for line in paper.export_text().splitlines()]


def test_long_names_are_told_from_each_other() -> None:
    """Names are shortened in the middle, and the schema is left out if all tables share it."""
    lines = draw(run_status(bulk=bulk_load(*LONG_NAMES)))
    named = [line for line in lines if "…" in line]
    assert len({line.split()[0] for line in named}) == len(named) == 2
    assert any(line.startswith("  invoice_line_") for line in named)
    assert not any("accounting." in line for line in lines)


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("orders", 6, "orders"),
        ("orders", 5, "or…rs"),
        ("orders", 4, "or…s"),
        ("public.order_line", 12, "public…_line"),
    ],
)
def test_a_name_loses_its_middle(name: str, width: int, shown: str) -> None:
    """The result has the width, and both ends."""
    assert shorten(name, width) == shown
    assert len(shown) == width


def test_a_schema_is_shown_if_there_are_two() -> None:
    """Tables of one name in two schemas differ."""
    both = [TableName("a", "t"), TableName("b", "t")]
    assert shown_names(both) == ["a.t", "b.t"]
    assert shown_names(both[:1]) == ["t"]


def test_numbers_stand_below_each_other() -> None:
    """The last digits of both halves are in one column, and so are those of tables."""
    lines = draw(*LAGGING)
    ends = [
        [match.end() for match in re.finditer(r"(?<=\d)(?=  )", line)][:3]
        for line in lines
        if re.match(r"  (extracted|loaded) ", line)
    ]
    assert len(ends) == 2
    assert ends[0] == ends[1]
    loading = draw(run_status(bulk=bulk_load("orders", "customer", "payment")))
    starts = [line.index("%") for line in loading if "%" in line]
    assert len(starts) == 4
    assert len(set(starts)) == 1


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (60, 24)])
def test_the_view_fits_the_screen(size: tuple[int, int]) -> None:
    """The last line is that of Ctrl-C with 40 tables to load and 30 that are refused, too."""
    names = [f"orders_of_the_year_{number}" for number in range(40)]
    wrong = tuple(refused_line(f"t{number}") for number in range(30))
    found = run_status(bulk=bulk_load(*names), tables=wrong, loader=loader("copying"))
    lines = draw(found, size=size)
    assert max(map(len, lines)) <= size[0]
    assert len(lines) <= size[1]
    assert "Ctrl-C ends it in order" in lines[-1]
    assert any("more: penstock table ls" in line for line in lines)


WORK: dict[str, tuple[Status, str]] = {
    "no report yet": (run_status(), "is starting"),
    "starting": (run_status(loader=loader("copying", is_spark_starting=True)), "is starting"),
    "dividing": (
        run_status(loader=loader("copying")),
        "creates tables and divides them into chunks",
    ),
    "first chunks": (
        run_status(loader=loader("copying"), bulk=bulk_load("a", "b", rows_done=0)),
        "copies the first chunks",
    ),
    "copying": (
        run_status(loader=loader("copying"), bulk=bulk_load("a", "b")),
        "copies 2 tables",
    ),
    "keys": (
        run_status(loader=loader("copying"), bulk=bulk_load("a", phase="indexing")),
        "all rows are copied; keys and indexes are created",
    ),
    "no batch": (
        run_status(loader=loader("waiting"), bulk=bulk_load("a", phase="done")),
        "ready; no batch yet",
    ),
    "waiting": (
        run_status(loader=loader("waiting", batches=3), bulk=bulk_load("a", phase="done")),
        "waits for changes; last batch: 1 200 rows, 3 tables, 0.8 s",
    ),
    "a batch without rows": (
        run_status(loader=loader("waiting", batches=3, rows=0), bulk=bulk_load("a", phase="done")),
        "waits for changes",
    ),
    "applying": (
        run_status(loader=loader("applying", batches=3), bulk=bulk_load("a", phase="done")),
        "applies a batch; last batch: 1 200 rows, 3 tables, 0.8 s",
    ),
    "retrying": (
        run_status(loader=loader("retrying", batches=3), bulk=bulk_load("a", phase="done")),
        "tries again",
    ),
    "no load process": (run_status(pids={"extract": 13}), ""),
}


@pytest.mark.parametrize("case", WORK)
def test_the_view_says_what_spark_does(case: str) -> None:
    """Each state of the load process has its words, also while nothing is loaded."""
    found, words = WORK[case]
    assert load_words(found) == words
    shown = [line for line in draw(found) if line.startswith("  spark")]
    assert [line.removeprefix("  spark").strip() for line in shown] == ([words] if words else [])


def test_what_takes_long_has_its_seconds() -> None:
    """A start of Spark that takes half a minute shows that it is one, and lines repeat it."""
    starting = run_status(loader=loader("copying", is_spark_starting=True))
    lines = draw(*[starting] * 15)
    assert "  spark       is starting, for 28 s" in lines
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    for _ in range(15):
        view.show(starting)
        clock.now_s += 2.0
    shown = re.findall("spark: is starting, for ([0-9.]+) s", out.getvalue())
    assert len(shown) == 4, "every five seconds"
    assert out.getvalue().count("extracted 48 210 rows") == 1, (
        "what has not changed is not repeated"
    )
    view.show(run_status(loader=loader("copying"), bulk=bulk_load("a", "b")))
    assert "spark: copies" not in out.getvalue()


def run_of(view: LineView | JsonView | LiveView, clock: Hands) -> Status:
    """Show a run of some minutes that followed changes; return its last status."""
    first, last = LAGGING[0], LAGGING[-1]
    view.show(first)
    clock.now_s += 125.0
    changed = loader("waiting", batches=3)
    changed.note_alteration("shop.orders", "column note was added as text")
    last = replace(last, loader=changed)
    view.show(last)
    clock.now_s += 60.0
    return last


def test_the_end_tells_what_the_run_did_and_where_it_goes_on() -> None:
    """The counts are of this run alone; the position is that of the change log."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    view.finish(run_of(view, clock))
    lines = out.getvalue().splitlines()
    assert lines[-3:] == [
        "this run: 3 min 05 s; 20 000 rows in 500 transactions extracted, 19 500 in 490 loaded, "
        "1 schema change applied",
        "it goes on at 0/16B5A50, after loading 1 500 rows that the log holds",
        "stopped in order; run it again to go on from here",
    ]


def test_a_run_that_fails_has_a_summary_too() -> None:
    """The summary is printed once, and not if no status was ever read."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    view.fail()
    assert out.getvalue() == ""
    run_of(view, clock)
    view.fail()
    view.fail()
    assert out.getvalue().count("this run: ") == 1
    assert out.getvalue().count("it goes on at 0/16B5A50") == 1


def test_the_summary_has_fields() -> None:
    """The event `ended` has them; so has `failed`."""
    clock, seen = Hands(), list[dict[str, Any]]()
    view = JsonView(seen.append, clock=clock)
    view.finish(run_of(view, clock))
    fields = {name: value for name, value in seen[-1].items() if name.startswith(("run_", "goes"))}
    assert fields == {
        "run_seconds": 185.0,
        "run_extracted_rows": 20_000,
        "run_extracted_transactions": 500,
        "run_loaded_rows": 19_500,
        "run_loaded_transactions": 490,
        "run_copied_rows": 0,
        "run_schema_changes": 1,
        "goes_on_at": "0/16B5A50",
    }
    clock, seen = Hands(), []
    view = JsonView(seen.append, clock=clock)
    run_of(view, clock)
    view.fail()
    assert seen[-1]["type"] == "failed"
    assert seen[-1]["run_extracted_rows"] == 20_000


def test_a_target_that_was_away_is_not_counted_from_zero() -> None:
    """Rows of earlier runs are not those that this run loaded."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    view.show(replace(LAGGING[0], target=TargetState(unknown=True), lag=None))
    view.finish(run_of(view, clock))
    assert "19 500 in 490 loaded" in out.getvalue()
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    view.finish(replace(LAGGING[0], target=TargetState(unknown=True), lag=None))
    assert "loaded rows unknown, because the target was away" in out.getvalue()


def test_schema_changes_are_told_above_the_view() -> None:
    """The line stays on the screen; it has the table and the change."""
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    clock = Hands()
    view = LiveView(screen, clock=clock)
    run_of(view, clock)
    view.close()
    assert "schema change applied to shop.orders: column note was added as text" in out.getvalue()


def test_the_table_of_one_line() -> None:
    """A table without progress waits; one whose chunks are loaded is not listed."""
    found = bulk_load("a", "b", rows_done=0)
    assert table("a", rows_done=5, done=True).chunks_done == 4
    assert sum("waits" in line for line in draw(run_status(bulk=found))) == 3
