"""Decode rows events: the head, and each image of a row to a list of values.

The plain form of what `_binlog.pyx` does. An offset in an error is the place in the block where the
event begins, for its head, and where the row or value begins otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.codec.mysql.binlog_cells import Cell
from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind
from penstock.codec.mysql.binlog_outcome import TEXT_LENGTH_MAX_BYTES, Reason, binlog_error
from penstock.codec.mysql.binlog_store import Store
from penstock.codec.mysql.binlog_tables import COLUMN_COUNT_MAX, TableMap
from penstock.codec.mysql.malformed import Malformed, Unfit
from penstock.codec.mysql.values import Reader, value_reader
from penstock.model import Identity, Relation

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
OPERATIONS = {
    EventKind.WRITE_ROWS_V1: INSERT,
    EventKind.WRITE_ROWS: INSERT,
    EventKind.UPDATE_ROWS_V1: UPDATE,
    EventKind.UPDATE_ROWS: UPDATE,
    EventKind.DELETE_ROWS_V1: DELETE,
    EventKind.DELETE_ROWS: DELETE,
}
WITH_EXTRA = frozenset(
    (
        EventKind.WRITE_ROWS,
        EventKind.UPDATE_ROWS,
        EventKind.DELETE_ROWS,
        EventKind.PARTIAL_UPDATE_ROWS,
    )
)
STATEMENT_END = 1
NO_TABLE = 0xFF_FFFF  # with STATEMENT_END: an event without rows


class Widen(Exception):
    """A value of the row at hand does not fit its column's neutral type."""

    def __init__(self, column: int) -> None:
        """Keep the index of the column in the relation."""
        super().__init__(column)
        self.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Meaning of a table id: how its rows are read, and where they are stored.

    Attributes:
        relation: None if the table is not captured, and its rows are skipped.
        store: rows of the same relation share one, whatever the id.
    """

    table: TableMap
    relation: Relation | None
    cells: tuple[Cell, ...] = ()
    readers: tuple[Reader, ...] = ()
    store: Store | None = None


def make_binding(
    table: TableMap, relation: Relation, cells: tuple[Cell, ...], store: Store
) -> Binding:
    """Bind a table to a relation whose rows are collected in `store`."""
    return Binding(
        table=table,
        relation=relation,
        cells=cells,
        readers=tuple(map(value_reader, cells)),
        store=store,
    )


class Span(NamedTuple):
    """Place of one value in the block, without its length. sent: whether the image has it."""

    sent: bool
    is_null: bool
    start: int
    end: int


class RowsHead(NamedTuple):
    """Head of a rows event; before and after are the bitmaps of columns in images."""

    width: int
    before: bytes
    after: bytes
    start: int


def rows_head(block: memoryview, start: int, end: int, op: int) -> RowsHead:
    """Read a rows event's head up to its first row. start: offset of the event.

    The only bitmap of a delete is `before`, that of an insert `after`.
    """
    at = start + HEAD_BYTES + 8
    try:
        if at > end:
            raise Malformed
        if block[start + 4] in WITH_EXTRA:
            extra = int.from_bytes(_need(block, at, 2, end), "little")
            if extra < 2:
                raise Malformed
            _need(block, at, extra, end)
            at += extra
        width, at = packed_length(block, at, end)
        if not 1 <= width <= COLUMN_COUNT_MAX:
            raise Malformed
        size = (width + 7) // 8
        first = _columns(_need(block, at, size, end), width)
        at += size
        before, after = (first, b"") if op == DELETE else (b"", first)
        if op == UPDATE:
            before, after = first, _columns(_need(block, at, size, end), width)
            at += size
    except Malformed as error:
        raise binlog_error(Reason.EVENT_BODY, start) from error
    return RowsHead(width, before, after, at)


def _need(block: memoryview, at: int, size: int, end: int) -> memoryview:
    if end - at < size:
        raise Malformed
    return block[at : at + size]


def _columns(bitmap: memoryview, width: int) -> bytes:
    """Return a bitmap without the bits after the last column, which servers set."""
    return bytes(bitmap[:-1]) + bytes((bitmap[-1] & (1 << (width - 1) % 8 + 1) - 1,))


def packed_length(block: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a length-encoded number and its end. Raises Malformed."""
    first = _need(block, at, 1, end)[0]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None:
        raise Malformed
    return int.from_bytes(_need(block, at + 1, size, end), "little"), at + 1 + size


def has_bit(bitmap: bytes, index: int) -> bool:
    """Return whether a column's bit is set, least significant first."""
    return bool(bitmap[index >> 3] >> (index & 7) & 1)


