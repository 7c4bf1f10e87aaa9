"""Tables, definitions and relations as a real catalogue has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from harness.servers.peek import capturing, resolve_only, run_all
from penstock.codec.postgres.pgoutput_messages import RelationColumn, RelationMessage
from penstock.engines.postgres.connect import connect, quote
from penstock.engines.postgres.source import definitions
from penstock.engines.postgres.source.catalog import (
    Exclusion,
    PartitionNotSeparable,
    RelationResolver,
    TableNotCapturable,
    captured_tables,
    open_catalog,
    relation_of,
    survey,
)
from penstock.engines.postgres.source.definitions import SettingsWrong, definitions_of
from penstock.model import Identity, TableName

pytestmark = pytest.mark.each_server


@pytest.fixture
def catalog(source_url: str) -> Iterator[psycopg.Connection]:
    """A catalogue connection to a fresh database."""
    with open_catalog(source_url) as connection:
        yield connection


def _names(connection: psycopg.Connection, *patterns: str) -> list[str]:
    return [str(table.name) for table in captured_tables(connection, patterns)]


# -- tables ----------------------------------------------------------------------------------------


def test_what_has_no_changes_in_the_servers_log_is_left_out(catalog: psycopg.Connection) -> None:
    """Views, foreign and unlogged tables are reported with the reason, for doctor."""
    run_all(
        catalog,
        "create table public.t (id int primary key)",
        "create unlogged table public.u (id int primary key)",
        "create temporary table tmp (id int)",
        "create view public.v as select 1",
        "create materialized view public.m as select 1",
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table public.f (id int) server s",
        "create schema wirekite",
        "create table wirekite.own (id int)",
    )
    found = survey(catalog, ["*.*"])
    assert [str(table.name) for table in found.tables] == ["public.t"]
    assert {excluded.name.name: excluded.reason for excluded in found.excluded} == {
        "u": Exclusion.UNLOGGED,
        "v": Exclusion.VIEW,
        "m": Exclusion.MATERIALIZED_VIEW,
        "f": Exclusion.FOREIGN,
        "own": Exclusion.OWN,
    }
    for name in ("u", "v", "m", "f"):
        with pytest.raises(TableNotCapturable, match=f"public.{name} cannot"):
            captured_tables(catalog, ["public.t", f"public.{name}"])


def test_patterns_choose_tables(catalog: psycopg.Connection) -> None:
    """Patterns match quoted, mixed-case, dotted and non-ASCII names."""
    for name in ("orders", "Orders", "a.b", "Größe 表", 'say "hi"', "audit"):
        catalog.execute(f"create table public.{quote(name)} (id int primary key)")
    assert len(_names(catalog, "public.*")) == 6
    assert _names(catalog, "public.Orders") == ["public.Orders"]
    assert _names(catalog, 'public."a.b"', "public.Gr*") == ["public.Größe 表", "public.a.b"]
    assert _names(catalog, 'public."say ""hi"""') == ['public.say "hi"']
    assert "public.audit" not in _names(catalog, "public.*", "!public.audit")
    assert _names(catalog, "nowhere.*") == []
    with pytest.raises(TableNotCapturable, match=r"no table public.AUDIT .*there is public.audit"):
        captured_tables(catalog, ["public.AUDIT"])


def test_partitioned_tables_are_one_table(catalog: psycopg.Connection) -> None:
    """Leaves belong to the root, unless the root is not captured."""
    run_all(
        catalog,
        "create schema parts",
        "create table public.root (id int, at date) partition by range (at)",
        "create table parts.y20 partition of public.root for values from ('2020-01-01') to "
        "('2021-01-01') partition by list (id)",
        "create table parts.y20_1 partition of parts.y20 for values in (1)",
        "create table parts.y20_x partition of parts.y20 default",
        "create table public.y21 partition of public.root for values from ('2021-01-01') to "
        "('2022-01-01')",
    )
    assert _names(catalog, "*.*") == ["public.root"]
    (root,) = captured_tables(catalog, ["public.root", "public.y21"])
    assert len(root.partition_leaves) == 3
    assert _names(catalog, "parts.*") == ["parts.y20"]
    assert _names(catalog, "parts.y20_1") == ["parts.y20_1"]
    # If the root is excluded, so is every table below it that is not named itself.
    assert _names(catalog, "public.*", "!public.root") == []
    assert _names(catalog, "public.y21", "!public.root") == ["public.y21"]
    with pytest.raises(PartitionNotSeparable, match=r"parts.y20_1, a partition of public.root"):
        captured_tables(catalog, ["*.*", "!parts.y20_1"])
    catalog.execute("alter table parts.y20_x set unlogged")
    assert _names(catalog, "*.*") == []  # its partitions are not captured in its place
    (excluded,) = (e for e in survey(catalog, ["public.root"]).excluded)
    assert (excluded.reason, str(excluded.related)) == (Exclusion.PART_UNLOGGED, "parts.y20_x")
    assert excluded.fix == 'alter table "parts"."y20_x" set logged;'


