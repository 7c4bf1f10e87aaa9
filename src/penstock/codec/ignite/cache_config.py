"""Configurations of caches: files `cache_data.dat`, which Java's serialization wrote.

Not here: files (`engines/ignite`). Source: Apache Ignite 2.17, StoredCacheData, CacheConfiguration,
QueryEntity, QueryUtils.normalizeSchemaName.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from javaobj.v2.beans import JavaArray, JavaEnum, JavaInstance, JavaString
from javaobj.v2.main import loads

from penstock.codec.ignite.errors import config_broken, config_unknown

_STORED = "org.apache.ignite.internal.processors.cache.StoredCacheData"
_CONFIG = "org.apache.ignite.configuration.CacheConfiguration"
_MUTABLE = "javax.cache.configuration.MutableConfiguration"
_ENTITY = "org.apache.ignite.cache.QueryEntity"
_ENTITY_MORE = "org.apache.ignite.internal.processors.query.QueryEntityEx"
_ETERNAL = "javax.cache.expiry.EternalExpiryPolicy"
_FACTORY = "javax.cache.configuration.FactoryBuilder$SingletonFactory"


@dataclass(frozen=True, slots=True)
class Foreign:
    """Value of the configuration that only a JVM can read, and its class."""

    class_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEntity:
    """SQL's view of a cache: one table.

    Attributes:
        fields: names of the fields of key and value, in the table's order, to their Java classes.
        key_field: the column of the whole key; None if the key has columns of its own.
        value_field: the column of the whole value; None if the value has columns of its own.
        key_fields: fields of the key, in the order of fields.
        aliases: names of columns, by field; other fields give columns their own name.
        defaults: values other than numbers, texts and booleans are Foreign.
    """

    table: str | None
    key_type: str | None
    value_type: str | None
    key_field: str | None
    value_field: str | None
    key_fields: tuple[str, ...]
    fields: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    not_null: frozenset[str] = frozenset()
    precision: Mapping[str, int] = field(default_factory=dict)
    scale: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_implicit_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """A cache as its node stored it.

    Attributes:
        group: None for a cache that is its own group.
        atomicity: ATOMIC or TRANSACTIONAL.
        mode: PARTITIONED or REPLICATED.
        partitions: None if the affinity function is not Ignite's own.
        region: None for the default data region.
        expiry: class of the expiry policy, or of its factory; None if entries never expire.
        has_sql: whether CREATE TABLE created it.
    """

    name: str
    group: str | None
    atomicity: str
    mode: str
    backups: int
    partitions: int | None
    sql_schema: str | None
    region: str | None
    is_encrypted: bool
    expiry: str | None
    has_sql: bool
    entities: tuple[QueryEntity, ...]

    @property
    def schema(self) -> str:
        """SQL schema of the tables; the cache's name if none was configured."""
        given = self.sql_schema
        if given is None:
            return self.name
        if len(given) > 1 and given[0] == given[-1] == '"':
            return given[1:-1]
        return given.upper()


def read_cache_config(data: bytes, name: str) -> CacheConfig:
    """Read a file `cache_data.dat`; `name` is the file's, for errors.

    Raises CacheConfigBroken if Java would not read it, CacheConfigUnknown if the release keeps its
    configuration in another form.
    """
    try:
        stored = loads(data)
    except Exception as error:  # whatever the library runs into: a typed error tells the file
        cause = f"{type(error).__name__}: {error}"
        raise config_broken(name, f"Java's serialization is damaged ({cause[:200]})") from error
    if not isinstance(stored, JavaInstance):
        raise config_broken(name, "it is not one serialized object")
    return _Reader(name).config(stored)


