"""The lines of a plugin in pg_recvlogical are equal from a real server and from penstock's."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from harness.servers.engines import Place, new_place
from harness.servers.postgres_types import SETUP, rows_of, values_for
from harness.servers.subscribers import Served
from plugins.postgres import Server
from plugins.shared import SharedServers

# The server that has the plugin: Debian's build of this version.
pytestmark = pytest.mark.server("postgres == 15")


@pytest.fixture
def place(postgres: Server, shared_servers: SharedServers) -> Iterator[Place]:
    """A source of the version under test."""
    with new_place(shared_servers, f"pg{postgres.version}") as found:
        yield found


def receive_lines(
    postgres: Server, connection: str, slot: str, end: str, options: Sequence[str]
) -> list[str]:
    """Return the output of pg_recvlogical up to an LSN, with its programs' own settings."""
    command = [
        *(str(postgres.bindir / "pg_recvlogical"), "-d", connection, f"--slot={slot}", "--start"),
        *("-f", "-", f"--endpos={end}", "--no-loop"),
        *(word for option in options for word in ("-o", option)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def number_transactions(lines: Sequence[str]) -> list[str]:
    """Return the lines with transactions counted: ids and times differ between servers."""
    found, count = [], 0
    for line in lines:
        count += line.startswith("BEGIN")
        line = re.sub(r"^(BEGIN|COMMIT) \d+", rf"\1 {count}", line)
        found.append(re.sub(r" \(at [0-9 :.+-]+\)$", " (at)", line))
    return found


def without_empty(lines: Sequence[str]) -> list[str]:
    """Return the lines without empty transactions, which a log does not have."""
    found: list[str] = []
    for line in lines:
        if line.startswith("COMMIT") and found and found[-1].startswith("BEGIN"):
            found.pop()
        else:
            found.append(line)
    return found


EXTRACTED = (
    "select bool_and(confirmed_flush_lsn >= '{}') from pg_replication_slots "
    "where plugin = 'pgoutput' and database = current_database()"
)
STATEMENTS = (
    "insert into item (id, note) values (1, 'it''s'), (2, null), (3, repeat('x', 10))",
    "update item set note = 'new' where id = 1",
    "update item set id = 20 where id = 2",
    "delete from item where id = 3",
    "begin; insert into whole values (1, 'a'), (2, 'b'); update whole set b = 'c' where a = 1; "
    "delete from whole where a = 2; insert into item (id) values (4); commit",
    "insert into \"select\" values ('happy', array['x y', null], '(1,2)')",
    "update item set big = (select string_agg(md5(n::text), '') from generate_series(1, 999) n) "
    "where id = 4",
    "update item set note = 'beside' where id = 4",
    "truncate item, whole",
    "truncate whole restart identity cascade",
    "insert into item (id, note) values (5, 'after')",
)
TABLES = (
    "create type mood as enum ('happy', 'sad')",
    "create table item (id int primary key, note varchar(200), big text)",
    "alter table item alter column big set storage external",
    "create table whole (a int, b text)",
    "alter table whole replica identity full",
    'create table "select" ("Mood" public.mood primary key, "table" text[], p point)',
)


@pytest.mark.parametrize(
    "options", [(), ("include-xids=0", "include-timestamp"), ("skip-empty-xacts", "only-local=1")]
)
def test_test_decoding(
    place: Place, postgres: Server, tmp_path: Path, options: Sequence[str]
) -> None:
    """Rows have old images or not, names have quotes; TOAST is unchanged; TRUNCATE is included."""
    place.run(*TABLES)
    compare_slots(place, postgres, tmp_path, STATEMENTS, options)


def test_test_decoding_with_every_type(place: Place, postgres: Server, tmp_path: Path) -> None:
    """Types and the text of each type's values are equal."""
    values = values_for(postgres.version, set(), with_xml=True)
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(values))
    place.run(SETUP, f"create table public.item (id int primary key, {columns})")
    statements = []
    with psycopg.connect(place.url) as connection:
        for number, row in enumerate(rows_of(values)):
            cells = ["null" if one is None else psycopg.sql.quote(one, connection) for one in row]
            statements.append(f"insert into item values ({number}, {', '.join(cells)})")
    compare_slots(place, postgres, tmp_path, statements, ())


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def compare_slots(
    place: Place, postgres: Server, folder: Path, statements: Sequence[str], options: Sequence[str]
) -> None:
    """Check that both slots give equal lines for statements after one point."""
    served = Served(place, folder)
    try:
        served.extract()
        served.serve()
        served.run_command(
            "CREATE_REPLICATION_SLOT ours LOGICAL test_decoding (SNAPSHOT 'nothing')"
        )
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(
                "select pg_create_logical_replication_slot('theirs', 'test_decoding')"
            )
            for statement in statements:
                connection.execute(statement)  # type: ignore[arg-type]
            found = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("checkpoint")
            assert found is not None
        until(lambda: place.run(EXTRACTED.format(found[0])) == [(True,)], "all is extracted")
        (end,) = served.query_catalog("select pg_current_wal_lsn()::text")[0]
        ours = receive_lines(postgres, served.connection(), "ours", end, options)
        url = place.url.partition("?")[0]
        theirs = receive_lines(postgres, url, "theirs", str(found[0]), options)
        assert number_transactions(ours) == number_transactions(without_empty(theirs))
        assert len(ours) >= 3 * len(statements)
    finally:
        served.close()
        place.forget_log()