# -- definitions -----------------------------------------------------------------------------------

TYPES = (
    "create schema kinds",
    "create type kinds.mood as enum ('sad', 'it''s ok', 'glad')",
    "create domain kinds.price as numeric(12,2) constraint positive check (value >= 0)",
    "create domain kinds.net_price as kinds.price not null default 1.5",
    'create type kinds."Pair" as (a int, "B b" kinds.mood[])',
    "create type kinds.span as range (subtype = kinds.price)",
    "create domain kinds.blob as bytea",
)


def test_definitions_tell_all_a_target_needs(catalog: psycopg.Connection) -> None:
    """A definition has keys, types, defaults, generated and identity columns, foreign keys,
    indexes.
    """
    run_all(
        catalog,
        *TYPES,
        'create table public.other (b int, "A a" text, primary key ("A a", b))',
        """
        create table public.t (
            id bigint generated always as identity primary key,
            "A a" text collate "C" not null,
            b int default 7,
            p kinds.net_price,
            c kinds."Pair",
            s kinds.span,
            m kinds.mood[],
            twice int generated always as (b * 2) stored,
            gone int,
            constraint u unique (b) deferrable initially deferred,
            foreign key ("A a", b) references public.other
        )
        """,
        "alter table public.t drop column gone",
        'create index i on public.t (lower("A a")) where b > 3',
        "create unique index v on public.t (p, b)",
    )
    (other, t) = captured_tables(catalog, ["public.*"])
    assert other.primary_key == other.identity_columns == ("A a", "b")
    columns = {column.name: column for column in t.columns}
    assert list(columns) == ["id", "A a", "b", "p", "c", "s", "m", "twice"]
    assert (columns["id"].identity_kind, columns["id"].not_null) == ("a", True)
    assert (columns["A a"].collation, columns["A a"].not_null) == ('pg_catalog."C"', True)
    assert (columns["b"].default, columns["b"].not_null) == ("7", False)
    price = columns["p"]
    assert (price.type_text, price.base_type, price.base_oid, price.neutral) == (
        "kinds.net_price",
        "numeric(12,2)",
        1700,
        "decimal(12,2)",
    )
    assert (columns["twice"].generated, columns["twice"].default) == ("s", "(b * 2)")
    assert [(k.name, k.columns, k.is_constraint, k.deferrable) for k in t.unique_keys] == [
        ("u", ("b",), True, True),
        ("v", ("p", "b"), False, False),
    ]
    assert len(t.indexes) == 1
    assert "WHERE (b > 3)" in t.indexes[0]
    (foreign,) = t.foreign_keys
    assert (foreign.columns, foreign.target, foreign.target_columns) == (
        ("A a", "b"),
        TableName("public", "other"),
        ("A a", "b"),
    )
    assert [kind.name for kind in t.types] == ["price", "net_price", "mood", "Pair", "span"]


