"""Schema wirekite in a real target: progress, action, the bound log, shapes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.host.connect import EXACT_TEXT_SETTINGS, connect
from penstock.load.postgres import progress
from penstock.load.postgres.progress import Applied, FileProgress, TableRecord
from penstock.model import TableName


@pytest.fixture
def target(target_url: str) -> Iterator[psycopg.Connection]:
    """A connection to a fresh target with schema wirekite."""
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as connection:
        progress.ensure_tables(connection)
        yield connection


def test_tables_are_made_once_and_kept(target: psycopg.Connection) -> None:
    """A second start finds the tables and their rows as they were."""
    progress.set_action(target, "PAUSE")
    progress.ensure_tables(target)
    assert progress.read_action(target) == "PAUSE"
    assert target.execute("select count(*) from wirekite.wirekite_action").fetchone() == (1,)


def test_published_queries_run_as_printed(target: psycopg.Connection) -> None:
    """The position queries of document 000 give the rows; lag is a few seconds at most."""
    progress.begin_segment(target, slot="wirekite_replication_slot", file="0.ckt", mark="0/1")
    progress.end_segment(target, slot="wirekite_replication_slot", file="0.ckt", mark="0/2")
    progress.begin_files(target, ["0.ckt"])
    progress.end_files(target, [FileProgress(file="0.ckt", mark=7, finished=True)])
    query = """
        SELECT source, mark, start_time, finish_time
          FROM wirekite.wirekite_progress
         WHERE operation = %s
         ORDER BY start_time DESC
         LIMIT 5
    """
    (extract,) = target.execute(query, ("CE",)).fetchall()
    (load,) = target.execute(query, ("CL",)).fetchall()
    assert extract[:2] == ("wirekite_replication_slot", "0/2")
    assert load[:2] == ("0.ckt", "7")
    assert load[2] <= load[3]
    lag = target.execute("""
        select extract(epoch from now() at time zone 'utc' - max(finish_time))
          from wirekite.wirekite_progress
         where operation = 'CL' and finish_time is not null
    """).fetchone()
    assert lag is not None
    assert -1 < lag[0] < 30


def test_a_file_begun_again_after_a_crash_counts_a_restart(target: psycopg.Connection) -> None:
    """The row left open is kept and its restarts rise; a finished one stays finished."""
    progress.begin_files(target, ["3.ckt"])
    progress.begin_files(target, ["3.ckt"])
    progress.end_files(target, [FileProgress(file="3.ckt", mark=9, finished=True)])
    row = target.execute(
        "select mark, restarts, finish_time is not null from wirekite.wirekite_progress"
    ).fetchone()
    assert row == ("9", 1, True)


def test_a_file_applied_in_part_has_no_finish_time(target: psycopg.Connection) -> None:
    """A barrier cut leaves the file open, its mark at the last applied row."""
    progress.end_files(target, [FileProgress(file="3.ckt", mark=4, finished=False)])
    row = target.execute(
        "select mark, finish_time from wirekite.wirekite_progress where operation = 'CL'"
    ).fetchone()
    assert row == ("4", None)


def test_applied_position_is_kept_and_moved_only_from_where_it_stood(
    target: psycopg.Connection,
) -> None:
    """Two loaders on one target: the second to commit is refused."""
    begin = progress.bind_log(target, "log-a")
    first = Applied(segment=0, gsn=10, trx=2, position=2**63 + 5, commit_time_us=1_700_000_000_1)
    progress.advance(target, log_id="log-a", before=begin, after=first)
    assert progress.read_applied(target) == first
    with pytest.raises(progress.AppliedByAnother):
        progress.advance(target, log_id="log-a", before=begin, after=first)


def test_another_log_is_refused(target: psycopg.Connection) -> None:
    """GSNs of a new log begin at 1 again: applied to an old target they would be skipped."""
    progress.bind_log(target, "log-a")
    progress.bind_log(target, "log-a")
    with pytest.raises(progress.TargetFollowsAnotherLog) as caught:
        progress.bind_log(target, "log-b")
    assert "log-a" in caught.value.message
    progress.forget_log(target)
    assert progress.bind_log(target, "log-b") == Applied()


def test_chunk_rows_tell_what_is_done(target: psycopg.Connection) -> None:
    """Only closed DL rows count, table by table."""
    table = TableName("public", "a.b")
    for number in (0, 1, 11):
        progress.begin_chunk(target, table=table, number=number)
    progress.end_chunk(target, table=table, number=11, row_count=500)
    assert progress.finished_chunks(target, table) == {11: 500}
    progress.forget_chunks(target, table)
    assert progress.finished_chunks(target, table) == {}


def test_unknown_action_is_an_error_not_run(target: psycopg.Connection) -> None:
    """A misspelt STOP must not be taken for RUN."""
    target.execute("update wirekite.wirekite_action set action = 'STPO'")
    with pytest.raises(progress.ActionUnknown):
        progress.read_action(target)
    target.execute("delete from wirekite.wirekite_action")
    assert progress.read_action(target) == "RUN"


def test_missing_privilege_names_the_grant(target_url: str, postgres) -> None:
    """A role that may not create schemas is told what to run."""
    database = target_url.rpartition("/")[2]
    postgres.execute("drop role if exists poor")
    postgres.execute("create role poor login password 'p'")
    try:
        url = postgres.url(database, "poor", "p")
        with (
            connect(url, application_name="test") as connection,
            pytest.raises(progress.ProgressUnwritable) as caught,
        ):
            progress.ensure_tables(connection)
        assert 'authorization "poor"' in caught.value.hint
    finally:
        postgres.execute("drop role poor")


def test_shapes_round_trip(target: psycopg.Connection) -> None:
    """Names and types come back as written, non-ASCII ones too."""
    record = TableRecord(
        source=TableName("Pübl", 'q"t'),
        target=TableName("shop", 'q"t'),
        merge_name='q"t_wkm',
        made=True,
        columns=(("ä", "numeric(12,2)"), ("b", '"char"')),
    )
    progress.write_tables(target, [record])
    assert progress.read_tables(target) == {record.source: record}


def test_merge_names_are_short_unique_and_stable() -> None:
    """Same table name in two schemas, names at the limit, and multi-byte ones."""
    first, second = TableName("a", "t"), TableName("b", "t")
    assert progress.merge_name(first, {}) == "t_wkm"
    other = progress.merge_name(second, {"t_wkm": first})
    assert other.startswith("t_")
    assert other.endswith("_wkm")
    assert other != "t_wkm"
    assert progress.merge_name(first, {"t_wkm": first}) == "t_wkm"
    long = [TableName("s", "ö" * 31), TableName("s", "x" * 63), TableName("s", "x" * 62 + "y")]
    names = {progress.merge_name(table, {}) for table in long}
    assert len(names) == 3
    assert all(len(name.encode()) <= 60 for name in names)
