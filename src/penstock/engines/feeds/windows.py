"""Windows of staged mutations as runs of the change log.

One source timestamp is one transaction. A window ends with a RESOLVED marker, in a separate
transaction, followed by the flush point; with splitWindows there are further flush points, each
between two timestamps. Two slices of a window are in memory, whatever its size. Not here: when a
window is read (`extraction.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import transactions_batch
from penstock.engines.feeds.rows import Reader, ShapeChanged, Shapes, Unfit
from penstock.model import FlushPoint, Marker, MarkerKind, PenstockError, Rows, Run
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import (
    STUB,
    Group,
    Slice,
    StagedTable,
    StagingSession,
    group_name,
    position_behind,
)

ROWS_MAX = 10_000  # of a table in memory, more only if one timestamp has more
Ints = npt.NDArray[np.int64]


class FeedRetired(PenstockError):
    """Consumers of a feed were behind for longer than applied rows stay staged. fields: table."""

    code = "ST44"
    retry = "operator"


class FeedNotStaged(PenstockError):
    """An instance without consumers has applied changes directly. fields: table."""

    code = "ST45"
    retry = "operator"


@dataclass(slots=True)
class Numbers:
    """Numbers that were given last.

    Attributes:
        gsn: of the last row.
        trx: of the last transaction.
        time: time of the transaction that may continue; None if there is none.
    """

    gsn: int
    trx: int
    time: Hlc | None = None


@dataclass
class WindowReader:
    """Reader of windows, one after the other.

    Attributes:
        splits: also write flush points between two timestamps.
        with_applied: also read rows that are applied and not retired. A window that may lack
        retired rows ends with FeedRetired, before its end.
    """

    session: StagingSession
    group: Group
    shapes: Shapes
    splits: bool
    with_applied: bool = False
    rows_max: int = ROWS_MAX
    _readers: dict[StagedTable, Reader] = field(default_factory=dict)
    _deleted: dict[tuple[StagedTable, str], Hlc] = field(default_factory=dict)

    def go_on(self, end: Hlc) -> None:
        """Note the keys whose deletes up to end are in the log, but possibly not in the target."""
        committed = self.session.window(self.group).committed
        if self.with_applied or end <= committed:
            return
        tables = self.session.staged_tables(self.group)
        for one in self.session.read(tables, committed, end, limit=self.rows_max):
            for table, batch in one.rows.items():
                self._made_again(table, batch)

    def _made_again(self, table: StagedTable, batch: pa.RecordBatch) -> list[int]:
        """Return the places of upserts whose key the previous change deleted, applied or not."""
        is_delete = np.asarray(batch.column("after").is_null())
        if self.with_applied or not (is_delete.any() or self._deleted):
            return []
        found = []
        for place, key in enumerate(batch.column("key").to_pylist()):
            if is_delete[place]:
                nanos, logical = batch.column("nanos")[place], batch.column("logical")[place]
                self._deleted[table, key] = Hlc(nanos.as_py(), logical.as_py())
            elif self._deleted.pop((table, key), None) is not None:
                found.append(place)
        return found

    def runs(self, after: Hlc, through: Hlc, start: FlushPoint) -> Iterator[Run]:
        """Yield the runs of a window, the last one with its end.

        Raises ShapeChanged if rows of a table were already given in another shape; a change that
        the first rows need is made at once.
        """
        deleted = dict(self._deleted)
        try:
            yield from self._runs(after, through, start)
        except BaseException:
            self._deleted = deleted  # the window may be read again
            raise

    def _runs(self, after: Hlc, through: Hlc, start: FlushPoint) -> Iterator[Run]:
        numbers = Numbers(start.gsn, start.trx)
        if self._deleted:
            committed = self.session.window(self.group).committed
            self._deleted = {key: at for key, at in self._deleted.items() if at > committed}
        tables = self.session.staged_tables(self.group)
        slices = self.session.read(
            tables, after, through, limit=self.rows_max, with_applied=self.with_applied
        )
        given: set[StagedTable] = set()
        if self.with_applied:
            slices = _refuse_stubs(slices, is_first=after == ZERO)
        for one, following in _with_next(_skip_empty(slices)):
            ends = following is None or _first_time(following) != _last_time(one)
            yield self._run(one, numbers, given, ends=ends)
            given |= one.rows.keys()
        if self.with_applied and after != ZERO:
            self._check_retired(tables, after)
        numbers.trx += 1
        yield self._resolved_run(through, numbers)

    def _check_retired(self, tables: Collection[StagedTable], after: Hlc) -> None:
        """Raise FeedRetired if rows were retired. Called after reading, so rows retired meanwhile
        count.
        """
        for table in tables:
            before = self.session.retired_before(table)
            if before > after:
                raise FeedRetired(
                    f"consumers of {group_name(self.group)} have read up to {after}, and changes "
                    f"of {table} before {before} are no longer staged",
                    hint="These changes are lost to consumers. To start again with the staged "
                    "rows: stop `penstock stage`, remove the folder feeds/ in the pipeline's "
                    "directory, and start it again. A longer retireOffset avoids it.",
                    table=str(table),
                )

    def _run(
        self, one: Slice, numbers: Numbers, given: Collection[StagedTable], *, ends: bool
    ) -> Run:
        """Return the run of a slice. given: tables with earlier rows; ends: its last transaction is
        whole.
        """
        order = _Order(one)
        gsn, trx = order.numbers(numbers)
        rows = []
        for table, batch in one.rows.items():
            if batch.num_rows:
                here = order.places(table)
                rows.append(self._rows(table, batch, gsn[here], trx[here], table in given))
        times = order.times()
        if not ends:
            times.pop()
        ended = [(time.number, position_behind(time), time.nanos // 1000, 0) for time in times]
        numbers.gsn, numbers.trx = int(gsn.max()), int(trx.max())
        numbers.time = None if ends else _last_time(one)
        return Run(
            rows=tuple(rows),
            transactions=transactions_batch(ended),
            end=self._point(_last_time(one), numbers) if ends and self.splits else None,
        )

    def _rows(
        self, table: StagedTable, batch: pa.RecordBatch, gsn: Ints, trx: Ints, is_given: bool
    ) -> Rows:
        made_again = self._made_again(table, batch)
        while True:
            try:
                return self._reader(table).rows(batch, gsn, trx, made_again)
            except Unfit as unfit:
                self.shapes.grow(unfit.table, seen=unfit.seen, text=unfit.text)
                if is_given:
                    what = ", ".join(sorted(unfit.seen | unfit.text))
                    raise ShapeChanged(
                        f"lines of {table} need another shape ({what}): the window is read again",
                        hint="Do nothing: this is automatic.",
                        table=str(table),
                    ) from unfit

    def _reader(self, table: StagedTable) -> Reader:
        shape = self.shapes.of(table)
        found = self._readers.get(table)
        if found is None or found.shape is not shape:
            found = self._readers[table] = Reader(shape)
        return found

    def _resolved_run(self, time: Hlc, numbers: Numbers) -> Run:
        marker = Marker(
            kind=MarkerKind.RESOLVED,
            gsn=numbers.gsn,
            trx=numbers.trx,
            position=time.number,
            commit_time_us=time.nanos // 1000,
        )
        ended = [(time.number, position_behind(time), time.nanos // 1000, 0)]
        return Run(
            markers=(marker,),
            transactions=transactions_batch(ended),
            end=self._point(time, numbers),
        )

    def _point(self, time: Hlc, numbers: Numbers) -> FlushPoint:
        return FlushPoint(
            position=position_behind(time),
            gsn=numbers.gsn,
            trx=numbers.trx,
            commit_time_us=time.nanos // 1000,
        )


class _Order:
    """Rows of a slice in the order of their times, those of one time by table and key."""

    def __init__(self, one: Slice) -> None:
        nanos, logical, self._starts, start = [], [], {}, 0
        for table in sorted(one.rows):
            batch = one.rows[table]
            self._starts[table] = (start, start + batch.num_rows)
            start += batch.num_rows
            nanos.append(batch.column("nanos").to_numpy())
            logical.append(batch.column("logical").to_numpy())
        self._nanos, self._logical = np.concatenate(nanos), np.concatenate(logical)
        order = np.lexsort((np.arange(start), self._logical, self._nanos))
        steps = np.empty(start, np.bool_)
        steps[0] = True
        sorted_nanos, sorted_logical = self._nanos[order], self._logical[order]
        steps[1:] = (np.diff(sorted_nanos) != 0) | (np.diff(sorted_logical) != 0)
        self._order, self._steps = order, steps

    def times(self) -> list[Hlc]:
        """Return the distinct times, in ascending order."""
        firsts = self._order[self._steps]
        pairs = zip(self._nanos[firsts].tolist(), self._logical[firsts].tolist(), strict=True)
        return [Hlc(nanos, logical) for nanos, logical in pairs]

    def numbers(self, last: Numbers) -> tuple[Ints, Ints]:
        """Return the numbers gsn and trx of each row, the tables' rows one after the other."""
        count = len(self._order)
        goes_on = last.time is not None and last.time == self.times()[0]
        gsn, trx = np.empty(count, np.int64), np.empty(count, np.int64)
        gsn[self._order] = last.gsn + 1 + np.arange(count)
        trx[self._order] = last.trx + np.cumsum(self._steps) - goes_on
        return gsn, trx

    def places(self, table: StagedTable) -> slice:
        """Return the range of a table's rows in `numbers`."""
        return slice(*self._starts[table])


