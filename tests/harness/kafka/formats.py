"""Readers of messages in each format, by other libraries: json, fastavro and protobuf."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import struct
from decimal import Decimal
from typing import Any, Protocol

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.kafka.avro_format import AvroFormat
from penstock.kafka.json_format import JsonFormat
from penstock.kafka.protobuf_format import ProtobufFormat

DECIMAL = "org.apache.kafka.connect.data.Decimal"
_FIELD = re.compile(
    r"(?:(optional|repeated) )?(\w+) (\w+) = (\d+);(?: // (\S+?)(, scale=(\d+).*)?)?$"
)


class Ids:
    """Schema registry in memory."""

    def __init__(self) -> None:
        self.schemas: dict[int, tuple[str, str]] = {}
        self.subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of a schema."""
        known = {one: number for number, one in self.schemas.items()}
        number = known.get((schema, kind), len(known) + 300)
        self.schemas[number] = schema, kind
        self.subjects.setdefault(subject, []).append(number)
        return number

    def latest(self, subject: str) -> int | None:
        """Return the id of a subject's latest schema."""
        return self.subjects[subject][-1] if subject in self.subjects else None


class Reader(Protocol):
    """A format, and the reader of its messages."""

    format: Any

    def read(self, data: bytes) -> Any:
        """Return a message as Python values."""
        ...


class JsonReader:
    """JSON without schemas. Bytes are read where a column's name says so."""

    def __init__(self) -> None:
        self.format = JsonFormat(has_schemas=False)

    def read(self, data: bytes) -> Any:
        return json.loads(data)


class SchemaJsonReader:
    """JSON with schemas, as Connect's JsonConverter reads it."""

    def __init__(self) -> None:
        self.format = JsonFormat(has_schemas=True)

    def read(self, data: bytes) -> Any:
        found = json.loads(data)
        assert found.keys() == {"schema", "payload"}
        return _read_typed(found["schema"], found["payload"])


def _read_typed(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        assert schema["optional"], schema
        return None
    if schema["type"] == "struct":
        assert [field["field"] for field in schema["fields"]] == list(value)
        return {
            field["field"]: _read_typed(field, value[field["field"]]) for field in schema["fields"]
        }
    if schema["type"] == "array":
        return [_read_typed(schema["items"], one) for one in value]
    if schema["type"] == "bytes":
        data = base64.b64decode(value, validate=True)
        if schema.get("name") == DECIMAL:
            return _decimal(data, int(schema["parameters"]["scale"]))
        return data
    if schema["type"] in ("float", "double"):
        return float(value)
    assert isinstance(value, {"string": str, "boolean": bool}.get(schema["type"], int))
    return value


def _decimal(data: bytes, scale: int) -> Decimal:
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale)


class AvroReader:
    """Avro, read by fastavro."""

    def __init__(self) -> None:
        self.ids = Ids()
        self.format = AvroFormat(self.ids)

    def read(self, data: bytes) -> Any:
        magic, number = struct.unpack(">bI", data[:5])
        schema, kind = self.ids.schemas[number]
        assert (magic, kind) == (0, "AVRO")
        stream = io.BytesIO(data[5:])
        found = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(schema)))
        assert not stream.read(), "bytes are left"
        return found


class ProtobufReader:
    """Protobuf, read by Google's library."""

    def __init__(self) -> None:
        self.ids = Ids()
        self.format = ProtobufFormat(self.ids)
        self._classes: dict[int, tuple[Any, dict[str, int]]] = {}

    def read(self, data: bytes) -> Any:
        magic, number = struct.unpack(">bI", data[:5])
        schema, kind = self.ids.schemas[number]
        assert (magic, kind, data[5]) == (0, "PROTOBUF", 0)
        if number not in self._classes:
            self._classes[number] = compile_proto(schema)
        made, scales = self._classes[number]
        return _plain(made.FromString(data[6:]), scales)


_files = itertools.count()


def compile_proto(text: str) -> tuple[Any, dict[str, int]]:
    """Return the class of the first message of a schema, and scales of decimals by message and
    field. The text is the part of proto3 that penstock writes.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"f{next(_files)}.proto", syntax="proto3")
    scales: dict[str, int] = {}
    message: Any = None
    for line in text.splitlines():
        if line.startswith("package "):
            file.package = line.split()[1].rstrip(";")
        elif line.startswith("message "):
            message = file.message_type.add(name=line.split()[1])
        elif line.startswith("  "):
            found = _FIELD.match(line.strip())
            assert found is not None, line
            label, kind, name, number, note, _, scale = found.groups()
            field = message.field.add(name=name, number=int(number))
            field.label = 3 if label == "repeated" else 1
            if label == "optional":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            builtin = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}", None)
            if builtin is None:
                field.type = 11
                field.type_name = f".{file.package}.{kind}" if file.package else f".{kind}"
            else:
                field.type = builtin
            if note == DECIMAL:
                scales[f"{message.name}.{name}"] = int(scale)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    package = f"{file.package}." if file.package else ""
    first = pool.FindMessageTypeByName(package + file.message_type[0].name)
    return message_factory.GetMessageClass(first), scales


def _plain(message: Any, scales: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = message.DESCRIPTOR
    for field in kind.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [_plain(one, scales) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            value = None
        elif field.message_type is not None:
            value = _plain(value, scales)
        elif f"{kind.name}.{field.name}" in scales:
            value = _decimal(value, scales[f"{kind.name}.{field.name}"])
        found[field.name] = value
    return found
