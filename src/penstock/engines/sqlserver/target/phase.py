"""Application of one phase of a batch: tables are emptied and altered, then rows are merged.

Every statement satisfies the foreign keys: rows of tables that nothing refers to are deleted first,
then rows are updated and inserted with parents before children, then the other rows are deleted
with children before parents. Where no order satisfies them, or a unique key is in the way of that
order, the batch is repeated with foreign keys that are checked at its end (`Knowledge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetTable
from penstock.engines.sqlserver.target.merge import Merge, MergeSql, MergeStrategy
from penstock.engines.sqlserver.target.refusals import NO_TRUNCATE
from penstock.engines.sqlserver.target.reshape import Reshaping
from penstock.engines.sqlserver.target.session import ApplySession
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import (
    NEW,
    ForeignKeyBlocked,
    MergeSpec,
    PhaseSpec,
    TableRecord,
    TargetRowMissing,
    TruncateBlocked,
    UniqueBlocked,
    target_name,
)
from penstock.sql.schema_drift import find_kept_merges
from penstock.sql.shape_changes import is_applied, with_copied_ids
from penstock.sql.table_order import sort_by_keys

logger = structlog.get_logger(__name__)


class PhaseApply:
    """Application of one phase to the target, inside the batch's transaction."""

    def __init__(self, target: ApplySession, phase: PhaseSpec) -> None:
        self.target = target
        self.phase = phase

    def run(self) -> None:
        """Empty, alter, then merge."""
        specs = self.phase.merges
        names = {spec.table for spec in specs} | {*self.phase.truncated, *self.phase.reloaded}
        names |= {self._target_name(relation) for relation in self.phase.relations}
        self.target.need(names)
        replaced = {
            one.table for one in find_kept_merges(self.phase, self._record, self.target.policies)
        }
        self._empty(replaced)
        self._alter(replaced)
        merges = [
            self._merge_sql(spec) for spec in specs if spec.counts.upserts or spec.counts.deletes
        ]
        for merge in merges:
            if merge.table.name in replaced:
                self._run(merge.delete_others(), merge.table.name)
        self._merge(parents_first(merges))

    def _merge_sql(self, spec: MergeSpec) -> MergeSql:
        table, translation = self.target.tables[spec.table], self.target.translation
        columns = {column.name: column for column in table.columns}
        return MergeSql(
            Merge(
                relation=spec.relation,
                table=table,
                staging=spec.staging,
                counts=spec.counts,
                absent_columns=spec.absent_columns,
                templates=translation.templates(spec.relation, columns),
                as_text=translation.as_text(spec.relation),
                left_out=frozenset(self._record(spec.relation).left_out),
            )
        )

    def _record(self, relation: Relation) -> TableRecord:
        source = TableName(relation.schema, relation.name)
        return self.target.records.get(source, self._target_name(relation))

    def _target_name(self, relation: Relation) -> TableName:
        return target_name(TableName(relation.schema, relation.name), self.target.namespaces)

    # --- emptying ---------------------------------------------------------------------------------

    def _empty(self, replaced: set[TableName]) -> None:
        for name in self.phase.truncated:
            what = "all rows were removed (TRUNCATE)"
            self.target.policies.check(ChangeKind.TRUNCATE, what, table=str(name))
        together = {*self.phase.truncated, *self.phase.reloaded} - replaced
        tables = _children_first([self.target.tables[name] for name in sorted(together)])
        for table in tables:
            self._check_cascade(table, together)
            is_kept = table.name in self.target.knowledge.undeletable
            if table.is_referred_to or is_kept:
                self._run(f"DELETE FROM {table.sql_name}", table.name)
            else:
                self._truncate(table)

    def _truncate(self, table: TargetTable) -> None:
        try:
            self.target.run(f"TRUNCATE TABLE {table.sql_name}", table.name)
        except PenstockError as error:
            if error.fields.get("errno") not in NO_TRUNCATE:
                raise
            self.target.knowledge.undeletable.add(table.name)
            raise self.target.repeat(
                f"{table.name} cannot be truncated: {error.message}"
            ) from error

    def _check_cascade(self, table: TargetTable, together: Iterable[TableName]) -> None:
        """Refuse to empty a table if that would change rows of a table that stays as it is."""
        for key in table.children:
            acts = key.on_delete != "NO_ACTION" and not self.target.knowledge.defers_keys
            if acts and key.child not in set(together):
                raise TruncateBlocked(
                    f"target table {table.name} is emptied at the source, but {key.child} refers "
                    f"to it by foreign key {key.name}, which would change rows there",
                    hint=f"Run: ALTER TABLE {quote(*key.child)} DROP CONSTRAINT {quote(key.name)};",
                    table=str(table.name),
                )

    # --- changes of shape -------------------------------------------------------------------------

    def _alter(self, replaced: set[TableName]) -> None:
        target = self.target
        emptied = {*self.phase.truncated, *self.phase.reloaded}
        for relation in self.phase.relations:
            name, record = self._target_name(relation), self._record(relation)
            if is_applied(record, relation, target.log_id):
                continue
            reshaping = Reshaping(
                target=target,
                record=with_copied_ids(record, relation, self.phase.starts),
                relation=relation,
                name=name,
                is_emptied=name in emptied or self._is_empty(name),
                is_replaced=name in replaced,
            )
            target.records.put(reshaping.run())
            target.tables.pop(name, None)
            target.need({name})

    def _is_empty(self, name: TableName) -> bool:
        """Return whether a table has no rows: an earlier batch may have emptied it."""
        table = self.target.tables[name]
        return not self.target.connection.execute(f"SELECT TOP (1) 1 FROM {table.sql_name}")

    # --- rows -------------------------------------------------------------------------------------

    def _merge(self, merges: Sequence[MergeSql]) -> None:
        in_place = {merge.table.name: self._fill(merge) for merge in merges}
        late = [merge for merge in merges if self._is_late(merge)]
        for merge in reversed(merges):
            if merge not in late:
                self._delete(merge)
        for merge in merges:
            self._upsert(merge, in_place[merge.table.name])
        for merge in reversed(late):
            self._delete(merge)

    def _is_late(self, merge: MergeSql) -> bool:
        """Return whether rows must be deleted last, because rows of other tables may refer to them
        until those are updated.
        """
        is_keyed = merge.strategy is MergeStrategy.KEYED
        return is_keyed and bool(merge.table.children) and not self.target.knowledge.defers_keys

    def _fill(self, merge: MergeSql) -> int:
        """Fill unsent columns; return the number of rows that remain to be updated in place."""
        fill = merge.fill_absent()
        if fill is None:
            return 0
        whole, in_place = self._counts(merge.count_absent(), merge.table.name)
        if whole - in_place:
            self._expect(merge, fill, whole - in_place)
        return in_place

    def _delete(self, merge: MergeSql) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            copies, _, _ = self._counts(merge.count_copies(), merge.table.name)
            if copies:
                self._expect(merge, merge.delete_copies(), copies)
        elif merge.strategy is MergeStrategy.REPLACE:
            self._run(merge.delete_affected(), merge.table.name)
        elif merge.merge.counts.deletes:
            self._run(merge.delete_gone(), merge.table.name)

    def _upsert(self, merge: MergeSql, in_place: int) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            self._insert_copies(merge)
            return
        if in_place:
            self._expect(merge, merge.update_in_place(), in_place)
        wanted = merge.merge.counts.upserts - in_place
        if wanted:
            self._update_and_insert(merge, wanted)

    def _update_and_insert(self, merge: MergeSql, wanted: int) -> None:
        """Upsert rows as known or new, as the log says, and where it is wrong as the target is."""
        new, table = merge.merge.counts.new, merge.table.name
        known = wanted - new
        can_update = merge.strategy is MergeStrategy.KEYED and bool(merge.changed_columns)
        updated = self._run(merge.update_rows(), table) if known and can_update else 0
        if updated == wanted:
            return
        inserted = self._insert(merge)
        if updated + inserted == wanted or not merge.changed_columns:
            return
        if merge.strategy is MergeStrategy.REPLACE:
            raise _rows_missing(merge, wanted, inserted)
        logger.warning("rows that should not be in the target are", table=str(table))
        self._expect(merge, merge.update_rows(kind=NEW), new)

    def _insert(self, merge: MergeSql) -> int:
        with self.target.identity_insert(merge.table, is_needed=merge.has_identity):
            return self._run(merge.insert_missing(), merge.table.name)

    def _insert_copies(self, merge: MergeSql) -> None:
        _, copies, most = self._counts(merge.count_copies(), merge.table.name)
        inserted = 0
        with self.target.identity_insert(merge.table, is_needed=merge.has_identity and copies > 0):
            for bit in range(most.bit_length()):
                inserted += self._run(merge.insert_copies(bit), merge.table.name)
        if inserted != copies:
            raise _rows_missing(merge, copies, inserted)

    # --- running ----------------------------------------------------------------------------------

    def _counts(self, sql: str, table: TableName) -> tuple[int, ...]:
        del table
        (row,) = self.target.connection.execute(sql)
        return tuple(int(value) for value in row)

    def _expect(self, merge: MergeSql, sql: str, rows: int) -> None:
        found = self._run(sql, merge.table.name)
        if found != rows:
            raise _rows_missing(merge, rows, found)

    def _run(self, sql: str, table: TableName) -> int:
        """Run a statement; a foreign or unique key that refuses it is given a second order."""
        knowledge = self.target.knowledge
        try:
            return self.target.run(sql, table)
        except (ForeignKeyBlocked, UniqueBlocked) as error:
            has_keys = bool(self.target.tables[table].children or self.target.tables[table].parents)
            if knowledge.defers_keys or not has_keys:
                raise
            knowledge.defers_keys = True
            raise self.target.repeat(error.message) from error


def _rows_missing(merge: MergeSql, wanted: int, found: int) -> TargetRowMissing:
    name = merge.table.name
    return TargetRowMissing(
        f"target table {name}: {wanted} rows were to be changed, {found} were found",
        hint="Another client writes to the table, or its rows are not the source's: run "
        f"`penstock verify`. {LOAD_AFRESH}",
        table=str(name),
        expected=wanted,
        actual=found,
    )


def parents_first(merges: Sequence[MergeSql]) -> list[MergeSql]:
    """Sort tables by foreign keys, parents before children; in a cycle names decide."""
    by_name = {merge.table.name: merge for merge in merges}
    return [by_name[name] for name in sort_by_keys(merge.table for merge in merges)]


def _children_first(tables: Sequence[TargetTable]) -> list[TargetTable]:
    by_name = {table.name: table for table in tables}
    return [by_name[name] for name in reversed(sort_by_keys(tables))]
