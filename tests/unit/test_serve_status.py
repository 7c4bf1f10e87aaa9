"""Readers of the log in `penstock status`: consumers, the server and its slots."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import inserts, number_rows
from harness.pipelines.pipeline import pipeline
from harness.servers.serve import write_log
from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.run import serve_process
from penstock.control.run.serve_process import serve
from penstock.control.status.consumer_list import consumer_lines
from penstock.control.status.serve_status import (
    REPORT_NAME,
    ServeReport,
    ServeReportFile,
    ServeSeen,
    SlotSeen,
    read_serve,
)
from penstock.host.files import REAL_FILES
from penstock.model.sections import ServeSection
from penstock.ports.config import Config
from penstock.serve.numbers import BEFORE_ALL, end_of
from penstock.serve.saved_state import SavedState
from penstock.serve.slots import Slots


def served_pipeline(folder: Path) -> Config:
    """Return a pipeline whose log is served."""
    found = pipeline(folder, "postgresql://u@127.0.0.1:1/d", None)
    section = ServeSection(users={"repl": "s3cret"}, listen="127.0.0.1:0")
    return replace(found, serve=section)


def read_server(config: Config) -> ServeSeen:
    """Return what status reads of the server."""
    found = read_serve(config, read_log_end(config))
    assert found is not None
    return found


@contextmanager
def running(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the log in a thread; yields the address."""
    stops: list[Any] = []
    real = StopRequest

    def stop_request() -> Any:
        stops.append(real())
        return stops[-1]

    monkeypatch.setattr(serve_process, "StopRequest", stop_request)
    monkeypatch.setattr(serve_process, "stop_on_signals", lambda *_, **__: nullcontext())
    monkeypatch.setattr(serve_process, "_LOOK_S", 0.05)
    addresses: list[str] = []
    thread = threading.Thread(target=lambda: serve(config, on_served=addresses.append))
    thread.start()
    try:
        wait_until(lambda: bool(addresses))
        yield addresses[0]
    finally:
        stops[0].ask()
        thread.join(20)


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition, at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_runs_and_its_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, connections and slots are known, and which slot a client streams from."""
    config = served_pipeline(tmp_path)
    write_log(config.layout.log, number_rows([inserts(1), inserts(2, first=1)]))
    with running(config, monkeypatch) as address:
        host, port = address.split(":")
        login = {"host": host, "port": int(port), "user": "repl", "password": "s3cret"}
        with psycopg.connect(**login, dbname=config.pipeline.name, autocommit=True) as one:
            one.execute("select pg_create_logical_replication_slot('etl', 'pgoutput')")
            wait_until(lambda: read_server(config).connections == 1)
        wait_until(lambda: read_server(config).connections == 0)
        found = read_server(config)
        assert (found.pid, found.address) == (os.getpid(), address)
        assert found.slots == (
            SlotSeen(
                name="etl", plugin="pgoutput", is_active=False, confirmed="0/1000009", behind=0
            ),
        )
        assert [line for line, _ in found.lines()] == [
            f"serve: listens on {address} (pid {os.getpid()}), 0 connections",
            "slot etl (pgoutput): no client streams from it, confirmed 0/1000009, has all",
        ]
        (line,) = consumer_lines(config, with_target=False)
        assert (line.name, line.state, line.is_configured) == ("serve", "running", True)
    found = read_server(config)
    assert (found.pid, found.address, found.connections) == (0, "", None)
    assert next(found.lines())[0] == "serve: does not run"


def test_slots_are_told_without_the_server(tmp_path: Path) -> None:
    """A lost one shows why, one with a lag its lag; an old report is ignored."""
    config = served_pipeline(tmp_path)
    write_log(config.layout.log, number_rows([inserts(1), inserts(2, first=1)]))
    end = read_log_end(config)

    REAL_FILES.make_directory(config.layout.state)

    async def make() -> None:
        slots = Slots(SavedState(config.layout.state, log_id=end.log_id), slots_max=10)
        slots.create("behind", "pgoutput", end_of(1, 1))
        slots.lose(slots.create("gone", "pgoutput", BEFORE_ALL), "wal_removed")
        await slots.save()
        slots.close()

    asyncio.run(make())
    ServeReportFile(config.layout.run).write(
        ServeReport(pid=1, address="h:1", connections=3, streaming=("behind",))
    )
    found = read_server(config)
    assert [line for line, _ in found.lines()] == [
        "serve: does not run",
        "slot behind (pgoutput): no client streams from it, confirmed 0/1000004, 5 behind the log",
        "slot gone (pgoutput): lost, wal_removed",
    ]
    assert [is_trouble for _, is_trouble in found.lines()] == [False, False, True]
    assert [one["behind"] for one in found.as_dict()["slots"]] == [5, None]
    (config.layout.run / REPORT_NAME).write_bytes(b"")
    assert read_server(config).address == ""


def test_a_server_that_streams() -> None:
    """A line per slot says whether a client streams; a single connection is in the singular."""
    slot = SlotSeen(name="s", plugin="wal2json", is_active=True, confirmed="0/1", behind=1200)
    found = ServeSeen(pid=7, address="127.0.0.1:5", connections=1, slots=(slot,))
    assert [line for line, _ in found.lines()] == [
        "serve: listens on 127.0.0.1:5 (pid 7), 1 connection",
        "slot s (wal2json): active, confirmed 0/1, 1 200 behind the log",
    ]
    assert next(replace(found, address="").lines())[0] == "serve: starting (pid 7)"


def test_slots_of_another_log(tmp_path: Path) -> None:
    """Slots of another log are a line with its hint, and do not end the status."""
    config = served_pipeline(tmp_path)
    write_log(config.layout.log, number_rows([inserts(1)]))

    REAL_FILES.make_directory(config.layout.state)

    async def make() -> None:
        slots = Slots(SavedState(config.layout.state, log_id="another"), slots_max=10)
        slots.create("s", "pgoutput", BEFORE_ALL)
        await slots.save()
        slots.close()

    asyncio.run(make())
    lines = [line for line, _ in read_server(config).lines()]
    assert "belongs to change log another" in lines[1]
    assert lines[2].startswith("        > The log was created again")


def test_a_log_that_is_not_served(tmp_path: Path) -> None:
    """No line is about a server."""
    config = replace(served_pipeline(tmp_path), serve=None)
    assert read_serve(config, read_log_end(config)) is None
