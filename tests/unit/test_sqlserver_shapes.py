"""Shapes of SQL Server's captured tables: which columns have values that no change row has."""

from __future__ import annotations

import pytest

from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.source.instances import CapturedColumn, KnownTable
from penstock.engines.sqlserver.source.shapes import KnownRelations, Shapes
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

ID = 7  # object id of the table
TABLE = KnownTable(schema="dbo", name="t", instances=())
Columns = tuple[tuple[str, str, int], ...]  # names, types and ids
FIRST: Columns = (("id", "int", 1), ("v", "varchar(20)", 2))


def definition(columns: Columns, *, key: tuple[str, ...] = ("id",)) -> TableDefinition:
    """Return the table's definition."""
    return TableDefinition(
        name=TableName("dbo", "t"),
        source_id=ID,
        columns=tuple(
            ColumnDefinition(
                name=name,
                type_text=text,
                type_oid=0,
                typmod=-1,
                neutral=parse_type(text).neutral,
                id=number,
            )
            for name, text, number in columns
        ),
        primary_key=key,
        identity=Identity.DEFAULT,
        identity_columns=key,
    )


def make_captured(columns: Columns) -> list[CapturedColumn]:
    """Return the change table's columns."""
    return [
        CapturedColumn(ordinal=at, name=name, column_id=number, kind=parse_type(text))
        for at, (name, text, number) in enumerate(columns, 1)
    ]


def lost_after(*steps: Columns) -> tuple[str, ...]:
    """Return the lost columns after a table had these columns, one after the other."""
    now = list(steps[:1])
    shapes = Shapes(lambda: [definition(now[-1])])
    for columns in steps:
        now.append(columns)
        shapes.forget_definitions()
        assert shapes.layout(ID, TABLE, make_captured(columns), since=1) is not None
    return shapes.lost.get(ID, ())


@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        pytest.param((FIRST,), (), id="a new table"),
        pytest.param((FIRST, FIRST), (), id="nothing changed"),
        pytest.param((FIRST, (*FIRST, ("n", "int", 3))), ("n",), id="added"),
        pytest.param((FIRST, FIRST[:1]), (), id="dropped"),
        pytest.param((FIRST, (FIRST[0], ("v", "varchar(20)", 3))), ("v",), id="dropped and added"),
        pytest.param((FIRST, (FIRST[0], ("v", "varchar(10)", 2))), ("v",), id="narrower"),
        pytest.param((FIRST, (FIRST[0], ("v", "nvarchar(40)", 2))), (), id="wider"),
        pytest.param(
            (FIRST, (*FIRST, ("n", "int", 3)), (*FIRST, ("n", "int", 3), ("m", "bit", 4))),
            ("m", "n"),
            id="twice",
        ),
    ],
)
def test_values_that_alter_table_gives_are_lost(
    steps: tuple[Columns, ...], lost: tuple[str, ...]
) -> None:
    """A default of an added column and a converted value are in no change row."""
    assert lost_after(*steps) == lost


def test_lost_columns_are_remembered_until_they_are_read() -> None:
    """A restart knows them; those that were read again are forgotten, later ones are not."""
    shapes = Shapes(list)
    shapes.load(KnownRelations(lost={ID: ("m", "n")}))
    assert shapes.state().lost == {ID: ("m", "n")}
    shapes.forget_lost(ID, ("m",))
    assert shapes.is_changed
    assert shapes.lost == {ID: ("n",)}
    shapes.forget_lost(ID, ("n", "m"))
    assert shapes.state().lost == {}


SECOND: Columns = (*FIRST, ("w", "int", 3))


def altered_without_a_key() -> Shapes:
    """Return the shapes after a column was added to a table without a key."""
    now = [FIRST]
    shapes = Shapes(lambda: [definition(now[-1], key=())])
    assert shapes.layout(ID, TABLE, make_captured(FIRST), since=1) is not None
    assert not shapes.awaits_reload(ID)
    now.append(SECOND)
    shapes.forget_definitions()
    assert shapes.layout(ID, TABLE, make_captured(SECOND), since=2) is not None
    return shapes


def test_a_table_without_a_key_awaits_its_rows_in_every_later_shape() -> None:
    """Also in shapes that lose nothing more."""
    shapes = altered_without_a_key()
    assert shapes.awaits_reload(ID)
    same = shapes.layout(ID, TABLE, make_captured(SECOND), since=3)
    assert same is not None
    assert same.relation.version == 2
    again = shapes.layout(ID, TABLE, make_captured(SECOND[1:]), since=3)
    assert again is not None
    assert again.relation.version == 3
    assert again.relation.awaits_reload


def test_rows_are_awaited_until_they_are_durable() -> None:
    """The state is saved before the log has the rows; a crash between loses nothing."""
    shapes = altered_without_a_key()
    made = shapes.begin_reload(ID, shapes.relations[ID], since=5)
    assert (made.version, made.awaits_reload, made.since) == (3, "", 5)
    later = shapes.layout(ID, TABLE, make_captured(SECOND), since=6)
    assert later is not None
    assert later.relation == made
    assert shapes.state().relations[ID].awaits_reload
    shapes.end_reload(ID, is_durable=True)
    assert shapes.state().relations[ID] == made


def test_a_table_whose_rows_did_not_come_awaits_them_still() -> None:
    """The stream ended before the log was durable with them."""
    shapes = altered_without_a_key()
    shapes.begin_reload(ID, shapes.relations[ID], since=5)
    shapes.end_reload(ID, is_durable=False)
    assert shapes.awaits_reload(ID)


def test_a_table_with_a_key_awaits_nothing() -> None:
    """Changes are found by the key."""
    now = [FIRST]
    shapes = Shapes(lambda: [definition(now[-1])])
    assert shapes.layout(ID, TABLE, make_captured(FIRST), since=1) is not None
    now.append(SECOND)
    shapes.forget_definitions()
    assert shapes.layout(ID, TABLE, make_captured(SECOND), since=2) is not None
    assert not shapes.awaits_reload(ID)
    assert shapes.lost == {ID: ("w",)}
