"""A value is the same in bulk and as a change, whatever its column's type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import segments_of
from harness.pipelines.loader import Applying
from harness.pipelines.mysql_bulk import copy_table
from harness.pipelines.mysql_extract import extractor_of
from harness.servers.mysql_columns import ManyColumns, columns_for
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, fill_template, parse_choices
from penstock.codec.types import Server as TypedServer
from penstock.control.pipeline.servers import server_of
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote
from penstock.engines.postgres.target.schema import create_tables
from penstock.engines.postgres.target.shaped import postgres_definition
from penstock.model import TableDefinition
from plugins.mysql import MySQLServer

CHOICES = {"zero dates": "text", "nul characters": "remove", "loose json": "text"}


@pytest.mark.parametrize("metadata", ["full", "none"])
def test_bulk_equals_change(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, metadata: str
) -> None:
    """Every column of SHOW CREATE TABLE arrives as the source prints it, both ways."""
    least = "'NO_LOG'" if mysql.is_mariadb else "'MINIMAL'"
    made = ManyColumns(mysql, mysql_url, columns_for(is_mariadb=mysql.is_mariadb))
    with mysql.globals(binlog_row_metadata="'FULL'" if metadata == "full" else least):
        extractor_of(mysql_url, tmp_path).run()
        made.fill()
        extractor_of(mysql_url, tmp_path).run()
    with open_catalog(mysql_url) as connection:
        tables = captured_tables(connection, [f"{made.database}.*"])
    source = server_of(mysql_url)
    servers = ServerPair(
        source=source,
        target=TypedServer(engine=Engine.POSTGRESQL, version=(18,)),
        choices=parse_choices(CHOICES, source.engine),
    )
    bring(mysql, target_url, tables, servers, tmp_path)
    unequal: dict[str, Any] = {}
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as target:
        for (name, column), what in made.names.items():
            (table,) = [one for one in tables if one.name.name == name]
            equal = servers.mappings(table)[column].equal
            read = f"select id, {fill_template(equal.source, column)} from {name} order by id"
            ways = [list(mysql.execute(read, made.database))]
            for schema in ("bulk", "changed"):
                place = quote(schema, name)
                read = f"select id, {fill_template(equal.target, column)} from {place} order by id"
                ways.append(target.execute(read.encode()).fetchall())
            if not ways[0] == ways[1] == ways[2]:
                unequal[what] = ways
            assert ways[0]
    assert unequal == {}


def bring(
    server: MySQLServer,
    target_url: str,
    tables: list[TableDefinition],
    servers: ServerPair,
    directory: Path,
) -> None:
    """Copy the tables both ways, into the schemas `bulk` and `changed`."""
    database = tables[0].name.schema
    bulk, changed = {database: "bulk"}, {database: "changed"}
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as target:
        for namespaces in (bulk, changed):
            shaped = [postgres_definition(table, servers, namespaces) for table in tables]
            create_tables(target, shaped, namespaces)
        for table in tables:
            copy_table(server, table, servers, target, bulk[database])
    with segments_of(directory) as segments:
        log_id = segments[0].header.log_id
    applying = Applying(
        target_url, directory / "log", namespaces=changed, choices=servers.choices, log_id=log_id
    )
    applying.batch()
    applying.close()
