"""Segments of the log: the index of each, closed ones, and the one that is being written.

A segment is opened cheaply by its footer, or scanned; every byte that is used is verified. A closed
file (`N.ckt`) must be whole: anything else is SegmentCorrupt. An open one (`N.ckt_`) is read up to
its last flush point; the rest is not a whole transaction yet.

The index is built frame by frame: by the writer as it writes, or by a scan. Both ways give the same
index, so a footer made by recovery equals the one that the writer would have written.

The segment that is being written is read repeatedly up to its durable end. Its index grows with the
file: each look reads only the new frames. Readers get whole transactions on the disk, which no
recovery cuts off.

Not here: several segments in a row (`reader.py`), repair after a crash and the decision about a
torn tail (`recovery.py`), the file that names the durable end (`layout.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.codec import ckt
from penstock.codec.ckt import (
    FlushFrame,
    FrameEntry,
    FrameKind,
    RowsFlag,
    SegmentHeader,
    TableTotals,
    Totals,
)
from penstock.host.files import REAL_FILES, FileMissing, Files, ReadFile
from penstock.host.watch import FileWatch
from penstock.log import order
from penstock.log.frames import (
    FrameReader,
    SegmentCorrupt,
    corrupt,
    is_header_torn,
    place_entry,
    read_batch,
    read_payload,
    read_transactions,
)
from penstock.log.layout import (
    DURABLE_NAME,
    EXTENSION_DEFAULT,
    Durable,
    DurableReader,
    SegmentFile,
    closed_path,
    list_open_segments,
    next_segments,
    open_name,
    parse_name,
)
from penstock.log.order import OrderedFrames
from penstock.log.transactions import Transactions, check_announced
from penstock.model import FlushPoint, Marker, Op, PenstockError, Relation, Rows, TableName

_SEARCH_BLOCK_BYTES = 2**20


class IndexBuilder:
    """Collects frames in file order. Frames after the last flush point are pending."""

    def __init__(self, header: ckt.SegmentHeader) -> None:
        """Start with the header frame."""
        length = ckt.HEADER_REGION_SIZE - len(ckt.MAGIC) - ckt.HEAD.size
        self.entries = [place_entry(FrameKind.HEADER, len(ckt.MAGIC), length, header.start.gsn)]
        self.start = header.start
        self.end = header.start
        self.gsn_last = header.start.gsn
        self.row_count = 0
        self.marker_count = 0
        self.flush_point_count = 0
        self.relations: dict[int, tuple[Relation, int]] = {}
        self._rows_of: dict[int, int] = {}

    def add_relation(self, offset: int, length: int, relation_id: int, relation: Relation) -> None:
        """Add a shape, which becomes current after the rows so far."""
        self.relations[relation_id] = (relation, self.gsn_last)
        self.entries.append(
            place_entry(FrameKind.RELATION, offset, length, self.gsn_last, relation_id)
        )

    def add_rows(self, entry: FrameEntry) -> None:
        """Add a rows frame."""
        self.entries.append(entry)
        self.gsn_last = max(self.gsn_last, entry.gsn_last)
        self.row_count += entry.row_count
        counted = self._rows_of.get(entry.relation_id, 0)
        self._rows_of[entry.relation_id] = counted + entry.row_count
        if not counted and entry.relation_id in self.relations:
            relation, _ = self.relations[entry.relation_id]
            self.relations[entry.relation_id] = (relation, entry.gsn_first - 1)

    def add_marker(self, offset: int, length: int, gsn: int) -> None:
        """Add a marker frame."""
        self.marker_count += 1
        self.entries.append(place_entry(FrameKind.MARKER, offset, length, gsn))

    def add_transactions(self, entry: FrameEntry) -> None:
        """Add a transactions frame, which follows the rows so far."""
        self.entries.append(entry._replace(gsn_first=self.gsn_last, gsn_last=self.gsn_last))

    def add_flush_point(self, offset: int, length: int, point: FlushPoint) -> None:
        """Add a flush point: all frames before it are whole transactions."""
        self.flush_point_count += 1
        self.end = point
        self.entries.append(place_entry(FrameKind.FLUSH_POINT, offset, length, point.gsn))

    @property
    def has_content(self) -> bool:
        """Return whether there is anything besides positions."""
        return bool(self.row_count or self.marker_count or self.relations)

    def totals(self, closed_us: int) -> Totals:
        """Return the footer's totals as of now."""
        return Totals(
            end=self.end,
            rows=self.row_count,
            markers=self.marker_count,
            transactions=self.end.trx - self.start.trx,
            flush_points=self.flush_point_count,
            closed_us=closed_us,
            tables=tuple(
                TableTotals(
                    id=relation_id,
                    schema=relation.schema,
                    name=relation.name,
                    version=relation.version,
                    gsn=gsn,
                    rows=self._rows_of.get(relation_id, 0),
                )
                for relation_id, (relation, gsn) in self.relations.items()
            ),
        )


