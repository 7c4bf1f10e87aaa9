"""Columns that statements led to: which of them have values that no statement tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.pipelines.log import ITEM
from penstock.engines.mysql.source.added_columns import Added
from penstock.engines.mysql.source.ddl_text import Doing, Effect
from penstock.engines.mysql.source.known_columns import alter_columns, identify, number_columns
from penstock.model import Column, Relation, TableName

T = TableName("db", "item")


def effect(**more: object) -> Effect:
    """Return what an ALTER does to the table."""
    return replace(Effect(doing=Doing.ALTERED, table=T), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_redefined", [False, True])
def test_a_column_that_is_redefined_before_a_row_is_not_known(is_redefined: bool) -> None:
    """The catalogue, which is ahead, shows the last definition: NULLs may have become values."""
    known = number_columns([one.name for one in ITEM.columns], last_id=0)
    settled, before = identify(known, ITEM, None, last_id=2)
    added = effect(added=(Added(name="x"),))
    altered = alter_columns(settled, added, {"x": None}, last_id=2, since=5)
    if is_redefined:
        altered = alter_columns(altered, effect(redefined=("x",)), {}, last_id=3, since=6)
    shape: Relation = replace(
        ITEM, columns=(*ITEM.columns, Column(name="x", source_type="int", neutral="int32"))
    )
    _, found = identify(altered, shape, before, last_id=3)
    assert bool(found.awaits_reload) is is_redefined


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_unique_key_that_a_statement_dropped_is_gone_without_the_catalogue(
    is_dropped: bool,
) -> None:
    """The catalogue is ahead and does not tell the keys of this shape."""
    names = [column.name for column in ITEM.columns[:2]]
    known = number_columns(names, last_id=0)
    both = (names[0], names[1])
    shape = replace(ITEM, columns=ITEM.columns[:2], unique=((names[1],), both))
    settled, before = identify(known, shape, None, last_id=2)
    if is_dropped:
        settled = replace(settled, lost_keys=((2,),))
    _, found = identify(settled, replace(shape, unique=None), before, last_id=2)
    assert found.unique == ((both,) if is_dropped else ((names[1],), both))


@pytest.mark.parametrize("is_key", [False, True])
def test_a_column_that_is_added_to_the_key_without_a_value_is_not_known(is_key: bool) -> None:
    """MariaDB keeps a dropped and added column in its keys: rows that had NULL get 0 or ''."""
    known = number_columns([one.name for one in ITEM.columns], last_id=0)
    settled, before = identify(known, ITEM, None, last_id=2)
    altered = alter_columns(settled, effect(added=(Added(name="x"),)), {"x": None}, last_id=2)
    columns = (*ITEM.columns, Column(name="x", source_type="int", neutral="int32"))
    key = (*ITEM.key, len(ITEM.columns)) if is_key else ITEM.key
    _, found = identify(altered, replace(ITEM, columns=columns, key=key), before, last_id=3)
    assert bool(found.awaits_reload) is is_key


@pytest.mark.parametrize(("kind", "is_filled"), [("timestamp", True), ("datetime", False)])
def test_a_timestamp_that_becomes_not_null_is_read_again(kind: str, is_filled: bool) -> None:
    """NULLs get the present time, even in a strict session, which refuses them in other types."""
    known = number_columns(["id", "x"], last_id=0)
    column = Column(name="x", source_type=kind, neutral="timestamp", nullable=True)
    shape = replace(ITEM, columns=(ITEM.columns[0], column), unique=None)
    settled, before = identify(known, shape, None, last_id=2)
    altered = alter_columns(settled, effect(redefined=("x",)), {}, last_id=2, since=6)
    strict = replace(shape, columns=(shape.columns[0], replace(column, nullable=False)))
    _, found = identify(altered, strict, before, last_id=2)
    assert bool(found.awaits_reload) is is_filled


@pytest.mark.parametrize(
    ("neutral", "missing", "kept"),
    [
        ("timestamp", "0000-00-00 00:00:00", "string"),
        ("timestamp", "2024-01-02 03:04:05", "timestamp"),
        ("time", "100:00:00", "string"),
        ("date", None, "date"),
    ],
)
def test_a_column_is_text_if_its_type_cannot_hold_the_value_of_old_rows(
    neutral: str, missing: str | None, kept: str
) -> None:
    """The base and merged logs give old rows this value, so the log's type must hold it."""
    known = number_columns([one.name for one in ITEM.columns], last_id=0)
    settled, before = identify(known, ITEM, None, last_id=2)
    altered = alter_columns(settled, effect(added=(Added(name="x"),)), {"x": missing}, last_id=2)
    columns = (*ITEM.columns, Column(name="x", source_type="any", neutral=neutral))
    _, found = identify(altered, replace(ITEM, columns=columns), before, last_id=3)
    assert (found.columns[-1].neutral, found.columns[-1].missing) == (kept, missing)
