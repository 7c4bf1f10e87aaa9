"""Tables altered while the pipeline is stopped: its start notices it, and the policies hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.pipeline import load_config, penstock, write_pipeline
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.control.doctor.past_errors import past_errors
from plugins.mysql import MySQLServer, database_of
from plugins.sqlserver import SimServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TABLE = "create table item (id int primary key, name varchar(20), n int)"
ROWS = "insert into item values (1, 'a', 10), (2, 'b', 20)"


def run_by_policies(
    tmp_path: Path,
    source: str,
    target: str,
    schema: str,
    alter: Callable[[str], Any],
    types: Mapping[str, str],
    *,
    can_rename: bool = True,
) -> None:
    """Load, stop, alter the tables; one policy refuses the change, the others apply it."""
    file = write_pipeline(
        tmp_path,
        source,
        target,
        tables=[f"{schema}.*"],
        sections={
            "changeExtractor": {"exitWhenIdle": True, "flushIntervalSeconds": 0.5},
            "spark": {"master": "local[2]"},
            "schemaChanges": {"addColumn": "exception", "dropColumn": "lenient"},
            "target.types": types,
        },
    )
    alter(TABLE)
    alter(ROWS)
    first = penstock("run", file, timeout_s=240)
    assert first.code == 0, first.err
    alter("alter table item drop column name")
    alter("alter table item add column more int")
    alter("insert into item (id, n, more) values (3, 30, 300)")
    refused = penstock("run", file, "--json", timeout_s=240)
    assert refused.code != 0
    assert "TG22" in refused.err
    with psycopg.connect(target, autocommit=True) as connection:
        query = f'select * from "{schema}".item order by id'
        assert connection.execute(query).fetchall() == [(1, "a", 10), (2, "b", 20)]
        newest = past_errors(load_config(file))[0]
        assert newest.code == "TG22"
        assert "column more was added" in newest.error
        file.write_text(file.read_text().replace('"exception"', '"try_evolve"'))
        again = penstock("run", file, timeout_s=240)
        assert again.code == 0, again.err
        assert connection.execute(query).fetchall() == [
            (1, "a", 10, None),
            (2, "b", 20, None),
            (3, None, 30, 300),
        ]
    ignoring = file.read_text().replace('"try_evolve"', '"ignore"')
    file.write_text(ignoring)
    alter("alter table item add column other int")
    alter("insert into item (id, n, more, other) values (4, 40, 400, 4000)")
    assert penstock("run", file, timeout_s=240).code == 0
    found = penstock("verify", file, "--json", timeout_s=120)
    assert found.code == 0, found.out + found.err
    assert json.loads(found.out)["columns_left_out"] == {f"{schema}.item": ["other"]}
    if not can_rename:
        return
    alter("alter table item rename column n to number")
    alter("update item set number = 31 where id = 3")
    renamed = penstock("run", file, timeout_s=240)
    assert renamed.code == 0, renamed.err
    found = penstock("verify", file, "--json", timeout_s=120)
    assert found.code == 0, found.out + found.err
    with psycopg.connect(target, autocommit=True) as connection:
        query = f'select id, number from "{schema}".item order by id'
        assert connection.execute(query).fetchall() == [(1, 10), (2, 20), (3, 31), (4, 40)]


def test_a_postgresql_source(source_url: str, target_url: str, tmp_path: Path) -> None:
    """The policies hold for alterations found by comparing the catalogue with its last state."""

    def alter(sql: str) -> None:
        with psycopg.connect(source_url, autocommit=True) as connection:
            connection.execute(sql.encode())

    run_by_policies(tmp_path, source_url, target_url, "public", alter, {})


@pytest.mark.server("mysql")
def test_a_mysql_source(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The policies hold for alterations whose statements are in the binlog."""
    database = database_of(mysql_url)

    def alter(sql: str) -> None:
        mysql.execute(sql, database)

    run_by_policies(tmp_path, mysql_url, target_url, database, alter, {"*": "error"})


def test_a_sqlserver_source(sqlserver: SimServer, target_url: str, tmp_path: Path) -> None:
    """The policies hold for columns that a second capture instance has, or no longer has."""
    place = SQLServerPlace(sqlserver)
    instances = [0]

    def alter(sql: str) -> None:
        place.run(sql.replace("add column", "add"))
        if " add column " in sql:
            if instances[0]:
                place.run(
                    "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', "
                    f"@source_name = N'item', @capture_instance = N'{_instance(instances[0] - 1)}'"
                )
            instances[0] += 1
            place.capture("item", _instance(instances[0]))

    try:
        run_by_policies(
            tmp_path,
            place.url,
            target_url,
            "dbo",
            alter,
            {"*": "error"},
            can_rename=False,
        )
    finally:
        place.drop()


def _instance(number: int) -> str:
    return f"dbo_item_{number}" if number else "dbo_item"
