"""Values of a bulk load from Oracle as PostgreSQL and MySQL get them, with each choice."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.errors import CellUnfit
from penstock.codec.exact_text import exact_texts
from penstock.codec.oracle.goals import Form, Goal, reach
from penstock.codec.oracle.read_columns import CellBroken, ReadColumn
from penstock.codec.types import Choices, Engine, Server, map_column
from penstock.codec.types.mapping import parse_choices
from penstock.model import Column

TEXT = pa.large_string()
POSTGRES = Server(engine=Engine.POSTGRESQL, version=(16,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 0, 36))


def naive(*fields: int) -> datetime:
    """Return a date and time without a zone."""
    return datetime(*fields, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


def goal_of(type_text: str, target: Server, **choices: str) -> Goal:
    """Return the goal of a column; choices: by loss, with _ for blanks."""
    column = ReadColumn.of("V", type_text)
    given = {key.replace("_", " "): choice for key, choice in choices.items()}
    chosen = parse_choices(given, Engine.ORACLE) if given else Choices()
    source = Server(engine=Engine.ORACLE, version=(19,))
    given_column = Column(name="V", source_type=type_text, neutral=column.neutral)
    return Goal.of(column, map_column(given_column, source, target, choices=chosen))


def values_of(goal: Goal, given: list[Any], kind: pa.DataType = TEXT) -> list[Any]:
    """Return the values that the target gets."""
    (found,) = reach(pa.record_batch({"V": pa.array(given, kind)}), [goal])
    return list(found.to_pylist())


def test_times_without_a_loss_are_moments() -> None:
    """Years before 1 are kept for PostgreSQL, as microseconds."""
    goal = goal_of("DATE", POSTGRES)
    assert (goal.form, goal.neutral) == (Form.TIMESTAMP, "timestamp")
    assert values_of(goal, [" 2026-02-28 13:45:59", None]) == [
        naive(2026, 2, 28, 13, 45, 59),
        None,
    ]
    batch = pa.record_batch({"V": pa.array(["-0044-03-15 00:00:00"], TEXT)})
    (found,) = reach(batch, [goal])
    assert exact_texts(found, "timestamp") == ["0044-03-15 00:00:00 BC"]
    local = goal_of("TIMESTAMP(6) WITH LOCAL TIME ZONE", POSTGRES)
    assert (local.form, local.neutral) == (Form.MOMENT, "timestamptz")
    (utc,) = values_of(local, [" 2026-10-25 02:30:00.250000"])
    assert utc.isoformat() == "2026-10-25T02:30:00.250000+00:00"


@pytest.mark.parametrize("target", [POSTGRES, MYSQL])
def test_nanoseconds(target: Server) -> None:
    """Refuse them, round them half up, or keep them in a text."""
    given = [" 2026-03-29 01:30:00.123456500", " 2026-03-29 01:30:00.123456499"]
    with pytest.raises(CellUnfit, match="row 1") as error:
        values_of(goal_of("TIMESTAMP(9)", target), given)
    assert "nanoseconds" in str(error.value)
    rounded = values_of(goal_of("TIMESTAMP(9)", target, nanoseconds="round"), given)
    assert [one.microsecond for one in rounded] == [123_457, 123_456]
    late = values_of(
        goal_of("TIMESTAMP(9)", target, nanoseconds="round"), [" 2026-12-31 23:59:59.999999500"]
    )
    assert late == [naive(2027, 1, 1)]
    text = goal_of("TIMESTAMP(9)", target, nanoseconds="text")
    assert values_of(text, given)[0] == "2026-03-29 01:30:00.1234565"


@pytest.mark.parametrize("target", [POSTGRES, MYSQL])
def test_offsets(target: Server) -> None:
    """An offset is an error unless the moment in UTC is asked for, or the text."""
    name, given = "TIMESTAMP(6) WITH TIME ZONE", [" 2026-03-29 01:30:00.500000 +05:30"]
    with pytest.raises(CellUnfit, match="offset"):
        values_of(goal_of(name, target), given)
    (found,) = values_of(goal_of(name, target, offsets="utc"), given)
    assert found.isoformat() == "2026-03-28T20:00:00.500000+00:00"
    (utc,) = values_of(goal_of(name, target), [" 2026-03-29 01:30:00.500000 +00:00"])
    assert utc.isoformat() == "2026-03-29T01:30:00.500000+00:00"
    assert values_of(goal_of(name, target, offsets="text"), given) == [
        "2026-03-29 01:30:00.5+05:30"
    ]


def test_dates_that_the_target_does_not_hold() -> None:
    """Years before 1 are refused for MySQL, or become NULL or text; other calendars always are."""
    given = [" 2026-02-28 00:00:00", "-0044-03-15 00:00:00"]
    with pytest.raises(CellUnfit, match=r"row 2.*outside of the years"):
        values_of(goal_of("DATE", MYSQL), given)
    null = goal_of("DATE", MYSQL, dates_out_of_range="null")
    assert values_of(null, given) == [naive(2026, 2, 28), None]
    text = goal_of("DATE", MYSQL, dates_out_of_range="text")
    assert values_of(text, given) == ["2026-02-28 00:00:00", "0044-03-15 00:00:00 BC"]
    for unknown in (" 1500-02-29 00:00:00", " 0000-01-01 00:00:00"):
        with pytest.raises(CellUnfit, match="calendar"):
            values_of(goal_of("DATE", POSTGRES), [unknown])


def test_numbers() -> None:
    """A NUMBER without precision is exact text; digits that MySQL lacks are never cut silently."""
    long = "0." + "1" * 31
    assert values_of(goal_of("NUMBER", POSTGRES), ["1E+40", long]) == ["1" + "0" * 40, long]
    with pytest.raises(CellUnfit, match="after the point"):
        values_of(goal_of("NUMBER", MYSQL), [long])
    rounded = values_of(goal_of("NUMBER", MYSQL, digits="round"), ["-.5", "0." + "0" * 29 + "15"])
    assert rounded == ["-0.5", "0." + "0" * 29 + "2"]
    for choice in ({}, {"digits": "round"}):
        with pytest.raises(CellUnfit, match="before the point"):
            values_of(goal_of("NUMBER", MYSQL, **choice), ["1E+36"])
    assert values_of(goal_of("NUMBER", MYSQL, digits="text"), ["1E+36"]) == ["1" + "0" * 36]


def test_floats_that_are_no_numbers() -> None:
    """NaN is refused for MySQL, or becomes NULL; PostgreSQL has it."""
    given, kind = [1.5, None, float("nan")], pa.float64()
    assert values_of(goal_of("BINARY_DOUBLE", POSTGRES), given[:2], kind) == [1.5, None]
    with pytest.raises(CellUnfit, match="row 3"):
        values_of(goal_of("BINARY_DOUBLE", MYSQL), given, kind)
    null = goal_of("BINARY_DOUBLE", MYSQL, not_a_number="null")
    assert values_of(null, given, kind) == [1.5, None, None]


def test_texts_and_lobs() -> None:
    """U+0000 is removed only if that is chosen; a LOB takes two columns of the batch."""
    goals = [
        goal_of("CLOB", POSTGRES, nul_characters="remove"),
        goal_of("VARCHAR2(9)", POSTGRES),
    ]
    batch = pa.record_batch(
        {
            "C": pa.array(["a\0b", None], TEXT),
            "F": pa.array([1, 1]),
            "V": pa.array(["x\0", "y"], TEXT),
        }
    )
    found = reach(batch, goals)
    assert [one.to_pylist() for one in found] == [["ab", ""], ["x\0", "y"]]


def test_a_broken_value_has_a_typed_error() -> None:
    """The place of the column is in it."""
    with pytest.raises(CellBroken, match="column 1 of type DATE"):
        values_of(goal_of("DATE", POSTGRES), ["28-FEB-26"])
