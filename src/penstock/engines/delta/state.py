"""State of a Delta table in the driver: what its log says, replayed, and what a commit makes of it.

A state is a value: replaying the log or committing returns a new one. All is pure. Not here: calls
of Delta's Java classes (`log.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from penstock.engines.delta.places import location_of, make_vector, parse_vector, path_of
from penstock.engines.delta.shape import (
    LOG,
    RECORD,
    Action,
    change_metadata,
    change_protocol,
    check_features,
    columns_of,
    configuration_of,
    features_of,
    find_unreadable,
    find_unwritable,
    has_vectors,
    key_of,
    next_field_id,
    partition_of,
    with_properties,
)
from penstock.engines.delta.statistics import (
    make_statistics,
    read_bounds,
    read_row_count,
    widen_bounds,
)
from penstock.engines.lake.format import (
    Commit,
    CommitRefused,
    FeatureNeeded,
    LakeColumn,
    LakeFailed,
    LiveFile,
    Mark,
    NewDeletes,
    NewFile,
    Partition,
    PartitionField,
    Snapshot,
)
from penstock.engines.lake.partitions import constant_array

CountRows = Callable[[str], int]
"""Function that reads the number of rows of the Parquet file at a location."""

COMPACT = "compact"
APP = "penstock:"
MERGED = "penstock.mark"
"""Key of a mark in the text that Delta keeps for the user in a commit."""

_MERGES = ":merges"
_WORD_BITS = 64
# A mark is one transaction number for each of its fields, because Delta keeps numbers of an
# application for ever, through checkpoints and other writers' commits. The first is the fence.
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "gsn": "",
        "segment": ":segment",
        "trx": ":trx",
        "position": ":position",
        "position_high": ":position-high",
        "commit_time_us": ":time",
    }
)


def app_id(log_id: str) -> str:
    """Return the application id whose number two commits of one log cannot both set."""
    return f"{APP}{log_id}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """Data file that is live: the add action of the log, and what it means.

    Attributes:
        live: Facts for the rest of penstock.
    """

    action: Action
    live: LiveFile

    @property
    def vector(self) -> Action | None:
        """Return the descriptor of its deletion vector, if it has one."""
        found: Action | None = self.action.get("deletionVector")
        return found


@dataclass(frozen=True, kw_only=True)
class State:
    """Table at a version.

    Attributes:
        folder: The table's.
        files: Live files by their path in the log.
        numbers: Number of each application.
        touched: The newest version that changed files, columns or features. A commit that looked at
            an older one is refused.
        merged: Mark of the newest merge by Spark; None if a commit of ours is newer.
    """

    folder: str
    version: int
    metadata: Action
    protocol: Action
    files: Mapping[str, DataFile] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    touched: int = 0
    merged: Mark | None = None

    @cached_property
    def columns(self) -> tuple[LakeColumn, ...]:
        """Return the table's columns."""
        return columns_of(self.metadata)

    @cached_property
    def partition(self) -> tuple[PartitionField, ...]:
        """Return the fields by which the table is partitioned."""
        return partition_of(self.metadata)

    @cached_property
    def mark(self) -> Mark | None:
        """Return the mark of the newest commit of ours."""
        if self.merged is not None:
            return self.merged
        log_id = configuration_of(self.metadata).get(LOG)
        return None if log_id is None else parse_mark(log_id, self.numbers)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Return the version for the rest of penstock."""
        return Snapshot(
            version=self.version,
            columns=self.columns,
            files=tuple(file.live for file in self.files.values()),
            mark=self.mark,
            record=configuration_of(self.metadata).get(RECORD, ""),
            next_field_id=next_field_id(self.metadata),
            features=features_of(self.protocol),
            partition=self.partition,
            unwritable=find_unwritable(self.metadata, self.protocol),
            unreadable=find_unreadable(self.protocol),
        )

    def check(self, table: str, *, merges: bool = False) -> Self:
        """Return the state. Raises FeatureUnknown if penstock cannot write the table.

        merges: Spark writes it.
        """
        if not merges:
            check_features(table, self.metadata, self.protocol)
        return self


def merge_properties(mark: Mark, number: int) -> dict[str, str]:
    """Return the properties of a session by which Spark keeps a mark with its commit.

    number: of the merge among those of the log. Of two merges with one number Delta refuses or
    leaves out the later one.
    """
    return {
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps({MERGED: mark.text}),
        "spark.databricks.delta.write.txnAppId": app_id(mark.log_id) + _MERGES,
        "spark.databricks.delta.write.txnVersion": str(number),
    }


def next_merge(state: State, mark: Mark) -> int:
    """Return the number of the next merge of a mark's log."""
    return state.numbers.get(app_id(mark.log_id) + _MERGES, 0) + 1


