"""Types of every engine in Oracle, and the checks of their values."""

from __future__ import annotations

from collections.abc import Mapping as Namespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.image_cells import EMPTY_AS_NULL, parse_template
from penstock.codec.mysql.types import neutral_type as mysql_neutral
from penstock.codec.oracle.types import neutral_type as oracle_neutral
from penstock.codec.sqlserver.types import neutral_type as sqlserver_neutral
from penstock.codec.types import (
    Choices,
    Engine,
    Mapping,
    NameRefused,
    NameRules,
    Server,
    builtin_types,
    map_column,
    map_table,
    prepare_values,
    target_columns,
)
from penstock.codec.types.prepare import ValueRefused
from penstock.model import ColumnDefinition, TableDefinition, TableName

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 4, 0))
MARIADB = Server(engine=Engine.MARIADB, version=(11, 4, 0))
SQLSERVER = Server(engine=Engine.SQLSERVER, version=(16,))
IGNITE = Server(engine=Engine.IGNITE, version=(2,))
ORACLE = Server(engine=Engine.ORACLE, version=(19,))
OLD_ORACLE = Server(engine=Engine.ORACLE, version=(12, 1))


def column(type_text: str, neutral: str = "string", name: str = "v") -> ColumnDefinition:
    """Return a column."""
    return ColumnDefinition(name=name, type_text=type_text, type_oid=0, typmod=-1, neutral=neutral)


def map_type(
    type_text: str,
    neutral: str,
    source: Server = POSTGRES,
    *,
    chosen: Namespace[str, str] | None = None,
    key_bytes: int | None = None,
) -> Mapping:
    """Return the mapping of a type to Oracle."""
    choices = Choices(by_scope={(loss, ""): one for loss, one in (chosen or {}).items()})
    return map_column(
        column(type_text, neutral), source, ORACLE, choices=choices, key_bytes=key_bytes
    )


def losses(found: Mapping) -> set[str]:
    """Return the names of a mapping's losses."""
    return {loss.name for loss in found.losses}


@pytest.mark.parametrize(
    ("text", "neutral", "target", "lost"),
    [
        ("boolean", "bool", "NUMBER(1)", set()),
        ("bigint", "int64", "NUMBER(19)", set()),
        ("xid8", "uint64", "NUMBER(20)", set()),
        ("real", "float32", "BINARY_FLOAT", set()),
        ("double precision", "float64", "BINARY_DOUBLE", set()),
        ("numeric(12,2)", "decimal(12,2)", "NUMBER(12,2)", {"not a number"}),
        ("numeric(38,38)", "decimal(38,38)", "NUMBER(38,38)", {"not a number"}),
        ("numeric(5,-2)", "string", "NUMBER(7)", {"not a number"}),
        ("numeric(39,0)", "string", "NUMBER", {"digits", "not a number"}),
        ("numeric", "string", "NUMBER", {"digits", "not a number"}),
        ("text", "string", "CLOB", {"empty values"}),
        ("character varying(1000)", "string", "VARCHAR2(1000 CHAR)", {"empty values"}),
        ("character varying(1001)", "string", "CLOB", {"empty values"}),
        ("character(10)", "string", "VARCHAR2(10 CHAR)", set()),
        ("bytea", "binary", "BLOB", {"empty values"}),
        ("uuid", "uuid", "VARCHAR2(36 CHAR)", set()),
        ("date", "date", "DATE", {"dates out of range"}),
        ("time without time zone", "time", "VARCHAR2(15 CHAR)", set()),
        ("timestamp(3) without time zone", "timestamp", "TIMESTAMP(3)", {"dates out of range"}),
        (
            "timestamp with time zone",
            "timestamptz",
            "TIMESTAMP(6) WITH TIME ZONE",
            {"dates out of range"},
        ),
        ("interval", "string", "VARCHAR2(128 CHAR)", set()),
        ("jsonb", "string", "CLOB", set()),
        ("integer[]", "string", "CLOB", set()),
        ("shop.mood", "string", "CLOB", {"empty values"}),
    ],
)
def test_types_of_postgres(text: str, neutral: str, target: str, lost: set[str]) -> None:
    """Losses need a choice, and an empty text is one of them."""
    found = map_type(text, neutral)
    assert (found.target_type, losses(found)) == (target, lost)


