"""Keepalives, acknowledgements and starting positions: the server's view of the client."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness.pipelines.stream import (
    PUBLICATION,
    SLOT,
    PlainShapes,
    changes_of,
    collect,
    prepare,
    rows,
    run_sql,
    streaming,
)
from harness.servers.proxy import Proxy
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.assembly import Limits, PublicationLost
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import (
    PositionAhead,
    PositionGone,
    PublicationMissing,
    SlotInUse,
    SlotMissing,
    create_slot,
)
from penstock.engines.postgres.source.source_identity import ServerIdentity, SourceReplaced
from penstock.engines.postgres.source.standstill import ANSWER_S, TICK_S, ServerSilent
from penstock.engines.postgres.source.stream import PostgresSource, StreamOptions
from penstock.host.clock import RealClock
from penstock.host.errors import ConnectionLost
from penstock.model import FlushPoint, PenstockError
from plugins.postgres import Server

pytestmark = pytest.mark.each_server

DDL = "create table t (id int, v text)"


def _read_confirmed(server: Server) -> int:
    return int(
        server.execute(
            "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
            f" where slot_name = '{SLOT}'"
        )[0][0]
    )


def _stream(url: str, directory: Path, **more: Any) -> PostgresSource:
    """Return a stream of the test's slot that is not started yet."""
    return PostgresSource(
        url,
        options=StreamOptions(slot=SLOT, publication=PUBLICATION),
        start=FlushPoint(position=0),
        spill_directory=directory / "spill",
        **{"shapes": PlainShapes(), **more},
    )


def _until(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_connection_survives_a_writer_that_blocks(own_postgres: Server, tmp_path: Path) -> None:
    """The server gets messages however long the full queue is not read."""
    own_postgres.restart_with(wal_sender_timeout="1s")
    url = own_postgres.make_database("source")
    prepare(url, DDL)
    limits = Limits(row_count=100)
    with (
        connect(url, application_name="test") as sql,
        streaming(url, tmp_path, limits=limits, queue_run_count=2) as source,
    ):
        for _ in range(20):
            sql.execute("insert into t select i, repeat('x', 2000) from generate_series(1, 1000) i")
        time.sleep(5)
        assert source.next_run(1.0) is not None
        got = collect(source, rows(19_900), limit_s=60)
    assert got.changes[-1].gsn == 20_000


def test_idle_connection_survives(own_postgres: Server, tmp_path: Path) -> None:
    """The connection has nothing to send for several times the timeout."""
    own_postgres.restart_with(wal_sender_timeout="1s")
    url = own_postgres.make_database("source")
    prepare(url, DDL)
    with connect(url, application_name="test") as sql, streaming(url, tmp_path) as source:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            source.next_run(0.2)
        sql.execute("insert into t values (1)")
        collect(source, rows(1))


def test_a_server_that_is_silent_after_a_standstill_is_given_up(
    source_url: str, tmp_path: Path
) -> None:
    """The connection is given up if no bytes arrive since this machine stood still."""

    class Woken(RealClock):
        slept_s = 0.0

        def now_us(self) -> int:
            return super().now_us() + int(self.slept_s * 1e6)

    clock = Woken()
    prepare(source_url, DDL)
    port = urlsplit(source_url).port
    assert port is not None
    with Proxy(port) as proxy, connect(source_url, application_name="test") as sql:
        with _stream(proxy.url(source_url), tmp_path, clock=clock) as source:
            clock.slept_s = 60.0  # the server answers: the stream continues
            sql.execute("insert into t values (1)")
            collect(source, rows(1))
            until_s = time.monotonic() + 2 * TICK_S + ANSWER_S
            while time.monotonic() < until_s:
                source.next_run(0.2)
            stalled = threading.Thread(target=proxy.stall, args=(4 * (TICK_S + ANSWER_S),))
            stalled.start()
            clock.slept_s += 60.0
            with pytest.raises(ServerSilent, match="stood still"):
                source.next_run(60.0)
        stalled.join()


def test_slot_moves_only_by_what_was_acknowledged(
    postgres: Server, source_url: str, tmp_path: Path
) -> None:
    """Received changes are not saved yet: those not acknowledged come again after a reconnect."""
    prepare(source_url, DDL)
    shapes = PlainShapes()
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path, shapes=shapes) as source,
    ):
        sql.execute("insert into t values (1)")
        first = collect(source, rows(1))
        source.acknowledge(first.end.position)
        sql.execute("insert into t values (2)")
        second = collect(source, rows(1))
        _until(lambda: _read_confirmed(postgres) == first.end.position)
        assert second.end.position > first.end.position
    assert _read_confirmed(postgres) == first.end.position
    with streaming(source_url, tmp_path, start=first.end, shapes=shapes) as source:
        again = collect(source, rows(1))
    assert [(c.gsn, c.trx, c.after) for c in again.changes] == [(2, 2, {"id": 2, "v": None})]


