"""Partitions of an Iceberg table: its spec, and values in entries of manifests, as JSON.

Not here: transforms of values (`engines/lake/partitions.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from penstock.engines.lake.format import (
    FeatureUnknown,
    LakeColumn,
    Partition,
    PartitionField,
    Transform,
)

_TRANSFORM = re.compile(r"(\w+)(?:\[(\d+)\])?")
_TRANSFORMS = frozenset(map(str, Transform))
_FIRST_ID = 1000
_SUFFIXES = {Transform.BUCKET: "_bucket", Transform.TRUNCATE: "_trunc"}
_NUMBERS = (Transform.YEAR, Transform.MONTH, Transform.HOUR, Transform.BUCKET)
_EPOCH = date(1970, 1, 1)


def spec_json(fields: Sequence[PartitionField], columns: Sequence[LakeColumn]) -> str:
    """Return the spec of a new table, whose columns have the ids from 1."""
    ids = {column.name: number for number, column in enumerate(columns, 1)}
    taken = set(ids)
    described = []
    for number, field in enumerate(fields):
        name = _make_name(field, taken)
        taken.add(name)
        described.append(
            {
                "name": name,
                "transform": _transform_text(field),
                "source-id": ids[field.source.name],
                "field-id": _FIRST_ID + number,
            }
        )
    return json.dumps({"spec-id": 0, "fields": described})


def _make_name(field: PartitionField, taken: set[str]) -> str:
    """Return the name that Iceberg gives a field; another one if a column has it."""
    if field.transform is Transform.IDENTITY:
        return field.source.name
    name = field.source.name + _SUFFIXES.get(field.transform, f"_{field.transform}")
    while name in taken:
        name += "_"
    return name


def _transform_text(field: PartitionField) -> str:
    return f"{field.transform}[{field.argument}]" if field.argument else str(field.transform)


def fields_of(
    spec: Mapping[str, Any], columns: Iterable[LakeColumn], table: str
) -> tuple[PartitionField, ...]:
    """Return the fields of a spec. Raises FeatureUnknown. table: its name, for messages."""
    by_id = {column.field_id: column for column in columns}
    fields = []
    for one in spec["fields"]:
        parts = _TRANSFORM.fullmatch(one["transform"])
        source = by_id.get(one["source-id"])
        if parts is None or parts[1] not in _TRANSFORMS or source is None:
            raise FeatureUnknown(
                f"table {table} is partitioned by {one['transform']} of column "
                f"{source.name if source else one['source-id']}, which penstock does not write",
                hint=f"Rename or drop table {table}, then penstock creates one of its own.",
                table=table,
            )
        fields.append(
            PartitionField(
                source=source,
                transform=Transform(parts[1]),
                argument=int(parts[2] or 0),
                name=one["name"],
            )
        )
    return tuple(fields)


def encode_partition(fields: Sequence[PartitionField], partition: Partition) -> list[Any]:
    """Return a partition's values for an entry."""
    return [
        None if text is None else _encode(field, text)
        for field, text in zip(fields, partition, strict=True)
    ]


def _encode(field: PartitionField, text: str) -> Any:
    if field.transform is Transform.DAY:
        return _day_text(int(text))
    kind = field.source.type
    if field.transform in _NUMBERS or kind in ("int32", "int64"):
        return int(text)
    if kind == "bool":
        return text == "true"
    if kind == "timestamptz":
        return f"{text}+00:00"
    return text.upper() if kind == "binary" else text


def _day_text(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).isoformat()


def decode_partition(fields: Sequence[PartitionField], values: Sequence[Any]) -> Partition:
    """Return the partition of an entry."""
    return tuple(
        None if value is None else _decode(field, value)
        for field, value in zip(fields, values, strict=True)
    )


def _decode(field: PartitionField, value: Any) -> str:
    if field.transform is Transform.DAY:
        return str((date.fromisoformat(value) - _EPOCH).days)
    kind = field.source.type
    if isinstance(value, bool):
        return str(value).lower()
    if kind in ("timestamp", "timestamptz") and isinstance(value, str):
        moment, _, fraction = value.removesuffix("+00:00").removesuffix("Z").partition(".")
        seconds = moment if moment.count(":") > 1 else f"{moment}:00"
        return f"{seconds}.{fraction.ljust(6, '0')}"
    return value.lower() if kind == "binary" else str(value)
