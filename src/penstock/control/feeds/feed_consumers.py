"""Consumers of one target schema: a log of all staged rows, and a process for each consumer.

No lease is needed: staged rows are only read, applied or not, so each instance has a log of its own
that continues where it ended, in any mode and whichever instance applies. Not here: the process
that writes the log (`feed_halves.py`).
"""

from __future__ import annotations

from contextlib import ExitStack

import structlog

from penstock.control.doctor.past_errors import keep_error
from penstock.control.feeds.feed_halves import FEED
from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.diagnostics import open_diagnostics
from penstock.control.run.supervisor import Half, Supervisor
from penstock.host.files import REAL_FILES
from penstock.host.process import this_program
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.staging import Group, feed_config, group_name

logger = structlog.get_logger(__name__)
AGAIN_S = 10.0


class FeedWorker:
    """Supervisor of the processes of a group's consumers, in its own thread, until stopped."""

    def __init__(self, config: Config, group: Group, stop: StopRequest) -> None:
        """Begin. config: of the whole pipeline."""
        self._whole, self._group, self._stop = config, group, stop
        self._config = feed_config(config, group)
        self._problem: PenstockError | None = None
        self._thread = SupervisedThread(
            f"feed {group_name(group)}", self._run, wait=stop.wait, on_error=self._show
        )
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, once it was stopped."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stop():
            ended = StopRequest()

            def on_tick(ended: StopRequest = ended) -> None:
                if self._stop():
                    ended.ask()

            try:
                with ExitStack() as stack:
                    halves = self._halves(stack)
                    Supervisor(halves, ended, on_event=self._event, on_tick=on_tick).run()  # type: ignore[arg-type]
            except PenstockError as error:
                self._note_failure(error)

    def _halves(self, stack: ExitStack) -> list[Half]:
        run, file = self._config.layout.run, str(self._whole.path)
        REAL_FILES.make_directory(run)
        commands = {FEED: ["stage", file, "--half", FEED, "--group", self._config.source.url]}
        for name in self._config.consumers:
            of_group = ["--group", group_name(self._group), "--checked"]
            commands[f"consume-{name}"] = ["consume", file, name, *of_group]
        return [
            Half(
                name=name,
                arguments=[*this_program(), *command, "--json"],
                diagnostics=stack.enter_context(open_diagnostics(run / f"{name}.log")),
                is_consumer=name != FEED,
            )
            for name, command in commands.items()
        ]

    def _note_failure(self, error: PenstockError) -> None:
        """Report the error; the load continues, and consumers have the log so far."""
        self._show(error, AGAIN_S)
        self._stop.wait(AGAIN_S)

    def _show(self, error: PenstockError, wait_s: float) -> None:
        if self._problem is None or self._problem.as_dict() != error.as_dict():
            keep_error(self._whole, "stage", error)
        self._problem = error
        logger.warning("consumers' log is tried again", error=error.as_dict(), wait_s=wait_s)

    def _event(self, text: str, _kind: str = "", **_fields: object) -> None:
        logger.info("feed", group=group_name(self._group), text=text)
