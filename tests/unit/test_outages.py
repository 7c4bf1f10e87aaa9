"""Outages of servers: which process reports them, since when, and what is retried next."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness.faults.turned_clock import Hands
from harness.pipelines.followed import follows
from harness.pipelines.pipeline import penstock, pipeline
from harness.pipelines.readings import NOW_US, reading, status
from harness.servers.web import until
from penstock.control.pipeline.display import console
from penstock.control.pipeline.outages import Outage, Retry, read_retries
from penstock.control.pipeline.running import ProcessState
from penstock.control.run import supervisor
from penstock.control.status.lag import TargetState
from penstock.control.status.live import LineView, LiveView
from penstock.control.status.show import show_status
from penstock.control.status.status import Status, StatusReader, table_facts
from penstock.control.tables.table_commands import pause
from penstock.extract.extractor import BACKOFF_S
from penstock.extract.report import ExtractProgress
from penstock.host.errors import ConnectionLost, LoginRefused, ServerUnreachable
from penstock.host.retry import Backoff, Patience, is_outage
from penstock.load.loader_state import LoaderState, read_loader_state, write_loader_state
from penstock.model import TableName
from penstock.web.metrics import expose
from penstock.web.reading import state_of

NOWHERE = "postgresql://u:secret-of-the-url@127.0.0.1:1/d"
LONGEST_S = 5.0


def away(side: str = "target", *, since_s: float = 60.0) -> Outage:
    """Return a server that has been away for so long."""
    since_us = NOW_US - round(since_s * 1e6)
    return Outage(side=side, code="HS22", error="refused", hint="Start it.", since_us=since_us)


def tries(process: str = "load", *, in_s: float = 3.0) -> Retry:
    """Return a process that waits for it."""
    next_us = NOW_US + round(in_s * 1e6)
    return Retry(process=process, error="refused", since_us=NOW_US - 60_000_000, next_us=next_us)


def without_target(*, known: bool = True) -> Status:
    """Return a running pipeline whose target is away. known: the target was there before."""
    found = status()
    return replace(
        found,
        lag=None,
        outages=(away(),),
        retries=(tries(),),
        target=found.target if known else TargetState(unknown=True),
        target_read_us=NOW_US - 60_000_000 if known else 0,
    )


def test_a_server_that_was_there_is_tried_every_few_seconds_without_an_end() -> None:
    """The server is found soon after it is back; other failures end after the usual attempts."""
    patience = Patience(Backoff(attempts=3))
    lost = ServerUnreachable("refused")
    waits = [patience.wait_s(lost) for _ in range(1000)]
    assert all(wait is not None and wait <= LONGEST_S for wait in waits)
    other = ConnectionLost("it dies of our batch")
    assert [patience.wait_s(other) is None for _ in range(3)] == [False, False, True]
    patience.note_progress()
    first = patience.wait_s(lost)
    assert first is not None
    assert first < 1.0
    assert max(BACKOFF_S) <= LONGEST_S
    assert all(a <= b for a, b in itertools.pairwise(BACKOFF_S))


def test_a_server_that_refuses_is_no_outage() -> None:
    """The server will not recover without an action."""
    assert is_outage(ServerUnreachable("down"))
    assert not is_outage(LoginRefused("wrong password"))
    assert not is_outage(ValueError("anything else"))


def test_a_failure_is_dated_by_its_first_time() -> None:
    """Retries do not change the time; a success clears it. Both processes write it alike."""
    for made in (LoaderState(pid=1), ExtractProgress()):
        made.note_failure("refused", now_us=5_000_000, wait_s=1.0)
        made.note_failure("refused", now_us=9_000_000, wait_s=2.0)
        assert (made.problem_since_us, made.next_try_us) == (5_000_000, 11_000_000)
        made.note_progress()
        assert (made.problem, made.problem_since_us, made.next_try_us) == ("", 0, 0)


def test_what_processes_try_again_is_read_of_those_that_run(tmp_path: Path) -> None:
    """A file that an earlier process has left tells nothing about the present."""
    config = pipeline(tmp_path, NOWHERE, NOWHERE)
    state = LoaderState(pid=os.getpid(), state="retrying")
    state.note_failure("refused", now_us=1_000_000, wait_s=4.0)
    write_loader_state(config.layout.run, state)
    assert read_loader_state(config.layout.run) == state
    running = [ProcessState(name=name, pid=os.getpid()) for name in ("run", "extract", "load")]
    [found] = read_retries(config, running)
    assert (found.process, found.since_us, found.next_us) == ("load", 1_000_000, 5_000_000)
    assert read_retries(config, [ProcessState(name="load", pid=0)]) == ()
    assert read_retries(config, [ProcessState(name="load", pid=os.getpid() + 1)]) == ()
    state.state = "applying"
    write_loader_state(config.layout.run, state)
    assert read_retries(config, running) == ()


def test_a_status_is_read_while_servers_are_away(tmp_path: Path) -> None:
    """Facts of an absent server are unknown; the beginning of the outage is remembered."""
    hands = Hands()
    config = pipeline(tmp_path, NOWHERE, NOWHERE, tables=["public.item"])
    follows(config, TableName("public", "item"))
    pause(config, TableName("public", "item"))
    reader = StatusReader(config, clock=hands)
    first = reader.read()
    hands.now_s += 30
    second = reader.read()
    for found in (first, second):
        assert {one.side: one.code for one in found.outages} == {"source": "HS22", "target": "HS22"}
        assert found.target.unknown
        assert found.lag is None
        assert all("\n" not in one.error for one in found.outages)
        assert [line.state for line in found.tables] == ["unknown"]
        assert [fact.state for fact in table_facts(found, ())] == ["not known"]
        shown = json.loads(msgspec.json.encode(found.as_dict()))
        assert (shown["applied"], shown["lag"], shown["action"]) == (None, None, None)
        assert "secret-of-the-url" not in json.dumps(shown)
    assert [a.since_us for a in first.outages] == [b.since_us for b in second.outages]
    assert "(30 s)" in second.outage_lines()[0]


def test_status_and_lag_tell_what_is_away(tmp_path: Path) -> None:
    """Commands show known facts; others are unknown, and no number replaces them."""
    config = pipeline(tmp_path, NOWHERE, NOWHERE)
    status = penstock("status", config.path)
    assert status.code == 0, status.err
    for wanted in ("target unreachable", "source unreachable", "unknown", "nothing is tried again"):
        assert wanted in status.out
    lag = penstock("lag", config.path)
    assert lag.code == 1
    assert "unknown: source unreachable, target unreachable" in lag.out
    assert "0.0 s" not in status.out + lag.out
    told = penstock("lag", config.path, "--json")
    assert told.code == 1
    assert json.loads(told.out)["lag_seconds"] is None
    assert [one["side"] for one in json.loads(told.out)["unreachable"]] == ["source", "target"]


def test_a_server_that_takes_a_question_and_is_silent_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops all packets must not leave old facts on display as current."""
    silent, asked = threading.Event(), threading.Event()

    class Reader(StatusReader):
        """Fake reader that answers once."""

        def read(self, **_: bool) -> Status:
            """Read repeatedly."""
            self.asking = "target"
            if asked.is_set():
                silent.wait(30)
            asked.set()
            return status()

    monkeypatch.setattr(supervisor, "StatusReader", Reader)
    monkeypatch.setattr(supervisor, "STATUS_INTERVAL_S", 0.0)
    monkeypatch.setattr(supervisor, "SILENT_S", 0.05)
    thread = supervisor.StatusThread(pipeline(tmp_path, NOWHERE, NOWHERE))
    try:
        first = until(thread.take, "a status")
        assert first.outages == ()
        found = until(thread.take, "something is said")
        [outage] = found.outages
        assert (outage.words, found.lag) == ("target unreachable", None)
    finally:
        silent.set()
        thread.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_run_tells_what_is_away_and_that_it_is_back(known: bool) -> None:
    """Each is an event, once; the live view shows the outage as long as it lasts."""
    out = io.StringIO()
    lines = LineView(console(out), clock=Hands())
    live = LiveView(Console(file=out, force_terminal=True, width=120, color_system=None))
    for view in (lines, live):
        out.truncate(0)
        view.show(status())
        for _ in range(3):
            view.show(without_target(known=known))
        told = out.getvalue()
        assert "target unreachable since" in told
        assert "(1 min 00 s): refused" in told
        assert "load tries again in 3.0 s" in told
        view.show(status())
        assert "target answers again, after 1 min 00 s" in out.getvalue()
    live.close()
    drawn = Console(width=100, record=True, file=io.StringIO())
    drawn.print(live.draw(without_target(known=known)))
    text = drawn.export_text()
    assert "unknown: target unreachable" in text
    assert "0.0 s" not in text


