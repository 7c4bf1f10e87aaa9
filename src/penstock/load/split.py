"""Select the rows of a table's frames that belong to a bucket, before they are folded. Pure.

A bucket has the rows whose key has its hash; the rows of one key are in many frames. `Bucket` reads
all frames of the table. Where tasks share a disk, `shared_rows.py` divides each frame once for all
buckets, by the same hashes. Folding, ordering and sending are done once for each row, for any
number of buckets.

A row that changes its key belongs to two keys. All keys that are connected in this way belong to
one bucket, so each fold sees all changes of a row. Equal keys (see `fold.py`) have equal hashes.
Keys that only share a hash share a bucket, which is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Op, Relation

Hashes = npt.NDArray[np.uint64]

_MULTIPLIERS = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))
_WORD_BYTES = 8
# What is kept of a word of which so many bytes belong to the text.
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)


class Bucket:
    """The rows of one bucket, frame by frame; iteration can be repeated.

    frames: in gsn order, repeatable. changes_keys: whether a row may have different keys before and
    after; then all frames are read once more, in advance.
    """

    def __init__(
        self,
        relation: Relation,
        frames: Iterable[pa.RecordBatch],
        *,
        number: int,
        count: int,
        changes_keys: bool,
    ) -> None:
        """Keep the frames. number: the bucket's, from 0. count: number of buckets."""
        self._relation = relation
        self._frames = frames
        self._number = number
        self._count = count
        self._links = Links(
            [
                find_changed(*key_hashes(relation, frame))
                for frame in (frames if changes_keys else ())
            ]
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield our rows of each frame, possibly none."""
        for frame in self._frames:
            yield frame.filter(pa.array(self._is_ours(frame)))

    def _is_ours(self, frame: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        hashes = self._links.resolve(key_hashes(self._relation, frame)[1])
        ours: npt.NDArray[np.bool_] = hashes % np.uint64(self._count) == self._number
        return ours


def key_hashes(relation: Relation, frame: pa.RecordBatch) -> tuple[Hashes, Hashes]:
    """Return each row's hashes of its key before and after; equal if only one is known."""
    op = frame.column("op").to_numpy()
    after, before = frame.column("after"), frame.column("before")
    key = relation.key or tuple(range(len(relation.columns)))
    destination = _hashes([after.field(index) for index in key])
    if not set(key) <= set(relation.before):
        return destination, destination
    has_before = np.asarray(before.is_valid())
    if not has_before.any():
        return destination, destination
    images = [before.field(relation.before.index(index)) for index in key]
    origin = np.where(has_before, _hashes(images), destination)
    return origin, np.where(op == Op.DELETE, origin, destination)


def find_changed(origin: Hashes, destination: Hashes) -> Hashes:
    """Return the hashes of the keys before and after those changes that change a key."""
    changed = origin != destination
    return np.stack([origin[changed], destination[changed]])


class Links:
    """Keys that changed into each other, directly or in several steps, and so belong together.

    Attributes:
        hashes: of such keys, ascending.
    """

    def __init__(self, changed: Sequence[Hashes]) -> None:
        """Connect keys. changed: see `find_changed`."""
        self.hashes = self._roots = np.empty(0, np.uint64)
        if not sum(pair.shape[1] for pair in changed):
            return
        self.hashes, numbers = np.unique(np.concatenate(changed, axis=1), return_inverse=True)
        left, right = numbers.reshape(2, -1)
        root = np.arange(len(self.hashes))
        while True:
            low = np.minimum(root[left], root[right])
            found = root.copy()
            np.minimum.at(found, root[left], low)
            np.minimum.at(found, root[right], low)
            found = found[found]
            if (found == root).all():
                break
            root = found
        self._roots = self.hashes[root]

    def resolve(self, hashes: Hashes) -> Hashes:
        """Return for each key's hash the hash that all keys have that belong together with it."""
        if not len(self.hashes):
            return hashes
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self._roots[at], hashes)

    def cross(self, count: int) -> bool:
        """Return whether keys belong together whose own hashes are of different buckets."""
        divisor = np.uint64(count)
        return bool((self.hashes % divisor != self._roots % divisor).any())


# --- hashes -------------------------------------------------------------------------------------


def _hashes(columns: list[Any]) -> Hashes:
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = _mix(found, _numbers(column))
    return found


def _mix(one: Hashes, other: Hashes) -> Hashes:
    """Return one hash from two, so that a small difference of either becomes a large one."""
    result = (one ^ other) * _MULTIPLIERS[0]
    result ^= result >> np.uint64(32)
    result *= _MULTIPLIERS[1]
    result ^= result >> np.uint64(29)
    return result


def _numbers(column: Any) -> Hashes:
    """Return a number for each value, equal for values that a fold considers equal; 0 for null."""
    if not len(column) or pa.types.is_null(column.type):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = _of_floats(column)
    elif _is_text(kind):
        numbers = _of_texts(column)
    elif _is_fixed(kind):
        numbers = _of_bytes(column, kind.bit_width // 8)
    else:
        return np.zeros(len(column), np.uint64)  # a type that no key has
    if not column.null_count:
        return numbers
    return np.where(np.asarray(column.is_valid()), numbers, np.uint64(0))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    )


def _is_fixed(kind: pa.DataType) -> bool:
    tests = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _of_floats(column: Any) -> Hashes:
    """Return the bits of floats, equal for both zeros, and for all NaN."""
    values = pc.fill_null(column, 0).to_numpy().astype(np.float64) + 0.0
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)


def _of_bytes(column: Any, width: int) -> Hashes:
    data = np.frombuffer(column.buffers()[1], np.uint8)
    rows = data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
    if width % _WORD_BYTES:
        padded = np.zeros((len(column), -(-width // _WORD_BYTES) * _WORD_BYTES), np.uint8)
        padded[:, :width] = rows
        rows = padded
    words = rows.view(np.uint64)
    found = words[:, 0]
    for place in range(1, words.shape[1]):
        found = _mix(found, words[:, place])
    return found


def _of_texts(column: Any) -> Hashes:
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32).astype(np.int64)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _WORD_BYTES, np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(buffers[2], np.uint8)[first:last]
    # A word may begin at any byte.
    words: Hashes = np.ndarray(last - first + 1, np.uint64, data, strides=(1,))
    lengths = np.diff(offsets)
    found = lengths.astype(np.uint64)
    rows, places, left = np.arange(len(column)), offsets[:-1] - first, lengths
    while len(rows := rows[more := left > 0]):
        places, left = places[more], left[more]
        part = words[places] & _MASKS[np.minimum(left, _WORD_BYTES)]
        found[rows] = _mix(found[rows], part)
        places, left = places + _WORD_BYTES, left - _WORD_BYTES
    return found
