"""The segments of one node in pieces of whole transactions, in the order in which they ended.

Entries with one nearXid are a transaction, at the place of its last record in the segment: it holds
the locks of its keys from its first record to its last, so no other change of them is between. What
has none is a transaction by record. A transaction that goes on in the next segment becomes two.
Not here: numbers, rows and shapes (`stream.py`), and when a segment may be removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from penstock.codec.ignite.types import cache_id
from penstock.codec.ignite.wal import Encrypted
from penstock.engines.ignite.directory import Cache, NodeDirectory
from penstock.engines.ignite.source.lives import Lives
from penstock.engines.ignite.source.position import OFFSET_BITS
from penstock.engines.ignite.source.versions import RecentVersions
from penstock.host.faults import declare, point
from penstock.model import PenstockError
from penstock.ports.direct import DirectListing, LogPlace

PIECE_ENTRIES_MAX = 10_000
END = 1 << 31  # no segment has that many bytes

declare("ignite.place.after", "ignite.remove.after")

logger = structlog.get_logger(__name__)


class NodeSegmentsMissed(PenstockError):
    """Segments of a node are not there any more. fields: path, last, next."""

    code = "IG81"
    retry = "operator"


class CacheEncrypted(PenstockError):
    """The log has changes of an encrypted cache that is to be captured. fields: cache."""

    code = "IG83"
    retry = "operator"


@dataclass(slots=True)
class Piece:
    """Transactions, in order, one behind the other.

    made: caches that were made again in front of them, each with its place. entries: of all
    transactions; counts: how many each has; ended: of each the position of its last record, ms
    since 1970, its number or 0. end: from where on the rest is read; None: a transaction is open
    there.
    """

    made: list[tuple[str, LogPlace]] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ended: list[tuple[int, int, int]] = field(default_factory=list)
    end: LogPlace | None = None


class NodeReader:
    """Reads one node's directory. ignored: entries of caches that are not taken, and backups.

    byte_count: of the segments read. handled: the last segment that was dealt with. recent: of a
    segment with resent rows, the versions before them.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        *,
        takes: Callable[[str], bool],
        backups: bool = False,
        copied_ms: int = 0,
    ) -> None:
        """takes: caches by name. backups: also the changes of copies that are not primary.

        copied_ms: rows were copied after this time, of the lives that caches had then.
        """
        self._copied_ms = copied_ms
        self._directory = directory
        self._takes = takes
        self._backups = backups
        self._listing = DirectListing(directory, self._missed)
        self._names: dict[int, str] = {}
        self._groups: dict[int, dict[int, str]] = {}
        self._lives = Lives(directory.made_ms)
        self.ignored = self.byte_count = 0
        self.handled = -1
        self._walk: Any = None
        self.recent: RecentVersions | None = None

    def begin(self, place: LogPlace | None, time_ms: int = 0) -> None:
        """Go on from a place: what the change log has counts, not what was saved behind it.

        Where nothing is saved and the place is gone, somebody has deleted what was below a hole: it
        goes on with what is there. time_ms: of the last change before it.
        """
        listing, directory = self._listing, self._directory
        listing.load()
        self._lives.start_ms = max(time_ms, self._copied_ms)
        if place is None:
            return
        if listing.pending is None and min(directory.segments(), default=0) > place.segment:
            logger.warning(
                "going on behind a hole", node=directory.directory.name, last=tuple(place)
            )
            return
        listing.pending = place
        self.handled = place.segment - 1

    @property
    def is_active(self) -> bool:
        """Whether changes are ours to give; before, the node gives them."""
        return self._listing.is_active

    @property
    def time_ms(self) -> int:
        """Of the newest record that was read."""
        return 0 if self._walk is None else int(self._walk.time_ms)

    def name_of(self, cache_id: int) -> str:
        """The name of a cache of an entry that was given."""
        return self._names[cache_id]

    def acknowledge(self, place: LogPlace) -> None:
        """The change log has everything before a place: save it, and remove what is done with."""
        if place != self._directory.load_place():
            self._directory.save_place(place)
        point("ignite.place.after")
        self._listing.remove_before(place)
        point("ignite.remove.after")

    def pieces(self) -> Iterator[Piece]:
        """What is there now. Raises NodeSegmentsMissed, and what reading does."""
        listing = self._listing
        for segment in listing.new():
            if listing.is_done_with(segment):
                continue
            if listing.is_active:
                yield from self._read(segment)
            elif not listing.follow_node(segment, self.acknowledge):
                listing.begin_again()
                return
            listing.processed(segment)
            listing.pending = None
            self.handled = segment

    def _missed(self, text: str, last: int, following: int) -> NodeSegmentsMissed:
        return NodeSegmentsMissed(
            text,
            hint="To go on behind the hole: penstock ignite delete-lost-segment-links FILE; then "
            "fill it: penstock ignite resend FILE --caches with the caches that matter.",
            path=str(self._directory.directory),
            last=last,
            next=following,
        )

    def _find_caches(self) -> None:
        self._groups.clear()
        for told in self._directory.caches():
            cache: Cache = told.read()
            self._names.pop(cache.cache_id, None)
            if self._takes(cache.name):
                self._names[cache.cache_id] = cache.name
                group = cache.cache_id if cache.group is None else cache_id(cache.group)
                self._groups.setdefault(group, {})[cache.cache_id] = cache.name

    # -- one segment -------------------------------------------------------------------------

    def _read(self, segment: int) -> Iterator[Piece]:
        self._find_caches()
        directory, saved = self._directory, self._listing.pending
        begin = saved.offset if saved is not None else 0
        data = directory.read_segment(segment)
        self.byte_count += len(data)
        ignored = self.ignored
        made = self._made_again(segment, begin, data)
        times: dict[int, int] = {}
        first = directory.walk(segment, begin, data, self._refuse)
        lasts = _lasts(self._wanted(first), times)
        self._lives.saw(times)
        self.ignored = ignored
        walk = self._walk = directory.walk(segment, begin, data)
        if saved is not None and saved.entry:
            walk.skip(saved.entry)
        yield from _Segment(
            number=segment,
            begin=begin,
            walk=walk,
            lasts=lasts,
            made=made,
            entries=self._wanted(walk),
        ).pieces()

    def _refuse(self, record: Encrypted) -> None:
        """A change log has no gap, where Ignite's utility passes over these. Raises."""
        for group in record.groups:
            for cache in self._groups.get(group, {}).values():
                raise CacheEncrypted(
                    f"cache {cache} is encrypted: its changes can be read by a node alone",
                    hint=f'Leave it out: "!{cache}" in [source] tables.',
                    cache=cache,
                )

    def _made_again(self, segment: int, begin: int, data: bytes) -> list[tuple[str, LogPlace]]:
        """Caches that were made again in a segment, and where."""
        groups, has_resent = self._directory.made_groups(segment, begin, data)
        self.recent = self._before(segment, begin, data) if has_resent else None
        marks = [
            (group, LogPlace(segment, offset, 0))
            for offset, group in groups
            if group in self._groups
        ]
        if not marks:
            return []
        entries = self._directory.walk(segment, begin, data)
        return self._lives.begun(marks, entries, lambda group: self._groups[group])

    def _before(self, segment: int, begin: int, data: bytes) -> RecentVersions:
        """The versions in the segment before, which stays until this one is read, and in this."""
        directory, found = self._directory, RecentVersions()
        walks = [directory.walk(segment, 0, data)]
        if segment - 1 in directory.segments():
            walks.insert(0, directory.walk(segment - 1, 0))
        for number, walk in zip(range(segment + 1 - len(walks), segment + 1), walks, strict=True):
            for one in walk:
                if number == segment and one.offset >= begin:
                    break
                found.accepts(one.cache_id, one.key_bytes, one.write_version, one.time_ms)
        return found

    def _wanted(self, walk: Any) -> Iterator[Any]:
        names, backups = self._names, self._backups
        for entry in walk:
            if entry.cache_id in names and (backups or entry.primary):
                yield entry
            else:
                self.ignored += 1