def test_acknowledged_end_is_not_sent_again(source_url: str, tmp_path: Path) -> None:
    """The END of a commit is acknowledged: its start would bring the transaction again."""
    prepare(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        with streaming(source_url, tmp_path) as source:
            sql.execute("insert into t values (1)")
            got = collect(source, rows(1), acknowledge=True)
        with streaming(source_url, tmp_path) as source:  # position 0: the slot's position
            sql.execute("insert into t values (2)")
            again = collect(source, rows(1))
    assert got.changes[0].after == {"id": 1, "v": None}
    assert [c.after and c.after["id"] for c in again.changes] == [2]


def test_idle_position_comes_as_an_empty_run(
    postgres: Server, source_url: str, tmp_path: Path
) -> None:
    """WAL of other databases moves the position, once all own changes are passed on."""
    prepare(source_url, DDL)
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path, idle_flush_s=0.1) as source,
    ):
        sql.execute("insert into t values (1)")
        got = collect(source, rows(1), acknowledge=True)
        postgres.execute("create table if not exists noise (x text)")
        postgres.execute("insert into noise select repeat('x', 1000) from generate_series(1, 1000)")
        target = int(postgres.execute("select pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
        source.ask_for_position()
        later = collect(
            source,
            lambda c: bool(c.runs) and c.end.position >= target,
            acknowledge=True,
        )
        assert later.changes == []
        assert (later.end.gsn, later.end.trx) == (got.end.gsn, got.end.trx)
        _until(lambda: _read_confirmed(postgres) >= target)
    postgres.execute("drop table noise")


def test_fast_shutdown_waits_for_our_position_and_ends(
    own_postgres: Server, tmp_path: Path
) -> None:
    """The server waits until everything is acknowledged, and then stops without a timeout."""
    own_postgres.restart_with(wal_sender_timeout="0")
    url = own_postgres.make_database("source")
    prepare(url, DDL)
    ended: list[BaseException] = []
    with connect(url, application_name="test") as sql, streaming(url, tmp_path) as source:
        sql.execute("insert into t values (1)")
        sql.close()

        def consume() -> None:
            try:
                for run in source.runs():
                    if run.end is not None:
                        source.acknowledge(run.end.position)
            except ConnectionLost as error:
                ended.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        own_postgres.stop("fast")
        thread.join(30)
    assert ended
    facts = subprocess.check_output(
        [own_postgres.bindir / "pg_controldata", own_postgres.directory],
        env={"LC_ALL": "C"},
        text=True,
    )
    # A server that does not stop is killed in the end, and remains "in production".
    assert re.search(r"cluster state: +shut down$", facts, re.MULTILINE)
    own_postgres.start()


def test_known_transactions_are_dropped(source_url: str, tmp_path: Path) -> None:
    """Transactions that the log already has are not written again if a server resends them."""
    prepare(source_url, DDL)
    shapes = PlainShapes()
    with connect(source_url, application_name="test") as sql:
        with streaming(source_url, tmp_path, shapes=shapes) as source:
            run_sql(sql, "insert into t values (1);; insert into t values (2);; truncate t")
            got = collect(source, lambda c: len(c.markers) == 1)
            run_sql(sql, "insert into t values (3)")
        # The stream begins at the slot's position, the assembler after the third transaction:
        # as if the server sent them again.
        source = _stream(source_url, tmp_path, shapes=shapes)
        source._assembler._known_below = got.end.position
        with source:
            again = collect(source, rows(1))
            assert source.counts.skipped_transaction_count == 3
    assert [c.after and c.after["id"] for c in again.changes] == [3]
    assert again.markers == []


def test_missing_slot_is_never_made_again(source_url: str, tmp_path: Path) -> None:
    """The error says what to do; no slot is created."""
    prepare(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        sql.execute("select pg_drop_replication_slot(%s)", (SLOT,))
        with (
            pytest.raises(SlotMissing),
            streaming(source_url, tmp_path, start=FlushPoint(position=1)),
        ):
            pass
        found = sql.execute(
            "select 1 from pg_replication_slots where slot_name = %s", (SLOT,)
        ).fetchone()
    assert found is None


def test_slot_that_somebody_advanced_is_a_gap(source_url: str, tmp_path: Path) -> None:
    """The server would silently begin at the slot's position: the gap is detected here."""
    prepare(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        with streaming(source_url, tmp_path) as source:
            sql.execute("insert into t values (1)")
            got = collect(source, rows(1), acknowledge=True)
        sql.execute("set synchronous_commit = on")
        sql.execute("insert into t values (2)")
        _until(lambda: _is_released(source_url))
        sql.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (SLOT,))
        with pytest.raises(PositionGone), streaming(source_url, tmp_path, start=got.end):
            pass


def _is_released(url: str) -> bool:
    with connect(url, application_name="test") as sql:
        row = sql.execute(
            "select active from pg_replication_slots where slot_name = %s", (SLOT,)
        ).fetchone()
    return row == (False,)


def test_server_put_back_from_a_copy_is_seen(source_url: str, tmp_path: Path) -> None:
    """A log that is further than the server's WAL is refused."""
    prepare(source_url, DDL)
    with (
        pytest.raises(PositionAhead),
        streaming(source_url, tmp_path, start=FlushPoint(position=1 << 60)),
    ):
        pass


def test_another_server_is_refused(source_url: str, tmp_path: Path) -> None:
    """System identifier, database and its oid must be those that filled the log."""
    prepare(source_url, DDL)
    expected = ServerIdentity(system_id="1", timeline=1, database="x", database_id=1)
    source = _stream(source_url, tmp_path, expected=expected)
    with pytest.raises(SourceReplaced, match="system identifier"), source:
        pass


def test_slot_in_use_names_the_reader(source_url: str, tmp_path: Path) -> None:
    """The error has the PID to end, after the stated patience."""
    prepare(source_url, DDL)
    with streaming(source_url, tmp_path) as first:
        with (
            pytest.raises(SlotInUse) as caught,
            streaming(source_url, tmp_path / "other", slot_wait_s=0.5),
        ):
            pass
        assert first._connection is not None
        assert caught.value.fields["pid"] == first._connection.process_id
    with streaming(source_url, tmp_path, slot_wait_s=10):
        pass


def test_missing_publication_is_seen_before_the_start(source_url: str, tmp_path: Path) -> None:
    """The start is refused, because PostgreSQL 18 would only warn and skip the rows."""
    prepare(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        sql.execute(f'drop publication "{PUBLICATION}"'.encode())
        with pytest.raises(PublicationMissing), streaming(source_url, tmp_path):
            pass


def test_publication_dropped_while_streaming_stops_the_stream(
    source_url: str, tmp_path: Path
) -> None:
    """No row is skipped, whether the server fails (up to 17) or only warns (18)."""
    prepare(source_url, DDL)
    with connect(source_url, application_name="test") as sql:
        sql.execute("alter role current_user set client_min_messages = error")
        try:
            with streaming(source_url, tmp_path) as source:
                sql.execute("insert into t values (1)")
                collect(source, rows(1))
                sql.execute(f'drop publication "{PUBLICATION}"'.encode())
                sql.execute("insert into t values (2)")
                with pytest.raises(PenstockError) as caught:
                    collect(source, rows(1))
        finally:
            sql.execute("alter role current_user reset client_min_messages")
    assert isinstance(caught.value, PublicationLost) or "does not exist" in str(caught.value)


def test_slow_slot_creation_names_its_blockers(
    source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten transaction delays the slot: the error names it, and has the SQL that ends it."""
    monkeypatch.setattr("penstock.engines.postgres.source.slot.BLOCKERS_AFTER_S", 1.0)
    seen: list[str] = []
    with connect(source_url, application_name="forgotten", autocommit=False) as blocker:
        blocker.execute("create table x (i int)")

        def on_blocked(seconds: float, found: list[object]) -> None:
            seen.extend(item.sql for item in found)  # type: ignore[attr-defined]
            blocker.rollback()

        with open_replication(source_url, application_name="test") as replication:
            created = create_slot(
                replication, source_url, "slow", snapshot=False, on_blocked=on_blocked
            )
        assert created.position > 0
        assert f"select pg_terminate_backend({blocker.info.backend_pid});" in seen


def test_rows_of_any_size_pass(source_url: str, tmp_path: Path) -> None:
    """A value larger than the read buffer enlarges it; the memory is released afterwards."""
    prepare(source_url, DDL)
    with (
        connect(source_url, application_name="test") as sql,
        streaming(source_url, tmp_path) as source,
    ):
        sql.execute("insert into t values (1, repeat('x', 30000000))")
        sql.execute("insert into t values (2, 'y')")
        got = collect(source, rows(2))
    lengths = [len(c.after["v"]) for run in got.runs for c in changes_of(run) if c.after]
    assert lengths == [30_000_000, 1]
