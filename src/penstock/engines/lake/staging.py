"""Staging for a lake: the writers of a batch's rows, and the files that wait for their commit.

Rows are written as Parquet files into the folders of the tables, where no reader sees them until a
commit names them. Keys to look up and rows to complete are in files of our own. A batch's files
have names that begin with its token, which is recorded before the first file, so that files of a
batch that was given up are found again. Not here: the writers (`writer.py`), commits (`apply.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import structlog

from penstock.engines.lake.format import PartitionField, WriterSpec
from penstock.engines.lake.history_writer import LakeHistoryWriter
from penstock.engines.lake.merging import key_missing
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.partitions import show_terms, terms_of
from penstock.engines.lake.shape import Planner, Shape, columns_for
from penstock.engines.lake.state import StagedState
from penstock.engines.lake.writer import LakeWriter, staged_columns
from penstock.host import faults
from penstock.model import TableName
from penstock.ports import target as port
from penstock.ports.target import (
    Applied,
    FileProgress,
    MergeTable,
    Staging,
    TableSync,
    TargetProgress,
)

logger = structlog.get_logger(__name__)

faults.declare("lake.stage.recorded")

NAME_ROOM = 1000  # a staging name is only a name


class LakeProgress(TargetProgress):
    """Progress rows of a lake, as the stager writes them.

    The applied position and table syncs are in the table of batches.
    """

    def __init__(self, lake: OpenLake) -> None:
        """Keep the lake."""
        self._lake = lake

    def ensure_tables(self) -> None:
        self._lake.state.check_writable()

    def bind_log(self, log_id: str) -> Applied:
        return self._lake.bind(log_id)

    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        """Check the place; a batch's row moves it."""
        del log_id, after
        self._lake.batches.check_at(before)

    def begin_files(self, files: Iterable[str]) -> None:
        self._lake.state.begin_files(self._lake.log_id, list(files))

    def end_files(self, files: Iterable[FileProgress]) -> None:
        self._lake.state.end_files(self._lake.log_id, files)

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self._lake.read_syncs()

    def write_table_sync(self, row: TableSync) -> None:
        self._lake.write_syncs([row], self._lake.batches.applied_place)


class LakeStaging(Staging):
    """Stager's side of a lake. It runs in a thread of its own, while another batch is applied."""

    def __init__(self, lake: OpenLake) -> None:
        """Keep the lake, which is bound to its log."""
        self.progress = LakeProgress(lake)
        self.takes_history = lake.histories is not None
        self._lake = lake
        self._places: dict[int, StagedState] = {}
        self._stamps: dict[int, tuple[int, ...]] = {}
        self._shapes: dict[TableName, Shape] = {}
        self._told: set[TableName] = set()

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        return port.staging_name(merge_name, place=place, use=use, room=NAME_ROOM)

    def merge_name(self, table: TableName, target: TableName) -> str:
        del table
        return f"{target}_wkm"

    def prepare(
        self, wanted: Sequence[MergeTable], *, place: int, source_engine: str
    ) -> dict[str, LakeWriter | LakeHistoryWriter]:
        """Return the writers of a batch. Raises TargetTableMissing, ShapeNotApplicable."""
        self._clear(place)
        if not wanted:
            return {}
        lake, token = self._lake, secrets.token_hex(8)
        folders = {one.target: lake.folders_of(one.target) for one in wanted}
        folders |= {
            name: lake.folders_of(name)
            for one in wanted
            if one.is_history and lake.histories is not None
            for name, *_ in [lake.histories.open(one.target)]
        }
        self._places[place] = lake.new_staged(token, folders.items())
        faults.point("lake.stage.recorded")
        specs = {
            one.name: self._specify(one, f"{token}-{number}", source_engine)
            for number, one in enumerate(wanted)
        }
        self._stamps[place] = tuple(spec.stamp for spec in specs.values())
        lake.specs.update({spec.stamp: (token, spec) for spec in specs.values()})
        writers: dict[str, LakeWriter | LakeHistoryWriter] = {}
        for one in wanted:
            spec = specs[one.name]
            if one.is_history and lake.histories is not None:
                history = lake.histories.specify(spec, spec.token)
                lake.history_specs[spec.stamp] = history
                writers[one.name] = LakeHistoryWriter(history)
            else:
                writers[one.name] = LakeWriter(spec)
        return writers

    def _specify(self, one: MergeTable, token: str, source_engine: str) -> WriterSpec:
        lake = self._lake
        shape = self._plan(one, source_engine)
        if lake.merges and not one.relation.key:
            raise key_missing(one.source)
        return WriterSpec(
            table=one.source,
            target=one.target,
            relation=one.relation,
            source_engine=source_engine,
            columns=staged_columns(columns_for(shape, one.relation), merges=lake.merges),
            data_folder=lake.side_folder if lake.merges else lake.table(one.target).data_folder,
            side_folder=lake.side_folder,
            stamp=secrets.randbits(62),
            token=token,
            choices=lake.choices,
            storage=lake.storage,
            overlaps=one.overlaps,
            is_emptied=one.is_emptied,
            partition=() if lake.merges else self._partition(one),
            merges=lake.merges,
        )

    def _partition(self, one: MergeTable) -> tuple[PartitionField, ...]:
        """Return the fields by which a table is partitioned; warn once if the file says others."""
        partition = self._lake.snapshot(one.target).partition
        if one.target not in self._told:
            self._told.add(one.target)
            wanted = self._lake.partitions.get(str(one.source), ())
            if terms_of(partition) != wanted:
                logger.warning(
                    "table keeps its partitions until it is copied again",
                    table=str(one.source),
                    partition=show_terms(terms_of(partition)) or "none",
                    file=show_terms(wanted) or "none",
                    hint=f"penstock table resync FILE {one.source}",
                )
        return partition

    def _plan(self, one: MergeTable, source_engine: str) -> Shape:
        """Return the shape that the table will have, of which an earlier batch may plan a part."""
        lake = self._lake
        snapshot = lake.snapshot(one.target)
        now = Shape.of(snapshot, lake.record(one.target))
        known = self._shapes.get(one.target)
        if known is not None and known.record.version > now.record.version:
            now = known
        planner = Planner(
            table=lake.table(one.target),
            policies=lake.policies,
            source_engine=source_engine,
            mapping_of=lambda column: lake.mapping_of(one.source, column, source_engine),
            log_id=lake.log_id,
            starts={} if one.copied_at is None else {one.source: one.copied_at},
            is_emptied=one.is_emptied,
        )
        shape = planner.plan(now, one.relation, snapshot).shape
        self._shapes[one.target] = shape
        return shape

    def empty_ahead(self) -> None:
        """Remove the files of our own of applied batches, while the loader is idle."""
        for place, staged in list(self._places.items()):
            if staged.token in self._lake.applied:
                self._clear(place)

    def forget(self, names: Iterable[str]) -> None:
        """Do nothing: no merge table is kept from batch to batch."""
        del names

    def close(self) -> None:
        """Remove the files of batches that were never applied."""
        for place in list(self._places):
            self._clear(place)

    def _clear(self, place: int) -> None:
        """Remove the files of the batch in a place, unless commits may have taken some.

        Of such a batch the tables are asked when the loader connects again.
        """
        staged = self._places.pop(place, None)
        for stamp in self._stamps.pop(place, ()):
            self._lake.specs.pop(stamp, None)
            self._lake.history_specs.pop(stamp, None)
        if staged is None:
            return
        if staged.token in self._lake.applied:
            self._lake.applied.discard(staged.token)
        elif staged.token not in self._lake.begun:
            self._lake.remove_files(staged, is_begun=False)
