"""Lakes as targets of `penstock verify --repair`: the port of `ports/verify.py`.

Rows that differ are deleted by position, and written again from the source, in new files. The
checksums of both together are compared with the source's before anything is committed; then each
table gets one commit. A reader sees a table before its repair or after it, and a repair that is
killed between two tables is completed by the next one. A table keeps its mark, because no change of
the log is applied. Not here: which rows differ (`images.py`, `control/verify/`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import map_lake_column
from penstock.engines.lake import images
from penstock.engines.lake.batches import BATCHES, repair_batches
from penstock.engines.lake.bulk_writer import ChunkFiles
from penstock.engines.lake.deletions import Deleted, read_deleted, write_deleted
from penstock.engines.lake.format import (
    REPAIR,
    Commit,
    CommitRefused,
    LakeColumn,
    LakeFormat,
    LakeTable,
    LiveFile,
    NewDeletes,
    NewFile,
    Snapshot,
    WriterSpec,
    check_writable,
    with_deletes,
)
from penstock.engines.lake.own_java import keep_java
from penstock.engines.lake.rows import read_placed_rows, read_rows
from penstock.engines.lake.state import LakeState, StagedState
from penstock.engines.lake.storage import Folder, remove_file
from penstock.engines.lake.url import parse_url
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.model import Relation, TableDefinition, TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.chunk_rows import read_rows as read_source
from penstock.ports.registry import engine_with_types
from penstock.ports.target import Applied, TargetShapeDiffers, TargetTableMissing
from penstock.ports.verify import (
    OpenRepair,
    RepairTable,
    RepairTarget,
    TargetMoved,
    own_columns,
    target_moved,
)
from penstock.sql.read_plan import RELATION_OF_PART

faults.declare("lake.repair.commit.before", "lake.repair.commit.after")


@dataclass(slots=True, kw_only=True)
class _Work:
    """Table that is repaired.

    Attributes:
        snapshot: The version in which rows are replaced.
        relation: The source's shape.
        columns: The lake's column for each of the relation's.
        deletes: By name of a live file its deletions after the repair.
        adds: Files with the rows from the source.
    """

    table: LakeTable
    snapshot: Snapshot
    source: TableName
    relation: Relation
    columns: tuple[LakeColumn, ...]
    deletes: dict[str, NewDeletes] = field(default_factory=dict)
    adds: list[NewFile] = field(default_factory=list)

    def live_files(self) -> Iterator[LiveFile]:
        """Yield the files that are live after the repair."""
        for file in self.snapshot.files:
            new = self.deletes.get(file.name)
            yield file if new is None else with_deletes(file, new)
        for added in self.adds:
            yield LiveFile(
                name=added.location,
                location=added.location,
                size_bytes=added.size_bytes,
                row_count=added.row_count,
            )


class LakeRepair(RepairTarget):
    """Repair of a lake's tables.

    Attributes:
        replica: A lake has neither foreign keys nor triggers.
    """

    replica = True

    def __init__(
        self,
        table_format: LakeFormat,
        url: str,
        servers: ServerPair | None,
    ) -> None:
        """Open the lake with the JVM of `penstock verify`."""
        assert servers is not None, "a lake has other types than every source"
        lake = parse_url(url)
        self._servers = servers
        self._storage = lake.s3
        self._file_bytes = lake.file_bytes
        self._state = LakeState(Folder(lake.state, lake.s3))
        self._catalogue = table_format.open(url, keep_java(url, lake.class_path), {})
        self._token = secrets.token_hex(8)
        self._works: dict[TableName, _Work] = {}
        self._is_written = False

    # -- looking -----------------------------------------------------------------------------

    def hold(self, expected: Applied) -> None:
        """Raise TargetMoved unless the lake is at this place.

        Nothing is locked: commits are refused if another one came since a table was looked at.
        """
        batches = self._catalogue.find(BATCHES)
        if batches is None:
            return
        mark = batches.snapshot(refresh=True).mark
        found = 0 if mark is None else mark.gsn
        if found != expected.gsn:
            raise target_moved(expected, found)

    def check(self, table: RepairTable) -> None:
        there = self._catalogue.find(table.target)
        if there is None:
            raise TargetTableMissing(
                f"the lake has no table {table.target}",
                hint=f"Copy it again: penstock table resync FILE {table.definition.name}",
            )
        snapshot = there.snapshot(refresh=True)
        check_writable(
            table.target,
            snapshot,
            hint=f"Copy it again: penstock table resync FILE {table.definition.name}",
        )
        definition = table.definition
        engine = self._servers.source.engine
        relation = engine_with_types(engine).part(RELATION_OF_PART)(definition)
        names = {column.name for column in relation.columns}
        if own := [column.name for column in snapshot.columns if column.name not in names]:
            raise own_columns(table.target, own)
        self._works[table.target] = _Work(
            table=there,
            snapshot=snapshot,
            source=definition.name,
            relation=relation,
            columns=tuple(self._columns(definition, relation, snapshot, there)),
        )

    def _columns(
        self,
        definition: TableDefinition,
        relation: Relation,
        snapshot: Snapshot,
        table: LakeTable,
    ) -> Iterator[LakeColumn]:
        """Yield the lake's column for each of the relation's. Raises TargetShapeDiffers."""
        for column in relation.columns:
            wanted = map_lake_column(
                column,
                self._servers.source.engine,
                choices=self._servers.choices,
                table=definition.name,
                identifies=column.name in definition.row_key,
            ).type
            there = snapshot.column(column.name)
            if there is None or there.type != wanted:
                present = "is missing" if there is None else f"is {there.type}"
                raise TargetShapeDiffers(
                    f"column {column.name} of {table.name} in the lake {present}, expected "
                    f"{wanted}",
                    hint=f"Copy the table again: penstock table resync FILE {definition.name}",
                    table=str(table.name),
                )
            yield there

    # -- replacing rows ----------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[object]:
        """Commit all tables after the block, one after the other; after an error, nothing.

        Raises TargetMoved if another client has written to a table meanwhile.
        """
        self._begin()
        try:
            yield self
        except BaseException:
            self._undo()
            raise
        self._commit()

    def _begin(self) -> None:
        """Record the new files before the first is written, for a loader that finds them later."""
        log = self._state.read_log()
        folders = [
            (name, tuple(dict.fromkeys((work.table.data_folder, work.table.deletes_folder))))
            for name, work in sorted(self._works.items())
        ]
        self._state.write_staged(
            self._token,
            StagedState(
                log_id="" if log is None else log.log_id,
                token=self._token,
                folders=tuple(folders),
                host=platform.node(),
                pid=os.getpid(),
                begun_us=REAL_CLOCK.now_us(),
            ),
        )

    def delete(self, table: TableName, condition: str) -> int:
        work = self._works[table]
        chosen = json.loads(condition)
        names = {cell[0] for cell in chosen["key"]}
        columns = [column for column in work.snapshot.columns if column.name in names]
        found = [
            one
            for file in work.snapshot.files
            if (one := self._find(file, columns, chosen)) is not None
        ]
        written = write_deleted(
            found, work.table.delete_form, work.table.deletes_folder, self._token, self._storage
        )
        work.deletes = {one.name: one for one in written}
        return sum(one.added for one in found)

    def _find(
        self, file: LiveFile, columns: list[LakeColumn], chosen: Mapping[str, Any]
    ) -> Deleted | None:
        """Return a file's deletions with those of the chosen rows; None if it has none of them."""
        positions = [
            places[images.is_chosen(rows, chosen)]
            for rows, places in read_placed_rows(file, columns, self._storage)
            if rows.num_rows
        ]
        added = np.concatenate(positions) if positions else np.empty(0, np.int64)
        if not len(added):
            return None
        both = np.union1d(read_deleted(file, self._storage), added)
        return Deleted(file=file, positions=both, added=len(added))

    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        work = self._works[task.target]
        spec = WriterSpec(
            table=task.table,
            target=task.target,
            relation=work.relation,
            source_engine=self._servers.source.engine,
            columns=work.columns,
            data_folder=f"{work.table.data_folder}/{self._token}",
            side_folder="",
            stamp=0,
            token=self._token,
            choices=self._servers.choices,
            storage=self._storage,
            partition=work.snapshot.partition,
        )
        files = ChunkFiles(spec, 0, file_bytes=self._file_bytes)
        dialect = LineDialect.COPY if task.read_plan is None else LineDialect.LOAD_DATA
        try:
            for rows in read_source(reader, task, work.relation, dialect):
                files.add(rows)
            work.adds += files.finish()
        except BaseException as error:
            files.abandon(error)
            raise
        return sum(file.row_count for file in work.adds)

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return the checksums of a table after its repair, as the answer for its first part."""
        del doing
        asked = json.loads(query)
        [(schema, name, where)] = asked["parts"]
        if int(where.split()[0]):
            return []
        work = self._works[TableName(schema, name)]
        names = {cell[0] for cell in (*asked["key"], *asked["row"])}
        columns = [column for column in work.snapshot.columns if column.name in names]
        hashes = [
            images.hash_rows(rows, asked["key"], asked["row"])
            for file in work.live_files()
            for rows in read_rows(file, columns, self._storage)
            if rows.num_rows
        ]
        return list(images.add_up(np.concatenate(hashes), asked["buckets"])) if hashes else []

    # -- ending ------------------------------------------------------------------------------

    def _commit(self) -> None:
        versions: dict[str, int] = {}
        try:
            for name, work in sorted(self._works.items()):
                faults.point("lake.repair.commit.before")
                after = work.table.commit(
                    Commit(
                        base_version=work.snapshot.version,
                        adds=tuple(work.adds),
                        deletes=tuple(work.deletes.values()),
                        operation=REPAIR,
                    )
                )
                versions[str(name)] = after.version
                faults.point("lake.repair.commit.after")
        except CommitRefused as error:
            self._forget_versions(versions)
            raise TargetMoved(
                f"another client has written to the lake meanwhile: {error.message}; "
                f"{len(versions)} of {len(self._works)} tables are repaired",
                hint="Run `penstock verify --repair` again.",
            ) from error
        self._forget_versions(versions)
        repair_batches(
            self._catalogue,
            versions,
            token=self._token,
            applied_us=REAL_CLOCK.now_us(),
            storage=self._storage,
        )
        self._state.remove_staged(self._token)

    def _forget_versions(self, versions: Mapping[str, int]) -> None:
        """Let the next loader read the versions of repaired tables again."""
        log = self._state.read_log()
        if log is not None and versions:
            kept = {name: one for name, one in log.versions.items() if name not in versions}
            self._state.write_log(replace(log, versions=kept))

    def _undo(self) -> None:
        """Remove the new files; what cannot be removed is left to the next loader."""
        with contextlib.suppress(OSError):
            for work in self._works.values():
                locations = {one.ref.location for one in work.deletes.values()} - {""}
                for location in (*locations, *(file.location for file in work.adds)):
                    remove_file(location, self._storage)
            self._state.remove_staged(self._token)

    def close(self) -> None:
        """Do nothing: `penstock verify` ends the JVM."""


def make_repair(table_format: LakeFormat) -> OpenRepair:
    """Return the part `repair` of a format's engine."""

    def open_repair(
        url: str, servers: ServerPair | None, _namespaces: dict[str, str]
    ) -> RepairTarget:
        return LakeRepair(table_format, url, servers)

    return open_repair
