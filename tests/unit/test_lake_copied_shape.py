"""Shapes that tables of a lake get by a copy of their rows, without a lake."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engines.delta.shape import refuse_change
from penstock.engines.lake.bulk import find_refusals
from penstock.engines.lake.format import Change, LakeColumn, Snapshot

NUMBER = LakeColumn(name="v", type="int32")


class DeltaTable:
    """Delta table without column mapping, of which no file is read."""

    def refuse_change(self, change: Change, snapshot: Snapshot) -> str:
        """Return why Delta cannot make a change."""
        return refuse_change(change, snapshot)

    def plan_column(self, name: str, type: str, **_: Any) -> LakeColumn:
        """Return a column to add."""
        return LakeColumn(name=name, type=type)


@pytest.mark.parametrize("name", ["v", "w"])
def test_a_copy_replaces_the_only_column(name: str) -> None:
    """A table may lack columns between the changes of one commit."""
    snapshot = Snapshot(version=1, columns=(NUMBER,), files=())
    wanted = [LakeColumn(name=name, type="string")]
    table: Any = DeltaTable()
    assert find_refusals(table, snapshot, wanted) == []


def test_a_copy_without_columns_is_refused() -> None:
    """A Delta table has a column in the end."""
    table: Any = DeltaTable()
    found = find_refusals(table, Snapshot(version=1, columns=(NUMBER,), files=()), [])
    assert found == ["v: a Delta table keeps one column"]
