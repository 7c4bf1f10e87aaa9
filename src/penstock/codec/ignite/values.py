"""Python classes for Ignite's values, with every distinction that its types make.

Consumers with keepBinary = false get Python's dates in their place.
"""

from __future__ import annotations

import datetime
import reprlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

UUID = uuid.UUID
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COLLECTIONS = {
    -1: "user set",
    0: "user collection",
    1: "ArrayList",
    2: "LinkedList",
    3: "HashSet",
    4: "LinkedHashSet",
    5: "SingletonList",
}
MAPS = {0: "user map", 1: "HashMap", 2: "LinkedHashMap"}


def _instant(ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=ms)


class Date(NamedTuple):
    """A `java.util.Date`: milliseconds since 1970 UTC."""

    ms: int

    @property
    def datetime(self) -> datetime.datetime:
        """Return the time in UTC. Raises OverflowError outside the years 1 to 9999."""
        return _instant(self.ms)


class SqlDate(Date):
    """A `java.sql.Date`, used for SQL DATE: midnight in the node's time zone."""

    __slots__ = ()


class Time(NamedTuple):
    """A SQL TIME: milliseconds since 1970, UTC, of the day 1970-01-01 in the node's time zone."""

    ms: int


class Timestamp(NamedTuple):
    """A SQL TIMESTAMP. ms: since 1970, UTC; nanos: within that millisecond, 0 to 999,999."""

    ms: int
    nanos: int

    @property
    def datetime(self) -> datetime.datetime:
        """Return the time in UTC, cut to microseconds. Raises OverflowError outside the years 1 to
        9999.
        """
        return _instant(self.ms) + datetime.timedelta(microseconds=self.nanos // 1000)


class Enum(NamedTuple):
    """A constant of an enum. name: None if the type's metadata lacks it."""

    type_name: str
    type_id: int
    ordinal: int
    name: str | None


class Class(NamedTuple):
    """A Java class. name: None if the class is not registered."""

    type_name: str | None
    type_id: int


class Opaque(NamedTuple):
    """Value that only a JVM with the object's own class can read, as it is in the log.

    Attributes:
        form: `optimized` (java.io.Externalizable, writeObject, the JDK's own classes),
            `transformed` (by a CacheObjectTransformer) or `proxy`.
        type_name: of the class if the bytes have it, else None.
        type_id: of the class if the bytes have it, else 0.
    """

    form: str
    type_name: str | None
    type_id: int
    data: bytes


class JavaList(list[Any]):
    """A collection. kind: a name of COLLECTIONS."""

    __slots__ = ("kind",)
    kind: str


class JavaMap(Mapping[Any, Any]):
    """A map, as pairs in the order of the log. kind: a name of MAPS.

    1 and 1L are two keys in Java and equal in Python, so `pairs` can have more than len(dict).
    """

    __slots__ = ("kind", "pairs")

    def __init__(self, kind: str, pairs: list[tuple[Any, Any]]) -> None:
        self.kind = kind
        self.pairs = pairs

    def __getitem__(self, key: Any) -> Any:
        for one, value in self.pairs:
            if one == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"JavaMap({self.kind}, {self.pairs!r})"


class BinaryObject(Mapping[str, Any]):
    """An object: its fields by name. A missing field equals a null one.

    Attributes:
        type_name, type_id: of its class.
        raw: bytes that it wrote after its named fields; usually None.
    """

    __slots__ = ("_names", "fields", "hash_code", "raw", "type_id", "type_name")

    def __init__(
        self,
        type_name: str,
        type_id: int,
        hash_code: int,
        fields: dict[str, Any],
        names: Mapping[str, Any],
        raw: bytes | None,
    ) -> None:
        """Keep the fields. names: names of all fields of the type."""
        self.type_name = type_name
        self.type_id = type_id
        self.hash_code = hash_code
        self.fields = fields
        self.raw = raw
        self._names = names

    def with_fields(self, fields: dict[str, Any]) -> BinaryObject:
        """Return an object of the same class with other values."""
        return BinaryObject(
            self.type_name, self.type_id, self.hash_code, fields, self._names, self.raw
        )

    def __getitem__(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None and name not in self.fields and name not in self._names:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __hash__(self) -> int:
        return self.hash_code

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BinaryObject):
            same = (self.type_id, self.raw) == (other.type_id, other.raw)
            return same and _set(self.fields) == _set(other.fields)
        return NotImplemented

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"BinaryObject({self.type_name}, {self.fields!r})"


def _set(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


NANOS_PER_MICROSECOND = 1000


def with_plain_dates(value: Any) -> Any:
    """Return a value with all its dates and timestamps, nested ones too, as datetime in UTC.

    A date outside the years 1 to 9999 and a timestamp with parts of a microsecond stay unchanged,
    because Python cannot hold them.
    """
    return _plain(value, {})


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Return the plain value. known: results by id(value), because objects may contain
    themselves.
    """
    if isinstance(value, Date | Timestamp):
        return _moment(value)
    if not isinstance(value, BinaryObject | JavaMap | list):
        return value
    found = known.get(id(value))
    if found is not None:
        return found
    if isinstance(value, BinaryObject):
        fields: dict[str, Any] = {}
        known[id(value)] = found = value.with_fields(fields)
        fields.update({name: _plain(one, known) for name, one in value.fields.items()})
    elif isinstance(value, JavaMap):
        known[id(value)] = found = JavaMap(value.kind, [])
        found.pairs += [(_plain(key, known), _plain(one, known)) for key, one in value.pairs]
    else:
        known[id(value)] = found = _empty_like(value)
        found += [_plain(one, known) for one in value]
    return found


def _empty_like(value: list[Any]) -> list[Any]:
    if not isinstance(value, JavaList):
        return []
    found = JavaList()
    found.kind = value.kind
    return found


def _moment(value: Date | Timestamp) -> Any:
    if isinstance(value, Timestamp) and value.nanos % NANOS_PER_MICROSECOND:
        return value
    try:
        return value.datetime
    except OverflowError:
        return value
