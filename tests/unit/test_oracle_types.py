"""Oracle's types: texts, rows of the catalogue, neutral types, and what holds them elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping as Namespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.oracle.types import BUILTIN, catalogue_type, neutral_type, parse_type
from penstock.codec.types import (
    Choices,
    Engine,
    Mapping,
    Server,
    TypeChoiceUnknown,
    ValueUnfit,
    builtin_types,
    convert_values,
    map_column,
    map_lake_column,
    map_table,
    parse_choices,
)
from penstock.model import ColumnDefinition, TableDefinition, TableName

ORACLE = Server(engine=Engine.ORACLE, version=(19,))
POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 4, 0))
SQLSERVER = Server(engine=Engine.SQLSERVER, version=(16,))
DELTA = Server(engine=Engine.DELTA, version=())
TARGETS = (POSTGRES, MYSQL, SQLSERVER, DELTA)


@pytest.mark.parametrize(
    ("text", "shown", "neutral"),
    [
        ("NUMBER(4)", "NUMBER(4,0)", "int16"),
        ("number(5,0)", "NUMBER(5,0)", "int32"),
        ("NUMBER(10)", "NUMBER(10,0)", "int64"),
        ("NUMBER(18)", "NUMBER(18,0)", "int64"),
        ("NUMBER(19)", "NUMBER(19,0)", "decimal(19,0)"),
        ("DECIMAL(12, 2)", "NUMBER(12,2)", "decimal(12,2)"),
        ("NUMBER(3,5)", "NUMBER(3,5)", "decimal(5,5)"),
        ("NUMBER(5,-2)", "NUMBER(5,-2)", "int32"),
        ("NUMBER(38,-84)", "NUMBER(38,-84)", "string"),
        ("NUMBER(2,40)", "NUMBER(2,40)", "string"),
        ("NUMBER(*,0)", "NUMBER(*,0)", "decimal(38,0)"),
        ("INTEGER", "NUMBER(*,0)", "decimal(38,0)"),
        ("NUMBER", "NUMBER", "string"),
        ("FLOAT", "FLOAT(126)", "string"),
        ("REAL", "FLOAT(63)", "string"),
        ("BINARY_FLOAT", "BINARY_FLOAT", "float32"),
        ("BINARY_DOUBLE", "BINARY_DOUBLE", "float64"),
        ("VARCHAR2(60 CHAR)", "VARCHAR2(60 CHAR)", "string"),
        ("VARCHAR2(60 BYTE)", "VARCHAR2(60)", "string"),
        ("VARCHAR(60)", "VARCHAR2(60)", "string"),
        ("CHAR", "CHAR(1)", "string"),
        ("RAW(16)", "RAW(16)", "binary"),
        ("LONG RAW", "LONG RAW", "binary"),
        ("BLOB", "BLOB", "binary"),
        ("DATE", "DATE", "timestamp"),
        ("TIMESTAMP", "TIMESTAMP(6)", "timestamp"),
        ("TIMESTAMP (9)", "TIMESTAMP(9)", "timestamp"),
        ("TIMESTAMP(3) WITH TIME ZONE", "TIMESTAMP(3) WITH TIME ZONE", "string"),
        ("timestamp with local time zone", "TIMESTAMP(6) WITH LOCAL TIME ZONE", "timestamptz"),
        ("INTERVAL YEAR TO MONTH", "INTERVAL YEAR(2) TO MONTH", "string"),
        ("INTERVAL DAY(0) TO SECOND(9)", "INTERVAL DAY(0) TO SECOND(9)", "string"),
        ("SDO_GEOMETRY", "SDO_GEOMETRY", "string"),
        ("MDSYS.POINT(3)", "MDSYS.POINT(3)", "string"),
        ("CLOB(9)", "CLOB(9)", "string"),
    ],
)
def test_types_are_parsed(text: str, shown: str, neutral: str) -> None:
    """A text is the same after it is parsed again, and decides the values' type in the log."""
    kind = parse_type(text)
    assert (kind.text, neutral_type(text)) == (shown, neutral)
    assert parse_type(kind.text) == kind
    assert kind.is_builtin == (shown not in ("SDO_GEOMETRY", "MDSYS.POINT(3)", "CLOB(9)"))


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (("NUMBER", 22, 10, 2), "NUMBER(10,2)"),
        (("NUMBER", 22, None, 0), "NUMBER(*,0)"),
        (("NUMBER", 22, None, None), "NUMBER"),
        (("FLOAT", 22, 126, None), "FLOAT(126)"),
        (("DATE", 7, None, None), "DATE"),
        (("TIMESTAMP(9)", 11, None, 9), "TIMESTAMP(9)"),
        (("TIMESTAMP(6) WITH LOCAL TIME ZONE", 11, None, 6), "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
        (("INTERVAL DAY(2) TO SECOND(6)", 11, 2, 6), "INTERVAL DAY(2) TO SECOND(6)"),
        (("RAW", 16, None, None), "RAW(16)"),
        (("VARCHAR2", 40, None, None), "VARCHAR2(40)"),
        (("CLOB", 4000, None, None), "CLOB"),
    ],
)
def test_types_of_the_catalogue(row: tuple[Any, ...], shown: str) -> None:
    """INTEGER has a scale and no precision there."""
    assert catalogue_type(*row).text == shown


