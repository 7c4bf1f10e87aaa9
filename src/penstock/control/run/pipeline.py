"""`penstock.Pipeline`: the commands for a pipeline file as methods, which the commands call.

Modules are imported when a method needs them, so that each command starts as fast as it can. Not
here: printing (`penstock.cli`), and reading the change log (`penstock.read_log`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.config import load_config, need_source
from penstock.control.pipeline.diagnostics import keep_quiet
from penstock.model import PenstockError, TableName

if TYPE_CHECKING:
    from penstock.control.status.lag_report import LagReport
    from penstock.control.status.live import View
    from penstock.control.status.status import Status
    from penstock.control.tables.table_commands import Ask, AskedTable
    from penstock.control.tables.table_list import TableLine
    from penstock.control.verify.compare import CompareProgress
    from penstock.control.verify.verify import OpenTarget, VerifyResult
    from penstock.ports.config import Config

TIMEOUT_S = 600.0
Event = dict[str, Any]


def _ignore(_event: Event) -> None:
    """Take an event and do nothing."""


class Pipeline:
    """Pipeline of a file: what the commands `run`, `status`, `lag`, `verify` and `table` do.

    Each method reads the file first, as a command does. It raises subclasses of `PenstockError`,
    which have a code and a hint, and returns objects whose `as_dict()` is what the command prints
    with `--json`. A pipeline may run in another process: `status`, `lag`, `verify` and `tables`
    need none of its memory.

    Attributes:
        path: The pipeline file.
        tables: Its tables, and requests for single ones.
    """

    def __init__(self, file: str | Path) -> None:
        """Read the file.

        Args:
            file: The pipeline file. With [stage] in place of a source, each method raises
                SourceMissing.

        Raises:
            PenstockError: One of the CF errors, if the file is wrong or a variable is not set.
        """
        self.path = Path(file)
        self.tables = Tables(self)
        self._runs: set[StopRequest] = set()
        with self._named_hints():
            load_config(self.path)

    def __repr__(self) -> str:
        return f"Pipeline({str(self.path)!r})"

    def run(
        self,
        *,
        on_event: Callable[[Event], object] = _ignore,
        view: View | None = None,
        verbose: bool = False,
    ) -> None:
        """Run the pipeline: bulk load, handover, then every change, until it is done or stopped.

        Blocks. The run ends in order when another thread calls `stop`, and in the main thread also
        on Ctrl-C, on the interrupt of a notebook, and on SIGTERM. It then returns. The processes
        of the pipeline are children of this process and end with it. The next run goes on where
        this one stopped, however it was stopped.

        Args:
            on_event: Gets each event as a dict, as `penstock run --json` prints it. Called in the
                thread of the run.
            view: Shows the run in another way than by events.
            verbose: Print diagnostics to standard error, too.

        Raises:
            PreflightFailed: A check of `penstock doctor` fails; nothing was changed.
            AlreadyRunning: Another process or thread runs it; nothing was changed.
            HalfFailed: A process of the pipeline ended with an error, which this one shows.
            KeyboardInterrupt: A second Ctrl-C or SIGTERM ended the run at once.
        """
        self._run(StopRequest(), on_event, view=view, verbose=verbose)

    def stop(self) -> None:
        """Ask the runs of this object to end in order, and return at once.

        Any thread may call it. Does nothing if `run` was not called.
        """
        for stop in tuple(self._runs):
            stop.ask()

    def running(self, *, on_event: Callable[[Event], object] = _ignore) -> Running:
        """Return a run in a thread of its own, for a with block.

        The block begins when all checks have passed. At its end the run is stopped in order.

        Args:
            on_event: As for `run`; called in the thread of the run.
        """
        return Running(self, on_event)

    def status(self) -> Status:
        """Return what the pipeline is doing: steps, tables, positions, processes, lag, consumers.

        A server that cannot be asked is named in `Status.outages`, and no error is raised.
        """
        from penstock.control.status.status import read_status

        with self._named_hints():
            return read_status(self._config("status"))

    def lag(self) -> LagReport:
        """Return how far the target is behind the source.

        Its `seconds` is None while the lag is not known; `unknown` has the reason.
        """
        from penstock.control.status.lag_report import LagReport

        return LagReport(status=self.status())

    def wait_until_applied(self, *, timeout_s: float = TIMEOUT_S) -> Status:
        """Wait until everything that was committed at the source before the call is in the target.

        The source may be written meanwhile, and another process may run the pipeline. Without a
        target the wait ends when the commits are in the change log. PostgreSQL gets a small mark
        in its WAL at the beginning.

        Args:
            timeout_s: Longest wait in seconds.

        Raises:
            NotAppliedInTime: The time is over.
        """
        return self._wait(timeout_s, lambda: None)

    def verify(
        self,
        *,
        repair: bool = False,
        on_progress: Callable[[CompareProgress], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        open_target: OpenTarget | None = None,
    ) -> VerifyResult:
        """Compare source and target, row by row, at one position, while both are in use.

        Args:
            repair: Write the rows that differ again from the source, in one transaction.
            on_progress: Gets the progress of the comparison.
            on_waiting: Gets a text that says what is waited for.
            stop: Asked repeatedly; true ends the comparison with VerifyStopped.
            open_target: Opens the target in another way than its engine does.

        Raises:
            NotLoadedYet: The bulk load has not ended.
            ChangesUnapplied: No loader runs, and captured changes are not in the target yet.
            HoldNotReached: The running loader did not reach the position in time.
        """
        from penstock.control.verify.verify import verify

        with self._named_hints():
            return verify(
                self._config("verify", takes_merge=False),
                on_progress=on_progress,
                on_waiting=on_waiting,
                stop=stop,
                repair=repair,
                open_target=open_target,
            )

    def _config(self, words: str, *, takes_merge: bool = True, name: str = "") -> Config:
        """Read the file for a command, which is named in its errors."""
        keep_quiet()
        with self._named_hints():
            config = load_config(self.path)
            typed = f"{words} FILE {name}".rstrip()
            need_source(config, typed, takes_merge=takes_merge)
        return config

    def _run(
        self,
        stop: StopRequest,
        on_event: Callable[[Event], object],
        *,
        view: View | None = None,
        verbose: bool = False,
        on_started: Callable[[], object] = lambda: None,
    ) -> None:
        from penstock.control.doctor.past_errors import errors_kept
        from penstock.control.run.supervisor import run_pipeline
        from penstock.control.status.live import JsonView

        self._runs.add(stop)
        try:
            config = self._config("run")
            shown = view if view is not None else JsonView(on_event)
            with self._named_hints(), errors_kept(config, "run"):
                run_pipeline(config, shown, verbose=verbose, stop=stop, on_started=on_started)
        except SystemExit as error:
            raise KeyboardInterrupt("a second signal ended the run at once") from error
        finally:
            self._runs.discard(stop)

    def _wait(self, timeout_s: float, check: Callable[[], object]) -> Status:
        from penstock.control.status.lag_report import wait_until_applied

        with self._named_hints():
            return wait_until_applied(self._config("lag"), timeout_s=timeout_s, check=check)

    @contextmanager
    def _named_hints(self) -> Iterator[None]:
        """Put the pipeline file's name into the hint of an error."""
        try:
            yield
        except PenstockError as error:
            error.hint = re.sub(r"\bFILE\b", lambda _: str(self.path), error.hint)
            raise


