"""Columns that ALTER TABLE adds, and the value that they have in existing rows.

Pure. The value is what the log calls `missing`: text in the form of the column's neutral type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.codec.mysql.types import TypeText, parse_type
from penstock.engines.mysql.source.ddl_words import Word, WordKind

_ZEROS = {
    "date": "0000-00-00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
    "time": "00:00:00",
    "year": "0000",
}
_NUMBERS = frozenset(
    (
        *("tinyint", "smallint", "mediumint", "int", "bigint", "integer", "bool", "boolean"),
        *("decimal", "dec", "numeric", "float", "double", "real", "bit"),
    )
)
_WORDS = {"TRUE": "1", "FALSE": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A column that was added. value: of the rows that are there; None: NULL.

    unclear: why that value is not known, empty when it is.
    """

    name: str
    value: str | None = None
    unclear: str = ""


def added_column(words: Sequence[Word]) -> Added:
    """Read a column's definition, from its name on."""
    name = words[0].text
    body = [word for word in words[1:] if word.depth == words[0].depth]
    if any(word.is_word("AUTO_INCREMENT", "SERIAL") for word in body):
        return Added(name=name, unclear="its values are numbers that the server gave")
    if any(word.is_word("GENERATED", "AS") for word in body):
        return Added(name=name, unclear="its values are computed")
    place = next((at for at, word in enumerate(body) if word.is_word("DEFAULT")), None)
    if place is not None:
        return _default(name, body[place + 1 :])
    if not _is_not_null(body):
        return Added(name=name)
    return _zero(name, words[1:])


def _is_not_null(body: Sequence[Word]) -> bool:
    return any(
        word.is_word("NOT") and body[at + 1 : at + 2] and body[at + 1].is_word("NULL")
        for at, word in enumerate(body)
    ) or any(word.is_word("PRIMARY") for word in body)


def _default(name: str, rest: Sequence[Word]) -> Added:
    sign = ""
    if rest and (rest[0].is_mark("-") or rest[0].is_mark("+")):
        sign, rest = rest[0].text.replace("+", ""), rest[1:]
    first = rest[0] if rest else Word(WordKind.MARK, "")
    if first.kind is WordKind.NUMBER:
        return Added(name=name, value=sign + first.text)
    if first.kind is WordKind.STRING:
        return Added(name=name, value=first.text)
    if first.is_word("NULL"):
        return Added(name=name)
    if first.kind is WordKind.WORD and first.text.upper() in _WORDS:
        return Added(name=name, value=_WORDS[first.text.upper()])
    following = rest[1] if len(rest) > 1 else Word(WordKind.MARK, "")
    if first.is_word("B", "X") and following.kind is WordKind.STRING:
        base = 2 if first.is_word("B") else 16
        return Added(name=name, value=str(int(following.text or "0", base)))
    return Added(name=name, unclear=f"its default is no plain value: {first.text}")


def _zero(name: str, words: Sequence[Word]) -> Added:
    """The value that a column which must not be NULL has where none was given."""
    text = type_words(words)
    kind: TypeText | None = parse_type(text)
    base = kind.base if kind is not None else ""
    if kind is not None and base == "enum":
        return Added(name=name, value=kind.labels[0])
    if base in _NUMBERS:
        return Added(name=name, value="0")
    if base in _ZEROS:
        return Added(name=name, value=_ZEROS[base])
    if base in ("char", "varchar", "set") or base.endswith("text"):
        return Added(name=name, value="")
    return Added(name=name, unclear=f"what a new column of type {base or text} holds is not known")


def type_words(words: Sequence[Word]) -> str:
    """A column's type as text, as far as it decides what values look like."""
    if not words:
        return ""
    text = words[0].text
    if len(words) > 1 and words[1].is_mark("("):
        inside = []
        for word in words[2:]:
            if word.is_mark(")") and word.depth == words[1].depth:
                break
            quoted = word.text.replace("\\", "\\\\").replace("'", "''")
            inside.append(f"'{quoted}'" if word.kind is WordKind.STRING else word.text)
        text += f"({''.join(inside)})"
    return text
