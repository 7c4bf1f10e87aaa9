"""Parse segments of Ignite's write-ahead log into changes. Plain twin of `_wal.pyx`.

Only data records are parsed. Of all others, length, place and checksum are checked. Everything is
little-endian, as nodes on x86 and ARM write it. Not here: files (`engines/ignite`), and the
contents of keys and values (`marshal.py`). Source: Apache Ignite 2.17, RecordV2Serializer,
RecordDataV1Serializer, RecordDataV2Serializer.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from penstock.codec.ignite.changes import NONE, PRIMARY, Rows, fields
from penstock.codec.ignite.errors import make_broken, make_unsupported

try:
    from penstock.codec.ignite._wal import Entry as _Entry
    from penstock.codec.ignite._wal import Walk as _Walk
    from penstock.codec.ignite._wal import checked_end as _checked_end
    from penstock.codec.ignite._wal import find_record as _find_record
    from penstock.codec.ignite._wal import scan as _scan
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.ignite._wal":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

HEADER_BYTES = 29
RECORD_BYTES_MIN = 21  # type, segment, offset, length, checksum
HEADER_KIND = 4
SWITCH_KIND = 40
DATA_KINDS = frozenset({70, 78})  # DATA_RECORD_V2, CDC_DATA_RECORD
MANAGER_KIND, MANAGER_STOP_KIND = 79, 80
MANAGER_KINDS = frozenset({MANAGER_KIND, MANAGER_STOP_KIND})
RESENT_KIND = 78
TREE_KINDS = frozenset({59})  # the root of a new B+ tree
# Only a node with the key reads the content. Those of 52 and 63 are of pages: no changes of keys.
ENCRYPTED_KINDS = frozenset({52, 53, 63, 64, 71})
ENCRYPTED_DATA_KINDS = frozenset({53, 64, 71})
KIND_MAX = 82
MAGIC, MAGIC_COMPACTED = 0xB0D045ACE7ED045A, 0x4E07AE0E573A694E
SERIALIZER = 2
CREATE, UPDATE, DELETE, TRANSFORM = 1, 2, 3, 4
PRELOAD, FROM_STORE = 2, 4

_HEADER = struct.Struct("<BqiQiI")
_RECORD = struct.Struct("<Bqii")
_ENTRIES = struct.Struct("<iq")
_KEY = struct.Struct("<iib")
_TAIL = struct.Struct("<iqqB")
_VERSION = struct.Struct("<iiq")
_MANAGER = struct.Struct("<qiii")
_ENCRYPTED = struct.Struct("<Bii")
_TREE = struct.Struct("<iq")
# A group's first tree, of its indexes: page 2 of partition 65535, which is theirs.
_FIRST_PAGE = 2 << 48 | 0xFFFF << 32 | 2

_WALKED = DATA_KINDS | ENCRYPTED_DATA_KINDS
ENDS = "an entry continues after the end of its record"


class Version(NamedTuple):
    """Version of a key's change; a later change has a greater version."""

    topology: int
    order: int
    node_order: int
    data_center: int


class Place(NamedTuple):
    """A place in the log: the segment, the offset of a record, and an entry of the record."""

    segment: int
    offset: int
    entry: int


class Record(NamedTuple):
    """Place of a record.

    Attributes:
        kind: its number.
        length_bytes: with type and checksum.
    """

    offset: int
    length_bytes: int
    kind: int


def check_header(data: Any, number: int, name: str) -> None:
    """Check the first record of a segment. Raises WalBroken, WalUnsupported."""
    if len(data) < HEADER_BYTES:
        raise make_broken(name, 0, f"it has {len(data)} bytes, and its header has {HEADER_BYTES}")
    kind, actual, offset, magic, version, checksum = _HEADER.unpack_from(data)
    if magic == MAGIC_COMPACTED:
        raise make_unsupported(name, 0, "it is a compacted segment")
    if kind != HEADER_KIND + 1 or magic != MAGIC:
        raise make_broken(name, 0, "it does not begin with the header of a segment")
    if checksum != crc(data[: HEADER_BYTES - 4]):
        raise make_broken(name, 0, "the checksum of its header is wrong")
    if version != SERIALIZER:
        raise make_unsupported(name, 0, f"serializer version {version}, not {SERIALIZER}")
    if actual != number or offset:
        raise make_broken(name, 0, f"its header is that of segment {actual}, offset {offset}")


