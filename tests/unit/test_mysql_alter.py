"""Clauses of an ALTER TABLE on MySQL and MariaDB, and the old rows that may be removed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.pipelines.changes import relation
from penstock.codec.types import Engine, Mapping, Server
from penstock.engines.mysql.target.alter import (
    DROP_KEY,
    Alterer,
    Clause,
    alter_table,
)
from penstock.engines.mysql.target.target import TargetColumn, TargetIndex, TargetTable
from penstock.model import Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import TableRecord
from penstock.sql.shape_changes import ShapeChange

NAME = TableName("db", "t")
ID, V = ("id", "integer", "int32"), ("v", "integer", "int32")
RETYPED = Clause(
    "modify column `v` int null", "", modifies="v", strict="modify column `v` int not null"
)
KEY = Clause("add primary key (`v`)", "", key=("v",))
LOOSENED = Clause("modify column `id` int null", "", modifies="id", loosens=True, behind_key=True)


def column(name: str, *, not_null: bool) -> TargetColumn:
    """Return a column of whole numbers."""
    return TargetColumn(
        name=name,
        data_type="int",
        type_text="int",
        not_null=not_null,
        generated=False,
        has_default=False,
    )


TABLE = TargetTable(
    name=NAME, columns=(column("id", not_null=True), column("v", not_null=False)), engine="InnoDB"
)


def free_keys(shape: Relation, *, emptied: bool = False, replaced: bool = False) -> list[str]:
    """Return the statements that remove old values before the type of v changes."""
    alterer = Alterer(
        record=TableRecord(
            source=TableName("public", "t"), target=NAME, merge_name="", made=True, columns=None
        ),
        relation=shape,
        table=TABLE,
        mapping_of=lambda _: Mapping(source_type="integer", target_type="int"),
        server=Server(engine=Engine.MYSQL, version=(8, 4, 0)),
        emptied=emptied,
        replaced=replaced,
    )
    return list(alterer.free([RETYPED]))


@pytest.mark.parametrize(
    ("is_virtual", "expected"),
    [
        (False, ["modify column `v` int null"]),
        (True, ["drop column `v`", "add column `v` int null"]),
    ],
)
def test_a_computed_column_of_an_emptied_table_becomes_an_ordinary_one(
    is_virtual: bool, expected: list[str]
) -> None:
    """The servers refuse to modify a virtual one."""
    computed = replace(column("v", not_null=False), generated=True, is_virtual=is_virtual)
    alterer = Alterer(
        record=TableRecord(
            source=TableName("public", "t"),
            target=NAME,
            merge_name="",
            made=True,
            columns=(("id", "integer"),),
        ),
        relation=relation(ID, V),
        table=replace(TABLE, columns=(TABLE.columns[0], computed)),
        mapping_of=lambda _: Mapping(source_type="integer", target_type="int"),
        server=Server(engine=Engine.MYSQL, version=(8, 4, 0)),
        emptied=True,
        replaced=False,
    )
    assert [one.sql for one in alterer.stop_computing()] == expected


def alterer_of(shape: Relation, table: TargetTable, **known: str) -> Alterer:
    """Return an alterer of a table without rows. known: the copy's columns and their types."""
    return Alterer(
        record=TableRecord(
            source=TableName("public", "t"),
            target=NAME,
            merge_name="",
            made=True,
            columns=tuple(known.items()),
            key=("id",),
        ),
        relation=shape,
        table=table,
        mapping_of=lambda one: Mapping(source_type=one.source_type, target_type="int"),
        server=Server(engine=Engine.MYSQL, version=(8, 4, 0)),
        emptied=True,
        replaced=False,
    )


