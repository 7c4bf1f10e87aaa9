"""Keys of a lake's rows: how staged rows are laid out, and how keys are found in columns.

Keys are compared by the bytes of their values in the lake's types, as the fold compares them:
texts as they are, floats by value with both zeros equal, or by their bits in whole rows of a table
without a key. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.model import Relation
from penstock.ports.target import Layout

Ints = npt.NDArray[np.int64]

_NAN_64, _NAN_32 = 0x7FF8000000000000, 0x7FC00000


class LakeLayout(Layout):
    """Layout of folded rows on their way to the writer, in the log's types.

    Columns are the count; in a table with a key also the bitmap of unsent columns and the key that
    the row has in the lake; and the relation's columns. Names are numbers, because two columns may
    be called alike.

    Attributes:
        first: Place of the relation's first column.
    """

    def __init__(self, relation: Relation) -> None:
        """Derive the layout from the shape of the rows."""
        self.relation = relation
        kinds = [pa.int64()]
        if relation.key:
            kinds.append(pa.binary())
            kinds += [arrow_type(relation.columns[index].neutral) for index in relation.key]
        self.first = len(kinds)
        kinds += [arrow_type(column.neutral) for column in relation.columns]
        self.schema = pa.schema([(str(place), kind) for place, kind in enumerate(kinds)])

    def batch(
        self,
        counts: Ints,
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """Return one batch; a column given as None is all null."""
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(bitmaps)
            arrays += origin if origin is not None else [None] * len(self.relation.key)
        arrays += columns
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, kind.type) if values is None else _of_kind(values, kind.type)
                for values, kind in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )


def _of_kind(values: Any, kind: pa.DataType) -> Any:
    """Return values as a type; the fold joins long texts under a wider one."""
    return cast_exactly(values, kind)


def comparable(values: pa.Array, *, whole_rows: bool = False) -> pa.Array:
    """Return values whose bytes are equal if and only if the keys are.

    whole_rows: the values are images of rows, not keys: minus zero differs from zero.
    """
    kind = values.type
    if not pa.types.is_floating(kind):
        return values
    bits = pa.int64() if kind.equals(pa.float64()) else pa.int32()
    if not whole_rows:
        values = pc.add(values, pa.scalar(0, kind))  # -0.0 becomes 0.0
    nan = pa.scalar(_NAN_64 if kind.equals(pa.float64()) else _NAN_32, bits)
    return pc.if_else(pc.is_nan(values), nan, values.view(bits))


class _Sorted(Sequence[Any]):
    """Sorted values as Python objects, made one by one."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return self._values[place].as_py()


@dataclass(frozen=True, slots=True)
class _Level:
    """One column of the keys.

    Attributes:
        values: Its distinct values, sorted.
        combined: Sorted distinct numbers of the columns so far and this one; None for the first.
    """

    values: pa.Array
    combined: Ints | None


class KeySet:
    """Set of keys, numbered from 0, which finds its members among rows.

    Attributes:
        size: Number of distinct keys.
        numbers: For each given key its number.
    """

    def __init__(self, columns: Sequence[pa.Array], *, whole_rows: bool = False) -> None:
        """Number the keys.

        Args:
            columns: The key's columns, of the lake's types; keys may repeat.
            whole_rows: The keys are whole rows; see `comparable`.
        """
        self._whole_rows = whole_rows
        levels: list[_Level] = []
        numbers: Ints = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            column = self._comparable(column)
            values = pc.unique(column)
            values = values.take(pc.array_sort_indices(values))
            inside = pc.index_in(column, value_set=values).to_numpy().astype(np.int64)
            if not levels:
                levels.append(_Level(values, None))
                numbers = inside
                continue
            found, numbers = np.unique(numbers * len(values) + inside, return_inverse=True)
            levels.append(_Level(values, found))
        self.numbers = numbers
        self._levels = levels
        last = levels[-1]
        self.size = len(last.values) if last.combined is None else len(last.combined)
        first = levels[0].values
        self._first_are_plain = not pa.types.is_floating(columns[0].type)
        is_number = pa.types.is_integer(first.type) or pa.types.is_temporal(first.type)
        is_number = is_number and self._first_are_plain and not first.null_count
        self._first_numbers = _as_numbers(first) if is_number else None
        self._sieve: Sieve | None = None

    def _comparable(self, values: pa.Array) -> pa.Array:
        return comparable(values, whole_rows=self._whole_rows)

    def span(self, bounds: tuple[Any, Any] | None) -> tuple[int, int]:
        """Return the range of the first column's values that lie within bounds; all if None."""
        size = len(self._levels[0].values)
        if bounds is None or not self._first_are_plain or self._levels[0].values.null_count:
            return 0, size
        ordered = _Sorted(self._levels[0].values)
        try:
            low = bisect_left(ordered, bounds[0])
            high = bisect_left(ordered, bounds[1])
            return low, high + (high < size and ordered[high] == bounds[1])
        except TypeError:
            return 0, size  # values that cannot be compared exclude nothing

    def find(self, span: tuple[int, int], read: Callable[[int], pa.Array]) -> tuple[Ints, Ints]:
        """Return the places of rows whose keys are in the set, ascending, and the keys' numbers.

        Args:
            span: Range of the first column's values to look for.
            read: Returns the rows' values of a key column, by its place in the key. The later
                columns are not read if the first ones exclude all rows.
        """
        rows, numbers = self._find_first(span, read(0))
        for place, level in enumerate(self._levels[1:], start=1):
            if not len(rows):
                break
            assert level.combined is not None, "it is not the first"
            values = self._comparable(read(place)).take(pa.array(rows))
            inside, has_value = _places(values, level.values)
            rows, numbers = rows[has_value], numbers[has_value]
            wanted = numbers * len(level.values) + inside[has_value]
            at = np.searchsorted(level.combined, wanted)
            at[at == len(level.combined)] = 0
            is_member = level.combined[at] == wanted
            rows, numbers = rows[is_member], at[is_member]
        return rows, numbers

    def _find_first(self, span: tuple[int, int], values: pa.Array) -> tuple[Ints, Ints]:
        low, high = span
        if self._first_numbers is not None and not values.null_count:
            numbers = _as_numbers(values)
            found = _find_sorted(numbers, self._first_numbers[low:high])
            if found is not None:
                return found[0], found[1] + low
            if len(self._first_numbers) <= SIEVED_MAX:
                if self._sieve is None:
                    self._sieve = Sieve(self._first_numbers)
                return self._sieve.find(numbers)
        wanted = self._levels[0].values.slice(low, high - low)
        inside, has_value = _places(self._comparable(values), wanted)
        rows = np.flatnonzero(has_value)
        return rows, inside[rows] + low


