"""Jobs that rewrite all live files of a table. Not here: the work of their tasks (`rewrite.py`)."""

from __future__ import annotations

from penstock.engines.lake.apply_lookups import group_files
from penstock.engines.lake.format import NewFile, Snapshot
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
    jobs = lake.jobs
    table = lake.table(name)
    tasks = [
        RewriteTask(
            files=group,
            before=snapshot.columns,
            columns=plan.shape.columns,
            location=f"{table.data_folder}/{token}-{number}.parquet",
            fills=plan.fills,
            storage=lake.storage,
        )
        for number, group in enumerate(
            group_files(snapshot.files, tasks_max=max(len(snapshot.files), jobs.parallelism))
        )
    ]
    rows = sum(file.row_count for file in snapshot.files)
    outcomes = jobs.run(
        [[task] for task in tasks], rewrite_files, description=f"{rows:,} rows of {name} again"
    )
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return tuple(one.file for one in outcomes if one.file is not None)
