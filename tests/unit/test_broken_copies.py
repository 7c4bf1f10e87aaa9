"""Tables that a bulk load skips because of an error about them, if the configuration allows it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.host.errors import ConnectionLost
from penstock.host.files import DiskFull
from penstock.load.isolation import BrokenCopies
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.target import UniqueBlocked, ValueRefused

ITEM, BAG = TableName("public", "item"), TableName("public", "bag")
REFUSED = ValueRefused("no", table="public.item")


def test_a_refused_value_leaves_its_table_behind() -> None:
    """The first error is kept."""
    broken = BrokenCopies(isolates=True)
    broken.leave(ITEM, REFUSED)
    broken.leave(ITEM, ValueRefused("again", table="public.item"))
    assert broken.errors == {ITEM: REFUSED}


@pytest.mark.parametrize(
    ("error", "isolates"),
    [
        (REFUSED, False),
        (DiskFull("full"), True),
        (ConnectionLost("cut", table="public.item"), True),
    ],
)
def test_any_other_error_ends_the_load(error: PenstockError, isolates: bool) -> None:
    """The load ends if the error names no table, if a retry may fix it, or if skipping is off."""
    with pytest.raises(type(error)):
        BrokenCopies(isolates=isolates).leave(ITEM, error)


def definition(name: TableName) -> TableDefinition:
    """Return a table of no columns."""
    return TableDefinition(name=name, source_id=1, columns=())


def test_keys_that_one_table_refuses_are_added_to_the_others() -> None:
    """All are added at once first, then one table after the other."""
    added: list[TableName] = []

    def add(some: Sequence[TableDefinition]) -> None:
        if any(one.name == BAG for one in some):
            raise UniqueBlocked("twice", table="public.bag")
        added.extend(one.name for one in some)

    both = [definition(BAG), definition(ITEM)]
    broken = BrokenCopies(isolates=True)
    broken.add_keys(add, both)
    assert added == [ITEM]
    assert broken.errors.keys() == {BAG}
    with pytest.raises(UniqueBlocked):
        BrokenCopies(isolates=False).add_keys(add, both)
