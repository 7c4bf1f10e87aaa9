"""Columns after an ALTER TABLE of Oracle, from its text."""

from __future__ import annotations

import pytest

from harness.pipelines.changes import relation
from penstock.engines.oracle.source.ddl_columns import ColumnState, alter_columns
from penstock.engines.oracle.source.layouts import Layout, Layouts
from penstock.model import TableName

TABLE = [
    ColumnState("ID", "NUMBER(10,0)", 1),
    ColumnState("v", "VARCHAR2(40)", 2),
    ColumnState("BIG", "CLOB", 3),
]
SAME = [("ID", "NUMBER(10,0)", 1), ("v", "VARCHAR2(40)", 2), ("BIG", "CLOB", 3)]


def after(text: str) -> list[tuple[str, str, int]] | None:
    """Return name, type and identity of each column after a statement."""
    found = alter_columns(text, TABLE, last_id=3)
    return None if found is None else [(one.name, one.type, one.id) for one in found]


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ('alter table "S"."t" add c int', [("C", "NUMBER(*,0)", 4)]),
        ("ALTER TABLE s.t ADD (x NUMBER(12, 2) DEFAULT 5 NOT NULL, y timestamp(3) with time zone, "
         "constraint k unique (y));",
         [("X", "NUMBER(12,2)", 4), ("Y", "TIMESTAMP(3) WITH TIME ZONE", 5)]),
        ("alter table t add (x number) modify (id not null)", [("X", "NUMBER", 4)]),
        ("alter table t add (a varchar2(10) check (a in ('x', ')')))", [("A", "VARCHAR2(10)", 4)]),
        ("alter table t add x double precision -- why", [("X", "FLOAT(126)", 4)]),
        ("alter table t add d date default sysdate not null", [("D", "DATE", 4)]),
    ],
)  # fmt: skip
def test_added(text: str, added: list[tuple[str, str, int]]) -> None:
    """Added columns are the last ones, each with an identity that no other column has had."""
    assert after(text) == SAME + added


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('alter table t drop column "v" cascade constraints', [SAME[0], SAME[2]]),
        ('alter table t drop ("v", big)', [SAME[0]]),
        ('alter table t rename column id to "Id2"', [("Id2", *SAME[0][1:]), *SAME[1:]]),
        ('alter table t modify ("v" varchar2(80 CHAR))',
         [SAME[0], ("v", "VARCHAR2(80 CHAR)", 2), SAME[2]]),
        ("alter table t set unused (big)", [*SAME[:2], ("unused 3", "CLOB", 0)]),
    ],
)  # fmt: skip
def test_changed(text: str, expected: list[tuple[str, str, int]]) -> None:
    """Columns keep their identities; a column that is unused keeps its place."""
    assert after(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "alter table t modify id not null",
        "alter table t modify (id default 7)",
        "alter table t add primary key (id)",
        'ALTER TABLE "t" ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS',
        "alter table t rename constraint a to b",
        "alter table t drop constraint k",
        "alter table t move",
        "truncate table t",
        "comment on column t.id is 'drop column id'",
    ],
)
def test_same_columns(text: str) -> None:
    """Other statements leave the columns as they are."""
    assert after(text) == SAME


@pytest.mark.parametrize(
    "text",
    [
        "alter table t add v2 as (id + 1)",
        "alter table t add n number generated always as identity",
        "alter table t add n number not null generated always as identity",
        "alter table t add x made by a new syntax",
        "alter table t drop unused columns",
        "alter table t drop column other",
        "alter table t add ID number",
        "alter table t move add x number",
        "alter table t turn id around",
    ],
)
def test_texts_that_are_not_understood(text: str) -> None:
    """A text with an unknown word has no result."""
    assert after(text) is None


def test_default_of_an_added_column() -> None:
    """The default is SQL as it was written."""
    found = alter_columns("alter table t add x varchar2(9) default 'it''s' not null", [], last_id=0)
    assert found == [ColumnState("X", "VARCHAR2(9)", 1, "'it''s'", is_added=True)]


def test_an_identity_is_not_used_again() -> None:
    """A column that was dropped had the highest one."""
    found = alter_columns("alter table t add x number", TABLE[:1], last_id=3)
    assert found is not None
    assert [one.id for one in found] == [1, 4]


def test_a_statement_that_is_not_understood_ends_what_is_known() -> None:
    """Rows before it have the columns of then, and rows after it have unknown ones."""
    shape = relation(("ID", "NUMBER(10,0)", "int64"), schema="S", name="T")
    layouts = Layouts()
    layouts.load([Layout(relation=shape, columns=(("ID", "NUMBER(10,0)"),), since=5)])
    table = TableName("S", "T")
    layouts.alter(table, "alter table t turn id around", 10, 1)
    before = layouts.at(table, 9)
    assert before is not None
    assert before.relation == shape
    assert layouts.at(table, 10) is None
    assert layouts.present(table) is None
