"""Changes without sent rows end equal, by relations and reloads in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

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
from harness.pipelines.stream import changes_of, run_sql
from penstock.engines.postgres.connect import connect
from penstock.model import Marker, MarkerKind, Run

WATCHFUL = replace(QUICK, exit_when_idle=False, table_interval_s=0.1)


def _contents(directory: Path, table: str) -> list[dict[str, Any]]:
    """Return the table at the log's end, keyed by `id`; RELOAD and TRUNCATE empty it."""
    rows: dict[int, dict[str, Any]] = {}
    with segments_of(directory) as segments:
        for segment in segments:
            steps: list[Any] = [
                *((c.gsn, 1, c) for c in changes_of(Run(rows=tuple(segment.rows())))),
                *((m.gsn + 0.5, 0, m) for m in segment.markers()),
            ]
            for _, _, step in sorted(steps, key=lambda s: (s[0], s[1])):
                if isinstance(step, Marker):
                    if ("public", table) in step.tables:
                        rows.clear()
                elif step.table == table:
                    _apply(rows, step)
    return [rows[key] for key in sorted(rows)]


def _apply(rows: dict[int, dict[str, Any]], change: Any) -> None:
    if change.op == "I":
        assert change.after["id"] not in rows
    if change.op == "D":
        del rows[change.before["id"]]
    else:
        rows[change.after["id"]] = change.after


def _rows(sql: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    cursor = sql.execute(f"select * from {table} order by id".encode())
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_added_column_reaches_the_log_without_rows(source_url: str, tmp_path: Path) -> None:
    """No row is sent for ADD COLUMN DEFAULT: the relation with its missing value is written."""
    set_up(source_url, "create table t (id int primary key)")
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        sql.execute("insert into t values (1)")
        until(lambda: extractor.progress.segment_count >= 1)
        sql.execute("alter table t add b int default 7")
        until(lambda: extractor.progress.segment_count >= 2)
        stop.asked.set()
    with segments_of(tmp_path) as segments:
        relations = [relation for segment in segments for _, relation in segment.relations()]
    assert [(r.version, len(r.columns)) for r in relations] == [(1, 1), (2, 2)]
    assert relations[1].columns[1].missing == "7"


def test_a_shape_that_changed_while_stopped_reaches_the_log_without_rows(
    source_url: str, tmp_path: Path
) -> None:
    """The start notices a dropped and an added column, whether or not rows came before."""
    set_up(source_url, "create table t (id int primary key, a int);; create table u (a int, b int)")
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1, 1);; alter table u replica identity full")
        run_sql(sql, "insert into u values (1, 1)")
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "insert into t values (2, 2);; alter table t drop column a")
        run_sql(sql, "alter table u drop column b;; alter table u add c text default 'x'")
    extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        last = {r.name: r for segment in segments for _, r in segment.relations()}
    columns = {name: [c.name for c in relation.columns] for name, relation in last.items()}
    assert columns == {"t": ["id"], "u": ["a", "c"]}
    assert last["u"].columns[1].missing == "x"


def test_rewritten_rows_are_read_again_while_the_source_is_written(
    source_url: str, tmp_path: Path
) -> None:
    """Every row changes by ALTER TYPE USING and none is sent; the reload is at one
    exact position.
    """
    set_up(
        source_url,
        """create table t (id int primary key, n int);;
        create table u (id int primary key, n int);;
        insert into t select i, i from generate_series(1, 500) i""",
    )
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        run_sql(sql, "update t set n = n + 1;; insert into u values (1, 1)")
        until(lambda: extractor.progress.segment_count >= 1)
        run_sql(sql, "alter table t alter n type bigint using n * 10")
        number, reloaded_at = 600, 0
        # Constant writes: changes commit before, at and after the point of the reload.
        while not reloaded_at or number < reloaded_at + 50:
            sql.execute("insert into t values (%s, 5)", (number,))
            sql.execute("update t set n = n + 1 where id = %s", (number % 250 + 1,))
            sql.execute("update u set n = n + 1")
            sql.execute("delete from t where id = %s", (number - 300,))
            number += 1
            if not reloaded_at and number % 20 == 0 and _has_reload(tmp_path):
                reloaded_at = number
            assert number < 20_000
        sql.execute("insert into t values (100000, 1)")
        expected, other = _rows(sql, "t"), _rows(sql, "u")
        until(lambda: _last(tmp_path, "t") == 100000, 30)
        stop.asked.set()
    assert _contents(tmp_path, "t") == expected
    assert _contents(tmp_path, "u") == other
    with segments_of(tmp_path) as segments:
        markers = [m for segment in segments for m in segment.markers()]
    assert [m.kind for m in markers] == [MarkerKind.RELOAD]


def _has_reload(directory: Path) -> bool:
    with segments_of(directory) as segments:
        return any(m.kind is MarkerKind.RELOAD for s in segments for m in s.markers())


def _last(directory: Path, table: str) -> int:
    found = _contents(directory, table)
    return int(found[-1]["id"]) if found else 0


def test_change_while_nobody_extracted_is_noticed(source_url: str, tmp_path: Path) -> None:
    """The watch's state is kept: the second run reloads a table rewritten between two runs."""
    set_up(
        source_url,
        """create table t (id int primary key, n int);;
        insert into t select i, i from generate_series(1, 100) i""",
    )
    with connect(source_url, application_name="test") as sql:
        sql.execute("update t set n = n + 1")
        extractor_of(source_url, tmp_path).run()
        sql.execute("alter table t alter n type bigint using n * 10")
        extractor_of(source_url, tmp_path).run()
        expected = _rows(sql, "t")
    assert _contents(tmp_path, "t") == expected


