"""MySQL and MariaDB as sources: what is in the log is what was committed, once, in order."""

from __future__ import annotations

import json
from pathlib import Path

from fix_extract import Stop, log_changes, running, segments_of, until
from fix_mysql import MySQLServer, database_of
from fix_mysql_extract import OPTIONS, extractor_of, sql
from penstock.source.extract import Ended


def begun(url: str, directory: Path) -> None:
    """Begin a log at the present."""
    extractor_of(url, directory).run()


def test_everything_committed_is_in_the_log_and_done_is_written(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """With exitWhenIdle the log is complete: closed segments, CHANGE.DONE."""
    sql(mysql, mysql_url, "create table t (id int primary key, v text)")
    begun(mysql_url, tmp_path)
    for number in range(50):
        sql(mysql, mysql_url, f"insert into t values ({number}, 'v')")
    sql(mysql, mysql_url, "update t set v = 'w' where id = 7;; delete from t where id = 8")
    outcome = extractor_of(mysql_url, tmp_path).run()
    assert outcome.ended is Ended.IDLE
    assert outcome.end.gsn == 52
    changes = log_changes(tmp_path)
    assert [c.after["id"] for c in changes[:50]] == list(range(50))
    assert [c.gsn for c in changes] == list(range(1, 53))
    assert (changes[50].op, changes[50].after, changes[50].before) == (
        "U",
        {"id": 7, "v": "w"},
        None,  # the key is the same
    )
    assert (changes[51].op, changes[51].before) == ("D", {"id": 8})
    assert (tmp_path / "log" / "CHANGE.DONE").is_file()
    facts = json.loads((tmp_path / "run" / "extract.json").read_text())
    assert facts["state"] == "idle"
    file, offset = mysql.status()
    assert facts["position"] == f"{file}:{offset}"
    assert facts["server_position"] == f"{file}:{offset}"
    assert facts["slot"].startswith("server_id ")


def test_extraction_goes_on_where_it_ended(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Further runs on the directory continue GSN, trx and segment numbers; one version suffices."""
    sql(mysql, mysql_url, "create table t (id int primary key, v text)")
    begun(mysql_url, tmp_path)
    for batch in range(3):
        sql(mysql, mysql_url, f"insert into t values ({batch}, 'v')")
        extractor_of(mysql_url, tmp_path).run()
    changes = log_changes(tmp_path)
    assert [(c.gsn, c.trx, c.after["id"]) for c in changes] == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    with segments_of(tmp_path) as segments:
        versions = {r.version for segment in segments for _, r in segment.relations()}
    assert versions == {1}


def test_the_stream_is_followed_while_it_runs(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Changes come within moments; other databases' and uncaptured tables' do not come at all."""
    sql(mysql, mysql_url, "create table t (id int primary key);; create table u (id int)")
    stop = Stop()
    name = database_of(mysql_url)
    extractor = extractor_of(
        mysql_url,
        tmp_path,
        stop=stop,
        patterns=(f"{name}.t",),
        options=OPTIONS.__class__(flush_interval_s=0.2),
    )
    with running(extractor) as outcomes:
        until(lambda: extractor.progress.state == "streaming")
        sql(mysql, mysql_url, "insert into u values (1);; insert into t values (5)")
        until(lambda: len(log_changes(tmp_path)) == 1)
        sql(mysql, mysql_url, "flush logs;; insert into t values (6);; drop table u")
        until(lambda: len(log_changes(tmp_path)) == 2)
        stop.asked.set()
    assert outcomes[0].ended is Ended.STOPPED
    assert [c.after["id"] for c in log_changes(tmp_path)] == [5, 6]
