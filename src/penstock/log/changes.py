"""A change log for Python: tables of changes, data frames, or an iterator of changes.

This is the return value of `penstock.read_log`. Reading changes nothing, and the pipeline may run
meanwhile: everything that was durable when a reading began is read. Not here: the choice of the
directory (`penstock.control.status.log_view`), Arrow columns (`change_tables.py`), lines of text
(`text.py`).
"""

from __future__ import annotations

import datetime
import difflib
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.codec.columns import bits
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.log import change_tables
from penstock.log.change_tables import ChangeFilter, ChangeShape
from penstock.log.frames import is_header_torn
from penstock.log.layout import (
    EXTENSION_DEFAULT,
    LogState,
    SegmentFile,
    SegmentMissing,
    list_open_segments,
    list_segments,
    load_state,
    segment_name,
)
from penstock.log.order import merge_rows
from penstock.log.python_values import EPOCH_UTC, python_values
from penstock.log.reader import check_link
from penstock.log.scan import Envelope, Part, Scan
from penstock.log.segment import ClosedSegment, Segment, open_segment
from penstock.model import FlushPoint, Marker, Op, PenstockError, Relation, Rows, TableName
from penstock.model.position import to_ordinal

if TYPE_CHECKING:
    import pandas


class TableNotInLog(PenstockError):
    """Error: the change log has no changes of the requested table or tables."""

    code = "LG30"


class ColumnNotInLog(PenstockError):
    """Error: a table has no column of the requested name in the log."""

    code = "LG34"


class PandasMissing(PenstockError):
    """A pandas DataFrame was asked for, and pandas is not installed."""

    code = "LG31"


