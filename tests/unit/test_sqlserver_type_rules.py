"""Types of PostgreSQL, MySQL and Ignite in SQL Server, checks of their values, and SQL Server's
types in lakes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping as Namespace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.sqlserver.types import neutral_type
from penstock.codec.types import (
    Choices,
    Engine,
    Mapping,
    NameRefused,
    NameRules,
    Server,
    ValueUnfit,
    convert_values,
    map_column,
    map_lake_column,
    map_table,
    parse_choices,
    prepare_values,
    target_names,
)
from penstock.codec.types.prepare import ValueRefused
from penstock.control.doctor.plan import ColumnPlan, Plan, PlannedTable
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.model import Column, ColumnDefinition, Relation, TableDefinition, TableName
from penstock.ports.target import ShapeNotApplicable

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 4, 0))
SQLSERVER = Server(engine=Engine.SQLSERVER, version=(16, 0))
BY_UNITS = "COLLATE Latin1_General_100_BIN2"
NAN, INF = float("nan"), float("inf")


def column(type_text: str, neutral: str = "string", **more: Any) -> ColumnDefinition:
    """Return a column v."""
    return ColumnDefinition(
        name="v", type_text=type_text, type_oid=0, typmod=-1, neutral=neutral, **more
    )


def map_type(
    type_text: str,
    neutral: str,
    source: Server = POSTGRES,
    *,
    chosen: Namespace[str, str] | None = None,
    key_bytes: int | None = None,
) -> Mapping:
    """Return the mapping of a type to SQL Server."""
    choices = Choices(by_scope={(loss, ""): one for loss, one in (chosen or {}).items()})
    return map_column(
        column(type_text, neutral), source, SQLSERVER, choices=choices, key_bytes=key_bytes
    )


@pytest.mark.parametrize(
    ("type_text", "neutral", "key_bytes", "target", "losses"),
    [
        ("character varying(450)", "string", 900, f"nvarchar(450) {BY_UNITS}",
         {"blanks in keys", "long keys"}),
        ("character varying(225)", "string", 900, f"nvarchar(450) {BY_UNITS}", {"blanks in keys"}),
        ("text", "string", 900, f"nvarchar(450) {BY_UNITS}", {"blanks in keys", "long keys"}),
        ("character varying(2001)", "string", None, f"nvarchar(max) {BY_UNITS}", set()),
        ("bytea", "binary", 900, "varbinary(900)", {"blanks in keys", "long keys"}),
        ("numeric(38,38)", "decimal(38,38)", None, "decimal(38,38)", {"not a number"}),
        ("numeric(39,0)", "string", None, f"nvarchar(max) {BY_UNITS}", set()),
        ("numeric(5,-2)", "string", None, "decimal(7,0)", {"not a number"}),
        ("numeric(3,5)", "string", None, "decimal(5,5)", {"not a number"}),
        ("timestamp(3) with time zone", "timestamptz", None, "datetimeoffset(3)",
         {"dates out of range"}),
        ("time without time zone", "time", None, "time(6)", {"dates out of range"}),
        ("double precision", "float64", None, "float", {"not a number", "subnormal numbers"}),
        ("bit(9)", "string", None, f"nvarchar(18) {BY_UNITS}", set()),
        ("integer[]", "string", None, f"nvarchar(max) {BY_UNITS}", set()),
    ],
)  # fmt: skip
def test_types_of_postgres(
    type_text: str, neutral: str, key_bytes: int | None, target: str, losses: set[str]
) -> None:
    """Types and losses are those of SQL Server's limits."""
    found = map_type(type_text, neutral, key_bytes=key_bytes)
    assert found.target_type == target
    assert {loss.name for loss in found.losses} == losses
    assert found.may_run == (not losses)


