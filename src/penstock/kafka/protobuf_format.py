"""Values as Protobuf, with schemas as proto3 text. Pure but for schema ids.

A column's number in its message is its identity in the log, where the source has one: it stays the
same when other columns are dropped. Source: Protocol Buffers, "Encoding"; Confluent's wire format
for the message indexes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from penstock.kafka.avro_format import adjust_name, adjust_names
from penstock.kafka.binary import add_lengths, head, pack_numbers, varint
from penstock.kafka.registry import PROTOBUF, SchemaIds
from penstock.kafka.schemas import ARRAY, STRUCT, Cells, Schema
from penstock.kafka.texts import Texts, text_kernel

_TYPES = {
    "boolean": "bool",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_VARINT, _I64, _SIZED, _I32 = 0, 1, 2, 5
_WIRES = {"boolean": _VARINT, "int16": _VARINT, "int32": _VARINT, "int64": _VARINT}
_WIRES |= {"float": _I32, "double": _I64}
_FIRST_MESSAGE = b"\x00"  # the message indexes [0], shortened
_RESERVED, _RESERVED_COUNT = 19_000, 1_000


class ProtobufFormat:
    """Encoder of Protobuf."""

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
        start = head(self._id(cells.schema, subject)) + _FIRST_MESSAGE
        return self._kernel.join_rows([start, *self._body(cells, cells.schema, count)], count)

    def encode_one(
        self, schema: Schema, value: Any, subject: str, *, is_latest: bool = False
    ) -> bytes:
        """Return one message, from Python values; arguments as in AvroFormat."""
        found = self._ids.latest(subject) if is_latest else None
        number = self._id(schema, subject) if found is None else found
        return head(number) + _FIRST_MESSAGE + encode_body(schema, value)

    def _id(self, schema: Schema, subject: str) -> int:
        known = self._known.get(subject)
        if known is None or known[0] is not schema:
            text = protobuf_schema(schema)
            known = self._known[subject] = schema, self._ids.register(subject, text, PROTOBUF)
        return known[1]

    def _body(self, cells: Cells, schema: Schema, count: int) -> list[Any]:
        fields = zip(numbers_of(schema), schema.fields.values(), cells.children, strict=True)
        return [
            piece
            for number, each, child in fields
            for piece in self._field(number, each, child, count)
        ]

    def _field(self, number: int, schema: Schema, cells: Cells, count: int) -> list[Any]:
        if cells.is_same:
            return [encode_field(number, schema, cells.values)]
        if schema.kind == STRUCT:
            body = self._body(cells, schema, count)
            texts = add_lengths(self._kernel.join_rows(body, count))
        else:
            texts = self._leaf(schema, cells.values)
        return [(*texts, cells.valid, _tag(number, schema), b"")]

    def _leaf(self, schema: Schema, values: Any) -> Texts:
        kind = schema.kind
        if kind in ("string", "bytes"):
            return add_lengths(values)
        if kind == "boolean":
            return pack_numbers(values, "<u1")
        if kind in ("float", "double"):
            return pack_numbers(values, "<f4" if kind == "float" else "<f8")
        return self._kernel.varints(np.asarray(values, np.int64))


def _tag(number: int, schema: Schema) -> bytes:
    return varint(number << 3 | _WIRES.get(schema.kind, _SIZED))


def numbers_of(schema: Schema) -> list[int]:
    """Return the numbers of a message's fields: their own if all have one, else their places."""
    own = [each.number for each in schema.fields.values()]
    if not all(own):
        own = list(range(1, len(own) + 1))
    return [number if number < _RESERVED else number + _RESERVED_COUNT for number in own]


def encode_body(schema: Schema, value: Any) -> bytes:
    """Return one message without a head."""
    fields = zip(numbers_of(schema), schema.fields.items(), strict=True)
    return b"".join(encode_field(number, each, value[name]) for number, (name, each) in fields)


def encode_field(number: int, schema: Schema, value: Any) -> bytes:
    """Return one field; nothing for null."""
    if value is None:
        return b""
    if schema.kind == ARRAY:
        assert schema.items is not None, "an array has items"
        return b"".join(encode_field(number, schema.items, each) for each in value)
    tag = _tag(number, schema)
    if schema.kind == STRUCT:
        data = encode_body(schema, value)
    elif schema.kind == "string":
        data = value.encode()
    elif schema.kind == "bytes":
        data = bytes(value)
    elif schema.kind in ("float", "double"):
        return tag + struct.pack("<f" if schema.kind == "float" else "<d", value)
    else:
        return tag + varint(int(value))
    return tag + varint(len(data)) + data


# -- schemas ---------------------------------------------------------------------------------


def protobuf_schema(schema: Schema) -> str:
    """Return a schema as proto3 text, its own message first."""
    package, _, _ = schema.name.rpartition(".")
    lines = ['syntax = "proto3";']
    if package:
        lines.append(f"package {'.'.join(map(adjust_name, package.split('.')))};")
    messages: dict[str, Schema] = {}
    _collect(schema, messages)
    for name, one in messages.items():
        lines += ["", f"message {name} {{", *_fields(one), "}"]
    return "\n".join(lines) + "\n"


def _collect(schema: Schema, messages: dict[str, Schema]) -> None:
    if schema.kind == STRUCT:
        messages.setdefault(message_name(schema), schema)
        for each in schema.fields.values():
            _collect(each, messages)
    elif schema.items is not None:
        _collect(schema.items, messages)


def message_name(schema: Schema) -> str:
    """Return the name of a struct's message within its file."""
    return adjust_name(schema.name.rpartition(".")[2])


def _fields(schema: Schema) -> list[str]:
    lines = []
    names = adjust_names(schema.fields)
    for name, number, each in zip(names, numbers_of(schema), schema.fields.values(), strict=True):
        if each.items is not None:
            text = f"repeated {_type(each.items)}"
        else:
            text = f"optional {_type(each)}" if each.optional else _type(each)
        note = ""
        if each.name and each.kind != STRUCT:
            settings = "".join(f", {key}={value}" for key, value in each.parameters.items())
            note = f" // {each.name}{settings}".replace("\n", " ")
        lines.append(f"  {text} {name} = {number};{note}")
    return lines


def _type(schema: Schema) -> str:
    return message_name(schema) if schema.kind == STRUCT else _TYPES[schema.kind]
