"""Both readers of Ignite's bytes on one input: whether they agree, and the kind of input.

An input is a byte for its kind (a value, a segment, a file of binary_meta, values for columns), one
for the way of reading, and the bytes. Any difference, other exception, or value that is far larger
than its bytes is an AssertionError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from harness.ignite.recordings import files_of
from penstock.codec.ignite import _marshal, _wal, marshal, wal
from penstock.codec.ignite.cells import Cell, read_cells
from penstock.codec.ignite.changes import NONE
from penstock.codec.ignite.types import FIELD_TYPES, BinaryType, Types
from penstock.codec.ignite.values import BinaryObject, JavaList, JavaMap
from penstock.model import PenstockError

MODES = VALUE, SEGMENT, TYPE, CELLS = 0, 1, 2, 3
FORMS = (
    "other", "bool", "int8", "int16", "int32", "int64", "float32", "float64", "string", "number",
    "decimal", "uuid", "binary", "moment", "date", "time",
)  # fmt: skip
RECORDINGS = ("one", "full", "forms")
FORM_OF = {
    "byte": "int8", "short": "int16", "int": "int32", "long": "int64", "float": "float32",
    "double": "float64", "boolean": "bool", "String": "string", "UUID": "uuid", "Date": "moment",
    "byte[]": "binary", "decimal": "number", "Timestamp": "moment", "Time": "time",
}  # fmt: skip
TWIN = (wal.Walk, wal.Entry, wal.find_record)
KERNEL = (_wal.Walk, _wal.Entry, _wal.find_record)
KINDS = (1, 100, 101)
FIELDS = (
    "cache_id", "conflict_version", "counter", "expire_time_ms", "flags", "index", "near_version",
    "offset", "operation", "partition", "time_ms", "write_version", "key_bytes", "value_bytes",
    "has_value", "primary", "key_kind", "value_kind",
)  # fmt: skip
SCANNED = (
    "cache_id", "counter", "expire_time_ms", "flags", "offset", "operation", "partition", "time_ms",
    "key_kind", "value_kind",
)  # fmt: skip
CONTAINERS = (BinaryObject, JavaMap, list)


@cache
def type_files() -> dict[int, bytes]:
    """Return the files of binary_meta of all recordings, by type id."""
    found = {}
    for name in RECORDINGS:
        for path, data in files_of(name).items():
            if path.startswith("db/binary_meta/") and path.endswith(".bin"):
                found[int(path.rpartition("/")[2].removesuffix(".bin"))] = data
    return found


def all_types() -> Types:
    """Return the types of all recordings, each read on demand."""

    def metadata(type_id: int) -> BinaryType | None:
        data = type_files().get(type_id)
        return None if data is None else marshal.read_metadata(data)

    return Types(metadata, lambda type_id: f"class {type_id}" if type_id % 2 else None)


class Readers:
    """A decoder of each kind, on types of its own."""

    def __init__(self) -> None:
        twin, kernel = all_types(), all_types()
        self.types = (twin, kernel)
        made = _marshal.Decoder(kernel)
        self.decoders = lambda data, kind: marshal.decode(data, kind, twin), made.decode
        self.cells = lambda data, columns: read_cells(data, columns, twin), made.cells

    def forget(self, type_id: int) -> None:
        """Let both readers look the type up again."""
        for one in self.types:
            one.forget(type_id)


READERS = Readers()


def same_value(first: Any, second: Any) -> int:
    """Return the amount of content in both. Raises AssertionError if they differ, or share
    differently.

    Objects that are met several times are compared once, as values can be cyclic.
    """
    pairs: dict[int, int] = {}
    looked_at: set[int] = set()
    stack = [(first, second)]
    amount = 0
    while stack:
        one, other = stack.pop()
        assert type(one) is type(other), (one, other)
        if isinstance(one, CONTAINERS):
            known = pairs.setdefault(id(one), id(other))
            assert known == id(other)
            if id(one) in looked_at:
                continue
            looked_at.add(id(one))
            amount += 1
            stack += _children(one, other)
        elif isinstance(one, float):
            assert struct.pack("<d", one) == struct.pack("<d", other)
            amount += 8
        elif hasattr(one, "as_tuple"):
            assert one.as_tuple() == other.as_tuple()
            amount += len(one.as_tuple().digits) // 2
        else:
            assert one == other
            amount += len(one) if isinstance(one, bytes | str) else 1
    return amount


def _children(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(one, BinaryObject):
        for name in ("type_name", "type_id", "hash_code", "raw"):
            yield getattr(one, name), getattr(other, name)
        assert list(one.fields) == list(other.fields)
        assert one._names == other._names
        yield from zip(one.fields.values(), other.fields.values(), strict=True)
    elif isinstance(one, JavaMap):
        assert one.kind == other.kind
        yield from zip(
            (item for pair in one.pairs for item in pair),
            (item for pair in other.pairs for item in pair),
            strict=True,
        )
    else:
        if isinstance(one, JavaList):
            assert one.kind == other.kind
        yield from zip(one, other, strict=True)


def read(decode: Any, data: bytes, kind: int) -> tuple[Any, PenstockError | None]:
    """Return the value, or the error."""
    try:
        return decode(data, kind), None
    except PenstockError as error:
        return None, error


def assert_same_value(data: bytes, kind: int) -> tuple[object, ...]:
    """Check that both read the same, or refuse alike at the same place; return the
    kind of value.
    """
    (mine, error), (theirs, other) = (read(one, data, kind) for one in READERS.decoders)
    if error is not None or other is not None:
        assert type(error) is type(other), (error, other)
        assert error is not None
        assert other is not None
        assert (error.message, error.fields) == (other.message, other.fields)
        return type(error).__name__, _shape(str(error.fields.get("cause", "")))
    amount = same_value(mine, theirs)
    assert amount <= 64 * len(data) + 64, "a value is much larger than its bytes"
    return type(mine).__name__, data[:1], amount.bit_length()


def _shape(cause: str) -> str:
    return re.sub(r"-?\d+", "#", cause)


def walk_of(kernel: Any, data: Any, begin: int, told: list[object]) -> Any:
    """Return the changes of a segment; keys and values as they are in the log."""
    return kernel[0](
        data, number=0, name="0.wal", begin=begin, kind=kernel[1],
        decode=lambda raw, kind: (raw, kind), unreadable=told.append,
    )  # fmt: skip


def steps(data: Any, kernel: Any, reads: list[int]) -> list[object]:
    """Return the result of each step of a walk, to its end or error. reads: begin, entries to skip,
    ...
    """
    told: list[object] = []
    try:
        wal.check_header(data, 0, "0.wal")
        found = walk_of(kernel, data, reads[0], told)
        told.append(found.skip(reads[1]))
        for at, entry in enumerate(found):
            told.append([getattr(entry, name) for name in FIELDS])
            told.append((entry.key, entry.value))
            if at in reads:
                told.append((found.place, found.is_drained, found.count, found.unreadable))
        told.append((found.place, found.is_drained, found.count, found.unreadable))
    except PenstockError as error:
        told.append((type(error).__name__, error.message, error.fields))
    return told


def records(data: Any, kernel: Any, kinds: frozenset[int]) -> list[object]:
    """Return records of some kinds, to the end or an error."""
    told: list[object] = []
    at = wal.HEADER_BYTES
    try:
        while True:
            record, at = kernel[2](data, at, 0, kinds, "0.wal")
            told.append((record, at))
            if record is None:
                return told
    except PenstockError as error:
        told.append((type(error).__name__, error.message, error.fields))
    return told


def scan_whole(data: Any, scan: Any, begin: int, checked: int) -> list[Any]:
    """Return all of a segment at once, or the error."""
    try:
        wal.check_header(data, 0, "0.wal")
        found = scan(data, number=0, name="0.wal", begin=begin, checked=checked)
    except PenstockError as error:
        return [type(error).__name__, error.message, error.fields]
    return [{name: one.tolist() for name, one in found.rows.items()}, *found[1:]]


def one_by_one(data: Any, begin: int) -> list[Any]:
    """Return the entries of a walk and its state at the end, or the error."""
    try:
        wal.check_header(data, 0, "0.wal")
        walk = walk_of(TWIN, data, begin, [])
        return [[shown_entry(one) for one in walk], walk.count, walk.time_ms, walk.place]
    except PenstockError as error:
        return [type(error).__name__, error.message, error.fields]


def assert_same_scan(data: Any, begin: int) -> None:
    """Check that a scan equals a walk, even if checksums were computed before."""
    found = scan_whole(data, wal.scan, begin, 0)
    assert found == scan_whole(data, _wal.scan, begin, 0)
    end = _wal.checked_end(data, 0, max(begin, wal.HEADER_BYTES))
    wanted = one_by_one(data, begin)
    if wanted and isinstance(wanted[0], list):
        assert end == found[7]
        rows = [
            dict(zip(found[0], row, strict=True)) for row in zip(*found[0].values(), strict=True)
        ]
        found_too = [[shown_row(row, data) for row in rows], *found[4:7]]
        assert found_too == wanted
    else:
        assert found == wanted
    for scan in (wal.scan, _wal.scan):
        assert scan_whole(data, scan, begin, end) == found


def shown_row(row: dict[str, Any], data: Any) -> list[object]:
    """Return the content of a row of a scan."""
    found: list[object] = [row[name] for name in SCANNED]
    for name in ("near", "write"):
        numbers = [row[f"{name}_{one}"] for one in ("topology", "node", "order")]
        found.append(wal.version_of(*numbers) if row[name] else None)
    for side in ("key", "value"):
        at, length = row[f"{side}_at"], row[f"{side}_length"]
        found.append(None if length == NONE else bytes(data[at : at + length]))
    return found


def shown_entry(entry: Any) -> list[object]:
    """Return the content of an entry, in the same order."""
    found: list[object] = [getattr(entry, name) for name in SCANNED]
    found += [entry.near_version, entry.write_version]
    return [*found, entry.key_bytes, entry.value_bytes]


def assert_same_segment(data: Any, how: int) -> tuple[object, ...]:
    """Check the walk, its values, and single kinds of records."""
    reads = [(how & 3) * 40 if how > 191 else 0, how >> 2 & 3, how >> 4 & 7]
    mine, theirs = steps(data, TWIN, reads), steps(data, KERNEL, reads)
    assert mine == theirs
    assert_same_scan(data, reads[0])
    for kinds in (wal.MANAGER_KINDS, wal.ENCRYPTED_KINDS):
        assert records(data, TWIN, kinds) == records(data, KERNEL, kinds)
    seen = set()
    for step in mine:
        if isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], tuple):
            for one in step:
                if one is not None:
                    seen.add(str(assert_same_value(*one)[:2]))
    last = mine[-1]
    error = _shape(str(last[2].get("cause"))) if isinstance(last, tuple) and len(last) == 3 else ""
    return len(mine).bit_length(), error, max(seen, default="")


def assert_same_type(data: bytes) -> tuple[object, ...]:
    """Check that a file of binary_meta is a type or a typed error."""
    try:
        found = marshal.read_metadata(data)
    except PenstockError as error:
        return type(error).__name__, _shape(str(error.fields.get("cause", "")))
    assert isinstance(found, BinaryType)
    return "type", found.is_enum, len(found.names), len(found.schemas)


def items_of(data: bytes) -> list[bytes | None]:
    """Return values, each preceded by two bytes of its length; 65,535 means none."""
    found: list[bytes | None] = []
    at = 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from("<H", data, at)
        found.append(None if length == 0xFFFF else data[at + 2 : at + 2 + length])
        at += 2 + (0 if length == 0xFFFF else length)
    return found


def columns_of(items: list[bytes | None], how: int) -> tuple[Cell, ...]:
    """Return columns for these values: of the first object's type, or one for separate values."""
    first = next((one for one in items if one), b"")
    if first[:1] != b"\x67" or len(first) < 20:
        form = FORM_OF.get(FIELD_TYPES.get(first[0] if first else 0, "")) if how < 128 else None
        return (Cell("", form or FORMS[how % len(FORMS)], 9, 2),)
    known = READERS.types[0].find(struct.unpack_from("<i", first, 4)[0])
    fields = known.fields if known else {"a": "int"}
    columns = []
    for at, (name, shown) in enumerate(sorted(fields.items())):
        form = FORM_OF.get(shown or "") if (how << (at & 3)) & 128 == 0 else None
        form = form or FORMS[(how * (at + 7) >> 1) % len(FORMS)]
        columns.append(Cell(name, form, 20 if at & 1 else 9, 4))
    return tuple(columns[: len(columns) - (how == 255)])


