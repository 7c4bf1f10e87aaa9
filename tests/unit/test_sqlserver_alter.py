"""Changes of a table's shape as statements of SQL Server, and the rules of its types."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sqlfluff

from harness.pipelines.changes import relation
from harness.sqlserver_target import BINARY, column, table
from penstock.engines.sqlserver.target.alter import Alterer
from penstock.engines.sqlserver.target.catalog import TargetIndex
from penstock.engines.sqlserver.target.type_rules import holds, same
from penstock.model import Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.target import ShapeNotApplicable, TableRecord
from penstock.sql.shape_changes import ShapeChange, not_null_of, shape_of

TEXT = f"COLLATE {BINARY}"
OLD = relation(("id", "int", "int32"), ("name", "nvarchar(40)", "string"), schema="dbo")
BY_NAME = TargetIndex(name="by_name", columns=("name",), is_unique=True)
TABLE = table("id int not null", "name nvarchar(40)", indexes=(BY_NAME,))


def alterer(new: Relation, *, before: Relation = OLD, **more: Any) -> Alterer:
    """Return the alterer from one shape to another."""
    name = TableName("dbo", "t")
    record = TableRecord(
        source=name,
        target=name,
        merge_name="t_wkm",
        made=True,
        columns=shape_of(before),
        key=tuple(before.columns[place].name for place in before.key),
        not_null=not_null_of(before),
    )
    types = {
        one.name: f"{one.source_type} {TEXT}" if "char" in one.source_type else one.source_type
        for one in new.columns
    }
    return Alterer(
        record=more.pop("record", record),
        relation=new,
        table=more.pop("table", TABLE),
        types=types,
        is_emptied=more.pop("is_emptied", False),
        **more,
    )


def texts(found: Any) -> list[str]:
    """Return the statements, after another grammar has read them."""
    statements = [one.sql for one in found]
    for sql in statements:
        if not sql.startswith("EXEC"):
            # A clause of T-SQL that this grammar lacks.
            assert sqlfluff.parse(sql.removesuffix(" WITH VALUES"), dialect="tsql")
    return statements


def change(
    kind: ChangeKind, shape: Relation | None = None, name: str = "", **more: Any
) -> ShapeChange:
    """Return a change. shape: of the column of this name."""
    found = None
    if shape is not None:
        found = next((one for one in shape.columns if one.name == name), None)
    old = more.pop("old", name)
    return ShapeChange(kind=kind, what=f"column {name} changed", column=found, name=old, **more)


def test_a_new_column_gets_the_value_of_older_rows_once() -> None:
    """The default is dropped: later rows have their own values."""
    new = relation(("id", "int", "int32"), ("n", "int", "int32"), schema="dbo")
    filled = dataclasses.replace(new.columns[1], missing="7", nullable=False)
    new = dataclasses.replace(new, columns=(new.columns[0], filled))
    assert texts(alterer(new).evolve(change(ChangeKind.ADD_COLUMN, new, "n"))) == [
        "ALTER TABLE [dbo].[t] ADD [n] int NOT NULL CONSTRAINT [penstock_t_n] DEFAULT"
        " (CAST(N'7' AS int)) WITH VALUES",
        "ALTER TABLE [dbo].[t] DROP CONSTRAINT [penstock_t_n]",
    ]
    lenient = texts(alterer(new).lenient(change(ChangeKind.ADD_COLUMN, new, "n")))
    assert "[n] int NULL CONSTRAINT" in lenient[0]


def test_a_new_column_without_a_value_may_be_null() -> None:
    """Existing rows have none, whatever the source says of later ones."""
    new = relation(("id", "int", "int32"), ("n", "int", "int32"), schema="dbo")
    strict = dataclasses.replace(new.columns[1], nullable=False)
    new = dataclasses.replace(new, columns=(new.columns[0], strict))
    added = change(ChangeKind.ADD_COLUMN, new, "n")
    assert texts(alterer(new).evolve(added)) == ["ALTER TABLE [dbo].[t] ADD [n] int NULL"]
    assert texts(alterer(new, is_emptied=True).evolve(added)) == [
        "ALTER TABLE [dbo].[t] ADD [n] int NOT NULL"
    ]


def test_a_new_column_whose_values_may_become_null_by_a_choice_may_be_null() -> None:
    """Older rows have a value, and a later one may have NULL in its place."""
    new = relation(("id", "int", "int32"), ("n", "int", "int32"), schema="dbo")
    strict = dataclasses.replace(new.columns[1], missing="7", nullable=False)
    new = dataclasses.replace(new, columns=(new.columns[0], strict))
    added = alterer(new, loose=frozenset({"n"})).evolve(change(ChangeKind.ADD_COLUMN, new, "n"))
    assert "[n] int NULL CONSTRAINT" in texts(added)[0]


def test_a_dropped_column_takes_its_default_and_indexes_along() -> None:
    """The server refuses to drop a column on which they depend."""
    with_default = dataclasses.replace(
        TABLE,
        columns=(TABLE.columns[0], column("name nvarchar(40)", default_name="df")),
    )
    new = relation(("id", "int", "int32"), schema="dbo")
    dropped = change(ChangeKind.DROP_COLUMN, name="name")
    assert texts(alterer(new, table=with_default).evolve(dropped)) == [
        "ALTER TABLE [dbo].[t] DROP CONSTRAINT [df]",
        "DROP INDEX [by_name] ON [dbo].[t]",
        "ALTER TABLE [dbo].[t] DROP COLUMN [name]",
    ]
    assert texts(alterer(new).lenient(dropped)) == []


def test_another_type_keeps_the_indexes() -> None:
    """Indexes are dropped before, and created again after."""
    new = relation(("id", "int", "int32"), ("name", "nvarchar(80)", "string"), schema="dbo")
    retyped = change(ChangeKind.WIDEN_TYPE, new, "name")
    assert texts(alterer(new).evolve(retyped)) == [
        "DROP INDEX [by_name] ON [dbo].[t]",
        f"ALTER TABLE [dbo].[t] ALTER COLUMN [name] nvarchar(80) {TEXT} NULL",
        "CREATE UNIQUE INDEX [by_name] ON [dbo].[t] ([name])",
    ]


def test_a_type_without_a_conversion_is_recreated_in_an_empty_table() -> None:
    """ALTER COLUMN refuses pairs of types even without rows."""
    new = relation(("id", "int", "int32"), ("name", "varbinary(9)", "binary"), schema="dbo")
    retyped = change(ChangeKind.CHANGE_TYPE, new, "name")
    found = texts(alterer(new, is_emptied=True).evolve(retyped))
    assert "ALTER TABLE [dbo].[t] DROP COLUMN [name]" in found
    assert "ALTER TABLE [dbo].[t] ADD [name] varbinary(9) NULL" in found
    kept = texts(alterer(new).evolve(retyped))
    assert "ALTER TABLE [dbo].[t] ALTER COLUMN [name] varbinary(9) NULL" in kept


def test_a_changed_type_is_kept_as_text_leniently() -> None:
    """Text holds the existing and the new values; a key cannot be text of any length."""
    new = relation(("id", "bigint", "int64"), ("name", "int", "int32"), schema="dbo")
    found = texts(alterer(new).lenient(change(ChangeKind.CHANGE_TYPE, new, "name")))
    assert f"ALTER TABLE [dbo].[t] ALTER COLUMN [name] nvarchar(max) {TEXT} NULL" in found
    assert not any("CREATE" in sql for sql in found)  # no index is over such text
    with pytest.raises(ShapeNotApplicable, match="part of the key"):
        alterer(new).lenient(change(ChangeKind.CHANGE_TYPE, new, "id"))


def test_a_rename_is_by_the_servers_procedure() -> None:
    """Names are quoted for it as one text."""
    new = relation(("id", "int", "int32"), ("it's", "nvarchar(40)", "string"), schema="dbo")
    renamed = change(ChangeKind.RENAME_COLUMN, new, "it's", old="name")
    assert texts(alterer(new).evolve(renamed)) == [
        "EXEC sp_rename N'[dbo].[t].[name]', N'it''s', N'COLUMN'"
    ]
    lenient = texts(alterer(new).lenient(renamed))
    assert lenient[0].startswith("ALTER TABLE [dbo].[t] ADD [it's]")
    assert lenient[1].startswith("UPDATE [dbo].[t] SET [it's] = CAST([name] AS nvarchar(40))")


def test_a_name_that_both_have_is_refused() -> None:
    """Renaming would lose the other column."""
    new = relation(("id", "int", "int32"), schema="dbo")
    with pytest.raises(ShapeNotApplicable, match="has both"):
        alterer(new).evolve(change(ChangeKind.RENAME_COLUMN, new, "id", old="name"))


def test_the_key_changes_with_the_columns_that_it_needs() -> None:
    """A key column is NOT NULL; the old one may be NULL again if the source's may."""
    new = relation(
        ("id", "int", "int32"), ("name", "nvarchar(40)", "string"), schema="dbo", key=(1,)
    )
    changed = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="the key changed")
    found = texts(alterer(new).evolve(changed))
    assert found == [
        "ALTER TABLE [dbo].[t] DROP CONSTRAINT [pk_t]",
        f"ALTER TABLE [dbo].[t] ALTER COLUMN [name] nvarchar(40) {TEXT} NOT NULL",
        "ALTER TABLE [dbo].[t] ADD CONSTRAINT [pk_t] PRIMARY KEY ([name])",
        "ALTER TABLE [dbo].[t] ALTER COLUMN [id] int NULL",
    ]


