"""Decode the images of one row in a pgoutput message or a COPY line to lists of values.

The plain form of what `_pgoutput.pyx` does. An offset in an error is the place of the value's first
byte, or the place where bytes are missing. A `TextStore` keeps rows until they become an Arrow
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.codec.postgres.pgoutput_outcome import Reason, decode_error
from penstock.codec.postgres.pgtext import Malformed, Unfit, cell_reader
from penstock.codec.row_store import RowStore

if TYPE_CHECKING:
    from penstock.model import Relation


class TextStore(RowStore):
    """Store of rows whose values are PostgreSQL's texts."""

    def __init__(self, relation: Relation) -> None:
        """Start empty."""
        super().__init__(relation)
        self.readers = [cell_reader(column) for column in relation.columns]


_INSERT, _UPDATE, _DELETE = ord("I"), ord("U"), ord("D")
_NEW, _OLD, _KEY = ord("N"), ord("O"), ord("K")
_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")
_BACKSLASH = ord("\\")
_ESCAPES = {
    ord("b"): 8,
    ord("t"): 9,
    ord("n"): 10,
    ord("v"): 11,
    ord("f"): 12,
    ord("r"): 13,
    _BACKSLASH: _BACKSLASH,
}


class Widen(Exception):
    """A value of the row at hand does not fit its column's neutral type."""

    def __init__(self, column: int) -> None:
        """Keep the index of the column in the relation."""
        super().__init__(column)
        self.column = column


class _Cell(NamedTuple):
    """Place of one value in the block; kind is its letter."""

    kind: int
    start: int
    end: int


class Images(NamedTuple):
    """Both images of a row, a value for each column. absent: indexes of columns not sent.

    moved: whether it is an update that changed the key.
    """

    after: list[Any] | None
    before: list[Any] | None
    absent: list[int]
    moved: bool


def need(length: int, at: int, end: int) -> None:
    """Raise if the message ends within the `length` bytes at `at`."""
    if end - at < length:
        raise decode_error(Reason.TRUNCATED, at)


def find(block: memoryview, byte: bytes, start: int, end: int) -> int:
    """Return the first offset of the byte in block[start:end]; -1 if it is not there."""
    found = bytes(block[start:end]).find(byte)
    return found if found < 0 else start + found


def row_images(store: TextStore, block: memoryview, op: int, at: int, end: int) -> Images:
    """Return the images of the row message that continues at `at`, after the relation's oid."""
    need(1, at, end)
    kind = block[at]
    after: list[Any] | None = None
    before: list[Any] | None = None
    absent: list[int] = []
    old: list[_Cell] = []
    changed: list[int] = []  # columns of the key
    behind = at
    if op != _INSERT and kind in (_OLD, _KEY):
        old, before, behind = _old_image(store, block, at + 1, end)
        if kind == _KEY:
            # Only the key is sent; the other columns are marked NULL although they are not NULL.
            old = [cell if cell.kind == _TEXT else cell._replace(kind=_UNCHANGED) for cell in old]
        if op == _UPDATE:
            need(1, behind, end)
            kind, at = block[behind], behind
    elif op == _DELETE:
        raise decode_error(Reason.TUPLE_KIND, at, relation=store.relation)
    if op != _DELETE:
        if kind != _NEW:
            raise decode_error(Reason.TUPLE_KIND, at, relation=store.relation)
        after, behind = _new_image(store, block, at + 1, end, op, old, absent, changed)
    if behind != end:
        raise decode_error(Reason.TRAILING, behind, relation=store.relation)
    return Images(after, before, absent, bool(changed))


def _old_image(
    store: TextStore, block: memoryview, at: int, end: int
) -> tuple[list[_Cell], list[Any], int]:
    at = _column_count(store, block, at, end)
    cells: list[_Cell] = []
    values: list[Any] = []
    for index in range(len(store.readers)):
        cell = _cell(store, index, block, at, end)
        if cell.kind == _UNCHANGED:
            raise decode_error(Reason.UNCHANGED, at, relation=store.relation, column=index)
        wanted = cell.kind == _TEXT and index in store.before
        values.append(_value(store, index, block, cell) if wanted else None)
        cells.append(cell)
        at = cell.end
    return cells, values, at


