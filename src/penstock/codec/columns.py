"""Layout of rows in memory, one Arrow record batch per relation version, and casts of its values.

The schema is that of `.ckt` rows frames (docs/ckt-format.md).

Casts keep each value or raise, where Arrow's own cast wraps or saturates. `cast()` of Arrow (26.0)
checks integers, dates and times, but reads a decimal's text modulo 2^128, rescales decimals modulo
2^128, and turns a number that is too large for a float into infinity. All casts to a type that is
not written out beside them go through `cast_exactly` (`tests/unit/test_casts.py`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.position import POSITION_BYTES, to_bytes
from penstock.model.relation import Column, Relation

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
DECIMAL_PRECISION_MAX = 38  # wider ones are kept as exact text

_ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "string": pa.string(),
}

HEAD_FIELDS = (
    pa.field("gsn", pa.int64(), nullable=False),
    pa.field("trx", pa.int64(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),  # ASCII I, U, D
    # Bit i (least significant first) set: column i was not sent; its value is unchanged, not
    # NULL. Null when everything was sent.
    pa.field("absent", pa.binary()),
)

Numbers = Sequence[int] | npt.NDArray[Any]

POSITION = pa.binary(POSITION_BYTES)
COMMIT_TIME = pa.timestamp("us", "UTC")


def _transactions_schema(source_id: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            # Of the commit. PostgreSQL: where the commit record STARTS, so that a row is inside a
            # slot's snapshot exactly when its transaction's position < consistent_point.
            pa.field("position", POSITION, nullable=False),
            pa.field("end_position", POSITION, nullable=False),
            pa.field("commit_time", COMMIT_TIME, nullable=False),
            # The source's own id; 0 or empty where it has none.
            pa.field("source_id", source_id, nullable=False),
            # Which of the logs that the source merges; 0 where there is one.
            pa.field("origin", pa.uint16(), nullable=False),
        ]
    )


# One row per transaction, without gaps: their numbers follow from the order of the rows.
TRANSACTIONS_SCHEMA = _transactions_schema(pa.uint64())
NAMED_TRANSACTIONS_SCHEMA = _transactions_schema(pa.string())  # of a source with ids of text


def arrow_type(neutral: str) -> pa.DataType:
    """Return the Arrow type of a neutral type's name; raises KeyError for an unknown name."""
    match = _DECIMAL.match(neutral)
    if match:
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW[neutral]


def transactions_batch(lines: Sequence[tuple[int, int, int, int]]) -> pa.RecordBatch | None:
    """Return transactions as a batch of TRANSACTIONS_SCHEMA; None without any.

    lines: for each transaction, in order, its position, end position, commit time in microseconds
    and the source's id.
    """
    return transactions_of(*zip(*lines, strict=True)) if lines else None