def test_a_dropped_unique_key_is_dropped() -> None:
    """Rows may be equal in it from now on."""
    changed = ShapeChange(kind=ChangeKind.CHANGE_KEY, what="dropped", columns=("name",))
    assert texts(alterer(OLD).evolve(changed)) == ["DROP INDEX [by_name] ON [dbo].[t]"]


def test_a_column_missing_for_no_reason_is_named() -> None:
    """The log does not say that it was dropped."""
    with pytest.raises(ShapeNotApplicable, match="has no column name"):
        alterer(OLD, table=table("id int not null")).check()


@pytest.mark.parametrize(
    ("wider", "narrower", "expected"),
    [
        ("bigint", "int", True),
        ("int", "bigint", False),
        ("smallint", "tinyint", True),
        ("decimal(10,0)", "int", True),
        ("decimal(9,0)", "int", False),
        ("decimal(12,4)", "decimal(10,2)", True),
        ("decimal(12,4)", "decimal(12,2)", False),
        ("decimal(19,4)", "money", True),
        ("float", "real", True),
        ("real", "float", False),
        ("nvarchar(80)", "nvarchar(40)", True),
        ("nvarchar(40)", "nvarchar(80)", False),
        ("nvarchar(max)", "varchar(8000)", True),
        ("varchar(max)", "nvarchar(10)", False),
        ("nvarchar(40)", "nvarchar(max)", False),
        ("varbinary(max)", "binary(4)", True),
        ("binary(8)", "binary(4)", False),
        ("datetime2(7)", "datetime2(3)", True),
        ("datetime2(3)", "datetime", True),
        ("datetime2(2)", "datetime", False),
        ("time(6)", "time(7)", False),
        ("uniqueidentifier", "int", False),
    ],
)
def test_which_type_holds_another(wider: str, narrower: str, expected: bool) -> None:
    """A wider type holds every value without change."""
    assert holds(wider, narrower) is expected
    assert holds(narrower, narrower)


