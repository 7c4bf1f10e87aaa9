"""A whole `penstock run` from MySQL or MariaDB into PostgreSQL, while the source is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.mysql_extract import sql
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TABLE = """
create table kinds (
    id int primary key, big bigint unsigned, bits bit(8), amount decimal(20,4), ratio double,
    name varchar(30) character set utf8mb4, bytes blob, mood enum('calm', 'wild'),
    tags set('a', 'b', 'c'), doc json, span time(3), at datetime(6), year_of year)
"""
ROW = (
    "({id}, 18446744073709551615 - {id}, b'10000001', {id} + 0.0625, {id} / 3, 'Zoë {id}', "
    "x'00ff5c', 'wild', 'a,c', '{{\"n\": {id}}}', '11:22:33.456', '2024-02-29 12:34:56.789012', "
    "1987)"
)
COLUMNS = "id, big, bits, amount, ratio, name, bytes, mood, tags, doc, span, at, year_of"
AT_SOURCE = """
select id, cast(big as char), cast(bits + 0 as char), cast(amount as char), round(ratio, 9), name,
       hex(bytes), cast(mood as char), cast(tags as char), cast(span as char),
       date_format(at, '%Y-%m-%d %H:%i:%s.%f'), year_of
  from kinds order by id
"""
AT_TARGET = """
select id, big::text, bits::int::text, amount::text, round(ratio::numeric, 9)::float8, name,
       upper(encode(bytes, 'hex')), mood, tags, span::text,
       to_char(at, 'YYYY-MM-DD HH24:MI:SS.US'), year_of
  from {schema}.kinds order by id
"""


@contextmanager
def run_writer(mysql: MySQLServer, url: str) -> Iterator[None]:
    """Run a session that inserts, updates, moves keys and deletes for the time of the block."""
    ended = threading.Event()

    def write() -> None:
        number = 1000
        while not ended.is_set():
            number += 1
            for statement in (
                f"insert into kinds ({COLUMNS}) values {ROW.format(id=number)}",
                f"update kinds set amount = amount + 1, bits = bits + 1 where id = {number % 300}",
                f"update kinds set id = -id where id = {number - 5}",
                f"delete from kinds where id = {number - 700}",
            ):
                sql(mysql, url, statement)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.promise
def test_every_row_arrives_as_the_source_has_it(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Bulk load and concurrent changes, also of keys and the shape, leave both sides equal."""
    database = database_of(mysql_url)
    sql(mysql, mysql_url, TABLE)
    rows = ", ".join(ROW.format(id=number) for number in range(300))
    sql(mysql, mysql_url, f"insert into kinds values {rows}")
    file = write_pipeline(
        tmp_path,
        mysql_url,
        target_url,
        tables=[f"{database}.*"],
        sections={
            "target.types": {"*": "error"},
            "changeExtractor": {"flushIntervalSeconds": 0.5, "exitWhenIdle": False},
            "spark": {"master": "local[2]"},
        },
    )
    ended: list[Ran] = []

    def run() -> None:
        ended.append(penstock("run", str(file), timeout_s=240))

    changing = threading.Event()
    running = threading.Thread(target=run)
    with run_writer(mysql, mysql_url):
        running.start()
        with psycopg.connect(target_url, autocommit=True) as target:
            while not changing.wait(0.2):
                assert not ended, ended[0].err
                present = target.execute(
                    "select to_regclass(%s) is not null", (f"{database}.kinds",)
                ).fetchone()
                if present == (True,):
                    newest = target.execute(f"select max(id) from {database}.kinds").fetchone()
                    if newest is not None and (newest[0] or 0) > 1000:
                        changing.set()
        sql(mysql, mysql_url, "alter table kinds add column more smallint unsigned default 7")
    sql(mysql, mysql_url, "update kinds set more = 65535 where id % 2 = 0")
    text = file.read_text().replace("exitWhenIdle = false", "exitWhenIdle = true")
    file.write_text(text)
    with psycopg.connect(target_url, autocommit=True) as target:
        target.execute("update wirekite.wirekite_action set action = 'STOP'")
        running.join()
        assert ended[0].code == 0, ended[0].err
        target.execute("update wirekite.wirekite_action set action = 'RUN'")
        again = penstock("run", str(file), timeout_s=240)
        assert again.code == 0, again.err
        found = target.execute(AT_TARGET.format(schema=f'"{database}"')).fetchall()
        assert found == [tuple(row) for row in mysql.execute(AT_SOURCE, database)]
        found = target.execute(f'select id, more from "{database}".kinds order by id').fetchall()
        more = mysql.execute("select id, more from kinds order by id", database)
        assert found == [tuple(row) for row in more]
