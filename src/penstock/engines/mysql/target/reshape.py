"""Changes of a table's shape by policy: choice of clauses, with others if the server refuses some.

All changes of a table are in one ALTER TABLE, which the servers run whole or not at all. Not here:
the SQL of a change (`alter.py`), the time at which it runs (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from penstock.engines.mysql.target.alter import Alterer, Clause, alter_table, fill_new, without_vain
from penstock.engines.mysql.target.refusals import is_of_rows
from penstock.engines.mysql.target.target import TargetTable
from penstock.host import faults
from penstock.model import PenstockError, Relation
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import (
    ShapeNotApplicable,
    ShapeNote,
    TableRecord,
    UniqueBlocked,
    ValueRefused,
)
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import (
    ShapeChange,
    TypeRules,
    column_renames,
    names_in_the_way,
    shape_changes,
    under_new_names,
    with_names,
)

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a table to its new shape.

    Attributes:
        record: the copy, with the names that columns have once those in the way are set aside.
        aside: columns that are first of all renamed temporarily.
        names: columns renamed in place, before the others.
    """

    record: TableRecord
    aside: Mapping[str, str]
    names: tuple[ShapeChange, ...]
    others: tuple[ShapeChange, ...]


class Reshaping:
    """Change of one table to another shape."""

    def __init__(
        self,
        policies: Policies,
        types: TypeRules,
        run: Callable[[str], object],
        convert: Callable[[str], object],
        noted: list[ShapeNote],
        log_id: str,
    ) -> None:
        """Keep the parts. run: executes a statement and raises typed errors, also for warnings.

        convert: the same without the warnings, for old rows that the batch removes or replaces.
        noted: receives the changes, applied or not. log_id: the log that shapes are from.
        """
        self._noted = noted
        self._log_id = log_id
        self._policies = policies
        self._types = types
        self._run = run
        self._convert = convert

    def changes(self, record: TableRecord, relation: Relation, table: TargetTable) -> Changes:
        """Return the changes to make. Raises SchemaChangeRefused, ShapeNotApplicable."""
        computed = [column.name for column in table.columns if column.generated]
        for change in self._all(record, relation, computed):
            self._policies.check(change.kind, change.what, table=str(record.target))
        aside = names_in_the_way(
            record,
            relation,
            keeps_dropped=self._policies.keeps(ChangeKind.DROP_COLUMN),
            fold=True,
        )
        if self._policies.keeps(ChangeKind.RENAME_COLUMN):
            aside = {}
        record = with_names(record, aside)
        names = column_renames(record, relation)
        known = self._under_new_names(record, names)
        others = shape_changes(known, relation, self._types, computed=computed)
        return Changes(record=record, aside=aside, names=tuple(names), others=tuple(others))

    def _all(
        self, record: TableRecord, relation: Relation, computed: Sequence[str]
    ) -> list[ShapeChange]:
        """Return all changes under the names that columns have at the source, for messages."""
        names = column_renames(record, relation)
        known = self._under_new_names(record, names)
        return [*names, *shape_changes(known, relation, self._types, computed=computed)]

    def _under_new_names(self, record: TableRecord, names: Sequence[ShapeChange]) -> TableRecord:
        policy = self._policies.of(ChangeKind.RENAME_COLUMN)
        is_key_kept = policy in (Policy.EVOLVE, Policy.TRY_EVOLVE)
        return under_new_names(record, names, is_key_kept=is_key_kept)

    def carry_out(
        self,
        found: Changes,
        alterer: Alterer,
        look_again: Callable[[], TargetTable],
        put: Callable[[TableRecord], None],
    ) -> TableRecord:
        """Alter the table; return the record to write. Safe to repeat.

        look_again: returns the present table. put: writes a record at once. Raises
        ShapeNotApplicable and the refusals of the server.
        """
        if found.aside:
            # The record has these names before the columns get their final ones, for a repetition.
            self._alter(alterer.set_aside(found.aside), alterer)
            faults.point("load.alter.aside")
            put(found.record)
            alterer = replace(alterer, record=found.record, table=look_again())
        schema_drift = SchemaDrift.of(alterer.record)
        before = alterer.record
        for change in found.names:
            if not schema_drift.never_there(change):
                self._rename(change, alterer, schema_drift)
                alterer = replace(alterer, table=look_again())
        known = replace(
            self._under_new_names(before, found.names),
            left_out=tuple(schema_drift.left_out),
            kept=tuple(schema_drift.kept),
        )
        computed = alterer.drop_computed(found.others)
        if computed and self._policies.of(ChangeKind.DROP_COLUMN) in (
            Policy.EVOLVE,
            Policy.TRY_EVOLVE,
        ):
            self._alter(computed, alterer)
            alterer = replace(alterer, table=look_again())
        self._others(found.others, replace(alterer, record=known), schema_drift)
        self._noted += schema_drift.applied_notes(alterer.table.name)
        return schema_drift.record(before, alterer.relation, log_id=self._log_id)

    def _rename(self, change: ShapeChange, alterer: Alterer, schema_drift: SchemaDrift) -> None:
        """Rename a column in a statement of its own: in a common one, other clauses would see the
        old name.
        """
        policy = self._policies.of(change.kind)
        if policy is Policy.TRY_EVOLVE:
            try:
                self._alter(alterer.evolve(change), alterer)
            except PenstockError as error:
                if error.retry == "backoff" or change.name in (alterer.record.key or ()):
                    raise
                policy = Policy.LENIENT
                self._note(schema_drift, alterer, change, error)
                self._alter(alterer.lenient(change), alterer)
            else:
                policy = Policy.EVOLVE
        else:
            self._alter(_clauses(alterer, change, policy), alterer)
        schema_drift.went(change, policy)

    def _others(
        self, changes: Sequence[ShapeChange], alterer: Alterer, schema_drift: SchemaDrift
    ) -> None:
        """Make all changes except new names, in one ALTER TABLE."""
        alterer.check()
        ways: dict[int, Policy] = {}
        clauses = alterer.stop_computing()
        for place, change in enumerate(changes):
            ways[place] = self._policies.of(change.kind)
            if ways[place] is Policy.TRY_EVOLVE:
                try:
                    clauses += alterer.evolve(change)
                except ShapeNotApplicable as error:
                    ways[place] = Policy.LENIENT
                    self._note(schema_drift, alterer, change, error)
                    clauses += alterer.lenient(change)
            else:
                clauses += _clauses(alterer, change, ways[place])
        try:
            self._alter(clauses, alterer)
        except PenstockError as error:
            tried = [place for place, way in ways.items() if way is Policy.TRY_EVOLVE]
            if error.retry == "backoff" or not tried:
                raise
            for place in tried:
                ways[place] = Policy.LENIENT
                self._note(schema_drift, alterer, changes[place], error)
            clauses = alterer.stop_computing()
            for place, change in enumerate(changes):
                clauses += _clauses(alterer, change, ways[place])
            self._alter(clauses, alterer)
        for place, change in enumerate(changes):
            way = ways[place]
            schema_drift.went(change, Policy.EVOLVE if way is Policy.TRY_EVOLVE else way)

    def _note(
        self, schema_drift: SchemaDrift, alterer: Alterer, change: ShapeChange, error: PenstockError
    ) -> None:
        note = schema_drift.note(change, error.message)
        self._noted.append(ShapeNote(table=alterer.table.name, text=note))
        table = str(alterer.table.name)
        logger.warning("change of shape not applied", table=table, note=note)

    def _alter(self, clauses: Sequence[Clause], alterer: Alterer) -> None:
        table, name = alterer.table, str(alterer.table.name)
        clauses = without_vain(clauses)
        statement, fill = alter_table(table, clauses), fill_new(table, clauses)
        if any(clause.empties for clause in clauses):
            self._run(f"delete from {table.sql_name}")
        if statement and (alterer.emptied or alterer.replaced):
            try:
                self._convert(statement)
            except (UniqueBlocked, ValueRefused) as error:
                if not is_of_rows(error):
                    raise
                for sql in alterer.free(clauses):
                    self._run(sql)
                faults.point("load.alter.freed")
                self._convert(statement)
        elif statement:
            self._run(statement)
        if fill:
            faults.point("load.alter.fill")
            self._run(fill)
        for clause in clauses:
            logger.info("target table altered", table=name, change=clause.what)


def _clauses(alterer: Alterer, change: ShapeChange, policy: Policy) -> list[Clause]:
    if policy is Policy.IGNORE:
        return []
    return alterer.evolve(change) if policy is Policy.EVOLVE else alterer.lenient(change)
