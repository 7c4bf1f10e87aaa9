"""Begins and ends the capture of single caches while segments are read.

A node's log has the changes of all caches: penstock decides which of them go into the change log.
Where rows can be copied, those of a cache that is made later do so once it was asked for, as its
table has to be made first: before, its changes are passed over, and are in the rows that are copied
at a later point. Without a target, or an address, the patterns alone decide, and a cache is
captured from its first change on. Not here: asking (`control/new_table_watch.py`), the copy
(`planner.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import structlog

from penstock.engines.ignite.directory import Cache, NodeDirectory
from penstock.engines.ignite.source.scanned import known_relations, scanned_shapes
from penstock.engines.ignite.source.shapes import SCHEMA, Shapes, copied, table_of
from penstock.engines.ignite.url import thin_url
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, Relation, TableName
from penstock.model.patterns import Selection
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.config import Config
from penstock.ports.handover import read_handover
from penstock.ports.request_files import RequestFiles
from penstock.ports.source import StateFiles

FOLLOWED_FILE = "followed-caches.json"
LOOK_INTERVAL_S = 0.5
AWAY_S = 5.0  # before a node that cannot be asked is asked again

logger = structlog.get_logger(__name__)


class CacheNotReadable(PenstockError):
    """A cache to be captured is not there, or has no row and no table that tells its columns."""

    code = "IG74"
    retry = "operator"


class FollowedCaches(msgspec.Struct, frozen=True):
    """What is kept: names of the caches whose changes go into the log."""

    names: list[str] = []


def is_asked_for(config: Config) -> bool:
    """Whether a cache that is made later is followed only once it was asked for."""
    has_copies = config.has_target and config.pipeline.mode.has_change
    return has_copies and bool(thin_url(config.source.url).addresses)


class Captures:
    """Which caches are taken, and the answers to requests. Used by the extractor's thread."""

    def __init__(
        self,
        config: Config,
        directory: NodeDirectory,
        state: StateFiles,
        shapes: Shapes,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """config: as it was when this process began. shapes: of the log."""
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
        """Whether the changes of a cache go into the log, as things are now."""
        name = table_of(cache)
        if name in self._removed or not (self._given(name) or name in self._added):
            return False
        return self._followed is None or name in self._followed

    def begin(self) -> None:
        """Before the first stream: what was asked for before. Raises what scanning does."""
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
        """What a log begins with: the caches whose tables the bulk load makes, or that are there.

        One without columns has no table yet.
        """
        known = [one.name for one in known_relations(self._config)]
        handover = read_handover(self._config)
        if handover is None:
            return known
        return [name for name in known if name in handover.tables]

    def tend(self) -> Iterator[Relation]:
        """Take a step with the requests; cheap when there are none.

        Gives shapes that the log has to have before the request is answered.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open(requests.tables):
            try:
                if request.capture is Capture.ADDED:
                    yield from self._learned(request)
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

    def _learned(self, request: TableRequest) -> Iterator[Relation]:
        """The shape of a cache that holds every row of it.

        All changes that were passed over are archived, so the rows have them: what comes in the log
        from here on is newer, or one of these once more.
        """
        if self._followed is None:
            return
        cache = self._cache(request.table)
        kept = self._shapes.kept().get(cache.name)
        known = {} if kept is None else {cache.name: copied(kept)}
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
