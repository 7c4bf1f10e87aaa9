"""Captured tables that are dropped, recreated, or lose all their columns, and the next start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.extract import (
    QUICK,
    Stop,
    extractor_of,
    log_changes,
    running,
    segments_of,
    set_up,
    until,
)
from harness.pipelines.pipeline import penstock, pipeline
from harness.pipelines.stream import run_sql
from penstock.control.doctor.doctor import PreflightFailed, examine
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.table_shape import TableWithoutColumns
from penstock.engines.postgres.tables import load_watch
from penstock.model import DROP_TABLE, MarkerKind
from penstock.model.patterns import Selection
from penstock.ports.checks import Severity
from penstock.ports.config import Config
from plugins.doctor import one

WATCHFUL = replace(QUICK, exit_when_idle=False, table_interval_s=0.1)
EXTRACTOR = {
    "changeExtractor": {
        "exitWhenIdle": True,
        "idleWaitSeconds": 0.5,
        "flushIntervalSeconds": 0.3,
    }
}


def _of(directory: Path, table: str) -> list[tuple[str, object]]:
    """Return op and id of a table's changes in the log."""
    return [(c.op, (c.after or c.before)["id"]) for c in log_changes(directory) if c.table == table]


def test_what_was_committed_before_a_table_was_dropped_is_in_the_log(
    source_url: str, tmp_path: Path
) -> None:
    """Tables with no earlier rows in the log are included, and one whose type was dropped too."""
    set_up(
        source_url,
        """create type mood as enum ('glad');;
        create table t (id int primary key, m mood, n numeric(5,2) not null);;
        create table late (id int primary key, m mood);;
        create table whole (id int primary key, m mood);;
        alter table whole replica identity full;;
        create table stays (id int primary key)""",
    )
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1, 'glad', 1), (2, null, 2)")
        extractor_of(source_url, tmp_path).run()
        run_sql(
            sql,
            """update t set n = 3 where id = 1;;
            insert into late values (1, 'glad'), (2, 'glad');;
            update late set m = null where id = 2;;
            insert into whole values (1, 'glad');;
            delete from whole;;
            alter table t add x int default 7;;
            insert into t values (3, 'glad', 3, 8);;
            delete from t where id = 2;;
            drop table t, late, whole;;
            drop type mood;;
            insert into stays values (1)""",
        )
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "insert into stays values (2)")
        extractor_of(source_url, tmp_path).run()
    assert _of(tmp_path, "t") == [("I", 1), ("I", 2), ("U", 1), ("I", 3), ("D", 2)]
    assert _of(tmp_path, "late") == [("I", 1), ("I", 2), ("U", 2)]
    assert _of(tmp_path, "whole") == [("I", 1), ("D", 1)]
    assert _of(tmp_path, "stays") == [("I", 1), ("I", 2)]
    last = [c for c in log_changes(tmp_path) if c.table == "t" and c.op == "I"][-1]
    assert (last.after["m"], str(last.after["n"]), last.after["x"]) == ("glad", "3.00", 8)


def test_a_dropped_table_that_is_made_again_later_is_read(source_url: str, tmp_path: Path) -> None:
    """A table is followed again if its name is still in the configuration."""
    set_up(source_url, "create table t (id int primary key);; create table u (id int primary key)")
    with connect(source_url, application_name="test") as sql:
        sql.execute("insert into t values (1)")
        extractor_of(source_url, tmp_path).run()
        sql.execute("drop table t")
        extractor_of(source_url, tmp_path).run()
        extractor_of(source_url, tmp_path).run()
        stop = Stop()
        extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
        with running(extractor):
            until(lambda: extractor.progress.state == "streaming")
            run_sql(
                sql,
                """create table t (id int primary key, n int);;
                alter publication p add table t;;
                insert into t values (7, 7)""",
            )
            until(lambda: ("I", 7) in _of(tmp_path, "t"))
            stop.asked.set()
    assert _of(tmp_path, "t")[0] == ("I", 1)


