"""Defaults, indexes and foreign keys across engines: some have an equal, others are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.codec.types import Engine, Server, map_table
from penstock.engines.mysql.target.shapes import mysql_name
from penstock.engines.postgres.target.shaped import (
    postgres_foreign_key,
    postgres_index,
    postgres_name,
    referable,
)
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition, TableName, UniqueKey
from penstock.sql.schema_translation import Extras, extras_of

PG, MY = Server(engine=Engine.POSTGRESQL, version=(18,)), Server(engine=Engine.MYSQL, version=(8,))
NAME = TableName("shop", "t")


def column(kind: str, neutral: str, default: str | None = None, **more: object) -> ColumnDefinition:
    """Return a column c."""
    made = ColumnDefinition(
        name="c", type_text=kind, type_oid=0, typmod=-1, default=default, base_type=kind,
        neutral=neutral,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def extras(definition: TableDefinition, source: Server, target: Server) -> Extras:
    """Return the extras of a table between two servers."""
    return extras_of(definition, source, target, map_table(definition, source, target))


def table(*columns: ColumnDefinition, **more: object) -> TableDefinition:
    """Return a table of these columns."""
    made = TableDefinition(name=NAME, source_id=1, columns=columns)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "neutral", "default", "expected"),
    [
        ("integer", "int32", "7", "7"),
        ("integer", "int32", "'-7'::integer", "'-7'"),
        ("numeric(5,2)", "decimal(5,2)", "1.50", "1.50"),
        ("character varying(9)", "string", "'it''s'::character varying", "'it\\'s'"),
        ("character varying(9)", "string", "'a::b'::character varying", "'a::b'"),
        ("boolean", "bool", "true", "1"),
        ("timestamp(3) without time zone", "timestamp", "now()", "current_timestamp(3)"),
        ("timestamp without time zone", "timestamp", "CURRENT_TIMESTAMP", "current_timestamp(6)"),
        ("text", "string", "'long'::text", None),
        ("date", "date", "'2024-02-29'::date", "'2024-02-29'"),
        ("integer", "int32", "(random() * 10)::integer", None),
        ("uuid", "uuid", "gen_random_uuid()", None),
        ("bytea", "binary", "'\\x00'::bytea", None),
        ("integer", "int32", "NULL::integer", ""),
    ],
)
def test_defaults_of_postgresql(
    kind: str, neutral: str, default: str, expected: str | None
) -> None:
    """Plain values and the present time have an equal in MySQL; expressions are named."""
    found = extras(table(column(kind, neutral, default)), PG, MY)
    if expected is None:
        assert found.defaults == {}
        assert "column c has no default" in found.lacking[0]
    else:
        assert found.defaults == ({"c": expected} if expected else {})
        assert found.lacking == []


@pytest.mark.parametrize(
    ("kind", "neutral", "default", "expected"),
    [
        ("int", "int32", "'7'", "'7'::integer"),
        ("int", "int32", "7", "7"),
        ("varchar(9)", "string", "'it\\'s'", "'it''s'::character varying(9)"),
        ("datetime(3)", "timestamp", "current_timestamp(3)", "current_timestamp(3)"),
        ("bit(4)", "string", "b'101'", "B'0101'"),
        ("int", "int32", "(1 + 2)", None),
        ("char(36)", "string", "uuid()", None),
    ],
)
def test_defaults_of_mysql(kind: str, neutral: str, default: str, expected: str | None) -> None:
    """Defaults of MySQL are translated to PostgreSQL in the same way."""
    found = extras(table(column(kind, neutral, default, charset="utf8mb4")), MY, PG)
    assert found.defaults == ({} if expected is None else {"c": expected})
    assert bool(found.lacking) is (expected is None)


def test_numbers_that_the_server_gives() -> None:
    """Such numbers become AUTO_INCREMENT or identity if allowed, and are named otherwise."""
    serial = column("bigint", "int64", "nextval('shop.t_c_seq'::regclass)")
    assert extras(table(serial, primary_key=("c",)), PG, MY).counted == ["c"]
    assert "not counted up" in extras(table(serial), PG, MY).lacking[0]
    counted = column("int unsigned", "uint32", identity_kind="d")
    assert extras(table(counted, primary_key=("c",)), MY, PG).counted == ["c"]
    huge = column("bigint unsigned", "uint64", identity_kind="d")
    assert "not counted up" in extras(table(huge, primary_key=("c",)), MY, PG).lacking[0]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("CREATE INDEX i ON shop.t USING btree (c)", True),
        ("CREATE INDEX i ON shop.t USING btree (c DESC)", True),
        ("CREATE INDEX i ON shop.t USING btree (c) WHERE (c > 1)", False),
        ("CREATE INDEX i ON shop.t USING gin (c)", False),
        ("CREATE INDEX i ON shop.t USING btree (abs(c))", False),
        ("CREATE INDEX i ON shop.t USING btree (c) INCLUDE (d)", False),
        ("CREATE INDEX i ON shop.t USING btree (c varchar_pattern_ops)", False),
    ],
)
def test_indexes_of_postgresql(text: str, made: bool) -> None:
    """Plain ones over columns are translated."""
    found = extras(table(column("integer", "int32"), indexes=(text,)), PG, MY)
    assert [index.name for index in found.indexes] == (["i"] if made else [])
    assert bool(found.lacking) is not made


@pytest.mark.parametrize(
    ("kind", "text", "made"),
    [
        ("int", "key `i` (`c`)", True),
        ("varchar(100)", "key `i` (`c`)", True),
        ("varchar(700)", "key `i` (`c`)", False),
        ("varchar(100)", "key `i` (`c`(10))", False),
        ("varchar(100)", "fulltext key `i` (`c`)", False),
        ("int", "key `i` ((`c` + 1))", False),
    ],
)
def test_indexes_of_mysql(kind: str, text: str, made: bool) -> None:
    """Indexes whose length might make PostgreSQL refuse a value are not translated."""
    neutral = "int32" if kind == "int" else "string"
    definition = table(column(kind, neutral, charset="utf8mb4"), indexes=(text,))
    found = extras(definition, MY, PG)
    assert [index.name for index in found.indexes] == (["i"] if made else [])
    for index in found.indexes:
        assert postgres_index(index, NAME) == 'CREATE INDEX "t_i" ON "shop"."t" ("c")'


def test_foreign_keys() -> None:
    """Their rules are kept; those that MySQL lacks, or PostgreSQL would refuse, are named."""
    text = "FOREIGN KEY (c) REFERENCES shop.u(id) ON DELETE SET NULL DEFERRABLE"
    key = ForeignKey(
        name="f", columns=("c",), target=TableName("shop", "u"), target_columns=("id",),
        definition=text,
    )  # fmt: skip
    definition = table(column("integer", "int32"), foreign_keys=(key,))
    (found,) = extras(definition, PG, MY).foreign_keys
    assert (found.on_delete, found.on_update) == ("SET NULL", "NO ACTION")
    worse = replace(key, definition=text.replace("SET NULL", "SET DEFAULT"))
    assert extras(replace(definition, foreign_keys=(worse,)), PG, MY).foreign_keys == []
    assert "ON DELETE SET NULL" in postgres_foreign_key(found).definition
    parent = replace(definition, name=TableName("shop", "u"), primary_key=("id",))
    assert referable(key, {parent.name: parent}) == ""
    assert "no key" in referable(key, {parent.name: replace(parent, primary_key=())})
    unique = UniqueKey(name="k", columns=("id",), definition="", is_constraint=True)
    loose = replace(parent, primary_key=(), unique_keys=(unique,))
    assert referable(key, {parent.name: loose}) == ""
    assert "not captured" in referable(key, {})


def test_long_names_stay_distinct() -> None:
    """Long names are cut to the target's length, with a suffix that distinguishes them."""
    names = ["x" * 70 + "1", "x" * 70 + "2", "ä" * 40]
    for short, size in ((postgres_name, 63), (mysql_name, 64)):
        made = [short(name) for name in names]
        assert len(set(made)) == len(names)
        assert all(len(name) <= size for name in made)
    assert len(postgres_name("ä" * 40).encode()) <= 63
    assert postgres_name("short") == "short"
