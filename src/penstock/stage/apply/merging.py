"""Merging a row that was refused with the one that is there. Pure.

Not here: which rows are refused (`ports.row_apply`), and writing what comes out (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.stage.documents import Document, is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOperation:
    """A conflict, as a merge function gets it.

    before: the source's row before the change, None where the feed sent none. proposed: its row
    after it. target: the row that is there. unmerged: what standard_merge could not merge; target
    then has what it could. All three are spelt as the target spells values.
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
    """Properties that changed on both sides, with no function to decide."""

    def __init__(self, properties: list[str]) -> None:
        super().__init__(", ".join(properties))
        self.properties = properties


@dataclass(frozen=True, slots=True)
class StandardMerge:
    """Three-way merge by property; see `standard_merge`."""

    fallback: MergeFunction | None = None

    def merge(self, operation: MergeOperation, *, key: Collection[str]) -> MergeResult:
        """key: the columns of the primary key. Raises Unmerged."""
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
    """The target's row with the changes from before to proposed, and what could not be merged.

    A property that did not change, or is there already, stays as it is. One that the target does
    not have, or has as it was before, becomes what is proposed; if nothing is, it goes.
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
