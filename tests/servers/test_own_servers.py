"""docs/own-servers.md: the rights that it grants are those that doctor requires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.doctor import examine
from penstock.control.run.reset import look
from penstock.ports.checks import Side
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of
from plugins.postgres import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-servers.md"
PASSWORD = "of this test"
# Numbers of the page's SQL blocks for source and target. Not SQL Server's and Oracle's.
POSTGRES, MYSQL = (0, 4), (1, 5)


def statements(block: int) -> Iterator[str]:
    """Yield the statements of the page's SQL block of this number."""
    text = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[block]
    text = re.sub(r"--.*", "", text).replace("'...'", f"'{PASSWORD}'")
    yield from (part.strip() for part in text.split(";") if part.strip())


def errors(config: Config) -> list[str]:
    """Return the errors for which doctor would stop a run at the two servers."""
    report = examine(config)
    return [f"{e.code} {e.what}: {e.command}" for e in report.errors if e.side is not Side.HOST]


def url_for(url: str, user: str) -> str:
    """Return the same database for a user of the page."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{PASSWORD.replace(' ', '%20')}@{rest.rpartition('@')[2]}"


@pytest.mark.server("postgres >= 15")
def test_rights_at_postgresql(own_postgres: Server, tmp_path: Path) -> None:
    """The rights suffice at source and target, for the users that the page creates."""
    source, target = own_postgres.make_database("source"), own_postgres.make_database("target")
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key)")
        connection.execute("create table items (id int primary key)")
        for statement in statements(POSTGRES[0]):
            connection.execute(statement.encode())
    with psycopg.connect(target, autocommit=True) as connection:
        for statement in statements(POSTGRES[1]):
            connection.execute(statement.encode())
    config = pipeline(tmp_path, url_for(source, "repl"), url_for(target, "loader"))
    assert errors(config) == []
    [publication] = look(config, with_tables=False).source
    assert "belongs to role" in publication.by_hand  # the administrator's, which stays


def test_rights_at_mysql_and_mariadb(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> None:
    """The rights suffice at source and target, for the users that the page creates."""
    source, target = database_of(mysql_url), database_of(mysql.make_database("target"))
    mysql.execute("drop database if exists wirekite")  # of another test on this server
    mysql.execute("create table orders (id int primary key)", source)
    try:
        for block, database in zip(MYSQL, (source, target), strict=True):
            for statement in statements(block):
                text = statement.replace("shop.*", f"`{database}`.*")
                if mysql.is_mariadb:
                    text = text.replace("set persist", "set global")
                mysql.execute(text)
        config = pipeline(
            tmp_path,
            url_for(mysql.url(source), "repl"),
            url_for(mysql.url(target), "loader"),
            tables=[f"{source}.*"],
            sections={"target.map": {source: target}},
        )
        assert errors(config) == []
    finally:
        mysql.execute("drop user if exists repl@'%'; drop user if exists loader@'%'")
        mysql.execute(f"drop database if exists wirekite; drop database `{target}`")