def test_generated_columns_are_dropped_before_those_that_they_need() -> None:
    """MySQL refuses one statement for both."""
    computed = replace(column("v", not_null=False), generated=True)
    table = replace(TABLE, columns=(TABLE.columns[0], computed))
    alterer = alterer_of(relation(("nr", "integer", "int32")), table, id="integer", v="integer")
    dropped = [
        ShapeChange(kind=ChangeKind.DROP_COLUMN, what=name, name=name) for name in ("id", "v")
    ]
    assert [one.sql for one in alterer.drop_computed(dropped)] == ["drop column `v`"]
    there = alterer_of(relation(ID, V), table, id="integer", v="integer")
    assert there.drop_computed(dropped) == []


@pytest.mark.parametrize(
    ("engine", "unique", "expected"),
    [
        (Engine.MARIADB, (("nr",),), ["drop index `u`", "drop column `v`"]),
        (Engine.MYSQL, (("nr",),), ["drop column `v`"]),  # it stays on the other column there
        (Engine.MYSQL, (), ["drop index `u`", "drop column `v`"]),
    ],
)
def test_a_unique_key_goes_with_one_of_its_columns(
    engine: Engine, unique: tuple[tuple[str, ...], ...], expected: list[str]
) -> None:
    """MariaDB refuses to drop the column, and MySQL leaves a stricter key."""
    number = column("nr", not_null=False)
    key = TargetIndex(name="u", columns=("v", "nr"), plain=True)
    table = replace(TABLE, columns=(*TABLE.columns, number), unique=(key,))
    shape = replace(relation(("id", "integer", "int32"), ("nr", "integer", "int32")), unique=unique)
    alterer = replace(
        alterer_of(shape, table, id="integer", v="integer", nr="integer"),
        server=Server(engine=engine, version=(10, 11, 0)),
    )
    dropped = ShapeChange(kind=ChangeKind.DROP_COLUMN, what="v", name="v")
    assert [one.sql for one in alterer.evolve(dropped)] == expected


@pytest.mark.parametrize("stays", [False, True])
def test_a_column_that_leaves_with_the_key_keeps_its_numbers(stays: bool) -> None:
    """MariaDB refuses to modify a column that the same statement drops."""
    numbered = replace(TABLE.columns[0], auto_increment=True)
    primary = TargetIndex(name="PRIMARY", columns=("id",), plain=True)
    table = replace(TABLE, columns=(numbered, TABLE.columns[1]), unique=(primary,))
    shape = replace(relation(ID, V) if stays else relation(V), key=())
    alterer = alterer_of(shape, table, id="integer", v="integer")
    gone = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key was dropped")
    expected = ["modify column `id` int not null", DROP_KEY] if stays else [DROP_KEY]
    assert [one.sql for one in alterer.evolve(gone)] == expected


@pytest.mark.parametrize("was", ["text[]", "integer"])
@pytest.mark.parametrize("kind", ["int", "longtext"])
def test_a_long_column_gets_a_type_that_a_key_can_contain(was: str, kind: str) -> None:
    """Without one, the table has no key: that of the other columns would refuse rows."""
    long = replace(column("v", not_null=False), data_type="longtext", type_text="longtext")
    primary = TargetIndex(name="PRIMARY", columns=("id",), plain=True)
    table = replace(TABLE, columns=(TABLE.columns[0], long), unique=(primary,))
    alterer = replace(
        alterer_of(relation(V), table, id="bigint", v=was),
        mapping_of=lambda one: Mapping(source_type=one.source_type, target_type=kind),
    )
    change = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key is another one")
    retyped = ["modify column `v` int null"] if was == "integer" else []
    expected = [*retyped, DROP_KEY, "add primary key (`v`)"] if kind == "int" else [DROP_KEY]
    assert [one.sql for one in alterer.evolve(change)] == expected


