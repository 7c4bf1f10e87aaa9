"""Progress and control from the extractor's side: CE rows, the action, lag, on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest

from harness.faults.turned_clock import Hands
from harness.pipelines.pipeline import pipeline
from penstock.codec.columns import batch_schema, transactions_batch
from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.actions import ActionWatch, StopRequest
from penstock.control.pipeline.log_facts import outstanding_commit_us, read_log_end
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import CeRecorder
from penstock.control.status.lag import read_lag
from penstock.control.status.status import read_status
from penstock.engines.postgres.extraction import ensure_slot
from penstock.engines.postgres.lag import read_source_state
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.host.errors import ServerUnreachable
from penstock.log import Writer, WriterOptions
from penstock.model import Column, FlushPoint, Op, Relation, Rows, Run
from penstock.ports.config import Config
from penstock.ports.target import ActionUnknown, Applied
from plugins.postgres import Server

RELATION = Relation(
    schema="public",
    name="a",
    columns=(Column(name="id", source_type="integer", neutral="int32"),),
    key=(0,),
    before=(0,),
    source_id=1,
)
CE_ROWS = """
    select source, target, mark, finish_time is not null, restarts
      from wirekite.wirekite_progress
     where operation = 'CE'
     order by length(target), target
"""


@pytest.fixture
def config(tmp_path: Path, source_url: str, target_url: str) -> Config:
    """A pipeline over both fresh databases."""
    return pipeline(tmp_path, source_url, target_url, mode="change")


@pytest.fixture
def recorder(config: Config) -> Iterator[CeRecorder]:
    """The recorder of that pipeline."""
    made = CeRecorder(config)
    yield made
    made.close()


class Log:
    """A change log that is written manually: one transaction of one row at a time."""

    def __init__(self, config: Config) -> None:
        self.writer = Writer.open(
            config.layout.log,
            log_id=None,
            source={"engine": "postgresql"},
            options=WriterOptions(),
        )
        self.gsn = 0

    def commit(self, position: int, *, commit_us: int = 1_700_000_000_000_000) -> None:
        """Commit one row at this position."""
        self.gsn += 1
        number = self.gsn
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([number], pa.int64()),
                pa.array([number], pa.int64()),
                pa.array([int(Op.INSERT)], pa.uint8()),
                pa.array([None], pa.binary()),
                pa.array([{"id": number}], batch_schema(RELATION).field("after").type),
                pa.array([None], batch_schema(RELATION).field("before").type),
            ],
            schema=batch_schema(RELATION),
        )
        end = FlushPoint(position=position + 8, gsn=number, trx=number, commit_time_us=commit_us)
        rows = (Rows(relation=RELATION, batch=batch),)
        told = transactions_batch([(position, position + 8, commit_us, number)])
        self.writer.write(Run(rows=rows, transactions=told, end=end))

    def close_segment(self, position: int) -> Any:
        """Close a segment with one row, and return it."""
        self.commit(position)
        return self.writer.rotate()


@pytest.fixture
def log(config: Config) -> Iterator[Log]:
    """The pipeline's log."""
    made = Log(config)
    yield made
    made.writer.close()


def rows(config: Config) -> list[tuple[Any, ...]]:
    """Return the CE rows."""
    with psycopg.connect(config.target.url) as connection:
        return connection.execute(CE_ROWS).fetchall()


def test_a_segment_is_recorded_when_it_opens_and_when_it_closes(
    config: Config, recorder: CeRecorder, log: Log
) -> None:
    """The mark is the position to rebuild from, later the end of the last commit; with slot and
    file.
    """
    slot = "wirekite_replication_slot"
    recorder.note_opened(0, 0x10)
    assert rows(config) == [(slot, "0.ckt", "0/10", False, 0)]
    recorder.note_closed(log.close_segment(0x100))
    assert rows(config) == [(slot, "0.ckt", "0/108", True, 0)]


