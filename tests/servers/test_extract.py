"""The extractor against a real server: the log has what was committed, once and in order."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import (
    SLOT,
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
from penstock.extract.extractor import Ended, ExtractOptions
from penstock.log import ClosedSegment, list_segments
from penstock.log.text import lines
from penstock.model import Run
from plugins.postgres import Server


def test_everything_committed_is_in_the_log_and_done_is_written(
    source_url: str, tmp_path: Path
) -> None:
    """The log is complete with exitWhenIdle: closed segments, CHANGE.DONE, slot acknowledged."""
    set_up(source_url, "create table t (id int primary key, v text)")
    with connect(source_url, application_name="test") as sql:
        for number in range(200):
            sql.execute("insert into t values (%s, 'v')", (number,))
        outcome = extractor_of(source_url, tmp_path).run()
        slot = sql.execute(
            "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
            " where slot_name = %s",
            (SLOT,),
        ).fetchone()
    assert outcome.ended is Ended.IDLE
    assert outcome.end.gsn == 200
    changes = log_changes(tmp_path)
    assert [c.after["id"] for c in changes] == list(range(200))
    assert [c.gsn for c in changes] == list(range(1, 201))
    assert (tmp_path / "log" / "CHANGE.DONE").is_file()
    assert slot is not None
    assert slot[0] == outcome.end.position
    facts = json.loads((tmp_path / "run" / "extract.json").read_text())
    assert facts["state"] == "idle"
    assert facts["row_count"] == 200


def test_extraction_goes_on_where_it_ended(source_url: str, tmp_path: Path) -> None:
    """A second run on the directory continues GSN, trx and segment numbers."""
    set_up(source_url, "create table t (id int primary key, v text)")
    with connect(source_url, application_name="test") as sql:
        for batch in range(3):
            sql.execute("insert into t values (%s, 'v')", (batch,))
            extractor_of(source_url, tmp_path).run()
    changes = log_changes(tmp_path)
    assert [(c.gsn, c.trx, c.after["id"]) for c in changes] == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert [file.number for file in list_segments(tmp_path / "log")] == [0, 1, 2]
    with segments_of(tmp_path) as segments:
        versions = {r.version for segment in segments for _, r in segment.relations()}
    assert versions == {1}


def test_segments_rotate_at_a_commit_after_enough_operations(
    source_url: str, tmp_path: Path
) -> None:
    """No transaction spans two segments."""
    set_up(source_url, "create table t (id int, v text)")
    options = ExtractOptions(
        slot=SLOT,
        publication="p",
        exit_when_idle=True,
        idle_wait_s=0.5,
        operation_count_max=100,
        events_per_flush=10,
    )
    with connect(source_url, application_name="test") as sql:
        for _ in range(30):
            sql.execute("insert into t select i, 'x' from generate_series(1, 17) i")
            time.sleep(0.015)
        extractor_of(source_url, tmp_path, options=options).run()
        with running(extractor_of(source_url, tmp_path, options=options)):
            for _ in range(30):
                sql.execute("insert into t select i, 'x' from generate_series(1, 17) i")
                time.sleep(0.015)
    with segments_of(tmp_path) as segments:
        trx = [sorted({c.trx for c in changes_of(Run(rows=tuple(s.rows())))}) for s in segments]
    assert [number for part in trx for number in part] == list(range(1, 61))
    assert len(segments) >= 2  # a read that lags takes more than one transaction at once


def test_recorder_hears_of_every_segment_and_may_fail(source_url: str, tmp_path: Path) -> None:
    """A progress table that cannot be written stops nothing; it is written later."""
    set_up(source_url, "create table t (id int primary key)")
    heard: list[Any] = []

    class Recorder:
        failures = 2

        def note_opened(self, number: int, position: int) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("target is down")
            heard.append(("opened", number))

        def note_closed(self, segment: ClosedSegment) -> None:
            heard.append(("closed", segment.number, segment.gsn_first, segment.gsn_last))

    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = extractor_of(source_url, tmp_path, options=options, recorder=Recorder(), stop=stop)
    with connect(source_url, application_name="test") as sql, running(extractor):
        sql.execute("insert into t values (1)")
        until(lambda: len(list_segments(tmp_path / "log")) == 1)
        until(lambda: "target is down" in _facts(tmp_path).get("recorder_error", ""))
        sql.execute("insert into t values (2)")
        until(lambda: len(heard) == 4, 20)
        stop.asked.set()
    assert heard == [("opened", 0), ("closed", 0, 1, 1), ("opened", 1), ("closed", 1, 2, 2)]


def test_pause_and_stop_are_obeyed(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAUSE holds at a flush point with nothing open; RUN continues; STOP ends in order."""
    monkeypatch.setattr("penstock.extract.extractor.ACTION_INTERVAL_S", 0.05)
    set_up(source_url, "create table t (id int primary key)")

    class Gate:
        said = "RUN"

        def word(self) -> str:
            return self.said

    gate = Gate()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = extractor_of(source_url, tmp_path, options=options, gate=gate)
    with connect(source_url, application_name="test") as sql, running(extractor) as outcomes:
        sql.execute("insert into t values (1)")
        until(lambda: len(list_segments(tmp_path / "log")) == 1)
        gate.said = "PAUSE"
        until(lambda: extractor.progress.state == "paused")
        sql.execute("insert into t values (2)")
        time.sleep(0.7)
        assert len(list_segments(tmp_path / "log")) == 1
        gate.said = "RUN"
        until(lambda: len(list_segments(tmp_path / "log")) == 2)
        gate.said = "STOP"
    assert outcomes[0].ended is Ended.STOPPED
    assert outcomes[0].end.gsn == 2
    assert not (tmp_path / "log" / "CHANGE.DONE").exists()


