"""Convert fields of many marshalled values to Arrow columns. Plain twin of `_marshal_cells.pxi`.

Only plain values are converted. The caller decodes a value that read_cells() refuses with
`marshal.decode`, which reports what is wrong with it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.codec.columns import cast_exactly
from penstock.codec.ignite import marshal
from penstock.codec.ignite.changes import Ints
from penstock.codec.ignite.types import BinaryType, Types
from penstock.codec.ignite.values import Date, SqlDate, Time, Timestamp
from penstock.model import PenstockError

_MS_MAX = (2**63 - 1) // 1000
_DIGITS_MAX, _SCALE_MAX = 18, 30
_NUMBER_BYTES_MAX = 8
_REFUSED = object()
_FORMS = {
    ("boolean", "bool"): "bool", ("tinyint", "int16"): "int8", ("smallint", "int16"): "int16",
    ("int", "int32"): "int32", ("bigint", "int64"): "int64", ("real", "float32"): "float32",
    ("double", "float64"): "float64", ("varchar", "string"): "string", ("uuid", "uuid"): "uuid",
    ("decimal", "string"): "number", ("binary", "binary"): "binary", ("date", "date"): "date",
    ("timestamp", "timestamptz"): "moment", ("time", "time"): "time",
}  # fmt: skip
_ARROW = {
    "bool": pa.bool_(), "int8": pa.int16(), "int16": pa.int16(), "int32": pa.int32(),
    "int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64(), "string": pa.string(),
    "number": pa.string(), "uuid": pa.binary(16), "binary": pa.binary(), "date": pa.int64(),
    "moment": pa.timestamp("us", "UTC"), "time": pa.int64(),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_INTEGERS = {"int8": 1, "int16": 2, "int32": 3, "int64": 4}  # and the widest code that fits
_HEADER = struct.Struct("<BBHiiiii")


class Cell(NamedTuple):
    """A column to read.

    Attributes:
        name: name of the field; empty for the value itself.
        form: form of the values. With `other` they are any values, as `marshal.decode` returns
            them.
        precision, scale: of a `decimal`.
    """

    name: str
    form: str
    precision: int = 0
    scale: int = 0


def cell_of(name: str, kind: str, neutral: str) -> Cell:
    """Return the column of a field. kind: its type in Ignite. neutral: its type in the log."""
    base = kind.partition("(")[0]
    match = _DECIMAL.match(neutral)
    if match and base == "decimal":
        return Cell(name, "decimal", int(match[1]), int(match[2]))
    return Cell(name, _FORMS.get((base, neutral), "other"))


Found = tuple[list[Any], list[BinaryType]]


def read_cells(
    data: Sequence[bytes | None], columns: tuple[Cell, ...], types: Types
) -> Found | None:
    """Return the columns of one cache's values, in order, and the types of the objects.

    data: plain values if there is a single cell with an empty name, otherwise binary objects. In
    each column, None is NULL. A column is an Arrow array, of int64 milliseconds for `date` and
    `time`, or a list of Python values if a value has another form. Returns None if a value is not
    plain: an object that is not compact, has raw data or a field without a column, or is broken.
    """
    try:
        return _read(data, columns, types)
    except PenstockError:
        return None


def _read(data: Sequence[bytes | None], columns: tuple[Cell, ...], types: Types) -> Found | None:
    places: list[list[int | None]] = [[None] * len(data) for _ in columns]
    found: dict[int, BinaryType] = {}
    is_scalar = [one.name for one in columns] == [""]
    at = {one.name: number for number, one in enumerate(columns)}
    for row, one in enumerate(data):
        if one is None:
            continue
        if is_scalar:
            if not one or one[0] in (marshal.OBJ, 27, marshal.TRANSFORMED):
                return None
            places[0][row] = 0
            continue
        fields = _fields(one, types, found)
        if fields is None:
            return None
        for name, place in fields:
            if name in at:
                places[at[name]][row] = place
            elif one[place] != marshal.NULL:
                return None
    depth = 0 if is_scalar else 1
    made = [
        _column(cell, data, where, types, depth)
        for cell, where in zip(columns, places, strict=True)
    ]
    return made, list(found.values())


def _fields(
    data: bytes, types: Types, found: dict[int, BinaryType]
) -> list[tuple[str, int]] | None:
    """Return name and place of each field of a plain object; None if it is not plain."""
    if len(data) < _HEADER.size:
        return None
    code, version, flags, type_id, _, length, schema, offset = _HEADER.unpack_from(data)
    if code != marshal.OBJ or version != 1 or not type_id or length != len(data):
        return None
    if flags & marshal.HAS_RAW:
        return None
    if not flags & marshal.HAS_SCHEMA:  # no field was written
        empty = types.find(type_id)
        if empty is None:
            return None
        found[type_id] = empty
        return []
    if not flags & marshal.COMPACT:
        return None
    if not marshal.HEADER_BYTES <= offset <= length:
        return None
    width = 1 if flags & marshal.ONE_BYTE else 2 if flags & marshal.TWO_BYTES else 4
    known, names = types.fields_of(type_id, schema)
    if length - offset != width * len(names):
        return None
    found[type_id] = known
    fields = []
    for number, name in enumerate(names):
        begin = offset + number * width
        place = int.from_bytes(data[begin : begin + width], "little", signed=width == 4)
        if not marshal.HEADER_BYTES <= place < offset:
            return None
        fields.append((name, place))
    return fields


def _column(
    cell: Cell, data: Sequence[bytes | None], places: list[int | None], types: Types, depth: int
) -> Any:
    """Return an Arrow array, or a list of Python's values."""
    values: list[Any] = []
    for one, place in zip(data, places, strict=True):
        is_there = one is not None and place is not None
        values.append(_put(cell, one, place, types) if is_there else None)  # type: ignore[arg-type]
        if values[-1] is _REFUSED:
            return [
                None if one is None or place is None else _value(one, place, types, depth)
                for one, place in zip(data, places, strict=True)
            ]
    if cell.form == "decimal":
        return pa.array(values, pa.decimal128(cell.precision, cell.scale))
    if cell.form == "other":
        return values
    if cell.form == "moment":
        return cast_exactly(pa.array(values, pa.int64()), _ARROW["moment"])
    return pa.array(values, _ARROW[cell.form])