def _count_updates(letters: bytes, before: pa.Array) -> int:
    """Return how many of the operations are updates with a before image.

    It uses numpy: pyarrow with a Python value imports pandas first, a seventh of a second.
    """
    is_update = np.frombuffer(letters, np.uint8) == Op.UPDATE
    if not before.null_count:
        return int(is_update.sum())
    bits = np.frombuffer(before.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, bitorder="little")[before.offset : before.offset + len(before)]
    return int((is_update & valid).sum())


def row_facts(relation_id: int, rows: Rows) -> FrameEntry:
    """Return the fixed part of a rows frame, computed from its batch. Its place is 0 until it is
    written.
    """
    batch = rows.batch
    ops = batch.column("op")
    letters = ops.buffers()[1][ops.offset : ops.offset + len(ops)].to_pybytes()
    flags = RowsFlag(0)
    flags |= RowsFlag.INSERT if letters.count(Op.INSERT) else flags
    flags |= RowsFlag.UPDATE if letters.count(Op.UPDATE) else flags
    flags |= RowsFlag.DELETE if letters.count(Op.DELETE) else flags
    absent = batch.column("absent")
    flags |= RowsFlag.ABSENT if absent.null_count < len(absent) else flags
    before = batch.column("before")
    updates_with_before = 0
    if RowsFlag.UPDATE in flags and before.null_count < len(before):
        updates_with_before = _count_updates(letters, before)
    last = batch.num_rows - 1
    return FrameEntry(
        FrameKind.ROWS,
        0,
        int(flags),
        relation_id,
        0,
        0,
        batch.num_rows,
        updates_with_before,
        batch.column(0)[0].as_py(),
        batch.column(0)[last].as_py(),
        batch.column(1)[0].as_py(),
        batch.column(1)[last].as_py(),
    )


@dataclass(frozen=True, slots=True)
class ScannedFrame:
    """One verified frame.

    Attributes:
        content: Relation pair, FlushFrame, footer pair or None, depending on the kind.
    """

    entry: FrameEntry
    content: Any

    @property
    def end_bytes(self) -> int:
        """Offset of the next frame."""
        return self.entry.offset_bytes + ckt.HEAD.size + self.entry.length_bytes


def scan_frames(
    reader: FrameReader, start_bytes: int = ckt.HEADER_REGION_SIZE
) -> Iterator[ScannedFrame]:
    """Yield all frames from an offset, verified, in file order, up to the footer or file end.

    One frame at a time is in memory. Raises SegmentCorrupt at the first frame that is not whole.
    """
    offset = start_bytes
    while offset < reader.file.size_bytes:
        length = reader.length_at(offset)
        kind, payload = reader.frame(offset, length)
        try:
            found = _decode_frame(kind, payload, offset)
        except ckt.FrameInvalid as error:
            raise corrupt(reader.path, error) from error
        yield found
        if kind is FrameKind.FOOTER:
            return
        offset = found.end_bytes


def _decode_frame(kind: FrameKind, payload: Any, offset: int) -> ScannedFrame:
    entry = place_entry(kind, offset, payload.size, 0)
    content: Any = None
    if kind is FrameKind.ROWS:
        entry = ckt.decode_rows_prefix(payload, offset)
    elif kind is FrameKind.TRANSACTIONS:
        entry = ckt.decode_transactions_prefix(payload, offset)
    elif kind is FrameKind.RELATION:
        content = ckt.decode_relation(payload)
    elif kind is FrameKind.MARKER:
        content = ckt.decode_marker(payload)
    elif kind is FrameKind.FLUSH_POINT:
        content = ckt.decode_flush_point(payload)
    elif kind is FrameKind.FOOTER:
        content = ckt.decode_footer(payload)
    elif kind is FrameKind.HEADER:
        raise ckt.FrameInvalid(f"second header at byte {offset}", offset_bytes=offset)
    return ScannedFrame(entry, content)


def add_scanned(builder: IndexBuilder, found: ScannedFrame) -> None:
    """Add a scanned frame to an index; the footer is not part of an index."""
    offset, length = found.entry.offset_bytes, found.entry.length_bytes
    match FrameKind(found.entry.kind):
        case FrameKind.ROWS:
            builder.add_rows(found.entry)
        case FrameKind.RELATION:
            builder.add_relation(offset, length, *found.content)
        case FrameKind.MARKER:
            builder.add_marker(offset, length, found.content.gsn)
        case FrameKind.TRANSACTIONS:
            builder.add_transactions(found.entry)
        case FrameKind.FLUSH_POINT:
            builder.add_flush_point(offset, length, found.content.point)
        case _:
            pass


