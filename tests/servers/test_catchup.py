"""Catching up by COPY gives the same log as streaming."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import QUICK, SLOT, extractor_of, log_changes, segments_of, set_up
from harness.pipelines.stream import run_sql
from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.assemble import PublicationLost
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import SlotState, create_slot, read_slot
from penstock.engines.postgres.source.source_identity import TimelineForked
from penstock.extract.extractor import ExtractOptions
from penstock.log.layout import list_open_segments
from plugins.postgres import Server

BY_COPY = replace(QUICK, catch_up_bytes=1, catch_up_range_bytes=256 * 1024, process_commits=True)
STREAMED = replace(QUICK, slot="other", catch_up_bytes=0, process_commits=True)

DDL = """
    create table t (id int primary key, n int, big text);;
    alter table t alter big set storage external;;
    create table "Ü b" (a int, b text);;
    alter table "Ü b" replica identity full;;
    create table p (id int primary key, v text) partition by range (id);;
    create table p1 partition of p for values from (0) to (1000000)
"""


def _work(url: str) -> None:
    """Make changes of every kind, many of them in one transaction."""
    with connect(url, application_name="work", autocommit=False) as sql:
        name = sql.info.dbname
        sql.execute(f"alter database \"{name}\" set logical_decoding_work_mem = '64kB'".encode())
        sql.commit()
        for number in range(60):
            sql.execute("insert into t values (%s, 1, repeat('x', 3000))", (number,))
            sql.execute("insert into \"Ü b\" values (%s, null), (%s, 'ü')", (number, number))
            sql.execute("insert into p values (%s, repeat('y', 50))", (number,))
            sql.commit()
            sql.execute("update t set n = 2 where id = %s", (number,))
            sql.execute('delete from "Ü b" where a = %s and b is null', (number,))
            sql.commit()
        sql.execute("insert into t select i, 3, repeat('z', 100) from generate_series(100, 9000) i")
        sql.execute("savepoint s")
        sql.execute("insert into t select i, 4, '' from generate_series(10000, 15000) i")
        sql.execute("rollback to s")
        sql.execute("select pg_logical_emit_message(true, 'app', 'hello')")
        sql.commit()
        sql.execute('truncate "Ü b", p')
        sql.commit()
        sql.execute("alter table t add c timestamp")
        sql.execute("update t set id = -id where id < 50")
        sql.execute("insert into t values (100000, 5, '', 'infinity')")
        sql.commit()
        sql.execute("select pg_switch_wal()")
        for number in range(200000, 200100):
            sql.execute("insert into t values (%s, 6, repeat('w', 5000), now())", (number,))
            sql.commit()


def _both(url: str, directory: Path, work: Any) -> tuple[Path, Path]:
    """Extract the same changes in both ways, each into a directory; return the directories."""
    set_up(url, DDL)
    with open_replication(url, application_name="test") as replication:
        create_slot(replication, url, "other", snapshot=False)
    work(url)
    places = directory / "copy", directory / "stream"
    for place, options in zip(places, (BY_COPY, STREAMED), strict=True):
        extractor_of(url, place, options=options).run()
    return places


def _marks(directory: Path) -> list[Any]:
    with segments_of(directory) as segments:
        return [
            (m.kind, m.gsn, m.trx, m.position, m.commit_time_us, m.tables, m.data)
            for segment in segments
            for m in segment.markers()
        ]


def _transactions(directory: Path) -> list[Any]:
    with segments_of(directory) as segments:
        return [
            s.transactions.find(number)
            for s in segments
            for number in range(s.start.trx + 1, s.end.trx + 1)
        ]


def test_both_ways_give_the_same_log(
    source_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows, markers and transactions are equal over many ranges; then streaming continues."""
    copied, streamed = _both(source_url, tmp_path, _work)
    assert log_changes(copied) == log_changes(streamed)
    assert _marks(copied) == _marks(streamed)
    assert _transactions(copied) == _transactions(streamed)
    with connect(source_url, application_name="test") as sql:
        rows = sql.execute("select count(*) from t").fetchone()
    assert rows is not None
    assert rows[0] > 9000


