"""Begin and end of capturing single caches while segments are read.

A node's log has the changes of all caches; penstock decides which of them are written to the
change log. If rows can be copied, a cache that is created later is captured once it was
requested, as its table has to be created first. Its earlier changes are skipped, and are in the
rows that are copied at a later point. Without a target, or an address, only the patterns decide,
and a cache is captured from its first change on. Not here: requests
(`control/tables/new_table_watch.py`), the copy (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import structlog

from penstock.engines.ignite.directory import Cache, NodeDirectory
from penstock.engines.ignite.source.scan import known_relations, scanned_shapes
from penstock.engines.ignite.source.shapes import SCHEMA, Shapes, copy_shape, table_of
from penstock.engines.ignite.url import thin_url
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.request_files import RequestFiles
from penstock.host.state_file import StateFiles
from penstock.model import PenstockError, Relation, TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.config import Config
from penstock.ports.handover import read_handover

FOLLOWED_FILE = "followed-caches.json"
LOOK_INTERVAL_S = 0.5
AWAY_S = 5.0  # until a node that cannot be queried is queried again

logger = structlog.get_logger(__name__)


class CacheNotReadable(PenstockError):
    """A cache to be captured does not exist, or has no row and no table that define its columns."""

    code = "IG74"
    retry = "operator"


class FollowedCaches(msgspec.Struct, frozen=True):
    """Stored names of the caches whose changes are written to the log."""

    names: list[str] = []


def is_asked_for(config: Config) -> bool:
    """Return whether a cache that is created later is followed only after a request."""
    has_copies = config.has_target and config.pipeline.mode.has_change
    return has_copies and bool(thin_url(config.source.url).addresses)


class Captures:
    """Captured caches, and the answers to requests. Used by the extractor's thread."""

    def __init__(
        self,
        config: Config,
        directory: NodeDirectory,
        state: StateFiles,
        shapes: Shapes,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Load the captured caches. config: of the start of this process; shapes: of the log."""
        self._config = config
        self._directory = directory
        self._state = state
        self._shapes = shapes
        self._clock = clock
        self._files = RequestFiles(state)
        self._given = Selection.parse(config.source.tables).takes
        self._added: set[TableName] = set()
        self._removed: set[TableName] = set()
        self._followed: set[TableName] | None = None
        self._next_look_s = float("-inf")

    def takes(self, cache: str) -> bool:
        """Return whether the changes of a cache are written to the log at present."""
        name = table_of(cache)
        if name in self._removed or not (self._given(name) or name in self._added):
            return False
        return self._followed is None or name in self._followed

    def begin(self) -> None:
        """Answer earlier requests before the first stream. Raises the errors of scanning."""
        if is_asked_for(self._config):
            kept = self._state.load(FOLLOWED_FILE, FollowedCaches)
            names = self._first() if kept is None else kept.names
            self._followed = {table_of(name) for name in names}
        requests, answers = self._files.read()
        for request in requests.tables:
            if request.capture is Capture.ADDED:
                if answers.is_done(request):
                    self._take_in(request.table)
            elif request.capture is not Capture.FILE:
                self._take_out(request.table)
                if request in answers.open(requests.tables):
                    self._files.answer(request, None)
        self._keep()

    def _first(self) -> list[str]:
        """Return the caches of a new log: those whose tables the bulk load creates, or that
        exist.

        A cache without columns has no table yet.
        """
        known = [one.name for one in known_relations(self._config)]
        handover = read_handover(self._config)
        if handover is None:
            return known
        return [name for name in known if name in handover.tables]

    def tend(self) -> Iterator[Relation]:
        """Take a step with the requests; cheap if there are none.

        Yields shapes that the log needs before the request is answered.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open(requests.tables):
            try:
                if request.capture is Capture.ADDED:
                    yield from self._learn(request)
                    self._take_in(request.table)
                else:
                    self._take_out(request.table)
            except PenstockError as error:
                if error.retry == "backoff":
                    logger.warning(
                        "not captured yet", table=str(request.table), error=error.message
                    )
                    self._next_look_s = now_s + AWAY_S
                    return
                self._files.answer(request, error)
            else:
                self._keep()
                self._files.answer(request, None)

    def _take_in(self, table: TableName) -> None:
        self._added.add(table)
        self._removed.discard(table)
        if self._followed is not None:
            self._followed.add(table)

    def _take_out(self, table: TableName) -> None:
        self._added.discard(table)
        self._removed.add(table)
        if self._followed is not None:
            self._followed.discard(table)

    def _keep(self) -> None:
        if self._followed is not None:
            names = sorted(one.name for one in self._followed)
            self._state.save(FOLLOWED_FILE, FollowedCaches(names))

    def _learn(self, request: TableRequest) -> Iterator[Relation]:
        """Yield a shape of a cache that fits every row of it.

        The log skipped the earlier changes, but all are archived, so the cache's rows contain them.
        Later entries of the log are newer, or repeat one of these.
        """
        if self._followed is None:
            return
        cache = self._cache(request.table)
        kept = self._shapes.all_kept().get(cache.name)
        known = {} if kept is None else {cache.name: copy_shape(kept)}
        found = scanned_shapes(self._config, self._directory, [cache], kept=known)
        if cache.name not in found:
            raise CacheNotReadable(
                f"cache {cache.name} has no row and no table: its columns are not known",
                hint="Add it once it has a row.",
                cache=cache.name,
            )
        self._shapes.learn(found)
        yield self._shapes.of(cache.name, cache.cache_id).relation

    def _cache(self, table: TableName) -> Cache:
        for told in self._directory.caches() if table.schema == SCHEMA else ():
            cache: Cache = told.read()
            if cache.name == table.name:
                return cache
        raise CacheNotReadable(
            f"the node has no cache {table.name}",
            hint="Name it as the node does: case counts, and a table of SQL is SQL_PUBLIC_NAME.",
            cache=table.name,
        )
