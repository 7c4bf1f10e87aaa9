"""A row-by-row comparison of two real databases finds every kind of difference."""

from __future__ import annotations

import psycopg
import pytest

from penstock.control.verify import compare
from penstock.control.verify.compare import TablePair, TableResult, compare_tables
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.verify import PostgresVerifyReader
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.ports.verify import PART_BYTES, Hasher, TableChangedMeanwhile, TableGone

COLUMNS = """
    select attname, format_type(atttypid, atttypmod), atttypid::int8, atttypmod
      from pg_attribute
     where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped
     order by attnum
"""
KEY = """
    select a.attname
      from pg_index as i, unnest(i.indkey) with ordinality as k(attnum, place)
      join pg_attribute as a on a.attnum = k.attnum
     where i.indrelid = to_regclass(%s) and i.indisprimary and a.attrelid = i.indrelid
     order by place
"""


def definition(url: str, name: str) -> TableDefinition:
    """Return a table's definition as far as the comparison needs it."""
    with psycopg.connect(url, options="-c search_path=") as connection:
        columns = connection.execute(COLUMNS, (name,)).fetchall()
        key = connection.execute(KEY, (name,)).fetchall()
    schema, _, table = name.partition(".")
    return TableDefinition(
        name=TableName(schema, table),
        source_id=1,
        columns=tuple(
            ColumnDefinition(name=n, type_text=t, type_oid=o, typmod=m) for n, t, o, m in columns
        ),
        primary_key=tuple(k for (k,) in key),
    )


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with connect(url, application_name="test") as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def both(source_url: str, target_url: str) -> tuple[str, str]:
    """Both databases, with an equal table of 5,000 rows."""
    for url in (source_url, target_url):
        run(
            url,
            "create table public.t (id bigint primary key, a text, b character(5), "
            "c numeric, d double precision)",
            "insert into public.t select i, 'v' || i, 'b', i / 4.0, i "
            "from generate_series(1, 5000) as i",
        )
    return source_url, target_url


def result_of(
    urls: tuple[str, str],
    table: str = "public.t",
    hasher: Hasher | None = None,
    sessions: int = 2,
    part_bytes: int = PART_BYTES,
) -> TableResult:
    """Compare one table between the two databases."""
    pair = TablePair(source=definition(urls[0], table), target=TableName(*table.split(".")))
    how = {"sessions": sessions, "part_bytes": part_bytes}
    with (
        PostgresVerifyReader(urls[0], snapshot_id=None, **how) as source,
        PostgresVerifyReader(urls[1], snapshot_id=None, **how) as target,
    ):
        return compare_tables([pair], source, target, hasher=hasher)[0]


def counts(result: TableResult) -> tuple[int, int, int]:
    """Return the numbers of missing, surplus and different rows."""
    return (result.missing, result.surplus, result.different)


@pytest.mark.parametrize("hasher", list(Hasher))
def test_equal_tables_are_equal(both: tuple[str, str], hasher: Hasher) -> None:
    """Rows in another physical order are the same rows."""
    run(both[1], "update public.t set a = a where id % 3 = 0")
    result = result_of(both, hasher=hasher)
    assert result.equal
    assert (result.source_rows, result.target_rows) == (5000, 5000)


@pytest.mark.parametrize("hasher", list(Hasher))
@pytest.mark.parametrize(
    ("change", "expected", "kind"),
    [
        ("update public.t set a = 'v4243' where id = 4242", (0, 0, 1), "different"),
        ("delete from public.t where id = 4242", (1, 0, 0), "missing"),
        ("update public.t set a = null where id = 4242", (0, 0, 1), "different"),
        ("update public.t set c = round(c, 30) where id = 4242", (0, 0, 1), "different"),
        ("update public.t set b = '' where id = 4242", (0, 0, 1), "different"),
    ],
)
def test_one_changed_row_is_found_and_named(
    both: tuple[str, str],
    hasher: Hasher,
    change: str,
    expected: tuple[int, int, int],
    kind: str,
) -> None:
    """A single byte, a NULL, a longer scale, a missing row: each is found and its key named."""
    run(both[1], change)
    result = result_of(both, hasher=hasher)
    assert counts(result) == expected
    assert [(d.kind, d.key) for d in result.named] == [(kind, "(4242)")]


