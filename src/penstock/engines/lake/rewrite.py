"""Rewriting of live files: their rows without the deleted ones, in new files. Runs in the workers.

One commit replaces the old files by the new ones. An added column gets its value in existing rows
this way where the format cannot keep it as the column's initial value, and a column another type
where the format cannot change that. Not here: the commit
(`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codec.types import ValueUnfit, convert_values, lake_arrow_type, parse_value
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
from penstock.ports.target import ShapeNotApplicable


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Files to be replaced by one.

    Attributes:
        files: Live files of one version and partition.
        before: The table's columns in that version.
        columns: The columns of the new file.
        fills: By name of a column that `before` lacks the text of its value.
        casts: By name of a column the one of `before` whose values it takes over, of another type.
        table: Name of the table, for errors.
        location: The new file.
        storage: See `WriterSpec`.
    """

    files: tuple[LiveFile, ...]
    before: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn, ...]
    location: str
    fills: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, LakeColumn] = field(default_factory=dict)
    table: str = ""
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
    here = {column.identity: batch.column(column.name) for column in task.before}
    return [
        _cast(here[task.casts[column.name].identity], column, task)
        if column.name in task.casts
        else found
        if found is not None
        else _value(column, task, batch.num_rows)
        for column in task.columns
        for found in [here.get(column.identity)]
    ]


def _cast(values: pa.Array, column: LakeColumn, task: RewriteTask) -> pa.Array:
    """Return values in a column's type. Raises ShapeNotApplicable for one that does not fit."""
    try:
        return convert_values(values, column.type)
    except ValueUnfit as error:
        raise ShapeNotApplicable(
            f"{task.table}: column {column.name} became {column.type}, and the lake has values "
            f"that it does not hold: {error}",
            hint="Compare it with `penstock verify`, and copy it again: penstock table resync FILE "
            "TABLE.",
            table=task.table,
        ) from error


def _value(column: LakeColumn, task: RewriteTask, count: int) -> pa.Array:
    text = task.fills.get(column.name)
    if text is None:
        return pa.nulls(count, lake_arrow_type(column.type))
    return pa.repeat(parse_value(text, column.type), count)