def crc(data: Any) -> int:
    """Return the checksum that Ignite writes: CRC-32 without its last inversion."""
    return zlib.crc32(data) ^ 0xFFFFFFFF


def find_record(
    data: Any, at: int, number: int, kinds: frozenset[int], name: str, checked: int = 0
) -> tuple[Record | None, int]:
    """Return the next record of these kinds from an offset on, and the end of the read part.

    The end is that of the last record, even if none was found. For `checked` see checked_end().
    Raises WalBroken, WalUnsupported.
    """
    end = len(data)
    while at < end:
        first = data[at]
        if first in (0, SWITCH_KIND + 1):
            break
        kind = first - 1
        if kind > KIND_MAX:
            raise make_unsupported(name, at, f"an unknown record of type {kind}")
        if end - at < RECORD_BYTES_MIN:
            raise make_broken(name, at, "the file ends inside a record")
        _, segment, offset, length = _RECORD.unpack_from(data, at)
        if segment != number or offset != at:
            raise make_broken(name, at, f"a record of segment {segment}, offset {offset}")
        if length < RECORD_BYTES_MIN:
            raise make_broken(name, at, f"a record of {length} bytes")
        if length > end - at:
            raise make_broken(name, at, "the file ends inside a record")
        if at + length > checked:
            (checksum,) = struct.unpack_from("<I", data, at + length - 4)
            if checksum != crc(data[at : at + length - 4]):
                raise make_broken(name, at, "the checksum of a record is wrong")
        if kind in kinds:
            return Record(at, length, kind), at + length
        at += length
    return None, at


def checked_end(_data: Any, _number: int, begin: int) -> int:
    """Return the end of the records from an offset on whose checksums are right.

    A reader that gets it as `checked` does not compute these checksums again. The kernel computes
    it without the GIL, in parallel to other work. The twin would gain nothing, so it checks
    nothing.
    """
    return begin


def manager_place(data: Any, record: Record, name: str) -> Place:
    """Return the place that a CDC_MANAGER_RECORD holds. Raises WalBroken."""
    if record.length_bytes != RECORD_BYTES_MIN + _MANAGER.size:
        raise make_broken(name, record.offset, "a state record of another length")
    segment, offset, _, entry = _MANAGER.unpack_from(data, record.offset + RECORD_BYTES_MIN - 4)
    return Place(segment, offset, entry)


class Encrypted(NamedTuple):
    """A record of the log with changes of encrypted caches.

    Attributes:
        kind: its number.
        groups: ids of the cache groups, as far as they are readable without the key.
    """

    offset: int
    kind: int
    groups: tuple[int, ...]
    data: bytes


def read_encrypted(data: Any, record: Record) -> Encrypted:
    """Return the readable facts about a record of ENCRYPTED_DATA_KINDS; none is guessed."""
    begin = record.offset + RECORD_BYTES_MIN - 4
    content = bytes(data[begin : record.offset + record.length_bytes - 4])
    groups: dict[int, None] = {}
    at = _ENTRIES.size
    while at + _ENCRYPTED.size <= len(content):
        is_encrypted, group, length = _ENCRYPTED.unpack_from(content, at)
        if is_encrypted != 1 or length < 0:
            break
        groups[group] = None
        at += _ENCRYPTED.size + (record.kind != 53) + length  # the later ones have a key's number
    return Encrypted(record.offset, record.kind, tuple(groups), content)


def find_created_group(data: Any, record: Record) -> int | None:
    """Return the group whose files a record of TREE_KINDS begins; None if they existed before.

    A group is a single cache, or several that share files. Its first tree is created with it, and
    not again when the node starts.
    """
    begin = record.offset + RECORD_BYTES_MIN - 4
    if record.length_bytes - RECORD_BYTES_MIN < _TREE.size:
        return None
    group, page = _TREE.unpack_from(data, begin)
    return int(group) if page == _FIRST_PAGE else None


