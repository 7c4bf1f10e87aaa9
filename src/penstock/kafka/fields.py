"""Columns of the log as fields of messages: their schemas, and their values in bulk. Pure.

The schemas are those of Debezium's connectors. A value whose type the log keeps as text is a
string.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.kafka.errors import ValueOutOfRange
from penstock.kafka.json_format import texts_of
from penstock.kafka.modes import Modes
from penstock.kafka.schemas import BYTES, INT32, STRING, Cells, Schema, flags, struct
from penstock.kafka.texts import text_kernel
from penstock.model import Column, Relation

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_PRECISION = re.compile(r"\((\d+)\)")
_NUMERIC = re.compile(r"(numeric|decimal|number)\b", re.IGNORECASE)
_ENUM = re.compile(r"(enum|set)\((.*)\)\Z", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_WHOLE = {
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint32": "int64",
    "float32": "float",
    "float64": "double",
}
_NUMPY = {"int16": np.int16, "int32": np.int32, "int64": np.int64, "float": np.float32}
_DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
_UUID_DASHES = (8, 12, 16, 20)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """Field of messages for one column.

    Attributes:
        schema: its schema, optional or not.
        values: returns the values of an Arrow array without nulls that count: of a primitive
            kind as Cells.values has them, of a struct as a list of Cells.
        takes_placeholder: a value that was not sent is replaced by the placeholder.
    """

    schema: Schema
    values: Convert
    takes_placeholder: bool = False

    def cells(self, array: Any) -> Cells:
        """Return an Arrow array as cells."""
        valid = flags(array.is_valid()) if array.null_count else None
        made = self.values(array)
        if self.schema.kind == "struct":
            return struct(self.schema, made, valid)
        return Cells(schema=self.schema, values=made, valid=valid)


def field_of(column: Column, relation: Relation, modes: Modes, *, optional: bool) -> Field:
    """Return the field of a column."""
    schema, values, takes = _rule(column, relation, modes)
    return Field(replace(schema, optional=optional, number=column.id), values, takes)


def _rule(column: Column, relation: Relation, modes: Modes) -> tuple[Schema, Convert, bool]:
    neutral = column.neutral
    if neutral == "bool":
        return Schema(kind="boolean"), _booleans, False
    if neutral in _WHOLE:
        kind = _WHOLE[neutral]
        return Schema(kind=kind), _numbers(_NUMPY.get(kind, np.float64)), False
    if neutral == "uint64":
        return _rule_of_unsigned(column, relation, modes)
    if (found := _DECIMAL.match(neutral)) is not None:
        return _decimal(modes, int(found[1]), int(found[2]))
    if neutral in ("date", "time", "timestamp", "timestamptz"):
        return (*_moment(column, modes), False)
    if neutral == "uuid":
        return Schema(kind="string", name="io.debezium.data.Uuid", version=1), _uuids, False
    if neutral == "binary":
        return (*_binary(modes), True)
    return _text(column, relation, modes)


# -- numbers ---------------------------------------------------------------------------------


def _numbers(kind: Any) -> Convert:
    def convert(array: Any) -> Any:
        whole = array.fill_null(0) if array.null_count else array
        return np.ascontiguousarray(whole.to_numpy(zero_copy_only=False), dtype=kind)

    return convert


def _booleans(array: Any) -> Any:
    return array.fill_null(False).to_numpy(zero_copy_only=False)


def _rule_of_unsigned(
    column: Column, relation: Relation, modes: Modes
) -> tuple[Schema, Convert, bool]:
    if modes.unsigned == "precise":
        return _decimal(Modes(decimals="precise"), 20, 0)

    def convert(array: Any) -> Any:
        numbers = _numbers(np.uint64)(array)
        if numbers.size and numbers.max() > np.iinfo(np.int64).max:
            raise ValueOutOfRange.of(
                relation.full_name,
                column.name,
                "is over 9223372036854775807",
                'bigint.unsigned.handling.mode = "precise"',
            )
        return numbers.astype(np.int64)

    return Schema(kind="int64"), convert, False


def _decimal(modes: Modes, precision: int, scale: int) -> tuple[Schema, Convert, bool]:
    if modes.decimals == "double":
        return Schema(kind="double"), lambda array: _numbers(np.float64)(_doubles(array)), False
    if modes.decimals == "string":
        return STRING, lambda array: texts_of(_plain_decimals(array)), False
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    schema = Schema(kind="bytes", name=_DECIMAL_NAME, version=1, parameters=parameters)
    kind = pa.decimal128(38, scale)

    def convert(array: Any) -> Any:
        wide = cast_exactly(array, kind)
        data = wide.buffers()[1]
        start = wide.offset * 16
        numbers = np.frombuffer(data, np.uint8)[start : start + 16 * len(wide)]
        return text_kernel().shortest_bytes(np.ascontiguousarray(numbers))

    return schema, convert, False


def _doubles(array: Any) -> Any:
    return cast_exactly(array, pa.float64())


def _nearest_doubles(array: Any) -> Any:
    """Return doubles of numbers as text; one beyond their range is infinite, as with Debezium."""
    numbers = [None if text is None else float(text) for text in array.to_pylist()]
    return pa.array(numbers, pa.float64())


def _plain_decimals(array: Any) -> Any:
    """Return decimals as text without exponents."""
    text = cast_exactly(array, pa.string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    values = [None if one is None else f"{one:f}" for one in array.to_pylist()]
    return pa.array(values, pa.string())


# -- moments ---------------------------------------------------------------------------------


def _moment(column: Column, modes: Modes) -> tuple[Schema, Convert]:
    mode = modes.time_mode
    neutral = column.neutral
    if neutral == "timestamptz":
        schema = Schema(kind="string", name="io.debezium.time.ZonedTimestamp", version=1)
        return schema, lambda array: text_kernel().instants(_numbers(np.int64)(_as_int(array)))
    if neutral == "date":
        name = (
            "org.apache.kafka.connect.data.Date" if mode == "connect" else "io.debezium.time.Date"
        )
        return Schema(kind="int32", name=name, version=1), lambda array: _numbers(np.int32)(
            array.cast(pa.int32())
        )
    is_coarse = _digits(column) <= 3
    if neutral == "time":
        if mode == "connect":
            return _milliseconds("org.apache.kafka.connect.data.Time", "int32")
        if mode == "adaptive" and is_coarse:
            return _milliseconds("io.debezium.time.Time", "int32")
        return _microseconds("io.debezium.time.MicroTime")
    if mode == "connect":
        return _milliseconds("org.apache.kafka.connect.data.Timestamp", "int64")
    if is_coarse:
        return _milliseconds("io.debezium.time.Timestamp", "int64")
    return _microseconds("io.debezium.time.MicroTimestamp")


def _as_int(array: Any) -> Any:
    return array.cast(pa.int64())


def _milliseconds(name: str, kind: str) -> tuple[Schema, Convert]:
    schema = Schema(kind=kind, name=name, version=1)
    return schema, lambda array: (_numbers(np.int64)(_as_int(array)) // 1000).astype(_NUMPY[kind])


def _microseconds(name: str) -> tuple[Schema, Convert]:
    schema = Schema(kind="int64", name=name, version=1)
    return schema, lambda array: _numbers(np.int64)(_as_int(array))


def _digits(column: Column) -> int:
    """Return how many digits of a second a column keeps."""
    kind = (column.base_type or column.source_type).lower()
    found = _PRECISION.search(kind)
    if found is not None:
        return int(found[1])
    if kind.startswith(("datetime2", "datetimeoffset")):
        return 7
    if kind.startswith(("datetime", "smalldatetime")) or kind == "date":
        return 3
    return 6


# -- bytes and texts -------------------------------------------------------------------------


def _binary(modes: Modes) -> tuple[Schema, Convert]:
    if modes.binaries == "bytes":
        return BYTES, texts_of
    encode: Callable[[bytes], bytes] = {
        "base64": base64.b64encode,
        "base64-url-safe": base64.urlsafe_b64encode,
        "hex": lambda value: value.hex().encode(),
    }[modes.binaries]
    return STRING, lambda array: texts_of(
        pa.array([None if one is None else encode(one) for one in array.to_pylist()], pa.binary())
    )


def _uuids(array: Any) -> Any:
    data = np.frombuffer(array.buffers()[1], np.uint8)
    given = data[16 * array.offset : 16 * (array.offset + len(array))].tobytes()
    digits = np.frombuffer(given.hex().encode(), np.uint8).reshape(-1, 32)
    made = np.insert(digits, _UUID_DASHES, ord("-"), axis=1)
    return np.arange(0, 36 * len(made) + 1, 36, dtype=np.int32), np.ascontiguousarray(made).ravel()


def _text(column: Column, relation: Relation, modes: Modes) -> tuple[Schema, Convert, bool]:
    kind = column.base_type or column.source_type
    plain = kind.lower()
    if _NUMERIC.match(plain) and not plain.endswith("]"):
        if modes.decimals == "precise":
            return _variable_scale(column, relation)
        if modes.decimals == "double":
            return (
                Schema(kind="double"),
                lambda array: _numbers(np.float64)(_nearest_doubles(array)),
                False,
            )
        return STRING, texts_of, False
    name, parameters = "", {}
    if plain in ("json", "jsonb"):
        name = "io.debezium.data.Json"
    elif plain == "xml":
        name = "io.debezium.data.Xml"
    elif labels := _labels(kind, relation):
        is_set = plain.startswith("set")
        name = "io.debezium.data.EnumSet" if is_set else "io.debezium.data.Enum"
        parameters = {"allowed": ",".join(labels)}
    schema = Schema(kind="string", name=name, version=1 if name else 0, parameters=parameters)
    return schema, texts_of, True


def _labels(kind: str, relation: Relation) -> tuple[str, ...]:
    found = _ENUM.match(kind)
    if found is not None:
        return tuple(label.replace("''", "'") for label in _LABEL.findall(found[2]))
    for one in relation.types:
        if one.kind == "e" and kind in (one.name, f"{one.schema}.{one.name}"):
            return one.labels
    return ()


def _variable_scale(column: Column, relation: Relation) -> tuple[Schema, Convert, bool]:
    """Return the field of decimals without a fixed scale."""
    schema = Schema(
        kind="struct",
        name="io.debezium.data.VariableScaleDecimal",
        version=1,
        fields={"scale": INT32, "value": BYTES},
    )

    def convert(array: Any) -> list[Cells]:
        scales, rows = [], []
        for text in array.to_pylist():
            try:
                sign, digits, exponent = Decimal(text or 0).as_tuple()
                unscaled = int("".join(map(str, digits))) * (10 ** max(int(exponent), 0))
            except (InvalidOperation, ValueError) as error:
                raise ValueOutOfRange.of(
                    relation.full_name,
                    column.name,
                    "is not a finite decimal",
                    'decimal.handling.mode = "string"',
                ) from error
            value = -unscaled if sign else unscaled
            size = (value if value >= 0 else ~value).bit_length() // 8 + 1
            rows.append(value.to_bytes(size, "big", signed=True))
            scales.append(max(-int(exponent), 0))
        texts = texts_of(pa.array(rows, pa.binary()))
        return [
            Cells(schema=INT32, values=np.array(scales, np.int32)),
            Cells(schema=BYTES, values=texts),
        ]

    return schema, convert, False
