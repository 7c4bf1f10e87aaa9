"""Read one segment: open it cheaply by its footer, or scan it; every byte used is verified.

A closed file (`N.ckt`) must be whole: anything else is SegmentCorrupt. An open one (`N.ckt_`) is
read up to its last flush point; what follows it is not a whole transaction yet. Not here:
several segments in a row (`reader.py`), repairing what a crash left (`recovery.py`).
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
from penstock.log.transactions import Transactions, check_announced, never_fall
from penstock.model import FlushPoint, Marker, PenstockError, Relation, Rows, TableName


class SegmentMisnamed(PenstockError):
    """A file's header has another number than its name: it was renamed or copied."""

    code = "LG02"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """The facts about a closed segment.

    start: where it begins (the end of the one before); end: its last flush point. gsn_first,
    gsn_last: the numbers given in it; gsn_last is gsn_first - 1 when it has no rows.
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
        """The first number given in it, were there one."""
        return self.start.gsn + 1

    @property
    def gsn_last(self) -> int:
        """The last row's number."""
        return self.end.gsn


class Segment:
    """One segment, open for reading. Use as a context manager; several threads may read.

    header, totals: see `penstock.codec.ckt`. entries: the frames in file order. transactions: where
    and when those of the rows were committed. Checksums are verified whenever a frame is read; a
    frame that fails never gives rows.
    """

    def __init__(
        self,
        reader: FrameReader,
        entries: tuple[FrameEntry, ...],
        totals: Totals,
        *,
        is_closed: bool,
    ) -> None:
        """See open_segment()."""
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
        """The segment's number."""
        return self.header.number

    @property
    def start(self) -> FlushPoint:
        """Where it begins: the end of the segment before."""
        return self.header.start

    @property
    def end(self) -> FlushPoint:
        """Its last flush point."""
        return self.totals.end

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.frame_reader.file.size_bytes

    @property
    def is_dense(self) -> bool:
        """Whether every row has one number: no update of a key has a second for the old key."""
        return self.totals.rows == self.end.gsn - self.start.gsn

    @property
    def tables(self) -> tuple[TableTotals, ...]:
        """Row counts per relation version, in the order in which they became current."""
        return self.totals.tables

    def facts(self) -> ClosedSegment:
        """What to record about it."""
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
        """The shape that rows frames name by this id. Raises SegmentCorrupt for an unknown id."""
        if relation_id not in self._relations:
            entry = self._relation_entries.get(relation_id)
            if entry is None:
                raise self.frame_reader.damaged(
                    "unknown relation", 0, "an id in the file", relation_id
                )
            self._relations[relation_id] = self._read_relation(entry)
        return self._relations[relation_id]

    def relations(self) -> list[tuple[int, Relation]]:
        """All shapes, as (gsn, relation): it became current behind the row of that number."""
        return [(totals.gsn, self.relation(totals.id)) for totals in self.tables]

    def row_frames(
        self, *, table: TableName | None = None, gsn_after: int = 0
    ) -> Iterator[FrameEntry]:
        """The index entries of rows frames, without reading them. See rows()."""
        wanted = None if table is None else self._ids_of(table)
        for entry in self.entries:
            if entry.kind != FrameKind.ROWS or entry.gsn_last <= gsn_after:
                continue
            if wanted is None or entry.relation_id in wanted:
                yield entry

    def read_rows(self, entry: FrameEntry) -> Rows:
        """The rows of one frame, verified. Raises SegmentCorrupt."""
        relation = self.relation(entry.relation_id)
        return Rows(relation=relation, batch=read_batch(self.frame_reader, entry, relation))

    def rows(self, *, table: TableName | None = None, gsn_after: int = 0) -> Iterator[Rows]:
        """Batches in file order, each of one relation version; within a table in gsn order.

        table: only this one. gsn_after: leave out rows up to and with this number. One batch at
        a time is in memory. Raises SegmentCorrupt.
        """
        for entry in self.row_frames(table=table, gsn_after=gsn_after):
            rows = self.read_rows(entry)
            if entry.gsn_first <= gsn_after:
                rows = _cut_before(rows, gsn_after)
            yield rows

    def markers(self) -> Iterator[Marker]:
        """Markers in order."""
        for entry in self.entries:
            if entry.kind == FrameKind.MARKER:
                yield self.read_marker(entry)

    def read_marker(self, entry: FrameEntry) -> Marker:
        """The marker of one frame, verified. Raises SegmentCorrupt."""
        marker: Marker = self._decoded(entry, FrameKind.MARKER, ckt.decode_marker)
        return marker

    def flush_points(self) -> Iterator[ckt.FlushFrame]:
        """All flush points in order."""
        for entry in self.entries:
            if entry.kind == FrameKind.FLUSH_POINT:
                yield self._decoded(entry, FrameKind.FLUSH_POINT, ckt.decode_flush_point)

    def dated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows read from it with two columns more: `position` and `commit_time` of the commit.

        Raises SegmentCorrupt.
        """
        try:
            return self.transactions.dated(batch)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error

    def _read_transactions(self, entry: FrameEntry) -> pa.RecordBatch:
        payload = self._payload(entry, FrameKind.TRANSACTIONS)
        offset = entry.offset_bytes
        try:
            found = ckt.decode_transactions_prefix(payload, offset)
            if found != entry._replace(gsn_first=0, gsn_last=0):
                raise self.frame_reader.damaged("bad index", offset, entry, found)
            batch = ckt.decode_transactions(payload)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error
        if not never_fall(batch.column(0)):
            raise self.frame_reader.damaged("positions fall", offset, "rising ones", "a lower one")
        return batch

    def in_order(self) -> Iterator[tuple[Relation, int, pa.RecordBatch] | Marker]:
        """Rows of all tables in strict order, as (relation, row index, batch), and markers in
        their places. Raises SegmentCorrupt.
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
        """Give the file back. Batches read from it stay valid."""
        self.frame_reader.file.close()

    def __enter__(self) -> Self:
        """The segment."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _ids_of(self, table: TableName) -> set[int]:
        return {totals.id for totals in self.tables if (totals.schema, totals.name) == tuple(table)}

    def _payload(self, entry: FrameEntry, expected: FrameKind) -> pa.Buffer:
        return read_payload(self.frame_reader, entry, expected)

    def _decoded(self, entry: FrameEntry, kind: FrameKind, decode: Any) -> Any:
        payload = self._payload(entry, kind)
        try:
            return decode(payload)
        except ckt.FrameInvalid as error:
            raise corrupt(self.path, error) from error

    def _read_relation(self, entry: FrameEntry) -> Relation:
        relation_id, relation = self._decoded(entry, FrameKind.RELATION, ckt.decode_relation)
        if relation_id != entry.relation_id:
            raise self.frame_reader.damaged(
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

    A file of another name (moved away, say) must be closed. Raises SegmentCorrupt,
    SegmentMisnamed, FormatUnknown, FileMissing.
    """
    file = files.open_read(path)
    try:
        reader = FrameReader(file)
        named = parse_name(path.name, extension)
        if named and named[0] != reader.header.number:
            raise SegmentMisnamed(
                f"{path.name} says in its header that it is segment {reader.header.number}",
                hint="Give the file its own name back; run penstock log check for the others.",
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
    """The index of a closed file; trailer, length and checksum must all agree."""
    offset = read_trailer(reader)
    length = reader.file.size_bytes - ckt.TRAILER_SIZE - ckt.HEAD.size - offset
    if offset < ckt.HEADER_REGION_SIZE or length < 0:
        raise reader.damaged("bad footer offset", reader.file.size_bytes, "inside", offset)
    kind, payload = reader.frame(offset, length)
    if kind is not FrameKind.FOOTER:
        raise reader.damaged("no footer", offset, FrameKind.FOOTER.name, kind.name)
    try:
        return ckt.decode_footer(payload)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error


def list_begun_segments(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[SegmentFile]:
    """Open segments whose header is whole: of the others nothing can be read.

    One that is closed and renamed while we look is left out.
    """
    begun = []
    for file in list_open_segments(directory, extension, files):
        with suppress(FileMissing):
            if not is_header_torn(file.path, files):
                begun.append(file)
    return begun