def test_lengths_in_characters() -> None:
    """National types always count characters, others if CHAR_USED says so."""
    kind = catalogue_type("NVARCHAR2", 80, None, None, characters=40, is_in_characters=True)
    assert kind.text == "NVARCHAR2(40)"
    kind = catalogue_type("VARCHAR2", 240, None, None, characters=60, is_in_characters=True)
    assert kind.text == "VARCHAR2(60 CHAR)"
    assert catalogue_type("NCHAR", 20, None, None).text == "NCHAR(10)"
    assert parse_type("CLOB").is_large
    assert not parse_type("RAW(9)").is_large


def definition(text: str, neutral: str = "", name: str = "v") -> ColumnDefinition:
    """Return a column."""
    neutral = neutral or neutral_type(text)
    return ColumnDefinition(name=name, type_text=text, type_oid=0, typmod=-1, neutral=neutral)


def map_type(
    text: str,
    target: Server,
    *,
    neutral: str = "",
    chosen: Namespace[str, str] | None = None,
    key_bytes: int | None = None,
) -> Mapping:
    """Return the mapping of a type."""
    choices = Choices(by_scope={(loss, ""): one for loss, one in (chosen or {}).items()})
    column = definition(text, neutral)
    return map_column(column, ORACLE, target, choices=choices, key_bytes=key_bytes)


HELD = [
    ("NUMBER(4)", "smallint", "smallint", "smallint", "int32"),
    ("NUMBER(9)", "integer", "int", "int", "int32"),
    ("NUMBER(18)", "bigint", "bigint", "bigint", "int64"),
    ("NUMBER(5,-2)", "integer", "int", "int", "int32"),
    ("NUMBER(12,2)", "numeric(12,2)", "decimal(12,2)", "decimal(12,2)", "decimal(12,2)"),
    ("NUMBER(3,5)", "numeric(5,5)", "decimal(5,5)", "decimal(5,5)", "decimal(5,5)"),
    ("NUMBER(*,0)", "numeric", "decimal(38,0)", "decimal(38,0)", "decimal(38,0)"),
    ("NUMBER", "numeric", "decimal(65,30)", "nvarchar(max)", "string"),
    ("FLOAT(126)", "numeric", "decimal(65,30)", "nvarchar(max)", "string"),
    ("BINARY_FLOAT", "real", "float", "real", "float32"),
    ("BINARY_DOUBLE", "double precision", "double", "float", "float64"),
    ("CHAR(10)", "character varying(10)", "varchar(10)", "nvarchar(20)", "string"),
    ("NVARCHAR2(10)", "character varying(10)", "varchar(10)", "nvarchar(20)", "string"),
    ("CLOB", "text", "longtext", "nvarchar(max)", "string"),
    ("RAW(9)", "bytea", "longblob", "varbinary(max)", "binary"),
    ("DATE", "timestamp(0) without time zone", "datetime(0)", "datetime2(0)", "timestamp"),
    ("TIMESTAMP(3)", "timestamp(3) without time zone", "datetime(3)", "datetime2(3)", "timestamp"),
    ("TIMESTAMP(9)", "timestamp(6) without time zone", "datetime(6)", "datetime2(6)", "timestamp"),
    ("TIMESTAMP(6) WITH TIME ZONE", "timestamp(6) with time zone", "datetime(6)",
     "datetimeoffset(6)", "timestamptz"),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "timestamp(6) with time zone", "datetime(6)",
     "datetimeoffset(6)", "timestamptz"),
    ("INTERVAL YEAR TO MONTH", "interval", "varchar(40)", "nvarchar(80)", "string"),
    ("INTERVAL DAY TO SECOND", "interval", "varchar(40)", "nvarchar(80)", "string"),
    ("ROWID", "character varying(18)", "varchar(18)", "nvarchar(36)", "string"),
]  # fmt: skip


@pytest.mark.parametrize("held", HELD, ids=lambda held: held[0])
def test_types_elsewhere(held: tuple[str, ...]) -> None:
    """Character sets and collations are left out here."""
    text, *expected = held
    found = [map_type(text, target) for target in TARGETS]
    names = [one.target_type.split(" character set")[0].split(" COLLATE")[0] for one in found]
    assert names == expected
    assert not any(one.refused for one in found)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_refused_types_say_why(target: Server) -> None:
    """Each is refused by name, and so are types of objects."""
    reasons = {text: map_type(text, target).refused for text in ("JSON", "XMLTYPE", "BOOLEAN")}
    assert reasons["JSON"].startswith("penstock carries no JSON: LogMiner has its values in")
    assert "cannot be put together" in reasons["XMLTYPE"]
    assert "does not support" in reasons["BOOLEAN"]
    assert "objects or collections" in map_type("SHOP.ADDRESS", target).refused


