"""Losses between engines, by name, and the user's choices for them.

A loss has a name for people and its possible choices; `[target.types]` chooses one. Nothing lossy
happens without a choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.codec.types.source_type import ALIASES, Engine, SourceType, builtin_types
from penstock.model import PenstockError, TableName

EVERYTHING = "*"
ERROR, NULL, TEXT, ROUND, REMOVE, SHORTEN = "error", "null", "text", "round", "remove", "shorten"
_ERROR_MEANS = "stop at the first such value, before it is written"
_NULL_MEANS = "NULL in place of such a value"
_TEXT_MEANS = "the column is text in the target and holds what the source prints"


class TypeChoiceUnknown(PenstockError):
    """A key of [target.types] names no known loss, type or column."""

    code = "CF30"


class TypeChoiceInvalid(PenstockError):
    """A value of [target.types] is not a choice for that loss."""

    code = "CF31"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Values that the target cannot hold.

    Attributes:
        name: as in [target.types].
        what: the values.
        choices: possible choices, each with its meaning.
    """

    name: str
    what: str
    choices: Mapping[str, str]


def _loss(name: str, what: str, **choices: str) -> Loss:
    return Loss(name=name, what=what, choices=choices)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        _loss(
            "zero dates",
            "0000-00-00, and days that no calendar has, such as 2024-00-10 and 2024-02-31",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "dates out of range",
            "infinity and -infinity, and what the target's calendar does not reach: years before 1 "
            "and after 9999, and in a TIMESTAMP those outside 1970 to 2038",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "not a number",
            "NaN, Infinity and -Infinity",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "digits",
            "numbers with more digits than the target's decimal has before or after the point",
            error=_ERROR_MEANS,
            round="round after the point; before the point it is an error nevertheless",
            text=_TEXT_MEANS,
        ),
        _loss(
            "nanoseconds",
            "times with digits after the microsecond",
            error=_ERROR_MEANS,
            round="round to the microsecond",
            text=_TEXT_MEANS,
        ),
        _loss(
            "nul characters",
            "the character U+0000 in text",
            error=_ERROR_MEANS,
            remove="the text without that character",
        ),
        _loss(
            "loose json",
            'text that only MariaDB accepts as JSON, such as `1.` and `"\\x41"`',
            error=_ERROR_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "long keys",
            "values in a key that are longer than an index of the target can hold",
            error=_ERROR_MEANS,
        ),
        _loss(
            "blanks in keys",
            "keys that differ in blanks at their end alone",
            error=_ERROR_MEANS,
        ),
        _loss(
            "long names",
            "names of tables and columns that are longer than the target allows",
            shorten="cut, with a number made from the whole name at the end",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Contents of `[target.types]`.

    A scope is empty, a type's name, or `schema.table.column`; the narrowest that fits counts.

    Attributes:
        by_scope: (loss, scope) to choice.
        everything: the choice of `"*"`, or empty.
    """

    by_scope: Mapping[tuple[str, str], str] = field(default_factory=dict)
    everything: str = ""

    def get(self, loss: str, kind: SourceType | None = None, column: str = "") -> str:
        """Return the choice for a loss; empty if there is none. column: `schema.table.column`."""
        for scope in (column, kind.base if kind is not None else "", ""):
            if found := self.by_scope.get((loss, scope)):
                return found
        return self.everything if self.everything in LOSSES[loss].choices else ""

    def columns(self) -> Iterator[str]:
        """Yield the named columns, so that missing ones can be reported."""
        for _, scope in self.by_scope:
            if "." in scope:
                yield scope


NO_CHOICES = Choices()


def parse_choices(given: Mapping[str, str], source: Engine) -> Choices:
    """Read `[target.types]`: `"zero dates" = "null"`, `"datetime zero dates" = "text"`.

    A key is a loss, or a type or column followed by a loss; `mysql:` may precede a type. `"*" =
    "error"` is for all losses that have this choice. source: engine whose types may be named; MySQL
    includes MariaDB. Raises TypeChoiceUnknown, TypeChoiceInvalid.
    """
    by_scope: dict[tuple[str, str], str] = {}
    everything = ""
    for key, choice in given.items():
        if key.strip() == EVERYTHING:
            if choice != ERROR:
                raise _invalid(key, choice, (ERROR,))
            everything = choice
            continue
        loss, scope = _split(key, source)
        if choice not in loss.choices:
            raise _invalid(key, choice, tuple(loss.choices))
        by_scope[loss.name, scope] = choice
    return Choices(by_scope=by_scope, everything=everything)


def _split(key: str, source: Engine) -> tuple[Loss, str]:
    words = " ".join(key.split())
    for loss in LOSSES.values():
        if words == loss.name:
            return loss, ""
        if words.endswith(f" {loss.name}"):
            scope = words.removesuffix(loss.name).strip()
            return loss, scope if "." in scope else _type_scope(key, scope, source)
    raise _unknown(key, words, tuple(LOSSES), "names no loss")


def _type_scope(key: str, scope: str, source: Engine) -> str:
    engine, colon, name = scope.rpartition(":")
    if colon and not _is_source(engine, source):
        raise TypeChoiceUnknown(
            f"{key!r} in [target.types] speaks of {engine}, and this source is {source.label}",
            hint=f"Remove {engine}: or the whole entry.",
            key=key,
        )
    name = ALIASES.get(name.lower(), name.lower())
    both = builtin_types(source)
    if source.is_mysql:
        both |= builtin_types(Engine.MARIADB)
    if name not in both:
        raise _unknown(key, name, tuple(both), f"names no type of {source.label}")
    return name


def _is_source(engine: str, source: Engine) -> bool:
    known = {"postgres": Engine.POSTGRESQL, **{e.value: e for e in Engine}}
    found = known.get(engine.lower())
    return found is not None and found.is_mysql == source.is_mysql


def _unknown(key: str, word: str, known: tuple[str, ...], reason: str) -> TypeChoiceUnknown:
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f'Did you mean "{near[0]}"?' if near else f"Known are: {', '.join(sorted(known))}."
    return TypeChoiceUnknown(f"{key!r} in [target.types] {reason}", hint=hint, key=key)


def _invalid(key: str, choice: str, allowed: tuple[str, ...]) -> TypeChoiceInvalid:
    return TypeChoiceInvalid(
        f"{key!r} in [target.types] cannot be {choice!r}, expected {' or '.join(allowed)}",
        hint=f'Write "{key}" = "{allowed[0]}".',
        key=key,
    )


def column_scope(table: TableName | None, column: str) -> str:
    """Return the name of a column in [target.types]."""
    return f"{table}.{column}" if table is not None else ""
