"""Conditions and queries are answered as by a PostgreSQL; every difference is a refusal by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.commands import ALIKE, ANSWERED_LATER, MALFORMED
from harness.servers.serve import Running, source_log, write_base_tables, write_log
from harness.servers.sql_compare import KINDS, conditions, definition, fillings, relation_of
from penstock.base.manifest import columns_schema
from penstock.codec.postgres.pgwire_server import Refused
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS
from penstock.serve.row_filter import row_filter
from plugins.postgres import Server


@pytest.fixture
def real(source_url: str) -> Iterator[psycopg.Connection]:
    """Server with a table of every type, which prints values like the log's source."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        for name, value in EXACT_TEXT_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        connection.execute("set search_path = public")
        connection.execute(definition())  # type: ignore[arg-type]
        for statement in fillings():
            connection.execute(statement)  # type: ignore[arg-type]
        yield connection


def print_rows(connection: psycopg.Connection) -> list[tuple[str | None, ...]]:
    """Return the table's rows as the server prints them."""
    with connection.cursor().copy("copy (select * from item order by id) to stdout") as copy:
        copy.set_types(["text"] * (len(KINDS) + 1))
        return [tuple(row) for row in copy.rows()]


def answer(connection: psycopg.Connection, condition: str) -> list[bool] | str:
    """Return which rows satisfy a condition, unknown being false; or the SQLSTATE."""
    query = f"select coalesce(({condition}), false) from item order by id"
    try:
        return [row[0] for row in connection.execute(query).fetchall()]  # type: ignore[arg-type]
    except psycopg.Error as error:
        return str(error.sqlstate)


def test_conditions_are_those_of_a_server(real: psycopg.Connection) -> None:
    """Every type is tried with NaN, infinities, -0 and NULL; conditions that are accepted are
    equal.
    """
    shape, values = relation_of(print_rows(real))
    different, refused, equal = [], 0, 0
    for condition in conditions(random.randrange(2**31), 400):
        try:
            ours = row_filter(condition, shape).keeps(values).to_pylist()
        except Refused:
            refused += 1
            continue
        theirs = answer(real, condition)
        if ours == theirs:
            equal += 1
        else:
            different.append((condition, theirs))
    assert not different
    assert equal > refused / 2, "most is answered"


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Running]:
    """Server of penstock with a real catalogue."""
    write_log(tmp_path / "log", number_rows([inserts(3)]))
    with Running(tmp_path, relations=[ITEM]) as running:
        yield running


def refusal(url: str, command: str) -> str:
    """Return the SQLSTATE of a command's refusal, on a separate connection."""
    connection = psycopg.connect(url, autocommit=True)
    try:
        result = connection.pgconn.exec_(command.encode())
        return (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    finally:
        connection.close()


def test_malformed_commands_are_refused_as_by_a_server(
    ours: Running, source_url: str, postgres: Server
) -> None:
    """The SQLSTATE is the right one: a client would misinterpret another one."""
    replication = ours.url(replication="database")
    create = "CREATE_REPLICATION_SLOT here LOGICAL pgoutput (SNAPSHOT 'nothing')"
    if postgres.version < 15:
        create = "CREATE_REPLICATION_SLOT here LOGICAL pgoutput NOEXPORT_SNAPSHOT"
    wanted, found = {}, {}
    real = make_conninfo(source_url, replication="database")
    assert refusal(real, create) == refusal(replication, create) == ""
    for command, state in (*MALFORMED, *ANSWERED_LATER, *ALIKE):
        found[command] = refusal(replication, command)
        wanted[command] = refusal(real, command) if postgres.version == 15 else state
        assert wanted[command] == state, command
    assert found == wanted


def selects(seed: int) -> Iterator[tuple[str, str]]:
    """Yield queries for both sides; the real server's sort texts by bytes, like penstock's."""
    drawn = random.Random(seed)
    for name in KINDS:
        theirs = f'{name} collate "C"' if name in ("t", "v", "c") else name
        for end in ("", "desc", "nulls first", "desc nulls last"):
            for rest in ("", f" limit {drawn.randint(0, 9)} offset {drawn.randint(0, 9)}"):
                yield (
                    f"select id from item order by {name} {end}, id{rest}",
                    f"select id from item order by {theirs} {end}, id{rest}",
                )
        yield (
            f"select max({name}), min({name}), count({name}), count(*) from item",
            f"select max({theirs}), min({theirs}), count({name}), count(*) from item",
        )
    some = [one for one in conditions(seed, 100) if "item." not in one and "other." not in one]
    for condition in drawn.sample(some, 150):
        for query in (
            f"select id, i4, 1 as one, null from item x where {condition} order by 2 desc, x.id",
            f"select count(*) from item where {condition} limit {drawn.randint(0, 1)}",
            f"select exists(select 1 from item where {condition} offset {drawn.randint(0, 2)})",
        ):
            yield query, query


def result(connection: psycopg.Connection, query: str) -> tuple[list[str], str]:
    """Return the rows, in which -0 and 0 are alike, and the SQLSTATE."""
    try:
        rows = connection.execute(query).fetchall()  # type: ignore[arg-type]
    except psycopg.Error as error:
        return [], str(error.sqlstate)
    return [
        repr(tuple(one + 0.0 if isinstance(one, float) else one for one in row)) for row in rows
    ], ""


def test_selects_are_those_of_a_server(real: psycopg.Connection, tmp_path: Path) -> None:
    """Queries are sorted, limited, counted, with conditions; those that are accepted are equal."""
    shape, values = relation_of(print_rows(real))
    shape = replace(shape, name="wide")  # the log has another table `item`
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with closing(source_log(tmp_path)) as log:
        table = pa.table(values, schema=columns_schema(shape))
        write_base_tables(tmp_path, {shape: table}, log.head().log_id)
    different, refused, equal = [], 0, 0
    with (
        Running(tmp_path, relations=[shape]) as running,
        psycopg.connect(running.url(), autocommit=True) as connection,
    ):
        for ours, theirs in selects(random.randrange(2**31)):
            found = result(connection, ours.replace("from item", "from wide"))
            if found[1]:
                refused += 1
                continue
            wanted = result(real, theirs)
            if found == wanted:
                equal += 1
            else:
                different.append((ours, found, wanted))
    assert not different
    assert equal > refused / 2, "most is answered"