class Tables:
    """Tables of a pipeline.

    A request is kept in the pipeline's directory. It is carried out within a second or two while
    the pipeline runs, otherwise at its next start. Tables are named "schema.table".
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Keep the pipeline; nothing is read yet."""
        self._pipeline = pipeline

    def list(self) -> tuple[TableLine, ...]:
        """Return the tables by name, each with its state, such as "following" or "paused"."""
        from penstock.control.tables.table_list import table_lines

        with self._pipeline._named_hints():
            return tuple(table_lines(self._pipeline._config("table ls", takes_merge=False)))

    def add(self, name: str | TableName, *, enable: bool = False) -> AskedTable:
        """Ask to capture one more table: its rows are copied, then its changes followed.

        Args:
            name: The table.
            enable: Let the source record the table's changes first, where it does that for enabled
                tables only.

        Raises:
            TableTaken: It is one of the pipeline's tables already.
            TableNotTaken: There is no such table at the source.
            RequestRefused: The pipeline cannot take it.
        """
        from penstock.control.tables.table_commands import add

        return self._ask("add", name, partial(add, enables=enable))

    def remove(self, name: str | TableName) -> AskedTable:
        """Ask to stop capturing and applying a table's changes; its table in the target stays.

        Raises:
            TableNotTaken: It is not one of the pipeline's tables.
            RequestRefused: It is the pipeline's last table.
        """
        from penstock.control.tables.table_commands import remove

        return self._ask("remove", name, remove)

    def pause(self, name: str | TableName) -> AskedTable:
        """Ask to stop applying a table's changes, which then wait in the change log.

        Raises TableNotTaken, TargetMissing.
        """
        from penstock.control.tables.table_commands import pause

        return self._ask("pause", name, pause)

    def resume(self, name: str | TableName) -> AskedTable:
        """Ask to apply the changes that have waited since `pause`, once and in order.

        Raises TableNotTaken, TargetMissing.
        """
        from penstock.control.tables.table_commands import resume

        return self._ask("resume", name, resume)

    def resync(self, name: str | TableName) -> AskedTable:
        """Ask to empty a table in the target and copy its rows again, then follow its changes.

        Raises TableNotTaken, TargetMissing.
        """
        from penstock.control.tables.table_commands import resync

        return self._ask("resync", name, resync)

    def _ask(self, word: str, name: str | TableName, request: Ask) -> AskedTable:
        from penstock.control.tables.table_commands import as_table_name, ask

        table = name if isinstance(name, TableName) else as_table_name(name)
        pipeline = self._pipeline
        with pipeline._named_hints():
            config = pipeline._config(f"table {word}", takes_merge=False, name=str(table))
            return ask(config, table, request)


