"""Describe a table of MySQL or MariaDB besides columns and keys, in the terms of all engines.

Read from the output of information_schema and SHOW CREATE TABLE. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.model import ColumnDefinition, ForeignKey, TableDefinition
from penstock.sql.schema_translation import (
    Default,
    DefaultKind,
    Index,
    IndexPart,
    SchemaDescription,
    base_of,
)

_STRING = re.compile(r"(?:_\w+\s*)?'((?:[^'\\]|''|\\.)*)'\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_BITS = re.compile(r"b'([01]*)'\Z", re.IGNORECASE)
_NOW = re.compile(
    r"\(?\s*(?:now\(\)|(?:current_timestamp|localtimestamp)(?:\(\d?\))?)\s*\)?\Z", re.IGNORECASE
)
_INDEX = re.compile(r"(?P<kind>\w+ )?key (?P<name>`(?:[^`]|``)+`) \((?P<columns>.*)\)\Z", re.DOTALL)
_PART = re.compile(r"`(?P<name>(?:[^`]|``)+)`(?:\((?P<prefix>\d+)\))?\Z")
_ESCAPES = {"0": "\0", "n": "\n", "t": "\t", "r": "\r"}


def describe(definition: TableDefinition) -> SchemaDescription:
    """Return the extras of a table."""
    found = {column.name: _default(column) for column in definition.columns}
    return SchemaDescription(
        defaults={name: default for name, default in found.items() if default is not None},
        numbered=tuple(column.name for column in definition.columns if column.identity_kind),
        indexes=tuple(map(_index, definition.indexes)),
        foreign_keys=tuple(map(_foreign_key, definition.foreign_keys)),
    )


def _default(column: ColumnDefinition) -> Default | None:
    if column.default is None:
        return None
    text = column.default.strip()
    if text.upper() == "NULL":
        return None
    if _NOW.match(text) and base_of(column.type_text) in ("timestamp", "datetime"):
        return Default(DefaultKind.NOW)
    if bits := _BITS.match(text):
        return Default(DefaultKind.BITS, bits[1])
    if text.lower() in ("true", "false"):
        return Default(DefaultKind.BOOL, text.lower())
    if string := _STRING.match(text):
        return Default(DefaultKind.LITERAL, _unescape(string[1]))
    if _NUMBER.match(text):
        return Default(DefaultKind.NUMBER, text)
    return Default(DefaultKind.OTHER)


def _unescape(text: str) -> str:
    text = text.replace("''", "'")
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


def _index(text: str) -> Index:
    match = _INDEX.match(text)
    if match is None:
        return Index(name=text, unlike="its definition is not understood")
    name = _bare(match["name"][1:-1])
    if match["kind"]:
        return Index(name=name, unlike=f"the target has no {match['kind'].strip()} index like it")
    parts = []
    for part in match["columns"].split(", "):
        found = _PART.match(part)
        if found is None:
            return Index(name=name, unlike="it is over an expression")
        parts.append(IndexPart(_bare(found["name"]), prefix=int(found["prefix"] or 0)))
    return Index(name=name, parts=tuple(parts))


def _bare(name: str) -> str:
    return name.replace("``", "`")


def _foreign_key(key: ForeignKey) -> ForeignKey:
    return replace(
        key, deferrable=False, on_delete=key.on_delete.upper(), on_update=key.on_update.upper()
    )
