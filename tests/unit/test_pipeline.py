"""`penstock.Pipeline`: its methods are the commands; runs that other threads stop; the wait."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog

import penstock
from harness.pipelines.cli import call_cli
from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.diagnostics import (
    configure_diagnostics,
    diagnostics_to,
    keep_quiet,
)
from penstock.control.run import supervisor
from penstock.control.run.pipeline import Pipeline, Tables
from penstock.control.status import lag_report
from penstock.control.status.lag_report import LagReport, NotAppliedInTime, wait_until_applied
from penstock.control.tables import table_commands
from penstock.control.tables.table_commands import TableNotTaken
from penstock.host.process import holder_of
from penstock.model import PenstockError, TableName

WITHIN_S = 10.0


class Reached(PenstockError):
    """Error that shows that a method was called."""

    code = "XX02"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A pipeline file; its servers do not exist."""
    return write_pipeline(tmp_path, "postgresql://u@127.0.0.1:1/d", "postgresql://u@127.0.0.1:1/e")


HOLDER = """
exec 9<>RUN.LOCK
echo $$ >&9
echo held
read wait
exec 9>&-
echo closed
read wait
"""


def test_a_program_of_another_name_is_seen_at_work(tmp_path: Path) -> None:
    """A notebook holds the lock of its run; a loader obeys its verify, too.

    A program that has the pid of an earlier holder does not have the file open.
    """
    lock = tmp_path / "RUN.LOCK"
    program = subprocess.Popen(
        ["/bin/sh", "-c", HOLDER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        assert holder_of(lock) == program.pid
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "closed\n"
        assert holder_of(lock) == 0


@pytest.mark.parametrize(
    ("owner", "method", "words"),
    [
        (Pipeline, "run", ("run",)),
        (Pipeline, "status", ("status",)),
        (Pipeline, "lag", ("lag",)),
        (Pipeline, "verify", ("verify",)),
        (Tables, "list", ("table", "ls")),
        (Tables, "add", ("table", "add")),
        (Tables, "remove", ("table", "remove")),
        (Tables, "pause", ("table", "pause")),
        (Tables, "resume", ("table", "resume")),
        (Tables, "resync", ("table", "resync")),
    ],
)
def test_a_command_calls_the_method_of_its_name(
    owner: type[Any],
    method: str,
    words: tuple[str, ...],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command line has no second implementation."""

    def raise_error(*_: object, **__: object) -> None:
        raise Reached("reached")

    monkeypatch.setattr(owner, method, raise_error)
    names = [] if words[0] != "table" or words[1] == "ls" else ["public.item"]
    code, _, err = call_cli(capsys, *words, str(path), *names)
    assert code == 1
    assert err == "error XX02: reached\n"


def test_the_package_has_the_class() -> None:
    """`penstock.Pipeline` is the documented name."""
    assert penstock.Pipeline is Pipeline


def test_a_file_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    """The error is the one of the command."""
    with pytest.raises(PenstockError, match="cannot read") as caught:
        Pipeline(tmp_path / "nowhere.toml")
    assert caught.value.code == "CF01"


def test_hints_name_the_file(path: Path) -> None:
    """A hint says what to type."""
    (path.parent / "merged.toml").write_text(
        f'[pipeline]\nname = "all"\ndirectory = "all"\n[merge]\nlogs = ["{path.name}"]\n'
    )
    merged = Pipeline(path.parent / "merged.toml")
    with pytest.raises(PenstockError, match=r"has \[merge\]") as caught:
        merged.tables.pause("public.item")
    assert "table pause" in caught.value.hint
    assert "public.item" in caught.value.hint


@pytest.mark.parametrize("name", ["item", ".item", "public."])
def test_a_table_is_named_with_its_schema(path: Path, name: str) -> None:
    """Another form is a typed error."""
    with pytest.raises(TableNotTaken, match=r"is not schema\.table"):
        Pipeline(path).tables.pause(name)


def test_a_request_says_whether_the_pipeline_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is what `--json` prints."""
    asked: list[TableName] = []
    monkeypatch.setattr(table_commands, "pause", lambda _, table: asked.append(table))
    answer = Pipeline(path).tables.pause("public.item")
    assert asked == [TableName("public", "item")]
    assert answer.as_dict() == {"table": "public.item", "asked": True, "running": False}


class Run:
    """A fake of `run_pipeline`: it passes its checks, and ends when it is asked to."""

    def __init__(self) -> None:
        self.before: BaseException | None = None
        self.after: BaseException | None = None
        self.started = threading.Event()
        self.go = threading.Event()

    def __call__(
        self,
        _config: object,
        view: Any,
        *,
        stop: StopRequest,
        on_started: Callable[[], object],
        **_: object,
    ) -> None:
        """Run until `stop`, or until `go` if there is an error to end with."""
        view.event("checking", "checking")
        if self.before is not None:
            raise self.before
        on_started()
        self.started.set()
        if self.after is not None:
            assert self.go.wait(WITHIN_S)
            raise self.after
        assert stop.wait(WITHIN_S)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The fake in place of the function."""
    fake = Run()
    monkeypatch.setattr(supervisor, "run_pipeline", fake)
    return fake


def test_another_thread_stops_a_run(path: Path, run: Run) -> None:
    """`run` blocks, `stop` ends it; events are those of `--json`."""
    pipeline, seen = Pipeline(path), []

    def stop() -> None:
        assert run.started.wait(WITHIN_S)
        pipeline.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    pipeline.run(on_event=seen.append)
    stopper.join()
    assert [(one["type"], one["text"]) for one in seen] == [("checking", "checking")]
    pipeline.stop()  # nothing runs


def test_a_block_has_a_run(path: Path, run: Run) -> None:
    """The block begins when the checks have passed; at its end the run has ended."""
    with Pipeline(path).running() as running:
        assert run.started.wait(WITHIN_S)
        assert running.is_alive
        assert not running.wait(0.01)
    assert not running.is_alive


def test_a_run_whose_checks_fail_never_begins(path: Path, run: Run) -> None:
    """The error is raised where the block would begin."""
    run.before = Reached("a check failed")
    with pytest.raises(Reached, match="a check failed"), Pipeline(path).running():
        raise AssertionError("the block began")


def test_the_end_of_the_block_raises_the_error_of_the_run(path: Path, run: Run) -> None:
    """A run that failed raises, even if the block did not notice."""
    run.after = Reached("it failed")
    with pytest.raises(Reached, match="it failed"), Pipeline(path).running():
        run.go.set()


def test_an_error_is_raised_once(path: Path, run: Run) -> None:
    """A block that handles the error ends well."""
    run.after = Reached("it failed")
    with Pipeline(path).running() as running:
        run.go.set()
        with pytest.raises(Reached):
            running.wait()


def test_the_error_of_a_block_wins(path: Path, run: Run) -> None:
    """The error of the run is a note of it."""
    run.after = Reached("it failed")
    mine = ValueError("mine")

    def work() -> None:
        with Pipeline(path).running():
            run.go.set()
            raise mine

    with pytest.raises(ValueError, match="mine"):
        work()
    assert mine.__notes__ == ["the run ended with: it failed"]


def test_a_second_signal_is_an_interrupt(path: Path, run: Run) -> None:
    """A program that imports penstock is not ended by SystemExit."""
    run.before = SystemExit(130)
    with pytest.raises(KeyboardInterrupt):
        Pipeline(path).run()


def test_another_thread_leaves_signals_alone() -> None:
    """Python refuses handlers outside the main thread."""
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stop_on_signals(StopRequest()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


@dataclass
class Clock:
    """Clock that sleeping moves."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        """Return the seconds so far."""
        return self.now_s

    def now_us(self) -> int:
        """Return the same in microseconds."""
        return round(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now_s += seconds


@dataclass
class SeenLag:
    """Lag of a fake status."""

    seconds: float | None
    at_most: bool = False
    rows: int = 0


@dataclass
class Seen:
    """Fake status."""

    lag: SeenLag | None
    has_target: bool = True
    running: tuple[str, ...] = ()
    why_no_lag: str = "a server is away"
    lag_words: str = "unknown: a server is away"


class Nudged:
    """Fake source. urls: of the marks that it took."""

    urls: ClassVar[list[str]] = []

    def nudge(self, url: str) -> None:
        """Take a mark."""
        self.urls.append(url)


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch) -> list[SeenLag | None]:
    """The lags that looks at the pipeline find; the last one stays."""
    found: list[SeenLag | None] = []

    class Reader:
        def __init__(self, *_: object, **__: object) -> None:
            self.count = 0

        def read(self) -> Seen:
            self.count += 1
            return Seen(lag=found[min(self.count, len(found)) - 1])

        def close(self) -> None:
            pass

    monkeypatch.setattr(lag_report, "StatusReader", Reader)
    monkeypatch.setattr(lag_report, "verifier_of", lambda _: Nudged())
    return found


@pytest.mark.parametrize(
    ("found", "waited_s"),
    [
        ([SeenLag(0.0)], 0.0),
        ([SeenLag(1.0, at_most=True)], 1.0),  # of a source that never rests
        ([SeenLag(0.1)], 0.5),
        ([None, SeenLag(None), SeenLag(5.0), SeenLag(1.5)], 1.5),
        ([None, SeenLag(None), SeenLag(5.0), SeenLag(1.6)], 2.0),
    ],
)
def test_the_wait_ends_when_the_lag_is_younger_than_the_call(
    lags: list[SeenLag | None], found: list[SeenLag | None], waited_s: float, path: Path
) -> None:
    """The lag is the age of the oldest commit outstanding: then all earlier ones are applied."""
    lags += found
    clock: Any = Clock()
    wait_until_applied(load_config(path), timeout_s=60, clock=clock)
    assert clock.now_s == waited_s


def test_the_source_gets_one_mark(lags: list[SeenLag | None], path: Path) -> None:
    """An idle PostgreSQL says nothing, and one with asynchronous commits says it later."""
    Nudged.urls.clear()
    lags += [None, SeenLag(0.0)]
    config, clock = load_config(path), Clock()
    wait_until_applied(config, timeout_s=3, clock=clock)  # type: ignore[arg-type]
    assert Nudged.urls == [config.source.url]


def test_a_wait_has_an_end(lags: list[SeenLag | None], path: Path) -> None:
    """The error says why."""
    lags.append(None)
    clock: Any = Clock()
    with pytest.raises(NotAppliedInTime, match=r"after 3 s; lag: unknown: a server is away"):
        wait_until_applied(load_config(path), timeout_s=3, clock=clock)
    assert clock.now_s == 3


def test_a_wait_ends_with_its_run(
    path: Path, run: Run, lags: list[SeenLag | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that failed applies nothing any more."""
    lags.append(None)
    monkeypatch.setattr(lag_report, "LOOK_INTERVAL_S", 0.01)
    run.after = Reached("it failed")
    with Pipeline(path).running() as running:
        run.go.set()
        with pytest.raises(Reached):
            running.wait_until_applied(timeout_s=WITHIN_S)


def test_an_unknown_lag_has_its_reason() -> None:
    """`seconds` is None only together with `unknown`."""
    away: Any = LagReport(status=Seen(lag=None))  # type: ignore[arg-type]
    known: Any = LagReport(status=Seen(lag=SeenLag(2.0, at_most=True, rows=4)))  # type: ignore[arg-type]
    assert (away.seconds, away.at_most, away.rows) == (None, False, None)
    assert (away.unknown, str(away)) == ("a server is away", "unknown: a server is away")
    assert (known.seconds, known.at_most, known.rows, known.unknown) == (2.0, True, 4, "")


@pytest.fixture
def fresh_structlog() -> Iterator[None]:
    """Structlog as a program finds it that has not configured it."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


@pytest.mark.usefixtures("fresh_structlog")
def test_a_program_without_diagnostics_gets_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run has its file meanwhile."""
    keep_quiet()
    runs_log = tmp_path / "run.log"
    with diagnostics_to(runs_log, verbose=False):
        structlog.get_logger().warning("in the file")
    structlog.get_logger().warning("nowhere")
    assert capsys.readouterr() == ("", "")
    assert "in the file" in runs_log.read_text()
    assert "nowhere" not in runs_log.read_text()


@pytest.mark.usefixtures("fresh_structlog")
def test_a_program_keeps_its_own_diagnostics(tmp_path: Path) -> None:
    """Lines of a program never go to a file of penstock; those of penstock go where they go."""
    lines: list[Any] = []

    def keep(_logger: object, _name: str, line: Any) -> str:
        lines.append(line["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    keep_quiet()
    with diagnostics_to(tmp_path / "run.log", verbose=False):
        structlog.get_logger().info("a line")
    assert lines == ["a line"]
    assert not (tmp_path / "run.log").exists()


@pytest.mark.usefixtures("fresh_structlog")
def test_diagnostics_that_were_not_configured_are_not_afterwards(tmp_path: Path) -> None:
    """Otherwise the next run would take them for the program's own."""
    with diagnostics_to(tmp_path / "run.log", verbose=False):
        pass
    assert not structlog.is_configured()
    configure_diagnostics(verbose=False)
    with diagnostics_to(tmp_path / "run.log", verbose=False):
        structlog.get_logger().info("a line")
    assert "a line" in (tmp_path / "run.log").read_text()
