"""A column keeps its type with all its attributes between servers of one engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.mysql_pipe import Pipe, empty_pipe
from harness.servers.mysql_columns import ManyColumns, columns_for, generated_columns
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Choices, fill_template
from penstock.control.pipeline.servers import server_of
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.target.shapes import create_sql
from penstock.model import TableName
from plugins.mysql import MySQLServer, database_of

WHOLE = {"year(2)": "year(4)"}  # it holds the year that the other one prints in two digits


def types_of(server: MySQLServer, database: str, table: str) -> dict[str, tuple[str, str, str]]:
    """Return type, character set and collation of the columns."""
    found = server.execute(
        "select column_name, column_type, character_set_name, collation_name "
        f"from information_schema.columns where table_schema = '{database}' "
        f"and table_name = '{table}' and column_name <> 'id'"
    )
    return {str(name): (kind, charset, collation) for name, kind, charset, collation in found}


def test_every_column_keeps_its_type(mysql: MySQLServer, mysql_url: str) -> None:
    """Character set, collation, compression and signs are kept, whatever attribute a type has."""
    columns, computed = columns_for(is_mariadb=mysql.is_mariadb), generated_columns()
    plain = {name: values for name, values in columns.items() if name not in computed}
    made, target_url = ManyColumns(mysql, mysql_url, plain), mysql.make_database("same")
    server, target = server_of(mysql_url), database_of(target_url)
    with open_catalog(mysql_url) as connection:
        tables = captured_tables(connection, [f"{made.database}.*"])
    servers = ServerPair(source=server, target=server, choices=Choices(everything="error"))
    differing, count = {}, 0
    try:
        for table in tables:
            name = table.name.name
            mysql.execute(create_sql(table, TableName(target, name), servers)[0])
            found = types_of(mysql, target, name)
            for column, was in types_of(mysql, made.database, name).items():
                count += 1
                if (WHOLE.get(was[0], was[0]), *was[1:]) != found[column]:
                    differing[made.names[name, column]] = (was, found[column])
    finally:
        mysql.drop_database(target_url)
    assert differing == {}
    assert count == len(plain) > 200


@pytest.fixture
def pipe(mysql: MySQLServer, tmp_path: Path) -> Iterator[Pipe]:
    """Two empty databases, and a pipeline between them."""
    with empty_pipe(mysql, tmp_path) as made:
        yield made


@pytest.mark.long
def test_every_column_keeps_its_values_when_they_change(mysql: MySQLServer, pipe: Pipe) -> None:
    """Changes alone, including computed columns, make both databases print the same."""
    made = ManyColumns(mysql, pipe.source, columns_for(is_mariadb=mysql.is_mariadb))
    server, target = server_of(pipe.source), database_of(pipe.target)
    servers = ServerPair(source=server, target=server, choices=Choices(everything="error"))
    with open_catalog(pipe.source) as connection:
        tables = captured_tables(connection, [f"{made.database}.*"])
    mappings = {table.name.name: servers.mappings(table) for table in tables}
    for table in tables:
        mysql.execute(create_sql(table, TableName(target, table.name.name), servers)[0])
    pipe.extract()
    made.fill()
    pipe.extract()
    pipe.load()
    differing = {}
    for (name, column), what in made.names.items():
        equal = mappings[name][column].equal
        sides = [
            mysql.execute(
                f"select id, {fill_template(text, column)} from {name} order by id", place
            )
            for text, place in ((equal.source, made.database), (equal.target, target))
        ]
        assert sides[0]
        if sides[0] != sides[1]:
            differing[what] = sides
    assert differing == {}
