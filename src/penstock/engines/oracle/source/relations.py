"""Relations of tables from their definitions. Pure."""

from __future__ import annotations

import re

from penstock.codec.oracle.types import parse_type
from penstock.model import Column, ColumnDefinition, Identity, Relation, TableDefinition, UniqueKey

ENCODINGS = {
    "AL32UTF8": "utf-8",
    "CL8MSWIN1251": "cp1251",
    "EE8ISO8859P2": "iso8859-2",
    "EE8MSWIN1250": "cp1250",
    "JA16EUC": "euc-jp",
    "JA16SJIS": "shift-jis",
    "KO16MSWIN949": "cp949",
    "US7ASCII": "ascii",
    "WE8ISO8859P1": "iso8859-1",
    "WE8ISO8859P15": "iso8859-15",
    "WE8MSWIN1252": "cp1252",
    "ZHS16GBK": "gbk",
}
"""Python's names of Oracle's character sets. In another one, texts of ASCII are read only."""
# A statement's tokens are joined by blanks.
_NUMBER = re.compile(r"([-+]?)\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fFdD]?")
_TEXT = re.compile(r"'((?:[^']|'')*)'")


def read_default(text: str | None) -> str | None:
    """Return the value of a default that is a literal; None for NULL. Raises ValueError."""
    shown = (text or "").strip()
    if not shown or shown.upper() == "NULL":
        return None
    if number := _NUMBER.fullmatch(shown):
        return number[1].replace("+", "") + number[2]
    match = _TEXT.fullmatch(shown)
    if match is None:
        raise ValueError(shown)
    return match[1].replace("''", "'") or None


def relation_of(definition: TableDefinition, *, is_whole: bool = False) -> Relation:
    """Return a table's shape in the log.

    Args:
        definition: Of the table, with the captured columns in order.
        is_whole: Before images have all columns that the redo has.
    """
    columns = tuple(_column(one) for one in definition.columns if not one.generated)
    names = [one.name for one in columns]
    key = tuple(sorted(names.index(name) for name in definition.row_key if name in names))
    if len(key) != len(definition.row_key):
        key = ()
    logged = tuple(
        at
        for at, one in enumerate(columns)
        if not parse_type(one.base_type or one.source_type).is_large
    )
    has_whole = is_whole or not key
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=columns,
        key=key,
        before=logged if has_whole else key,
        identity=Identity.FULL if has_whole else Identity.DEFAULT,
        source_id=definition.source_id,
        unique=UniqueKey.columns_of(definition.unique_keys),
    )


def _column(definition: ColumnDefinition) -> Column:
    kind = parse_type(definition.base_type or definition.type_text)
    return Column(
        name=definition.name,
        source_type=definition.type_text,
        neutral=kind.neutral,
        base_type=definition.base_type,
        nullable=not definition.not_null,
        collation=definition.collation or "",
        id=definition.id,
    )
