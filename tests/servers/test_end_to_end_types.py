"""Every type through the whole pipeline: in bulk and as changes, text equal on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.end_to_end import Pair
from harness.servers.postgres_types import EXTENSION_VALUES, SETUP, has_xml, values_for
from penstock.engines.postgres.connect import literal
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Types:
    """Tables of all types: two wide ones, and one per type that can be a key."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.pair = Pair(folder, server)
        self.server = server
        self.kinds: dict[str, list[str]] = {}
        self.keys: list[int] = []

    def make(self) -> None:
        """Create the tables."""
        pair = self.pair
        pair.run(SETUP)
        available = {row[0] for row in self.rows("select name from pg_available_extensions")}
        extensions = available & EXTENSION_VALUES.keys()
        for extension in extensions:
            pair.run(f"create extension {extension} schema kinds")
            # penstock does not create its types.
            pair.target.execute("create schema if not exists kinds")
            pair.target.execute(f"create extension {extension} schema kinds".encode())
        self.kinds = values_for(self.server.version, extensions, with_xml=has_xml(pair.source))
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(self.kinds))
        pair.run(f"create table keyed (id int primary key, n int, {columns})")
        pair.run(f"create table bare (id int, n int, {columns})")
        pair.run("alter table bare replica identity full")
        self.keys = [number for number in range(len(self.kinds)) if self.made_with_key(number)]

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Return rows of the source."""
        return self.pair.source.execute(query.encode()).fetchall()

    def made_with_key(self, number: int) -> bool:
        """Create the table whose key is of this type; return False if the type cannot be a key."""
        kind = list(self.kinds)[number]
        try:
            # An array of a type without order can be a key, of at most one row.
            self.rows(f"select {self.value(number, 0)} < {self.value(number, 0)}")
            self.pair.run(f"create table key{number} (v {kind} primary key, n int)")
        except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFunction):
            return False
        return True

    def value(self, number: int, index: int) -> str:
        """Return a value as SQL, which the type's own input reads."""
        kind = list(self.kinds)[number]
        values = self.kinds[kind]
        return f"{literal(values[index])}::{kind}" if index < len(values) else "null"

    def fill(self, first_id: int) -> None:
        """Insert row by row, each with one more value of every type."""
        longest = max(map(len, self.kinds.values()))
        for index in range(longest + 1):
            values = [self.value(number, index) for number in range(len(self.kinds))]
            listed = ", ".join(values)
            for table in ("keyed", "bare"):
                self.pair.run(f"insert into {table} values ({first_id + index}, 0, {listed})")

    def fill_keys(self, *, odd: bool) -> None:
        """Insert every second value of each type into the table with that key."""
        for number in self.keys:
            kind = list(self.kinds)[number]
            for index in range(int(odd), len(self.kinds[kind]), 2):
                value = self.value(number, index)
                self.pair.run(f"insert into key{number} values ({value}, 1) on conflict do nothing")


@pytest.fixture(scope="module")
def types(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Types]:
    """Tables loaded in bulk, and a pipeline that follows."""
    made = Types(tmp_path_factory.mktemp("types"), postgres)
    try:
        made.make()
        made.fill(1)
        made.fill_keys(odd=False)
        made.pair.start()
        made.pair.settle()
        yield made
    finally:
        made.pair.close()


def test_bulk(types: Types) -> None:
    """Existing rows are equal after the load, and missing types are created."""
    keys = [f"key{number}" for number in types.keys]
    assert len(types.kinds) > 90
    assert len(keys) > 50
    types.pair.check("keyed", "bare", *keys)


def test_inserts(types: Types) -> None:
    """Inserted values arrive through the change stream as in bulk."""
    types.fill(1000)
    types.fill_keys(odd=True)
    types.pair.check("keyed", "bare", *[f"key{number}" for number in types.keys])


def test_updates_and_deletes(types: Types) -> None:
    """Rows are found by keys of every type, and without a key by the whole row."""
    pair = types.pair
    for table in ("keyed", "bare"):
        pair.run(f"update {table} set n = n + 1 where id % 2 = 1")
        pair.run(f"delete from {table} where id % 5 = 0")
        columns = ", ".join(f"c{number} = null" for number in range(0, len(types.kinds), 2))
        pair.run(f"update {table} set {columns} where id % 7 = 1")
        pair.run(f"update {table} set id = -id where id % 3 = 0")
    for number in types.keys:
        pair.run(f"update key{number} set n = 2")
        first, last = types.value(number, 0), types.value(number, 1)
        if last != "null":
            pair.run(f"delete from key{number} where v = {last}")
            pair.run(f"update key{number} set v = {last}, n = 3 where v = {first}")
    pair.check("keyed", "bare", *[f"key{number}" for number in types.keys])


def test_values_that_are_equal_but_print_otherwise(types: Types) -> None:
    """A key that becomes another text of the same value arrives as that text."""
    pair = types.pair
    kinds = list(types.kinds)
    cases = {
        "numeric": ("5.0", "5.000"),
        "double precision": ("0", "-0"),
        "interval": ("1 day", "24 hours"),
        "kinds.citext": ("straße", "STRAßE"),
        "jsonb": ('{"a": 1.0}', '{"a": 1.00}'),
    }
    touched = []
    for kind, (before, after) in cases.items():
        if kind not in kinds:
            continue
        table = f"key{kinds.index(kind)}"
        touched.append(table)
        pair.run(f"delete from {table}")
        pair.run(f"insert into {table} values ({literal(before)}, 1)")
        pair.check(table)
        pair.run(f"update {table} set v = {literal(after)}")
        pair.check(table)
        pair.run(f"update {table} set v = {literal(before)}; update {table} set n = 7")
    pair.check(*touched)