class Entry:
    """One change of one key. Key and value are decoded on first use.

    Attributes:
        offset, index: the record, and the entry in it.
        time_ms: time of the record.
        operation: as in the log, 1 CREATE to 4 TRANSFORM.
        near_version: version of the transaction; None outside one.
        counter: update counter of the partition.
        expire_time_ms: 0 for never.
    """

    __slots__ = (
        "_decode",
        "_key",
        "_value",
        "cache_id",
        "conflict_version",
        "counter",
        "expire_time_ms",
        "flags",
        "index",
        "near_version",
        "offset",
        "operation",
        "partition",
        "time_ms",
        "write_version",
    )
    _decode: Callable[[bytes, int], Any]
    _key: tuple[bytes, int]
    _value: tuple[bytes, int] | None
    cache_id: int
    conflict_version: Version | None
    counter: int
    expire_time_ms: int
    flags: int
    index: int
    near_version: Version | None
    offset: int
    operation: int
    partition: int
    time_ms: int
    write_version: Version | None

    @property
    def key(self) -> Any:
        """Return the key as a Python value. Raises ValueBroken, TypeUnknown."""
        return self._decode(*self._key)

    @property
    def value(self) -> Any:
        """Return the value as a Python value; None if the change removes the key."""
        return None if self._value is None else self._decode(*self._value)

    @property
    def key_kind(self) -> int:
        """Return the kind of the key's bytes: 1 a marshalled value, 2 bytes, 100 an object, 101 an
        enum.
        """
        return self._key[1]

    @property
    def value_kind(self) -> int:
        """Return the kind of the value's bytes, as in key_kind; 0 without a value."""
        return 0 if self._value is None else self._value[1]

    @property
    def key_bytes(self) -> bytes:
        """Return the key as the node marshalled it."""
        return self._key[0]

    @property
    def value_bytes(self) -> bytes | None:
        """Return the value as the node marshalled it."""
        return None if self._value is None else self._value[0]

    @property
    def has_value(self) -> bool:
        """Return whether the key has a value after the change."""
        return self._value is not None

    @property
    def primary(self) -> bool:
        """Return whether the node had the primary copy."""
        return bool(self.flags & PRIMARY)


