"""Output for people: numbers, findings, the views of a run."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from penstock.control.doctor.doctor import Report
from penstock.control.pipeline.display import (
    console,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
    screen,
)
from penstock.control.pipeline.running import ProcessState
from penstock.control.status.consumer_list import ConsumerLine
from penstock.control.status.drawing import change_rows
from penstock.control.status.lag import Lag, TargetState
from penstock.control.status.live import (
    JsonView,
    LineView,
    LiveView,
    bulk_line,
    change_line,
    last_lines,
)
from penstock.control.status.serve_status import ServeSeen
from penstock.control.status.show import show_lag, show_no_lag, show_report, show_status
from penstock.control.status.status import Status
from penstock.control.tables.table_list import TableLine
from penstock.engines.postgres.positions import LsnPositions
from penstock.load.bulk_progress import BulkProgress, Rates, TableProgress, share_of
from penstock.load.loader_state import LoaderState
from penstock.model import FlushPoint, TableName
from penstock.model.words import count_words
from penstock.ports.checks import Finding, Severity, Side
from penstock.ports.config import HandoverMode
from penstock.ports.handover import STEPS, Handover
from penstock.ports.lag import LogEnd
from penstock.ports.target import Applied


class Hands:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def lag(seconds: float = 1.5) -> Lag:
    """Return a lag of so many seconds."""
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
        positions=LsnPositions(),
    )


def status(
    *,
    gsn: int = 0,
    applied: int = 0,
    bulk: BulkProgress | None = None,
    steps: int = 0,
    mode: HandoverMode = HandoverMode.SNAPSHOT,
    tables: tuple[TableLine, ...] = (),
    loader: LoaderState | None = None,
) -> Status:
    """Return a status with so many rows extracted and applied."""
    handover = Handover(mode=mode, position="0/700" if steps > 1 else "")
    for number in range(1, steps + 1):
        handover = handover.with_step(number, f"{STEPS[number - 1]}: step {number}")
    return Status(
        pipeline="shop",
        mode="data+change",
        directory=Path("/tmp/shop"),
        identity=None,
        processes=(ProcessState(name="load", pid=12), ProcessState(name="extract", pid=0)),
        handover=handover if steps else None,
        positions=LsnPositions(),
        log=LogEnd(
            log_id="x", end=FlushPoint(position=0x900, gsn=gsn, trx=2), segments=3, size_bytes=4096
        ),
        target=TargetState(applied=Applied(gsn=applied, trx=1, position=0x800), bulk=bulk),
        lag=lag(),
        tables=tables,
        loader=loader,
    )


def bulk(rows_done: int, phase: str = "copying") -> BulkProgress:
    """Return a bulk load of one table of 1000 rows and 10 kB."""
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
    """Sizes have binary units, and whole bytes below one KiB."""
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
    """Durations range from tenths of a second to hours."""
    assert human_seconds(seconds) == text


def test_counts_and_pairs() -> None:
    """Counts have groups of three, pairs have two columns without trailing blanks."""
    assert human_count(1_234_567.4) == "1 234 567"
    assert str(pairs([("a", "1"), ("long", "2")])) == "a     1\nlong  2"


def test_a_report_shows_each_command_on_a_line_of_its_own() -> None:
    """The command can be copied then, however long it is."""
    command = "alter table " + "x" * 300 + " replica identity full;"
    finding = Finding(
        code="PG12", severity=Severity.ERROR, side=Side.SOURCE, what="w", why="y", command=command
    )
    out = io.StringIO()
    show_report(Report(findings=(finding,), checks_done=5, checks_skipped=2), console(out))
    text = out.getvalue()
    assert f"        > {command}\n" in text
    assert "E PG12  w" in text
    assert "5 checks done, 2 could not be done: 1 error, 0 warnings, 0 notes" in text
    assert "nothing stops" not in text


def test_status_and_lag_are_plain_text_without_a_terminal() -> None:
    """The text has no colours and boxes; positions are printed as the source writes them."""
    out = io.StringIO()
    show_status(status(gsn=10, applied=3, steps=2, mode=HandoverMode.PAUSE), console(out))
    show_lag(lag(), console(out))
    text = out.getvalue()
    assert "\x1b" not in text
    for wanted in (
        "load (pid 12)",
        "handover 2 of 4: Capture Position: step 2",
        "0/900",
        "1.5 s",
        "3 segments",
    ):
        assert wanted in text
    assert msgspec.json.encode(status(gsn=1).as_dict())


def show_run(view: LineView, clock: Hands, mode: HandoverMode) -> None:
    """Show a run from its first step to its end."""
    view.show(status(bulk=bulk(100), steps=1, mode=mode))
    clock.now_s += 1
    view.show(status(bulk=bulk(200), steps=2, mode=mode))
    clock.now_s += 5
    view.show(status(bulk=bulk(700), steps=2, mode=mode))
    view.show(status(gsn=50, applied=20, bulk=bulk(1000, "done"), steps=4, mode=mode))
    view.finish(status(gsn=50, applied=20, bulk=bulk(1000, "done"), steps=4, mode=mode))


def test_lines_tell_each_step_once_and_numbers_at_intervals() -> None:
    """Steps are shown when they happen; rates and lag every five seconds at most."""
    clock, out = Hands(), io.StringIO()
    show_run(LineView(console(out), clock=clock), clock, HandoverMode.PAUSE)
    text = out.getvalue()
    for number in range(1, 5):
        assert text.count(f"handover {number} of 4") == 1
    assert text.count("bulk load 70%, 0 of 1 table: 700 of about 1 000 rows, 100 rows/s") == 1
    assert text.count("bulk load done: 1 000 rows in 1 table\n") == 1
    assert "stopped in order" in text


def test_a_handover_that_stops_nothing_is_one_line() -> None:
    """The line shows where changes begin and what follows; nothing was stopped or is resumed."""
    clock, out = Hands(), io.StringIO()
    show_run(LineView(console(out), clock=clock), clock, HandoverMode.SNAPSHOT)
    text = out.getvalue()
    assert "handover" not in text
    line = "position step 2: tables are copied as of it, changes from it on follow them"
    assert text.count(line) == 1
    out = io.StringIO()
    show_status(status(gsn=10, applied=3, steps=4), console(out))
    assert "handover" not in out.getvalue()
    assert line in out.getvalue()


def test_events_have_a_type_a_time_and_fields() -> None:
    """News is reported at once, figures at intervals and only if changed; rates cover the last
    seconds.
    """
    clock, seen = Hands(), []
    view = JsonView(seen.append, clock=clock)
    view.event("checking", "checking", pipeline="shop")
    for second in range(8):
        done = bulk(1000, "done") if second else None
        view.show(status(gsn=500 * second, applied=250 * second, bulk=done, steps=2))
        clock.now_s += 1
    clock.now_s += 10
    for _ in range(8):
        view.show(status(gsn=3500, applied=1750, bulk=done, steps=2))
        clock.now_s += 1
    view.show(status(gsn=3500, applied=1750, bulk=bulk(1000, "done"), steps=4))
    view.finish(status(gsn=3500, applied=1750, bulk=bulk(1000, "done"), steps=4))
    assert json_able(seen)
    assert all(item["time"].startswith("1970-01-01T00:0") for item in seen)
    kinds = [item["type"] for item in seen]
    assert kinds[0] == "checking"
    assert kinds[-1] == "ended"
    for once in ("position", "starting", "bulk load done"):
        assert kinds.count(once) == 1
    assert not any("status" in item for item in seen)
    figures = [item for item in seen if item["type"] == "progress"]
    assert len(figures) < 6
    assert figures[1]["extracted_rows_per_s"] == 500
    assert figures[1]["loaded_rows_per_s"] == 250
    assert figures[1]["lag_seconds"] == 1.5


def json_able(objects: list[dict[str, object]]) -> bool:
    """Return whether all of them are JSON."""
    return all(msgspec.json.encode(item) for item in objects)


def test_the_live_view_draws_bars_and_numbers() -> None:
    """The view has a bar per table that is not loaded yet, then rates and lag."""
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
    assert "position step 2" in text


@pytest.mark.parametrize("resumed", [False, True])
def test_no_rate_is_shown_before_changes_are_applied(resumed: bool) -> None:
    """While tables are loaded or Spark starts, 0 rows/s would look like a fault."""
    loader = LoaderState(pid=12, is_spark_starting=True) if resumed else None
    phase = "done" if resumed else "copying"
    before = status(gsn=9, bulk=bulk(0, phase), steps=4, loader=loader)
    found = replace(before, lag=None)
    clock, out, figures = Hands(), io.StringIO(), list[dict[str, object]]()
    views: list[Any] = [LineView(console(out), clock=clock), JsonView(figures.append, clock=clock)]
    for _ in range(3):
        for view in views:
            view.show(found)
        clock.now_s += 6
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    live = LiveView(terminal, clock=clock)
    live.close()
    live.show(found)
    clock.now_s += 1
    live.show(found)
    paper = Console(width=120, record=True, file=io.StringIO(), color_system=None)
    paper.print(live.draw(found))
    show_status(found, console(out))
    for text in (out.getvalue(), paper.export_text()):
        assert "extracted" in text
        assert "0 rows/s" not in text
        assert "(0/s)" not in text
        assert "? to go" not in text
    progress = [item for item in figures if item["type"] == "progress"]
    assert {item["loaded_rows_per_s"] for item in progress} == {None}
    moving = status(gsn=9, applied=5, bulk=bulk(1000, "done"), steps=4)
    live.show(moving)
    clock.now_s += 1
    live.show(moving)
    paper.print(live.draw(moving))
    text = paper.export_text()
    assert re.search(r"extracted +9 +2 +0 +0/900", text), "a pipeline that stands says so"


REFUSED = TableLine(
    table=TableName("public", "odd"), state="refused", code="PG12", error="no key", hint="Add one."
)
PAUSED = TableLine(table=TableName("public", "item"), state="paused", behind=7)


def test_tables_that_do_not_follow_are_shown() -> None:
    """Tables that need an action are first, with the action; each is shown once when it happens."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    found = status(gsn=9, applied=9, tables=(PAUSED, REFUSED))
    view.show(found)
    view.show(found)
    text = out.getvalue()
    assert text.count("table public.item paused\n") == 1
    assert text.count("table public.odd refused: PG12 no key; next: Add one.\n") == 1
    out = io.StringIO()
    show_status(found, console(out))
    assert out.getvalue().index("public.odd refused") < out.getvalue().index("public.item paused")
    lines = [line.rstrip() for line in draw_view(found, 80).splitlines()]
    first = lines.index("  public.odd   refused")
    assert lines[first + 1 : first + 4] == [
        "    PG12 no key",
        "    next: Add one.",
        "  public.item  paused",
    ]


