"""Deferred keys of a target without keys: nothing to create, and foreign keys are told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.load.deferred_keys import (
    DeferredKeyFlow,
    drop_deferred_keys,
    put_deferred_keys,
    read_deferred_keys,
)
from penstock.model import TableName
from penstock.ports.deferred_keys import DeferredTable

ITEM = TableName("dbo", "item")


@pytest.mark.parametrize("url", ["delta+file:///lake", "iceberg://catalog/shop"])
def test_a_lake_has_no_keys_to_create_or_drop(tmp_path: Path, url: str) -> None:
    """A table that is copied alone still tells which foreign keys the lake does not check."""
    late = DeferredTable(source=ITEM, target=ITEM, settled=7, keys=(), with_foreign_keys=True)
    put_deferred_keys(tmp_path, [late], instead_of=[])
    told: list[TableName] = []

    def tell(source: TableName) -> list[str]:
        told.append(source)
        return []

    drop_deferred_keys(url, late)
    DeferredKeyFlow(tmp_path, url, tell).create([late])
    assert told == [ITEM]
    assert read_deferred_keys(tmp_path) == ()
