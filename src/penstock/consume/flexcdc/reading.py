"""Walk through a segment: transactions in order, cut where the destination commits.

It commits only after whole transactions, when enough images are written, and before a change of a
table's shape. Independent of any destination: `Sink` receives the images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.images import ImageGroup, ImageOptions, groups
from penstock.consume.flexcdc.state import Place, UnitOfWork, Units, behind
from penstock.log.change_tables import EMPTYING
from penstock.log.segment import Segment
from penstock.model import Marker, Relation, TableName

PositionText = Callable[[int], str]
WhereOf = Callable[[str], tuple[str, int]]


class Sink(Protocol):
    """Receiver of row images, with a transaction from `begin` to `commit`.

    Attributes:
        images_max: how many images are written at once, and after how many to commit.
        one_by_one: every transaction is committed separately.
    """

    images_max: int
    one_by_one: bool

    @abstractmethod
    def begin(self, place: Place, /) -> None:
        """Begin a transaction unless one is open.

        Args:
            place: the stored place.
        """
        ...

    @abstractmethod
    def write(self, group: ImageGroup, start: int, end: int, units: Units, /) -> None:
        """Write the images of the rows at these places."""
        ...

    @abstractmethod
    def note_emptied(self, table: TableName, uow_id: int, gsn: int, /) -> None:
        """Note that a table was emptied, after the image of this number."""
        ...

    @abstractmethod
    def commit(self, place: Place, units: Sequence[UnitOfWork], where: tuple[str, int], /) -> None:
        """Commit with these units of work and this place."""
        ...

    @abstractmethod
    def give_up(self) -> None:
        """Undo everything that is not committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Content of the destination: the place in the log, and the last numbers."""

    place: Place
    unit: UnitOfWork


@dataclass(frozen=True, slots=True)
class _Shaping:
    """Changes of shape that a transaction needs before its first row.

    Attributes:
        relations: shapes whose rows begin with the transaction, in order.
        met: tables without a changelog that it empties.
        beside: further shapes of which it may have rows.
    """

    trx: int
    relations: list[Relation]
    met: list[TableName]
    beside: list[Relation]


class SegmentWalk:
    """One segment, from the transaction after a place to its end."""

    def __init__(
        self,
        segment: Segment,
        progress: Progress,
        changelogs: Changelogs,
        sink: Sink,
        *,
        options: ImageOptions,
        position_text: PositionText,
        where_of: WhereOf,
        on_emptied: Callable[[TableName], None],
    ) -> None:
        self._segment = segment
        self._changelogs = changelogs
        self._sink = sink
        self._options = options
        self._position_text = position_text
        self._where_of = where_of
        self._on_emptied = on_emptied
        self._after = progress.place.trx
        self._units = Units(segment, self._after, progress.unit)
        self._place = progress.place
        self._unit = progress.unit
        self._last = progress.unit.gsn_hwm
        self._ends: dict[int, int] = {}
        self._written = 0
        self._open = (
            0  # the last transaction that was written, wholly or in part, since the last commit
        )
        self._markers = deque(sorted(self._emptying(), key=lambda marker: marker.gsn))
        self._shapings = deque(self._find_shapings())
        self._to_drop: list[Relation] = []

    def run(self, *, is_done: bool, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Write the whole segment; return the destination's progress then.

        After an error only whole transactions are in the destination; call `give_up` of the sink.

        Args:
            is_done: the segment is closed.
            stop: returns whether to end early; then uncommitted rows are undone.
        """
        for frames in groups(self._segment, self._changelogs.is_captured, trx_after=self._after):
            group = ImageGroup(frames, self._options, self._last)
            self._write(group)
            if stop():
                self._sink.give_up()
                return Progress(place=self._place, unit=self._unit)
        self._settle_through(self._segment.end.trx)
        self._commit(self._segment.end.trx, is_done=is_done)
        self._shape_latest()
        return Progress(place=self._place, unit=self._unit)

    # -- looking ahead ---------------------------------------------------------------------------

    def _emptying(self) -> Iterator[Marker]:
        return (
            marker
            for marker in self._segment.markers()
            if marker.kind in EMPTYING and marker.trx > self._after
        )

    def _find_shapings(self) -> list[_Shaping]:
        first: dict[int, tuple[int, int]] = {}
        spans: list[tuple[int, int, int]] = []
        for entry in self._segment.row_frames():
            if entry.trx_last > self._after:
                place = (max(entry.trx_first, self._after + 1), entry.gsn_first)
                first[entry.relation_id] = min(first.get(entry.relation_id, place), place)
                spans.append((entry.trx_first, entry.trx_last, entry.relation_id))
        found: dict[int, list[Relation]] = {}
        for relation_id, (trx, _) in sorted(first.items(), key=lambda item: item[1]):
            relation = self._segment.relation(relation_id)
            if self._changelogs.is_captured(TableName(relation.schema, relation.name)):
                found.setdefault(trx, []).append(relation)
        met: dict[int, list[TableName]] = {}
        for marker in self._markers:
            for table in (TableName(*name) for name in marker.tables):
                is_met = any(table in tables for tables in met.values())
                if self._changelogs.is_captured(table) and not is_met:
                    met.setdefault(marker.trx, []).append(table)
        return [
            _Shaping(trx, found.get(trx, []), met.get(trx, []), self._list_beside(trx, spans))
            for trx in sorted(found.keys() | met.keys())
        ]

    def _list_beside(self, trx: int, spans: Iterable[tuple[int, int, int]]) -> list[Relation]:
        """Return the shapes of frames that may have rows of a transaction.

        spans: of each frame the first and the last transaction, and its relation.
        """
        numbers = {number for first, last, number in spans if first <= trx <= last}
        return [self._segment.relation(number) for number in sorted(numbers)]

    # -- rows ------------------------------------------------------------------------------------

    def _write(self, group: ImageGroup) -> None:
        at = 0
        while at < len(group):
            trx = int(group.trx[at])
            if self._settle_next(group, at, trx):
                continue
            self._open_for(trx)
            end = self._end(group, at)
            self._sink.write(group, at, end, self._units)
            self._open = int(group.trx[end - 1])
            self._last = group.last_through(end)
            self._note_ends(group, at, end)
            self._written += self._last - int(group.first[at]) + 1
            at = end

    def _open_for(self, trx: int) -> None:
        """Open a transaction of the destination; begin a new one if this one is full."""
        is_full = self._written >= self._sink.images_max or self._sink.one_by_one
        if trx != self._open and is_full:
            self._commit_each(trx - 1)
        self._sink.begin(self._place)
        self._open = trx

    def _settle_next(self, group: ImageGroup, at: int, trx: int) -> bool:
        """Take one step that must precede the row at this place; return False if there is none."""
        marker = self._markers[0] if self._markers else None
        shaping = self._shapings[0] if self._shapings else None
        is_emptied = marker is not None and marker.gsn < int(group.gsn[at])
        is_shaped = shaping is not None and shaping.trx <= trx
        if marker is not None and shaping is not None and is_emptied and is_shaped:
            is_shaped = shaping.trx <= marker.trx
        if is_shaped:
            self._shape(self._shapings.popleft())
        elif is_emptied:
            self._empty(self._markers.popleft())
        return is_shaped or is_emptied

    def _end(self, group: ImageGroup, at: int) -> int:
        """Return the place up to which rows are written at once."""
        room = int(group.first[at]) + self._sink.images_max
        ends = [len(group), max(at + 1, int(np.searchsorted(group.first, room)))]
        if self._markers:
            ends.append(int(np.searchsorted(group.gsn, self._markers[0].gsn, side="right")))
        if self._shapings:
            ends.append(int(np.searchsorted(group.trx, self._shapings[0].trx)))
        if self._sink.one_by_one:
            ends.append(int(np.searchsorted(group.trx, group.trx[at], side="right")))
        return min(end for end in ends if end > at)

    def _note_ends(self, group: ImageGroup, start: int, end: int) -> None:
        trx = group.trx[start:end]
        ends = group.first[start:end] + group.count[start:end] - 1
        is_last = np.append(trx[1:] != trx[:-1], True)
        self._ends.update(zip(trx[is_last].tolist(), ends[is_last].tolist(), strict=True))

    # -- markers and shapes ----------------------------------------------------------------------

    def _empty(self, marker: Marker) -> None:
        for name in marker.tables:
            table = TableName(*name)
            if not self._changelogs.is_captured(table):
                continue
            self._open_for(marker.trx)
            self._sink.note_emptied(table, self._units.number(marker.trx), self._last)
            self._ends[marker.trx] = self._last
            self._on_emptied(table)

    def _relation_of(self, table: TableName) -> Relation | None:
        found = [one for _, one in self._segment.relations()]
        return next((one for one in found if (one.schema, one.name) == tuple(table)), None)

    def _shape(self, shaping: _Shaping) -> None:
        """Change changelogs to the shapes that rows have from this transaction on."""
        latest = {(one.schema, one.name): one for one in shaping.relations}
        new = [one for one in shaping.relations if self._changelogs.is_new(one)]
        met = [table for table in shaping.met if table not in self._changelogs.by_table]
        if not new and not met:
            return
        self._commit_each(shaping.trx - 1)
        for table in met:
            self._changelogs.meet(table, self._relation_of(table))
        for relation in new:
            last = latest[relation.schema, relation.name]
            beside = [
                self._changelogs.fit_to(one, last)
                for one in shaping.beside
                if (one.schema, one.name) == (last.schema, last.name)
            ]
            set_aside = [one for one in beside if one not in shaping.beside]
            for fitted in (*set_aside, self._changelogs.fit_to(relation, last)):
                self._changelogs.ensure(fitted, drops=False, beside=beside)
        self._to_drop += latest.values()

    def _shape_latest(self) -> None:
        """Apply shapes that became current without rows."""
        latest = {(one.schema, one.name): one for _, one in self._segment.relations()}
        for (schema, name), relation in latest.items():
            if TableName(schema, name) in self._changelogs.by_table:
                self._changelogs.ensure(relation, drops=True)

    def _settle_through(self, trx: int) -> None:
        while self._markers and self._markers[0].trx <= trx:
            if self._shapings and self._shapings[0].trx <= self._markers[0].trx:
                self._shape(self._shapings.popleft())
            else:
                self._empty(self._markers.popleft())

    # -- commits ---------------------------------------------------------------------------------

    def _commit_each(self, trx: int) -> None:
        self._settle_through(trx)
        self._commit(trx, is_done=False)

    def _commit(self, trx: int, *, is_done: bool) -> None:
        """Commit everything up to a whole transaction, or one by one if requested."""
        if self._sink.one_by_one:
            for each in range(self._after + 1, trx):
                self._commit_through(each, is_done=False)
        if trx > self._after or is_done:
            self._commit_through(trx, is_done=is_done)

    def _commit_through(self, trx: int, *, is_done: bool) -> None:
        units = self._units.between(self._after, trx, self._ends, self._unit.gsn_hwm)
        found = self._segment.transactions.find(trx)
        if found is not None:
            position = self._position_text(found.end_position)
        else:
            position = self._place.position or self._position_text(self._segment.start.position)
        place = behind(
            self._place,
            segment=self._segment.number - (not is_done),
            trx=trx,
            position=position,
        )
        self._sink.begin(self._place)
        self._sink.commit(place, units, self._where_of(position))
        self._place, self._after, self._written, self._open = place, trx, 0, 0
        self._unit = units[-1] if units else self._unit
        self._ends.clear()
        for relation in self._to_drop:
            self._changelogs.ensure(relation, drops=True)
        self._to_drop.clear()