class _Reader:
    """Reader of the fields, which checks the kind of each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def config(self, stored: JavaInstance) -> CacheConfig:
        top = self._fields(stored, _STORED)
        config = self._instance(top, "ccfg")
        cache = self._fields(config, _CONFIG)
        entities = self._take(top, "qryEntities", list, may_lack=True) or []
        return CacheConfig(
            name=self._text(cache, "name"),
            group=self._text_or_none(cache, "grpName"),
            atomicity=self._constant(cache, "atomicityMode", "ATOMIC"),
            mode=self._constant(cache, "cacheMode", "PARTITIONED"),
            backups=self._take(cache, "backups", int),
            partitions=self._partitions(cache),
            sql_schema=self._text_or_none(cache, "sqlSchema"),
            region=self._text_or_none(cache, "memPlcName"),
            is_encrypted=self._take(cache, "encryptionEnabled", bool),
            expiry=self._expiry(self._fields(config, _MUTABLE)),
            has_sql=self._take(top, "sql", bool),
            entities=tuple(self._entity(one) for one in entities),
        )

    def _entity(self, found: object) -> QueryEntity:
        if not isinstance(found, JavaInstance):
            raise self._unknown("a query entity is not an object")
        own = self._fields(found, _ENTITY)
        more = self._fields(found, _ENTITY_MORE, may_lack=True)
        fields = self._texts(own, "fields")
        keys = self._names(own, "keyFields")
        return QueryEntity(
            table=self._text_or_none(own, "tableName"),
            key_type=self._text_or_none(own, "keyType"),
            value_type=self._text_or_none(own, "valType"),
            key_field=self._text_or_none(own, "keyFieldName"),
            value_field=self._text_or_none(own, "valueFieldName"),
            # The library's sets have no order.
            key_fields=tuple(one for one in fields if one in keys)
            + tuple(sorted(keys - {*fields})),
            fields=fields,
            aliases=self._texts(own, "aliases"),
            not_null=self._names(own, "_notNullFields") | self._names(more, "notNullFields"),
            precision=self._numbers(own, "fieldsPrecision"),
            scale=self._numbers(own, "fieldsScale"),
            defaults=MappingProxyType(
                {str(key): _plain(value) for key, value in self._map(own, "defaultFieldValues")}
            ),
            has_implicit_key=bool(self._take(more, "implicitPk", bool, may_lack=True)),
        )

    def _partitions(self, cache: Mapping[str, Any]) -> int | None:
        function = cache.get("aff")
        if isinstance(function, JavaInstance):
            for described, values in function.field_data.items():
                if str(described.name).endswith(".RendezvousAffinityFunction"):
                    parts: int = self._take(_by_name(values), "parts", int)
                    return parts
        return None

    def _expiry(self, config: Mapping[str, Any]) -> str | None:
        factory = config.get("expiryPolicyFactory")
        if not isinstance(factory, JavaInstance):
            return None
        policy: object = factory
        if factory.classdesc.name == _FACTORY:
            policy = self._fields(factory, _FACTORY).get("instance")
        kind = str(policy.classdesc.name) if isinstance(policy, JavaInstance) else _ETERNAL
        return None if kind == _ETERNAL else kind

    # -- fields ------------------------------------------------------------------------------

    def _fields(
        self, found: JavaInstance, class_name: str, *, may_lack: bool = False
    ) -> Mapping[str, Any]:
        """Return the fields of one class in an object; empty if the class is optional
        and missing.
        """
        for described, values in found.field_data.items():
            if described.name == class_name:
                return _by_name(values)
        if may_lack:
            return {}
        raise self._unknown(f"a {found.classdesc.name} in place of {class_name}")

    def _instance(self, fields: Mapping[str, Any], name: str) -> JavaInstance:
        found: JavaInstance = self._take(fields, name, JavaInstance)
        return found

    def _take(
        self, fields: Mapping[str, Any], name: str, kind: type, *, may_lack: bool = False
    ) -> Any:
        found = _plain(fields.get(name)) if kind in (int, bool) else fields.get(name)
        if isinstance(found, kind) and (kind is bool or not isinstance(found, bool)):
            return found
        if may_lack and found is None:
            return None
        raise self._unknown(f"its field {name} is a {type(found).__name__}, not a {kind.__name__}")

    def _text(self, fields: Mapping[str, Any], name: str) -> str:
        return str(self._take(fields, name, JavaString))

    def _text_or_none(self, fields: Mapping[str, Any], name: str) -> str | None:
        found = self._take(fields, name, JavaString, may_lack=True)
        return None if found is None else str(found)

    def _constant(self, fields: Mapping[str, Any], name: str, default: str) -> str:
        found = self._take(fields, name, JavaEnum, may_lack=True)
        return default if found is None else str(found.value)

    def _map(self, fields: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
        return list((self._take(fields, name, dict, may_lack=True) or {}).items())

    def _texts(self, fields: Mapping[str, Any], name: str) -> Mapping[str, str]:
        found = self._map(fields, name)
        if not all(isinstance(one, JavaString) for pair in found for one in pair):
            raise self._unknown(f"its map {name} has something else than strings")
        return MappingProxyType({str(key): str(value) for key, value in found})

    def _numbers(self, fields: Mapping[str, Any], name: str) -> Mapping[str, int]:
        found = {str(key): _plain(value) for key, value in self._map(fields, name)}
        if not all(isinstance(one, int) for one in found.values()):
            raise self._unknown(f"its map {name} has something else than numbers")
        return MappingProxyType(found)

    def _names(self, fields: Mapping[str, Any], name: str) -> frozenset[str]:
        found = fields.get(name)
        if found is None:
            return frozenset()
        if not isinstance(found, set | list):
            raise self._unknown(f"its field {name} is a {_class_of(found)}, not a set")
        return frozenset(str(one) for one in found)

    def _unknown(self, cause: str) -> Exception:
        return config_unknown(self._name, cause)


def _by_name(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(one.name): value for one, value in values.items()}


def _class_of(found: object) -> str:
    described = getattr(found, "classdesc", None)
    return str(described.name) if described is not None else type(found).__name__


def _plain(found: Any) -> Any:
    """Return Java's numbers, texts, booleans and null as Python's, other classes as Foreign."""
    if found is None or isinstance(found, bool | int | float):
        return found
    if isinstance(found, JavaString):
        return str(found)
    if isinstance(found, JavaInstance):
        fields = _merge(found)
        kind = str(found.classdesc.name)
        if kind == "java.math.BigDecimal":
            return _decimal(fields)
        if kind.startswith("java.lang.") and set(fields) == {"value"}:
            return fields["value"]
    return Foreign(_class_of(found))


def _decimal(fields: Mapping[str, Any]) -> decimal.Decimal | Foreign:
    whole = fields.get("intVal")
    parts = {} if not isinstance(whole, JavaInstance) else _merge(whole)
    digits = parts.get("magnitude")
    scale, sign = fields.get("scale"), parts.get("signum")
    if not isinstance(digits, JavaArray) or not isinstance(scale, int) or sign not in (-1, 0, 1):
        return Foreign("java.math.BigDecimal")
    unscaled = int.from_bytes(bytes(one & 0xFF for one in digits), "big")
    return decimal.Decimal((int(sign < 0), tuple(map(int, str(unscaled))), -scale))


def _merge(found: JavaInstance) -> dict[str, Any]:
    return {
        str(one.name): value
        for values in found.field_data.values()
        for one, value in values.items()
    }
