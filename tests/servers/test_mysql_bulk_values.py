"""Every type and character set of MySQL and MariaDB is read in bulk as it is in the binlog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import insert
from harness.pipelines.mysql_bulk import copy_table, lend_session
from harness.servers.mysql_types import NUL_TEXTS
from harness.twins.binlog import DECODERS, Recorded, Replica, show_value
from harness.twins.binlog_record import (
    Server,
    bytes_and_members,
    documents,
    numbers,
    shapes,
    texts,
    times,
)
from penstock.codec.lines import CellForm, LineDialect, TextCell
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, parse_choices
from penstock.codec.types import Server as TypedServer
from penstock.control.pipeline.servers import server_of
from penstock.engines.mysql.source.bulk_reader import RowsOfChunk
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.chunks import KeyChunk
from penstock.engines.mysql.source.relations import relation_of_definition
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote
from penstock.engines.postgres.target.schema import create_tables
from penstock.engines.postgres.target.shaped import postgres_definition
from penstock.model import Relation, TableDefinition
from penstock.sql.read_plan import read_plan_of
from plugins.mysql import MySQLServer, database_of

LOSSY = {"zero dates": "text", "nul characters": "remove"}


def scenarios(server: MySQLServer) -> list[str]:
    """Return statements that fill schema `rec` with every type's extremes."""
    recorded = Server(socket="", version=f"{'.'.join(map(str, server.version.number))}-"
                      f"{'MariaDB' if server.is_mariadb else ''}")  # fmt: skip
    made = [*numbers(), *times(), *texts(recorded), *bytes_and_members(), *shapes()]
    if not server.is_mariadb:
        return made + [one for one in documents() if " part" not in one]
    return [
        *made,
        "create table own (id int primary key, u uuid, i6 inet6, j json)",
        "insert into own values (1, '123e4567-e89b-12d3-a456-426655440000', '2001:db8::ff00:42', "
        "'{\"a\" :1}'), (2, '00000000-0000-0000-0000-000000000000', '::', '[]'), "
        "(3, null, '::ffff:1.2.3.4', null), (4, null, '::1.2.3.4', '\"\\\\u00e9\\\\n\"')",
        "create table packed (id int primary key, ct text compressed, cb blob compressed, "
        "cl varchar(3000) compressed character set latin1)",
        "insert into packed values (1, repeat('text ', 100), repeat(x'00ff', 200), "
        "repeat('ö', 3000)), (2, '', x'', ''), (3, null, null, null)",
    ]


@pytest.fixture(scope="module")
def filled_server(tuned_mysql: MySQLServer) -> Iterator[tuple[MySQLServer, Replica]]:
    """A server with the tables, and their rows according to its binlog."""
    tuned_mysql.execute("create database rec")
    tuned_mysql.execute("flush binary logs")
    with tuned_mysql.connect("rec") as connection, connection.cursor() as cursor:
        for statement in scenarios(tuned_mysql):
            cursor.execute(statement)
    name, _ = tuned_mysql.status()
    tuned_mysql.execute("flush binary logs")
    with open_catalog(tuned_mysql.url()) as connection:
        tables = captured_tables(connection, ["rec.*"])
    described = {
        table.name.name: Recorded(
            columns=[
                {
                    "name": c.name,
                    "type": c.type_text,
                    "charset": c.charset,
                    "nullable": "NO" if c.not_null else "YES",
                    "key": "PRI" if c.name in table.primary_key else "",
                    "kind": re.split(r"[( ]", c.type_text)[0],
                }
                for c in table.columns
            ]
        )
        for table in tables
    }
    kernel = DECODERS["kernel"]()
    replica = Replica(kernel, described)
    replica.follow_file(name, (tuned_mysql.embedded.directory / name).read_bytes())
    yield tuned_mysql, replica
    tuned_mysql.execute("drop database rec")


def server_pair(server: MySQLServer) -> ServerPair:
    """Return a pair into PostgreSQL that keeps dates which PostgreSQL lacks as text."""
    source = server_of(server.url())
    target = TypedServer(engine=Engine.POSTGRESQL, version=(18,))
    return ServerPair(source=source, target=target, choices=parse_choices(LOSSY, source.engine))


def unescape(cell: bytes) -> str | None:
    """Return a cell of COPY as text."""
    if cell == b"\\N":
        return None
    escapes = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\"}
    return re.sub(rb"\\(.)", lambda m: escapes[m[1]], cell, flags=re.DOTALL).decode()


def bulk_rows(
    server: MySQLServer, table: TableDefinition, servers: ServerPair
) -> list[list[str | None]]:
    """Return all rows of a table in the form of COPY's lines."""
    read_plan = read_plan_of(table, servers, server.url())
    with lend_session(server, table) as session:
        select = KeyChunk(table=table.name, number=1).query(read_plan.expressions)
        lines = b"".join(RowsOfChunk(session, select, read_plan.cells, LineDialect.COPY))
    return [[unescape(cell) for cell in line.split(b"\t")] for line in lines.split(b"\n")[:-1]]


