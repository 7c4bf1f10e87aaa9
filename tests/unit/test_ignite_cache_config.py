"""Configurations of caches: those of real nodes, and damaged or different ones."""

from __future__ import annotations

import random

import pytest

from harness.ignite.recordings import files_of
from penstock.codec.ignite.cache_config import CacheConfig, QueryEntity, read_cache_config
from penstock.codec.ignite.errors import CacheConfigBroken, CacheConfigUnknown


def read_cache_file(cache: str, recording: str = "one", node: str = "node_1") -> bytes:
    """Return a cache's file."""
    return files_of(recording)[f"db/{node}/cache-{cache}/cache_data.dat"]


def config_of(cache: str, recording: str = "one") -> CacheConfig:
    """Return a cache's configuration."""
    return read_cache_config(read_cache_file(cache, recording), cache)


def test_sql_table_with_every_type_has_its_columns_in_order() -> None:
    """The order is that of CREATE TABLE, with the key's column among them."""
    config = config_of("typed")
    assert (config.name, config.schema, config.has_sql) == ("typed", "PUBLIC", True)
    (entity,) = config.entities
    assert (entity.table, entity.key_type, entity.value_type) == (
        "TYPED",
        "java.lang.Integer",
        "TypedRow",
    )
    assert (entity.key_field, entity.value_field, entity.key_fields) == ("ID", None, ())
    assert list(entity.fields.items()) == [
        ("ID", "java.lang.Integer"),
        ("BO", "java.lang.Boolean"),
        ("TI", "java.lang.Byte"),
        ("SM", "java.lang.Short"),
        ("BI", "java.lang.Long"),
        ("DE", "java.math.BigDecimal"),
        ("RE", "java.lang.Float"),
        ("DO", "java.lang.Double"),
        ("CH", "java.lang.String"),
        ("VC", "java.lang.String"),
        ("DA", "java.sql.Date"),
        ("TM", "java.sql.Time"),
        ("TS", "java.sql.Timestamp"),
        ("UU", "java.util.UUID"),
        ("BIN", "[B"),
    ]
    assert dict(entity.precision) == {"DE": 20, "CH": 5, "BIN": 4}
    assert dict(entity.scale) == {"DE": 4}
    assert entity.not_null == frozenset()


def test_altered_table_with_a_key_of_two_columns() -> None:
    """A column was dropped and one added; the key's columns are in the table's order."""
    config = config_of("SQL_PUBLIC_KEYED")
    (entity,) = config.entities
    assert list(entity.fields) == ["A", "B", "D"]
    assert (entity.key_field, entity.key_fields) == (None, ("A", "B"))
    assert entity.key_type == f"{entity.value_type}_KEY"


def test_caches_without_tables() -> None:
    """A program configured them."""
    person, bank, both = config_of("person"), config_of("bank"), config_of("both", "two")
    assert (person.atomicity, person.mode, person.backups) == ("ATOMIC", "PARTITIONED", 0)
    assert (bank.atomicity, both.backups) == ("TRANSACTIONAL", 1)
    assert (person.partitions, person.entities, person.group) == (8, (), None)
    assert (person.region, person.expiry, person.is_encrypted) == (None, None, False)
    system = config_of("ignite-sys-cache")
    assert (system.mode, system.region) == ("REPLICATED", "sysMemPlc")


@pytest.mark.parametrize(
    ("given", "schema"),
    [(None, "typed"), ('"Mixed"', "Mixed"), ("lower", "LOWER"), ('"', '"')],
)
def test_schema_is_named_as_in_sql(given: str | None, schema: str) -> None:
    """A schema without quotes is in upper case, as Ignite has it."""
    config = CacheConfig(
        name="typed", group=None, atomicity="ATOMIC", mode="PARTITIONED", backups=0, partitions=1,
        sql_schema=given, region=None, is_encrypted=False, expiry=None, has_sql=False, entities=(),
    )  # fmt: skip
    assert config.schema == schema


def test_damaged_files_are_named_or_read() -> None:
    """Each cut raises an error that names the file; a changed byte never raises another error."""
    data = read_cache_file("typed")
    for length in range(0, len(data), 37):
        with pytest.raises(CacheConfigBroken) as caught:
            read_cache_config(data[:length], "here")
        assert caught.value.fields["file"] == "here"
    draw = random.Random(18)
    outcomes = set()
    for _ in range(300):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            outcomes.add(type(read_cache_config(bytes(changed), "here")))
        except (CacheConfigBroken, CacheConfigUnknown) as error:
            outcomes.add(type(error))
    assert outcomes == {CacheConfig, CacheConfigBroken, CacheConfigUnknown}


def test_other_serialized_objects_are_no_configuration() -> None:
    """Java can read them, but they are another object, or keep their fields in another form."""
    with pytest.raises(CacheConfigBroken, match="not one serialized object"):
        read_cache_config(b"\xac\xed\x00\x05t\x00\x03abc", "here")
    for was, becomes, named in (
        (b".StoredCacheData", b".StoredCacheDatb", "StoredCacheData"),
        (b"\x00\x04name", b"\x00\x04nome", "name"),
        (b"\x00\x07backups", b"\x00\x07bockups", "backups"),
        (b"cache.QueryEntity", b"cache.QueryEntitz", "QueryEntity"),
    ):
        data = read_cache_file("typed").replace(was, becomes)
        assert data != read_cache_file("typed")
        with pytest.raises(CacheConfigUnknown, match=named) as caught:
            read_cache_config(data, "here")
        assert caught.value.hint


def test_a_field_that_a_release_lacks_is_told() -> None:
    """An entity's own class may be missing, and then no value is guessed."""
    found: QueryEntity = config_of("typed").entities[0]
    assert found.has_implicit_key is False
    data = read_cache_file("typed").replace(b"query.QueryEntityEx", b"query.QueryEntityEy")
    assert read_cache_config(data, "here").entities == (found,)