def _skip_empty(slices: Iterator[Slice]) -> Iterator[Slice]:
    return (one for one in slices if any(batch.num_rows for batch in one.rows.values()))


def _refuse_stubs(slices: Iterator[Slice], *, is_first: bool) -> Iterator[Slice]:
    """Yield slices without stubs, which only a first window may have. Raises FeedNotStaged."""
    for one in slices:
        rows = {}
        for table, batch in one.rows.items():
            known = pc.fill_null(pc.not_equal(batch.column("after"), STUB), fill_value=True)
            rows[table] = batch.filter(known)
            if rows[table].num_rows < batch.num_rows and not is_first:
                raise FeedNotStaged(
                    f"changes of {table} up to {one.through} were applied without being staged",
                    hint="They are lost to consumers. Give the files of all instances the same "
                    "[consumers.NAME]. To start again with the staged rows: stop `penstock stage`, "
                    "remove the folder feeds/ in the pipeline's directory, and start it again.",
                    table=str(table),
                )
        yield Slice(through=one.through, rows=rows)


def _with_next(slices: Iterator[Slice]) -> Iterator[tuple[Slice, Slice | None]]:
    """Yield each slice with the next one."""
    held: Slice | None = None
    for one in slices:
        if held is not None:
            yield held, one
        held = one
    if held is not None:
        yield held, None


def _edge(one: Slice, place: int) -> list[Hlc]:
    return [
        Hlc(batch.column("nanos")[place].as_py(), batch.column("logical")[place].as_py())
        for batch in one.rows.values()
        if batch.num_rows
    ]


def _first_time(one: Slice) -> Hlc:
    return min(_edge(one, 0))


def _last_time(one: Slice) -> Hlc:
    return max(_edge(one, -1))