def test_schema_changes_that_were_applied_are_reported_once() -> None:
    """Each change is reported with its table; changes of an earlier process are not."""
    clock, out = Hands(), io.StringIO()
    view = LineView(console(out), clock=clock)
    earlier, loader = LoaderState(pid=11), LoaderState(pid=12)
    earlier.note_alteration("public.item", "column old was dropped")
    view.show(status(gsn=9, applied=9, loader=earlier))
    for change in ("column a was added as text", "column b was dropped"):
        loader.note_alteration("public.item", change)
        view.show(status(gsn=9, applied=9, loader=loader))
        view.show(status(gsn=9, applied=9, loader=loader))
    text = out.getvalue()
    assert "column old" not in text
    line = "schema change applied to public.item: column"
    assert text.count(f"{line} a was added as text\n") == 1
    assert text.count(f"{line} b was dropped\n") == 1


def test_a_resumed_run_says_that_spark_is_starting() -> None:
    """The view says so until a job can run, with the seconds; so do the lines, once."""
    line = "Spark is starting; changes are applied when it is there"
    done, starting = bulk(1000, "done"), LoaderState(pid=12, is_spark_starting=True)
    assert re.search("spark +is starting", draw_view(status(bulk=done, loader=starting), 120))
    out = io.StringIO()
    LineView(console(out), clock=Hands()).show(status(gsn=9, bulk=done, steps=4, loader=starting))
    assert out.getvalue().count(line) == 1
    for other in (LoaderState(pid=12), LoaderState(pid=11, is_spark_starting=True), None):
        found = status(gsn=9, bulk=done, steps=4, loader=other)
        view = LineView(console(out := io.StringIO()), clock=Hands())
        view.show(found)
        assert line not in out.getvalue()


