"""An extractor of MySQL and MariaDB is killed at every kind of moment, without any effect."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.stream import changes_of
from penstock.log import check, list_segments, open_chain
from penstock.model import Run
from plugins.mysql import MySQLServer, database_of

pytestmark = pytest.mark.faults
CHILD = Path(__file__).with_name("mysql_extract_child.py")
MOMENTS = [
    "extract.write.after:3",
    "extract.flush.before:2",
    "extract.flush.after:2",
    "extract.acknowledge.after:3",
    "extract.rotate.before:2",
    "extract.rotate.after:1",
    "extract.record.before:1",
    "extract.done.before:1",
    "binlog.start.before:1",
    "binlog.acknowledge.before:2",
    "binlog.acknowledge.after:1",
    "prepared.keep.before:1",
    "prepared.keep.after:1",
    "log.create.before:2",
    "log.flush.before:3",
    "log.flush.after:1",
]
EXACT = "binlog_exact.json"


def child(url: str, directory: Path, fault: str = "") -> int:
    """Run one extraction until it ends or dies; return the exit code."""
    environment = {**os.environ, "PENSTOCK_FAULT": f"{fault}:kill" if fault else ""}
    done = subprocess.run(
        [sys.executable, str(CHILD), url, str(directory)],
        env=environment,
        timeout=120,
        capture_output=True,
        check=False,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        pytest.fail(done.stderr.decode()[-3000:])
    return done.returncode


def work(server: MySQLServer, url: str, directory: Path) -> None:
    """Write small transactions, a larger one, XA, a new file, a new column, once the extractor
    runs.
    """
    deadline = time.monotonic() + 20
    while not (directory / "spill").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:

        def run(*statements: str) -> None:
            for statement in statements:
                cursor.execute(statement)

        for number in range(40):
            run("begin", f"insert into t values ({number}, 'a')")
            run(f"update t set v = 'b' where id = {number}", "commit")
            time.sleep(0.01)
        run("xa start 'x'", "insert into t values (5000, 'xa')", "xa end 'x'", "xa prepare 'x'")
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        many = ", ".join(f"({number}, repeat('x', 100))" for number in range(100, 1500))
        cursor.execute(f"insert into t values {many}")
        cursor.execute("flush binary logs")
        cursor.execute("delete from t where id < 20")
        time.sleep(0.2)
        cursor.execute("xa commit 'x'")
        cursor.execute("alter table t add column c int not null default 7")
        for number in range(4000, 4040):
            cursor.execute(f"insert into t values ({number}, 'c', {number})")
            time.sleep(0.01)


def replay_log(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the table by applying the log's rows in order; fails on anything unexpected."""
    table: dict[int, dict[str, Any]] = {}
    last_gsn = last_trx = 0
    for segment in open_chain(list_segments(directory / "log")):
        with segment:
            changes = changes_of(Run(rows=tuple(segment.rows())))
        for change in changes:
            assert change.gsn == last_gsn + 1
            assert change.trx in (last_trx, last_trx + 1)
            last_gsn, last_trx = change.gsn, change.trx
            if change.op == "D":
                assert change.before is not None
                del table[change.before["id"]]
                continue
            assert change.after is not None
            key = change.after["id"]
            assert (key in table) is (change.op == "U")
            table[key] = change.after
    return table


def select(server: MySQLServer, url: str) -> dict[int, str]:
    """Return the table's rows."""
    return dict(server.execute("select id, v from t", database_of(url)))


def prepare(server: MySQLServer, url: str, directory: Path) -> None:
    """Create a table, and a log that begins here."""
    server.execute("create table t (id int primary key, v text)", database_of(url))
    assert child(url, directory) == 0


CASES = [
    pytest.param(
        moment,
        exact,
        id=f"{moment}-{'exact' if exact else 'behind'}",
        marks=[] if exact == (number % 2 == 0) else [pytest.mark.long],
    )
    for number, moment in enumerate(MOMENTS)
    for exact in (True, False)
]


@pytest.mark.promise
@pytest.mark.parametrize(("moment", "exact"), CASES)
def test_killed_and_started_again(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, moment: str, exact: bool
) -> None:
    """Every row comes once and in order, even if only an older state is left."""
    prepare(mysql, mysql_url, tmp_path)
    (tmp_path / "spill").rmdir()
    worker = threading.Thread(target=work, args=(mysql, mysql_url, tmp_path))
    worker.start()
    code = child(mysql_url, tmp_path, moment)
    worker.join()
    assert code == -signal.SIGKILL, f"{moment} was never reached"
    if not exact:
        (tmp_path / "run" / EXACT).unlink(missing_ok=True)
    assert child(mysql_url, tmp_path) == 0
    table = replay_log(tmp_path)
    assert {key: row["v"] for key, row in table.items()} == select(mysql, mysql_url)
    assert [f for f in check(tmp_path / "log") if f.severity == "error"] == []


def test_killed_again_and_again(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> None:
    """Every row comes once and in order after kills at random moments."""
    prepare(mysql, mysql_url, tmp_path)
    (tmp_path / "spill").rmdir()
    worker = threading.Thread(target=work, args=(mysql, mysql_url, tmp_path))
    worker.start()
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, str(CHILD), mysql_url, str(tmp_path)], stderr=subprocess.DEVNULL
        )
        time.sleep(random.uniform(0.8, 2.0))
        process.kill()
        process.wait()
        if random.random() < 0.5:
            (tmp_path / "run" / EXACT).unlink(missing_ok=True)
    worker.join()
    assert child(mysql_url, tmp_path) == 0
    table = replay_log(tmp_path)
    assert {key: row["v"] for key, row in table.items()} == select(mysql, mysql_url)