def _new_image(
    store: TextStore,
    block: memoryview,
    at: int,
    end: int,
    op: int,
    old: list[_Cell],
    absent: list[int],
    changed: list[int],
) -> tuple[list[Any], int]:
    at = _column_count(store, block, at, end)
    values: list[Any] = []
    for index in range(len(store.readers)):
        cell = _cell(store, index, block, at, end)
        start, at = at, cell.end
        if cell.kind == _UNCHANGED:
            if op == _INSERT:
                raise decode_error(Reason.UNCHANGED, start, relation=store.relation, column=index)
            if old:
                cell = old[index]  # an unchanged value that the old image has
            if cell.kind == _UNCHANGED:
                absent.append(index)
        elif old and index in store.key and _text(block, cell) != _text(block, old[index]):
            changed.append(index)
        values.append(_value(store, index, block, cell) if cell.kind == _TEXT else None)
    return values, at


def _column_count(store: TextStore, block: memoryview, at: int, end: int) -> int:
    need(2, at, end)
    if int.from_bytes(block[at : at + 2]) != len(store.readers):
        raise decode_error(Reason.COLUMN_COUNT, at, relation=store.relation)
    return at + 2


def _cell(store: TextStore, index: int, block: memoryview, at: int, end: int) -> _Cell:
    need(1, at, end)
    kind = block[at]
    if kind in (_NULL, _UNCHANGED):
        return _Cell(kind, at + 1, at + 1)
    if kind != _TEXT:
        raise decode_error(Reason.CELL_KIND, at, relation=store.relation, column=index)
    need(4, at + 1, end)
    length = int.from_bytes(block[at + 1 : at + 5])
    need(length, at + 5, end)
    return _Cell(kind, at + 5, at + 5 + length)


def _text(block: memoryview, cell: _Cell) -> bytes | None:
    """Return a value's text; None if it is NULL, or was not sent."""
    return bytes(block[cell.start : cell.end]) if cell.kind == _TEXT else None


def _value(store: TextStore, index: int, block: memoryview, cell: _Cell) -> Any:
    return _read(store, index, bytes(block[cell.start : cell.end]), cell.start)


def _read(store: TextStore, index: int, text: bytes, at: int) -> Any:
    try:
        return store.readers[index](text)
    except Unfit as error:
        raise Widen(index) from error
    except Malformed as error:
        raise decode_error(Reason.VALUE, at, relation=store.relation, column=index) from error
    except UnicodeDecodeError as error:
        raise decode_error(Reason.UTF8, at, relation=store.relation, column=index) from error


def copy_values(store: TextStore, block: memoryview, at: int, end: int) -> list[Any]:
    """Return the values of one COPY line, block[at:end] without its newline.

    Raises Widen, DecodeError.
    """
    values: list[Any] = []
    for index in range(len(store.readers)):
        if index:
            if at == end:
                raise decode_error(Reason.COPY_FIELDS, at, relation=store.relation)
            at += 1  # over the tab that ended the field before
        tab = find(block, b"\t", at, end)
        field_end = end if tab < 0 else tab
        text = _unescape(store, index, block, at, field_end)
        values.append(None if text is None else _read(store, index, text, at))
        at = field_end
    if at != end:
        raise decode_error(Reason.COPY_FIELDS, at, relation=store.relation)
    return values


def _unescape(
    store: TextStore, index: int, block: memoryview, start: int, end: int
) -> bytes | None:
    field = bytes(block[start:end])
    if field == b"\\N":
        return None
    text = bytearray()
    at = 0
    while at < len(field):
        byte = field[at]
        if byte == _BACKSLASH:
            escaped = _ESCAPES.get(field[at + 1]) if at + 1 < len(field) else None
            if escaped is None:
                raise decode_error(
                    Reason.COPY_ESCAPE, start + at, relation=store.relation, column=index
                )
            byte = escaped
            at += 1
        text.append(byte)
        at += 1
    return bytes(text)
