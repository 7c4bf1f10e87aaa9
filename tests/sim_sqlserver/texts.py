"""Known texts: what a client may send to a strict server, and what it has sent.

A text is known by its facts: the words of its statements, and the shapes of the items of its lists.
So two texts have the same facts if they differ in names, literals, types, or in the length and
order of their lists. Run as a program, it shortens a file of texts to those that add facts:
`python -m sim_sqlserver.texts FILE`.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import tokenize
from sim_sqlserver.sqltypes import FIXED_LENGTHS

SEPARATOR = "\n;;\n"
_SHOWN = 500
_TYPES = frozenset(FIXED_LENGTHS) | frozenset(
    [
        "varchar",
        "nvarchar",
        "char",
        "nchar",
        "varbinary",
        "binary",
        "decimal",
        "numeric",
        "time",
        "datetime2",
        "datetimeoffset",
        "timestamp",
    ]
)
_CLAUSES = frozenset(
    [
        "ADD",
        "ALTER",
        "BEGIN",
        "BY",
        "COMMIT",
        "CREATE",
        "DECLARE",
        "DELETE",
        "DROP",
        "ELSE",
        "END",
        "EXCEPT",
        "EXEC",
        "FROM",
        "GROUP",
        "HAVING",
        "IF",
        "INSERT",
        "INTERSECT",
        "INTO",
        "JOIN",
        "MERGE",
        "ON",
        "OPTION",
        "ORDER",
        "OUTPUT",
        "SELECT",
        "SET",
        "THEN",
        "UNION",
        "UPDATE",
        "USING",
        "VALUES",
        "WHEN",
        "WHERE",
        "WITH",
    ]
)
_CONNECTORS = frozenset((",", "AND", "OR", "+"))
_TYPE = re.compile(r"TYPE(?: \( (?:0|MAX)(?: , 0)? \))?")
_COLLATE = re.compile(r" COLLATE \w+")
_QUALIFIED = re.compile(r"\[n\](?: \. \[n\])+")
_NUMBERED = re.compile(r"(?<=[A-Z_])\d+\Z")
_AGAIN = re.compile(r"(?P<item>\S.{0,400}?)(?: (?P=item))+(?= |\Z)")


def shape_of(text: str) -> str:
    """Return a text with marks for its names, literals and types."""
    parts = []
    for token in tokenize(text):
        if token.kind == "name":
            parts.append("[n]")
        elif token.kind == "text":
            parts.append("'s'")
        elif token.kind in ("number", "hex"):
            parts.append("0")
        elif token.kind == "word":
            is_type = token.text.lower() in _TYPES
            parts.append("TYPE" if is_type else _NUMBERED.sub("0", token.upper))
        else:
            parts.append(token.text)
    shape = _COLLATE.sub("", _TYPE.sub("TYPE", " ".join(parts)))
    shape = re.sub(r"@P?\d+", "@p", shape, flags=re.IGNORECASE)
    return _QUALIFIED.sub("[n]", shape)


@lru_cache(maxsize=4096)
def facts_of(text: str) -> frozenset[str]:
    """Return the facts of a text."""
    facts: set[str] = set()
    for statement in _statements(_nest(shape_of(text).split())):
        _add_facts(statement, "", facts)
    return frozenset(facts)


@dataclass(slots=True)
class _Nested:
    """Words between parentheses, or in CASE .. END."""

    mark: str
    parts: list[str | _Nested] = field(default_factory=list)


_Parts = Sequence["str | _Nested"]


def _nest(words: Iterable[str]) -> list[str | _Nested]:
    stack = [_Nested("")]
    for word in words:
        if word in ("(", "CASE"):
            inner = _Nested("()" if word == "(" else word)
            stack[-1].parts.append(inner)
            stack.append(inner)
        elif len(stack) > 1 and word == {"()": ")", "CASE": "END"}[stack[-1].mark]:
            stack.pop()
        else:
            stack[-1].parts.append(word)
    return stack[0].parts


def _statements(parts: _Parts) -> Iterator[list[str | _Nested]]:
    statement: list[str | _Nested] = []
    for part in parts:
        if part == ";":
            yield statement
            statement = []
        else:
            statement.append(part)
    yield statement


def _add_facts(parts: _Parts, place: str, facts: set[str]) -> None:
    """Add the facts of a statement, or of what is nested in one after the word `place`."""
    words: list[str] = []
    item: list[str] = []
    clause = ""

    def end_item() -> None:
        if item:
            facts.add(f"{place}|{clause}: {' '.join(item)}")
            if words[-1:] != ["*"]:
                words.append("*")
        item.clear()

    for part in parts:
        if isinstance(part, _Nested):
            before = item[-1] if item else clause
            _add_facts(part.parts, part.mark if part.mark == "CASE" else before, facts)
            item.append(part.mark)
        elif part in _CONNECTORS:
            end_item()
            if part != ",":
                facts.add(f"{place}|{clause} {part}")
        elif part in _CLAUSES:
            end_item()
            clause = part
            words.append(part)
        else:
            item.append(part)
    end_item()
    facts.add(f"{place}|{_AGAIN.sub(lambda found: found['item'], ' '.join(words))}")


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file, which ;; on a line of its own separates."""
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    return [part.strip() for part in parts if part.strip()]


def shorten(texts: Iterable[str]) -> list[str]:
    """Return the texts without those that add no facts, sorted."""
    seen: set[str] = set()
    kept = []
    for text in sorted(texts, key=lambda text: (-len(facts_of(text)), len(text), text)):
        if facts_of(text) - seen:
            seen |= facts_of(text)
            kept.append(text)
    return sorted(kept)


class KnownTexts:
    """Texts that clients may send, and those that they sent.

    Args:
        strict: Files of the known texts; without any, all are accepted.
        record: File that gets the texts that it does not know yet.
        refused: File that gets the refused texts.
    """

    def __init__(
        self, strict: Sequence[Path], record: Path | None, refused: Path | None = None
    ) -> None:
        self._known = {f for path in strict for f in _facts_in(path)} if strict else None
        self._record, self._refused = record, refused
        self._lock = threading.Lock()
        self._seen = _facts_in(record) if record is not None and record.exists() else set()

    def check(self, text: str) -> None:
        """Record a text; raises SqlError 50001 if the server is strict and does not know it."""
        if self._record is None and self._known is None:
            return
        facts = facts_of(text)
        if self._record is not None:
            with self._lock:
                if facts - self._seen:
                    self._seen |= facts
                    _append(self._record, text)
        if self._known is None:
            return
        new = facts - self._known
        if new:
            if self._refused is not None:
                with self._lock:
                    _append(self._refused, f"{text}\n-- new: {sorted(new)}")
            raise SqlError(50_001, f"unknown text: {text[:_SHOWN]}")


def _facts_in(path: Path) -> set[str]:
    return {fact for text in read_texts(path) for fact in facts_of(text)}


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text.strip() + SEPARATOR)


def main(arguments: Sequence[str]) -> None:
    """Shorten a file of known texts."""
    path = Path(arguments[0])
    path.write_text(SEPARATOR.join([*shorten(read_texts(path)), ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
