"""Columns of a table after an ALTER TABLE, from its text. Pure.

The redo has each statement as it was typed, between the rows before and after it. Only texts of
which every word is understood have a result. Follows ALTER TABLE in Oracle's SQL Reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.codec.oracle.types import parse_type

_TOKEN = re.compile(
    r"""(?:\s+|/\*.*?\*/|--[^\n]*(?:\n|\Z))*(
        '(?:[^']|'')*' | "[^"]+" | [A-Za-z_\x80-\uffff][\w$\#]* | [0-9.]+ | . | \Z
    )""",
    re.VERBOSE | re.DOTALL,
)
_NOT_COLUMNS = frozenset(
    (
        *("CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "SUPPLEMENTAL", "PARTITION"),
        *("SUBPARTITION", "LOB", "NESTED", "VARRAY", "REF", "SCOPE", "DEFAULT", "COLUMN"),
    )
)
"""Words behind ADD, MODIFY or DROP that are not the name of a column."""
_HARMLESS = frozenset(
    (
        *("ENABLE", "DISABLE", "LOGGING", "NOLOGGING", "PARALLEL", "NOPARALLEL", "CACHE"),
        *("NOCACHE", "MOVE", "SHRINK", "PCTFREE", "PCTUSED", "INITRANS", "STORAGE", "COMPRESS"),
        *("NOCOMPRESS", "MONITORING", "NOMONITORING", "ROW", "READ", "INMEMORY", "NO", "FLASHBACK"),
        *("ALLOCATE", "DEALLOCATE", "RESULT_CACHE", "ILM"),
    )
)
"""First words of clauses that leave the columns as they are."""
_ATTRIBUTES = frozenset(
    (
        *("DEFAULT", "NOT", "NULL", "CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "REFERENCES"),
        *("VISIBLE", "INVISIBLE", "ENABLE", "DISABLE", "COLLATE", "SORT"),
    )
)
"""Words that end the type of a column."""
_UNCLEAR = frozenset(("AS", "GENERATED", "ENCRYPT", "DECRYPT", "IDENTITY"))


@dataclass(frozen=True, slots=True)
class ColumnState:
    """A column between two statements.

    Attributes:
        id: Identity, from 1, which no other column of the table ever has; 0 of one that users do
            not see.
        type: As SQL writes it.
        default: Default with which this statement added it, as SQL; None without one.
        is_added: Whether this statement added it.
    """

    name: str
    type: str
    id: int = 0
    default: str | None = None
    is_added: bool = False


class _Unclear(Exception):
    """Error: the text is not understood."""


def alter_columns(
    text: str, columns: Sequence[ColumnState], *, last_id: int
) -> list[ColumnState] | None:
    """Return the columns after a statement; None if the text is not understood.

    Args:
        text: Of the statement.
        columns: In the order of their internal ids, before it.
        last_id: The highest identity of the table so far.
    """
    reader = _Reader(text)
    found = [replace(one, default=None, is_added=False) for one in columns]
    if not reader.accept("ALTER") or not reader.accept("TABLE"):
        return found
    try:
        reader.take_name()
        if reader.accept("."):
            reader.take_name()
        while not reader.is_at_end:
            found = _clause(reader, found, last_id)
    except _Unclear:
        return None
    if len({one.name for one in found}) < len(found):
        return None
    return found


def _clause(reader: _Reader, columns: list[ColumnState], last_id: int) -> list[ColumnState]:
    if reader.accept("ADD"):
        return _add(reader, columns, last_id)
    if reader.accept("MODIFY"):
        return _modify(reader, columns)
    if reader.accept("DROP"):
        return _drop(reader, columns)
    if reader.accept("RENAME"):
        if not reader.accept("COLUMN"):
            reader.skip()
            return columns
        old = reader.take_name()
        reader.expect("TO")
        new = reader.take_name()
        _check_name(columns, old)
        return [replace(one, name=new) if one.name == old else one for one in columns]
    if reader.accept("SET"):
        reader.expect("UNUSED")
        names = _names(reader)
        return [
            replace(one, name=f"unused {number}", id=0) if one.name in names else one
            for number, one in enumerate(columns, 1)
        ]
    if reader.peek() in _HARMLESS:
        reader.skip()
        return columns
    raise _Unclear


def _add(reader: _Reader, columns: list[ColumnState], last_id: int) -> list[ColumnState]:
    if reader.peek() in _NOT_COLUMNS:
        reader.skip()
        return columns
    found = list(columns)
    for _ in _items(reader):
        if reader.peek() in _NOT_COLUMNS:
            reader.skip_item()
            continue
        last_id = max([last_id, *(one.id for one in found)]) + 1
        found.append(replace(_definition(reader), id=last_id, is_added=True))
    return found


def _modify(reader: _Reader, columns: list[ColumnState]) -> list[ColumnState]:
    if reader.peek() in _NOT_COLUMNS:
        reader.skip()
        return columns
    for _ in _items(reader):
        changed = _definition(reader)
        _check_name(columns, changed.name)
        columns = [
            replace(one, type=changed.type) if changed.type and one.name == changed.name else one
            for one in columns
        ]
    return columns


def _items(reader: _Reader) -> Iterator[None]:
    """Stop before each item of a list in parentheses, or once before a single item."""
    is_listed = reader.accept("(")
    while True:
        yield
        if not is_listed or reader.accept(")"):
            return
        reader.expect(",")


def _drop(reader: _Reader, columns: list[ColumnState]) -> list[ColumnState]:
    if reader.peek() in _NOT_COLUMNS - {"COLUMN"}:
        reader.skip()
        return columns
    names = _names(reader)
    for name in names:
        _check_name(columns, name)
    return [one for one in columns if one.name not in names]


def _names(reader: _Reader) -> list[str]:
    """Read `COLUMN name` or `(name, name)`, and the options behind it."""
    if reader.accept("COLUMN"):
        names = [reader.take_name()]
    else:
        reader.expect("(")
        names = [reader.take_name()]
        while reader.accept(","):
            names.append(reader.take_name())
        reader.expect(")")
    reader.skip()
    return names


def _check_name(columns: Sequence[ColumnState], name: str) -> None:
    if all(one.name != name for one in columns):
        raise _Unclear


def _definition(reader: _Reader) -> ColumnState:
    """Read a column of ADD or MODIFY; its type is empty if MODIFY leaves it as it is."""
    name = reader.take_name()
    words: list[str] = []
    default: str | None = None
    while reader.peek() not in _ATTRIBUTES and reader.peek() not in (",", ")", ""):
        if reader.peek() in _UNCLEAR:
            raise _Unclear
        if words and reader.peek() in ("ADD", "MODIFY", "DROP"):
            break
        words += reader.take_group()
    kind = parse_type(" ".join(words).replace("( ", "(").replace(" )", ")").replace(" , ", ","))
    if words and not kind.is_builtin:
        raise _Unclear
    if reader.accept("DEFAULT"):
        if reader.accept("ON"):
            reader.expect("NULL")
        default = " ".join(reader.take_until(_ATTRIBUTES - {"NULL"}))
    for word in reader.take_until(frozenset(("ADD", "MODIFY"))):
        if word in _UNCLEAR:
            raise _Unclear
    return ColumnState(name, kind.text if words else "", default=default)


class _Reader:
    """Reader that walks over the words of a statement."""

    def __init__(self, text: str) -> None:
        body = text.strip().rstrip(";").rstrip("\0")
        self._words = [one[1] for one in _TOKEN.finditer(body) if one[1]]
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._words)

    def peek(self) -> str:
        """Return the next word in upper case, a quoted name as it is; empty at the end."""
        if self.is_at_end:
            return ""
        word = self._words[self._at]
        return word if word[0] in "\"'" else word.upper()

    def take(self) -> str:
        word = self.peek()
        if not word:
            raise _Unclear
        self._at += 1
        return word

    def accept(self, word: str) -> bool:
        if self.peek() != word:
            return False
        self._at += 1
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise _Unclear

    def take_name(self) -> str:
        word = self.take()
        if word[0] == '"':
            return word[1:-1]
        if not (word[0].isalpha() or word[0] == "_"):
            raise _Unclear
        return word

    def take_group(self) -> list[str]:
        """Return the next word, with all up to its closing parenthesis."""
        words, depth = [], 0
        while True:
            word = self.take()
            words.append(word)
            depth += {"(": 1, ")": -1}.get(word, 0)
            if depth <= 0:
                return words

    def take_until(self, ends: frozenset[str]) -> Iterator[str]:
        """Yield the words up to the end of a list's item, or up to one of these."""
        while self.peek() not in (",", ")", "") and self.peek() not in ends:
            yield from self.take_group()

    def skip_item(self) -> None:
        for _ in self.take_until(frozenset()):
            pass

    def skip(self) -> None:
        """Skip the rest, in which no other clause may change columns."""
        while not self.is_at_end:
            if self.peek() in ("ADD", "MODIFY", "DROP", "RENAME"):
                raise _Unclear
            self.take_group()
