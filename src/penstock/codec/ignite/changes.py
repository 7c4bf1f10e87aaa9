"""Changes of keys as one table: the place of each key and value, and its other facts.

A key or value is decoded only when it is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PRIMARY = 1  # of flags
NONE = -1  # the length of a value that is not there

# `struct Change` of `_wal_entries.pxi`. ordinal: of the entry among all that were read.
CHANGE = np.dtype(
    [
        ("time_ms", "i8"), ("counter", "i8"), ("expire_time_ms", "i8"), ("near_order", "i8"),
        ("write_order", "i8"), ("offset", "u4"), ("ordinal", "i4"), ("cache_id", "i4"),
        ("partition", "i4"), ("key_at", "u4"), ("key_length", "i4"), ("value_at", "u4"),
        ("value_length", "i4"), ("near_topology", "i4"), ("near_node", "i4"),
        ("write_topology", "i4"), ("write_node", "i4"), ("operation", "u1"), ("flags", "u1"),
        ("key_kind", "i1"), ("value_kind", "i1"), ("near", "?"), ("write", "?"),
    ],
    align=True,
)  # fmt: skip

Rows = dict[str, npt.NDArray[Any]]  # an array for each field of CHANGE
Ints = npt.NDArray[np.int64]


def fields() -> list[tuple[str, np.dtype[Any]]]:
    """Return names and types of a structured dtype."""
    assert CHANGE.fields is not None
    return [(name, found[0]) for name, found in CHANGE.fields.items()]


class Changes:
    """Changes of keys. data: bytes that contain them. rows: the CHANGE of each."""

    __slots__ = ("_decode", "data", "rows")

    def __init__(self, data: Any, rows: Rows, decode: Callable[[bytes, int], Any]) -> None:
        """Keep the changes. decode: turns marshalled bytes and their kind into a Python value."""
        self.data = data
        self.rows = rows
        self._decode = decode

    def __len__(self) -> int:
        return len(self.rows["offset"])

    def pick(self, which: Any) -> Changes:
        """Return some of the changes, selected by a slice, indexes or a mask."""
        rows = {name: found[which] for name, found in self.rows.items()}
        return Changes(self.data, rows, self._decode)

    @property
    def is_put(self) -> npt.NDArray[np.bool_]:
        """Return for each row whether the key has a value after the change."""
        return np.asarray(self.rows["value_length"] != NONE)

    @property
    def is_primary(self) -> npt.NDArray[np.bool_]:
        """Return for each row whether the node had the primary copy."""
        return np.asarray(self.rows["flags"] & PRIMARY != 0)

    def places(self, side: str) -> tuple[Ints, Ints]:
        """Return starts and lengths of keys or values; NONE for a missing one."""
        return (
            self.rows[f"{side}_at"].astype(np.int64),
            self.rows[f"{side}_length"].astype(np.int64),
        )

    def list_marshalled(self, side: str) -> list[bytes]:
        """Return keys or values, each as the node marshalled it; empty if there is none."""
        data, (at, length) = self.data, self.places(side)
        ends = (at + np.maximum(length, 0)).tolist()
        return [bytes(data[begin:end]) for begin, end in zip(at.tolist(), ends, strict=True)]

    def list_values(self, side: str) -> list[Any]:
        """Return keys or values as Python values. Raises ValueBroken, TypeUnknown."""
        kinds = self.rows[f"{side}_kind"].tolist()
        return list(map(self._decode, self.list_marshalled(side), kinds))


def changes_of(entries: Sequence[Any], decode: Callable[[bytes, int], Any]) -> Changes:
    """Return a table of single entries, with all that rows need."""
    keys: list[bytes | None] = [one.key_bytes for one in entries]
    values = [one.value_bytes if one.has_value else None for one in entries]
    columns = {
        "cache_id": [one.cache_id for one in entries],
        "expire_time_ms": [one.expire_time_ms for one in entries],
        "flags": [PRIMARY if one.primary else 0 for one in entries],
        "key_kind": [one.key_kind for one in entries],
        "value_kind": [one.value_kind for one in entries],
    }
    rows = {
        name: np.array(columns[name], kind) if name in columns else np.zeros(len(entries), kind)
        for name, kind in fields()
    }
    begin = 0
    for side, parts in (("key", keys), ("value", values)):
        lengths = np.array([NONE if one is None else len(one) for one in parts], np.int64)
        ends = begin + np.cumsum(np.maximum(lengths, 0))
        rows[f"{side}_length"][:] = lengths
        rows[f"{side}_at"][:] = ends - np.maximum(lengths, 0)
        begin = int(ends[-1]) if len(ends) else 0
    return Changes(b"".join([one or b"" for one in [*keys, *values]]), rows, decode)
