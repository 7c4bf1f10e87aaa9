"""Columns of entries with known types of keys and values, read from their bytes together.

Other entries (an unknown type, a value that a column does not hold, raw data) are left to
`rows.py`, which decodes each value and lets the cache's shape grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type
from penstock.codec.exact_cast import cast_exactly
from penstock.codec.ignite.cells import Cell, cell_of, cell_reader
from penstock.codec.ignite.changes import Changes
from penstock.codec.ignite.columns import MS_MAX, NotHeld, column_of, column_of_ms
from penstock.codec.ignite.kinds import OF_CODES, parts_of
from penstock.codec.ignite.types import Types
from penstock.engines.ignite.source.shapes import (
    EXPIRES,
    OF_KEY,
    OF_VALUE,
    PRIMARY,
    RAW,
    KeptColumn,
    Shape,
)

REGULAR, OBJECT = 1, 100  # kinds of keys and values
NULL = 101
Met = Mapping[Any, Any]


@dataclass(frozen=True)
class _Side:
    """Columns of keys, or of values. kind: of their bytes."""

    columns: tuple[KeptColumn, ...]
    cells: tuple[Cell, ...]
    kind: int


class PlainColumns:
    """Reader of columns; it uses the kernel if that is built."""

    def __init__(self, types: Types, zone: str) -> None:
        """Store the types. zone: time zone of the nodes, for dates and times of day."""
        self._read = cell_reader(types)
        self._zone = zone
        self._sides: dict[str, tuple[Shape, tuple[_Side, ...]]] = {}

    def of(
        self, cache: str, shape: Shape, met: Sequence[Met], entries: Changes, puts: Changes
    ) -> list[pa.Array] | None:
        """Return a column of each entry for the key's, of each put for others; None: they are
        not plain.

        met: types of keys and of values that the shape has.
        """
        known = self._sides.get(cache)
        if known is None or known[0] is not shape:
            known = self._sides[cache] = shape, (_side(shape, OF_KEY), _side(shape, OF_VALUE))
        keys, values = known[1]
        if (entries.rows["key_kind"] != keys.kind).any():
            return None
        if (puts.rows["value_kind"] != values.kind).any():
            return None
        made = self._columns(keys, entries, "key", met[0])
        if made is None:
            return None
        more = self._columns(values, puts, "value", met[1])
        if more is None:
            return None
        found = made | more
        for column in shape.columns:
            if column.name not in found:
                of_entries = _of_entries(column, puts)
                if of_entries is None:
                    return None
                found[column.name] = of_entries
        if puts.rows["expire_time_ms"].any() and EXPIRES not in found:
            return None
        return [found[column.name] for column in shape.columns]

    def _columns(
        self, side: _Side, changes: Changes, of: str, met: Met
    ) -> dict[str, pa.Array] | None:
        begins, lengths = changes.places(of)
        if side.kind == REGULAR:
            first = np.frombuffer(changes.data, np.uint8)[begins[lengths > 0]]
            codes = set(np.unique(first).tolist()) - {NULL}
            if not codes <= {code for code, kind in OF_CODES.items() if kind in met}:
                return None
        read = self._read(changes.data, begins, lengths, side.cells)
        if read is None or any(met.get(one.type_id) is not one for one in read[1]):
            return None
        made = {}
        for column, cells in zip(side.columns, read[0], strict=True):
            try:
                made[column.name] = self._column(column, cells)
            except NotHeld:
                return None
        return made

    def _column(self, column: KeptColumn, cells: Any) -> pa.Array:
        if isinstance(cells, list):
            return column_of(column.kind, column.neutral, cells, self._zone)
        base, length, _ = parts_of(column.kind)
        if base in ("date", "time"):
            return column_of_ms(column.kind, column.neutral, cells, self._zone)
        if base == "varchar" and length and (pc.max(pc.utf8_length(cells)).as_py() or 0) > length:
            raise NotHeld("varchar")
        return cells


def _side(shape: Shape, side: str) -> _Side:
    columns = tuple(one for one in shape.columns if one.side == side)
    cells = tuple(cell_of(one.field, one.kind, one.neutral) for one in columns)
    is_scalar = [one.field for one in columns] == [""]
    # If a cache has both, values of one kind would leave the others' columns to be filled.
    is_mixed = not is_scalar and any(not one.field for one in columns)
    return _Side(columns, cells, 0 if is_mixed else REGULAR if is_scalar else OBJECT)


def _of_entries(column: KeptColumn, puts: Changes) -> pa.Array | None:
    """Return a column of facts beside key and value; None: their types have to be named."""
    kind = arrow_type(column.neutral)
    if column.field == EXPIRES and column.neutral == "timestamptz":
        times_ms = puts.rows["expire_time_ms"]
        if not ((times_ms > -MS_MAX) & (times_ms < MS_MAX)).all():
            return None
        return cast_exactly(pa.array(times_ms * 1000, pa.int64(), mask=times_ms == 0), kind)
    if column.field == PRIMARY:
        return pa.array(puts.is_primary, kind)
    return pa.nulls(len(puts), kind) if column.field == RAW else None
