"""`penstock run` and its consumers: a failed one is restarted and ends no other process."""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.config import load_config
from penstock.control.run import supervisor
from penstock.control.run.child_ends import HalfFailed
from penstock.control.run.supervisor import Supervisor, commands_of
from penstock.host.clock import REAL_CLOCK

ERROR = '{"code": "CN05", "error": "told to fail", "hint": "fix it"}'


def half(
    name: str, program: str, *, is_consumer: bool = False, serves: bool = False
) -> supervisor.Half:
    """Return a process that runs this Python program."""
    return supervisor.Half(
        name=name,
        arguments=[sys.executable, "-c", program],
        diagnostics=io.StringIO(),
        is_consumer=is_consumer,
        serves=serves,
    )


def run(
    halves: list[supervisor.Half],
    *,
    is_log_done: bool = False,
    until: Callable[[list[Any]], bool] = lambda _: False,
) -> list[Any]:
    """Return the events of a run; until: asks for its end."""
    stop, events = StopRequest(), list[Any]()

    def on_event(text: str, kind: str = "note", **fields: Any) -> None:
        events.append((kind, text, fields))

    def on_tick() -> None:
        if until(events):
            stop.ask()

    Supervisor(
        halves, stop, on_event=on_event, on_tick=on_tick, is_log_done=lambda: is_log_done
    ).run()
    return events


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that is earlier than in production."""
    monkeypatch.setattr(supervisor, "RESTART_WAIT_FIRST_S", 0.05)


SLEEP = "import time; time.sleep(60)"
FAIL = f"import sys; sys.exit(print({ERROR!r}, file=sys.stderr) or 1)"


@pytest.mark.promise
@pytest.mark.parametrize("end", [FAIL, "import os; os.kill(os.getpid(), 9)"], ids=["error", "kill"])
def test_a_consumer_that_fails_is_started_again_and_ends_nothing(end: str) -> None:
    """The consumer is restarted more often than a half; load and other consumer are not touched."""
    load, other = half("load", SLEEP), half("consume-b", SLEEP, is_consumer=True)
    failing = half("consume-a", end, is_consumer=True)
    events = run([load, failing, other], until=lambda found: len(found) > 2)
    failures = [fields for kind, _, fields in events if kind == "consumer failed"]
    assert len(failures) >= 3
    assert {one["process"] for one in failures} == {"consume-a"}
    if end == FAIL:
        assert failures[0]["error"]["error"] == "told to fail"
    assert (load.restarts, other.restarts, load.code, other.code) == (0, 0, -15, -15)


def test_the_pauses_between_grow_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are 1, 2, 4 ... 60 seconds."""
    monkeypatch.setattr(supervisor, "RESTART_WAIT_FIRST_S", 1.0)
    failing = half("consume-a", "", is_consumer=True)
    failing.code, failing.lines = 1, deque([ERROR])
    said: list[str] = []
    watch = Supervisor(
        [failing],
        StopRequest(),
        on_event=lambda text, *_, **__: said.append(text),
        on_tick=lambda: None,
    )
    failing.started_s = REAL_CLOCK.monotonic_s()
    for _ in range(9):
        watch._consumer_ended(failing)
    waits = [text.partition("again in ")[2].partition(" s")[0] for text in said]
    assert waits == ["1", "2", "4", "8", "16", "32", "60", "60", "60"]


def test_consumers_read_a_finished_log_to_its_end() -> None:
    """The load is done with exitWhenIdle, and the run waits for them."""
    slow = half("consume-a", "import time; time.sleep(1.0)", is_consumer=True)
    run([half("load", ""), slow], is_log_done=True)
    assert slow.code == 0


def test_a_failure_at_the_very_end_is_the_runs() -> None:
    """The failure would otherwise stay unnoticed: the exit code shows it."""
    failing = half("consume-a", f"import time; time.sleep(1.0)\n{FAIL}", is_consumer=True)
    with pytest.raises(HalfFailed, match="told to fail"):
        run([half("load", ""), failing], is_log_done=True)


def test_consumers_end_with_a_load_that_was_stopped() -> None:
    """An example is the action STOP: the log is not finished."""
    endless = half("consume-a", SLEEP, is_consumer=True)
    run([half("load", ""), endless])
    assert endless.code == -15


def test_each_consumer_of_the_file_is_a_process(tmp_path: Path) -> None:
    """Consumers are started with the halves, and after them."""
    path = tmp_path / "shop.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "shop"\n'
        '[source]\nurl = "postgresql://u@localhost/a"\ntables = ["public.*"]\n'
        '[consumers.a]\nclass = "m:A"\n[consumers.b]\nclass = "m:B"\n'
    )
    assert commands_of(load_config(path, {})) == {
        "extract": ["extract", str(path)],
        "consume-a": ["consume", str(path), "a"],
        "consume-b": ["consume", str(path), "b"],
    }


@pytest.mark.parametrize("is_log_done", [True, False])
def test_what_serves_ends_when_all_others_have(is_log_done: bool) -> None:
    """A server never ends on its own; until then it is restarted like a consumer."""
    extract = half("extract", "import time; time.sleep(1.5)")
    server = half("serve", SLEEP, is_consumer=True, serves=True)
    failing = half("serve-b", FAIL, is_consumer=True, serves=True)
    events = run([extract, server, failing], is_log_done=is_log_done)
    assert [kind for kind, _, _ in events if kind == "consumer failed"]
    assert (extract.code, server.code) == (0, -15)


def test_a_file_with_serve_has_its_process(tmp_path: Path) -> None:
    """The server is started after the consumers."""
    path = tmp_path / "shop.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "shop"\n'
        '[source]\nurl = "postgresql://u@h/d"\ntables = ["public.*"]\n'
        '[serve]\nusers = { repl = "${W}" }\n'
    )
    found = commands_of(load_config(path, {"W": "x"}))
    assert found["serve"] == ["serve", str(path)]
