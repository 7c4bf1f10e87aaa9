"""Known texts: what a client may send to a strict server, and what it has sent.

Two texts are of one shape if they differ in names, literals, types, and the lengths of lists.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from pathlib import Path

from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import tokenize
from sim_sqlserver.sqltypes import FIXED_LENGTHS

SEPARATOR = "\n;;\n"
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
_TYPE = re.compile(r"TYPE(?: \( (?:0|MAX)(?: , 0)? \))?")
_COLLATE = re.compile(r" COLLATE \w+")
_REPEATED = re.compile(r"(?P<item>[^,]{1,400}?)(?: , (?P=item))+(?= [,)]| [A-Z]|\Z)")
_CONNECTED = re.compile(r"(?P<item>\S.{0,400}?) (?P<word>AND|OR|\+) (?P=item)(?= |\Z)")


@lru_cache(maxsize=4096)
def shape_of(text: str) -> str:
    """Return the shape of a text."""
    parts = []
    for token in tokenize(text):
        if token.kind == "name":
            parts.append("[n]")
        elif token.kind == "text":
            parts.append("'s'")
        elif token.kind in ("number", "hex"):
            parts.append("0")
        elif token.kind == "word":
            parts.append("TYPE" if token.text.lower() in _TYPES else token.text.upper())
        else:
            parts.append(token.text)
    shape = _COLLATE.sub("", _TYPE.sub("TYPE", " ".join(parts)))
    shape = re.sub(r"@P?\d+", "@p", shape, flags=re.IGNORECASE)
    return _without_repeats(shape)


def _without_repeats(shape: str) -> str:
    while True:
        shorter = _REPEATED.sub(r"\g<item>", shape)
        shorter = _CONNECTED.sub(r"\g<item>", shorter)
        if shorter == shape:
            return shape
        shape = shorter


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file, which ;; on a line of its own separates."""
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    return [part.strip() for part in parts if part.strip()]


class KnownTexts:
    """Texts that clients may send, and those that they sent."""

    def __init__(self, strict: Path | None, record: Path | None) -> None:
        self._known: frozenset[str] | None = None
        if strict is not None:
            self._known = frozenset(shape_of(text) for text in read_texts(strict))
        self._record = record
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        if record is not None and record.exists():
            self._seen = {shape_of(text) for text in read_texts(record)}

    def check(self, text: str) -> None:
        """Record a text; raises SqlError 50001 if the server is strict and does not know it."""
        if self._record is None and self._known is None:
            return
        shape = shape_of(text)
        if self._record is not None:
            with self._lock:
                if shape not in self._seen:
                    self._seen.add(shape)
                    with self._record.open("a", encoding="utf-8") as file:
                        file.write(text.strip() + SEPARATOR)
        if self._known is not None and shape not in self._known:
            raise SqlError(50_001, f"unknown text: {text[:500]}")