def test_what_is_shown_of_the_target_says_when_it_was_read() -> None:
    """Earlier numbers are shown as such."""
    out = io.StringIO()
    show_status(without_target(), console(out))
    assert "when last read, at" in out.getvalue()
    out = io.StringIO()
    show_status(without_target(known=False), console(out))
    text = out.getvalue()
    assert "action     unknown" in text
    assert "loaded      unknown: target unreachable" in text
    gone = replace(without_target(), processes=(), retries=())
    assert gone.outage_lines()[-1].endswith("nothing is tried again")


def test_a_page_says_unknown_and_its_badge_is_no_good_one() -> None:
    """This covers state, lag and rates; metrics name the server and omit unknown values."""
    for known in (True, False):
        found = reading(without_target(known=known))
        assert state_of(found) == "target unreachable"
        metrics = expose([("shop", found)]).decode()
        for wanted in (
            'penstock_server_reachable{pipeline="shop",side="target"} 0.0',
            'penstock_server_reachable{pipeline="shop",side="source"} 1.0',
            'penstock_server_unreachable_since_seconds{pipeline="shop",side="target"}',
            'penstock_next_try_timestamp_seconds{pipeline="shop",process="load"}',
        ):
            assert wanted in metrics
        assert "penstock_lag_seconds{" not in metrics
        assert ("penstock_loaded_rows_total{" in metrics) is known
