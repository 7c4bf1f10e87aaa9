"""The identity of rows: keys and before images under each replica identity."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from harness.servers.peek import capturing, resolve_only, run_all
from penstock.engines.postgres.source.catalog import (
    RelationResolver,
    TableNotCapturable,
    captured_tables,
    open_catalog,
    relation_of,
)


@pytest.fixture
def catalog(source_url: str) -> Iterator[psycopg.Connection]:
    """A catalogue connection to a fresh database."""
    with open_catalog(source_url) as connection:
        yield connection


@pytest.mark.parametrize(
    ("identity", "key", "before"),
    [
        ("default", ["a", "b"], ["a", "b"]),
        ("full", ["a", "b"], ["a", "b", "c", "d"]),
        ("using index c_key", ["c"], ["c"]),
        ("nothing", ["a", "b"], []),
    ],
)
def test_keys_by_identity(
    source_url: str, identity: str, key: list[str], before: list[str]
) -> None:
    """The key is always among the columns that a before image holds."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (d int, c int not null unique, b int, a int, primary key(b, a))",
            f"alter table public.t replica identity {identity.replace('c_key', 't_c_key')}",
            "insert into public.t values (1, 2, 3, 4)",
        )
        (table,) = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, [table])
        resolved = resolver.resolve(capture.relation_messages()[0])
    assert resolved == relation_of(table)
    names = [column.name for column in resolved.columns]
    assert sorted(names[i] for i in resolved.key) == key
    assert sorted(names[i] for i in resolved.before) == before


@pytest.mark.parametrize(
    ("identity", "before"), [("default", []), ("full", ["a", "b"]), ("nothing", [])]
)
def test_a_key_that_holds_only_at_commit_finds_no_row(
    source_url: str, identity: str, before: list[str]
) -> None:
    """Two rows may have one key between two changes, so the whole row is the key."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (a int primary key deferrable, b int)",
            f"alter table public.t replica identity {identity}",
            "insert into public.t values (1, 2)",
        )
        (table,) = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, [table])
        (message,) = capture.relation_messages()
        resolved = resolver.resolve(message)
        assert resolved == relation_of(table)
        assert resolved.key == ()
        assert [resolved.columns[i].name for i in resolved.before] == before
        run_all(catalog, "alter table public.t drop constraint t_pkey, add primary key (a)")
        (table,) = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, [table])
        assert resolve_only(resolver, [message]).key == (0,)
        # Deferrable again, without a column that another message could mention.
        run_all(
            catalog, "alter table public.t drop constraint t_pkey, add primary key (a) deferrable"
        )
        resolver.forget()
        assert resolve_only(resolver, [message]).key == ()


@pytest.mark.parametrize(
    ("key", "leaf", "before"),
    [
        ("primary key (b, a)", "default", ["a", "b"]),
        ("primary key (b, a)", "full", ["a", "b"]),
        ("primary key (b, a)", "nothing", ["a", "b"]),
        ("primary key (b, a) deferrable", "full", ["a", "b", "c"]),
        ("check (true)", "full", ["a", "b", "c"]),
        ("check (true)", "nothing", ["a", "b", "c"]),
        ("check (true)", "default", ["a", "b", "c"]),
    ],
)
def test_a_root_without_identity_is_known_by_its_partitions(
    source_url: str, key: str, leaf: str, before: list[str]
) -> None:
    """The server sends the columns of the partition's identity, whatever the root has."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            f"create table public.t (c int, b int, a int, {key}) partition by list (a)",
            "create table public.leaf partition of public.t default",
            "alter table public.t replica identity nothing",
            f"alter table public.leaf replica identity {leaf}",
            "insert into public.t values (1, 2, 3)",
        )
        (table,) = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, [table])
        resolved = resolver.resolve(capture.relation_messages()[0])
    assert resolved == relation_of(table)
    assert sorted(resolved.columns[i].name for i in resolved.before) == before


def test_a_partition_with_less_than_the_root_needs_is_refused(catalog: psycopg.Connection) -> None:
    """A partition is refused even if the root's own identity is NOTHING: rows are
    found by its key.
    """
    run_all(
        catalog,
        "create table public.t (b int not null, a int, primary key (a)) partition by list (a)",
        "create table public.leaf partition of public.t default",
        "create unique index other on public.leaf (b) include (a)",
        "alter table public.t replica identity nothing",
        "alter table public.leaf replica identity using index other",
    )
    with pytest.raises(TableNotCapturable, match="leaf"):
        captured_tables(catalog, ["public.t"])


def test_a_key_with_a_generated_column_finds_no_row(source_url: str) -> None:
    """The rest of such a key may be the same in many rows."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (a int, b int, g int generated always as (b) stored,"
            " primary key (a, g))",
            "insert into public.t values (1, 1), (1, 2)",
        )
        (table,) = captured_tables(catalog, ["public.t"])
        resolver = RelationResolver(catalog, [table])
        assert (
            resolve_only(resolver, capture.relation_messages()).key == relation_of(table).key == ()
        )


def test_without_any_key_the_whole_row_is_the_key(catalog: psycopg.Connection) -> None:
    """The whole row is the key if there is no key, or none that is usable as identity."""
    run_all(
        catalog,
        "create table public.t (a int, b int)",
        "alter table public.t replica identity full",
        "create table public.lazy (a int primary key deferrable)",
    )
    (lazy, table) = captured_tables(catalog, ["public.*"])
    assert relation_of(table).key == ()
    assert relation_of(table).before == (0, 1)
    assert lazy.primary_key_deferrable
    assert lazy.identity_columns == ()
    assert relation_of(lazy).before == ()


def test_a_key_dropped_meanwhile_is_no_key(source_url: str) -> None:
    """Rows that became alike must not be folded into one with identity FULL."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(
            catalog,
            "create table public.t (id int primary key, a int)",
            "alter table public.t replica identity full",
        )
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        catalog.execute("insert into public.t values (1)")
        assert resolve_only(resolver, capture.relation_messages()).key == (0,)
        run_all(
            catalog,
            "alter table public.t drop constraint t_pkey",
            "insert into public.t values (1)",
        )
        assert resolve_only(resolver, capture.relation_messages()).key == ()


def test_a_key_dropped_from_a_default_identity_is_no_key(source_url: str) -> None:
    """The message does not report that with identity DEFAULT, but has no key column."""
    with open_catalog(source_url) as catalog, capturing(source_url) as capture:
        run_all(catalog, "create table public.t (id int primary key, a int)")
        resolver = RelationResolver(catalog, captured_tables(catalog, ["public.t"]))
        catalog.execute("insert into public.t values (1)")
        assert resolve_only(resolver, capture.relation_messages()).key == (0,)
        run_all(
            catalog,
            "alter table public.t drop constraint t_pkey",
            "insert into public.t values (1)",
        )
        assert resolve_only(resolver, capture.relation_messages()).key == ()