def _value(data: bytes, place: int, types: Types, depth: int) -> Any:
    return marshal.read_at(data, place, types, depth)


def _put(cell: Cell, data: bytes, place: int, types: Types) -> Any:
    """Return a column's value from the bytes at a place; _REFUSED if it has another form."""
    code = data[place]
    if code == marshal.NULL:
        return None
    form = cell.form
    if form == "other" or code not in _CODES[form]:
        return _REFUSED
    try:
        value = _value(data, place, types, 1)
    except PenstockError:
        if code == 8:  # a boolean that is neither
            return _REFUSED
        raise
    if code == 30 and int.from_bytes(data[place + 5 : place + 9], "little") > _NUMBER_BYTES_MAX:
        return _REFUSED
    return _MAKERS[form](cell, value) if form in _MAKERS else value


def _moment(_: Cell, value: Any) -> Any:
    ms, nanos = value if isinstance(value, Timestamp) else (value[0], 0)
    if not -_MS_MAX < ms < _MS_MAX or not 0 <= nanos <= 999_999 or nanos % 1000:
        return _REFUSED
    return ms * 1000 + nanos // 1000


def _ms_of(kind: type[Date | Time]) -> Callable[[Cell, Any], Any]:
    return lambda _, value: value.ms if type(value) is kind else _REFUSED


def _number(cell: Cell, value: Decimal) -> Any:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = -exponent
    if not 0 <= scale <= _SCALE_MAX or len(digits) > _DIGITS_MAX:
        return _REFUSED
    if cell.form == "number":
        return format(value, "f")
    unscaled = int("".join(map(str, digits)))
    more = cell.scale - scale
    if not 0 <= more <= _DIGITS_MAX or unscaled >= 10 ** (_DIGITS_MAX - more):
        return _REFUSED
    unscaled *= 10**more
    if cell.precision < _DIGITS_MAX and unscaled >= 10**cell.precision:
        return _REFUSED
    return marshal.as_decimal(-unscaled if sign else unscaled, cell.scale)


_CODES: dict[str, frozenset[int]] = {
    **{form: frozenset(range(1, most + 1)) for form, most in _INTEGERS.items()},
    "bool": frozenset({8}), "float32": frozenset({5}), "float64": frozenset({5, 6}),
    "string": frozenset({9}), "number": frozenset({30}), "decimal": frozenset({30}),
    "uuid": frozenset({10}), "binary": frozenset({12}), "moment": frozenset({33, 11}),
    "date": frozenset({marshal.OPTIMIZED}), "time": frozenset({36}),
}  # fmt: skip
_MAKERS: dict[str, Callable[[Cell, Any], Any]] = {
    "moment": _moment,
    "date": _ms_of(SqlDate),
    "time": _ms_of(Time),
    "number": _number,
    "decimal": _number,
    "uuid": lambda _, value: value.bytes,
}


def cell_reader(types: Types) -> Callable[[Any, Ints, Ints, tuple[Cell, ...]], Found | None]:
    """Return `read_cells` bound to these types: the kernel's, or the twin if PENSTOCK_PURE=1.

    It is called with the bytes that hold all values, the start of each, and its length, -1 for
    None.
    """
    decoder = marshal.kernel_decoder(types)
    if decoder is None:
        return lambda data, begins, lengths, columns: read_cells(
            [
                None if length < 0 else bytes(data[at : at + length])
                for at, length in zip(begins.tolist(), lengths.tolist(), strict=True)
            ],
            columns,
            types,
        )
    found: Callable[[Any, Ints, Ints, tuple[Cell, ...]], Found | None] = decoder.cells_at
    return found
