"""Bulk copies between engines: expressions, forms of values, and what LOAD DATA computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.codec.lines import CellForm, LineForm
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Choices, Engine, Server, parse_choices
from penstock.engines.mysql.target.chunk import load_sql
from penstock.engines.mysql.target.shapes import create_sql, key_statements
from penstock.engines.postgres.target.shaped import postgres_definition
from penstock.model import ColumnDefinition, TableDefinition, TableName, UniqueKey
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.ports.target import TargetDdlFailed
from penstock.sql.read_plan import AS_IS, read_plan_of

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 0, 15))
MARIADB = Server(engine=Engine.MARIADB, version=(10, 11, 19))


def column(name: str, type_text: str, neutral: str = "string", **more: object) -> ColumnDefinition:
    """Return a column of a catalogue."""
    return ColumnDefinition(
        name=name,
        type_text=type_text,
        base_type=type_text,
        neutral=neutral,
        type_oid=0,
        typmod=-1,
        **more,  # type: ignore[arg-type]
    )


def table(*columns: ColumnDefinition) -> TableDefinition:
    """Return a table whose first column is its key."""
    return TableDefinition(
        name=TableName("shop", "t"),
        source_id=1,
        columns=columns,
        primary_key=(columns[0].name,),
        unique_keys=(
            UniqueKey(name="u", columns=(columns[0].name,), definition="", is_constraint=True),
        ),
    )


def test_members_in_bytes_and_years_of_two_digits_are_read_as_they_come_by_change() -> None:
    """Labels are text whatever their character set is, and a year has its century."""
    servers = ServerPair(source=MARIADB, target=POSTGRES)
    definition = table(
        column("id", "int(11)", "int32"),
        column("e", "enum('a','b')", charset="binary", collation="binary"),
        column("s", "set('a','b')", charset="binary", collation="binary"),
        column("y", "year(2)", "int16"),
        column("z", "year(4)", "int16"),
    )
    read_plan = read_plan_of(definition, servers, "mariadb://")
    assert [cell.form for cell in read_plan.cells[1:3]] == [CellForm.UTF8, CellForm.UTF8]
    assert read_plan.expressions[3:] == ("lpad(if(year(`y`) = 1900, 0, year(`y`)), 4, '0')", "`z`")


def task(definition: TableDefinition, servers: ServerPair) -> ChunkTask:
    """Return a task of the table's first chunk."""
    read_plan = read_plan_of(definition, servers, "postgresql://")
    return ChunkTask(
        source_url="postgresql://a/b",
        target_url="mysql://c/d",
        table=definition.name,
        target=definition.name,
        chunk=Chunk(number=1, relation=definition.name, copy_out=""),
        columns=read_plan.columns,
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan="p",
        replica_role=False,
        read_plan=read_plan,
    )


def test_what_a_select_of_mysql_lists() -> None:
    """The SELECT converts numbers whose text would not fit, bytes, dates, and text by character
    set.
    """
    definition = table(
        column("id", "int(11)", "int32"),
        column("f", "float", "float32"),
        column("b", "bit(3)", "uint64"),
        column("d", "datetime(3)", "timestamp"),
        column("l", "varchar(9)", charset="latin1", collation="latin1_swedish_ci"),
        column("g", "geometry"),
        column("y", "blob", "binary"),
        column("z", "int(11)", "int32", generated="v", default="id * 2"),
    )
    choices = parse_choices({"zero dates": "null", "nul characters": "remove"}, Engine.MYSQL)
    read_plan = read_plan_of(
        definition, ServerPair(source=MYSQL, target=POSTGRES, choices=choices), "mysql://"
    )
    assert read_plan.columns == ("id", "f", "b", "d", "l", "g", "y", "z")
    assert read_plan.expressions[:5] == (
        "`id`", "`f` * 1e0", "lpad(conv(`b` + 0, 10, 2), 3, '0')", "`d`", "`l`"
    )  # fmt: skip
    assert [cell.form for cell in read_plan.cells] == [
        CellForm.PLAIN,
        CellForm.PLAIN,
        CellForm.PLAIN,
        CellForm.DATE,
        CellForm.CHARSET,
        CellForm.UTF8,
        CellForm.BYTES,
        CellForm.PLAIN,
    ]
    assert read_plan.cells[3].zero_is_null
    assert (read_plan.cells[4].charset, read_plan.cells[4].remove_zero) == ("latin1", True)
    assert set(read_plan.templates) == {AS_IS}


