"""Defaults, indexes and foreign keys of a PostgreSQL table, in the terms of all engines.

They are read from the catalogue's texts (pg_get_expr, pg_get_indexdef, pg_get_constraintdef).
Pure.
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

_NEXT = re.compile(r"nextval\('(?:[^']|'')+'::regclass\)\Z", re.IGNORECASE)
_CAST = re.compile(r"::[\w\s.\"]+(?:\(\d+(?:,\d+)?\))?(?:\s+with(?:out)? time zone)?\Z")
_STRING = re.compile(r"'((?:[^'\\]|''|\\.)*)'\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_BITS = re.compile(r"b'([01]*)'\Z", re.IGNORECASE)
_NOW = re.compile(
    r"\(?\s*(?:now\(\)|(?:current_timestamp|localtimestamp|transaction_timestamp)"
    r"(?:\(\d?\))?)\s*\)?\Z",
    re.IGNORECASE,
)
_INDEX = re.compile(
    r"CREATE (?:UNIQUE )?INDEX (?P<name>(?:\"(?:[^\"]|\"\")*\"|\S)+) ON .*? USING (?P<way>\w+) "
    r"\((?P<columns>.*?)\)(?P<rest>.*)\Z",
    re.DOTALL,
)
_PART = re.compile(r"(?P<name>[a-z_][\w$]*|\"(?:[^\"]|\"\")*\")(?P<down> DESC)?\Z")
_ACTION = "(CASCADE|RESTRICT|NO ACTION|SET NULL|SET DEFAULT)"
_ON_DELETE = re.compile(f" ON DELETE {_ACTION}")
_ON_UPDATE = re.compile(f" ON UPDATE {_ACTION}")


def describe(definition: TableDefinition) -> SchemaDescription:
    """Return the extras of a table. Of unique indexes only constraints have an equal elsewhere."""
    numbered = tuple(
        column.name
        for column in definition.columns
        if column.identity_kind or (column.default and _NEXT.match(column.default))
    )
    found = {column.name: _default(column) for column in definition.columns}
    return SchemaDescription(
        defaults={name: default for name, default in found.items() if default is not None},
        numbered=numbered,
        indexes=tuple(map(_index, definition.indexes)),
        foreign_keys=tuple(map(_foreign_key, definition.foreign_keys)),
        lacking=tuple(
            f"unique index {key.name} is not made: only unique constraints have an equal"
            for key in definition.unique_keys
            if not key.is_constraint
        ),
    )


def _default(column: ColumnDefinition) -> Default | None:
    if column.default is None:
        return None
    text = _without_casts(column.default)
    if text.upper() == "NULL":
        return None
    if _NOW.match(text) and base_of(column.type_text) == "timestamp":
        return Default(DefaultKind.NOW)
    if bits := _BITS.match(text):
        return Default(DefaultKind.BITS, bits[1])
    if text.lower() in ("true", "false"):
        return Default(DefaultKind.BOOL, text.lower())
    if string := _STRING.match(text):
        return Default(DefaultKind.LITERAL, string[1].replace("''", "'"))
    if _NUMBER.match(text):
        return Default(DefaultKind.NUMBER, text)
    return Default(DefaultKind.OTHER)


def _without_casts(default: str) -> str:
    """Return a default without the casts that are printed behind it."""
    text = default.strip()
    while (match := _CAST.search(text)) is not None and not _is_inside(text, match.start()):
        text = text[: match.start()].strip()
        if text.startswith("(") and text.endswith(")"):
            text = text[1:-1].strip()
    return text


def _is_inside(text: str, place: int) -> bool:
    """Return whether a place is inside of a string literal."""
    return text[:place].count("'") % 2 == 1


def _index(text: str) -> Index:
    match = _INDEX.match(text)
    if match is None:
        return Index(name=text, unlike="its definition is not understood")
    name = _bare(match["name"])
    if match["way"] not in ("btree", "hash"):
        return Index(name=name, unlike=f"the target has no index of the kind {match['way']}")
    if match["rest"].strip():
        unlike = "it is over some of the rows, or has columns beside its key"
        return Index(name=name, unlike=unlike)
    parts = []
    for part in match["columns"].split(", "):
        found = _PART.match(part)
        if found is None:
            return Index(name=name, unlike=f"{part} is not a plain column")
        parts.append(IndexPart(_bare(found["name"]), is_down=bool(found["down"])))
    return Index(name=name, parts=tuple(parts))


def _bare(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _foreign_key(key: ForeignKey) -> ForeignKey:
    deleted, updated = _ON_DELETE.search(key.definition), _ON_UPDATE.search(key.definition)
    return replace(
        key,
        deferrable=False,
        on_delete=deleted[1] if deleted else "NO ACTION",
        on_update=updated[1] if updated else "NO ACTION",
    )