@pytest.mark.parametrize(
    ("text", "target", "lost"),
    [
        ("tinyint(1)", "NUMBER(3)", set()),
        ("bigint unsigned", "NUMBER(20)", set()),
        ("bit(64)", "NUMBER(20)", set()),
        ("decimal(38,10)", "NUMBER(38,10)", set()),
        ("decimal(65,30)", "VARCHAR2(68 CHAR)", set()),
        ("year", "NUMBER(4)", set()),
        ("time(3)", "VARCHAR2(17 CHAR)", set()),
        ("date", "DATE", {"zero dates", "dates out of range"}),
        ("datetime(3)", "TIMESTAMP(3)", {"zero dates", "dates out of range"}),
        ("timestamp", "TIMESTAMP(0) WITH TIME ZONE", {"zero dates", "dates out of range"}),
        ("char(10)", "VARCHAR2(10 CHAR)", {"empty values"}),
        ("longtext", "CLOB", {"empty values"}),
        ("binary(16)", "RAW(16)", set()),
        ("varbinary(2000)", "RAW(2000)", {"empty values"}),
        ("varbinary(2001)", "BLOB", {"empty values"}),
        ("enum('a','b')", "CLOB", {"empty values"}),
        ("json", "CLOB", set()),
        ("point", "BLOB", set()),
    ],
)
def test_types_of_mysql(text: str, target: str, lost: set[str]) -> None:
    """TIME has more hours than a day, so it is text; a label may be the empty one."""
    found = map_type(text, mysql_neutral(text), MYSQL)
    assert (found.target_type, losses(found)) == (target, lost)


@pytest.mark.parametrize(
    ("text", "target", "lost"),
    [
        ("bit", "NUMBER(1)", set()),
        ("money", "NUMBER(19,4)", set()),
        ("nvarchar(max)", "CLOB", {"empty values"}),
        ("nvarchar(100)", "VARCHAR2(100 CHAR)", {"empty values"}),
        ("datetime2(7)", "TIMESTAMP(7)", set()),
        ("datetimeoffset(7)", "TIMESTAMP(7) WITH TIME ZONE", set()),
        ("time(7)", "VARCHAR2(16 CHAR)", set()),
        ("uniqueidentifier", "VARCHAR2(36 CHAR)", set()),
        ("rowversion", "RAW(8)", set()),
        ("varbinary(max)", "BLOB", {"empty values"}),
        ("geography", "BLOB", set()),
        ("hierarchyid", "CLOB", {"empty values"}),
    ],
)
def test_types_of_sql_server(text: str, target: str, lost: set[str]) -> None:
    """A seventh digit and an offset have a place in Oracle, so nothing is rounded."""
    found = map_type(text, sqlserver_neutral(text), SQLSERVER)
    assert (found.target_type, losses(found)) == (target, lost)


@pytest.mark.parametrize(
    ("text", "target", "sql"),
    [
        ("NUMBER", "NUMBER", "TO_NUMBER({})"),
        ("NUMBER(9,2)", "NUMBER(9,2)", "{}"),
        ("FLOAT(63)", "FLOAT(63)", "TO_NUMBER({})"),
        ("VARCHAR2(20)", "VARCHAR2(20 CHAR)", "{}"),
        ("VARCHAR2(32767)", "CLOB", "{}"),
        ("CHAR(3 CHAR)", "CHAR(3 CHAR)", "{}"),
        ("NVARCHAR2(10)", "NVARCHAR2(10)", "{}"),
        ("DATE", "DATE", "CAST({} AS DATE)"),
        ("TIMESTAMP(3)", "TIMESTAMP(3)", "{}"),
        ("INTERVAL YEAR(4) TO MONTH", "INTERVAL YEAR(4) TO MONTH", "TO_YMINTERVAL({})"),
        ("RAW(16)", "RAW(16)", "{}"),
        ("ROWID", "VARCHAR2(18 CHAR)", "{}"),
        ("LONG", "CLOB", "{}"),
    ],
)
def test_between_oracles(text: str, target: str, sql: str) -> None:
    """Every type stays, without a loss; a length in bytes becomes one in characters."""
    found = map_type(text, oracle_neutral(text), ORACLE)
    assert (found.target_type, found.write.sql, losses(found)) == (target, sql, set())


def test_zones_stay_between_oracles() -> None:
    """A zoned moment keeps its offset, and a local one is the moment in UTC."""
    zoned = map_type("TIMESTAMP(9) WITH TIME ZONE", "string", ORACLE)
    assert zoned.target_type == "TIMESTAMP(9) WITH TIME ZONE"
    assert zoned.write.sql.startswith("TO_TIMESTAMP_TZ({}, 'SYYYY")
    local = map_type("TIMESTAMP(6) WITH LOCAL TIME ZONE", "timestamptz", ORACLE)
    assert local.write.sql == "FROM_TZ({}, '+00:00')"


