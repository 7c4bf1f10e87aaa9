"""Types of PostgreSQL that hold all values of others."""

from __future__ import annotations

import pytest

from penstock.codec.postgres.retyping import holds


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [
        ("integer", "smallint"),
        ("bigint", "integer"),
        ("numeric", "bigint"),
        ("numeric(12,2)", "integer"),
        ("double precision", "real"),
        ("numeric(20,2)", "numeric(10,2)"),
        ("numeric", "numeric(10,2)"),
        ("text", "character varying(9)"),
        ("character varying(50)", "character varying(10)"),
        ("character varying", "text"),
        ("timestamp without time zone", "timestamp(3) without time zone"),
        ("timestamp(3) with time zone", "timestamp(0) with time zone"),
        ("bit varying(9)", "bit varying(8)"),
        ("uuid", "uuid"),
    ],
)
def test_a_wider_type_holds_a_narrower(wider: str, narrower: str) -> None:
    """The narrower type holds the wider one only if they are equivalent."""
    assert holds(wider, narrower)
    alike = {wider, narrower} == {"character varying", "text"} or wider == narrower
    assert holds(narrower, wider) is alike


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("text", "integer"),
        ("numeric(11,2)", "integer"),
        ("numeric(10,3)", "numeric(10,2)"),
        ("date", "timestamp without time zone"),
        ("real", "integer"),
        ("character(5)", "text"),
        ("public.mood", "text"),
        ("integer[]", "bigint[]"),
    ],
)
def test_neither_holds_the_other(one: str, other: str) -> None:
    """The types differ in texts, digits or kinds."""
    assert not holds(one, other)
    assert not holds(other, one)
