"""Columns and features of a Delta table: its metadata and protocol actions as dicts.

All is pure. A table begins without column mapping and type widening; the first change that needs a
feature switches it on. Not here: the mapping from the log's types (`codec/types/to_lake.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from penstock.engines.lake.format import (
    Change,
    ChangeKind,
    FeatureNeeded,
    FeatureUnknown,
    LakeColumn,
    PartitionField,
    Snapshot,
    Transform,
)
from penstock.engines.lake.partitions import find_problems, terms_of

Action = Mapping[str, Any]

RECORD = "penstock.record"
KEY = "penstock.key"
LOG = "penstock.log"

_MAPPING_MODE = "delta.columnMapping.mode"
_MAPPING_LAST = "delta.columnMapping.maxColumnId"
_MAPPING_ID = "delta.columnMapping.id"
_MAPPING_NAME = "delta.columnMapping.physicalName"
_WIDENING = "delta.enableTypeWidening"
_TYPE_CHANGES = "delta.typeChanges"
_REMOVED_KEPT = "delta.deletedFileRetentionDuration"
_WEEK_HOURS = 168
_VECTORS = "delta.enableDeletionVectors"

# Checkpoints cost seconds, so they are rare. Each commit lists the log's folder, and a batch every
# 5 seconds makes 17,280 versions a day: penstock removes old ones itself (`expiry.py`), because
# Delta does not know which versions the table of batches names.
_NEW_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        _VECTORS: "true",
        "delta.checkpointInterval": "1000",
        "delta.logRetentionDuration": "interval 1 days",
        "delta.enableExpiredLogCleanup": "false",
    }
)
_READER_FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"}
)
# Features whose rules a commit of ours keeps. Some are only supported, as upgrades of a protocol
# list them, and count when a property or a column uses them: see `check_features`.
_KNOWN_FEATURES = _READER_FEATURES | {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
_USED_BY_PROPERTY: Mapping[str, str] = MappingProxyType(
    {
        "delta.appendOnly": "appendOnly",
        "delta.enableChangeDataFeed": "changeDataFeed",
        "delta.enableRowTracking": "rowTracking",
        "delta.enableIcebergCompatV1": "icebergCompatV1",
        "delta.enableIcebergCompatV2": "icebergCompatV2",
    }
)
_USED_BY_COLUMN: Mapping[str, str] = MappingProxyType(
    {
        "delta.generationExpression": "generatedColumns",
        "delta.identity.start": "identityColumns",
        "delta.invariants": "invariants",
    }
)
_TABLE_FEATURES_READER, _TABLE_FEATURES_WRITER = 3, 7

_DELTA = {
    "bool": "boolean",
    "int32": "integer",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
_LAKE = {delta: lake for lake, delta in _DELTA.items()}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
_INT_DIGITS = {"int32": 10, "int64": 20}
_WIDER = frozenset({("int32", "int64"), ("float32", "float64"), ("int32", "float64")})


def delta_type(kind: str) -> str:
    """Return Delta's name of a lake type (`LakeColumn.type`)."""
    if parts := _DECIMAL.fullmatch(kind):
        return f"decimal({parts[1]},{parts[2]})"
    return _DELTA[kind]


def lake_type(kind: Any) -> str:
    """Return the lake type of a Delta type; empty if penstock writes no such values."""
    if not isinstance(kind, str):
        return ""
    if parts := _DECIMAL.fullmatch(kind):
        return f"decimal({parts[1]},{parts[2]})"
    return _LAKE.get(kind, "")


def configuration_of(metadata: Action) -> Mapping[str, str]:
    """Return the table's properties."""
    return metadata.get("configuration") or {}


def key_of(metadata: Action) -> tuple[str, ...]:
    """Return the names of the key's columns as they were when the table was created."""
    return tuple(json.loads(configuration_of(metadata).get(KEY, "[]")))


def is_mapped(metadata: Action) -> bool:
    """Return whether names in Parquet files are others than those of the columns."""
    return configuration_of(metadata).get(_MAPPING_MODE, "none") != "none"


def columns_of(metadata: Action) -> tuple[LakeColumn, ...]:
    """Return the columns of a table."""
    mapped = is_mapped(metadata)
    return tuple(
        LakeColumn(
            name=field["name"],
            type=lake_type(field["type"]),
            physical=str(field["metadata"].get(_MAPPING_NAME, "")) if mapped else "",
            field_id=int(field["metadata"].get(_MAPPING_ID, 0)) if mapped else 0,
            nullable=bool(field["nullable"]),
        )
        for field in _fields(metadata)
    )


