"""Columns that ALTER TABLE adds, and the question to the server for the value in existing rows.

Pure. The definition is written again from its words, without the parts that do not affect the
value; the server itself then says which value it stores (`stored_values.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.engines.mysql.source.ddl_words import Word, WordKind

_NOW = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")
# Words in front of a string that are a part of the literal: no space may follow them.
_PREFIXES = ("B", "N", "X")
_LITERALS = ("NULL", "TRUE", "FALSE", "DATE", "TIME", "TIMESTAMP", *_PREFIXES)
# Words that end the part of a definition that decides about the value.
_TAIL = ("AFTER", "FIRST", "REFERENCES", "CHECK", "CONSTRAINT")
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_INTEGER = re.compile(
    r"(?P<type>tinyint|smallint|mediumint|int|integer|bigint)(\(\d+\))?(?P<unsigned> unsigned)?"
    r"( not null)?( default (?P<value>-?\d{1,20}))?( not null)?",
    re.IGNORECASE,
)
_UNREADABLE = "\ufffd"  # in a statement that is not valid text in its character set


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A column that was added.

    Attributes:
        definition: type, default and the rest as SQL, its strings in single quotes without escapes.
        is_null: existing rows have NULL in it, whatever its type.
        unclear: reason why existing rows' value cannot be queried; empty if it can.
    """

    name: str
    definition: str = ""
    is_null: bool = False
    unclear: str = ""


def added_column(words: Sequence[Word]) -> Added:
    """Read a column's definition, which begins with its name."""
    name, depth = words[0].text, words[0].depth
    rest = list(words[1:])
    ends = [at for at, word in enumerate(rest) if word.depth == depth and word.is_word(*_TAIL)]
    rest = rest[: min(ends, default=len(rest))]
    body = [word for word in rest if word.depth == depth]
    definition = _render(rest)
    if any(word.is_word("AUTO_INCREMENT", "SERIAL") for word in body):
        return Added(name=name, unclear="its values are numbers that the server gave")
    if any(word.is_word("GENERATED", "AS") for word in body):
        return Added(name=name, unclear="its values are computed")
    if _UNREADABLE in definition:
        return Added(name=name, unclear="its definition is not readable text")
    if _has_introduced_letters(rest):
        return Added(name=name, unclear="its default is of another character set")
    place = next((at for at, word in enumerate(rest) if word.is_word("DEFAULT")), None)
    if place is None:
        # At older servers a TIMESTAMP without a default is NOT NULL implicitly.
        is_null = not _is_not_null(body) and not rest[0].is_word("TIMESTAMP") if rest else False
        return Added(name=name, definition=definition, is_null=is_null)
    if reason := _why_unclear(rest[place + 1 :]):
        return Added(name=name, unclear=reason)
    is_null = rest[place + 1 : place + 2] != [] and rest[place + 1].is_word("NULL")
    return Added(name=name, definition=definition, is_null=is_null)


def certain_value(added: Added) -> str | None:
    """Return a default's value if no rule of conversion is involved: an integer in its type's
    range.

    Returns None in all other cases, in which only the server knows the value.
    """
    found = _INTEGER.fullmatch(added.definition.strip())
    if found is None:
        return None
    bits, value = _BITS[found["type"].lower()], int(found["value"] or 0)
    is_unsigned = found["unsigned"] is not None
    low, high = (0, 2**bits) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return str(value) if low <= value < high else None


def _is_not_null(body: Sequence[Word]) -> bool:
    return any(
        word.is_word("NOT") and body[at + 1 : at + 2] and body[at + 1].is_word("NULL")
        for at, word in enumerate(body)
    ) or any(word.is_word("PRIMARY") for word in body)


def _has_introduced_letters(words: Sequence[Word]) -> bool:
    """Return whether a string after a character set (_latin1'...', N'...') is not plain ASCII.

    The server takes such a string's bytes as they were sent. The statement's text is decoded from
    the session's character set, so that these bytes may be others.
    """
    return any(
        string.kind is WordKind.STRING
        and not string.text.isascii()
        and (before.is_word("N") or before.text.startswith("_"))
        for before, string in pairwise(words)
        if before.kind is WordKind.WORD
    )


def _why_unclear(default: Sequence[Word]) -> str:
    """Return why a default may differ between rows or moments; empty if it cannot."""
    if not default:
        return "its default is not readable"
    first = default[0]
    if first.is_word(*_NOW):
        return ""
    inside: Sequence[Word] = ()
    if first.is_mark("("):
        inside = [word for word in default[1:] if word.depth > first.depth]
    elif first.kind is WordKind.WORD and default[1:2] and default[1].is_mark("("):
        inside = [first]
    for word in inside:
        is_number = word.text[:1].isdigit()
        is_literal = is_number or word.is_word(*_LITERALS) or word.text.startswith("_")
        if word.is_name and not is_literal:
            return f"its default is an expression ({word.text})"
    return ""


def _render(words: Sequence[Word]) -> str:
    """Write words as SQL for a session without backslash escapes."""
    parts: list[str] = []
    before: Word | None = None
    for word in words:
        if before is not None and not _is_tight(before, word):
            parts.append(" ")
        if word.kind is WordKind.STRING:
            parts.append("'" + word.text.replace("'", "''") + "'")
        elif word.kind is WordKind.NAME:
            parts.append("`" + word.text.replace("`", "``") + "`")
        else:
            parts.append(word.text)
        before = word
    return "".join(parts)


def _is_tight(left: Word, right: Word) -> bool:
    """Return whether two words must have no space between them."""
    if left.kind is WordKind.MARK and right.kind is WordKind.MARK:
        return True
    if left.kind is WordKind.MARK and left.text in "(.,+-":
        return True
    if right.kind is WordKind.MARK and right.text in "().,":
        return True
    return left.is_word(*_PREFIXES) and right.kind is WordKind.STRING