def as_bulk(relation: Relation, index: int, value: Any, target_type: str) -> str | None:
    """Return a decoded value as a line of COPY must have it for a column of this type."""
    text = show_value(relation, index, value)
    if text is None:
        return None
    if isinstance(value, bytes) and target_type == "bytea":
        return "\\x" + value.hex()
    if target_type == "bytea":
        return "\\x" + str(value)  # EWKB in hexadecimal digits
    if target_type.startswith("bit("):
        return f"{int(text):0{int(target_type[4:-1])}b}"
    return text


def same(expected: str | None, got: str | None, target_type: str, kind: str) -> bool:
    """Return whether PostgreSQL would read the same value from both."""
    if expected is None or got is None:
        return expected is got
    if kind in ("float32", "float64"):
        return float(expected) == float(got)
    if target_type in ("smallint", "integer", "bigint") or target_type.startswith("numeric"):
        return int(expected) == int(got) if "." not in got else expected == got
    if target_type == "bytea":
        return expected.lower() == got.lower()
    return expected == got


def test_every_value_is_read_as_it_is_decoded(filled_server: tuple[MySQLServer, Replica]) -> None:
    """The text for COPY equals the binlog's value in all cells of all rows and tables."""
    server, replica = filled_server
    servers = server_pair(server)
    with open_catalog(server.url()) as connection:
        tables = captured_tables(connection, ["rec.*"])
    assert len(tables) > 40
    for table in tables:
        decoded = {
            next(iter(row.values())): (r, row) for r, row in replica.contents[table.name.name]
        }
        read = bulk_rows(server, table, servers)
        assert len(read) == len(decoded), table.name
        mappings = servers.mappings(table)
        for cells in read:
            assert cells[0] is not None
            relation, row = decoded[int(cells[0])]
            for index, column in enumerate(table.columns):
                target_type = mappings[column.name].target_type
                value = row[column.name]
                expected = as_bulk(relation, index, value, target_type)
                assert same(expected, cells[index], target_type, column.neutral), (
                    f"{table.name}.{column.name} {cells[0]}: decoded {expected!r}, "
                    f"read {cells[index]!r}"
                )


def test_postgresql_takes_every_value(
    filled_server: tuple[MySQLServer, Replica], target_url: str
) -> None:
    """The lines are those that COPY reads, and as many rows arrive."""
    server, _ = filled_server
    servers = server_pair(server)
    with open_catalog(server.url()) as connection:
        tables = captured_tables(connection, ["rec.*"])
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as target:
        shaped = [postgres_definition(table, servers, {}) for table in tables]
        create_tables(target, shaped, {})
        for table in tables:
            copied = copy_table(server, table, servers, target)
            count = server.value(f"select count(*) from rec.`{table.name.name}`")
            assert copied == count, table.name


def test_who_cannot_use_the_last_rows_gives_the_session_back(
    mysql: MySQLServer, mysql_url: str
) -> None:
    """The end came with the last rows, and is not waited for again."""
    mysql.execute("create table t (id int primary key)", database_of(mysql_url))
    with open_catalog(mysql_url) as connection:
        (table,) = captured_tables(connection, [f"{database_of(mysql_url)}.*"])
    with lend_session(mysql, table) as session:
        session._socket.settimeout(10)
        rows = iter(
            RowsOfChunk(session, "select 1", [TextCell(form=CellForm.PLAIN)], LineDialect.COPY)
        )
        assert next(rows) == b"1\n"
        rows.close()  # type: ignore[attr-defined]
        session.run("do 1", doing="going on")


def test_nul_characters_are_removed_by_both_paths(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Bulk load and changes give the same text, for every type of text and in keys."""
    database, servers = database_of(mysql_url), server_pair(mysql)
    kinds = [*NUL_TEXTS, "varchar(9) primary key"]
    for place, kind in enumerate(kinds):
        key = "" if "key" in kind else "id int primary key, "
        mysql.execute(f"create table t{place} ({key}v {kind}, w text)", database)
        given = NUL_TEXTS.get(kind, ["'k\\0'", "'m'"])
        for number, value in enumerate(given):
            row = f"{value}, {value}" if "key" in kind else f"{number}, {value}, null"
            mysql.execute(f"insert into t{place} values ({row})", database)
    with open_catalog(mysql_url) as connection:
        tables = captured_tables(connection, [f"{database}.*"])
    log = LogMaker(tmp_path / "log", engine="mysql")
    names = {database: "again"}
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as target:
        for namespaces in ({}, names):
            shaped = [postgres_definition(table, servers, namespaces) for table in tables]
            create_tables(target, shaped, namespaces)
        for table in tables:
            copy_table(mysql, table, servers, target)
            relation = relation_of_definition(table)
            found = mysql.execute(f"select * from {table.name.name}", database)
            log.transaction(*(insert(relation, *row) for row in found))
        log.close_segment()
        applying = Applying(target_url, log.directory, namespaces=names, choices=servers.choices)
        applying.batch()
        applying.close()
        for table in tables:
            both = [
                target.execute(f"select t::text from {quote(schema, table.name.name)} as t")
                for schema in (database, "again")
            ]
            bulk, changed = (sorted(cursor.fetchall()) for cursor in both)
            assert bulk == changed, table.name
            assert len(bulk) > 0
    log.writer.close()
