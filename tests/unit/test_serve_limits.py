"""Limits that hold when many clients arrive at once: each is counted before the server waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.pipelines.log import inserts, number_rows
from harness.servers.serve import Patterns, Running, Welcome, limits, settings_of, write_log
from harness.servers.serve_client import Raw, wait_until
from penstock.serve.catalog.answers import Session
from penstock.serve.source_log import Head, SourceLog

AT_ONCE = 12


class SlowWelcome(Welcome):
    """A slow welcome, during which the next client arrives."""

    def begin(self, session: Session, parameters: dict[str, str]) -> dict[str, str]:
        time.sleep(0.05)
        return super().begin(session, parameters)


def test_connections_that_log_in_at_one_moment(tmp_path: Path) -> None:
    """The limit holds, and the other clients get an error."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    settings = settings_of(limits=limits(connections=3))
    together = threading.Barrier(AT_ONCE)

    def log_in(running: Running) -> Raw | None:
        client = Raw(running, login=False)
        together.wait(20)
        try:
            client.log_in()
        except EOFError:
            client.close()
            return None
        return client

    welcome = SlowWelcome(Patterns(), "15.0")
    with Running(tmp_path, settings=settings, welcome=welcome) as running:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(log_in, [running] * AT_ONCE))
        inside = [client for client in found if client is not None]
        assert len(inside) == 3
        for client in inside:
            client.close()
        wait_until(lambda: not running.serving.clients)
        again = Raw(running)
        again.close()


def test_streams_that_begin_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of max_wal_senders holds, although each looks at the log first."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    real = SourceLog.head

    def head(log: SourceLog) -> Head:
        time.sleep(0.02)
        return real(log)

    settings = settings_of(limits=limits(senders=2))
    with Running(tmp_path, settings=settings) as running:
        clients = [Raw(running) for _ in range(6)]
        for number, client in enumerate(clients):
            client.query(f"CREATE_REPLICATION_SLOT s{number} LOGICAL pgoutput NOEXPORT_SNAPSHOT")
            client.until(b"Z")
        monkeypatch.setattr(SourceLog, "head", head)
        options = "(proto_version '1', publication_names 'p')"
        for number, client in enumerate(clients):
            client.query(f"START_REPLICATION SLOT s{number} LOGICAL 0/0 {options}")
        answers = [client.message() for client in clients]
        assert sorted(kind for kind, _ in answers) == [b"E"] * 4 + [b"W"] * 2
        assert all(b"C53300\0" in body for kind, body in answers if kind == b"E")
        for client in clients:
            client.close()
        wait_until(lambda: not running.serving.senders)
