"""Table of Iceberg: its live files, and commits of files, columns and mark in one transaction.

A commit is built on the metadata that the table has when it begins, which must be the version that
was looked at, and replaces exactly this metadata (`TableOperations.commit`): a writer that was
faster makes it fail. Iceberg would repeat it on newer metadata (`Transaction.commitTransaction`),
where a mark that another loader has written meanwhile would be lost, so penstock looks again in
place of that. All of the work is one snapshot, of one sequence number. Not here: creating and
finding tables (`catalogue.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.engines.iceberg.columns import (
    V3,
    columns_of,
    default_json,
    has_default,
    iceberg_type,
    refuse_change,
)
from penstock.engines.iceberg.files import (
    Entry,
    Listed,
    data_entry,
    deletes_entry,
    find_unreadable,
    has_one_target,
    listed_file,
    parse_tasks,
    parse_unreadable,
)
from penstock.engines.iceberg.java import Iceberg
from penstock.engines.iceberg.partition import fields_of
from penstock.engines.lake.format import (
    REPAIR,
    Change,
    ChangeKind,
    Commit,
    CommitRefused,
    DeleteForm,
    Expired,
    Expiry,
    FeatureNeeded,
    FeatureUnknown,
    LakeColumn,
    LakeFailed,
    LakeTable,
    Mark,
    MarkNotNewer,
    Merge,
    Merged,
    NewFile,
    PartitionField,
    Prepared,
    Snapshot,
)
from penstock.engines.lake.java import class_names, typed_errors
from penstock.engines.lake.merging import Merger
from penstock.engines.lake.storage import is_local, path_in
from penstock.host import faults
from penstock.model import TableName

faults.declare("iceberg.commit.before", "iceberg.commit.after")

MARK, RECORD, OPERATION = "penstock.mark", "penstock.record", "penstock.operation"
LOOKED_BACK_MAX = 1_000
"""Number of snapshots among which the newest mark is looked for."""

_DATA_PATH = "write.data.path"
_PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Prefix of a session's properties that Iceberg puts into the summaries of its commits."""


def to_location(name: str) -> str:
    """Return the place of a file or folder for its name in Iceberg's metadata."""
    return path_in(name) if is_local(name) else name


