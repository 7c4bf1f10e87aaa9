"""Steps of a batch that Spark merges: the change of shape first, then the rows with the mark.

Not here: the statements (`merging.py`), and their commits (`LakeTable.merge`).
"""

from __future__ import annotations

from penstock.engines.lake.format import Commit, LakeRows, Mark, Merge, Snapshot, WriterSpec
from penstock.engines.lake.known_tables import encode_record
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.shape import ShapePlan
from penstock.model import TableName
from penstock.ports.target import ShapeNotApplicable


def alter_table(
    lake: OpenLake, name: TableName, snapshot: Snapshot, plan: ShapePlan, *, is_emptied: bool
) -> bool:
    """Commit the change of a table's shape, with its record; return whether there was one.

    The record is in the same commit, so a crash before the rows leaves a whole table. A table that
    is emptied loses its rows before its columns change. Raises ShapeNotApplicable.
    """
    record = plan.shape.record
    if not plan.changes and record == lake.record(name):
        return False
    if plan.is_rewrite and snapshot.files:
        columns = ", ".join(sorted({*plan.fills, *plan.casts}))
        raise ShapeNotApplicable(
            f"existing rows of {name} need new values in {columns}, and rows are not rewritten "
            'with apply = "merge"',
            hint=f"Copy the table again: penstock table resync FILE {record.source}. Or let the "
            'existing rows have NULL: add_column = "lenient" in [target.policies].',
            table=str(name),
        )
    version = snapshot.version
    if is_emptied and plan.changes and snapshot.files:
        merged = lake.merge(name, Merge(base_version=version, is_emptied=True))
        version = merged.snapshot.version
    lake.commit(
        name,
        Commit(
            base_version=version,
            changes=plan.changes,
            record=encode_record(record),
            operation="alter",
        ),
    )
    return True


def merge_rows(
    lake: OpenLake,
    name: TableName,
    spec: WriterSpec | None,
    parts: tuple[LakeRows, ...],
    *,
    base_version: int,
    mark: Mark,
    is_emptied: bool,
) -> int | None:
    """Merge the staged rows of a table; return how many rows were found, if Spark tells it.

    spec: None if all rows are removed, and none are staged.
    """
    columns = () if spec is None else spec.columns
    key = [] if spec is None else [columns[index] for index in spec.relation.key]
    merge = Merge(
        base_version=base_version,
        columns={one.file_name: one for one in columns if one is not None},
        key=tuple(one.file_name for one in key if one is not None),
        parts=parts,
        is_emptied=is_emptied,
        mark=mark,
    )
    return lake.merge(name, merge).found_count