def test_a_definition_is_of_one_moment(
    source_url: str, catalog: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is renamed between two queries has one name in the columns and in the key."""
    run_all(catalog, "create table public.t (id int primary key, v int)")
    sort = definitions._by_table
    statements = ["alter table public.t rename id to nr"]

    def rename_meanwhile(rows: Any) -> Any:
        while statements:
            with psycopg.connect(source_url, autocommit=True) as other:
                other.execute(statements.pop())
        return sort(rows)

    monkeypatch.setattr(definitions, "_by_table", rename_meanwhile)
    (table,) = captured_tables(catalog, ["public.t"])
    assert set(table.primary_key) <= {column.name for column in table.columns}
    (again,) = captured_tables(catalog, ["public.t"])
    assert again.primary_key == ("nr",)


def test_types_can_be_made_elsewhere(
    catalog: psycopg.Connection, target_url: str, source_url: str
) -> None:
    """CREATE TYPE texts run in their order on an empty database and give the same types."""
    columns = 'a kinds.net_price, b kinds."Pair"[], c kinds.span, d kinds.mood, e kinds.blob'
    run_all(catalog, *TYPES, f"create table public.t ({columns})")
    (table,) = captured_tables(catalog, ["public.t"])
    with open_catalog(target_url) as target:
        target.execute("create schema kinds")
        for kind in table.types:
            target.execute(kind.create_sql)
        run_all(target, f"create table public.t ({columns})")
        (made,) = captured_tables(target, ["public.t"])
    assert made.types == table.types
    assert [c.type_text for c in made.columns] == [c.type_text for c in table.columns]


def test_values_that_old_rows_have_are_known(catalog: psycopg.Connection) -> None:
    """No rows are written by ADD COLUMN ... DEFAULT: the catalogue has the value in exact text."""
    run_all(
        catalog,
        "create table public.t (id int primary key)",
        "insert into public.t values (1)",
        "alter table public.t add a int[] default '{1,2}', add b text default 'x,\"y\\z', "
        "add c timestamptz default '2020-01-01 00:00+02', add d float8 default 0.1, "
        "add e bytea default '\\x00ff', add f text default '', add g int",
        "create table public.root (id int) partition by list (id)",
        "create table public.leaf partition of public.root for values in (1)",
        "insert into public.root values (1)",
        "alter table public.root add z int default 9",
    )
    (root, table) = captured_tables(catalog, ["public.root", "public.t"])
    (row,) = catalog.execute("select a::text, b, c::text, d::text, e::text, f from public.t")
    missing = {column.name: column.missing for column in table.columns}
    assert missing == dict(zip("abcdef", row, strict=True)) | {"id": None, "g": None}
    assert {column.name: column.missing for column in root.columns} == {"id": None, "z": "9"}


# -- relations -------------------------------------------------------------------------------------


def _every_type(connection: psycopg.Connection) -> list[str]:
    """Return the names of all types that a column can have, including arrays and domains."""
    rows = connection.execute(
        """
        select format_type(t.oid, null)
          from pg_type as t
         where t.typtype in ('b', 'r', 'm', 'e', 'd', 'c')
           and t.typisdefined
           and (t.typrelid = 0
                or (select relkind from pg_class where oid = t.typrelid) = 'c')
           and t.typname not like 'pg\\_%statistic%'
           and (t.typelem = 0
                or not exists (select from pg_type as e join pg_class as c on c.oid = e.typrelid
                                where e.oid = t.typelem and c.relkind <> 'c'))
           and t.typname not in ('_aclitem', 'aclitem', 'pg_node_tree', 'pg_ndistinct',
                                 'pg_dependencies', 'pg_mcv_list', 'pg_brin_bloom_summary',
                                 'pg_brin_minmax_multi_summary', '_record', 'gtsvector',
                                 '_gtsvector', '_cstring')
           and t.typcategory <> 'P'
         order by t.oid
        """
    ).fetchall()
    return [row[0] for row in rows]


def test_the_message_and_the_catalogue_give_the_same_relation(source_url: str) -> None:
    """A column of every type has the same shape in bulk and stream."""
    with open_catalog(source_url) as catalog:
        run_all(catalog, *TYPES)
        available = {row[0] for row in catalog.execute("select name from pg_available_extensions")}
        for extension in ("hstore", "citext"):
            if extension in available:
                catalog.execute(f"create extension {extension} schema kinds")
        types = _every_type(catalog)
        assert len(types) > 150
        with capturing(source_url) as capture:
            columns = ", ".join(f"c{i} {name}" for i, name in enumerate(types))
            run_all(
                catalog,
                f"create table public.t (id int primary key, {columns}, n numeric(8,-2), "
                "v varchar(3)[], tw int generated always as (id + 1) stored)",
                "insert into public.t (id) values (1)",
            )
            (table,) = captured_tables(catalog, ["public.t"])
            resolver = RelationResolver(catalog, [])
            (message,) = capture.relation_messages()
            assert resolver.resolve(message) is None  # not captured
            resolver = RelationResolver(catalog, [table])
            resolved = resolver.resolve(message)
            # The catalogue alone gives the same types as the message.
            stale = RelationResolver(catalog, [replace(table, columns=())])
            again = stale.resolve(message)
            assert again is not None
            # The next look at the catalogue finds a generated column that was unknown.
            assert replace(again, computed=resolved.computed) == resolved
        assert resolved == relation_of(table)
        assert {c.name for c in table.columns} - {c.name for c in resolved.columns} == {"tw"}
        neutral = {c.source_type: c.neutral for c in resolved.columns}
        assert neutral["kinds.net_price"] == "decimal(12,2)"
        assert neutral["kinds.blob"] == "binary"
        assert neutral["numeric(8,-2)"] == "decimal(10,0)"
        assert neutral["kinds.mood[]"] == neutral['kinds."Pair"'] == "string"


def test_a_thousand_columns_and_odd_names(source_url: str) -> None:
    """Names of columns may contain anything; a table may have very many columns."""
    odd = ["Größe", 'say "hi"', "a.b", "select", "x" * 63, "%s", "\\", "'", "\n"]
    names = odd + [f"c{i}" for i in range(1000)]
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        columns = ", ".join(f"{quote(name)} int" for name in names).replace("%", "%%")
        catalog.execute(
            f'create table public."Wide.Table" (id int primary key, {columns})'.replace("%%", "%")
        )
        catalog.execute('insert into public."Wide.Table" (id) values (1)')
        (table,) = captured_tables(catalog, ['public."Wide.Table"'])
        resolver = RelationResolver(catalog, [table])
        (message,) = capture.relation_messages()
        resolved = resolver.resolve(message)
        assert resolver.resolve(message) is resolved
    assert resolved == relation_of(table)
    assert [column.name for column in resolved.columns] == ["id", *names]


def test_partitions_resolve_to_their_root(source_url: str) -> None:
    """The root's message is the one under which rows arrive."""
    with open_catalog(source_url) as catalog:
        run_all(
            catalog,
            "create table public.root (id int primary key, b text) partition by list (id)",
            "create table public.leaf (b text, gone int, id int not null)",
            "alter table public.leaf drop column gone",
            "alter table public.root attach partition public.leaf for values in (1)",
        )
        with capturing(source_url, "public.root") as capture:
            catalog.execute("insert into public.root values (1, 'x')")
            (table,) = captured_tables(catalog, ["public.*"])
            resolver = RelationResolver(catalog, [table])
            resolved = [resolver.resolve(message) for message in capture.relation_messages()]
    assert [r for r in resolved if r is not None] == [relation_of(table)]
    assert [c.name for c in resolved[0].columns] == ["id", "b"]


def test_versions_count_on(source_url: str) -> None:
    """A changed shape is the next version; an equal one keeps its version, also after a restart."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a varchar(5))")
        tables = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, tables)
        catalog.execute("insert into public.t values (1)")
        first = resolve_only(resolver, capture.relation_messages())
        run_all(
            catalog,
            "alter table public.t add b int default 7",
            "insert into public.t values (2)",
        )
        second = resolve_only(resolver, capture.relation_messages())
        assert (first.version, second.version) == (1, 2)
        assert second.columns[2].missing == "7"
        widened = resolver.widen(second, 2)
        assert (widened.version, widened.columns[2].neutral) == (3, "string")

        # After a restart the shape is the known one; the catalogue has dropped the default.
        catalog.execute("vacuum full public.t")
        catalog.execute("insert into public.t values (3)")
        again = RelationResolver(
            catalog, captured_tables(catalog, ["public.t"]), known=resolver.relations()
        )
        assert resolve_only(again, capture.relation_messages()) == widened
        catalog.execute("alter table public.t alter a type varchar(9)")
        catalog.execute("insert into public.t values (4)")
        last = resolve_only(again, capture.relation_messages())
        assert last.version == 4
        assert last.columns[1].source_type == "character varying(9)"
        assert last.columns[2] == widened.columns[2]


def test_a_catalogue_that_moved_on_does_not_stop_the_stream(source_url: str) -> None:
    """Rows older than a DROP are decoded according to their message, and that is logged."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            *TYPES,
            "create table public.t (id int primary key, a kinds.price, b kinds.mood, c int)",
            "insert into public.t values (1, 2.5, 'sad', 3)",
            "alter table public.t drop a, drop b",
            "drop type kinds.mood cascade",
            "alter table public.t rename c to d",
        )
        table = captured_tables(catalog, ["public.t"])
        messages = capture.relation_messages()
        relation = resolve_only(RelationResolver(catalog, table), messages)
        assert [c.name for c in relation.columns] == ["id", "a", "b", "c"]
        assert [c.neutral for c in relation.columns] == [
            "int32",
            "decimal(12,2)",
            "string",
            "int32",
        ]
        assert len(relation.notes) == 3
        catalog.execute("drop table public.t")
        assert resolve_only(RelationResolver(catalog, table), messages) == relation


