"""The groups of a pipeline with [stage]: found in the staging database, each with its worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from penstock.control.feeds.feed_consumers import FeedWorker
from penstock.control.feeds.feed_group import GroupWorker
from penstock.control.feeds.feed_target import TargetSchemas
from penstock.control.pipeline.actions import StopRequest
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.staging import StagingDatabase

if TYPE_CHECKING:
    from penstock.stage.apply.sequencer import RowSequencer

logger = structlog.get_logger(__name__)
LOOK_S = 1.0


class Groups:
    """Watch for groups that starts a worker for each."""

    def __init__(
        self,
        config: Config,
        database: StagingDatabase,
        sequencer: RowSequencer,
        stop: StopRequest,
    ) -> None:
        """Begin looking."""
        self._config, self._database, self._stop = config, database, stop
        self._sequencer = sequencer
        self._schemas = TargetSchemas(config)
        self.workers: dict[str, GroupWorker] = {}
        self._feeds: list[FeedWorker] = []
        self._others: set[str] = set()
        self._thread = SupervisedThread("groups", self._run, wait=stop.wait)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop():
            try:
                with self._database.open_session() as session:
                    while not self._stop():
                        self._look(session.group_names())
                        self._stop.wait(LOOK_S)
            except PenstockError as error:
                logger.warning("groups not readable", code=error.code, error=error.message)
                self._stop.wait(LOOK_S)

    def _look(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.workers or name in self._others:
                continue
            group = self._schemas.group_of(name)
            if group is None:
                logger.warning("group is not of this target", group=name)
                self._others.add(name)
            else:
                self.workers[name] = GroupWorker(
                    self._config, group, self._database, self._sequencer, self._stop
                )
                if self._config.consumers:
                    self._feeds.append(FeedWorker(self._config, group, self._stop))

    def join(self) -> None:
        """Wait until all have ended, once they were stopped."""
        self._thread.join()
        for worker in self.workers.values():
            worker.join()
        for feed in self._feeds:
            feed.join()


@contextmanager
def working(config: Config, database: StagingDatabase, sequencer: RowSequencer) -> Iterator[Groups]:
    """Work on all groups while the block runs; then each ends in order, and gives up its lease."""
    stop = StopRequest()
    groups = Groups(config, database, sequencer, stop)
    try:
        yield groups
    finally:
        stop.ask()
        groups.join()