class IcebergTable(LakeTable):
    """Table, as `format.LakeTable` describes it."""

    def __init__(
        self,
        name: TableName,
        iceberg: Iceberg,
        java: Any,
        *,
        merger: Merger | None = None,
        sql_name: str = "",
    ) -> None:
        """Keep the table. Raises FeatureUnknown.

        java: Iceberg's `Table`. merger: if Spark merges rows. sql_name: the table in its SQL.
        """
        self._merger = merger
        self._sql_name = sql_name
        self.name = name
        self._iceberg = iceberg
        self._java = java
        metadata = java.operations().current()
        self._check_features(metadata)
        self._folder = str(metadata.location()).rstrip("/")
        data_folder = str(metadata.property(_DATA_PATH, f"{self._folder}/data")).rstrip("/")
        self._data_folder_name = data_folder
        self.location = to_location(self._folder)
        self.data_folder = self.deletes_folder = to_location(data_folder)
        is_3 = int(metadata.formatVersion()) >= 3
        self.delete_form = DeleteForm.PUFFIN if is_3 else DeleteForm.POSITIONS
        self._snapshot: Snapshot | None = None
        self._listed: dict[str, Listed] = {}
        self._version_count = 0

    def _check_features(self, metadata: Any) -> None:
        """Keep the partition spec, and why penstock cannot write such a table.

        Raises FeatureUnknown unless Spark writes it.
        """
        version, spec = int(metadata.formatVersion()), metadata.spec()
        reason = ""
        if version not in (2, 3) and not (self._merger is not None and version == 1):
            reason = f"format version {version}"
        elif int(spec.specId()) != 0 or int(metadata.specs().size()) != 1:
            reason = "another partition spec than it was created with"
        if reason and (self._merger is None or version > 3):
            raise FeatureUnknown(
                f"table {self.name} has {reason}, which penstock does not write",
                hint='Have Spark write it: apply = "merge" in [target]. Or rename or drop table '
                f"{self.name}, then penstock creates one of its own.",
                table=str(self.name),
            )
        self._unwritable = reason
        self._unreadable = ""
        text = str(self._iceberg.classes.PartitionSpecParser.toJson(spec))
        self._spec: Mapping[str, Any] = json.loads(text)

    # -- reading -----------------------------------------------------------------------------------

    def snapshot(self, *, refresh: bool = False) -> Snapshot:
        """Return the newest known version."""
        if refresh or self._snapshot is None:
            with typed_errors(f"read table {self.name}"):
                self._snapshot = self._read()
        return self._snapshot

    def _read(self) -> Snapshot:
        self._java.refresh()
        metadata = self._java.operations().current()
        self._check_features(metadata)
        columns = self._columns(metadata)
        if present := metadata.currentSnapshot():
            scan = self._java.newScan().useSnapshot(present.snapshotId()).includeColumnStats()
            lines = self._iceberg.list_tasks(scan)
            fields = self._partition(columns)
            self._unreadable = "" if self._merger is None else find_unreadable(lines)
            self._listed = (
                parse_unreadable(lines, columns, to_location)
                if self._unreadable
                else parse_tasks(lines, columns, str(self.name), to_location, fields)
            )
        else:
            self._listed = {}
        return self._make_snapshot(metadata, columns, self._listed)

    def _partition(self, columns: tuple[LakeColumn, ...]) -> tuple[PartitionField, ...]:
        """Return the fields by which the table is partitioned. Raises FeatureUnknown.

        There are none if Spark writes the table, which finds them itself.
        """
        if self._merger is not None and self._unwritable:
            return ()
        try:
            return fields_of(self._spec, columns, str(self.name))
        except FeatureUnknown as error:
            if self._merger is None:
                raise
            self._unwritable = error.message
            return ()

    def _columns(self, metadata: Any) -> tuple[LakeColumn, ...]:
        text = str(self._iceberg.classes.SchemaParser.toJson(metadata.schema()))
        return columns_of(json.loads(text), str(self.name), merges=self._merger is not None)

    def _make_snapshot(
        self, metadata: Any, columns: tuple[LakeColumn, ...], listed: Mapping[str, Listed]
    ) -> Snapshot:
        present = metadata.currentSnapshot()
        self._version_count = int(metadata.snapshots().size())
        return Snapshot(
            version=int(present.snapshotId()) if present else 0,
            columns=columns,
            files=tuple(one.file for one in listed.values()),
            mark=self._mark_of(metadata),
            record=str(metadata.property(RECORD, "")),
            next_field_id=int(metadata.lastColumnId()) + 1,
            features=frozenset((V3,) if int(metadata.formatVersion()) >= 3 else ()),
            partition=self._partition(columns),
            unwritable=self._unwritable or self._unreadable,
            unreadable=self._unreadable,
        )

    def _mark_of(self, metadata: Any) -> Mark | None:
        text = "" if self._merger is None else self._find_mark(metadata)
        text = text or str(metadata.property(MARK, ""))
        if not text:
            return None
        try:
            return Mark.parse(text)
        except (ValueError, TypeError) as error:
            raise LakeFailed(
                f"table {self.name} has a property {MARK} that penstock did not write: {error}",
                hint=f"Copy the table again: penstock table resync FILE {self.name}",
                table=str(self.name),
            ) from error

    def _find_mark(self, metadata: Any) -> str:
        """Return the mark of the newest snapshot that has one, as a merge by Spark has."""
        snapshot = metadata.currentSnapshot()
        for _ in range(LOOKED_BACK_MAX):
            if snapshot is None:
                break
            if text := snapshot.summary().get(MARK):
                return str(text)
            parent = snapshot.parentId()
            snapshot = None if parent is None else metadata.snapshot(parent)
        return ""

    def metadata_location(self) -> str:
        """Return the place of the newest metadata file, by which readers open the table."""
        with typed_errors(f"read table {self.name}"):
            self._java.refresh()
            return to_location(str(self._java.operations().current().metadataFileLocation()))

    def refuse_change(self, change: Change, snapshot: Snapshot) -> str:
        """Return why Iceberg cannot make this change in place; empty if it can."""
        return refuse_change(change, snapshot)

    def plan_column(
        self,
        name: str,
        type: str,
        *,
        field_id: int,
        initial: str | None,
        is_emptied: bool = False,
    ) -> LakeColumn:
        """Return a column that a commit may add.

        Iceberg 2 keeps no value of older rows, and no version keeps one that is not of the type.
        """
        del is_emptied  # an id is never used again
        column = LakeColumn(name=name, type=type, field_id=field_id, initial=initial)
        is_kept = self.delete_form is DeleteForm.PUFFIN and has_default(column)
        return column if is_kept else replace(column, initial=None)

    @property
    def version_count(self) -> int:
        return self._version_count

    # -- committing --------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> Snapshot:
        """Commit, or leave the table as it is; return the new version."""
        known = self.snapshot()
        with typed_errors(f"commit to table {self.name}"):
            prepared = self._prepare(commit, known)
            start, metadata, _ = prepared.work
            faults.point("iceberg.commit.before")
            try:
                self._java.operations().commit(start, metadata)
            except Exception as error:
                if "CommitFailedException" in class_names(error):
                    self.give_up(prepared)
                raise
            faults.point("iceberg.commit.after")
        self.take(prepared)
        return prepared.snapshot

    def merge(self, merge: Merge) -> Merged:
        """Merge rows by Spark. A merge that changed no file is marked by a commit of its own."""
        if self._merger is None:
            return super().merge(merge)
        known = self.snapshot()
        marks = {}
        if merge.mark is not None:
            marks = {_PROPERTY + MARK: merge.mark.text, _PROPERTY + OPERATION: "batch"}
        with typed_errors(f"merge rows into table {self.name}"):
            self._java.refresh()
            looked_at = Commit(base_version=merge.base_version, mark=merge.mark)
            self._check_start(self._java.operations().current(), looked_at, known)
            faults.point("iceberg.commit.before")
            count = self._merger.run(self.name, self._sql_name, merge, marks)
            faults.point("iceberg.commit.after")
        snapshot = self.snapshot(refresh=True)
        if merge.mark is not None and snapshot.mark != merge.mark:
            snapshot = self.commit(Commit(base_version=snapshot.version, mark=merge.mark))
        return Merged(snapshot=snapshot, found_count=count)

    def tag(self, tag: str, version: int, *, kept_us: int) -> None:
        with typed_errors(f"tag table {self.name}"):
            self._java.refresh()
            if self._java.refs().containsKey(tag):
                return
            update = self._java.manageSnapshots()
            update.createTag(tag, version).setMaxRefAgeMs(tag, kept_us // 1000).commit()

    def expire(self, expiry: Expiry) -> Expired:
        """Remove earlier versions, and the files that only they have.

        The newest ones stay, as many as the property `history.expire.min-snapshots-to-keep` says,
        and those that tags and branches name.
        """
        with typed_errors(f"remove old versions of table {self.name}"):
            self._java.refresh()
            metadata = self._java.operations().current()
            before = int(metadata.snapshots().size())
            times = [
                int(found.timestampMillis())
                for version in expiry.keeps
                if (found := metadata.snapshot(version)) is not None
            ]
            limit_ms = min([expiry.before_us // 1000, *times])
            self._java.expireSnapshots().expireOlderThan(limit_ms).commit()
            self._java.refresh()
            self._version_count = int(self._java.operations().current().snapshots().size())
        return Expired(version_count=max(0, before - self._version_count))

    def prepare(self, commit: Commit) -> Prepared:
        """Make all of a commit but its last step."""
        known = self.snapshot()
        with typed_errors(f"prepare a commit to table {self.name}"):
            return self._prepare(commit, known)

    def as_change(self, prepared: Prepared, identifier: Any) -> Any:
        """Return a prepared commit as Iceberg's change of one table. identifier: of the table."""
        start, metadata, _ = prepared.work
        return self._iceberg.classes.catalog.TableCommit.create(identifier, start, metadata)

    def take(self, prepared: Prepared) -> None:
        """Move on to a prepared commit that is committed."""
        _, _, self._listed = prepared.work
        self._snapshot = prepared.snapshot

    def give_up(self, prepared: Prepared) -> None:
        """Remove the files of a prepared commit that was refused."""
        start, metadata, _ = prepared.work
        self._remove_manifests(metadata, start)

    def _prepare(self, commit: Commit, known: Snapshot) -> Prepared:
        transaction = self._java.newTransaction()  # reads the newest metadata
        start = transaction.startMetadata()
        self._check_start(start, commit, known)
        columns = self._change_columns(transaction, commit.changes, known.columns)
        listed = self._change_files(transaction, commit, columns)
        self._change_properties(transaction, commit)
        metadata = transaction.currentMetadata()
        return Prepared(
            table=self,
            snapshot=self._make_snapshot(metadata, columns, listed),
            work=(start, metadata, listed),
        )

    def _check_start(self, start: Any, commit: Commit, known: Snapshot) -> None:
        present = self._mark_of(start)
        if commit.mark is not None and present and not commit.mark.is_newer(present):
            raise MarkNotNewer(
                f"table {self.name} has its changes up to gsn {present.gsn} already; "
                f"this commit is at gsn {commit.mark.gsn}",
                table=str(self.name),
            )
        snapshot = start.currentSnapshot()
        version = int(snapshot.snapshotId()) if snapshot else 0
        if version != commit.base_version or version != known.version:
            raise CommitRefused(
                f"table {self.name} has snapshot {version}, looked at was {commit.base_version}",
                hint="penstock looks at the table again and retries automatically.",
                table=str(self.name),
            )
        if self._columns(start) != known.columns:
            raise CommitRefused(
                f"the columns of table {self.name} were changed since they were looked at",
                hint="penstock looks at the table again and retries automatically.",
                table=str(self.name),
            )

    def _change_columns(
        self, transaction: Any, changes: Iterable[Change], columns: tuple[LakeColumn, ...]
    ) -> tuple[LakeColumn, ...]:
        """Make changes of shape in order; return the columns afterwards.

        Each one is an update of its own, because it names columns as the one before leaves them.
        """
        for change in changes:
            update = transaction.updateSchema()
            present = next((column for column in columns if column.name == change.name), None)
            self._change_column(update, change, present)
            update.commit()
            columns = self._columns(transaction.currentMetadata())
            self._check_added(change, columns)
        return columns

    def _change_column(self, update: Any, change: Change, present: LakeColumn | None) -> None:
        after = change.column
        if change.kind is ChangeKind.DROP:
            update.deleteColumn(change.name)
            return
        if after is None:
            raise ValueError(f"the change of column {change.name} has no column")
        kind = self._iceberg.classes.types.Types.fromPrimitiveString(iceberg_type(after.type))
        if change.kind is ChangeKind.ADD:
            self._add_column(update, change, after, kind)
            return
        if present is not None and present.type != after.type:
            update.updateColumn(change.name, kind)
        if present is not None and after.nullable and not present.nullable:
            update.makeColumnOptional(change.name)
        if after.name != change.name:
            update.renameColumn(change.name, after.name)

    def _add_column(self, update: Any, change: Change, after: LakeColumn, kind: Any) -> None:
        if after.initial is None:
            update.addColumn(None, after.name, kind)
        elif self.delete_form is not DeleteForm.PUFFIN:
            raise FeatureNeeded(
                f"column {after.name} of table {self.name} has a value in older rows, "
                "which needs format version 3",
                hint=f"Copy the table again: penstock table resync FILE {self.name}",
                table=str(self.name),
            )
        else:
            classes = self._iceberg.classes
            text = json.dumps(default_json(after))
            value = classes.SingleValueParser.fromJson(kind, text)
            update.addColumn(None, after.name, kind, classes.expressions.Expressions.lit(value))
        if change.after:
            update.moveAfter(after.name, change.after)

    def _check_added(self, change: Change, columns: Iterable[LakeColumn]) -> None:
        """Raise CommitRefused if an added column has another id than its files."""
        if change.kind is not ChangeKind.ADD or change.column is None:
            return
        given = next(column.field_id for column in columns if column.name == change.name)
        if given != change.column.field_id:
            raise CommitRefused(
                f"column {change.name} of table {self.name} gets id {given}, "
                f"its files have {change.column.field_id}",
                hint="penstock looks at the table again and retries automatically.",
                table=str(self.name),
            )

    def _change_properties(self, transaction: Any, commit: Commit) -> None:
        properties = {}
        if commit.mark is not None:
            properties[MARK] = commit.mark.text
        if commit.record is not None:
            properties[RECORD] = commit.record
        if properties:
            update = transaction.updateProperties()
            for name, value in properties.items():
                update.set(name, value)
            update.commit()

    # -- files of a commit -------------------------------------------------------------------------

    def _change_files(
        self, transaction: Any, commit: Commit, columns: tuple[LakeColumn, ...]
    ) -> dict[str, Listed]:
        """Make the snapshot of a commit; return the files that are live then.

        There is none if the commit has neither files nor a mark.
        """
        change = _FileChanges(self, commit, columns)
        if not (change.is_needed or commit.mark is not None):
            return change.live
        spec = transaction.table().spec()
        if commit.mark is None and commit.operation != REPAIR:
            update = self._look_back(transaction.newRewrite(), commit)
            methods = ("addFile", "addFile", "deleteFile", "deleteFile")
            self._fill(update, "RewriteFiles", methods, change, spec)
        elif commit.removes_all and not change.new_deletes:
            update = transaction.newOverwrite()
            update.overwriteByRowFilter(self._iceberg.classes.expressions.Expressions.alwaysTrue())
            self._iceberg.give_files(update, "OverwriteFiles", "addFile", change.new_files, spec)
        else:
            update = self._look_back(transaction.newRowDelta(), commit)
            methods = ("addRows", "addDeletes", "removeRows", "removeDeletes")
            self._fill(update, "RowDelta", methods, change, spec)
        if commit.mark is not None:
            update.set(MARK, commit.mark.text)
        update.set(OPERATION, commit.operation)
        update.commit()
        return change.live

    def _look_back(self, update: Any, commit: Commit) -> Any:
        """Return an update that looks for conflicts in later versions than the one looked at.

        Iceberg 3 searches the table's whole history for other deletions of a file otherwise.
        """
        return update.validateFromSnapshot(commit.base_version) if commit.base_version else update

    def _fill(
        self,
        update: Any,
        kind: str,
        methods: tuple[str, str, str, str],
        change: _FileChanges,
        spec: Any,
    ) -> None:
        """Give the files to an update of Iceberg, each kind of them by a method of this name."""
        files = (change.new_files, change.new_deletes, change.old_files, change.old_deletes)
        for method, entries in zip(methods, files, strict=True):
            self._iceberg.give_files(update, kind, method, entries, spec)

    def live_entries(self) -> Mapping[str, Listed]:
        """Return the live files by name."""
        return self._listed

    def name_of(self, location: str) -> str:
        """Return the name in manifests of a file below the table's folders."""
        for folder in (self._data_folder_name, self._folder):
            place = to_location(folder)
            if location.startswith(f"{place}/"):
                return folder + location.removeprefix(place)
        return location

    def _remove_manifests(self, metadata: Any, start: Any) -> None:
        """Remove the files that a refused commit has written for its snapshot."""
        snapshot, before = metadata.currentSnapshot(), start.currentSnapshot()
        if snapshot is None or (before and before.snapshotId() == snapshot.snapshotId()):
            return
        # What stays is garbage that no table names, so errors do not matter.
        with suppress(Exception):
            io = self._java.io()
            for manifest in list(snapshot.allManifests(io)):
                if manifest.snapshotId() == snapshot.snapshotId():
                    io.deleteFile(manifest.path())
            io.deleteFile(snapshot.manifestListLocation())


class _FileChanges:
    """Entries that a commit adds and removes, and the files that are live afterwards.

    Attributes:
        live: The live files by name.
        new_files, new_deletes: Entries to add.
        old_files, old_deletes: Entries to remove.
    """

    def __init__(
        self, table: IcebergTable, commit: Commit, columns: tuple[LakeColumn, ...]
    ) -> None:
        """Compute the changes. Raises CommitRefused if a named file is not live."""
        self._table = table
        self._columns = columns
        self._fields = table.snapshot().partition
        self.live = dict(table.live_entries())
        if commit.changes:
            self.live = {
                name: self._make_listed(old.entry, old.deletes) for name, old in self.live.items()
            }
        self.new_files: list[Entry] = []
        self.new_deletes: list[Entry] = []
        self.old_files: list[Entry] = []
        self.old_deletes: list[Entry] = []
        removed = tuple(self.live) if commit.removes_all else commit.removes
        for name in removed:
            self._remove(name)
        for file in commit.adds:
            self._add(file)
        for deletes in commit.deletes:
            data_name = deletes.name if deletes.name in self.live else table.name_of(deletes.name)
            before = self._live(data_name)
            entry = deletes_entry(
                deletes,
                data_name,
                table.name_of(deletes.ref.location),
                before.entry["partition"],
            )
            replaced = [old for old in before.deletes if has_one_target(old)]
            kept = tuple(old for old in before.deletes if not has_one_target(old))
            self.old_deletes += replaced
            self.new_deletes.append(entry)
            self.live[data_name] = before.with_deletes((entry, *kept), to_location)

    @property
    def is_needed(self) -> bool:
        """Return whether the commit changes files."""
        return any((self.new_files, self.new_deletes, self.old_files, self.old_deletes))

    def _live(self, name: str) -> Listed:
        if (listed := self.live.get(name)) is None:
            raise CommitRefused(
                f"file {name} is not among the live files of table {self._table.name}",
                table=str(self._table.name),
            )
        return listed

    def _remove(self, name: str) -> None:
        listed = self._live(name)
        self.old_files.append(listed.entry)
        self.old_deletes += [old for old in listed.deletes if has_one_target(old)]
        del self.live[name]

    def _add(self, file: NewFile) -> None:
        name = self._table.name_of(file.location)
        entry = data_entry(file, name, self._columns, self._fields)
        self.new_files.append(entry)
        self.live[name] = self._make_listed(entry, ())

    def _make_listed(self, entry: Entry, deletes: tuple[Entry, ...]) -> Listed:
        return listed_file(entry, deletes, self._columns, to_location, self._fields)
