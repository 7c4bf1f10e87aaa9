"""Schema drift of one table: the changes that its target has taken."""

from __future__ import annotations

from penstock.model import TableName
from penstock.model.policies import ChangeKind, Policy
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import ShapeChange

TABLE = TableName("public", "item")


def test_a_change_that_the_target_has_taken_is_noted() -> None:
    """The change is noted by policy; an ignored change or a column that was never there is not."""
    schema_drift = SchemaDrift({"gone"}, set(), [])
    for name, policy in (
        ("a", Policy.EVOLVE),
        ("b", Policy.LENIENT),
        ("c", Policy.IGNORE),
        ("gone", Policy.EVOLVE),
    ):
        what = f"column {name} was dropped"
        schema_drift.went(ShapeChange(kind=ChangeKind.DROP_COLUMN, what=what, name=name), policy)
    notes = schema_drift.applied_notes(TABLE)
    assert all(one.is_applied and one.table == TABLE for one in notes)
    texts = ["column a was dropped", "column b was dropped (policy lenient)"]
    assert [one.text for one in notes] == texts