class Walk(Iterator[Any]):
    """Iterator of a segment's changes, in order: the entries that a consumer gets.

    Attributes:
        count: entries read so far, also those that a consumer does not get (loaded from elsewhere,
            or not a change).
        time_ms: time of the record of the next entry, or of the last one.
        unreadable: records with changes of encrypted caches so far.
    """

    def __init__(
        self,
        data: Any,
        *,
        number: int,
        name: str,
        begin: int,
        decode: Callable[[bytes, int], Any],
        kind: type[Entry] = Entry,
        unreadable: Callable[[Encrypted], object] | None = None,
        checked: int = 0,
    ) -> None:
        """Begin at an offset of a segment.

        Args:
            data: the whole segment.
            number: number of the segment.
            name: its name, for errors.
            begin: offset to begin with.
            decode: turns marshalled bytes and their kind into a Python value.
            kind: class of the entries.
            unreadable: called with each record that has changes of encrypted caches.
            checked: see checked_end().
        """
        self._data = data
        self._number = number
        self._name = name
        self._decode = decode
        self._entry_kind = kind
        self._tell = unreadable
        self._at = max(begin, HEADER_BYTES)
        self._begin = self._at
        self._checked = checked
        self._record: Record | None = None
        self._cursor = self._limit = self._index = self._left = self.time_ms = 0
        self.count = self.unreadable = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while self._load():
            entry = self._read()
            if CREATE <= entry.operation <= TRANSFORM and not entry.flags & (PRELOAD | FROM_STORE):
                return entry
        raise StopIteration

    def skip(self, count: int) -> int:
        """Skip this number of entries of any kind; return how many there were."""
        for passed in range(count):
            if not self._load():
                return passed
            self._read()
        return count

    @property
    def is_drained(self) -> bool:
        """Return whether every entry was read. Raises WalBroken, WalUnsupported."""
        return not self._load()

    @property
    def place(self) -> Place | None:
        """Place of the next entry; at the end, the place after the last record with changes.

        Without such a record, it is the place after the segment's last record; None if the segment
        has no record.
        """
        if self._load():
            assert self._record is not None
            return Place(self._number, self._record.offset, self._index)
        if self._record is not None:
            return Place(self._number, self._record.offset + self._record.length_bytes, 0)
        return Place(self._number, self._at, 0) if self._at > self._begin else None

    def _load(self) -> bool:
        """Go on to the record of the next entry; return whether there is one."""
        while not self._left:
            found, self._at = find_record(
                self._data, self._at, self._number, _WALKED, self._name, self._checked
            )
            if found is None:
                return False
            if found.kind in ENCRYPTED_DATA_KINDS:
                self.unreadable += 1
                if self._tell is not None:
                    self._tell(read_encrypted(self._data, found))
                continue
            self._record = found
            begin = found.offset + RECORD_BYTES_MIN - 4
            self._limit = found.offset + found.length_bytes - 4
            if self._limit - begin < _ENTRIES.size:
                raise self._broken(ENDS)
            count, self.time_ms = _ENTRIES.unpack_from(self._data, begin)
            if count < 0:
                raise self._broken(f"a record of {count} entries")
            self._cursor = begin + _ENTRIES.size
            self._index, self._left = 0, count
            if not count:
                self._check_end()
        return True

    def _read(self) -> Entry:
        assert self._record is not None
        made = self._entry_kind.__new__(self._entry_kind)
        made._decode = self._decode
        made.offset, made.index, made.time_ms = self._record.offset, self._index, self.time_ms
        key_kind, key = self._head(made)
        made._key = key, key_kind
        made._value = self._value()
        self._need(1)
        made.operation = self._data[self._cursor]
        self._cursor += 1
        made.near_version, _ = self._version()
        made.write_version, made.conflict_version = self._version()
        self._need(_TAIL.size)
        tail = _TAIL.unpack_from(self._data, self._cursor)
        made.partition, made.counter, made.expire_time_ms, made.flags = tail
        self._cursor += _TAIL.size
        self._index += 1
        self._left -= 1
        self.count += 1
        if not self._left:
            self._check_end()
        return made

    def _head(self, made: Entry) -> tuple[int, bytes]:
        self._need(_KEY.size)
        made.cache_id, length, kind = _KEY.unpack_from(self._data, self._cursor)
        self._cursor += _KEY.size
        return kind, self._bytes(length)

    def _value(self) -> tuple[bytes, int] | None:
        self._need(4)
        (length,) = struct.unpack_from("<i", self._data, self._cursor)
        self._cursor += 4
        if length == -1:
            return None
        self._need(1)
        (kind,) = struct.unpack_from("<b", self._data, self._cursor)
        self._cursor += 1
        return self._bytes(length), kind

    def _bytes(self, length: int) -> bytes:
        if length < 0:
            raise self._broken(f"a key or value of {length} bytes")
        self._need(length)
        found = bytes(self._data[self._cursor : self._cursor + length])
        self._cursor += length
        return found

    def _version(self) -> tuple[Version | None, Version | None]:
        self._need(1)
        form = self._data[self._cursor]
        self._cursor += 1
        if form > 2:
            raise self._broken(f"a version of form {form}")
        if not form:
            return None, None
        first = self._one_version()
        return first, self._one_version() if form == 2 else None

    def _one_version(self) -> Version:
        self._need(_VERSION.size)
        topology, node, order = _VERSION.unpack_from(self._data, self._cursor)
        self._cursor += _VERSION.size
        return version_of(topology, node, order)

    def _need(self, count: int) -> None:
        if self._limit - self._cursor < count:
            raise self._broken(ENDS)

    def _check_end(self) -> None:
        if self._cursor != self._limit:
            raise self._broken("a record has bytes after its last entry")

    def _broken(self, cause: str) -> Exception:
        assert self._record is not None
        return make_broken(self._name, self._record.offset, cause)


