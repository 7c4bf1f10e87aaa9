"""Counts in sentences for people."""

from __future__ import annotations


def count_words(count: int, noun: str, plural: str = "") -> str:
    """Return `1 segment`, `2 segments`, `12 345 segments`: a count with its noun.

    Args:
        count: how many.
        noun: the singular.
        plural: the plural, if it is not the singular with an s.
    """
    word = noun if count == 1 else plural or f"{noun}s"
    return f"{count:,} {word}".replace(",", " ", f"{count:,}".count(","))
