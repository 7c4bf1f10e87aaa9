"""Convert columns to the binary form of PostgreSQL's types, for clients that request it. Pure.

A column has a binary form if its type is PostgreSQL's own, the form is known here, and every value
in the log has it. Other columns are sent as text, which clients accept in the same row. Source: the
send functions of PostgreSQL's types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.postgres.pgtext import is_hex_bytea
from penstock.codec.postgres.pgtypes import BYTEA_OID, NUMERIC_OID, TEXT_OID, wire_type
from penstock.model import Column

_BOOL, _UUID, _JSONB, _XID8 = 16, 2950, 3802, 5069
_INTEGERS = {20: 8, 21: 2, 23: 4, 26: 4, 28: 4, 29: 4, _XID8: 8}  # bytes by oid
_INTEGER_BYTES = {"int16": 2, "int32": 4, "int64": 8, "uint32": 4, "uint64": 8}
_UNSIGNED = (26, 28, 29, _XID8)
_FLOATS = {700: "float32", 701: "float64"}
_TEXTS = (TEXT_OID, 19, 114, 142, 1042, 1043)
EPOCH_DAYS, EPOCH_US = 10_957, 946_684_800_000_000  # 2000-01-01
_TIMES = {1083: ("time", 0), 1114: ("timestamp", EPOCH_US), 1184: ("timestamptz", EPOCH_US)}
# From 4714-11-24 BC to 5874898-06-03; the last microsecond of Arrow is before PostgreSQL's.
DAYS = range(-2_440_588, 2_145_042_906)
MICROSECONDS = range(-210_866_803_200_000_000, 2**63)
_DATE = 1082
_NUMERIC_HEAD = struct.Struct(">hhHH")
_NEGATIVE, _GROUP_DIGITS = 0x4000, 4
# Sign and scale as servers send them.
_SPECIAL = {"NaN": (0xC000, 0), "Infinity": (0xD000, 0x20), "-Infinity": (0xF000, 0x20)}

Convert = Callable[[Any], Any]
NO_SUCH_DATE = "has a date or timestamp that PostgreSQL has no place for"


class Unencodable(ValueError):
    """A row cannot be sent. row: its index in the batch."""

    def __init__(self, row: int, why: str) -> None:
        """Keep the row. why: the rest of the message, after the row's number."""
        super().__init__(f"row {row} of the batch {why}")
        self.row = row


def binary_form(column: Column) -> Convert | None:
    """Return a function from a column's Arrow array to an array of bytes; None to send text.

    NULL stays NULL.
    """
    oid, _ = wire_type(column)
    neutral = column.neutral
    if oid == TEXT_OID and (column.base_type or column.source_type) != "text":
        return None  # a type that is only announced so: its own binary form is another
    if oid in _INTEGERS and neutral in _INTEGER_BYTES:
        return _integers(oid, neutral)
    if oid == _BOOL and neutral == "bool":
        return _booleans
    if _FLOATS.get(oid) == neutral:
        return lambda values: _to_network_order(values, ">f4" if neutral == "float32" else ">f8")
    if oid in _TIMES and _TIMES[oid][0] == neutral:
        if neutral == "time":
            return lambda values: _to_network_order(values.cast(pa.int64()), ">i8")
        return lambda values: _dates(values.cast(pa.int64()), ">i8", EPOCH_US, MICROSECONDS)
    if oid == _DATE and neutral == "date":
        return lambda values: _dates(values.cast(pa.int32()), ">i4", EPOCH_DAYS, DAYS)
    if oid == NUMERIC_OID:
        return _numerics
    if oid == _UUID and neutral == "uuid":
        return lambda values: values.cast(pa.binary())
    if oid == BYTEA_OID and neutral == "binary" and is_hex_bytea(column):
        return lambda values: values.cast(pa.binary())
    if neutral == "string" and oid in (*_TEXTS, _JSONB):
        return _documents if oid == _JSONB else lambda values: values.cast(pa.binary())
    return None


def _integers(oid: int, neutral: str) -> Convert | None:
    size = _INTEGERS[oid]
    is_unsigned = oid in _UNSIGNED
    # An unsigned number needs one more bit, unless the type is unsigned, too.
    wider = neutral.startswith("u") and not is_unsigned
    if _INTEGER_BYTES[neutral] + wider > size or (is_unsigned and not neutral.startswith("u")):
        return None
    kind = f">{'u' if is_unsigned else 'i'}{size}"
    return lambda values: _to_network_order(values, kind)


def _dates(values: Any, kind: str, epoch: int, bounds: range) -> Any:
    """Return dates or timestamps in binary form, counted from 2000. Raises Unencodable."""
    numbers = np.asarray(values.fill_null(epoch))
    bad = (numbers < bounds.start) | (numbers >= bounds.stop)
    if bad.any():
        raise Unencodable(int(np.argmax(bad)), NO_SUCH_DATE)
    return _to_network_order(values, kind, epoch)


def _to_network_order(values: Any, kind: str, less: int = 0) -> Any:
    """Return numbers of one size in network order, after subtracting an origin."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    has_nulls = bool(values.null_count)
    if has_nulls:
        values = values.fill_null(pa.scalar(0, values.type))
    numbers = values.to_numpy(zero_copy_only=False)
    found = np.ascontiguousarray((numbers - less if less else numbers).astype(kind))
    width = found.dtype.itemsize
    offsets = np.arange(0, (len(found) + 1) * width, width, dtype=np.int32)
    bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if has_nulls else None
    return pa.Array.from_buffers(
        pa.binary(), len(found), [bits, pa.py_buffer(offsets), pa.py_buffer(found)]
    )


def _booleans(values: Any) -> Any:
    return _to_network_order(values.cast(pa.uint8()), ">u1")


def _documents(values: Any) -> Any:
    """Return jsonb values: the version of the format, then the text."""
    found = [None if one is None else b"\1" + one.encode() for one in values.to_pylist()]
    return pa.array(found, pa.binary())


def _numerics(values: Any) -> Any:
    found = [None if one is None else numeric_bytes(str(one)) for one in values.to_pylist()]
    return pa.array(found, pa.binary())


def numeric_bytes(text: str) -> bytes:
    """Return the binary form of a numeric's text."""
    if text in _SPECIAL:
        return _NUMERIC_HEAD.pack(0, 0, *_SPECIAL[text])
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int), "it is a number"
    scale = max(-exponent, 0)
    number = ("".join(map(str, digits)) + "0" * max(exponent, 0)).rjust(scale, "0")
    whole, fraction = number[: len(number) - scale], number[len(number) - scale :]
    whole = whole.rjust(-(-len(whole) // _GROUP_DIGITS) * _GROUP_DIGITS, "0")
    fraction = fraction.ljust(-(-scale // _GROUP_DIGITS) * _GROUP_DIGITS, "0")
    joined = whole + fraction
    groups = [int(joined[at : at + _GROUP_DIGITS]) for at in range(0, len(joined), _GROUP_DIGITS)]
    weight = len(whole) // _GROUP_DIGITS - 1
    while groups and not groups[0]:
        del groups[0]
        weight -= 1
    while groups and not groups[-1]:
        del groups[-1]
    if not groups:
        weight = sign = 0
    head = _NUMERIC_HEAD.pack(len(groups), weight, _NEGATIVE * sign, scale)
    return head + struct.pack(f">{len(groups)}H", *groups)