def draw_view(found: Status, width: int) -> str:
    """Return what the live view shows on a screen of this width."""
    view = LiveView(Console(file=io.StringIO(), force_terminal=True, width=width), clock=Hands())
    view.close()
    view.show(found)
    paper = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    paper.print(view.draw(found))
    return paper.export_text()


def long_names() -> Status:
    """Return a load of tables with long names, changes, and tables that are refused."""
    first = bulk(123_456)
    tables = tuple(
        msgspec.structs.replace(first.tables[0], table=TableName("warehouse", "t" * 30 + str(n)))
        for n in range(3)
    )
    whole = msgspec.structs.replace(first, tables=tables, rows_per_s=12_345.0, eta_s=754.0)
    return status(gsn=1_234_567, applied=1_134_567, bulk=whole, tables=(REFUSED, PAUSED))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_goes_beyond_the_screen(width: int) -> None:
    """The terminal would break it, and leave pieces when the view is redrawn."""
    text = draw_view(long_names(), width)
    assert max(map(len, text.splitlines())) <= width
    for wanted in ("bulk load", "extracted", "refused", "paused", "change log"):
        assert wanted in text
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None)
    view = LiveView(terminal, clock=Hands())
    view.event("an event that is rather long, with many words, " * 3)
    view.show(long_names())
    view.finish(long_names())
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).replace("\r", "")
    assert max(map(len, plain.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 99, 120])
