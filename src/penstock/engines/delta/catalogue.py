"""Catalogue of a Delta lake: the folders below its root that have a log, `<schema>/<table>`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from penstock.engines.delta.log import DeltaLog
from penstock.engines.delta.places import name_of_folder, table_folder
from penstock.engines.delta.shape import new_metadata, new_protocol
from penstock.engines.delta.state import Actions, State
from penstock.engines.delta.table import MICROSECONDS, DeltaTable
from penstock.engines.lake.format import (
    Catalogue,
    LakeColumn,
    LakeForeign,
    LakeFormat,
    LakeTable,
    PartitionField,
)
from penstock.engines.lake.java import java_path, typed_errors
from penstock.engines.lake.merging import Merger
from penstock.engines.lake.storage import file_system, is_local, path_in
from penstock.engines.lake.url import VACUUM_HOURS_DEFAULT, parse_url
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName
from penstock.ports.jobs import Jobs

LOG_FOLDER = "_delta_log"


class DeltaCatalogue(Catalogue):
    """Tables below one folder."""

    def __init__(
        self,
        root: str,
        jobs: Jobs,
        storage: Mapping[str, str],
        *,
        retention_hours: float = VACUUM_HOURS_DEFAULT,
        clock: Clock = REAL_CLOCK,
        merges: bool = False,
    ) -> None:
        """Create the folder if it is missing. Raises LakeUnreachable, LakeFailed.

        storage: settings of the object store, for files that are read and removed without Java.
        retention_hours: how long new tables remember their removed files.
        merges: Spark merges rows into the tables.
        """
        self._merger = Merger(jobs) if merges else None
        self.root = root
        self._jobs = jobs
        self._storage = storage
        self._clock = clock
        self._retention_hours = retention_hours
        self._tables: dict[TableName, DeltaTable] = {}
        with typed_errors(f"create the folder {root}"):
            self._files().mkdirs(self._path(root))

    def tables(self) -> Sequence[TableName]:
        """Return the tables, by one listing of folders."""
        with typed_errors(f"list the tables below {self.root}"):
            found = self._files().globStatus(self._path(f"{self.root}/*/*/{LOG_FOLDER}"))
            paths = [str(one.getPath().getParent().toString()) for one in found or ()]
        names = []
        for path in paths:
            parent, _, table = path.rpartition("/")
            names.append(
                TableName(name_of_folder(parent.rpartition("/")[2]), name_of_folder(table))
            )
        return tuple(sorted(names))

    def find(self, name: TableName) -> LakeTable | None:
        """Return a table, whose log is read when it is first asked for its version."""
        if (known := self._tables.get(name)) is not None:
            return known
        folder = table_folder(self.root, name)
        with typed_errors(f"look for the Delta table {name}"):
            if not self._files().exists(self._path(f"{folder}/{LOG_FOLDER}")):
                return None
            log = DeltaLog(self._jobs, folder)
            if not log.exists():
                return None
        return self._keep(name, folder, log)

    def create(
        self,
        name: TableName,
        columns: Sequence[LakeColumn],
        *,
        key: Sequence[str] = (),
        record: str = "",
        options: Mapping[str, str] | None = None,
        partition: Sequence[PartitionField] = (),
    ) -> LakeTable:
        """Create an empty table. options: there are none."""
        del options
        if self.find(name) is not None:
            raise LakeForeign(
                f"the Delta table {name} exists already at {table_folder(self.root, name)}",
                hint="Move it away, or name another folder in [target] url.",
            )
        folder = table_folder(self.root, name)
        now_ms = self._clock.now_us() // MICROSECONDS
        metadata = new_metadata(
            columns,
            table_id=str(uuid.uuid4()),
            created_ms=now_ms,
            key=key,
            record=record,
            partition=[field.source.name for field in partition],
            retention_hours=self._retention_hours,
        )
        protocol = new_protocol(metadata)
        after = State(folder=folder, version=0, metadata=metadata, protocol=protocol)
        log = DeltaLog(self._jobs, folder)
        with typed_errors(f"create the Delta table {name}"):
            transaction, _ = log.begin()
            actions = Actions(after=after, metadata=metadata, protocol=protocol)
            log.commit(transaction, actions, None, "create", now_ms=now_ms)
        return self._keep(name, folder, log)

    def _keep(self, name: TableName, folder: str, log: DeltaLog) -> DeltaTable:
        table = DeltaTable(
            name,
            folder,
            log,
            self._count_rows,
            storage=self._storage,
            clock=self._clock,
            merger=self._merger,
        )
        return self._tables.setdefault(name, table)

    def drop(self, name: TableName) -> None:
        """Remove the table's folder."""
        self._tables.pop(name, None)
        folder = table_folder(self.root, name)
        with typed_errors(f"remove the Delta table {name}"):
            DeltaLog(self._jobs, folder).close()
            self._files().delete(self._path(folder), True)

    def forget(self) -> None:
        """Forget all tables; each is read again."""
        self._tables.clear()

    def _count_rows(self, location: str) -> int:
        """Read the number of rows of a file that another writer added without statistics."""
        files = file_system(location, self._storage)
        with files.open_input_file(path_in(location)) as file:
            return int(pq.read_metadata(file).num_rows)

    def _path(self, location: str) -> Any:
        return self._jobs.jvm.org.apache.hadoop.fs.Path(java_path(location))

    def _files(self) -> Any:
        """Return Hadoop's file system of the root."""
        conf = self._jobs.spark.sessionState().newHadoopConf()
        return self._path(self.root).getFileSystem(conf)


class DeltaFormat(LakeFormat):
    """Delta Lake."""

    name = "delta"

    def open(self, url: str, jobs: Jobs, options: Mapping[str, str]) -> Catalogue:
        """Open the lake at a URL such as `delta+file:///data/lake`. options: there are none."""
        del options
        lake = parse_url(url)
        root = path_in(lake.root) if is_local(lake.root) else lake.root
        hours = max(lake.vacuum_hours, lake.version_hours)
        return DeltaCatalogue(root, jobs, lake.s3, retention_hours=hours, merges=lake.merges)


FORMAT = DeltaFormat()
