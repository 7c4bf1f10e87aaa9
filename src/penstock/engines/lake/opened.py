"""Open lake: the knowledge that staging and applying share while one loader works on a target.

One object per `LakeEngine` and connection of the loader. The loader's thread applies while another
thread stages, so each table has a lock. Not here: staging (`staging.py`), applying (`apply.py`).
"""

from __future__ import annotations

import os
import platform
import threading
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

import structlog

from penstock.codec.types import Choices, LakeMapping, map_lake_column
from penstock.engines.lake.batches import BATCHES, Batches, Kept, open_batches
from penstock.engines.lake.format import (
    Catalogue,
    Commit,
    Expired,
    Expiry,
    FeatureUnknown,
    LakeFormat,
    LakeTable,
    Mark,
    Merge,
    Merged,
    Prepared,
    Snapshot,
    WriterSpec,
)
from penstock.engines.lake.keys import is_of_token
from penstock.engines.lake.known_tables import decode_record, record_of
from penstock.engines.lake.state import SIDE_FOLDER, LakeState, LogState, StagedState
from penstock.engines.lake.storage import Folder, path_in
from penstock.engines.lake.url import ICEBERG, LakeUrl, parse_url
from penstock.host.clock import Clock
from penstock.host.process import process_alive
from penstock.model import Column, TableName
from penstock.model.policies import Policies
from penstock.ports.jobs import GetJobs, Jobs
from penstock.ports.lake import TableFacts
from penstock.ports.target import (
    Applied,
    SyncState,
    TableRecord,
    TableSync,
    TargetTableMissing,
    target_name,
)


class TableHistories(Protocol):
    """Histories of one open lake, as far as the others need them; see `history.Histories`."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what is known."""
        ...

    @abstractmethod
    def open(self, table: TableName) -> tuple[TableName, Snapshot, Any]:
        """Return a table's history: name, newest version, record."""
        ...

    @abstractmethod
    def specify(self, source: WriterSpec, token: str) -> Any:
        """Return the facts by which a worker stages changes of a table."""
        ...

    @abstractmethod
    def begin(self, tables: Iterable[TableName] = ()) -> None:
        """Put the rows of tables into their histories, where these lack them."""
        ...


logger = structlog.get_logger(__name__)

AHEAD = "ahead"
"""Name of the record of tables that are ahead."""

ABANDONED_US = 24 * 3600 * 1_000_000
"""Age at which staged files of a process on another machine are removed."""


ICEBERG_ROWS_MAX = 2_000
"""Rows of the table of batches: each commit of Iceberg writes the list of all versions again."""


def kept_rows(lake: LakeUrl) -> Kept:
    """Return the rows of the table of batches that are kept."""
    kept = Kept(hours=lake.version_hours)
    return replace(kept, rows_max=ICEBERG_ROWS_MAX) if lake.format == ICEBERG else kept


def facts_of(snapshot: Snapshot, version_count: int, *, read_us: int) -> TableFacts:
    """Return the facts of a table. read_us: the present time."""
    return TableFacts(
        files=len(snapshot.files),
        rows=sum(file.row_count for file in snapshot.files),
        dead_rows=sum(file.dead_count for file in snapshot.files),
        size_bytes=sum(file.size_bytes for file in snapshot.files),
        version=snapshot.version,
        versions=version_count,
        gsn=snapshot.mark.gsn if snapshot.mark is not None else 0,
        read_us=read_us,
    )


