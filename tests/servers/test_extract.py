"""The extractor against a real server: what is in the log is what was committed, once, in order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fix_postgres import Server
from fix_stream import changes_of, run_sql
from penstock.host.connect import connect
from penstock.log import ClosedSegment, Segment, list_segments, open_chain
from penstock.model import Run
from penstock.source.extract import Ended, ExtractOptions, Extractor, Outcome
from penstock.source.postgres.catalog import captured_tables, open_catalog
from penstock.source.postgres.client import open_replication
from penstock.source.postgres.slot import create_slot, ensure_publication

SLOT = "penstock_extract"
QUICK = ExtractOptions(
    slot=SLOT, publication="p", exit_when_idle=True, idle_wait_s=0.5, flush_interval_s=0.3
)


def _set_up(url: str, ddl: str, *, slot: str = SLOT) -> None:
    with connect(url, application_name="test") as sql:
        run_sql(sql, ddl)
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
        ensure_publication(catalog, "p", [table.name for table in tables])
    with open_replication(url, application_name="test") as replication:
        create_slot(replication, url, slot, snapshot=False)


def _extractor(url: str, directory: Path, **more: Any) -> Extractor:
    more.setdefault("options", QUICK)
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
    return Extractor(url, directory, tables=tables, **more)


@contextmanager
def _running(extractor: Extractor) -> Iterator[list[Outcome]]:
    """The extraction on a thread; its outcome or error is seen at the end of the block."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcomes.append(extractor.run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield outcomes
    finally:
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def _segments(directory: Path) -> Iterator[list[Segment]]:
    with ExitStack() as stack:
        chain = open_chain(list_segments(directory / "log"))
        yield [stack.enter_context(segment) for segment in chain]


def log_changes(directory: Path) -> list[Any]:
    """Every row in the closed segments, in order."""
    with _segments(directory) as segments:
        return [c for s in segments for c in changes_of(Run(rows=tuple(s.rows())))]


class Stop:
    """An end that the test asks for."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self) -> bool:
        return self.asked.is_set()


def test_everything_committed_is_in_the_log_and_done_is_written(
    source_url: str, tmp_path: Path
) -> None:
    """With exitWhenIdle the log is complete: closed segments, CHANGE.DONE, slot acknowledged."""
    _set_up(source_url, "create table t (id int primary key, v text)")
    with connect(source_url, application_name="test") as sql:
        for number in range(200):
            sql.execute("insert into t values (%s, 'v')", (number,))
        outcome = _extractor(source_url, tmp_path).run()
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
    _set_up(source_url, "create table t (id int primary key, v text)")
    with connect(source_url, application_name="test") as sql:
        for batch in range(3):
            sql.execute("insert into t values (%s, 'v')", (batch,))
            _extractor(source_url, tmp_path).run()
    changes = log_changes(tmp_path)
    assert [(c.gsn, c.trx, c.after["id"]) for c in changes] == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert [file.number for file in list_segments(tmp_path / "log")] == [0, 1, 2]
    with _segments(tmp_path) as segments:
        versions = {r.version for segment in segments for _, r in segment.relations()}
    assert versions == {1}


def test_segments_rotate_at_a_commit_after_enough_operations(
    source_url: str, tmp_path: Path
) -> None:
    """No transaction spans two segments."""
    _set_up(source_url, "create table t (id int, v text)")
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
        _extractor(source_url, tmp_path, options=options).run()
        with _running(_extractor(source_url, tmp_path, options=options)):
            for _ in range(30):
                sql.execute("insert into t select i, 'x' from generate_series(1, 17) i")
                time.sleep(0.015)
    with _segments(tmp_path) as segments:
        trx = [sorted({c.trx for c in changes_of(Run(rows=tuple(s.rows())))}) for s in segments]
    assert [number for part in trx for number in part] == list(range(1, 61))
    assert len(segments) > 2


def test_recorder_hears_of_every_segment_and_may_fail(source_url: str, tmp_path: Path) -> None:
    """A progress table that can not be written stops nothing; it is told later."""
    _set_up(source_url, "create table t (id int primary key)")
    heard: list[Any] = []

    class Recorder:
        failures = 2

        def opened(self, number: int, position: int) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("target is down")
            heard.append(("opened", number))

        def closed(self, segment: ClosedSegment) -> None:
            heard.append(("closed", segment.number, segment.gsn_first, segment.gsn_last))

    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = _extractor(source_url, tmp_path, options=options, recorder=Recorder(), stop=stop)
    with connect(source_url, application_name="test") as sql, _running(extractor):
        sql.execute("insert into t values (1)")
        _until(lambda: len(list_segments(tmp_path / "log")) == 1)
        facts = json.loads((tmp_path / "run" / "extract.json").read_text())
        assert "target is down" in facts["recorder_error"]
        sql.execute("insert into t values (2)")
        _until(lambda: len(heard) == 4, 20)
        stop.asked.set()
    assert heard == [("opened", 0), ("closed", 0, 1, 1), ("opened", 1), ("closed", 1, 2, 2)]


def _until(condition: Any, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_pause_and_stop_are_obeyed(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAUSE holds at a flush point with nothing open; RUN goes on; STOP ends in order."""
    monkeypatch.setattr("penstock.source.extract.ACTION_INTERVAL_S", 0.05)
    _set_up(source_url, "create table t (id int primary key)")

    class Gate:
        said = "RUN"

        def word(self) -> str:
            return self.said

    gate = Gate()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = _extractor(source_url, tmp_path, options=options, gate=gate)
    with connect(source_url, application_name="test") as sql, _running(extractor) as outcomes:
        sql.execute("insert into t values (1)")
        _until(lambda: len(list_segments(tmp_path / "log")) == 1)
        gate.said = "PAUSE"
        _until(lambda: extractor.progress.state == "paused")
        sql.execute("insert into t values (2)")
        time.sleep(0.7)
        assert len(list_segments(tmp_path / "log")) == 1
        gate.said = "RUN"
        _until(lambda: len(list_segments(tmp_path / "log")) == 2)
        gate.said = "STOP"
    assert outcomes[0].ended is Ended.STOPPED
    assert outcomes[0].end.gsn == 2
    assert not (tmp_path / "log" / "CHANGE.DONE").exists()


