"""Keys of any types as small dense numbers, so that the fold compares numbers only.

Pure. Equality is that of the value's kept form: text by text, floats by value with both zeros
one (as an index has them) or, for whole rows, by their bits. A database that compares more
loosely (citext, 1.0 = 1.00) sees such a pair as a key change, which folds to a delete and an
upsert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

TEXT_BYTES_MAX = 2**30  # Arrow's plain strings end at 2 GiB


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """Keys numbered 0 to size - 1.

    after, before: the codes of the keys given as such. columns: all keys given, those of after
    first. first: for each code where in columns it stands.
    """

    size: int
    after: Ints
    before: Ints
    columns: tuple[Any, ...]
    first: Ints

    def values(self, codes: Ints) -> list[Any]:
        """The key columns for some codes; null for -1."""
        place = np.where(codes >= 0, self.first[codes], 0) if self.size else codes
        index = pa.array(place, mask=codes < 0)
        return [column.take(index) for column in self.columns]

    def order(self, codes: Ints) -> Ints | None:
        """Where in codes the keys stand from the smallest to the greatest; None: they do already.

        The order is Arrow's: of texts by their bytes.
        """
        columns = self.values(codes)
        if len(columns) == 1 and pa.types.is_integer(columns[0].type):
            numbers = columns[0].to_numpy()
            if (numbers[1:] >= numbers[:-1]).all():
                return None
            return np.argsort(numbers, kind="stable")
        if any(pa.types.is_null(column.type) for column in columns):
            return None
        names = [str(place) for place in range(len(columns))]
        table = pa.table(columns, names=names)
        found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
        order = found.to_numpy().astype(np.int64)
        return None if (order == np.arange(len(order))).all() else order

    def copies(self) -> Ints:
        """Per code: how often it stands in after less how often it stands in before."""
        plus = np.bincount(self.after, minlength=self.size)
        return plus - np.bincount(self.before, minlength=self.size)


def encode(
    after: list[list[Any]], before: list[list[Any]], *, whole_rows: bool = False
) -> KeyCodes:
    """Number the distinct keys. after, before: for each key column the arrays of its values.

    whole_rows: these are images of rows, not keys: minus zero is another value than zero.
    """
    columns = tuple(_joined(a + b) for a, b in zip(after, before, strict=True))
    split = sum(len(part) for part in after[0])
    codes, size = _column_codes(columns[0], whole_rows)
    for column in columns[1:]:
        more, count = _column_codes(column, whole_rows)
        if size * count >= 2**62:
            codes, size = _compact(codes)
        codes, size = codes * count + more, size * count
    if len(columns) > 1:
        codes, size = _compact(codes)
    first = np.zeros(size, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return KeyCodes(size, codes[:split], codes[split:], columns, first)


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return pa.nulls(0)
    kind = parts[0].type
    if sum(part.nbytes for part in parts) > TEXT_BYTES_MAX:
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)
        parts = [part.cast(wide) for part in parts]
    return pa.concat_arrays(parts)


def _column_codes(column: Any, whole_rows: bool) -> tuple[Ints, int]:
    if pa.types.is_floating(column.type):
        if whole_rows:
            column = column.view(pa.int64() if column.type == pa.float64() else pa.int32())
        else:
            column = pc.add(column, pa.scalar(0, column.type))  # -0.0 becomes 0.0
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), 1
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))


def _compact(codes: Ints) -> tuple[Ints, int]:
    encoded = pa.array(codes).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
