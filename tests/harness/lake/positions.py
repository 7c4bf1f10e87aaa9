"""Table of a lake without a catalogue: files and deletions as the workers write them.

Batches go through the fold, the writer and the lookup, and the files that they return become live
as a commit would make them. Rows are read by pyarrow, without the rows at deleted positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.pipelines.changes import Change, batch
from penstock.base.fold import FoldedRows, fold
from penstock.codec.types import NO_CHOICES, Choices, map_lake_column
from penstock.engines.lake.deletions import read_deleted
from penstock.engines.lake.format import (
    Commit,
    DeleteForm,
    LakeColumn,
    LakeRows,
    LakeTable,
    LiveFile,
    LookupOutcome,
    LookupTask,
    Mark,
    NewFile,
    WriterSpec,
)
from penstock.engines.lake.lookup import look_up
from penstock.engines.lake.writer import LakeWriter
from penstock.load.split import Bucket
from penstock.model import Relation, TableName

TOKEN = "0123456789abcdef"


def lake_columns(
    relation: Relation, *, field_ids: bool = False, choices: Choices = NO_CHOICES
) -> tuple[LakeColumn, ...]:
    """Return the columns that a lake makes for a relation."""
    return tuple(
        LakeColumn(
            name=column.name,
            type=map_lake_column(column, "postgresql", choices=choices).type,
            field_id=place if field_ids else 0,
        )
        for place, column in enumerate(relation.columns, start=1)
    )


@dataclass
class PositionTable:
    """Table in a folder, or in a lake.

    Attributes:
        lake: Table of a format, into which batches are committed; None: there are only files.
        columns: For each column of the relation, the lake's.
        files: Live files.
        outcomes: Outcomes of the last batch's lookups.
        staged: Staged parts of the last batch.
    """

    folder: Path
    relation: Relation
    columns: tuple[LakeColumn | None, ...]
    form: DeleteForm = DeleteForm.PUFFIN
    files: list[LiveFile] = field(default_factory=list)
    outcomes: list[LookupOutcome] = field(default_factory=list)
    staged: tuple[LakeRows, ...] = ()
    lake: LakeTable | None = None
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def of(cls, lake: LakeTable, relation: Relation) -> PositionTable:
        """Return the table of a lake that was created with the columns of a relation."""
        columns = lake.snapshot().columns
        folder = Path(lake.location)
        return cls(folder, relation, columns, lake.delete_form, lake=lake)

    def apply(
        self,
        changes: Sequence[Change],
        *,
        sizes: Sequence[int] = (7,),
        buckets: int = 1,
        tasks: int = 1,
        ordered: bool = True,
        overlaps: bool = False,
        is_emptied: bool = False,
    ) -> None:
        """Apply changes as one batch."""
        frames, at = [], 0
        while at < len(changes):
            size = sizes[len(frames) % len(sizes)]
            frames.append(batch(self.relation, changes[at : at + size]))
            at += size
        self.apply_frames(
            frames,
            buckets=buckets,
            tasks=tasks,
            ordered=ordered,
            overlaps=overlaps,
            is_emptied=is_emptied,
        )

    def apply_frames(
        self,
        frames: Sequence[pa.RecordBatch],
        *,
        buckets: int = 1,
        tasks: int = 1,
        ordered: bool = True,
        overlaps: bool = False,
        is_emptied: bool = False,
    ) -> None:
        """Apply frames of the log as one batch."""
        number = next(self._numbers)
        spec = replace(self.spec(number), overlaps=overlaps, is_emptied=is_emptied)
        self.staged = tuple(
            self._stage(spec, frames, bucket, buckets, ordered=ordered, overlaps=overlaps)
            for bucket in range(buckets)
        )
        if self.lake is not None:
            self.files = list(self.lake.snapshot().files)
        if is_emptied:
            self.files = []
        self.outcomes = list(look_up(iter(self._tasks(number, tasks))))
        for outcome in self.outcomes:
            if outcome.error is not None:
                raise outcome.error
        if self.lake is None:
            self._commit()
        else:
            self._commit_to(self.lake, number, is_emptied=is_emptied)

    def spec(self, number: int = 0) -> WriterSpec:
        """Return the facts of a writer."""
        name = TableName(self.relation.schema, self.relation.name)
        return WriterSpec(
            table=name,
            target=name,
            relation=self.relation,
            source_engine="postgresql",
            columns=self.columns,
            data_folder=f"{self.folder}/data" if self.lake is None else self.lake.data_folder,
            side_folder=f"{self.folder}/_penstock",
            stamp=number,
            token=f"{TOKEN}-{number}",
        )

    def _stage(
        self,
        spec: WriterSpec,
        frames: Sequence[pa.RecordBatch],
        number: int,
        buckets: int,
        *,
        ordered: bool,
        overlaps: bool,
    ) -> LakeRows:
        own: Any = list(frames)
        if buckets > 1:
            own = Bucket(self.relation, own, number=number, count=buckets, changes_keys=True)
        writer = LakeWriter(spec)
        return writer.write(
            FoldedRows(
                net=fold(self.relation, own, overlaps=overlaps),
                layout=writer.layout,
                frames=own,
                part=number,
                in_key_order=ordered,
            )
        )

    def _tasks(self, number: int, count: int) -> list[LookupTask]:
        staged = tuple(one for one in self.staged if one.key_count or one.open_count)
        if not staged:
            return []
        count = count if self.relation.key else 1
        key = tuple(self.columns[index] for index in self.relation.key)
        spec = self.spec(number)
        return [
            LookupTask(
                table=spec.target,
                key=tuple(one for one in key if one is not None),
                columns=self.columns,
                relation=self.relation,
                files=tuple(self.files[part::count]),
                staged=staged,
                form=self.form,
                data_folder=spec.data_folder,
                deletes_folder=self.lake.deletes_folder if self.lake else spec.data_folder,
                token=f"{TOKEN}-lookup{number}-{part}",
                part=part,
                source_engine="postgresql",
            )
            for part in range(count)
        ]

    def _commit(self) -> None:
        deletes = {one.name: one for outcome in self.outcomes for one in outcome.deletes}
        self.files = [
            replace(file, deletes=(deletes[file.name].ref,)) if file.name in deletes else file
            for file in self.files
        ]
        for staged in self.staged:
            self.files += map(live, staged.adds)
        for outcome in self.outcomes:
            self.files += map(live, outcome.adds)

    def _commit_to(self, lake: LakeTable, number: int, *, is_emptied: bool) -> None:
        new: list[LakeRows | LookupOutcome] = [*self.staged, *self.outcomes]
        lake.commit(
            Commit(
                base_version=lake.snapshot().version,
                adds=tuple(file for one in new for file in one.adds),
                deletes=tuple(file for one in self.outcomes for file in one.deletes),
                removes_all=is_emptied,
                mark=Mark(log_id="a-log", gsn=number, position=number),
            )
        )

    def found_count(self) -> int:
        """Return the number of rows that the last batch deleted."""
        return sum(one.found_count for one in self.outcomes)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all live rows, in any order."""
        found: list[tuple[Any, ...]] = []
        for file in self.files:
            table = pq.read_table(file.location)
            dead = read_deleted(file, {})
            assert len(dead) == file.dead_count
            is_live = np.ones(table.num_rows, np.bool_)
            is_live[dead] = False
            columns = [
                table.filter(pa.array(is_live)).column(column.file_name).to_pylist()
                for column in self.columns
                if column is not None
            ]
            found += list(zip(*columns, strict=True))
        return found


def live(file: NewFile) -> LiveFile:
    """Return a new file as a committed one."""
    return LiveFile(
        name=f"file:{file.location}",
        location=file.location,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        bounds={
            name: (one.low, one.high)
            for name, one in file.statistics.items()
            if one.low is not None
        },
    )
