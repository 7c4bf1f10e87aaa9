"""Segments of one node in pieces of whole transactions, in the order in which they ended.

Entries with the same nearXid are a transaction, at the place of its last record in the segment:
it holds the locks of its keys from its first record to its last, so no other change of them is
in between. An entry without a nearXid is a transaction of its own. Only a transaction of several
records, or one that is not in one stretch, needs a loop over the stretches of entries; otherwise
the entries are in order. A transaction that continues in the next segment becomes two.

Recreated caches are detected by files that begin in the node's log. Files also begin when a node
returns to a cluster and has to be sent the missing changes: then the cache is the same. Two facts
distinguish the cases. The configuration of a cache is written when it is created, so it is younger
than the last change of the earlier life. And in a new life each partition counts its changes from
1. Caches of a group share their files, so a recreated cache of a group is not detected. Not here:
numbers, rows and shapes (`stream.py`), and when a segment may be deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from penstock.codec.ignite import wal
from penstock.codec.ignite.changes import Changes, Ints
from penstock.codec.ignite.errors import WalBroken
from penstock.codec.ignite.types import cache_id
from penstock.codec.ignite.wal import Encrypted
from penstock.engines.ignite.directory import Cache, NodeDirectory, Segment
from penstock.engines.ignite.source.position import position_of
from penstock.engines.ignite.source.versions import RecentVersions
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.faults import declare, point
from penstock.model import PenstockError
from penstock.ports.direct import DirectListing, LogPlace

Mark = tuple[int, LogPlace]


@dataclass
class Lives:
    """Facts about caches.

    Attributes:
        made_ms: returns when the configuration of a cache was written, ms since 1970; None if it
        is gone.
        start_ms: time of the log's end, for caches not seen since.
    """

    made_ms: Callable[[str], int | None]
    start_ms: int = 0
    _last_ms: dict[int, int] = field(default_factory=dict)

    def saw(self, times: Mapping[int, int]) -> None:
        """Note the time of the last change of each cache, by its id."""
        self._last_ms |= times

    def find_recreated(
        self,
        marks: Sequence[Mark],
        entries: Iterator[Any],
        caches_of: Callable[[int], Mapping[int, str]],
    ) -> list[tuple[str, LogPlace]]:
        """Return the recreated caches with their places, in order.

        Args:
            marks: places where files of groups begin, in order.
            entries: entries of the segment, including copies.
            caches_of: returns the caches of a group, by id.
        """
        last = dict(self._last_ms)
        found: list[tuple[str, LogPlace]] = []
        checked: dict[int, _Begun] = {}
        waiting = list(marks)
        every: list[_Begun] = []
        for entry in entries:
            while waiting and waiting[0][1].offset < entry.offset:
                every += self._begin(waiting.pop(0), last, caches_of, checked)
            last[entry.cache_id] = entry.time_ms
            here = checked.get(entry.cache_id)
            if here is not None and entry.counter > 0:
                here.saw(entry.partition, entry.counter)
        for mark in waiting:
            every += self._begin(mark, last, caches_of, checked)
        for one in every:
            if one.is_new:
                found.append((one.name, one.place))
        return found

    def _begin(
        self,
        mark: Mark,
        last: Mapping[int, int],
        caches_of: Callable[[int], Mapping[int, str]],
        checked: dict[int, _Begun],
    ) -> list[_Begun]:
        found = []
        for number, name in caches_of(mark[0]).items():
            made_ms = self.made_ms(name)
            is_younger = made_ms is not None and made_ms > last.get(number, self.start_ms)
            checked[number] = _Begun(name=name, place=mark[1], is_younger=is_younger)
            found.append(checked[number])
        return found


@dataclass
class _Begun:
    """Cache whose files begin here. is_younger: whether its configuration is newer than its last
    change.
    """

    name: str
    place: LogPlace
    is_younger: bool
    _least: dict[int, int] = field(default_factory=dict)

    def saw(self, partition: int, counter: int) -> None:
        self._least[partition] = min(counter, self._least.get(partition, counter))

    @property
    def is_new(self) -> bool:
        return self.is_younger and all(count == 1 for count in self._least.values())


_NEAR = ("near", "near_order", "near_topology", "near_node")


class Ordered(NamedTuple):
    """Changes in the order of their transactions.

    Attributes:
        counts: number of entries of each transaction.
        offsets: offsets of the records with entries.
        before: number of entries before each record.
        is_open: whether a transaction continues there.
    """

    changes: Changes
    counts: Ints
    offsets: Ints
    before: Ints
    is_open: npt.NDArray[np.bool_]


def in_order(changes: Changes) -> Ordered:
    """Put the changes of a segment in order."""
    rows = changes.rows
    offsets = rows["offset"].astype(np.int64)
    is_record = _differs(offsets)
    records = runs = np.flatnonzero(is_record)
    if rows["near"].any():
        runs = np.flatnonzero(np.any([is_record, *(_differs(rows[one]) for one in _NEAR)], axis=0))
        near = rows["near"][runs]
        # Those of one order and different nodes are treated as one here, and separated below.
        if _repeats(rows["near_order"][runs][near]) or _repeats(offsets[runs][~near]):
            return _woven(changes, offsets, runs)
    counts = np.diff(np.append(runs, len(offsets)))
    is_open = np.zeros(len(records), np.bool_)
    return Ordered(changes, counts, offsets[records], records, is_open)


def _differs(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which values differ from the previous one; the first always counts as different."""
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def _repeats(values: npt.NDArray[Any]) -> bool:
    return len(np.unique(values)) < len(values)