def test_the_line_of_the_whole_bulk_load_is_not_cut(width: int) -> None:
    """The number of loaded tables was once cut to `10…` at 80 columns."""
    text = draw_view(status(bulk=many_tables(big_done=False, small_done=1)), width)
    assert "1 of 11 tables" in text
    for found in (text, draw_view(long_names(), width)):
        (line,) = [line for line in found.splitlines() if line.startswith("  bulk load")]
        assert "…" not in line


def test_counts_have_the_right_number_and_no_position_is_none() -> None:
    """One segment is not `1 segments`, and the beginning of a log is not `up to 0/0`."""
    found = status(gsn=5, applied=0)
    found = replace(
        found,
        log=replace(found.log, segments=1),
        target=replace(found.target, applied=replace(found.target.applied, position=0)),
    )
    rows = {label.strip(): value for label, value in change_rows(found)}
    assert rows["change log"].startswith("1 segment, ")
    assert rows["loaded"].endswith("transactions") or rows["loaded"].endswith("transaction")
    empty = replace(found, log=replace(found.log, end=FlushPoint(position=0)))
    assert "0/0" not in change_line(empty, 0.0, 0.0)
    assert all("0/0" not in value for _, value in change_rows(empty))
    assert count_words(0, "table") == "0 tables"


def test_a_screen_knows_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines for pipes are never broken; lines for a screen are."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    made = screen()
    made.print("word " * 30)
    assert max(map(len, made.file.getvalue().splitlines())) <= 50  # type: ignore[attr-defined]


def many_tables(*, big_done: bool, small_done: int) -> BulkProgress:
    """Return one table of a gigabyte, and ten that are almost empty."""
    big = TableProgress(
        table=TableName("public", "big"),
        rows_done=1000 if big_done else 500,
        rows_total=1000,
        bytes_done=2**30 if big_done else 2**29,
        bytes_total=2**30,
        chunks_done=16 if big_done else 8,
        chunks_total=16,
    )
    small = tuple(
        TableProgress(
            table=TableName("public", f"small{n}"),
            bytes_done=8192 if n < small_done else 0,
            bytes_total=8192,
            chunks_done=int(n < small_done),
            chunks_total=1,
        )
        for n in range(10)
    )
    size = sum(item.bytes_done for item in (big, *small))
    return BulkProgress(
        phase="copying", tables=(big, *small), bytes_done=size, bytes_total=2**30 + 10 * 8192
    )


