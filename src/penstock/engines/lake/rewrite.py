"""Rewriting of live files: their rows without the deleted ones, in new files. Runs in the workers.

One commit replaces the old files by the new ones. An added column gets its value in existing rows
this way where the format cannot keep it as the column's initial value. Not here: the commit
(`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codec.types import convert_values, lake_arrow_type
from penstock.engines.lake.format import (
    LakeColumn,
    LakeUnreachable,
    LiveFile,
    NewFile,
    Partition,
)
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.rows import read_rows
from penstock.model import PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Files to be replaced by one.

    Attributes:
        files: Live files of one version and partition.
        before: The table's columns in that version.
        columns: The columns of the new file.
        fills: By name of a column that `before` lacks the text of its value.
        location: The new file.
        storage: See `WriterSpec`.
    """

    files: tuple[LiveFile, ...]
    before: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn, ...]
    location: str
    fills: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    """Result of a task: the new file, None if no row was left. error: if set, there is no file."""

    file: NewFile | None = None
    error: PenstockError | None = None


def rewrite_files(tasks: Iterator[RewriteTask]) -> Iterable[RewriteOutcome]:
    """Yield the outcome of each task; Spark calls this function."""
    for task in tasks:
        try:
            yield RewriteOutcome(file=_rewrite(task))
        except PenstockError as error:
            yield RewriteOutcome(error=error)
            return


def _rewrite(task: RewriteTask) -> NewFile | None:
    try:
        with DataWriter(task.location, task.columns, task.storage, _partition(task)) as writer:
            for file in task.files:
                for batch in read_rows(file, task.before, task.storage):
                    writer.write(_arrays(task, batch))
    except OSError as error:
        raise LakeUnreachable(
            f"cannot write {task.location}: {error}",
            hint="Check that the storage answers, has room, and that the workers may write there.",
        ) from error
    return writer.new_file


def _partition(task: RewriteTask) -> Partition:
    (partition,) = {file.partition for file in task.files}
    return partition


def _arrays(task: RewriteTask, batch: pa.RecordBatch) -> list[pa.Array]:
    here = {_identity(column): batch.column(column.name) for column in task.before}
    return [
        found if found is not None else _value(column, task, batch.num_rows)
        for column in task.columns
        for found in [here.get(_identity(column))]
    ]


def _identity(column: LakeColumn) -> int | str:
    """Return what a column keeps when it is renamed."""
    return column.field_id or column.file_name


def _value(column: LakeColumn, task: RewriteTask, count: int) -> pa.Array:
    text = task.fills.get(column.name)
    if text is None:
        return pa.nulls(count, lake_arrow_type(column.type))
    value = convert_values(pa.array([text], pa.string()), column.type)
    return pa.repeat(value[0], count)
