"""Z85, the text form of bytes in Delta's metadata: five characters for four bytes.

Delta pads the bytes with zeros to a multiple of four, and has their number beside the text.
"""

from __future__ import annotations

import numpy as np

from penstock.codec.lake.errors import corrupt

_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = np.frombuffer(_ALPHABET, np.uint8)
_NO_DIGIT = 255
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_VALUES[_DIGITS] = np.arange(len(_ALPHABET))
_WEIGHTS = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
_WORD, _GROUP = 4, 5


def encode_z85(data: bytes) -> str:
    """Return the text of some bytes, padded with zeros to a multiple of four."""
    padded = data + bytes(-len(data) % _WORD)
    words = np.frombuffer(padded, ">u4").astype(np.uint64)
    digits = words[:, None] // _WEIGHTS % np.uint64(85)
    return _DIGITS[digits.astype(np.uint8)].tobytes().decode("ascii")


def decode_z85(text: str, size: int) -> bytes:
    """Return the first `size` bytes that a text stands for. Raises DeletionCorrupt."""
    values = _VALUES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    if len(values) % _GROUP or (values == _NO_DIGIT).any():
        raise corrupt("a Z85 text", "it has other characters, or another number of them")
    words = (values.reshape(-1, _GROUP).astype(np.uint64) * _WEIGHTS).sum(axis=1, dtype=np.uint64)
    if (words >> np.uint64(32)).any():
        raise corrupt("a Z85 text", "a group of characters is above 32 bits")
    data: bytes = words.astype(">u4").tobytes()
    if not len(data) - _WORD < size <= len(data):
        raise corrupt("a Z85 text", f"it has {len(data)} bytes, expected {size}")
    return data[:size]