def assert_same_cells(items: list[bytes | None], columns: tuple[Cell, ...]) -> tuple[object, ...]:
    """Check that both give the same columns, or none, with valid arrays and decoded lists."""
    mine, theirs = (read(items, columns) for read in READERS.cells)
    assert (mine is None) == (theirs is None), (mine, theirs)
    if mine is None or theirs is None:
        return (None,)
    assert [one.type_id for one in mine[1]] == [one.type_id for one in theirs[1]]
    kinds = set()
    for one, other, column in zip(mine[0], theirs[0], columns, strict=True):
        assert type(one) is type(other), (column, one, other)
        if isinstance(one, pa.Array):
            other.validate(full=True)
            assert one.type == other.type
            assert one.null_count == other.null_count
            if pa.types.is_timestamp(one.type):  # Python's end in the year 9999
                one, other = one.cast(pa.int64()), other.cast(pa.int64())
            same_value(one.to_pylist(), other.to_pylist())
            kinds.add(column.form)
        else:
            same_value(one, other)
            kinds.add("list")
    return min(len(items), 3), tuple(sorted(kinds))


def assert_same(case: bytes, segment: Any = bytes) -> tuple[object, ...]:
    """Return the kind of an input's behaviour. segment: makes a walk's data from the bytes."""
    mode, how, data = case[0] % len(MODES), case[1], case[2:]
    if mode == CELLS:
        items = items_of(data)
        return mode, *assert_same_cells(items, columns_of(items, how))
    if mode == SEGMENT:
        return mode, *assert_same_segment(segment(data), how)
    if mode == TYPE:
        return mode, *assert_same_type(data)
    if how & 64 and len(data) > 8:
        READERS.forget(struct.unpack_from("<i", data, 4)[0])
    return mode, *assert_same_value(data, KINDS[how % 3])
