"""Statements that bring a merge table of SQL Server into its table, and their grammar."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pytest
import sqlfluff
import sqlglot

from harness.pipelines.changes import relation
from harness.sqlserver_target import LOOSE, column, merge_of, table
from penstock.codec.sqlserver.arrow_rows import ValueUnfit
from penstock.engines.sqlserver.target import catalog, merge_tables, progress
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.merge import MergeSql, MergeStrategy
from penstock.model import Identity
from penstock.ports.target import KeyNotInTarget, ShapeNotApplicable, TargetShapeDiffers
from penstock.sql.state_dialect import Upsert
from penstock.sql.state_store import LOG, TABLES, create_text

SHAPE = relation(
    ("id", "integer", "int32"),
    ("k", "text", "string"),
    ("raw", "bytea", "binary"),
    ("big", "text", "string"),
    key=(0, 1, 2),
)
TARGET = table(
    "id int not null",
    "k nvarchar(40) not null",
    "raw varbinary(20) not null",
    "big nvarchar(max)",
    key=("id", "k", "raw"),
)
BAG = relation(
    ("a", "integer", "int32"), ("b", "text", "string"), key=(), identity=Identity.FULL, name="bag"
)
BAG_TARGET = table("a int", "b nvarchar(40)", "doc xml", name="bag", key=())


def statements(sql: MergeSql) -> list[str]:
    """Return all statements of a merge."""
    if sql.strategy is MergeStrategy.COUNT:
        return [sql.delete_copies(), sql.insert_copies(0), sql.insert_copies(3), sql.count_copies()]
    return [
        *filter(None, [sql.fill_absent()]),
        sql.count_absent(),
        sql.update_in_place(),
        sql.delete_gone(),
        sql.delete_affected(),
        sql.delete_others(),
        sql.update_rows(),
        sql.insert_missing(),
    ]


ALL = [
    *statements(merge_of(SHAPE, TARGET, absent_columns=frozenset({3}))),
    *statements(merge_of(BAG, BAG_TARGET)),
    MergeLayout(SHAPE).create("t_wkm"),
    merge_tables.WRITE_STAMP,
    merge_tables.SHAPES,
    " UNION ALL ".join(
        merge_tables._count_sql(place, name, 7) for place, name in enumerate(("a", "b c"))
    ),
    *(create_text(name, progress.DIALECT) for name in TABLES),
    progress.ADVANCE.format(table=LOG),
    progress.LATEST.format(operation="CL", limit=5),
    progress.LAG,
    progress.CREATE_LOCK,
    progress.OUR_TABLES,
    progress.REFERRING,
    catalog.TABLES,
    catalog.COLUMNS,
    catalog.INDEXES,
    catalog.TRIGGERS,
    catalog.FOREIGN_KEYS,
]


@pytest.mark.parametrize("sql", ALL, ids=lambda sql: re.sub(r"\W+", "-", sql)[:40])
def test_two_grammars_read_every_statement(sql: str) -> None:
    """Each statement is T-SQL for sqlglot and for sqlfluff."""
    text = sql.replace("?", "N'x'")
    if not text.startswith("EXEC"):
        assert sqlglot.parse(text, read="tsql")
    assert sqlfluff.parse(text, dialect="tsql")


def test_keys_of_text_and_bytes_are_compared_by_their_length_too() -> None:
    """Equality of SQL Server ignores blanks at the end of text, and zeros at the end of bytes."""
    for sql in statements(merge_of(SHAPE, TARGET))[1:]:
        if "t.[k] =" in sql:
            assert "DATALENGTH(t.[k]) = DATALENGTH(m.[k])" in sql
            assert "DATALENGTH(t.[raw]) = DATALENGTH(m.[raw])" in sql
            assert f"{progress.EXACT}" in sql


def test_a_key_in_a_code_page_is_compared_by_its_characters() -> None:
    """A byte of a code page is two bytes of the staged text."""
    shape = relation(("k", "text", "string"), ("v", "integer", "int32"))
    sql = merge_of(shape, table("k varchar(40) not null", "v int", key=("k",))).delete_gone()
    own, given = (f"DATALENGTH(CAST({one}.[k] {progress.EXACT} AS nvarchar(max)))" for one in "tm")
    assert f"{own} = {given}" in sql


def test_a_key_in_a_loose_collation_is_refused_with_the_statement() -> None:
    """Keys that differ at the source could be equal in the target."""
    loose = table("id int not null", "k nvarchar(40) not null", "raw varbinary(20) not null",
                  "big nvarchar(max)", key=("id", "k", "raw"), collation=LOOSE)  # fmt: skip
    with pytest.raises(TargetShapeDiffers, match="collation") as caught:
        merge_of(SHAPE, loose)
    assert "ALTER COLUMN [k] nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL" in (
        caught.value.hint
    )


def test_a_key_in_the_sources_loose_collation_is_compared_exactly_as_well() -> None:
    """A source of SQL Server may rename 'a' to 'A', which are one key there."""
    shape = dataclasses.replace(
        SHAPE,
        columns=tuple(
            dataclasses.replace(one, collation=LOOSE) if one.name == "k" else one
            for one in SHAPE.columns
        ),
    )
    loose = dataclasses.replace(
        TARGET,
        columns=tuple(
            column("k nvarchar(40) not null", collation=LOOSE) if one.name == "k" else one
            for one in TARGET.columns
        ),
    )
    deleting = merge_of(shape, loose).delete_gone()
    assert f"t.[k] = CAST(m.[k] AS nvarchar(40)) COLLATE {LOOSE}" in deleting  # an index has it
    assert f"t.[k] {progress.EXACT} = CAST(m.[k] AS nvarchar(40)) {progress.EXACT}" in deleting


def test_unsent_columns_keep_the_targets_values() -> None:
    """ABSENT is not NULL: rows in place keep the column, others are filled."""
    sql = merge_of(SHAPE, TARGET, absent_columns=frozenset({3}))
    bit = "CAST(SUBSTRING(m.[wk$absent], 1, 1) AS int) & 8 = 8"
    assert f"[big] = CASE WHEN {bit} THEN t.[big] ELSE m.[big] END" in sql.update_in_place()
    assert f"[big] = CASE WHEN {bit} THEN t.[big] ELSE m.[big] END" in str(sql.fill_absent())
    assert "NOT (m.[wk$absent] IS NOT NULL" in sql.update_rows()
    assert "NOT (m.[wk$absent] IS NOT NULL" in sql.insert_missing()
    assert merge_of(SHAPE, TARGET).fill_absent() is None


def test_the_bit_of_the_ninth_column_is_in_the_second_byte() -> None:
    """The bitmap has the least significant bit first."""
    shape = relation(*((f"c{n}", "text", "string") for n in range(10)))
    target = table(*(f"c{n} nvarchar(max)" for n in range(10)), key=("c0",))
    sql = merge_of(shape, target, absent_columns=frozenset({8}))
    assert "SUBSTRING(m.[wk$absent], 2, 1) AS int) & 1 = 1" in sql.update_in_place()


def test_keyless_rows_are_compared_whole_and_exactly() -> None:
    """Rows without a key are equal only if all columns are the same, NULL included."""
    deleting = merge_of(BAG, BAG_TARGET).delete_copies()
    assert "INTERSECT" in deleting
    assert (
        f"d.[b] {progress.EXACT}, DATALENGTH(CAST(d.[b] {progress.EXACT} AS nvarchar(max)))"
        in deleting
    )
    assert "copies.[wk$number] <= -m.[wk$n]" in deleting


def test_an_identity_outside_of_the_key_is_replaced() -> None:
    """An identity column cannot be updated."""
    target = table("id int not null", "n int identity")
    shape = relation(("id", "integer", "int32"), ("n", "integer", "int32"))
    assert merge_of(shape, target).strategy is MergeStrategy.REPLACE
    keyed = table("id int identity not null", "n int")
    sql = merge_of(shape, keyed)
    assert sql.strategy is MergeStrategy.KEYED
    assert sql.has_identity
    assert "[id] =" not in sql.update_rows().partition("FROM")[0]


def test_generated_columns_are_not_written() -> None:
    """The server computes them."""
    target = table("id int not null", "v int")
    computed = dataclasses.replace(
        target, columns=(target.columns[0], column("v int", is_generated=True))
    )
    sql = merge_of(relation(("id", "integer", "int32"), ("v", "integer", "int32")), computed)
    assert "[v]" not in sql.insert_missing()
    assert sql.changed_columns == []


def test_a_column_that_the_target_lacks_is_named() -> None:
    """The error names the column."""
    with pytest.raises(KeyNotInTarget, match="no column big"):
        merge_of(SHAPE, table("id int", "k nvarchar(40)", "raw varbinary(20)"))


def test_more_columns_than_a_table_has_are_refused() -> None:
    """A merge table has columns of its own beside the table's."""
    most = relation(*((f"c{n}", "integer", "int32") for n in range(1_020)))
    assert len(MergeLayout(most).schema) == 1_024
    with pytest.raises(ShapeNotApplicable, match="at most 1,024"):
        MergeLayout(relation(*((f"c{n}", "integer", "int32") for n in range(1_021))))


