"""Change values in our own process if the target cannot accept them otherwise."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.types.to_postgres import REMOVE_NUL

_NUL = "\0"


def prepare_values(values: pa.Array, what: str) -> pa.Array:
    """Return a column's values as they are sent. what: `Write.prepare`, empty for no change. Raises
    KeyError.
    """
    if not what:
        return values
    return {REMOVE_NUL: _without_nul}[what](values)


def _without_nul(values: pa.Array) -> pa.Array:
    return pc.replace_substring(values, _NUL, "")
