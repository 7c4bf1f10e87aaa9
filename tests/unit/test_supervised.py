"""Supervised threads: errors are shown, counted, retried, and end the process at last."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.feeds.staging import FakeStaging
from penstock.control.feeds import feed_groups
from penstock.control.feeds.feed_groups import Groups, GroupWorker
from penstock.control.feeds.feed_status import Notes
from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.config import load_config
from penstock.host import supervised
from penstock.host.retry import Backoff
from penstock.host.supervised import SupervisedThread, ThreadFailed
from penstock.model import PenstockError

SRC = Path(__file__).resolve().parents[2] / "src" / "penstock"
QUICK = Backoff(first_s=0.001, longest_s=0.001, attempts=4)
STARTS = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor"}
AWAITED = "what awaits its future gets the error"
# Places that start threads in another way: how many, and where their errors go.
EXCEPTIONS = {
    "host/supervised.py": (2, "the supervised thread itself, and what ends the process"),
    "control/verify/compare.py": (1, "who iterates over the rows gets the error"),
    "control/feeds/feed_show.py": (1, "it draws bars; any error is logged, and staging goes on"),
    "control/run/table_copy.py": (1, "any error is shown with the table; the other tables flow on"),
    "control/run/pipeline.py": (1, "stop(), wait() and the end of the block raise any error"),
    "engines/ignite/directory.py": (1, "what it could not read is read again in its turn"),
    "engines/lake/demo.py": (1, "who asks for the rows gets the error"),
    "engines/lake/target.py": (1, "a batch waits for its commits, and raises their errors"),
    "engines/lake/verify.py": (1, "who asks for the rows gets the error"),
    "engines/mysql/source/session_proxy.py": (1, "a client's: it sees its connection end"),
    "engines/mysql/source/stream.py": (1, "any error is given to who takes the runs"),
    "engines/postgres/server/shop.py": (1, "join() raises any error"),
    "engines/postgres/source/stream.py": (1, "any error is given to who takes the runs"),
    "load/apply_parts.py": (1, "the batch raises the error of each part"),
    "load/prefetch.py": (1, "fetch() raises any error"),
    "load/session.py": (
        3,
        "result() raises any error; a timer that cancels a job; warm-up logs it",
    ),
    "serve/serving.py": (2, f"the tail's error ends the server; {AWAITED}"),
    "web/task.py": (1, "a timer that ends the process"),
    "control/run/serve_process.py": (1, AWAITED),
    "engines/mysql/verify.py": (1, AWAITED),
    "engines/postgres/target/bulk.py": (1, AWAITED),
    "engines/oracle/verify.py": (1, AWAITED),
    "engines/postgres/verify.py": (1, AWAITED),
    "engines/sqlserver/verify.py": (1, AWAITED),
    "load/chunk.py": (1, AWAITED),
    "serve/blocks.py": (1, AWAITED),
    "serve/slots.py": (1, AWAITED),
    "feeds/receiver/app.py": (1, AWAITED),
}


class Known(PenstockError):
    """An error that is foreseen."""

    code = "XX01"


@pytest.fixture
def fatal_errors(monkeypatch: pytest.MonkeyPatch) -> list[PenstockError]:
    """The errors for which this process would have been ended."""
    found: list[PenstockError] = []
    monkeypatch.setattr(supervised, "end_process", found.append)
    return found


def failing(errors: list[BaseException | None]) -> Callable[[], None]:
    """Return work that raises these errors, one per call; for None it returns."""

    def work() -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    return work


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(0), MemoryError(), Known("b")])
def test_an_error_is_shown_and_counted_and_the_work_goes_on(
    error: BaseException, fatal_errors: list[PenstockError]
) -> None:
    """Any error is shown; Python ignores SystemExit of a thread."""
    shown: list[tuple[PenstockError, float]] = []
    thread = SupervisedThread(
        "one",
        failing([error, error, None]),
        wait=StopRequest().wait,
        on_error=lambda *given: shown.append(given),
        tries=QUICK,
    )
    thread.start()
    thread.join()
    assert (thread.failures, thread.error, fatal_errors) == (2, None, [])
    assert [wait_s > 0 for _, wait_s in shown] == [True, True]
    assert {one.code for one, _ in shown} == {"XX01" if isinstance(error, Known) else "HS72"}
    assert type(error).__name__ in shown[0][0].message or isinstance(error, Known)


def test_after_so_many_tries_the_process_is_ended(fatal_errors: list[PenstockError]) -> None:
    """The owner sees the error as well; this holds also if it cannot be shown."""

    def show(_error: PenstockError, _wait_s: float) -> None:
        raise OSError("disk full")

    thread = SupervisedThread(
        "one", failing([ZeroDivisionError()] * 9), wait=StopRequest().wait, on_error=show,
        tries=QUICK,
    )  # fmt: skip
    thread.start()
    thread.join()
    assert thread.failures == QUICK.attempts
    assert [type(one) for one in fatal_errors] == [ThreadFailed]
    with pytest.raises(ThreadFailed, match="unexpected ZeroDivisionError in the thread one"):
        thread.check()


def test_work_that_went_on_for_long_counts_anew(fatal_errors: list[PenstockError]) -> None:
    """One failure a day does not end the process."""

    class Clock:
        now_s = 0.0

        def monotonic_s(self) -> float:
            self.now_s += supervised.STEADY_S
            return self.now_s

    clock: Any = Clock()
    thread = SupervisedThread(
        "one", failing([*[ValueError()] * 6, None]), wait=StopRequest().wait, tries=QUICK,
        clock=clock,
    )  # fmt: skip
    thread.start()
    thread.join()
    assert (thread.failures, fatal_errors) == (6, [])


def test_an_end_that_was_asked_for_ends_the_tries(fatal_errors: list[PenstockError]) -> None:
    """The stop ends them without a wait."""
    stop = StopRequest()
    stop.ask()
    thread = SupervisedThread("one", failing([ValueError()]), wait=stop.wait)
    thread.start()
    thread.join()
    assert (thread.failures, fatal_errors) == (1, [])


def test_a_foreseen_error_may_be_its_owners(fatal_errors: list[PenstockError]) -> None:
    """The thread with `gives_up` ends, and its owner raises; an unknown error is retried first."""
    thread = SupervisedThread(
        "one", failing([KeyError(), Known("b")]), wait=StopRequest().wait, gives_up=True,
        tries=QUICK,
    )  # fmt: skip
    thread.check()
    thread.start()
    thread.join()
    assert (thread.failures, fatal_errors) == (1, [])
    with pytest.raises(Known):
        thread.check()


def test_a_thread_that_was_not_started_can_be_joined() -> None:
    """This happens if the code that should start it has failed."""
    SupervisedThread("one", failing([]), wait=StopRequest().wait).join()


PROGRAM = """
import sys, time
from penstock.cli import entry
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.host import supervised
from penstock.host.retry import Backoff

