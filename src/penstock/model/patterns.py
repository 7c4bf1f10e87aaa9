"""Table patterns of the configuration: they select the tables of a pipeline.

A pattern is `schema.table`, each part a name or a glob: `*` matches any characters, `?` one. Names
are written as the catalogue has them: case counts and nothing is folded, so a table created as
`"Orders"` is `public.Orders`. A name that holds a dot, a `*`, a `?`, a quote or a leading `!` is
written in double quotes (inner ones doubled), where nothing is special: `public."a.b"`. A leading
`!` excludes tables, whatever the order of the patterns. Pure: no catalogue here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model import PenstockError, TableName


class PatternInvalid(PenstockError):
    """A table pattern cannot be read."""

    code = "PG40"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePattern:
    """One table pattern.

    Attributes:
        exact: the pattern names a single table, without wildcards.
        name: the table's name without its schema; empty if it has wildcards.
    """

    text: str
    excludes: bool
    exact: bool
    schema: re.Pattern[str]
    table: re.Pattern[str]
    name: str = ""

    def matches(self, name: TableName) -> bool:
        """Return whether the pattern matches this table; `excludes` is ignored."""
        return bool(self.schema.fullmatch(name.schema) and self.table.fullmatch(name.name))

    def nearly_matches(self, name: TableName) -> bool:
        """Return whether the pattern would match without regard to case, for a spelling hint."""
        return bool(
            re.fullmatch(self.schema.pattern, name.schema, re.IGNORECASE | re.DOTALL)
            and re.fullmatch(self.table.pattern, name.name, re.IGNORECASE | re.DOTALL)
        )


_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')

_PLAIN = re.compile(r"[^\s!\".*?][^\s\".*?]*")


def _part(text: str, whole: str) -> tuple[re.Match[str], str]:
    match = _PART.match(text)
    if match is None:
        raise PatternInvalid(
            f"{whole!r} is not a table pattern",
            hint='Write schema.table, with * and ? as wildcards: "public.*", "!public.audit"; '
            "put names that hold dots into double quotes.",
        )
    return match, text[match.end() :]


def _expression(part: re.Match[str]) -> tuple[re.Pattern[str], bool]:
    if part["quoted"] is not None:
        return re.compile(re.escape(part["quoted"].replace('""', '"')), re.DOTALL), True
    plain = part["plain"]
    glob = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in plain)
    return re.compile(glob, re.DOTALL), "*" not in plain and "?" not in plain


def parse_pattern(text: str) -> TablePattern:
    """Parse one pattern; raises PatternInvalid."""
    body = text.removeprefix("!")
    schema, rest = _part(body, text)
    if not rest.startswith("."):
        raise PatternInvalid(
            f"{text!r} names no schema",
            hint=f'Write schema.table, for example "public.{body}".',
        )
    table, rest = _part(rest[1:], text)
    if rest or body != body.strip():
        raise PatternInvalid(
            f"{text!r} is not a table pattern: {rest or 'blanks'!r} is too much",
            hint='Write schema.table; a name that holds a dot goes into quotes: public."a.b".',
        )
    schema_expression, schema_exact = _expression(schema)
    table_expression, table_exact = _expression(table)
    return TablePattern(
        text=text,
        excludes=text.startswith("!"),
        exact=schema_exact and table_exact,
        schema=schema_expression,
        table=table_expression,
        name=(table["plain"] or table["quoted"].replace('""', '"')) if table_exact else "",
    )


def as_pattern(name: TableName) -> str:
    """Return the pattern that matches only this table."""
    return ".".join(
        part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All patterns of a pipeline together."""

    patterns: tuple[TablePattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Selection:
        """Parse all patterns; raises PatternInvalid if one is wrong or all of them exclude."""
        patterns = tuple(parse_pattern(text) for text in texts)
        if all(pattern.excludes for pattern in patterns):
            raise PatternInvalid(
                "the table patterns take no table in",
                hint='Name at least one pattern without "!", for example "public.*".',
            )
        return cls(patterns=patterns)

    def taken_by(self, name: TableName) -> TablePattern | None:
        """Return the pattern that selects a table, preferably one without wildcards; None if none
        does.
        """
        taking = [p for p in self.patterns if not p.excludes and p.matches(name)]
        return next((p for p in taking if p.exact), taking[0] if taking else None)

    def excluded_by(self, name: TableName) -> TablePattern | None:
        """Return the pattern that excludes a table; None if none does."""
        return next((p for p in self.patterns if p.excludes and p.matches(name)), None)

    def names(self) -> list[str]:
        """Return the names, without schema, of tables that are selected without wildcards."""
        return [one.name for one in self.patterns if one.name and not one.excludes]

    def takes(self, name: TableName) -> bool:
        """Return whether a table of this name is selected."""
        return self.taken_by(name) is not None and self.excluded_by(name) is None
