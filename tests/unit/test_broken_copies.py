"""Tables that a bulk load skips because of an error about them, if the configuration allows it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.host.files import DiskFull
from penstock.load.chunk import ChunkCopier
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


@pytest.mark.parametrize(
    ("sqlstate", "is_named"), [("22P02", True), ("23505", True), ("53100", False)]
)
def test_a_server_s_error_about_rows_names_its_table(
    monkeypatch: pytest.MonkeyPatch, sqlstate: str, is_named: bool
) -> None:
    """Other tables are loaded then; a full disk concerns all."""
    task: Any = SimpleNamespace(table=ITEM, chunk=SimpleNamespace(number=1))
    copier = ChunkCopier()

    def refuse(_: object) -> None:
        raise StatementFailed("refused", hint="look", sqlstate=sqlstate)

    monkeypatch.setattr(copier, "_open_target", refuse)
    outcome = copier.copy(task)
    assert outcome.error is not None
    assert ("table" in outcome.error.fields) is is_named
