"""`penstock flexcdc run`: follows the log here, and extracts in a child process beside it.

If `penstock run` or `penstock extract` is at work on the pipeline already, it only follows.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import structlog

from penstock.consume.flexcdc.state import Place
from penstock.control.consumers.flexcdc import (
    Opened,
    flexcdc_of,
    is_extracting,
    open_flexcdc,
    settle_capture,
)
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.diagnostics import open_diagnostics
from penstock.control.pipeline.running import FLEXCDC_LOCK, take_lock
from penstock.control.run.supervisor import (
    LAST_LINES_KEPT,
    RESTART_WAIT_FIRST_S,
    RESTARTS_MAX,
    HalfFailed,
    HalfKilled,
    error_object,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.process import Child, this_program
from penstock.model import PenstockError

logger = structlog.get_logger()

WAIT_FOR_TABLE_S = 1.0
END_TIMEOUT_S = 60.0


class Extraction:
    """`penstock extract` as a child: started again when it is killed, its error is ours."""

    def __init__(self, pipeline: Path, diagnostics: IO[str]) -> None:
        """Start it."""
        self._arguments = [*this_program(), "extract", str(pipeline), "--json"]
        self._diagnostics = diagnostics
        self._lines: deque[str] = deque(maxlen=LAST_LINES_KEPT)
        self._restarts = 0
        self._restart_at_s: float | None = None
        self._child = self._start()

    def _start(self) -> Child:
        return Child(self._arguments, on_line=self._on_line)

    def _on_line(self, line: str) -> None:
        self._lines.append(line)
        self._diagnostics.write(line + "\n")

    def check(self) -> bool:
        """Return whether it has ended well. Raises HalfFailed, HalfKilled."""
        if self._restart_at_s is not None:
            if REAL_CLOCK.monotonic_s() >= self._restart_at_s:
                self._restart_at_s = None
                self._child = self._start()
            return False
        code = self._child.poll()
        if code is None or code == 0:
            return code == 0
        self._child.close()
        if code > 0:
            raise self._failure(code)
        if self._restarts >= RESTARTS_MAX:
            raise HalfKilled(
                f"the process extract was killed {self._restarts + 1} times, the last time by "
                f"{signal.Signals(-code).name}",
                hint="Read run/extract.log in the pipeline's directory, and the kernel's log for "
                "the OOM killer: dmesg.",
                process="extract",
            )
        self._restart_at_s = REAL_CLOCK.monotonic_s() + RESTART_WAIT_FIRST_S * 2**self._restarts
        self._restarts += 1
        logger.warning("process killed", process="extract", restarts=self._restarts)
        return False

    def _failure(self, code: int) -> PenstockError:
        for line in reversed(self._lines):
            found = error_object(line)
            if found is not None:
                return HalfFailed(
                    str(found["error"]),
                    hint=str(found.get("hint", "")),
                    process="extract",
                    inner=found,
                )
        return HalfFailed(
            f"the process extract ended with exit code {code} and no message",
            hint="Read run/extract.log in the pipeline's directory.",
            process="extract",
        )

    def end(self) -> None:
        """End it in order; by force if that takes too long."""
        self._child.signal(signal.SIGTERM)
        if self._child.wait(END_TIMEOUT_S) is None:
            self._child.kill_group()
        self._child.close()


def run_flexcdc(
    file: Path,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    follows_only: bool = False,
) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. say: prints a line. warn: prints a warning.

    Raises the error that ends it: uncommitted work in the destination is undone, and the next run
    continues after the committed work. follows_only: `penstock run` extracts.
    """
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        before = signal.signal(signal.SIGHUP, lambda *_: stop.ask())
        stack.callback(signal.signal, signal.SIGHUP, before)
        opened = open_flexcdc(file)
        flexcdc = flexcdc_of(opened, warn=warn, plugins=True)
        _require_state(opened)
        lock = take_lock(opened.config, opened.config.layout.state, FLEXCDC_LOCK)
        stack.callback(lock.release)
        _await_table(opened, stop, say)
        if stop():
            return
        path = opened.directory / "run" / "extract.log"
        diagnostics = stack.enter_context(open_diagnostics(path))
        config = opened.config
        own: list[Extraction] = []

        def is_over() -> bool:
            """Return whether to end; extract if no process does: a killed run's child ends late."""
            if stop():
                return True
            if own:
                return own[0].check()
            if not follows_only and not is_extracting(config):
                own.append(Extraction(opened.pipeline, diagnostics))
                stack.callback(own[0].end)
            return False

        shown: list[Place] = []

        def on_place(place: Place) -> None:
            if not shown or shown[0].trx != place.trx:
                shown[:] = [place]
                logger.info("changes are in the destination", position=place.position)

        flexcdc.run(is_over, on_place=on_place)


def _require_state(opened: Opened) -> None:
    with flexcdc_of(opened).connect() as (state, _):
        state.require()


def _await_table(opened: Opened, stop: StopRequest, say: Callable[[str], None]) -> None:
    """Wait until there is a table to capture, and let the pipeline capture the wanted tables."""
    if opened.ini is None:
        return
    told = False
    while not stop():
        with flexcdc_of(opened).connect() as (_, changelogs):
            changelogs.refresh()
            known = changelogs.by_table
        if known or opened.settings.auto_changelog:
            settle_capture(opened, known)
            return
        if not told:
            say("no table is captured yet: waiting for `penstock flexcdc add-table`")
            told = True
        stop.wait(WAIT_FOR_TABLE_S)
