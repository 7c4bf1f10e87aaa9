"""Rows as the user's module sees them, and the merging of a refused row with the existing one.

Rows are dicts of JSON's values, every number exact. Pure. Not here: the reasons for a refusal
(`ports.row_apply`), and writing the result (`apply/tables.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import msgspec

from penstock.ports.feeds import Mutation

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOperation:
    """Conflict, as a merge function gets it.

    All three rows have the target's spelling of values.

    Attributes:
        target: The existing row; after a failed standard_merge, with the merged properties.
        proposed: The source's row after the change.
        before: The source's row before the change, None if the feed sent none.
        unmerged: Properties that standard_merge could not merge.
    """

    before: Document | None
    meta: Document
    proposed: Document
    target: Document
    unmerged: list[str] = field(default_factory=list)


MergeResult = dict[str, Any]
"""{"apply": row} | {"dlq": name} | {"drop": True}"""
MergeFunction = Callable[[MergeOperation], MergeResult]


class Unmerged(Exception):
    """Properties changed on both sides, and there is no function to decide."""

    def __init__(self, properties: list[str]) -> None:
        super().__init__(", ".join(properties))
        self.properties = properties


@dataclass(frozen=True, slots=True)
class StandardMerge:
    """Three-way merge by property; see `standard_merge`."""

    fallback: MergeFunction | None = None

    def merge(self, operation: MergeOperation, *, key: Collection[str]) -> MergeResult:
        """Return the result of a merge. key: the columns of the primary key. Raises Unmerged."""
        if not operation.target:
            return {"apply": operation.proposed}
        merged, unmerged = three_way(
            operation.before or {}, operation.proposed, operation.target, key=key
        )
        if not unmerged:
            return {"apply": merged}
        if self.fallback is None:
            raise Unmerged(unmerged)
        return self.fallback(replace(operation, target=merged, unmerged=unmerged))


_ABSENT = object()


def three_way(
    before: Document, proposed: Document, target: Document, *, key: Collection[str]
) -> tuple[Document, list[str]]:
    """Return the target's row with the changes from before to proposed, and unmerged properties.

    A property that did not change, or already has the proposed value, stays. If the target lacks
    the property, or still has its old value, it gets the proposed value; without one, the property
    is removed.
    """
    merged, unmerged = dict(target), []
    for name in sorted({*before, *proposed, *target} - set(key)):
        old, new, there = (one.get(name, _ABSENT) for one in (before, proposed, target))
        if is_same(old, new) or is_same(there, new):
            continue
        if there is not _ABSENT and not is_same(old, there):
            unmerged.append(name)
        elif new is _ABSENT:
            del merged[name]
        else:
            merged[name] = new
    return merged, unmerged
