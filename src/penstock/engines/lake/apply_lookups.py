"""Lookups of a batch's keys: which live files can have them, and one Spark job for all tables.

Not here: finding keys in files (`lookup.py`, in the workers).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.engines.lake.format import (
    LakeColumn,
    LakeRows,
    LiveFile,
    LookupOutcome,
    LookupTask,
    Snapshot,
    WriterSpec,
)
from penstock.engines.lake.lookup import look_up
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.storage import remove_file
from penstock.model import TableName

Wanted = tuple[WriterSpec, Snapshot, tuple[LakeRows, ...]]

ROWS_PER_TASK = 1_000_000
"""Number of rows of live files whose keys one task reads at least, if there are so many."""

NAMES_SHOWN_MAX = 5


def look_up_keys(
    lake: OpenLake, wanted: Mapping[TableName, Wanted], *, token: str
) -> dict[TableName, list[LookupOutcome]]:
    """Find the staged keys of tables in their live files; return each table's outcomes.

    Args:
        lake: The open lake.
        wanted: By the lake's name of a table: facts of its writers, the version to look in, and the
            staged parts.
        token: Names of the files that are written begin with it.

    Raises the errors of the workers and of the session.
    """
    jobs = lake.jobs if wanted else None
    if jobs is None:
        return {}
    tasks = [
        task
        for number, (name, one) in enumerate(sorted(wanted.items()))
        for task in _tasks_of(lake, name, one, f"{token}-{number}", jobs.parallelism)
    ]
    if not tasks:
        return {}
    listed = ", ".join(str(name) for name in sorted(wanted)[:NAMES_SHOWN_MAX])
    rows = sum(file.row_count for task in tasks for file in task.files)
    outcomes = jobs.run(
        share_out(tasks, partitions_max=jobs.parallelism),
        look_up,
        description=f"keys of {listed} in {rows:,} rows",
    )
    found: dict[TableName, list[LookupOutcome]] = {}
    for outcome in sorted(outcomes, key=lambda one: one.part):
        if outcome.error is not None:
            raise outcome.error
        found.setdefault(outcome.table, []).append(outcome)
    return found


def _tasks_of(
    lake: OpenLake, name: TableName, one: Wanted, token: str, tasks_max: int
) -> list[LookupTask]:
    spec, snapshot, parts = one
    staged = tuple(part for part in parts if part.key_count or part.open_count)
    key = tuple(
        column for index in spec.relation.key if (column := spec.columns[index]) is not None
    )
    renamed = files_under(spec.columns, snapshot)
    files = [file for file in renamed if may_have(file, staged)]
    table = lake.table(name)
    return [
        LookupTask(
            table=name,
            key=key,
            columns=spec.columns,
            relation=spec.relation,
            files=group,
            staged=tuple(part for part in staged if any(may_have(file, [part]) for file in group)),
            form=table.delete_form,
            data_folder=table.data_folder,
            deletes_folder=table.deletes_folder,
            token=f"{token}-{number}",
            part=number,
            source_engine=spec.source_engine,
            choices=spec.choices,
            storage=spec.storage,
            partition=spec.partition,
        )
        for number, group in enumerate(group_files(files, tasks_max=tasks_max if key else 1))
    ]


def files_under(columns: Iterable[LakeColumn | None], snapshot: Snapshot) -> Sequence[LiveFile]:
    """Return the live files of a version with their bounds under the names of these columns.

    Keys are staged with the names that the columns get in the same commit: one may have had
    another's name before.
    """
    before = {column.identity: column.name for column in snapshot.columns}
    names = {before.get(one.identity, ""): one.name for one in columns if one is not None}
    names.pop("", None)  # of an added column, which no file has
    if all(old == new for old, new in names.items()) and len(names) == len(before):
        return snapshot.files
    return [
        replace(file, bounds={names[old]: one for old, one in file.bounds.items() if old in names})
        for file in snapshot.files
    ]


def may_have(file: LiveFile, parts: Iterable[LakeRows]) -> bool:
    """Return whether a live file may have a key of these parts, by its bounds."""
    return any(may_have_keys(file, part.key_bounds) for part in parts)


def may_have_keys(file: LiveFile, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Return whether a live file may have a key within bounds, by its own bounds."""
    return file.row_count > file.dead_count and _overlaps(file.bounds, bounds)


def _overlaps(file: Mapping[str, tuple[Any, Any]], keys: Mapping[str, tuple[Any, Any]]) -> bool:
    for name, (low, high) in keys.items():
        bounds = file.get(name)
        if bounds is None:
            continue
        with contextlib.suppress(TypeError):  # values that are not compared exclude nothing
            if bounds[1] < low or high < bounds[0]:
                return False
    return True


def group_files(files: Sequence[LiveFile], *, tasks_max: int) -> list[tuple[LiveFile, ...]]:
    """Return groups of about equal numbers of rows; small tables have one."""
    rows = sum(file.row_count for file in files)
    count = max(1, min(len(files), tasks_max, -(-rows // ROWS_PER_TASK)))
    groups: list[list[LiveFile]] = [[] for _ in range(count)]
    loads = [0] * count
    for file in sorted(files, key=lambda one: (-one.row_count, one.name)):
        lightest = loads.index(min(loads))
        loads[lightest] += file.row_count + 1
        groups[lightest].append(file)
    return [tuple(group) for group in groups if group]


def share_out(tasks: Sequence[LookupTask], *, partitions_max: int) -> list[list[LookupTask]]:
    """Return the tasks in partitions of about equal cost; few tasks have few partitions."""
    costs = [
        (sum(file.row_count for file in task.files) + ROWS_PER_TASK // 20, number)
        for number, task in enumerate(tasks)
    ]
    total = sum(cost for cost, _ in costs)
    count = max(1, min(len(tasks), partitions_max, -(-total // (ROWS_PER_TASK // 2))))
    loads = [0] * count
    result: list[list[LookupTask]] = [[] for _ in range(count)]
    for cost, number in sorted(costs, reverse=True):
        lightest = loads.index(min(loads))
        loads[lightest] += cost
        result[lightest].append(tasks[number])
    return [part for part in result if part]


def discard(outcomes: Iterable[LookupOutcome], storage: Mapping[str, str]) -> None:
    """Remove the files of lookups whose commit was refused; they are garbage if that fails."""
    locations = {
        location
        for outcome in outcomes
        for location in (
            *(file.location for file in outcome.adds),
            *(one.ref.location for one in outcome.deletes),
        )
        if location
    }
    for location in sorted(locations):
        with contextlib.suppress(OSError):
            remove_file(location, storage)