class Absent(Enum):
    """Type of ABSENT: a column that the source did not send. It is not NULL."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one table.

    Attributes:
        gsn: Number of the row change, from 1, in commit order. A truncate has the gsn of the row
            change that it follows.
        trx: Number of the transaction, from 1, in commit order.
        position: Position of the commit in the source's log, as a number; docs/python.md says
            what it is for each source.
        commit_time: Time of the commit by the source's clock, in UTC.
        op: One of insert, update, delete and truncate.
        table: Name of the table, `schema.table`.
        row: The columns after the change; of a delete, the columns of the deleted row that the
            source sent; None for a truncate. A column that was not sent is ABSENT, NULL is None.
        before: The row before the change; None if the source did not send it.
    """

    gsn: int
    trx: int
    position: int
    commit_time: datetime.datetime
    op: str
    table: str
    row: dict[str, Any] | None
    before: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Scan without its shape. relations: all versions of the table in the log."""

    scan: Scan
    relations: list[Relation]
    is_wide: bool


class ChangeLog:
    """Changes of a log, as requested from `penstock.read_log`. It holds no file open.

    Iterate over it for one `Change` after another, in the order of commits; `table` returns all
    changes of one table as a pyarrow Table, `to_pandas` and `to_spark` as a DataFrame. Each call
    reads the files again. Raises SegmentCorrupt for damage, SegmentMissing if requested changes
    have been removed, and TableNotInLog if the requested patterns match no table of the log.

    Attributes:
        directory: the log's.
        is_wide: returns whether positions of an engine, given by its name in the log, may need
            more than 64 bits; then they are returned as their 16 bytes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        is_wide: Callable[[str], bool],
        extension: str = EXTENSION_DEFAULT,
        wanted: ChangeFilter | None = None,
        files: Files = REAL_FILES,
        path: Path | None = None,
    ) -> None:
        self.directory = directory
        self._is_wide = is_wide
        self._extension = extension
        self._path = path
        self._wanted = ChangeFilter() if wanted is None else wanted
        self._files = files

    def __repr__(self) -> str:
        return f"ChangeLog({str(self.directory)!r})"

    def tables(self) -> list[str]:
        """Return the tables that the log has changes of, as `schema.table`, sorted."""
        return sorted(self._names(self._segments()))

    def table(self, name: str | None = None) -> pa.Table:
        """Return all changes of one table, in order.

        The columns of the change enclose the table's columns: _gsn, _trx, _position, _commit_time,
        _op, and _absent come first. _absent lists the columns that the source did not send: they
        read as null and are not NULL. _before, last, is the row before the change if the source
        sent it. A delete shows the columns of the deleted row. A column that did not exist yet is
        absent.

        Args:
            name: Name of the table, `schema.table`; optional if there is only one.

        Raises:
            TableNotInLog: The log has no changes of this table, or of several if none is named.
            SegmentMissing: Requested changes have been removed.
            SegmentCorrupt: A segment is damaged.
        """
        wanted = self._name(name)
        pieces: list[change_tables.Piece] = []
        wide = False
        for segment in self._chain():
            with segment:
                wide = self._is_wide(segment.header.source.get("engine", ""))
                pieces += change_tables.pieces(segment, wanted, self._wanted)
        return change_tables.join_pieces(pieces, wide=wide)

    def scan(
        self,
        name: str | None = None,
        *,
        columns: Collection[str] | None = None,
        splits: bool = False,
    ) -> Scan:
        """Return a plan of the reading of one table, which several processes can carry out.

        It ends with the last transaction that is in the log now.

        Args:
            name: Name of the table, `schema.table`; optional if there is only one.
            columns: Only these columns of the table; None for all.
            splits: An update of the key is a delete and an insert.

        Raises:
            ColumnNotInLog: The table has no such column. Also raises the errors of `table`.
        """
        wanted = self._name(name)
        found = self._plan(wanted, splits=splits)
        relations, is_wide = found.relations, found.is_wide
        shape = ChangeShape.of(relations, is_wide=is_wide, has_sent=True, only=columns)
        for column in columns or ():
            if column not in shape.columns:
                known = {one.name for relation in relations for one in relation.columns}
                close = difflib.get_close_matches(column, known, n=1) or sorted(known)
                raise ColumnNotInLog(
                    f"{name} has no column {column} in the log",
                    hint=f"Name some of: {', '.join(close)}.",
                    table=name,
                )
        return replace(found.scan, shape=shape)

    def scan_all(self, *, splits: bool = False) -> Scan:
        """Return a plan of the reading of all tables in one shape: rows as JSON. See `scan`."""
        return self._plan(None, splits=splits).scan

    def scan_later(
        self,
        table: TableName | None = None,
        shape: ChangeShape | None = None,
        *,
        splits: bool = False,
    ) -> Scan:
        """Return a plan without parts, for changes to come.

        Args:
            table: Name of the table; None for all, with their rows as JSON.
            shape: Of the table.
            splits: An update of the key is a delete and an insert.

        Raises:
            TableNotInLog: The log has not begun.
        """
        state = load_state(self.directory, self._files)
        if state is None:
            raise self._make_not_begun()
        is_wide = self._is_wide(state.source.get("engine", ""))
        scan = self._scan_of(state.log_id, table, is_wide=is_wide, splits=splits)
        return scan if shape is None else replace(scan, shape=shape)

    def _plan(self, table: TableName | None, *, splits: bool) -> _Plan:
        scan: Scan | None = None
        relations: list[Relation] = []
        parts: list[Part] = []
        is_wide = False
        end: FlushPoint | None = None
        for segment in self._chain():
            with segment:
                end = segment.end
                if scan is None:
                    is_wide = self._is_wide(segment.header.source.get("engine", ""))
                    log_id = segment.header.log_id
                    scan = self._scan_of(log_id, table, is_wide=is_wide, splits=splits)
                part = scan.plan(segment)
                parts += [part] if part is not None else []
                relations += [
                    segment.relation(totals.id)
                    for totals in segment.tables
                    if (totals.schema, totals.name) == (table and tuple(table))
                ]
        if scan is None or end is None:
            raise self._make_not_begun()
        wanted = replace(self._wanted, trx_through=end.trx)
        return _Plan(replace(scan, wanted=wanted, parts=tuple(parts)), relations, is_wide)

    def _scan_of(
        self, log_id: str, table: TableName | None, *, is_wide: bool, splits: bool
    ) -> Scan:
        return Scan(
            directories=(self.directory,),
            log_id=log_id,
            table=table,
            shape=Envelope(is_wide=is_wide, wanted=self._wanted),
            wanted=self._wanted,
            splits=splits,
            extension=self._extension,
            files=self._files,
        )

    def _make_not_begun(self) -> TableNotInLog:
        return TableNotInLog(
            f"the log in {self.directory} has no changes yet",
            hint="Read it again when there is one.",
        )

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return every table of the log by its name, each as `table` returns it."""
        return {name: self.table(name) for name in self.tables()}

    def to_pandas(self, name: str | None = None) -> pandas.DataFrame:
        """Return the changes of one table as a pandas DataFrame, with the columns of `table`.

        A cell that the source did not send holds ABSENT; such columns are of objects, and so are
        integers with NULL, which stay integers.

        Args:
            name: Name of the table, `schema.table`; optional if there is only one.

        Raises:
            PandasMissing: pandas is not installed. Also raises the errors of `table`.
        """
        try:
            import pandas
        except ImportError as error:
            raise PandasMissing(
                "pandas is not installed",
                hint="Run: pip install 'penstock[pandas]'; or take .table() for an Arrow table.",
            ) from error
        table = change_tables.for_python(self.table(name))
        frame = table.to_pandas(integer_object_nulls=True)
        lacking = table.column(change_tables.ABSENT_COLUMN).to_pylist()
        for column in sorted({column for names in lacking for column in names}):
            if column in frame.columns:
                cells = frame[column].to_numpy(dtype=object, copy=True)
                cells[[column in names for names in lacking]] = ABSENT
                frame[column] = pandas.Series(cells, index=frame.index, dtype=object)
        return frame

    def to_spark(self, session: Any, name: str | None = None) -> Any:
        """Return the changes of one table as a DataFrame of this Spark session.

        It has the columns of `table`, and `_sent`: the names of the columns that were sent. Spark's
        processes read the segments, so the directory must be there on each of its machines.

        Args:
            session: A SparkSession.
            name: Name of the table, `schema.table`; optional if there is only one.

        Raises:
            TableNotInLog: As `table`, whose other errors it raises too.
        """
        limits = {
            "gsnAfter": self._wanted.gsn_after,
            "gsnThrough": self._wanted.gsn_through,
            "since": _iso(self._wanted.since_us),
            "until": _iso(self._wanted.until_us),
        }
        given = {key: value for key, value in limits.items() if value is not None}
        table = ".".join(self._name(name))
        frame = session.read.format("ckt").options(table=table, **given)
        return frame.load(str(self._path or self.directory))

    def __iter__(self) -> Iterator[Change]:
        """Yield every change in the order of commits; a transaction stays together."""
        for segment in self._segments():
            with segment:
                yield from self._changes(segment)

    def _changes(self, segment: Segment) -> Iterator[Change]:
        low, high = self._wanted.gsn_after or 0, self._wanted.gsn_through
        for group in merge_rows(segment):
            for marker in group.before:
                yield from self._make_truncates(marker)
            readers = [
                _RowValues(change_tables.add_commit(segment, rows))
                if self._wanted.takes(_name_of(rows))
                else None
                for rows in group.batches
            ]
            for gsn, which, index in zip(
                group.gsns, group.batch_index, group.row_index, strict=True
            ):
                reader = readers[which]
                if reader is None or gsn <= low or (high is not None and gsn > high):
                    continue
                time_us = reader.times_us[index]
                since, until = self._wanted.since_us, self._wanted.until_us
                if (since is None or time_us >= since) and (until is None or time_us < until):
                    yield reader.change(index)

    def _make_truncates(self, marker: Marker) -> Iterator[Change]:
        if marker.kind not in change_tables.EMPTYING or not self._wanted.takes_marker(marker):
            return
        for table in marker.tables:
            if self._wanted.takes(TableName(*table)):
                yield Change(
                    gsn=marker.gsn,
                    trx=marker.trx,
                    position=marker.position,
                    commit_time=EPOCH_UTC + datetime.timedelta(microseconds=marker.commit_time_us),
                    op=change_tables.TRUNCATE,
                    table=".".join(table),
                    row=None,
                    before=None,
                )

    def _names(self, segments: Iterator[Segment]) -> dict[str, TableName]:
        names: dict[str, TableName] = {}
        for segment in segments:
            with segment:
                names |= {".".join(name): name for name in tables_of(segment)}
        return {text: name for text, name in names.items() if self._wanted.takes(name)}

    def _name(self, given: str | None) -> TableName:
        names = self._names(self._segments())
        if given not in names and (given is not None or not names):
            names = self._names(self._chain())  # with those that have no requested change
        if given is None and len(names) == 1:
            return next(iter(names.values()))
        if given in names:
            return names[given]
        if given is None:
            raise TableNotInLog(
                f"the log in {self.directory} has changes of {len(names)} tables; which one?",
                hint=f"Name one of: {', '.join(sorted(names)) or 'none yet'}.",
            )
        close = difflib.get_close_matches(given, names, n=1) or sorted(names)
        raise TableNotInLog(
            f"the log in {self.directory} has no changes of {given}",
            hint=f"It has {', '.join(close) or 'no rows yet'}. Rows of a bulk load are not in it.",
            table=given,
        )

    def _segments(self) -> Iterator[Segment]:
        """Yield every segment that may hold requested changes; see `_chain`.

        At the end, raises TableNotInLog if patterns were given and no table matches them.
        """
        start: FlushPoint | None = None
        others: set[TableName] = set()
        is_matched = not self._wanted.patterns
        for segment in self._chain():
            start = segment.start if start is None else start
            try:
                if not is_matched:
                    others.update(tables_of(segment))
                    is_matched = any(map(self._wanted.takes, others))
                if self._wanted.is_empty_of(segment):
                    segment.close()
                    continue
            except BaseException:
                segment.close()
                raise
            yield segment
        # A table whose segments were removed may be unknown, and may have no later change.
        is_whole = start is not None and start.gsn == 0
        if others and not is_matched and (is_whole or self._wanted.gsn_after is None):
            names = [".".join(name) for name in sorted(others)]
            texts = ", ".join(self._wanted.patterns)
            close = difflib.get_close_matches(self._wanted.patterns[0], names) or names
            raise TableNotInLog(
                f"the log in {self.directory} has no changes of tables that match {texts}",
                hint=f"It has changes of {', '.join(close)}. Rows of a bulk load are not in it.",
                table=texts,
            )

    def _chain(self) -> Iterator[Segment]:
        """Yield every segment, each checked to follow the previous one.

        Raises SegmentMissing if requested changes were in segments that have been removed.
        """
        state = load_state(self.directory, self._files)  # first: its segments existed then
        before: ClosedSegment | None = None
        start: FlushPoint | None = None
        for file in self._list_files():
            segment = self._open_file(file, before)
            if segment is None:
                continue
            try:
                check_link(before, segment)
                if before is None:
                    start = segment.start
                    self._check_begins(start)
                before = segment.facts()
            except BaseException:
                segment.close()
                raise
            yield segment
        self._check_ends(before, state)
        if start is not None and before is not None:
            self._check_kept(start, before.end)
        elif state is not None:
            self._check_kept(state.end, state.end)

    def _list_files(self) -> list[SegmentFile]:
        found = self._list_once()
        if any(b.number != a.number + 1 for a, b in itertools.pairwise(found)):
            found = self._list_once()  # a rename during the listing can hide a name
        return found

    def _list_once(self) -> list[SegmentFile]:
        # The open one first: if it is closed meanwhile, the second list has it under its new name.
        still_open = list_open_segments(self.directory, self._extension, self._files)
        closed = list_segments(self.directory, self._extension, self._files)
        last = closed[-1].number if closed else -1
        return [*closed, *(file for file in still_open if file.number > last)]

    def _open_file(self, file: SegmentFile, before: ClosedSegment | None) -> Segment | None:
        """Return the segment, open for reading; None if it is empty or was removed meanwhile."""
        closed_path = file.path.with_name(segment_name(file.number, self._extension))
        with suppress(FileMissing):
            if not (file.is_open and is_header_torn(file.path, self._files)):
                return open_segment(file.path, extension=self._extension, files=self._files)
            return None
        with suppress(FileMissing):  # closed after it was listed
            return open_segment(closed_path, extension=self._extension, files=self._files)
        if before is None:
            return None
        raise SegmentMissing(
            f"{closed_path.name} was removed from {self.directory} while the log was read",
            hint="The loader removes applied segments: read again from the gsn after the last "
            "one that you have (gsn_after).",
            after=before.number,
            next=file.number + 1,
        )

    def _check_begins(self, start: FlushPoint) -> None:
        after = self._wanted.gsn_after
        if after is not None and start.gsn > after:
            place = f"the log in {self.directory} begins after gsn {start.gsn}"
            raise self._make_missing(place, after, start.gsn)

    def _check_ends(self, last: ClosedSegment | None, state: LogState | None) -> None:
        """Raise SegmentMissing if the segments must go as far as the log does, and do not."""
        after, through = self._wanted.gsn_after, self._wanted.gsn_through
        if after is None or state is None:
            return
        reached = after if last is None else max(after, last.end.gsn)
        end = state.end.gsn if through is None else min(through, state.end.gsn)
        if reached < end:
            there = "has no segment" if last is None else f"ends with gsn {last.end.gsn}"
            raise self._make_missing(f"the log in {self.directory} {there}", reached, end)

    def _make_missing(self, place: str, after: int, through: int) -> SegmentMissing:
        return SegmentMissing(
            f"{place}: changes {after + 1} to {through} are not in it any more",
            hint="Old segments are removed (keepAppliedHours, removeFiles): read the table itself "
            "again, or leave gsn_after out to read the remaining changes.",
            after=after,
            next=through + 1,
        )

    def _check_kept(self, start: FlushPoint, end: FlushPoint) -> None:
        """Raise SegmentMissing instead of an empty answer if the log's changes were removed."""
        is_empty = end.trx == start.trx or self._wanted.ends_before(start)
        since_us = self._wanted.since_us
        is_later = since_us is not None and since_us > start.commit_time_us
        # With gsn_after all later changes are there: removed changes were not requested.
        if is_empty and start.gsn and not is_later and self._wanted.gsn_after is None:
            raise SegmentMissing(
                f"the log in {self.directory} has none of the requested changes any more: the "
                f"segments of changes 1 to {start.gsn} have been removed",
                hint="Old segments are removed (keepAppliedHours, removeFiles): read the "
                f"table itself, or pass gsn_after={start.gsn} to read later changes only.",
                after=0,
                next=start.gsn + 1,
            )


