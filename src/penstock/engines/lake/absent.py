"""Rows with columns that the source did not send, completed with the values of their old rows.

Old values are read in the workers that find the old row, at exactly its position. Not here: which
row is the old one (`lookup.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engines.lake.format import LakeColumn
from penstock.engines.lake.writer import BITMAP, row_field, unpack_bitmaps

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Old:
    """Values of some old rows.

    Attributes:
        rows: Numbers of the open rows that they complete.
        values: By index of the column in the relation.
    """

    rows: Ints
    values: Mapping[int, pa.Array]


class OpenRows:
    """Open rows of a table's staged parts, and the old values that were found for them."""

    def __init__(self, rows: pa.Table, columns: Sequence[LakeColumn | None]) -> None:
        """Read which columns are missing where.

        Args:
            rows: Content of the parts' side files.
            columns: See `WriterSpec`.
        """
        self._rows = rows
        self._columns = columns
        self._found: list[_Old] = []
        self._is_done = np.zeros(rows.num_rows, np.bool_)
        self._is_absent = read_bitmaps(rows, len(columns))
        needed = np.flatnonzero(self._is_absent.any(axis=0)).tolist() if rows.num_rows else []
        self._needed = [index for index in needed if columns[index] is not None]

    @property
    def completed_count(self) -> int:
        """Number of rows whose old row was found."""
        return int(self._is_done.sum())

    def take(self, numbers: Ints, at: Ints, read: Callable[[LakeColumn], pa.Array]) -> None:
        """Keep old values of some open rows.

        Args:
            numbers: Numbers of the open rows.
            at: For each its old row's place among the rows that `read` returns.
            read: Returns the values of a column.
        """
        _, first = np.unique(numbers, return_index=True)  # a key twice in the lake counts once
        numbers, at = numbers[first], at[first]
        is_new = ~self._is_done[numbers]
        numbers, at = numbers[is_new], at[is_new]
        if not len(numbers):
            return
        self._is_done[numbers] = True
        values = {}
        for index in self._needed:
            column = self._columns[index]
            if column is not None and self._is_absent[numbers, index].any():
                values[index] = read(column).take(pa.array(at))
        self._found.append(_Old(numbers, values))

    def complete(self) -> list[pa.Array]:
        """Return the columns of all completed rows, in the order of the open rows."""
        numbers = np.flatnonzero(self._is_done)
        rows = self._rows.take(pa.array(numbers))
        return [
            self._complete_column(rows, numbers, index)
            for index, column in enumerate(self._columns)
            if column is not None
        ]

    def _complete_column(self, rows: pa.Table, numbers: Ints, index: int) -> pa.Array:
        own = rows.column(row_field(index)).combine_chunks()
        if isinstance(own, pa.ChunkedArray):
            own = pa.concat_arrays(own.chunks)
        is_absent = self._is_absent[numbers, index]
        if not is_absent.any():
            return own
        have = [one for one in self._found if index in one.values]
        old = pa.concat_arrays([one.values[index] for one in have])
        place = np.full(self._rows.num_rows, -1, np.int64)
        place[np.concatenate([one.rows for one in have])] = np.arange(len(old))
        taken = old.take(pa.array(np.where(is_absent, place[numbers], 0)))
        return pc.if_else(pa.array(is_absent), taken, own)


def read_bitmaps(rows: pa.Table, column_count: int) -> npt.NDArray[np.bool_]:
    """Return one row of flags per open row: true if a column was not sent."""
    return unpack_bitmaps(rows.column(BITMAP), column_count)