class Running:
    """Run of a pipeline in a thread of its own, as a with block.

    The block begins when all checks have passed and the processes are about to start. At its end
    the run is stopped in order. An error that has ended the run is raised by `stop`, by `wait`, by
    `wait_until_applied` or at the end of the block, once.
    """

    def __init__(self, pipeline: Pipeline, on_event: Callable[[Event], object]) -> None:
        """Prepare the run; `__enter__` starts it."""
        self._pipeline, self._on_event = pipeline, on_event
        self._stop = StopRequest()
        self._begun = threading.Event()  # or ended
        self._error: BaseException | None = None
        # The error is raised in the thread that waits.
        self._thread = threading.Thread(target=self._work, name="pipeline", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Return whether the run goes on."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop the run in order, and return when it has ended. Raises the errors of the run."""
        self._stop.ask()
        self.wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the run; return whether it has ended. Raises the errors of the run.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.
        """
        self._thread.join(timeout_s)
        self._raise()
        return not self.is_alive

    def wait_until_applied(self, *, timeout_s: float = TIMEOUT_S) -> Status:
        """Wait as `Pipeline.wait_until_applied` does, at most as long as the run goes on.

        Raises:
            NotAppliedInTime: The time is over.
            PenstockError: The error of the run.
        """
        return self._pipeline._wait(timeout_s, self._raise)

    def __enter__(self) -> Running:
        """Start the run; return once its checks have passed. Raises what `Pipeline.run` does."""
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C: nothing must stay behind
            self._stop.ask()
            raise
        self._raise()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Stop the run. Raises its error, unless the block has one of its own."""
        self._stop.ask()
        self._thread.join()
        if error is None:
            self._raise()
        elif self._error is not None and self._error is not error:
            error.add_note(f"the run ended with: {self._error}")

    def _work(self) -> None:
        try:
            self._pipeline._run(self._stop, self._on_event, on_started=self._begun.set)
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()

    def _raise(self) -> None:
        """Raise the error of the run, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
