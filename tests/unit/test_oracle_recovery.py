"""Recovery of mining: each of the server's errors leads to the same log, or to the right error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.servers.redo_log import FakeClock, LogRow, RedoLog
from penstock.engines.oracle.connect import connect_root
from penstock.engines.oracle.source.errors import RedoAwaited, RedoLost, RedoUnreadable
from penstock.engines.oracle.source.mining import (
    RETRIES,
    ROWS_WANTED,
    SESSION_AGE_MAX_S,
    SPAN_MAX,
    SPAN_MIN,
    Miner,
    Span,
)
from penstock.engines.oracle.source.recovery import Recovery, recovery_of
from penstock.host.errors import (
    ConnectionLost,
    ServerBusy,
    StatementFailed,
    StatementInterrupted,
)
from penstock.model import PenstockError
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import CUT, Server

START, CONTENTS, ADD = "START_LOGMNR", "FROM V$LOGMNR_CONTENTS", "ADD_LOGFILE"
Open = Callable[..., RedoLog]


@pytest.fixture
def database() -> Database:
    """Return a database with a table."""
    database = Database()
    database.add_table("SHOP", "T", {"ID": "NUMBER(10)", "A": "VARCHAR2(40)"}, key=["ID"])
    return database


@pytest.fixture
def server(database: Database) -> Server:
    """Return the server of the database."""
    return Server(database)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> RedoLog:
    """Return a log that has begun, with changes that it has not read yet."""
    log = RedoLog(server, install(monkeypatch, server), tmp_path)
    for key in range(5):
        insert(server.database, key)
    server.database.beat()
    server.database.beat()
    return log


def insert(database: Database, key: int) -> None:
    """Insert a row in a transaction of its own."""
    transaction = database.begin()
    transaction.insert(database.table("SHOP", "T"), {"ID": key, "A": "x"})
    transaction.commit()


def keys(log: RedoLog) -> list[Any]:
    """Return the keys of the log's rows."""
    return [one.after["ID"] for _, _, one in log.events() if isinstance(one, LogRow)]


CHOSEN_AGAIN = [310, 334, 1281, 1284, 1285, 1289, 1291, 1292, 1368]


@pytest.mark.parametrize("code", CHOSEN_AGAIN)
@pytest.mark.parametrize(("like", "at_fetch"), [(START, False), (CONTENTS, True), (ADD, False)])
def test_logs_are_chosen_again(
    log: RedoLog, server: Server, code: int, like: str, at_fetch: bool
) -> None:
    """A log that went away between its choice and its reading is chosen again, in one call."""
    server.fail_next(code, like, times=2, at_fetch=at_fetch)
    log.follow()
    assert keys(log) == list(range(5))


@pytest.mark.parametrize("code", CHOSEN_AGAIN)
def test_logs_that_stay_away(log: RedoLog, server: Server, code: int) -> None:
    """A missing log is a loss after some attempts; one that is not ready is waited for."""
    server.fail_next(code, START, times=RETRIES + 1)
    is_lost = code in (1284, 1285, 1291, 1292)
    with pytest.raises(RedoLost if is_lost else RedoAwaited) as caught:
        log.follow()
    assert log.engine.is_loss(caught.value) == is_lost
    log.reconnect()
    log.follow()
    assert keys(log) == list(range(5))


@pytest.mark.parametrize("code", [604, 1001, 1002, 1306, 1327, 1333, 1371, 26653])
@pytest.mark.parametrize(("like", "at_fetch"), [(START, False), (CONTENTS, True)])
def test_the_session_is_renewed(
    log: RedoLog, server: Server, code: int, like: str, at_fetch: bool
) -> None:
    """LogMiner's state is not usable: the window is read in a new session."""
    server.fail_next(code, like, at_fetch=at_fetch)
    log.follow()
    assert keys(log) == list(range(5))


@pytest.mark.parametrize("code", [1013, 4030, 4036])
def test_windows_are_shortened(log: RedoLog, server: Server, code: int) -> None:
    """A window that needs too much is read again, smaller."""
    before = log.engine.miner.span.size
    server.fail_next(code, CONTENTS, at_fetch=True)
    with pytest.raises(StatementInterrupted):
        log.follow()
    assert log.engine.miner.span.size < before
    log.reconnect()
    log.follow()
    assert keys(log) == list(range(5))


@pytest.mark.parametrize("code", [353, 354, 355, 368, 1343, 1346])
def test_corruption_ends_the_log(log: RedoLog, server: Server, code: int) -> None:
    """A corrupt log is never read over."""
    server.fail_next(code, CONTENTS, at_fetch=True)
    with pytest.raises(RedoUnreadable) as caught:
        log.follow()
    assert caught.value.retry == "operator"


@pytest.mark.parametrize(
    "code", [CUT, 28, 1012, 1089, 1033, 1034, 3113, 3114, 3135, 12514, 12537, 12541, 12571, 25408]
)
@pytest.mark.parametrize(("like", "at_fetch"), [(CONTENTS, True), ("V$LOG", False)])
def test_a_lost_connection(
    log: RedoLog, server: Server, code: int, like: str, at_fetch: bool
) -> None:
    """The next attempt continues at the last flush point."""
    server.fail_next(code, like, at_fetch=at_fetch)
    with suppress(ConnectionLost, ServerBusy):
        log.follow()
    log.reconnect()
    log.follow()
    assert ConnectionLost.retry == ServerBusy.retry == "backoff"
    assert keys(log) == list(range(5))


