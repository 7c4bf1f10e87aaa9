"""A value is the same in a consumer's snapshot and as a change, whatever its column's type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.pipelines.extract import extractor_of, segments_of, set_up
from harness.pipelines.mysql_extract import extractor_of as mysql_extractor_of
from harness.pipelines.pipeline import pipeline
from harness.pipelines.resend import Texts, texts_of, unequal
from harness.servers.mysql_columns import ManyColumns, columns_for
from harness.servers.postgres_types import EXTENSION_VALUES, SETUP, has_xml, values_for
from penstock.consume.snapshot import Snapshot
from penstock.control.run.consumer_snapshot import _read
from penstock.engines.postgres.connect import connect, literal
from penstock.host.clock import REAL_CLOCK
from penstock.log import list_segments, load_state, open_segment
from plugins.mysql import MySQLServer


def snapshot_texts(directory: Path, config: Any) -> Texts:
    """Return the rows as a consumer's snapshot has them."""
    log = load_state(directory / "log")
    assert log is not None
    snapshot = Snapshot(directory / "cdc" / "c")
    snapshot.want()
    made = _read(config, snapshot, log, lambda _: True, lambda: False, REAL_CLOCK)
    assert made is not None
    found: Texts = {}
    for file in list_segments(snapshot.folder):
        with open_segment(file.path) as segment:
            for name, rows in texts_of([segment]).items():
                found.setdefault(name, {}).update(rows)
    return found


def test_every_type_of_postgres(source_url: str, postgres: Any, tmp_path: Path) -> None:
    """Values read by COPY equal those of the stream."""
    with connect(source_url, application_name="test") as sql:
        sql.execute(SETUP)
        available = {row[0] for row in sql.execute("select name from pg_available_extensions")}
        extensions = available & EXTENSION_VALUES.keys()
        for extension in extensions:
            sql.execute(f"create extension {extension} schema kinds".encode())
        kinds = values_for(postgres.version, extensions, with_xml=has_xml(sql))
        for number, kind in enumerate(kinds):
            sql.execute(f"create table t{number} (id int primary key, v {kind})".encode())
        set_up(source_url, "select 1")
        for number, (kind, values) in enumerate(kinds.items()):
            for key, value in enumerate([*values, None]):
                shown = "null" if value is None else literal(value)
                sql.execute(f"insert into t{number} values ({key}, {shown}::{kind})".encode())
    extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        changed = texts_of(segments)
    read = snapshot_texts(tmp_path, pipeline(tmp_path, source_url, None, tables=["public.t*"]))
    names = {(f"t{number}", "v"): kind for number, kind in enumerate(kinds)}
    assert unequal(changed, read, names) == {}


def test_every_type_of_mysql(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> None:
    """Values read by a SELECT equal those of the binlog, for every column of SHOW CREATE TABLE."""
    made = ManyColumns(mysql, mysql_url, columns_for(is_mariadb=mysql.is_mariadb))
    mysql_extractor_of(mysql_url, tmp_path).run()
    made.fill()
    mysql_extractor_of(mysql_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        changed = texts_of(segments)
    read = snapshot_texts(
        tmp_path, pipeline(tmp_path, mysql_url, None, tables=[f"{made.database}.*"])
    )
    assert unequal(changed, read, made.names) == {}
