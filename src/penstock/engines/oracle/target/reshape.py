"""Carrying out what changed a table's shape, by policy, ahead of the batch's transaction.

The old shape is what `wirekite.wirekite_table` says was applied last, in the source's types. Each
statement commits; after a crash the same changes are made again, without those that the table has
already. A second session holds the applied position meanwhile, so that no other loader alters or
applies. Not here: what a change becomes in SQL (`alter.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from penstock.engines.oracle.target.alter import Alterer
from penstock.engines.oracle.target.catalog import TargetTable
from penstock.engines.oracle.target.layout import check_names
from penstock.engines.oracle.target.progress import name_bytes_max
from penstock.engines.oracle.target.refusals import ALTERED_MEANWHILE, refusal_number
from penstock.engines.oracle.target.session import ApplySession
from penstock.host import faults
from penstock.host.errors import StatementFailed
from penstock.model import PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind, Policy
from penstock.ports.target import ShapeNotApplicable, ShapeNote, TableRecord, ValueRefused
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import (
    ShapeChange,
    TypeRules,
    column_renames,
    computed_changes,
    names_in_the_way,
    shape_changes,
    type_rules_of,
    under_new_names,
    with_names,
)
from penstock.sql.table_alterer import Alteration

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaping:
    """Table whose shape is being changed.

    Attributes:
        target: The connection and the policies.
        record: What was applied last.
        relation: The wanted shape, in the source's types.
        name: The target's table.
        is_emptied: It has no rows, or the batch deletes them.
        is_replaced: Its rows are rewritten one by one.
    """

    target: ApplySession
    record: TableRecord
    relation: Relation
    name: TableName
    is_emptied: bool
    is_replaced: bool = False

    def check(self) -> None:
        """Raise SchemaChangeRefused if a policy refuses one of the changes, and ShapeNotApplicable
        for a name that Oracle cannot have.
        """
        check_names(self.relation)
        record, types = self.record, type_rules_of(self.target.translation.engine)
        leaving, coming = computed_changes(record, self.relation)
        for change in [*leaving, *self._changes(record, types), *coming]:
            self.target.policies.check(change.kind, change.what, table=str(self.name))

    def run(self) -> TableRecord:
        """Give the table the relation's shape; return the record to write.

        Raises ShapeNotApplicable and the server's errors.
        """
        target, record, relation = self.target, self.record, self.relation
        types = type_rules_of(target.translation.engine)
        leaving, coming = computed_changes(record, relation)
        self._execute_all(self._alterer(record).finish_started())
        aside = self._names_in_the_way()
        if aside:
            self._execute_all(self._alterer(record).set_aside(aside))
            faults.point("load.alter.aside")
            record = with_names(record, aside)
            # The record has these names before the columns get their final ones, for a repetition.
            target.records.put(record)
        names = column_renames(record, relation)
        known = self._under_new_names(record, names)
        changes = shape_changes(known, relation, types, computed=self._generated_names)
        drift = SchemaDrift.of(record)
        drift.kept &= {column.name for column in self._table.columns}
        for change in leaving:
            self._one(change, record, drift)
        for change in names:
            if not drift.never_there(change):
                self._one(change, record, drift)
        known = replace(known, left_out=tuple(drift.left_out), kept=tuple(drift.kept))
        self._alterer(known).check()
        self._execute_all(self._alterer(known).stop_computing())
        for change in (*changes, *coming):
            self._one(change, known, drift)
        target.noted.extend(drift.applied_notes(self.name))
        return drift.record(record, relation, log_id=target.log_id)

    @property
    def _table(self) -> TargetTable:
        self.target.need({self.name})
        return self.target.tables[self.name]

    @property
    def _generated_names(self) -> list[str]:
        return [column.name for column in self._table.columns if column.is_generated]

    def _names_in_the_way(self) -> dict[str, str]:
        policies = self.target.policies
        if policies.keeps(ChangeKind.RENAME_COLUMN):
            return {}
        keeps = policies.keeps(ChangeKind.DROP_COLUMN)
        return names_in_the_way(self.record, self.relation, keeps_dropped=keeps)

    def _changes(self, record: TableRecord, types: TypeRules) -> list[ShapeChange]:
        """Return all changes under the names that columns have at the source, for messages."""
        names = column_renames(record, self.relation)
        known = self._under_new_names(record, names)
        return [*names, *shape_changes(known, self.relation, types, computed=self._generated_names)]

    def _under_new_names(self, record: TableRecord, names: Sequence[ShapeChange]) -> TableRecord:
        is_key_kept = not self.target.policies.keeps(ChangeKind.RENAME_COLUMN)
        return under_new_names(record, names, is_key_kept=is_key_kept)

    def _alterer(self, record: TableRecord) -> Alterer:
        translation = self.target.translation
        return Alterer(
            record=record,
            relation=self.relation,
            table=self._table,
            types=translation.target_types(self.relation),
            is_emptied=self.is_emptied,
            is_replaced=self.is_replaced,
            fills=translation.fills(self.relation),
            loose=translation.loose(self.relation),
            name_bytes_max=name_bytes_max(self.target.connection.version),
        )

    def _one(self, change: ShapeChange, record: TableRecord, drift: SchemaDrift) -> None:
        policy, alterer = self.target.policies.of(change.kind), self._alterer(record)
        if policy is Policy.TRY_EVOLVE:
            policy = self._try(change, alterer, drift, record)
        elif policy is Policy.EVOLVE:
            self._execute_all(alterer.evolve(change))
        elif policy is Policy.LENIENT:
            self._execute_all(alterer.lenient(change))
        else:
            logger.info("target table left as it is", table=str(self.name), change=change.what)
        drift.went(change, policy)

    def _try(
        self, change: ShapeChange, alterer: Alterer, drift: SchemaDrift, record: TableRecord
    ) -> Policy:
        try:
            self._execute_all(alterer.evolve(change))
        except PenstockError as error:
            is_renamed = change.kind is ChangeKind.RENAME_COLUMN
            is_key = is_renamed and change.name in (record.key or ())
            if error.retry == "backoff" or is_key:
                raise
            note = drift.note(change, error.message)
            self.target.noted.append(ShapeNote(table=self.name, text=note))
            logger.warning("change of shape not applied", table=str(self.name), note=note)
            self._execute_all(self._alterer(record).lenient(change))
            return Policy.LENIENT
        return Policy.EVOLVE

    def _execute_all(self, alterations: Sequence[Alteration]) -> None:
        for alteration in alterations:
            try:
                self.target.run(alteration.sql, self.name)
            except (ValueRefused, StatementFailed) as error:
                self.target.tables.pop(self.name, None)
                raise self._impossible(error, alteration) from error
            logger.info("target table altered", table=str(self.name), change=alteration.what)
        if alterations:
            self.target.tables.pop(self.name, None)

    def _impossible(self, error: PenstockError, alteration: Alteration) -> PenstockError:
        """Return the error for an alteration that the rows, or the server, do not allow."""
        said = error.message.partition(": ")[2] or error.message
        if refusal_number(error) in ALTERED_MEANWHILE:
            # The statement of a loader that was killed may have ended only now.
            return self.target.repeat(f"{said}: {alteration.what}")
        for started in self._alterer(self.record).drop_started():
            self.target.run(started.sql, self.name)
        self.target.tables.pop(self.name, None)
        table = self.relation.full_name
        return ShapeNotApplicable(
            f"applying to {self.name}: {said}: {alteration.what}",
            hint=f"Run: penstock table resync FILE {table}; it is copied again in its new shape.",
            **error.fields,
        )