@pytest.mark.parametrize("code", [1031, 942, 900, 65040])
def test_other_errors(log: RedoLog, server: Server, code: int) -> None:
    """An error that is none of mining is raised as it is."""
    server.fail_next(code, START)
    with pytest.raises(PenstockError) as caught:
        log.follow()
    assert caught.value.retry == "operator"
    assert caught.value.fields["errno"] == code


def test_internal_errors() -> None:
    """ORA-00600 is retried for the arguments that are known to pass."""
    known = StatementFailed("x: ORA-00600: internal error code, arguments: [krvrdccs10]", errno=600)
    other = StatementFailed("x: ORA-00600: internal error code, arguments: [kdsgrp1]", errno=600)
    assert recovery_of(known) is Recovery.RENEW
    assert recovery_of(other) is Recovery.RAISE
    assert recovery_of(StatementFailed("x")) is Recovery.RAISE


def test_a_log_that_is_switched(log: RedoLog, server: Server, database: Database) -> None:
    """Logs that are overwritten between choice and fetch cost another attempt, and no row."""
    fetches = []

    def switch(text: str) -> None:
        if CONTENTS in text and len(fetches) < 3:
            fetches.append(text)
            for _ in range(4):
                database.switch()

    server.on_fetch = switch
    log.follow()
    assert len(fetches) > 1
    assert keys(log) == list(range(5))


def test_an_archive_that_is_late(log: RedoLog, server: Server, database: Database) -> None:
    """A log that is not archived yet is read online; one that is missing is waited for."""
    database.logs.archive_lag = 1
    database.switch()
    insert(database, 5)
    log.catch_up()
    assert keys(log) == list(range(6))


def test_files_that_were_removed(log: RedoLog, server: Server, database: Database) -> None:
    """An archive that was deleted outside of RMAN is noticed when it is added."""
    for _ in range(6):
        database.switch()
    database.logs.purge(database.scn, how="rm")
    with pytest.raises(RedoLost):
        log.catch_up()


def test_sessions_grow_old(log: RedoLog, server: Server) -> None:
    """A session is renewed by age, and its settings are made again."""
    log.follow()
    server.statements.clear()
    log.follow()
    assert not any(one.startswith("ALTER SESSION") for one in server.statements)
    log.clock.sleep(SESSION_AGE_MAX_S + 1)
    log.catch_up()
    assert any(one.startswith("ALTER SESSION SET NLS") for one in server.statements)


def test_the_end_of_a_window(log: RedoLog, server: Server, database: Database) -> None:
    """A window ends where the slowest thread has written, never at zero."""
    database.add_thread(2, sequence=70)
    insert(database, 6)
    views = log.engine.miner.read_end(database.first_scn)
    assert views == min(one.last_scn for one in database.logs.threads.values())
    log.follow()
    assert 6 not in keys(log)
    log.catch_up()
    assert 6 in keys(log)


def test_the_clock_of_the_host(log: RedoLog, database: Database) -> None:
    """Commit times are those of the rows, in UTC."""
    log.follow()
    times = [
        row["commit_time"] for run in log.runs if run.transactions is not None
        for row in run.transactions.to_pylist()
    ]  # fmt: skip
    assert len(times) == 5
    assert {one.replace(tzinfo=None, microsecond=0) for one in times} <= {
        database.time_of(one.scn) for one in database.committed
    }
    assert log.engine.server_end().position >> 64 <= database.scn


def test_the_span() -> None:
    """Windows grow while they have few rows or an old transaction pins them, and shrink else."""
    span = Span(1000)
    assert span.end(10, 50, 10_000) == 1050
    assert span.end(100, 50, 600) == 600
    span.note(0, is_pinned=False)
    assert span.size == 2000
    span.note(ROWS_WANTED, is_pinned=False)
    assert span.size == 2000
    span.note(ROWS_WANTED * 3, is_pinned=True)
    assert span.size == 4000
    span.note(ROWS_WANTED * 3, is_pinned=False)
    assert span.size == 2000
    for _ in range(90):
        span.note(0, is_pinned=True)
    assert span.size == SPAN_MAX
    for _ in range(90):
        span.shorten()
    assert span.size == SPAN_MIN


def test_statements_of_an_idle_window(
    monkeypatch: pytest.MonkeyPatch, server: Server, database: Database
) -> None:
    """A look for new redo costs few statements, and does not start LogMiner without any."""
    address = install(monkeypatch, server)
    url = f"oracle://c%23%23penstock:secret@{address}/ORCL?pdb=SHOPPDB"
    miner = Miner(lambda: connect_root(url), clock=FakeClock())
    miner.check()
    server.statements.clear()
    miner.read_end(database.first_scn)
    miner.open_starts()
    assert len(server.statements) <= 7
    assert not any(START in one for one in server.statements)
    miner.close()
