"""Describe a table of SQL Server besides columns and keys, in the terms of all engines. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.model import ColumnDefinition, TableDefinition
from penstock.sql.schema_translation import (
    Default,
    DefaultKind,
    Index,
    IndexPart,
    SchemaDescription,
)

_STRING = re.compile(r"N?'((?:[^']|'')*)'\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\(?[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\)?\Z")
_NOW = frozenset(
    ("getdate()", "sysdatetime()", "current_timestamp", "getutcdate()", "sysutcdatetime()",
     "sysdatetimeoffset()")
)  # fmt: skip
_MOMENTS = ("datetime", "datetime2", "smalldatetime", "datetimeoffset")
_INDEX = re.compile(
    r"CREATE INDEX \[(?P<name>(?:[^\]]|\]\])+)\] ON .*? \((?P<columns>\[.*?\](?: DESC)?)\)"
    r"(?P<more> INCLUDE \(.*\)| WHERE .*)?\Z",
    re.DOTALL,
)
_PART = re.compile(r"\[(?P<name>(?:[^\]]|\]\])+)\](?P<down> DESC)?(?:, |\Z)")


def describe(definition: TableDefinition) -> SchemaDescription:
    """Return the extras of a table."""
    found = {
        column.name: default
        for column in definition.columns
        if not column.generated and (default := default_of(column)) is not None
    }
    return SchemaDescription(
        defaults=found,
        numbered=tuple(column.name for column in definition.columns if column.identity_kind),
        indexes=tuple(map(_index, definition.indexes)),
        foreign_keys=tuple(replace(key, deferrable=False) for key in definition.foreign_keys),
    )


def default_of(column: ColumnDefinition) -> Default | None:
    """Return a column's default from its text in the catalogue, such as `((0))` or `(N'new')`."""
    if column.default is None:
        return None
    text = _bare(column.default)
    if text.upper() == "NULL":
        return None
    base = column.type_text.partition("(")[0]
    if text.lower() in _NOW and base in _MOMENTS:
        return Default(DefaultKind.NOW)
    if string := _STRING.match(text):
        return Default(DefaultKind.LITERAL, string[1].replace("''", "'"))
    if _NUMBER.match(text):
        digits = text.replace("(", "").replace(")", "").removeprefix("+")
        if base == "bit":
            return Default(DefaultKind.BOOL, "false" if float(digits) == 0 else "true")
        return Default(DefaultKind.NUMBER, digits)
    return Default(DefaultKind.OTHER)


def _bare(text: str) -> str:
    """Return a text without the parentheses around all of it."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and _closes_last(text):
        text = text[1:-1].strip()
    return text


def _closes_last(text: str) -> bool:
    """Return whether the first parenthesis is closed by the last character."""
    depth, is_quoted = 0, False
    for place, character in enumerate(text):
        if character == "'":
            is_quoted = not is_quoted
        elif not is_quoted and character in "()":
            depth += 1 if character == "(" else -1
            if not depth:
                return place == len(text) - 1
    return False


def _index(text: str) -> Index:
    match = _INDEX.match(text)
    if match is None:
        return Index(name=text, unlike="its definition is not understood")
    name = match["name"].replace("]]", "]")
    if match["more"]:
        what = "included columns" if "INCLUDE" in match["more"] else "a filter"
        return Index(name=name, unlike=f"the target has no index with {what} like it")
    parts = tuple(
        IndexPart(part["name"].replace("]]", "]"), is_down=part["down"] is not None)
        for part in _PART.finditer(match["columns"])
    )
    return Index(name=name, parts=parts)
