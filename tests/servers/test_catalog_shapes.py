"""Shapes that a resolver finds in messages and in the catalogue: columns, types and keys."""

from __future__ import annotations

import psycopg
import pytest

from harness.servers.peek import PUBLICATION, capturing, resolve_only, run_all
from penstock.engines.postgres.source.catalog import (
    RelationResolver,
    captured_tables,
    open_catalog,
    relation_of,
)
from penstock.engines.postgres.source.ddl_watch import DdlWatch
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.table_shape import ReloadReason, TableShape


def test_types_of_a_shape(source_url: str) -> None:
    """A relation of the stream, or of a look at the catalogue, has the user's types."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create type public.mood as enum ('sad', 'glad')",
            "create domain public.moods as public.mood[]",
            "create table public.t (id int primary key, m public.moods)",
            "insert into public.t values (1, '{sad}')",
        )
        (table,) = captured_tables(catalog, ["public.t"])
        (message,) = capture.relation_messages()
        resolved = RelationResolver(catalog, [table]).resolve(message)
        assert resolved is not None
        mood, moods = resolved.types
        assert (mood.create_sql, mood.labels) == (
            "create type \"public\".\"mood\" as enum ('sad', 'glad')",
            ("sad", "glad"),
        )
        assert moods.name == "moods"
        assert moods.kind == "d"
        assert relation_of(table).types == resolved.types
        looked = definitions_of(catalog, [table.source_id], shape_only=True)
        assert looked[table.source_id].types == resolved.types


def test_a_column_that_was_dropped_before_it_was_looked_at(source_url: str) -> None:
    """A column of the same name and type replaced it: the message may be about either."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key)",
            "insert into public.t values (1)",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        assert resolve_only(resolver, capture.relation_messages()).awaits_reload == ""
        run_all(
            catalog,
            "alter table public.t add a int",
            "insert into public.t values (2, 2)",
            "alter table public.t drop a, add a int",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert relation.awaits_reload == str(ReloadReason.CATALOGUE_AHEAD)
        resolver.reshape(captured_tables(catalog, ["public.t"])[0])
        run_all(
            catalog,
            "alter table public.t drop a",
            "insert into public.t values (3)",
        )
        assert resolve_only(resolver, capture.relation_messages()).awaits_reload == ""
        run_all(
            catalog,
            "alter table public.t add b int",
            "insert into public.t values (4, 4)",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert (relation.awaits_reload, relation.columns[-1].id) == ("", 4)


def test_a_table_created_again_is_adopted_to_be_read_again(source_url: str) -> None:
    """A start that finds the new table in the catalogue knows the old one from the log."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, a date)",
            "insert into public.t values (1)",
        )
        before = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        resolve_only(before, capture.relation_messages())
        run_all(
            catalog, "drop table public.t", "create table public.t (id int primary key, a int[])"
        )
        (definition,) = captured_tables(catalog, ["public.t"])
        started = RelationResolver(catalog, [definition], known=before.relations())
        adopted = started.adopt(definition)
        assert adopted is not None
        assert adopted.awaits_reload == str(ReloadReason.MADE_ANEW)
        assert started.awaiting() == {definition.name: str(ReloadReason.MADE_ANEW)}


def test_a_table_created_again_before_its_first_row_is_read_again(source_url: str) -> None:
    """The copy has rows of the dropped table, which the log has no relation of."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a int[])")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        run_all(
            catalog,
            "drop table public.t",
            "create table public.t (nr int primary key, a jsonb)",
            "insert into public.t values (1, '{}')",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert relation.awaits_reload == str(ReloadReason.MADE_ANEW)
        (definition,) = captured_tables(catalog, ["public.t"])
        assert resolver.reshape(definition).awaits_reload == ""
        catalog.execute("alter table public.t add b int")
        catalog.execute("insert into public.t values (2, '{}', 2)")
        assert resolve_only(resolver, capture.relation_messages()).awaits_reload == ""


def followed_shapes(catalog: psycopg.Connection) -> tuple[TableShape, ...]:
    """Return what a watch has stored of all tables once it has looked."""
    watch = DdlWatch(catalog, captured_tables(catalog, ["public.t"]), publication=PUBLICATION)
    watch.poll()
    return watch.state().shapes


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["alter table public.t add b int default 5"], ""),
        (["alter table public.t add b serial"], str(ReloadReason.REWRITTEN)),
        (
            ["alter table public.t alter a type int[] using array[7]"],
            str(ReloadReason.REWRITTEN),
        ),
        (["cluster public.t using t_pkey"], ""),
        (["vacuum full public.t"], ""),
        (
            ["drop table public.t", "create table public.t (nr int primary key, a jsonb)"],
            str(ReloadReason.MADE_ANEW),
        ),
    ],
)
def test_a_table_that_changed_before_a_start_is_read_again(
    statements: list[str], reason: str, source_url: str
) -> None:
    """The log has no relation of it, and the catalogue no longer has the shape that was copied."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a int[])")
        shapes = followed_shapes(catalog)
        run_all(catalog, *statements, "insert into public.t values (1)")
        tables = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, tables, shapes=shapes)
        relation = resolve_only(resolver, capture.relation_messages())
        assert relation.awaits_reload == reason


def test_a_type_changed_before_the_first_row(source_url: str) -> None:
    """The table is read again, as the copy has the old type's values."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a text[])")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        run_all(
            catalog,
            "alter table public.t alter a type date using now()::date",
            "insert into public.t values (1)",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert relation.awaits_reload == str(ReloadReason.REWRITTEN)


