"""Schemas of messages, as Kafka Connect has them, and columns of values for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

STRUCT = "struct"
ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Schema of a value.

    Attributes:
        kind: boolean, int16, int32, int64, float, double, string, bytes, struct or array.
        name: semantic type, as `io.debezium.time.Date`; of a struct its name.
        fields: of a struct, by name.
        items: of an array.
        number: of a field in Protobuf; 0: its place.
    """

    kind: str
    name: str = ""
    version: int = 0
    optional: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Schema] = field(default_factory=dict)
    items: Schema | None = None
    number: int = 0

    def as_optional(self, *, optional: bool = True) -> Schema:
        """Return the schema of values that may be null, or may not."""
        return replace(self, optional=optional)


@dataclass(slots=True, kw_only=True)
class Cells:
    """Values of one schema for the rows of a batch.

    Attributes:
        values: a NumPy array of numbers or of bool; texts (offsets and bytes) of strings and
            bytes; for `is_same` a Python value that all rows have.
        valid: one uint8 for each row, 0 for null; None if no row is null.
        children: of a struct, in the order of its fields.
    """

    schema: Schema
    values: Any = None
    valid: Any = None
    is_same: bool = False
    children: Sequence[Cells] = ()


def same(schema: Schema, value: Any) -> Cells:
    """Return the cells of a value that all rows have; of None only if the schema is optional."""
    return Cells(schema=schema, values=value, is_same=True)


def struct(schema: Schema, children: Sequence[Cells], valid: Any = None) -> Cells:
    """Return the cells of a struct with these fields; valid as in Cells."""
    return Cells(schema=schema, children=children, valid=valid)


def flags(mask: Any) -> Any:
    """Return a mask of rows as one uint8 for each row."""
    return np.ascontiguousarray(np.asarray(mask), dtype=np.uint8)


BOOLEAN = Schema(kind="boolean")
INT32 = Schema(kind="int32")
INT64 = Schema(kind="int64")
STRING = Schema(kind="string")
BYTES = Schema(kind="bytes")