def transactions_of(
    positions: Numbers, ends: Numbers, times_us: Numbers, ids: Numbers
) -> pa.RecordBatch:
    """Return a batch of transactions with these columns."""
    arrays = [
        _positions(positions),
        _positions(ends),
        pa.array(times_us, pa.int64()).view(COMMIT_TIME),
        pa.array(ids, pa.uint64()),
        pa.array(np.zeros(len(positions), np.uint16)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)


def _positions(ordinals: Numbers) -> pa.Array:
    try:
        low = np.array(ordinals, np.int64)
    except OverflowError:  # of more than 63 bits
        return pa.array(map(to_bytes, ordinals), POSITION)
    found = np.zeros((len(low), POSITION_BYTES // 8), ">i8")
    found[:, -1] = low
    return pa.FixedSizeBinaryArray.from_buffers(POSITION, len(low), [None, pa.py_buffer(found)])


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, arrow_type(column.neutral))


@lru_cache(maxsize=1024)
def after_type(relation: Relation) -> pa.StructType:
    """Return the struct of an after image: all columns, in order."""
    return pa.struct([_field(column) for column in relation.columns])


@lru_cache(maxsize=1024)
def before_type(relation: Relation) -> pa.StructType:
    """Return the struct of a before image: the columns that `relation.before` names, in order."""
    return pa.struct([_field(relation.columns[index]) for index in relation.before])


@lru_cache(maxsize=1024)
def batch_schema(relation: Relation) -> pa.Schema:
    """Return the schema of a batch of this relation version.

    `after` is null for deletes. `before` is null if the source sent no old image: for inserts, and
    for updates that do not change an identity column (unless the identity is FULL).
    """
    return pa.schema(
        [
            *HEAD_FIELDS,
            pa.field("after", after_type(relation)),
            pa.field("before", before_type(relation)),
        ]
    )


_WIDE_PRECISION = 76  # of decimal256
EXPONENT_DIGITS_MAX = 9
"""Digits of an exponent that Decimal reads everywhere; a number with more is none."""


def bits(absent: bytes | None) -> Iterator[int]:
    """Yield the numbers of the columns that were not sent."""
    for at, byte in enumerate(absent or b""):
        for bit in range(8):
            if byte >> bit & 1:
                yield at * 8 + bit


def cast_exactly(values: Any, kind: pa.DataType) -> Any:
    """Return the values (array, chunked array or scalar) as another type, without changing any of
    them.

    The only change is rounding from text or 64 bits to a float's nearest value.

    Raises:
        pa.ArrowInvalid: A value does not fit.
    """
    if values.type.equals(kind):
        return values
    if pa.types.is_floating(kind):
        return _to_float(values, kind)
    if pa.types.is_decimal(kind):
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return _text_to_decimal(values, kind)
        if pa.types.is_decimal(values.type):
            return _rescale(values, kind)
    return values.cast(kind)


def _to_float(values: Any, kind: pa.DataType) -> Any:
    """Cast to a float. Raises if a finite number became infinite, or a number became zero."""
    found = values.cast(kind)
    was = values
    is_text = pa.types.is_string(was.type) or pa.types.is_large_string(was.type)
    if is_text:  # a text of infinity has no digit; one of zero has no other digit in front of its e
        was_finite = pc.match_substring_regex(was, "[0-9]")
        was_zero = pc.invert(pc.match_substring_regex(was, "^[^eE]*[1-9]"))
    elif pa.types.is_floating(was.type):
        was_finite, was_zero = pc.is_finite(was), pc.equal(was, 0)
    else:
        return found  # Arrow refuses integers of more bits than a float holds
    lost = pc.or_(
        pc.and_(was_finite, pc.is_inf(found)),
        pc.and_(pc.and_(was_finite, pc.equal(found, 0)), pc.invert(was_zero)),
    )
    if _is_any(lost):
        raise pa.ArrowInvalid(f"a number is out of the range of {kind}")
    return found


def _is_any(flags: Any) -> bool:
    return bool((flags if isinstance(flags, pa.Scalar) else pc.any(flags)).as_py())


def _rescale(values: Any, kind: pa.DataType) -> Any:
    """Rescale in 256 bits if 128 might wrap. 256 bits hold 38 digits and 38 more."""
    old = values.type
    if max(old.precision, kind.precision) > DECIMAL_PRECISION_MAX:
        raise pa.ArrowInvalid(f"no cast from {old} to {kind}: they are wider than penstock's")
    if old.precision + max(0, kind.scale - old.scale) <= DECIMAL_PRECISION_MAX:
        return values.cast(kind)
    return values.cast(pa.decimal256(_WIDE_PRECISION, kind.scale)).cast(kind)


def _text_to_decimal(values: Any, kind: pa.DataType) -> Any:
    """Return decimals, computed in as many bits as their texts need.

    A text of n characters without an exponent is below 10^n, and below 10^(n + scale) when it is
    scaled: 38 digits fit into 128 bits, 76 into 256.
    """
    digits = pc.max(pc.utf8_length(_as_array(values))).as_py() or 0
    has_exponent = _is_any(pc.match_substring_regex(values, "[eE]"))
    if not has_exponent and digits + kind.scale <= DECIMAL_PRECISION_MAX:
        return values.cast(kind)
    if not has_exponent and digits + kind.scale <= _WIDE_PRECISION:
        return values.cast(pa.decimal256(_WIDE_PRECISION, kind.scale)).cast(kind)
    if isinstance(values, pa.Scalar):
        return pa.scalar(_decimal(values.as_py(), kind), kind)
    return pa.array([_decimal(text, kind) for text in values.to_pylist()], kind)


def _as_array(values: Any) -> Any:
    return pa.array([values.as_py()], values.type) if isinstance(values, pa.Scalar) else values


def _decimal(text: str | None, kind: pa.DataType) -> Decimal | None:
    """Return the number of a text, which has the type's scale exactly."""
    if text is None:
        return None
    refused = pa.ArrowInvalid(f"{text[:80]!r} is not a {kind}")
    _, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-")) > EXPONENT_DIGITS_MAX:
        raise refused
    try:
        found = Decimal(text)
    except InvalidOperation as error:
        raise refused from error
    if not found.is_finite():
        raise refused
    if not found:
        return Decimal(0)
    sign, digits, last = found.as_tuple()
    assert isinstance(last, int), "it is finite"
    number = "".join(map(str, digits)).rstrip("0")
    zeros = last + len(digits) - len(number) + kind.scale
    if found.adjusted() >= kind.precision - kind.scale or zeros < 0:
        raise refused
    shown = tuple(map(int, number + "0" * zeros))
    return Decimal((sign, shown, -kind.scale))
