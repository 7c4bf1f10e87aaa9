"""Tables without heap storage are cut by ranges of a key: each row is in one range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.pipelines.writer import Writer
from penstock.engines.postgres.connect import literal
from penstock.engines.postgres.source import key_ranges
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.key_ranges import Key, read_keys
from penstock.engines.postgres.source.snapshot import (
    StorageChunk,
    copy_sql,
    open_snapshot,
    plan_chunks,
    temporary_consistent_point,
)
from penstock.model import TableDefinition

OTHER_HEAP = "create access method heap2 type table handler heap_tableam_handler"
COUNT = 20_000


@pytest.fixture
def catalog(source_url: str) -> Iterator[psycopg.Connection]:
    """A catalogue connection to a database with a second access method."""
    with open_catalog(source_url) as connection:
        connection.execute(OTHER_HEAP)
        yield connection


def table_of(connection: psycopg.Connection, name: str = "public.t") -> TableDefinition:
    """Return the definition of a captured table."""
    return captured_tables(connection, [name])[0]


def read(connection: psycopg.Connection, chunk: StorageChunk, *columns: str) -> list[bytes]:
    """Return the lines of a chunk."""
    with connection.cursor().copy(copy_sql(chunk, columns)) as copy:
        return b"".join(copy).splitlines()


def check_pieces(
    connection: psycopg.Connection, *, at_least: int, largest: float = 0.5
) -> list[StorageChunk]:
    """Check that every row of public.t is in one of enough chunks, and none holds too large a
    share.
    """
    chunks = plan_chunks(connection, table_of(connection), size_bytes_target=200_000)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert len(chunks) >= at_least
    assert {chunk.first_block for chunk in chunks} == {0}
    parts = [read(connection, chunk, "n") for chunk in chunks]
    lines = [line for part in parts for line in part]
    row = connection.execute("select count(*) from public.t").fetchone()
    assert row is not None
    assert Counter(lines) == Counter(str(n + 1).encode() for n in range(row[0]))
    assert max(len(part) for part in parts) <= largest * row[0] + 1
    return chunks


def fill(connection: psycopg.Connection, columns: str, values: str, count: int = COUNT) -> None:
    """Create public.t with columns besides n and pad, whose values are expressions of i."""
    connection.execute(f"create table public.t (n int, {columns}, pad text) using heap2")
    connection.execute(
        f"insert into public.t select i, {values}, repeat('x', 100) "
        f"from generate_series(1, {count}) as i"
    )


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("id int primary key", "i"),
        ("id bigint primary key", "-i::bigint * 1000000000"),
        ("id uuid primary key", "md5(i::text)::uuid"),
        ("id numeric primary key", "i / 7.0"),
        ("id float8 primary key", "case i when 1 then 'NaN' else sqrt(i) end"),
        (
            "id timestamptz primary key",
            "case i when 1 then 'infinity' else now() + i * interval '1 s' end",
        ),
        ("id date primary key", "'4700-01-01 BC'::date + i"),
        ("id bytea primary key", r"decode(md5(i::text), 'hex') || '\x00'"),
        ("id text primary key", "md5(i::text)"),
        ('id text collate "C" primary key', "E'a\\'\\\\\\\\b\\t' || i"),
        ("id varchar(40) primary key", "repeat('ä', i % 9) || i"),
        ("id char(12) primary key", "i::text"),
        ("id interval primary key", "i * '1 month 3 days'::interval"),
        ("id inet primary key", "'10.0.0.0'::inet + i"),
        ("id int[] primary key", "array[i % 50, i]"),
        ("id int4range primary key", "int4range(i % 7, 100 + i)"),
        ("id bool, k int, primary key (id, k)", "i % 2 = 0, i"),
    ],
)
def test_keys_of_every_kind(catalog: psycopg.Connection, columns: str, values: str) -> None:
    """Values are compared as the server prints them and come back unchanged."""
    fill(catalog, columns, values)
    check_pieces(catalog, at_least=8)


def test_a_skewed_key_is_cut_where_the_rows_are(catalog: psycopg.Connection) -> None:
    """One tenant has nearly all rows: the second column cuts them."""
    fill(
        catalog,
        "tenant text, place bigint, primary key (tenant, place)",
        "case when i % 100 = 0 then i::text else 'the large one' end, i % 7 * 100000 + i",
    )
    chunks = check_pieces(catalog, at_least=8, largest=0.3)
    assert '"place"' in chunks[0].condition


def test_the_primary_key_is_preferred_and_partial_and_computed_ones_are_not_used(
    catalog: psycopg.Connection,
) -> None:
    """An index that lacks some rows, or has computed columns, cannot be used."""
    fill(catalog, "a int, b int not null, c text", "i, i, i::text")
    for index in (
        "create unique index on public.t (a) where a > 100",
        "create unique index on public.t ((a + 1))",
        "create unique index on public.t (c text_pattern_ops)",
        'create unique index on public.t (c collate "POSIX")',
        "create index on public.t (b)",
    ):
        catalog.execute(index)
    (only,) = plan_chunks(catalog, table_of(catalog), size_bytes_target=200_000)
    assert only.condition == ""
    catalog.execute("create unique index on public.t (a)")
    oid = table_of(catalog).source_id
    assert [key.columns for key in read_keys(catalog, oid)] == [("a",)]
    catalog.execute("create unique index on public.t (b)")
    catalog.execute("alter table public.t add primary key (n, b)")
    keys = read_keys(catalog, oid)
    assert [key.columns for key in keys] == [("n", "b"), ("b",), ("a",)]
    assert [key.nullable for key in keys] == [False, False, True]
    check_pieces(catalog, at_least=8)


def test_nulls_are_in_the_first_range(catalog: psycopg.Connection) -> None:
    """A unique key may hold any number of them."""
    fill(catalog, "a int unique", "case when i % 3 > 0 then i end")
    check_pieces(catalog, at_least=5)


def test_a_key_of_which_only_a_part_is_never_null(catalog: psycopg.Connection) -> None:
    """Rows are compared by that part alone; equal ones stay together."""
    fill(catalog, "a int not null, b int, unique (a, b)", "i / 10, case i % 10 when 0 then 5 end")
    oid = table_of(catalog).source_id
    assert [key.columns for key in read_keys(catalog, oid)] == [("a",)]
    check_pieces(catalog, at_least=8)


def test_columns_that_run_in_different_directions(catalog: psycopg.Connection) -> None:
    """A comparison of rows follows one direction; both directions hold every row."""
    fill(catalog, "a int not null, b int not null, c int not null", "-(i / 10), i % 10, i")
    catalog.execute("create unique index on public.t (a desc, b desc, c)")
    assert read_keys(catalog, table_of(catalog).source_id)[0].columns == ("a", "b")
    check_pieces(catalog, at_least=8)


def test_a_key_with_few_values_gives_few_ranges(catalog: psycopg.Connection) -> None:
    """Equal cuts are one; a sample without rows cuts nothing."""
    fill(catalog, "a int not null, b int, unique (a, b)", "i / 10000, i")
    chunks = plan_chunks(catalog, table_of(catalog), size_bytes_target=200_000)
    assert 2 <= len(chunks) <= 3
    assert sum(len(read(catalog, chunk, "n")) for chunk in chunks) == COUNT
    catalog.execute("delete from public.t")
    (chunk,) = plan_chunks(catalog, table_of(catalog), size_bytes_target=200_000)
    assert chunk.condition == ""


def test_a_table_that_cannot_be_sampled_is_cut_by_all_its_keys(
    catalog: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every access method supports sampling; the server refuses with 0A000."""
    monkeypatch.setattr(
        key_ranges, "SAMPLED", "(select * from {table} where {share} > 0 group by n for update) x"
    )
    fill(catalog, "id int primary key", "i * i")
    chunks = check_pieces(catalog, at_least=8, largest=0.1)
    sizes = [len(read(catalog, chunk, "n")) for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1


def test_a_large_table_is_sampled(
    catalog: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the blocks is enough to cut the table well."""
    monkeypatch.setattr(key_ranges, "SAMPLE_BLOCKS", 60)
    fill(catalog, "id int primary key", "case when i < 15000 then i else i * 1000 end")
    check_pieces(catalog, at_least=6, largest=0.3)


def test_partitions_are_cut_each_by_its_own_storage(catalog: psycopg.Connection) -> None:
    """One is a heap, one is not, and one of those has another unique key."""
    for statement in (
        "create table public.t (n int, id int, pad text) partition by list (id)",
        "create table public.one partition of public.t for values in (1)",
        "create table public.two partition of public.t for values in (2) using heap2",
        "create table public.three partition of public.t for values in (3) using heap2",
        "create unique index on public.two (n)",
        "insert into public.t select i, i % 3 + 1, repeat('y', 100) "
        f"from generate_series(1, {COUNT}) as i",
    ):
        catalog.execute(statement)
    chunks = plan_chunks(catalog, table_of(catalog), size_bytes_target=200_000)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    names = Counter(chunk.storage.name for chunk in chunks)
    assert names["one"] > 2
    assert names["two"] > 2
    assert names["three"] == 1
    lines = [line for chunk in chunks for line in read(catalog, chunk, "n")]
    assert Counter(lines) == Counter(str(n + 1).encode() for n in range(COUNT))


def test_keys_that_change_while_they_are_read(source_url: str, catalog: psycopg.Connection) -> None:
    """A row whose key moves to another range is neither lost nor read twice in one snapshot."""
    fill(catalog, "id int primary key", "i")
    moving = (
        "update public.t set id = -id where n % 5 = 0",
        "update public.t set id = id + 1000000 where n % 7 = 0 and id < 1000000",
        "delete from public.t where n > 20000",
        "insert into public.t select i, i + 5000000, '' from generate_series(20001, 20500) as i",
    )
    with Writer(source_url, *moving) as writer, temporary_consistent_point(source_url) as point:
        with open_snapshot(source_url, point.snapshot_id) as reader:
            expected = [
                f"{row[0]}\t{row[1]}".encode()
                for row in reader.execute("select n, id from public.t").fetchall()
            ]
        with open_snapshot(source_url, point.snapshot_id) as reader:
            chunks = plan_chunks(reader, table_of(catalog), size_bytes_target=200_000)
        assert len(chunks) > 5
        rounds = writer.round_count
        lines: list[bytes] = []
        for chunk in chunks:  # each on its own connection, as in Spark's tasks
            with open_snapshot(source_url, point.snapshot_id) as reader:
                lines += read(reader, chunk, "n", "id")
        assert writer.round_count > rounds
    assert Counter(lines) == Counter(expected)


def collations(connection: psycopg.Connection) -> list[str]:
    """Return a collation of each provider of this server, and one that treats letters as equal."""
    try:
        connection.execute(
            "create collation public.\"No Case\" (provider = icu, locale = 'und-u-ks-level2', "
            "deterministic = false)"
        )
        providers, extra = "cbi", ['public."No Case"']
    except psycopg.errors.FeatureNotSupported:  # built without ICU
        providers, extra = "cb", []
    found = connection.execute(
        "select distinct on (collprovider) quote_ident(collname) from pg_collation "
        "where strpos(%s, collprovider::text) > 0 "
        "and collencoding in (-1, pg_char_to_encoding('UTF8')) "
        "and collnamespace = 'pg_catalog'::regnamespace order by collprovider, collname desc",
        (providers,),
    ).fetchall()
    return ['"C"', *(row[0] for row in found), *extra]


def test_text_under_every_collation(catalog: psycopg.Connection) -> None:
    """Cuts are compared as the column compares: a, B, b and Ä stand where the collation has them.

    Equal values under the collation are one value: such keys differ by a number after them.
    """
    for name in collations(catalog):
        catalog.execute("drop table if exists public.t")
        fill(
            catalog,
            f"id text collate {name} primary key",
            "(array['a','B','b','Ä','ä','z','Z','_','-','é'])[i % 10 + 1] || ' ' || i",
        )
        check_pieces(catalog, at_least=8, largest=0.4)


KEY_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-9, 9)), st.one_of(st.none(), KEY_TEXTS)),
        max_size=60,
    ),
    cuts=st.lists(st.tuples(st.integers(-9, 9), KEY_TEXTS), max_size=6),
    width=st.integers(1, 2),
)
def test_whatever_the_cuts_every_row_is_in_one_range(
    range_database: psycopg.Connection,
    rows: list[tuple[int | None, str | None]],
    cuts: list[tuple[int, str]],
    width: int,
) -> None:
    """The cuts ascend, and no row of the table needs to have them."""
    if width == 2:
        rows = [(a or 0, b or "") for a, b in rows]
    connection = range_database
    connection.execute("truncate r")
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into r values (%s, %s, %s)", [(n, *r) for n, r in enumerate(rows)]
        )
    ordered = connection.execute(
        "select distinct a::text, b from unnest(%s::int[], %s::text[]) as c(a, b)"
        if width == 2
        else "select distinct a::text, '' from unnest(%s::int[], %s::text[]) as c(a, b)",
        ([a for a, _ in cuts], [b for _, b in cuts]),
    ).fetchall()
    key = Key(
        columns=("a", "b")[:width],
        types=("integer", "text")[:width],
        collations=("", 'pg_catalog."C"')[:width],
        nullable=width == 1,
    )
    ascending = sorted((int(a), b.encode()) for a, b in ordered)
    conditions = key.ranges([(str(a), b.decode())[:width] for a, b in ascending])
    found = [
        row[0]
        for condition in conditions
        for row in connection.execute(
            f"select n from r{f' where {condition}' if condition else ''}"
        ).fetchall()
    ]
    assert sorted(found) == list(range(len(rows))), literal(repr(conditions))


@pytest.fixture(scope="module")
def range_database(postgres: object) -> Iterator[psycopg.Connection]:
    """A connection with a table of numbered pairs, kept over the examples of one test."""
    url = postgres.make_database("ranges")  # type: ignore[attr-defined]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('create table r (n int, a int, b text collate "C")')
        yield connection
    postgres.drop_database(url)  # type: ignore[attr-defined]
