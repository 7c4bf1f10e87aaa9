"""Conversions between texts as PostgreSQL prints them, Arrow, and the lines of a COPY."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.codec.exact_text import exact_texts
from penstock.model import Column

NULL = "\\N"
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
UNESCAPED = {ord(char): f"\\{letter}" for letter, char in ESCAPES.items()} | {ord("\\"): "\\\\"}
Row = Mapping[str, str | None]


def images(rows: Sequence[Row | None], kind: pa.StructType) -> pa.Array:
    """Return rows as a column of images, whose types are those that a text can be cast to."""
    children = [
        pa.array([None if row is None else row[one.name] for row in rows], pa.string())
        for one in kind
    ]
    cast = [
        child if one.type == pa.string() else child.cast(one.type)
        for child, one in zip(children, kind, strict=True)
    ]
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(cast, fields=list(kind), mask=mask)


def texts(image: Any, columns: Sequence[Column]) -> list[dict[str, str | None]]:
    """Return a column of images as rows of texts."""
    listed = [
        print_column(values, column)
        for values, column in zip(image.flatten(), columns, strict=True)
    ]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*listed, strict=True)]


def print_column(values: Any, column: Column) -> list[str | None]:
    """Return the texts of one column."""
    found = exact_texts(values, column.neutral)
    if column.neutral == "binary":
        return [None if text is None else f"\\x{text}" for text in found]
    return found


def line_of(row: Iterable[str | None]) -> bytes:
    """Return a row as COPY's text format writes it."""
    cells = (NULL if cell is None else cell.translate(UNESCAPED) for cell in row)
    return ("\t".join(cells) + "\n").encode()


def rows_in(blocks: Iterable[bytes], names: Sequence[str]) -> Iterator[dict[str, str | None]]:
    """Yield the rows in blocks of lines of COPY."""
    for block in blocks:
        for line in block.decode().split("\n")[:-1]:
            yield dict(zip(names, map(cell_of, line.split("\t")), strict=True))


def cell_of(text: str) -> str | None:
    """Return a cell without its escapes, or None for NULL."""
    if text == NULL:
        return None
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