@pytest.mark.parametrize("target", [MYSQL, MARIADB])
def test_what_load_data_computes(target: Server) -> None:
    """Most values are sent unchanged; if one is computed, whole numbers of the key are as well."""
    definition = table(
        column("id", "bigint", "int64"),
        column("flag", "boolean", "bool"),
        column("bits", "bit(5)"),
        column("at", "timestamp with time zone", "timestamptz"),
        column("raw", "bytea", "binary"),
        column("t", "text"),
        column("a", "integer[]"),
    )
    servers = ServerPair(source=POSTGRES, target=target)
    read_plan = read_plan_of(definition, servers, "postgresql://")
    assert [cell.form for cell in read_plan.lines] == [
        LineForm.PLAIN, LineForm.BOOL, LineForm.PLAIN, LineForm.ZONED, LineForm.BYTES,
        LineForm.TEXT, LineForm.TEXT,
    ]  # fmt: skip
    statement = load_sql(task(definition, servers))
    assert "into table `shop`.`t` character set binary" in statement
    assert "(@v0, `flag`, @v2, `at`, `raw`, `t`, `a`) set `id` = (convert(@v0 using" in statement
    assert "`bits` = cast(conv(convert(@v2 using utf8mb4), 2, 10) as unsigned)" in statement
    plain = table(column("id", "bigint", "int64"), column("t", "text"))
    assert " set " not in load_sql(task(plain, servers)).replace("character set", "")


def test_labels_go_as_the_bytes_they_are() -> None:
    """Between servers of one kind no label is decoded; ENUMs are sent by name."""
    definition = table(
        column("id", "int(11)", "int32"),
        column("e", "enum('a')", charset="latin1", collation="latin1_bin"),
        column("t", "text", charset="gbk", collation="gbk_bin"),
    )
    read_plan = read_plan_of(definition, ServerPair(source=MARIADB, target=MARIADB), "mariadb://")
    assert [cell.form for cell in read_plan.cells] == [CellForm.PLAIN, CellForm.RAW, CellForm.RAW]
    assert set(read_plan.templates) == {AS_IS}
    assert read_plan.enums == ("e",)


def test_a_table_that_the_target_cannot_have_is_refused_by_name() -> None:
    """A table has a column, and a key only of columns that it has; the hint is the statement."""
    servers = ServerPair(source=POSTGRES, target=MYSQL)
    columns = (
        column("id", "integer", "int32", not_null=True, id=1),
        column("z", "integer", "int32", not_null=True, generated="s", default="id * 2", id=2),
    )
    definition = replace(table(*columns), primary_key=("id", "z"), unique_keys=())
    with pytest.raises(TargetDdlFailed, match="has the generated column z") as key:
        create_sql(definition, TableName("a", "b"), servers)
    assert "create table `a`.`b` (`id` int not null) engine" in key.value.hint
    with pytest.raises(TargetDdlFailed, match="has no columns") as nothing:
        create_sql(replace(definition, columns=columns[1:]), TableName("a", "b"), servers)
    assert "put '!" in nothing.value.hint


def test_tables_are_made_with_their_key_and_get_the_others_later() -> None:
    """A generated column stays generated in the same engine, and becomes values elsewhere."""
    definition = table(
        column("id", "int(11)", "int32", not_null=True),
        column("z", "int(11)", "int32", generated="v", default="`id` * 2"),
    )
    same = ServerPair(source=MYSQL, target=MYSQL)
    statement, notes = create_sql(definition, TableName("a", "b"), same)
    assert "`id` int(11) not null" in statement
    assert "`z` int(11) generated always as (`id` * 2) virtual" in statement
    assert "primary key (`id`)" in statement
    assert notes == []
    assert key_statements(definition, TableName("a", "b"), same) == [
        "alter table `a`.`b` add unique key `u` (`id`)"
    ]
    other = ServerPair(source=MYSQL, target=POSTGRES)
    made = postgres_definition(definition, other, {"shop": "store"})
    assert [(c.name, c.type_text, c.generated) for c in made.columns] == [
        ("id", "integer", ""),
        ("z", "integer", ""),
    ]
    assert made.unique_keys[0].definition == ('create unique index "t_u" on "store"."t" ("id")')


def test_what_has_no_place_becomes_null_by_choice_alone() -> None:
    """Infinity is refused until the configuration says what replaces it."""
    definition = table(column("id", "int", "int32"), column("d", "date", "date"))
    refused = read_plan_of(
        definition, ServerPair(source=POSTGRES, target=MYSQL), "postgresql://"
    ).lines[1]
    choices: Choices = parse_choices({"dates out of range": "null"}, Engine.POSTGRESQL)
    chosen = read_plan_of(
        definition, ServerPair(source=POSTGRES, target=MYSQL, choices=choices), "postgresql://"
    ).lines[1]
    assert (refused.unfit_is_null, chosen.unfit_is_null) == (False, True)