def test_the_slot_was_moved_by_ranges(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above reads by COPY and acknowledges range by range."""
    from penstock.engines.postgres.source import catchup

    positions: list[int] = []
    advance = catchup.CatchUp.advance

    def counted(self: catchup.CatchUp) -> None:
        advance(self)
        state = read_slot(self._connection, SLOT)
        assert state is not None
        positions.append(state.confirmed_flush)
        (row,) = self._connection.query("select pg_current_wal_flush_lsn() as lsn", doing="looking")
        assert self.end.position <= Lsn.parse(row["lsn"] or "").ordinal
        assert state.confirmed_flush == self.end.position
        # Consumers may read the rows of a range while the server decodes the next one.
        assert not list_open_segments(tmp_path / "copy" / "log")

    monkeypatch.setattr(catchup.CatchUp, "advance", counted)
    both = replace(BY_COPY, catch_up_range_bytes=1024 * 1024)
    monkeypatch.setattr(f"{__name__}.BY_COPY", both)
    _both(source_url, tmp_path, _work)
    assert len(positions) >= 2
    assert positions == sorted(positions)


def test_the_stream_begins_where_ranges_ended(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server need not decode the ranges again: restart_lsn was moved past them."""
    from penstock.engines.postgres.source import catchup

    found: list[SlotState | None] = []
    close = catchup.CatchUp.__exit__

    def look(self: catchup.CatchUp, *error: Any) -> None:
        found.append(read_slot(self._connection, SLOT))
        close(self, *error)

    monkeypatch.setattr(catchup.CatchUp, "__exit__", look)
    set_up(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        sql.execute("insert into t select i, 3, repeat('z', 100) from generate_series(1, 9000) i")
        row = sql.execute("select pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        is_known = sql.info.server_version >= 160_000
    extractor_of(source_url, tmp_path, options=BY_COPY).run()
    assert len(log_changes(tmp_path)) == 9000
    (state,) = found
    assert state is not None
    if is_known:
        assert Lsn.parse(row[0]).ordinal <= state.restart <= state.confirmed_flush


def test_what_is_left_is_read_by_ranges_down_to_an_eighth(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first range is not worth it for so small a backlog; after other ranges it is."""
    from penstock.engines.postgres.source import catchup

    behind: list[int] = []
    advance = catchup.CatchUp.advance

    def counted(self: catchup.CatchUp) -> None:
        advance(self)
        behind.append(self._server_end() - self.end.position)

    monkeypatch.setattr(catchup.CatchUp, "advance", counted)
    set_up(source_url, DDL)
    for rows in (5, 9000):
        with connect(source_url, application_name="test") as sql:
            sql.execute("truncate t")
            sql.execute(
                "insert into t select i, 3, repeat('z', 1000) from generate_series(1, %s) i",
                (rows,),
            )
        limit = 4 * 2**20
        options = replace(BY_COPY, catch_up_bytes=limit, catch_up_range_bytes=2**20)
        extractor_of(source_url, tmp_path, options=options).run()
        if rows == 5:
            assert not behind
    assert any(limit // 8 <= left < limit for left in behind)
    assert behind[-1] < limit // 8
    assert len([c for c in log_changes(tmp_path) if c.after]) == 9005


def test_old_open_transaction_ends_the_catching_up(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction holds restart_lsn back, so each range would decode all since then."""
    from penstock.engines.postgres.source import catchup

    ends: list[int] = []
    monkeypatch.setattr(
        catchup.CatchUp,
        "advance",
        lambda self, a=catchup.CatchUp.advance: (ends.append(self.end.position), a(self)),
    )
    set_up(source_url, DDL)
    with (
        connect(source_url, application_name="old", autocommit=False) as old,
        connect(source_url, application_name="test") as sql,
    ):
        old.execute("insert into p values (1, 'open')")
        for number in range(500):
            sql.execute("insert into t values (%s, 1, repeat('x', 20000))", (number,))
            if number % 50 == 0:
                sql.execute("checkpoint")
        extractor_of(source_url, tmp_path, options=BY_COPY).run()
        bound = catchup.RANGE_GROWTH * BY_COPY.catch_up_range_bytes
        assert len(ends) >= 3
        # Each range is half as long as the part decoded before it, up to three times the bound.
        assert bound < ends[-1] - ends[0] <= 3 * bound
        with segments_of(tmp_path) as segments:
            assert segments[-1].end.position - ends[0] > 4 * bound  # the rest was streamed
        old.commit()
        extractor_of(source_url, tmp_path, options=BY_COPY).run()
    ids = [c.after["id"] for c in log_changes(tmp_path) if c.after]
    assert ids == [*range(500), 1]


def test_lost_publication_is_seen_in_a_range(source_url: str, tmp_path: Path) -> None:
    """A notice before the first row (an error before 18) shows it, so that no row is skipped."""
    set_up(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        run_sql(
            sql, "insert into t values (1, 1, '');; drop publication p;; create table x (i int)"
        )
        sql.execute("insert into t values (2, 2, repeat('x', 300000))")
        sql.execute("create publication p for table t with (publish_via_partition_root = true)")
        sql.execute("insert into t values (3, 3, '')")
    options = ExtractOptions(
        slot=SLOT, publication="p", catch_up_bytes=1, exit_when_idle=True, idle_wait_s=0.5
    )
    with pytest.raises(Exception) as caught:
        extractor_of(source_url, tmp_path, options=options).run()
    assert isinstance(caught.value, PublicationLost) or "does not exist" in str(caught.value)


# -- fail-over -------------------------------------------------------------------------------------


def _promote(server: Server) -> None:
    """Stop the server, and start it as a standby that is promoted at once: the next timeline."""
    server.stop()
    (server.directory / "standby.signal").touch()
    server.start()
    server.execute("select pg_promote()")


def _write(server: Server, url: str, first: int, count: int) -> None:
    with connect(url, application_name="work", autocommit=False) as sql:
        for number in range(first, first + count):
            sql.execute("insert into t values (%s, 1, repeat('x', 20000))", (number,))
            sql.commit()


def test_a_good_fail_over_while_far_behind_goes_on(own_postgres: Server, tmp_path: Path) -> None:
    """Ranges on both sides of the promotion are read, then the stream; then all of it again."""
    url = own_postgres.make_database("source")
    set_up(url, DDL)
    _write(own_postgres, url, 0, 10)
    extractor_of(url, tmp_path, options=BY_COPY).run()
    _write(own_postgres, url, 10, 40)
    _promote(own_postgres)
    _write(own_postgres, url, 50, 40)
    extractor_of(url, tmp_path, options=BY_COPY).run()
    _write(own_postgres, url, 90, 40)
    extractor_of(url, tmp_path, options=BY_COPY).run()
    assert [c.after["id"] for c in log_changes(tmp_path) if c.after] == list(range(130))


def test_a_fail_over_that_lost_what_the_log_has_is_refused_first(
    own_postgres: Server, tmp_path: Path
) -> None:
    """No row gets into the log before the refusal, and the slot stays where it is."""
    url = own_postgres.make_database("source")
    set_up(url, DDL)
    own_postgres.stop()
    copy = own_postgres.directory.with_name("copy")
    shutil.copytree(own_postgres.directory, copy)
    own_postgres.start()
    _write(own_postgres, url, 0, 40)
    extractor_of(url, tmp_path, options=BY_COPY).run()
    before = log_changes(tmp_path)
    own_postgres.stop()
    for path in own_postgres.directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    owner = own_postgres.directory.stat()
    shutil.copytree(copy, own_postgres.directory, dirs_exist_ok=True)
    for path in own_postgres.directory.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)
    own_postgres.directory.chmod(0o700)
    own_postgres.start()
    _promote(own_postgres)
    _write(own_postgres, url, 1000, 120)  # further than the log
    with open_replication(url, application_name="test") as replication:
        slot = read_slot(replication, SLOT)
        with pytest.raises(TimelineForked):
            extractor_of(url, tmp_path, options=BY_COPY).run()
        assert read_slot(replication, SLOT) == slot
    assert log_changes(tmp_path) == before