def _iso(time_us: int | None) -> str | None:
    if time_us is None:
        return None
    return (EPOCH_UTC + datetime.timedelta(microseconds=time_us)).isoformat()


def tables_of(segment: Segment) -> list[TableName]:
    """Return the tables with rows in a segment, and those that it empties."""
    names = [TableName(totals.schema, totals.name) for totals in segment.tables]
    for marker in segment.markers():
        if marker.kind in change_tables.EMPTYING:
            names += [TableName(*table) for table in marker.tables]
    return names


def _name_of(rows: Rows) -> TableName:
    return TableName(rows.relation.schema, rows.relation.name)


class _RowValues:
    """Rows of one batch as Python values, column by column."""

    def __init__(self, rows: Rows) -> None:
        batch, relation = rows.batch, rows.relation
        self._table = relation.full_name
        self._gsn: list[int] = batch.column("gsn").to_pylist()
        self._trx: list[int] = batch.column("trx").to_pylist()
        self._position = [to_ordinal(one) for one in batch.column("position").to_pylist()]
        self.times_us: list[int] = batch.column("commit_time").cast(pa.int64()).to_pylist()
        self._op: list[int] = batch.column("op").to_pylist()
        self._absent: list[bytes | None] = batch.column("absent").to_pylist()
        self._has_before: list[bool] = batch.column("before").is_valid().to_pylist()
        self._names = [column.name for column in relation.columns]
        self._after = _columns(batch.column("after"), relation.columns)
        before = [relation.columns[index] for index in relation.before]
        self._before = {
            column.name: values
            for column, values in zip(before, _columns(batch.column("before"), before), strict=True)
        }

    def change(self, index: int) -> Change:
        """Return one row."""
        op = self._op[index]
        before = self._before_row(index) if self._has_before[index] else None
        return Change(
            gsn=self._gsn[index],
            trx=self._trx[index],
            position=self._position[index],
            commit_time=EPOCH_UTC + datetime.timedelta(microseconds=self.times_us[index]),
            op=change_tables.OPERATIONS[op],
            table=self._table,
            row=self._gone_row(before) if op == Op.DELETE else self._after_row(index),
            before=before,
        )

    def _after_row(self, index: int) -> dict[str, Any]:
        row = {name: column[index] for name, column in zip(self._names, self._after, strict=True)}
        for at in bits(self._absent[index]):
            row[self._names[at]] = ABSENT
        return row

    def _before_row(self, index: int) -> dict[str, Any]:
        return {
            name: self._before[name][index] if name in self._before else ABSENT
            for name in self._names
        }

    def _gone_row(self, before: dict[str, Any] | None) -> dict[str, Any]:
        return dict.fromkeys(self._names, ABSENT) if before is None else dict(before)


def _columns(images: Any, columns: Any) -> list[list[Any]]:
    return [
        python_values(values, column.neutral)
        for values, column in zip(images.flatten(), columns, strict=True)
    ]