def test_the_log_says_that_a_table_was_dropped(source_url: str, tmp_path: Path) -> None:
    """The log says it once, after the last row and before later ones, in its own transaction."""
    set_up(source_url, "create table t (id int primary key);; create table u (id int primary key)")
    stop = Stop()
    with connect(source_url, application_name="test") as sql:
        extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
        with running(extractor):
            until(lambda: extractor.progress.state == "streaming")
            run_sql(sql, "insert into t values (1);; drop table t")
            until(lambda: extractor.progress.transaction_count == 2)
            run_sql(sql, "insert into u values (1)")
            until(lambda: extractor.progress.row_count == 2)
            stop.asked.set()
        extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        (told,) = [marker for one in segments for marker in one.markers()]
    assert (told.kind, told.data, told.tables) == (
        MarkerKind.DDL,
        DROP_TABLE,
        (("public", "t"),),
    )
    assert (told.gsn, told.trx) == (1, 2)
    assert [(c.table, c.trx) for c in log_changes(tmp_path)] == [("t", 1), ("u", 3)]


def _extract(config: Config) -> None:
    ran = penstock("extract", config.path)
    assert ran.code == 0, ran


def test_a_named_table_that_was_dropped_does_not_stop_the_next_start(
    source_url: str, tmp_path: Path
) -> None:
    """Doctor warns each time; a name that was never followed is still an error."""
    options = {"mode": "change", "sections": EXTRACTOR}
    config = pipeline(tmp_path, source_url, source_url, tables=("public.t", "public.u"), **options)
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "create table t (id int primary key);; create table u (id int primary key)")
        _extract(config)
        run_sql(sql, "insert into t values (1);; drop table t;; insert into u values (1)")
        for number in (2, 3):
            _extract(config)
            sql.execute("insert into u values (%s)", (number,))
    assert _of(config.directory, "t") == [("I", 1)]
    assert _of(config.directory, "u") == [("I", 1), ("I", 2)]
    one(config, "PK06", Severity.WARNING, "public.t", "dropped")
    other = pipeline(tmp_path, source_url, source_url, tables=("public.v",), **options)
    with pytest.raises(PreflightFailed, match=r"no table public\.v"):
        examine(other).require()


def test_a_table_that_loses_its_columns_stops_the_extraction(
    source_url: str, tmp_path: Path
) -> None:
    """A row or a look at the catalogue detects it; the others continue once it is excluded."""
    set_up(source_url, "create table t (id int primary key);; create table u (id int primary key)")
    with connect(source_url, application_name="test") as sql:
        sql.execute("insert into t values (1)")
        extractor_of(source_url, tmp_path).run()
        for change in ("alter table t drop id", "insert into t default values"):
            sql.execute(change.encode())
            with pytest.raises(TableWithoutColumns, match=r"public\.t") as stopped:
                extractor_of(source_url, tmp_path).run()
            assert "'!public.t'" in str(stopped.value.hint)
        sql.execute("insert into u values (1)")
        patterns = ["public.*", "!public.t"]
        with open_catalog(source_url) as catalog:
            tables = captured_tables(catalog, patterns)
        takes = Selection.parse(patterns).takes
        without = extractor_of(source_url, tmp_path, tables=tables, takes=takes)
        without.run()
        assert _of(tmp_path, "t") == _of(tmp_path, "u") == [("I", 1)]
        _taken_in_again(sql, source_url, tmp_path)


def _taken_in_again(sql: psycopg.Connection, url: str, directory: Path) -> None:
    """Add columns again as the hint says; past that position the table is read as a whole."""
    sql.execute("alter table t add id int generated always as identity primary key")
    extractor_of(url, directory).run()
    assert _of(directory, "t") == [("I", 1), ("I", 1), ("I", 2)]


def test_a_new_table_without_columns_is_left_alone(source_url: str, tmp_path: Path) -> None:
    """The table is ignored, whatever the publication holds, and other tables are not affected."""
    set_up(source_url, "create table u (id int primary key)")
    with connect(source_url, application_name="test") as sql:
        stop = Stop()
        extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
        with running(extractor):
            until(lambda: extractor.progress.state == "streaming")
            run_sql(
                sql,
                """create table e ();; alter publication p add table e;;
                insert into e default values;; insert into u values (1)""",
            )
            until(lambda: _of(tmp_path, "u") == [("I", 1)])
            stop.asked.set()
        sql.execute("insert into e default values")
        extractor_of(source_url, tmp_path).run()
    state = load_watch(extractor._layout)
    assert state is not None
    assert {name.name for name in state.names} == {"u"}
