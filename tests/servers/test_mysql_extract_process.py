"""`penstock extract` with a MySQL or MariaDB source, as a user starts it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from harness.pipelines.extract import log_changes
from harness.pipelines.mysql_extract import sql
from penstock.control.doctor.doctor import PreflightFailed, examine
from penstock.control.pipeline.config import load_config
from penstock.control.run.extract_process import extract_changes
from penstock.extract.extractor import Ended, Outcome
from penstock.ports.config import Config
from penstock.ports.identity import DirectoryOfOtherSource
from plugins.mysql import MySQLServer, database_of

FILE = """
[pipeline]
name = "shop"
mode = "{mode}"
directory = "pipeline"

[source]
url = "{source}"
tables = ["{database}.*", "!{database}.left"]

[target]
url = "{target}"

[changeExtractor]
exitWhenIdle = true
idleWaitSeconds = 0.4
{more}
"""


def write_config(
    folder: Path, source: str, target: str, *, mode: str = "change", more: str = ""
) -> Config:
    """Write a pipeline's file and return its configuration."""
    path = folder / "shop.toml"
    path.write_text(
        FILE.format(
            source=source, target=target, database=database_of(source), mode=mode, more=more
        )
    )
    return load_config(path)


def extract_once(config: Config, *, checked: bool = False) -> Outcome:
    """Run one extraction and release its lock, as the end of its process would."""
    try:
        return extract_changes(config, checked=checked)
    finally:
        lock = config.layout.log / "LOCK"
        if lock.exists():
            lock.write_text("")


def progress(url: str) -> list[tuple[str, str, str, bool]]:
    """Return (source, target, mark, finished) of the CE rows."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            "select source, target, mark, finish_time is not null"
            " from wirekite.wirekite_progress where operation = 'CE' order by start_time, target"
        ).fetchall()


def test_progress_rows_say_places_in_the_binlog(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Source is the binlog file in which a segment begins, mark the position after
    its last COMMIT.
    """
    made = "create table t (id int primary key);; create table `left` (id int primary key)"
    sql(mysql, mysql_url, made)
    config = write_config(tmp_path, mysql_url, target_url)
    assert extract_once(config).ended is Ended.IDLE
    first = mysql.status()[0]
    sql(mysql, mysql_url, "insert into t values (1);; insert into `left` values (2)")
    extract_once(config)
    file, offset = mysql.status()
    rows = progress(target_url)
    assert rows == [(first, "0.ckt", f"{file}:{offset}", True)] or rows[0][2] < f"{file}:{offset}"
    sql(mysql, mysql_url, "flush binary logs;; insert into t values (3)")
    file = mysql.status()[0]
    extract_once(config)
    assert [row[1] for row in progress(target_url)] == ["0.ckt", "1.ckt"]
    # MariaDB writes a checkpoint into a new file at some time: after the row, or before.
    events = mysql.execute(f"show binlog events in '{file}'")
    behind = [end for _, _, kind, _, end, _ in events if kind in ("Xid", "Binlog_checkpoint")]
    committed = next(end for _, _, kind, _, end, _ in events if kind == "Xid")
    mark, is_done = progress(target_url)[1][2:]
    assert is_done
    assert mark in {f"{file}:{end}" for end in behind if end >= committed}
    assert [c.after["id"] for c in log_changes(config.directory)] == [1, 3]


def test_a_pipeline_begins_at_binlog_file_and_position(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Both keys have their effect; later starts continue where the log ends."""
    sql(mysql, mysql_url, "create table t (id int primary key);; insert into t values (1)")
    file, offset = mysql.status()
    sql(mysql, mysql_url, "insert into t values (2)")
    more = f'binlogFile = "{file}"\nbinlogPosition = {offset}\nserverId = 4242'
    config = write_config(tmp_path, mysql_url, target_url, more=more)
    for _ in range(2):
        extract_once(config)
    assert [c.after["id"] for c in log_changes(config.directory)] == [2]


def test_doctor_looks_at_the_source_before_anything_begins(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Findings have the codes of these servers; errors stop the extraction."""
    sql(
        mysql,
        mysql_url,
        """create table parent (id int primary key);;
           create table child (id int primary key, p int,
                               foreign key (p) references parent (id) on delete cascade)""",
    )
    config = write_config(tmp_path, mysql_url, target_url)
    codes = {finding.code for finding in examine(config).findings}
    if mysql.version.mysql(9, 6):  # which logs the rows that a cascade changes
        assert "MY021" not in codes
        return
    assert "MY021" in codes
    with pytest.raises(PreflightFailed) as caught:
        extract_once(config)
    assert caught.value.as_dict()["code"] == "MY021"
    assert not (config.directory / "log").exists()


def test_what_is_not_there_is_refused(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """A directory that was filled from another engine is refused."""
    sql(mysql, mysql_url, "create table t (id int primary key)")
    config = write_config(tmp_path, mysql_url, target_url)
    extract_once(config)
    path = tmp_path / "shop.toml"
    path.write_text(path.read_text().replace(mysql_url, target_url))
    with pytest.raises(DirectoryOfOtherSource):
        extract_once(load_config(path), checked=True)
