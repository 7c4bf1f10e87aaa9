"""Cut statements of MySQL and MariaDB into words: strings, names, comments and all.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.codec.mysql.binlog_query import Query
    from penstock.engines.mysql.connect import ServerVersion

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}
_MARIADB_PASSES = range(50_700, 100_000)  # versions in comments that only MySQL has


class WordKind(StrEnum):
    """Kind of a word. NAME: in backticks, or in double quotes under ANSI_QUOTES."""

    WORD = "word"
    NAME = "name"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Word:
    """One word. text: without quotes, escapes undone; a MARK is one character.

    depth: number of open parentheses around it.
    """

    kind: WordKind
    text: str
    depth: int = 0

    def is_word(self, *words: str) -> bool:
        """Return whether it is one of these keywords (upper case), unquoted."""
        return self.kind is WordKind.WORD and self.text.upper() in words

    def is_mark(self, mark: str) -> bool:
        """Return whether it is this character."""
        return self.kind is WordKind.MARK and self.text == mark

    @property
    def is_name(self) -> bool:
        """Return whether the word may be a name."""
        return self.kind in (WordKind.WORD, WordKind.NAME)


class _Lexer:
    def __init__(self, text: str, *, ansi_quotes: bool, escapes: bool, version: int | None) -> None:
        self.text = text
        self.at = 0
        self.ansi_quotes = ansi_quotes
        self.escapes = escapes
        self.version = version  # negative: MariaDB's
        self.words: list[Word] = []
        self.depth = 0
        self.open_comments = 0

    def run(self) -> list[Word]:
        while self.at < len(self.text):
            self._one()
        return self.words

    def _add(self, kind: WordKind, text: str) -> None:
        self.words.append(Word(kind, text, self.depth))

    def _one(self) -> None:
        text, at = self.text, self.at
        character = text[at]
        if character.isspace():
            self.at += 1
        elif character == "#" or (
            text.startswith("--", at) and text[at + 2 : at + 3].strip() == ""
        ):
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end + 1
        elif text.startswith("/*", at):
            self._comment()
        elif self.open_comments and text.startswith("*/", at):
            self.open_comments -= 1
            self.at += 2
        elif character in "'\"`":
            is_name = character == "`" or (character == '"' and self.ansi_quotes)
            body = self._read_quoted(character, escapes=self.escapes and not is_name)
            self._add(WordKind.NAME if is_name else WordKind.STRING, body)
        elif character.isdecimal() and not self._is_word_at(at):
            self._number()
        elif _is_word_character(character):
            end = at
            while end < len(text) and _is_word_character(text[end]):
                end += 1
            self._add(WordKind.WORD, text[at:end])
            self.at = end
        else:
            self._mark(character)

    def _mark(self, character: str) -> None:
        if character == ")":
            self.depth = max(self.depth - 1, 0)
        self._add(WordKind.MARK, character)
        if character == "(":
            self.depth += 1
        self.at += 1

    def _is_word_at(self, at: int) -> bool:
        """Return whether a word, perhaps a name, begins here; a number is digits, a dot and an
        exponent.
        """
        end = at
        while end < len(self.text) and _is_word_character(self.text[end]):
            end += 1
        body = self.text[at:end].lower()
        mantissa, e, exponent = body.partition("e")
        return not (mantissa.isdecimal() and (not e or exponent == "" or exponent.isdecimal()))

    def _number(self) -> None:
        end = self.at
        while end < len(self.text) and (
            self.text[end] in ".0123456789eE"
            or (self.text[end] in "+-" and self.text[end - 1] in "eE")
        ):
            end += 1
        self._add(WordKind.NUMBER, self.text[self.at : end])
        self.at = end

    def _read_quoted(self, quote: str, *, escapes: bool) -> str:
        out, at, text = [], self.at + 1, self.text
        while at < len(text):
            character = text[at]
            if escapes and character == "\\" and at + 1 < len(text):
                out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
                at += 2
            elif character == quote and text[at + 1 : at + 2] == quote:
                out.append(quote)
                at += 2
            elif character == quote:
                break
            else:
                out.append(character)
                at += 1
        self.at = at + 1
        return "".join(out)

    def _comment(self) -> None:
        """Skip a comment; one with a version is code for servers of that version or later."""
        text, at = self.text, self.at
        is_maria = text.startswith("/*M!", at)
        head = 4 if is_maria else 3
        if is_maria or text.startswith("/*!", at):
            digits = 0
            while digits < 6 and text[at + head + digits : at + head + digits + 1].isdecimal():
                digits += 1
            wanted = int(text[at + head : at + head + digits] or 0)
            if self._runs(wanted, is_maria):
                self.open_comments += 1
                self.at = at + head + digits
                return
        end = text.find("*/", at + 2)
        self.at = len(text) if end < 0 else end + 2

    def _runs(self, wanted: int, is_maria: bool) -> bool:
        if self.version is None:
            return not is_maria
        if self.version < 0:
            return wanted <= -self.version and (is_maria or wanted not in _MARIADB_PASSES)
        return not is_maria and wanted <= self.version


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character in "_$@" or character > "\x7f"


def words_of(query: Query, server: ServerVersion | None = None) -> list[Word]:
    """Return the words of a statement, as that server understood it in that session."""
    version = None
    if server is not None:
        major, minor, patch = server.number
        version = (major * 100 + minor) * 100 + patch
        version = -version if server.is_mariadb else version
    return _Lexer(
        query.text,
        ansi_quotes=query.has_ansi_quotes,
        escapes=query.has_backslash_escapes,
        version=version,
    ).run()


def clauses(words: Sequence[Word], depth: int = 0) -> list[list[Word]]:
    """Cut words at the commas at this depth."""
    parts: list[list[Word]] = [[]]
    for word in words:
        if word.is_mark(",") and word.depth == depth:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]