def _woven(changes: Changes, offsets: Ints, runs: Ints) -> Ordered:
    """Return the order if stretches of entries have to be joined."""
    rows = changes.rows
    fields = [rows[name][runs].tolist() for name in _NEAR]
    nears = [near if near[0] else None for near in zip(*fields, strict=True)]
    places = list(zip(offsets[runs].tolist(), nears, range(len(runs)), strict=True))
    lasts = _lasts(places)
    given: list[list[int]] = []  # the runs of each transaction
    open_ones: dict[Any, list[int]] = {}
    sizes = np.diff(np.append(runs, len(offsets))).tolist()
    ends, is_open, record_offsets, count = [], [], [], 0
    for offset, some in groupby(places, key=lambda one: one[0]):
        record_offsets.append(offset)
        ends.append(count)
        is_open.append(bool(open_ones))
        by_near: dict[Any, list[int]] = {}
        for _, near, run in some:
            by_near.setdefault(near, []).append(run)
        for near, here in by_near.items():
            if lasts.get(near, offset) == offset:
                given.append([*open_ones.pop(near, ()), *here])
                count += sum(sizes[run] for run in given[-1])
            else:
                open_ones.setdefault(near, []).extend(here)
    order = [np.arange(runs[run], runs[run] + sizes[run]) for some in given for run in some]
    return Ordered(
        changes.pick(np.concatenate(order)),
        np.array([sum(sizes[run] for run in some) for some in given], np.int64),
        np.array(record_offsets, np.int64),
        np.array(ends, np.int64),
        np.array(is_open, np.bool_),
    )


def _lasts(places: list[tuple[int, Any, int]]) -> dict[Any, int]:
    """Return the offset of the last record of each transaction."""
    return {near: offset for offset, near, _ in places if near is not None}


PIECE_ENTRIES_MAX = 20_000
END = 1 << 31  # no segment has that many bytes

declare("ignite.place.after", "ignite.remove.after")

logger = structlog.get_logger(__name__)


class NodeSegmentsMissed(PenstockError):
    """Segments of a node are missing. fields: path, last, next."""

    code = "IG81"
    retry = "operator"


class CacheEncrypted(PenstockError):
    """The log has changes of an encrypted cache that is to be captured. fields: cache."""

    code = "IG83"
    retry = "operator"


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Piece:
    """Consecutive transactions.

    Attributes:
        made: caches that were recreated before them, each with its place.
        entries: entries of all transactions; None if there are none.
        counts: number of entries of each.
        positions, times_ms, numbers: of the last record of each: its position, ms since 1970,
        the transaction's number or 0.
        end: place from which the rest is read; None: a transaction is open there.
    """

    made: list[tuple[str, LogPlace]] = field(default_factory=list)
    entries: Changes | None = None
    counts: Ints = field(default_factory=_none)
    positions: Ints = field(default_factory=_none)
    times_ms: Ints = field(default_factory=_none)
    numbers: Ints = field(default_factory=_none)
    end: LogPlace | None = None