def test_recording_twice_changes_nothing(config: Config, recorder: CeRecorder, log: Log) -> None:
    """Both calls may be repeated: the extractor retries calls that may have succeeded."""
    closed = log.close_segment(0x100)
    for _ in range(2):
        recorder.note_closed(closed)
    [row] = rows(config)
    assert row[2:4] == ("0/108", True)


def test_a_segment_begun_again_counts_a_restart(config: Config, recorder: CeRecorder) -> None:
    """A row that a crash left open is continued by the next process."""
    for _ in range(3):
        recorder.note_opened(4, 0x10)
    [row] = rows(config)
    assert row[4] == 2


def test_rows_left_out_by_a_crash_are_mended_from_the_segments(
    config: Config, recorder: CeRecorder, log: Log
) -> None:
    """The next process writes a row that is missing after a crash between rename and record."""
    recorder.note_opened(0, 0)
    for number in range(3):
        log.close_segment(0x100 * (number + 1))
    assert [row[3] for row in rows(config)] == [False]
    recorder.close()
    recorder.add_missing()
    assert [row[1:4] for row in rows(config)] == [
        ("0.ckt", "0/108", True),
        ("1.ckt", "0/208", True),
        ("2.ckt", "0/308", True),
    ]


def test_a_target_that_is_away_is_a_typed_error_and_comes_back(
    tmp_path: Path, source_url: str, own_postgres: Server, second_postgres: Server
) -> None:
    """The recorder raises, and continues once the target is available, with the missing rows."""
    config = pipeline(tmp_path, source_url, own_postgres.url(), mode="change")
    log, recorder = Log(config), CeRecorder(config)
    try:
        recorder.note_closed(log.close_segment(0x100))
        own_postgres.stop("immediate")
        closed = log.close_segment(0x200)
        with pytest.raises(Exception, match=r"(?s).") as caught:
            recorder.note_closed(closed)
        assert getattr(caught.value, "retry", "") == "backoff"
        with pytest.raises(ServerUnreachable):
            recorder.note_closed(closed)
        own_postgres.start()
        recorder.note_opened(2, 0x208)
        assert [row[3] for row in rows(config)] == [True, True, False]
    finally:
        recorder.close()
        log.writer.close()


# -- the action --------------------------------------------------------------------------------


@pytest.fixture
def act(config: Config, recorder: CeRecorder) -> Callable[[str], None]:
    """Set the action, as an operator does."""
    recorder.add_missing()  # creates the tables

    def to(word: str) -> None:
        with psycopg.connect(config.target.url, autocommit=True) as connection:
            connection.execute("update wirekite.wirekite_action set action = %s", (word,))

    return to


def test_the_action_is_read_at_intervals(config: Config, act: Callable[[str], None]) -> None:
    """The action is RUN at first, even without tables; a change is seen after the interval or at
    once.
    """
    clock = Hands()
    watch = ActionWatch(config.target.url, name="test", interval_s=60, clock=clock)
    try:
        assert watch.word() == "RUN"
        act("PAUSE")
        clock.sleep(59)
        assert watch.word() == "RUN"
        clock.sleep(1)
        assert watch.word() == "PAUSE"
        act("RUN")
        assert watch.word() == "PAUSE"
        assert watch.word(at_once=True) == "RUN"
    finally:
        watch.close()


def test_a_word_that_is_none_is_an_error(config: Config, act: Callable[[str], None]) -> None:
    """The error has the statement that corrects it."""
    act("HALT")
    watch = ActionWatch(config.target.url, name="test")
    try:
        with pytest.raises(ActionUnknown, match="HALT") as caught:
            watch.word()
        assert "update wirekite.wirekite_action" in caught.value.hint
    finally:
        watch.close()


def test_a_target_that_is_away_keeps_the_last_word(own_postgres: Server) -> None:
    """An unreadable action neither stops an extraction nor resumes a paused one."""
    url = own_postgres.url()
    watch = ActionWatch(url, name="test", interval_s=0)
    try:
        assert watch.word() == "RUN"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create schema wirekite")
            connection.execute("create table wirekite.wirekite_action (action varchar(8))")
            PostgresProgress(connection).set_action("PAUSE")
        assert watch.word() == "PAUSE"
        own_postgres.stop()
        assert watch.word() == "PAUSE"
        own_postgres.start()
        with psycopg.connect(url, autocommit=True) as connection:
            PostgresProgress(connection).set_action("STOP")
        assert watch.word() == "STOP"
        stop = StopRequest()
        assert watch.obey(stop)
        assert stop()
    finally:
        watch.close()


