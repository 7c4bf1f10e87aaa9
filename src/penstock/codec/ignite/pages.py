"""Parse pages of a scan that a node's thin client protocol sends into keys and values.

The bytes are those of the same entry in the log, so one decoder reads both. Pure. Not here: the
connection (`engines/ignite/thin.py`), decoding (`marshal.py`). Source: Apache Ignite 2.17,
ClientCacheEntryQueryCursor, BinaryWriterExImpl.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.codec.ignite.errors import bad_value
from penstock.codec.ignite.marshal import DEPTH_MAX, NULL, OBJ, OBJECT, OPTIMIZED, REGULAR

WRAPPED = 27
_STRING, _BYTES, _CLASS, _PROXY, _ENUM_ARRAY, _ARRAY, _LIST, _MAP = 9, 12, 32, 35, 29, 23, 24, 25
# Bytes of what has no length of its own, with the code; 102: a handle.
_FIXED = {
    1: 2, 2: 3, 3: 5, 4: 9, 5: 5, 6: 9, 7: 3, 8: 2, 10: 17, 11: 9, 33: 13, 36: 9, NULL: 1, 102: 5,
}  # fmt: skip
# Bytes of each item behind a count, with what is around them: (around, each).
_COUNTED = {
    _STRING: (5, 1), _BYTES: (5, 1), 13: (5, 2), 14: (5, 4), 15: (5, 8), 16: (5, 4), 17: (5, 8),
    18: (5, 2), 19: (5, 1), WRAPPED: (9, 1), OPTIMIZED: (5, 1),
}  # fmt: skip
_OF_OBJECTS = (20, 21, 22, 31, 34, 37)
_ENUMS = (28, 38)
_INT = struct.Struct("<i")
_LENGTH_AT = 12  # of a binary object

Entry = tuple[int, bytes, int, bytes]
"""Kind and bytes of a key, kind and bytes of its value."""


def entries_of(page: bytes, at: int) -> tuple[list[Entry], int]:
    """Return the entries of a page, whose count is at this place, and the place after the entries.

    Raises ValueBroken.
    """
    (count,) = _INT.unpack_from(page, at)
    at += 4
    found = []
    for _ in range(count):
        key_kind, key, at = _take(page, at)
        value_kind, value, at = _take(page, at)
        found.append((key_kind, key, value_kind, value))
    return found, at


def _take(page: bytes, at: int) -> tuple[int, bytes, int]:
    """Return a value's kind, its bytes in the log's form, and the place after it."""
    end = end_of(page, at)
    if page[at] == WRAPPED:
        (start,) = _INT.unpack_from(page, end - 4)
        if start == 0:
            return OBJECT, bytes(page[at + 5 : end - 4]), end
    return REGULAR, bytes(page[at:end]), end


def end_of(data: bytes, at: int, depth: int = 0) -> int:
    """Return where the marshalled value that begins here ends. Raises ValueBroken."""
    if depth > DEPTH_MAX:
        raise bad_value(at, f"more than {DEPTH_MAX} values within each other")
    try:
        end = _end(data, at, depth)
    except (struct.error, IndexError):
        raise bad_value(at, f"the page ends within it, at {len(data)}") from None
    if not at < end <= len(data):
        raise bad_value(at, f"it would end at {end} of {len(data)}")
    return end


def _end(data: bytes, at: int, depth: int) -> int:
    code = data[at]
    fixed = _FIXED.get(code)
    if fixed is not None:
        return at + fixed
    if code in _COUNTED:
        around, each = _COUNTED[code]
        return at + around + _count(data, at + 1) * each
    if code == OBJ:
        return at + _count(data, at + _LENGTH_AT)
    if code == 30:
        return at + 9 + _count(data, at + 5)
    walk = _WALKS.get(code)
    if walk is None:
        raise bad_value(at, f"a value of type {code}")
    return walk(data, at, depth)


def _count(data: bytes, at: int) -> int:
    (count,) = _INT.unpack_from(data, at)
    if not 0 <= count <= len(data) - at:
        raise bad_value(at, f"a count of {count}")
    return int(count)


def _behind(data: bytes, at: int, count: int, depth: int) -> int:
    for _ in range(count):
        at = end_of(data, at, depth + 1)
    return at


def skip_type_id(data: bytes, at: int) -> int:
    """Return the offset after the type id, which is followed by a class name if it is 0."""
    (type_id,) = _INT.unpack_from(data, at)
    return at + 4 if type_id else end_of(data, at + 4)


def _objects(data: bytes, at: int, depth: int) -> int:
    return _behind(data, at + 5, _count(data, at + 1), depth)


def _array(data: bytes, at: int, depth: int) -> int:
    at = skip_type_id(data, at + 1)
    return _behind(data, at + 4, _count(data, at), depth)


def _list(data: bytes, at: int, depth: int) -> int:
    return _behind(data, at + 6, _count(data, at + 1), depth)


def _map(data: bytes, at: int, depth: int) -> int:
    return _behind(data, at + 6, 2 * _count(data, at + 1), depth)


def _enum(data: bytes, at: int, _: int) -> int:
    return skip_type_id(data, at + 1) + 4


def _class(data: bytes, at: int, _: int) -> int:
    return skip_type_id(data, at + 1)


def _proxy(data: bytes, at: int, depth: int) -> int:
    count = _count(data, at + 1)
    at += 5
    for _ in range(count):
        at = skip_type_id(data, at)
    return end_of(data, at, depth + 1)


_WALKS: dict[int, Callable[[bytes, int, int], int]] = {
    **dict.fromkeys(_OF_OBJECTS, _objects),
    **dict.fromkeys(_ENUMS, _enum),
    _ARRAY: _array,
    _ENUM_ARRAY: _array,
    _LIST: _list,
    _MAP: _map,
    _CLASS: _class,
    _PROXY: _proxy,
}