def partition_of(metadata: Action) -> tuple[PartitionField, ...]:
    """Return the fields by which a table is partitioned: columns as they are."""
    by_name = {column.name: column for column in columns_of(metadata)}
    return tuple(
        PartitionField(
            source=by_name[name],
            transform=Transform.IDENTITY,
            name=name,
            empty_is_null=by_name[name].type == "string",
        )
        for name in metadata.get("partitionColumns") or ()
    )


def next_field_id(metadata: Action) -> int:
    """Return the id of the next added column; 0 without column mapping."""
    if not is_mapped(metadata):
        return 0
    return int(configuration_of(metadata).get(_MAPPING_LAST, "0")) + 1


def plan_column(
    metadata: Action, name: str, kind: str, *, field_id: int, is_emptied: bool = False
) -> LakeColumn:
    """Return a column to add. Its name in files is unique in the table, though others had its name.

    is_emptied: its commit removes all files, and with them those names.
    """
    fields = _fields(metadata)
    taken = set() if is_emptied else {text.lower() for text in _all_names(fields)}
    if is_mapped(metadata):
        return LakeColumn(name=name, type=kind, physical=f"col-{field_id}", field_id=field_id)
    if name.lower() not in taken and not _NEEDS_MAPPING.search(name):
        return LakeColumn(name=name, type=kind)
    # Its commit drops or renames the column that has the name now, or maps the columns.
    safe = _NEEDS_MAPPING.sub("_", name)
    number = 2
    while f"{safe}-{number}".lower() in taken:
        number += 1
    return LakeColumn(name=name, type=kind, physical=f"{safe}-{number}")


def refuse_change(change: Change, snapshot: Snapshot) -> str:
    """Return why a change cannot be made in place; empty if it can."""
    present = snapshot.column(change.name)
    if snapshot.unwritable and change.kind is not ChangeKind.ADD:
        return f"the Delta table uses {snapshot.unwritable}; change it in Spark"
    if change.kind is ChangeKind.DROP and len(snapshot.columns) == 1:
        return "a Delta table keeps one column"
    is_partition = any(one.source.name == change.name for one in snapshot.partition)
    if is_partition and change.kind in (ChangeKind.DROP, ChangeKind.WIDEN):
        return f"the table is partitioned by column {change.name}"
    if change.kind is not ChangeKind.WIDEN or present is None or change.column is None:
        return ""
    if is_wider(present.type, change.column.type):
        return ""
    return f"Delta cannot change {present.type} to {change.column.type} in place"


def is_wider(before: str, after: str) -> bool:
    """Return whether type widening can make this change."""
    if before == after or (before, after) in _WIDER:
        return True
    wide = _DECIMAL.fullmatch(after)
    if wide is None:
        return (before, after) == ("date", "timestamp")
    digits, scale = int(wide[1]), int(wide[2])
    if before in _INT_DIGITS:
        return digits - scale >= _INT_DIGITS[before]
    old = _DECIMAL.fullmatch(before)
    if old is None:
        return False
    return scale >= int(old[2]) and digits - scale >= int(old[1]) - int(old[2])


def new_metadata(
    columns: Sequence[LakeColumn],
    *,
    table_id: str,
    created_ms: int,
    key: Sequence[str] = (),
    record: str = "",
    partition: Sequence[str] = (),
    retention_hours: float = 0.0,
) -> dict[str, Any]:
    """Return the metadata of a new table.

    partition: names of columns. retention_hours: how long it remembers removed files, if that is
    longer than Delta's week.

    Raises FeatureNeeded for names that cannot be held.
    """
    _check_names(column.name for column in columns)
    configuration = {**_NEW_PROPERTIES, KEY: json.dumps(list(key))}
    if retention_hours > _WEEK_HOURS:
        configuration[_REMOVED_KEPT] = f"interval {math.ceil(retention_hours) + 1} hours"
    if record:
        configuration[RECORD] = record
    fields: list[dict[str, Any]] = [
        _field(column.name, column.type, nullable=column.nullable) for column in columns
    ]
    if any(_NEEDS_MAPPING.search(column.name) for column in columns):
        for number, field in enumerate(fields, 1):
            field["metadata"] = {_MAPPING_ID: number, _MAPPING_NAME: f"col-{number}"}
        configuration |= {_MAPPING_MODE: "name", _MAPPING_LAST: str(len(fields))}
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _schema_text(fields),
        "partitionColumns": list(partition),
        "configuration": configuration,
        "createdTime": created_ms,
    }


