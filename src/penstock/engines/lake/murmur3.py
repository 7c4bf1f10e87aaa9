"""Hashes of many values at once: Murmur3 of 32 bits with seed 0, by which Iceberg fills buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADDED = np.uint32(0xE6546B64)
_BLOCK = 4


def hash_longs(values: npt.NDArray[np.int64]) -> Hashes:
    """Return the hash of each number, as 8 bytes with the lowest first."""
    words = np.ascontiguousarray(values, "<i8").view("<u4").reshape(-1, 2)
    return _hash_words(words, np.empty((len(words), 0), np.uint8), 8)


def hash_bytes(values: Sequence[bytes]) -> Hashes:
    """Return the hash of each value."""
    hashes = np.empty(len(values), np.uint32)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(values):
        by_length[len(value)].append(number)
    for length, numbers in by_length.items():
        joined = b"".join(values[number] for number in numbers)
        rows = np.frombuffer(joined, np.uint8).reshape(len(numbers), length)
        whole = length - length % _BLOCK
        words = np.ascontiguousarray(rows[:, :whole]).view("<u4")
        hashes[numbers] = _hash_words(words.reshape(len(numbers), -1), rows[:, whole:], length)
    return hashes


def _hash_words(words: npt.NDArray[np.uint32], rest: npt.NDArray[np.uint8], length: int) -> Hashes:
    """Return the hashes of values of one length. rest: their last bytes, fewer than a word."""
    hashes = np.zeros(len(words), np.uint32)
    for place in range(words.shape[1]):
        hashes ^= _mix(words[:, place])
        hashes = _rotate(hashes, 13) * np.uint32(5) + _ADDED
    if rest.shape[1]:
        last = np.zeros(len(words), np.uint32)
        for place in range(rest.shape[1]):
            last |= rest[:, place].astype(np.uint32) << np.uint32(8 * place)
        hashes ^= _mix(last)
    hashes ^= np.uint32(length)
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _mix(words: npt.NDArray[np.uint32]) -> Hashes:
    return _rotate(words * _C1, 15) * _C2


def _rotate(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