@pytest.mark.parametrize(
    ("type_text", "neutral", "target"),
    [
        ("tinyint", "int16", "smallint"),
        ("tinyint unsigned", "int16", "tinyint"),
        ("bigint unsigned", "uint64", "decimal(20,0)"),
        ("bit(63)", "uint64", "bigint"),
        ("bit(64)", "uint64", "decimal(20,0)"),
        ("decimal(65,30)", "string", f"nvarchar(68) {BY_UNITS}"),
        ("decimal(38,30)", "decimal(38,30)", "decimal(38,30)"),
        ("year", "int16", "smallint"),
        ("time(3)", "time", f"nvarchar(17) {BY_UNITS}"),
        ("timestamp", "timestamptz", "datetimeoffset(0)"),
        ("varbinary(8001)", "binary", "varbinary(max)"),
        ("enum('a','b')", "string", f"nvarchar(max) {BY_UNITS}"),
        ("point", "string", "varbinary(max)"),
    ],
)
def test_types_of_mysql(type_text: str, neutral: str, target: str) -> None:
    """Whole numbers keep their range, and times of over a day are text."""
    assert map_type(type_text, neutral, MYSQL).target_type == target


def prepare(
    type_text: str, neutral: str, values: Any, source: Server = POSTGRES, **chosen: str
) -> list[Any]:
    """Return values as they are staged. chosen: choices, with _ for blanks in their names."""
    named = {name.replace("_", " "): choice for name, choice in chosen.items()}
    found = map_type(type_text, neutral, source, chosen=named)
    made = prepare_values(values, found.write.prepare)
    return list(made.to_pylist())


ERROR_ALL = {
    "not_a_number": "error", "subnormal_numbers": "error", "dates_out_of_range": "error",
    "zero_dates": "error", "nanoseconds": "error",
}  # fmt: skip


def test_floats() -> None:
    """NaN, infinity and subnormal numbers are found by value; all others pass unchanged."""
    values = pa.array([1.5, -0.0, 2.2250738585072014e-308, 1.7976931348623157e308, None])
    arguments = ("double precision", "float64")
    assert prepare(*arguments, values, **ERROR_ALL)[:2] == [1.5, 0.0]
    for bad in (NAN, INF, -INF):
        with pytest.raises(ValueRefused, match="1 of the values: not a number"):
            prepare(*arguments, pa.array([1.0, bad]), **ERROR_ALL)
    nulls = {**ERROR_ALL, "not_a_number": "null", "subnormal_numbers": "zero"}
    assert prepare(*arguments, pa.array([1.0, NAN, -INF, 5e-324, -1e-310]), **nulls) == [
        1.0, None, None, 0.0, 0.0,
    ]  # fmt: skip
    reals = pa.array([1e-40, 1.1754943508222875e-38], pa.float32())
    assert prepare("real", "float32", reals, **nulls)[0] == 0.0
    assert prepare("real", "float32", reals, **nulls)[1] > 0
    with pytest.raises(ValueRefused, match="subnormal numbers"):
        prepare("real", "float32", reals, **ERROR_ALL)
    texts = {**ERROR_ALL, "not_a_number": "text"}
    assert prepare(*arguments, pa.array([0.1, NAN, INF]), **texts) == ["0.1", "NaN", "Infinity"]


def test_decimals_that_became_text() -> None:
    """NaN turned the column into text; its numbers are still numbers."""
    values = pa.array(["1.50", "NaN", None])
    chosen = {**ERROR_ALL, "not_a_number": "null"}
    assert prepare("numeric(12,2)", "string", values, **chosen) == ["1.50", None, None]
    assert map_type("numeric(12,2)", "string").write.sql == "CAST({} AS decimal(12,2))"
    assert map_type("numeric(12,2)", "decimal(12,2)").write.sql == "{}"
    with pytest.raises(ValueRefused):
        prepare("numeric(12,2)", "string", values, **ERROR_ALL)


