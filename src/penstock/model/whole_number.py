"""Parser of whole numbers in text from outside: a client, a user of a source, a file.

`int()` takes more than digits (`1_0`, superscripts pass `isdigit`), and raises ValueError beyond
4,300 of them. Standard library only.
"""

from __future__ import annotations

from typing import overload

INT64_MAX = 2**63 - 1


@overload
def parse_whole(text: str, most: int = INT64_MAX) -> int | None: ...


@overload
def parse_whole(text: str, most: int = INT64_MAX, *, otherwise: int) -> int: ...


def parse_whole(text: str, most: int = INT64_MAX, *, otherwise: int | None = None) -> int | None:
    """Return the number that ASCII digits spell.

    Args:
        text: text of any length.
        most: the largest number that is accepted.
        otherwise: returned for all else: other characters, an empty text, or a larger number.
    """
    if not text.isascii() or not text.isdigit():
        return otherwise
    digits = text.lstrip("0") or "0"
    if len(digits) > len(f"{most}"):
        return otherwise
    number = int(digits)
    return number if number <= most else otherwise