# -- lag ---------------------------------------------------------------------------------------


def test_lag_follows_slot_log_and_target(config: Config, log: Log, recorder: CeRecorder) -> None:
    """The oldest row in the log that is not applied gives the seconds; its slot gives the bytes."""
    recorder.add_missing()
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        connection.execute("create table a (id int primary key)")
    with open_catalog(config.source.url) as catalog:
        ensure_slot(pipeline_of(config), captured_tables(catalog, config.source.tables))
    now_us = time.time_ns() // 1000
    log.commit(0x100, commit_us=now_us - 60_000_000)
    log.commit(0x200, commit_us=now_us - 20_000_000)
    log.writer.rotate()
    log.commit(0x300, commit_us=now_us - 5_000_000)
    log.writer.flush()
    assert read_log_end(config).end.gsn == 3
    assert read_log_end(config, look_into_open=False).end.gsn == 2
    for applied, age_s in ((0, 60), (1, 20), (2, 5)):
        found = outstanding_commit_us(config, Applied(trx=applied))
        assert found == now_us - age_s * 1_000_000
    assert outstanding_commit_us(config, Applied(trx=3)) is None
    lag = read_lag(config)
    assert lag.seconds is not None
    assert 60 <= lag.seconds < 90
    assert lag.rows == 3


def test_source_state_is_that_of_the_published_query(config: Config, postgres: Server) -> None:
    """Bytes of lag are counted as in Wirekite's guide; without a slot there is no lag."""
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = on")  # its WAL is written at once
        connection.execute("create table a (id int primary key)")
        assert not read_source_state(connection, "wirekite_replication_slot").slot_exists
        with open_catalog(config.source.url) as catalog:
            position = ensure_slot(
                pipeline_of(config), captured_tables(catalog, config.source.tables)
            )
        assert position > 0
        again = ensure_slot(pipeline_of(config), [])
        assert again == 0, "a slot that is there is used from where it stands"
        connection.execute("insert into a select generate_series(1, 1000)")
        state = read_source_state(connection, "wirekite_replication_slot")
        row = connection.execute(
            """
            SELECT slot_name,
                   pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) AS lag_bytes
            FROM pg_replication_slots
            WHERE slot_name = 'wirekite_replication_slot';
            """
        ).fetchone()
        assert row is not None
        assert 0 < state.slot_lag_bytes <= row[1]
        assert not state.slot_active


def test_the_lag_query_in_postgresqls_words(config: Config, postgres: Server) -> None:
    """The query of Wirekite's guide counts from the last finished file; docs/commands.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    query = next(part for part in page.split("```sql")[1:] if "extract(epoch" in part)
    query = query.split("```")[0]
    recorder = CeRecorder(config)
    recorder.add_missing()
    recorder.close()
    name = urlsplit(config.target.url).path.lstrip("/")
    finished = datetime.fromtimestamp(time.time() - 30, UTC).replace(tzinfo=None)
    postgres.execute(
        "insert into wirekite.wirekite_progress"
        " values ('0.ckt', 'CL', 'CL', 'F', '1', null, %s, %s)",
        name,
        (finished, finished),
    )
    [(lag_seconds,)] = postgres.execute(query, name)
    assert 30 <= lag_seconds < 60


def test_status_before_anything_has_begun(config: Config) -> None:
    """The status of a pipeline that was never run is empty."""
    found = read_status(config)
    assert [process.pid for process in found.processes] == [0, 0, 0]
    assert found.log.end == FlushPoint(position=0)
    assert found.as_dict()["handover"] is None
    assert not config.directory.exists()
    assert Lsn(found.target.applied.position) == Lsn(0)