class NodeReader:
    """Reader of one node's directory.

    Attributes:
        ignored: number of entries of unwanted caches, and of backups.
        byte_count: bytes of the segments read.
        time_ms: time of the newest record read.
        handled: the last finished segment.
        recent: for a segment with resent rows, the earlier versions.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        *,
        takes: Callable[[str], bool],
        backups: bool = False,
        copied_ms: int = 0,
        reads_ahead: bool = True,
        known: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Store what to read.

        Args:
            directory: directory of the node.
            takes: returns whether the changes of a cache are wanted, by its name.
            backups: whether changes of copies that are not primary are wanted.
            copied_ms: rows were copied after this time, of the lives that caches had then.
            reads_ahead: whether memory may hold two segments.
            known: returns names of caches that may be gone, and whose changes are wanted.
        """
        self._reads_ahead = reads_ahead
        self._copied_ms = copied_ms
        self._directory = directory
        self._takes = takes
        self._known = known
        self._unknown: set[int] = set()  # ids of caches whose changes are skipped
        self._backups = backups
        self._listing = DirectListing(directory, self._missed_error)
        self._names: dict[int, str] = {}
        self._groups: dict[int, dict[int, str]] = {}
        self._lives = Lives(directory.made_ms)
        self.ignored = self.byte_count = self.time_ms = 0
        self.handled = -1
        self.recent: RecentVersions | None = None

    def begin(self, place: LogPlace | None, time_ms: int = 0) -> None:
        """Continue from a place: that of the change log counts, not a later saved place.

        If nothing is saved and the place is gone, an operator has deleted the segments below a
        hole: reading continues with the existing ones. time_ms: of the last change before it.
        """
        listing, directory = self._listing, self._directory
        listing.load()
        self._lives.start_ms = max(time_ms, self._copied_ms)
        if place is None:
            return
        if listing.pending is None and min(directory.segments(), default=0) > place.segment:
            logger.warning(
                "continuing after a hole", node=directory.directory.name, last=tuple(place)
            )
            return
        listing.pending = place
        self.handled = place.segment - 1

    @property
    def is_active(self) -> bool:
        """Return whether penstock delivers the changes; before that the node delivers them."""
        return self._listing.is_active

    def name_of(self, cache_id: int) -> str:
        """Return the name of the cache of a delivered entry."""
        return self._names[cache_id]

    def acknowledge(self, place: LogPlace) -> None:
        """Save a place up to which the change log has everything, and delete finished segments."""
        if place != self._directory.load_place():
            self._directory.save_place(place)
        point("ignite.place.after")
        self._listing.remove_before(place)
        point("ignite.remove.after")

    def pieces(self) -> Iterator[Piece]:
        """Yield the existing pieces. Raises NodeSegmentsMissed, and the errors of reading."""
        listing = self._listing
        for segment in listing.new():
            if listing.is_active:
                yield from self._read(segment)
            elif not listing.follow_node(segment, self.acknowledge):
                listing.begin_again()
                yield from self.pieces()  # now penstock delivers them
                return
            listing.note_processed(segment)
            listing.pending = None
            self.handled = segment

    def _missed_error(self, text: str, last: int, following: int) -> NodeSegmentsMissed:
        return NodeSegmentsMissed(
            text,
            hint="To continue after the hole: penstock ignite delete-lost-segment-links FILE; then "
            "fill it: penstock ignite resend FILE --caches with the caches that matter.",
            path=str(self._directory.directory),
            last=last,
            next=following,
        )

    def _find_caches(self) -> None:
        self._groups.clear()
        self._directory.know_tables([*self._known()])
        for told in self._directory.caches():
            cache: Cache = told.read()
            self._names.pop(cache.cache_id, None)
            if self._takes(cache.name):
                self._names[cache.cache_id] = cache.name
                group = cache.cache_id if cache.group is None else cache_id(cache.group)
                self._groups.setdefault(group, {})[cache.cache_id] = cache.name
        for name in self._known():
            if self._takes(name):
                self._names.setdefault(cache_id(name), name)

    # -- one segment -------------------------------------------------------------------------

    def _read(self, segment: int) -> Iterator[Piece]:
        self._find_caches()
        directory, saved = self._directory, self._listing.pending
        begin = saved.offset if saved is not None else 0
        held, every, found = directory.scan(
            segment, begin, self._refuse, reads_ahead=self._reads_ahead
        )
        self.byte_count += len(held.data)
        made = self._made_again(segment, begin, held, found)
        mask = self._select(every)
        if not mask.all():
            self._warn_of_unknown(every.pick(~mask))
        wanted = every if mask.all() else every.pick(mask)
        self._lives.saw(_last_times(wanted))
        if saved is not None and saved.entry:
            every, wanted = (
                one.pick(one.rows["ordinal"] >= saved.entry) for one in (every, wanted)
            )
        self.ignored += len(every) - len(wanted)
        end = LogPlace(segment, begin, 0) if found.place is None else LogPlace(*found.place)
        for piece in _pieces(segment, in_order(wanted), _Marks(made), end):
            if piece.end == end:
                self.time_ms = found.time_ms
            elif piece.end is not None:
                at = np.searchsorted(wanted.rows["offset"], piece.end.offset)
                self.time_ms = int(wanted.rows["time_ms"][at])
            yield piece

    def _warn_of_unknown(self, changes: Changes) -> None:
        """Warn once for each cache that is gone that its changes are skipped."""
        for number in np.unique(changes.rows["cache_id"]).tolist():
            if self._directory.name_of(number) is None and number not in self._unknown:
                self._unknown.add(number)
                logger.warning(
                    "changes of a cache that is gone are skipped, as its name is not known: "
                    "name it in [source] tables without wildcards",
                    node=self._directory.directory.name,
                    cache_id=number,
                )

    def _refuse(self, record: Encrypted) -> None:
        """Raise CacheEncrypted: a change log has no hole, while Ignite's utility skips these
        records.
        """
        for group in record.groups:
            for cache in self._groups.get(group, {}).values():
                raise CacheEncrypted(
                    f"cache {cache} is encrypted: its changes can be read by a node alone",
                    hint=f'Leave it out: "!{cache}" in [source] tables.',
                    cache=cache,
                )

    def _made_again(
        self, segment: int, begin: int, held: Segment, found: wal.Scanned
    ) -> list[tuple[str, LogPlace]]:
        """Return the caches that were recreated in a segment, with their places."""
        self.recent = self._before(segment, begin, held) if found.has_resent else None
        marks = []
        for record in found.trees:
            group = wal.find_created_group(held.data, record)
            if group is not None and group in self._groups:
                marks.append((group, LogPlace(segment, record.offset, 0)))
        if not marks:
            return []
        entries = self._directory.walk(segment, begin, held)
        return self._lives.find_recreated(marks, entries, lambda group: self._groups[group])

    def _before(self, segment: int, begin: int, held: Segment) -> RecentVersions:
        """Return the versions in the previous segment, which stays until this one is read, and
        in this.
        """
        directory, found = self._directory, RecentVersions()
        walks = [directory.walk(segment, 0, held)]
        if segment - 1 in directory.segments():
            walks.insert(0, directory.walk(segment - 1, 0, directory.check(segment - 1)))
        for number, walk in zip(range(segment + 1 - len(walks), segment + 1), walks, strict=True):
            for one in walk:
                if number == segment and one.offset >= begin:
                    break
                found.accepts(one.cache_id, one.key_bytes, one.write_version, one.time_ms)
        return found

    def _select(self, changes: Changes) -> npt.NDArray[np.bool_]:
        rows = changes.rows
        found = np.isin(rows["cache_id"], np.array(list(self._names), np.int32))
        return found if self._backups else found & changes.is_primary


