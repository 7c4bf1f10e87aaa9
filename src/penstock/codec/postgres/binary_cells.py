"""Values of Arrow columns in PostgreSQL's binary formats, as COPY and DataRow have them.

Of a type whose binary form is not known here nothing is sent (`Refused`, 0A000): the client may ask
for texts. Source: the `_send` functions of each type in PostgreSQL's source.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.row_messages import fixed_cells, text_cells
from penstock.model import Column

_TEXT_OIDS = (18, 19, 25, 114, 142, 1042, 1043)  # char, name, text, json, xml, bpchar, varchar
_JSONB = 3802
_DAYS_2000, _US_2000 = 10_957, 946_684_800_000_000
_NUMPY = {
    21: ("int16", ">i2"),
    23: ("int32", ">i4"),
    20: ("int64", ">i8"),
    26: ("uint32", ">u4"),
    700: ("float32", ">f4"),
    701: ("float64", ">f8"),
}


def binary_cells(values: Any, column: Column) -> Any:
    """The values as the server sends them in binary; null stays null. Raises Refused."""
    oid, _ = wire_type(column)
    neutral = column.neutral.partition("(")[0]
    if oid in _TEXT_OIDS:
        return text_cells(values, column)
    if oid == _JSONB:
        texts = text_cells(values, column).to_pylist()
        return pa.array([None if t is None else b"\x01" + t for t in texts], pa.large_binary())
    if oid in _NUMPY and neutral != "string":
        kind, wire = _NUMPY[oid]
        return fixed_cells(_numbers(values.cast(kind)), wire, _mask(values))
    if oid == 16 and neutral == "bool":
        return fixed_cells(_numbers(values.cast(pa.uint8())), "u1", _mask(values))
    if oid == 17 and neutral == "binary":
        return values.cast(pa.large_binary())
    if oid == 2950 and neutral == "uuid":
        return values.cast(pa.binary()).cast(pa.large_binary())
    if oid == 1082 and neutral == "date":
        return fixed_cells(_numbers(values.view(pa.int32())) - _DAYS_2000, ">i4", _mask(values))
    if oid == 1083 and neutral == "time":
        return fixed_cells(_numbers(values.view(pa.int64())), ">i8", _mask(values))
    if oid in (1114, 1184) and neutral in ("timestamp", "timestamptz"):
        return fixed_cells(_numbers(values.view(pa.int64())) - _US_2000, ">i8", _mask(values))
    if oid == 1700:
        texts = text_cells(values, column).to_pylist()
        return pa.array(
            [None if t is None else _numeric(t.decode()) for t in texts], pa.large_binary()
        )
    raise Refused(
        "0A000",
        f"column {column.name} of type {column.source_type} is not sent in binary",
        hint="Ask for text: a subscription with binary = false, COPY without FORMAT binary.",
    )


def _numbers(values: Any) -> Any:
    """As numpy has them; anything where they are null."""
    filled = values.fill_null(0) if values.null_count else values
    return filled.to_numpy(zero_copy_only=False)


def _mask(values: Any) -> Any:
    return np.asarray(values.is_valid()) if values.null_count else None


def _numeric(text: str) -> bytes:
    special = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}.get(text)
    if special is not None:
        return struct.pack(">hhHh", 0, 0, special, 0)
    sign, numbers, exponent = Decimal(text).as_tuple()
    scale = max(0, -int(exponent))
    digits = "".join(map(str, numbers)) + "0" * max(0, int(exponent))
    whole, fraction = (
        digits[: len(digits) - scale],
        digits[len(digits) - scale :].rjust(scale, "0"),
    )
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight = 0
    head = struct.pack(">hhHH", len(groups), weight, 0x4000 if sign and groups else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)
