"""Known texts: what a client may send. An unknown text is an error.

Two texts have one shape if they differ in quoted names, literals, binds and lengths of lists.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sim_oracle.errors import UnknownText
from sim_oracle.grammar import tokenize

SEPARATOR = "\n;;\n"
_REPEATED = re.compile(r"(?P<item>[^,]{1,400}?)(?: , (?P=item))+(?= [,)]| [A-Z]|\Z)")
_CONNECTED = re.compile(r"(?P<item>\S.{0,400}?) (?P<word>AND|OR) (?P=item)(?= |\Z)")
_MARKS = {"name": '"n"', "text": "'s'", "number": "0", "bind": ":b"}


@lru_cache(maxsize=4096)
def shape_of(text: str) -> str:
    """Return the shape of a text."""
    shape = " ".join(
        _MARKS.get(token.kind, token.text.upper()) for token in tokenize(text.strip().rstrip(";"))
    )
    while True:
        shorter = _CONNECTED.sub(r"\g<item>", _REPEATED.sub(r"\g<item>", shape))
        if shorter == shape:
            return shape
        shape = shorter


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file, which ;; on a line of its own separates."""
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    return [part.strip() for part in parts if part.strip().strip(";")]


class KnownTexts:
    """Texts that clients may send, and those that they sent.

    Args:
        strict: Files of the known texts; None knows every text.
        record: File to which unknown texts are added; None adds none.
    """

    def __init__(self, strict: Path | Sequence[Path] | None, record: Path | None = None) -> None:
        self._known: frozenset[str] | None = None
        if strict is not None:
            files = [strict] if isinstance(strict, Path) else strict
            self._known = frozenset(shape_of(text) for one in files for text in read_texts(one))
        self._record = record
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        if record is not None and record.exists():
            self._seen = {shape_of(text) for text in read_texts(record)}

    def check(self, text: str) -> None:
        """Record a text; raises UnknownText if it is not known."""
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
            raise UnknownText(f"unknown text: {text[:500]}")