def test_a_table_made_anew_takes_the_old_ones_place(source_url: str) -> None:
    """A table with the same name and another oid is the next version under that name."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a int default 3)")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        catalog.execute("insert into public.t values (1)")
        old = resolve_only(resolver, capture.relation_messages())
        run_all(
            catalog,
            "drop table public.t",
            "create table public.t (id int primary key, b text)",
            "insert into public.t values (1)",
        )
        new = resolve_only(resolver, capture.relation_messages())
        assert (new.version, [c.name for c in new.columns]) == (2, ["id", "b"])
        assert new.source_id != old.source_id
        assert not resolver.is_captured(old.source_id)


def test_a_definition_is_adopted_once(source_url: str) -> None:
    """A column added to a table without writes reaches the log; one already seen does not."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key)")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        catalog.execute("insert into public.t values (1)")
        assert resolve_only(resolver, capture.relation_messages()).version == 1
        catalog.execute("alter table public.t add a int default 5")
        (definition,) = captured_tables(catalog, ["public.t"])
        adopted = resolver.adopt(definition)
        assert adopted is not None
        assert (adopted.version, adopted.columns[1].missing) == (2, "5")
        assert resolver.adopt(definition) is None
        catalog.execute("insert into public.t values (2)")
        assert resolve_only(resolver, capture.relation_messages()) is adopted

        # The stream knows b and c before the extractor reaches the definition with b alone.
        catalog.execute("alter table public.t add b int")
        (older,) = captured_tables(catalog, ["public.t"])
        run_all(catalog, "alter table public.t add c int", "insert into public.t values (3)")
        newest = resolve_only(resolver, capture.relation_messages())
        assert resolver.adopt(older) is None
        assert resolver.current(newest.source_id) is newest