@pytest.mark.parametrize(
    ("type_text", "neutral", "fit", "unfit"),
    [
        ("date", "date", [-719_162, 2_932_896], [-719_163, 2_932_897]),
        ("timestamp without time zone", "timestamp",
         [-62_135_596_800_000_000, 253_402_300_799_999_999],
         [-62_135_596_800_000_001, 253_402_300_800_000_000]),
    ],
)  # fmt: skip
def test_years(type_text: str, neutral: str, fit: list[int], unfit: list[int]) -> None:
    """The years 1 to 9999 fit, whole; the microsecond before and after does not."""
    physical, kind = (
        (pa.int32(), pa.date32()) if neutral == "date" else (pa.int64(), pa.timestamp("us"))
    )
    good = pa.array(fit, physical).view(kind)
    assert prepare_values(good, map_type(type_text, neutral).write.prepare).equals(good)
    for number in unfit:
        bad = pa.array([number], physical).view(kind)
        with pytest.raises(ValueRefused, match="dates out of range"):
            prepare_values(bad, map_type(type_text, neutral).write.prepare)
        chosen = map_type(type_text, neutral, chosen={"dates out of range": "null"})
        assert prepare_values(bad, chosen.write.prepare).null_count == 1


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("2026-03-04 05:06:07.5+00", True),
        ("0001-01-01 00:00:00+00", True),
        ("9999-12-31 23:59:59.999999+00", True),
        ("infinity", False),
        ("-infinity", False),
        ("0044-03-15 10:00:00+00 BC", False),
        ("10000-01-01 00:00:00+00", False),
        ("294276-12-31 23:59:59.999999+00", False),
        ("0000-01-01 00:00:00", False),
    ],
)
def test_moments_that_became_text(text: str, fits: bool) -> None:
    """Only what PostgreSQL has beyond SQL Server's calendar is refused."""
    found = map_type("timestamp with time zone", "string", chosen={"dates out of range": "null"})
    assert found.write.sql == "CAST({} AS datetimeoffset(6))"
    made = prepare_values(pa.array([text, None]), found.write.prepare).to_pylist()
    assert made == [text if fits else None, None]


def test_midnight_at_the_end_of_a_day() -> None:
    """SQL Server does not have PostgreSQL's 24:00:00."""
    found = map_type("time without time zone", "string", chosen={"dates out of range": "null"})
    made = prepare_values(pa.array(["24:00:00", "23:59:59.999999"]), found.write.prepare)
    assert made.to_pylist() == [None, "23:59:59.999999"]


def test_dates_of_mysql() -> None:
    """A day that no calendar has, and the year 0, have choices of their own."""
    values = pa.array(
        ["0000-00-00", "2024-02-30", "2023-02-29", "2024-02-29", "0000-02-29", "2024-04-31", None]
    )
    both = {"zero_dates": "null", "dates_out_of_range": "null"}
    assert prepare("date", "string", values, MYSQL, **both) == [
        None, None, None, "2024-02-29", None, None, None,
    ]  # fmt: skip
    with pytest.raises(ValueRefused, match="4 of the values: zero dates"):
        prepare("date", "string", values, MYSQL, zero_dates="error", dates_out_of_range="null")
    with pytest.raises(ValueRefused, match="1 of the values: dates out of range"):
        prepare("date", "string", values, MYSQL, zero_dates="null", dates_out_of_range="error")
    texts = {"zero_dates": "text", "dates_out_of_range": "text"}
    dates = pa.array([dt.date(2024, 2, 29), None])
    assert prepare("date", "date", dates, MYSQL, **texts) == ["2024-02-29", None]


def test_times_of_mysql() -> None:
    """A TIME is text with the digits that MySQL prints, also over 24 hours."""
    values = pa.array([-3_020_399_000_000, 500_000, None], pa.int64()).view(pa.time64("us"))
    found = map_type("time(3)", "time", MYSQL)
    assert found.write.needs_text
    assert prepare_values(values, found.write.prepare).to_pylist() == [
        "-838:59:59.000", "00:00:00.500", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type_text", "target", "sql"),
    [
        ("decimal(38,10)", "decimal(38,10)", "{}"),
        ("datetime2(7)", "datetime2(7)", "CAST({} AS datetime2(7))"),
        ("datetimeoffset(3)", "datetimeoffset(3)", "CAST({} AS datetimeoffset(3))"),
        ("hierarchyid", "hierarchyid", "hierarchyid::Parse({})"),
        ("rowversion", "binary(8)", "{}"),
        ("money", "money", "{}"),
        ("xml", "xml", "{}"),
        ("sql_variant", f"nvarchar(max) {BY_UNITS}", "{}"),
    ],
)
def test_between_sql_servers(type_text: str, target: str, sql: str) -> None:
    """Every type stays, without a choice; what cannot be written has a note."""
    found = map_column(column(type_text, neutral_type(type_text)), SQLSERVER, SQLSERVER)
    assert (found.target_type, found.write.sql, found.losses) == (target, sql, ())
    assert bool(found.note) == (type_text in ("rowversion", "sql_variant"))