def read_merged(text: str) -> Mark | None:
    """Return the mark in the actions of one version, if Spark merged it for us."""
    found = None
    for line in text.split("\n"):
        if '"commitInfo"' in line and MERGED in line:
            found = _merged_of(json.loads(line).get("commitInfo") or {})
    return found


def _merged_of(info: Action) -> Mark | None:
    with suppress(ValueError, TypeError, KeyError):  # text of another program
        return Mark.parse(json.loads(info["userMetadata"])[MERGED])
    return None


def has_own_mark(text: str) -> bool:
    """Return whether the actions of one version are of a commit of ours with a mark."""
    return any(
        json.loads(line)["txn"]["appId"].startswith(APP)
        for line in text.split("\n")
        if line.startswith('{"txn"') and _MERGES not in line
    )


def parse_mark(log_id: str, numbers: Mapping[str, int]) -> Mark | None:
    """Return the mark of a log among the numbers of applications."""
    app = app_id(log_id)
    if app not in numbers:
        return None
    words = {name: numbers.get(app + suffix, 0) for name, suffix in _WORDS.items()}
    high = words.pop("position_high")
    words["position"] = (high << _WORD_BITS) | (words["position"] % (1 << _WORD_BITS))
    return Mark(log_id=log_id, **words)


def mark_numbers(mark: Mark) -> dict[str, int]:
    """Return a mark as numbers of applications."""
    words = {
        "gsn": mark.gsn,
        "segment": mark.segment,
        "trx": mark.trx,
        "position": _as_signed(mark.position % (1 << _WORD_BITS)),
        "position_high": mark.position >> _WORD_BITS,
        "commit_time_us": mark.commit_time_us,
    }
    return {app_id(mark.log_id) + _WORDS[name]: number for name, number in words.items()}


def _as_signed(word: int) -> int:
    return word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word


class Replay:
    """Replay of actions of the log, in order of the versions, into a state."""

    def __init__(self, folder: str, count_rows: CountRows, state: State | None = None) -> None:
        """Begin after a state, or before the first version.

        count_rows: asked for files of other writers whose statistics do not name their rows.
        """
        self._folder = folder
        self._count_rows = count_rows
        self._before = state
        self._metadata: Action | None = state.metadata if state else None
        self._protocol: Action | None = state.protocol if state else None
        self._files: dict[str, Action | DataFile] = dict(state.files) if state else {}
        self._numbers: dict[str, int] = dict(state.numbers) if state else {}
        self._version = state.version if state else -1
        self._touched = state.touched if state else 0
        self._merged = state.merged if state else None

    def take_merged(self, mark: Mark | None) -> None:
        """Take the mark of the newest merge, which a checkpoint does not have."""
        self._merged = mark

    def add_version(self, version: int, text: str) -> None:
        """Replay a version. text: its actions as JSON, one in each line."""
        added: dict[str, Action] = {}
        removed: set[str] = set()
        for line in text.split("\n"):
            if not line.strip():
                continue
            action = json.loads(line)
            if (add := action.get("add")) is not None:
                added[add["path"]] = add
            elif (remove := action.get("remove")) is not None:
                removed.add(remove["path"])
            elif (txn := action.get("txn")) is not None:
                self._numbers[txn["appId"]] = int(txn["version"])
                if txn["appId"].startswith(APP) and not txn["appId"].endswith(_MERGES):
                    self._merged = None
                continue
            elif (info := action.get("commitInfo")) is not None:
                self._merged = _merged_of(info) or self._merged
                continue
            elif (metadata := action.get("metaData")) is not None:
                self._metadata = metadata
            elif (protocol := action.get("protocol")) is not None:
                self._protocol = protocol
            else:
                continue
            self._touched = version
        for path in removed:
            self._files.pop(path, None)
        self._files.update(added)  # a removed path comes back with another deletion vector
        self._version = version

    def state(self) -> State:
        """Return the state after the replayed versions. Raises LakeFailed for a broken log."""
        if self._metadata is None or self._protocol is None:
            raise LakeFailed(
                f"the log of the Delta table {self._folder} has no metadata",
                hint="Restore the folder _delta_log, or remove the table and copy it again.",
            )
        columns, partition = columns_of(self._metadata), partition_of(self._metadata)
        before = self._before
        is_same = before is not None and (before.columns, before.partition) == (columns, partition)
        files = {
            path: file
            if isinstance(file, DataFile) and is_same
            else self._data_file(file, columns, partition)
            for path, file in self._files.items()
        }
        return State(
            folder=self._folder,
            version=self._version,
            metadata=self._metadata,
            protocol=self._protocol,
            files=files,
            numbers=self._numbers,
            touched=self._touched,
            merged=self._merged,
        )

    def _data_file(
        self,
        file: Action | DataFile,
        columns: Sequence[LakeColumn],
        partition: Sequence[PartitionField],
    ) -> DataFile:
        if isinstance(file, DataFile):
            bounds = _bounds(file.action, columns, partition)
            return replace(file, live=replace(file.live, bounds=bounds))
        return read_file(file, self._folder, columns, partition, self._count_rows)


