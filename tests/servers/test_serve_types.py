"""Values of every type, from every engine, into a subscriber: equal in each server's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.based import Based
from harness.servers.engines import ENGINES, Place, new_place
from harness.servers.mysql_types import values_for
from harness.servers.postgres_types import SETUP, has_xml, rows_of
from harness.servers.postgres_types import values_for as values_of_postgres
from harness.servers.subscribers import Served, Subscriber
from penstock.codec.types import Engine, fill_template, map_table
from penstock.codec.types import Server as Side
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import server_of, source_tables
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS
from penstock.ports.registry import types_at
from plugins.postgres import Server
from plugins.shared import SharedServers

MYSQL = [kind for kind in ENGINES if not kind.startswith("pg")]
FORMS = ("text", "binary", "copy")
SUBSCRIBED = {"text": (), "binary": ("binary = true",), "copy": ("copy_data = true",)}
POSTGRES = [kind for kind in ENGINES if kind.startswith("pg")]


@pytest.fixture(params=MYSQL)
def mysql_place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source that is not of the subscriber's engine."""
    with new_place(shared_servers, request.param) as place:
        yield place


@pytest.fixture(params=POSTGRES)
def postgres_place(
    request: pytest.FixtureRequest, shared_servers: SharedServers
) -> Iterator[Place]:
    """A source of the subscriber's engine."""
    with new_place(shared_servers, request.param) as place:
        yield place


@pytest.mark.parametrize("form", FORMS)
def test_every_type_of_another_engine(
    mysql_place: Place, postgres: Server, tmp_path: Path, form: str
) -> None:
    """The type to which a column is mapped accepts the sent values."""
    place = mysql_place
    values = values_for(types_at(place.url) == Engine.MARIADB)
    columns = ", ".join(f"c{n} {kind} null" for n, kind in enumerate(values))
    place.run(f"create table item (id int primary key, {columns})")
    rows = list(rows_of(values))

    def fill() -> None:
        for number, row in enumerate(rows):
            cells = ", ".join("null" if cell is None else cell for cell in row)
            place.run(f"set sql_mode = ''; insert into item values ({number}, {cells})")

    served = Based(place, tmp_path) if form == "copy" else Served(place, tmp_path)
    subscriber = None
    try:
        begin(served, fill)
        served.serve()
        (definition,) = source_tables(load_config(served.path))
        target = Side(engine=Engine.POSTGRESQL, version=(postgres.version,))
        mappings = map_table(definition, server_of(place.url), target)
        types = ", ".join(f"{name} {one.target_type}" for name, one in mappings.items())
        subscriber = Subscriber(
            postgres, served, f"create table {place.namespace}.item ({types}, primary key (id))"
        )
        subscriber.subscribe("p", *SUBSCRIBED[form])
        if form != "copy":
            fill()
        count = len(rows)
        table = f"{place.namespace}.item"
        subscriber.until(
            lambda: subscriber.run(f"select count(*) from {table}") == [(count,)], "all rows"
        )
        for name, mapping in mappings.items():
            ours = fill_template(mapping.equal.source, f"`{name}`")
            theirs = fill_template(mapping.equal.target, name)
            at_source = place.run(f"select {ours} from item order by item.id")
            at_target = subscriber.run(f"select {theirs} from {table} item order by item.id")
            assert [_text(one) for (one,) in at_source] == [one for (one,) in at_target], mapping
    finally:
        if subscriber is not None:
            subscriber.drop()
        served.close()
        place.forget_log()


def begin(served: Served, fill: Callable[[], None]) -> None:
    """Start the parts before the server; rows that are copied exist before it."""
    if isinstance(served, Based):
        fill()
    served.extract()
    if isinstance(served, Based):
        served.load()


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("form", FORMS)
def test_every_type_of_the_same_engine(
    postgres_place: Place, postgres: Server, tmp_path: Path, form: str
) -> None:
    """Both ends print the values alike; a complete old image finds its row, too."""
    place = postgres_place
    with psycopg.connect(place.url) as source, psycopg.connect(postgres.url()) as target:
        both = min(source.info.server_version // 10_000, postgres.version)
        with_xml = has_xml(source) and has_xml(target)
        values = values_of_postgres(both, set(), with_xml=with_xml)
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(values))
    table = f"create table public.item (id int primary key, {columns})"
    place.run(SETUP, table)

    def fill() -> None:
        with psycopg.connect(place.url, autocommit=True) as connection:
            for number, row in enumerate(rows_of(values)):
                marks = ", ".join(["%s"] * (len(row) + 1))
                connection.execute(f"insert into item values ({marks})", (str(number), *row))  # type: ignore[arg-type]

    served = Based(place, tmp_path) if form == "copy" else Served(place, tmp_path)
    subscriber = None
    try:
        begin(served, fill)
        served.serve()
        subscriber = Subscriber(postgres, served, SETUP, table)
        subscriber.subscribe("p", *SUBSCRIBED[form])
        if form != "copy":
            fill()
        expected = print_rows(place.url, len(values))

        def equal() -> bool:
            return print_rows(subscriber.url, len(values)) == expected

        subscriber.until(equal, "equal rows")
    finally:
        if subscriber is not None:
            subscriber.drop()
        served.close()
        place.forget_log()


def print_rows(url: str, count: int) -> list[tuple[str | None, ...]]:
    """Return all rows as the server prints them: a cast would keep the declaration of an xml."""
    texts = ", ".join(
        f"case when c{n} is not null then format('%s', c{n}) end" for n in range(count)
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in EXACT_TEXT_SETTINGS.items():
            connection.execute(f"set {name} = '{value}'")  # type: ignore[arg-type]
        return connection.execute(f"select {texts} from public.item order by id").fetchall()  # type: ignore[arg-type]
