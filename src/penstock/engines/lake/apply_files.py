"""Jobs that rewrite live files of a table. Not here: the work of their tasks (`rewrite.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.engines.lake.apply_lookups import group_files
from penstock.engines.lake.format import LakeColumn, LiveFile, NewFile, Partition, Snapshot
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.rewrite import RewriteTask, rewrite_files
from penstock.engines.lake.shape import ShapePlan
from penstock.model import TableName


def rewrite_table(
    lake: OpenLake, name: TableName, snapshot: Snapshot, plan: ShapePlan, *, token: str
) -> tuple[NewFile, ...]:
    """Write all live rows of a version with the columns of a plan; return the new files.

    token: Names of the files begin with it. Raises the errors of the workers and of the session.
    """
    tasks_max = max(len(snapshot.files), lake.jobs.parallelism)
    return rewrite_groups(
        lake,
        name,
        [
            group
            for files in by_partition(snapshot.files).values()
            for group in group_files(files, tasks_max=tasks_max)
        ],
        before=snapshot.columns,
        columns=plan.shape.columns,
        token=token,
        fills=plan.fills,
        casts=plan.casts,
    )


def by_partition(files: Iterable[LiveFile]) -> dict[Partition, list[LiveFile]]:
    """Return the files of each partition; all of a table without partitions are of one."""
    found: dict[Partition, list[LiveFile]] = {}
    for file in files:
        found.setdefault(file.partition, []).append(file)
    return found


def rewrite_groups(
    lake: OpenLake,
    name: TableName,
    groups: Sequence[tuple[LiveFile, ...]],
    *,
    before: tuple[LakeColumn, ...],
    columns: tuple[LakeColumn, ...],
    token: str,
    fills: Mapping[str, str] | None = None,
    casts: Mapping[str, LakeColumn] | None = None,
) -> tuple[NewFile, ...]:
    """Write the live rows of each group of files into one file; return the new files.

    Args:
        lake: The open lake.
        name: The table.
        groups: Live files of one version; those of a group are of one partition.
        before: The table's columns in that version.
        columns: The columns of the new files.
        token: Names of the new files begin with it.
        fills: See `RewriteTask`.
        casts: See `RewriteTask`.

    Raises the errors of the workers and of the session.
    """
    folder = lake.table(name).data_folder
    tasks = [
        [
            RewriteTask(
                files=group,
                before=before,
                columns=columns,
                location=f"{folder}/{token}-{number}.parquet",
                fills=fills or {},
                casts=casts or {},
                table=str(name),
                storage=lake.storage,
            )
        ]
        for number, group in enumerate(groups)
    ]
    rows = sum(file.row_count for group in groups for file in group)
    outcomes = lake.jobs.run(tasks, rewrite_files, description=f"{rows:,} rows of {name} again")
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return tuple(one.file for one in outcomes if one.file is not None)
