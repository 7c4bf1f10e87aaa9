"""Convert Arrow columns to texts of SQL literals, for plugins that need FlexCDC's rows. Pure.

The literals are those of FlexCDC: numbers as digits, text in quotes that are doubled inside, a
TIMESTAMP as from_unixtime(), NULL as the word, bytes as x'' and bits as b''.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from penstock.codec.exact_text import exact_texts
from penstock.model import Column

NULL = "NULL"
_NUMBERS = ("bool", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64")
_BIT = re.compile(r"bit\((\d+)\)\Z", re.IGNORECASE)
_FINITE = re.compile(r"[-+0-9.eE]+\Z")


def literals(values: Any, column: Column) -> list[str]:
    """Return each value of a column of the log as the text of a literal."""
    neutral = column.neutral
    if neutral == "timestamptz":
        return [NULL if n is None else _moment(n) for n in values.cast(pa.int64()).to_pylist()]
    if neutral == "binary":
        return [NULL if value is None else f"x'{value.hex()}'" for value in values.to_pylist()]
    bit = _BIT.match(column.source_type)
    if bit is not None and neutral != "string":
        width = int(bit[1])
        return [NULL if n is None else f"b'{int(n):0{width}b}'" for n in values.to_pylist()]
    texts = exact_texts(values.cast(pa.int8()) if neutral == "bool" else values, _of(neutral))
    is_number = neutral in _NUMBERS or neutral.startswith("decimal")
    return [
        NULL if text is None else text if is_number and _FINITE.match(text) else _quote(text)
        for text in texts
    ]


def _of(neutral: str) -> str:
    return "int16" if neutral == "bool" else neutral


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _moment(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"from_unixtime({seconds}" + (f".{fraction:06})" if fraction else ")")