supervised.END_WITHIN_S = {within_s}
stop = StopRequest()

def command(**_):
    with stop_on_signals(stop):
        supervised.SupervisedThread(
            "worker", lambda: 1 / 0, wait=stop.wait, tries=Backoff(first_s=0.01, attempts=2)
        ).start()
        {waits}
    print("went on")

entry.cli.main = command
sys.argv = ["penstock", "run", "shop.toml", "--json"]
entry.main()
"""

# What a program of a user does that runs pipelines with `penstock.Pipeline`.
USERS_PROGRAM = """
import signal, threading, time
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.host import supervised
from penstock.host.retry import Backoff

supervised.END_WITHIN_S = 0.1
signal.signal(signal.SIGTERM, lambda *_: print("a signal", flush=True))
fails = lambda: supervised.SupervisedThread(
    "worker", lambda: 1 / 0, wait=time.sleep, tries=Backoff(first_s=0.01, attempts=2)
)
both_run = threading.Barrier(3)

def say(text):
    print(text + "\\n", end="", flush=True)  # in one piece: two threads do it

def run(stop, *waits):
    with stop_on_signals(stop):
        for wait in waits:
            wait()
        assert stop.wait(30)

def run_in_thread():
    try:
        run(StopRequest(), both_run.wait)
    except supervised.ThreadFailed:
        say("a run in a thread ended")

def fail_then():
    both_run.wait()
    fails().start()

threads = [threading.Thread(target=run_in_thread), threading.Thread(target=fail_then)]
for thread in threads:
    thread.start()
try:
    run(StopRequest(), both_run.wait)
except supervised.ThreadFailed:
    say("a run ended")