def test_an_empty_lob_is_not_null_in_oracle() -> None:
    """EMPTY_CLOB() has a value in the log, and would be NULL in the target."""
    assert losses(map_type("CLOB", "string", ORACLE)) == {"empty values"}
    assert losses(map_type("BLOB", "binary", ORACLE)) == {"empty values"}


@pytest.mark.parametrize("source", [POSTGRES, MYSQL, MARIADB, SQLSERVER, IGNITE, ORACLE], ids=str)
def test_every_builtin_type_has_a_place_or_a_reason(source: Server) -> None:
    """No type of any engine is forgotten: it is held, or refused by name."""
    for name in builtin_types(source.engine):
        text = f"{name}('a')" if name in ("enum", "set") else name
        found = map_type(text.upper() if source is ORACLE else text, "string", source)
        assert bool(found.target_type) != bool(found.refused), name
        if not found.refused:
            assert "{}" in found.equal.source, name
            assert found.equal.target.endswith(" {}"), name
            assert "CLOB" not in map_type(text, "string", source, key_bytes=400).target_type or (
                source is ORACLE
            ), name


def test_keys() -> None:
    """A key has no CLOB and no BLOB; a value that may be too long is a loss."""
    found = map_type("text", "string", key_bytes=6000)
    assert (found.target_type, losses(found)) == (
        "VARCHAR2(4000 BYTE)",
        {"long keys", "empty values"},
    )
    found = map_type("character varying(100)", "string", key_bytes=400)
    assert (found.target_type, losses(found)) == ("VARCHAR2(100 CHAR)", {"empty values"})
    found = map_type("bytea", "binary", key_bytes=300)
    assert (found.target_type, losses(found)) == ("RAW(300)", {"long keys", "empty values"})


def plan(key: tuple[str, ...], choices: Choices, count: int = 2) -> dict[str, Mapping]:
    """Return the plan of a table whose columns are text."""
    columns = tuple(column("character varying(10)", name=f"c{n}") for n in range(count))
    table = TableDefinition(
        name=TableName("shop", "t"),
        source_id=1,
        columns=columns,
        primary_key=key,
        identity_columns=key,
    )
    return map_table(table, POSTGRES, ORACLE, choices=choices)


def test_a_key_is_never_null() -> None:
    """NULL in place of an empty text is refused in a key, and makes other columns nullable."""
    found = plan(("c0",), Choices(by_scope={("empty values", ""): "null"}))
    assert "rows are found by it" in found["c0"].refused
    assert found["c1"].may_be_null
    assert found["c1"].may_run


@pytest.mark.parametrize(("key", "most"), [((), 998), (("c0",), 996)])
def test_a_table_with_too_many_columns(key: tuple[str, ...], most: int) -> None:
    """A merge table has columns beside those of its table, and 1,000 at most."""
    assert plan(key, Choices(), most)["c0"].refused == ""
    assert "at most 1,000 columns" in plan(key, Choices(), most + 1)["c0"].refused


# -- values ----------------------------------------------------------------------------------------


def prepare(found: Mapping, values: Any) -> list[Any]:
    """Return values as they are sent."""
    return prepare_values(values, found.write.prepare).to_pylist()


def test_an_empty_text_stops_or_is_null() -> None:
    """An empty text is never written silently."""
    values = pa.array(["a", "", None, " "])
    with pytest.raises(ValueRefused, match="empty values") as caught:
        prepare(map_type("text", "string", chosen={"empty values": "error"}), values)
    assert caught.value.fields["count"] == 1
    chosen = map_type("text", "string", chosen={"empty values": "null"})
    assert prepare(chosen, values) == ["a", None, None, " "]
    raw = map_type("bytea", "binary", chosen={"empty values": "null"})
    assert prepare(raw, pa.array([b"", b"\0"])) == [None, b"\0"]


def test_a_type_that_prints_no_empty_text_is_checked() -> None:
    """The load stops where a server prints one nevertheless."""
    assert prepare(map_type("jsonb", "string"), pa.array(["{}"])) == ["{}"]
    with pytest.raises(ValueRefused):
        prepare(map_type("jsonb", "string"), pa.array([""]))


