"""One segment: open it cheaply by its footer, or scan it; every byte that is used is verified.

A closed file (`N.ckt`) must be whole: anything else is SegmentCorrupt. An open one (`N.ckt_`) is
read up to its last flush point; the rest is not a whole transaction yet. Not here: several
segments in a row (`reader.py`), repair after a crash (`recovery.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.codec import ckt
from penstock.codec.ckt import FrameEntry, FrameKind, SegmentHeader, TableTotals, Totals
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.log import order
from penstock.log.frames import FrameReader, corrupt, is_header_torn, read_batch, read_payload
from penstock.log.index import read_trailer, scan
from penstock.log.layout import EXTENSION_DEFAULT, SegmentFile, list_open_segments, parse_name
from penstock.log.order import OrderedFrames
from penstock.log.transactions import Transactions, check_announced, never_fall
from penstock.model import FlushPoint, Marker, PenstockError, Relation, Rows, TableName


class SegmentMisnamed(PenstockError):
    """A file's header has another number than its name: it was renamed or copied."""

    code = "LG02"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """Facts about a closed segment.

    Attributes:
        start: where it begins (the end of the previous one).
        end: its last flush point.
        gsn_first: the first number assigned in it.
        gsn_last: the last number; gsn_first - 1 if it has no rows.
    """

    number: int
    path: Path
    log_id: str
    file_id: str
    start: FlushPoint
    end: FlushPoint
    row_count: int
    marker_count: int
    transaction_count: int
    size_bytes: int
    created_us: int
    closed_us: int
    tables: tuple[TableTotals, ...]

    @property
    def gsn_first(self) -> int:
        """First number of the segment, whether or not it has rows."""
        return self.start.gsn + 1

    @property
    def gsn_last(self) -> int:
        """Number of the last row."""
        return self.end.gsn