@pytest.mark.parametrize(("value", "is_key"), [("3", True), (None, False)])
def test_a_new_column_becomes_part_of_the_key_if_rows_have_a_value(
    value: str | None, is_key: bool
) -> None:
    """The key of the columns that stay alone would refuse the rows that follow."""
    primary = TargetIndex(name="PRIMARY", columns=("id",), plain=True)
    table = replace(TABLE, columns=(TABLE.columns[0],), unique=(primary,))
    both = relation(ID, V, key=(0, 1))
    strict = replace(both.columns[1], nullable=False, missing=value)
    shape = replace(both, columns=(both.columns[0], strict))
    alterer = replace(alterer_of(shape, table, id="integer"), emptied=False)
    change = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key is another one")
    added = [one.sql for one in alterer.evolve(change) if "add primary key" in one.sql]
    assert added == (["add primary key (`id`, `v`)"] if is_key else [])


def test_a_column_that_loses_its_numbers_and_its_type_is_modified_once() -> None:
    """The servers look for the column of a second clause under its name in vain."""
    numbered = replace(TABLE.columns[0], auto_increment=True, type_text="bigint")
    primary = TargetIndex(name="PRIMARY", columns=("id",), plain=True)
    table = replace(TABLE, columns=(numbered,), unique=(primary,))
    shape = replace(relation(ID), key=())
    alterer = alterer_of(shape, table, id="bigint")
    changes = [
        ShapeChange(kind=ChangeKind.NARROW_TYPE, what="it is narrow", column=shape.columns[0]),
        ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key was dropped"),
    ]
    clauses = [clause for change in changes for clause in alterer.evolve(change)]
    assert alter_table(table, clauses) == (
        f"alter table {table.sql_name} modify column `id` int not null, {DROP_KEY}"
    )


@pytest.mark.parametrize(
    ("change", "was", "becomes", "more", "left"),
    [
        (
            ChangeKind.NARROW_TYPE,
            "enum('a','d')",
            "enum('a')",
            " default 'd' comment 'x'",
            "comment 'x'",
        ),
        (ChangeKind.NARROW_TYPE, "varchar(9)", "varchar(3)", " default 'too long'", ""),
        (ChangeKind.WIDEN_TYPE, "varchar(3)", "varchar(9)", " default 'ab'", "default 'ab'"),
        (ChangeKind.CHANGE_TYPE, "date", "int", " default '2024-01-02'", ""),
        (
            ChangeKind.WIDEN_TYPE,
            "datetime(3)",
            "datetime(6)",
            " default current_timestamp(3) on update current_timestamp(3)",
            "default current_timestamp(6) on update current_timestamp(6)",
        ),
    ],
)
def test_a_default_that_the_new_type_cannot_have_goes(
    change: ChangeKind, was: str, becomes: str, more: str, left: str
) -> None:
    """The servers would refuse the statement: Invalid default value."""
    other = replace(TABLE.columns[0], name="x", type_text=was, more_sql=more, not_null=False)
    shape = relation(ID, ("x", becomes, "string"))
    alterer = alterer_of(shape, replace(TABLE, columns=(*TABLE.columns, other)), x=becomes)
    alterer = replace(
        alterer, mapping_of=lambda one: Mapping(source_type=was, target_type=one.source_type)
    )
    retyped = ShapeChange(kind=change, what="it is other", column=shape.columns[1])
    (clause,) = alterer.evolve(retyped)
    assert clause.sql.partition(" null")[2].strip() == left


def test_a_new_column_whose_values_may_become_null_by_a_choice_may_be_null() -> None:
    """Older rows have a value, and a later one may have NULL in its place."""
    added = replace(relation(ID, V).columns[1], missing="7", nullable=False)
    shape = replace(relation(ID, V), columns=(relation(ID).columns[0], added))
    only = replace(TABLE, columns=TABLE.columns[:1])
    change = ShapeChange(kind=ChangeKind.ADD_COLUMN, what="v is new", column=added)
    strict = Mapping(source_type="integer", target_type="int")
    for kind, null in ((strict, "not null"), (replace(strict, chosen={"digits": "null"}), "null")):
        alterer = replace(
            alterer_of(shape, only, id="integer"), mapping_of=lambda _, kind=kind: kind
        )
        (clause,) = alterer.evolve(change)
        assert f" int {null} default" in clause.sql