def _last_times(changes: Changes) -> dict[int, int]:
    """Return the time of the last change of each cache, ms since 1970."""
    caches, places = np.unique(changes.rows["cache_id"][::-1], return_index=True)
    times = changes.rows["time_ms"][::-1][places]
    return dict(zip(caches.tolist(), times.tolist(), strict=True))


def _pieces(number: int, ordered: Ordered, marks: _Marks, end: LogPlace) -> Iterator[Piece]:
    """Yield the changes of a segment in pieces. end: the place after the segment."""
    offsets, before, is_open = ordered.offsets, ordered.before, ordered.is_open
    ends = np.cumsum(ordered.counts)
    names = ("offset", "time_ms", "near", "near_order")
    offset, times_ms, near, order = (ordered.changes.rows[name][ends - 1] for name in names)
    positions = np.int64(position_of(LogPlace(number, 0, 0))) + offset.astype(np.int64)
    numbers = np.where(near, order, 0)

    def piece(first: int, count: int) -> Piece:
        """Return the entries between two places, which are whole transactions."""
        low, high = np.searchsorted(ends, (first, count), "right")
        found = slice(low, high)
        entries = ordered.changes.pick(slice(first, count)) if count > first else None
        return Piece(
            [], entries, ordered.counts[found], positions[found], times_ms[found],
            numbers[found],
        )  # fmt: skip

    at = given = 0
    made: list[tuple[str, LogPlace]] = []
    while True:
        full = int(np.searchsorted(before[at:], given + PIECE_ENTRIES_MAX)) + at
        mark = int(np.searchsorted(offsets[at:], marks.offset, "right")) + at
        at = min(full, mark)
        if at == len(offsets):
            break
        found = piece(given, int(before[at]))
        found.made, made = made, []
        if at == full and not is_open[at]:
            found.end = LogPlace(number, int(min(offsets[at], marks.offset)), 0)
        if at == full or found.entries is not None:
            yield found
        else:
            made = found.made
        given = int(before[at])
        if at == mark:
            made += marks.before(int(offsets[at]))
        at += 1
    found = piece(given, len(ordered.changes))
    found.made = made
    if marks.is_left:
        if found.entries is not None:
            yield found
            found = Piece()
        found.made += marks.before(END)
    found.end = end
    yield found