class OpenLake:
    """Lake that a loader has bound to its log.

    Attributes:
        storage: Settings of the object store.
        partitions: By the source's name of a table the terms of [target] partition.
        tag_minutes: Shortest time between two tags; 0: there are none.
        merges: Spark merges rows into the tables; their files are none of penstock's business.
        vacuum_hours: Age at which Delta's removed files are deleted.
        kept: Rows of the table of batches that are kept.
        state: State files.
        specs: By the stamp of a staged table the token of its batch, and the facts of its writers.
        histories: Histories of the tables; None if they have none.
        history_specs: By the stamp of staged changes the facts of their writer.
        begun: Tokens of batches that began to be applied; only the tables know which files count.
        applied: Tokens of batches that are applied whole.
        ahead: For tables that have more than the applied position says, after a crash: the last
            row change that they have, by source table.
        versions: The newest version of each table that is known, by `schema.name`.
        missing: By the same name the number of rows that the log changed and the table lacked.
    """

    def __init__(
        self,
        table_format: LakeFormat,
        url: str,
        namespaces: Mapping[str, str],
        *,
        choices: Choices,
        policies: Policies,
        clock: Clock,
    ) -> None:
        """Keep the parts. Nothing is opened yet."""
        parsed = parse_url(url)
        self._format = table_format
        self._url = url
        self._namespaces = namespaces
        self._get_jobs: GetJobs | None = None
        self._catalogue: Catalogue | None = None
        self._batches: Batches | None = None
        self._locks: defaultdict[TableName, threading.RLock] = defaultdict(threading.RLock)
        self._catalogue_lock = threading.RLock()
        self._seen: set[TableName] = set()
        self._facts: dict[str, TableFacts] | None = None
        self._unversioned: set[TableName] = set()
        self.choices = choices
        self.policies = policies
        self.clock = clock
        self.histories: TableHistories | None = None
        self.history_specs: dict[int, Any] = {}
        self.storage = parsed.s3
        self.partitions = parsed.partition
        self.merges = parsed.merges
        self.vacuum_hours = parsed.vacuum_hours
        self.tag_minutes = parsed.tag_minutes
        self.kept = kept_rows(parsed)
        self.state = LakeState(Folder(parsed.state, parsed.s3))
        self.side_folder = f"{path_in(parsed.state)}/{SIDE_FOLDER}"
        if not parsed.is_local:
            self.side_folder = f"{parsed.state}/{SIDE_FOLDER}"
        self.log_id = ""
        self.specs: dict[int, tuple[str, WriterSpec]] = {}
        self.begun: set[str] = set()
        self.applied: set[str] = set()
        self.ahead: dict[TableName, int] = {}
        self.versions: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self._ahead_marks: dict[TableName, Mark] = {}

    # --- opening ----------------------------------------------------------------------------------

    def use(self, get_jobs: GetJobs) -> None:
        """Keep the function that returns Spark's session."""
        self._get_jobs = get_jobs

    @property
    def jobs(self) -> Jobs:
        """Spark's session."""
        assert self._get_jobs is not None, "`use` comes before"
        return self._get_jobs()

    @property
    def catalogue(self) -> Catalogue:
        """The lake's tables, opened the first time."""
        with self._catalogue_lock:
            if self._catalogue is None:
                self._catalogue = self._format.open(self._url, self.jobs, {})
            return self._catalogue

    @property
    def batches(self) -> Batches:
        """Table of batches of the bound log."""
        assert self._batches is not None, "`bind` comes before"
        return self._batches

    def bind(self, log_id: str) -> Applied:
        """Bind the lake to a log, find tables that are ahead, and remove files that no commit took.

        Raises TargetFollowsAnotherLog, ProgressUnwritable.
        """
        self.state.check_writable()
        self.log_id = log_id
        self._batches = open_batches(self.catalogue, log_id, self.storage, self.kept)
        applied = self._batches.applied_place
        known = self.state.read_log()
        if known is not None and known.log_id == log_id:
            self.versions = dict(known.versions)
            self.missing = dict(known.missing)
        waiting = self.state.read_staged(log_id)
        self._find_ahead(waiting.values(), applied)
        self._keep_ahead()
        self._remove_waiting(waiting)
        self._find_versions()
        self.write_log(applied)
        self.state.write_syncs(log_id, self.read_syncs().values())
        return applied

    def _find_ahead(self, waiting: Iterable[StagedState], applied: Applied) -> None:
        """Find the tables that have commits of a batch whose row was never written."""
        syncs = self.batches.syncs
        for name in sorted({name for one in waiting for name, _ in one.folders}):
            snapshot = self._read(name)
            if snapshot is None:
                continue
            self.versions[str(name)] = snapshot.version
            mark, record = snapshot.mark, decode_record(snapshot.record, name)
            if mark is None or record is None or mark.log_id != self.log_id:
                continue
            sync = syncs.get(record.source)
            is_apart = sync is not None and sync.state is not SyncState.FOLLOWING
            if mark.is_newer(Mark.of(self.log_id, applied)) and not is_apart:
                self._ahead_marks[record.source] = mark
        self.ahead = {source: mark.gsn for source, mark in self._ahead_marks.items()}
        if self.ahead:
            tables = [str(name) for name in self.ahead]
            logger.info("batch was cut short", tables=tables, gsn=applied.gsn)

    def _keep_ahead(self) -> None:
        """Record which tables are ahead, until all others have caught up with them.

        The records of the batches that they have are removed now.
        """
        if not self._ahead_marks:
            self.state.remove_staged(AHEAD)
            return
        names = sorted(self.target_name(source) for source in self._ahead_marks)
        folders = tuple((name, ()) for name in names)
        self.state.write_staged(
            AHEAD, StagedState(log_id=self.log_id, token=AHEAD, folders=folders)
        )

    def _read(self, name: TableName) -> Snapshot | None:
        table = self.catalogue.find(name)
        if table is None:
            return None
        self._seen.add(name)
        return table.snapshot(refresh=True)

    def _find_versions(self) -> None:
        """Read the versions of tables that are not known: those that the bulk load has created."""
        self._unversioned |= {
            name for name in self.catalogue.tables() if str(name) not in self.versions
        }
        self._unversioned.discard(BATCHES)

    def has_passed(self, after: Applied) -> bool:
        """Return whether no table is ahead of a place."""
        mark = Mark.of(self.log_id, after)
        return not any(one.is_newer(mark) for one in self._ahead_marks.values())

    def forget_ahead(self, after: Applied) -> None:
        """Forget the tables that were ahead, once the lake is where they were."""
        if self._ahead_marks and self.has_passed(after):
            self._ahead_marks.clear()
            self._keep_ahead()

    def complete_versions(self) -> Mapping[str, int]:
        """Return the newest version of each table of penstock."""
        for name in sorted(self._unversioned):
            snapshot = self._read_unless_foreign(name)
            if snapshot is not None and snapshot.record:
                self.versions[str(name)] = snapshot.version
        self._unversioned.clear()
        return self.versions

    def _read_unless_foreign(self, name: TableName) -> Snapshot | None:
        """Return a table's newest version; None if there is no table, or one of others that has a
        feature which penstock does not know.
        """
        try:
            table = self.catalogue.find(name)
            if table is None:
                return None
            with self._locks[name]:
                snapshot = table.snapshot(refresh=name not in self._seen)
                self._seen.add(name)
                return snapshot
        except FeatureUnknown as error:
            known = self.state.read_log()
            if known is not None and str(name) in known.versions:
                raise
            logger.info("table of others is passed over", table=str(name), reason=error.message)
            return None

    def forget(self) -> None:
        """Forget the tables: some may have been copied again, altered or repaired."""
        if self._catalogue is None or not self.log_id:
            return
        self._unversioned |= {self.target_name(source) for source in self.batches.syncs}
        self._seen.clear()
        self._catalogue.forget()
        if self.histories is not None:
            self.histories.forget()
        self._batches = open_batches(self._catalogue, self.log_id, self.storage, self.kept)
        self.versions.clear()
        self._find_versions()

    # --- tables -----------------------------------------------------------------------------------

    def target_name(self, source: TableName) -> TableName:
        """Return a source table's name in the lake."""
        return target_name(source, self._namespaces)

    def table(self, name: TableName) -> LakeTable:
        """Return a table. Raises TargetTableMissing."""
        table = self.catalogue.find(name)
        if table is None:
            raise TargetTableMissing(
                f"the lake has no table {name}",
                hint="If it was dropped, load it again: penstock table resync FILE TABLE.",
                table=str(name),
            )
        return table

    def snapshot(self, name: TableName, *, refresh: bool = False) -> Snapshot:
        """Return the newest version of a table; it is read again the first time."""
        with self._locks[name]:
            is_first = name not in self._seen
            snapshot = self.table(name).snapshot(refresh=refresh or is_first)
            self._seen.add(name)
            return snapshot

    def record(self, name: TableName) -> TableRecord:
        """Return a table's record. Raises LakeForeign if it has none."""
        self.snapshot(name)
        return record_of(self.table(name))

    def commit(self, name: TableName, commit: Commit) -> Snapshot:
        """Commit to a table; return the new version."""
        with self._locks[name]:
            snapshot = self.table(name).commit(commit)
            self.versions[str(name)] = snapshot.version
            return snapshot

    def expire(self, name: TableName, expiry: Expiry) -> Expired:
        """Remove earlier versions of a table; do nothing if there is no such table."""
        table = self.catalogue.find(name)
        if table is None:
            return Expired()
        with self._locks[name]:
            return table.expire(expiry)

    def count_versions(self, name: TableName) -> int:
        """Return the number of versions of a table that can be read; 0 if there is no table."""
        table = self.catalogue.find(name)
        if table is None:
            return 0
        with self._locks[name]:
            return table.version_count

    def note_tables(self, names: Iterable[TableName]) -> None:
        """Write the facts of tables for other processes: of these, and of those not known yet."""
        if self._facts is None:
            self._facts = dict(self.state.read_tables())
        facts = dict(self._facts)
        if not self._unversioned:
            facts = {name: one for name, one in facts.items() if name in self.versions}
        new = {TableName(*name.split(".", 1)) for name in self.versions if name not in facts}
        for name in sorted({*names, *new}):
            if self.catalogue.find(name) is not None:
                facts[str(name)] = facts_of(
                    self.snapshot(name), self.count_versions(name), read_us=self.clock.now_us()
                )
        if facts != self._facts:
            self._facts = facts
            self.state.write_tables(facts)

    def merge(self, name: TableName, merge: Merge) -> Merged:
        """Merge rows into a table by Spark."""
        with self._locks[name]:
            merged = self.table(name).merge(merge)
            self.versions[str(name)] = merged.snapshot.version
            return merged

    def prepare(self, name: TableName, commit: Commit) -> Prepared:
        """Make all of a commit to a table but its last step."""
        with self._locks[name]:
            return self.table(name).prepare(commit)

    def commit_together(self, commits: Sequence[Prepared]) -> bool:
        """Commit tables in one step. See `Catalogue.commit_together`."""
        with ExitStack() as stack:
            for name in sorted(one.table.name for one in commits):
                stack.enter_context(self._locks[name])
            if not self.catalogue.commit_together(commits):
                return False
            for one in commits:
                if one.table.name != BATCHES:
                    self.versions[str(one.table.name)] = one.snapshot.version
            return True

    def tag(self, name: TableName, tag: str, version: int, *, kept_us: int) -> None:
        """Give a version of a table a name. See `LakeTable.tag`."""
        with self._locks[name]:
            self.table(name).tag(tag, version, kept_us=kept_us)

    def note_missing(self, name: TableName, count: int) -> None:
        """Count rows that the log changed and a table lacked."""
        self.missing[str(name)] = self.missing.get(str(name), 0) + count

    def mapping_of(self, source: TableName, column: Column, source_engine: str) -> LakeMapping:
        """Return the type that a column of the log has in the lake."""
        return map_lake_column(column, source_engine, choices=self.choices, table=source)

    # --- table syncs ------------------------------------------------------------------------------

    def read_syncs(self) -> dict[TableName, TableSync]:
        """Return the table syncs.

        A table that catches up is where its own mark says, if a crash came between its commit and
        that of the table of batches.
        """
        rows = self.batches.syncs
        for source, row in rows.items():
            if row.state is not SyncState.CATCHING_UP:
                continue
            name = self.target_name(source)
            if self.catalogue.find(name) is None:
                continue
            mark = self.snapshot(name).mark
            if mark is not None and mark.log_id == self.log_id and mark.gsn > row.applied.gsn:
                rows[source] = replace(row, applied=mark.place)
        return rows

    def write_syncs(self, rows: Iterable[TableSync], at: Applied) -> None:
        """Insert or replace rows of table syncs. Raises AppliedByAnother."""
        together = {**self.batches.syncs, **{row.table: row for row in rows}}
        self.batches.write_syncs(at, together.values())
        self.state.write_syncs(self.log_id, together.values())

    def write_log(self, applied: Applied) -> None:
        """Write the copy of the progress for other processes."""
        self.state.write_log(
            LogState(
                log_id=self.log_id,
                applied=applied,
                versions=self.versions,
                missing=self.missing,
                updated_us=self.clock.now_us(),
            )
        )

    # --- files ------------------------------------------------------------------------------------

    def new_staged(
        self, token: str, folders: Iterable[tuple[TableName, tuple[str, ...]]]
    ) -> StagedState:
        """Record the files of a batch before the first is written."""
        staged = StagedState(
            log_id=self.log_id,
            token=token,
            folders=tuple(folders),
            host=platform.node(),
            pid=os.getpid(),
            begun_us=self.clock.now_us(),
        )
        self.state.write_staged(token, staged)
        return staged

    def folders_of(self, name: TableName) -> tuple[str, ...]:
        """Return the folders where a table's files are written."""
        table = self.table(name)
        return tuple(dict.fromkeys((table.data_folder, table.deletes_folder)))

    def remove_files(self, staged: StagedState, *, is_begun: bool) -> None:
        """Remove the files of a batch that no commit took.

        is_begun: Some may have been committed, so the tables are asked.
        """
        for name, folders in staged.folders:
            live = self._live_files(name) if is_begun else frozenset[str]()
            for location in folders:
                folder = Folder(location, self.storage)
                for file in folder.names():
                    is_ours = any(is_of_token(one, staged.token) for one in file.split("/"))
                    if is_ours and path_in(f"{location}/{file}") not in live:
                        folder.remove(file)
        self.remove_side_files(staged.token)
        self.state.remove_staged(staged.token)

    def remove_side_files(self, token: str) -> None:
        """Remove a batch's files that are of no table."""
        folder = Folder(self.side_folder, self.storage)
        for file in folder.names():
            if file.startswith(token):
                folder.remove(file)

    def _live_files(self, name: TableName) -> frozenset[str]:
        table = self.catalogue.find(name)
        if table is None:
            return frozenset()
        files = self.snapshot(name).files
        deletes = (ref.location for file in files for ref in file.deletes if ref.location)
        return frozenset(path_in(one) for one in (*(file.location for file in files), *deletes))

    def _remove_waiting(self, waiting: Mapping[str, StagedState]) -> None:
        """Remove the files of earlier loaders, unless such a process may still run."""
        for name, staged in waiting.items():
            if name != AHEAD and self._is_abandoned(staged):
                self.remove_files(staged, is_begun=True)

    def _is_abandoned(self, staged: StagedState) -> bool:
        if staged.host == platform.node():
            return staged.pid == os.getpid() or not process_alive(staged.pid)
        return self.clock.now_us() - staged.begun_us > ABANDONED_US
