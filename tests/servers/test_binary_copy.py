"""Values copied in binary form between servers of different versions are the same on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from harness.servers.postgres_types import VALUES
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, literal
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.target.bulk import BINARY_TYPES, goes_binary
from penstock.engines.postgres.target.relay import copy_rows
from penstock.engines.postgres.target.schema import create_tables

OLD, NEW = 15, 18
# Names as users write them; the comparison uses those that the catalogue prints.
ARRAYS = ("integer", "text", "numeric(12,2)", "timestamptz", "jsonb", "uuid", "bit(9)", "box")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[int, EmbeddedPostgres]]:
    """Oldest and newest server that are installed."""
    with EmbeddedPostgres(major=OLD) as old, EmbeddedPostgres(major=NEW) as new:
        yield {OLD: old, NEW: new}


def fill(url: str) -> None:
    """Create a table for each type, with its edge values, NULL, and arrays of some."""
    cases = {name: values for name, values in VALUES.items() if not name.startswith("kinds.")}
    with psycopg.connect(url, autocommit=True) as connection:
        for number, (name, values) in enumerate(cases.items()):
            if name == "xml":
                continue
            connection.execute(f"create table public.t{number} (n int, v {name})")
            for place, value in enumerate(values):
                connection.execute(
                    f"insert into public.t{number} values ({place}, {literal(value)}::{name})"
                )
            connection.execute(f"insert into public.t{number} values (-1, null)")
            if name in ARRAYS:
                texts = ", ".join(f"{literal(value)}::{name}" for value in values)
                connection.execute(
                    f"create table public.a{number} as select 1 as n, array[{texts}, null] as v"
                    f" union all select 2, '{{}}' union all select 3, array[array[{texts}]]"
                )


@pytest.mark.parametrize(("source", "target"), [(OLD, NEW), (NEW, OLD)])
def test_every_type_that_goes_binary_says_everything(
    servers: dict[int, EmbeddedPostgres], source: int, target: int
) -> None:
    """Each value has the same text in both servers, whichever is the newer one."""
    urls = {}
    for version, server in servers.items():
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"create database copies_{source}")
        urls[version] = server.url(f"copies_{source}")
    fill(urls[source])
    with open_catalog(urls[source]) as catalog:
        definitions = [d for d in captured_tables(catalog, ["public.*"]) if goes_binary(d)]
    seen: set[str] = set()
    options = EXACT_TEXT_SETTINGS
    with (
        closing(connect(urls[source], application_name="test", options=options)) as giver,
        closing(connect(urls[target], application_name="test", options=options)) as taker,
    ):
        create_tables(taker, definitions, {})
        for definition in definitions:
            name = f'public."{definition.name.name}"'
            query = f"copy (select n, v from {name}) to stdout (format binary)"
            copy_rows(giver, query, taker, f"copy {name} from stdin (format binary)")
            text = f"select n, v::text from {name} order by n"
            assert taker.execute(text).fetchall() == giver.execute(text).fetchall(), definition
            seen.add(definition.columns[1].type_text.partition("(")[0].removesuffix("[]"))
    bare = {text.partition(" with")[0] for text in BINARY_TYPES}
    assert {text.partition(" with")[0] for text in seen} == bare


def test_a_type_of_which_versions_think_differently_goes_as_text() -> None:
    """The largest interval is a number up to 16, and infinity from 17 on."""
    assert "interval" not in BINARY_TYPES
    assert not {"money", "tsvector", "xml", "regclass"} & BINARY_TYPES