for thread in threads:
    thread.join()
time.sleep(0.3)
stop = StopRequest()
stop.ask()
run(stop)
worker = fails()
worker.start()
worker.join()
print("went on:", type(worker.error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("waits", "within_s"),
    [("stop.wait(30)", 30), ("while True: time.sleep(0.05)", 0.3)],
)
def test_the_process_ends_with_an_exit_code_that_is_not_0(waits: str, within_s: float) -> None:
    """The process ends in order, the error is its last line; or at once, if that takes too long."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(waits=waits, within_s=within_s)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == supervised.EXIT_CODE
    assert "went on" not in done.stdout
    if within_s > 1:
        assert '"code": "HS72"' in done.stderr.replace('":"', '": "')


def test_a_program_of_a_user_goes_on() -> None:
    """Each of its runs ends with the error; no signal is sent, and the next run is a new one."""
    done = subprocess.run(
        [sys.executable, "-c", USERS_PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith(("a ", "went on"))]
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert sorted(said) == ["a run ended", "a run in a thread ended", "went on: ThreadFailed"]


def test_every_thread_of_src_is_supervised_or_its_errors_have_a_place_to_go() -> None:
    """Threads are counted by file; a new one is supervised, or gets a reason here."""
    found: Counter[str] = Counter()
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        if not any(word in text for word in (*STARTS, "_thread")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _name(node.func) in STARTS:
                found[str(path.relative_to(SRC))] += 1
            if isinstance(node, ast.ClassDef):
                assert not {_name(base) for base in node.bases} & STARTS, path
            assert not (isinstance(node, ast.Import) and _has_thread_module(node)), path
    assert dict(found) == {file: count for file, (count, _) in EXCEPTIONS.items()}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _has_thread_module(node: ast.Import) -> bool:
    return any(one.name == "_thread" for one in node.names)


def test_a_group_whose_work_has_a_defect_does_not_look_as_if_it_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group waits, says why, and is retried."""
    file = tmp_path / "shop.toml"
    file.write_text(
        """[pipeline]\nname = "shop"\ndirectory = "shop"\n[stage]\n[staging]\n"""
        """url = "postgresql://s@localhost/s"\n[target]\nurl = "postgresql://t@localhost/shop"\n"""
    )
    seen: list[str] = []

    def tenure(worker: GroupWorker) -> None:
        seen.append(f"{worker.state}: {worker.problem and worker.problem.code}")
        worker.state = "working"
        if len(seen) == 1:
            raise KeyError("not foreseen")
        stop.ask()

    monkeypatch.setattr(GroupWorker, "_tenure", tenure)
    monkeypatch.setattr(Notes, "note_problem", lambda *_: None)
    stop = StopRequest()
    sequencer: Any = SimpleNamespace(dlq_table="d")
    worker = GroupWorker(load_config(file), ("shop", "public"), FakeStaging(), sequencer, stop)
    worker.join()
    assert seen == ["idle: None", "waiting: HS72"]
    assert worker.state == "ended"


def test_groups_are_looked_for_after_a_defect() -> None:
    """Later schemas would otherwise never be worked on."""
    stop, looks = StopRequest(), []

    def look(_groups: Groups, names: tuple[str, ...]) -> None:
        looks.append(names)
        if len(looks) == 1:
            raise KeyError("not foreseen")
        stop.ask()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Groups, "_look", look)
        patch.setattr(feed_groups, "TargetSchemas", lambda _: None)
        nothing: Any = None
        Groups(nothing, FakeStaging(), nothing, stop).join()
    assert looks == [(), ()]


def test_a_line_of_a_child_that_cannot_be_taken_does_not_stop_the_others(
    fatal_errors: list[PenstockError],
) -> None:
    """The child would block once its pipe is full."""
    from penstock.host.process import Child

    taken: list[str] = []
    done = threading.Event()

    def take(line: str) -> None:
        if line == "bad":
            raise KeyError(line)
        taken.append(line)
        if line == "three":
            done.set()

    program = "import sys; print('one\\nbad\\nthree', file=sys.stderr)"
    child = Child([sys.executable, "-c", program], on_line=take)
    assert done.wait(30)
    assert child.wait(30) == 0
    child.close()
    assert (taken, fatal_errors) == (["one", "three"], [])
