"""PostgreSQL's rules for comparing and ordering, over Arrow columns of the log.

NaN equals itself and is above all other numbers, -0 equals 0, a real compared with any other
number is compared as double precision. Constants are read only in the strict forms in which
PostgreSQL prints values; its other forms are refused. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.codec.postgres import pgtext
from penstock.serve.catalog.types import (
    BOOL,
    DATE,
    FLOAT4,
    FLOAT8,
    INTEGERS,
    NAME,
    NUMERIC,
    TEXTS,
    TIMESTAMP,
    TIMESTAMPTZ,
    read_boolean,
)

UUID = 2950
FLOATS = (FLOAT4, FLOAT8)
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]{1,1000}\.?[0-9]{0,1000}|\.[0-9]{1,1000})(?:[eE][+-]?[0-9]{1,2})?"
)
_FLOAT = re.compile(r"([+-]?)([0-9]{0,300})\.?([0-9]{0,300})(?:[eE]([+-]?[0-9]{1,3}))?")
_NOT_FINITE = {"nan": "NaN", "infinity": "Infinity", "inf": "Infinity", "-infinity": "-Infinity"}
_DAY_ALONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO = re.compile(r"([0-9-]{10})[T ]([0-9:.]{8,15})(Z|[+-][0-9:]{2,5})?")
_UUID_DIGITS = "(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}"
_UUID_FORM = re.compile(rf"{_UUID_DIGITS}|\{{{_UUID_DIGITS}\}}")
_NAME_BYTES = 63


class Operand(NamedTuple):
    """One side of a comparison.

    Attributes:
        oid: its type.
        kind: type in the log; None for a constant.
    """

    oid: int
    kind: pa.DataType | None
    values: Callable[[Any], Any]


def read_constant(text: str, oid: int) -> Any:
    """Return a constant as an Arrow scalar. Raises ValueError for a form that is not read here."""
    if oid in TEXTS:
        return pa.scalar(
            text.encode()[:_NAME_BYTES].decode(errors="ignore") if oid == NAME else text
        )
    text = text.strip(" \t\n\r\v\f")
    if oid == BOOL:
        return pa.scalar(bool(read_boolean(text)))
    if oid in INTEGERS:
        if not _INTEGER.fullmatch(text):
            raise ValueError(text)
        return _decimal_scalar(Decimal(text))
    if oid == NUMERIC:
        if not _DECIMAL.fullmatch(text):
            raise ValueError(text)
        return _decimal_scalar(Decimal(text))
    if oid in FLOATS:
        return pa.scalar(_read_float(text, oid))
    return _read_moment(text, oid)


def _decimal_scalar(value: Decimal) -> Any:
    if value == value.to_integral_value() and abs(value) < 2**63:
        return pa.scalar(int(value), pa.int64())
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if exponent > 0:
        value = Decimal((sign, digits + (0,) * exponent, 0))
    return pa.scalar(value)


def _read_float(text: str, oid: int) -> float:
    read = pgtext.read_float32 if oid == FLOAT4 else pgtext.read_float64
    special = _NOT_FINITE.get(text.lower().removeprefix("+"))
    if special is not None:
        return read(special.encode())
    match = _FLOAT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(text)
    sign = "-" if match[1] == "-" else ""
    return read(f"{sign}{match[2] or '0'}.{match[3] or '0'}e{match[4] or '0'}".encode())


def _read_moment(text: str, oid: int) -> Any:
    match = _ISO.fullmatch(text)
    if match is not None:
        text = f"{match[1]} {match[2]}{'+00' if match[3] == 'Z' else match[3] or ''}"
    data = text.encode()
    if oid == DATE:
        return pa.scalar(pgtext.read_date(data), pa.int32()).cast(pa.date32())
    if oid in (TIMESTAMP, TIMESTAMPTZ):
        if oid == TIMESTAMP and _DAY_ALONE.fullmatch(text):
            data += b" 00:00:00"
        read = pgtext.read_timestamp if oid == TIMESTAMP else pgtext.read_timestamptz
        zone = "UTC" if oid == TIMESTAMPTZ else None
        return pa.scalar(read(data), pa.int64()).cast(pa.timestamp("us", zone))
    if oid == UUID and _UUID_FORM.fullmatch(text):
        return pa.scalar(bytes.fromhex(re.sub("[-{}]", "", text)), pa.binary(16))
    raise ValueError(text)


def is_comparable(left: Operand, right: Operand) -> bool:
    """Return whether the values of both sides can be compared exactly as PostgreSQL does."""
    if not {left.oid, right.oid} & set(FLOATS):
        return True
    # A numeric becomes a double by reading its text; no cast of Arrow does that.
    return not any(
        side.kind is not None and pa.types.is_decimal(side.kind) for side in (left, right)
    )


def make_comparison(operator: str, left: Operand, right: Operand) -> Callable[[Any], Any]:
    """Return a function that compares: `=`, `<>`, `<`, `<=`, `>`, `>=`, `is` and `is not`.

    The function takes columns and returns booleans, with NULL if a side is NULL.
    """
    shape = _shape_of(left, right)
    if operator in ("is", "is not"):
        return lambda columns: _distinct(
            operator, shape(left.values(columns)), shape(right.values(columns))
        )
    compare = _COMPARE[operator]
    return lambda columns: compare(shape(left.values(columns)), shape(right.values(columns)))


def _shape_of(left: Operand, right: Operand) -> Callable[[Any], Any]:
    """Return the conversion of both sides before they are compared."""
    oids = {left.oid, right.oid}
    if oids & set(FLOATS):
        # An integer of more than 53 bits, which PostgreSQL would round, is refused.
        wanted = pa.float32() if oids == {FLOAT4} else pa.float64()
        return lambda values: cast_exactly(values, wanted)
    if oids == {BOOL}:
        return lambda values: pc.cast(values, pa.int8())
    kinds = [side.kind for side in (left, right)]
    if any(kind is not None and pa.types.is_uint64(kind) for kind in kinds):
        wide = pa.decimal128(20, 0)
        return lambda values: cast_exactly(values, wide) if _is_whole(values) else values
    return lambda values: values


def _is_whole(values: Any) -> bool:
    return bool(pa.types.is_integer(values.type))


def _not_a_number(values: Any) -> Any:
    return pc.is_nan(values) if pa.types.is_floating(values.type) else None


def equal(left: Any, right: Any) -> Any:
    """Return where both are equal; NaN equals NaN."""
    nan = _not_a_number(left)
    found = pc.equal(left, right)
    return found if nan is None else pc.or_(found, pc.and_(nan, pc.is_nan(right)))


def less(left: Any, right: Any) -> Any:
    """Return where the left one is less; NaN is above all other numbers."""
    nan = _not_a_number(left)
    found = pc.less(left, right)
    if nan is None:
        return found
    return pc.or_(found, pc.and_(pc.invert(nan), pc.is_nan(right)))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": equal,
    "<>": lambda left, right: pc.invert(equal(left, right)),
    "<": less,
    "<=": lambda left, right: pc.invert(less(right, left)),
    ">": lambda left, right: less(right, left),
    ">=": lambda left, right: pc.invert(less(left, right)),
}


def _distinct(operator: str, left: Any, right: Any) -> Any:
    nulls = pc.and_(pc.is_null(left), pc.is_null(right))
    same = pc.or_(nulls, pc.fill_null(equal(left, right), False))
    return same if operator == "is" else pc.invert(same)


def sort_keys(values: Any, *, descending: bool, nulls_first: bool, is_padded: bool) -> list[Any]:
    """Return arrays and their directions that sort as PostgreSQL does, in collation C.

    Args:
        values: the values.
        descending: the direction.
        nulls_first: place NULLs first.
        is_padded: ignore blanks at the end of texts, as in `character`.
    """
    direction = "descending" if descending else "ascending"
    keys = [(pc.is_null(values), "descending" if nulls_first else "ascending")]
    if pa.types.is_floating(values.type):
        keys.append((pc.is_nan(values), direction))
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif is_padded:
        values = pc.utf8_rtrim(values, " ")
    return [*keys, (values, direction)]
