"""Statements by which a table of PostgreSQL follows a change of the source's shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.pipelines.changes import relation
from penstock.engines.postgres.target.alter import Alterer
from penstock.engines.postgres.target.target import TargetColumn, TargetIndex, TargetTable
from penstock.model import TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import TableRecord
from penstock.sql.shape_changes import ShapeChange

NAME = TableName("public", "t")


def column(name: str) -> TargetColumn:
    """Return an integer column that is never NULL."""
    return TargetColumn(
        name=name,
        type_text="integer",
        cast_type="integer",
        not_null=True,
        generated=False,
        identity="",
        has_default=False,
    )


@pytest.mark.parametrize(("value", "is_key"), [("3", True), (None, False)])
def test_a_new_column_becomes_part_of_the_key_if_rows_have_a_value(
    value: str | None, is_key: bool
) -> None:
    """The key of the columns that stay alone would refuse the rows that follow."""
    both = relation(("id", "integer", "int32"), ("v", "integer", "int32"), key=(0, 1))
    strict = replace(both.columns[1], nullable=False, missing=value)
    primary = TargetIndex(name="t_pkey", columns=("id",), primary=True, immediate=True, plain=True)
    alterer = Alterer(
        record=TableRecord(
            source=NAME,
            target=NAME,
            merge_name="",
            made=True,
            columns=(("id", "integer"),),
            key=("id",),
        ),
        relation=replace(both, columns=(both.columns[0], strict)),
        # The statement that adds the column comes before the one of the key.
        table=TargetTable(name=NAME, columns=(column("id"), column("v")), unique=(primary,)),
        namespaces={},
        emptied=False,
    )
    change = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key is another one")
    sql = 'alter table "public"."t" drop constraint "t_pkey", add primary key ("id", "v")'
    assert [one.sql for one in alterer.evolve(change)] == ([sql] if is_key else [])
