"""The tables of a subscriber: `penstock plan --ddl` creates them; the real pg_dump is answered."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.pipeline import penstock
from harness.servers.engines import FIRST, Place, insert, new_place
from harness.servers.subscribers import Served, Subscriber
from plugins.postgres import Server
from plugins.shared import SharedServers

TABLES = (
    "create table item (id int primary key, n bigint, price numeric(12,2), note varchar(200))",
    "create table other (k varchar(40), v date, primary key (k))",
)
ROWS = [(1, 10, "1.50", "a"), (2, None, None, None)]


@pytest.fixture(params=[FIRST, "mariadb"])
def log_server(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Served]:
    """A served log of a source with two tables."""
    with new_place(shared_servers, request.param) as place:
        for ddl in TABLES:
            place.run(ddl)
        found = Served(place, tmp_path)
        try:
            found.extract()
            found.serve()
            yield found
        finally:
            found.close()
            place.forget_log()


def test_a_subscription_needs_no_other_statement(log_server: Served, postgres: Server) -> None:
    """A subscriber that runs the statements, and nothing else, gets the rows of both tables."""
    place: Place = log_server.place
    done = penstock("plan", log_server.path, "--ddl", "--json")
    assert done.code == 0, done.err
    subscriber = Subscriber(postgres, log_server, *done.result["statements"])
    try:
        subscriber.subscribe()
        insert(place, "item", ROWS)
        insert(place, "other", [("x", "2026-01-31")])
        names = [f"{place.namespace}.item", f"{place.namespace}.other"]

        def counts() -> list[int]:
            return [len(subscriber.run(f"select * from {name}")) for name in names]

        subscriber.until(lambda: counts() == [2, 1], "the rows are there")
        found = subscriber.run(f"select id, n, price::text, note from {names[0]} order by id")
        assert found == ROWS
    finally:
        subscriber.drop()


def test_pg_dump_is_told_what_to_run(log_server: Served, postgres: Server) -> None:
    """The real program ends with an error that names the command."""
    program = postgres.bindir / "pg_dump"
    done = subprocess.run(
        [str(program), "--schema-only", "--dbname", log_server.connection()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "pg_dump cannot dump a served change log" in done.stderr
    assert "penstock plan FILE --ddl" in done.stderr
