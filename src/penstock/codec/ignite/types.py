"""Types of binary objects: names and fields by the ids that objects contain instead.

Not here: files (`engines/ignite`). Source: Apache Ignite 2.17, BinaryMetadata, BinarySchema,
BinaryBasicIdMapper.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.codec.ignite.errors import bad_value, type_unknown
from penstock.codec.ignite.values import BinaryObject, JavaList, JavaMap, Opaque

FIELD_TYPES = {
    1: "byte", 2: "short", 3: "int", 4: "long", 5: "float", 6: "double", 7: "char", 8: "boolean",
    9: "String", 10: "UUID", 11: "Date", 12: "byte[]", 13: "short[]", 14: "int[]", 15: "long[]",
    16: "float[]", 17: "double[]", 18: "char[]", 19: "boolean[]", 20: "String[]", 21: "UUID[]",
    22: "Date[]", 23: "Object[]", 24: "Collection", 25: "Map", 27: "Object", 28: "Enum",
    29: "Enum[]", 30: "decimal", 31: "decimal[]", 32: "Class", 33: "Timestamp", 34: "Timestamp[]",
    36: "Time", 37: "Time[]", 38: "Enum", 103: "Object",
}  # fmt: skip
CLASSES = {
    1: "java.lang.Byte", 2: "java.lang.Short", 3: "java.lang.Integer", 4: "java.lang.Long",
    5: "java.lang.Float", 6: "java.lang.Double", 7: "java.lang.Character", 8: "java.lang.Boolean",
    9: "java.lang.String", 10: "java.util.UUID", 11: "java.util.Date",
    30: "java.math.BigDecimal", 33: "java.sql.Timestamp", 36: "java.sql.Time",
}  # fmt: skip
"""Classes that have numbers without being registered."""
_OF_METADATA = (
    "typeId", "typeName", "fields", "affKeyFieldName", "schemas", "schemaIds", "isEnum",
    "nameToOrdinal", "ordinalToName",
)  # fmt: skip


def java_hash(text: str) -> int:
    """Return the result of Java's String.hashCode; signed, 32 bits."""
    units = text.encode("utf-16-le", "surrogatepass")
    found = 0
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        found = (31 * found + unit) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


_JDK = (
    "java.io.File", "java.lang.Object", "java.lang.String", "java.lang.StringBuffer",
    "java.lang.StringBuilder", "java.math.BigInteger", "java.math.MathContext",
    "java.net.Inet4Address", "java.net.Inet6Address", "java.net.InetAddress",
    "java.net.InetSocketAddress", "java.net.URI", "java.net.URL", "java.util.ArrayDeque",
    "java.util.Arrays$ArrayList", "java.util.BitSet",
    "java.util.Collections$EmptyList", "java.util.Collections$EmptyMap",
    "java.util.Collections$EmptySet", "java.util.Collections$SetFromMap",
    "java.util.Collections$SingletonList", "java.util.Collections$SingletonMap",
    "java.util.Collections$SingletonSet", "java.util.Collections$SynchronizedCollection",
    "java.util.Collections$SynchronizedList", "java.util.Collections$SynchronizedMap",
    "java.util.Collections$SynchronizedRandomAccessList", "java.util.Collections$SynchronizedSet",
    "java.util.Collections$UnmodifiableCollection", "java.util.Collections$UnmodifiableList",
    "java.util.Collections$UnmodifiableMap", "java.util.Collections$UnmodifiableRandomAccessList",
    "java.util.Collections$UnmodifiableSet", "java.util.Collections$UnmodifiableSortedMap",
    "java.util.Collections$UnmodifiableSortedSet", "java.util.Currency", "java.util.EnumMap",
    "java.util.GregorianCalendar", "java.util.Hashtable", "java.util.IdentityHashMap",
    "java.util.JumboEnumSet", "java.util.Locale", "java.util.PriorityQueue", "java.util.Properties",
    "java.util.Random", "java.util.RegularEnumSet", "java.util.SimpleTimeZone", "java.util.Stack",
    "java.util.TreeMap", "java.util.TreeSet", "java.util.Vector",
    "java.util.concurrent.ConcurrentHashMap", "java.util.concurrent.ConcurrentLinkedDeque",
    "java.util.concurrent.ConcurrentLinkedQueue", "java.util.concurrent.ConcurrentSkipListMap",
    "java.util.concurrent.ConcurrentSkipListSet", "java.util.concurrent.CopyOnWriteArrayList",
    "java.util.concurrent.CopyOnWriteArraySet", "java.util.concurrent.LinkedBlockingDeque",
    "java.util.concurrent.LinkedBlockingQueue", "java.util.concurrent.atomic.AtomicBoolean",
    "java.util.concurrent.atomic.AtomicInteger", "java.util.concurrent.atomic.AtomicLong",
    "java.util.concurrent.atomic.AtomicReference",
)  # fmt: skip
CLASSES.update({java_hash(name): name for name in _JDK})


