"""Columns of an Iceberg table: schemas, types, and changes that are possible in place.

A schema is JSON as Iceberg's `SchemaParser` writes it. Ids of columns are Iceberg's field ids,
which Parquet files carry, so names never matter to readers of older files. Not here: committing a
change (`table.py`), and the mapping from the log's types (`codec/types/to_lake.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

from penstock.engines.lake.format import (
    Change,
    ChangeKind,
    FeatureUnknown,
    LakeColumn,
    PartitionField,
    Snapshot,
    Transform,
)

V3 = "v3"
"""Feature of a table of format version 3: deletion vectors, values of added columns."""

_ICEBERG = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "string": "string",
    "binary": "binary",
}
_LAKE = {iceberg: lake for lake, iceberg in _ICEBERG.items()}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_WIDER = {("int32", "int64"), ("float32", "float64")}


def iceberg_type(kind: str) -> str:
    """Return Iceberg's name of a lake type (`LakeColumn.type`)."""
    if parts := _DECIMAL.fullmatch(kind):
        return f"decimal({parts[1]}, {parts[2]})"
    return _ICEBERG[kind]


def lake_type(kind: Any) -> str:
    """Return the lake type of an Iceberg type; empty if penstock writes no such values."""
    if not isinstance(kind, str):
        return ""
    if parts := _DECIMAL.fullmatch(kind):
        return f"decimal({parts[1]},{parts[2]})"
    return _LAKE.get(kind, "")


def schema_json(columns: Iterable[LakeColumn]) -> str:
    """Return the schema of a new table, whose columns get the ids from 1."""
    fields = [
        {
            "id": number,
            "name": column.name,
            "required": not column.nullable,
            "type": iceberg_type(column.type),
        }
        for number, column in enumerate(columns, 1)
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def columns_of(
    schema: Mapping[str, Any], table: str, *, merges: bool = False
) -> tuple[LakeColumn, ...]:
    """Return the columns of a schema. Raises FeatureUnknown.

    table: its name, for messages. merges: Spark writes the table, so a column of another program
    may have any type, which is empty here.
    """
    columns = []
    for field in schema["fields"]:
        kind = lake_type(field["type"])
        if not kind and not merges:
            shown = field["type"] if isinstance(field["type"], str) else field["type"].get("type")
            raise FeatureUnknown(
                f"column {field['name']} of table {table} has the type {shown}, "
                "which penstock does not write",
                hint=f"Rename or drop table {table}, then penstock creates one of its own.",
                table=table,
            )
        initial = field.get("initial-default")
        columns.append(
            LakeColumn(
                name=field["name"],
                type=kind,
                field_id=int(field["id"]),
                nullable=not field["required"],
                initial=None if initial is None else _text_of(initial),
            )
        )
    return tuple(columns)


def _text_of(initial: Any) -> str:
    """Return the text of a value in a schema's JSON."""
    return json.dumps(initial) if isinstance(initial, bool) else str(initial)


def default_json(column: LakeColumn) -> Any:
    """Return the value of older rows in the JSON of Iceberg's single values.

    Raises ValueError, ArithmeticError or KeyError if the text is not a value of the type.
    """
    text = column.initial or ""
    if parts := _DECIMAL.fullmatch(column.type):
        scale = Decimal(1).scaleb(-int(parts[2]))
        return str(Decimal(text).quantize(scale, context=Context(prec=int(parts[1]))))
    match column.type:
        case "bool":
            return _BOOLEANS[text.lower()]
        case "int32" | "int64":
            return int(text)
        case "float32" | "float64":
            return float(text)
        case "date":
            return date.fromisoformat(text).isoformat()
        case "timestamp":
            return datetime.fromisoformat(text).replace(tzinfo=None).isoformat()
        case "timestamptz":
            return datetime.fromisoformat(text).astimezone(UTC).isoformat()
        case "binary":
            return bytes.fromhex(text.removeprefix("\\x")).hex().upper()
        case _:
            return text


def refuse_change(change: Change, snapshot: Snapshot) -> str:
    """Return why Iceberg cannot make a change in place; empty if it can."""
    present = snapshot.column(change.name)
    after = change.column
    named = find_conflict(snapshot.partition, change, present)
    if named:
        return f"the table has a partition field {named}, and no column may have its name"
    if change.kind is ChangeKind.ADD:
        if after is None or after.initial is None:
            return ""
        if V3 not in snapshot.features:
            return "Iceberg 2 cannot give older rows the value of an added column"
        return (
            "" if has_default(after) else f"{after.initial!r} is not a value of type {after.type}"
        )
    if present is None:
        return f"the table has no column {change.name}"
    if change.kind is ChangeKind.DROP and any(
        one.source.field_id == present.field_id for one in snapshot.partition
    ):
        return f"the table is partitioned by column {change.name}"
    if change.kind is ChangeKind.WIDEN and after is not None:
        return refuse_type(present.type, after.type)
    return ""


def find_conflict(
    fields: Iterable[PartitionField], change: Change, present: LakeColumn | None
) -> str:
    """Return the name of a partition field that a change gives to another column; else empty.

    Iceberg's own commit of such a change fails, with a message about its inside.
    """
    after = change.column
    if after is None or change.kind not in (ChangeKind.ADD, ChangeKind.RENAME):
        return ""
    field_id = present.field_id if present is not None else 0
    return next(
        (
            one.name
            for one in fields
            if one.name == after.name
            and (one.transform is not Transform.IDENTITY or one.source.field_id != field_id)
        ),
        "",
    )


def has_default(column: LakeColumn) -> bool:
    """Return whether the text of the value of older rows is a value of the column's type."""
    try:
        default_json(column)
    except (ValueError, ArithmeticError, KeyError):
        return False
    return True


def refuse_type(before: str, after: str) -> str:
    """Return why values of one lake type cannot become those of another; empty if they can."""
    if before == after or (before, after) in _WIDER:
        return ""
    narrow, wide = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if narrow and wide and narrow[2] == wide[2] and int(narrow[1]) <= int(wide[1]):
        return ""
    return f"Iceberg cannot change type {before} to {after} in place"
