"""Rows as the user's module sees them: dicts of JSON's values, every number exact. Pure."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from penstock.ports.staging import Mutation

Document = dict[str, Any]
"""A row by property. Numbers are int or Decimal, absent properties are absent."""

_INT64_DIGITS = 18
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def document_of(text: bytes) -> Any:
    """Return the content of a JSON text."""
    return json.loads(text, parse_float=Decimal, parse_int=_integer)


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _INT64_DIGITS else Decimal(text)


def text_of(document: Any) -> bytes:
    """Return the JSON text. Raises TypeError or ValueError for values that JSON does not have."""
    return _ENCODER.encode(document)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of documents are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def meta_of(mutation: Mutation, schema: str, table: str) -> Document:
    """Return the second argument of the user's functions: schema, table, updated and key."""
    return {
        "schema": schema,
        "table": table,
        "updated": str(mutation.time),
        "key": document_of(mutation.key.encode()),
    }