def test_collations_stay_between_sql_servers() -> None:
    """A column keeps its collation; only a word is written into SQL."""
    given = column("nvarchar(40)", collation="Finnish_Swedish_100_CS_AS")
    found = map_column(given, SQLSERVER, SQLSERVER)
    assert found.target_type == "nvarchar(40) COLLATE Finnish_Swedish_100_CS_AS"
    hostile = column("nvarchar(40)", collation="x; DROP TABLE t")
    assert map_column(hostile, SQLSERVER, SQLSERVER).target_type == "nvarchar(40)"


def test_an_unknown_type_is_refused() -> None:
    """A CLR type of a user is known to no other engine, and its bytes to no other database."""
    for target in (POSTGRES, MYSQL, SQLSERVER):
        found = map_column(column("shop.money_bag"), SQLSERVER, target)
        assert found.refused == "penstock does not know the type shop.money_bag"


def lake(type_text: str, **chosen: str) -> Any:
    """Return the mapping of a type of SQL Server to a lake."""
    named = {name.replace("_", " "): choice for name, choice in chosen.items()}
    choices = parse_choices(named, Engine.SQLSERVER)
    given = column(type_text, neutral_type(type_text))
    return map_lake_column(given, "sqlserver", choices=choices)


def test_offsets_in_a_lake() -> None:
    """A lake has moments alone: an offset stops the load unless it may go."""
    values = pa.array(["2026-03-04 05:06:07.123456+05:30", "2026-03-04 05:06:07+00:00", None])
    with pytest.raises(ValueUnfit) as caught:
        convert_values(values, "timestamptz", mapping=lake("datetimeoffset(6)"))
    assert (caught.value.loss, caught.value.count) == ("offsets", 1)
    fine = convert_values(values[1:], "timestamptz", mapping=lake("datetimeoffset(6)"))
    assert fine.to_pylist() == [dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC), None]
    made = convert_values(values, "timestamptz", mapping=lake("datetimeoffset(6)", offsets="utc"))
    assert made.to_pylist()[0] == dt.datetime(2026, 3, 3, 23, 36, 7, 123456, tzinfo=dt.UTC)
    text = lake("datetimeoffset(6)", offsets="text")
    assert text.type == "string"
    assert convert_values(values, "string", mapping=text).to_pylist() == values.to_pylist()


def test_digits_in_a_lake() -> None:
    """A seventh digit is rounded half up, or stops the load."""
    values = pa.array(["2026-03-04 05:06:07.1234565", "2026-03-04 05:06:07.5"])
    with pytest.raises(ValueUnfit) as caught:
        convert_values(values, "timestamp", mapping=lake("datetime2(7)"))
    assert caught.value.loss == "nanoseconds"
    rounded = lake("datetime2(7)", nanoseconds="round")
    made = convert_values(values, "timestamp", mapping=rounded).cast(pa.int64()).to_pylist()
    assert [number % 1_000_000 for number in made] == [123_457, 500_000]


def test_an_offset_at_the_edge_of_the_calendar() -> None:
    """A moment that falls out of the years 1 to 9999 in UTC is refused."""
    values = pa.array(["0001-01-01 00:00:00+14:00"])
    with pytest.raises(ValueUnfit) as caught:
        convert_values(values, "timestamptz", mapping=lake("datetimeoffset(0)", offsets="utc"))
    assert caught.value.loss == "dates out of range"


def test_names_in_sql_server() -> None:
    """A name has 128 characters, and names that differ in case alone are one."""
    rules = NameRules.of(SQLSERVER)
    assert rules.problem("x" * 128) == ""
    assert "128 characters, the most in SQL Server" in rules.problem("x" * 129)
    assert rules.problem("😀" * 65)
    with pytest.raises(NameRefused, match="would both be"):
        target_names([TableName("dbo", "T"), TableName("dbo", "t")], {}, rules)


