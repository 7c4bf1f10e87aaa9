"""Names across engines: names that are too long or collide, and where tables go."""

from __future__ import annotations

import pytest

from penstock.codec.types import (
    Engine,
    NameRefused,
    NameRules,
    Server,
    parse_choices,
    target_columns,
    target_names,
)
from penstock.model import ColumnDefinition, TableDefinition, TableName

PG = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 4, 0))
SHORTEN = parse_choices({"long names": "shorten"}, Engine.MYSQL)


def table(*columns: str) -> TableDefinition:
    """Return a table of these columns."""
    return TableDefinition(
        name=TableName("s", "t"),
        source_id=1,
        columns=tuple(
            ColumnDefinition(name=name, type_text="int", type_oid=0, typmod=-1) for name in columns
        ),
    )


def test_long_names_are_refused_or_cut() -> None:
    """The limit is 63 bytes in PostgreSQL, 64 characters in MySQL; cut names never change."""
    long = "ä" * 40
    assert NameRules.of(MYSQL).column(long) == long
    with pytest.raises(NameRefused, match="longer than 63 bytes"):
        NameRules.of(PG).column(long)
    rules = NameRules.of(PG, choices=SHORTEN)
    cut = rules.column(long)
    assert len(cut.encode()) <= 63
    assert cut == rules.column(long)
    assert cut != rules.column(long + "x")
    assert rules.column("short") == "short"
    with pytest.raises(NameRefused, match="64 characters"):
        NameRules.of(MYSQL).column("x" * 65)


def test_what_mysql_does_not_allow_in_names() -> None:
    """Such names have characters above U+FFFF, or blanks at the end."""
    for name in ("a😀", "a "):
        with pytest.raises(NameRefused, match="does not allow"):
            NameRules.of(MYSQL).column(name)
        assert NameRules.of(PG).column(name) == name


def test_columns_that_would_be_one_are_both_named() -> None:
    """MySQL's columns must differ in more than case."""
    with pytest.raises(NameRefused, match="Id and id"):
        target_columns(table("Id", "id"), NameRules.of(MYSQL))
    assert target_columns(table("Id", "id"), NameRules.of(PG)) == {"Id": "Id", "id": "id"}


def test_tables_that_would_be_one_are_both_named() -> None:
    """The target's handling of case decides, and the map."""
    both = [TableName("a", "T"), TableName("a", "t")]
    assert len(target_names(both, {}, NameRules.of(MYSQL))) == 2
    for setting in (1, 2):
        with pytest.raises(NameRefused, match=r"a\.T and a\.t"):
            target_names(both, {}, NameRules.of(MYSQL, lower_case_table_names=setting))
    with pytest.raises(NameRefused, match=r"a\.t and b\.t"):
        target_names(
            [TableName("a", "t"), TableName("b", "t")], {"a": "c", "b": "c"}, NameRules.of(PG)
        )


def test_schemas_are_mapped() -> None:
    """A schema goes to the database that [target.map] names, in lower case if case is not kept."""
    rules = NameRules.of(MYSQL, lower_case_table_names=1)
    names = target_names([TableName("public", "Item")], {"public": "Shop"}, rules)
    assert names == {TableName("public", "Item"): TableName("shop", "item")}
