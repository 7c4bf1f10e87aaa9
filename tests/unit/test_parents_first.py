"""Write order of tables that refer to each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engines.postgres.target.apply import parents_first
from penstock.engines.postgres.target.target import TargetForeignKey, TargetTable
from penstock.model import TableName


def order(keys: dict[str, dict[str, bool]]) -> list[str]:
    """Return the tables as they are written. keys: by child its parents, and whether each key can
    wait.
    """
    merges: list[Any] = []
    for child, parents in keys.items():
        name = TableName("public", child)
        held = tuple(
            TargetForeignKey(
                name=f"{child}_{parent}",
                child=name,
                parent=TableName("public", parent),
                deferrable=deferrable,
                on_delete="a",
            )
            for parent, deferrable in parents.items()
        )
        merges.append(SimpleNamespace(table=TargetTable(name=name, columns=(), parents=held)))
    return [merge.table.name.name for merge in parents_first(merges)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"a": {"b": False}, "b": {"c": False}, "c": {}}, ["c", "b", "a"]),
        # In a cycle the table whose key can wait comes first, whatever its name.
        ({"a": {"z": False}, "z": {"a": True}}, ["z", "a"]),
        ({"a": {"z": True}, "z": {"a": False}}, ["a", "z"]),
        # One key that can wait is not enough: the other one is checked at once.
        ({"a": {"m": True, "z": False}, "m": {"a": True}, "z": {"a": True}}, ["m", "z", "a"]),
        ({"a": {"m": False, "z": True}, "m": {"a": True}, "z": {"a": True}}, ["m", "a", "z"]),
        # No key can wait: names decide, and the server says what it refuses.
        ({"a": {"z": False}, "z": {"a": False}}, ["a", "z"]),
    ],
)
def test_a_cycle_is_opened_where_all_keys_can_wait(
    keys: dict[str, dict[str, bool]], expected: list[str]
) -> None:
    """Parents precede children; keys to tables that are already written are ignored."""
    assert order(keys) == expected
