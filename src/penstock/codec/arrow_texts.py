"""Texts of columns of the log, as merge tables stage values that their types do not hold. Pure."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly

TEXT = pa.string()


def text_values(values: Any) -> Any:
    """Return a column of the log as text: what the source prints, times in UTC without an offset.

    A bool is 1 or 0; a float has the digits that mean it, or NaN, Infinity and -Infinity.
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values
    if pa.types.is_boolean(kind):
        return cast_exactly(values.cast(pa.int8()), TEXT)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return cast_exactly(values.cast(pa.timestamp("us")), TEXT)
    if pa.types.is_floating(kind):
        return _text_of_floats(values)
    if pa.types.is_fixed_size_binary(kind):
        given = values.to_pylist()
        return pa.array([None if one is None else str(UUID(bytes=one)) for one in given], TEXT)
    return cast_exactly(values, TEXT)


def _text_of_floats(values: Any) -> Any:
    text = cast_exactly(values, TEXT)
    for short, long in (("^nan$", "NaN"), ("^inf$", "Infinity"), ("^-inf$", "-Infinity")):
        text = pc.replace_substring_regex(text, short, long)
    return text
