"""Conditions with which a source finds computed values that a strict target refuses."""

from __future__ import annotations

import pytest

from penstock.engines.mysql.plan import convert_sql, strict_refusal
from penstock.model import ColumnDefinition


def column(type_text: str, *, not_null: bool = False) -> ColumnDefinition:
    """Return a column that is computed as x."""
    return ColumnDefinition(
        name="c", type_text=type_text, type_oid=0, typmod=-1, default="x", not_null=not_null
    )


@pytest.mark.parametrize(
    ("type_text", "condition"),
    [
        ("bit(3)", "((x) < 0 or (x) > 7)"),
        ("bit", "((x) < 0 or (x) > 1)"),
        ("tinyint(4)", "(round((x)) < -128 or round((x)) > 127)"),
        ("bigint(20) unsigned", "(round((x)) < 0 or round((x)) > 18446744073709551615)"),
        ("decimal(5,2)", "(abs(round((x), 2)) >= 1000)"),
        ("decimal(2,2) unsigned", "(abs(round((x), 2)) >= 1 or (x) < 0)"),
        ("decimal(3)", "(abs(round((x), 0)) >= 1000)"),
        ("double", ""),
        ("double unsigned", "((x) < 0)"),
        ("varchar(10)", "(char_length(trim(trailing ' ' from (x))) > 10)"),
        ("varbinary(4)", "(length((x)) > 4)"),
        ("tinyblob", "(length((x)) > 255)"),
        ("json", "(not json_valid((x)))"),
        ("date", ""),
        ("geometry", ""),
    ],
)
def test_the_edges_of_a_type(type_text: str, condition: str) -> None:
    """The least and the greatest value of a type are accepted."""
    assert strict_refusal(column(type_text)) == condition


def test_null_is_refused_where_a_column_takes_none() -> None:
    """A NULL is refused in addition to what its type refuses."""
    assert strict_refusal(column("bit", not_null=True)).endswith(" or ((x) is null)")
    assert strict_refusal(column("date", not_null=True)) == "((x) is null)"


def test_labels_are_written_as_sql() -> None:
    """An ENUM accepts its labels and their numbers."""
    found = strict_refusal(column("enum('a','it''s')"))
    assert found.startswith("((x) not in ('a', 'it")
    assert "regexp" in found


def test_moments_are_converted_so_that_the_server_warns() -> None:
    """Moments have their precision; other types are computed as they are."""
    assert convert_sql(column("datetime(3)")) == "cast((x) as datetime(3))"
    assert convert_sql(column("timestamp")) == "cast((x) as datetime)"
    assert convert_sql(column("int")) == "(x)"