def test_the_whole_is_not_nearly_done_while_most_tables_wait() -> None:
    """Small tables take time, too: it counts, and the remaining time is never zero."""
    rates = Rates()
    rates.add(0.0, many_tables(big_done=False, small_done=0))
    found = rates.add(10.0, many_tables(big_done=True, small_done=1))
    assert found.eta_s is not None
    assert found.eta_s > 0.5
    assert share_of(found) < 0.98
    assert "2 of 11 tables" in bulk_line(found)
    assert "99%" not in bulk_line(found)
    assert " 0.0 s to go" not in bulk_line(found)
    stands = rates.add(40.0, many_tables(big_done=True, small_done=1))
    stands = rates.add(80.0, many_tables(big_done=True, small_done=1))
    assert stands.eta_s is None
    assert "to go" not in bulk_line(stands)


def test_rows_that_are_under_way_are_not_done() -> None:
    """Estimates may be exceeded before a chunk is committed: it does not show 100 % and 0 s."""
    item = many_tables(big_done=False, small_done=0).tables[0]
    full = msgspec.structs.replace(item, bytes_done=item.bytes_total)
    whole = msgspec.structs.replace(many_tables(big_done=False, small_done=0), tables=(full,))
    assert share_of(full) < 1
    assert share_of(whole) < 1
    done = msgspec.structs.replace(full, chunks_done=16)
    ended = msgspec.structs.replace(whole, tables=(done,))
    assert share_of(ended) == 1
    assert "100%, 1 of 1 table" in bulk_line(ended)
    assert bulk_line(ended).endswith("keys and indexes follow")


def test_last_lines_say_whether_it_is_done() -> None:
    """The pipeline is done if CHANGE.DONE is there and no row is left; else they say how to
    continue.
    """
    assert "run it again" in last_lines(status(gsn=5))[-1]
    done = status(gsn=5, applied=5)
    done = with_done(done)
    assert last_lines(done)[-1].endswith("done")
    assert last_lines(None) == ["stopped"]


def with_done(before: Status, rows: int = 0) -> Status:
    """Return the same status with CHANGE.DONE and so many rows outstanding."""
    assert before.lag is not None
    return replace(before, log=replace(before.log, done=True), lag=replace(before.lag, rows=rows))


def test_status_has_a_line_for_each_consumer_and_the_server() -> None:
    """The line has state, position and lag, and the error that ended the process."""
    consumers = (
        ConsumerLine(name="audit", state="reading", pid=9, saved=40, lag_events=1, lag_seconds=2.5),
        ConsumerLine(name="mails", state="failed", saved=7, lag_events=0, error="no", hint="Do."),
        ConsumerLine(name="new", state="not registered"),
    )
    found = replace(status(gsn=5, applied=5), consumers=consumers, serve=ServeSeen(pid=0))
    out = io.StringIO()
    show_status(found, console(out))
    lines = out.getvalue().splitlines()
    first = lines.index(
        "consumer audit: reading (pid 9), saved up to gsn 40, 1 event behind, 2.5 s"
    )
    assert lines[first + 1 : first + 6] == [
        "consumer mails: failed, saved up to gsn 7, 0 events behind",
        "        no",
        "        > Do.",
        "consumer new: not registered, nothing saved yet",
        "serve: does not run",
    ]
    as_json = found.as_dict()
    assert [one["consumer"] for one in as_json["consumers"]] == ["audit", "mails", "new"]
    assert as_json["serve"]["pid"] is None
    assert "consumers" not in status().as_dict(), "only `read_status` reads them"


def test_no_position_is_shown_where_none_is_known() -> None:
    """0/0 exists on no server: no row is extracted, or applied, yet."""
    out = io.StringIO()
    found = status()
    empty = replace(found, lag=None, log=replace(found.log, end=FlushPoint(position=0)))
    show_no_lag(empty, console(out))
    show_lag(replace(lag(), log_position=0, applied_position=0), console(out))
    assert "0/0" not in out.getvalue()
    assert out.getvalue().count("its beginning") == 3
