"""Chunks contain every row once, for every kind of key, as the server compares it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from penstock.engines.mysql.connect import Connection, rows, value
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.chunks import KeyChunk, plan_chunks
from penstock.model import TableDefinition
from penstock.ports.bulk import rows_per_chunk
from plugins.mysql import MySQLServer, database_of

WORDS = ["", " ", "a", "A", "á", "b", "B", "ä", "ae", "ß", "ss", "z", "Z", "ñ", "n", "é", "E", "'",
         "\\", "\\'", "%", "_", "0", "10", "9", "-", "\t", "\n", "😀", "日本", "ﬀ", "a b",
         "a-b"]  # fmt: skip
LATIN = [word for word in WORDS if all(ord(letter) < 256 for letter in word)]


@pytest.fixture
def connection(mysql_url: str) -> Iterator[Connection]:
    """A connection to the fresh database."""
    with open_catalog(mysql_url) as opened:
        yield opened


@pytest.fixture
def fill(
    mysql: MySQLServer, mysql_url: str, connection: Connection
) -> Callable[..., TableDefinition]:
    """Create a table t with these rows, as far as they are distinct, and read its definition."""

    def make(columns: str, key: str, values: list[tuple[object, ...]]) -> TableDefinition:
        name = database_of(mysql_url)
        mysql.execute(f"create table t ({columns}, payload int, {key})", name)
        with mysql.connect(name) as opened, opened.cursor() as cursor:
            marks = ", ".join(["%s"] * (len(values[0]) + 1))
            cursor.executemany(
                f"insert ignore into t values ({marks})",
                [(*row, place) for place, row in enumerate(values)],
            )
            cursor.execute("analyze table t")
        return captured_tables(connection, [f"{name}.t"])[0]

    return make


def check(connection: Connection, definition: TableDefinition, target: int) -> list[KeyChunk]:
    """Check that every row is in one chunk, and return the chunks."""
    chunks = plan_chunks(connection, definition, row_count_target=target)
    found: list[int] = []
    for chunk in chunks:
        part = [row["payload"] for row in rows(connection, chunk.query(["payload"]), doing="x")]
        found += part
    every = [row["payload"] for row in rows(connection, "select payload from t", doing="x")]
    assert sorted(found) == sorted(every)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert (chunks[0].lower, chunks[-1].upper) == (None, None)
    for before, after in pairwise(chunks):
        assert before.upper == after.lower
    return chunks


rng = random.Random(5)
NUMBERS = [(number,) for number in rng.sample(range(-8000, 8000), 900)]
KEYS: dict[str, tuple[str, str, list[tuple[object, ...]]]] = {
    "int": ("k int", "primary key (k)", NUMBERS),
    "bigint unsigned": ("k bigint unsigned", "primary key (k)",
                        [(2**64 - 1 - n * n,) for n in range(900)]),
    "zerofill": ("k int unsigned zerofill", "primary key (k)", [(n * 7,) for n in range(900)]),
    "decimal": ("k decimal(30,9)", "primary key (k)", [(f"{n[0]}.5",) for n in NUMBERS]),
    "varchar ai_ci": ("k varchar(40)", "primary key (k)",
                      [(a + b,) for a in WORDS for b in WORDS]),
    "varchar bin": ("k varchar(40) collate utf8mb4_bin", "primary key (k)",
                    [(a + b,) for a in WORDS for b in WORDS]),
    "latin1": ("k varchar(40) character set latin1 collate latin1_german2_ci", "primary key (k)",
               [(a + b,) for a in LATIN for b in LATIN]),
    "utf16": ("k varchar(40) character set utf16", "primary key (k)",
              [(a + b,) for a in WORDS for b in WORDS]),
    "char": ("k char(20)", "primary key (k)", [(a + b,) for a in WORDS for b in WORDS]),
    "binary": ("k binary(4)", "primary key (k)",
               [(n.to_bytes(3, "big"),) for n in range(0, 9000, 10)]),
    "varbinary": ("k varbinary(9)", "primary key (k)",
                  [((n * 37).to_bytes(4, "little").rstrip(b"\0"),) for n in range(900)]),
    "date": ("k date", "primary key (k)",
             [(f"{1900 + n // 100}-{n % 12 + 1:02}-{n % 25 + 1:02}",) for n in range(900)]),
    "datetime": ("k datetime(6)", "primary key (k)",
                 [(f"2024-03-31 {n % 24:02}:{n % 60:02}:01.{n:06}",) for n in range(900)]),
    "timestamp": ("k timestamp(3)", "primary key (k)",
                  [(f"2024-10-27 {n % 24:02}:{n % 60:02}:01.{n:03}",) for n in range(900)]),
    "time": ("k time(2)", "primary key (k)",
             [(f"{n - 450}:00:01.{n % 90 + 10}",) for n in range(900)]),
    "year": ("k year, l int", "primary key (k, l)", [(1901 + n % 250, n) for n in range(900)]),
    "bit": ("k bit(20)", "primary key (k)", [(n * 3,) for n in range(900)]),
    "enum": ("k enum('z','m','a'), l int", "primary key (k, l)",
             [("zma"[n % 3], n) for n in range(900)]),
    "set": ("k set('z','m','a'), l int", "primary key (k, l)",
            [(["", "z", "m", "z,m", "a", "z,a"][n % 6], n) for n in range(900)]),
    "composite": ("a varchar(20), b int, c date", "primary key (b, a, c)",
                  [(WORDS[n % 30], n % 7, f"2024-01-{n % 28 + 1:02}") for n in range(3000)]),
    "stand-in": ("a varchar(20) not null, b int not null", "unique (b, a)",
                 [(WORDS[n % 30], n // 30) for n in range(900)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_every_row_is_in_one_chunk(
    fill: Callable[..., TableDefinition], connection: Connection, kind: str
) -> None:
    """Rows are in one chunk whatever the key's collation treats as equal, and however
    values print.
    """
    columns, key, values = KEYS[kind]
    definition = fill(columns, key, values)
    count = value(connection, "select count(*) from t", doing="x")
    assert count > 300
    chunks = check(connection, definition, 50)
    assert count / 100 <= len(chunks) <= count / 10
    check(connection, definition, 7)
    assert len(check(connection, definition, 100_000)) == 1


@pytest.mark.server("mariadb")
@pytest.mark.parametrize("kind", ["uuid", "inet6"])
def test_mariadbs_own_types_order_as_it_likes(
    fill: Callable[..., TableDefinition], connection: Connection, kind: str
) -> None:
    """A UUID is not ordered by its text."""
    values = [(f"{n * 7919:08x}-{n * 31:04x}-11ee-8000-0000{n:08x}",) for n in range(600)]
    if kind == "inet6":
        values = [(f"2001:db8::{n * 37:x}",) for n in range(600)]
    definition = fill(f"k {kind}", "primary key (k)", values)
    assert len(check(connection, definition, 50)) > 5


@pytest.mark.parametrize(
    ("columns", "key"), [("k int", "key (k)"), ("k double", "primary key (k)"),
                         ("k varchar(90)", "primary key (k(3))")]
)  # fmt: skip
def test_what_cannot_be_cut_is_one_chunk(
    fill: Callable[..., TableDefinition], connection: Connection, columns: str, key: str
) -> None:
    """A table without key, with a key without exact text, or with a key of prefixes
    is one chunk.
    """
    definition = fill(columns, key, [(n * 1.1,) for n in range(50)])
    (chunk,) = check(connection, definition, 5)
    assert chunk.condition == "true"


def test_an_empty_table_is_one_chunk(
    fill: Callable[..., TableDefinition], mysql: MySQLServer, mysql_url: str, connection: Connection
) -> None:
    """The table may have rows by the time it is read."""
    definition = fill("k int", "primary key (k)", [(1,)])
    mysql.execute("delete from t", database_of(mysql_url))
    (chunk,) = check(connection, definition, 5)
    assert chunk.lower is None
    assert chunk.upper is None


def test_rows_outside_what_there_was_belong_to_the_ends(
    fill: Callable[..., TableDefinition], mysql: MySQLServer, mysql_url: str, connection: Connection
) -> None:
    """Chunks are planned once; later rows are still in exactly one."""
    definition = fill("k int", "primary key (k)", [(n,) for n in range(0, 1000, 2)])
    chunks = plan_chunks(connection, definition, row_count_target=50)
    extra = "insert into t values (-5, 900), (2000, 901), (401, 902), (403, 903)"
    mysql.execute(extra, database_of(mysql_url))
    found = [
        row["payload"]
        for chunk in chunks
        for row in rows(connection, chunk.query(["payload"]), doing="x")
    ]
    assert len(found) == len(set(found)) == 504


def test_a_table_with_gaps_is_cut_by_its_rows(
    fill: Callable[..., TableDefinition], connection: Connection
) -> None:
    """Two groups of numbers are far apart: equal ranges would give empty chunks."""
    values = [(n,) for n in range(2000)] + [(2**60 + n,) for n in range(2000)]
    definition = fill("k bigint", "primary key (k)", values)
    chunks = check(connection, definition, 400)
    assert 6 <= len(chunks) <= 30


def test_the_first_column_alone_finds_the_beginning(
    fill: Callable[..., TableDefinition], connection: Connection
) -> None:
    """A range over a key of several columns is read through the key, not through the table."""
    definition = fill(
        "a int, b int", "primary key (a, b)", [(n // 50, n % 50) for n in range(5000)]
    )
    chunks = check(connection, definition, 500)
    middle = chunks[len(chunks) // 2]
    plan = rows(connection, f"explain format = traditional {middle.query(['*'])}", doing="x")[0]
    assert plan["type"] == "range"
    assert plan["key"] == "PRIMARY"
    assert int(plan["rows"]) < 2500


def test_sizes_become_rows(fill: Callable[..., TableDefinition]) -> None:
    """Row counts follow the server's estimates, and chunks are never tiny."""
    definition = fill("k int", "primary key (k)", [(n,) for n in range(3000)])
    assert rows_per_chunk(definition, 2**30) > 2_000_000
    assert rows_per_chunk(definition, 1) == 1000
