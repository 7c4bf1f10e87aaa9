"""Tables of a PostgreSQL target that are applied together, and those that need not be."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engines.postgres.target.parts import group_tables
from penstock.engines.postgres.target.target import TargetForeignKey, TargetTable
from penstock.model import TableName


def name_of(name: str) -> TableName:
    """Return the full name of a table."""
    return TableName("public", name)


def key(child: str, parent: str) -> TargetForeignKey:
    """Return a foreign key between two tables."""
    return TargetForeignKey(
        name="k", child=name_of(child), parent=name_of(parent), deferrable=False, on_delete="a"
    )


def table(name: str, *keys: TargetForeignKey, **more: Any) -> TargetTable:
    """Return a table with those of these foreign keys that it has a part in."""
    own = name_of(name)
    return TargetTable(
        name=own,
        columns=(),
        parents=tuple(one for one in keys if one.child == own),
        children=tuple(one for one in keys if one.parent == own),
        **more,
    )


def groups(*tables: TargetTable, replica: bool = False) -> list[set[str]]:
    """Return the groups' names, in order."""
    found = group_tables(tables, replica=replica)
    return sorted(({one.name for one in group} for group in found), key=sorted)


CHAIN = (key("b", "a"), key("c", "b"))
ALL = [{"a"}, {"b"}, {"c"}, {"d"}]


def test_tables_joined_by_checked_foreign_keys_stay_together() -> None:
    """A chain is one group, wherever its middle comes; without checks each table is alone."""
    tables = [table(one, *CHAIN) for one in ("a", "c", "d", "b")]
    assert groups(*tables) == [{"a", "b", "c"}, {"d"}]
    assert groups(*tables, replica=True) == ALL


def test_a_table_between_two_others_joins_them_though_it_has_no_rows() -> None:
    """Deletes that cascade from both may touch the same rows."""
    keys = (key("b", "a"), key("b", "c"))
    tables = [table(one, *keys) for one in ("a", "c", "d")]
    assert groups(*tables) == [{"a", "c"}, {"d"}]


def test_a_group_has_the_relatives_of_all_its_tables() -> None:
    """The first table is joined to the second by one table, and to the third by another."""
    keys = (key("x", "a"), key("x", "b"), key("y", "a"), key("y", "c"))
    assert groups(*(table(one, *keys) for one in ("a", "b", "c"))) == [{"a", "b", "c"}]


@pytest.mark.parametrize(
    ("more", "replica", "are_together"),
    [
        ({"in_tree": True}, True, True),
        ({"triggers": (("t", "O"),)}, False, True),
        ({"triggers": (("t", "O"),)}, True, False),
        ({"triggers": (("t", "R"),)}, True, True),
        ({"triggers": (("t", "R"),)}, False, False),
        ({"triggers": (("t", "A"),)}, True, True),
        ({"rules": ("r",)}, False, True),
    ],
)
def test_tables_that_touch_others_stay_together(
    more: dict[str, Any], *, replica: bool, are_together: bool
) -> None:
    """Tables that inherit do, and those whose triggers or rules fire in the session's role."""
    tables = [table("a", **more), table("b"), table("c", **more)]
    expected = [{"a", "c"}, {"b"}] if are_together else [{"a"}, {"b"}, {"c"}]
    assert groups(*tables, replica=replica) == expected
