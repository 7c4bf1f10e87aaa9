"""Values as Avro, with schemas as Confluent's converter writes them. Pure but for schema ids.

Source: Apache Avro 1.12 specification, "Binary encoding"; Confluent's AvroData for the properties
`connect.name`, `connect.version` and `connect.parameters`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.kafka.binary import add_lengths, head, pack_numbers, varint
from penstock.kafka.registry import AVRO, SchemaIds
from penstock.kafka.schemas import ARRAY, STRUCT, Cells, Schema
from penstock.kafka.texts import Texts, text_kernel

_TYPES = {"int16": "int", "int32": "int", "int64": "long"}
_UNFIT = re.compile(r"[^A-Za-z0-9_]")
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_NULL, _VALUE = b"\x00", b"\x02"  # the branch of a union with null


class AvroFormat:
    """Encoder of Avro."""

    def __init__(self, ids: SchemaIds) -> None:
        """Set the registry.

        Args:
            ids: ids of schemas.
        """
        self._ids = ids
        self._known: dict[str, tuple[Schema, int]] = {}
        self._kernel = text_kernel()

    def encode(self, cells: Cells, count: int, subject: str) -> Texts:
        """Return the messages of so many rows."""
        pieces = [head(self._id(cells.schema, subject)), *self._pieces(cells, cells.schema, count)]
        return self._kernel.join_rows(pieces, count)

    def encode_one(
        self, schema: Schema, value: Any, subject: str, *, is_latest: bool = False
    ) -> bytes:
        """Return one message, from Python values.

        Args:
            schema: of the value.
            value: the value.
            subject: of the schema.
            is_latest: use the subject's latest schema, from which this one differs only where the
                value is null.
        """
        found = self._ids.latest(subject) if is_latest else None
        number = self._id(schema, subject) if found is None else found
        return head(number) + encode_value(schema, value)

    def _id(self, schema: Schema, subject: str) -> int:
        known = self._known.get(subject)
        if known is None or known[0] is not schema:
            text = json.dumps(avro_schema(schema), ensure_ascii=False, separators=(",", ":"))
            known = self._known[subject] = schema, self._ids.register(subject, text, AVRO)
        return known[1]

    def _pieces(self, cells: Cells, schema: Schema, count: int) -> list[Any]:
        """Return the pieces of a value; schema: as the struct around it has it."""
        if cells.is_same:
            return [encode_value(schema, cells.values)]
        prefix = _VALUE if schema.optional else b""
        if schema.kind == STRUCT:
            pieces = [
                piece
                for (each, child) in zip(schema.fields.values(), cells.children, strict=True)
                for piece in self._pieces(child, each, count)
            ]
            if cells.valid is None:
                return [prefix, *pieces]
            texts = self._kernel.join_rows(pieces, count)
        else:
            texts = self._leaf(cells, schema)
        return [(*texts, cells.valid, prefix, _NULL if schema.optional else b"")]

    def _leaf(self, cells: Cells, schema: Schema) -> Texts:
        kind, values = schema.kind, cells.values
        if kind in ("string", "bytes"):
            return add_lengths(values, 2)
        if kind == "boolean":
            return pack_numbers(values, "<u1")
        if kind in ("float", "double"):
            return pack_numbers(values, "<f4" if kind == "float" else "<f8")
        numbers = np.asarray(values, np.int64)
        return self._kernel.varints((numbers << 1) ^ (numbers >> 63))


def encode_value(schema: Schema, value: Any) -> bytes:
    """Return one value without a head."""
    if schema.optional:
        if value is None:
            return _NULL
        return _VALUE + encode_value(schema.as_optional(optional=False), value)
    if schema.kind == STRUCT:
        fields = schema.fields.items()
        return b"".join(encode_value(each, value[name]) for name, each in fields)
    if schema.kind == ARRAY:
        assert schema.items is not None, "an array has items"
        items = b"".join(encode_value(schema.items, each) for each in value)
        return (_long(len(value)) + items if value else b"") + _long(0)
    if schema.kind in ("string", "bytes"):
        data = value.encode() if schema.kind == "string" else value
        return _long(len(data)) + bytes(data)
    if schema.kind == "boolean":
        return b"\x01" if value else b"\x00"
    if schema.kind in ("float", "double"):
        return struct.pack("<f" if schema.kind == "float" else "<d", value)
    return _long(value)


def _long(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


# -- schemas ---------------------------------------------------------------------------------


def avro_schema(schema: Schema) -> Any:
    """Return a schema as Avro's JSON."""
    return _schema(schema, set())


def _schema(schema: Schema, named: set[str]) -> Any:
    found = _type(schema, named)
    return ["null", found] if schema.optional else found


def _type(schema: Schema, named: set[str]) -> Any:
    if schema.kind == ARRAY:
        assert schema.items is not None, "an array has items"
        return {"type": "array", "items": _schema(schema.items, named)}
    if schema.kind == STRUCT:
        full = ".".join(map(adjust_name, schema.name.split(".")))
        if full in named:
            return full
        named.add(full)
        namespace, _, name = full.rpartition(".")
        fields = [
            {
                "name": name,
                "type": _schema(each, named),
                **({"default": None} if each.optional else {}),
            }
            for name, each in zip(adjust_names(schema.fields), schema.fields.values(), strict=True)
        ]
        made = {"type": "record", "name": name, "fields": fields}
        if namespace:
            made["namespace"] = namespace
        return made | _connect(schema)
    plain = _TYPES.get(schema.kind, schema.kind)
    more = _connect(schema)
    if schema.kind == "int16":
        more["connect.type"] = "int16"
    if schema.name == _DECIMAL:
        precision = schema.parameters["connect.decimal.precision"]
        more |= {
            "logicalType": "decimal",
            "precision": int(precision),
            "scale": int(schema.parameters["scale"]),
        }
    elif schema.name in _LOGICAL:
        more["logicalType"] = _LOGICAL[schema.name]
    return {"type": plain, **more} if more else plain


def _connect(schema: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if schema.version:
        found["connect.version"] = schema.version
    if schema.parameters:
        found["connect.parameters"] = dict(schema.parameters)
    if schema.name:
        found["connect.name"] = schema.name
    return found


def adjust_name(name: str) -> str:
    """Return a name with letters, digits and _, as Debezium's adjustment `avro` makes it."""
    made = _UNFIT.sub("_", name) or "_"
    return "_" + made if made[0].isdigit() else made


def adjust_names(fields: Mapping[str, Schema]) -> list[str]:
    """Return names of fields, different from each other."""
    made: list[str] = []
    for name in fields:
        fitted = adjust_name(name)
        number = 2
        while fitted in made:
            # A digit: Protobuf compares names without their underscores.
            fitted = f"{adjust_name(name)}{number}"
            number += 1
        made.append(fitted)
    return made