def test_spellings_of_a_type_are_the_same() -> None:
    """Synonyms, case, blanks and collations make no other type."""
    assert same("numeric(10, 2)", "DECIMAL(10,2)")
    assert same("nvarchar(40) COLLATE Latin1_General_100_BIN2", "nvarchar(40)")
    assert same("datetime2", "datetime2(7)")
    assert not same("datetime2(6)", "datetime2(7)")


# --- indexes that are dropped for a change, and created again -------------------------------------

LONGER = relation(("id", "int", "int32"), ("name", "nvarchar(80)", "string"), schema="dbo")
THERE = "([name] IS NOT NULL)"


def recreate(index: TargetIndex, *, kind: ChangeKind = ChangeKind.WIDEN_TYPE) -> list[str]:
    """Return the statements of a change of `name`'s type, without the one that alters it."""
    found = texts(
        alterer(LONGER, table=table("id int not null", "name nvarchar(40)", indexes=(index,)))
        .evolve(change(kind, LONGER, "name"))
    )  # fmt: skip
    return [sql for sql in found if "ALTER COLUMN" not in sql]


@pytest.mark.parametrize(
    ("more", "created"),
    [
        (
            {"descending": frozenset({"name"})},
            "CREATE INDEX [i] ON [dbo].[t] ([id], [name] DESC)",
        ),
        (
            {"where": THERE, "is_unique": True},
            f"CREATE UNIQUE INDEX [i] ON [dbo].[t] ([id], [name]) WHERE {THERE}",
        ),
        (
            {"is_clustered": True, "is_unique": True},
            "CREATE UNIQUE CLUSTERED INDEX [i] ON [dbo].[t] ([id], [name])",
        ),
        (
            {"is_constraint": True, "is_unique": True, "descending": frozenset({"id"})},
            "ALTER TABLE [dbo].[t] ADD CONSTRAINT [i] UNIQUE ([id] DESC, [name])",
        ),
    ],
)
def test_a_recreated_index_is_the_same(more: dict[str, Any], created: str) -> None:
    """Order, condition and clustering stay: a key of rows without NULL still allows several."""
    dropped = "DROP INDEX [i] ON [dbo].[t]"
    if more.get("is_constraint"):
        dropped = "ALTER TABLE [dbo].[t] DROP CONSTRAINT [i]"
    index = TargetIndex(name="i", columns=("id", "name"), **more)
    assert recreate(index) == [dropped, created]