@pytest.mark.parametrize(
    ("alterations", "reason"),
    [
        (["add b int default 5"], ""),
        (["add b int", "alter b set default 7"], ""),
        (["add b serial"], str(ReloadReason.REWRITTEN)),
        (["add b int generated always as identity"], str(ReloadReason.REWRITTEN)),
        (["add b float default random()"], str(ReloadReason.REWRITTEN)),
        (["add b int default 5", "alter a type bigint using a + 0"], str(ReloadReason.REWRITTEN)),
        (["add b int default 5", "set unlogged", "set logged"], str(ReloadReason.REWRITTEN)),
    ],
)
def test_a_column_that_filled_existing_rows_has_them_read_again(
    alterations: list[str], reason: str, source_url: str
) -> None:
    """The catalogue has no values of rows that a rewrite filled, or whose default it forgot."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (a int, c text)",
            "alter table public.t replica identity full",
            "insert into public.t values (1)",
        )
        capture.messages()
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        run_all(catalog, *(f"alter table public.t {one}" for one in alterations))
        catalog.execute("update public.t set c = 'x'")
        relation = resolve_only(resolver, capture.relation_messages())
        assert relation.awaits_reload == reason


def test_a_key_is_adopted(source_url: str) -> None:
    """A key is adopted even after a message between two changes of it, but an older one is not."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, a int not null)",
            "insert into public.t values (1, 1)",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        assert resolve_only(resolver, capture.relation_messages()).key == (0,)
        run_all(
            catalog,
            "alter table public.t drop constraint t_pkey, replica identity full",
            "insert into public.t values (2, 2)",
        )
        without = resolve_only(resolver, capture.relation_messages())
        assert without.key == ()
        catalog.execute("alter table public.t add primary key (a)")
        (definition,) = captured_tables(catalog, ["public.t"])
        adopted = resolver.adopt(definition)
        assert adopted is not None
        assert (adopted.key, adopted.version) == ((1,), 3)
        assert resolver.adopt(definition) is None
        catalog.execute("alter table public.t drop constraint t_pkey, add primary key (id)")
        catalog.execute("alter table public.t alter a drop not null")
        (definition,) = captured_tables(catalog, ["public.t"])
        adopted = resolver.adopt(definition)
        assert adopted is not None
        assert adopted.columns[1].nullable

        run_all(
            catalog,
            "alter table public.t drop constraint t_pkey",
            "insert into public.t values (3, 2)",
        )
        assert resolve_only(resolver, capture.relation_messages()).key == ()
        assert resolver.adopt(definition) is None


