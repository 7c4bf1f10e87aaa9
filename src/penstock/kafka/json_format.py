"""Values as JSON in the form of Kafka Connect's JsonConverter. Pure.

Numbers are numbers, bytes are base64, a float that is not a number is its name as a string.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kafka.schemas import ARRAY, STRUCT, Cells, Schema
from penstock.kafka.texts import Texts, text_kernel

NULL = b"null"
_NAMES = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def texts_of(array: Any) -> Texts:
    """Return an Arrow array of strings or bytes as texts, without a copy."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return places, np.frombuffer(data if data is not None else b"", np.uint8)


class JsonFormat:
    """Encoder of JSON.

    With `has_schemas` each message is an object of its schema and its payload.
    """

    def __init__(self, *, has_schemas: bool) -> None:
        self._has_schemas = has_schemas
        self._kernel = text_kernel()

    def encode(self, cells: Cells, count: int, _: str) -> Texts:
        """Return the messages of so many rows."""
        pieces = self._pieces(cells, count)
        if self._has_schemas:
            head = b'{"schema":%b,"payload":' % _dump(connect_schema(cells.schema))
            pieces = [head, *pieces, b"}"]
        return self._kernel.join_rows(_merge(pieces), count)

    def encode_one(
        self,
        schema: Schema,
        value: Any,
        subject: str,  # noqa: ARG002 - for a registry
        *,
        is_latest: bool = False,  # noqa: ARG002 - for a registry
    ) -> bytes:
        """Return one message, from Python values."""
        payload = _plain(schema, value)
        if self._has_schemas:
            payload = {"schema": connect_schema(schema), "payload": payload}
        return _dump(payload)

    def _pieces(self, cells: Cells, count: int) -> list[Any]:
        if cells.is_same:
            return [_dump(_plain(cells.schema, cells.values))]
        if cells.schema.kind == STRUCT:
            pieces: list[Any] = []
            for name, child in zip(cells.schema.fields, cells.children, strict=True):
                pieces += [b"," if pieces else b"{", _dump(name), b":"]
                pieces += self._pieces(child, count)
            pieces.append(b"}" if pieces else b"{}")
            if cells.valid is None:
                return pieces
            offsets, data = self._kernel.join_rows(_merge(pieces), count)
        else:
            offsets, data = self._leaf(cells)
        return [(offsets, data, cells.valid, b"", NULL)]

    def _leaf(self, cells: Cells) -> Texts:
        kind, values = cells.schema.kind, cells.values
        if kind == "string":
            return self._kernel.quote_json(*values)
        if kind == "bytes":
            return self._kernel.quote_base64(*values)
        text = pc.cast(pa.array(values), pa.string())
        if kind in ("float", "double") and not np.isfinite(values).all():
            for short, name in _NAMES.items():
                text = pc.if_else(pc.equal(text, short), name, text)
        return texts_of(text)


def _merge(pieces: list[Any]) -> list[Any]:
    """Join neighbours that all rows have."""
    merged: list[Any] = []
    for one in pieces:
        if isinstance(one, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += one
        else:
            merged.append(one)
    return merged


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _plain(schema: Schema, value: Any) -> Any:
    """Return a Python value as JSON has it."""
    if value is None:
        return None
    if schema.kind == STRUCT:
        return {name: _plain(each, value[name]) for name, each in schema.fields.items()}
    if schema.kind == ARRAY:
        assert schema.items is not None, "an array has items"
        return [_plain(schema.items, each) for each in value]
    if schema.kind == "bytes":
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _NAMES[str(value)].strip('"')
    return value


def connect_schema(schema: Schema, field: str = "") -> dict[str, Any]:
    """Return a schema as the JSON converter writes it."""
    found: dict[str, Any] = {"type": schema.kind, "optional": schema.optional}
    if schema.kind == STRUCT:
        fields = [connect_schema(each, name) for name, each in schema.fields.items()]
        found = {"type": STRUCT, "fields": fields, "optional": schema.optional}
    if schema.items is not None:
        found["items"] = connect_schema(schema.items)
    if schema.name:
        found["name"] = schema.name
    if schema.version:
        found["version"] = schema.version
    if schema.parameters:
        found["parameters"] = dict(schema.parameters)
    if field:
        found["field"] = field
    return found