@pytest.mark.parametrize(
    ("column", "left", "right"),
    [
        ("a", "''", "null"),
        ("a", "'x'", "'x '"),
        ("d", "0", "'-0'"),
        ("c", "1.0", "1.00"),
        ("c", "'NaN'", "'Infinity'"),
        ("a", r"E'\\N'", "null"),
        ("a", "'a,b'", "'a\"b'"),
    ],
)
def test_values_that_compare_equal_or_print_alike_are_distinguished(
    both: tuple[str, str], column: str, left: str, right: str
) -> None:
    """The comparison is of exact text, not of SQL equality."""
    for url, value in zip(both, (left, right), strict=True):
        run(url, f"update public.t set {column} = {value} where id = 7")
    assert counts(result_of(both)) == (0, 0, 1)


def test_blanks_at_the_end_of_a_wider_character_type_are_seen(
    source_url: str, target_url: str
) -> None:
    """A character(5) keeps its blanks in text; cut ones are a difference."""
    run(source_url, "create table public.t (id int primary key, b character(5))")
    run(target_url, "create table public.t (id int primary key, b text)")
    run(source_url, "insert into public.t values (1, 'x'), (2, 'x')")
    run(target_url, "insert into public.t values (1, 'x    '), (2, 'x')")
    result = result_of((source_url, target_url))
    assert [(d.kind, d.key) for d in result.named] == [("different", "(2)")]


def test_wider_target_types_are_equal_when_they_hold_the_same_value(
    source_url: str, target_url: str
) -> None:
    """A wider type prints differently; only a value that the source could not hold differs."""
    types = (
        ("integer", "bigint"),
        ("numeric(10,2)", "numeric(14,4)"),
        ("character(3)", "character(6)"),
        ("date", "timestamp without time zone"),
        ("real", "double precision"),
        ("smallint", "numeric(9,3)"),
        ("character varying(3)", "text"),
    )
    for url, which in ((source_url, 0), (target_url, 1)):
        columns = ", ".join(f"c{i} {pair[which]}" for i, pair in enumerate(types))
        run(url, f"create table public.t (id int primary key, {columns})")
        run(
            url,
            "insert into public.t values (1, 5, 1.10, 'ab', '2020-02-03', 0.1, 7, 'abc'), "
            "(2, -5, 'NaN', '', 'infinity', '-0', 0, ''), "
            "(3, null, null, null, null, null, null, null)",
        )
    urls = (source_url, target_url)
    assert result_of(urls).equal
    for number, change in enumerate(
        ("c1 = 1.1001", "c2 = 'abcd'", "c3 = '2020-02-03 00:00:01'", "c5 = 7.001", "c0 = 5e10"), 1
    ):
        run(target_url, f"update public.t set {change} where id = 1")
        assert counts(result_of(urls)) == (0, 0, 1), number


def test_missing_surplus_and_different_rows_are_counted_separately(both: tuple[str, str]) -> None:
    """Counts are exact however many rows differ; only the first are named."""
    run(
        both[1],
        "delete from public.t where id <= 1000",
        "insert into public.t select i from generate_series(5001, 5500) as i",
        "update public.t set a = 'x' where id between 2001 and 2007",
    )
    result = result_of(both)
    assert counts(result) == (1000, 500, 7)
    assert len(result.named) == compare.NAMED_MAX
    assert (result.source_rows, result.target_rows) == (5000, 4500)


def test_all_rows_differ(both: tuple[str, str]) -> None:
    """No row is left out when every bucket differs."""
    run(both[1], "update public.t set a = a || '!'")
    assert counts(result_of(both)) == (0, 0, 5000)


def test_an_empty_target_misses_everything(both: tuple[str, str]) -> None:
    """All rows are missing then; an empty source makes all rows surplus."""
    run(both[1], "truncate public.t")
    assert counts(result_of(both)) == (5000, 0, 0)
    assert counts(result_of((both[1], both[0]))) == (0, 5000, 0)


def test_a_keyless_table_is_compared_as_a_multiset(source_url: str, target_url: str) -> None:
    """Two equal rows too few are two missing rows; exclusive-or would not see a pair."""
    for url, copies in ((source_url, 5), (target_url, 3)):
        run(
            url,
            "create table public.t (a int, b text)",
            f"insert into public.t select 1, null from generate_series(1, {copies})",
            "insert into public.t values (2, 'x'), (2, 'y')",
        )
    run(target_url, "insert into public.t values (3, '')")
    result = result_of((source_url, target_url))
    assert counts(result) == (2, 1, 0)
    assert not result.has_key
    assert sorted((d.kind, d.key) for d in result.named) == [
        ("missing", "(1,)"),
        ("missing", "(1,)"),
        ("surplus", '(3,"")'),
    ]


def test_a_large_table_is_read_in_parts(both: tuple[str, str]) -> None:
    """Parts of a table read by several sessions add up to the whole."""
    run(both[1], "update public.t set d = d", "delete from public.t where id = 3")
    result = result_of(both, sessions=4, part_bytes=4 * 8192)
    assert (result.source_rows, result.target_rows) == (5000, 4999)
    assert [(d.kind, d.key) for d in result.named] == [("missing", "(3)")]