def check_head(binding: Binding, head: RowsHead, op: int, start: int, defaults: bool) -> None:
    """Refuse images that lack required columns. defaults: inserts may omit columns."""
    relation = binding.relation
    assert relation is not None
    if head.width != len(binding.cells):
        raise binlog_error(Reason.COLUMN_COUNT, start, relation=relation)
    if op == INSERT:
        missing = [index for index in range(head.width) if not has_bit(head.after, index)]
        if len(missing) == head.width or (missing and not defaults):
            raise binlog_error(Reason.DEFAULTED, start, relation=relation, column=missing[0])
        return
    if not any(has_bit(head.before, index) for index in range(head.width)):
        raise binlog_error(Reason.BEFORE, start, relation=relation)
    for index in relation.before:
        if not has_bit(head.before, index):
            raise binlog_error(Reason.BEFORE, start, relation=relation, column=index)


class Images(NamedTuple):
    """A decoded row.

    Attributes:
        size: bytes it counts as.
        behind: where the next row starts.
        moved: whether it is an update that changed the key.
    """

    after: list[Any] | None
    before: list[Any] | None
    absent: list[int]
    size: int
    behind: int
    moved: bool


def row_images(
    binding: Binding, block: memoryview, op: int, head: RowsHead, at: int, end: int
) -> Images:
    """Return the images of the row at `at`. Raises Widen, BinlogBroken."""
    relation = binding.relation
    assert relation is not None
    old: list[Span] = []
    new: list[Span] = []
    behind = at
    if op != INSERT:
        old, behind = scan_image(binding, block, head.before, behind, end)
    if op != DELETE:
        new, behind = scan_image(binding, block, head.after, behind, end)
    after: list[Any] | None = None
    absent: list[int] = []
    if op != DELETE:
        after = []
        for index, span in enumerate(new):
            if not span.sent and old and old[index].sent:
                span = old[index]  # not changed, and the old image has it
            if not span.sent:
                absent.append(index)
            after.append(_value(binding, index, block, span))
    before: list[Any] | None = None
    moved = op == UPDATE and _has_other_key(relation, block, old, new)
    if op == DELETE or moved or (op == UPDATE and relation.identity is Identity.FULL):
        before = [None] * len(old)
        for index in relation.before:
            before[index] = _value(binding, index, block, old[index])
    size = _text_bytes(relation, after, before)
    if size > TEXT_LENGTH_MAX_BYTES:
        raise binlog_error(Reason.TOO_LONG, at, relation=relation)
    return Images(after, before, absent, size + behind - at, behind, moved)


def scan_image(
    binding: Binding, block: memoryview, present: bytes, at: int, end: int
) -> tuple[list[Span], int]:
    """Return the place of each value of an image, and where the image ends."""
    count = sum(byte.bit_count() for byte in present)
    nulls_at, at = at, at + (count + 7) // 8
    if at > end:
        raise binlog_error(Reason.TRUNCATED, nulls_at, relation=binding.relation)
    spans: list[Span] = []
    place = 0
    for index, cell in enumerate(binding.cells):
        if not has_bit(present, index):
            spans.append(Span(False, True, at, at))
            continue
        is_null = bool(block[nulls_at + (place >> 3)] >> (place & 7) & 1)
        place += 1
        if is_null:
            spans.append(Span(True, True, at, at))
            continue
        start, size = at + cell.prefix, cell.size
        if cell.prefix:
            size = int.from_bytes(block[at:start], "little") if start <= end else 0
        if start > end or size > end - start:
            raise binlog_error(Reason.TRUNCATED, at, relation=binding.relation, column=index)
        at = start + size
        spans.append(Span(True, False, start, at))
    return spans, at


def _has_other_key(relation: Relation, block: memoryview, old: list[Span], new: list[Span]) -> bool:
    """Return whether an update changed the key, or any column if the table has no key."""
    for index in relation.identifying:
        one, other = old[index], new[index]
        if not other.sent:
            continue
        same = one.is_null == other.is_null
        if not same or block[one.start : one.end] != block[other.start : other.end]:
            return True
    return False


def _value(binding: Binding, index: int, block: memoryview, span: Span) -> Any:
    if span.is_null:
        return None
    try:
        return binding.readers[index](bytes(block[span.start : span.end]))
    except Unfit as error:
        raise Widen(index) from error
    except Malformed as error:
        raise binlog_error(
            Reason.VALUE, span.start, relation=binding.relation, column=index
        ) from error
    except UnicodeDecodeError as error:
        raise binlog_error(
            Reason.TEXT, span.start, relation=binding.relation, column=index
        ) from error


def _text_bytes(relation: Relation, after: list[Any] | None, before: list[Any] | None) -> int:
    """Return the total size, in bytes, of the row's text and binary values."""
    kept = list(zip(relation.columns, after, strict=True)) if after else []
    if before:
        kept += [(relation.columns[index], before[index]) for index in relation.before]
    return sum(
        len(value.encode() if isinstance(value, str) else value)
        for column, value in kept
        if value is not None and column.neutral in ("string", "binary")
    )
