"""Rounds of transactions as runs of the merged log: numbers, shapes, markers. No I/O of its own.

Rows get consecutive numbers, whichever input they are from; an update that has two numbers keeps
two. Rows of one table that are in several inputs become one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from penstock.base.held import HeldState
from penstock.base.state import Piece as BasePiece
from penstock.base.state import as_inserts
from penstock.codec.columns import COMMIT_TIME, POSITION, TRANSACTIONS_SCHEMA
from penstock.host.faults import declare, point
from penstock.merge.inputs import MergeInput, Piece
from penstock.merge.order import Ints, Round
from penstock.merge.shapes import Shapes, convert_rows
from penstock.model import (
    FlushPoint,
    Marker,
    MarkerKind,
    PenstockError,
    Relation,
    Rows,
    Run,
    TableName,
)

declare("merge.first.rows")

logger = structlog.get_logger(__name__)

BEGINS = "the merged log begins with the rows of its logs"
FIRST_ROWS_MAX = 20_000  # of a run

# Markers about a whole table.
OF_TABLES = frozenset({MarkerKind.TRUNCATE, MarkerKind.RELOAD, MarkerKind.DDL})


class OfOneInput(PenstockError):
    """One server emptied, dropped or reloaded a table that has rows of others, too.

    Fields: input, table, kind.
    """

    code = "MG04"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """Rows with their numbers in the merged log.

    Attributes:
        name: of the input.
    """

    name: str
    rows: Rows
    gsn: Ints
    trx: Ints

    @property
    def table(self) -> TableName:
        """Table of the rows."""
        return TableName(self.rows.relation.schema, self.rows.relation.name)

    def cut(self, low: int, high: int) -> _Numbered | None:
        """Return the rows with numbers from low on, below high."""
        first, last = (int(at) for at in np.searchsorted(self.gsn, (low, high)))
        if first == last:
            return None
        rows = Rows(relation=self.rows.relation, batch=self.rows.batch.slice(first, last - first))
        return replace(self, rows=rows, gsn=self.gsn[first:last], trx=self.trx[first:last])


@dataclass
class RowMerger:
    """Maker of runs, one round after the other.

    Attributes:
        numbers: of each input, its number in the log.
        trx: the last assigned transaction number.
        gsn: the last assigned row number.
        leaves_tables: a marker about a table that other inputs have rows of is left out, instead
            of an error.
        left_out: how many were left out.
    """

    inputs: Sequence[MergeInput]
    numbers: Sequence[int]
    shapes: Shapes
    trx: int
    gsn: int
    leaves_tables: bool = False
    left_out: int = 0
    _relations: list[TableName] = field(default_factory=list)
    _taken: list[int] = field(default_factory=list)

    def runs(self, one: Round, weight_max: float) -> Iterator[Run]:
        """Yield the runs of a round that was taken, the last one with its end."""
        if one.weight > weight_max and one.is_one:
            yield from self._of_one(one)
        else:
            yield from self._of_many(one)

    def first(self, states: Sequence[tuple[str, HeldState]]) -> Iterator[Run]:
        """Yield the rows of inputs' bases as one transaction, table by table.

        A table without rows has only its shape. Raises ShapesDiffer, and the errors of reading a
        state.

        Args:
            states: by input.
        """
        trx = self.trx + 1
        tables = {table.table for _, state in states for table in state.manifest.tables}
        time_us = max(state.end.commit_time_us for _, state in states)
        for table in sorted(tables):
            with ExitStack() as stack:
                having = [
                    (name, stack.enter_context(closing(state.pieces(table))))
                    for name, state in states
                    if state.manifest.of(table) is not None
                ]
                for name, pieces in having:
                    # The state's shape is older than any in the rest of the log.
                    shape = replace(next(pieces).relation, version=0)
                    self.shapes.apply(name, shape)
                into = self.shapes.merged[table]
                marker = Marker(
                    kind=MarkerKind.RELOAD,
                    gsn=self.gsn,
                    trx=trx,
                    position=trx,
                    commit_time_us=time_us,
                    tables=((table.schema, table.name),),
                    data={"reason": BEGINS},
                )
                yield Run(markers=(marker,), relations=(into,))
                for name, pieces in having:
                    yield from self._pieces(name, pieces, into, trx)
        self.trx = trx
        arrays = [
            _positions(np.array([trx])),
            _positions(np.array([trx + 1])),
            pa.array([time_us]).view(COMMIT_TIME),
            pa.array([0], pa.uint64()),
            pa.array([0], pa.uint16()),
        ]
        ended = pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)
        yield Run(transactions=ended, end=self._point(ended))

    def _pieces(
        self, name: str, pieces: Iterator[BasePiece], into: Relation, trx: int
    ) -> Iterator[Run]:
        for piece in pieces:
            for at in range(0, piece.rows.num_rows, FIRST_ROWS_MAX):
                batch = as_inserts(piece.slice(at, FIRST_ROWS_MAX), gsn=self.gsn + 1, trx=trx)
                batch = convert_rows(batch, self.shapes.number_columns(name, piece.relation), into)
                self.gsn += batch.num_rows
                yield Run(rows=(Rows(relation=into, batch=batch),))
                point("merge.first.rows")

    def _of_many(self, one: Round) -> Iterator[Run]:
        size = len(one.which)
        counts = np.zeros(size, np.int64)
        parts = []
        for index in np.unique(one.which).tolist():
            here = np.flatnonzero(one.which == index)
            ends, pieces = self._read(index, len(here))
            counts[here] = np.diff(ends)
            parts.append((index, here, ends, pieces))
        starts = self.gsn + np.concatenate([[0], np.cumsum(counts)[:-1]])
        trx = self.trx + 1 + one.group
        rows: list[_Numbered] = []
        markers: list[tuple[str, Marker]] = []
        for index, here, ends, pieces in parts:
            low = self._low(index, len(here))
            for piece in pieces:
                at = piece.trx - low - 1
                gsn = piece.gsn - ends[at] + starts[here[at]]
                rows.append(
                    _Numbered(
                        name=self.inputs[index].name,
                        rows=piece.rows,
                        gsn=gsn,
                        trx=trx[here[at]],
                    )
                )
            self._apply_shapes(index, int(ends[0]))
            for marker in self.inputs[index].markers(low + len(here)):
                at_one = marker.trx - low - 1
                place = here[at_one]
                gsn_there = int(marker.gsn - ends[at_one] + starts[place])
                placed = _place(marker, gsn=gsn_there, trx=int(trx[place]))
                markers.append((self.inputs[index].name, placed))
        markers.sort(key=lambda pair: (pair[1].gsn, pair[1].trx))
        kept = [marker for name, marker in markers if self._is_for_all(name, marker, rows)]
        gsn_end = self.gsn + int(counts.sum())
        ended = self._list_ended(one)
        last_gsn = (starts + counts)[_last_of(one.group)]  # the last row of each of them
        late = [(index, int(ends[-1])) for index, _, ends, _ in parts]
        yield from self._cut(rows, kept, gsn_end, ended, last_gsn, late)
        for index, here, _, _ in parts:
            self.inputs[index].forget(self._low(index, len(here)) + len(here))

    def _low(self, index: int, count: int) -> int:
        """Return the last transaction of an input before this round's."""
        return self._taken[index] - count

    def _read(self, index: int, count: int) -> tuple[Ints, list[Piece]]:
        """Return an input's next rows, and the last row's number of each transaction.

        The first number is that of the transaction before them.
        """
        source, low = self.inputs[index], self._low(index, count)
        pieces = [
            piece
            for group in source.pieces(low + 1, low + count)
            for piece in group
            if len(piece.gsn)
        ]
        ends = np.zeros(count + 1, np.int64)
        ends[0] = source.gsn_end(low)
        for piece in pieces:
            steps = np.flatnonzero(np.diff(piece.trx, append=-1))  # the last row of each
            np.maximum.at(ends, piece.trx[steps] - low, piece.gsn[steps])
        return np.maximum.accumulate(ends), pieces

    def _of_one(self, one: Round) -> Iterator[Run]:
        """Yield the runs of a giant transaction, piece by piece."""
        trx = self.trx + 1
        for index in one.which.tolist():
            source, number = self.inputs[index], self._taken[index]
            end = source.gsn_end(number - 1)
            self._apply_shapes(index, end)
            offset = self.gsn - end
            markers = [
                _place(marker, gsn=marker.gsn + offset, trx=trx)
                for marker in source.markers(number)
                if self._is_for_all(source.name, marker, ())
            ]
            for group in source.pieces(number, number):
                rows = [
                    _Numbered(
                        name=source.name,
                        rows=piece.rows,
                        gsn=piece.gsn + offset,
                        trx=np.full(len(piece.gsn), trx),
                    )
                    for piece in group
                    if len(piece.gsn)
                ]
                if not rows:
                    continue
                reach = max(int(piece.gsn[-1]) for piece in rows)
                now = [marker for marker in markers if marker.gsn <= reach]
                markers = markers[len(now) :]
                yield from self._cut(rows, now, reach, None, np.zeros(0, np.int64))
                source.drop_frames()
            if markers:
                yield Run(markers=tuple(markers))
        ended = self._list_ended(one)
        self.trx = trx
        for index in one.which.tolist():
            self._apply_shapes(index, self.inputs[index].gsn_end(self._taken[index]))
        yield Run(relations=self._new_relations(()), transactions=ended, end=self._point(ended))
        for index in one.which.tolist():
            self.inputs[index].forget(self._taken[index])

    # -- shapes ------------------------------------------------------------------------------

    def _apply_shapes(self, index: int, gsn: int) -> None:
        """Apply an input's shapes without rows, up to that row of the input.

        Shapes from before the copy of a table in the input's base are already part of the copy's
        shape.
        """
        name = self.inputs[index].name
        for relation in self.inputs[index].shapes(gsn):
            if self.shapes.precedes_copy(name, relation):
                continue
            if self.shapes.apply(name, relation):
                self._relations.append(TableName(relation.schema, relation.name))

    def _cut(
        self,
        rows: list[_Numbered],
        markers: list[Marker],
        gsn_end: int,
        ended: pa.RecordBatch | None,
        last_gsn: Ints,
        late: Sequence[tuple[int, int]] = (),
    ) -> Iterator[Run]:
        """Yield rows up to gsn_end as runs: one, and one more at each change of a shape.

        Args:
            rows: the rows.
            markers: the markers.
            gsn_end: the last row.
            ended: transactions that end here, None within one.
            last_gsn: of each transaction the last row.
            late: inputs, each with its own last row, whose shapes up to there are applied at the
                end.
        """
        rows = sorted(rows, key=lambda one: int(one.gsn[0]))
        low, given, at = self.gsn + 1, 0, 0
        while True:
            # Rows that begin with a known shape continue to the next change.
            change = gsn_end + 1
            while at < len(rows):
                one = rows[at]
                first = int(one.gsn[0])
                relation = one.rows.relation
                if first > low and self.shapes.would_change(one.name, relation):
                    change = first
                    break
                self.shapes.apply(one.name, relation)
                at += 1
            high = change
            is_last = high > gsn_end
            here = [part for one in rows if (part := one.cut(low, high)) is not None]
            now = [marker for marker in markers if marker.gsn < high or is_last]
            markers = markers[len(now) :]
            self.gsn = gsn_end if is_last else high - 1
            part = None
            if ended is not None:
                until = len(ended) if is_last else int(np.searchsorted(last_gsn, high - 1, "right"))
                part = ended.slice(given, until - given) if until > given else None
                given = until
            if ended is not None and is_last:
                self.trx += len(ended)
            batches = self._batches(here)
            relations = self._new_relations(here)
            for index, gsn in late if is_last else ():
                self._apply_shapes(index, gsn)
            yield Run(
                rows=batches,
                markers=tuple(now),
                relations=(*relations, *self._new_relations(())),
                transactions=part,
                end=self._point(ended) if ended is not None and is_last else None,
            )
            if is_last:
                return
            low = high

    def _new_relations(self, here: Sequence[_Numbered]) -> tuple[Relation, ...]:
        tables, self._relations = self._relations, []
        having = {one.table for one in here}
        return tuple(
            self.shapes.merged[table] for table in dict.fromkeys(tables) if table not in having
        )

    def _batches(self, here: list[_Numbered]) -> tuple[Rows, ...]:
        """Return the rows of each table as one batch, in order, in its merged shape."""
        by_table: dict[TableName, list[_Numbered]] = {}
        for one in here:
            by_table.setdefault(one.table, []).append(one)
        found = []
        for table, parts in by_table.items():
            into = self.shapes.merged[table]
            batches = [
                _renumber(one, self.shapes.number_columns(one.name, one.rows.relation), into)
                for one in parts
            ]
            if len(batches) == 1:
                batch = batches[0]
            else:
                batch = pa.concat_batches(batches)
                gsn = np.concatenate([one.gsn for one in parts])
                if not (gsn[1:] > gsn[:-1]).all():
                    batch = batch.take(pa.array(np.argsort(gsn, kind="stable")))
            found.append(Rows(relation=into, batch=batch))
        return tuple(found)

    # -- markers and transactions ------------------------------------------------------------

    def _is_for_all(self, name: str, marker: Marker, rows: Sequence[_Numbered]) -> bool:
        """Return whether an input's marker is for the merged log. Raises OfOneInput.

        Args:
            name: the input.
            marker: the marker.
            rows: of its round.
        """
        if marker.kind is MarkerKind.RESOLVED:  # a position of the input
            return False
        if marker.kind not in OF_TABLES:
            return True
        for table in map(TableName._make, marker.tables):
            others = set(self.shapes.inputs_of(table))
            others |= {one.name for one in rows if one.table == table and one.gsn[0] <= marker.gsn}
            others.discard(name)
            if others:
                self._leave_out(name, marker, table, sorted(others))
                return False
        return True

    def _leave_out(
        self, name: str, marker: Marker, table: TableName, others: Sequence[str]
    ) -> None:
        if not self.leaves_tables:
            raise OfOneInput(
                f"{name} has a {marker.kind.value} of {table}, of which {', '.join(others)} has "
                "rows, too",
                hint='Its rows cannot be identified here. Set ofOneLog = "leave" in [merge] to '
                "leave the marker out and continue: rows that are gone from that server stay in "
                "the target until you delete them.",
                input=name,
                table=str(table),
                kind=marker.kind.value,
            )
        self.left_out += 1
        logger.warning("left out", input=name, table=str(table), marker=marker.kind.value)

    def set_taken(self, ends: Sequence[int]) -> None:
        """Set how far each input is taken with the next round."""
        self._taken = list(ends)

    def _list_ended(self, one: Round) -> pa.RecordBatch:
        """Return the round's transactions as the log lists them."""
        ids = np.zeros(len(one.which), np.uint64)
        for index in np.unique(one.which).tolist():
            here = np.flatnonzero(one.which == index)
            end = self._taken[index]
            ids[here] = self.inputs[index].source_ids(end - len(here) + 1, end)
        last = _last_of(one.group)
        ids, origins = ids[last], np.array(self.numbers, np.uint16)[one.which[last]]
        times = np.maximum.reduceat(one.times_us, np.concatenate([[0], last[:-1] + 1]))
        trx = self.trx + 1 + np.arange(len(last))
        arrays = [
            _positions(trx),
            _positions(trx + 1),
            pa.array(times).view(COMMIT_TIME),
            pa.array(ids),
            pa.array(origins),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)

    def _point(self, ended: pa.RecordBatch) -> FlushPoint:
        return FlushPoint(
            position=self.trx + 1,
            gsn=self.gsn,
            trx=self.trx,
            commit_time_us=ended.column(2)[-1].value,
        )


def _last_of(group: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the place of the last part of each merged transaction."""
    return np.flatnonzero(np.diff(group, append=-1))


def _place(marker: Marker, *, gsn: int, trx: int) -> Marker:
    return replace(marker, gsn=gsn, trx=trx, position=trx)


def _positions(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers as positions: 16 bytes, big-endian."""
    both = np.zeros((len(numbers), 2), ">u8")
    both[:, 1] = numbers
    return pa.FixedSizeBinaryArray.from_buffers(
        POSITION, len(numbers), [None, pa.py_buffer(both.tobytes())]
    )


def _renumber(one: _Numbered, relation: Relation, into: Relation) -> pa.RecordBatch:
    """Return the rows in the merged shape.

    Args:
        one: the rows.
        relation: their shape, with the merged identities.
        into: the merged shape.
    """
    batch = convert_rows(one.rows.batch, relation, into)
    columns = [pa.array(one.gsn), pa.array(one.trx), *batch.columns[2:]]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