def test_a_recreated_index_keeps_included_columns_and_stays_disabled() -> None:
    """A column that only the condition names is one of the index too."""
    index = TargetIndex(
        name="i", columns=("id",), included=("id",), where=THERE, is_disabled=True
    )  # fmt: skip
    assert recreate(index) == [
        "DROP INDEX [i] ON [dbo].[t]",
        f"CREATE INDEX [i] ON [dbo].[t] ([id]) INCLUDE ([id]) WHERE {THERE}",
        "ALTER INDEX [i] ON [dbo].[t] DISABLE",
    ]
    other = TargetIndex(name="i", columns=("id",), where="([id] IS NOT NULL)")
    assert recreate(other) == []


def test_a_recreated_primary_key_says_whether_it_is_clustered() -> None:
    """The server would make it so, if nothing else is."""
    wide = relation(("id", "bigint", "int64"), ("name", "nvarchar(40)", "string"), schema="dbo")
    heap = dataclasses.replace(TABLE.indexes[0], is_clustered=False)
    for indexes, order in ((TABLE.indexes, "CLUSTERED"), ((heap,), "NONCLUSTERED")):
        given = dataclasses.replace(TABLE, indexes=indexes)
        found = texts(alterer(wide, table=given).evolve(change(ChangeKind.WIDEN_TYPE, wide, "id")))
        assert f"ALTER TABLE [dbo].[t] ADD CONSTRAINT [pk_t] PRIMARY KEY {order} ([id])" in found


def test_an_index_whose_options_are_unknown_is_not_dropped() -> None:
    """One by columns would come back as another kind of index."""
    index = TargetIndex(name="i", columns=(), included=("name",), is_rowstore=False)
    with pytest.raises(ShapeNotApplicable, match="spatial index i") as refused:
        recreate(index)
    assert "DROP INDEX [i] ON [dbo].[t]" in refused.value.hint


def test_a_wide_text_is_only_included() -> None:
    """The server refuses it as a key and in a condition, but stores it with one."""
    new = relation(("id", "int", "int32"), ("name", "int", "int32"), schema="dbo")
    indexes = (
        TargetIndex(name="has", columns=("id",), included=("name",), is_unique=True),
        TargetIndex(name="asks", columns=("id",), where=THERE),
    )
    given = table("id int not null", "name nvarchar(40)", indexes=indexes)
    found = texts(alterer(new, table=given).lenient(change(ChangeKind.CHANGE_TYPE, new, "name")))
    assert [sql for sql in found if "CREATE" in sql] == [
        "CREATE UNIQUE INDEX [has] ON [dbo].[t] ([id]) INCLUDE ([name])"
    ]


def test_a_column_that_may_be_null_from_now_on_may_be_so_in_several_rows() -> None:
    """The unique index leaves out rows with NULL, as for a column without NOT NULL."""
    given = table(
        "id int not null", "name nvarchar(40) not null", "n int",
        indexes=(
            TargetIndex(name="u", columns=("name", "n"), is_unique=True, where="([n] IS NOT NULL)"),
            TargetIndex(name="c", columns=("name",), is_unique=True, is_constraint=True),
        ),
    )  # fmt: skip
    loosened = change(ChangeKind.NULLABILITY, OLD, "name")
    altered = f"ALTER TABLE [dbo].[t] ALTER COLUMN [name] nvarchar(40) {TEXT} NULL"
    assert texts(alterer(OLD, table=given).evolve(loosened)) == [
        "DROP INDEX [u] ON [dbo].[t]",
        altered,
        "CREATE UNIQUE INDEX [u] ON [dbo].[t] ([name], [n])"
        " WHERE [n] IS NOT NULL AND [name] IS NOT NULL",
    ]
    referred = dataclasses.replace(given, is_referred_to=True)
    assert texts(alterer(OLD, table=referred).evolve(loosened)) == [altered]
    new = relation(("id", "int", "int32"), schema="dbo")
    kept = texts(alterer(new, table=given).lenient(change(ChangeKind.DROP_COLUMN, name="name")))
    assert kept[0] == "DROP INDEX [u] ON [dbo].[t]"


def test_a_dropped_unique_key_of_rows_without_null_is_dropped() -> None:
    """Unique keys with NULL have a condition here, and would refuse later rows that are equal."""
    index = dataclasses.replace(BY_NAME, where=THERE)
    given = table("id int not null", "name nvarchar(40)", indexes=(index,))
    dropped = change(ChangeKind.CHANGE_KEY, columns=("name",))
    assert texts(alterer(OLD, table=given).evolve(dropped)) == [
        "DROP INDEX [by_name] ON [dbo].[t]"
    ]  # fmt: skip
