"""What a person sees: numbers, findings, the views of a run."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from penstock.control.display import (
    console,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)
from penstock.control.doctor import Report
from penstock.control.findings import Finding, Severity, Side
from penstock.control.handover_state import Handover
from penstock.control.lag import Lag, SourceState, lag_of
from penstock.control.live import JsonView, LineView, LiveView, change_line, last_lines
from penstock.control.log_facts import LogEnd
from penstock.control.running import ProcessState
from penstock.control.show import show_lag, show_report, show_status
from penstock.control.status import Status, at_rest
from penstock.control.target_state import TargetState
from penstock.load.bulk_progress import BulkProgress, TableProgress
from penstock.load.target import Applied
from penstock.model import FlushPoint, TableName


class Hands:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def lag(seconds: float = 1.5) -> Lag:
    """A lag of so many seconds."""
    return Lag(
        seconds=seconds,
        slot_bytes=100,
        applied_bytes=2048,
        rows=7,
        extracting=True,
        source_position=0x1000,
        log_position=0x900,
        applied_position=0x800,
        applied_commit_us=0,
    )


def status(
    *, gsn: int = 0, applied: int = 0, bulk: BulkProgress | None = None, steps: int = 0
) -> Status:
    """A status with so many rows extracted and applied."""
    handover = Handover()
    for number in range(1, steps + 1):
        handover = handover.with_step(number, f"step {number}")
    return Status(
        pipeline="shop",
        mode="data+change",
        directory=Path("/tmp/shop"),
        identity=None,
        processes=(ProcessState(name="load", pid=12), ProcessState(name="extract", pid=0)),
        handover=handover if steps else None,
        log=LogEnd(
            log_id="x", end=FlushPoint(position=0x900, gsn=gsn, trx=2), segments=3, size_bytes=4096
        ),
        target=TargetState(applied=Applied(gsn=applied, trx=1, position=0x800), bulk=bulk),
        lag=lag(),
    )


def bulk(rows_done: int, phase: str = "copying") -> BulkProgress:
    """A bulk load of one table of 1000 rows and 10 kB."""
    done = rows_done * 10
    table = TableProgress(
        table=TableName("public", "orders"),
        rows_done=rows_done,
        rows_total=1000,
        bytes_done=done,
        bytes_total=10_000,
        chunks_done=4 if phase == "done" else 1,
        chunks_total=4,
    )
    return BulkProgress(
        phase=phase,
        tables=(table,),
        rows_done=rows_done,
        rows_total=1000,
        bytes_done=done,
        bytes_total=10_000,
    )


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_bytes(count: int, text: str) -> None:
    """Binary units, whole bytes below one KiB."""
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    """From tenths of a second to hours."""
    assert human_seconds(seconds) == text


def test_counts_and_pairs() -> None:
    """Groups of three, two columns without trailing blanks."""
    assert human_count(1_234_567.4) == "1 234 567"
    assert str(pairs([("a", "1"), ("long", "2")])) == "a     1\nlong  2"


def test_a_report_shows_each_command_on_a_line_of_its_own() -> None:
    """So that it can be copied, however long it is."""
    command = "alter table " + "x" * 300 + " replica identity full;"
    finding = Finding(
        code="PG12", severity=Severity.ERROR, side=Side.SOURCE, what="w", why="y", command=command
    )
    out = io.StringIO()
    show_report(Report(findings=(finding,), checks_done=5, checks_skipped=2), console(out))
    text = out.getvalue()
    assert f"        > {command}\n" in text
    assert "E PG12  w" in text
    assert "5 checks done, 2 could not be done: 1 errors" in text
    assert "nothing stops" not in text


def test_status_and_lag_are_plain_text_without_a_terminal() -> None:
    """No colours, no boxes; positions as the source writes them."""
    out = io.StringIO()
    show_status(status(gsn=10, applied=3, steps=2), console(out))
    show_lag(lag(), console(out))
    text = out.getvalue()
    assert "\x1b" not in text
    for wanted in ("load (pid 12)", "handover 2 of 4: step 2", "0/900", "1.5 s", "3 segments"):
        assert wanted in text
    assert msgspec.json.encode(status(gsn=1).as_dict())


def test_lines_tell_each_step_once_and_numbers_at_intervals() -> None:
    """Steps come as they happen; rates and lag not more often than every five seconds."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    view.show(status(bulk=bulk(100), steps=1))
    clock.now_s += 1
    view.show(status(bulk=bulk(200), steps=2))
    clock.now_s += 5
    view.show(status(bulk=bulk(700), steps=2))
    view.show(status(gsn=50, applied=20, bulk=bulk(1000, "done"), steps=4))
    view.finish(status(gsn=50, applied=20, bulk=bulk(1000, "done"), steps=4))
    text = out.getvalue()
    for number in range(1, 5):
        assert text.count(f"handover {number} of 4") == 1
    assert text.count("bulk load 70%: 700 of about 1 000 rows, 100 rows/s") == 1
    assert text.count("bulk load done: 1 000 rows in 1 tables") == 1
    assert "stopped in order" in text