SIEVED_MAX = 262_144
"""Number of keys above which a hash table of them is faster than a sieve."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of the golden ratio, so that hashes spread
_SLOTS_PER_KEY_BITS = 5


class Sieve:
    """Finder of a few numbers among many in any order, which looks closely at likely ones alone.

    A third of the cost of a hash table: most rows cost a multiplication and a look at one byte.
    """

    def __init__(self, wanted: Ints) -> None:
        """Mark the slots of the wanted numbers, which are sorted and distinct."""
        self._wanted = wanted.astype(np.int64)
        bits = max(1, len(wanted)).bit_length() + _SLOTS_PER_KEY_BITS
        self._shift = np.uint64(64 - bits)
        self._has_key = np.zeros(1 << bits, np.bool_)
        self._has_key[self._slots(self._wanted)] = True

    def _slots(self, numbers: Ints) -> Ints:
        hashes = numbers.view(np.uint64) * _FACTOR
        slots: Ints = (hashes >> self._shift).view(np.int64)
        return slots

    def find(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the rows that have a wanted number, ascending, and its place."""
        if not len(self._wanted):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        wide = numbers.astype(np.int64, copy=False)
        rows = np.flatnonzero(self._has_key[self._slots(wide)])
        likely = wide[rows]
        places = np.searchsorted(self._wanted, likely)
        places[places == len(self._wanted)] = 0
        is_wanted = self._wanted[places] == likely
        return rows[is_wanted], places[is_wanted]


def _places(values: pa.Array, wanted: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return for each value its place among the wanted ones, and whether it is there."""
    found = pc.index_in(values, value_set=wanted)
    has_value = found.is_valid().to_numpy(zero_copy_only=False)
    return found.fill_null(0).to_numpy().astype(np.int64), has_value


def _as_numbers(values: pa.Array) -> Ints:
    width = values.type.bit_width
    whole = pa.int64() if width == 64 else pa.int32() if width == 32 else pa.int16()
    numbers: Ints = values.view(whole).to_numpy()
    return numbers


def _find_sorted(values: Ints, wanted: Ints) -> tuple[Ints, Ints] | None:
    """Return rows and places of sorted numbers among sorted rows; None if rows are not sorted.

    Few keys in sorted rows cost a few comparisons each, in place of a look at every row.
    """
    if len(wanted) * 8 > len(values) or not (values[1:] >= values[:-1]).all():
        return None
    left = np.searchsorted(values, wanted, side="left")
    counts = np.searchsorted(values, wanted, side="right") - left
    places = np.repeat(np.arange(len(wanted)), counts)
    before = np.cumsum(counts) - counts
    rows = np.repeat(left - before, counts) + np.arange(len(places))
    return rows, places


# -- names of files --------------------------------------------------------------------------------

_TOKEN_DIGITS = 16


def vector_uuid(token: str, random: str) -> str:
    """Return the UUID that names a file of Delta's vectors: it begins with the token's digits.

    Args:
        token: Begins with at least 16 hexadecimal digits.
        random: 16 more.
    """
    digits = token[:_TOKEN_DIGITS] + random
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    return "-".join(parts)


def is_of_token(name: str, token: str) -> bool:
    """Return whether a file's name (without folders) says that it was written for a token."""
    if name.startswith(token):
        return True
    digits = name.removeprefix("deletion_vector_").replace("-", "")
    return name.startswith("deletion_vector_") and digits.startswith(token[:_TOKEN_DIGITS])
