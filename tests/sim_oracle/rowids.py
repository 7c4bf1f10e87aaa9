"""Row ids: 18 characters for object, file, block and row."""

from __future__ import annotations

from typing import NamedTuple

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
PLACEHOLDER = "A" * 18  # the row id of LOB pieces and of rows without a row
_VALUES = {letter: value for value, letter in enumerate(ALPHABET)}
_WIDTHS = (6, 3, 6, 3)


class RowId(NamedTuple):
    """Parts of a row id.

    Attributes:
        object: DATA_OBJECT_ID of the segment.
        file: Relative number of the data file.
        block: Number of the block in the file.
        row: Number of the row in the block.
    """

    object: int
    file: int
    block: int
    row: int

    def __str__(self) -> str:
        return "".join(_encode(part, width) for part, width in zip(self, _WIDTHS, strict=True))


def _encode(value: int, width: int) -> str:
    letters = []
    for _ in range(width):
        value, rest = divmod(value, 64)
        letters.append(ALPHABET[rest])
    return "".join(reversed(letters))


def parse_rowid(text: str) -> RowId:
    """Return the parts of a row id; raises ValueError if it is not one."""
    if len(text) != 18 or any(letter not in _VALUES for letter in text):
        raise ValueError(f"not a row id: {text!r}")
    parts, at = [], 0
    for width in _WIDTHS:
        value = 0
        for letter in text[at : at + width]:
            value = value * 64 + _VALUES[letter]
        parts.append(value)
        at += width
    return RowId(*parts)


def order_key(text: str) -> str:
    """Return a text that orders as the database orders row ids."""
    object_, file, block, row = parse_rowid(text)
    return f"{object_:010d}{file:05d}{block:010d}{row:06d}"
