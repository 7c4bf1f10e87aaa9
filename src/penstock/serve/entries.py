"""Entries of `[serve.publications.NAME] tables`: a pattern, or a table with columns and rows.

`public.*`, `!public.audit`, `public.orders (id, total) where (total > 10)`. An entry with columns
or a condition names one table, as in CREATE PUBLICATION. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import PenstockError
from penstock.model.patterns import PatternInvalid, parse_pattern
from penstock.serve.catalog.publications import PublishedTable

_NAME = r'"(?:[^"]|"")+"|[A-Za-z_\x80-\U0010ffff][\w$]*'
_ENTRY = re.compile(
    r"(?P<pattern>(?:\"(?:[^\"]|\"\")*\"|[^\s(\"])+)"
    rf"(?:\s*\((?P<columns>\s*(?:{_NAME})\s*(?:,\s*(?:{_NAME})\s*)*)\))?"
    r"(?:\s*\bwhere\s*\((?P<where>.*)\))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_COLUMN = re.compile(_NAME)
_QUOTED = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


class PublicationInvalid(PenstockError):
    """An entry of a publication cannot be read."""

    code = "SV01"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Parsed entries.

    Attributes:
        patterns: entries of whole tables.
        tables: entries with columns or a condition.
    """

    patterns: tuple[str, ...] = ()
    tables: tuple[PublishedTable, ...] = ()


def parse_entries(texts: Sequence[str]) -> Entries:
    """Read all entries of a publication. Raises PublicationInvalid."""
    patterns: list[str] = []
    tables: list[PublishedTable] = []
    for text in texts:
        found = _entry(text)
        if isinstance(found, str):
            patterns.append(found)
        elif any((one.schema, one.name) == (found.schema, found.name) for one in tables):
            raise PublicationInvalid(
                f"{found.schema}.{found.name} has columns or a condition twice",
                hint="Write one entry for each table.",
            )
        else:
            tables.append(found)
    if patterns and all(one.startswith("!") for one in patterns):
        raise PublicationInvalid(
            "the entries match no table",
            hint='Name at least one pattern without "!", for example "public.*".',
        )
    return Entries(patterns=tuple(patterns), tables=tuple(tables))


def _entry(text: str) -> str | PublishedTable:
    match = _ENTRY.fullmatch(text.strip())
    if match is None:
        raise PublicationInvalid(
            f"{text!r} is not an entry of a publication",
            hint="Write a pattern of tables, or a table, followed by columns, a condition or "
            "both: public.orders (id, total) where (total > 10)",
        )
    try:
        pattern = parse_pattern(match["pattern"])
    except PatternInvalid as error:
        raise PublicationInvalid(error.message, hint=error.hint) from error
    columns = tuple(_unquote(name) for name in _COLUMN.findall(match["columns"] or ""))
    where = (match["where"] or "").strip()
    if not columns and match["where"] is None:
        return match["pattern"]
    if pattern.excludes or not pattern.exact:
        raise PublicationInvalid(
            f"{text!r}: columns and conditions are for one table",
            hint="Write the entry with the table's own name, without wildcards.",
        )
    if len(set(columns)) != len(columns):
        raise PublicationInvalid(f"{text!r} names a column twice", hint="Name it once.")
    if match["where"] is not None:
        try:
            _check_condition(where)
        except Refused as refused:
            raise PublicationInvalid(
                f"{text!r}: {refused.message}",
                hint="See docs/serve.md for what a condition may be.",
            ) from refused
    schema, name = (one or two for one, two in _QUOTED.findall(match["pattern"]))
    return PublishedTable(
        schema=schema.replace('""', '"'),
        name=name.replace('""', '"'),
        columns=columns or None,
        row_filter=where,
    )


def _check_condition(where: str) -> None:
    """Refuse errors of a condition that do not depend on the table. Raises Refused."""
    from sqlglot import exp  # of the extra `serve`

    from penstock.serve.catalog.grammar import parse_condition

    if not where:
        raise Refused("42601", "the condition is empty")
    for one in (exp.Anonymous, exp.Query, exp.Subquery):
        if (found := parse_condition(where).find(one)) is not None:
            raise Refused("0A000", f"{found.sql(dialect='postgres')} cannot be in a condition")


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