class Segment(OrderedFrames):
    """One segment, open for reading. Use as a context manager; several threads may read.

    Checksums are verified whenever a frame is read; a frame that fails never gives rows.

    Attributes:
        header: see `penstock.codec.ckt`.
        totals: see `penstock.codec.ckt`.
        entries: the frames in file order.
        transactions: where and when those of the rows were committed.
    """

    def __init__(
        self,
        reader: FrameReader,
        entries: tuple[FrameEntry, ...],
        totals: Totals,
        *,
        is_closed: bool,
    ) -> None:
        """Keep the file, which open_segment() has checked."""
        self.frame_reader = reader
        self.path = reader.path
        self.header: SegmentHeader = reader.header
        self.entries = entries
        self.totals = totals
        self.is_closed = is_closed
        self._relations: dict[int, Relation] = {}
        try:
            check_announced(entries, self.start, self.end)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error
        self.transactions = Transactions(entries, self.start, self.end, self._read_transactions)
        self._relation_entries = {
            entry.relation_id: entry for entry in entries if entry.kind == FrameKind.RELATION
        }

    @property
    def number(self) -> int:
        """Number of the segment."""
        return self.header.number

    @property
    def start(self) -> FlushPoint:
        """Start of the segment: the end of the previous one."""
        return self.header.start

    @property
    def end(self) -> FlushPoint:
        """Last flush point."""
        return self.totals.end

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.frame_reader.file.size_bytes

    @property
    def is_dense(self) -> bool:
        """Return whether every row has one number: no update of a key takes a second one."""
        return self.totals.rows == self.end.gsn - self.start.gsn

    @property
    def tables(self) -> tuple[TableTotals, ...]:
        """Row counts per relation version, in the order in which they became current."""
        return self.totals.tables

    def facts(self) -> ClosedSegment:
        """Return the facts to record about it."""
        return ClosedSegment(
            number=self.number,
            path=self.path,
            log_id=self.header.log_id,
            file_id=self.header.file_id,
            start=self.start,
            end=self.end,
            row_count=self.totals.rows,
            marker_count=self.totals.markers,
            transaction_count=self.totals.transactions,
            size_bytes=self.size_bytes,
            created_us=self.header.created_us,
            closed_us=self.totals.closed_us,
            tables=self.tables,
        )

    def relation(self, relation_id: int) -> Relation:
        """Return the shape with this id in rows frames. Raises SegmentCorrupt for an unknown id."""
        if relation_id not in self._relations:
            entry = self._relation_entries.get(relation_id)
            if entry is None:
                raise self.frame_reader.make_damaged(
                    "unknown relation", 0, "an id in the file", relation_id
                )
            self._relations[relation_id] = self._read_relation(entry)
        return self._relations[relation_id]

    def relations(self) -> list[tuple[int, Relation]]:
        """Return all shapes, as (gsn, relation): it became current after the row of that number."""
        return [(totals.gsn, self.relation(totals.id)) for totals in self.tables]

    def row_frames(
        self, *, table: TableName | None = None, gsn_after: int = 0
    ) -> Iterator[FrameEntry]:
        """Yield the index entries of rows frames, without reading them. See rows()."""
        wanted = None if table is None else self._ids_of(table)
        for entry in self.entries:
            if entry.kind != FrameKind.ROWS or entry.gsn_last <= gsn_after:
                continue
            if wanted is None or entry.relation_id in wanted:
                yield entry

    def read_rows(self, entry: FrameEntry) -> Rows:
        """Return the rows of one frame, verified. Raises SegmentCorrupt."""
        relation = self.relation(entry.relation_id)
        return Rows(relation=relation, batch=read_batch(self.frame_reader, entry, relation))

    def rows(self, *, table: TableName | None = None, gsn_after: int = 0) -> Iterator[Rows]:
        """Yield batches in file order, each of one relation version; within a table in gsn order.

        One batch at a time is in memory. Raises SegmentCorrupt.

        Args:
            table: only this table.
            gsn_after: leave out rows up to and with this number.
        """
        for entry in self.row_frames(table=table, gsn_after=gsn_after):
            rows = self.read_rows(entry)
            if entry.gsn_first <= gsn_after:
                rows = _cut_before(rows, gsn_after)
            yield rows

    def markers(self) -> Iterator[Marker]:
        """Yield the markers in order."""
        for entry in self.entries:
            if entry.kind == FrameKind.MARKER:
                yield self.read_marker(entry)

    def read_marker(self, entry: FrameEntry) -> Marker:
        """Return the marker of one frame, verified. Raises SegmentCorrupt."""
        marker: Marker = self._decode(entry, FrameKind.MARKER, ckt.decode_marker)
        return marker

    def flush_points(self) -> Iterator[ckt.FlushFrame]:
        """Yield all flush points in order."""
        for entry in self.entries:
            if entry.kind == FrameKind.FLUSH_POINT:
                yield self._decode(entry, FrameKind.FLUSH_POINT, ckt.decode_flush_point)

    def add_commit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the segment with two more columns: `position` and `commit_time`.

        Raises SegmentCorrupt.
        """
        try:
            return self.transactions.add_commit(batch)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error

    def _read_transactions(self, entry: FrameEntry) -> pa.RecordBatch:
        payload = self._payload(entry, FrameKind.TRANSACTIONS)
        offset = entry.offset_bytes
        try:
            found = ckt.decode_transactions_prefix(payload, offset)
            if found != entry._replace(gsn_first=0, gsn_last=0):
                raise self.frame_reader.make_damaged("bad index", offset, entry, found)
            batch = ckt.decode_transactions(payload)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error
        if not never_fall(batch.column(0)):
            raise self.frame_reader.make_damaged(
                "positions fall", offset, "rising ones", "a lower one"
            )
        return batch

    def in_order(self) -> Iterator[tuple[Relation, int, pa.RecordBatch] | Marker]:
        """Yield rows of all tables in strict order, with markers in their places.

        Rows are (relation, row index, batch). Raises SegmentCorrupt.
        """
        return order.in_order(self)

    def verify(self) -> None:
        """Read and verify every frame. Raises SegmentCorrupt at the first that is damaged."""
        for entry in self.entries:
            if entry.kind == FrameKind.ROWS:
                self.read_rows(entry)
            elif entry.kind == FrameKind.RELATION:
                self._read_relation(entry)
            elif entry.kind == FrameKind.TRANSACTIONS:
                self._read_transactions(entry)
            elif entry.kind != FrameKind.HEADER:
                self._payload(entry, FrameKind(entry.kind))

    def close(self) -> None:
        """Close the file. Batches read from it stay valid."""
        self.frame_reader.file.close()

    def __enter__(self) -> Self:
        """Return the segment."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def _ids_of(self, table: TableName) -> set[int]:
        return {totals.id for totals in self.tables if (totals.schema, totals.name) == tuple(table)}

    def _payload(self, entry: FrameEntry, expected: FrameKind) -> pa.Buffer:
        return read_payload(self.frame_reader, entry, expected)

    def _decode(self, entry: FrameEntry, kind: FrameKind, decode: Any) -> Any:
        payload = self._payload(entry, kind)
        try:
            return decode(payload)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error

    def _read_relation(self, entry: FrameEntry) -> Relation:
        relation_id, relation = self._decode(entry, FrameKind.RELATION, ckt.decode_relation)
        if relation_id != entry.relation_id:
            raise self.frame_reader.make_damaged(
                "bad relation id", entry.offset_bytes, entry.relation_id, relation_id
            )
        found: Relation = relation
        return found


