"""Several nodes of a cluster as one source: all copies are read, each version is delivered once.

The node that is least far is read first. penstock does not wait for an unreachable node: its
changes are read from its partitions' other copies, and those that only it had once it is back.
Not here: one node's segments and detecting that a node's files are new (`node.py`), rows
(`stream.py`), delivered versions (`versions.py`).

The progress of the nodes is one position that never falls. A node is known by the name of its
folder, which has its consistent id. The log's position is the sum of all nodes' places; the places
themselves are stored with the versions (`versions.py`), flush point by flush point.

Each node creates its files of a new cache, and so does a node that gets its first partition of
an old one. A life begins with the first node that creates files of a cache of which it had
changes; the files that the others create then belong to the same life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import structlog

from penstock.engines.ignite.directory import CdcDirectoryMissing, NodeDirectory
from penstock.engines.ignite.source.node import NodeReader, Piece
from penstock.engines.ignite.source.position import OFFSET_BITS, place_of, position_of
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.shapes import NOTHING, Declared, DeclaredColumn, Shapes
from penstock.engines.ignite.source.source_engine import LOCK_TIMEOUT_MS, IgniteEngine
from penstock.engines.ignite.source.stream import IgniteStream
from penstock.engines.ignite.source.versions import FILE_NAME, SLACK_MS, Versions
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import FileFailed
from penstock.model import FlushPoint, Marker, Run
from penstock.ports.config import Config, SourceSection
from penstock.ports.direct import LogPlace
from penstock.ports.source import EnginePlace, Origin, ServerEnd, StreamCounted

AFTER_MS = 1000  # clocks that differ by less do not turn a change into a later one

logger = structlog.get_logger(__name__)


class CacheLives(msgspec.Struct):
    """Lives of one cache.

    Attributes:
        began_ms: begins of its lives, in order.
        nodes: the life of each node's last files.
        newest_ms: time of each node's newest change.
    """

    began_ms: list[int] = []
    nodes: dict[str, int] = {}
    newest_ms: dict[str, int] = {}


class CommonLives:
    """Lives of all caches, by name."""

    def __init__(self, kept: dict[str, CacheLives] | None = None) -> None:
        """Continue from the lives of a flush point."""
        self.kept = {} if kept is None else kept

    def saw(self, cache: str, node: str, time_ms: int) -> None:
        """Note that a node has changes of a cache up to this time."""
        one = self._of(cache)
        one.nodes.setdefault(node, len(one.began_ms))
        one.newest_ms[node] = max(time_ms, one.newest_ms.get(node, 0))

    def ended_ms(self, cache: str, node: str) -> int:
        """Return the end, in ms, of the cache's earlier life, to which the node's earlier changes
        belong; 0 if none do.
        """
        one = self.kept.get(cache)
        is_behind = one is not None and one.nodes.get(node, len(one.began_ms)) < len(one.began_ms)
        return one.began_ms[-1] if one is not None and is_behind else 0

    def forget(self, node: str) -> None:
        """Forget the files of a node that starts again, because the files that it creates are not
        new caches.
        """
        for one in self.kept.values():
            one.nodes.pop(node, None)

    def begins(self, cache: str, node: str, time_ms: int) -> bool:
        """Note new files of a node; return whether the cache begins a life and existing rows are
        deleted.
        """
        one = self._of(cache)
        is_first = not one.nodes
        if not is_first and node not in one.nodes:
            one.nodes[node] = len(one.began_ms)  # it joins
            return False
        made = one.nodes.get(node, 0)
        for life in range(made, len(one.began_ms)):
            if abs(one.began_ms[life] - time_ms) <= SLACK_MS:
                one.nodes[node] = life + 1
                return False
        if made < len(one.began_ms):
            one.nodes[node] = len(one.began_ms)  # it was unreachable when the others created theirs
            return False
        one.began_ms.append(time_ms)
        one.nodes[node] = len(one.began_ms)
        others = [ms for name, ms in one.newest_ms.items() if name != node]
        if max(others, default=0) > time_ms + AFTER_MS:
            logger.warning(
                "a cache was recreated, and later changes arrived first: existing rows stay",
                cache=cache,
                node=node,
            )
            return False
        return True

    def _of(self, cache: str) -> CacheLives:
        return self.kept.setdefault(cache, CacheLives())


class NodePlace(msgspec.Struct, frozen=True):
    """Place up to which a node is read: segment << 32 | offset, and the time of the newest
    record.

    since_ms: earlier records are left out; 0: none are.
    """

    position: int = 0
    time_ms: int = 0
    since_ms: int = 0


class Saved(msgspec.Struct, frozen=True):
    """Stored state of a flush point. listed: the nodes that were read then."""

    places: dict[str, NodePlace]
    listed: list[str]
    floor_ms: int
    lives: dict[str, CacheLives]


class Nodes:
    """Places of the nodes that are or were read.

    A node that joins while the others are read begins at the time from which all versions are
    known: before it, the newer of two changes cannot be determined.
    """

    def __init__(self, listed: Iterable[str], saved: bytes = b"") -> None:
        """Take the nodes to read, and the state of the flush point from which to continue."""
        self.listed = list(listed)
        self._places: dict[str, NodePlace] = {}
        self.floor_ms = 0
        self.lives = CommonLives()
        if saved:
            found = msgspec.json.decode(saved, type=Saved)
            self.lives = CommonLives(found.lives)
            self._places = found.places
            self.floor_ms = found.floor_ms
            if self.floor_ms:
                self._join(set(self.listed).difference(found.listed))
        self.position = sum(place.position for place in self._places.values())

    def _join(self, names: Iterable[str]) -> None:
        for name in names:
            place = self[name]
            since_ms = self.floor_ms + SLACK_MS
            self._places[name] = NodePlace(place.position, place.time_ms, since_ms)

    def __getitem__(self, name: str) -> NodePlace:
        """Return the place up to which a node is read."""
        return self._places.get(name, NodePlace())

    def read(self, name: str, position: int, time_ms: int) -> None:
        """Note that a node is read up to here. time_ms: of the newest record there."""
        before = self[name]
        assert position >= before.position, f"{name} goes back to {position}"
        self.position += position - before.position
        newest_ms = max(time_ms, before.time_ms)
        self._places[name] = NodePlace(position, newest_ms, before.since_ms)
        least_ms = min(self[one].time_ms for one in self.listed)
        self.floor_ms = max(self.floor_ms, least_ms - SLACK_MS)

    def begin_anew(self, name: str) -> None:
        """Note that a node's log begins with another first segment: its disk was replaced."""
        place = self._places.pop(name, None)
        if place is not None:
            count = sum(one.startswith(f"{name}#") for one in self._places)
            self._places[f"{name}#{count + 1}"] = place
        self.lives.forget(name)

    def takes(self, name: str, time_ms: int) -> bool:
        """Return whether a record of a node is delivered. Records from before the node joined are
        not.
        """
        place = self[name]
        if not place.since_ms:
            return True
        if time_ms < place.since_ms:
            return False
        self._places[name] = NodePlace(place.position, place.time_ms)
        return True

    def dump(self) -> bytes:
        """Return the state to be stored with a flush point here."""
        return msgspec.json.encode(Saved(self._places, self.listed, self.floor_ms, self.lives.kept))


