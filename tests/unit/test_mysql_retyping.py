"""Type changes of a column that keep its values."""

from __future__ import annotations

import pytest

from penstock.codec.mysql.retyping import keeps_values


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int(11)", "int"),
        ("int", "bigint"),
        ("int unsigned", "bigint"),
        ("int", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(12,3)"),
        ("varchar(10)", "varchar(300)"),
        ("varchar(10)", "text"),
        ("text", "longtext"),
        ("char(5)", "varchar(5)"),
        ("enum('a','b')", "enum('b','a','c')"),
        ("datetime", "datetime(3)"),
        ("float", "double"),
        ("bit(3)", "bit(4)"),
        ("varbinary(4)", "blob"),
    ],
)
def test_wider_types_keep_every_value(old: str, new: str) -> None:
    """Wider types keep every value in every mode of the session."""
    assert keeps_values(old, new, strict=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "int"),
        ("int", "int unsigned"),
        ("varchar(300)", "varchar(10)"),
        ("decimal(12,2)", "decimal(10,2)"),
        ("enum('a','b')", "enum('a')"),
    ],
)
def test_narrower_types_keep_values_where_the_session_is_strict(old: str, new: str) -> None:
    """A strict session refuses values that do not fit; any other changes them."""
    assert keeps_values(old, new, strict=True)
    assert not keeps_values(old, new, strict=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decimal(10,4)", "decimal(10,2)"),
        ("datetime(6)", "datetime"),
        ("datetime", "date"),
        ("timestamp", "datetime"),
        ("double", "int"),
        ("varchar(10)", "int"),
        ("varchar(10)", "char(10)"),
        ("binary(4)", "binary(8)"),
        ("json", "longtext"),
    ],
)
def test_what_rounds_or_converts_is_not_trusted(old: str, new: str) -> None:
    """Even a strict session changes these without an error."""
    assert not keeps_values(old, new, strict=True)
