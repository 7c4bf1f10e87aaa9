"""Rewrite PARTIAL_UPDATE_ROWS events: updates with changes of JSON documents.

They become UPDATE_ROWS events with whole documents, which requires the documents of the before
image. So the kernel never sees them. `json_diff` reads the changes.
"""

from __future__ import annotations

import struct

from penstock.codec.mysql.binary_json import encode_json, parse_json
from penstock.codec.mysql.binlog_cells import How
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_images import (
    UPDATE,
    Binding,
    Span,
    check_head,
    has_bit,
    packed_length,
    rows_head,
    scan_image,
)
from penstock.codec.mysql.binlog_outcome import BinlogBroken, Reason, binlog_error
from penstock.codec.mysql.json_diff import apply_diffs, parse_diffs
from penstock.codec.mysql.malformed import Malformed

_HAS_PARTIAL = 1


def whole_updates(event: bytes, binding: Binding) -> bytes:
    """Return a PARTIAL_UPDATE_ROWS event as an UPDATE_ROWS event. Raises BinlogBroken."""
    block = memoryview(bytes(event))
    end = len(block)
    head = rows_head(block, 0, end, UPDATE)
    check_head(binding, head, UPDATE, 0, defaults=False)
    documents = [index for index, cell in enumerate(binding.cells) if cell.how is How.JSON]
    out = bytearray(block[: head.start])
    out[4] = EventKind.UPDATE_ROWS
    at = head.start
    while at < end:
        old, behind = scan_image(binding, block, head.before, at, end)
        out += block[at:behind]
        partial, at = _partial_columns(binding, block, behind, end, documents)
        new, behind = scan_image(binding, block, head.after, at, end)
        if partial:
            out += _whole_image(binding, block, head.after, at, old, new, partial)
        else:
            out += block[at:behind]
        at = behind
    struct.pack_into("<I", out, 9, len(out))
    return bytes(out)


def _partial_columns(
    binding: Binding, block: memoryview, at: int, end: int, documents: list[int]
) -> tuple[frozenset[int], int]:
    """Return the columns of the row that hold changes, and where the after image starts."""
    try:
        options, behind = packed_length(block, at, end)
        if options & ~_HAS_PARTIAL:
            raise Malformed
        if not options:
            return frozenset(), behind
        size = (len(documents) + 7) // 8
        if end - behind < size:
            raise Malformed
    except Malformed as error:
        raise binlog_error(Reason.TRUNCATED, at, relation=binding.relation) from error
    bitmap = bytes(block[behind : behind + size])
    chosen = frozenset(index for place, index in enumerate(documents) if has_bit(bitmap, place))
    return chosen, behind + size


def _whole_image(
    binding: Binding,
    block: memoryview,
    present: bytes,
    at: int,
    old: list[Span],
    new: list[Span],
    partial: frozenset[int],
) -> bytes:
    """Return an after image with whole documents. A column with changes keeps its NULL bit."""
    count = sum(byte.bit_count() for byte in present)
    out = bytearray(block[at : at + (count + 7) // 8])
    for index, span in enumerate(new):
        if not span.sent or span.is_null:
            continue
        data = bytes(block[span.start : span.end])
        if index in partial:
            data = _apply_changes(binding, index, block, old[index], data, span.start)
        out += (
            len(data).to_bytes(binding.cells[index].prefix, "little")
            if (binding.cells[index].prefix)
            else b""
        )
        out += data
    return bytes(out)


def _apply_changes(
    binding: Binding, index: int, block: memoryview, old: Span, changes: bytes, at: int
) -> bytes:
    if not old.sent or old.is_null:
        raise binlog_error(Reason.BEFORE, at, relation=binding.relation, column=index)
    document = bytes(block[old.start : old.end])
    try:
        if not changes:
            return document
        changed = encode_json(apply_diffs(parse_json(document), parse_diffs(changes)))
        if len(changed) >> 8 * binding.cells[index].prefix:
            raise Malformed
    except Malformed as error:
        raise binlog_error(Reason.VALUE, at, relation=binding.relation, column=index) from error
    return changed


def rewritten(event: bytes, start: int, binding: Binding) -> bytes:
    """Rewrite like `whole_updates`; offsets in errors count from the event's start in a block."""
    try:
        return whole_updates(event, binding)
    except BinlogBroken as error:
        relation = binding.relation if "table" in error.fields else None
        names = [column.name for column in relation.columns] if relation else []
        column = error.fields.get("column")
        raise binlog_error(
            Reason[str(error.fields["reason"]).upper()],
            start + error.offset,
            relation=relation,
            column=names.index(column) if column in names else -1,
        ) from error