LOOK_S = 5.0  # between two searches for an unreachable node
NAME = "nodes"


@dataclass
class Node:
    """One node. directory: None while it cannot be reached. reader: None while it is not read."""

    url: IgniteUrl
    directory: NodeDirectory | None = None
    declared: Declared | None = None
    reader: NodeReader | None = None
    maker: RowMaker | None = None
    is_locked: bool = False
    looked_s: float = float("-inf")

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.url.folder

    def last_segment(self) -> int:
        """Return the number of the last existing segment; -1 if there is none, or it is not
        known.
        """
        try:
            return -1 if self.directory is None else max(self.directory.segments(), default=-1)
        except FileFailed:
            return -1


class NodesEngine(IgniteEngine):
    """Source engine over several nodes of a cluster."""

    def __init__(self, urls: list[IgniteUrl], config: Config, *, copied_ms: int = 0) -> None:
        """Find the nodes' directories. Raises CdcDirectoryMissing if none of them exists."""
        self.nodes = [Node(url) for url in urls]
        missing = [error for node in self.nodes if (error := open_node(node))]
        if len(missing) == len(urls):
            raise missing[0]
        first = next(node.directory for node in self.nodes if node.directory is not None)
        super().__init__(first, config, copied_ms=copied_ms)
        self._path = config.layout.state / FILE_NAME
        self._locks = ExitStack()
        self._stream: NodesStream | None = None

    @property
    def name(self) -> str:
        return NAME

    def begin(self, place: EnginePlace) -> Origin:
        """Return the identity of the cluster. The list of nodes may change."""
        self._shapes = Shapes(files=place.state, declared=self._read_declared)
        self._begin_captures(place)
        return Origin(identity={"engine": "ignite", "node": NAME}, resend_from=0)

    def _read_declared(self, cache: str) -> Sequence[DeclaredColumn]:
        """Return the columns of a cache's table, from a node that has it."""
        found = (node.declared.of(cache) for node in self.nodes if node.declared is not None)
        return next((one for one in found if one), NOTHING)

    def server_end(self) -> ServerEnd:
        """Return the sum of the nodes' last existing segments."""
        if self._stream is None:
            return ServerEnd()
        ends = [node.last_segment() << OFFSET_BITS for node in self.nodes]
        return ServerEnd(position=self._stream.position_with(ends))

    def bytes_between(self, first: int, last: int) -> int:
        """Return the bytes after the nodes' places; earlier places are not known."""
        if self._stream is None or first >= last:
            return 0
        return sum(
            node.directory.bytes_between(place, END)
            for node, place in zip(self.nodes, self._stream.places(), strict=True)
            if node.directory is not None and node.last_segment() >= 0
        )

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with ExitStack() as self._locks:
            try:
                yield
            finally:
                for node in self.nodes:
                    node.is_locked = False

    def lock(self, node: Node) -> None:
        """Hold a node's directory until the attempt ends. Raises DirectoryTaken."""
        if not node.is_locked and node.directory is not None:
            held = node.directory.lock(LOCK_TIMEOUT_MS, stop=lambda: False, clock=self._clock)
            assert held is not None, "it was not asked to stop"
            self._locks.callback(held.release)
            node.is_locked = True

    @contextmanager
    def _open(self, durable: FlushPoint) -> Iterator[NodesStream]:
        assert self._shapes is not None, "begin() comes first"
        assert self._captures is not None
        self._shapes.load(durable.position)
        versions = Versions(self._path, gives_copies=self._source.include_backups)
        with ExitStack() as stack:
            stack.callback(versions.close)
            saved = versions.go_on(durable.position)
            self._stream = NodesStream(
                self.nodes,
                Nodes([node.name for node in self.nodes], saved),
                versions,
                self._shapes,
                source=self._source,
                takes=self._captures.takes,
                lock=self.lock,
                log_id=self._log_id(),
                known=self._known_caches,
                start=durable,
                clock=self._clock,
                copied_ms=self._copied_ms,
            )
            yield self._stream

    def stream(self, durable: FlushPoint) -> AbstractContextManager[IgniteStream]:
        """Return a stream over all nodes. Raises VersionsBroken, VersionsLost."""
        return self._open(durable)

    def before_flush(self, end: FlushPoint) -> None:
        """Make the delivered versions durable first. Raises VersionsBroken."""
        if self._stream is not None:
            self._stream.before_flush(end.position)


