"""Patterns and the tables that they match."""

from __future__ import annotations

import pytest

from penstock.model import TableName
from penstock.model.patterns import PatternInvalid, Selection, as_pattern, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "schema", "name", "matches"),
    [
        ("public.*", "public", "anything at all", True),
        ("public.*", "publica", "t", False),
        ("p?blic.t_*", "public", "t_1", True),
        ("p?blic.t_*", "public", "tx1", False),
        ("public.Orders", "public", "Orders", True),
        ("public.Orders", "public", "orders", False),
        ('public."a.b"', "public", "a.b", True),
        ('public."a*"', "public", "abc", False),
        ('public."a*"', "public", "a*", True),
        ('public."say ""hi"""', "public", 'say "hi"', True),
        ('"My.Schema".*', "My.Schema", "Größe\nzwei", True),
        ("public.a+b", "public", "aab", False),
        ("public.a+b", "public", "a+b", True),
        ("*.*", "x", "y", True),
        ('"!odd".t', "!odd", "t", True),
    ],
)
def test_patterns_name_tables(pattern: str, schema: str, name: str, matches: bool) -> None:
    """Patterns have globs outside quotes, literal letters inside, and case counts."""
    assert parse_pattern(pattern).matches(TableName(schema, name)) is matches


@pytest.mark.parametrize(
    "name", ["t", "Größe", "a.b", "a*", "!odd", 'say "hi"', "two words", "?", "ends!", "a\nb"]
)
def test_a_name_as_pattern_stands_for_it_alone(name: str) -> None:
    """The name is quoted if necessary, so that the configuration can have it, with ! before it."""
    for table in (TableName("public", name), TableName(name, "t")):
        pattern = parse_pattern(as_pattern(table))
        assert pattern.exact
        assert pattern.matches(table)
        assert parse_pattern("!" + as_pattern(table)).excludes
    assert as_pattern(TableName("public", "orders")) == "public.orders"


@pytest.mark.parametrize(
    "text", ["", "t", "!", "public.", ".t", "a.b.c", 'public."open', "public.a ", '"".t', 'p."a"b']
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """No part is guessed: a table left out by a typing error would be a silent gap."""
    with pytest.raises(PatternInvalid):
        parse_pattern(text)


def test_exclusion_wins_whatever_the_order() -> None:
    """`!` excludes a table even if a later pattern names it."""
    selection = Selection.parse(["!public.audit", "public.*", "public.audit"])
    assert selection.excluded_by(TableName("public", "audit"))
    assert selection.excluded_by(TableName("public", "orders")) is None
    assert selection.taken_by(TableName("other", "orders")) is None


def test_only_exclusions_take_nothing_in() -> None:
    """A pipeline without a table is a mistake."""
    with pytest.raises(PatternInvalid):
        Selection.parse(["!public.audit"])


def test_a_name_in_another_case_is_near() -> None:
    """The hint for `public.orders` is the table "Orders"."""
    pattern = parse_pattern("public.orders")
    assert pattern.exact
    assert not pattern.matches(TableName("public", "Orders"))
    assert pattern.nearly_matches(TableName("public", "Orders"))