@dataclass(slots=True, kw_only=True)
class Scan:
    """Content of a file up to its last flush point.

    Attributes:
        flush_end_bytes: end of the last flush point; the header's end if there is none.
        is_complete: a footer and a right trailer follow the flush point.
        torn: why the scan stopped before the end of the file; None if it did not. Bytes after the
            flush point are not whole then.
    """

    builder: IndexBuilder
    flush_end_bytes: int
    last_flush: FlushFrame | None = None
    is_complete: bool = False
    torn: SegmentCorrupt | None = None
    pending: list[ScannedFrame] = field(default_factory=list)
    footer: ScannedFrame | None = None


def scan(reader: FrameReader) -> Scan:
    """Read a whole file frame by frame.

    Damage is a torn tail only where bytes may not have reached the disk before a crash. A flush
    point after the damage proves corruption if it was written when those bytes were durable.
    Raises SegmentCorrupt if durable bytes are damaged or a transaction is missing.
    """
    result = Scan(builder=IndexBuilder(reader.header), flush_end_bytes=ckt.HEADER_REGION_SIZE)
    try:
        for found in scan_frames(reader):
            if found.entry.kind == FrameKind.FOOTER:
                result.footer = found
                result.is_complete = not result.pending and _trailer_is_right(reader, found)
                break
            result.pending.append(found)
            if found.entry.kind == FrameKind.FLUSH_POINT:
                for frame in result.pending:
                    add_scanned(result.builder, frame)
                result.pending.clear()
                result.last_flush = found.content
                result.flush_end_bytes = found.end_bytes
    except SegmentCorrupt as error:
        damaged_at = int(error.fields["offset_bytes"])
        if _durable_bytes_behind(reader, damaged_at) > damaged_at:
            raise
        result.torn = error
    try:
        check_announced(result.builder.entries, result.builder.start, result.builder.end)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error
    return result


def _trailer_is_right(reader: FrameReader, footer: ScannedFrame) -> bool:
    size = reader.file.size_bytes
    try:
        offset = read_trailer(reader)
    except SegmentCorrupt:
        return False
    return offset == footer.entry.offset_bytes and footer.end_bytes + ckt.TRAILER_SIZE == size


def read_trailer(reader: FrameReader) -> int:
    """Return the offset of the footer frame. Raises SegmentCorrupt without a right trailer."""
    size = reader.file.size_bytes
    data = reader.file.read(max(size - ckt.TRAILER_SIZE, 0), ckt.TRAILER_SIZE)
    try:
        return ckt.decode_trailer(data, reader.salt, size)
    except ckt.FrameInvalid as error:
        raise corrupt(reader.path, error) from error


def _durable_bytes_behind(reader: FrameReader, start: int) -> int:
    """Return the largest durable_bytes of any whole flush point from `start` on, or 0."""
    frame_size = ckt.HEAD.size + ckt.FLUSH_POINT_SIZE
    largest = 0
    offset = start - start % ckt.ALIGNMENT
    while offset + frame_size <= reader.file.size_bytes:
        block = reader.file.read(offset, _SEARCH_BLOCK_BYTES + frame_size)
        at = block.find(ckt.FLUSH_POINT_HEAD_START)
        while 0 <= at < _SEARCH_BLOCK_BYTES:
            largest = max(
                largest, _durable_bytes_of(reader, block[at : at + frame_size], offset + at)
            )
            at = block.find(ckt.FLUSH_POINT_HEAD_START, at + 1)
        offset += _SEARCH_BLOCK_BYTES
    return largest


def _durable_bytes_of(reader: FrameReader, data: bytes, offset: int) -> int:
    """Return durable_bytes if these bytes are a whole flush point of this file, else 0."""
    if offset % ckt.ALIGNMENT or len(data) != ckt.HEAD.size + ckt.FLUSH_POINT_SIZE:
        return 0
    try:
        kind, payload = ckt.verify_frame(data, reader.salt, offset)
        if kind is not FrameKind.FLUSH_POINT:
            return 0
        return ckt.decode_flush_point(payload).durable_bytes
    except (ckt.FrameInvalid, ckt.FormatUnknown):
        return 0  # bytes of rows that look like the start of a flush point


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
        return read_transactions(self.frame_reader, entry)

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