END = 1 << 63


class NodesStream(IgniteStream):
    """Stream over several nodes: each key's changes in the order of their versions."""

    def __init__(
        self,
        nodes: list[Node],
        places: Nodes,
        versions: Versions,
        shapes: Shapes,
        *,
        source: SourceSection,
        takes: Callable[[str], bool],
        lock: Callable[[Node], None],
        log_id: str,
        known: Callable[[], Sequence[str]],
        start: FlushPoint,
        clock: Clock = REAL_CLOCK,
        copied_ms: int = 0,
    ) -> None:
        """Continue after a flush point, with its places and versions."""
        self._copied_ms = copied_ms
        for node in nodes:  # changes read by an earlier stream do not count
            node.reader = node.maker = None
        self._nodes = nodes
        self._places = places
        self._given = versions
        self._takes_cache = takes
        self._lock = lock
        self._log_id = log_id
        self._known = known
        self._source = source
        self._name = ""  # of the node whose piece becomes a run
        self._over: dict[int, int] = {}
        self._left_out: dict[str, int] = {}
        self._acknowledged: deque[tuple[int, dict[str, int]]] = deque()
        none: Any = _NoReader()  # each node has its own
        super().__init__(none, none, shapes, start=start, versions=self, clock=clock)
        self._counts = CountedNodes(nodes)

    # -- where it is -------------------------------------------------------------------------

    def places(self) -> list[int]:
        """Return the position of each node, in their order."""
        return [self._places[node.name].position for node in self._nodes]

    def position_with(self, ends: list[int]) -> int:
        """Return the position at which each node is at its end, or at its place if that is
        further.
        """
        more = [max(end - at, 0) for end, at in zip(ends, self.places(), strict=True)]
        return self._places.position + sum(more)

    def has_given(self, position: int) -> bool:
        """Return whether the segments that each node had then are finished."""
        handled = [node.reader.handled if node.reader else -1 for node in self._nodes]
        dealt_with = self.position_with([one << OFFSET_BITS for one in handled])
        return self._runs is None and dealt_with >= position

    def before_flush(self, position: int) -> None:
        """Store the versions up to here: the log is about to be durable."""
        self._given.before_flush(position)

    def acknowledge(self, position: int) -> None:
        """Save each node's own state, and delete its segments."""
        self._given.acknowledge(position)
        places: dict[str, int] = {}
        while self._acknowledged and self._acknowledged[0][0] <= position:
            places = self._acknowledged.popleft()[1]
        for node in self._nodes:
            place = places.get(node.name, 0)
            if place and node.reader is not None and node.reader.is_active:
                with self._reachable(node):
                    node.reader.acknowledge(place_of(place))

    # -- nodes -------------------------------------------------------------------------------

    def _there(self) -> Iterator[Run]:
        """Yield the existing runs of all nodes, beginning with the node that is least far."""
        live = {
            node.name: (node, node.reader.pieces()) for node in self._find_nodes() if node.reader
        }
        while live:
            name = min(live, key=lambda one: self._places[one].time_ms)
            node, pieces = live[name]
            is_over = True
            with self._reachable(node):
                for piece in pieces:
                    run = self._run_of(node, piece)
                    if run is not None:
                        yield run
                    if piece.end is not None:
                        is_over = False
                        break
            if is_over:
                del live[name]

    def _find_nodes(self) -> Iterator[Node]:
        """Yield the nodes that can be read. Raises DirectoryTaken."""
        for node in self._nodes:
            now_s = self._clock.monotonic_s()
            if node.directory is None:
                if now_s - node.looked_s < LOOK_S:
                    continue
                node.looked_s = now_s
                if open_node(node):
                    continue
                logger.info("a node can be reached again", node=node.name)
            with self._reachable(node):
                assert node.directory is not None
                segments = node.directory.segments()
                if node.reader is None:
                    self._begin(node, segments)
                yield node

    def _begin(self, node: Node, segments: list[int]) -> None:
        """Read a node from its place on; a node without penstock's state starts from the
        beginning.

        Raises DirectoryOfOtherLog.
        """
        self._lock(node)
        directory = node.directory
        assert directory is not None
        position = self._places[node.name].position
        saved = directory.load_place()
        if position and (saved is None or not directory.is_claimed(self._log_id)):
            logger.warning("a node starts from the beginning: its state is gone", node=node.name)
            self._places.begin_anew(node.name)
            position = 0
        if saved is None:
            if not segments:
                return
            directory.save_place(LogPlace(segments[0], 0, 0))
        directory.claim(self._log_id)
        zone, backups = self._source.time_zone, self._source.include_backups
        types = directory.types_read
        node.maker = RowMaker(self._shapes, types, zone=zone, backups=backups)
        node.reader = NodeReader(
            directory,
            takes=self._takes_cache,
            backups=True,
            copied_ms=self._copied_ms,
            reads_ahead=False,
            known=self._known,
        )
        time_ms = self._places[node.name].time_ms if position else 0
        node.reader.begin(place_of(position) if position else None, time_ms)

    @contextmanager
    def _reachable(self, node: Node) -> Iterator[None]:
        """Provide a block that drops a node, until it can be reached again, if its directory has
        vanished.
        """
        try:
            yield
        except FileFailed as error:
            if _is_there(node.directory):
                raise
            unreachable(node, error)
            node.directory = node.reader = node.maker = None
            node.is_locked = False

    # -- runs --------------------------------------------------------------------------------

    def _run_of(self, node: Node, piece: Piece) -> Run | None:
        """Return a piece of one node as a run, at positions of all nodes."""
        assert node.reader is not None
        assert node.maker is not None
        self._reader, self._maker, self._name = node.reader, node.maker, node.name
        entries = piece.entries
        newest_ms = 0 if entries is None else int(entries.rows["time_ms"].max())
        caches = [] if entries is None else np.unique(entries.rows["cache_id"]).tolist()
        names = {number: node.reader.name_of(number) for number in caches}
        lives = self._places.lives
        self._over = {
            number: ms for number, name in names.items() if (ms := lives.ended_ms(name, node.name))
        }
        shift = self._places.position - self._places[node.name].position
        run = self._run(_shift(piece, shift))
        for name in names.values():
            lives.saw(name, node.name, newest_ms)
        if piece.end is not None and run is not None and run.end is not None:
            places, end = self._places, position_of(piece.end)
            places.read(node.name, end, node.reader.time_ms)
            self._given.ends(places.position, places.dump(), places.floor_ms)
            every = {one.name: places[one.name].position for one in self._nodes}
            self._acknowledged.append((places.position, every))
        return run

    def _begin_again(
        self,
        cache: str,
        position: int,
        time_us: int,
        markers: list[Marker],
    ) -> None:
        if self._places.lives.begins(cache, self._name, time_us // 1000):
            for node in self._nodes:
                if node.maker is not None:
                    node.maker.begin_again(cache)
            super()._begin_again(cache, position, time_us, markers)

    def accepts(self, cache_id: int, key: bytes, version: Any, time_ms: int) -> bool:
        """Return whether a change is not older than the delivered one; see stream.Versions."""
        if self._places[self._name].since_ms and not self._places.takes(self._name, time_ms):
            return False
        if self._over and time_ms < self._over.get(cache_id, 0):
            return False
        return self._given.accepts(cache_id, key, version, time_ms)


class _NoReader:
    """Reader before the first piece."""

    def begin(self, _place: object, _time_ms: int = 0) -> None:
        """Do nothing."""


class CountedNodes(StreamCounted):
    """Counts of several nodes together."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    @property
    def byte_count(self) -> int:
        return sum(node.reader.byte_count for node in self._nodes if node.reader)

    @property
    def ignored_row_count(self) -> int:
        """Number of rows of other caches."""
        return sum(node.reader.ignored for node in self._nodes if node.reader)


def open_node(node: Node) -> CdcDirectoryMissing | None:
    """Find a node's directory; return the error if it is missing."""
    try:
        node.directory = NodeDirectory(node.url)
        node.declared = Declared(node.directory)
    except CdcDirectoryMissing as error:
        unreachable(node, error)
        return error
    return None


def unreachable(node: Node, error: Exception) -> None:
    """Warn that the others continue without a node."""
    logger.warning(
        "a node cannot be reached: its lag is not known, and the others are followed",
        node=node.name,
        work=str(node.url.work),
        error=str(error),
        hint="If it is gone for good, remove its URL from [source] url.",
    )


def _is_there(directory: NodeDirectory | None) -> bool:
    try:
        return directory is not None and directory.segments() is not None
    except FileFailed:
        return False


def _shift(piece: Piece, shift: int) -> Piece:
    """Return a piece at positions that are higher by a shift."""

    def move(place: LogPlace) -> LogPlace:
        return place_of(position_of(place) + shift)

    return replace(
        piece,
        made=[(group, move(place)) for group, place in piece.made],
        positions=piece.positions + np.int64(shift),
        end=None if piece.end is None else move(piece.end),
    )