def test_server_restart_in_the_middle_is_survived(own_postgres: Server, tmp_path: Path) -> None:
    """Fast stop, immediate stop and crash: the log has every row once, in order."""
    url = own_postgres.make_database("source")
    _set_up(url, "create table t (id int primary key, v text)")
    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)
    extractor = _extractor(url, tmp_path, options=options, stop=stop)
    number = 0
    with _running(extractor):
        for count, how in enumerate(("fast", "immediate", "crash")):
            _until(lambda: extractor.progress.state == "streaming", 60)
            with connect(url, application_name="test") as sql:
                sql.execute("set synchronous_commit = on")
                for _ in range(50):
                    number += 1
                    sql.execute("insert into t values (%s, repeat('x', 100))", (number,))
            if how == "crash":
                own_postgres.crash()
            else:
                own_postgres.stop(how)  # type: ignore[arg-type]
            _until(lambda wanted=count + 1: extractor.progress.reconnect_count >= wanted, 60)
            own_postgres.start()
        with connect(url, application_name="test") as sql:
            kept = [r[0] for r in sql.execute("select id from t order by id").fetchall()]
        _until(lambda: _last_gsn(tmp_path) >= len(kept), 60)
        stop.asked.set()
    assert [c.after["id"] for c in log_changes(tmp_path)] == kept
    assert len(kept) == number


def _last_gsn(directory: Path) -> int:
    path = directory / "run" / "extract.json"
    return int(json.loads(path.read_text())["gsn"]) if path.exists() else 0


def test_idle_database_does_not_hold_wal(source_url: str, postgres: Server, tmp_path: Path) -> None:
    """While other databases write, the slot follows, and the position survives a restart."""
    _set_up(source_url, "create table t (id int primary key)")
    other = postgres.make_database("other")
    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.2)

    def slot() -> tuple[int, int]:
        return postgres.execute(
            "select confirmed_flush_lsn - '0/0'::pg_lsn, pg_current_wal_lsn() - '0/0'::pg_lsn"
            f" from pg_replication_slots where slot_name = '{SLOT}'"
        )[0]  # type: ignore[return-value]

    with _running(_extractor(source_url, tmp_path, options=options, stop=stop)):
        with connect(other, application_name="test") as sql:
            sql.execute("""
                create table x as select i, repeat('y', 500) from generate_series(1, 20000) i
                """)
        target = slot()[1]
        _until(lambda: slot()[0] >= target)
        stop.asked.set()
    assert list_segments(tmp_path / "log") == []
    outcome = _extractor(source_url, tmp_path).run()
    assert outcome.end.position >= target
    postgres.drop_database(other)


def test_transactions_are_recorded_with_process_commits(source_url: str, tmp_path: Path) -> None:
    """One line per transaction with its xid, rows and positions."""
    _set_up(source_url, "create table t (id int primary key)")
    options = ExtractOptions(
        slot=SLOT, publication="p", exit_when_idle=True, idle_wait_s=0.5, process_commits=True
    )
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "insert into t values (1), (2);; truncate t;; insert into t values (3)")
    _extractor(source_url, tmp_path, options=options).run()
    with _segments(tmp_path) as (segment,):
        batches = list(segment.transactions())
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(r["trx"], r["gsn_first"], r["gsn_last"]) for r in rows] == [
        (1, 1, 2),
        (2, 3, 2),
        (3, 3, 3),
    ]