class LogFollower:
    """Finds the segments after a place in a log, and checks cheaply for more."""

    def __init__(
        self, directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
    ) -> None:
        """Open nothing before the first look."""
        self._directory = directory
        self._extension = extension
        self._files = files
        self._marks = DurableReader(directory, files)
        self._watch = FileWatch(directory / DURABLE_NAME)

    def behind(
        self, segment: int, trx: int, *, count_max: int, size_max: int, reads_open: bool
    ) -> list[SegmentFile]:
        """Return the segments after number `segment`, within the limits, but at least one.

        Args:
            segment: number of the last segment that was read.
            trx: the last transaction that was read.
            count_max: maximum number of segments.
            size_max: maximum total size, in bytes.
            reads_open: include the open segment if it has durable transactions after trx.

        Raises:
            SegmentMissing: there is a gap.
        """
        found = next_segments(
            self._directory,
            after=segment,
            count_max=count_max,
            extension=self._extension,
            files=self._files,
        )
        chosen: list[SegmentFile] = []
        size = 0
        for file in found:
            size += file.path.stat().st_size
            if chosen and size > size_max:
                return chosen
            chosen.append(file)
        if reads_open and len(chosen) < count_max:
            last = self.find(number=segment + len(chosen) + 1, trx_after=trx)
            chosen += [last] if last is not None else []
        return chosen

    def find(self, *, number: int, trx_after: int) -> SegmentFile | None:
        """Return the open segment if it has this number and durable transactions after
        trx_after.
        """
        durable = self._marks.read()
        if durable is None or durable.number != number or durable.end.trx <= trx_after:
            return None
        path = self._directory / open_name(number, self._extension)
        return SegmentFile(number=number, path=path, is_open=True, durable=durable)

    def durable_end(self) -> FlushPoint:
        """Return the durable end of the log; the beginning if the writer has not noted one."""
        durable = self._marks.read()
        return durable.end if durable is not None else FlushPoint(position=0)

    def durable(self) -> Durable | None:
        """Return the writer's last note about the open segment; None if there is none."""
        return self._marks.read()

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable, at most this long."""
        self._watch.wait(timeout_s)

    def close(self) -> None:
        """Close the files that stay open between looks."""
        self._marks.close()
        self._watch.close()


class SegmentOpener:
    """Opens segments for a follower of the log: closed ones, and the open one's durable part.

    For one thread at a time.
    """

    def __init__(self, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES) -> None:
        """Read nothing yet."""
        self._extension = extension
        self._files = files
        self._file_id = ""
        self._builder: IndexBuilder | None = None
        self._end_bytes = 0

    def open(self, file: SegmentFile) -> Segment:
        """Open a segment; an open one up to its durable end when it was found.

        Raises the errors of open_segment(), and FileMissing if it was removed meanwhile.
        """
        durable = file.durable
        if durable is None:
            return open_segment(file.path, extension=self._extension, files=self._files)
        reader = FrameReader(open_either(file.path, self._files))
        try:
            if reader.header.file_id != durable.file_id:
                raise reader.make_damaged(
                    "another segment", len(ckt.MAGIC), durable.file_id, reader.header.file_id
                )
            builder = self._grow_index(reader, durable)
            return Segment(reader, tuple(builder.entries), builder.totals(0), is_closed=False)
        except BaseException:
            reader.file.close()
            raise

    def _grow_index(self, reader: FrameReader, durable: Durable) -> IndexBuilder:
        """Return the index up to the durable end."""
        if (
            self._builder is None
            or self._file_id != durable.file_id
            or self._end_bytes > durable.size_bytes
        ):
            self._builder, self._end_bytes = IndexBuilder(reader.header), ckt.HEADER_REGION_SIZE
            self._file_id = durable.file_id
        builder, self._builder = self._builder, None  # an index that is half done is built again
        end_bytes = self._end_bytes
        if end_bytes < durable.size_bytes:
            for found in scan_frames(reader, end_bytes):
                add_scanned(builder, found)
                end_bytes = found.end_bytes
                if end_bytes >= durable.size_bytes:
                    break
        if end_bytes != durable.size_bytes or builder.end != durable.end:
            raise reader.make_damaged(
                "no flush point", durable.size_bytes, durable.end, builder.end
            )
        self._builder, self._end_bytes = builder, end_bytes
        return builder


def open_either(path: Path, files: Files = REAL_FILES) -> ReadFile:
    """Open `N.ckt_`, or `N.ckt` if it was closed and renamed meanwhile. Raises FileMissing."""
    with suppress(FileMissing):
        return files.open_read(path)
    return files.open_read(closed_path(path))
