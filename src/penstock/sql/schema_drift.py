"""Differences between a table's shape in the target and in the source, while changes are applied.

Applies a policy: what is done, what is remembered of it, and what the record says afterwards.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

from penstock.model import Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import MergeSpec, PhaseSpec, ShapeNote, TableRecord
from penstock.sql.shape_changes import (
    ShapeChange,
    computed_in,
    ids_of,
    key_of,
    not_null_of,
    shape_of,
)

NOTES_MAX = 50
_LEAVING = (ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN)
_COMING = (ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN)


def find_kept_merges(
    phase: PhaseSpec, record_of: Callable[[Relation], TableRecord], policies: Policies
) -> list[MergeSpec]:
    """Return merges of tables that are read again and may have columns that the source lacks.

    Their rows are updated one by one, so that the values of those columns stay.
    """
    may_keep = any(
        policies.of(kind) in (Policy.TRY_EVOLVE, Policy.LENIENT, Policy.IGNORE) for kind in _LEAVING
    )
    found = []
    for spec in phase.merges:
        record, relation = record_of(spec.relation), spec.relation
        known = {name for name, _ in record.columns or ()}
        has_key = bool(relation.key) and all(
            relation.columns[index].name in known for index in relation.key
        )
        is_kept = bool(record.kept) or may_keep
        is_read_again = spec.table in phase.reloaded and spec.table not in phase.truncated
        if is_read_again and is_kept and has_key and spec.counts.upserts:
            found.append(spec)
    return found


class SchemaDrift:
    """Drift of one table. It begins with the table's record; `record` returns the new one."""

    def __init__(self, left_out: set[str], kept: set[str], notes: list[str]) -> None:
        self.left_out = left_out
        self.kept = kept
        self.notes = notes
        self._applied: list[str] = []

    @classmethod
    def of(cls, record: TableRecord) -> Self:
        """Return the drift that a table's record holds."""
        return cls(set(record.left_out), set(record.kept), list(record.notes))

    def went(self, change: ShapeChange, policy: Policy) -> None:
        """Remember that a change was handled with this policy: EVOLVE, LENIENT or IGNORE."""
        was_there = change.kind not in _LEAVING or change.name not in self.left_out
        if policy is not Policy.IGNORE and was_there:
            kept = " (policy lenient)" if policy is Policy.LENIENT else ""
            self._applied.append(change.what + kept)
        if change.kind in _LEAVING:
            if change.name in self.left_out:
                self.left_out.discard(change.name)  # the target never had it
            elif policy is Policy.EVOLVE:
                self.kept.discard(change.name)
            else:
                self.kept.add(change.name)
        if change.kind in _COMING and change.column is not None:
            if policy is Policy.IGNORE:
                self.left_out.add(change.column.name)
            else:
                self.left_out.discard(change.column.name)

    def applied_notes(self, table: TableName) -> list[ShapeNote]:
        """Return a note for each change that was applied to the target table."""
        return [ShapeNote(table=table, text=text, is_applied=True) for text in self._applied]

    def never_there(self, change: ShapeChange) -> bool:
        """Return whether the target never had a renamed column, which then stays left out."""
        if change.name not in self.left_out or change.column is None:
            return False
        self.left_out.discard(change.name)
        self.left_out.add(change.column.name)
        return True

    def note(self, change: ShapeChange, reason: str) -> str:
        """Keep a note that a change could not be carried out, and return its text."""
        said = f"{change.what}, which could not be carried out: {reason}"
        self.notes = [*self.notes, said][-NOTES_MAX:]
        return said

    def record(self, before: TableRecord, relation: Relation, *, log_id: str) -> TableRecord:
        """Return the record of a table that has this relation's shape except for this drift."""
        return replace(
            before,
            columns=shape_of(relation),
            ids=ids_of(relation),
            source_id=relation.source_id,
            collations=tuple(column.collation for column in relation.columns),
            unique=relation.unique,
            log_id=log_id,
            version=relation.version,
            key=key_of(relation),
            not_null=not_null_of(relation),
            computed=before.computed if relation.computed is None else computed_in(relation),
            left_out=tuple(sorted(self.left_out)),
            kept=tuple(sorted(self.kept)),
            notes=tuple(self.notes),
        )
