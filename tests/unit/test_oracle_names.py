"""Names that a table of Oracle cannot have, and a source can."""

from __future__ import annotations

import pytest

from penstock.engines.oracle.target.layout import MergeLayout, check_names
from penstock.model import Column, Relation
from penstock.ports.target import ShapeNotApplicable


@pytest.mark.parametrize(
    "name", ['quo"te', "wk$stamp"], ids=["a quotation mark", "the name of a column of ours"]
)
def test_a_name_that_a_table_cannot_have_is_refused(name: str) -> None:
    """The error names table and column, and says what to do."""
    columns = tuple(
        Column(name=one, source_type="integer", neutral="int32") for one in ("id", name)
    )
    relation = Relation(schema="public", name="t", columns=columns, key=(0,))
    with pytest.raises(ShapeNotApplicable) as caught:
        MergeLayout(relation)
    assert name in caught.value.message
    assert "public.t" in caught.value.message
    assert "[source] tables" in caught.value.hint
    assert caught.value.fields["table"] == "public.t"


def test_a_name_that_a_change_brings_names_its_table() -> None:
    """The table alone is left behind, and the others continue."""
    columns = (Column(name='q"uote', source_type="integer", neutral="int32"),)
    with pytest.raises(ShapeNotApplicable) as caught:
        check_names(Relation(schema="public", name="t", columns=columns, key=()))
    assert caught.value.fields["table"] == "public.t"
