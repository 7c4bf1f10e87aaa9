"""Conditions for rows of a SQL Server table that a repair deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from harness.sqlserver_target import FakeConnection
from penstock.codec.image_cells import ImageCell
from penstock.engines.sqlserver.reading import row_conditions as conditions
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.ports.verify import TableGone
from penstock.sql.chosen_rows import Choice

BAG = TableName("dbo", "bag")


def choose(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> list[str]:
    """Return the conditions for rows of a table without a key, whose columns have these types."""
    columns = tuple(
        ColumnDefinition(name=f"c{place}", type_text=kind, type_oid=0, typmod=-1)
        for place, kind in enumerate(kinds)
    )

    def read(session: object, names: Sequence[TableName]) -> Mapping[TableName, TableDefinition]:
        assert [*names] == [BAG], session
        return {BAG: TableDefinition(name=BAG, source_id=1, columns=columns)} if kinds else {}

    monkeypatch.setattr(conditions, "read_definitions", read)
    cells = tuple(ImageCell(one.name, "TEXT", False, False, False, "") for one in columns)
    choice = Choice(key=tuple((*cell,) for cell in cells), buckets=1, numbers=(0,))
    text = msgspec.json.encode(choice).decode()
    return list(conditions.row_conditions(FakeConnection(), BAG, text))


@pytest.mark.parametrize("kind", ["xml", "text", "image", "geometry", "hierarchyid"])
def test_rows_that_cannot_be_compared_are_not_deleted(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """T-SQL has no `=` for these types; the error names the column, and what helps."""
    with pytest.raises(conditions.RowUnnamed, match=f"c1 has the type {kind}") as refused:
        choose(monkeypatch, "int", kind)
    assert refused.value.code == "MS43"
    assert refused.value.retry == "operator"
    assert "penstock table resync" in refused.value.hint
    assert refused.value.fields["table"] == "dbo.bag"


def test_a_table_that_is_gone_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table was dropped after the comparison."""
    with pytest.raises(TableGone):
        choose(monkeypatch)