def test_partitions_are_read_whatever_the_other_side_looks_like(
    source_url: str, target_url: str
) -> None:
    """A partitioned table equals a plain one with the same rows."""
    run(
        source_url,
        "create table public.t (id int primary key, v text) partition by range (id)",
        "create table public.low partition of public.t for values from (0) to (100)",
        "create table public.high (v text, id int not null)",
        "alter table public.t attach partition public.high for values from (100) to (1000)",
    )
    run(target_url, "create table public.t (id int primary key, v text)")
    for url in (source_url, target_url):
        run(url, "insert into public.t select i, i::text from generate_series(1, 500) as i")
    assert result_of((source_url, target_url)).equal
    run(source_url, "update public.t set v = '' where id = 300")
    assert counts(result_of((source_url, target_url))) == (0, 0, 1)


def test_generated_columns_and_user_types_are_compared(source_url: str, target_url: str) -> None:
    """Enums compare by label, composites by their text, generated columns by each side's value."""
    for url, factor in ((source_url, 2), (target_url, 3)):
        run(
            url,
            "create type public.mood as enum ('sad', 'glad')",
            'create type public."Pair" as (x int, y text)',
            'create table public.t (id int primary key, m public.mood, p public."Pair", '
            f"g int generated always as (id * {factor}) stored)",
            "insert into public.t values (0, 'glad', row(1, 'a,b')), (5, 'sad', null)",
        )
    result = result_of((source_url, target_url))
    assert [(d.kind, d.key) for d in result.named] == [("different", "(5)")]


def test_a_thousand_columns_fit(source_url: str, target_url: str) -> None:
    """Wide rows are printed as one record."""
    columns = ", ".join(f"c{i} int" for i in range(1000))
    for url in (source_url, target_url):
        run(
            url,
            f"create table public.t (id int primary key, {columns})",
            "insert into public.t (id, c999) values (1, 5)",
        )
    assert result_of((source_url, target_url)).equal
    run(target_url, "update public.t set c999 = 6")
    assert counts(result_of((source_url, target_url))) == (0, 0, 1)


def test_a_missing_table_and_a_missing_column_are_typed_errors(both: tuple[str, str]) -> None:
    """The comparison names the missing object instead of calling it a difference."""
    run(both[1], "alter table public.t drop column d")
    with pytest.raises(compare.ColumnGone, match="no column d"):
        result_of(both)
    run(both[1], "drop table public.t")
    with pytest.raises(TableGone, match=r"no table public\.t in the target"):
        result_of(both)


def test_changes_after_the_snapshot_do_not_count(both: tuple[str, str]) -> None:
    """Both sides are read as of their snapshots while writers continue."""
    pair = TablePair(source=definition(both[0], "public.t"), target=TableName("public", "t"))
    with (
        PostgresVerifyReader(both[0], snapshot_id=None, sessions=1) as source,
        PostgresVerifyReader(both[1], snapshot_id=None, sessions=1) as target,
    ):
        run(both[0], "update public.t set a = 'later' where id < 50")
        assert compare_tables([pair], source, target)[0].equal


def test_a_table_truncated_under_the_snapshot_is_an_error_not_a_difference(
    both: tuple[str, str],
) -> None:
    """Snapshots do not protect from TRUNCATE: the table would look empty."""
    pair = TablePair(source=definition(both[0], "public.t"), target=TableName("public", "t"))
    with (
        PostgresVerifyReader(both[0], snapshot_id=None, sessions=1) as source,
        PostgresVerifyReader(both[1], snapshot_id=None, sessions=1) as target,
    ):
        run(both[0], "truncate public.t")
        with pytest.raises(TableChangedMeanwhile):
            compare_tables([pair], source, target)


def test_another_encoding_falls_back_to_a_hash_that_both_share(
    postgres: object, source_url: str
) -> None:
    """A LATIN1 database and a UTF-8 one hold the same text in other bytes."""
    with connect(source_url, application_name="test") as connection:
        connection.execute("drop database if exists latin")
        connection.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
    latin = source_url.rpartition("/")[0] + "/latin"
    try:
        for url in (source_url, latin):
            run(url, "create table public.t (id text primary key)")
            run(url, "insert into public.t values ('née'), ('plain')")
        assert result_of((source_url, latin)).equal
        run(latin, "update public.t set id = 'né' where id = 'née'")
        assert counts(result_of((source_url, latin))) == (1, 1, 0)
    finally:
        run(source_url, "drop database latin with (force)")