def test_a_column_dropped_and_added_with_its_type_is_noticed_at_the_message(
    source_url: str,
) -> None:
    """The earlier values of the column are void, whether or not the message shows a difference."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, v int)",
            "insert into public.t values (1, 1)",
        )
        for alteration in (
            "alter table public.t drop v, add v int",
            "alter table public.t drop v, add v int, replica identity full",
        ):
            resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
            assert resolve_only(resolver, capture.relation_messages()).awaits_reload == ""
            run_all(catalog, alteration, "insert into public.t values (3 + random() * 1000, 2)")
            relation = resolve_only(resolver, capture.relation_messages())
            assert relation.awaits_reload == str(ReloadReason.COLUMN_REMADE)
            run_all(catalog, "insert into public.t values (2000 + random() * 1000, 2)")


def test_a_generated_column_keeps_its_name_out_of_a_later_shape(source_url: str) -> None:
    """The column was read before two columns swapped their names, and the rows arrived after."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, x text)")
        tables = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, tables)
        run_all(catalog, "alter table public.t add c bigint generated always as (id * 2) stored")
        oid = tables[0].source_id
        looked = definitions_of(catalog, [oid], shape_only=True, expressions=True)[oid]
        run_all(
            catalog,
            "alter table public.t rename c to tmp",
            "alter table public.t rename x to c",
            "alter table public.t rename tmp to x",
            "insert into public.t values (1, 'a')",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert [one.name for one in relation.columns] == ["id", "c"]
        for definition in (
            looked,
            definitions_of(catalog, [oid], shape_only=True, expressions=True)[oid],
        ):
            relation = resolver.adopt(definition) or relation
            generated = {one.name for one in relation.computed or ()}
            assert not generated & {one.name for one in relation.columns}
        assert generated == {"x"}


def test_a_not_null_that_is_dropped_is_not_in_the_shape_of_the_rows_after_it(
    source_url: str,
) -> None:
    """The server repeats its message, which does not tell; nor does one with another column."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, a int not null, b int not null)",
            "insert into public.t values (1, 1, 1)",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        relation = resolve_only(resolver, capture.relation_messages())
        assert [column.nullable for column in relation.columns] == [False, False, False]
        run_all(
            catalog,
            "alter table public.t alter a drop not null",
            "insert into public.t values (2, null, 2)",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert [column.nullable for column in relation.columns] == [False, True, False]
        run_all(
            catalog,
            "alter table public.t alter b drop not null, add c int",
            "insert into public.t values (3, null, null)",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert [column.nullable for column in relation.columns] == [False, True, True, True]


def test_a_new_column_with_the_name_of_one_that_was_renamed(source_url: str) -> None:
    """The new column has its own NOT NULL and value of older rows."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, x text default 'old')",
            "insert into public.t values (1)",
        )
        capture.relation_messages()
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        run_all(
            catalog,
            "alter table public.t rename x to y",
            "alter table public.t add x text not null default 'new'",
            "insert into public.t values (2)",
        )
        relation = resolve_only(resolver, capture.relation_messages())
        assert [(one.name, one.id, one.nullable, one.missing) for one in relation.columns] == [
            ("id", 1, False, None),
            ("y", 2, True, None),
            ("x", 3, False, "new"),
        ]


def test_columns_that_were_renamed_twice_before_they_were_looked_at(source_url: str) -> None:
    """Their places say which they are: no column came or went."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, a text, b int, c text)",
            "insert into public.t values (1)",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        resolve_only(resolver, capture.relation_messages())
        run_all(
            catalog,
            "alter table public.t rename a to a2",
            "insert into public.t values (2)",
            "alter table public.t rename a2 to tmp",
            "alter table public.t rename c to a2",
            "alter table public.t rename tmp to c",
            "insert into public.t values (3)",
        )
        found = [resolver.resolve(one) for one in capture.relation_messages()]
        shapes = [[(c.id, c.name) for c in one.columns] for one in found if one is not None]
        assert shapes == [
            [(1, "id"), (2, "a2"), (3, "b"), (4, "c")],
            [(1, "id"), (2, "c"), (3, "b"), (4, "a2")],
        ]
        assert [one.awaits_reload for one in found if one is not None] == ["", ""]


def test_a_column_that_has_the_name_of_one_that_came_later(source_url: str) -> None:
    """The first of two new columns is the one with the lower number, whatever it is called now."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key)",
            "insert into public.t values (1)",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        resolve_only(resolver, capture.relation_messages())
        run_all(
            catalog,
            "alter table public.t add a int default 5",
            "insert into public.t values (2)",
            "alter table public.t rename a to b",
            "alter table public.t add a int default 7",
            "insert into public.t values (3)",
        )
        first, second = (resolver.resolve(one) for one in capture.relation_messages())
        assert first is not None
        assert second is not None
        assert [(c.id, c.name, c.missing) for c in first.columns[1:]] == [(2, "a", "5")]
        assert [(c.id, c.name, c.missing) for c in second.columns[1:]] == [
            (2, "b", "5"),
            (3, "a", "7"),
        ]
        assert (first.awaits_reload, second.awaits_reload) == ("", "")


@pytest.mark.parametrize("is_known", [False, True])
def test_unique_keys_of_a_table_that_is_gone_are_not_told(source_url: str, is_known: bool) -> None:
    """A key may have been dropped before the table: rows that violate it may be among the last."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        catalog.execute("create table public.t (id int primary key, a int unique)")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        if is_known:
            catalog.execute("insert into public.t values (1, 1)")
            assert resolve_only(resolver, capture.relation_messages()).unique == (("a",),)
        run_all(
            catalog,
            "alter table public.t drop constraint t_a_key",
            "insert into public.t values (2, 5), (3, 5)",
            "drop table public.t",
        )
        assert resolve_only(resolver, capture.relation_messages()).unique == ()
