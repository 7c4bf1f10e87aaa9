"""Lakes in memory: metadata in a `FakeStore`, data files on disk as the workers write them.

The store outlives catalogues, as a folder outlives a process. A test may run a function before each
commit, and may forge commits of other writers. Not here: the real formats' own rules.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from penstock.engines.lake.format import (
    Catalogue,
    Change,
    ChangeKind,
    Commit,
    CommitRefused,
    DeleteForm,
    Expired,
    Expiry,
    FeatureUnknown,
    LakeColumn,
    LakeFormat,
    LakeTable,
    LiveFile,
    MarkNotNewer,
    NewFile,
    PartitionField,
    Prepared,
    Snapshot,
)
from penstock.engines.lake.rows import read_rows
from penstock.engines.lake.shape import apply_change
from penstock.model import TableName
from penstock.ports.jobs import Jobs

WIDER = {("int32", "int64"), ("float32", "float64")}
Row = dict[str, Any]


@dataclass
class FakeData:
    """Versions of one table, the newest last."""

    folder: Path
    versions: list[Snapshot] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)


@dataclass
class FakeStore:
    """All tables of a lake.

    Attributes:
        before_commit: Called with the table's name before each commit is checked.
        keeps_initial: Whether added columns keep a value for older rows.
        together: Whether the catalogue commits several tables in one step; None: it says that it
            does, and then does not.
        together_count: Number of such commits.
        unknown: Tables with a feature that penstock does not know.
    """

    root: Path
    tables: dict[TableName, FakeData] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    before_commit: Callable[[TableName], None] = lambda _: None
    keeps_initial: bool = True
    together: bool | None = False
    together_count: int = 0
    unknown: set[TableName] = field(default_factory=set)

    def newest(self, name: TableName) -> Snapshot:
        """Return the newest version of a table."""
        return self.tables[name].versions[-1]

    def rows(self, name: TableName, *, version: int | None = None) -> list[Row]:
        """Return the rows of a version of a table, as readers see them."""
        versions = self.tables[name].versions
        snapshot = versions[-1] if version is None else versions[version]
        assert snapshot.version not in self.tables[name].expired, (name, version)
        assert version is None or snapshot.version == version
        return [
            row
            for file in snapshot.files
            for batch in read_rows(file, snapshot.columns, {})
            for row in batch.to_pylist()
        ]

    def put(self, name: TableName, snapshot: Snapshot, operation: str) -> Snapshot:
        """Add a version; return it with its number."""
        data = self.tables[name]
        numbered = replace(snapshot, version=len(data.versions))
        data.versions.append(numbered)
        data.operations.append(operation)
        return numbered

    def touch(self, name: TableName) -> None:
        """Commit as another writer does that changes no row."""
        with self.lock:
            self.put(name, self.newest(name), "foreign")


class FakeTable(LakeTable):
    """Table of a store, with the version that this catalogue knows."""

    delete_form = DeleteForm.DELTA

    def __init__(self, store: FakeStore, name: TableName) -> None:
        self._store = store
        self._known = store.newest(name)
        self.name = name
        self.location = self.data_folder = self.deletes_folder = str(store.tables[name].folder)

    def snapshot(self, *, refresh: bool = False) -> Snapshot:
        if self.name in self._store.unknown:
            raise FeatureUnknown(f"{self.name} has a feature")
        if refresh:
            self._known = self._store.newest(self.name)
        return self._known

    def commit(self, commit: Commit) -> Snapshot:
        self._store.before_commit(self.name)
        with self._store.lock:
            after = self._next(self.check(commit), commit)
            self._known = self._store.put(self.name, after, commit.operation)
            return self._known

    def check(self, commit: Commit) -> Snapshot:
        """Return the newest version. Raises MarkNotNewer, CommitRefused."""
        now = self._store.newest(self.name)
        if commit.mark is not None and not commit.mark.is_newer(now.mark):
            raise MarkNotNewer(f"{self.name} has the mark {now.mark}")
        if now.version != commit.base_version:
            raise CommitRefused(f"{self.name} is at {now.version}, not {commit.base_version}")
        return now

    def prepare(self, commit: Commit) -> Prepared:
        with self._store.lock:
            after = self._next(self.check(commit), commit)
            numbered = replace(after, version=commit.base_version + 1)
            return Prepared(table=self, snapshot=numbered, work=commit)

    def take(self, prepared: Prepared) -> None:
        """Move on to a prepared commit."""
        self._known = self._store.put(self.name, prepared.snapshot, prepared.work.operation)

    def _next(self, now: Snapshot, commit: Commit) -> Snapshot:
        names = {file.name for file in now.files}
        assert set(commit.removes) <= names
        adds = tuple(self._live(file, now) for file in commit.adds)
        files = () if commit.removes_all else now.files
        files = tuple(file for file in files if file.name not in commit.removes) + adds
        deletes = {one.name: one for one in commit.deletes}
        assert deletes.keys() <= {file.name for file in files}
        columns = now.columns
        for change in commit.changes:
            columns = apply_change(columns, change)
        added = sum(change.kind is ChangeKind.ADD for change in commit.changes)
        return replace(
            now,
            columns=columns,
            files=tuple(
                replace(file, deletes=(deletes[file.name].ref,)) if file.name in deletes else file
                for file in files
            ),
            mark=now.mark if commit.mark is None else commit.mark,
            record=now.record if commit.record is None else commit.record,
            next_field_id=now.next_field_id + added,
        )

    def _live(self, file: NewFile, now: Snapshot) -> LiveFile:
        path = Path(file.location)
        assert len(file.partition) == len(now.partition)
        assert path.stat().st_size == file.size_bytes
        assert path.is_relative_to(self.data_folder)
        return LiveFile(
            name=path.name,
            location=file.location,
            size_bytes=file.size_bytes,
            row_count=file.row_count,
            bounds={
                name: (one.low, one.high)
                for name, one in file.statistics.items()
                if one.low is not None
            },
            partition=file.partition,
        )

    @property
    def version_count(self) -> int:
        data = self._store.tables[self.name]
        return len(data.versions) - len(data.expired)

    def expire(self, expiry: Expiry) -> Expired:
        """Remove the versions before the oldest that is kept; the newest ones stay.

        Versions have no times here: all that need not be kept are old enough.
        """
        with self._store.lock:
            data = self._store.tables[self.name]
            floor = min([len(data.versions) - 1, *expiry.keeps])
            gone = set(range(floor)) - data.expired
            data.expired |= gone
            return Expired(version_count=len(gone))

    def refuse_change(self, change: Change, snapshot: Snapshot) -> str:
        if change.kind is not ChangeKind.WIDEN:
            return ""
        found = snapshot.column(change.name)
        assert found is not None
        assert change.column is not None
        pair = (found.type, change.column.type)
        return "" if pair in WIDER else f"{pair[0]} cannot become {pair[1]}"

    def plan_column(
        self,
        name: str,
        type: str,
        *,
        field_id: int,
        initial: str | None,
        is_emptied: bool = False,
    ) -> LakeColumn:
        kept = initial if self._store.keeps_initial else None
        return LakeColumn(name=name, type=type, field_id=field_id, initial=kept)


class FakeCatalogue(Catalogue):
    """Catalogue of a store."""

    def __init__(self, store: FakeStore) -> None:
        self.root = str(store.root)
        self._store = store
        self._open: dict[TableName, FakeTable] = {}
        self.can_commit_together = store.together is not False

    def commit_together(self, commits: Sequence[Prepared]) -> bool:
        if not self._store.together:
            self.can_commit_together = False
            return False
        for one in commits:
            self._store.before_commit(one.table.name)
        with self._store.lock:
            for one in commits:
                assert isinstance(one.table, FakeTable)
                one.table.check(one.work)
            for one in commits:
                assert isinstance(one.table, FakeTable)
                one.table.take(one)
            self._store.together_count += 1
        return True

    def tables(self) -> Sequence[TableName]:
        return sorted(self._store.tables)

    def find(self, name: TableName) -> FakeTable | None:
        if name not in self._store.tables:
            return None
        return self._open.setdefault(name, FakeTable(self._store, name))

    def create(
        self,
        name: TableName,
        columns: Sequence[LakeColumn],
        *,
        key: Sequence[str] = (),
        record: str = "",
        options: Mapping[str, str] | None = None,
        partition: Sequence[PartitionField] = (),
    ) -> FakeTable:
        del key, options
        folder = self._store.root / name.schema / name.name
        folder.mkdir(parents=True)
        numbered = tuple(replace(one, field_id=at) for at, one in enumerate(columns, start=1))
        self._store.tables[name] = FakeData(folder=folder)
        first = Snapshot(
            version=0,
            columns=numbered,
            record=record,
            next_field_id=len(numbered) + 1,
            partition=tuple(
                replace(one, source=next(c for c in numbered if c.name == one.source.name))
                for one in partition
            ),
        )
        self._store.put(name, first, "create")
        found = self.find(name)
        assert found is not None
        return found

    def drop(self, name: TableName) -> None:
        data = self._store.tables.pop(name, None)
        self._open.pop(name, None)
        if data is not None:
            shutil.rmtree(data.folder)

    def forget(self) -> None:
        self._open.clear()


class FakeFormat(LakeFormat):
    """Format whose lakes are all in one store."""

    name: ClassVar[str] = "delta"

    def __init__(self, store: FakeStore) -> None:
        self._store = store

    def open(self, url: str, jobs: Jobs, options: Mapping[str, str]) -> FakeCatalogue:
        del url, jobs, options
        return FakeCatalogue(self._store)
