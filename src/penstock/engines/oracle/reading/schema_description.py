"""Describe a table of Oracle besides columns and keys, in the terms of all engines. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.codec.oracle.types import parse_type
from penstock.model import ColumnDefinition, TableDefinition
from penstock.sql.schema_translation import (
    Default,
    DefaultKind,
    Index,
    IndexPart,
    SchemaDescription,
)

_STRING = re.compile(r"N?'((?:[^']|'')*)'\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z")
_NOW = frozenset(("SYSDATE", "SYSTIMESTAMP", "CURRENT_DATE", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP"))
_INDEX = re.compile(r'CREATE INDEX "(?P<name>[^"]+)" ON .*? \((?P<columns>".*)\)\Z', re.DOTALL)
_PART = re.compile(r'"(?P<name>[^"]+)"(?P<down> DESC)?(?:, |\Z)')


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
    """Return a column's default from its text in the catalogue, such as `0` or `'new'`."""
    if column.default is None:
        return None
    text = column.default.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if text.upper() == "NULL" or text == "''":  # an empty text is NULL
        return None
    base = parse_type(column.type_text).base
    if text.upper() in _NOW and (base == "DATE" or base.startswith("TIMESTAMP")):
        return Default(DefaultKind.NOW)
    if string := _STRING.match(text):
        return Default(DefaultKind.LITERAL, string[1].replace("''", "'"))
    if _NUMBER.match(text):
        return Default(DefaultKind.NUMBER, text.removeprefix("+"))
    return Default(DefaultKind.OTHER)


def _index(text: str) -> Index:
    match = _INDEX.match(text)
    if match is None:
        name, _, what = text.partition(": ")
        return Index(name=name, unlike=what or "its definition is not understood")
    parts = tuple(
        IndexPart(part["name"], is_down=part["down"] is not None)
        for part in _PART.finditer(match["columns"])
    )
    return Index(name=match["name"], parts=parts)