@pytest.mark.parametrize(
    ("given", "rounded"),
    [
        ("1" * 38, "1" * 38),
        ("1" * 38 + "000", "1" * 38 + "000"),
        ("-0.000" + "9" * 38, "-0.000" + "9" * 38),
        ("1" * 38 + ".5", "1" * 37 + "2"),
        ("9" * 39, "1" + "0" * 39),
        ("0." + "0" * 135 + "1", "0"),
    ],
)
def test_digits(given: str, rounded: str) -> None:
    """A NUMBER has 38 digits for certain; more stop the load, or are rounded half up."""
    values = pa.array([given, None, "NaN", "0"])
    chosen = map_type("numeric", "string", chosen={"digits": "round", "not a number": "null"})
    assert prepare(chosen, values) == [rounded, None, None, "0"]
    strict = map_type("numeric", "string", chosen={"digits": "error", "not a number": "null"})
    if given == rounded:
        assert prepare(strict, values) == [given, None, None, "0"]
    else:
        with pytest.raises(ValueRefused, match="digits"):
            prepare(strict, values)


def test_a_number_that_is_too_large_is_never_rounded() -> None:
    """Oracle has no number of 126 digits before the point."""
    chosen = map_type("numeric", "string", chosen={"digits": "round", "not a number": "null"})
    with pytest.raises(ValueRefused, match="digits"):
        prepare(chosen, pa.array(["9" * 126]))
    assert prepare(chosen, pa.array(["9" + "0" * 124])) == ["9" + "0" * 124]


@pytest.mark.parametrize(
    ("text", "source", "given", "sent"),
    [
        ("datetime2(7)", SQLSERVER, "2026-03-04 05:06:07.1234567", "2026-03-04 05:06:07.1234567"),
        ("datetime2(7)", SQLSERVER, "2026-03-04 05:06:07", "2026-03-04 05:06:07.0"),
        (
            "datetimeoffset(7)",
            SQLSERVER,
            "2026-03-04 05:06:07+05:30",
            "2026-03-04 05:06:07.0 +05:30",
        ),
        (
            "TIMESTAMP(9) WITH TIME ZONE",
            ORACLE,
            "0044-03-15 01:30:00.5-05:30 BC",
            "-0044-03-15 01:30:00.5 -05:30",
        ),
        (
            "timestamp with time zone",
            POSTGRES,
            "2026-03-04 05:06:07.5+00",
            "2026-03-04 05:06:07.5 +00:00",
        ),
        ("date", POSTGRES, "2026-03-04", "2026-03-04"),
    ],
)
def test_moments_as_oracle_reads_them(text: str, source: Server, given: str, sent: str) -> None:
    """Texts have one form, in which a mask with a fraction and an offset fits."""
    found = map_type(text, "string", source, chosen={"dates out of range": "error"})
    assert prepare(found, pa.array([given, None])) == [sent, None]


def test_dates_out_of_range() -> None:
    """The driver has years 1 to 9999; infinity is NULL by choice."""
    found = map_type("date", "string", chosen={"dates out of range": "null"})
    assert prepare(found, pa.array(["infinity", "10000-01-01", "2026-01-01"])) == [
        None,
        None,
        "2026-01-01",
    ]


def test_intervals_as_oracle_reads_them() -> None:
    """Oracle's ISO 8601 has one sign in front of the whole interval."""
    found = map_type("INTERVAL DAY(2) TO SECOND(6)", "string", ORACLE)
    assert prepare(found, pa.array(["P-5DT-4H-3M-2.5S", "P5DT4H3M2.5S", None])) == [
        "-P5DT4H3M2.5S",
        "P5DT4H3M2.5S",
        None,
    ]


def test_geometries_are_bytes() -> None:
    """EWKB arrives as digits and is sent as bytes."""
    found = map_type("point", "string", MYSQL)
    assert prepare(found, pa.array(["0101", None])) == [b"\x01\x01", None]


def test_templates_of_sql_server() -> None:
    """An empty text of SQL Server is compared as NULL if it is NULL in Oracle."""
    found = map_type("nvarchar(9)", "string", SQLSERVER, chosen={"empty values": "null"})
    assert parse_template(found.equal.source) == ("TEXT", EMPTY_AS_NULL)


# -- names -----------------------------------------------------------------------------------------


def test_names() -> None:
    """A name has 128 bytes, 30 before 12.2, and case counts, because names are quoted."""
    rules, old = NameRules.of(ORACLE), NameRules.of(OLD_ORACLE)
    assert rules.problem("x" * 128) == ""
    assert "128 bytes, the most in Oracle" in rules.problem("x" * 129)
    assert old.problem("x" * 30) == ""
    assert "30 bytes" in old.problem("é" * 16)
    with pytest.raises(NameRefused, match="double quote"):
        rules.column('a"b')
    table = TableDefinition(
        name=TableName("shop", "t"), source_id=1, columns=(column("text", name="a"),
                                                         column("text", name="A")),
    )  # fmt: skip
    assert target_columns(table, rules) == {"a": "a", "A": "A"}