def test_server_restart_in_the_middle_is_survived(own_postgres: Server, tmp_path: Path) -> None:
    """The log has every row once and in order after a fast stop, an immediate stop and a crash."""
    url = own_postgres.make_database("source")
    set_up(url, "create table t (id int primary key, v text)")
    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = extractor_of(url, tmp_path, options=options, stop=stop)
    number = 0
    with running(extractor):
        for count, how in enumerate(("fast", "immediate", "crash")):
            until(lambda: extractor.progress.state == "streaming", 60)
            with connect(url, application_name="test") as sql:
                sql.execute("set synchronous_commit = on")
                for _ in range(50):
                    number += 1
                    sql.execute("insert into t values (%s, repeat('x', 100))", (number,))
            if how == "crash":
                own_postgres.crash()
            else:
                own_postgres.stop(how)  # type: ignore[arg-type]
            until(lambda wanted=count + 1: extractor.progress.reconnect_count >= wanted, 60)
            own_postgres.start()
        with connect(url, application_name="test") as sql:
            kept = [r[0] for r in sql.execute("select id from t order by id").fetchall()]
        until(lambda: _last_gsn(tmp_path) >= len(kept), 60)
        stop.asked.set()
    assert [c.after["id"] for c in log_changes(tmp_path)] == kept
    assert len(kept) == number


def _facts(directory: Path) -> dict[str, Any]:
    path = directory / "run" / "extract.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _last_gsn(directory: Path) -> int:
    return int(_facts(directory).get("gsn", 0))


def test_idle_database_does_not_hold_wal(source_url: str, postgres: Server, tmp_path: Path) -> None:
    """The slot follows while other databases write, and the position survives a restart."""
    set_up(source_url, "create table t (id int primary key)")
    other = postgres.make_database("other")
    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)

    def slot() -> tuple[int, int]:
        return postgres.execute(
            "select confirmed_flush_lsn - '0/0'::pg_lsn, pg_current_wal_lsn() - '0/0'::pg_lsn"
            f" from pg_replication_slots where slot_name = '{SLOT}'"
        )[0]  # type: ignore[return-value]

    with running(extractor_of(source_url, tmp_path, options=options, stop=stop)):
        with connect(other, application_name="test") as sql:
            sql.execute("""
                create table x as select i, repeat('y', 500) from generate_series(1, 20000) i
                """)
        target = slot()[1]
        until(lambda: slot()[0] >= target)
        stop.asked.set()
    assert list_segments(tmp_path / "log") == []
    outcome = extractor_of(source_url, tmp_path).run()
    assert outcome.end.position >= target
    postgres.drop_database(other)


def test_transactions_are_recorded_with_process_commits(source_url: str, tmp_path: Path) -> None:
    """Each transaction has a line with its position if BEGIN and COMMIT are wanted."""
    set_up(source_url, "create table t (id int primary key)")
    options = ExtractOptions(
        slot=SLOT, publication="p", exit_when_idle=True, idle_wait_s=0.5, process_commits=True
    )
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1), (2);; truncate t;; insert into t values (3)")
    extractor_of(source_url, tmp_path, options=options).run()
    with segments_of(tmp_path) as (segment,):
        found = [segment.transactions.find(number) for number in range(1, 5)]
        letters = [line.split("\t")[1] for line in lines(segment, str)]
    assert found.pop() is None
    places = [(one.position, one.end_position) for one in found if one is not None]
    assert places == sorted(places)
    assert len(places) == len({one.source_id for one in found if one is not None}) == 3
    assert letters == list("RBIICBTCBIC")