def _cut_before(rows: Rows, gsn: int) -> Rows:
    """Leave out rows up to and with gsn; the column is sorted."""
    numbers = rows.batch.column(0)
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle].as_py() <= gsn:
            low = middle + 1
        else:
            high = middle
    return Rows(relation=rows.relation, batch=rows.batch.slice(low))


def open_segment(
    path: Path, *, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> Segment:
    """Open `N.ckt`, by its footer, or `N.ckt_`, by a scan up to its last flush point.

    A file of another name (moved away, for example) must be closed. Raises SegmentCorrupt,
    SegmentMisnamed, FormatUnknown, FileMissing.
    """
    file = files.open_read(path)
    try:
        reader = FrameReader(file)
        named = parse_name(path.name, extension)
        if named and named[0] != reader.header.number:
            raise SegmentMisnamed(
                f"{path.name} says in its header that it is segment {reader.header.number}",
                hint="Rename the file back; run penstock log check to see the others.",
                path=str(path),
                expected=named[0],
                actual=reader.header.number,
            )
        if named and named[1]:
            found = scan(reader)
            entries, totals = tuple(found.builder.entries), found.builder.totals(0)
            return Segment(reader, entries, totals, is_closed=False)
        entries, totals = _read_footer(reader)
        return Segment(reader, entries, totals, is_closed=True)
    except BaseException:
        file.close()
        raise


def _read_footer(reader: FrameReader) -> tuple[tuple[FrameEntry, ...], Totals]:
    """Return the index of a closed file; trailer, length and checksum must all agree."""
    offset = read_trailer(reader)
    length = reader.file.size_bytes - ckt.TRAILER_SIZE - ckt.HEAD.size - offset
    if offset < ckt.HEADER_REGION_SIZE or length < 0:
        raise reader.make_damaged("bad footer offset", reader.file.size_bytes, "inside", offset)
    kind, payload = reader.frame(offset, length)
    if kind is not FrameKind.FOOTER:
        raise reader.make_damaged("no footer", offset, FrameKind.FOOTER.name, kind.name)
    try:
        return ckt.decode_footer(payload)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error


def list_begun_segments(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[SegmentFile]:
    """Return the open segments with a whole header: the others cannot be read.

    A segment that is closed and renamed during the listing is left out.
    """
    begun = []
    for file in list_open_segments(directory, extension, files):
        with suppress(FileMissing):
            if not is_header_torn(file.path, files):
                begun.append(file)
    return begun
