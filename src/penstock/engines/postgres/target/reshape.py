"""Carrying out what changed a table's shape, by policy, inside the batch's transaction.

The old shape is what `wirekite.wirekite_table` says was applied last, so that a restart neither
repeats nor forgets one. Not here: what a change becomes in SQL (`alter.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import psycopg
import structlog

from penstock.codec.postgres.retyping import holds
from penstock.engines.postgres.connect import choice_hint
from penstock.engines.postgres.target.alter import Alteration, Alterer
from penstock.engines.postgres.target.target import (
    TargetTable,
    read_target_tables,
    require,
    same_type,
)
from penstock.host.errors import StatementFailed
from penstock.model import PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import ShapeNotApplicable, ShapeNote, TableRecord, ValueRefused
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import (
    ShapeChange,
    TypeRules,
    column_renames,
    computed_changes,
    names_in_the_way,
    shape_changes,
    under_new_names,
    with_names,
)

logger = structlog.get_logger(__name__)
# The target lacks a type or schema, or does not know virtual columns.
INSTEAD = (
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.SyntaxError,
)
TYPES = TypeRules(holds=holds, same=same_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaping:
    """Table whose shape is being changed.

    refused: returns the typed error for an error of the server. noted: receives the changes,
    applied or not. log_id: the log that shapes come from.
    """

    connection: psycopg.Connection
    namespaces: Mapping[str, str]
    policies: Policies
    refused: Callable[[psycopg.Error, TableName], PenstockError]
    noted: list[ShapeNote]
    log_id: str = ""

    def run(
        self,
        record: TableRecord,
        relation: Relation,
        table: TargetTable,
        *,
        emptied: bool,
        replaced: bool,
        fills: Mapping[str, str] = MappingProxyType({}),
    ) -> TableRecord:
        """Give the table the relation's shape; return the record to write. See `Alterer`.

        Raises SchemaChangeRefused, ShapeNotApplicable and the server's errors.
        """
        computed = [column.name for column in table.columns if column.generated]
        leaving, coming = computed_changes(record, relation)
        for change in [*leaving, *self._changes(record, relation, computed), *coming]:
            self.policies.check(change.kind, change.what, table=str(table.name))
        aside = names_in_the_way(
            record, relation, keeps_dropped=self.policies.keeps(ChangeKind.DROP_COLUMN)
        )
        if self.policies.keeps(ChangeKind.RENAME_COLUMN):
            aside = {}
        record = with_names(record, aside)
        names = column_renames(record, relation)
        known = self._under_new_names(record, names)
        changes = shape_changes(known, relation, TYPES, computed=computed)
        alterer = Alterer(
            record=record,
            relation=relation,
            table=table,
            namespaces=self.namespaces,
            emptied=emptied,
            replaced=replaced,
            fills=fills,
        )
        schema_drift = SchemaDrift.of(record)
        schema_drift.kept &= {column.name for column in table.columns}
        for change in leaving:
            self._one(change, alterer, schema_drift)
        if aside:
            self._execute_all(alterer.set_aside(aside), alterer)
        if leaving or aside:
            alterer = self._looked_again(alterer)
        for change in names:
            if not schema_drift.never_there(change):
                self._one(change, alterer, schema_drift)
                alterer = self._looked_again(alterer)
        left_out, kept = tuple(schema_drift.left_out), tuple(schema_drift.kept)
        alterer = replace(alterer, record=replace(known, left_out=left_out, kept=kept))
        alterer.check()
        for alteration in alterer.stop_computing():
            self._execute(alteration, alterer)
        for place, change in enumerate(changes):
            if place:  # columns were dropped and added
                alterer = self._looked_again(alterer)
            self._one(change, alterer, schema_drift)
        for change in coming:
            self._one(change, self._looked_again(alterer), schema_drift)
        self.noted.extend(schema_drift.applied_notes(table.name))
        return schema_drift.record(record, relation, log_id=self.log_id)

    def _changes(
        self, record: TableRecord, relation: Relation, computed: Sequence[str]
    ) -> list[ShapeChange]:
        """Return all changes under the names that columns have at the source, for messages."""
        names = column_renames(record, relation)
        known = self._under_new_names(record, names)
        return [*names, *shape_changes(known, relation, TYPES, computed=computed)]

    def _under_new_names(self, record: TableRecord, names: Sequence[ShapeChange]) -> TableRecord:
        is_key_kept = not self.policies.keeps(ChangeKind.RENAME_COLUMN)
        return under_new_names(record, names, is_key_kept=is_key_kept)

    def _looked_again(self, alterer: Alterer) -> Alterer:
        found = read_target_tables(self.connection, [alterer.table.name])
        return replace(alterer, table=require(found, alterer.table.name))

    def _one(self, change: ShapeChange, alterer: Alterer, schema_drift: SchemaDrift) -> None:
        policy, name = self.policies.of(change.kind), alterer.table.name
        if policy is not Policy.IGNORE and alterer.is_given_up_above(change):
            policy = Policy.LENIENT
        if policy is Policy.TRY_EVOLVE:
            policy = self._try(change, alterer, schema_drift)
        elif policy is Policy.EVOLVE:
            self._execute_all(alterer.evolve(change), alterer)
        elif policy is Policy.LENIENT:
            self._execute_all(alterer.lenient(change), alterer)
        else:
            logger.info("target table left as it is", table=str(name), change=change.what)
        schema_drift.went(change, policy)

    def _try(self, change: ShapeChange, alterer: Alterer, schema_drift: SchemaDrift) -> Policy:
        name = alterer.table.name
        try:
            with self.connection.transaction():
                self._execute_all(alterer.evolve(change), alterer)
        except PenstockError as error:
            is_renamed = change.kind is ChangeKind.RENAME_COLUMN
            is_key = is_renamed and change.name in (alterer.record.key or ())
            if error.retry == "backoff" or is_key:
                raise
            note = schema_drift.note(change, error.message)
            self.noted.append(ShapeNote(table=name, text=note))
            logger.warning("change of shape not applied", table=str(name), note=note)
            self._execute_all(alterer.lenient(change), alterer)
            return Policy.LENIENT
        return Policy.EVOLVE

    def _execute_all(self, alterations: list[Alteration], alterer: Alterer) -> None:
        for alteration in alterations:
            self._execute(alteration, alterer)

    def _execute(self, alteration: Alteration, alterer: Alterer) -> None:
        name = alterer.table.name
        try:
            if alteration.instead:
                try:
                    with self.connection.transaction():
                        self.connection.execute(alteration.sql)
                except INSTEAD:
                    self.connection.execute(alteration.instead)
            else:
                self.connection.execute(alteration.sql)
        except psycopg.Error as error:
            raise _impossible(self.refused(error, name), alteration, alterer) from error
        logger.info("target table altered", table=str(name), change=alteration.what)


def _impossible(error: PenstockError, alteration: Alteration, alterer: Alterer) -> PenstockError:
    """Return the error for an alteration that the target's rows, or its server, do not allow."""
    if not isinstance(error, ValueRefused | StatementFailed):
        return error
    table = alterer.relation.full_name
    return ShapeNotApplicable(
        f"{error.message}: {alteration.what}",
        hint=choice_hint(str(error.fields.get("sqlstate")), error.message)
        or f"Run: penstock table resync FILE {table}; it is copied again in its new shape.",
        **error.fields,
    )
