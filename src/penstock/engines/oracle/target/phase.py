"""Application of one phase of a batch: tables are emptied, then rows are merged.

Foreign keys that are DEFERRABLE, as those that penstock creates, are checked when the transaction
ends. The statements satisfy the others: rows of tables that nothing refers to are deleted first,
then rows are updated and inserted with parents before children, then the other rows are deleted
with children before parents.

The tables already have the last shape of the batch. A transaction of the source that alters a table
between its rows is one batch, so rows may have an earlier shape: their columns are found under
their new names, and columns that were dropped are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.target.alter import missing_value
from penstock.engines.oracle.target.catalog import TargetTable
from penstock.engines.oracle.target.merge import Merge, MergeSql, MergeStrategy
from penstock.engines.oracle.target.session import ApplySession
from penstock.model import LOAD_AFRESH, Relation, TableName
from penstock.ports.target import MergeSpec, PhaseSpec, TargetRowMissing
from penstock.sql.schema_drift import find_kept_merges
from penstock.sql.shape_changes import renamed_columns, replaced_columns
from penstock.sql.table_order import sort_by_keys

logger = structlog.get_logger(__name__)


class PhaseApply:
    """Application of one phase to the target, inside the batch's transaction."""

    def __init__(
        self, target: ApplySession, phase: PhaseSpec, shapes: Mapping[TableName, Relation]
    ) -> None:
        """Keep the parts. shapes: the last one of each source table that changes in the batch."""
        self.target = target
        self.phase = phase
        self.shapes = shapes

    def run(self) -> None:
        """Empty, then merge."""
        specs = self.phase.merges
        names = {spec.table for spec in specs}
        self.target.need({*names, *self.phase.truncated, *self.phase.reloaded})
        replaced = {
            one.table
            for one in find_kept_merges(self.phase, self.target.record, self.target.policies)
        }
        self._empty(replaced)
        merges = [
            self._merge_sql(spec) for spec in specs if spec.counts.upserts or spec.counts.deletes
        ]
        for merge in merges:
            if merge.table.name in replaced:
                self._run(merge.delete_others(), merge.table.name)
        self._merge(parents_first(merges))
        for spec in specs:
            self._fill_new(spec)

    def _last(self, relation: Relation) -> Relation | None:
        """Return the shape that a table of rows has now, if it changes in this batch."""
        return self.shapes.get(TableName(relation.schema, relation.name))

    def _merge_sql(self, spec: MergeSpec) -> MergeSql:
        table, translation = self.target.tables[spec.table], self.target.translation
        columns = {column.name: column for column in table.columns}
        relation, last = spec.relation, self._last(spec.relation)
        key = {relation.columns[index].name for index in relation.key}
        left_out = set(self.target.record(relation).left_out) - key if relation.key else set()
        current = {column.name for column in last.columns} if last is not None else set()
        dropped = {
            column.name
            for column in relation.columns
            if column.name not in columns
            and (column.name in left_out or (last is not None and column.name not in current))
        }
        renamed: dict[str, str] = {}
        if last is not None and last.source_id == relation.source_id:
            dropped |= replaced_columns(relation, last)
            renamed = {
                old: new for old, new in renamed_columns(relation, last).items() if new in columns
            }
            dropped -= renamed.keys()
            columns |= {old: columns[new] for old, new in renamed.items()}
        return MergeSql(
            Merge(
                relation=relation,
                table=table,
                staging=spec.staging,
                counts=spec.counts,
                absent_columns=spec.absent_columns,
                forms=translation.forms(relation),
                templates=translation.templates(relation, columns),
                dropped=frozenset(dropped),
                renamed=renamed,
            )
        )

    # --- emptying ---------------------------------------------------------------------------------

    def _empty(self, replaced: set[TableName]) -> None:
        """Delete all rows, children before parents: TRUNCATE would commit the transaction."""
        together = {*self.phase.truncated, *self.phase.reloaded} - replaced
        tables = [self.target.tables[name] for name in sorted(together)]
        for name in reversed(sort_by_keys(tables)):
            self._run(f"DELETE FROM {self.target.tables[name].sql_name}", name)

    # --- rows -------------------------------------------------------------------------------------

    def _merge(self, merges: Sequence[MergeSql]) -> None:
        for merge in merges:
            self._fill(merge)
        late = [merge for merge in merges if _is_late(merge)]
        for merge in reversed(merges):
            if merge not in late:
                self._delete(merge)
        for merge in merges:
            self._upsert(merge)
        for merge in reversed(late):
            self._delete(merge)

    def _fill(self, merge: MergeSql) -> None:
        """Check that rows with unsent columns are in the target; fill those whose key changed."""
        count = merge.count_absent()
        if count is None:
            return
        wanted, found, moved = self._counts(count)
        if found != wanted:
            raise _rows_missing(merge, wanted, found)
        if moved:
            self._expect(merge, merge.fill_absent(), moved)

    def _delete(self, merge: MergeSql) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            copies, _, _ = self._counts(merge.count_copies())
            if copies:
                self._expect(merge, merge.delete_copies(), copies)
        elif merge.merge.counts.deletes:
            self._run(merge.delete_gone(), merge.table.name)

    def _upsert(self, merge: MergeSql) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            self._insert_copies(merge)
            return
        wanted = merge.merge.counts.upserts
        if not wanted:
            return
        found = self._run(merge.merge_rows(), merge.table.name)
        if found != wanted and merge.changed_columns:
            raise _rows_missing(merge, wanted, found)

    def _insert_copies(self, merge: MergeSql) -> None:
        _, copies, most = self._counts(merge.count_copies())
        inserted = sum(
            self._run(merge.insert_copies(bit), merge.table.name)
            for bit in range(most.bit_length())
        )
        if inserted != copies:
            raise _rows_missing(merge, copies, inserted)

    def _fill_new(self, spec: MergeSpec) -> None:
        """Give rows of an earlier shape the values of columns that the table has since.

        No later change is applied yet, so that no other row lacks these values.
        """
        last = self._last(spec.relation)
        if last is None or last.source_id != spec.relation.source_id or not spec.counts.upserts:
            return
        table = self.target.tables[spec.table]
        numbers = {column.id for column in spec.relation.columns}
        names = {column.name for column in spec.relation.columns}
        types, fills = (
            self.target.translation.target_types(last),
            self.target.translation.fills(last),
        )
        for column in last.columns:
            is_old = column.id in numbers if column.id else column.name in names
            value = missing_value(column, types[column.name], fills)
            if is_old or not value or table.column(column.name) is None:
                continue
            name = quote(column.name)
            self._run(
                f"UPDATE {table.sql_name} SET {name} = {value} WHERE {name} IS NULL", spec.table
            )

    # --- running ----------------------------------------------------------------------------------

    def _counts(self, sql: str) -> tuple[int, ...]:
        (row,) = self.target.connection.execute(sql)
        return tuple(int(value) for value in row)

    def _expect(self, merge: MergeSql, sql: str, rows: int) -> None:
        found = self._run(sql, merge.table.name)
        if found != rows:
            raise _rows_missing(merge, rows, found)

    def _run(self, sql: str, table: TableName) -> int:
        return self.target.run(sql, table)


def _is_late(merge: MergeSql) -> bool:
    """Return whether rows must be deleted last, because rows of other tables may refer to them
    until those are updated.
    """
    is_keyed = merge.strategy is MergeStrategy.KEYED
    return is_keyed and any(not key.is_deferrable for key in merge.table.children)


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
    tables: list[TargetTable] = [merge.table for merge in merges]
    return [by_name[name] for name in sort_by_keys(tables)]