def test_a_shape_that_changed_while_nobody_looked_is_adopted(source_url: str) -> None:
    """The log is older than the definitions that a new start reads; rows in between do no harm."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a int, b int)")
        before = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        catalog.execute("insert into public.t values (1)")
        old = resolve_only(before, capture.relation_messages())
        catalog.execute("insert into public.t values (2)")
        for change in ("drop column b", "add column c int", "alter column c type bigint"):
            catalog.execute(f"alter table public.t {change}".encode())
            definitions = captured_tables(catalog, ["public.t"])
            started = RelationResolver(catalog, definitions, known=before.relations())
            adopted = started.adopt(definitions[0])
            assert adopted is not None
            assert [c.name for c in adopted.columns] == [c.name for c in definitions[0].columns]
            assert started.adopt(definitions[0]) is None
            before = started
        assert old.version == 1


def test_a_database_without_encoding_keeps_text_as_bytes(postgres: object) -> None:
    """A SQL_ASCII database does not specify an encoding, so nothing is decoded."""
    url = postgres.make_database("ascii_plain")  # type: ignore[attr-defined]
    name = url.rsplit("/", 1)[1].split("?")[0] + "_raw"
    with connect(url, application_name="t") as connection:
        connection.execute(f"create database {name} encoding 'SQL_ASCII' template template0")
    raw = url.replace(name.removesuffix("_raw"), name)
    with open_catalog(raw) as catalog:
        run_all(catalog, "create table public.t (id int primary key, a text, b bytea)")
        (table,) = captured_tables(catalog, ["public.t"])
    postgres.drop_database(raw)  # type: ignore[attr-defined]
    postgres.drop_database(url)  # type: ignore[attr-defined]
    assert [c.neutral for c in relation_of(table).columns] == ["int32", "binary", "binary"]


def test_a_connection_with_other_settings_is_refused(source_url: str) -> None:
    """Texts read through it might differ from those of the log."""
    with (
        connect(source_url, application_name="t", options={"DateStyle": "German"}) as connection,
        pytest.raises(SettingsWrong, match="DateStyle"),
    ):
        definitions_of(connection, [1])


def test_unknown_oids_are_kept_as_text(catalog: psycopg.Connection) -> None:
    """A message about a dropped table with a dropped type is kept as text."""
    run_all(catalog, "create table public.t (id int)")
    (table,) = captured_tables(catalog, ["public.t"])
    message = RelationMessage(
        xid=None,
        source_id=table.source_id,
        schema="public",
        name="t",
        identity="f",
        columns=(RelationColumn(1, "lost", 4_000_000_000, -1),),
    )
    relation = RelationResolver(catalog, [table]).resolve(message)
    assert relation is not None
    assert relation.identity is Identity.FULL
    assert (relation.columns[0].neutral, relation.key) == ("string", ())
    assert "type 4000000000" in relation.notes[0]


def test_queries_of_the_catalogue_are_not_compiled(source_url: str) -> None:
    """The server does not compile these queries: compiling takes far longer than running them."""
    with open_catalog(source_url) as connection:
        assert connection.execute("show jit").fetchone() == ("off",)