def test_rates_are_of_the_last_seconds() -> None:
    """Rows per second into the log and into the target."""
    clock, seen = Hands(), []
    view = JsonView(seen.append, clock=clock)
    view.show(status(gsn=0))
    clock.now_s += 2
    view.show(status(gsn=1000, applied=500))
    assert seen[-1]["extracted_rows_per_s"] == 500
    assert seen[-1]["loaded_rows_per_s"] == 250
    assert json_able(seen)


def json_able(objects: list[dict[str, object]]) -> bool:
    """Whether all of them are JSON."""
    return all(msgspec.json.encode(item) for item in objects)


def test_the_live_view_draws_bars_and_numbers() -> None:
    """In a terminal: a bar per table that is not loaded yet, then rates and lag."""
    clock, out = Hands(), io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=120, color_system=None)
    view = LiveView(terminal, clock=clock)
    view.event("preparing")
    view.show(status(bulk=bulk(100), steps=1))
    view.show(status(gsn=10, applied=5, bulk=bulk(1000, "done"), steps=4))
    view.finish(status(gsn=10, applied=10))
    view.close()
    text = out.getvalue()
    assert "preparing" in text
    assert "handover 4 of 4" in text


def test_last_lines_say_whether_it_is_done() -> None:
    """Done when CHANGE.DONE is there and nothing is left; else how to go on."""
    assert "run it again" in last_lines(status(gsn=5))[-1]
    done = status(gsn=5, applied=5)
    done = with_done(done)
    assert last_lines(done)[-1].endswith("done")
    assert last_lines(None) == ["stopped"]


def with_done(before: Status, rows: int = 0) -> Status:
    """The same status with CHANGE.DONE and so many rows outstanding."""
    assert before.lag is not None
    return replace(before, log=replace(before.log, done=True), lag=replace(before.lag, rows=rows))


def test_a_run_that_is_done_has_no_lag() -> None:
    """Its log is closed and applied; the age of the last commit is no lag then."""
    before = status(gsn=5, applied=5)
    assert at_rest(before) is before
    done = with_done(before)
    assert change_line(done, 0.0, 0.0) != change_line(at_rest(done), 0.0, 0.0)
    assert "lag 0.0 s" in last_lines(at_rest(done))[0]
    behind = with_done(before, rows=3)
    assert at_rest(behind) is behind


SOURCE = SourceState(
    position=5000, slot_exists=True, slot_active=True, confirmed=5000, flush_lag_s=0.0
)


def test_an_idle_pipeline_has_no_lag() -> None:
    """However old the last commit is: nothing is outstanding."""
    log = LogEnd(end=FlushPoint(position=5000, gsn=9))
    applied = Applied(gsn=9, position=4000, commit_time_us=1)
    found = lag_of(SOURCE, log, applied, outstanding_us=None, now_us=10**15)
    assert (found.seconds, found.rows, found.applied_bytes) == (0.0, 0, 0)


def test_lag_is_the_age_of_the_oldest_commit_that_is_not_applied() -> None:
    """Not of the last applied one: a long idle time before is no lag."""
    log = LogEnd(end=FlushPoint(position=5000, gsn=12))
    applied = Applied(gsn=9, position=4000, commit_time_us=1)
    now_us = 50_000_000
    found = lag_of(SOURCE, log, applied, outstanding_us=now_us - 2_500_000, now_us=now_us)
    assert found.seconds == 2.5
    assert (found.rows, found.applied_bytes) == (3, 1000)


def test_lag_without_a_reader_is_the_most_it_can_be() -> None:
    """Nobody reads the slot: what the source wrote since may concern us or not."""
    source = replace(SOURCE, slot_active=False, confirmed=4000)
    applied = Applied(gsn=9, position=4000, commit_time_us=1_000_000)
    log = LogEnd(end=FlushPoint(position=4000, gsn=9))
    found = lag_of(source, log, applied, outstanding_us=None, now_us=31_000_000)
    assert (found.seconds, found.slot_bytes) == (30.0, 1000)
    behind = replace(source, slot_active=True, flush_lag_s=0.25)
    assert lag_of(behind, log, applied, outstanding_us=None, now_us=31_000_000).seconds == 0.25
