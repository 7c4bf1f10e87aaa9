"""The simulated SQL Server's connection to PostgreSQL: no session stops another one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from plugins.sqlserver import SimServer
from sim_sqlserver.backend import Backend

HELD_S = 0.5
SLOW = "select count(*) from generate_series(1, 100000) a, generate_series(1, 100000) b"


@pytest.fixture
def backend(sqlserver: SimServer, sqlserver_database: str) -> Iterator[Backend]:
    """Connection of one session."""
    with closing(Backend(sqlserver.postgres_url, sqlserver_database, 51)) as opened:
        yield opened


def test_a_locked_table_is_described_later(
    sqlserver: SimServer,
    sqlserver_database: str,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A description that waits for a table's lock lets the thread run that ends the lock."""
    with psycopg.connect(sqlserver.postgres_url, dbname=sqlserver_database) as other:
        other.execute("create table dbo.t (a int)")
        other.commit()
        read, timers = backend._last_result, list[threading.Timer]()

        def lock_after_first() -> Any:
            result = read()
            if not timers:
                other.execute("lock table dbo.t in access exclusive mode")
                timers.append(threading.Timer(HELD_S, other.rollback))
                timers[0].start()
            return result

        monkeypatch.setattr(backend, "_last_result", lock_after_first)
        assert backend.prepare("select a from dbo.t").nfields == 1
        timers[0].join()


def test_a_statement_that_has_just_begun_is_cancelled(backend: Backend) -> None:
    """PostgreSQL forgets a request to cancel that arrives before the statement."""

    class ClientGone(Exception):
        pass

    def leave() -> bool:
        raise ClientGone

    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        backend.watch, backend.client = leave, ours.fileno()
        with pytest.raises(ClientGone):
            next(backend.stream(SLOW))
        backend.cancel()
    assert backend.texts("select 1") == [(1,)]
