"""Waits of a process for a server: the file, and how a run and the web page show them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.pipelines.readings import status as status_of
from penstock.control.status.run_events import RunEvents
from penstock.host.clock import REAL_CLOCK
from penstock.host.waits import FRESH_US, Holder, Waits, read_waits, write_waits
from penstock.web.watching import troubles_of_waits

HOLDER = Holder(what="process 7, idle in transaction", command="select pg_terminate_backend(7);")


class At:
    """A clock that stands still."""

    def __init__(self, us: int) -> None:
        self.us = us

    def now_us(self) -> int:
        """Return the time."""
        return self.us


def test_a_wait_is_read_while_it_is_fresh(tmp_path: Path) -> None:
    """A file that a killed process has left expires soon."""
    clock: Any = At(50_000_000)
    assert read_waits(tmp_path, clock) is None
    write_waits(tmp_path, "the slot", 3.0, [HOLDER], clock)
    found = read_waits(tmp_path, clock)
    assert found is not None
    assert (found.since_us, found.holders) == (47_000_000, (HOLDER,))
    assert found.lines() == [
        "the slot waits for process 7, idle in transaction; end it: select pg_terminate_backend(7);"
    ]
    clock.us += FRESH_US
    assert read_waits(tmp_path, clock) is None
    write_waits(tmp_path, "the slot", 3.0, [HOLDER], clock)
    write_waits(tmp_path, "the slot", 0.0, [], clock)
    assert read_waits(tmp_path, clock) is None


def test_a_run_says_each_wait_once_and_that_it_is_over() -> None:
    """A wait for another holder is another event."""
    told: list[str] = []

    def report(text: str, kind: str = "note", **_: Any) -> None:
        if kind in ("waiting", "waited"):
            told.append(text)

    events = RunEvents(REAL_CLOCK)
    status = status_of()
    waits = Waits(what="the slot", since_us=1, written_us=2, holders=(HOLDER,))
    other = replace_holder(waits, "kill 8")
    for one in (None, waits, waits, other, other, None, None):
        events.take(replace(status, waits=one), report)
    assert len(told) == 3
    assert "pg_terminate_backend(7)" in told[0]
    assert "kill 8" in told[1]
    assert "have ended" in told[2]
    waiting = replace(status, waits=waits)
    assert any("end it" in line for line in waiting.outage_lines())
    assert waiting.as_dict()["waits_for"]["what"] == "the slot"


def replace_holder(waits: Waits, command: str) -> Waits:
    """Return the same wait for another holder."""
    return Waits(
        what=waits.what,
        since_us=waits.since_us,
        written_us=waits.written_us,
        holders=(Holder(what="another", command=command),),
    )


def test_the_web_page_shows_a_wait_as_trouble() -> None:
    """The page shows what to type next."""
    waits = Waits(what="the slot", since_us=5, written_us=6, holders=(HOLDER,))
    [trouble] = troubles_of_waits(waits)
    assert trouble.hint == HOLDER.command
    assert "process 7" in trouble.error
    assert trouble.since_us == 5
    assert troubles_of_waits(None) == []
