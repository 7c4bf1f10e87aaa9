"""Every type of MySQL and MariaDB through the whole path: the log holds the values of SELECT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import segments_of
from harness.pipelines.mysql_extract import extractor_of
from harness.twins import binlog_record as scenarios
from harness.twins.binlog import Recorded, Row, assert_same_value
from penstock.codec.columns import batch_schema
from penstock.model import Relation
from plugins.mysql import MySQLServer

SCHEMA = "rec"


class Scribe:
    """A server in the form that the scenarios need."""

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        self.is_mariadb = server.is_mariadb
        self.number = server.version.number

    def run(self, sql: str) -> str:
        """Run statements; return the last one's rows with tabs between values."""
        rows = self.server.execute(sql, SCHEMA)
        return "\n".join(
            "\t".join("NULL" if value is None else str(value) for value in row) for row in rows
        )


@pytest.fixture
def scribe(mysql: MySQLServer) -> Iterator[Scribe]:
    """Server with an empty database for the scenarios."""
    mysql.execute(f"create database {SCHEMA} character set utf8mb4")
    yield Scribe(mysql)
    mysql.execute(f"drop database {SCHEMA}")


def statements(scribe: Any, subject: str) -> list[str]:
    """Return the statements of a scenario."""
    match subject:
        case "texts":
            return ["set sql_mode='ALLOW_INVALID_DATES'", *scenarios.texts(scribe)]
        case "own":
            return scenarios.maria(scribe) if scribe.is_mariadb else scenarios.documents()
        case "shapes":
            return scenarios.shapes()
        case _:
            return [*scenarios.numbers(), *scenarios.times(), *scenarios.bytes_and_members()]


def contents(directory: Path) -> dict[str, dict[int, tuple[Relation, Row]]]:
    """Return the tables as the log has them, by primary key."""
    tables: dict[str, dict[int, tuple[Relation, Row]]] = {}
    with segments_of(directory) as segments:
        rows = []
        for segment in segments:
            for one in segment.rows():
                assert one.batch.schema.equals(batch_schema(one.relation))
                rows += [(row["gsn"], one.relation, row) for row in one.batch.to_pylist()]
    for _, relation, row in sorted(rows, key=lambda one: one[0]):
        table = tables.setdefault(relation.name, {})
        if row["before"] is not None:
            table.pop(row["before"]["id"], None)
        if row["after"] is not None:
            table[row["after"]["id"]] = (relation, row["after"])
    return tables


def read_tables(scribe: Any) -> dict[str, Recorded]:
    """Return the tables as SELECT prints them."""
    names = scribe.run(
        f"select table_name from information_schema.tables where table_schema = '{SCHEMA}'"
    ).split()
    tables = {}
    for name in names:
        columns = scenarios.describe(scribe, name)
        rows = scenarios.select(scribe, name, columns)
        tables[name] = Recorded(columns=columns, rows=rows)
    return tables


@pytest.mark.parametrize("metadata", ["FULL", "none"])
@pytest.mark.parametrize("subject", ["values", "texts", "own", "shapes"])
def test_the_log_holds_what_select_says(
    scribe: Scribe, tmp_path: Path, subject: str, metadata: str
) -> None:
    """All values of all types are equal, with the log's names and with only the catalogue's."""
    server = scribe.server
    least = "'NO_LOG'" if scribe.is_mariadb else "'MINIMAL'"
    url = server.url(SCHEMA)
    made = statements(scribe, subject)
    tables = [one for one in made if one.startswith("create table")]
    with (
        server.globals(binlog_row_metadata="'FULL'" if metadata == "FULL" else least),
        server.connect(SCHEMA) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("set time_zone='+00:00'")
        # If the log has no names, the tables exist before it begins.
        first = tables if metadata != "FULL" else []
        rest = [one for one in made if one not in first]
        if subject == "own" and scribe.is_mariadb and first:
            first, rest = [], made
        for statement in first:
            cursor.execute(statement)
        extractor_of(url, tmp_path).run()
        for statement in rest:
            cursor.execute(statement)
            if metadata != "FULL" and statement.startswith(("create table", "alter table")):
                extractor_of(url, tmp_path).run()
        extractor_of(url, tmp_path).run()
    found = contents(tmp_path)
    for name, said in read_tables(scribe).items():
        held = found.pop(name, {})
        assert len(held) == len(said.rows), name
        for expected in said.rows:
            relation, row = held[int(expected[0] or 0)]
            for index, text in enumerate(expected):
                value = row[said.columns[index]["name"]]
                assert_same_value(relation, index, value, text)
    assert not found