class Scanned(NamedTuple):
    """A whole segment.

    Attributes:
        rows: the CHANGE of each entry that a consumer gets, in order.
        trees: records of TREE_KINDS.
        encrypted: records of ENCRYPTED_DATA_KINDS.
        has_resent: whether there is a record of RESENT_KIND.
        entry_count: number of all entries.
        time_ms: time of the last record with changes.
        place: place of a Walk at its end.
        end: end of the last record.
    """

    rows: Rows
    trees: list[Record]
    encrypted: list[Record]
    has_resent: bool
    entry_count: int
    time_ms: int
    place: Place | None
    end: int


def scan(data: Any, *, number: int, name: str, begin: int, checked: int = 0) -> Scanned:
    """Read a segment from an offset to its end; see Walk. Raises WalBroken, WalUnsupported."""
    walk = Walk(
        data, number=number, name=name, begin=begin, decode=lambda *_: None, checked=checked
    )
    rows = []
    while walk._load():
        at, ordinal = walk._cursor + _KEY.size, walk.count
        one = walk._read()
        if CREATE <= one.operation <= TRANSFORM and not one.flags & (PRELOAD | FROM_STORE):
            rows.append(_row(one, at, ordinal))
    found: dict[int, list[Record]] = {}
    at = max(begin, HEADER_BYTES)
    while True:
        kinds = TREE_KINDS | _WALKED
        record, at = find_record(data, at, number, kinds, name, checked)
        if record is None:
            break
        found.setdefault(record.kind, []).append(record)
    return Scanned(
        rows={
            name: np.array([row[at] for row in rows], kind)
            for at, (name, kind) in enumerate(fields())
        },
        trees=sorted(one for kind in TREE_KINDS for one in found.get(kind, [])),
        encrypted=sorted(one for kind in ENCRYPTED_DATA_KINDS for one in found.get(kind, [])),
        has_resent=RESENT_KIND in found,
        entry_count=walk.count,
        time_ms=walk.time_ms,
        place=walk.place,
        end=at,
    )


def _row(one: Entry, key_at: int, ordinal: int) -> tuple[Any, ...]:
    key, value = one._key[0], one._value
    near, write = (_numbers(version) for version in (one.near_version, one.write_version))
    return (
        one.time_ms, one.counter, one.expire_time_ms, near[2], write[2], one.offset, ordinal,
        one.cache_id, one.partition, key_at, len(key),
        0 if value is None else key_at + len(key) + 5, NONE if value is None else len(value[0]),
        *near[:2], *write[:2], one.operation, one.flags, one.key_kind, one.value_kind,
        one.near_version is not None, one.write_version is not None,
    )  # fmt: skip


def _numbers(version: Version | None) -> tuple[int, int, int]:
    """Return a version's numbers: topology, node with its data centre, order."""
    if version is None:
        return 0, 0, 0
    (node,) = struct.unpack("<i", struct.pack("<I", version.data_center << 27 | version.node_order))
    return version.topology, node, version.order


def version_of(topology: int, node: int, order: int) -> Version:
    """Return the version for its numbers in a CHANGE."""
    return Version(topology, order, node & 0x07FFFFFF, (node >> 27) & 0x1F)


def wal_kernel() -> tuple[type[Walk], type[Entry], Any]:
    """Return Walk, Entry, find_record: compiled, or the twins if not built or PENSTOCK_PURE=1."""
    return (_Walk, _Entry, _find_record) if _is_compiled() else (Walk, Entry, find_record)


def scan_kernel() -> tuple[Callable[..., Scanned], Callable[[Any, int, int], int]]:
    """Return scan and checked_end, selected as in wal_kernel()."""
    return (_scan, _checked_end) if _is_compiled() else (scan, checked_end)


def _is_compiled() -> bool:
    return COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0")