def test_rows_carry_the_stamp() -> None:
    """Each row has the stamp of its filling; unfit values are named."""
    layout = MergeLayout(relation(("id", "integer", "int32"), ("f", "double", "float64")), stamp=9)
    made = layout.batch(np.array([1, -1]), [pa.array([1, 2], pa.int32()), None])
    assert made.column("wk$stamp").to_pylist() == [9, 9]
    assert made.column("f").null_count == 2
    with pytest.raises(ValueUnfit, match="column f"):
        layout.batch(np.array([1]), [pa.array([1], pa.int32()), pa.array([float("nan")])])


def test_an_upsert_of_the_state_is_a_merge() -> None:
    """A row is found by the primary key, and by every unique key if nothing is changed."""
    row = Upsert(
        table="wirekite.x",
        values={"a": "?", "b": "?"},
        keys=(("a",), ("b",)),
        changes={"b": "s.b"},
    )
    sql = progress.upsert_by_merge(row)
    assert sql.startswith("MERGE INTO wirekite.x WITH (UPDLOCK, HOLDLOCK) AS t")
    assert "ON (t.a = s.a)\n" in sql
    kept = progress.upsert_by_merge(Upsert(table="x", values={"a": "?"}, keys=(("a",), ("b",))))
    assert "(t.a = s.a) OR (t.b = s.b)" in kept
    assert "MATCHED THEN UPDATE" not in kept
