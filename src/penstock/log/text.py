r"""A segment as tab-delimited lines, for people and for `penstock log cat`. Pure.

    sequence  letter  schema  table  columns...

| letter | line |
|---|---|
| R | a relation becomes current; columns are `name type`, source types |
| I | insert; the values of all columns |
| U | update; the values of all columns, then, if the source sent one, `\B` and the before image |
| D | delete; the before image |
| T | truncate, one line per table; one column: details as JSON |
| B | begin of a transaction (processCommits): trx, the source's id |
| C | its commit: trx, position, commit time |
| M | any other marker: kind, then tables and details as JSON |

The sequence is the gsn; a line that is not a row has the gsn of the row that it follows. Values
are written as in COPY's text format: `\N` is NULL, `\b \f \n \r \t \v \\` are escapes. Bytes are
hex digits. `\A` is ABSENT: the source did not send the column; its value is unchanged (U) or not
part of the replica identity (before image). No value can look like one of these: a backslash in a
value is always doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.codec.exact_text import exact_texts, timestamp_text
from penstock.log.order import merge_rows
from penstock.log.segment import Segment
from penstock.log.transactions import Transaction
from penstock.model import Column, Marker, MarkerKind, Op, Relation, Rows

NULL = "\\N"
ABSENT = "\\A"
BEFORE = "\\B"
_ESCAPES = str.maketrans(
    {
        "\\": "\\\\",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
    }
)


PositionText = Callable[[int], str]


def lines(segment: Segment, position_text: PositionText) -> Iterator[str]:
    """Yield all content of a segment in order, one line each, without the line's end.

    Raises SegmentCorrupt.

    Args:
        segment: the segment.
        position_text: prints a position as the source writes it.
    """
    relations = sorted(segment.relations(), key=lambda place: place[0])
    trx, behind = 0, segment.start.gsn
    for group in merge_rows(segment):
        texts = [_RowTexts(rows) for rows in group.batches]
        for number, gsn, found in _items(group, texts, relations):
            if number and number != trx:
                yield from _ends(segment, trx, behind, position_text)
                trx = number
                yield from _begins(segment, trx, behind)
            behind = gsn or behind
            yield from found
    for gsn, relation in relations:
        yield _relation_line(gsn, relation)
    yield from _ends(segment, trx, behind, position_text)


def escape(value: str) -> str:
    """Return a string with the escapes of COPY's text format."""
    return value.translate(_ESCAPES)


def _items(
    group: Any, texts: list[_RowTexts], relations: list[tuple[int, Relation]]
) -> Iterator[tuple[int, int, Sequence[str]]]:
    """Yield the lines of a group, as (trx or 0, gsn of a row or 0, lines).

    Relations are taken off the list when their place is reached.
    """
    for marker in group.before:
        yield marker.trx, 0, _marker_lines(marker)
    for gsn, which, index in zip(group.gsns, group.batch_index, group.row_index, strict=True):
        while relations and relations[0][0] < gsn:
            yield 0, 0, [_relation_line(*relations.pop(0))]
        yield texts[which].trx[index], gsn, [f"{gsn}\t{texts[which].line(index)}"]


def _relation_line(gsn: int, relation: Relation) -> str:
    columns = [escape(f"{column.name} {column.source_type}") for column in relation.columns]
    return "\t".join([str(gsn), "R", escape(relation.schema), escape(relation.name), *columns])


def _marker_lines(marker: Marker) -> list[str]:
    details = escape(msgspec.json.encode(marker.data).decode())
    if marker.kind is MarkerKind.TRUNCATE:
        return [
            f"{marker.gsn}\tT\t{escape(schema)}\t{escape(name)}\t{details}"
            for schema, name in marker.tables
        ]
    tables = escape(msgspec.json.encode(marker.tables).decode())
    return [f"{marker.gsn}\tM\t\t\t{marker.kind}\t{tables}\t{details}"]


def _begins(segment: Segment, trx: int, behind: int) -> list[str]:
    found = _find_marked(segment, trx)
    if found is None:
        return []
    return [f"{behind}\tB\t\t\t{trx}\t{escape(str(found.source_id))}"]


def _ends(segment: Segment, trx: int, behind: int, position_text: PositionText) -> list[str]:
    found = _find_marked(segment, trx)
    if found is None:
        return []
    place = position_text(found.position)
    time = timestamp_text(found.commit_time_us, "+00")
    return [f"{behind}\tC\t\t\t{trx}\t{place}\t{time}"]


def _find_marked(segment: Segment, trx: int) -> Transaction | None:
    transactions = segment.transactions
    return transactions.find(trx) if transactions.is_marked(trx) else None


class _RowTexts:
    """Rows of one batch as text, column by column."""

    def __init__(self, rows: Rows) -> None:
        batch, relation = rows.batch, rows.relation
        self.trx: list[int] = batch.column("trx").to_pylist()
        self._ops: list[int] = batch.column("op").to_pylist()
        self._absent: list[bytes | None] = batch.column("absent").to_pylist()
        self._has_before: list[bool] = batch.column("before").is_valid().to_pylist()
        self._after = _texts(batch.column("after"), relation.columns)
        before = [relation.columns[index] for index in relation.before]
        self._before = dict(
            zip(relation.before, _texts(batch.column("before"), before), strict=True)
        )
        self._column_count = len(relation.columns)
        self._table = f"{escape(relation.schema)}\t{escape(relation.name)}"

    def line(self, index: int) -> str:
        """Return a row without its sequence."""
        op = self._ops[index]
        fields = self._before_fields(index) if op == Op.DELETE else self._after_fields(index)
        if op == Op.UPDATE and self._has_before[index]:
            fields += [BEFORE, *self._before_fields(index)]
        return "\t".join([chr(op), self._table, *fields])

    def _after_fields(self, index: int) -> list[str]:
        fields = [column[index] for column in self._after]
        for at, bits in enumerate(self._absent[index] or b""):
            for bit in range(8):
                if bits >> bit & 1:
                    fields[at * 8 + bit] = ABSENT
        return fields

    def _before_fields(self, index: int) -> list[str]:
        if not self._has_before[index]:
            return [ABSENT] * self._column_count
        return [
            self._before[at][index] if at in self._before else ABSENT
            for at in range(self._column_count)
        ]


def _texts(images: Any, columns: Sequence[Column]) -> list[list[str]]:
    """Return the columns of a struct array as text; NULL if the image or the value is null."""
    return [
        _column_texts(values, column.neutral)
        for values, column in zip(images.flatten(), columns, strict=True)
    ]


def _column_texts(values: Any, neutral: str) -> list[str]:
    texts = exact_texts(values, neutral)
    if neutral == "string":
        return [NULL if text is None else escape(text) for text in texts]
    return [NULL if text is None else text for text in texts]