def _bounds(
    action: Action, columns: Sequence[LakeColumn], partition: Sequence[PartitionField]
) -> dict[str, tuple[Any, Any]]:
    """Return the bounds of a file's columns; that of a partition has its value alone."""
    bounds = read_bounds(action.get("stats"), columns)
    for one, text in zip(partition, read_partition(action, partition), strict=True):
        bounds.pop(one.source.name, None)
        if text is not None and one.source.type:
            with suppress(pa.ArrowInvalid):  # of another writer: bounds that are not known
                value = constant_array(text, one.source.type, 1)[0].as_py()
                bounds[one.source.name] = (value, value)
    return bounds


def read_partition(action: Action, partition: Sequence[PartitionField]) -> Partition:
    """Return the partition of an add action."""
    values = action.get("partitionValues") or {}
    return tuple(values.get(field.source.file_name) or None for field in partition)


def read_file(
    action: Action,
    folder: str,
    columns: Sequence[LakeColumn],
    partition: Sequence[PartitionField],
    count_rows: CountRows,
) -> DataFile:
    """Return the data file of an add action."""
    values = read_partition(action, partition)
    location = location_of(action["path"], folder)
    row_count = read_row_count(action.get("stats"))
    vector = action.get("deletionVector")
    return DataFile(
        action=action,
        live=LiveFile(
            name=action["path"],
            location=location,
            size_bytes=int(action["size"]),
            row_count=count_rows(location) if row_count is None else row_count,
            bounds=_bounds(action, columns, partition),
            deletes=(parse_vector(vector, folder),) if vector else (),
            partition=values,
            constants={
                field.source.file_name: value
                for field, value in zip(partition, values, strict=True)
            },
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Actions:
    """Actions of a commit as lists of dicts, and the state that they make.

    Attributes:
        protocol, metadata: None if they stay.
        numbers: Of applications.
        after: The state after it, at the version that follows.
        has_files: Whether files or columns change, so that no other commit may be in between.
    """

    after: State
    adds: tuple[Action, ...] = ()
    removes: tuple[Action, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    metadata: Action | None = None
    protocol: Action | None = None
    has_files: bool = False


def is_touching(commit: Commit) -> bool:
    """Return whether a commit changes files or columns, and not the mark or record alone."""
    return bool(
        commit.adds or commit.deletes or commit.removes or commit.removes_all or commit.changes
    )


def plan_actions(state: State, commit: Commit, *, now_ms: int) -> Actions:
    """Return the actions of a commit on a state. Raises CommitRefused, FeatureNeeded."""
    metadata = _changed_metadata(state, commit)
    protocol = None if metadata is None else change_protocol(state.protocol, metadata)
    after = replace(
        state,
        version=state.version + 1,
        metadata=metadata or state.metadata,
        protocol=protocol or state.protocol,
    )
    if commit.deletes and not has_vectors(after.metadata, after.protocol):
        raise FeatureNeeded(
            f"the Delta table {state.folder} has no deletion vectors",
            hint="Run in Spark: ALTER TABLE ... SET TBLPROPERTIES "
            "('delta.enableDeletionVectors' = 'true').",
        )
    files = _Files(state, after, is_data=commit.operation != COMPACT, now_ms=now_ms)
    files.remove(state.files if commit.removes_all else commit.removes)
    files.add(commit.adds, commit.deletes)
    files.delete(commit.deletes)
    numbers = mark_numbers(commit.mark) if commit.mark else {}
    touches = is_touching(commit)
    return Actions(
        after=replace(
            after,
            files=files.live(),
            numbers={**state.numbers, **numbers},
            touched=after.version if touches or metadata else state.touched,
            merged=None if commit.mark else state.merged,
        ),
        adds=tuple(files.adds),
        removes=tuple(files.removes),
        numbers=numbers,
        metadata=metadata,
        protocol=protocol,
        has_files=touches,
    )


def _changed_metadata(state: State, commit: Commit) -> Action | None:
    """Return the metadata after a commit; None if it stays."""
    metadata: Action = state.metadata
    if commit.changes:
        metadata = change_metadata(metadata, commit.changes, is_emptied=commit.removes_all)
    properties = {}
    if commit.record is not None:
        properties[RECORD] = commit.record
    if commit.mark is not None:
        properties[LOG] = commit.mark.log_id
    present = configuration_of(metadata)
    if any(present.get(name) != value for name, value in properties.items()):
        metadata = with_properties(metadata, properties)
    return None if metadata is state.metadata else metadata


class _Files:
    """Changes of the live files by one commit."""

    def __init__(self, before: State, after: State, *, is_data: bool, now_ms: int) -> None:
        self.adds: list[Action] = []
        self.removes: list[Action] = []
        self._before = before
        self._columns = after.columns
        self._partition = after.partition
        self._key = key_of(after.metadata)
        self._is_data = is_data
        self._now_ms = now_ms
        self._gone: set[str] = set()
        self._added: dict[str, DataFile] = {}

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._remove(self._find(name))

    def add(self, files: Iterable[NewFile], deletes: Iterable[NewDeletes]) -> None:
        """Add new files. deletes: of the commit, among them those of the new files."""
        vectors = {one.name: one for one in deletes}
        by_partition = {field.source.name for field in self._partition}
        kept = [column for column in self._columns if column.name not in by_partition]
        for file in files:
            path = path_of(file.location, self._before.folder)
            statistics = make_statistics(file.row_count, file.statistics, kept, self._key)
            action: dict[str, Any] = {
                "path": path,
                "partitionValues": {
                    field.source.file_name: value
                    for field, value in zip(self._partition, file.partition, strict=True)
                },
                "size": file.size_bytes,
                "modificationTime": self._now_ms,
                "dataChange": self._is_data,
                "stats": statistics,
            }
            self._add(_with_vector(action, vectors.get(file.location), self._before.folder))

    def delete(self, deletes: Iterable[NewDeletes]) -> None:
        """Give live files other deletion vectors."""
        for one in deletes:
            if path_of_new(one.name, self._before.folder) in self._added:
                continue
            file = self._find(one.name)
            self._remove(file)
            if one.ref.cardinality >= file.live.row_count:
                continue  # no row is left
            action = {**file.action, "dataChange": self._is_data}
            if read_row_count(action.get("stats")) is None:
                action["stats"] = widen_bounds("", file.live.row_count)
            self._add(_with_vector(action, one, self._before.folder))

    def live(self) -> Mapping[str, DataFile]:
        """Return the live files after the commit."""
        kept = {path: file for path, file in self._before.files.items() if path not in self._gone}
        if self._columns != self._before.columns:
            kept = {
                path: replace(
                    file,
                    live=replace(
                        file.live, bounds=_bounds(file.action, self._columns, self._partition)
                    ),
                )
                for path, file in kept.items()
            }
        return {**kept, **self._added}

    def _find(self, name: str) -> DataFile:
        file = self._before.files.get(name)
        if file is None or name in self._gone:
            raise CommitRefused(
                f"the file {name} is not live any more in {self._before.folder}",
                hint="penstock looks at the table again and retries automatically.",
            )
        return file

    def _remove(self, file: DataFile) -> None:
        name = file.live.name
        self._gone.add(name)
        kept = {
            key: file.action[key]
            for key in ("deletionVector", "tags", "baseRowId", "defaultRowCommitVersion")
            if file.action.get(key) is not None
        }
        self.removes.append(
            {
                "path": name,
                "deletionTimestamp": self._now_ms,
                "dataChange": self._is_data,
                "extendedFileMetadata": True,
                "partitionValues": file.action.get("partitionValues") or {},
                "size": file.action["size"],
                **kept,
            }
        )

    def _add(self, action: Action) -> None:
        self.adds.append(action)
        file = read_file(action, self._before.folder, self._columns, self._partition, _no_count)
        self._added[file.live.name] = file


def path_of_new(name: str, folder: str) -> str:
    """Return the path in the log of a name in `NewDeletes`: a live file's, or a location."""
    return path_of(name, folder) if name.startswith(f"{folder}/") else name


def _no_count(location: str) -> int:
    raise AssertionError(f"statistics of {location} name its rows")


def _with_vector(action: Action, deletes: NewDeletes | None, folder: str) -> dict[str, Any]:
    """Return an add action with a deletion vector."""
    if deletes is None:
        return dict(action)
    row_count = read_row_count(action["stats"])
    assert row_count is not None, "all statistics of ours name the rows"
    return {
        **action,
        "stats": widen_bounds(action["stats"], row_count),
        "deletionVector": make_vector(deletes.ref, folder),
    }
