"""Options of COPY TO, in both of its spellings, and their refusals. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.grammar import make_unsupported
from penstock.serve.catalog.statements import Words

FORMATS = ("text", "csv", "binary")
_FORBIDDEN = "\\.abcdefghijklmnopqrstuvwxyz0123456789"  # as delimiters of the text format
_SYNTAX, _UNSUPPORTED, _INVALID = "42601", "0A000", "22023"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyForm:
    """Form in which COPY prints rows.

    Attributes:
        delimiter: one character.
        quote: one character.
        escape: one character.
        null: text for NULL.
        force_quote: columns that are always in quotes; None for all.
    """

    format: str = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] | None = ()

    @property
    def is_binary(self) -> bool:
        """Return whether values are in their binary forms."""
        return self.format == "binary"


def read_copy_form(words: Words) -> CopyForm:
    """Read the rest after STDOUT, to the end. Raises Refused: 42601, 22023, 0A000."""
    words.take("WITH")
    given: dict[str, Any] = {}

    def give(name: str, value: Any) -> None:
        if name in given:
            raise Refused(_SYNTAX, "conflicting or redundant options")
        given[name] = value

    if words.take("("):
        while True:
            _read_option(words, give)
            if not words.take(","):
                break
        words.need(")")
    else:
        _read_words(words, give)
    words.end()
    return _form_of(given)


def _read_option(words: Words, give: Callable[[str, Any], None]) -> None:
    name = words.name()
    if name in ("force_not_null", "force_null"):
        raise Refused(_UNSUPPORTED, f"COPY {name} only available using COPY FROM")
    if name == "force_quote":
        give(name, None if words.take("*") else words.names())
    elif name == "header":
        give(name, _read_boolean(words))
    elif name == "format":
        value = words.value()
        if value not in FORMATS:
            raise Refused(_INVALID, f'COPY format "{value}" not recognized')
        give(name, value)
    elif name in ("delimiter", "null", "quote", "escape", "encoding"):
        give(name, words.value())
    else:
        raise Refused(_SYNTAX, f'option "{name}" not recognized')


def _read_boolean(words: Words) -> bool:
    if words.peek() in (",", ")", ""):
        return True
    value = words.value().lower()
    if value == "match":
        raise Refused(_UNSUPPORTED, 'cannot use "match" with HEADER in COPY TO')
    if value not in ("true", "on", "1", "false", "off", "0"):
        raise Refused(_SYNTAX, 'header requires a Boolean value or "match"')
    return value in ("true", "on", "1")


def _read_words(words: Words, give: Callable[[str, Any], None]) -> None:
    """Read the options of PostgreSQL 8, which drivers still write."""
    while not words.is_done():
        if words.take("BINARY"):
            give("format", "binary")
        elif words.take("CSV"):
            give("format", "csv")
        elif words.take("HEADER"):
            give("header", True)
        elif words.take("FORCE", "QUOTE"):
            give("force_quote", None if words.take("*") else tuple(words.name_list()))
        elif words.peek() in ("DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING"):
            name = words.name()
            words.take("AS")
            give(name, words.value())
        else:
            raise words.error()


def _form_of(given: dict[str, Any]) -> CopyForm:
    form = given.get("format", "text")
    if form == "binary" and {"delimiter", "null", "header"} & given.keys():
        found = [one for one in ("delimiter", "null", "header") if one in given]
        raise Refused(_SYNTAX, f"cannot specify {found[0].upper()} in BINARY mode")
    if form != "csv":
        for name in ("quote", "escape", "force_quote"):
            if name in given:
                raise Refused(_UNSUPPORTED, f"COPY {name} requires CSV mode")
    encoding = given.get("encoding", "utf8").lower().replace("-", "")
    if encoding not in ("utf8", "unicode"):
        raise make_unsupported(f"COPY with the encoding {given['encoding']}")
    is_csv = form == "csv"
    quote = given.get("quote", '"')
    made = CopyForm(
        format=form,
        delimiter=given.get("delimiter", "," if is_csv else "\t"),
        null=given.get("null", "" if is_csv else "\\N"),
        header=given.get("header", False),
        quote=quote,
        escape=given.get("escape", quote),
        force_quote=given.get("force_quote", ()),
    )
    _check(made)
    return made


def _check(form: CopyForm) -> None:
    for name, value in (
        ("delimiter", form.delimiter),
        ("quote", form.quote),
        ("escape", form.escape),
    ):
        if len(value.encode()) != 1:
            raise Refused(_UNSUPPORTED, f"COPY {name} must be a single one-byte character")
    if form.delimiter in "\r\n":
        raise Refused(_INVALID, "COPY delimiter cannot be newline or carriage return")
    if set(form.null) & set("\r\n"):
        raise Refused(_INVALID, "COPY null representation cannot use newline or carriage return")
    if form.format == "text" and form.delimiter in _FORBIDDEN:
        raise Refused(_INVALID, f'COPY delimiter cannot be "{form.delimiter}"')
    if form.format == "csv" and form.delimiter == form.quote:
        raise Refused(_INVALID, "COPY delimiter and quote must be different")
    if form.delimiter in form.null:
        raise Refused(_UNSUPPORTED, "COPY delimiter must not appear in the NULL specification")
    if form.format == "csv" and form.quote in form.null:
        raise Refused(_UNSUPPORTED, "CSV quote character must not appear in the NULL specification")
