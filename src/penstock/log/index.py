"""Index of a segment, built frame by frame: by the writer as it writes, or by a scan.

Both ways give the same index, so a footer made by recovery equals the one that the writer would
have written. Not here: the decision about a torn tail (`recovery.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec import ckt
from penstock.codec.ckt import FlushFrame, FrameEntry, FrameKind, RowsFlag, TableTotals, Totals
from penstock.log.frames import FrameReader, SegmentCorrupt, corrupt, place_entry
from penstock.log.transactions import check_announced
from penstock.model import FlushPoint, Op, Relation, Rows

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
    """Return the fixed part of a rows frame, computed from its batch; the place is still 0."""
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
