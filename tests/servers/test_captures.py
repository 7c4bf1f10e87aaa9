"""A table is added or removed while the extractor is at work: none of its rows is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg

from harness.pipelines.extract import QUICK, Stop, extractor_of, log_changes, running, set_up, until
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.extract.extractor import Extractor
from penstock.host.state_file import StateFile
from penstock.model import TableName
from penstock.model.layout import PipelineLayout
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    Capture,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)

WATCHFUL = replace(QUICK, exit_when_idle=False, table_interval_s=0.1)
LATE = TableName("public", "late")
BEGIN = "create table t (id int primary key)"
MAKE = "create table late (id int primary key, n int)"


class Wisher:
    """A writer of requests for the table `late`, which waits for the extractor's answers."""

    def __init__(self, directory: Path) -> None:
        self._state = PipelineLayout(root=directory).state
        self._number = 0

    def request(self, capture: Capture) -> None:
        """Write another request."""
        self._number += 1
        request = TableRequest(table=LATE, capture=capture, capture_id=self._number)
        self._state.mkdir(parents=True, exist_ok=True)
        path = self._state / REQUESTS_FILE
        requests = TableRequests(serial=self._number, tables=(request,))
        StateFile(path, TableRequests).save(requests)

    @property
    def is_answered(self) -> bool:
        """Return whether the last request was carried out; a refusal fails the test."""
        path = self._state / CAPTURED_FILE
        answers = StateFile(path, CaptureAnswers).load() or CaptureAnswers()
        answer = answers.of(LATE)
        if answer is None or answer.capture_id != self._number:
            return False
        assert answer.is_done, answer
        return True


@contextmanager
def extracting(
    url: str, directory: Path, takes: Callable[[TableName], bool]
) -> Iterator[tuple[Extractor, psycopg.Connection]]:
    """Run an extractor of table t alone for the block; yield it and a connection."""
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.t"])
    stop = Stop()
    extractor = extractor_of(
        url, directory, options=WATCHFUL, stop=stop, tables=tables, takes=takes
    )
    with connect(url, application_name="test") as sql, running(extractor):
        try:
            sql.execute("insert into t values (1)")
            until(lambda: extractor.progress.segment_count >= 1)
            yield extractor, sql
        finally:
            stop.asked.set()


def read_keys(directory: Path) -> list[int]:
    """Return the keys of the rows of `late` in the log, in order."""
    return [c.after["id"] for c in log_changes(directory) if c.table == "late"]


def wait_until_flowed(extractor: Extractor, sql: psycopg.Connection, number: int) -> None:
    """Wait until a row of another table has arrived, and with it all rows before it."""
    before = extractor.progress.segment_count
    sql.execute("insert into t values (%s)", (number,))
    until(lambda: extractor.progress.segment_count > before)


def test_a_table_taken_in_has_every_row_from_the_answer_on(source_url: str, tmp_path: Path) -> None:
    """A copy of its rows at a later point misses nothing."""
    set_up(source_url, BEGIN)
    wisher = Wisher(tmp_path)
    with extracting(source_url, tmp_path, lambda name: name.name == "t") as (extractor, sql):
        sql.execute(MAKE)
        wisher.request(Capture.ADDED)
        until(lambda: wisher.is_answered)
        sql.execute("insert into late select g from generate_series(1, 5) as g")
        wait_until_flowed(extractor, sql, 2)
    assert read_keys(tmp_path) == [1, 2, 3, 4, 5]


def test_a_table_let_go_and_taken_in_again_is_captured(source_url: str, tmp_path: Path) -> None:
    """The server sends its columns once in a publication of all tables, before the table is
    removed.
    """
    set_up(source_url, BEGIN)
    wisher = Wisher(tmp_path)
    with connect(source_url, application_name="test") as sql:
        sql.execute("drop publication p")
        sql.execute("create publication p for all tables")
    with extracting(source_url, tmp_path, lambda name: name.name == "t") as (extractor, sql):
        sql.execute(MAKE)
        sql.execute("insert into late values (1)")
        for capture in (Capture.ADDED, Capture.REMOVED, Capture.ADDED):
            wisher.request(capture)
            until(lambda: wisher.is_answered)
            number = 10 * wisher._number
            sql.execute("insert into late values (%s)", (number,))
            wait_until_flowed(extractor, sql, number)
    # A row from before the first request may still have been on its way.
    assert [key for key in read_keys(tmp_path) if key != 1] == [10, 30]


def test_the_answer_waits_for_transactions_that_are_open(source_url: str, tmp_path: Path) -> None:
    """The log may lack earlier rows of open transactions; other tables do not wait."""
    set_up(source_url, BEGIN)
    wisher = Wisher(tmp_path)
    with extracting(source_url, tmp_path, lambda name: name.name == "t") as (extractor, sql):
        sql.execute(MAKE)
        with psycopg.connect(source_url) as other:
            other.execute("create table elsewhere ()")
            wisher.request(Capture.ADDED)
            wait_until_flowed(extractor, sql, 2)
            wait_until_flowed(extractor, sql, 3)
            wait_until_flowed(extractor, sql, 4)
            assert not wisher.is_answered
        until(lambda: wisher.is_answered)


def test_a_locked_table_is_waited_for_by_nobody_and_outlives_a_lost_stream(
    source_url: str, tmp_path: Path
) -> None:
    """The stream that follows captures the table before the answer is written."""
    set_up(source_url, BEGIN)
    wisher = Wisher(tmp_path)
    # The configuration includes the table: only its request is newer than the extractor.
    with extracting(source_url, tmp_path, lambda _: True) as (extractor, sql):
        sql.execute(MAKE)
        with psycopg.connect(source_url) as other:
            other.execute("lock table late in access exclusive mode")
            wisher.request(Capture.ADDED)
            wait_until_flowed(extractor, sql, 2)
            sql.execute(
                "select pg_terminate_backend(pid) from pg_stat_replication"
                " where application_name like 'penstock%'"
            )
            wait_until_flowed(extractor, sql, 3)
            wait_until_flowed(extractor, sql, 4)
            assert not wisher.is_answered
        until(lambda: wisher.is_answered)
        sql.execute("insert into late values (1)")
        wait_until_flowed(extractor, sql, 5)
    assert read_keys(tmp_path) == [1]


def test_a_parent_taken_in_and_let_go_leaves_its_child_published(
    source_url: str, tmp_path: Path
) -> None:
    """Publication statements include inheriting tables unless they say ONLY."""
    set_up(source_url, f"{MAKE}; create table t (primary key (id)) inherits (late)")
    wisher = Wisher(tmp_path)
    with extracting(source_url, tmp_path, lambda name: name.name == "t") as (extractor, sql):
        for number, capture in enumerate((Capture.ADDED, Capture.REMOVED), start=2):
            wisher.request(capture)
            until(lambda: wisher.is_answered)
            sql.execute("insert into late values (%s)", (number,))
            wait_until_flowed(extractor, sql, number)
    assert read_keys(tmp_path) == [2]
    assert [c.after["id"] for c in log_changes(tmp_path) if c.table == "t"] == [1, 2, 3]