def change_metadata(
    metadata: Action, changes: Iterable[Change], *, is_emptied: bool = False
) -> dict[str, Any]:
    """Return a table's metadata after some changes. Raises FeatureNeeded.

    is_emptied: the commit removes all files, so that a column is dropped without column mapping.
    """
    changed: dict[str, Any] = deepcopy(dict(metadata))
    configuration = changed["configuration"] = dict(configuration_of(metadata))
    fields = _fields(changed)
    for change in changes:
        if _needs_mapping(change, is_emptied=is_emptied) and not is_mapped(changed):
            _map_columns(fields, configuration)
        _change_fields(fields, configuration, change)
        if change.kind is ChangeKind.RENAME and change.column is not None:
            changed["partitionColumns"] = [
                change.column.name if name == change.name else name
                for name in changed.get("partitionColumns") or ()
            ]
    _check_names(field["name"] for field in fields)
    physical = [field["metadata"][_MAPPING_NAME] for field in fields] if is_mapped(changed) else []
    if len(set(physical)) < len(physical):
        raise FeatureNeeded(
            "two columns of the table would have one name in its files, after this many changes",
            hint="Copy the table again: penstock table resync FILE TABLE.",
        )
    changed["schemaString"] = _schema_text(fields)
    return changed


def with_properties(metadata: Action, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a table's metadata with some properties set."""
    return {**metadata, "configuration": {**configuration_of(metadata), **properties}}


def _needs_mapping(change: Change, *, is_emptied: bool) -> bool:
    if change.kind is ChangeKind.RENAME or (change.kind is ChangeKind.DROP and not is_emptied):
        return True
    return (
        change.kind is ChangeKind.ADD
        and change.column is not None
        and (bool(change.column.physical))
    )


def _map_columns(fields: Sequence[dict[str, Any]], configuration: dict[str, str]) -> None:
    """Switch column mapping on: files keep the present names."""
    for number, field in enumerate(fields, 1):
        field["metadata"] = {
            **field["metadata"],
            _MAPPING_ID: number,
            _MAPPING_NAME: field["name"],
        }
    configuration |= {_MAPPING_MODE: "name", _MAPPING_LAST: str(len(fields))}


def _change_fields(
    fields: list[dict[str, Any]], configuration: dict[str, str], change: Change
) -> None:
    mapped = configuration.get(_MAPPING_MODE, "none") != "none"
    place = next((i for i, field in enumerate(fields) if field["name"] == change.name), None)
    if change.kind is ChangeKind.ADD:
        assert change.column is not None, "an added column has a description"
        field = _field(change.column.name, change.column.type, nullable=True)
        if mapped:
            number = max(change.column.field_id, int(configuration[_MAPPING_LAST]) + 1)
            field["metadata"] = {_MAPPING_ID: number, _MAPPING_NAME: change.column.file_name}
            configuration[_MAPPING_LAST] = str(number)
        after = [i for i, one in enumerate(fields) if one["name"] == change.after]
        fields.insert(after[0] + 1 if after else len(fields), field)
        return
    if place is None:
        raise FeatureNeeded(
            f"the table has no column {change.name} to {change.kind}",
            hint="Copy the table again: penstock table resync FILE TABLE.",
        )
    if change.kind is ChangeKind.DROP:
        del fields[place]
        return
    assert change.column is not None, "only a dropped column has no description"
    if change.kind is ChangeKind.RENAME:
        fields[place]["name"] = change.column.name
        return
    before, after_type = fields[place]["type"], delta_type(change.column.type)
    if before != after_type:
        fields[place]["type"] = after_type
        made = fields[place]["metadata"].setdefault(_TYPE_CHANGES, [])
        made.append({"fromType": before, "toType": after_type})
        configuration[_WIDENING] = "true"


def needed_features(metadata: Action) -> frozenset[str]:
    """Return the reader features that metadata needs."""
    configuration = configuration_of(metadata)
    found = set()
    if is_mapped(metadata):
        found.add("columnMapping")
    if configuration.get(_VECTORS) == "true":
        found.add("deletionVectors")
    if configuration.get(_WIDENING) == "true":
        found.add("typeWidening")
    if any(field["type"] == "timestamp_ntz" for field in _fields(metadata)):
        found.add("timestampNtz")
    return frozenset(found)


def new_protocol(metadata: Action) -> dict[str, Any]:
    """Return the protocol of a new table."""
    readers = sorted(needed_features(metadata))
    return {
        "minReaderVersion": _TABLE_FEATURES_READER,
        "minWriterVersion": _TABLE_FEATURES_WRITER,
        "readerFeatures": readers,
        "writerFeatures": sorted({*readers, "appendOnly", "invariants"}),
    }


def change_protocol(protocol: Action, metadata: Action) -> dict[str, Any] | None:
    """Return the protocol that a table needs for new metadata; None if it has it.

    Raises FeatureNeeded if the table's protocol has no list of features.
    """
    missing = needed_features(metadata) - frozenset(protocol.get("readerFeatures") or ())
    if not missing:
        return None
    if protocol.get("readerFeatures") is None or protocol.get("writerFeatures") is None:
        raise FeatureNeeded(
            f"the table needs {', '.join(sorted(missing))}, and its protocol has no features",
            hint="Upgrade it in Spark: ALTER TABLE ... SET TBLPROPERTIES "
            "('delta.enableDeletionVectors' = 'true').",
        )
    return {
        **protocol,
        "readerFeatures": sorted({*protocol["readerFeatures"], *missing}),
        "writerFeatures": sorted({*protocol["writerFeatures"], *missing}),
    }


def features_of(protocol: Action) -> frozenset[str]:
    """Return the names of all features that a protocol lists."""
    return frozenset(protocol.get("readerFeatures") or ()) | frozenset(
        protocol.get("writerFeatures") or ()
    )


def has_vectors(metadata: Action, protocol: Action) -> bool:
    """Return whether deletion vectors may be written."""
    enabled = configuration_of(metadata).get(_VECTORS) == "true"
    return enabled and "deletionVectors" in features_of(protocol)


def find_unreadable(protocol: Action) -> str:
    """Return the features that penstock cannot read; empty if there are none."""
    unknown = frozenset(protocol.get("readerFeatures") or ()) - _READER_FEATURES
    reader = int(protocol.get("minReaderVersion", 1))
    versions = {f"reader version {reader}"} if reader > _TABLE_FEATURES_READER else set()
    return ", ".join(sorted(unknown | versions))


def find_unwritable(metadata: Action, protocol: Action) -> str:
    """Return the features that a commit of ours could violate; empty if there are none."""
    unknown = set(features_of(protocol) - _KNOWN_FEATURES)
    configuration = configuration_of(metadata)
    unknown |= {
        feature for name, feature in _USED_BY_PROPERTY.items() if configuration.get(name) == "true"
    }
    if any(name.startswith("delta.constraints.") for name in configuration):
        unknown.add("checkConstraints")
    for field in _fields(metadata):
        unknown |= {
            feature for name, feature in _USED_BY_COLUMN.items() if name in field["metadata"]
        }
    if list(
        find_problems(
            terms_of(partition_of(metadata)),
            {column.name: column.type for column in columns_of(metadata)},
            is_delta=True,
        )
    ):
        unknown.add("partitions by a column of such a type")
    reader = int(protocol.get("minReaderVersion", 1))
    writer = int(protocol.get("minWriterVersion", 1))
    if reader > _TABLE_FEATURES_READER or writer > _TABLE_FEATURES_WRITER:
        unknown.add(f"protocol {reader}, {writer}")
    return ", ".join(sorted(unknown))


def check_features(table: str, metadata: Action, protocol: Action) -> None:
    """Raise FeatureUnknown if a commit of ours could break a rule of the table."""
    if unknown := find_unwritable(metadata, protocol):
        raise FeatureUnknown(
            f"the Delta table {table} uses {unknown}, which penstock does not write",
            hint='Have Spark write it: apply = "merge" in [target]. Or switch the feature off, or '
            "move the table away, then penstock creates its own.",
        )


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise FeatureNeeded(
                f"Delta cannot hold the columns {other} and {name} of one table: it compares names "
                "without case",
                hint="Rename one at the source, or leave it out.",
            )


def _field(name: str, kind: str, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": delta_type(kind), "nullable": nullable, "metadata": {}}


def _fields(metadata: Action) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(metadata["schemaString"])["fields"]
    return fields


def _schema_text(fields: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)}, separators=(",", ":"))


def _all_names(fields: Iterable[Mapping[str, Any]]) -> set[str]:
    fields = list(fields)
    physical = {str(field["metadata"].get(_MAPPING_NAME, "")) for field in fields}
    return {field["name"] for field in fields} | physical