def losses_of(text: str, target: Server, **more: Any) -> set[str]:
    """Return the names of the losses of a type."""
    return {loss.name for loss in map_type(text, target, **more).losses}


def test_losses() -> None:
    """A number has no NaN; dates before the year 1 and nanoseconds are losses where they are."""
    assert [losses_of("NUMBER(12,2)", target) for target in TARGETS] == [set()] * 4
    assert losses_of("BINARY_DOUBLE", MYSQL) == {"not a number"}
    assert losses_of("NUMBER", MYSQL) == {"digits"}
    assert losses_of("DATE", POSTGRES) == set()
    assert losses_of("DATE", MYSQL) == losses_of("DATE", DELTA) == {"dates out of range"}
    assert losses_of("TIMESTAMP(9)", POSTGRES) == {"nanoseconds"}
    for target in (MYSQL, SQLSERVER, DELTA):
        assert losses_of("TIMESTAMP(9)", target) == {"nanoseconds", "dates out of range"}
    zoned = "TIMESTAMP(9) WITH TIME ZONE"
    assert losses_of(zoned, POSTGRES) == {"nanoseconds", "offsets"}
    assert losses_of(zoned, SQLSERVER) == {"nanoseconds", "dates out of range"}
    assert losses_of("VARCHAR2(9)", POSTGRES) == {"nul characters"}
    assert "long keys" in losses_of("RAW(900)", POSTGRES, key_bytes=100)
    assert "long keys" not in losses_of("RAW(90)", POSTGRES, key_bytes=100)
    assert "long keys" in losses_of("VARCHAR2(90)", POSTGRES, key_bytes=100)


def test_columns_that_became_text_are_cast() -> None:
    """The target's column keeps its type."""
    assert map_type("NUMBER(4)", POSTGRES).write.sql == "{}"
    assert map_type("NUMBER(4)", POSTGRES, neutral="string").write.sql == "({})::smallint"
    assert map_type("NUMBER(9,2)", POSTGRES, neutral="string").write.sql == "({})::numeric(9,2)"
    found = map_type("TIMESTAMP(3)", POSTGRES, neutral="string").write.sql
    assert found == "({})::timestamp(3) without time zone"
    chosen = {"nanoseconds": "round"}
    found = map_type("TIMESTAMP(9)", POSTGRES, neutral="string", chosen=chosen).write.sql
    assert "left({}, 26)::timestamp" in found
    chosen = {"offsets": "utc"}
    found = map_type("TIMESTAMP(6) WITH TIME ZONE", POSTGRES, chosen=chosen).write.sql
    assert found == "({})::timestamp(6) with time zone"


def test_a_lake_reads_the_texts() -> None:
    """Texts of the decoders are those that a lake converts."""
    zoned = definition("TIMESTAMP(9) WITH TIME ZONE")
    texts = pa.array(["2026-01-01 00:00:00.5+05:30", None])
    utc = Choices(by_scope={("offsets", ""): "utc"})
    mapping = map_lake_column(zoned, "oracle", choices=utc)
    found = convert_values(texts, "timestamptz", mapping=mapping).to_pylist()
    assert found == [dt.datetime(2025, 12, 31, 18, 30, 0, 500000, dt.UTC), None]
    with pytest.raises(ValueUnfit, match="offset"):
        convert_values(texts, "timestamptz", mapping=map_lake_column(zoned, "oracle"))
    number = map_lake_column(definition("NUMBER(*,0)", "string"), "oracle")
    assert convert_values(pa.array(["12"]), number.type, mapping=number).to_pylist() == [12]


def test_choices_name_types_of_oracle() -> None:
    """Names are in lower case, and the same as elsewhere for zoned times."""
    assert builtin_types(Engine.ORACLE) >= {"number", "varchar2", "timestamptz", "date"}
    assert len(builtin_types(Engine.ORACLE)) == len(BUILTIN)
    given = {"timestamp with time zone offsets": "utc", "date dates out of range": "null"}
    choices = parse_choices(given, Engine.ORACLE)
    assert choices.by_scope == {
        ("offsets", "timestamptz"): "utc",
        ("dates out of range", "date"): "null",
    }
    with pytest.raises(TypeChoiceUnknown):
        parse_choices({"numeric digits": "error"}, Engine.ORACLE)


def test_keys_share_the_room_of_the_target() -> None:
    """Lengths of Oracle's types count; numbers need little."""
    names = ["NUMBER(9)", "VARCHAR2(100)", "RAW(16)", "ROWID", "INTERVAL YEAR TO MONTH"]
    columns = tuple(definition(text, name=f"c{at}") for at, text in enumerate(names))
    table = TableDefinition(
        name=TableName("SHOP", "T"),
        source_id=1,
        columns=columns,
        primary_key=tuple(column.name for column in columns),
        identity_columns=tuple(column.name for column in columns),
    )
    found = map_table(table, ORACLE, MYSQL)
    assert [one.target_type.split(" ")[0] for one in found.values()] == [
        "int", "varchar(100)", "varbinary(16)", "varchar(18)", "varchar(40)",
    ]  # fmt: skip