def test_reload_of_an_emptied_table_is_a_marker_alone(source_url: str, tmp_path: Path) -> None:
    """There are no rows, but a transaction in the log: the table is known to be empty."""
    set_up(source_url, "create table t (id int primary key, n int)")
    with connect(source_url, application_name="test") as sql:
        sql.execute("insert into t values (1, 1)")
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "delete from t;; alter table t alter n type bigint using n * 10")
        outcome = extractor_of(source_url, tmp_path).run()
    assert _contents(tmp_path, "t") == []
    assert outcome.end.gsn == 2


def test_a_captured_table_that_is_created_again_is_read_again(
    source_url: str, tmp_path: Path
) -> None:
    """The publication lost the table: it is published again, and all its rows arrive."""
    set_up(source_url, "create table t (id int primary key, a int)")
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=WATCHFUL, stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        sql.execute("insert into t values (1, 1)")
        until(lambda: extractor.progress.segment_count >= 1)
        sql.execute("drop table t; create table t (id int primary key, b text)")
        sql.execute("insert into t values (5, 'five')")
        until(lambda: any(c.after == {"id": 5, "b": "five"} for c in log_changes(tmp_path)))
        stop.asked.set()
    with segments_of(tmp_path) as segments:
        relations = [relation for segment in segments for _, relation in segment.relations()]
        kinds = [marker.kind for segment in segments for marker in segment.markers()]
    assert kinds[-1] is MarkerKind.RELOAD
    assert relations[-1].awaits_reload == ""
    assert [column.name for column in relations[-1].columns] == ["id", "b"]


def test_columns_keep_their_identities_under_other_names(source_url: str, tmp_path: Path) -> None:
    """Renamed, swapped, dropped and added columns are told apart by number, with and
    without rows.
    """
    set_up(source_url, "create table t (id int primary key, a int, b int)")
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1, 10, 20)")
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "alter table t rename a to c;; insert into t values (2, 11, 21)")
        extractor_of(source_url, tmp_path).run()
        for old, new in (("c", "x"), ("b", "c"), ("x", "b")):
            run_sql(sql, f"alter table t rename {old} to {new}")
        run_sql(sql, "insert into t values (3, 12, 22)")
        extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        found = [relation for segment in segments for _, relation in segment.relations()]
    shapes = [[(column.name, column.id) for column in relation.columns] for relation in found]
    assert shapes[0] == [("id", 1), ("a", 2), ("b", 3)]
    assert [("id", 1), ("c", 2), ("b", 3)] in shapes
    assert shapes[-1] == [("id", 1), ("b", 2), ("c", 3)]
    assert not any(relation.awaits_reload for relation in found)


def test_rows_of_a_recast_column_wait_for_the_reload(source_url: str, tmp_path: Path) -> None:
    """ALTER TYPE ... USING may have computed anything: rows after it are marked as waiting."""
    set_up(source_url, "create table t (id int primary key, a int)")
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1, 10)")
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "alter table t alter a type text using 'n' || a")
        run_sql(sql, "insert into t values (2, 'x')")
        extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        found = [relation for segment in segments for _, relation in segment.relations()]
        markers = [marker for segment in segments for marker in segment.markers()]
    assert [bool(relation.awaits_reload) for relation in found] == [False, True, False]
    rows = [c.after for c in log_changes(tmp_path) if c.gsn > markers[-1].gsn]
    assert rows == [{"id": 1, "a": "n10"}, {"id": 2, "a": "x"}]


def test_a_dropped_unique_key_is_told_before_rows_that_need_it_gone(
    source_url: str, tmp_path: Path
) -> None:
    """The server sends the same message again; the shape no longer has the key."""
    set_up(source_url, "create table t (id int primary key, a int unique)")
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1, 10)")
        extractor_of(source_url, tmp_path).run()
        run_sql(sql, "alter table t drop constraint t_a_key;; insert into t values (2, 10)")
        extractor_of(source_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        found = [relation for segment in segments for _, relation in segment.relations()]
    assert [relation.unique for relation in found] == [(("a",),), ()]


def test_what_is_dropped_before_a_tables_first_row_is_told_with_it(
    source_url: str, tmp_path: Path
) -> None:
    """A key and a NOT NULL were there when the run began; its first rows need them gone."""
    set_up(source_url, "create table t (id int primary key, a int unique, b int not null)")
    with connect(source_url, application_name="test") as sql:
        sql.execute("insert into t values (0, 0, 0)")
    extractor_of(source_url, tmp_path).run()
    stop = Stop()
    slow = replace(WATCHFUL, table_interval_s=600.0)
    extractor = extractor_of(source_url, tmp_path, options=slow, stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        until(lambda: extractor.progress.state == "streaming")
        run_sql(sql, "alter table t drop constraint t_a_key;; alter table t alter b drop not null")
        run_sql(sql, "insert into t values (1, 10, null), (2, 10, null)")
        until(lambda: extractor.progress.segment_count >= 1)
        stop.asked.set()
    with segments_of(tmp_path) as segments:
        relations = [relation for segment in segments for _, relation in segment.relations()]
    assert [relation.unique for relation in relations] == [(("a",),), ()]
    assert [column.nullable for column in relations[1].columns] == [False, True, True]