def _lasts(entries: Iterator[Any], times: dict[int, int]) -> dict[Any, int]:
    """Of each transaction that has entries in more than one record: where its last one is.

    times: gets the time of each cache's last entry, ms since 1970.
    """
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for entry in entries:
        times[entry.cache_id] = entry.time_ms
        near = entry.near_version
        if near is not None:
            offset = entry.offset
            if first.setdefault(near, offset) != offset:
                last[near] = offset
    return last


@dataclass(kw_only=True)
class _Segment:
    """The entries of one segment, put in the order in which their transactions ended."""

    number: int
    begin: int
    walk: Any
    lasts: dict[Any, int]
    made: list[tuple[str, LogPlace]]
    entries: Iterator[Any]
    _open: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def pieces(self) -> Iterator[Piece]:
        piece, marks = Piece(), _Marks(self.made)
        for record in _records(self.entries):
            offset = record[0].offset
            if len(piece.entries) >= PIECE_ENTRIES_MAX:
                if not self._open:
                    piece.end = LogPlace(self.number, min(offset, marks.offset), 0)
                yield piece
                piece = Piece()
            if offset > marks.offset:
                if piece.entries:
                    yield piece
                    piece = Piece()
                piece.made += marks.before(offset)
            self._take(piece, record)
        if marks.is_left:
            if piece.entries:
                yield piece
                piece = Piece()
            piece.made += marks.before(END)
        place = self.walk.place
        piece.end = LogPlace(self.number, self.begin, 0) if place is None else LogPlace(*place)
        yield piece

    def _take(self, piece: Piece, record: list[Any]) -> None:
        """Take in a record's entries: those of transactions that end with it, and its own."""
        near = record[0].near_version
        if not self.lasts or (len(record) == 1 and near not in self.lasts):
            self._put(piece, record, near)
            return
        by_near: dict[Any, list[Any]] = {}
        for entry in record:
            by_near.setdefault(entry.near_version, []).append(entry)
        for near, some in by_near.items():
            if near not in self.lasts:
                self._put(piece, some, near)
            elif self.lasts[near] == some[0].offset:
                self._put(piece, [*self._open.pop(near, []), *some], near)
            else:
                self._open[near] += some

    def _put(self, piece: Piece, entries: list[Any], near: Any) -> None:
        last = entries[-1]
        piece.entries += entries
        piece.counts.append(len(entries))
        position = (self.number << OFFSET_BITS) + last.offset
        piece.ended.append((position, last.time_ms, 0 if near is None else near.order))


def _records(entries: Iterator[Any]) -> Iterator[list[Any]]:
    """The entries of each record."""
    record: list[Any] = []
    offset = -1
    for entry in entries:
        if entry.offset != offset:
            if record:
                yield record
            record, offset = [], entry.offset
        record.append(entry)
    if record:
        yield record


class _Marks:
    """Where caches were made again, in order. offset: of the next one."""

    def __init__(self, made: list[tuple[str, LogPlace]]) -> None:
        self._left = made

    @property
    def is_left(self) -> bool:
        return bool(self._left)

    @property
    def offset(self) -> int:
        return self._left[0][1].offset if self._left else END

    def before(self, offset: int) -> list[tuple[str, LogPlace]]:
        """Those before an offset; they are taken."""
        found = [one for one in self._left if one[1].offset < offset]
        self._left = self._left[len(found) :]
        return found