class _Marks:
    """Places where caches were recreated, in order. offset: of the next one."""

    def __init__(self, made: list[tuple[str, LogPlace]]) -> None:
        self._left = made

    @property
    def is_left(self) -> bool:
        return bool(self._left)

    @property
    def offset(self) -> int:
        return self._left[0][1].offset if self._left else END

    def before(self, offset: int) -> list[tuple[str, LogPlace]]:
        """Remove and return the entries before an offset."""
        found = [one for one in self._left if one[1].offset < offset]
        self._left = self._left[len(found) :]
        return found


WAL_PATH = "db/wal"
SEGMENTS_MAX = 3  # the last ones, which are read
_HEADER = struct.Struct("<Bq")
_HEADER_KIND = 5


def node_end(url: IgniteUrl, directory: NodeDirectory) -> LogPlace | None:
    """Return the place after the beginning of the node's last change, read from the node's own
    segments.

    Returns None if the last segments have no change, or if the node keeps them elsewhere.
    """
    for number, path in _segments(url.work / WAL_PATH / directory.directory.name)[:SEGMENTS_MAX]:
        place = _last_change(directory, number, path)
        if place is not None:
            return place
    return None


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Return number and file of each, the newest first. Files are reused: their names are no
    guide.
    """
    found = []
    for path in folder.glob("*.wal"):
        with path.open("rb") as opened:
            head = opened.read(wal.HEADER_BYTES)
        if len(head) == wal.HEADER_BYTES:
            kind, number = _HEADER.unpack_from(head)
            if kind == _HEADER_KIND:
                found.append((number, path))
    return sorted(found, reverse=True)


def _last_change(directory: NodeDirectory, number: int, path: Path) -> LogPlace | None:
    last: int | None = None
    with suppress(WalBroken):  # the node is writing there: later changes do not count
        for entry in directory.walk(number, 0, Segment(path.read_bytes(), 0)):
            last = entry.offset
    return None if last is None else LogPlace(number, last + 1, 0)