@pytest.mark.parametrize(("key", "most"), [((), 1022), (("c0",), 1020), (("c0", "c1", "c2"), 1018)])
@pytest.mark.parametrize("source", [POSTGRES, SQLSERVER], ids=str)
def test_a_table_with_too_many_columns(source: Server, key: tuple[str, ...], most: int) -> None:
    """A plan refuses a table whose merge table would have more than 1,024 columns, and no other."""
    type_text = "int" if source.engine is Engine.SQLSERVER else "integer"

    def plan(count: int) -> str:
        columns = tuple(
            ColumnDefinition(
                name=f"c{n}", type_text=type_text, type_oid=0, typmod=-1, neutral="int32"
            )
            for n in range(count)
        )
        table = TableDefinition(
            name=TableName("dbo", "wide"), source_id=1, columns=columns, primary_key=key,
            identity_columns=key,
        )  # fmt: skip
        return map_table(table, source, SQLSERVER)["c0"].refused

    assert plan(most) == ""
    assert f"at most 1,024 columns; this one has {most + 1:,}" in plan(most + 1)
    listed = [Column(name=f"c{n}", source_type=type_text, neutral="int32") for n in range(most + 1)]
    places = tuple(range(len(key)))
    shapes = [
        Relation(schema="dbo", name="wide", columns=tuple(some), key=places)
        for some in (listed[:-1], listed)
    ]
    assert len(MergeLayout(shapes[0]).sql_columns) == 1024
    with pytest.raises(ShapeNotApplicable, match="at most 1,024"):
        MergeLayout(shapes[1])


def test_keys_share_their_room() -> None:
    """The columns of a key have 900 bytes together."""
    columns = tuple(
        ColumnDefinition(
            name=name, type_text=text, type_oid=0, typmod=-1, neutral="string", not_null=True
        )
        for name, text in (("a", "text"), ("b", "character varying(20)"))
    )
    table = TableDefinition(
        name=TableName("public", "t"), source_id=1, columns=columns, primary_key=("a", "b"),
        identity_columns=("a", "b"),
    )  # fmt: skip
    found = map_table(table, POSTGRES, SQLSERVER)
    assert found["b"].target_type == f"nvarchar(40) {BY_UNITS}"
    assert found["a"].target_type == f"nvarchar(410) {BY_UNITS}"


def test_values_of_decimals() -> None:
    """A decimal that fits is staged as it is."""
    values = pa.array([Decimal("1.50"), None], pa.decimal128(12, 2))
    assert prepare("numeric(12,2)", "decimal(12,2)", values, **ERROR_ALL) == [
        Decimal("1.50"),
        None,
    ]


# --- types that are carried, and those that are refused -------------------------------------------

CARRIED = (
    "hierarchyid", "geometry", "geography", "sql_variant", "xml", "image", "text", "ntext", "json",
    "rowversion", "timestamp",
)  # fmt: skip
TARGETS = (POSTGRES, MYSQL, SQLSERVER, Server(engine=Engine.DELTA, version=(4, 4, 0)))


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.engine.value)
@pytest.mark.parametrize("text", CARRIED)
def test_rare_types_are_carried(text: str, target: Server) -> None:
    """Every type before SQL Server 2025 has a place in every target."""
    found = map_column(column(text, neutral_type(text)), SQLSERVER, target)
    assert not found.refused
    assert found.target_type


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.engine.value)
@pytest.mark.parametrize("text", ["vector(3)", "Point"])
def test_a_type_without_a_place_is_refused_by_its_name(text: str, target: Server) -> None:
    """The plan names table, column and type: a vector, or a type of an assembly."""
    found = map_column(column(text, neutral_type(text)), SQLSERVER, target)
    assert found.refused == f"penstock does not know the type {text}"
    planned = PlannedTable(
        source=TableName("dbo", "t"),
        target=TableName("public", "t"),
        columns=(ColumnPlan(name="v", target="v", mapping=found),),
    )
    plan = Plan(source=SQLSERVER, target=target, tables=(planned,))
    assert plan.refusals == [f"dbo.t.v {text}: {found.refused}"]
    assert not plan.may_run
