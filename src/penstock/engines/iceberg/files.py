"""Entries of data files and deletions in manifests, as JSON of Iceberg's `ContentFileParser`.

One JSON text crosses the border to the JVM for each file, or for all files of a table, in place of
a call for each field. Not here: the calls (`table.py`), and the bytes of the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.codec.lake.position_deletes import FILE_PATH_ID
from penstock.engines.iceberg.bounds import decode_bound, encode_bound, lower_bound, upper_bound
from penstock.engines.iceberg.columns import iceberg_type
from penstock.engines.iceberg.partition import decode_partition, encode_partition
from penstock.engines.lake.format import (
    ColumnStatistics,
    DeleteForm,
    DeletionRef,
    FeatureUnknown,
    LakeColumn,
    LiveFile,
    NewDeletes,
    NewFile,
    PartitionField,
)

Entry = Mapping[str, Any]
"""JSON object of one file in a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Live data file with the entries by which a commit can remove it.

    Attributes:
        file: The data file as all of penstock knows it.
        entry: Its entry.
        deletes: Entries of its deletions.
    """

    file: LiveFile
    entry: Entry
    deletes: tuple[Entry, ...] = ()

    def with_deletes(self, deletes: tuple[Entry, ...], to_location: Callable[[str], str]) -> Listed:
        """Return the file with other deletions. to_location: see `parse_tasks`."""
        refs = tuple(_deletion(delete, to_location) for delete in deletes)
        return Listed(file=replace(self.file, deletes=refs), entry=self.entry, deletes=deletes)


def parse_tasks(
    lines: str,
    columns: Iterable[LakeColumn],
    table: str,
    to_location: Callable[[str], str],
    fields: Sequence[PartitionField] = (),
) -> dict[str, Listed]:
    """Return the live files of a table by name.

    Args:
        lines: a JSON text of Iceberg's `ScanTaskParser` on each line, one for each data file.
        columns: the table's columns.
        table: name of the table, for messages.
        to_location: returns the place of a file for a name in manifests.
        fields: by which the table is partitioned.

    Raises:
        FeatureUnknown: The table has files of another partition spec, deletions by value, or files
            that are not Parquet.
    """
    listed = {}
    known = tuple(columns)
    for line in lines.splitlines():
        task = json.loads(line)
        entry, deletes = task["data-file"], tuple(task.get("delete-files", ()))
        if reason := _find_reason(entry, deletes):
            raise FeatureUnknown(
                f"table {table} has {reason}, which penstock does not write",
                hint='Have Spark write it: apply = "merge" in [target]. Or rewrite the table '
                f"without them, or drop it and run: penstock table resync FILE {table}",
                table=table,
            )
        listed[entry["file-path"]] = listed_file(entry, deletes, known, to_location, fields)
    return listed


def find_unreadable(lines: str) -> str:
    """Return why penstock cannot read some of the files; empty if it can. lines: as above."""
    tasks = map(json.loads, lines.splitlines())
    reasons = (_find_reason(task["data-file"], task.get("delete-files", ())) for task in tasks)
    return next(filter(None, reasons), "")


def parse_unreadable(
    lines: str, columns: Iterable[LakeColumn], to_location: Callable[[str], str]
) -> dict[str, Listed]:
    """Return the data files of a table that penstock cannot read, without their deletions."""
    known = tuple(columns)
    entries = [json.loads(line)["data-file"] for line in lines.splitlines()]
    return {one["file-path"]: listed_file(one, (), known, to_location) for one in entries}


def listed_file(
    entry: Entry,
    deletes: tuple[Entry, ...],
    columns: Iterable[LakeColumn],
    to_location: Callable[[str], str],
    fields: Sequence[PartitionField] = (),
) -> Listed:
    """Return a live file by its entry and those of its deletions; see `parse_tasks`."""
    kinds = {
        column.field_id: (column.name, iceberg_type(column.type))
        for column in columns
        if column.type
    }
    file = LiveFile(
        name=entry["file-path"],
        location=to_location(entry["file-path"]),
        size_bytes=entry["file-size-in-bytes"],
        row_count=entry["record-count"],
        bounds=_bounds(entry, kinds),
        deletes=tuple(_deletion(delete, to_location) for delete in deletes),
        partition=decode_partition(fields, entry["partition"]) if fields else (),
    )
    return Listed(file=file, entry=entry, deletes=deletes)


def _find_reason(entry: Entry, deletes: Iterable[Entry]) -> str:
    """Return why penstock cannot read a file; empty if it can."""
    reason = ""
    if entry["spec-id"] != 0 or any(delete["spec-id"] != 0 for delete in deletes):
        reason = "files of another partition spec"
    elif entry["file-format"].lower() != "parquet":
        reason = f"files of the format {entry['file-format']}"
    elif any(delete["content"] == "equality-deletes" for delete in deletes):
        reason = "deletions by value (equality deletes)"
    elif any(delete["file-format"].lower() not in ("parquet", "puffin") for delete in deletes):
        reason = "deletions in files that are neither Parquet nor Puffin"
    elif "key-metadata" in entry:
        reason = "encrypted files"
    return reason


def _bounds(entry: Entry, kinds: Mapping[int, tuple[str, str]]) -> dict[str, tuple[Any, Any]]:
    lows, highs = _map_of(entry, "lower-bounds"), _map_of(entry, "upper-bounds")
    bounds = {}
    for number in lows.keys() & highs.keys() & kinds.keys():
        name, kind = kinds[number]
        low = decode_bound(kind, bytes.fromhex(lows[number]))
        high = decode_bound(kind, bytes.fromhex(highs[number]))
        if low is not None and high is not None:
            bounds[name] = (low, high)
    return bounds


def _map_of(entry: Entry, name: str) -> dict[int, Any]:
    found = entry.get(name)
    return dict(zip(found["keys"], found["values"], strict=True)) if found else {}


def _deletion(delete: Entry, to_location: Callable[[str], str]) -> DeletionRef:
    is_vector = delete["file-format"].lower() == "puffin"
    return DeletionRef(
        form=DeleteForm.PUFFIN if is_vector else DeleteForm.POSITIONS,
        location=to_location(delete["file-path"]),
        offset=delete["content-offset"] if is_vector else 0,
        size_bytes=delete["content-size-in-bytes" if is_vector else "file-size-in-bytes"],
        cardinality=delete["record-count"],
    )


def has_one_target(delete: Entry) -> bool:
    """Return whether a file of deletions certainly names one data file only, so it can go."""
    if "referenced-data-file" in delete:
        return True
    low = _map_of(delete, "lower-bounds").get(FILE_PATH_ID)
    return low is not None and low == _map_of(delete, "upper-bounds").get(FILE_PATH_ID)


def data_entry(
    file: NewFile,
    name: str,
    columns: Iterable[LakeColumn],
    fields: Sequence[PartitionField] = (),
) -> Entry:
    """Return the entry of a new data file.

    name: its name in manifests. fields: by which the table is partitioned.
    """
    entry: dict[str, Any] = {
        "spec-id": 0,
        "partition": encode_partition(fields, file.partition),
        "content": "data",
        "file-path": name,
        "file-format": "parquet",
        "file-size-in-bytes": file.size_bytes,
        "record-count": file.row_count,
        "sort-order-id": 0,
    }
    if file.split_offsets:
        entry["split-offsets"] = list(file.split_offsets)
    known = [
        (column, file.statistics[column.name])
        for column in columns
        if column.name in file.statistics and column.field_id
    ]
    return entry | _metrics(known, file.row_count)


def _metrics(known: Iterable[tuple[LakeColumn, ColumnStatistics]], rows: int) -> dict[str, Any]:
    maps: dict[str, dict[int, Any]] = {
        "column-sizes": (sizes := {}),
        "value-counts": (values := {}),
        "null-value-counts": (nulls := {}),
        "nan-value-counts": (nans := {}),
        "lower-bounds": (lows := {}),
        "upper-bounds": (highs := {}),
    }
    for column, statistics in known:
        number, kind = column.field_id, iceberg_type(column.type)
        if statistics.size_bytes:
            sizes[number] = statistics.size_bytes
        values[number] = statistics.value_count or rows
        nulls[number] = statistics.null_count
        if kind in ("float", "double"):
            nans[number] = statistics.nan_count
        if statistics.low is None or statistics.high is None:
            continue
        lows[number] = encode_bound(kind, lower_bound(statistics.low)).hex().upper()
        if (high := upper_bound(statistics.high)) is not None:
            highs[number] = encode_bound(kind, high).hex().upper()
    return {
        name: {"keys": list(counts), "values": list(counts.values())}
        for name, counts in maps.items()
        if counts
    }


def deletes_entry(
    deletes: NewDeletes, data_name: str, name: str, partition: Sequence[Any] = ()
) -> Entry:
    """Return the entry of a data file's deletions.

    Args:
        deletes: the deletions, as a worker has written them.
        data_name: name of the data file in manifests.
        name: name of the file with the deletions in manifests.
        partition: in the entry of the data file; readers apply no deletions of another one.
    """
    entry: dict[str, Any] = {
        "spec-id": 0,
        "partition": list(partition),
        "content": "position-deletes",
        "file-path": name,
        "record-count": deletes.ref.cardinality,
        "referenced-data-file": data_name,
    }
    if deletes.ref.form is DeleteForm.PUFFIN:
        return entry | {
            "file-format": "puffin",
            "file-size-in-bytes": deletes.file_size_bytes,
            "content-offset": deletes.ref.offset,
            "content-size-in-bytes": deletes.ref.size_bytes,
        }
    # Some readers apply a file of positions to all data files unless its bounds name one.
    bound = {"keys": [FILE_PATH_ID], "values": [data_name.encode().hex().upper()]}
    return entry | {
        "file-format": "parquet",
        "file-size-in-bytes": deletes.file_size_bytes or deletes.ref.size_bytes,
        "lower-bounds": bound,
        "upper-bounds": bound,
    }