def id_of(name: str) -> int:
    """Return the id of a field, or of a type without metadata: the hash of the lower-cased name."""
    return java_hash(name.lower())


def cache_id(name: str) -> int:
    """Return the id of a cache or group."""
    return java_hash(name) or 1


def schema_id(field_ids: tuple[int, ...]) -> int:
    """Return the schema id of a type's fields in this order; signed, 32 bits."""
    found = 0x811C9DC5
    for one in field_ids:
        for byte in (one & 0xFFFFFFFF).to_bytes(4, "little"):
            found = ((found ^ byte) * 0x01000193) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryType:
    """A type in binary_meta.

    Attributes:
        fields: type name of each field, None if the release has none for it.
        names: names of fields by field id.
        schemas: names of fields in order, by schema id.
        constants: names of an enum's constants, by ordinal.
    """

    type_id: int
    type_name: str
    is_enum: bool = False
    affinity_field: str | None = None
    fields: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    schemas: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[int, str] = field(default_factory=dict)


METADATA_TYPE = BinaryType(
    type_id=0, type_name="BinaryMetadata", names={id_of(name): name for name in _OF_METADATA}
)


class Types:
    """Cache of types and class names by their ids."""

    def __init__(
        self,
        metadata: Callable[[int], BinaryType | None] = lambda _: None,
        class_name: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """Keep the two lookups by type id. metadata: the type. class_name: the class in
        marshaller/. Both return None if missing.
        """
        self._metadata = metadata
        self._class_name = class_name
        self._known: dict[int, BinaryType] = {}
        self._class_names: dict[int, str] = {}
        self._shapes: dict[tuple[int, int], tuple[BinaryType, tuple[str, ...]]] = {}
        self.change = [object()]
        """Another object when something that was found may be found otherwise now."""

    def find(self, type_id: int) -> BinaryType | None:
        """Return the type; None without metadata."""
        found = self._known.get(type_id)
        if found is None:
            found = self._metadata(type_id)
            if found is not None:
                self._known[type_id] = found
        return found

    def fields_of(self, type_id: int, schema: int) -> tuple[BinaryType, tuple[str, ...]]:
        """Return the names of the fields of one version of a type. Raises TypeUnknown."""
        shape = self._shapes.get((type_id, schema))
        if shape is not None:
            return shape
        for _ in range(2):
            found = self.find(type_id)
            if found is not None and schema in found.schemas:
                self._shapes[type_id, schema] = shape = found, found.schemas[schema]
                return shape
            self.forget(type_id)  # its file may have changed meanwhile
        if found is None:
            raise type_unknown(type_id, "there is no file of it in binary_meta")
        raise type_unknown(type_id, f"its file in binary_meta has no version {schema}")

    def name_of_field(self, type_id: int, field_id: int) -> tuple[BinaryType, str]:
        """Return the type and a field's name. Raises TypeUnknown."""
        for _ in range(2):
            found = self.find(type_id)
            if found is not None and field_id in found.names:
                return found, found.names[field_id]
            self.forget(type_id)
        if found is None:
            raise type_unknown(type_id, "there is no file of it in binary_meta")
        raise type_unknown(type_id, f"its file in binary_meta has no field {field_id}")

    def name_of(self, type_id: int) -> str | None:
        """Return the name of a type or class; None if neither metadata nor marshaller/ has it."""
        known = self._known.get(type_id)
        if known is not None:
            return known.type_name
        name = CLASSES.get(type_id) or self._class_names.get(type_id)
        if name is None:
            known = self.find(type_id)
            if known is not None:
                return known.type_name
            name = self._class_name(type_id)
            if name is not None:
                self._class_names[type_id] = name
        return name

    def forget(self, type_id: int) -> None:
        """Look the type up again when it is next asked for."""
        self._known.pop(type_id, None)
        self._shapes = {one: shape for one, shape in self._shapes.items() if one[0] != type_id}
        self.change[0] = object()


def read_type(data: bytes, decode: Callable[[bytes, Types], object]) -> BinaryType:
    """Read a file of binary_meta; `decode` is `marshal.decode_object`. Raises ValueBroken."""
    found = decode(data, _ForMetadata())
    if not isinstance(found, BinaryObject):
        raise bad_value(0, "it is not a file of binary_meta")
    type_id, type_name = found.get("typeId"), found.get("typeName")
    affinity = found.get("affKeyFieldName")
    if type(type_id) is not int or not isinstance(type_name, str):
        raise bad_value(0, "it is not a file of binary_meta")
    if affinity is not None and not isinstance(affinity, str):
        raise bad_value(0, f"the file of type {type_name} names no affinity field")
    ids = {}
    types: dict[str, str | None] = {}
    for name, one in _pairs(found.get("fields")):
        if not isinstance(name, str) or not isinstance(one, Opaque) or len(one.data) < 8:
            raise bad_value(0, f"the file of type {type_name} has a field without a number")
        code, number = struct.unpack("<ii", one.data[-8:])
        ids[number] = name
        types[name] = FIELD_TYPES.get(code)
    constants = {}
    is_enum = found.get("isEnum") is True
    for ordinal, name in _pairs(found.get("ordinalToName")) if is_enum else ():
        if type(ordinal) is not int or not isinstance(name, str):
            raise bad_value(0, f"the file of type {type_name} has a constant without a name")
        constants[ordinal] = name
    return BinaryType(
        type_id=type_id,
        type_name=type_name,
        is_enum=is_enum,
        affinity_field=affinity,
        fields=MappingProxyType(types),
        names=MappingProxyType(ids),
        schemas=MappingProxyType(_schemas(data, found.get("schemaIds"), ids)),
        constants=MappingProxyType(constants),
    )


class _ForMetadata(Types):
    """Types used for reading metadata. They know only the type that has no metadata of its own."""

    def find(self, type_id: int) -> BinaryType | None:  # noqa: ARG002 - there is but one
        return METADATA_TYPE


def _pairs(found: object) -> list[tuple[object, object]]:
    return found.pairs if isinstance(found, JavaMap) else []


def _schemas(data: bytes, known: object, names: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """Return the versions of a type. Their bytes are Java's own; each version is recognised by its
    hash.
    """
    found = {}
    for one in known if isinstance(known, JavaList) else ():
        if type(one) is not int or not -(1 << 31) <= one < 1 << 31:
            raise bad_value(0, "a version of a type that is not a number")
        ids = _field_ids(data, one)
        if ids is not None and all(number in names for number in ids):
            found[one] = tuple(names[number] for number in ids)
    return found


def _field_ids(data: bytes, schema: int) -> tuple[int, ...] | None:
    wanted = struct.pack("<i", schema)
    at = data.find(wanted)
    while at >= 0:
        if at + 8 <= len(data):
            (count,) = struct.unpack_from("<i", data, at + 4)
            if 0 <= count <= (len(data) - at - 8) // 4:
                ids: tuple[int, ...] = struct.unpack_from(f"<{count}i", data, at + 8)
                if schema_id(ids) == schema:
                    return ids
        at = data.find(wanted, at + 1)
    return None
