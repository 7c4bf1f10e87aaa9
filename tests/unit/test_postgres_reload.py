"""Definitions of a table before and at the point where its rows are read again."""

from __future__ import annotations

from dataclasses import replace

from penstock.engines.postgres.source.table_actions import _differs
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

COLUMN = ColumnDefinition(name="twice", type_text="integer", type_oid=23, typmod=-1, generated="s")
THEN = TableDefinition(
    name=TableName("public", "thing"),
    source_id=7,
    columns=(COLUMN,),
    primary_key=(),
    identity=Identity.FULL,
    identity_columns=(),
)


def test_an_expression_that_one_of_two_definitions_lacks_is_no_change() -> None:
    """The request is made with a definition that was read without expressions."""
    now = replace(THEN, columns=(replace(COLUMN, default="(n * 2)"),))
    assert not _differs(now, THEN)
    assert _differs(replace(now, columns=(replace(COLUMN, name="other"),)), THEN)
    assert _differs(replace(now, columns=(replace(COLUMN, type_oid=20),)), THEN)
    assert _differs(replace(THEN, name=TableName("public", "other")), THEN)
