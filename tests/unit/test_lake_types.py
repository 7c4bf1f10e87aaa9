"""Types and values of the sources in lakes: what columns become, and which values are refused."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.columns import arrow_type
from penstock.codec.exact_text import exact_texts
from penstock.codec.mysql.types import neutral_type
from penstock.codec.types import (
    LakeMapping,
    Server,
    ValueUnfit,
    convert_values,
    feature_of,
    map_column,
    map_lake_column,
    parse_choices,
    parse_value,
)
from penstock.codec.types.source_type import Engine
from penstock.model import Column, TableName

POSTGRES = [
    ("boolean", "bool", "bool"),
    ("smallint", "int16", "int32"),
    ("bigint", "int64", "int64"),
    ("oid", "uint32", "int64"),
    ("xid8", "uint64", "decimal(20,0)"),
    ("numeric", "string", "string"),
    ("numeric(38,10)", "decimal(38,10)", "decimal(38,10)"),
    ("numeric(39,2)", "string", "string"),
    ("numeric(5,-2)", "decimal(7,0)", "decimal(7,0)"),
    ("numeric(12,2)", "string", "decimal(12,2)"),
    ("character varying(20)", "string", "string"),
    ("text", "binary", "binary"),
    ("bytea", "binary", "binary"),
    ("date", "date", "date"),
    ("time without time zone", "time", "string"),
    ("timestamp without time zone", "timestamp", "timestamp"),
    ("timestamp(3) with time zone", "timestamptz", "timestamptz"),
    ("interval", "string", "string"),
    ("uuid", "uuid", "string"),
    ("jsonb", "string", "string"),
    ("integer[]", "string", "string"),
    ("public.mood", "string", "string"),
    ("inet", "string", "string"),
]
MYSQL = [
    ("tinyint(1)", "int32"),
    ("int(10) unsigned", "int64"),
    ("bigint(20) unsigned", "decimal(20,0)"),
    ("decimal(38,30)", "decimal(38,30)"),
    ("decimal(65,30)", "string"),
    ("bit(8)", "int64"),
    ("bit(64)", "decimal(20,0)"),
    ("year(4)", "int32"),
    ("datetime(3)", "timestamp"),
    ("timestamp", "timestamptz"),
    ("time", "string"),
    ("enum('a','b')", "string"),
    ("json", "string"),
    ("longblob", "binary"),
    ("point", "string"),
]


def map_type(
    source_type: str,
    neutral: str,
    engine: str = "postgresql",
    given: dict[str, str] | None = None,
    **options: Any,
) -> LakeMapping:
    """Return the mapping of a column `a` of table `public.t`."""
    column = Column(name="a", source_type=source_type, neutral=neutral)
    choices = parse_choices(given or {}, Engine(engine))
    table = TableName("public", "t")
    return map_lake_column(column, engine, choices=choices, table=table, **options)


@pytest.mark.parametrize(("source_type", "neutral", "expected"), POSTGRES)
def test_a_type_of_postgresql_has_a_type_of_the_lake(source_type, neutral, expected) -> None:
    """A type of postgresql has a type of the lake."""
    assert map_type(source_type, neutral).type == expected


@pytest.mark.parametrize(("source_type", "expected"), MYSQL)
def test_a_type_of_mysql_has_a_type_of_the_lake(source_type, expected) -> None:
    """A type of mysql has a type of the lake."""
    assert map_type(source_type, neutral_type(source_type), "mysql").type == expected
    assert map_type(source_type, "string", "mariadb").type == expected


def test_an_unknown_engine_is_mapped_by_neutral_types() -> None:
    """An unknown engine is mapped by neutral types."""
    assert mapped_of_unknown("timestamp") == "timestamp"
    assert mapped_of_unknown("uint64") == "decimal(20,0)"
    assert mapped_of_unknown("time") == "string"


def mapped_of_unknown(neutral):
    """Return the type for a source whose engine has no table of types."""
    column = Column(name="a", source_type="thing", neutral=neutral)
    return map_lake_column(column, "informix").type


def test_a_timestamp_needs_a_feature_of_delta_alone() -> None:
    """A timestamp needs a feature of delta alone."""
    assert feature_of("timestamp", Engine.DELTA) == "timestampNtz"
    assert feature_of("timestamp", Engine.ICEBERG) == ""
    assert feature_of("timestamptz", Engine.DELTA) == ""


def test_without_a_choice_a_load_may_begin_and_stops_at_the_value() -> None:
    """Without a choice a load may begin and stops at the value."""
    mapping = map_type("date", "date")
    assert mapping.refused == ""
    assert mapping.chosen == {"dates out of range": "error"}


def test_a_choice_makes_the_column_text() -> None:
    """A choice makes the column text."""
    mapping = map_type("date", "date", given={"dates out of range": "text"})
    assert mapping.type == "string"
    days = pa.array([0, -719_528, 2_932_897, None], pa.int32()).view(pa.date32())
    found = convert_values(days, "string", neutral="date", mapping=mapping)
    assert found.to_pylist() == ["1970-01-01", "0001-01-01 BC", "10000-01-01", None]


def test_null_is_no_choice_for_a_key() -> None:
    """Null cannot be chosen for a key."""
    given = {"dates out of range": "null"}
    assert map_type("date", "date", given=given).refused == ""
    mapping = map_type("date", "date", given=given, identifies=True)
    assert '"public.t.a"' in mapping.refused
    assert mapping.type == ""


VALUES = [
    (pa.array([1, None], pa.int16()), "int32", [1, None]),
    (pa.array([2**32 - 1], pa.uint32()), "int64", [2**32 - 1]),
    (pa.array([2**64 - 1, 0], pa.uint64()), "decimal(20,0)", [Decimal(2**64 - 1), Decimal(0)]),
    (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), "decimal(12,2)", [Decimal("1.50")]),
    (pa.array(["12345678901234567890.5"]), "decimal(38,10)", [Decimal("12345678901234567890.5")]),
    (pa.array([time(1, 2, 3), time(23, 59, 59, 120_000), None]), "string", None),
    (pa.array(["2024-02-29", None]), "date", [date(2024, 2, 29), None]),
    (pa.array(["t", "false", None]), "bool", [True, False, None]),
    (pa.array([None, None], pa.null()), "int64", [None, None]),
    (pa.array([b"ab"]), "string", ["ab"]),
    (pa.array(["ab"]), "binary", [b"ab"]),
    (pa.array(["1.5", "NaN", "-Infinity"]), "float64", None),
    (pa.array(["a"]).dictionary_encode(), "string", ["a"]),
]


@pytest.mark.parametrize(("values", "name", "expected"), VALUES)
def test_values_arrive_unchanged(values, name, expected) -> None:
    """Values arrive unchanged."""
    found = convert_values(values, name)
    assert found.type == arrow_type(name)
    if expected is None and name == "string":
        assert found.to_pylist() == ["01:02:03", "23:59:59.12", None]
    elif expected is None:
        assert [str(one) for one in found.to_pylist()] == ["1.5", "nan", "-inf"]
    else:
        assert found.to_pylist() == expected


@given(st.lists(st.none() | st.uuids()))
def test_uuids_become_their_texts(values) -> None:
    """Uuids become their texts."""
    raw = pa.array([None if one is None else one.bytes for one in values], pa.binary(16))
    wanted = [None if one is None else str(one) for one in values]
    assert convert_values(raw, "string").to_pylist() == wanted
    if values:
        assert convert_values(raw.slice(1), "string").to_pylist() == wanted[1:]


@given(st.lists(st.none() | st.datetimes(), max_size=5))
def test_texts_of_times_are_those_of_postgresql(values) -> None:
    """Texts of times are those of postgresql."""
    mapping = LakeMapping(type="string", zone="+00")
    naive = pa.array(values, pa.timestamp("us"))
    zoned = naive.view(pa.int64()).view(pa.timestamp("us", "UTC"))
    assert convert_values(naive, "string").to_pylist() == exact_texts(naive, "timestamp")
    found = convert_values(zoned, "string", mapping=mapping)
    assert found.to_pylist() == exact_texts(zoned, "timestamptz")
    # And back.
    assert convert_values(found, "timestamptz").equals(zoned)


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0, "2024-01-02 03:04:50"), (3, "2024-01-02 03:04:50.100")]
)
def test_texts_of_times_have_the_digits_of_mysql(fraction, expected) -> None:
    """Texts of times have the digits of mysql."""
    mapping = LakeMapping(type="string", fraction=fraction)
    values = pa.array([datetime(2024, 1, 2, 3, 4, 50, 100_000 if fraction else 0)])  # noqa: DTZ001
    assert convert_values(values, "string", mapping=mapping).to_pylist() == [expected]


def test_a_time_of_mysql_may_have_many_hours() -> None:
    """A time of mysql may have many hours."""
    mapping = map_type("time(1)", "time", "mysql")
    values = pa.array([-838 * 3_600_000_000 - 100_000, None, 1_000_000]).view(pa.time64("us"))
    found = convert_values(values, "string", mapping=mapping)
    assert found.to_pylist() == ["-838:00:00.1", None, "00:00:01.0"]


OUTSIDE = [
    ("date", "date", ["0044-03-15 BC", "infinity", "10000-01-01"], "dates out of range"),
    ("timestamp without time zone", "timestamp", ["-infinity"], "dates out of range"),
    ("numeric(5,2)", "decimal(5,2)", ["NaN", "Infinity"], "not a number"),
]


@pytest.mark.parametrize(("source_type", "name", "texts", "loss"), OUTSIDE)
def test_a_value_that_does_not_fit_is_refused_or_null(source_type, name, texts, loss) -> None:
    """A value that does not fit is refused or null."""
    values = pa.array([*texts, None])
    with pytest.raises(ValueUnfit) as caught:
        convert_values(values, name, mapping=map_type(source_type, "string"))
    assert (caught.value.loss, caught.value.count) == (loss, len(texts))
    mapping = map_type(source_type, "string", given={loss: "null"})
    found = convert_values(values, name, mapping=mapping)
    assert found.to_pylist() == [None] * len(values)


@pytest.mark.parametrize("text", ["0000-00-00", "2024-00-10", "2024-02-31", "2023-02-29"])
def test_zero_dates_of_mysql_are_refused_or_null(text) -> None:
    """Zero dates of mysql are refused or null."""
    with pytest.raises(ValueUnfit) as caught:
        convert_values(pa.array([text]), "date", mapping=map_type("date", "string", "mysql"))
    assert caught.value.loss == "zero dates"
    mapping = map_type("date", "string", "mysql", given={"zero dates": "null"})
    found = convert_values(pa.array([text, "2024-01-01"]), "date", mapping=mapping)
    assert found.to_pylist() == [None, date(2024, 1, 1)]


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_typed_dates_outside_the_years_are_refused(days) -> None:
    """Typed dates outside the years are refused."""
    values = pa.array([days, 0], pa.int32()).view(pa.date32())
    with pytest.raises(ValueUnfit):
        convert_values(values, "date")
    mapping = map_type("date", "date", given={"dates out of range": "null"})
    assert convert_values(values, "date", mapping=mapping).to_pylist() == [None, date(1970, 1, 1)]


def test_the_first_and_last_moments_fit() -> None:
    """The first and last moments fit."""
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)]
    values = pa.array(moments, pa.timestamp("us", "UTC"))
    assert convert_values(values, "timestamptz").equals(values)
    texts = convert_values(values, "string")
    assert convert_values(texts, "timestamp").view(pa.int64()).equals(values.view(pa.int64()))


def test_nanoseconds_of_ignite_are_refused_or_rounded() -> None:
    """Nanoseconds of ignite are refused or rounded."""
    texts = pa.array(["2024-01-01 00:00:00.123456789+00", "2024-01-01 00:00:00.1234560+00"])
    with pytest.raises(ValueUnfit) as caught:
        convert_values(texts, "timestamptz", mapping=map_type("timestamp", "string", "ignite"))
    assert (caught.value.loss, caught.value.count) == ("nanoseconds", 1)
    mapping = map_type("timestamp", "string", "ignite", given={"nanoseconds": "round"})
    found = convert_values(texts, "timestamptz", mapping=mapping)
    assert [one.microsecond for one in found.to_pylist()] == [123_457, 123_456]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array(["x"]), "int32"),
        (pa.array([str(2**31)]), "int32"),
        (pa.array([2**40]), "int32"),
        (pa.array(["yes"]), "bool"),
        (pa.array(["1e999"]), "float64"),
        (pa.array(["123456.789"]), "decimal(5,2)"),
        (pa.array([b"\xff"]), "string"),
        (pa.array([Decimal("1.55")], pa.decimal128(5, 2)), "decimal(5,1)"),
        (pa.array([uuid.UUID(int=0).hex]), "date"),
    ],
)
def test_other_values_are_refused(values, name) -> None:
    """Other values are refused."""
    with pytest.raises(ValueUnfit):
        convert_values(values, name)


def test_a_plan_shows_the_mapping_with_its_choices() -> None:
    """A plan shows the mapping with its choices."""
    column = Column(name="a", source_type="timestamp with time zone", neutral="timestamptz")
    target = Server(engine=Engine.ICEBERG, version=())
    source = Server(engine=Engine.POSTGRESQL, version=(18,))
    mapping = map_column(column, source, target)
    assert mapping.target_type == "timestamptz"
    assert mapping.may_run
    assert mapping.note == "in UTC"
    assert mapping.equal.target == "TIMESTAMPTZ {}"
    assert mapping.equal.source == "({} at time zone 'UTC')::text"
    choices = parse_choices({"dates out of range": "null"}, Engine.POSTGRESQL)
    source_text = map_column(column, source, target, choices=choices).equal.source
    assert source_text.startswith("case when ({} < timestamp with time zone '0001")


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (r"\x00ff", "binary", b"\0\xff"),
        ("4100", "binary", b"A\0"),
        (r"\x", "binary", b""),
        (r"\x41", "string", r"\x41"),
        ("7", "int32", 7),
        ("t", "bool", True),
        ("1.50", "decimal(5,2)", Decimal("1.50")),
        ("2026-11-30", "date", date(2026, 11, 30)),
    ],
)
def test_the_value_of_older_rows_is_read_from_its_text(text: str, kind: str, expected: Any) -> None:
    """Bytes are hexadecimal in the log, with PostgreSQL's prefix, and in Iceberg without it."""
    assert parse_value(text, kind).as_py() == expected


@pytest.mark.parametrize(
    ("text", "kind", "loss"), [("0000-00-00", "date", "zero dates"), (r"\xzz", "binary", "")]
)
def test_a_value_of_older_rows_that_does_not_fit(text: str, kind: str, loss: str) -> None:
    """The loss says which choice there is."""
    with pytest.raises(ValueUnfit) as refused:
        parse_value(text, kind)
    assert refused.value.loss == loss
